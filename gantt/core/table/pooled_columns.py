# SPDX-License-Identifier: Apache-2.0
"""What hosts may take of the pools that serve them, next to what stands in their columns.

A table of hosts is made on it.  Amounts of pools are no columns: a pick would be written to every
host that its pool serves.
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
    """The row of a pool that may be asked for alone, as a commit of ours left or read it."""
    same = row.facts.inventories == usage.inventories
    # Of one that was read, and not written, only the feed has the rest.
    is_read = usage.version == row.version + 1 and not usage.is_written
    return replace(
        row,
        version=row.version if is_read else usage.version,
        facts=row.facts if same else replace(row.facts, inventories=usage.inventories),
        used=usage.used,
        foreign=usage.foreign,
    )


class PooledColumns(Columns):
    """Columns of hosts, and the pools that serve them.

    :ivar pools: all of them
    :ivar seq: counts what is written
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
        """The line of a resource class, a new one where needed."""
        raise NotImplementedError

    # -- looking things up -------------------------------------------------------

    def served(self, name: str, amount: int) -> BoolArray | None:
        """Which hosts a pool has an amount of a class for, by row; None: no pool has the class."""
        return self.pools.served(self.count, name, amount)

    def nested_counts(self, part: Part) -> IntArray:
        """How many of what is nested below each host may give a part, by row."""
        return self.pools.nested.counts(part, self._rows_stamp(), self.row_by_id, self.count)

    def nested_most(self, name: str) -> IntArray:
        """The most that is free of a class on one of what is nested below each host, by row."""
        return self.pools.nested.most(name, self._rows_stamp(), self.row_by_id, self.count)

    def nested_tightest(self, part: Part, many: int) -> FloatArray:
        """What is left on the tightest nested providers that may give a part, by row.

        See :meth:`gantt.core.table.nested.NestedProviders.tightest`.
        """
        nested = self.pools.nested
        return nested.tightest(part, many, self._rows_stamp(), self.row_by_id, self.count)

    def tree_query(self, spec: RequestSpec) -> CandidatesQuery:
        """What a request asks of the tree of each host."""
        # Filters, weighers and the search ask for one request, one after the other.
        stamp = (self.versions.at(('aggregates',)), self.pools.nested.seq)
        before = self._last_query
        if before is not None and before[0] is spec and before[1] == stamp:
            return before[2]
        known = self.known_aggregates

        def find(name: str) -> frozenset[str]:
            return frozenset((name, *(u for u, one in known.items() if one.name == name)))

        query = query_of(spec.resources, spec.tree, self.pools.nested.of_class, find)
        self._last_query = (spec, stamp, query)
        return query

    def _rows_stamp(self) -> object:
        return self.versions.rows, self.count, self.pools.nested.seq

    def has(self, row: int, name: str, amount: int) -> bool:
        """Whether a host itself has an amount of a class, in one piece."""
        inventory = self.hosts[row].facts.inventories.get(name)
        code = self.class_code(name)
        return (
            inventory is not None
            and code is not None
            and self.free.item(code, row) >= amount
            and in_one_piece(inventory, amount)
        )

    def pool_for(self, row: int, name: str, amount: int) -> int | None:
        """The pool that a host takes an amount from; None: from itself, or no pool has it."""
        if name not in self.pools.of_class or self.has(row, name, amount):
            return None
        return self.pools.choose(self.hosts[row].id, name, amount)

    def providers_of(self, row: int, amounts: Mapping[str, int]) -> dict[int, dict[str, int]]:
        """Provider id -> class -> amount, of what a claim takes on a host as it is now."""
        host = int(self.ids[row])
        if not (self.pools.of_class and self.pools.have_any(amounts)):
            return {host: dict(amounts)}
        found: dict[int, dict[str, int]] = {host: {}}
        for name, amount in amounts.items():
            pool = self.pool_for(row, name, amount)
            found.setdefault(host if pool is None else pool, {})[name] = amount
        return found

    # -- news --------------------------------------------------------------------

    def set_pool(self, pool: SharedPool) -> bool:
        """A pool that hosts share, as it is now.

        :returns: False where it says nothing newer than what is known, or has become a host
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
        """What is used of a pool as a commit of ours left it, or read it under the lock.

        :param claims: ids of the claims that the commit made
        """
        self.check_writable()
        for name in sorted(usage.inventories):
            self.add_class(name)
        self.pools.correct(usage, claims)
        self.seq += 1

    def remove_pool(self, pool_id: int) -> bool:
        """A pool that is gone, or shares no more; whether it was known."""
        self.check_writable()
        changed = self.pools.remove(pool_id)
        self.seq += changed
        return changed
