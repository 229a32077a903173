# SPDX-License-Identifier: Apache-2.0
"""Events of an unmodified Nova about its hosts: received, folded, and checked.

    take broadcasts from a bounded queue, in their order → fold a batch into claims and
    aggregates in one transaction → offer the touched hosts to the host table → count;
    now and then search for moves left open, and raise an alarm

Every scheduler receives every broadcast; the store ensures that each has the
effect of one.  Losing one loses little: the next list of guests makes up for it.

A request of Nova for a guest on a host settles the guest's last move.  Where that ended a moment
ago the claim that it runs under may not be confirmed yet, as no list of its host has come; to the
commit it appears as an abandoned destination, and would give way.  Nova begins a move only when
none is open, so the request for the next one knows better.  Likewise a guest that comes out of a
shelf is on no host, even if a claim remains.
"""

import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable

from gantt import exceptions
from gantt.core.messages.request import SelectDestinations
from gantt.nova.model.events import AggregateDeleted, AggregatesUpdated, GuestLocation, NovaCast
from gantt.nova.ports import Nova, NovaUpdateResult
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports.process import Clock, Recorder
from gantt.scheduler.ports.requests import Requests
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.update_resource_stats import SetAsideItems
from gantt.scheduler.work_queue import WorkQueue

LOG = logging.getLogger(__name__)

#: Broadcasts that may wait; each has up to some kilobytes.
QUEUE_LIMIT = 20_000
#: Most moves that wait.
QUEUED_MOVES_MAX = 1000
#: Tolerance: the database's clock is known only by estimate.
CLOCK_TOLERANCE_SECONDS = 1.0

Continuation = Callable[[], None]
PendingMove = tuple[SelectDestinations, str | None, Continuation]
CASTS_PER_COMMIT = 32
#: Pause while the database is away; broadcasts are kept meanwhile.
DATABASE_RETRY_SECONDS = 1.0
#: Seconds between two searches for moves that are open for too long.
OVERDUE_CHECK_SECONDS = 60.0
#: Seconds between two lines in the log for a host that is not one of Nova's.
LOG_AGAIN_SECONDS = 3600.0
#: Moves that are searched for at once, and lines in the log for them.
OVERDUE_MOVES_MAX, MOVES_SHOWN = 1000, 5
#: Ids of adopted claims in one line of the log.
ADOPTED_SHOWN = 5


