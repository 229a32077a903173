# SPDX-License-Identifier: Apache-2.0
"""Answers on their way out: those of a batch together; a repeat gets the one of before."""

from collections.abc import Callable
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.claims.quota import Excess
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.scheduler.placing.admission import Admission, PendingRequest, refusal
from gantt.scheduler.ports import Clock, Recorder, Replies, Store, StoredRequest

#: Told of every answer, the seconds from its request's arrival, and the id that the request has
#: elsewhere: for the log.
OnAnswer = Callable[[Answer, float, str | None], None]

#: An answer as it was stored with its request.
unpack = msgspec.msgpack.Decoder(Answer).decode
pack = msgspec.msgpack.Encoder().encode


class Answers:
    """Belongs to the scheduling thread; one send for each carrier of replies."""

    def __init__(
        self,
        store: Store,
        admission: Admission,
        recorder: Recorder,
        clock: Clock,
        on_answer: OnAnswer | None,
    ) -> None:
        self._store = store
        self._admission, self._recorder, self._clock = admission, recorder, clock
        self._on_answer = on_answer
        self._waiting: list[tuple[Replies, Any, Answer]] = []

    def put(self, call: PendingRequest, answer: Answer) -> None:
        """A call is at its end: everybody who waits for it is to get this."""
        for handle, replies in self._admission.leave(call):
            self._waiting.append((replies, handle, answer))
        # The answer is on its way, whatever becomes of what is noted of it.
        spent = call.request.budget_ms / 1000 - (call.deadline - self._clock.monotonic())
        self._recorder.observe(
            'gantt_decision_seconds', max(0.0, spent), outcome=answer.outcome.value
        )
        if self._on_answer is not None:
            self._on_answer(answer, max(0.0, spent), call.request.origin)

    def send(self) -> None:
        """Send what was put in since."""
        waiting, self._waiting = self._waiting, []
        by_carrier: dict[int, tuple[Replies, list[tuple[Any, Answer]]]] = {}
        for replies, handle, answer in waiting:
            by_carrier.setdefault(id(replies), (replies, []))[1].append((handle, answer))
        for replies, answers in by_carrier.values():
            replies.send(answers)

    # -- of before ---------------------------------------------------------------
    def known(
        self, call: PendingRequest, outcome: Outcome, reason: str, excess: Excess | None = None
    ) -> Answer | StoredRequest | None:
        """The answer of before to a call that is to be refused; its row where that is open.

        A commit guards against repeats itself, and such a call never gets to one.  Its own claims
        may be what is in the way.  Of a repeat the refusal is stored: its other copy may wait at
        another scheduler, which must not place it when the caller was told no.
        """
        request = call.request
        if call.attempt.continues or request.dry_run or request.spec.purpose is Purpose.REBUILD:
            return None
        try:
            if call.repeats:
                packed = pack(refusal(request, outcome, reason, excess=excess))
                stored = self._store.bar_request(request.request_id, call.fingerprint, packed)
            else:
                stored = self._store.load_request(request.request_id)
        except exceptions.Unavailable as e:
            return refusal(request, Outcome.FAILED, e.message)
        if stored is None:
            return None
        if stored.state == 'cancelled':
            return _of_cancelled(request, stored)
        if stored.fingerprint != call.fingerprint:
            return refusal(request, Outcome.REUSED, 'used with another body')
        return stored if stored.state == 'open' else self.placed(stored.answer)

    def placed(self, answer: bytes) -> Answer:
        """What was stored with a request that was placed before."""
        self._recorder.count('gantt_repeats_total')
        return unpack(answer)

    def cancelled(self, request: SelectDestinations) -> Answer:
        """The answer to a request that is not placed any more: its refusal, if it had one."""
        try:
            return _of_cancelled(request, self._store.load_request(request.request_id))
        except exceptions.Unavailable:
            return _of_cancelled(request, None)


def _of_cancelled(request: SelectDestinations, stored: StoredRequest | None) -> Answer:
    was_refused = stored is not None and stored.attempt == 0 and stored.answer
    if stored is not None and was_refused and stored.fingerprint == request.fingerprint:
        return unpack(stored.answer)
    return refusal(request, Outcome.CANCELLED, 'it was cancelled')
