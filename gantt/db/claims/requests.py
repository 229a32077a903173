# SPDX-License-Identifier: Apache-2.0
"""The life of a request outside the group commit: read, given up, cancelled, extended.

The request's row is locked before the providers of its claims.
"""

import uuid

import msgspec
import sqlalchemy as sa

from gantt.core.claims.claim import Claim, Event, State, longest
from gantt.db.claims.claims import Changes, end_claims, load_claims, providers_of
from gantt.db.engine import session
from gantt.db.engine.retry import Again
from gantt.db.hosts import rows
from gantt.db.schema import models
from gantt.scheduler.ports import ClaimFate, ClaimResult, RequestLine, StoredRequest

_r = models.requests

READ = sa.select(_r).where(_r.c.id == sa.bindparam('id'))
LOCK = READ.with_for_update()
DELETE = _r.delete().where(_r.c.id == sa.bindparam('b_id'))
CANCEL = (
    _r.update()
    .where(_r.c.id == sa.bindparam('b_id'))
    .values(state='cancelled', token=sa.bindparam('token'), updated_at=sa.bindparam('updated_at'))
)


def load(changes: Changes, request_id: str) -> StoredRequest | None:
    """The request row with its claims."""
    row = changes.tx.first(READ, id=request_id)
    if row is None:
        return None
    return StoredRequest(
        id=row.id,
        state=row.state,
        fingerprint=row.fingerprint,
        attempt=row.attempt,
        owner=row.owner,
        wait_seconds=max(0.0, row.deadline - changes.tx.now) if row.state == 'open' else 0.0,
        answer=bytes(row.answer or b''),
        claims=load_claims(changes.tx, request_ids=[request_id]),
    )


def lines(tx: session.Tx, limit: int, marker: str | None, project: str | None) -> list[RequestLine]:
    """Requests by id, after ``marker``; those with claims of one project, or all."""
    columns = (_r.c.id, _r.c.state, _r.c.attempt, _r.c.claims, _r.c.updated_at)
    query = sa.select(*columns).order_by(_r.c.id).limit(limit)
    if marker is not None:
        query = query.where(_r.c.id > marker)
    if project is not None:
        theirs = models.consumers.c.uuid == models.claims.c.consumer
        query = query.where(
            sa.exists().where(
                models.claims.c.request_id == _r.c.id,
                theirs,
                models.consumers.c.project_id == project,
            )
        )
    return [RequestLine(**row._mapping) for row in tx.all(query)]


def _live(changes: Changes, request_id: str) -> list[Claim]:
    return load_claims(changes.tx, request_ids=[request_id], live=True)


def give_up(changes: Changes, request_id: str, owner: str, attempt: int) -> ClaimResult:
    """Release what this attempt of an open request has claimed, and forget it."""
    tx = changes.tx
    row = tx.first(LOCK, id=request_id)
    if row is None or (row.state, row.owner, row.attempt) != ('open', owner, attempt):
        return ClaimResult(fates=[])
    result = end_claims(changes, _live(changes, request_id), Event.CANCEL, 'given up')
    tx.run(DELETE, b_id=request_id)
    return result


def bar(changes: Changes, request_id: str, fingerprint: str, answer: bytes) -> StoredRequest | None:
    """Insert it as cancelled with its refusal; where somebody was first, its row as it is.

    Who has inserted it and not committed yet is waited for.
    """
    tx = changes.tx
    token = uuid.uuid4().hex
    row = {
        'id': request_id,
        'fingerprint': fingerprint,
        'state': 'cancelled',
        'owner': '',
        'attempt': 0,
        'deadline': 0.0,
        'token': token,
        'answer': answer,
        'created_at': tx.now,
        'updated_at': tx.now,
        'claims': 0,
    }
    tx.insert_new(_r, [row], 'id')
    found = tx.first(LOCK, id=request_id)
    if found is None:
        raise Again('the request was purged meanwhile')
    return None if found.token == token else load(changes, request_id)


def cancel(changes: Changes, request_id: str, reason: str) -> tuple[StoredRequest, ClaimResult]:
    """Set it cancelled, inserting it if need be, and release what is only reserved."""
    tx = changes.tx
    now = tx.now
    blank = {
        'id': request_id,
        'fingerprint': '',
        'state': 'cancelled',
        'owner': '',
        'attempt': 0,
        'deadline': 0.0,
        'token': uuid.uuid4().hex,
        'answer': None,
        'created_at': now,
        'updated_at': now,
        'claims': 0,
    }
    tx.insert_new(_r, [blank], 'id')
    if tx.first(LOCK, id=request_id) is None:
        raise Again('the request was purged meanwhile')
    tx.run(CANCEL, b_id=request_id, token=blank['token'], updated_at=now)
    result = end_claims(changes, _live(changes, request_id), Event.CANCEL, reason or 'cancelled')
    stored = load(changes, request_id)
    if stored is None:
        raise ValueError('a row that this transaction wrote is not there')
    return stored, result


def extend(
    changes: Changes,
    request_id: str,
    seconds: float,
    most: float,
    most_of_plans: float | None = None,
) -> ClaimResult:
    """Lengthen the leases of reserved claims, never shorten them."""
    tx = changes.tx
    tx.first(LOCK, id=request_id)
    claims = _live(changes, request_id)
    changes.lock(providers_of(claims))
    fates = []
    for claim in load_claims(tx, ids=[claim.id for claim in claims]) if claims else ():
        reserved = claim.state is State.RESERVED
        until = tx.now + min(seconds, longest(claim.lifecycle, most, most_of_plans))
        if reserved and rows.expires_at(claim) is not None and claim.lease_until < until:
            longer = msgspec.structs.replace(claim, lease_until=until, updated_at=tx.now)
            changes.change(claim, longer)
        fate = 'ok' if reserved else ('kept' if claim.is_live else 'gone')
        fates.append(ClaimFate(claim_id=claim.id, fate=fate, state=claim.state.value))
    changes.write()
    return changes.result(fates)
