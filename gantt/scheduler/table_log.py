# SPDX-License-Identifier: Apache-2.0
"""The change log of a host table: the input for a replay of its decisions.

Every change of the working table is an event with a position.  A checkpoint is
the whole state that a table was built from; a decision notes the position that
it rests on, so that the table it saw can be built again: the checkpoint,
then every event before that position.  Retention is bounded: past it a decision
can be explained but not replayed.

Changes by claims are written as steps and columns: a commit of this process increments the
counters of its hosts, and its picks differ in little but ids.
"""

import collections
import functools
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, repeat
from typing import TypeVar

import msgspec

from gantt.core.claims.commit import ClaimColumns
from gantt.core.messages.layout import Layout, layout_with_amounts
from gantt.core.resources.host import Aggregate, HostChange, HostRow, Placed
from gantt.core.resources.provider import PoolUsage, SharedPool
from gantt.core.table.host_table import HostTable
from gantt.core.table.metrics import DeclaredMetric
from gantt.core.table.pools import NO_SHARES
from gantt.scheduler.ports.records import Everything, Feed, TableLogs

PENDING_EVENTS_MAX = 200_000
CHUNK_BYTES = 1 << 20


class HostsEntry(msgspec.Struct, frozen=True, tag='hosts'):
    """Hosts as the feed or a writer of this process brought them."""

    changes: list[HostChange]

    def apply(self, table: HostTable) -> None:
        for change in self.changes:
            table.apply(change)


class CountedUp(msgspec.Struct, frozen=True, array_like=True):
    """Hosts of which a commit changed nothing but counters; each has an index in every list.

    :ivar classes: those in use there, as indices in ``CommitEntry.classes``
    :ivar used: amounts by class and host
    :ivar versions: increments, as are the generations
    """

    classes: list[int]
    hosts: list[int]
    used: list[list[int]]
    versions: list[int]
    generations: list[int]


class CommitEntry(msgspec.Struct, frozen=True, tag='commit', omit_defaults=True):
    """Hosts as a commit of this process left them.

    :ivar classes: in the order in which the table met them
    :ivar whole: hosts where more than counters differs from what was known
    :ivar claims: ids of the committed claims; None: all picks on these hosts
    :ivar pools: written or read by the commit
    :ivar shared: ids of the committed claims of pools
    """

    classes: list[str]
    counted: list[CountedUp]
    whole: list[HostRow] = []
    claims: list[str] | None = None
    pools: list[PoolUsage] = []
    shared: list[str] = []

    def apply(self, table: HostTable) -> None:
        claims = None if self.claims is None else frozenset(self.claims)
        for name in self.classes:
            table.add_class(name)
        for rows in (*map(functools.partial(self._rows, table), self.counted), self.whole):
            for row in rows:
                table.correct_usage(row, claims)
        shared = frozenset(self.shared)
        for usage in self.pools:
            table.correct_pool(usage, shared)

    def _rows(self, table: HostTable, of: CountedUp) -> Iterable[HostRow]:
        names = [self.classes[code] for code in of.classes]
        amounts: Iterable[tuple[int, ...]] = zip(*of.used, strict=True) if names else repeat(())
        for host, used, version, generation in zip(
            of.hosts, amounts, of.versions, of.generations, strict=False
        ):
            row_index = table.row_of_id(host)
            if row_index is not None:
                host_row = table.hosts[row_index]
                yield msgspec.structs.replace(
                    host_row,
                    version=host_row.version + version,
                    generation=host_row.generation + generation,
                    used=dict(zip(names, used, strict=True)),
                )


class CommittedHosts(msgspec.Struct, frozen=True):
    """Hosts as a commit of this process left them; written as ``CommitEntry``.

    :ivar settled: each row before the commit, and after it, where only counters differ
    :ivar pairs: other rows, likewise
    :ivar claims: ids of the committed claims; None: all picks on these hosts
    :ivar pools: written or read by the commit
    :ivar shared: ids of the committed claims, where it has pools
    """

    settled: list[tuple[HostRow, HostRow]]
    pairs: list[tuple[HostRow, HostRow]]
    claims: Collection[str] | None
    pools: Sequence[PoolUsage] = ()
    shared: Collection[str] = ()

    def written(self) -> CommitEntry:
        """Return the log entry of these hosts: counters alone where nothing else has changed."""
        codes: dict[str, int] = {}
        counted: dict[tuple[str, ...], list[tuple[HostRow, HostRow]]] = {}
        whole: list[HostRow] = []
        for pair in self.settled:
            counted.setdefault(tuple(pair[1].used), []).append(pair)
        for name in chain.from_iterable(counted):
            codes.setdefault(name, len(codes))
        for before, row in self.pairs:
            for name in (*row.used, *row.foreign):
                codes.setdefault(name, len(codes))
            same = msgspec.structs.replace(
                before, version=row.version, generation=row.generation, used=row.used
            )
            if same == row:
                counted.setdefault(tuple(row.used), []).append((before, row))
            else:
                whole.append(row)
        return CommitEntry(
            classes=list(codes),
            counted=[
                CountedUp(
                    classes=[codes[name] for name in names],
                    hosts=[row.id for _, row in pairs],
                    used=[[row.used[name] for _, row in pairs] for name in names],
                    versions=[row.version - before.version for before, row in pairs],
                    generations=[row.generation - before.generation for before, row in pairs],
                )
                for names, pairs in counted.items()
            ],
            whole=whole,
            claims=None if self.claims is None else sorted(self.claims),
            pools=list(self.pools),
            shared=sorted(self.shared),
        )


