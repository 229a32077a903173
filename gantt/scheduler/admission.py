# SPDX-License-Identifier: Apache-2.0
"""The door: a bounded queue in front of the one scheduling thread.

oslo.messaging acknowledges a message before it is handled and queues without
bound, so the bound is here.  A request that is already inside is joined, not
queued twice: its callers all get the one answer.
"""

import collections
import heapq
import itertools
import queue
import threading
from typing import Any, NamedTuple

from gantt.core.decision import Answer, Outcome, Selection
from gantt.core.request import SelectDestinations
from gantt.scheduler.ports import Clock, Replies

#: Callers that may wait for one request.
WAITERS_MAX = 64
#: Of all requests that wait, beside their number: most are a kilobyte each.
BYTES_MAX = 32 << 20
#: 2020-01-01, in seconds: attempts are numbered from there.
ATTEMPTS_SINCE = 1_577_836_800


class Done(NamedTuple):
    """What the answer says of a member that is claimed.

    :ivar selections: the chosen host, then its alternates
    :ivar level: of the soft rules that gave way, the highest
    :ivar given_up: these rules
    """

    selections: list[Selection]
    level: int
    given_up: list[str]


class Call:
    """One request on its way: who waits for it and how far it has come.

    :ivar bytes: about what it takes in memory while it waits
    :ivar todo: members not claimed yet
    :ivar done: the members that are claimed
    :ivar attempt: of the request row; claim ids derive from it, see ``first_attempt``
    :ivar continues: an open request row is ours
    :ivar takes_over: the attempt of an overdue row that we replace
    :ivar tries: how often it was planned, for the bound
    :ivar repeats: another copy may be on its way elsewhere
    :ivar locked: why it waits for others, where a row that it needs is locked by them
    :ivar alone: a batch with it failed, nobody knows by whose fault: it is planned by itself
    """

    __slots__ = (
        'alone', 'attempt', 'bytes', 'conflicts', 'continues', 'deadline', 'done', 'fingerprint',
        'locked', 'request', 'repeats', 'takes_over', 'todo', 'tries', 'waiters',
    )  # fmt: skip

    def __init__(self, request: SelectDestinations, deadline: float, attempt: int = 1) -> None:
        self.request = request
        self.fingerprint, self.bytes = request.fingerprint_and_size()
        self.deadline = deadline
        self.waiters: list[tuple[Any, Replies]] = []
        self.todo = list(range(len(request.consumers)))
        self.done: dict[int, Done] = {}
        self.attempt = attempt
        self.continues = False
        self.takes_over: int | None = None
        self.tries = 0
        self.repeats = request.repeat
        self.alone = False
        self.locked = ''
        self.conflicts: list[str] = []


