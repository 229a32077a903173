# SPDX-License-Identifier: Apache-2.0
"""Flow 2: reports of compute hosts about their inventory and their guests.

    take reports from a bounded queue → drop malformed ones on arrival →
    fold a batch into the database in one transaction → offer the touched hosts
    to the host table → count, and answer waiting callers

Order rests on (epoch, sequence) only, which the store checks under the lock of
the host's row; late and repeated reports change nothing.
"""

import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

import msgspec

from gantt import exceptions
from gantt.core.messages import report as reports
from gantt.core.messages.report import HostReport
from gantt.core.table import metrics
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports.hosts import ReportOutcome, Reports
from gantt.scheduler.ports.process import Clock, Recorder
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.work_queue import WorkQueue

T = TypeVar('T')

#: Seconds between two tries.
RETRY_SECONDS = 0.1
#: Items that waited so many seconds, or exceed this number, are given up.
WAIT_SECONDS_MAX, WAITING_ITEMS_MAX = 10.0, 1000


class SetAsideItems(Generic[T]):
    """Items of one working thread that wait for locked rows.

    :param host_of: returns the host that an item is about; its items stay in order
    """

    def __init__(self, clock: Clock, host_of: Callable[[T], str]) -> None:
        self._clock = clock
        self._host_of = host_of
        self._items: list[T] = []
        #: Times since which each host waits: those that wait now, and those of this round's try.
        self._since: dict[str, float] = {}
        self._since_before_retry: dict[str, float] = {}
        self._due = 0.0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next try; infinite where nothing waits."""
        if not self._items:
            return float('inf')
        return max(0.0, self._due - self._clock.monotonic())

    def take_due(self) -> list[T]:
        """Return all waiting items, once due.  Called once each round, before anything is put."""
        self._since_before_retry = {}
        if self.wait_seconds > 0:
            return []
        # A host not put back was free: the next time it is locked it waits anew.
        self._since_before_retry, self._since = self._since, {}
        items, self._items = self._items, []
        return items

    def without_waiting_hosts(self, batch: Iterable[T]) -> list[T]:
        """Return a newer batch without items of waiting hosts, which wait behind these."""
        if not self._items:
            return list(batch)
        waiting = {self._host_of(item) for item in self._items}
        free: list[T] = []
        for item in batch:
            (self._items if self._host_of(item) in waiting else free).append(item)
        return free

    def put(self, items: Iterable[T], *, ending: bool = False) -> list[T]:
        """Let items wait, taken before all that wait now; return those that are given up."""
        now = self._clock.monotonic()
        self._items = [*items, *self._items]
        hosts = {self._host_of(item) for item in self._items}
        since_before = self._since_before_retry | self._since
        self._since = {host: since_before.get(host, now) for host in hosts}
        self._due = now + RETRY_SECONDS
        late = {
            host for host, since in self._since.items() if ending or now - since > WAIT_SECONDS_MAX
        }
        expired = [item for item in self._items if self._host_of(item) in late]
        if expired:
            self._items = [item for item in self._items if self._host_of(item) not in late]
        self._items, excess = self._items[:WAITING_ITEMS_MAX], self._items[WAITING_ITEMS_MAX:]
        return expired + excess


LOG = logging.getLogger(__name__)
AWAITED_REPORT_WAIT_MS = 2.0
#: Bytes of all waiting reports, as they are encoded; one of 50 guests has 7 kB.
WAITING_BYTES_MAX = 128 << 20

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HostReport).decode


class WaitingReport(NamedTuple):
    """A waiting report: encoded, since its objects take several times the memory.

    :ivar name: of the host
    :ivar future: future of its outcome, where a caller waits for that
    """

    name: str
    body: bytes
    future: 'Future[ReportOutcome] | None'

    @property
    def report(self) -> HostReport:
        """The report, decoded anew by each use."""
        return _decode(self.body)


@dataclasses.dataclass(eq=False)
class ReportQueue:
    """The reporting thread and its queue."""

    reports: Reports
    cache: HostCache
    recorder: Recorder
    clock: Clock
    settings: SchedulerSettings

    def __post_init__(self) -> None:
        self.work_queue: WorkQueue[WaitingReport] = WorkQueue(
            'reports', self.step, self.settings.report_queue_limit, self.recorder
        )
        self._aside: SetAsideItems[WaitingReport] = SetAsideItems(
            self.clock, lambda item: item.name
        )
        self._bytes = self._stored_bytes = 0  # in the queue, and set aside
        self._count_lock = threading.Lock()

    def submit(self, report: HostReport, *, notify: bool = False) -> 'Future[ReportOutcome] | None':
        """Queue a report.  Blocks only to read the database, for a class not known here.

        :param notify: return a future of its outcome
        :raises InvalidMessage, UnknownResourceClass: where types do not show it
        :raises Busy: the queue is full; the next report makes up for this one
        """
        names = reports.classes_of(report)
        reports.check(report, self.cache.declared_classes(names))
        if self.settings.refuse_undeclared_metrics:
            metrics.check_report(report, self.cache.working.declared_metrics)
        future: Future[ReportOutcome] | None = Future() if notify else None
        if not self._put(WaitingReport(report.name, _encode(report), future)):
            self.recorder.count('gantt_reports_total', outcome='busy')
            raise exceptions.Busy(
                reason=f'{self.work_queue.depth} reports are waiting',
                retry_after_ms=1000 * self.settings.report_seconds // 4,
            )
        return future

    def _put(self, item: WaitingReport) -> bool:
        """Queue a report; return whether there was room for one more, and for its bytes."""
        with self._count_lock:
            waiting = self._bytes + self._stored_bytes
            if waiting + len(item.body) > max(WAITING_BYTES_MAX, len(item.body)):
                return False
            self._bytes += len(item.body)
        if self.work_queue.put(item):
            return True
        self._note_taken(item)
        return False

    def _note_taken(self, item: WaitingReport) -> None:
        with self._count_lock:
            self._bytes -= len(item.body)

    def step(self, idle_seconds: float = 0.0) -> int:
        """Run one batch, from the queue to the table; return the number of its reports."""
        retried = self._aside.take_due()
        wait = 0.0 if retried else min(idle_seconds, self._aside.wait_seconds)
        batch = retried + self._aside.without_waiting_hosts(self._drain(wait))
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

    def _apply(self, batch: list[WaitingReport]) -> None:
        try:
            result = self.reports.apply_reports([item.report for item in batch])
        except exceptions.Busy:
            # Rows of no single host stay locked, of a group or of a consumer: soon they are free.
            self._set_aside(batch)
        except exceptions.Unavailable as e:
            self.recorder.count('gantt_reports_total', len(batch), outcome='unavailable')
            self._fail(batch, e)
        except Exception as e:
            if len(batch) > 1:
                # One report that cannot be stored must not cost the others theirs.
                for item in batch:
                    self._apply([item])
                return
            LOG.exception('Report of a host was dropped: host=%s', batch[0].name)
            self.recorder.count('gantt_reports_total', outcome='failed')
            self._fail(batch, e)
        else:
            locked: list[WaitingReport] = []
            try:
                self.cache.offer(result.hosts)
            finally:
                # They are stored, even if the table fails.
                for item, outcome in zip(batch, result.outcomes, strict=True):
                    if outcome.outcome == 'locked':
                        locked.append(item)
                    else:
                        self._resolve(outcome, item.future)
                if locked:
                    self._set_aside(locked)

    def _set_aside(self, items: list[WaitingReport]) -> None:
        """Let reports that need locked rows wait for the next batches."""
        expired_items = self._aside.put(items, ending=self.work_queue.ending.is_set())
        if expired_items:
            self.recorder.count('gantt_reports_total', len(expired_items), outcome='busy')
            reason = 'rows that the report needs stay locked by another process'
            self._fail(expired_items, exceptions.Busy(reason=reason, retry_after_ms=1000))

    def _drain(self, idle_seconds: float) -> list[WaitingReport]:
        """Return the next batch: gathered for a while, but briefly where a caller waits."""
        batch: list[WaitingReport] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self._next_report(idle_seconds))
            end = self.clock.monotonic() + self._wait_ms(batch[0])
            while len(batch) < self.settings.reports_per_commit:
                seconds_left = end - self.clock.monotonic() if idle_seconds else 0.0
                batch.append(self._next_report(seconds_left))
                end = min(end, self.clock.monotonic() + self._wait_ms(batch[-1]))
        return batch

    def _next_report(self, seconds: float) -> WaitingReport:
        item = self.work_queue.next(seconds)
        self._note_taken(item)
        return item

    def _wait_ms(self, item: WaitingReport) -> float:
        return (
            self.settings.report_wait_ms if item.future is None else AWAITED_REPORT_WAIT_MS
        ) / 1000

    def _resolve(self, outcome: ReportOutcome, future: 'Future[ReportOutcome] | None') -> None:
        self.recorder.count('gantt_reports_total', outcome=outcome.outcome)
        if outcome.adopted:
            # A host runs a guest without a request, or a claim was lost: an alarm.
            self.recorder.count('gantt_guests_adopted_total', len(outcome.adopted))
            LOG.warning(
                'Guests that run without a live claim were adopted: host=%s count=%d claims=%s',
                outcome.name,
                len(outcome.adopted),
                ','.join(outcome.adopted[:5]),
            )
        if future is not None:
            future.set_result(outcome)

    @staticmethod
    def _fail(batch: list[WaitingReport], error: Exception) -> None:
        for item in batch:
            if item.future is not None and not item.future.done():
                item.future.set_exception(error)
