# SPDX-License-Identifier: Apache-2.0
"""Requests carried out by threads of their own, in bounded number; beyond it the answer is "busy".

Projects take turns by weight, as where hosts are chosen (``request/queue.py``).  Where the
queue is full, the newest request of the project with the most waiting requests is turned away.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from gantt import exceptions
from gantt.core.fair_queue import FairQueue
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.scheduler.ports import Clock, Replies
from gantt.scheduler.request.queue import WAITERS_MAX, refusal
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.zones.threads import ZoneThreads

LOG = logging.getLogger(__name__)
#: Maximum number of requests that are carried out at once, and that wait for a thread.
THREADS, WAITING_MAX = 32, 256
#: Interval between two checks whether all are done, in seconds.
LOOK_SECONDS = 0.1


class CarriedRequest(NamedTuple):
    """A request that is carried out, with the waiters for its answer.

    :ivar fingerprint: of the request as received
    :ivar work: gets the deadline, of the monotonic clock
    :ivar end: that deadline
    """

    request: SelectDestinations
    fingerprint: str
    work: Callable[[float], Answer]
    waiters: list[tuple[Any, Replies]]
    end: float

    @property
    def project(self) -> str:
        """The project whose turn it takes; requests without a project share one."""
        return self.request.spec.project_id or ''


class RequestThreads:
    """A bounded set of requests carried out by threads, see the module docstring.  Any thread.

    :param threads: carry them out
    :param where: where the requests are, in words
    :param answered: is called with each request that is answered
    """

    def __init__(
        self,
        threads: ZoneThreads,
        where: str,
        clock: Clock,
        settings: SchedulerSettings,
        answered: Callable[[SelectDestinations, Answer], object] = lambda request, answer: None,
    ) -> None:
        self._where, self._clock, self._settings = where, clock, settings
        self._answered = answered
        self._threads = threads
        self._lock = threading.Lock()
        self._inside: dict[str, CarriedRequest] = {}
        #: Those of them that no thread has yet, and how many each project has.
        self._queue: FairQueue[CarriedRequest] = FairQueue(settings.project_weights)
        self._waiting: Counter[str] = Counter()
        self._is_closed = False

    def begin(
        self,
        request: SelectDestinations,
        fingerprint: str,
        work: Callable[[float], Answer],
        waiter: tuple[Any, Replies],
        spent_ms: float,
    ) -> None:
        """Carry out a request, or join a copy of it; the answer goes to the waiter.

        :param spent_ms: part of the budget that was spent before it got here
        """
        end = self._clock.monotonic() + (request.budget_ms - spent_ms) / 1000
        call, loser = CarriedRequest(request, fingerprint, work, [waiter], end), None
        with self._lock:
            joined = self._inside.get(request.request_id)
            refused = self._refusal(call, joined)
            if refused is None and joined is not None:
                joined.waiters.append(waiter)
                return
            if refused is None and len(self._inside) >= THREADS + WAITING_MAX:
                loser = self._make_room(call)
                refused = self._full(loser)
            if loser is not call and (loser is not None or refused is None):
                self._inside[request.request_id] = call
                self._queue.put(call.project, call)
                self._waiting[call.project] += 1
        if refused is None:
            self._threads.begin(self._run_next)
            return
        # A thread was requested for the request that was turned away: it takes the next one.
        for handle, replies in (loser or call).waiters:
            replies.send_soon([(handle, refused)])

    def stop(self, seconds: float) -> bool:
        """Accept no more requests and finish those inside; return whether that was in time."""
        end = self._clock.monotonic() + seconds
        with self._lock:
            self._is_closed = True
        while self._inside and self._clock.monotonic() < end:
            self._clock.sleep(min(LOOK_SECONDS, seconds))
        self._threads.close()
        return not self._inside

    def _refusal(self, call: CarriedRequest, found: CarriedRequest | None) -> Answer | None:
        """Return why a request is neither accepted nor joined to one that is inside."""
        request, retry = call.request, self._settings.retry_after_ms
        if self._is_closed and found is None:
            return refusal(request, Outcome.BUSY, 'shutting down', retry)
        if found is None:
            return None
        if found.fingerprint != call.fingerprint:
            return refusal(request, Outcome.REUSED, 'the request id is in use')
        if len(found.waiters) < WAITERS_MAX:
            return None
        why = f'{WAITERS_MAX} callers wait for this very request'
        return refusal(request, Outcome.BUSY, why, retry)

    def _full(self, call: CarriedRequest) -> Answer:
        why = f'{len(self._inside)} requests are under way {self._where}'
        return refusal(call.request, Outcome.BUSY, why, self._settings.retry_after_ms)

    def _make_room(self, call: CarriedRequest) -> CarriedRequest:
        """Remove the newest request of the project with the most waiting from the queue.

        :returns: it; ``call`` itself where no project has more than its own would have
        """
        weights = self._queue.weights

        def share(project: str) -> float:
            of_own = int(project == call.project)
            return (self._waiting[project] + of_own) / weights.get(project, 1.0)

        largest = max([*self._waiting, call.project], key=share)
        if share(largest) <= share(call.project):
            return call
        newest = next(self._queue.newest(largest))
        self._queue.remove(largest, newest)
        self._leave_queue(newest)
        del self._inside[newest.request.request_id]
        return newest

    def _leave_queue(self, call: CarriedRequest) -> None:
        self._waiting[call.project] -= 1
        if not self._waiting[call.project]:
            del self._waiting[call.project]

    def _run_next(self) -> None:
        with self._lock:
            call = self._queue.pop()
            self._leave_queue(call)
        request = call.request
        try:
            answer = call.work(call.end)
        except exceptions.GanttError as e:
            places: Any = e.kwargs.get('places', ())
            reason = str(e.kwargs['reason']) if places else e.message
            answer = refusal(request, _outcome_of(e), reason, places=places)
        except Exception as e:  # the thread pool would swallow it, and no waiter be answered
            LOG.exception('a request %s failed', self._where)
            answer = refusal(request, Outcome.FAILED, f'internal: {e}')
        with self._lock:
            del self._inside[request.request_id]
        for handle, replies in call.waiters:
            replies.send([(handle, answer)])
        self._answered(request, answer)


def _outcome_of(error: exceptions.GanttError) -> Outcome:
    if isinstance(error, exceptions.Busy):
        return Outcome.BUSY
    if isinstance(error, exceptions.Expired):
        return Outcome.EXPIRED
    if isinstance(error, exceptions.Refused):
        return Outcome.REFUSED
    return Outcome.FAILED
