# SPDX-License-Identifier: Apache-2.0
"""Answers on their way out: those of a batch together, one send per carrier."""

from collections.abc import Callable
from typing import Any

from gantt.core.records.decision import Answer
from gantt.scheduler.placing.admission import Admission, Call
from gantt.scheduler.ports import Clock, Recorder, Replies

#: Told of every answer, the seconds from its request's arrival, and the id that the request has
#: elsewhere: for the log.
OnAnswer = Callable[[Answer, float, str | None], None]


class Outbox:
    """Belongs to the scheduling thread."""

    def __init__(
        self, admission: Admission, recorder: Recorder, clock: Clock, on_answer: OnAnswer | None
    ) -> None:
        self._admission, self._recorder, self._clock = admission, recorder, clock
        self._on_answer = on_answer
        self._waiting: list[tuple[Replies, Any, Answer]] = []

    def put(self, call: Call, answer: Answer) -> None:
        """A call is at its end: everybody who waits for it is to be told this."""
        spent = call.request.budget_ms / 1000 - (call.deadline - self._clock.monotonic())
        self._recorder.observe(
            'gantt_decision_seconds', max(0.0, spent), outcome=answer.outcome.value
        )
        if self._on_answer is not None:
            self._on_answer(answer, max(0.0, spent), call.request.origin)
        for handle, replies in self._admission.leave(call):
            self._waiting.append((replies, handle, answer))

    def send(self) -> None:
        """Send what was put in since."""
        waiting, self._waiting = self._waiting, []
        by_carrier: dict[int, tuple[Replies, list[tuple[Any, Answer]]]] = {}
        for replies, handle, answer in waiting:
            by_carrier.setdefault(id(replies), (replies, []))[1].append((handle, answer))
        for replies, answers in by_carrier.values():
            replies.send(answers)
