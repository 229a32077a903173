# SPDX-License-Identifier: Apache-2.0
"""Requests that arrive through several parent zones: evaluated once, their hosts counted once.

Where two parent zones are below a common one, it may query both, and both query this zone about the
same request, by the same id.  The result goes to the one that was first; the others get nothing,
and nothing is counted for them: so no zone has to be named, and no host appears in two answers.

This process remembers it as long as the first answer can be of use: nothing is written.
"""

import collections
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from gantt.core.claims.quota import Excess
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Outcome
from gantt.scheduler.ports.process import Clock
from gantt.zones.model.messages import ZonesQueried
from gantt.zones.service.offers.evaluate import ANSWER_SECONDS, EvaluationResult

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
    digest: str
    hops: int
    until: float
    done: threading.Event
    has_found: bool = False


class EvaluationDedup:
    """Evaluates a request once when it arrives through several parents (a diamond).  Any thread.

    One object is for evaluations or for counts, not for both.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._first_paths: collections.OrderedDict[str, FirstPath] = collections.OrderedDict()

    def evaluate_once(
        self,
        request: SelectDestinations,
        run_evaluation: Callable[[], T],
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
        path, first = self._enter(request)
        if first is None:
            try:
                result = run_evaluation()
                path.has_found = has_found(result)
            except BaseException:
                self._forget(request.request_id, path)
                raise
            finally:
                path.done.set()
            return result
        if first.digest != path.digest or first.hops < request.hops:
            seconds = min(first.until - self._clock.monotonic(), request.budget_ms / 2000)
            if not first.done.wait(max(0.0, seconds)) or not first.has_found:
                return uncounted(run_evaluation())
        return uncounted(None)

    def _enter(self, request: SelectDestinations) -> tuple[FirstPath, FirstPath | None]:
        """Return this path, and the first one where that is another."""
        now = self._clock.monotonic()
        path = FirstPath(
            parent=request.parent or '',
            digest=request.spec.digest,
            hops=request.hops,
            until=now + min(ANSWER_SECONDS, request.budget_ms / 1000),
            done=threading.Event(),
        )
        with self._lock:
            first_path = self._first_paths.get(request.request_id)
            if (
                first_path is not None
                and first_path.parent != path.parent
                and first_path.until > now
            ):
                return path, first_path
            self._first_paths[request.request_id] = path
            self._first_paths.move_to_end(request.request_id)
            while self._is_oldest_over(now) or len(self._first_paths) > REQUESTS_MAX:
                self._first_paths.popitem(last=False)
        return path, None

    def _is_oldest_over(self, now: float) -> bool:
        """Return whether the oldest path is of no more use."""
        return next(iter(self._first_paths.values())).until <= now

    def _forget(self, request_id: str, path: FirstPath) -> None:
        with self._lock:
            if self._first_paths.get(request_id) is path:
                del self._first_paths[request_id]


def quota_evaluation(excess: Excess, hosts: int, score_set: str) -> EvaluationResult:
    """Return an evaluation for a parent zone that has used up its quota here."""
    removed = {excess.cause: hosts} if hosts else {}
    outcome = Outcome.NO_VALID_HOST
    return EvaluationResult(
        [], outcome, excess.line, hosts, 0, removed, ZonesQueried(), True, score_set
    )


def uncounted_evaluation(found: EvaluationResult | None, score_set: str) -> EvaluationResult:
    """Return an evaluation of a request that came by another path before: nothing is counted."""
    if found is None:
        why = 'it was evaluated already, by another way'
        outcome = Outcome.NO_VALID_HOST
        return EvaluationResult([], outcome, why, 0, 0, {}, ZonesQueried(), True, score_set)
    return msgspec.structs.replace(found, hosts=0, survivors=0, removed={})
