# SPDX-License-Identifier: Apache-2.0
"""Flow 2: a compute host reports what it has and what it runs.

    take reports from a bounded queue → drop what is malformed at the door →
    fold a batch into the database in one transaction → offer the touched hosts
    to the host table → count, and tell whoever waits

Order rests on (epoch, sequence) only, which the store checks under the lock of
the host's row; late and repeated reports change nothing.
"""

import logging
import queue
import threading
from concurrent.futures import Future

from msgspec import UNSET

from gantt import exceptions
from gantt.core import metrics
from gantt.core import report as reports
from gantt.core.report import HostReport
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports import Clock, Recorder, ReportFate, Store
from gantt.scheduler.settings import Settings

LOG = logging.getLogger(__name__)
IDLE_SECONDS = 0.5
WAITED_FOR_MS = 2.0

Item = tuple[HostReport, 'Future[ReportFate] | None']


class Intake:
    """The reporting thread and its queue."""

    def __init__(
        self, store: Store, cache: HostCache, recorder: Recorder, clock: Clock, settings: Settings
    ) -> None:
        self._store = store
        self._cache = cache
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._queue: queue.Queue[Item | None] = queue.Queue(settings.report_queue_limit)
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def depth(self) -> int:
        """How many reports wait."""
        return self._queue.qsize()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name='reports', daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Fold what is queued, then stop; whether that was done in time."""
        self._closed = True
        if self._thread is not None:
            self._thread.join(seconds)
            return not self._thread.is_alive()
        return True

    def submit(self, report: HostReport, *, tell: bool = False) -> 'Future[ReportFate] | None':
        """Queue a report.

        :param tell: return a future of its fate
        :raises InvalidMessage, UnknownResourceClass: what types cannot say
        :raises Busy: the queue is full; the next report makes up for this one
        """
        names = set(report.inventories if report.inventories is not UNSET else ())
        for entry in (*(report.running or ()), *(report.pending or ())):
            names.update(entry.resources)
        reports.check(report, self._cache.knows_classes(names))
        if self._settings.refuse_undeclared_metrics:
            metrics.check_report(report, self._cache.working.declared_metrics)
        future: Future[ReportFate] | None = Future() if tell else None
        try:
            self._queue.put_nowait((report, future))
        except queue.Full:
            self._recorder.count('gantt_reports_total', fate='busy')
            raise exceptions.Busy(
                reason=f'{self._settings.report_queue_limit} reports are waiting',
                retry_after_ms=1000 * self._settings.report_seconds // 4,
            ) from None
        return future

    def _run(self) -> None:
        while not (self._closed and self._queue.empty()):
            self.step(IDLE_SECONDS)

    def step(self, idle_seconds: float = 0.0) -> int:
        """One batch, from the queue to the table; how many reports it had."""
        batch = self._drain(idle_seconds)
        if not batch:
            return 0
        self._apply(batch)
        return len(batch)

    def _apply(self, batch: list[Item]) -> None:
        try:
            result = self._store.apply_reports([report for report, _ in batch])
        except exceptions.Unavailable as e:
            self._recorder.count('gantt_reports_total', len(batch), fate='unavailable')
            self._fail(batch, e)
        except Exception as e:
            if len(batch) > 1:
                # One report that cannot be stored must not cost the others theirs.
                for item in batch:
                    self._apply([item])
                return
            LOG.exception('the report of host %s was dropped', batch[0][0].name)
            self._recorder.count('gantt_reports_total', fate='failed')
            self._fail(batch, e)
        else:
            self._cache.offer(result.hosts)
            for (_, future), fate in zip(batch, result.fates, strict=True):
                self._tell(fate, future)

    def _drain(self, idle_seconds: float) -> list[Item]:
        """The next batch: gathered for a while, but hardly where somebody waits for a fate."""
        batch: list[Item] = []
        end = float('inf')
        try:
            first = self._get(idle_seconds)
            while True:
                if first:
                    batch.append(first)
                    end = min(end, self._clock.monotonic() + self._patience(first))
                if len(batch) >= self._settings.reports_per_commit:
                    break
                left = end - self._clock.monotonic() if batch else 0.0
                first = self._get(left if idle_seconds else 0.0)
        except queue.Empty:
            pass
        return batch

    def _get(self, seconds: float) -> Item | None:
        return self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()

    def _patience(self, item: Item) -> float:
        return (self._settings.report_wait_ms if item[1] is None else WAITED_FOR_MS) / 1000

    def _tell(self, fate: ReportFate, future: 'Future[ReportFate] | None') -> None:
        self._recorder.count('gantt_reports_total', fate=fate.fate)
        if fate.adopted:
            # Somebody runs what nobody asked for, or a claim was lost: an alarm.
            self._recorder.count('gantt_adopted_total', len(fate.adopted))
            LOG.warning(
                'host %s: adopted %d consumers that run without a live claim: %s',
                fate.name,
                len(fate.adopted),
                ', '.join(fate.adopted[:5]),
            )
        if future is not None:
            future.set_result(fate)

    @staticmethod
    def _fail(batch: list[Item], error: Exception) -> None:
        for _, future in batch:
            if future is not None:
                future.set_exception(error)
