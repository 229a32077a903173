# SPDX-License-Identifier: Apache-2.0
"""Requests: committed together, given up, cancelled, extended, read.

Outside the group commit the request's row is locked before the providers of its claims.
"""

import functools
import uuid
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.claim import Claim, Event, State, claims_of_caller, extended_lease, guest_of
from gantt.core.claims.commit import CommitResult, RequestDraft
from gantt.db.claims import commit as portable
from gantt.db.claims import one_trip
from gantt.db.claims.held import count_child_claims, has_claims_of_project
from gantt.db.claims.lock_releases import release_in_zones
from gantt.db.claims.locks import KnownLocks
from gantt.db.claims.unit_of_work import UnitOfWork, end_claims, lock_claims, providers_of
from gantt.db.database import Database, SqlStore, reading, writing, writing_once
from gantt.db.engine import retry, session
from gantt.db.engine.arrays import lock_by_key
from gantt.db.engine.combine import RequestCombiner
from gantt.db.engine.engine import is_id
from gantt.db.engine.pipelines import WorkDuringCommit
from gantt.db.engine.retry import RetryTransaction
from gantt.db.hosts.claim_rows import load_claims
from gantt.db.schema import models
from gantt.scheduler.ports.requests import ClaimOutcome, ClaimResult, RequestLine, StoredRequest

_requests = models.requests

SELECT_REQUEST = sa.select(_requests).where(_requests.c.id == sa.bindparam('id'))
LOCK_REQUEST = SELECT_REQUEST.with_for_update()
DELETE_REQUEST = _requests.delete().where(_requests.c.id == sa.bindparam('b_id'))
_delegated_consumers = models.delegated_consumers
DELETE_DELEGATED_CONSUMERS = _delegated_consumers.delete().where(
    _delegated_consumers.c.request_id == sa.bindparam('b_id')
)
_ids: Any = sa.bindparam('ids', expanding=True)
LOCK_REQUESTS = lock_by_key(
    sa.select(_requests.c.id, _requests.c.state, _requests.c.token)
    .where(_requests.c.id.in_(_ids))
    .order_by(_requests.c.id)
    .with_for_update(),
    _requests,
)
CANCEL_REQUESTS = (
    _requests.update()
    .where(_requests.c.id.in_(_ids))
    .values(state='cancelled', token=sa.bindparam('token'), updated_at=sa.bindparam('updated_at'))
)
_claims, _allocations = models.claims, models.allocations
#: Live claims with their providers: a row for every other provider than the host.
SELECT_LIVE_CLAIMS = (
    sa.select(_claims.c.id, _claims.c.provider_id, _allocations.c.provider_id)
    .select_from(_claims.outerjoin(_allocations, _allocations.c.claim_id == _claims.c.id))
    .where(_claims.c.request_id.in_(_ids), _claims.c.live == 1)
)


class RequestToCancel:
    """A request to cancel, with the outcome once it is cancelled.

    :ivar result: outcomes of its claims, once it is cancelled
    """

    def __init__(self, request_id: str, reason: str) -> None:
        self.request_id = request_id
        self.reason = reason
        self.result = ClaimResult(outcomes=[])


class _OneGuest(Exception):
    """Signal that two requests have claims of one guest: one claim may inherit from the other."""


