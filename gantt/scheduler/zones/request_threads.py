# SPDX-License-Identifier: Apache-2.0
"""Requests that are carried out by threads of their own, in bounded number; beyond it is "busy"."""

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from gantt import exceptions
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.scheduler.placing.admission import WAITERS_MAX, refusal
from gantt.scheduler.ports import Clock, Replies
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.zones.threads import ZoneThreads

LOG = logging.getLogger(__name__)
#: Requests that are carried out at once, and that wait for it.
THREADS, WAITING_MAX = 32, 256
#: Between two looks at whether all are done.
LOOK_SECONDS = 0.1


class CarriedRequest(NamedTuple):
    """A request that is carried out, and who waits for its answer.

    :ivar fingerprint: of the request as it came
    :ivar work: gets the end of its time, of the monotonic clock
    """

    request: SelectDestinations
    fingerprint: str
    work: Callable[[float], Answer]
    waiters: list[tuple[Any, Replies]]


class RequestThreads:
    """See the module docstring.  Any thread.

    :param threads: by which they are carried out
    :param where: what the requests are at, in words
    :param answered: looks at each request that is answered
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
        self._is_closed = False

    def begin(
        self,
        request: SelectDestinations,
        fingerprint: str,
        work: Callable[[float], Answer],
        waiter: tuple[Any, Replies],
        spent_ms: float,
    ) -> None:
        """Carry out a request, or join a copy of it; the answer comes to the waiter.

        :param spent_ms: how much of the budget was spent before it got here
        """
        end = self._clock.monotonic() + (request.budget_ms - spent_ms) / 1000
        call = CarriedRequest(request, fingerprint, work, [waiter])
        with self._lock:
            found = self._inside.get(request.request_id)
            refused = self._refusal(call, found)
            if refused is None and found is not None:
                found.waiters.append(waiter)
                return
            if refused is None:
                self._inside[request.request_id] = call
        if refused is None:
            self._threads.begin(self._run, call, end)
        else:
            handle, replies = waiter
            replies.send_soon([(handle, refused)])

    def stop(self, seconds: float) -> bool:
        """Take nothing new, finish what is inside; whether that was done in time."""
        end = self._clock.monotonic() + seconds
        with self._lock:
            self._is_closed = True
        while self._inside and self._clock.monotonic() < end:
            self._clock.sleep(min(LOOK_SECONDS, seconds))
        self._threads.close()
        return not self._inside

    def _refusal(self, call: CarriedRequest, found: CarriedRequest | None) -> Answer | None:
        """Why a request is neither taken in nor joined to one that is inside."""
        request, retry = call.request, self._settings.retry_after_ms
        if self._is_closed and found is None:
            return refusal(request, Outcome.BUSY, 'shutting down', retry)
        if found is None:
            if len(self._inside) < THREADS + WAITING_MAX:
                return None
            why = f'{len(self._inside)} requests are under way {self._where}'
            return refusal(request, Outcome.BUSY, why, retry)
        if found.fingerprint != call.fingerprint:
            return refusal(request, Outcome.REUSED, 'the request id is in use')
        if len(found.waiters) < WAITERS_MAX:
            return None
        why = f'{WAITERS_MAX} callers wait for this very request'
        return refusal(request, Outcome.BUSY, why, retry)

    def _run(self, call: CarriedRequest, end: float) -> None:
        request = call.request
        try:
            answer = call.work(end)
        except exceptions.GanttError as e:
            answer = refusal(request, _outcome_of(e), e.message)
        except Exception as e:  # the thread pool would swallow it, and nobody be answered
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
