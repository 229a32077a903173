# SPDX-License-Identifier: Apache-2.0
"""Who this zone is, the zones below and above it, and requests that may go down.

A request that may go down has its row open before any zone is asked, and its consumers stand in
``consumers_on_their_way``: so two requests for one consumer meet, wherever each is placed.
"""

import secrets
import uuid
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.claim import State
from gantt.core.claims.commit import CommitStatus, RequestDraft, RequestOutcome
from gantt.core.claims.request_state import judge_request, takes_over
from gantt.core.messages.request import Purpose
from gantt.core.zones.messages import ClaimBelow, ParentRecord, ZoneChanges, ZoneRecord
from gantt.db.claims.requests import LOCK, SqlRequests
from gantt.db.engine import session
from gantt.db.engine.session import reading, writing, writing_once
from gantt.db.schema import models
from gantt.scheduler.ports.zones import (
    ChangedClaim,
    OpenedRequest,
    OpenRequest,
    StoredBelow,
    ZoneIdentity,
)

_r, _c = models.requests, models.claims
_self, _child, _parent = models.zone, models.child_zones, models.parent_zones
_below, _way = models.claims_below, models.consumers_on_their_way
#: Bytes of the secret that offers are sealed with: a key of AES-256.
SECRET_BYTES = 32
#: States of a claim that lives.
LIVE = (State.RESERVED.value, State.CONFIRMED.value)
#: Consumers looked for in one statement.
_PART = 500

_id: Any = sa.bindparam('id')
_ids: Any = sa.bindparam('ids', expanding=True)
_incarnation = sa.select(models.meta.c.incarnation).scalar_subquery()
IDENTITY = sa.select(_self, _incarnation.label('incarnation'))
OPEN = (
    _r.update()
    .where(_r.c.id == sa.bindparam('b_id'))
    .values(
        state='open',
        owner=sa.bindparam('owner'),
        attempt=sa.bindparam('attempt'),
        deadline=sa.bindparam('deadline'),
        token=sa.bindparam('token'),
        updated_at=sa.bindparam('updated_at'),
    )
)
FINISH = (
    _r.update()
    .where(_r.c.id == sa.bindparam('b_id'))
    .values(
        state='placed',
        answer=sa.bindparam('answer'),
        token=sa.bindparam('token'),
        updated_at=sa.bindparam('updated_at'),
        claims=0,
    )
)
ON_THEIR_WAY = sa.select(_way).where(_way.c.consumer.in_(_ids)).order_by(_way.c.consumer)
LIVE_BELOW = sa.select(_below.c.request_id).where(
    _below.c.consumer == _id, _below.c.state.in_(LIVE)
)
LIVE_HERE = sa.select(_c.c.id, _c.c.request_id).where(
    _c.c.consumer == _id, _c.c.live == 1, _c.c.lifecycle != 'api'
)
_whose: Any = sa.bindparam('parent')
_since: Any = sa.bindparam('since')
_most: Any = sa.bindparam('most', type_=sa.Integer)
#: Changed claims of a zone above, here and below, the oldest change first.
CHANGED_HERE = (
    sa.select(_c.c.id, _c.c.request_id, _c.c.consumer, _c.c.state, _c.c.updated_at)
    .where(_c.c.parent_key == _whose, _c.c.updated_at >= _since)
    .order_by(_c.c.updated_at, _c.c.id)
    .limit(_most)
)
CHANGED_BELOW = (
    sa.select(
        _below.c.claim_id.label('id'),
        _below.c.request_id,
        _below.c.consumer,
        _below.c.state,
        _below.c.updated_at,
    )
    .where(_below.c.parent == _whose, _below.c.updated_at >= _since)
    .order_by(_below.c.updated_at, _below.c.claim_id)
    .limit(_most)
)


