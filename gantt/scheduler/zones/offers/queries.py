# SPDX-License-Identifier: Apache-2.0
"""Evaluations requested of child zones, several at once, each with its timeout.

A silent zone costs the others little: it is left alone for a while, and where the others have
enough it is not waited for.
"""

import concurrent.futures
import functools
import logging
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from gantt import exceptions
from gantt.core.zones.messages import ZoneEvaluated, ZoneEvaluation, ZoneRecord
from gantt.core.zones.strategy import KnownZone
from gantt.scheduler.ports import Clock
from gantt.scheduler.ports.zones import Zones
from gantt.scheduler.zones import delegation
from gantt.scheduler.zones.offers.circuit_breaker import ZoneCircuitBreaker

LOG = logging.getLogger(__name__)
#: Seconds after which a round waits no longer for the last zones, where the offers are enough:
#: for those that were silent before, and for so large a share of all.
PATIENCE_SECONDS, LATE_SHARE = 0.15, 0.15
#: Pauses before a busy zone is called again, in seconds.
BUSY_WAITS = (0.03, 0.1, 0.3, 0.6)
#: Child zones that are queried at once, in one process.
CALLS_MAX = 64
#: Error codes by which a zone refuses the request itself: it has no place there.  With all
#: other codes that is unknown, such as of a zone that does not admit this one.
NO = frozenset(
    error.code
    for error in (
        exceptions.Refused,
        exceptions.NotFound,
        exceptions.UnknownResourceClass,
        exceptions.QuotaExceeded,
        exceptions.ZoneLoop,
        exceptions.NotTrusted,
    )
)


class QueriedZone(msgspec.Struct, frozen=True):
    """A zone that was queried.

    :ivar round: of the search, from 1
    :ivar begun: start in seconds of the monotonic clock; ``seconds``: duration
    :ivar found: its evaluation; None: it has not answered, for the reason in ``problem``
    :ivar refused: it refused the request: equivalent to an evaluation without offers
    """

    zone: ZoneRecord
    round: int
    begun: float
    seconds: float
    found: ZoneEvaluated | None = None
    problem: str = ''
    refused: bool = False


T = TypeVar('T')
Call = concurrent.futures.Future[QueriedZone]


def while_busy(clock: Clock, end: float, call: Callable[[float], T]) -> T:
    """Call a zone; while it is busy repeat the call after growing pauses, within bounds.

    :param call: gets the seconds that are left
    :raises GanttError: of the last try
    """
    for wait in BUSY_WAITS:
        try:
            return call(max(0.001, end - clock.monotonic()))
        except exceptions.Busy:
            # Random, so that callers that were turned away together do not come together again.
            pause = wait * (0.5 + random.random())
            if clock.monotonic() + pause >= end:
                raise
            clock.sleep(pause)
    return call(max(0.001, end - clock.monotonic()))


def zone_failure(
    zone: ZoneRecord, what: str, error: exceptions.GanttError
) -> exceptions.GanttError:
    """Return the error for the caller, which may be a tenant: a zone's address and text are logged.

    :param what: has not happened
    """
    LOG.warning(
        'Call to a zone failed: zone=%s problem=%s error=%s', zone.name, what, error.message
    )
    if isinstance(error, exceptions.Unavailable):
        return exceptions.Unavailable(f'{what}; ask again')
    kind = exceptions.NotFound if isinstance(error, exceptions.NotFound) else exceptions.Refused
    return kind(what)


class CallRunner(Protocol):
    """A runner of concurrent calls."""

    def begin(self, job: Callable[[], QueriedZone]) -> Call:
        """Start a call, or queue it."""

    def wait(
        self, calls: Collection[Call], seconds: float
    ) -> tuple[Collection[Call], Collection[Call]]:
        """Wait until one call ends, up to a timeout; return those that ended, and the others."""

    def close(self) -> None:
        """Start no more calls."""