#: Ids one after another, 16 bytes each where all are uuids in canonical form.
StoredIds = bytes | tuple[str, ...]
T = TypeVar('T')


class PickColumns(msgspec.Struct, frozen=True, tag='picked', omit_defaults=True):
    """Picks by columns, as they are written; those taken back only by host and claim id.

    A column has a value for each pick, one that all have, or nothing where none has any.

    :ivar amounts: of the hosts themselves
    :ivar shares: of pools: id -> class -> amount
    """

    taken: bool
    hosts: tuple[int, ...]
    claims: StoredIds
    consumers: StoredIds = b''
    amounts: tuple[dict[str, int], ...] = ()
    groups: tuple[str | None, ...] = ()
    layouts: tuple[Layout | None, ...] = ()
    images: tuple[str | None, ...] = ()
    flavors: tuple[str | None, ...] = ()
    member_names: tuple[str | None, ...] = ()
    shares: tuple[dict[int, dict[str, int]] | None, ...] = ()

    def apply(self, table: HostTable) -> None:
        claims = _id_texts(self.claims)
        if not self.taken:
            for host, claim_id in zip(self.hosts, claims, strict=True):
                table.remove_pick(host, {}, claim_id)
            return
        amounts = repeat(self.amounts[0]) if len(self.amounts) == 1 else self.amounts
        for host_amounts, shares, claim_id, consumer, host, group, layout, *as_what in zip(
            amounts,
            _column_values(self.shares),
            claims,
            _id_texts(self.consumers),
            self.hosts,
            _column_values(self.groups),
            _column_values(self.layouts),
            _column_values(self.images),
            _column_values(self.flavors),
            _column_values(self.member_names),
            strict=False,
        ):
            placed = Placed(claim_id, consumer, host, group, layout, *as_what)
            table.add_pick(host, host_amounts, placed, shares or NO_SHARES)


def picks_added(claims: ClaimColumns) -> PickColumns:
    """Return the picks of a plan, which are on the table, as they are written."""
    kinds = [draft.claim for draft in claims.kinds]
    layouts = [
        None if claim.layout is None else layout_with_amounts(claim.layout) for claim in kinds
    ]
    shares = [
        {
            provider: amounts
            for provider, amounts in claim.allocations.items()
            if provider != claim.provider_id
        }
        or None
        for claim in kinds
    ]
    return PickColumns(
        taken=True,
        hosts=tuple(claims.providers),
        claims=_stored_ids(tuple(claims.ids)),
        consumers=_stored_ids(tuple(claims.consumers)),
        amounts=_values_by_kind([claim.allocations[claim.provider_id] for claim in kinds], claims),
        groups=_values_by_kind([claim.group for claim in kinds], claims),
        layouts=_values_by_kind(layouts, claims),
        images=_values_by_kind([claim.image for claim in kinds], claims),
        flavors=_values_by_kind([claim.flavor for claim in kinds], claims),
        member_names=_values_by_kind([claim.member_name for claim in kinds], claims),
        shares=_values_by_kind(shares, claims),
    )


def picks_removed(claims: ClaimColumns, keep: Collection[int] = ()) -> PickColumns:
    """Return the picks that a plan removes from the table: all but those at ``keep``."""
    indices = [i for i in range(len(claims)) if i not in keep]
    hosts = tuple(claims.providers[i] for i in indices)
    return PickColumns(False, hosts, _stored_ids(tuple(claims.ids[i] for i in indices)))


def _values_by_kind(values: list[T], claims: ClaimColumns) -> tuple[T, ...]:
    """Return a column in which each claim has the value of its kind."""
    return _stored_column(
        tuple(values if len(values) == 1 else [values[kind_index] for kind_index in claims.kind])
    )


#: Lines with a uuid each.
_UUID_LINES = re.compile('(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\n)*')


def _stored_ids(ids: tuple[str, ...]) -> StoredIds:
    """Return ids in the form that the log stores."""
    text = '\n'.join((*ids, ''))
    if _UUID_LINES.fullmatch(text) is None:
        return ids
    packed = bytes.fromhex(text.replace('-', ''))
    return packed if len(packed) == 16 * len(ids) else ids


