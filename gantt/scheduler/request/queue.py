# SPDX-License-Identifier: Apache-2.0
"""A bounded queue in front of the threads that carry requests out.

oslo.messaging acknowledges a message before it is handled and queues without
bound, so the bound is here.  A request that is already queued is joined, not
queued twice: its callers all get the one answer.

Projects are served by weight, not by arrival, see ``core/fair_queue.py``.  Where the queue is
full, the project with the most inside relative to its weight loses: the newest of its requests is
answered "busy", even if another's came last.  So no project below its share is refused for others.
The share of a project is the larger of its parts of the number and of the bytes that may be
inside, its dominant share: A. Ghodsi et al., "Dominant Resource Fairness", NSDI 2011.
"""

import heapq
import itertools
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from gantt import exceptions
from gantt.core.claims.quota import Excess
from gantt.core.claims.request_state import Attempt, RequestState
from gantt.core.fair_queue import FairQueue
from gantt.core.messages.request import Purpose, RequestKind, SelectDestinations
from gantt.core.records.decision import Answer, Outcome, ZoneStep
from gantt.scheduler.ports.process import Clock, Inbox, Replies

#: Callers that may wait for one request.
WAITERS_MAX = 64
#: Limit of the bytes of all queued requests, beside their number: most are a kilobyte each.
QUEUED_BYTES_MAX = 32 << 20
#: Outcomes of requests that an error ends; of any other it is "failed".
OUTCOME_BY_ERROR = (
    (exceptions.Busy, Outcome.BUSY),
    (exceptions.Expired, Outcome.EXPIRED),
    (exceptions.Refused, Outcome.REFUSED),
)
#: 2020-01-01, in seconds: attempts are numbered from there.
ATTEMPTS_EPOCH = 1_577_836_800


class AnyRequest(Protocol):
    """A request, of any kind."""

    @property
    def request_id(self) -> str: ...

    @property
    def dry_run(self) -> bool: ...


M = TypeVar('M', bound=AnyRequest)
C = TypeVar('C', bound='QueuedRequest[Any]')


class QueuedRequest(Generic[M]):
    """State of one request from the queue to its answer: its waiting callers, and its progress.

    :ivar attempt: progress; only the thread that has taken it changes it, by ``request_state``
    :ivar bytes: approximate memory while it waits
    :ivar claims_nothing: it creates no claims: its answer is its only effect
    :ivar project: project that it is placed for; '': none
    :ivar charged: members that its project was charged for when it was last taken
    :ivar repeats: another copy may be on its way elsewhere
    """

    __slots__ = (
        'attempt',
        'bytes',
        'charged',
        'claims_nothing',
        'deadline',
        'fingerprint',
        'project',
        'repeats',
        'request',
        'waiters',
    )

    request: M
    fingerprint: str
    bytes: int
    project: str
    repeats: bool
    deadline: float
    attempt: Attempt
    charged: int
    claims_nothing: bool
    waiters: list[tuple[Any, Any]]

    def join(self, deadline: float, *, repeats: bool) -> None:
        """Let the caller of a copy wait for its answer."""
        self.deadline = max(self.deadline, deadline)
        self.repeats |= repeats

    def refusal(self, outcome: Outcome, reason: str, retry_after_ms: int | None = None) -> Any:
        """Return an answer that is not a placement."""
        raise NotImplementedError

    def failure(self, error: exceptions.GanttError) -> Any:
        """Return the answer for an error."""
        raise NotImplementedError


class PendingRequest(QueuedRequest[SelectDestinations]):
    """State of one request for hosts.

    :ivar is_whole: its members are planned in one pass: claimed together, or not at all
    :ivar zones: of a request over zones: steps before the own hosts were taken
    """

    __slots__ = ('is_whole', 'zones')

    def __init__(self, request: SelectDestinations, deadline: float, number: int = 1) -> None:
        spec = request.spec
        self.request = request
        self.fingerprint, self.bytes = request.fingerprint_and_size()
        self.project = spec.project_id or ''
        # A dry run, or a rebuild on the host where the consumer is.
        self.claims_nothing = request.dry_run or spec.purpose is Purpose.REBUILD
        self.is_whole = spec.group is not None or self.claims_nothing
        self.charged = 0
        self.deadline = deadline
        self.waiters = []
        self.attempt = Attempt(number=number, todo=range(len(request.consumers)))
        self.repeats = request.repeat
        self.zones: Sequence[ZoneStep] = ()

    def refusal(self, outcome: Outcome, reason: str, retry_after_ms: int | None = None) -> Answer:
        return refusal(self.request, outcome, reason, retry_after_ms)

    def failure(self, error: exceptions.GanttError) -> Answer:
        places: Any = error.kwargs.get('places', ())
        reason = str(error.kwargs['reason']) if places else error.message
        outcomes = (outcome for kind, outcome in OUTCOME_BY_ERROR if isinstance(error, kind))
        return refusal(self.request, next(outcomes, Outcome.FAILED), reason, places=places)


