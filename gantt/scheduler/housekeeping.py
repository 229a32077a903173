# SPDX-License-Identifier: Apache-2.0
"""Periodic jobs: follow the feed, sweep, flush, purge.

One thread; every job has a period and survives an unavailable database.
"""

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable

from gantt import exceptions
from gantt.core.records.retention import DECISION_STORED_SECONDS
from gantt.core.table.host_table import HostTable
from gantt.scheduler.claims import ClaimUpdates, with_jitter
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports.process import Recorder
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.quotas import REFRESH_SECONDS, QuotaChecks
from gantt.scheduler.recorder import StoreRecorder
from gantt.scheduler.request.planner import Contention
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)
LOG_FAILURE_SECONDS = 30.0
MEASURE_SECONDS = 5.0
STALE_HOSTS_NAMED_MAX = 10
TABLE_LOG_SECONDS = 1.0
#: Rows of a kind that one purge takes, so that the feed is not kept waiting.
PURGE_ROWS = 1000
#: Seconds to the next run of a job that reached its bound: there is more to do.
#: A bound for each period would let the tables grow under load.
RERUN_SECONDS = 0.2


@dataclasses.dataclass
class Job:
    """A periodic job.

    :ivar most: bound of one run, where ``run`` returns how much it did
    """

    name: str
    seconds: Callable[[], float]
    run: Callable[[], int | None]
    most: Callable[[], int] | None = None
    due: float = 0.0
    complained: float = float('-inf')


class Housekeeping:
    """The thread that keeps a scheduler current and its database tidy."""

    def __init__(
        self,
        stores: Stores,
        cache: HostCache,
        claims: ClaimUpdates,
        recorder: Recorder,
        settings: SchedulerSettings,
        contention: Contention,
        quotas: QuotaChecks,
    ) -> None:
        self._table_logs = stores.table_logs
        self._retention = stores.retention
        self._cache = cache
        self._clock = cache.clock
        self._recorder = recorder
        self._settings = settings
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # Whether the last purge left rows, and when to purge all kinds of rows again.
        self._purge_unfinished = False
        self._next_full_purge = 0.0
        self._stale = 0  # hosts that were silent at the last check
        self._fell_silent_together = False  # whether most fell silent together
        self._jobs = [
            Job('feed', lambda: settings.feed_seconds / contention.haste, cache.fetch),
            Job(
                'sweep',
                lambda: with_jitter(settings.sweep_seconds),
                claims.sweep,
                lambda: settings.sweep_rows,
            ),
            Job('measure', lambda: MEASURE_SECONDS, self._set_gauges),
            Job('quotas', lambda: REFRESH_SECONDS, quotas.read),
            Job(
                'purge',
                lambda: with_jitter(settings.purge_seconds),
                self._purge,
                lambda: PURGE_ROWS,
            ),
        ]
        if cache.log is not None:
            flush = functools.partial(cache.log.flush, stores.table_logs)
            self._jobs.append(Job('table log', lambda: TABLE_LOG_SECONDS, flush))
        if isinstance(recorder, StoreRecorder):
            self._jobs.append(Job('decisions', lambda: 0.2, recorder.flush))

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name='housekeeping', daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Stop, and write what still waits."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(seconds)
        if isinstance(self._recorder, StoreRecorder):
            self._recorder.flush()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(max(0.005, self.step()))

    def step(self) -> float:
        """Run the jobs that are due; return the seconds until the next."""
        for job in self._jobs:
            now = self._clock.monotonic()
            if job.due <= now:
                done = self._run_job(job, now)
                has_more = job.most is not None and done >= job.most()
                job.due = self._clock.monotonic() + (RERUN_SECONDS if has_more else job.seconds())
        return min(job.due for job in self._jobs) - self._clock.monotonic()

    def _run_job(self, job: Job, now: float) -> int:
        try:
            return job.run() or 0
        except exceptions.Unavailable as e:
            if now - job.complained >= LOG_FAILURE_SECONDS:
                LOG.warning('Periodic job failed and is repeated: job=%s error=%s', job.name, e)
                job.complained = now
        except Exception:
            LOG.exception('Periodic job failed unexpectedly and is repeated: job=%s', job.name)
        self._recorder.count('gantt_job_failures_total', job=job.name)
        return 0

    def _set_gauges(self) -> None:
        """Set gauges of this process's view."""
        table = self._cache.working
        stale = table.count_stale(self._settings.stale_after_seconds)
        self._recorder.gauge('gantt_host_table_age_seconds', self._cache.age_seconds)
        self._recorder.gauge('gantt_hosts', len(table) - stale, state='reporting')
        self._recorder.gauge('gantt_hosts', self._count_silent(table), state='mass_outage')
        self._recorder.gauge('gantt_hosts', stale, state='stale')
        self._log_stale(table, stale)

    def _count_silent(self, table: HostTable) -> int:
        """Count hosts silent since most fell silent together; log a line when that changes."""
        window = self._cache.update_silence(self._settings.stale_after_seconds)
        was_together, self._fell_silent_together = self._fell_silent_together, window is not None
        if window is None:
            if was_together:
                LOG.info('Most hosts report again')
            return 0
        unheard = table.count_reported_within(*window)
        if not was_together:
            LOG.error(
                'Most hosts fell silent together, so their reports may be lost; a refusal that '
                'they could change is answered as unknown: silent=%d hosts=%d',
                unheard,
                len(table),
            )
        return unheard

    def _log_stale(self, table: HostTable, stale: int) -> None:
        """Log a line when more hosts are silent than before, and one when none is any more."""
        stale_before, self._stale = self._stale, stale
        if stale > stale_before:
            names = table.names_of_stale(self._settings.stale_after_seconds, STALE_HOSTS_NAMED_MAX)
            LOG.warning(
                'Hosts have not reported: count=%d total=%d seconds=%g hosts=%s%s',
                stale,
                len(table),
                self._settings.stale_after_seconds,
                ','.join(names),
                ',...' if stale > len(names) else '',
            )
        elif stale_before and not stale:
            LOG.info('All hosts report again: hosts=%d', len(table))

    def _purge(self) -> int:
        now = self._clock.monotonic()
        continues = self._purge_unfinished and now < self._next_full_purge
        if not continues:
            self._next_full_purge = now + self._settings.purge_seconds
            self._table_logs.purge_table_log(self._settings.replay_seconds)
        purged = self._retention.purge(
            decisions=self._settings.decisions_stored,
            decision_bytes=self._settings.decision_bytes,
            decision_seconds=DECISION_STORED_SECONDS,
            tombstone_seconds=self._settings.tombstone_seconds,
            request_seconds=self._settings.request_seconds,
            limit=PURGE_ROWS,
            again=continues,
        )
        self._purge_unfinished = purged >= PURGE_ROWS
        return purged