@dataclasses.dataclass(eq=False)
class NovaEvents:
    """The thread that folds broadcasts, and its queue."""

    nova: Nova
    cache: HostCache
    recorder: Recorder
    clock: Clock
    settings: SchedulerSettings

    def __post_init__(self) -> None:
        self.work_queue: WorkQueue[NovaCast] = WorkQueue(
            'nova words', self._run_turn, QUEUE_LIMIT, self.recorder
        )
        self._set_aside_casts: SetAsideItems[NovaCast] = SetAsideItems(
            self.clock, lambda cast: getattr(cast.event, 'host', '')
        )
        self._has_received = False
        self._next_check_at = 0.0
        self._logged_at: dict[str, float] = {}

    def submit(self, cast: NovaCast) -> None:
        """Queue a broadcast.

        :raises Busy: the queue is full
        """
        self._count(cast, 'received')
        if not self.work_queue.put(cast):
            self._count(cast, 'dropped')
            raise exceptions.Busy(
                reason=f'{QUEUE_LIMIT} broadcasts are waiting', retry_after_ms=1000
            )

    def receive(self, cast: NovaCast) -> NovaUpdateResult:
        """Apply a host's list of its guests now; this may wait for the database."""
        self._count(cast, 'received')
        self._has_received = True
        result = self.nova.apply_guest_events([cast])
        host = getattr(cast.event, 'host', None)
        self._log_result(result, f'list of host {host}')
        self._log_ignored_hosts([cast], result)
        return result

    def resolve(self, location: GuestLocation) -> None:
        """Apply the location of a guest that Nova's API returned."""
        self._log_result(self.nova.resolve_guest(location))

    def _run_turn(self, idle_seconds: float) -> int:
        done = self.step(idle_seconds)
        self._check_if_due()
        return done

    def _check_if_due(self) -> None:
        now = self.clock.monotonic()
        if now < self._next_check_at:
            return
        self._next_check_at = now + OVERDUE_CHECK_SECONDS
        try:
            self.check_overdue_moves()
        except exceptions.Unavailable as e:
            LOG.warning('Overdue moves cannot be read; the next check follows: error=%s', e)
        except Exception:
            LOG.exception('Check of overdue moves failed unexpectedly; the next one follows')

    def step(self, idle_seconds: float = 0.0) -> int:
        """Run one batch; return the number of its broadcasts."""
        retried = self._set_aside_casts.take_due()
        wait = 0.0 if retried else min(idle_seconds, self._set_aside_casts.wait_seconds)
        batch = retried + self._set_aside_casts.without_waiting_hosts(self._take_batch(wait))
        if batch:
            self._fold(batch)
        elif self.work_queue.ending.is_set():
            self._set_aside([])
        self.work_queue.set_aside_count = len(self._set_aside_casts)
        return len(batch)

    def _set_aside(self, casts: list[NovaCast]) -> None:
        """Keep updates of hosts whose rows other transactions lock for the next batches."""
        for cast in self._set_aside_casts.put(casts, ending=self.work_queue.ending.is_set()):
            self._count(cast, 'dropped')

    def _take_batch(self, idle_seconds: float) -> list[NovaCast]:
        batch: list[NovaCast] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self.work_queue.next(idle_seconds))
            while len(batch) < CASTS_PER_COMMIT:
                batch.append(self.work_queue.next())
        return batch

    def _fold(self, batch: list[NovaCast]) -> None:
        """Apply broadcasts in their order, consecutive ones about guests together."""
        guests: list[NovaCast] = []
        for cast in batch:
            if isinstance(cast.event, AggregatesUpdated | AggregateDeleted):
                self._apply_with_retries(guests)
                guests = []
                self._apply_with_retries([cast])
            else:
                guests.append(cast)
        self._apply_with_retries(guests)

    def _apply_with_retries(self, batch: list[NovaCast]) -> None:
        """Apply a batch, waiting for the database; one that fails costs the others nothing."""
        while batch:
            try:
                self._apply_once(batch)
                return
            except exceptions.Unavailable as e:
                self.recorder.count('gantt_job_failures_total', job='nova events')
                LOG.warning(
                    'Fanout messages from Nova wait for the database: count=%d error=%s',
                    len(batch),
                    e,
                )
                if self.work_queue.ending.wait(DATABASE_RETRY_SECONDS):
                    for cast in batch:
                        self._count(cast, 'dropped')
                    return
            except Exception:
                if len(batch) > 1:
                    for cast in batch:
                        self._apply_with_retries([cast])
                    return
                LOG.exception('Handling a fanout message from Nova failed; it is dropped')
                self._count(batch[0], 'failed')
                return

    def _apply_once(self, batch: list[NovaCast]) -> None:
        self._has_received = True
        if isinstance(batch[0].event, AggregatesUpdated | AggregateDeleted):
            self.nova.apply_aggregates(batch[0])
        else:
            result = self.nova.apply_guest_events(batch)
            self._log_result(result)
            self._log_ignored_hosts(batch, result)
            if result.locked:
                locked = set(result.locked)
                self._set_aside(
                    [cast for cast in batch if getattr(cast.event, 'host', '') in locked]
                )

    def _log_ignored_hosts(self, batch: list[NovaCast], result: NovaUpdateResult) -> None:
        """Log now and then the hosts whose Nova events do not count: an agent reports for them."""
        if not result.not_novas:
            return
        hosts, now = set(result.not_novas), self.clock.monotonic()
        for cast in batch:
            if getattr(cast.event, 'host', None) in hosts:
                self._count(cast, 'other_reporter')
        for host in sorted(hosts):
            if now - self._logged_at.get(host, -LOG_AGAIN_SECONDS) >= LOG_AGAIN_SECONDS:
                self._logged_at[host] = now
                LOG.warning(
                    'Nova reports guests on a host that has an agent of its own, and is ignored '
                    'there; stop one of them, or run the agent with --facts-only: host=%s',
                    host,
                )

    def _log_result(self, result: NovaUpdateResult, how: str = 'broadcasts') -> None:
        self.cache.offer(result.hosts)
        for action, ids in (
            ('confirmed', result.confirmed),
            ('released', result.released),
            ('adopted', result.adopted),
        ):
            if ids:
                self.recorder.count('gantt_nova_claims_total', len(ids), action=action)
        if result.adopted:
            LOG.warning(
                'Guests of Nova without a claim were adopted: count=%d source=%s claims=%s',
                len(result.adopted),
                how,
                ','.join(result.adopted[:ADOPTED_SHOWN]),
            )

    def _count(self, cast: NovaCast, outcome: str) -> None:
        self.recorder.count(
            'gantt_nova_events_total', event=type(cast.event).__name__, outcome=outcome
        )

    # -- moves left open -----------------------------------------------------------
    def check_overdue_moves(self) -> None:
        """Raise an alarm for moves that have been open for too long."""
        if not self._has_received:
            return
        seconds = self.settings.nova_move_seconds
        overdue = self.nova.open_moves(seconds, OVERDUE_MOVES_MAX)
        self.recorder.gauge('gantt_nova_moves_overdue', len(overdue))
        for move in overdue[:MOVES_SHOWN]:
            LOG.warning(
                'Move has been open for too long, and both claims stay until Nova reports the '
                'host; release the wrong one by hand: instance=%s source=%s target=%s '
                'seconds=%.0f source_claim=%s target_claim=%s',
                move.target.consumer,
                move.source.host,
                move.target.host,
                move.seconds,
                move.source.id,
                move.target.id,
            )


class MoveResolver:
    """A thread, with a queue, that looks up where guests are before their next move is placed."""

    def __init__(self, requests: Requests, cache: HostCache, events: NovaEvents) -> None:
        self._requests = requests
        self._cache = cache
        self._events = events
        self._queue: queue.Queue[PendingMove | None] = queue.Queue(QUEUED_MOVES_MAX)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name='nova moves', daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Pass on what is queued, then stop; return whether that was done in time."""
        if self._thread is None:
            return True
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            return False
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def begin(self, request: SelectDestinations, source: str | None, then: Continuation) -> None:
        """Resolve where the guests of a request are, then call ``then``, which goes on with it.

        :param source: None: the guests are on no host
        """
        try:
            self._queue.put_nowait((request, source, then))
        except queue.Full:
            then()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            request, source, then = item
            try:
                self.resolve(request, source)
            except exceptions.Unavailable as e:
                LOG.debug('Guest was not resolved before its next move: error=%s', e)
            except Exception:
                LOG.exception(
                    'Last move of a guest was not settled before its next one, which goes on: '
                    'request=%s',
                    request.request_id,
                )
            then()

    def resolve(self, request: SelectDestinations, source: str | None) -> None:
        """End claims of guests elsewhere than on ``source``; a repeated request is skipped."""
        cutoff = self._cache.database_now - CLOCK_TOLERANCE_SECONDS
        if self._requests.load_request(request.request_id) is not None:
            return
        for consumer in request.consumers:
            self._events.resolve(GuestLocation(consumer=consumer, host=source, cutoff=cutoff))