class ImmediateAnswer(NamedTuple):
    """An answer to send when a request comes in, to its own caller or another."""

    replies: Replies
    handle: Any
    answer: Any


class QueuedSize:
    """Number and bytes of a project's queued requests."""

    __slots__ = ('bytes', 'count')

    def __init__(self) -> None:
        self.count = self.bytes = 0


class WakeableInbox:
    """The inbox of a thread that is woken by others for everything that arrives."""

    def __init__(self) -> None:
        self._wake_queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, seconds: float) -> bool:
        try:
            self._wake_queue.get(timeout=seconds)
        except queue.Empty:
            return False
        return True

    def read(self) -> bool:
        return False

    def sockets(self) -> list[int]:
        return []

    def wake(self) -> None:
        self._wake_queue.put(None)

    def close(self) -> None:
        pass


class RequestQueue(Generic[C]):
    """A bounded queue of requests.  Any thread may call ``enter`` and ``drain``.

    :cvar turn_cost: the cost of a request for its project; None: its members

    :ivar inbox: woken when ``drain`` has as many as it waits for, and by ``wake``
    :ivar limit: largest number of requests inside
    :ivar retry_after_ms: the wait that a "busy" answer suggests
    :param weights: project -> its weight; 1 where it has none
    :param described: what the requests inside do, in words
    """

    turn_cost: float | None = None

    def __init__(
        self,
        limit: int,
        retry_after_ms: int,
        clock: Clock,
        weights: Mapping[str, float] | None = None,
        described: str = 'waiting',
    ) -> None:
        self.described = described
        self.limit = limit
        self.retry_after_ms = retry_after_ms
        self._clock = clock
        self._queue: FairQueue[C] = FairQueue(weights)
        # A heap of (monotonic time to queue it again, serial, call): not in the queue meanwhile.
        self._delayed_calls: list[tuple[float, int, C]] = []
        self._serial = itertools.count()
        # Key -> call, from ``enter`` until it is answered: in the queue, parked or with a thread.
        # A copy of a request finds the first one here and joins it.
        self._calls: dict[str, C] = {}
        self._bytes = 0  # of all inside
        self._size_by_project: dict[str, QueuedSize] = {}  # project -> its part of them
        self._lock = threading.Lock()  # of all above
        self.inbox: Inbox = WakeableInbox()
        self._wanted_count = 0  # number that ``drain`` waits for; 0: it does not wait
        self._last_batch_members = (
            1  # calls of the last batch: ``drain`` waits for no more than came then
        )
        self.closed = False  # true: whatever enters is refused, what is inside is finished

    def use_weights(self, weights: Mapping[str, float]) -> None:
        """Serve by these weights from now on."""
        self._queue.weights = weights

    @property
    def depth(self) -> int:
        """Number of requests inside."""
        return len(self._calls)

    @property
    def waiting(self) -> int:
        """Number of requests inside that no thread has taken."""
        return len(self._queue) + len(self._delayed_calls)

    @property
    def projects(self) -> int:
        """Number of projects with requests inside."""
        return len(self._size_by_project)

    @property
    def overdue_seconds(self) -> float:
        """Seconds since the earliest deadline passed of a request still inside; 0: none did."""
        with self._lock:
            first = min((call.deadline for call in self._calls.values()), default=None)
        return 0.0 if first is None else max(0.0, self._clock.monotonic() - first)

    # -- in ----------------------------------------------------------------------------
    def enter(self, call: C, handle: Any, replies: Replies) -> list[ImmediateAnswer]:
        """Queue a request, join an equal one that is inside, or refuse it at once.

        :returns: answers to send at once: to this caller, or to others that made room for it
        """
        request = call.request
        key = request.request_id if not request.dry_run else f'dry {next(self._serial)}'
        answers_now: list[ImmediateAnswer] = []
        project, size = call.project, call.bytes
        with self._lock:
            inside = self._calls
            if key in inside:
                refused = self._join(inside[key], call, handle, replies)
                return [] if refused is None else [ImmediateAnswer(replies, handle, refused)]
            if self._is_full(call):
                reason, displaced = self._make_room(call)
                if reason:
                    return [ImmediateAnswer(replies, handle, self._busy(call, reason))]
                answers_now = [
                    answer
                    for displaced_call in displaced
                    for answer in self._displace(displaced_call)
                ]
            call.waiters.append((handle, replies))
            inside[key] = call
            self._bytes += size
            project_held = self._size_by_project.get(project)
            if project_held is None:
                project_held = self._size_by_project[project] = QueuedSize()
            project_held.count += 1
            project_held.bytes += size
            self._queue.put(project, call)
            if 0 < self._wanted_count <= len(self._queue):
                self._wanted_count = 0
                self.inbox.wake()
        return answers_now

    def _join(self, inside: C, call: C, handle: Any, replies: Replies) -> Any:
        """Let one more caller wait for a request; return a refusal where it may not, else None."""
        if inside.fingerprint != call.fingerprint:
            return call.refusal(Outcome.REUSED, 'the request id is in use')
        if len(inside.waiters) >= WAITERS_MAX:
            return self._busy(call, f'{WAITERS_MAX} callers wait for this very request')
        inside.waiters.append((handle, replies))
        inside.join(call.deadline, repeats=call.repeats)
        return None

    def _busy(self, call: C, why: str) -> Any:
        return call.refusal(Outcome.BUSY, why, self.retry_after_ms)

    # -- refusals where there is no room ------------------------------------------------
    def _is_full(self, call: C) -> bool:
        return (
            self.closed
            or len(self._calls) >= self.limit
            or self._bytes + call.bytes > QUEUED_BYTES_MAX
        )

    def _make_room(self, call: C) -> tuple[str, list[C]]:
        """Return why there is no room for a call, or else the calls it displaces."""
        if self.closed:
            return 'shutting down', []
        if len(self._calls) >= self.limit:
            reason = f'{self.limit} requests are {self.described}'
        elif self._bytes + call.bytes > QUEUED_BYTES_MAX and self._calls:
            reason = f'requests of {self._bytes} bytes are {self.described}'
        else:
            return '', []
        if len(self._size_by_project) == 1 and call.project in self._size_by_project:
            return reason, []
        displaced_calls = self._calls_to_displace(call)
        return (
            ('', displaced_calls)
            if displaced_calls
            else (f'{reason}, and this project has its share of them', [])
        )

    def _calls_to_displace(self, call: C) -> list[C]:
        """Return calls of projects above their share that make room for a call; may be none."""
        own_held = self._size_by_project.get(call.project)
        shares = {
            other_project: self._dominant_share(other_project, project_held)
            for other_project, project_held in self._size_by_project.items()
            if project_held is not own_held
        }
        weights = self._weight(call.project) + sum(map(self._weight, shares))
        bound = max(self._dominant_share(call.project, own_held, call), 1 / weights)
        count = len(self._calls) + 1 - self.limit
        size = self._bytes + call.bytes - QUEUED_BYTES_MAX
        displaced_calls: list[C] = []
        for _, project in sorted(
            [(share, other_project) for other_project, share in shares.items() if share > bound],
            reverse=True,
        ):
            project_held, weight = self._size_by_project[project], self._weight(project)
            project_count, project_bytes = project_held.count, project_held.bytes
            for candidate in self._displaceable_calls(project):
                if (
                    max(project_count / self.limit, project_bytes / QUEUED_BYTES_MAX) / weight
                    <= bound
                ):
                    break
                displaced_calls.append(candidate)
                project_count, project_bytes = project_count - 1, project_bytes - candidate.bytes
                count, size = count - 1, size - candidate.bytes
                if count <= 0 and size <= 0:
                    return displaced_calls
        return []

    def _dominant_share(
        self, project: str, held: QueuedSize | None, more: C | None = None
    ) -> float:
        """Return the dominant share of a project, relative to its weight."""
        count = (held.count if held else 0) + (1 if more else 0)
        size = (held.bytes if held else 0) + (more.bytes if more else 0)
        return max(count / self.limit, size / QUEUED_BYTES_MAX) / self._weight(project)

    def _displaceable_calls(self, project: str) -> list[C]:
        """Return the waiting calls of a project that have claimed nothing, newest first."""
        parked = [call for _, _, call in self._delayed_calls if call.project == project]
        waiting_calls = [*self._queue.newest(project), *reversed(parked)]
        return [call for call in waiting_calls if not call.attempt.may_hold_claims]

    def _displace(self, call: C) -> list[ImmediateAnswer]:
        """Remove a call to make room for one of another project."""
        try:
            self._queue.remove(call.project, call)
        except ValueError:
            self._delayed_calls = [entry for entry in self._delayed_calls if entry[2] is not call]
            heapq.heapify(self._delayed_calls)
        reason = (
            f'{self.limit} requests are {self.described}, and this project has the most of them'
        )
        answer = self._busy(call, reason)
        return [
            ImmediateAnswer(replies, handle, answer) for handle, replies in self._note_left(call)
        ]

    def _weight(self, project: str) -> float:
        return self._queue.weights.get(project, 1.0)

    # -- again -------------------------------------------------------------------------
    def take_unstarted(self) -> list[C]:
        """Take back the calls that no batch has had yet; the caller must ``leave`` each."""
        with self._lock:
            return self._queue.take_fresh()

    def wake(self) -> None:
        """Let a waiting ``drain`` return, with nothing if need be."""
        self.inbox.wake()

    def again(self, call: C) -> None:
        """Plan a call again in one of the next batches, before newer ones of its project."""
        with self._lock:
            self._requeue(call)

    def put_back(self, call: C) -> None:
        """Put back a call that was not planned at all: it costs its project nothing."""
        with self._lock:
            self._queue.put_back(call.project, call, call.charged)

    def later(self, call: C, seconds: float) -> None:
        """Plan a call again after ``seconds``, at its deadline at the latest."""
        due_at = min(self._clock.monotonic() + seconds, call.deadline)
        with self._lock:
            heapq.heappush(self._delayed_calls, (due_at, next(self._serial), call))

    def is_waiting(self, call: C) -> bool:
        """Return whether a call waits for another batch."""
        with self._lock:
            return self._queue.has_returned(call.project, call) or any(
                parked is call for _, _, parked in self._delayed_calls
            )

    def stop_joining(self, call: C) -> None:
        """Let no further caller wait for the answer of a call."""
        with self._lock:
            self._remove(call)

    def leave(self, call: C) -> list[tuple[Any, Replies]]:
        """Remove a finished call; return all callers that wait for its answer."""
        with self._lock:
            return self._note_left(call)

    def _note_left(self, call: C) -> list[tuple[Any, Replies]]:
        self._remove(call)
        waiters, call.waiters = call.waiters, []
        return waiters

    def _remove(self, call: C) -> None:
        keys = [call.request.request_id]
        if self._calls.get(keys[0]) is not call:
            keys = [
                key_inside for key_inside, call_inside in self._calls.items() if call_inside is call
            ]
        for key in keys:
            del self._calls[key]
            self._bytes -= call.bytes
            project_held = self._size_by_project[call.project]
            project_held.count -= 1
            project_held.bytes -= call.bytes
            if not project_held.count:
                del self._size_by_project[call.project]

    def _requeue(self, call: C) -> None:
        # Members still to place are charged when it is taken again; a try costs one in any case.
        members = len(call.attempt.todo)
        self._queue.put_back(call.project, call, max(0, min(call.charged, members) - 1))

    def note_turn_seconds(self, call: C, seconds: float) -> None:
        """Note how long a thread was busy with a call."""

    # -- out ---------------------------------------------------------------------------
    def drain(
        self, most: int, most_bytes: int, wait_seconds: float, idle_seconds: float
    ) -> list[C]:
        """Return the next batch: calls in order of the projects' weights that fit together.

        Waits ``idle_seconds`` for a first call; then up to ``wait_seconds`` for
        more, but only when the last batch had several (a lone caller never
        pays for batching).

        :param most: members of all calls; one call alone may have more
        :param most_bytes: bound of all calls; one call alone may have more
        """
        if self._delayed_calls:
            self._return_due()
        self.inbox.read()
        if idle_seconds > 0 and not self._queue:
            self._wait(1, min(idle_seconds, self._until_next_delayed()))
            self._return_due()
        if self._last_batch_members > 1 and wait_seconds and self._queue:
            self._gather(min(most, self._last_batch_members), wait_seconds)
        with self._lock:
            batch = self._take_fitting(most, most_bytes)
        if batch:
            self._last_batch_members = len(batch)
        return batch

    def _return_due(self) -> None:
        """Queue calls again whose pause is over."""
        with self._lock:
            now = self._clock.monotonic()
            while self._delayed_calls and self._delayed_calls[0][0] <= now:
                self._requeue(heapq.heappop(self._delayed_calls)[2])

    def _take_fitting(self, most: int, most_bytes: int) -> list[C]:
        batch: list[C] = []
        members_left, bytes_left = most, most_bytes
        waiting = self._queue
        while waiting and (members_left > 0 or not batch):
            call = waiting.first()
            members = len(call.attempt.todo) or 1
            if batch and (min(members, most) > members_left or call.bytes > bytes_left):
                break
            # It costs its project one for each member to be placed.
            call.charged = members
            batch.append(waiting.pop(members if self.turn_cost is None else self.turn_cost))
            members_left, bytes_left = members_left - members, bytes_left - call.bytes
        return batch

    def _gather(self, want: int, seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        while len(self._queue) < want:
            seconds_left = end - self._clock.monotonic()
            if seconds_left <= 0 or not self._wait(want, seconds_left):
                return

    def _wait(self, want: int, seconds: float) -> bool:
        """Wait until so many calls are queued, or woken; return whether within ``seconds``."""
        if seconds <= 0:
            return False
        with self._lock:
            if len(self._queue) >= want:
                return True
            self._wanted_count = want
        try:
            return self.inbox.wait(seconds)
        finally:
            self._wanted_count = 0

    def _until_next_delayed(self) -> float:
        with self._lock:
            if not self._delayed_calls:
                return float('inf')
            return max(0.0, self._delayed_calls[0][0] - self._clock.monotonic())


class Admission(RequestQueue[PendingRequest]):
    """The queue of requests for hosts."""

    def submit(
        self,
        request: SelectDestinations,
        handle: Any,
        replies: Replies,
        spent_ms: float = 0.0,
        fingerprint: str = '',
        zones: Sequence[ZoneStep] = (),
    ) -> list[ImmediateAnswer]:
        """Queue a request, join an equal one that is inside, or refuse it at once.

        :param spent_ms: part of the budget that was spent before it got here
        :param fingerprint: of the request as received; '': it is unchanged
        :param zones: of a request over zones: the steps that led to the own hosts
        :returns: answers to send at once: to this caller, or to others that made room for it
        """
        budget_left = (request.budget_ms - spent_ms) / 1000
        if budget_left <= 0:
            reason = f'the budget of {request.budget_ms} ms was spent before it got here'
            return [ImmediateAnswer(replies, handle, refusal(request, Outcome.EXPIRED, reason))]
        number = first_attempt(self._clock.wall())
        call = PendingRequest(request, self._clock.monotonic() + budget_left, number)
        call.fingerprint = fingerprint or call.fingerprint
        call.zones = zones
        return self.enter(call, handle, replies)


def refusal(
    request: SelectDestinations,
    outcome: Outcome,
    reason: str,
    retry_after_ms: int | None = None,
    decision_id: str = '',
    excess: Excess | None = None,
    places: Sequence[str] = (),
) -> Answer:
    """Return an answer that is not a placement."""
    return Answer(
        request_id=request.request_id,
        decision_id=decision_id,
        outcome=outcome,
        reason=reason,
        retry_after_ms=retry_after_ms,
        dry_run=request.dry_run,
        excess=excess,
        places=[*places],
        kind='' if request.spec.kind is RequestKind.HOST else request.spec.kind.value,
    )


def out_of_time(call: C) -> tuple[Outcome, str]:
    """Return the outcome of a call out of time: busy elsewhere, lost races, or never begun."""
    attempt = call.attempt
    if attempt.locked:
        return Outcome.BUSY, attempt.locked
    if attempt.conflicts:
        return Outcome.CONFLICT, f'lost {len(attempt.conflicts)} races within its budget'
    if attempt.state is RequestState.TAKING_OVER:
        return Outcome.BUSY, 'another worker is at this request'
    return Outcome.EXPIRED, 'its budget was spent in the queue'


def first_attempt(wall: float) -> int:
    """Return the number of a request's first attempt: seconds since 2020, in 31 bits.

    Claim ids derive from (request id, attempt, member), and hosts remember theirs for days after
    the row of the request is deleted. A repeat of an old request id gets claims that no host has
    seen, as long as the attempts that are counted on from here are fewer than the seconds between.
    Time decides nothing more: where a clock repeats a number, the ids repeat too.
    """
    return max(1, int(wall - ATTEMPTS_EPOCH) % 2**31)
