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
from gantt.db.engine import retry, session
from gantt.db.engine.session import reading, write_once, writing, writing_once
from gantt.db.schema import models
from gantt.db.zones.at_once import BELOW, FINISH_AT_ONCE, OPEN_AT_ONCE
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
_places = models.group_places
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
LIVE_HERE = sa.select(_c.c.consumer, _c.c.purpose, _c.c.request_id).where(
    _c.c.consumer.in_(_ids), _c.c.live == 1, _c.c.lifecycle != 'api'
)
#: Whoever had a request open beyond its time goes on with it no more: not even one that wakes up.
LEAVE = (
    _r.update()
    .where(_r.c.id == sa.bindparam('b_id'), _r.c.state == 'open')
    .where(_r.c.deadline <= sa.bindparam('now'))
    .values(owner='', attempt=_r.c.attempt + 1)
)
PLACE_OF_GROUP = sa.select(_places).where(_places.c.group_uuid == _id)
GROUP_LIVES_HERE = sa.select(_c.c.id).where(_c.c.group_uuid == _id, _c.c.live == 1).limit(1)
GROUP_LIVES_BELOW = sa.select(_below.c.child).where(
    _below.c.group_uuid == _id, _below.c.state.in_(LIVE)
)
#: What is known of claims in a zone below, and what it says of them now.
STATES = sa.select(_below.c.claim_id, _below.c.state).where(
    _below.c.child == sa.bindparam('child'), _below.c.claim_id.in_(_ids)
)
NOTE = (
    _below.update()
    .where(_below.c.claim_id == sa.bindparam('b_id'), _below.c.child == sa.bindparam('b_child'))
    .values(state=sa.bindparam('state'), updated_at=sa.bindparam('updated_at'))
)
_whose: Any = sa.bindparam('parent')
_since: Any = sa.bindparam('since')
_after: Any = sa.bindparam('after')
_most: Any = sa.bindparam('most', type_=sa.Integer)


def _behind(at: Any, claim_id: Any) -> Any:
    return sa.or_(at > _since, sa.and_(at == _since, claim_id > _after))


#: Changed claims of a zone above, here and below, the oldest change first.
CHANGED_HERE = (
    sa.select(_c.c.id, _c.c.request_id, _c.c.consumer, _c.c.state, _c.c.updated_at)
    .where(_c.c.parent_key == _whose, _behind(_c.c.updated_at, _c.c.id))
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
    .where(_below.c.parent == _whose, _behind(_below.c.updated_at, _below.c.claim_id))
    .order_by(_below.c.updated_at, _below.c.claim_id)
    .limit(_most)
)


