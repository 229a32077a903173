# SPDX-License-Identifier: Apache-2.0
"""Flow 2: a compute host reports what it has and what it runs.

    take reports from a bounded queue → drop what is malformed at the door →
    fold a batch into the database in one transaction → offer the touched hosts
    to the host table → count, and tell whoever waits

Order rests on (epoch, sequence) only, which the store checks under the lock of
the host's row; late and repeated reports change nothing.
"""

import contextlib
import dataclasses
import logging
import queue
import threading
from concurrent.futures import Future
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.messages import report as reports
from gantt.core.messages.report import HostReport
from gantt.core.table import metrics
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports import Clock, Recorder, ReportOutcome, Store
from gantt.scheduler.set_aside import SetAside
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.work_queue import WorkQueue

LOG = logging.getLogger(__name__)
WAITED_FOR_MS = 2.0
#: Of the reports that wait, all together, as they are encoded; one of 50 guests has 7 kB.
BYTES_MAX = 128 << 20

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HostReport).decode


class Item(NamedTuple):
    """A report that waits: encoded, since its objects take several times the room.

    :ivar name: of the host
    :ivar future: of its fate, where somebody waits for that
    """

    name: str
    body: bytes
    future: 'Future[ReportOutcome] | None'

    @property
    def report(self) -> HostReport:
        """Decoded anew by each use."""
        return _decode(self.body)


@dataclasses.dataclass(eq=False)
class Intake:
    """The reporting thread and its queue."""

    store: Store
    cache: HostCache
    recorder: Recorder
    clock: Clock
    settings: SchedulerSettings

    def __post_init__(self) -> None:
        self.work_queue: WorkQueue[Item] = WorkQueue(
            'reports', self.step, self.settings.report_queue_limit, self.recorder
        )
        self._aside: SetAside[Item] = SetAside(self.clock, lambda item: item.name)
        self._bytes = self._stored_bytes = 0  # of what waits in the queue, and set aside
        self._counting = threading.Lock()

    def submit(self, report: HostReport, *, notify: bool = False) -> 'Future[ReportOutcome] | None':
        """Queue a report.  Blocks only to read the database, for a class not known here.

        :param notify: return a future of its outcome
        :raises InvalidMessage, UnknownResourceClass: what types cannot say
        :raises Busy: the queue is full; the next report makes up for this one
        """
        names = reports.classes_of(report)
        reports.check(report, self.cache.declared_classes(names))
        if self.settings.refuse_undeclared_metrics:
            metrics.check_report(report, self.cache.working.declared_metrics)
        future: Future[ReportOutcome] | None = Future() if notify else None
        if not self._put(Item(report.name, _encode(report), future)):
            self.recorder.count('gantt_reports_total', fate='busy')
            raise exceptions.Busy(
                reason=f'{self.work_queue.depth} reports are waiting',
                retry_after_ms=1000 * self.settings.report_seconds // 4,
            )
        return future

    def _put(self, item: Item) -> bool:
        """Whether there was room: for one more, and for its bytes."""
        with self._counting:
            waiting = self._bytes + self._stored_bytes
            if waiting + len(item.body) > max(BYTES_MAX, len(item.body)):
                return False
            self._bytes += len(item.body)
        if self.work_queue.put(item):
            return True
        self._taken(item)
        return False

    def _taken(self, item: Item) -> None:
        with self._counting:
            self._bytes -= len(item.body)

    def step(self, idle_seconds: float = 0.0) -> int:
        """One batch, from the queue to the table; how many reports it had."""
        again = self._aside.take()
        wait = 0.0 if again else min(idle_seconds, self._aside.wait_seconds)
        batch = again + self._aside.behind(self._drain(wait))
        try:
            if batch:
                self._apply(batch)
            elif self.work_queue.ending.is_set():
                self._set_aside([])
        except Exception as e:
            self._fail(batch, e)
            raise
        finally:
            self.work_queue.set_aside_count = len(self._aside)
            self._stored_bytes = sum(len(item.body) for item in self._aside)
        return len(batch)

    def _apply(self, batch: list[Item]) -> None:
        try:
            result = self.store.apply_reports([item.report for item in batch])
        except exceptions.Busy:
            # Rows of no one host stay locked, of a group or of a consumer: soon they are free.
            self._set_aside(batch)
        except exceptions.Unavailable as e:
            self.recorder.count('gantt_reports_total', len(batch), fate='unavailable')
            self._fail(batch, e)
        except Exception as e:
            if len(batch) > 1:
                # One report that cannot be stored must not cost the others theirs.
                for item in batch:
                    self._apply([item])
                return
            LOG.exception('the report of host %s was dropped', batch[0].name)
            self.recorder.count('gantt_reports_total', fate='failed')
            self._fail(batch, e)
        else:
            locked: list[Item] = []
            try:
                self.cache.offer(result.hosts)
            finally:
                # They are stored, whatever becomes of the table.
                for item, outcome in zip(batch, result.outcomes, strict=True):
                    if outcome.outcome == 'locked':
                        locked.append(item)
                    else:
                        self._resolve(outcome, item.future)
                if locked:
                    self._set_aside(locked)

    def _set_aside(self, items: list[Item]) -> None:
        """Reports that need rows which others keep locked wait for the next batches."""
        gone = self._aside.put(items, ending=self.work_queue.ending.is_set())
        if gone:
            self.recorder.count('gantt_reports_total', len(gone), fate='busy')
            reason = 'rows that the report needs stay locked by another process'
            self._fail(gone, exceptions.Busy(reason=reason, retry_after_ms=1000))

    def _drain(self, idle_seconds: float) -> list[Item]:
        """The next batch: gathered for a while, but hardly where somebody waits for a fate."""
        batch: list[Item] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self._next(idle_seconds))
            end = self.clock.monotonic() + self._patience(batch[0])
            while len(batch) < self.settings.reports_per_commit:
                left = end - self.clock.monotonic() if idle_seconds else 0.0
                batch.append(self._next(left))
                end = min(end, self.clock.monotonic() + self._patience(batch[-1]))
        return batch

    def _next(self, seconds: float) -> Item:
        item = self.work_queue.next(seconds)
        self._taken(item)
        return item

    def _patience(self, item: Item) -> float:
        return (self.settings.report_wait_ms if item.future is None else WAITED_FOR_MS) / 1000

    def _resolve(self, outcome: ReportOutcome, future: 'Future[ReportOutcome] | None') -> None:
        self.recorder.count('gantt_reports_total', fate=outcome.outcome)
        if outcome.adopted:
            # Somebody runs what nobody asked for, or a claim was lost: an alarm.
            self.recorder.count('gantt_adopted_total', len(outcome.adopted))
            LOG.warning(
                'host %s: adopted %d consumers that run without a live claim: %s',
                outcome.name,
                len(outcome.adopted),
                ', '.join(outcome.adopted[:5]),
            )
        if future is not None:
            future.set_result(outcome)

    @staticmethod
    def _fail(batch: list[Item], error: Exception) -> None:
        for item in batch:
            if item.future is not None and not item.future.done():
                item.future.set_exception(error)
