# SPDX-License-Identifier: Apache-2.0
"""Amounts that hosts may use of the pools that serve them, beside their own columns.

The base class of the host table.  Amounts of pools are not columns: a pick would have to be
written to every host that its pool serves.
"""

from collections.abc import Callable, Container, Mapping

from msgspec.structs import replace

from gantt.core.candidates.query import CandidatesQuery, Part, query_of
from gantt.core.messages.request import RequestSpec
from gantt.core.resources.host import Aggregate, HostRow
from gantt.core.resources.shared_pool import PoolUsage, SharedPool
from gantt.core.table.caches import Versions
from gantt.core.table.columns import BoolArray, Codes, Columns, FloatArray, IntArray
from gantt.core.table.pools import SharedPools, in_one_piece


def as_used(row: HostRow, usage: PoolUsage) -> HostRow:
    """Return the row of a pool that may be requested alone, as an own commit left or read it."""
    is_same = row.facts.inventories == usage.inventories
    # Of a pool that was read, but not written, only the feed has the rest.
    is_read = usage.version == row.version + 1 and not usage.is_written
    return replace(
        row,
        version=row.version if is_read else usage.version,
        facts=row.facts if is_same else replace(row.facts, inventories=usage.inventories),
        used=usage.used,
        foreign=usage.foreign,
    )


class PooledColumns(Columns):
    """Columns of hosts, and the pools that serve them.

    :ivar pools: all pools
    :ivar seq: number of writes
    """

    pools: SharedPools
    hosts: list[HostRow]
    classes: Codes
    class_code: Callable[[str], int | None]
    row_of_id: Callable[[int], int | None]
    row_by_id: dict[int, int]
    known_aggregates: dict[str, Aggregate]
    _last_query: tuple[RequestSpec, object, CandidatesQuery] | None = None
    versions: Versions
    seq: int

    def add_class(self, name: str) -> int:
        """Return the code of a resource class, and add the class if it is new."""
        raise NotImplementedError

    # -- look-ups ----------------------------------------------------------------

    def served(self, name: str, amount: int) -> BoolArray | None:
        """Return a mask of hosts for which a pool has an amount; None: no pool has the class."""
        return self.pools.served(self.count, name, amount)

    def nested_counts(self, part: Part) -> IntArray:
        """Return the number of providers nested below each host that may supply a part, by row."""
        return self.pools.nested.counts(part, self._rows_stamp(), self.row_by_id, self.count)

    def nested_most(self, name: str) -> IntArray:
        """Return the largest free amount of a class on one nested provider of each host, by row."""
        return self.pools.nested.most(name, self._rows_stamp(), self.row_by_id, self.count)

    def nested_tightest(self, part: Part, many: int) -> FloatArray:
        """Return the share left on the tightest nested providers that may supply a part, by row.

        See :meth:`gantt.core.table.nested.NestedProviders.tightest`.
        """
        nested = self.pools.nested
        return nested.tightest(part, many, self._rows_stamp(), self.row_by_id, self.count)

    def tree_query(self, spec: RequestSpec) -> CandidatesQuery:
        """Return the query of a request to the provider tree of each host."""
        # Filters, weighers and the search call this for the same request, one after the other.
        stamp = (self.versions.at(('aggregates',)), self.pools.nested.seq)
        last_query = self._last_query
        if last_query is not None and last_query[0] is spec and last_query[1] == stamp:
            return last_query[2]
        aggregates_by_uuid = self.known_aggregates

        def find(name: str) -> frozenset[str]:
            return frozenset(
                (
                    name,
                    *(u for u, aggregate in aggregates_by_uuid.items() if aggregate.name == name),
                )
            )

        query = query_of(spec.resources, spec.tree, self.pools.nested.of_class, find)
        self._last_query = (spec, stamp, query)
        return query

    def _rows_stamp(self) -> object:
        return self.versions.rows, self.count, self.pools.nested.seq

    def has(self, row: int, name: str, amount: int) -> bool:
        """Return whether a host itself has an amount of a class, in one piece."""
        inventory = self.hosts[row].facts.inventories.get(name)
        code = self.class_code(name)
        return (
            inventory is not None
            and code is not None
            and self.free.item(code, row) >= amount
            and in_one_piece(inventory, amount)
        )

    def pool_for(self, row: int, name: str, amount: int) -> int | None:
        """Return the pool that a host takes an amount from; None: itself, or no pool has it."""
        if name not in self.pools.of_class or self.has(row, name, amount):
            return None
        return self.pools.choose(self.hosts[row].id, name, amount)

    def providers_of(self, row: int, amounts: Mapping[str, int]) -> dict[int, dict[str, int]]:
        """Return provider id -> class -> amount of a claim on a host in its current state."""
        host = int(self.ids[row])
        if not (self.pools.of_class and self.pools.have_any(amounts)):
            return {host: dict(amounts)}
        amounts_by_provider: dict[int, dict[str, int]] = {host: {}}
        for name, amount in amounts.items():
            pool = self.pool_for(row, name, amount)
            amounts_by_provider.setdefault(host if pool is None else pool, {})[name] = amount
        return amounts_by_provider

    # -- changes -----------------------------------------------------------------

    def set_pool(self, pool: SharedPool) -> bool:
        """Replace a shared pool with its current state.

        :returns: False if it is not newer than the known state, or has become a host
        """
        self.check_writable()
        if self.row_of_id(pool.id) is not None:
            return False
        for name in sorted(pool.inventories):
            self.add_class(name)
        changed = self.pools.put(pool)
        self.seq += changed
        return changed

    def correct_pool(self, usage: PoolUsage, claims: Container[str] = ()) -> None:
        """Update the usage of a pool as an own commit left it, or read it under the lock.

        :param claims: ids of the claims that the commit created
        """
        self.check_writable()
        for name in sorted(usage.inventories):
            self.add_class(name)
        self.pools.correct(usage, claims)
        self.seq += 1

    def remove_pool(self, pool_id: int) -> bool:
        """Remove a pool that was deleted or shares no more; return whether it was known."""
        self.check_writable()
        changed = self.pools.remove(pool_id)
        self.seq += changed
        return changed