class Admission:
    """The queue.  ``submit`` may be called from any thread, ``drain`` from one.

    :ivar limit: how many requests may be inside
    :ivar retry_after_ms: the wait that "busy" asks for
    """

    def __init__(self, limit: int, retry_after_ms: int, clock: Clock) -> None:
        self.limit = limit
        self.retry_after_ms = retry_after_ms
        self._clock = clock
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._again: collections.deque[Call] = collections.deque()
        self._parked: list[tuple[float, int, Call]] = []
        self._serial = itertools.count()
        self._inside: dict[str, Call] = {}
        self._bytes = 0  # of those inside
        self._lock = threading.Lock()
        self._last = 1
        self.closed = False

    @property
    def depth(self) -> int:
        """How many requests are inside."""
        return len(self._inside)

    @property
    def overdue_seconds(self) -> float:
        """For how long the deadline of a request that is still inside has passed; 0: of none."""
        with self._lock:
            first = min((call.deadline for call in self._inside.values()), default=None)
        return 0.0 if first is None else max(0.0, self._clock.monotonic() - first)

    def submit(
        self, request: SelectDestinations, handle: Any, replies: Replies, spent_ms: float = 0.0
    ) -> Answer | None:
        """Take a request in, join one that is inside, or say at once why not.

        :param spent_ms: how much of the budget was spent before it got here
        :returns: None when the answer will come through ``replies``
        """
        left = (request.budget_ms - spent_ms) / 1000
        if left <= 0:
            return refusal(
                request,
                Outcome.EXPIRED,
                f'the budget of {request.budget_ms} ms was spent before it got here',
            )
        key = request.request_id if not request.dry_run else f'dry {next(self._serial)}'
        attempt = first_attempt(self._clock.wall())
        call = Call(request, self._clock.monotonic() + left, attempt)
        with self._lock:
            inside = self._inside.get(key)
            if inside is not None:
                if inside.fingerprint != call.fingerprint:
                    return refusal(request, Outcome.REUSED, 'the request id is in use')
                if len(inside.waiters) >= WAITERS_MAX:
                    why = f'{WAITERS_MAX} callers wait for this very request'
                    return refusal(request, Outcome.BUSY, why, self.retry_after_ms)
                inside.waiters.append((handle, replies))
                inside.deadline = max(inside.deadline, call.deadline)
                inside.repeats |= call.repeats
                return None
            if self.closed or len(self._inside) >= self.limit:
                why = 'shutting down' if self.closed else f'{self.limit} requests are waiting'
                return refusal(request, Outcome.BUSY, why, self.retry_after_ms)
            if self._bytes + call.bytes > BYTES_MAX and self._inside:
                why = f'requests of {self._bytes} bytes are waiting'
                return refusal(request, Outcome.BUSY, why, self.retry_after_ms)
            call.waiters.append((handle, replies))
            self._inside[key] = call
            self._bytes += call.bytes
        self._queue.put(call)
        return None

    def take_back(self) -> list[Call]:
        """The calls that no batch has had yet; each is left by whoever takes it back."""
        found = []
        while not self._queue.empty():
            call = self._get(0)
            if call is not None:
                found.append(call)
        return found

    def wake(self) -> None:
        """Let a waiting ``drain`` return, with nothing if need be."""
        self._queue.put(None)

    def again(self, call: Call) -> None:
        """Plan a call again in the next batch, before newer ones."""
        self._again.append(call)

    def later(self, call: Call, seconds: float) -> None:
        """Plan a call again after ``seconds``, at its deadline at the latest."""
        at = min(self._clock.monotonic() + seconds, call.deadline)
        heapq.heappush(self._parked, (at, next(self._serial), call))

    def is_waiting(self, call: Call) -> bool:
        """Whether a call waits for another batch."""
        return call in self._again or any(parked is call for _, _, parked in self._parked)

    def leave(self, call: Call) -> list[tuple[Any, Replies]]:
        """Take a finished call out; returns everybody who waits for its answer."""
        with self._lock:
            keys = [call.request.request_id]
            if self._inside.get(keys[0]) is not call:
                keys = [k for k, c in self._inside.items() if c is call]
            for key in keys:
                del self._inside[key]
                self._bytes -= call.bytes
            waiters, call.waiters = call.waiters, []
            return waiters

    def drain(self, most: int, wait_seconds: float, idle_seconds: float) -> list[Call]:
        """The next batch.

        Waits ``idle_seconds`` for a first call; then up to ``wait_seconds`` for
        company, but only when the last batch had some (a lone caller never
        pays for batching).
        """
        batch = self._due()
        if not batch:
            first = self._get(min(idle_seconds, self._until_parked()))
            batch = [first] if first is not None else self._due()
        if batch and self._last > 1 and wait_seconds:
            self._gather(batch, min(most, self._last), wait_seconds)
        while len(batch) < most:
            call = self._get(0)
            if call is None and self._queue.empty():
                break
            if call is not None:
                batch.append(call)
        if batch:
            self._last = len(batch)
        return batch

    def _gather(self, batch: list[Call], want: int, seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        while len(batch) < want:
            left = end - self._clock.monotonic()
            if left <= 0:
                return
            call = self._get(left)
            if call is None:
                return
            batch.append(call)

    def _due(self) -> list[Call]:
        batch = list(self._again)
        self._again.clear()
        now = self._clock.monotonic()
        while self._parked and self._parked[0][0] <= now:
            batch.append(heapq.heappop(self._parked)[2])
        return batch

    def _until_parked(self) -> float:
        if not self._parked:
            return float('inf')
        return max(0.0, self._parked[0][0] - self._clock.monotonic())

    def _get(self, seconds: float) -> Call | None:
        try:
            return self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None


def refusal(
    request: SelectDestinations,
    outcome: Outcome,
    reason: str,
    retry_after_ms: int | None = None,
    decision_id: str = '',
) -> Answer:
    """An answer that is not a placement."""
    return Answer(
        request_id=request.request_id,
        decision_id=decision_id,
        outcome=outcome,
        reason=reason,
        retry_after_ms=retry_after_ms,
        dry_run=request.dry_run,
    )


def first_attempt(wall: float) -> int:
    """The number of a request's first attempt: seconds since 2020, in 31 bits.

    Claim ids derive from (request id, attempt, member), and hosts remember theirs for days after
    the row of the request is gone. Who asks with an old request id gets claims that no host has
    seen, as long as the attempts that are counted on from here are fewer than the seconds between.
    Time decides nothing more: where a clock gives a number again, the ids are those of before.
    """
    return max(1, int(wall - ATTEMPTS_SINCE) % 2**31)