class SqlRequests(SqlStore):
    """The batch commit and the life cycle of requests: ``ports.Requests`` in SQL."""

    may_refer = True

    def __init__(self, database: Database, locks: KnownLocks) -> None:
        super().__init__(database)
        committer_class = one_trip.OneTripCommitter if database.is_fast else portable.BatchCommitter
        self.committer: portable.BatchCommitter = committer_class(database.memory)
        self._locks = locks
        self._cancels = RequestCombiner(
            lambda cancellation: self._cancel([cancellation]), self._cancel_together
        )

    def do_meanwhile(self, meanwhile: WorkDuringCommit) -> None:
        self.committer.meanwhile = meanwhile

    def commit(self, batch: Sequence[RequestDraft]) -> CommitResult:
        return self._locks.commit(self.committer, batch)

    @writing_once
    def give_up(self, tx: session.Tx, request_id: str, owner: str, attempt: int) -> ClaimResult:
        row = tx.first(LOCK_REQUEST, id=request_id)
        if row is None or (row.state, row.owner, row.attempt) != ('open', owner, attempt):
            return ClaimResult(outcomes=[])
        return give_up(UnitOfWork(tx, self.database.memory), request_id, 'given up')

    @reading
    def load_request(self, tx: session.Tx, request_id: str) -> StoredRequest | None:
        return _load(tx, request_id) if is_id(request_id) else None

    @writing_once
    def reject_request(
        self, tx: session.Tx, request_id: str, fingerprint: str, answer: bytes
    ) -> StoredRequest | None:
        token = _insert_cancelled(tx, request_id, fingerprint, answer)
        # A transaction that has inserted it and not committed yet was waited for.
        is_ours = _lock(tx, request_id).token == token
        return None if is_ours else _load(tx, request_id)

    def cancel_request(self, request_id: str, reason: str) -> ClaimResult:
        cancellation = RequestToCancel(request_id, reason or 'cancelled')
        self._cancels.run(cancellation, frozenset([request_id]))
        return cancellation.result

    def _cancel_together(self, requests: Sequence[RequestToCancel]) -> bool:
        """Cancel all requests at once; return False, with none cancelled, if that failed."""
        try:
            self._cancel(requests)
        except exceptions.DatabaseUnavailable:
            raise  # perhaps it was done
        except (exceptions.GanttError, retry.RowsLocked, _OneGuest):
            return False
        return True

    def _cancel(self, requests: Sequence[RequestToCancel]) -> None:
        """Cancel requests in one transaction: providers that their claims share are locked once."""
        work = functools.partial(self._cancel_in, requests=requests)
        results = self.database.writes.write(work, once_locked=len(requests) > 1)
        for cancellation, result in zip(requests, results, strict=True):
            cancellation.result = result

    def _cancel_in(self, tx: session.Tx, requests: Sequence[RequestToCancel]) -> list[ClaimResult]:
        ids = sorted(cancellation.request_id for cancellation in requests)
        token = uuid.uuid4().hex
        tx.insert_new(_requests, [new_row(tx, request_id, token) for request_id in ids], 'id')
        request_rows = tx.all(LOCK_REQUESTS, ids=ids)
        if len(request_rows) != len(ids):
            raise RetryTransaction('a request was purged meanwhile')
        for row in request_rows:
            if row.state == 'open':
                # The owner of its opening may end before it reads the cancellation.
                release_in_zones(tx, row.token)
        tx.run(CANCEL_REQUESTS, ids=ids, token=token, updated_at=tx.now)
        changes = UnitOfWork(tx, self.database.memory)
        claims = _live_under_lock(changes, ids)
        of_request: dict[str | None, list[Claim]] = {request_id: [] for request_id in ids}
        for claim in claims:
            of_request[claim.request_id].append(claim)
        guests = [
            {guest_of(claim) for claim in request_claims} for request_claims in of_request.values()
        ]
        if sum(map(len, guests)) > len(set().union(*guests)):
            raise _OneGuest
        changes.read_heirs(claims)
        outcomes = [
            changes.end_by_event(
                of_request[cancellation.request_id], Event.CANCEL, cancellation.reason
            )
            for cancellation in requests
        ]
        changes.write()
        hosts = changes.result([]).hosts
        providers_of_requests = [
            providers_of(of_request[cancellation.request_id]) for cancellation in requests
        ]
        return [
            ClaimResult(
                outcomes=request_outcomes,
                hosts=[host for host in hosts if host.provider_id in provider_ids],
            )
            for request_outcomes, provider_ids in zip(outcomes, providers_of_requests, strict=True)
        ]

    @writing
    def extend_request(
        self,
        tx: session.Tx,
        request_id: str,
        seconds: float,
        most: float,
        most_of_plans: float | None = None,
    ) -> ClaimResult:
        tx.first(LOCK_REQUEST, id=request_id)
        claims = _live(tx, request_id)
        changes = UnitOfWork(tx, self.database.memory)
        changes.lock(providers_of(claims))
        outcomes = []
        for claim in load_claims(tx, ids=[claim.id for claim in claims]) if claims else ():
            if claim.request_id != request_id:
                continue  # a place that another request has taken over
            extended = extended_lease(claim, seconds, tx.now, most, most_of_plans)
            if extended is not None and extended is not claim:
                changes.change_claim(claim, extended)
            outcome = 'ok' if extended is not None else ('kept' if claim.is_live else 'gone')
            outcomes.append(
                ClaimOutcome(claim_id=claim.id, outcome=outcome, state=claim.state.value)
            )
        changes.write()
        return changes.result(outcomes)

    @writing
    def confirm_request(
        self, tx: session.Tx, request_id: str, consumers: Collection[str] = ()
    ) -> ClaimResult:
        result = _apply_event(
            UnitOfWork(tx, self.database.memory), request_id, consumers, Event.CONFIRM, ''
        )
        outcomes = [
            msgspec.structs.replace(
                outcome, outcome='ok' if outcome.state == State.CONFIRMED else 'gone'
            )
            for outcome in result.outcomes
        ]
        return msgspec.structs.replace(result, outcomes=outcomes)

    @writing
    def return_request(
        self,
        tx: session.Tx,
        request_id: str,
        consumers: Collection[str] = (),
        reason: str = '',
    ) -> ClaimResult:
        changes = UnitOfWork(tx, self.database.memory)
        return _apply_event(changes, request_id, consumers, Event.RETURN, reason or 'returned')

    @reading
    def list_requests(
        self, tx: session.Tx, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[RequestLine]:
        claims = (_requests.c.claims + count_child_claims(_requests.c.id)).label('claims')
        query = (
            sa.select(
                _requests.c.id,
                _requests.c.state,
                _requests.c.attempt,
                claims,
                _requests.c.updated_at,
            )
            .order_by(_requests.c.id)
            .limit(limit)
        )
        if marker is not None:
            query = query.where(_requests.c.id > marker)
        if project is not None:
            query = query.where(has_claims_of_project(_requests.c.id, project))
        return [RequestLine(**row._mapping) for row in tx.all(query)]


def cancel_claims(changes: UnitOfWork, request_id: str, reason: str) -> ClaimResult:
    """End the live claims of a request, whose row is locked."""
    claims = _live_under_lock(changes, [request_id])
    outcomes = changes.end_by_event(claims, Event.CANCEL, reason)
    changes.write()
    return changes.result(outcomes)


def give_up(changes: UnitOfWork, request_id: str, reason: str) -> ClaimResult:
    """End the live claims of a request, whose row is locked, and delete the row."""
    result = cancel_claims(changes, request_id, reason)
    forget(changes.tx, request_id)
    return result


def forget(tx: session.Tx, request_id: str) -> None:
    """Delete the row of a request, and the rows of the consumers that it is placing."""
    tx.run(DELETE_REQUEST, b_id=request_id)
    tx.run(DELETE_DELEGATED_CONSUMERS, b_id=request_id)


def _apply_event(
    changes: UnitOfWork, request_id: str, consumers: Collection[str], event: Event, reason: str
) -> ClaimResult:
    """Apply ``event`` to the claims of a request: those of ``consumers``, or all."""
    tx = changes.tx
    if is_id(request_id):
        tx.first(LOCK_REQUEST, id=request_id)
    claims = load_claims(tx, request_ids=[request_id]) if is_id(request_id) else []
    caller_claims = claims_of_caller(request_id, claims, consumers)
    ids = [claim.id for claim in caller_claims]
    return end_claims(changes, ids, providers_of(caller_claims), event, reason)


def _load(tx: session.Tx, request_id: str) -> StoredRequest | None:
    row = tx.first(SELECT_REQUEST, id=request_id)
    if row is None:
        return None
    return StoredRequest(
        id=row.id,
        state=row.state,
        fingerprint=row.fingerprint,
        attempt=row.attempt,
        owner=row.owner,
        wait_seconds=max(0.0, row.deadline - tx.now) if row.state == 'open' else 0.0,
        answer=bytes(row.answer or b''),
        claims=load_claims(tx, request_ids=[request_id]),
    )


def _live(tx: session.Tx, request_id: str) -> list[Claim]:
    return load_claims(tx, request_ids=[request_id], live=True)


def _lock(tx: session.Tx, request_id: str) -> Any:
    row = tx.first(LOCK_REQUEST, id=request_id)
    if row is None:
        raise RetryTransaction('the request was purged meanwhile')
    return row


def _insert_cancelled(tx: session.Tx, request_id: str, fingerprint: str, answer: bytes) -> str:
    """Insert a request as cancelled if absent; return the token that the row has if inserted."""
    token = uuid.uuid4().hex
    row = new_row(tx, request_id, token, fingerprint=fingerprint, answer=answer)
    tx.insert_new(_requests, [row], 'id')
    return token


def new_row(tx: session.Tx, request_id: str, token: str, **values: Any) -> dict[str, Any]:
    """Return the row of a request that is not stored yet; by default it is cancelled."""
    row = {
        'id': request_id,
        'fingerprint': '',
        'state': 'cancelled',
        'owner': '',
        'attempt': 0,
        'deadline': 0.0,
        'token': token,
        'answer': None,
        'created_at': tx.now,
        'updated_at': tx.now,
        'claims': 0,
    }
    return row | values


def _live_under_lock(changes: UnitOfWork, request_ids: Sequence[str]) -> list[Claim]:
    """Return the live claims of requests, with all their providers locked."""
    rows = changes.tx.all(SELECT_LIVE_CLAIMS, ids=list(request_ids))
    ids = list(dict.fromkeys(row.id for row in rows))
    provider_ids = {pid for _, *provider_ids in rows for pid in provider_ids if pid is not None}
    # A place may have been taken over by another request before it was locked.
    return [
        claim
        for claim in lock_claims(changes, ids, provider_ids)
        if claim.request_id in request_ids
    ]
