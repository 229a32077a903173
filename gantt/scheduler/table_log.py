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
from itertools import repeat
from typing import TypeVar

import msgspec

from gantt.core.claims.commit import ClaimColumns
from gantt.core.messages.layout import Layout, unsettled
from gantt.core.resources.host import Aggregate, HostChange, HostRow, Placed
from gantt.core.resources.shared_pool import PoolUsage, SharedPool
from gantt.core.table.host_table import HostTable
from gantt.core.table.metrics import DeclaredMetric
from gantt.core.table.pools import NO_SHARES
from gantt.scheduler.ports import Everything, Feed, TableLogs

EVENTS_MAX = 200_000
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


class Committed(msgspec.Struct, frozen=True):
    """Hosts as a commit of this process left them; written as ``CommitEntry``.

    :ivar pairs: each row before the commit, and after it
    :ivar claims: ids of the committed claims; None: all picks on these hosts
    :ivar pools: written or read by the commit
    :ivar shared: ids of the committed claims, where it has pools
    """

    pairs: list[tuple[HostRow, HostRow]]
    claims: Collection[str] | None
    pools: Sequence[PoolUsage] = ()
    shared: Collection[str] = ()

    def apply(self, table: HostTable) -> None:
        for _, row in self.pairs:
            table.correct_usage(row, self.claims)
        for usage in self.pools:
            table.correct_pool(usage, self.shared)

    def written(self) -> CommitEntry:
        """Return the same for the log: facts are mostly unchanged."""
        codes: dict[str, int] = {}
        counted: dict[tuple[str, ...], list[tuple[HostRow, HostRow]]] = {}
        whole: list[HostRow] = []
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


class Picks(msgspec.Struct, frozen=True):
    """Picks of a plan put on the table, or taken back; written as ``PickColumns``."""

    taken: bool
    picks: list[tuple[dict[str, int], Placed]]

    def apply(self, table: HostTable) -> None:
        for amounts, placed in self.picks:
            if self.taken:
                table.take(placed.provider_id, amounts, placed)
            else:
                table.give(placed.provider_id, amounts, placed.claim_id)

    def written(self) -> 'PickColumns':
        """Return the same for the log."""
        amounts, picked_hosts = zip(*self.picks, strict=True) if self.picks else ((), ())
        columns = list(zip(*map(msgspec.structs.astuple, picked_hosts), strict=True))
        claims, consumers, hosts, groups, layouts, images, flavors, names = columns or [()] * 8
        if not self.taken:
            return PickColumns(False, hosts, _ids(claims))
        return PickColumns(
            taken=True,
            hosts=hosts,
            claims=_ids(claims),
            consumers=_ids(consumers),
            amounts=_column(amounts),
            groups=_column(groups),
            layouts=_column(layouts),
            images=_column(images),
            flavors=_column(flavors),
            member_names=_column(names),
        )


#: Ids one after another, 16 bytes each where all are uuids in canonical form.
Ids = bytes | tuple[str, ...]
T = TypeVar('T')


class PickColumns(msgspec.Struct, frozen=True, tag='picked', omit_defaults=True):
    """Picks by columns, as they are written; those taken back only by host and claim id.

    A column has a value for each pick, one that all have, or nothing where none has any.

    :ivar amounts: of the hosts themselves
    :ivar shares: of pools: id -> class -> amount
    """

    taken: bool
    hosts: tuple[int, ...]
    claims: Ids
    consumers: Ids = b''
    amounts: tuple[dict[str, int], ...] = ()
    groups: tuple[str | None, ...] = ()
    layouts: tuple[Layout | None, ...] = ()
    images: tuple[str | None, ...] = ()
    flavors: tuple[str | None, ...] = ()
    member_names: tuple[str | None, ...] = ()
    shares: tuple[dict[int, dict[str, int]] | None, ...] = ()

    def apply(self, table: HostTable) -> None:
        claims = _texts(self.claims)
        if not self.taken:
            for host, claim_id in zip(self.hosts, claims, strict=True):
                table.give(host, {}, claim_id)
            return
        amounts = repeat(self.amounts[0]) if len(self.amounts) == 1 else self.amounts
        for host_amounts, shares, claim_id, consumer, host, group, layout, *as_what in zip(
            amounts,
            _values(self.shares),
            claims,
            _texts(self.consumers),
            self.hosts,
            _values(self.groups),
            _values(self.layouts),
            _values(self.images),
            _values(self.flavors),
            _values(self.member_names),
            strict=False,
        ):
            placed = Placed(claim_id, consumer, host, group, layout, *as_what)
            table.take(host, host_amounts, placed, shares or NO_SHARES)


