# SPDX-License-Identifier: Apache-2.0
"""Answers on their way out: sent by batch; a repeat gets the earlier answer.

A caller that gets no answer sends its request again, and another process may take the copy
while the first one still works on it.  A request that is refused must not be placed: before a
repeat is refused, the refusal is stored as the request's row.  Either that finds the row of the
first copy, whose answer is the caller's as well, or the commit of the first copy finds the
refusal.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol

from gantt import exceptions
from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import CommitStatus, RequestOutcome
from gantt.core.claims.quota import amounts_of
from gantt.core.messages.base import topic_of
from gantt.core.records import decision_codec
from gantt.core.records.decision import (
    Answer,
    Answered,
    Outcome,
    ProviderAllocation,
    Selection,
)
from gantt.core.records.members import AnswerReference, answer_of, encodable_answer, pack, unpack
from gantt.core.resources.host import HostRow
from gantt.core.resources.provider import SharedPool
from gantt.scheduler.ports.process import Clock, Recorder, Replies
from gantt.scheduler.ports.records import Records
from gantt.scheduler.ports.requests import Requests, StoredRequest
from gantt.scheduler.request.queue import Admission, C, PendingRequest

#: Callback with all answers that were sent together, for the log.
AnswersCallback = Callable[[Sequence[Answered]], None]


class StoredAnswers:
    """Answers as they are stored with their requests.

    :param host_of: returns the row of a host; None: not known
    :param pool_of: returns a pool that hosts share; None: not known
    """

    def __init__(
        self,
        records: Records,
        requests: Requests,
        host_of: Callable[[int], HostRow | None],
        pool_of: Callable[[int], SharedPool | None],
    ) -> None:
        self._records = records
        self._requests = requests
        self._host_of = host_of
        self._pool_of = pool_of

    def pack(self, answer: Answer) -> bytes:
        """Return an answer as it is stored."""
        return pack(answer)

    def read(self, request_id: str, stored: bytes) -> Answer:
        """Return an answer, rebuilt where a reference is stored.

        Where size limits removed the decision early it is rebuilt from the claims; then there are
        no alternates.

        :raises DatabaseUnavailable: what it refers to cannot be read
        """
        stored_answer = unpack(stored)
        if isinstance(stored_answer, Answer):
            return stored_answer
        record = (
            self._records.load_decision(stored_answer.decision_id)
            if stored_answer.decision_id
            else None
        )
        if record is not None:
            decision = decision_codec.unpack(record[0]).decision
            if decision.id == stored_answer.decision_id:
                return encodable_answer(
                    answer_of(decision, stored_answer.lease_seconds, claims=True)
                )
        return self._answer_of_claims(request_id, stored_answer)

    def _answer_of_claims(self, request_id: str, reference: AnswerReference) -> Answer:
        stored = self._requests.load_request(request_id)
        claims = [] if stored is None else stored.claims
        last = max((claim.attempt for claim in claims), default=0)
        return Answer(
            request_id=request_id,
            decision_id=reference.decision_id,
            outcome=Outcome.PLACED,
            selections=[
                [self._selection(claim, reference.lease_seconds)]
                for claim in sorted(claims, key=lambda claim: claim.member)
                if claim.attempt == last
            ],
        )

    def _selection(self, claim: Claim, lease_seconds: float) -> Selection:
        host = self._host_of(claim.provider_id)
        # The host first, then pools, as in the original answer.
        order = sorted(
            claim.allocations,
            key=lambda provider_id: (provider_id != claim.provider_id, provider_id),
        )
        allocations = [
            self._allocation(claim, provider_id, claim.allocations[provider_id])
            for provider_id in order
        ]
        name = claim.host or (host.name if host else '')
        return Selection(
            host=name,
            node=(host and host.node) or name,
            uuid=host.uuid if host else '',
            provider_id=claim.provider_id,
            consumer=claim.consumer,
            claim_id=claim.id,
            cell=host.cell if host else None,
            zone=host.zone if host else None,
            build_topic=topic_of(name) if claim.host else '',
            resources=amounts_of(claim),
            layout=claim.layout,
            lease_seconds=lease_seconds,
            allocations=allocations if len(allocations) > 1 else [],
        )

    def _allocation(
        self, claim: Claim, provider_id: int, resources: dict[str, int]
    ) -> ProviderAllocation:
        is_host = provider_id == claim.provider_id
        provider = self._host_of(provider_id) if is_host else self._pool_of(provider_id)
        return ProviderAllocation(
            provider_id=provider_id,
            uuid=provider.uuid if provider is not None else '',
            name=claim.host if is_host else (provider.name if provider is not None else ''),
            resources=resources,
        )


class AnswerCodec(Protocol):
    """The stored form of the answers to one kind of request."""

    def pack(self, answer: Any) -> bytes:
        """Return a refusal as it is stored."""

    def read(self, request_id: str, stored: bytes) -> Any:
        """Return an answer or refusal as it was stored; None: it is of another kind of request.

        :raises DatabaseUnavailable: what it refers to cannot be read
        """


class EarlierAnswers(Generic[C]):
    """Answers that requests got before, by their rows, and refusals that are final."""

    def __init__(self, requests: Requests, codec: AnswerCodec, recorder: Recorder) -> None:
        self._requests = requests
        self._codec = codec
        self._recorder = recorder

    def earlier_answer(self, call: C) -> Any:
        """Return the earlier answer to a request; its row where that is open; else None."""
        return self._read_earlier(call, self._requests.load_request(call.request.request_id))

    def answer_before_refusal(self, call: C, refusal: Any) -> Any:
        """Return what ``earlier_answer`` returns for a request that is to be refused.

        A commit guards against repeats itself, and such a request never gets to one.  Its own
        claims may be the obstacle.  The refusal of a repeat is stored: its other copy may wait at
        another scheduler, which must not place it after the caller got a refusal.
        """
        if call.claims_nothing or call.attempt.continues:
            return None
        try:
            if not call.repeats:
                return self.earlier_answer(call)
            packed = self._codec.pack(refusal)
            return self._read_earlier(
                call,
                self._requests.reject_request(call.request.request_id, call.fingerprint, packed),
            )
        except exceptions.Unavailable as e:
            return call.failure(e)

    def placed_answer(self, call: C, stored: bytes) -> Any:
        """Return the answer stored with a request that was placed before."""
        self._recorder.count('gantt_repeated_requests_total')
        return self._read(call, stored)

    def cancelled_answer(self, call: C) -> Any:
        """Return the answer to a cancelled request: its refusal, if it had one."""
        try:
            stored = self._requests.load_request(call.request.request_id)
        except exceptions.Unavailable:
            stored = None
        return self._read_cancelled(call, stored)

    def ended_answer(self, call: C, status: RequestOutcome) -> Any:
        """Return the answer of an outcome that ends a request without a claim; else None."""
        match status.outcome:
            case CommitStatus.REPEAT:
                return self.placed_answer(call, status.answer)
            case CommitStatus.REJECTED:
                return call.failure(exceptions.refused(status.reason, status.places))
            case CommitStatus.CANCELLED:
                return self.cancelled_answer(call)
            case CommitStatus.REUSED:
                return call.refusal(Outcome.REUSED, 'used with another body')
        return None

    def _read_earlier(self, call: C, stored: StoredRequest | None) -> Any:
        if stored is None:
            return None
        if stored.state == 'cancelled':
            return self._read_cancelled(call, stored)
        if stored.fingerprint != call.fingerprint:
            return call.refusal(Outcome.REUSED, 'used with another body')
        return stored if stored.state == 'open' else self.placed_answer(call, stored.answer)

    def _read_cancelled(self, call: C, stored: StoredRequest | None) -> Any:
        was_refused = stored is not None and stored.attempt == 0 and stored.answer
        if stored is None or not was_refused:
            return call.refusal(Outcome.CANCELLED, 'it was cancelled')
        if stored.fingerprint != call.fingerprint:
            return call.refusal(Outcome.REUSED, 'used with another body')
        return self._read(call, stored.answer)

    def _read(self, call: C, stored: bytes) -> Any:
        try:
            answer = self._codec.read(call.request.request_id, stored)
        except exceptions.Unavailable as e:
            return call.failure(e)
        if answer is None:
            return call.refusal(Outcome.REUSED, 'used with another body')
        return answer


class OutgoingAnswers:
    """Outgoing answers of the scheduling thread; one send for each carrier of replies."""

    def __init__(
        self,
        admission: Admission,
        recorder: Recorder,
        clock: Clock,
        on_answers: AnswersCallback | None,
    ) -> None:
        self._admission = admission
        self._recorder = recorder
        self._clock = clock
        self._on_answers = on_answers
        # Answers for ``send``, of calls that have ended: a placement is put here after its commit.
        self._waiting: list[tuple[Replies, Any, Answer]] = []
        # The same by call, for metrics and the log, which follow the answers.
        self._answered: list[Answered] = []

    def put(self, call: PendingRequest, answer: Answer) -> None:
        """End a call: all its waiting callers will get this answer."""
        for handle, replies in self._admission.leave(call):
            self._waiting.append((replies, handle, answer))
        spent = call.request.budget_ms / 1000 - (call.deadline - self._clock.monotonic())
        request = call.request
        self._answered.append(Answered(answer, max(0.0, spent), request.origin, request.trace))

    def send(self) -> None:
        """Send the answers put in since the last send."""
        waiting, self._waiting = self._waiting, []
        by_carrier: dict[int, tuple[Replies, list[tuple[Any, Answer]]]] = {}
        for replies, handle, answer in waiting:
            by_carrier.setdefault(id(replies), (replies, []))[1].append((handle, answer))
        for replies, carrier_answers in by_carrier.values():
            replies.send(carrier_answers)
        # The answers have been sent, even if the log fails below.
        answered, self._answered = self._answered, []
        seconds: dict[str, list[float]] = {}
        for sent in answered:
            seconds.setdefault(sent.answer.outcome.value, []).append(sent.seconds)
        for outcome, values in seconds.items():
            self._recorder.observe_all('gantt_decision_duration_seconds', values, outcome=outcome)
        if answered and self._on_answers is not None:
            self._on_answers(answered)