class SqlZones(SqlRequests):
    """See ``scheduler.ports.zones``."""

    @writing
    def zone_identity(self, tx: session.Tx) -> ZoneIdentity:
        row = tx.first(IDENTITY)
        if row is None:
            made = {'id': 1, 'uuid': str(uuid.uuid4()), 'secret': secrets.token_bytes(SECRET_BYTES)}
            tx.insert_new(_self, [made], 'id')
            row = tx.first(IDENTITY)
        return ZoneIdentity(
            uuid=row.uuid, secret=bytes(row.secret), incarnation=int(row.incarnation)
        )

    # -- the zones around ------------------------------------------------------------
    @reading
    def child_zones(self, tx: session.Tx) -> list[ZoneRecord]:
        return [_zone(row) for row in tx.all(sa.select(_child).order_by(_child.c.name))]

    @writing
    def save_child_zone(self, tx: session.Tx, zone: ZoneRecord) -> None:
        others = sa.select(_child.c.uuid).where(
            _child.c.name == zone.name, _child.c.uuid != zone.uuid
        )
        if tx.first(others) is not None:
            raise exceptions.Refused(
                f'another zone is called {zone.name!r}; expected a name of its own'
            )
        values = {
            'name': zone.name,
            'url': zone.url,
            'credential': zone.credential,
            'enabled': int(zone.enabled),
            'last_resort': int(zone.last_resort),
            'scale': zone.scale,
            'score_offset': zone.offset,
            'score_set': zone.score_set,
        }
        if tx.run(_child.update().where(_child.c.uuid == zone.uuid).values(values)):
            return
        row = {'uuid': zone.uuid, 'incarnation': zone.incarnation, 'revision': zone.revision}
        tx.insert_new(_child, [{**row, **values}], 'uuid')

    @writing
    def remove_child_zone(self, tx: session.Tx, uuid: str) -> None:
        live = sa.select(sa.func.count()).where(_below.c.child == uuid, _below.c.state.in_(LIVE))
        count = int(tx.first(live)[0])
        if count:
            raise exceptions.InUse(
                f'{count} claims of requests of here live in that zone; expected none'
            )
        tx.run(_below.delete().where(_below.c.child == uuid))
        tx.run(_child.delete().where(_child.c.uuid == uuid))

    @reading
    def parent_zones(self, tx: session.Tx) -> list[ParentRecord]:
        return [_of_parent(row) for row in tx.all(sa.select(_parent).order_by(_parent.c.name))]

    @writing
    def save_parent_zone(self, tx: session.Tx, parent: ParentRecord) -> None:
        others = sa.select(_parent.c.name).where(
            _parent.c.identity == parent.identity, _parent.c.name != parent.name
        )
        known = tx.first(others)
        if known is not None:
            raise exceptions.Refused(
                f'the identity {parent.identity!r} is that of {known.name!r}; expected another one'
            )
        values = {
            'identity': parent.identity,
            'project_id': parent.project_id,
            'enabled': int(parent.enabled),
            'lease_seconds_max': parent.lease_seconds_max,
        }
        if not tx.run(_parent.update().where(_parent.c.name == parent.name).values(values)):
            tx.insert_new(_parent, [{'name': parent.name, **values}], 'name')

    @writing
    def remove_parent_zone(self, tx: session.Tx, name: str) -> None:
        live = sa.select(sa.func.count()).where(_c.c.parent_key == name, _c.c.live == 1)
        count = int(tx.first(live)[0])
        if count:
            raise exceptions.InUse(f'{count} claims of {name!r} live here; expected none')
        if not tx.run(_parent.delete().where(_parent.c.name == name)):
            raise exceptions.NotFound(kind='parent zone', name=name)

    # -- requests that may go down -----------------------------------------------------
    @writing_once
    def open_request(self, tx: session.Tx, wanted: OpenRequest) -> OpenedRequest:
        token = uuid.uuid4().hex
        draft = RequestDraft(
            id=wanted.id,
            fingerprint=wanted.fingerprint,
            owner=wanted.owner,
            attempt=wanted.attempt,
            takes_over=wanted.takes_over,
            claims=(),
        )
        row = {
            'id': wanted.id,
            'fingerprint': wanted.fingerprint,
            'state': 'open',
            'owner': wanted.owner,
            'attempt': wanted.attempt,
            'deadline': tx.now + wanted.seconds,
            'token': token,
            'answer': None,
            'created_at': tx.now,
            'updated_at': tx.now,
            'claims': 0,
        }
        tx.insert_new(_r, [row], 'id')
        found = tx.first(LOCK, id=wanted.id)
        if found is None or found.token != token:
            outcome = judge_request(found, draft, tx.now)
            if outcome is not None:
                opening = '' if found is None else found.token
                return OpenedRequest(outcome=outcome, opening=opening)
            if takes_over(found, draft):
                self._cancel_claims(tx, wanted.id, 'taken over')
            values = {k: row[k] for k in ('owner', 'attempt', 'deadline', 'token', 'updated_at')}
            tx.run(OPEN, b_id=wanted.id, **values)
        reason = _note_consumers(tx, wanted)
        if not reason:
            return OpenedRequest(outcome=None, opening=token)
        tx.run(_r.delete().where(_r.c.id == wanted.id))
        tx.run(_way.delete().where(_way.c.request_id == wanted.id))
        barred = RequestOutcome(
            id=wanted.id, outcome=CommitStatus.BARRED, attempt=wanted.attempt, reason=reason
        )
        return OpenedRequest(outcome=barred, opening=token)

    @writing_once
    def finish_request(
        self,
        tx: session.Tx,
        request_id: str,
        owner: str,
        attempt: int,
        answer: bytes,
        below: Sequence[StoredBelow],
    ) -> bool:
        row = tx.first(LOCK, id=request_id)
        if row is None or (row.state, row.owner, row.attempt) != ('open', owner, attempt):
            return False
        now = tx.now
        rows = [
            {
                'claim_id': one.claim_id,
                'child': one.child,
                'request_id': one.request_id,
                'request_key': one.key,
                'consumer': one.consumer,
                'purpose': one.purpose.value,
                'project_id': one.project_id,
                'parent': one.parent,
                'state': one.state,
                'place': one.place,
                'created_at': now,
                'updated_at': now,
            }
            for one in below
        ]
        tx.insert_new(_below, rows, 'claim_id', 'child')
        tx.run(FINISH, b_id=request_id, answer=answer, token=uuid.uuid4().hex, updated_at=now)
        return True

    @reading
    def claims_below(
        self,
        tx: session.Tx,
        request_id: str | None = None,
        consumers: Collection[str] = (),
        child: str = '',
    ) -> list[StoredBelow]:
        query = sa.select(_below).order_by(_below.c.request_id, _below.c.claim_id)
        if request_id is not None:
            query = query.where(_below.c.request_id == request_id)
        if consumers:
            query = query.where(_below.c.consumer.in_(sorted(consumers)))
        if child:
            query = query.where(_below.c.child == child)
        return [_of_below(row) for row in tx.all(query)]

    @writing
    def note_changes_below(
        self, tx: session.Tx, child: str, changes: ZoneChanges, known: Collection[ClaimBelow]
    ) -> None:
        now = tx.now
        for one in known:
            tx.run(
                _below.update()
                .where(_below.c.claim_id == one.claim_id, _below.c.child == child)
                .values(state=one.state, updated_at=now)
            )
        tx.run(
            _child.update()
            .where(_child.c.uuid == child)
            .values(incarnation=changes.incarnation, revision=changes.revision)
        )

    @reading
    def claims_of_parent(
        self, tx: session.Tx, parent: str, since: float, limit: int
    ) -> list[ChangedClaim]:
        found = [
            row
            for query in (CHANGED_HERE, CHANGED_BELOW)
            for row in tx.all(query, parent=parent, since=since, most=limit)
        ]
        found.sort(key=lambda row: (row.updated_at, row.id))
        return [
            ChangedClaim(
                claim=ClaimBelow(
                    claim_id=row.id,
                    key=row.request_id or '',
                    consumer=row.consumer,
                    state=row.state,
                ),
                at=row.updated_at,
            )
            for row in found[:limit]
        ]

    @writing
    def cancel_below(self, tx: session.Tx, request_id: str) -> None:
        """What a request has below has ended, or is about to."""
        tx.run(
            _below.update()
            .where(_below.c.request_id == request_id, _below.c.state == State.RESERVED.value)
            .values(state=State.RELEASED.value, updated_at=tx.now)
        )
        # A guest that runs goes on, and nobody else is placed for it.
        running = sa.select(_below.c.consumer).where(
            _below.c.request_id == request_id, _below.c.state.in_(LIVE)
        )
        left = _way.c.request_id == request_id, _way.c.consumer.not_in(running)
        tx.run(_way.delete().where(*left))


