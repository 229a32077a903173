# SPDX-License-Identifier: Apache-2.0
"""HostTable: the assumed state of every host, a NumPy column per fact.

The table is a cache of the database, fed by change messages (``apply``), by the
results of own commits (``correct_usage``) and, between the two, by the picks that are laid over it
(``add_pick`` and its inverse ``remove_pick``).  It consists of parts, each with the columns that it
writes and its own ``copy``.

The version of a row is the version at which the host is known *completely*, with all claims
placed on it.

Invariants: a host's version never goes back.  An own commit whose version is the next
one is complete; of any other only the usage is adopted and its claims stay laid over the
host, until a change at that version or a later one arrives.  ``free == cap - used - foreign`` for
every row and class, ``used`` being the row's figure plus the picks laid over it, so that
``free`` never exceeds what the database had at that version, or at a later one.  A snapshot
never changes.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import repeat

import msgspec
import numpy as np
from msgspec.structs import replace

from gantt import exceptions
from gantt.core.candidates.query import CandidatesQuery, Part, query_of
from gantt.core.messages import resource_classes
from gantt.core.messages.request import RequestKind, RequestSpec
from gantt.core.resources.host import Aggregate, HostChange, HostRow, Placed
from gantt.core.resources.provider import PoolUsage, SharedPool
from gantt.core.table.aggregates import Membership
from gantt.core.table.caches import ArrayCache, MaskCache, Versions
from gantt.core.table.columns import (
    PLAIN_COLUMNS,
    PLAIN_COMMIT_COLUMNS,
    ROWS_MIN,
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
)
from gantt.core.table.facts import LOCATION_PARTS, FactCodes
from gantt.core.table.host_index import HostIndex
from gantt.core.table.host_state import HostState
from gantt.core.table.memory import MemoryCount, TableMemory
from gantt.core.table.metrics import DeclaredMetric
from gantt.core.table.placed_index import PlacedIndex
from gantt.core.table.pools import NO_SHARES, SharedPools, Shares, in_one_piece
from gantt.core.table.topology import TopologyColumns
from gantt.core.table.usage import NO_PICKS, Pick, UnreportedPicks, UsageColumns
from gantt.core.topology.free import FreeTopology


def row_with_usage(row: HostRow, usage: PoolUsage) -> HostRow:
    """Return the row of a pool requested by itself, as an own commit left or read it."""
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


class HostTable(Columns):
    """Cache of the state of all hosts, in columns.  Not safe for concurrent writers.

    :ivar now: seconds of the database's clock, set by the owner
    :ivar seq: number of folds and picks
    :ivar default_zone: the zone of a host that is in no other
    :ivar location_parts: names of the parts of ``location``, the widest first
    :ivar standalone: a table of the pools that may be requested by themselves; None: there are none
    """

    # The query of the last request to the provider trees, and the state that it was made for.
    _last_query: tuple[RequestSpec, object, CandidatesQuery] | None = None

    def __init__(self, *, default_zone: str = 'nova', rows: int = ROWS_MIN) -> None:
        super().__init__(rows)
        self.now = 0.0
        self.seq = 0
        self.default_zone = default_zone
        self.location_parts: Sequence[str] = LOCATION_PARTS
        self.standalone: HostTable | None = None
        self.declared_metrics: dict[str, DeclaredMetric] = {}
        # Uuid of a server group -> its generation; a group of generation 0 is not in it.
        self._groups: dict[str, int] = {}
        # The ids of all rows as bytes; None: they have changed since it was requested.
        self._packed_ids: bytes | None = None
        # A cached mask or array is valid only at the versions for which it was computed.
        self.versions = Versions()
        self.mask_cache = MaskCache()
        self.array_cache = ArrayCache(self.versions)
        self._attach_parts(
            HostIndex(), UsageColumns(), FactCodes(), Membership(), TopologyColumns(), PlacedIndex()
        )
        self.pools = SharedPools(self._index, self._membership, self.arrays, self.versions)
        for name in resource_classes.CORE_CLASSES:
            self.add_class(name)

    def _attach_parts(
        self,
        index: HostIndex,
        usage: UsageColumns,
        facts: FactCodes,
        membership: Membership,
        topology: TopologyColumns,
        placed: PlacedIndex,
    ) -> None:
        """Store the parts, and publish those of their attributes that readers use.

        Parts change these in place, and so both names stay the same object; only aggregates are
        replaced as a whole, and published again by ``set_aggregates``.
        """
        self._index = index
        self._usage = usage
        self._facts = facts
        self._membership = membership
        self._topology = topology
        self.placed = placed
        self.hosts = index.hosts
        self.names = index.names
        self.nodes = index.nodes
        self.row_of = index.row_of
        self.row_by_id = index.by_id
        self.row_of_id = index.by_id.get
        self.rows_of_host = index.rows_of_host
        self.rows_of_same_host = index.rows_of_same_host
        self.rows_of_names = index.rows_of_names
        self.rows_of_nodes = index.rows_of_nodes
        self.service_name = index.service_name
        self.known_row = index.known_row
        self.classes = usage.classes
        self.class_code = usage.classes.get
        self.largest_floor = usage.largest_floor
        self.min_ceiling = usage.min_ceiling
        self.has_step = usage.has_step
        self.trait_codes = facts.trait_codes
        self.locations = facts.locations
        self.platforms = facts.platforms
        self.kinds = topology.kinds
        self.zones = membership.zones
        self.cells = membership.cells
        self.aggregate_codes = membership.codes
        self.aggregate_bits = membership.bits
        self.known_aggregates = membership.known
        self.aggregate_metadata = membership.metadata

    @classmethod
    def build(
        cls,
        hosts: Iterable[HostChange],
        aggregates: list[Aggregate],
        groups: dict[str, int],
        classes: Iterable[str] = (),
        now: float = 0.0,
        *,
        metrics: Iterable[DeclaredMetric] = (),
        pools: Iterable[SharedPool] = (),
        standalone: Sequence[HostChange] = (),
        default_zone: str = 'nova',
    ) -> 'HostTable':
        """Return a table of all hosts, as ``ChangeFeed.load_everything`` returns them."""
        changes = list(hosts)
        table = cls(default_zone=default_zone, rows=len(changes))
        table.now = now
        for name in sorted(classes):
            table.add_class(name)
        table.set_groups(groups)
        table.set_metrics(metrics)
        table.set_aggregates(aggregates)
        for change in changes:
            table._apply_host_change(change)
        table.renew()
        for pool in pools:
            table.set_pool(pool)
        table.apply_standalone(standalone)
        return table

    # -- look-ups ----------------------------------------------------------------

    def __len__(self) -> int:
        return self.count

    def of_kind(self, kind: RequestKind) -> 'HostTable':
        """Return the table that requests of a kind are placed on, as of the same time."""
        if kind is RequestKind.HOST:
            return self
        self.standalone = others = self.others
        others.now = self.now
        others.default_zone = self.default_zone
        return others

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
        stamp = (self.versions.of_columns(('aggregates',)), self.pools.nested.seq)
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

    def host_state(self, name_or_row: str | int) -> HostState:
        """Return a typed view of one row, valid until the table changes.

        :raises NotFound: no host of that name
        """
        row = self.row_of(name_or_row) if isinstance(name_or_row, str) else name_or_row
        if row is None or not 0 <= row < self.count:
            raise exceptions.NotFound(kind='host', name=name_or_row)
        return HostState(self, int(row))

    @property
    def services(self) -> list[str]:
        """The service hosts, by row; not to be written to."""
        return self._index.services

    @property
    def rows_of_services(self) -> list[list[int]]:
        """The rows of each service that runs several nodes, the service's own name included."""
        return self._index.rows_of_services

    def aggregates_of(self, row: HostRow) -> list[str]:
        """Return the uuids of the aggregates that a host is in, oldest first."""
        i = self.row_of_id(row.id)
        return self._membership.of(row, '' if i is None else self._index.separate_service(i))

    def rows_of_consumer(self, consumer: str) -> list[int]:
        """Return the rows of the hosts where a consumer has a live claim."""
        rows = map(self.row_of_id, self.placed.providers_of(consumer))
        return [row for row in rows if row is not None]

    def zone_name(self, row: int) -> str:
        """Return the availability zone of a row."""
        return self.zones.names[self.zone[row]] or self.default_zone

    def zone_names(self, rows: Sequence[int]) -> list[str]:
        """Return the availability zone of each of these rows."""
        names, zone = self.zones.names, self.zone
        return [names[zone[row]] or self.default_zone for row in rows]

    def cell_name(self, row: int) -> str | None:
        """Return the cell of a row, None if it has none."""
        return self.cells.names[self.cell[row]] or None

    def free_of(self, code: int) -> IntArray:
        """Return the free amount of a class by row."""
        return self.free[code]

    def cap_of(self, code: int) -> IntArray:
        """Return the capacity of a class by row."""
        return self.cap[code]

    def free_topology(self, row: int) -> FreeTopology:
        """Return the free topology of a host; not to be modified."""
        host = self.hosts[row]
        return self._topology.free_topology(host, self.placed.on_provider(host.id))

    def count_stale(self, limit: float) -> int:
        """Count the hosts that last reported more than ``limit`` seconds ago, or never."""
        return int(np.count_nonzero(self.reported_at < self.now - limit))

    def oldest_report_seconds(self, rows: Sequence[int]) -> float:
        """Return the age of the oldest report of hosts; 0.0 where none has ever reported."""
        reported_at = self.reported_at.take(rows) if rows else self.reported_at[:0]
        reported_at = reported_at[reported_at > 0]  # pools never report
        return max(0.0, self.now - float(reported_at.min())) if len(reported_at) else 0.0

    def count_reported_within(self, first: float, last: float) -> int:
        """Count the hosts that last reported between two times."""
        reported_at = self.reported_at
        return int(np.count_nonzero((reported_at >= first) & (reported_at <= last)))

    def names_of_stale(self, limit: float, most: int) -> list[str]:
        """Return the names of the first ``most`` stale hosts, by row."""
        rows = np.flatnonzero(self.reported_at < self.now - limit)[:most]
        names = self.names  # its owner may change the table concurrently
        return [names[row] for row in rows.tolist() if row < len(names)]

    def known_version(self, provider_id: int) -> int:
        """Return the version at which a host is completely known; -1: unknown host."""
        row = self.row_of_id(provider_id)
        return -1 if row is None else self.hosts[row].version

    def provider_ids_bytes(self) -> bytes:
        """Return the ids of all rows as packed int64."""
        if self._packed_ids is None:
            self._packed_ids = self.ids.tobytes()
        return self._packed_ids

    def changes(self) -> list[HostChange]:
        """Return every host as a change, by row; a table built from them is equal.

        Only for a table without open picks.  If an own commit is not completely known, its claims
        are in the change, which has the completely known version.
        """
        return [
            HostChange(
                provider_id=row.id,
                row=self._row_with_picks(row),
                placed=list(self.placed.on_provider(row.id).values()),
            )
            for row in self.hosts
        ]

    def _row_with_picks(self, row: HostRow) -> HostRow:
        picks = self._usage.picks_by_host.get(row.id)
        if not picks:
            return row
        used = dict(row.used)
        for pick in picks.values():
            for name, amount in pick.amounts.items():
                used[name] = used.get(name, 0) + amount
        return replace(row, used=used)

    def generations(self) -> dict[str, int]:
        """Return the generations of all known server groups."""
        return dict(self._groups)

    def group_generation(self, uuid: str) -> int:
        """Return the generation of a server group, 0 if it is not known."""
        return self._groups.get(uuid, 0)

    def memory(self, count: MemoryCount) -> TableMemory:
        """Return the memory of the table, its cached masks and arrays aside.  Any thread.

        :param count: what it has counted, such as of a table with which this one shares objects,
            counts nothing here
        """
        hosts, claims, usage = self.count, int(self.instances.sum()), self._usage
        claim_bytes = self.placed.memory(count, claims)
        claim_bytes += count.of(usage.picks_by_host, usage.unreported)
        host_bytes = count.of(*self.arrays.values(), *self._copies.values(), self.sparse)
        host_bytes += count.of(self._metric_arrays, self._age_arrays, self._index, usage)
        host_bytes += count.of(self._facts, self._membership, self._topology, self.pools)
        if self.standalone is None:
            return TableMemory(hosts, host_bytes, claims, claim_bytes)
        pools = self.standalone.memory(count)
        return TableMemory(
            hosts + pools.hosts,
            host_bytes + pools.host_bytes,
            claims + pools.claims,
            claim_bytes + pools.claim_bytes,
        )

    # -- changes ---------------------------------------------------------------

    def apply(self, change: HostChange) -> bool:
        """Fold one entry of the feed.

        :returns: False if it is not newer than the known row
        """
        self.check_writable()
        count = self.count
        changed = self._apply_host_change(change)
        if self.count != count:
            self.renew()
        return changed

    def correct_usage(self, row: HostRow, claims: Container[str] | None = None) -> None:
        """Update a host after an own commit; the placed claims stay as ``add_pick`` noted them.

        If its version is the next one, the host is completely known.  Otherwise other instances
        have written it since: its usage is adopted, and the rest is unknown until a change arrives.

        :param claims: ids of the picks that it contains; None: all that are laid over it
        """
        self.check_writable()
        i = self.row_of_id(row.id)
        if i is not None:
            self._write(i, self._usage.committed_row(self.hosts[i], row, claims))
            self.seq += 1

    def commit_picks(
        self,
        versions: Mapping[int, int],
        claims: Container[str] | None,
        written: Container[int],
    ) -> tuple[list[tuple[HostRow, HostRow]], list[HostRow]]:
        """Settle hosts of which an own commit returned only versions.

        A host that has the next version, and only committed picks laid over it, is written at once;
        for any other the row for ``correct_usage`` is returned.

        :param versions: host -> version as it was written; unknown hosts are left out
        :param claims: ids of the picks that are committed; None: all
        :param written: hosts that may be settled at once
        :returns: rows before and after, of settled hosts; and rows of others
        """
        self.check_writable()
        settled: list[tuple[HostRow, HostRow]] = []
        rows, others = list[int](), list[HostRow]()
        for provider_id, version in versions.items():
            i = self.row_of_id(provider_id)
            if i is None:
                continue
            stored, row = self.hosts[i], None
            if provider_id in written:
                row = self._usage.add_committed(stored, version, claims)
            if row is None:
                others.append(self._usage.row_at_version(stored, version, claims))
            else:
                self.hosts[i] = row
                settled.append((stored, row))
                rows.append(i)
        if rows:
            self.arrays['version'][rows] += 1
            self.arrays['generation'][rows] += 1
            self.seq += len(rows)
        return settled, others

    def add_class(self, name: str) -> int:
        """Return the code of a resource class, and add the class if it is new."""
        return self._usage.add_class(self, name)

    def set_aggregates(self, aggregates: list[Aggregate]) -> None:
        """Replace all aggregates, and update membership and availability zones."""
        self.check_writable()
        membership = self._membership
        membership.replace(aggregates)
        self.known_aggregates = membership.known
        self.aggregate_metadata = membership.metadata
        self.versions.touch(('aggregates', 'zone'))
        for i, row in enumerate(self.hosts):
            membership.write(self, i, row, self._index.separate_service(i))
        self.facts_seq += 1
        self.seq += 1
        if self.standalone is not None:
            self.standalone.set_aggregates(aggregates)

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
        pools = self.standalone
        if pools is not None and (i := pools.row_of_id(usage.id)) is not None:
            pools.correct_usage(row_with_usage(pools.hosts[i], usage), claims)

    def remove_pool(self, pool_id: int) -> bool:
        """Remove a pool that was deleted or shares no more; return whether it was known."""
        self.check_writable()
        changed = self.pools.remove(pool_id)
        self.seq += changed
        return changed

    def apply_standalone(self, changes: Sequence[HostChange]) -> None:
        """Fold changes of pools that may be requested by themselves."""
        if changes:
            self.standalone = self.others
        for change in changes:
            self.others.apply(change)

    @property
    def others(self) -> 'HostTable':
        """Table of the pools that may be requested by themselves; empty if there are none."""
        return self._empty_table() if self.standalone is None else self.standalone

    def known_pools(self) -> set[int]:
        """Return the ids of all known providers that are not hosts."""
        return {*self.pools.by_id, *self.others.row_by_id}

    def _empty_table(self) -> 'HostTable':
        """Return a table without hosts, with the same aggregates."""
        other = HostTable(default_zone=self.default_zone)
        other.set_aggregates(list(self.known_aggregates.values()))
        return other

    def set_groups(self, groups: Mapping[str, int], whole: bool = False) -> None:
        """Update the generations of server groups; 0 removes a group.

        :param whole: a group that is left out is removed; else it stays as it was
        """
        self.check_writable()
        if whole:
            self._groups.clear()
        self._groups.update(groups)
        for uuid in [uuid for uuid, generation in groups.items() if not generation]:
            del self._groups[uuid]

    def set_metrics(self, metrics: Iterable[DeclaredMetric]) -> None:
        """Replace all declarations of metrics."""
        self.check_writable()
        declared = {metric.name: metric for metric in metrics}
        if declared != self.declared_metrics:
            self.versions.touch(('metrics',))
        self.declared_metrics = declared
        self.seq += 1

    # -- picks -------------------------------------------------------------------

    def add_pick(
        self,
        provider_id: int,
        amounts: Mapping[str, int],
        placed: Placed,
        shares: Shares | None = None,
    ) -> Shares:
        """Lay a pick over a host: its amounts count as used, its consumer as placed.

        :param shares: amounts used of pools, beside ``amounts``; None: the part of ``amounts``
            that the host does not have itself
        :returns: amounts used of pools
        :raises Bug: an unknown host
        """
        self.check_writable()
        i = self.row_of_id(provider_id)
        if i is None and self.standalone is not None:
            return self.standalone.add_pick(provider_id, amounts, placed, shares)
        if i is None:
            raise exceptions.Bug(invariant=f'a pick is on a known host, not {provider_id}')
        host = self.hosts[i]
        placed_here, replaces_claim = self.placed.add(placed)
        pick = Pick(amounts, placed, replaces_claim)
        if shares is not None:
            pick = replace(pick, shares=shares or None)
        elif self.pools.of_class and self.pools.have_any(amounts):
            amounts_by_provider = self.providers_of(i, amounts)
            pick = replace(
                pick,
                amounts=amounts_by_provider.pop(provider_id),
                shares=amounts_by_provider or None,
            )
        if pick.shares is not None:
            self.pools.add_shares(provider_id, placed.claim_id, pick.shares)
        self._usage.add_equal_picks(self, self.hosts, pick.amounts, {i: [pick]})
        if placed.layout is not None:
            self._topology.add_layout(self, i, host, placed_here, placed.layout, not replaces_claim)
        self.instances[i] = len(placed_here)
        self.seq += 1
        return pick.shares or NO_SHARES

    def add_equal_picks(
        self,
        amounts: Mapping[str, int],
        placed: Sequence[Placed],
        rows: Sequence[int],
        shares: Sequence[Shares] = (),
    ) -> None:
        """Lay picks of the same amounts, and without layouts, over the hosts at ``rows``.

        Equivalent to one ``add_pick`` per pick, but each host is written once.

        :param shares: amounts that each pick uses of pools, over which it is laid already; all
            have the same classes
        :raises Bug: a pool has one of the classes, and ``shares`` are missing
        """
        self.check_writable()
        if self.pools.have_any(amounts) and len(shares) < len(placed):
            raise exceptions.Bug(invariant='picks of a class that a pool has name their shares')
        if shares:
            pooled = {name for amounts_of_pool in shares[0].values() for name in amounts_of_pool}
            amounts = {name: n for name, n in amounts.items() if name not in pooled}
        picks_by_row: dict[int, list[Pick]] = {}
        for row, claim, pool_shares in zip(rows, placed, shares or repeat(None), strict=False):
            placed_here, replaces_claim = self.placed.add(claim)
            pick = Pick(amounts, claim, replaces_claim, shares=pool_shares or None)
            picks_by_row.setdefault(row, []).append(pick)
            self.instances[row] = len(placed_here)
        self._usage.add_equal_picks(self, self.hosts, amounts, picks_by_row)
        self.seq += len(placed)

    def remove_pick(
        self, provider_id: int, amounts: Mapping[str, int], claim_id: str
    ) -> Pick | None:
        """Undo a ``add_pick``.  A pick that the host's row contains meanwhile is a claim and stays.

        So does a claim that was on the host before: a repeat may pick its own place.

        :returns: the pick that was lifted off the host
        """
        self.check_writable()
        i = self.row_of_id(provider_id)
        if i is None and self.standalone is not None and provider_id in self.standalone.row_by_id:
            return self.standalone.remove_pick(provider_id, amounts, claim_id)
        pick = None if i is None else self._usage.remove_pick(self, i, self.hosts[i], claim_id)
        if pick is None:
            self.pools.forget(provider_id, claim_id)
        elif pick.shares is not None:
            self.pools.remove_shares(provider_id, claim_id, pick.shares)
        if i is None or pick is None or pick.replaces_claim:
            return pick
        self.placed.remove(provider_id, claim_id)
        placed_here = self.placed.on_provider(provider_id)
        if pick.placed.layout is not None:
            self._topology.write(self, i, self.hosts[i], placed_here)
        self.instances[i] = len(placed_here)
        self.seq += 1
        return pick

    def pending_claims_of(self, provider_id: int) -> list[str]:
        """Return the claim ids of the picks that the row of a host does not contain yet."""
        return list(self._usage.picks_by_host.get(provider_id, NO_PICKS))

    def picks(self) -> dict[int, int]:
        """Return row -> number of picks laid over it that it does not contain yet."""
        rows = self.row_by_id
        return {rows[p]: len(picks) for p, picks in self._usage.picks_by_host.items() if p in rows}

    def unreported_claims(self) -> dict[int, dict[str, float]]:
        """Return committed picks that no report can contain yet; see ``core.table.usage``."""
        return self._usage.unreported.as_dict()

    def set_unreported_claims(self, picks: Mapping[int, Mapping[str, float]]) -> None:
        """Replace the unreported picks, as :meth:`unreported_claims` returned them."""
        self.check_writable()
        self._usage.unreported = UnreportedPicks(picks)
        for provider_id in picks:
            i = self.row_of_id(provider_id)
            if i is not None:
                self._usage.count_io(self, i, self.hosts[i])
        self.seq += 1

    # -- copies ----------------------------------------------------------------

    def snapshot(self) -> 'HostTable':
        """Return a read-only independent copy."""
        return self._copy_table(writable=False)

    def copy(self) -> 'HostTable':
        """Return a writable independent copy, for a dry run or a what-if."""
        return self._copy_table(writable=True)

    def _copy_table(self, writable: bool) -> 'HostTable':
        other: HostTable = HostTable.__new__(HostTable)
        self.copy_columns(other, writable)
        other.now = self.now
        other.seq = self.seq
        other.default_zone = self.default_zone
        other.location_parts = self.location_parts
        other.standalone = (
            None if self.standalone is None else self.standalone._copy_table(writable)
        )
        other.declared_metrics, other._groups = self.declared_metrics, dict(self._groups)
        other._packed_ids = self._packed_ids
        other.versions, other.mask_cache = self.versions.copy(), MaskCache()
        other.array_cache = ArrayCache(other.versions)
        other._attach_parts(
            self._index.copy(),
            self._usage.copy(),
            self._facts.copy(),
            self._membership.copy(),
            self._topology.copy(),
            self.placed.copy(),
        )
        other.pools = self.pools.copy(other._index, other._membership, other.arrays, other.versions)
        return other

    # -- inside ------------------------------------------------------------------

    def _apply_host_change(self, change: HostChange) -> bool:
        row, i = change.row, self.row_of_id(change.provider_id)
        if row is None:
            if i is not None:
                self._remove(i)
                self.seq += 1
            return i is not None
        if i is None:
            self.pools.remove(row.id)  # a provider that was not a host may become one
            i = self._append(row)
        elif row.version <= self.hosts[i].version:
            return False
        self._apply_placed(i, row, change.placed)
        self._write(i, row)
        self._topology.layouts_changed(self, i, row, self.placed.on_provider(row.id))
        self.seq += 1
        return True

    def _apply_placed(self, i: int, row: HostRow, placed: Iterable[Placed]) -> None:
        # A claim on something below or beside the host counts as being on the host.
        placed_claims = {
            p.claim_id: p if p.provider_id == row.id else replace(p, provider_id=row.id)
            for p in placed
        }
        self._usage.drop_contained(row, placed_claims)
        # Picks that the change does not contain stay laid over it.
        for claim_id, pick in self._usage.picks_by_host.get(row.id, NO_PICKS).items():
            placed_claims[claim_id] = pick.placed
        self._usage.unreported.keep(row.id, placed_claims)
        self.placed.replace(row.id, placed_claims)
        self.arrays['instances'][i] = len(placed_claims)

    def _append(self, row: HostRow) -> int:
        i = self.count
        self.reserve(i + 1)
        self.count = i + 1
        self._index.append(row)
        self._packed_ids = None
        return i

    def _remove(self, i: int) -> None:
        provider_id = self.hosts[i].id
        self._index.remove(i)
        self.placed.replace(provider_id, {})
        self.pools.forget(provider_id)
        self._usage.forget(provider_id)
        self._topology.forget(provider_id)
        self.move_row(self.count - 1, i)
        self.count -= 1
        self.versions.rows += 1
        self._packed_ids = None
        self.facts_seq += 1

    def _write(self, i: int, row: HostRow) -> None:
        """Write every column of a row; facts only if they differ from the stored ones."""
        old, arrays = self.hosts[i], self.arrays
        if old.version >= 0 and old.differs_in_counters_only(row):
            self.hosts[i] = row
            for name, read in PLAIN_COMMIT_COLUMNS:
                arrays[name][i] = read(row)
            if row.foreign != old.foreign:
                self._usage.write(self, i, row)
            else:
                self._usage.follow_usage(self, i, row)
            return
        moved = self._index.rename(i, row)
        if old.facts is not row.facts and old.facts != row.facts:
            self._usage.write_inventories(self, i, row.facts.inventories)
            self._facts.write(self, i, old, row.facts)
        elif old.facts is not row.facts:
            row = msgspec.structs.replace(row, facts=old.facts)  # one copy is enough
        self.hosts[i] = row
        if moved or old.membership != row.membership or old.version < 0:
            self._membership.write(self, i, row, self._index.separate_service(i))
        if self.versions.note(old, row):
            self.facts_seq += 1
        self._topology.facts_changed(self, i, row, self.placed.on_provider(row.id), old.facts)
        for name, read in PLAIN_COLUMNS:
            self.arrays[name][i] = read(row)
        self._usage.write(self, i, row)
