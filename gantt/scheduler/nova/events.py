# SPDX-License-Identifier: Apache-2.0
"""Events of an unmodified Nova about its hosts: received, folded, and checked.

    take broadcasts from a bounded queue, in their order → fold a batch into claims and
    aggregates in one transaction → offer the touched hosts to the host table → count;
    now and then search for moves left open, and raise an alarm

Every scheduler receives every broadcast; the store ensures that each has the
effect of one.  Losing one loses little: the next list of guests makes up for it.
"""

import contextlib
import dataclasses
import logging
import queue

from gantt import exceptions
from gantt.core.nova.events import AggregateDeleted, AggregatesUpdated, GuestLocation, NovaCast
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports import (
    Clock,
    Nova,
    NovaUpdateResult,
    Recorder,
)
from gantt.scheduler.set_aside import SetAside
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.work_queue import WorkQueue

LOG = logging.getLogger(__name__)

#: Broadcasts that may wait; each has up to some kilobytes.
QUEUE_LIMIT = 20_000
CASTS_PER_COMMIT = 32
#: Pause while the database is away; broadcasts are kept meanwhile.
AWAY_SECONDS = 1.0
#: Seconds between two searches for moves that are open for too long.
LOOK_SECONDS = 60.0
#: Seconds between two lines in the log for a host that is not one of Nova's.
AGAIN_SECONDS = 3600.0
#: Moves that are searched for at once, and lines in the log for them.
MOVES_MOST, MOVES_SHOWN = 1000, 5
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
            'nova words', self._turn, QUEUE_LIMIT, self.recorder
        )
        self._aside: SetAside[NovaCast] = SetAside(
            self.clock, lambda cast: getattr(cast.word, 'host', '')
        )
        self._has_received = False
        self._look_at = 0.0
        self._logged: dict[str, float] = {}

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
        """Fold a host's list of its guests at once: may wait for the database."""
        self._count(cast, 'received')
        self._has_received = True
        result = self.nova.apply_guest_events([cast])
        host = getattr(cast.word, 'host', None)
        self._log_result(result, f'list of host {host}')
        self._log_ignored_hosts([cast], result)
        return result

    def resolve(self, location: GuestLocation) -> None:
        """Note the location of a guest that Nova's API returned."""
        self._log_result(self.nova.resolve_guest(location))

    def _turn(self, idle_seconds: float) -> int:
        done = self.step(idle_seconds)
        self._look()
        return done

    def _look(self) -> None:
        now = self.clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        try:
            self.look_for_moves()
        except exceptions.Unavailable as e:
            LOG.warning('Overdue moves cannot be read: error=%s', e)
        except Exception:
            LOG.exception('Check of overdue moves failed unexpectedly')

    def step(self, idle_seconds: float = 0.0) -> int:
        """Run one batch; return the number of its broadcasts."""
        retried = self._aside.take()
        wait = 0.0 if retried else min(idle_seconds, self._aside.wait_seconds)
        batch = retried + self._aside.behind(self._drain(wait))
        if batch:
            self._fold(batch)
        elif self.work_queue.ending.is_set():
            self._set_aside([])
        self.work_queue.set_aside_count = len(self._aside)
        return len(batch)

    def _set_aside(self, casts: list[NovaCast]) -> None:
        """Let updates of hosts whose rows others keep locked wait for the next batches."""
        for cast in self._aside.put(casts, ending=self.work_queue.ending.is_set()):
            self._count(cast, 'dropped')

    def _drain(self, idle_seconds: float) -> list[NovaCast]:
        batch: list[NovaCast] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self.work_queue.next(idle_seconds))
            while len(batch) < CASTS_PER_COMMIT:
                batch.append(self.work_queue.next())
        return batch

    def _fold(self, batch: list[NovaCast]) -> None:
        """Fold in order: consecutive events about guests together."""
        guests: list[NovaCast] = []
        for cast in batch:
            if isinstance(cast.word, AggregatesUpdated | AggregateDeleted):
                self._attempt(guests)
                guests = []
                self._attempt([cast])
            else:
                guests.append(cast)
        self._attempt(guests)

    def _attempt(self, batch: list[NovaCast]) -> None:
        """Apply a batch, waiting for the database; one that fails costs the others nothing."""
        while batch:
            try:
                self._apply(batch)
                return
            except exceptions.Unavailable as e:
                self.recorder.count('gantt_job_failures_total', job='nova events')
                LOG.warning(
                    'Broadcasts of Nova wait for the database: count=%d error=%s', len(batch), e
                )
                if self.work_queue.ending.wait(AWAY_SECONDS):
                    for cast in batch:
                        self._count(cast, 'dropped')
                    return
            except Exception:
                if len(batch) > 1:
                    for cast in batch:
                        self._attempt([cast])
                    return
                LOG.exception('Broadcast of Nova was dropped')
                self._count(batch[0], 'failed')
                return

    def _apply(self, batch: list[NovaCast]) -> None:
        self._has_received = True
        if isinstance(batch[0].word, AggregatesUpdated | AggregateDeleted):
            self.nova.apply_aggregates(batch[0])
        else:
            result = self.nova.apply_guest_events(batch)
            self._log_result(result)
            self._log_ignored_hosts(batch, result)
            if result.locked:
                locked = set(result.locked)
                self._set_aside(
                    [cast for cast in batch if getattr(cast.word, 'host', '') in locked]
                )

    def _log_ignored_hosts(self, batch: list[NovaCast], result: NovaUpdateResult) -> None:
        """Log now and then the hosts whose Nova events do not count: an agent reports for them."""
        if not result.not_novas:
            return
        hosts, now = set(result.not_novas), self.clock.monotonic()
        for cast in batch:
            if getattr(cast.word, 'host', None) in hosts:
                self._count(cast, 'other_reporter')
        for host in sorted(hosts):
            if now - self._logged.get(host, -AGAIN_SECONDS) >= AGAIN_SECONDS:
                self._logged[host] = now
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
            'gantt_nova_events_total', event=type(cast.word).__name__, outcome=outcome
        )

    # -- moves left open -----------------------------------------------------------
    def look_for_moves(self) -> None:
        """Raise an alarm for moves that have been open for too long."""
        if not self._has_received:
            return
        seconds = self.settings.nova_move_seconds
        overdue = self.nova.open_moves(seconds, MOVES_MOST)
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
