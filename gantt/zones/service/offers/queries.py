# SPDX-License-Identifier: Apache-2.0
"""Evaluations requested of child zones, several at once, each with its timeout.

A silent zone costs the others little: it is not queried for a while, and where the others have
enough it is not waited for.

A circuit breaker lets unresponsive zones rest, and those that refuse offers go last.  A zone that
was silent is not queried for some seconds, then queried by one request at a time until it answers.
One that refuses what it has offered is taken after the others until that is over.
"""

import concurrent.futures
import functools
import logging
import random
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import msgspec

from gantt import exceptions
from gantt.scheduler.ports.process import Clock
from gantt.zones.model.messages import ZoneEvaluated, ZoneEvaluation, ZoneRecord
from gantt.zones.model.strategies import KnownZone
from gantt.zones.ports import ZoneCalls
from gantt.zones.service import delegation
from gantt.zones.service.threads import MakeThreads

#: Seconds for which a silent zone is not queried.
SILENT_SECONDS = 5.0
#: Weight of one allocation among those before it; share below which a zone is taken last;
#: half-life of remembered failures in seconds.
NEWEST, TRUSTED_FROM, FORGOTTEN_SECONDS = 0.1, 0.5, 300.0


class ZoneCircuitBreaker:
    """State of each child zone: unresponsive, and how often it honours offers.  Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent_until: dict[str, float] = {}
        self._honoured_shares: dict[str, tuple[float, float]] = {}  # share of allocations, and when
        self._lock = threading.Lock()

    # -- silence -----------------------------------------------------------------------
    def may_query(self, uuid: str) -> bool:
        """Return whether a zone may be queried now; after silence, by the first request only."""
        now = self._clock.monotonic()
        with self._lock:
            until = self._silent_until.get(uuid)
            if until is None:
                return True
            if until > now:
                return False
            self._silent_until[uuid] = now + SILENT_SECONDS
            return True

    def is_silent(self, uuid: str) -> bool:
        """Return whether a zone has not answered since it was silent."""
        return uuid in self._silent_until

    def note_silence(self, uuid: str) -> None:
        """Note that a zone has not answered."""
        with self._lock:
            self._silent_until[uuid] = self._clock.monotonic() + SILENT_SECONDS

    def note_answer(self, uuid: str) -> None:
        """Note that a zone has answered, with any result."""
        with self._lock:
            self._silent_until.pop(uuid, None)

    # -- what became of offers -----------------------------------------------------------
    def note_offer_end(self, uuid: str, honoured: bool) -> None:
        """Note that an offer of a zone was claimed there, or refused."""
        share = self.honoured_share(uuid)
        with self._lock:
            value = share * (1 - NEWEST) + NEWEST * honoured
            self._honoured_shares[uuid] = value, self._clock.monotonic()

    def honoured_share(self, uuid: str) -> float:
        """Return the share of its offers that a zone has honoured lately, from 0 to 1."""
        share, at = self._honoured_shares.get(uuid, (1.0, 0.0))
        age = max(0.0, self._clock.monotonic() - at)
        return 1.0 - (1.0 - share) * 0.5 ** (age / FORGOTTEN_SECONDS)

    def is_trusted(self, uuid: str) -> bool:
        """Return whether a zone's offers are compared with those of others."""
        return self.honoured_share(uuid) >= TRUSTED_FROM