def _note_consumers(tx: session.Tx, wanted: OpenRequest) -> str:
    """Whom the request is for is on the way by it; why that cannot be, else ''."""
    purpose = _kind(wanted.purpose)
    rows = [
        {'consumer': one, 'purpose': purpose, 'request_id': wanted.id} for one in wanted.consumers
    ]
    tx.insert_new(_way, rows, 'consumer', 'purpose')
    others: list[str] = []
    for first in range(0, len(wanted.consumers), _PART):
        part = list(wanted.consumers[first : first + _PART])
        found = tx.all(ON_THEIR_WAY.with_for_update(), ids=part)
        others += [
            row.consumer
            for row in found
            if row.purpose == purpose
            and row.request_id != wanted.id
            and _holds(tx, row.consumer, row.request_id)
        ]
    if others:
        return f'consumer {min(others)} has a claim, or is being placed by another request'
    tx.run(
        _way.update()
        .where(_way.c.consumer.in_(list(wanted.consumers)), _way.c.purpose == purpose)
        .values(request_id=wanted.id)
    )
    return ''


def _holds(tx: session.Tx, consumer: str, request_id: str) -> bool:
    """Whether a request still places a consumer, or has placed it."""
    row = tx.first(sa.select(_r.c.state, _r.c.deadline).where(_r.c.id == request_id))
    if row is not None and row.state == 'open' and row.deadline > tx.now:
        return True
    if any(one.request_id == request_id for one in tx.all(LIVE_BELOW, id=consumer)):
        return True
    return any(one.request_id == request_id for one in tx.all(LIVE_HERE, id=consumer))


def _kind(purpose: Purpose) -> str:
    """Under what two requests for one consumer meet: moves are one, whichever they are."""
    return 'move' if purpose.is_move else purpose.value


def _zone(row: Any) -> ZoneRecord:
    return ZoneRecord(
        uuid=row.uuid,
        name=row.name,
        url=row.url,
        credential=row.credential,
        enabled=bool(row.enabled),
        last_resort=bool(row.last_resort),
        scale=row.scale,
        offset=row.score_offset,
        score_set=row.score_set,
        incarnation=row.incarnation,
        revision=row.revision,
    )


def _of_parent(row: Any) -> ParentRecord:
    return ParentRecord(
        name=row.name,
        identity=row.identity,
        project_id=row.project_id,
        enabled=bool(row.enabled),
        lease_seconds_max=row.lease_seconds_max,
    )


def _of_below(row: Any) -> StoredBelow:
    return StoredBelow(
        claim_id=row.claim_id,
        child=row.child,
        request_id=row.request_id,
        key=row.request_key,
        consumer=row.consumer,
        purpose=Purpose(row.purpose),
        project_id=row.project_id,
        parent=row.parent,
        state=row.state,
        place=row.place,
    )