def picked(claims: ClaimColumns) -> PickColumns:
    """Return the picks of a plan, which are on the table."""
    kinds = [draft.claim for draft in claims.kinds]
    layouts = [None if claim.layout is None else unsettled(claim.layout) for claim in kinds]
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
        claims=_ids(tuple(claims.ids)),
        consumers=_ids(tuple(claims.consumers)),
        amounts=_of_kinds([claim.allocations[claim.provider_id] for claim in kinds], claims),
        groups=_of_kinds([claim.group for claim in kinds], claims),
        layouts=_of_kinds(layouts, claims),
        images=_of_kinds([claim.image for claim in kinds], claims),
        flavors=_of_kinds([claim.flavor for claim in kinds], claims),
        member_names=_of_kinds([claim.member_name for claim in kinds], claims),
        shares=_of_kinds(shares, claims),
    )


def taken_back(claims: ClaimColumns, keep: Collection[int] = ()) -> PickColumns:
    """Return the picks of a plan that are taken back from the table: all but those at ``keep``."""
    indices = [i for i in range(len(claims)) if i not in keep]
    hosts = tuple(claims.providers[i] for i in indices)
    return PickColumns(False, hosts, _ids(tuple(claims.ids[i] for i in indices)))


def _of_kinds(values: list[T], claims: ClaimColumns) -> tuple[T, ...]:
    """Return a column in which each claim has the value of its kind."""
    return _column(
        tuple(values if len(values) == 1 else [values[kind_index] for kind_index in claims.kind])
    )


#: Lines with a uuid each.
_UUIDS = re.compile('(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\n)*')


def _ids(ids: tuple[str, ...]) -> Ids:
    """Return ids as they are written."""
    text = '\n'.join((*ids, ''))
    if _UUIDS.fullmatch(text) is None:
        return ids
    packed = bytes.fromhex(text.replace('-', ''))
    return packed if len(packed) == 16 * len(ids) else ids


def _texts(ids: Ids) -> Sequence[str]:
    """Return ids as text, from what was written."""
    if not isinstance(ids, bytes):
        return ids
    text = ids.hex()
    hex_ids = (text[start : start + 32] for start in range(0, len(text), 32))
    return [
        f'{hex_id[:8]}-{hex_id[8:12]}-{hex_id[12:16]}-{hex_id[16:20]}-{hex_id[20:]}'
        for hex_id in hex_ids
    ]


def _column(values: tuple[T, ...]) -> tuple[T, ...]:
    """Return the values of all picks as they are written."""
    if not values or values.count(values[0]) != len(values):
        return values
    return () if values[0] is None else values[:1]


def _values(column: tuple[T, ...]) -> Iterable[T | None]:
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
        known_pools, current_pools = table.pools.of_id, {pool.id: pool for pool in feed.pools}
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


class AloneEntry(msgspec.Struct, frozen=True, tag='standalone'):
    """Pools that may be requested alone, as the feed brought them; without a row: deleted."""

    changes: list[HostChange]

    @classmethod
    def of(cls, table: HostTable, feed: Feed) -> 'AloneEntry':
        """Return changes of such pools in a feed that are news to a table."""
        known_rows = {} if table.alone is None else table.alone.row_by_id
        current_ids = {change.provider_id for change in feed.standalone}
        gone_ids = sorted((known_rows.keys() & set(feed.providers)) - current_ids)
        new_changes = [
            change
            for change in feed.standalone
            if table.alone is None
            or change.row is None
            or change.row.version > table.alone.known_version(change.provider_id)
        ]
        return cls(
            [*new_changes, *(HostChange(provider_id=pool_id, row=None) for pool_id in gone_ids)]
        )

    def apply(self, table: HostTable) -> None:
        table.apply_alone(self.changes)


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
        table = build(self.everything, default_zone)
        if self.fresh:
            table.set_fresh_picks(self.fresh)
        return table


