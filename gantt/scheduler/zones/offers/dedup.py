# SPDX-License-Identifier: Apache-2.0
"""Requests that arrive through several parent zones: evaluated once, their hosts counted once.

Where two parent zones are below a common one, it may query both, and both query this zone about the
same request, by the same id.  The result goes to the one that was first; the others get nothing,
and nothing is counted for them: so no zone has to be named, and no host appears in two answers.

This process remembers it as long as the first answer can be of use: nothing is written.
"""

import collections
import hashlib
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from gantt.core.claims.quota import Excess
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Outcome
from gantt.core.zones.messages import ZonesQueried
from gantt.scheduler.ports import Clock
from gantt.scheduler.zones.offers.evaluate import ANSWER_SECONDS, Evaluated

#: Requests that are remembered.
REQUESTS_MAX = 10_000
T = TypeVar('T')


class FirstPath(msgspec.Struct, kw_only=True):
    """The path by which a request came first.

    :ivar parent: name of the parent zone
    :ivar digest: of the request's spec, which is as large as its sender likes
    :ivar until: deadline of that parent's waiting for the answer; monotonic seconds
    :ivar done: set once the answer is there
    :ivar has_found: there are places in it
    """

    parent: str
    digest: bytes
    hops: int
    until: float
    done: threading.Event
    has_found: bool = False


class EvaluationDedup:
    """Evaluates a request once when it arrives through several parents (a diamond).  Any thread.

    One object is for evaluations or for counts, not for both.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._known: collections.OrderedDict[str, FirstPath] = collections.OrderedDict()

    def once(
        self,
        request: SelectDestinations,
        find: Callable[[], T],
        has_found: Callable[[T], bool],
        uncounted: Callable[[T | None], T],
    ) -> T:
        """Return the result for a request, where it has not come by another path.

        Two parent zones may be different tenants, with different rights, and one may let it go
        further down: where the first path has led to nothing the other is evaluated as well.

        :param request: as it is carried out here, in the name of the parent zone that sent it
        :param uncounted: creates an answer in which nothing is counted: of the result for the
            other path, or None where nothing was evaluated
        """
        way, first = self._first(request)
        if first is None:
            try:
                result = find()
                way.has_found = has_found(result)
            except BaseException:
                self._forget(request.request_id, way)
                raise
            finally:
                way.done.set()
            return result
        if first.digest != way.digest or first.hops < request.hops:
            seconds = min(first.until - self._clock.monotonic(), request.budget_ms / 2000)
            if not first.done.wait(max(0.0, seconds)) or not first.has_found:
                return uncounted(find())
        return uncounted(None)

    def _first(self, request: SelectDestinations) -> tuple[FirstPath, FirstPath | None]:
        """Return this path, and the first one where that is another."""
        now = self._clock.monotonic()
        way = FirstPath(
            parent=request.parent or '',
            digest=hashlib.blake2b(msgspec.msgpack.encode(request.spec), digest_size=16).digest(),
            hops=request.hops,
            until=now + min(ANSWER_SECONDS, request.budget_ms / 1000),
            done=threading.Event(),
        )
        with self._lock:
            first_way = self._known.get(request.request_id)
            if first_way is not None and first_way.parent != way.parent and first_way.until > now:
                return way, first_way
            self._known[request.request_id] = way
            self._known.move_to_end(request.request_id)
            while self._is_over(now) or len(self._known) > REQUESTS_MAX:
                self._known.popitem(last=False)
        return way, None

    def _is_over(self, now: float) -> bool:
        """Return whether the oldest path is of no more use."""
        return next(iter(self._known.values())).until <= now

    def _forget(self, request_id: str, mine: FirstPath) -> None:
        with self._lock:
            if self._known.get(request_id) is mine:
                del self._known[request_id]


def over_quota(excess: Excess, hosts: int, score_set: str) -> Evaluated:
    """Return an evaluation for a parent zone that has used up its quota here."""
    removed = {excess.cause: hosts} if hosts else {}
    outcome = Outcome.NO_VALID_HOST
    return Evaluated([], outcome, excess.line, hosts, 0, removed, ZonesQueried(), True, score_set)


def uncounted(found: Evaluated | None, score_set: str) -> Evaluated:
    """Return an evaluation of a request that came by another path before: nothing is counted."""
    if found is None:
        why = 'it was evaluated already, by another way'
        outcome = Outcome.NO_VALID_HOST
        return Evaluated([], outcome, why, 0, 0, {}, ZonesQueried(), True, score_set)
    return msgspec.structs.replace(found, hosts=0, survivors=0, removed={})
