# SPDX-License-Identifier: Apache-2.0
"""Providers nested below the rows of a table, as they change with them in a what-if."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec.structs import replace

from gantt.core.resources.host import HostChange, HostRow
from gantt.core.resources.provider import SharedPool

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

_One = TypeVar('_One', HostRow, SharedPool)


def copied_name(top: str, name: str) -> str:
    """Return the name of a copy of ``name`` in the tree of a new root."""
    return f'{top}-{name}'


class NestedProviderEditor(abc.ABC, Generic[_One]):
    """Providers nested below the rows of a table.

    :ivar table: the edited table
    """

    def __init__(self, table: 'HostTable') -> None:
        self.table = table

    @abc.abstractmethod
    def below(self, top: int) -> list[_One]:
        """Return all providers below a row, at any depth, by id."""

    @abc.abstractmethod
    def put(self, one: _One) -> None:
        """Store a provider in its new state."""

    @abc.abstractmethod
    def drop(self, one: _One) -> None:
        """Remove a provider."""

    @abc.abstractmethod
    def placed(self, one: _One, parent: int, root: HostRow) -> _One:
        """Return a provider moved to another place.

        :param root: the root row of its tree
        """

    @abc.abstractmethod
    def emptied(self, one: _One) -> _One:
        """Return a provider without claims or usage."""

    def names(self, top: int) -> frozenset[str]:
        """Return names of the providers below a row, where these have rows of their own."""
        return frozenset()

    def remove(self, top: int) -> int:
        """Remove the providers below a row; return their number."""
        providers = self.below(top)
        for provider in providers:
            self.drop(provider)
        return len(providers)

    def empty(self, top: int) -> None:
        """Remove claims and usage of the providers below a row."""
        for provider in self.below(top):
            self.put(self.emptied(provider))

    def copy(self, top: int, root: HostRow, next_id: Callable[[], int]) -> int:
        """Copy the providers below a row, unused, to below another row; return their number.

        :param next_id: returns an id that no provider has
        """
        providers = self.below(top)
        ids = {top: root.id} | {provider.id: next_id() for provider in providers}
        for provider in providers:
            number = ids[provider.id]
            copied = replace(
                self.emptied(provider),
                id=number,
                uuid=f'what-if-{number}',
                name=copied_name(root.name, provider.name),
            )
            self.put(self.placed(copied, ids[provider.parent], root))
        return len(providers)


class BelowHosts(NestedProviderEditor[SharedPool]):
    """Devices and cells, which the table of hosts has next to its rows."""

    def below(self, top: int) -> list[SharedPool]:
        pools = self.table.pools
        return [pools.by_id[pid] for pid in pools.nested.of_host(top)]

    def put(self, one: SharedPool) -> None:
        self.table.set_pool(one)

    def drop(self, one: SharedPool) -> None:
        self.table.remove_pool(one.id)

    def placed(self, one: SharedPool, parent: int, root: HostRow) -> SharedPool:
        return replace(one, parent=parent, root=root.id)

    def emptied(self, one: SharedPool) -> SharedPool:
        version = max(one.version, one.usage_version) + 1
        return replace(one, used={}, foreign={}, version=version, usage_version=0)


class BelowPools(NestedProviderEditor[HostRow]):
    """Parts of pools, which are rows of the table of pools as well."""

    def __init__(self, table: 'HostTable') -> None:
        super().__init__(table)
        self._children: dict[int, list[int]] = {}
        for row in table.hosts:
            if row.parent:
                self._children.setdefault(row.parent, []).append(row.id)

    def below(self, top: int) -> list[HostRow]:
        pool_ids, pending, rows = set[int](), [top], self.table.row_by_id
        while pending:
            new = [
                pool_id
                for pool_id in self._children.get(pending.pop(), ())
                if pool_id not in pool_ids
            ]
            pool_ids.update(new)
            pending += new
        return [self.table.hosts[rows[pid]] for pid in sorted(pool_ids) if pid in rows]

    def put(self, one: HostRow) -> None:
        self.table.apply(HostChange(provider_id=one.id, row=one))

    def drop(self, one: HostRow) -> None:
        self.table.apply(HostChange(provider_id=one.id, row=None))

    def placed(self, one: HostRow, parent: int, root: HostRow) -> HostRow:
        return replace(one, parent=parent)

    def emptied(self, one: HostRow) -> HostRow:
        return replace(one, used={}, foreign={}, version=one.version + 1)

    def names(self, top: int) -> frozenset[str]:
        return frozenset(pool.name for pool in self.below(top))