class CallThreads:
    """Calls in threads of their own, in bounded number."""

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(CALLS_MAX, 'zone-call')

    def begin(self, job: Callable[[], QueriedZone]) -> Call:
        return self._threads.submit(job)

    def wait(self, calls: Collection[Call], seconds: float) -> tuple[set[Call], set[Call]]:
        result = concurrent.futures.wait(calls, seconds, concurrent.futures.FIRST_COMPLETED)
        return result.done, result.not_done

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class ZoneQueries:
    """Concurrent calls of all requests of this process.  Any thread.

    :param runner: carries them out; None: threads
    """

    def __init__(
        self,
        zones: Zones,
        breaker: ZoneCircuitBreaker,
        clock: Clock,
        runner: CallRunner | None = None,
    ) -> None:
        self._zones, self.breaker, self._clock = zones, breaker, clock
        self._runner = runner or CallThreads()

    def close(self) -> None:
        """Start no more calls."""
        self._runner.close()

    def begin(
        self, zones: Sequence[KnownZone], body: ZoneEvaluation, number: int, end: float
    ) -> dict[Call, ZoneRecord]:
        """Query each zone, except those that were silent just now.

        :param number: of the round
        :param end: deadline of the calls, of the monotonic clock
        """
        begun: dict[Call, ZoneRecord] = {}
        now = self._clock.monotonic()
        seconds = max(0.001, end - now)
        for candidate in zones:
            if self.breaker.may_query(candidate.zone.uuid):
                job = functools.partial(self._query, candidate.zone, body, number, seconds)
                call = self._runner.begin(job)
            else:
                call = concurrent.futures.Future()
                silent = 'it was silent not long ago, and is left alone for a while'
                call.set_result(QueriedZone(candidate.zone, number, now, 0.0, None, silent))
            begun[call] = candidate.zone
        return begun

    def wait(
        self,
        calls: dict[Call, ZoneRecord],
        is_enough: Callable[[], bool],
        number: int,
        end: float,
    ) -> Iterator[QueriedZone]:
        """Yield each zone with its evaluation, as they answer.

        :param is_enough: whether the offers so far are enough
        """
        begun = self._clock.monotonic()
        pending: Collection[Call] = list(calls)
        while pending:
            now = self._clock.monotonic()
            patience = begun + PATIENCE_SECONDS - now
            if now >= end or (patience <= 0 and is_enough() and self._are_late(calls, pending)):
                break
            until = end - now if patience <= 0 else min(end - now, patience)
            ended, pending = self._runner.wait(pending, until)
            for call in ended:
                yield call.result()
        now = self._clock.monotonic()
        for call in pending:
            call.cancel()
            zone = calls[call]
            if now >= end:
                self.breaker.was_silent(zone.uuid)
            late = 'it had not answered when its time was over'
            yield QueriedZone(zone, number, begun, now - begun, None, late)

    def _query(
        self, zone: ZoneRecord, body: ZoneEvaluation, number: int, seconds: float
    ) -> QueriedZone:
        begun = self._clock.monotonic()
        end = begun + seconds
        request = delegation.for_zone(zone, body.request)
        body_below = msgspec.structs.replace(body, request=request)
        evaluation, problem, is_silent, refused = None, '', False, False
        try:
            evaluation = while_busy(
                self._clock,
                end,
                lambda remaining: self._zones.evaluate(zone, body_below, remaining),
            )
        except exceptions.GanttError as e:
            refused = e.kwargs.get('code') in NO
            LOG.log(
                logging.INFO if refused else logging.WARNING,
                'Zone returned no evaluation: zone=%s state=%s trace=%s error=%s',
                zone.name,
                'refused' if refused else 'unanswered',
                body.request.trace or '-',
                e.message,
            )
            problem = e.message
            is_silent = isinstance(e, exceptions.Unavailable) and not isinstance(e, exceptions.Busy)
        except Exception as e:  # one zone is not to cost the places of all others
            LOG.exception('Evaluation by a zone failed unexpectedly: zone=%s', zone.name)
            problem, is_silent = f'internal: {type(e).__name__}', True
        if is_silent:
            self.breaker.was_silent(zone.uuid)
        else:
            self.breaker.answered(zone.uuid)
        seconds = self._clock.monotonic() - begun
        return QueriedZone(zone, number, begun, seconds, evaluation, problem, refused)

    def _are_late(self, calls: dict[Call, ZoneRecord], pending: Collection[Call]) -> bool:
        """Return whether the zones that have not answered yet are no longer waited for."""
        slow = [call for call in pending if not self.breaker.is_silent(calls[call].uuid)]
        return len(slow) <= LATE_SHARE * len(calls)