def _id_texts(ids: StoredIds) -> Sequence[str]:
    """Return ids as text, from the form that the log stores."""
    if not isinstance(ids, bytes):
        return ids
    text = ids.hex()
    hex_ids = (text[start : start + 32] for start in range(0, len(text), 32))
    return [
        f'{hex_id[:8]}-{hex_id[8:12]}-{hex_id[12:16]}-{hex_id[16:20]}-{hex_id[20:]}'
        for hex_id in hex_ids
    ]


def _stored_column(values: tuple[T, ...]) -> tuple[T, ...]:
    """Return the values of all picks in the form that the log stores."""
    if not values or values.count(values[0]) != len(values):
        return values
    return () if values[0] is None else values[:1]


def _column_values(column: tuple[T, ...]) -> Iterable[T | None]:
    """Return a value for each pick."""
    return column if len(column) > 1 else repeat(column[0] if column else None)


class AggregatesEntry(msgspec.Struct, frozen=True, tag='aggregates'):
    """All aggregates."""

    aggregates: list[Aggregate]

    def apply(self, table: HostTable) -> None:
        table.set_aggregates(self.aggregates)


class PoolsEntry(msgspec.Struct, frozen=True, tag='pools', omit_defaults=True):
    """Pools as the feed brought them, and ids of those that were deleted or share no more."""

    pools: list[SharedPool]
    gone: list[int] = []

    @classmethod
    def of(cls, table: HostTable, feed: Feed) -> 'PoolsEntry':
        """Return changes of pools in a feed that are news to a table."""
        known_pools, current_pools = table.pools.by_id, {pool.id: pool for pool in feed.pools}
        new_pools = [
            pool
            for pool in feed.pools
            if pool.id not in known_pools or pool.version > known_pools[pool.id].version
        ]
        return cls(
            new_pools, sorted((known_pools.keys() & set(feed.providers)) - current_pools.keys())
        )

    def apply(self, table: HostTable) -> None:
        for pool_id in self.gone:
            table.remove_pool(pool_id)
        for pool in self.pools:
            table.set_pool(pool)


class StandaloneEntry(msgspec.Struct, frozen=True, tag='standalone'):
    """Pools that may be requested alone, as the feed brought them; without a row: deleted."""

    changes: list[HostChange]

    @classmethod
    def of(cls, table: HostTable, feed: Feed) -> 'StandaloneEntry':
        """Return changes of such pools in a feed that are news to a table."""
        known_rows = {} if table.standalone is None else table.standalone.row_by_id
        current_ids = {change.provider_id for change in feed.standalone}
        gone_ids = sorted((known_rows.keys() & set(feed.providers)) - current_ids)
        new_changes = [
            change
            for change in feed.standalone
            if table.standalone is None
            or change.row is None
            or change.row.version > table.standalone.known_version(change.provider_id)
        ]
        return cls(
            [*new_changes, *(HostChange(provider_id=pool_id, row=None) for pool_id in gone_ids)]
        )

    def apply(self, table: HostTable) -> None:
        table.apply_standalone(self.changes)


class MetricsEntry(msgspec.Struct, frozen=True, tag='metrics'):
    """All declarations of metrics."""

    metrics: list[DeclaredMetric]

    def apply(self, table: HostTable) -> None:
        table.set_metrics(self.metrics)


class GroupsEntry(msgspec.Struct, frozen=True, tag='groups'):
    """Generations of groups; ``whole``: of all existing groups."""

    generations: dict[str, int]
    whole: bool = False

    def apply(self, table: HostTable) -> None:
        table.set_groups(self.generations, self.whole)


class ClockEntry(msgspec.Struct, frozen=True, tag='clock'):
    """The table's clock, set before each batch."""

    now: float

    def apply(self, table: HostTable) -> None:
        table.now = self.now


class Checkpoint(msgspec.Struct, frozen=True, tag='checkpoint'):
    """The whole state that the table was rebuilt from.

    :ivar fresh: picks that no report could contain yet, see ``HostTable.unreported_claims``
    """

    everything: Everything
    fresh: dict[int, dict[str, float]] = {}

    def table(self, default_zone: str = 'nova') -> HostTable:
        """Build the table of this state."""
        table = table_of(self.everything, default_zone)
        if self.fresh:
            table.set_unreported_claims(self.fresh)
        return table


Change = (
    HostsEntry
    | CommitEntry
    | PickColumns
    | AggregatesEntry
    | PoolsEntry
    | StandaloneEntry
    | MetricsEntry
    | GroupsEntry
    | ClockEntry
)
Event = Change | Checkpoint

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, Event]]).decode


