# SPDX-License-Identifier: Apache-2.0
"""What is nested below the rows of a table, as it goes with them in a what-if."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec.structs import replace

from gantt.core.resources.host import HostChange, HostRow
from gantt.core.resources.shared_pool import SharedPool

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

_One = TypeVar('_One', HostRow, SharedPool)


def copied_name(top: str, name: str) -> str:
    """Of a copy of what goes by ``name``, in the tree of a new root."""
    return f'{top}-{name}'


class Nested(abc.ABC, Generic[_One]):
    """What is nested below the rows of a table.

    :ivar table: the one that is edited
    """

    def __init__(self, table: 'HostTable') -> None:
        self.table = table

    @abc.abstractmethod
    def below(self, top: int) -> list[_One]:
        """All that is below a row, at any depth, by id."""

    @abc.abstractmethod
    def put(self, one: _One) -> None:
        """One as it becomes."""

    @abc.abstractmethod
    def drop(self, one: _One) -> None:
        """One that goes."""

    @abc.abstractmethod
    def placed(self, one: _One, parent: int, root: HostRow) -> _One:
        """One in another place.

        :param root: the row that the tree is below of
        """

    @abc.abstractmethod
    def emptied(self, one: _One) -> _One:
        """One on which nothing is claimed or runs."""

    def names(self, top: int) -> frozenset[str]:
        """What is below a row is called so, where it has rows of its own."""
        return frozenset()

    def remove(self, top: int) -> int:
        """Take away what is below a row; how many there were."""
        found = self.below(top)
        for one in found:
            self.drop(one)
        return len(found)

    def empty(self, top: int) -> None:
        """Nothing is claimed or runs on what is below a row."""
        for one in self.below(top):
            self.put(self.emptied(one))

    def copy(self, top: int, root: HostRow, next_id: Callable[[], int]) -> int:
        """Copy what is below a row, unused, to below another one; how many there are.

        :param next_id: an id that no provider has
        """
        found = self.below(top)
        ids = {top: root.id} | {one.id: next_id() for one in found}
        for one in found:
            number = ids[one.id]
            made = replace(
                self.emptied(one),
                id=number,
                uuid=f'what-if-{number}',
                name=copied_name(root.name, one.name),
            )
            self.put(self.placed(made, ids[one.parent], root))
        return len(found)


class BelowHosts(Nested[SharedPool]):
    """Devices and cells, which the table of hosts has next to its rows."""

    def below(self, top: int) -> list[SharedPool]:
        pools = self.table.pools
        return [pools.of_id[pid] for pid in pools.nested.of_host(top)]

    def put(self, one: SharedPool) -> None:
        self.table.set_pool(one)

    def drop(self, one: SharedPool) -> None:
        self.table.remove_pool(one.id)

    def placed(self, one: SharedPool, parent: int, root: HostRow) -> SharedPool:
        return replace(one, parent=parent, root=root.id)

    def emptied(self, one: SharedPool) -> SharedPool:
        version = max(one.version, one.usage_version) + 1
        return replace(one, used={}, foreign={}, version=version, usage_version=0)


class BelowPools(Nested[HostRow]):
    """Parts of pools, which are rows of the table of pools as well."""

    def __init__(self, table: 'HostTable') -> None:
        super().__init__(table)
        self._children: dict[int, list[int]] = {}
        for row in table.hosts:
            if row.parent:
                self._children.setdefault(row.parent, []).append(row.id)

    def below(self, top: int) -> list[HostRow]:
        found, open_ones, rows = set[int](), [top], self.table.row_by_id
        while open_ones:
            new = [one for one in self._children.get(open_ones.pop(), ()) if one not in found]
            found.update(new)
            open_ones += new
        return [self.table.hosts[rows[pid]] for pid in sorted(found) if pid in rows]

    def put(self, one: HostRow) -> None:
        self.table.apply(HostChange(provider_id=one.id, row=one))

    def drop(self, one: HostRow) -> None:
        self.table.apply(HostChange(provider_id=one.id, row=None))

    def placed(self, one: HostRow, parent: int, root: HostRow) -> HostRow:
        return replace(one, parent=parent)

    def emptied(self, one: HostRow) -> HostRow:
        return replace(one, used={}, foreign={}, version=one.version + 1)

    def names(self, top: int) -> frozenset[str]:
        return frozenset(one.name for one in self.below(top))
