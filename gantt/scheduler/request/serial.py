# SPDX-License-Identifier: Apache-2.0
"""Requests that are carried out one by one, each by one thread until it is answered.

So are those that wait for child zones, and groups, which take long to be planned.
"""

from typing import Any, Generic, Protocol, TypeVar

from gantt import exceptions
from gantt.core.claims.request_state import RequestEvent, RequestState
from gantt.core.records.decision import Outcome
from gantt.scheduler.ports.process import Clock, Recorder
from gantt.scheduler.ports.requests import Requests
from gantt.scheduler.request.life import RequestStateMachine, RequestTransition
from gantt.scheduler.request.queue import QUEUED_BYTES_MAX, C, QueuedRequest, RequestQueue

Call = TypeVar('Call', bound=QueuedRequest[Any], contravariant=True)


class SerialPlanner(Protocol[Call]):
    """A planner of requests that are carried out one by one."""

    def attempt(self, call: Call) -> RequestTransition:
        """Carry a request on by one step; return what happened to it.

        :raises GanttError, MemoryError: it ends by that, and has claimed nothing in this step
        """

    def end_before_step(self, call: Call, is_late: bool) -> RequestTransition | None:
        """Return what ends a request before its next step; None: it may go on.

        :param is_late: its deadline has passed
        """

    def failed(self, call: Call, error: exceptions.GanttError | MemoryError) -> RequestTransition:
        """Return what an error of ``attempt`` makes of a request; no further caller joins it."""

    def answered(self, call: Call, answer: Any) -> None:
        """Note the answer of a request, as it was sent."""


class SerialLoop(RequestStateMachine[C], Generic[C]):
    """A loop over requests that are carried out one by one.  Any thread, or several.

    :ivar queue: of the requests
    """

    def __init__(
        self,
        queue: RequestQueue[C],
        planner: SerialPlanner[C],
        requests: Requests,
        recorder: Recorder,
        clock: Clock,
        owner: str,
    ) -> None:
        super().__init__(requests, recorder, owner)
        self.queue = queue
        self._planner = planner
        self._clock = clock

    def step(self, seconds: float = 0.0) -> int:
        """Carry out the next request, waiting for it so long; return how many there were."""
        calls = self.queue.drain(1, QUEUED_BYTES_MAX, 0.0, seconds)
        for call in calls:
            began = self._clock.monotonic()
            try:
                self._carry_out(call)
            finally:
                self.queue.note_turn_seconds(call, self._clock.monotonic() - began)
        return len(calls)

    def stop(self, seconds: float, sleep_seconds: float = 0.1) -> bool:
        """Accept no more requests and finish those inside; return whether that was in time."""
        end = self._clock.monotonic() + seconds
        self.queue.closed = True
        self.queue.wake()
        while self.queue.depth and self._clock.monotonic() < end:
            self._clock.sleep(min(sleep_seconds, seconds))
        return not self.queue.depth

    def _carry_out(self, call: C) -> None:
        try:
            while call.attempt.state is not RequestState.ANSWERED:
                self.handle_event(call, *self._next(call))
        except BaseException as e:
            # Nobody else would answer its callers.
            problem = call.refusal(Outcome.FAILED, f'internal: {type(e).__name__}: {e}')
            self.handle_event(call, RequestEvent.UNCERTAIN, problem)
            raise

    def _next(self, call: C) -> RequestTransition:
        ended = self._planner.end_before_step(call, self._clock.monotonic() >= call.deadline)
        if ended is not None:
            return ended
        try:
            return self._planner.attempt(call)
        except (exceptions.GanttError, MemoryError) as e:
            self.queue.stop_joining(call)  # repeats have joined by now, or come later
            return self._planner.failed(call, e)

    # -- of RequestLife ------------------------------------------------------------
    def answer(self, call: C, answer: Any) -> None:
        for handle, replies in self.queue.leave(call):
            replies.send([(handle, answer)])
        self._planner.answered(call, answer)

    def plan_again(self, call: C, seconds: float) -> None:
        if seconds:
            self._clock.sleep(min(seconds, max(0.0, call.deadline - self._clock.monotonic())))