#: Changes as the owner of the table notes them; they are converted for writing.  Picks of a plan
#: are noted as its claims, which do not change any more.
UnwrittenChange = CommittedHosts | ClaimColumns


class TableLog:
    """The log of one process.  ``add`` by the owner of the table, ``flush`` by any thread.

    :param checkpoint_seconds: bounds what a replay folds, and how long a gap lasts
    """

    def __init__(self, worker: str, checkpoint_seconds: float = 300.0) -> None:
        self.worker = worker
        self._checkpoint_seconds = checkpoint_seconds
        self.position = 0
        self._events: collections.deque[tuple[int, Event | UnwrittenChange]] = collections.deque()
        self._has_gap = True  # until a checkpoint has been written
        self._checkpoint_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether the owner should note a checkpoint; ``now`` is monotonic."""
        if self._checkpoint_at is None:
            self._checkpoint_at = now
        if now - self._checkpoint_at < self._checkpoint_seconds:
            return False
        self._checkpoint_at = now
        return True

    def add(self, event: Event | UnwrittenChange) -> None:
        """Note a change of the table; past the bound the log has a gap until a checkpoint."""
        if len(self._events) >= PENDING_EVENTS_MAX:
            self._events.clear()
            self._has_gap = True
        self._events.append((self.position, event))
        self.position += 1

    def flush(self, table_logs: TableLogs) -> int:
        """Write pending events; return how many were written.

        :raises DatabaseUnavailable: the events of this flush are lost: a gap
        """
        batch = [self._events.popleft() for _ in range(len(self._events))]
        written = 0
        for part in _checkpoint_parts(batch):
            starts = isinstance(part[0][1], Checkpoint)
            if self._has_gap and not starts:
                continue
            self._has_gap = True
            blob = zlib.compress(
                _encode([(position, _stored_event(event)) for position, event in part]), 1
            )
            chunks = [
                blob[start : start + CHUNK_BYTES] for start in range(0, len(blob), CHUNK_BYTES)
            ]
            table_logs.save_table_log(self.worker, part[0][0], part[-1][0], starts, chunks)
            self._has_gap = False
            written += len(part)
        return written


def _stored_event(event: Event | UnwrittenChange) -> Event:
    if isinstance(event, ClaimColumns):
        return picks_added(event)
    return event.written() if isinstance(event, CommittedHosts) else event


def _checkpoint_parts(
    batch: list[tuple[int, Event | UnwrittenChange]],
) -> Iterable[list[tuple[int, Event | UnwrittenChange]]]:
    """Yield the batch cut before every checkpoint, so that a checkpoint starts a part."""
    part: list[tuple[int, Event | UnwrittenChange]] = []
    for entry in batch:
        if part and isinstance(entry[1], Checkpoint):
            yield part
            part = []
        part.append(entry)
    if part:
        yield part


def read_events(parts: Iterable[list[bytes]]) -> Iterable[tuple[int, Event]]:
    """Yield the events of stored parts, in order, up to what a later release wrote otherwise."""
    for chunks in parts:
        try:
            yield from _decode(zlib.decompress(b''.join(chunks)))
        except msgspec.ValidationError:
            return


def table_at(
    events: Iterable[tuple[int, Event]],
    position: int,
    default_zone: str = 'nova',
    made: Callable[[int, Checkpoint], HostTable] | None = None,
) -> HostTable | None:
    """Return the table as it was at ``position``; None where the events do not reach back to it.

    :param made: returns a writable table of a checkpoint and its position, where one may exist
        already: building it is most of the work
    """
    table: HostTable | None = None
    expected: int | None = None
    for event_position, event in events:
        if event_position >= position:
            return table
        if (
            expected is not None
            and event_position != expected
            and not isinstance(event, Checkpoint)
        ):
            table = None
        expected = event_position + 1
        if isinstance(event, Checkpoint):
            table = made(event_position, event) if made else event.table(default_zone)
        elif table is not None:
            event.apply(table)
    return table if expected == position else None


def everything_of(table: HostTable) -> Everything:
    """Return the whole state of a table without open picks, in the order of its rows."""
    return Everything(
        position=0,
        hosts=table.changes(),
        aggregates=list(table.known_aggregates.values()),
        groups=table.generations(),
        resource_classes=frozenset(table.classes.names),
        metrics=list(table.declared_metrics.values()),
        pools=list(table.pools.by_id.values()),
        standalone=[] if table.standalone is None else table.standalone.changes(),
        now=table.now,
        incarnation=0,
    )


def table_of(everything: Everything, default_zone: str = 'nova') -> HostTable:
    """Build a table from the whole state."""
    return HostTable.build(
        everything.hosts,
        everything.aggregates,
        everything.groups,
        everything.resource_classes,
        everything.now,
        metrics=everything.metrics,
        pools=everything.pools,
        standalone=everything.standalone,
        default_zone=default_zone,
    )