LOG = logging.getLogger(__name__)
#: Seconds after which a round waits no longer for the last zones, where the offers are enough:
#: for those that were silent before, and for so large a share of all.
PATIENCE_SECONDS, LATE_SHARE = 0.15, 0.15
#: Pauses before a busy zone is called again, in seconds.
BUSY_RETRY_SECONDS = (0.03, 0.1, 0.3, 0.6)
#: Child zones that are queried at once, in one process.
CONCURRENT_CALLS_MAX = 64
#: Error codes by which a zone refuses the request itself: it has no place there.  With all
#: other codes that is unknown, such as of a zone that does not admit this one.
REFUSAL_CODES = frozenset(
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
    :ivar evaluation: of the request; None: it has not answered, for the reason in ``problem``
    :ivar refused: it refused the request: equivalent to an evaluation without offers
    """

    zone: ZoneRecord
    round: int
    begun: float
    seconds: float
    evaluation: ZoneEvaluated | None = None
    problem: str = ''
    refused: bool = False


T = TypeVar('T')
Call = concurrent.futures.Future[QueriedZone]


def call_while_busy(clock: Clock, end: float, call: Callable[[float], T]) -> T:
    """Call a zone; while it is busy repeat the call after growing pauses, within bounds.

    :param call: gets the seconds that are left
    :raises GanttError: of the last try
    """
    for wait in BUSY_RETRY_SECONDS:
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


class ZoneQueries:
    """Concurrent calls of all requests of this process.  Any thread.

    :param threads: creates those that carry them out
    """

    def __init__(
        self,
        zones: ZoneCalls,
        breaker: ZoneCircuitBreaker,
        clock: Clock,
        threads: MakeThreads,
    ) -> None:
        self._zones = zones
        self.breaker = breaker
        self._clock = clock
        self._threads = threads(CONCURRENT_CALLS_MAX, 'zone-call')

    def close(self) -> None:
        """Start no more calls."""
        self._threads.close()

    def begin(
        self, zones: Sequence[KnownZone], body: ZoneEvaluation, round_number: int, end: float
    ) -> dict[Call, ZoneRecord]:
        """Query each zone, except those that were silent just now.

        :param round_number: of the round
        :param end: deadline of the calls, of the monotonic clock
        """
        begun: dict[Call, ZoneRecord] = {}
        now = self._clock.monotonic()
        seconds = max(0.001, end - now)
        for candidate in zones:
            if self.breaker.may_query(candidate.zone.uuid):
                job = functools.partial(self._query, candidate.zone, body, round_number, seconds)
                call = self._threads.begin(job)
            else:
                call = concurrent.futures.Future()
                silent = 'it was silent not long ago, and is not queried for a while'
                call.set_result(QueriedZone(candidate.zone, round_number, now, 0.0, None, silent))
            begun[call] = candidate.zone
        return begun

    def wait(
        self,
        calls: dict[Call, ZoneRecord],
        is_enough: Callable[[], bool],
        round_number: int,
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
            if now >= end or (
                patience <= 0 and is_enough() and self._only_late_zones_left(calls, pending)
            ):
                break
            until = end - now if patience <= 0 else min(end - now, patience)
            ended, pending = self._threads.wait(pending, until, concurrent.futures.FIRST_COMPLETED)
            for call in ended:
                yield call.result()
        now = self._clock.monotonic()
        for call in pending:
            call.cancel()
            zone = calls[call]
            if now >= end:
                self.breaker.note_silence(zone.uuid)
            late = 'it had not answered when its time was over'
            yield QueriedZone(zone, round_number, begun, now - begun, None, late)

    def _query(
        self, zone: ZoneRecord, body: ZoneEvaluation, round_number: int, seconds: float
    ) -> QueriedZone:
        begun = self._clock.monotonic()
        end = begun + seconds
        request = delegation.request_for_zone(zone, body.request)
        body_below = msgspec.structs.replace(body, request=request)
        evaluation, problem, is_silent, refused = None, '', False, False
        try:
            evaluation = call_while_busy(
                self._clock,
                end,
                lambda remaining: self._zones.evaluate(zone, body_below, remaining),
            )
        except exceptions.GanttError as e:
            refused = e.kwargs.get('code') in REFUSAL_CODES
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
            self.breaker.note_silence(zone.uuid)
        else:
            self.breaker.note_answer(zone.uuid)
        seconds = self._clock.monotonic() - begun
        return QueriedZone(zone, round_number, begun, seconds, evaluation, problem, refused)

    def _only_late_zones_left(
        self, calls: dict[Call, ZoneRecord], pending: Collection[Call]
    ) -> bool:
        """Return whether the zones that have not answered yet are no longer waited for."""
        slow = [call for call in pending if not self.breaker.is_silent(calls[call].uuid)]
        return len(slow) <= LATE_SHARE * len(calls)
