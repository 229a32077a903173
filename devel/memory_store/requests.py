# SPDX-License-Identifier: Apache-2.0
"""Requests in memory: committed together, given up, cancelled, extended, read."""

from collections.abc import Collection, Sequence

import msgspec

from devel.memory_store import commit as memory_commit
from devel.memory_store.database import MemoryDatabase, atomic
from devel.memory_store.tables import RequestRow
from gantt.core.claims.claim import (
    Claim,
    Event,
    State,
    claims_of_caller,
    extended_lease,
)
from gantt.core.claims.commit import CommitResult, RequestDraft
from gantt.scheduler.ports.process import Inbox
from gantt.scheduler.ports.requests import ClaimOutcome, ClaimResult, StoredRequest

_replace = msgspec.structs.replace


class MemoryRequests:
    """The batch commit and the life cycle of requests: ``ports.Requests`` in memory."""

    #: Decisions have their twin in SQLite.
    may_refer = False

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    @atomic
    def commit(self, batch: Sequence[RequestDraft]) -> CommitResult:
        return memory_commit.commit(self.database.tables, batch, self.database.now)

    def do_meanwhile(self, inbox: Inbox) -> None:
        pass  # nothing is waited for

    @atomic
    def give_up(self, request_id: str, owner: str, attempt: int) -> ClaimResult:
        row = self.database.tables.requests.get(request_id)
        if row is None or (row.state, row.owner, row.attempt) != ('open', owner, attempt):
            return ClaimResult(outcomes=[])
        del self.database.tables.requests[request_id]
        live = self.database.tables.of_request(request_id, live=True)
        return self._apply_event(live, Event.CANCEL, 'given up')

    @atomic
    def load_request(self, request_id: str) -> StoredRequest | None:
        row = self.database.tables.requests.get(request_id)
        if row is None:
            return None
        return StoredRequest(
            id=row.id,
            state=row.state,
            fingerprint=row.fingerprint,
            attempt=row.attempt,
            owner=row.owner,
            wait_seconds=max(0.0, row.deadline - self.database.now) if row.state == 'open' else 0.0,
            answer=row.answer,
            claims=self.database.tables.of_request(request_id),
        )

    @atomic
    def reject_request(
        self, request_id: str, fingerprint: str, answer: bytes
    ) -> StoredRequest | None:
        stored = self.load_request(request_id)
        if stored is None:
            self.database.tables.requests[request_id] = RequestRow(
                id=request_id,
                fingerprint=fingerprint,
                state='cancelled',
                owner='',
                attempt=0,
                deadline=0.0,
                answer=answer,
            )
        return stored

    @atomic
    def cancel_request(self, request_id: str, reason: str) -> ClaimResult:
        row = self.database.tables.requests.setdefault(
            request_id,
            RequestRow(id=request_id, fingerprint='', state='', owner='', attempt=0, deadline=0.0),
        )
        row.state = 'cancelled'
        live = self.database.tables.of_request(request_id, live=True)
        return self._apply_event(live, Event.CANCEL, reason or 'cancelled')

    @atomic
    def extend_request(
        self, request_id: str, seconds: float, most: float, most_of_plans: float | None = None
    ) -> ClaimResult:
        now = self.database.now
        outcomes = []
        for claim in self.database.tables.of_request(request_id, live=True):
            becomes = extended_lease(claim, seconds, now, most, most_of_plans)
            if becomes is not None and becomes is not claim:
                self.database.tables.put_claim(becomes)
            outcome = 'kept' if becomes is None else 'ok'
            outcomes.append(
                ClaimOutcome(claim_id=claim.id, outcome=outcome, state=claim.state.value)
            )
        return ClaimResult(outcomes=outcomes, hosts=self.database.tables.write())

    @atomic
    def confirm_request(self, request_id: str, consumers: Collection[str] = ()) -> ClaimResult:
        claims = claims_of_caller(
            request_id, self.database.tables.of_request(request_id), consumers
        )
        result = self._apply_event(claims, Event.CONFIRM, '')
        outcomes = [
            _replace(outcome, outcome='ok' if outcome.state == State.CONFIRMED else 'gone')
            for outcome in result.outcomes
        ]
        return _replace(result, outcomes=outcomes)

    @atomic
    def return_request(
        self, request_id: str, consumers: Collection[str] = (), reason: str = ''
    ) -> ClaimResult:
        claims = claims_of_caller(
            request_id, self.database.tables.of_request(request_id), consumers
        )
        return self._apply_event(claims, Event.RETURN, reason or 'returned')

    def _apply_event(self, claims: Sequence[Claim], event: Event, reason: str) -> ClaimResult:
        outcomes = self.database.tables.happen(claims, event, reason, self.database.now)
        return ClaimResult(outcomes=outcomes, hosts=self.database.tables.write())