class SqlZones(SqlRequests):
    """See ``scheduler.ports.zones``.

    :ivar at_once: for statements that are a transaction each; None: they are not used here
    """

    def __init__(
        self, engine: sa.Engine, policy: retry.RetryPolicy | None = None, **options: Any
    ) -> None:
        super().__init__(engine, policy, **options)
        is_fast = self.commits is not self.database
        self.at_once = session.Database(engine, policy, at_once=True) if is_fast else None

    def close(self) -> None:
        """Close its connections."""
        if self.at_once is not None:
            self.at_once.close()
        super().close()

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
    def open_request(self, wanted: OpenRequest) -> OpenedRequest:
        token = uuid.uuid4().hex
        if self.at_once is not None and wanted.takes_over is None:
            consumers = sorted(set(wanted.consumers))
            given = {
                'id': wanted.id,
                'fingerprint': wanted.fingerprint,
                'owner': wanted.owner,
                'attempt': wanted.attempt,
                'seconds': wanted.seconds,
                'token': token,
                'purpose': _kind(wanted.purpose),
                'consumers': consumers,
            }
            made, noted, live = write_once(self.at_once, lambda tx: tx.first(OPEN_AT_ONCE, **given))
            if made and noted == len(consumers) and not live:
                return OpenedRequest(outcome=None, opening=token)
        return self._open_request(wanted, token)

    @writing_once
    def _open_request(self, tx: session.Tx, wanted: OpenRequest, token: str) -> OpenedRequest:
        """Statement by statement, whatever is there.

        :param token: of this opening: a row that has it is ours
        """
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
        if not reason and (found is not None and found.token == token):
            # What is claimed here by requests of which nothing is noted: from before there were
            # zones, for hosts of here alone, or a share of a request that was split.
            reason = _claimed_here(tx, wanted)
        if not reason:
            return OpenedRequest(outcome=None, opening=token)
        tx.run(_r.delete().where(_r.c.id == wanted.id))
        tx.run(_way.delete().where(_way.c.request_id == wanted.id))
        barred = RequestOutcome(
            id=wanted.id, outcome=CommitStatus.BARRED, attempt=wanted.attempt, reason=reason
        )
        return OpenedRequest(outcome=barred, opening=token)

    def finish_request(
        self, request_id: str, owner: str, attempt: int, answer: bytes, below: Sequence[StoredBelow]
    ) -> bool:
        token = uuid.uuid4().hex
        rows = [
            {
                'claim_id': one.claim_id,
                'child': one.child,
                'request_key': one.key,
                'consumer': one.consumer,
                'purpose': one.purpose.value,
                'project_id': one.project_id,
                'parent': one.parent,
                'state': one.state,
                'place': one.place,
                'group_uuid': one.group,
            }
            for one in below
        ]
        if self.at_once is not None:
            given = {'id': request_id, 'owner': owner, 'attempt': attempt, 'answer': answer}
            given |= {name: [row[name] for row in rows] for name, _ in BELOW}
            given['token'] = token
            if write_once(self.at_once, lambda tx: tx.first(FINISH_AT_ONCE, **given)[0]):
                return True
        return self._finish_request(request_id, owner, attempt, answer, rows, token)

    @writing_once
    def _finish_request(
        self,
        tx: session.Tx,
        request_id: str,
        owner: str,
        attempt: int,
        answer: bytes,
        below: Sequence[dict[str, Any]],
        token: str,
    ) -> bool:
        """Statement by statement.

        :param token: of this answer: a row that has it was written before its COMMIT was lost
        """
        row = tx.first(LOCK, id=request_id)
        if row is None or row.token == token:
            return row is not None
        if (row.state, row.owner, row.attempt) != ('open', owner, attempt):
            return False
        children = {one['child'] for one in below}
        known = tx.all(sa.select(_child.c.uuid).where(_child.c.uuid.in_(sorted(children))))
        if len(known) < len(children):
            return False  # a zone was removed meanwhile: nobody would hear what becomes of it
        now = tx.now
        times = {'request_id': request_id, 'created_at': now, 'updated_at': now}
        tx.insert_new(_below, [one | times for one in below], 'claim_id', 'child')
        tx.run(FINISH, b_id=request_id, answer=answer, token=token, updated_at=now)
        return True

    @reading
    def place_of_group(self, tx: session.Tx, group: str, own: str) -> str:
        row = tx.first(PLACE_OF_GROUP, id=group)
        if row is not None and row.until > tx.now:
            return row.place
        return _where_it_lives(tx, group, own)

    @writing_once
    def decide_group_place(
        self, tx: session.Tx, group: str, own: str, place: str, request_id: str, seconds: float
    ) -> str:
        new = {'place': place, 'request_id': request_id, 'until': tx.now + seconds}
        tx.insert_new(_places, [{'group_uuid': group, **new}], 'group_uuid')
        row = tx.first(PLACE_OF_GROUP.with_for_update(), id=group)
        lives = _where_it_lives(tx, group, own)
        if not lives and row.request_id != request_id and row.until > tx.now:
            lives = row.place
        if lives and lives != place:
            return lives
        tx.run(_places.update().where(_places.c.group_uuid == group).values(new))
        return place

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
        states = {one.claim_id: one.state.value for one in known}
        ids, changed = sorted(states), []
        # Most of what a zone says again and again is known.
        for first in range(0, len(ids), _PART):
            changed += [
                {'b_id': row.claim_id, 'b_child': child, 'state': states[row.claim_id]}
                for row in tx.all(STATES, child=child, ids=ids[first : first + _PART])
                if row.state != states[row.claim_id]
            ]
        now = tx.now if changed else 0.0
        tx.many(NOTE, [row | {'updated_at': now} for row in changed])
        tx.run(
            _child.update()
            .where(_child.c.uuid == child)
            .values(incarnation=changes.incarnation, revision=changes.revision)
        )

    @reading
    def claims_of_parent(
        self, tx: session.Tx, parent: str, since: float, limit: int, after: str = ''
    ) -> list[ChangedClaim]:
        found = [
            row
            for query in (CHANGED_HERE, CHANGED_BELOW)
            for row in tx.all(query, parent=parent, since=since, after=after, most=limit)
        ]
        found.sort(key=lambda row: (row.updated_at, row.id))
        return [
            ChangedClaim(
                claim=ClaimBelow(
                    claim_id=row.id,
                    key=row.request_id or '',
                    consumer=row.consumer,
                    state=State(row.state),
                    changed_at=row.updated_at,
                ),
                at=row.updated_at,
            )
            for row in found[:limit]
        ]