Change = (
    HostsEntry
    | CommitEntry
    | PickColumns
    | AggregatesEntry
    | PoolsEntry
    | AloneEntry
    | MetricsEntry
    | GroupsEntry
    | ClockEntry
)
Event = Change | Checkpoint

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, Event]]).decode


#: Changes as the owner of the table notes them; they are converted for writing.
Unwritten = Committed | Picks


class TableLog:
    """The log of one process.  ``add`` by the owner of the table, ``flush`` by any thread.

    :param checkpoint_seconds: bounds what a replay folds, and how long a gap lasts
    """

    def __init__(self, worker: str, checkpoint_seconds: float = 300.0) -> None:
        self.worker = worker
        self._checkpoint_seconds = checkpoint_seconds
        self.position = 0
        self._events: collections.deque[tuple[int, Event | Unwritten]] = collections.deque()
        self._gap = True  # until a checkpoint has been written
        self._checkpoint_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Return whether the owner should note a checkpoint; ``now`` is monotonic."""
        if self._checkpoint_at is None:
            self._checkpoint_at = now
        if now - self._checkpoint_at < self._checkpoint_seconds:
            return False
        self._checkpoint_at = now
        return True

    def add(self, event: Event | Unwritten) -> None:
        """Note a change of the table; past the bound the log has a gap until a checkpoint."""
        if len(self._events) >= EVENTS_MAX:
            self._events.clear()
            self._gap = True
        self._events.append((self.position, event))
        self.position += 1

    def flush(self, table_logs: TableLogs) -> int:
        """Write pending events; return how many were written.

        :raises DatabaseUnavailable: the events of this flush are lost: a gap
        """
        batch = [self._events.popleft() for _ in range(len(self._events))]
        written = 0
        for part in _parts(batch):
            starts = isinstance(part[0][1], Checkpoint)
            if self._gap and not starts:
                continue
            self._gap = True
            blob = zlib.compress(
                _encode([(position, _written(event)) for position, event in part]), 1
            )
            chunks = [
                blob[start : start + CHUNK_BYTES] for start in range(0, len(blob), CHUNK_BYTES)
            ]
            table_logs.save_table_log(self.worker, part[0][0], part[-1][0], starts, chunks)
            self._gap = False
            written += len(part)
        return written


def _written(event: Event | Unwritten) -> Event:
    return event.written() if isinstance(event, Unwritten) else event


def _parts(
    batch: list[tuple[int, Event | Unwritten]],
) -> Iterable[list[tuple[int, Event | Unwritten]]]:
    """Yield the batch cut before every checkpoint, so that a checkpoint starts a part."""
    part: list[tuple[int, Event | Unwritten]] = []
    for entry in batch:
        if part and isinstance(entry[1], Checkpoint):
            yield part
            part = []
        part.append(entry)
    if part:
        yield part


def read(parts: Iterable[list[bytes]]) -> Iterable[tuple[int, Event]]:
    """Yield the events of stored parts, in order, up to what a later release wrote otherwise."""
    for chunks in parts:
        try:
            yield from _decode(zlib.decompress(b''.join(chunks)))
        except msgspec.ValidationError:
            return


def rebuild(
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
        pools=list(table.pools.of_id.values()),
        standalone=[] if table.alone is None else table.alone.changes(),
        now=table.now,
        incarnation=0,
    )


def build(everything: Everything, default_zone: str = 'nova') -> HostTable:
    """Build a table from the whole state."""
    return HostTable.build(
        everything.hosts,
        everything.aggregates,
        everything.groups,
        everything.resource_classes,
        everything.now,
        metrics=everything.metrics,
        pools=everything.pools,
        alone=everything.standalone,
        default_zone=default_zone,
    )
