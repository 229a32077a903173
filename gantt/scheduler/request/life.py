# SPDX-License-Identifier: Apache-2.0
"""Effects of the events of requests, carried out for every kind of request.

The events and their effects are those of ``core.claims.request_state``.  A loop feeds them:
``loop`` places requests for hosts in batches, ``serial`` carries others out one by one.
"""

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple

from gantt import exceptions
from gantt.core.claims import request_state
from gantt.core.claims.commit import DecisionRecord
from gantt.core.claims.request_state import Effect, RequestEvent, RequestState
from gantt.scheduler.ports.process import Recorder
from gantt.scheduler.ports.requests import ClaimResult, Requests
from gantt.scheduler.request.queue import C

#: Seconds between two checks of a request that another worker has open, that needs a locked host,
#: or that waits until everything was read again.
RECHECK_SECONDS = 0.1


class RequestTransition(NamedTuple):
    """An event of a request, with what its effects need.

    :ivar answer: sent where the event ends the request
    :ivar record: the decision stored then

    The others are those of ``request_state.transition``.
    """

    event: RequestEvent
    answer: Any = None
    record: DecisionRecord | None = None
    made: Mapping[int, Any] | None = None
    conflict: str = ''
    number: int = 0
    reason: str = ''


class RequestStateMachine(Generic[C]):
    """The life of the requests of one loop, from event to event.

    :param owner: of the rows of its requests: this process
    """

    def __init__(self, requests: Requests, recorder: Recorder, owner: str) -> None:
        self._requests = requests
        self._recorder = recorder
        self._owner = owner

    def handle_event(
        self,
        call: C,
        event: RequestEvent,
        answer: Any = None,
        record: DecisionRecord | None = None,
        made: Mapping[int, Any] | None = None,
        conflict: str = '',
        number: int = 0,
        reason: str = '',
    ) -> None:
        """Feed an event to the state of a request, and carry out its effects.

        For the arguments see ``RequestTransition``.
        """
        old_attempt = call.attempt
        new_attempt, effects = request_state.transition(
            old_attempt, event, made=made, conflict=conflict, number=number, reason=reason
        )
        # It counts as answered only with the answer sent: an error before leaves it to be answered.
        if new_attempt.state is not RequestState.ANSWERED:
            call.attempt = new_attempt
        for effect in effects:
            match effect:
                case Effect.RELEASE:
                    self.release(call.request.request_id, self._owner, old_attempt.number)
                case Effect.RECORD if record is not None:
                    self._recorder.record(record)
                case Effect.ANSWER:
                    assert answer is not None, 'what ends a request comes with its answer'
                    self.answer(call, answer)
                case Effect.PLAN_AGAIN:
                    self.plan_again(call, 0.0)
                case Effect.WAIT:
                    self.plan_again(call, RECHECK_SECONDS)
                case Effect.BACK_OFF:
                    wait = request_state.back_off(call.request.request_id, new_attempt)
                    self.plan_again(call, wait)
        call.attempt = new_attempt

    def release(self, request_id: str, owner: str, attempt: int) -> None:
        """Give up an open request: release what it has claimed, and delete its row."""
        try:
            self.note_released_hosts(self._requests.give_up(request_id, owner, attempt))
        except exceptions.Unavailable:
            # The lease frees the claims; the row's deadline lets a repeat take over.
            self._recorder.count('gantt_request_abort_failures_total')

    # -- of a loop -----------------------------------------------------------------
    def answer(self, call: C, answer: Any) -> None:
        """Answer all callers that wait for a request."""
        raise NotImplementedError

    def plan_again(self, call: C, seconds: float) -> None:
        """Plan a request again after a pause."""
        raise NotImplementedError

    def note_released_hosts(self, result: ClaimResult) -> None:
        """Take note of hosts that claims have left."""