def _where_it_lives(tx: session.Tx, group: str, own: str) -> str:
    """The zone of the live members of a group; '': there are none."""
    if tx.first(GROUP_LIVES_HERE, id=group) is not None:
        return own
    below = tx.first(GROUP_LIVES_BELOW, id=group)
    return '' if below is None else below.child


def _note_consumers(tx: session.Tx, wanted: OpenRequest) -> str:
    """Whom the request is for is on the way by it; why that cannot be, else ''."""
    purpose = _kind(wanted.purpose)
    rows = [
        {'consumer': one, 'purpose': purpose, 'request_id': wanted.id} for one in wanted.consumers
    ]
    tx.insert_new(_way, rows, 'consumer', 'purpose')
    others: list[str] = []
    for part in _parts(wanted.consumers):
        found = tx.all(ON_THEIR_WAY.with_for_update(), ids=part)
        others += [
            row.consumer
            for row in found
            if row.purpose == purpose
            and row.request_id != wanted.id
            and _holds(tx, row.consumer, row.request_id)
        ]
    if others:
        return _has_claim(others)
    tx.run(
        _way.update()
        .where(_way.c.consumer.in_(list(wanted.consumers)), _way.c.purpose == purpose)
        .values(request_id=wanted.id)
    )
    return ''


def _claimed_here(tx: session.Tx, wanted: OpenRequest) -> str:
    """Why the request cannot be, as hosts of here have claims for its consumers; else ''."""
    found = [
        row.consumer
        for part in _parts(wanted.consumers)
        for row in tx.all(LIVE_HERE, ids=part)
        if _kind(Purpose(row.purpose)) == _kind(wanted.purpose) and row.request_id != wanted.id
    ]
    return _has_claim(found) if found else ''


def _has_claim(consumers: Sequence[str]) -> str:
    return f'consumer {min(consumers)} has a claim, or is being placed by another request'


def _parts(consumers: Sequence[str]) -> list[list[str]]:
    return [list(consumers[first : first + _PART]) for first in range(0, len(consumers), _PART)]


def _holds(tx: session.Tx, consumer: str, request_id: str) -> bool:
    """Whether a request still places a consumer, or has placed it.

    One that is past its deadline does not: whoever has it may be frozen, and is not to finish it
    once the consumer is another request's.
    """
    if not tx.run(LEAVE, b_id=request_id, now=tx.now):
        row = tx.first(sa.select(_r.c.state).where(_r.c.id == request_id))
        if row is not None and row.state == 'open':
            return True
    if any(one.request_id == request_id for one in tx.all(LIVE_BELOW, id=consumer)):
        return True
    return any(one.request_id == request_id for one in tx.all(LIVE_HERE, ids=[consumer]))


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
        group=row.group_uuid,
    )
