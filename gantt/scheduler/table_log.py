# SPDX-License-Identifier: Apache-2.0
"""The change log of a host table: what a replay of its decisions needs.

Every change of the working table is an event with a position.  A checkpoint is
the whole state that a table was built from; a decision notes the position that
it was made at, so that the table it saw can be built again: the checkpoint,
then every event before that position.  Retention is bounded: past it a decision
can be explained but not replayed.
"""

import collections
import zlib
from collections.abc import Callable, Iterable

import msgspec

from gantt.core.resources.host import Aggregate, HostChange, HostRow, Placed
from gantt.core.table.host_table import HostTable
from gantt.core.table.metrics import DeclaredMetric
from gantt.scheduler.ports import Everything, TableLogs

EVENTS_MAX = 200_000
CHUNK_BYTES = 1 << 20


class HostsEntry(msgspec.Struct, frozen=True, tag='hosts'):
    """Hosts as the feed or a writer of this process brought them."""

    changes: list[HostChange]

    def apply(self, table: HostTable) -> None:
        for change in self.changes:
            table.apply(change)


class CorrectedUsage(msgspec.Struct, frozen=True, tag='settled'):
    """Usage as a commit left it.

    :ivar claims: ids of the claims that it made; None: all picks on these hosts, as in older logs
    """

    rows: list[HostRow]
    claims: list[str] | None = None

    def apply(self, table: HostTable) -> None:
        for row in self.rows:
            table.correct_usage(row, self.claims)


class Picks(msgspec.Struct, frozen=True, tag='picks'):
    """Picks of a plan put on the table, or taken back."""

    taken: bool
    picks: list[tuple[dict[str, int], Placed]]

    def apply(self, table: HostTable) -> None:
        for amounts, placed in self.picks:
            if self.taken:
                table.take(placed.provider_id, amounts, placed)
            else:
                table.give(placed.provider_id, amounts, placed.claim_id)


class AggregatesEntry(msgspec.Struct, frozen=True, tag='aggregates'):
    """All aggregates."""

    aggregates: list[Aggregate]

    def apply(self, table: HostTable) -> None:
        table.set_aggregates(self.aggregates)


class MetricsEntry(msgspec.Struct, frozen=True, tag='metrics'):
    """All declarations of metrics."""

    metrics: list[DeclaredMetric]

    def apply(self, table: HostTable) -> None:
        table.set_metrics(self.metrics)


class GroupsEntry(msgspec.Struct, frozen=True, tag='groups'):
    """Generations of groups; ``whole``: of all that there are."""

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
    """The table was built anew from this.

    :ivar fresh: picks that no report could contain yet, see ``HostTable.unreported_claims``
    """

    everything: Everything
    fresh: dict[int, dict[str, float]] = {}

    def table(self, default_zone: str = 'nova') -> HostTable:
        """The table as it was."""
        table = build(self.everything, default_zone)
        if self.fresh:
            table.set_fresh_picks(self.fresh)
        return table


Change = (
    HostsEntry | CorrectedUsage | Picks | AggregatesEntry | MetricsEntry | GroupsEntry | ClockEntry
)
Event = Change | Checkpoint

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, Event]]).decode


class TableLog:
    """The log of one process.  ``add`` from the owner of the table, ``flush`` from any thread.

    :param checkpoint_seconds: a replay folds no more than that, a gap lasts no longer
    """

    def __init__(self, worker: str, checkpoint_seconds: float = 300.0) -> None:
        self.worker = worker
        self._checkpoint_seconds = checkpoint_seconds
        self.position = 0
        self._events: collections.deque[tuple[int, Event]] = collections.deque()
        self._gap = True  # until a checkpoint has been written
        self._checkpoint_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether the owner should note a checkpoint; ``now`` is monotonic."""
        if self._checkpoint_at is None:
            self._checkpoint_at = now
        if now - self._checkpoint_at < self._checkpoint_seconds:
            return False
        self._checkpoint_at = now
        return True

    def add(self, event: Event) -> None:
        """Note a change of the table; past the bound the log has a gap until a checkpoint."""
        if len(self._events) >= EVENTS_MAX:
            self._events.clear()
            self._gap = True
        self._events.append((self.position, event))
        self.position += 1

    def flush(self, store: TableLogs) -> int:
        """Write what waits; how many events were written.

        :raises DatabaseUnavailable: the events of this flush are lost: a gap
        """
        batch = [self._events.popleft() for _ in range(len(self._events))]
        written = 0
        for part in _parts(batch):
            starts = isinstance(part[0][1], Checkpoint)
            if self._gap and not starts:
                continue
            self._gap = True
            blob = zlib.compress(_encode(part), 1)
            chunks = [blob[i : i + CHUNK_BYTES] for i in range(0, len(blob), CHUNK_BYTES)]
            store.save_table_log(self.worker, part[0][0], part[-1][0], starts, chunks)
            self._gap = False
            written += len(part)
        return written


def _parts(batch: list[tuple[int, Event]]) -> Iterable[list[tuple[int, Event]]]:
    """The batch cut before every checkpoint, so that a checkpoint starts a part."""
    part: list[tuple[int, Event]] = []
    for entry in batch:
        if part and isinstance(entry[1], Checkpoint):
            yield part
            part = []
        part.append(entry)
    if part:
        yield part


def read(parts: Iterable[list[bytes]]) -> Iterable[tuple[int, Event]]:
    """The events of stored parts, in order."""
    for chunks in parts:
        yield from _decode(zlib.decompress(b''.join(chunks)))


def rebuild(
    events: Iterable[tuple[int, Event]],
    position: int,
    default_zone: str = 'nova',
    made: Callable[[int, Checkpoint], HostTable] | None = None,
) -> HostTable | None:
    """The table as it was at ``position``; None where the events do not reach back to it.

    :param made: a writable table of a checkpoint and its position, where there may be one
        already: to build it is most of the work
    """
    table: HostTable | None = None
    expected: int | None = None
    for at, event in events:
        if at >= position:
            return table
        if expected is not None and at != expected and not isinstance(event, Checkpoint):
            table = None
        expected = at + 1
        if isinstance(event, Checkpoint):
            table = made(at, event) if made else event.table(default_zone)
        elif table is not None:
            event.apply(table)
    return table if expected == position else None


def everything_of(table: HostTable) -> Everything:
    """The whole state of a table without open picks, in the order of its rows."""
    return Everything(
        position=0,
        hosts=table.changes(),
        aggregates=list(table.known_aggregates.values()),
        groups=table.generations(),
        resource_classes=frozenset(table.classes.names),
        metrics=list(table.declared_metrics.values()),
        now=table.now,
        incarnation=0,
    )


def build(everything: Everything, default_zone: str = 'nova') -> HostTable:
    """A table from the whole state."""
    return HostTable.build(
        everything.hosts,
        everything.aggregates,
        everything.groups,
        everything.resource_classes,
        everything.now,
        metrics=everything.metrics,
        default_zone=default_zone,
    )
