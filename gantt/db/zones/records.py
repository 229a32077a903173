# SPDX-License-Identifier: Apache-2.0
"""Identity of this zone, the zones below and above it, and requests that may go to child zones.

A request that may go to a child zone has its row open before anything is claimed, and its consumers
are in ``delegated_consumers``: so two requests for one consumer conflict, wherever each is
placed.
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
from gantt.core.messages.request import GroupRef, Lifecycle, Purpose
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.core.zones.idempotency_keys import new_lock_token
from gantt.core.zones.messages import ParentRecord, ZoneRecord
from gantt.db.claims import lock_releases
from gantt.db.claims.held import below_values, holds_below
from gantt.db.claims.requests import DELETE, LOCK, cancel_claims
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.database import Database, reading, writing, writing_once
from gantt.db.engine import session
from gantt.db.engine.arrays import columns_of, names
from gantt.db.engine.session import CLOCK
from gantt.db.hosts.rows import known_purpose
from gantt.db.schema import models
from gantt.db.zones import rules
from gantt.scheduler.ports.zones import (
    LocalShare,
    OpenedRequest,
    OpenRequest,
    StoredBelow,
    ZoneIdentity,
)

_NOW = CLOCK['postgresql']
#: Columns of a claim below that are given; the others are of its request.
BELOW = columns_of(models.child_claims, 'request_id', 'created_at', 'updated_at', 'read_back')
_ARRAYS = ', '.join(f'CAST(:{name} AS {kind}[])' for name, kind in BELOW)

# On PostgreSQL a request is opened, and finished, in one statement: a transaction of its own, and
# one round trip.  Without conflicts it does all of the work of the separate statements, else little
# or nothing: these continue from the rows that it left of a new request.

#: A new request with its consumers: the numbers of rows inserted, whether hosts here have claims
#: for one of them, the order of the opening, and the stored rule of its group.
OPEN_AT_ONCE = sa.text(f"""
    WITH n AS (
        SELECT {_NOW} AS now, CAST(floor({_NOW} * 1000000) AS bigint) AS "order"),
    made AS (
        INSERT INTO requests (id, fingerprint, state, owner, attempt, deadline, token, created_at,
                              updated_at, claims)
        SELECT :id, :fingerprint, 'open', :owner, CAST(:attempt AS int), n.now + :seconds, :token,
               n.now, n.now, 0
          FROM n
            ON CONFLICT (id) DO NOTHING
        RETURNING id),
    noted AS (
        INSERT INTO delegated_consumers (consumer, purpose, request_id, order_no)
        SELECT c, :purpose, made.id, n."order"
          FROM made, n, unnest(CAST(:consumers AS text[])) c ORDER BY c
            ON CONFLICT (consumer, purpose) DO NOTHING
        RETURNING consumer)
    SELECT (SELECT count(*) FROM made), (SELECT count(*) FROM noted),
           EXISTS (SELECT 1 FROM claims
                    WHERE consumer = ANY(CAST(:consumers AS text[])) AND live = 1),
           (SELECT "order" FROM n),
           g.policy, g.max_per_host, g.generation, g.policies, g.rule_generation
      FROM n LEFT JOIN group_rules g ON g.uuid = CAST(:group AS text)
""")  # noqa: S608 - the clock's expression is a constant
#: The answer of an open request, with its claims below: 1, or 0 if it is not open, or a zone was
#: removed meanwhile, or the rule of its group is not the one that it was placed under.  A zone that
#: is locked here is removed only after it, and not while claims live there.
FINISH_AT_ONCE = sa.text(f"""
    WITH held AS (
        SELECT uuid FROM child_zones WHERE uuid = ANY(CAST(:child AS text[]))
         ORDER BY uuid FOR KEY SHARE),
    ruled AS (
        SELECT uuid FROM group_rules
         WHERE uuid = CAST(:group AS text) AND policy = CAST(:policy AS text)
           AND (policy <> 'anti-affinity' OR max_per_host = CAST(:max_per_host AS int))
           AND policies IS NOT DISTINCT FROM CAST(:policies AS text)
           FOR SHARE),
    done AS (
        UPDATE requests
           SET state = 'placed', answer = :answer, token = :token, claims = 0, updated_at = {_NOW}
         WHERE id = :id AND state = 'open' AND owner = :owner AND attempt = :attempt
           AND NOT EXISTS (SELECT 1 FROM unnest(CAST(:child AS text[])) c
                            WHERE c NOT IN (SELECT uuid FROM held))
           AND (CAST(:group AS text) IS NULL OR EXISTS (SELECT 1 FROM ruled))
        RETURNING id, updated_at),
    noted AS (
        INSERT INTO child_claims (request_id, created_at, updated_at, {names(BELOW)})
        SELECT done.id, done.updated_at, done.updated_at, b.*
          FROM done, unnest({_ARRAYS}) AS b
            ON CONFLICT (claim_id, child) DO NOTHING)
    SELECT count(*) FROM done
""")  # noqa: S608 - names of columns only


_r, _c = models.requests, models.claims
_self, _child, _parent = models.zone, models.child_zones, models.parent_zones
_below, _way = models.child_claims, models.delegated_consumers
_places, _above = models.group_zones, models.parent_allocations
#: Bytes of the secret that seals offers: a key of AES-256.
SECRET_BYTES = 32
#: States of a live claim.
LIVE = (State.RESERVED.value, State.CONFIRMED.value)
#: Consumers in one statement.
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
        claims=sa.bindparam('own_claims'),
    )
)
#: A claim of a share becomes one of the whole request.
TAKE_IN = (
    _c.update()
    .where(_c.c.id == sa.bindparam('b_id'), _c.c.request_id == sa.bindparam('b_key'))
    .values(
        request_id=sa.bindparam('request_id'),
        attempt=sa.bindparam('attempt'),
        member=sa.bindparam('member'),
        parent_key=sa.bindparam('parent'),
        updated_at=sa.bindparam('updated_at'),
    )
)
ON_THEIR_WAY = sa.select(_way).where(_way.c.consumer.in_(_ids)).order_by(_way.c.consumer)
LIVE_BELOW = sa.select(_below.c.request_id).where(_below.c.consumer == _id, holds_below)
LIVE_HERE = sa.select(_c.c.consumer, _c.c.purpose, _c.c.request_id, _c.c.lifecycle).where(
    _c.c.consumer.in_(_ids), _c.c.live == 1
)
#: An owner of a request that is past its deadline loses it, even if its process wakes up again.
LEAVE = (
    _r.update()
    .where(_r.c.id == sa.bindparam('b_id'), _r.c.state == 'open')
    .where(_r.c.deadline <= sa.bindparam('now'))
    .values(owner='', attempt=_r.c.attempt + 1)
)
#: On PostgreSQL writes of rows that refer to such a zone do not wait for this lock.
HELD_CHILDREN = (
    sa.select(_child.c.uuid)
    .where(_child.c.uuid.in_(_ids))
    .order_by(_child.c.uuid)
    .with_for_update(read=True, key_share=True)
)
#: Latest time at which an unanswered allocation of a parent zone may claim something.
UNDER_WAY = sa.select(sa.func.max(_above.c.until).label('until')).where(
    _above.c.parent == sa.bindparam('parent'),
    _above.c.until > sa.bindparam('now'),
    ~sa.exists().where(_r.c.id == _above.c.request_id, _r.c.state != 'open'),
)
PLACE_OF_GROUP = sa.select(_places).where(_places.c.group_uuid == _id)
IS_OPEN = sa.select(_r.c.id).where(_r.c.id == _id, _r.c.state == 'open')
GROUP_LIVES_HERE = sa.select(_c.c.id).where(_c.c.group_uuid == _id, _c.c.live == 1).limit(1)
GROUP_LIVES_BELOW = sa.select(_below.c.child).where(_below.c.group_uuid == _id, holds_below)


class SqlZones:
    """Identity of this zone, and the zones around it: ``ports.ZoneRegistry`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @writing
    def zone_identity(self, tx: session.Tx) -> ZoneIdentity:
        row = tx.first(IDENTITY)
        if row is None:
            _make_identity(tx)
            row = tx.first(IDENTITY)
        return ZoneIdentity(
            uuid=row.uuid, secret=bytes(row.secret), incarnation=int(row.incarnation)
        )

    # -- child and parent zones ------------------------------------------------------
    @reading
    def child_zones(self, tx: session.Tx) -> list[ZoneRecord]:
        return [_zone(row) for row in tx.all(sa.select(_child).order_by(_child.c.name))]

    @writing
    def save_child_zone(self, tx: session.Tx, zone: ZoneRecord) -> None:
        _one_at_a_time(tx)
        others = sa.select(_child.c.uuid).where(
            _child.c.name == zone.name, _child.c.uuid != zone.uuid
        )
        if tx.first(others) is not None:
            raise exceptions.Refused(
                f'another zone is called {zone.name!r}; expected a name of its own'
            )
        registered = tx.first(sa.select(_child.c.name).where(_child.c.uuid == zone.uuid))
        if registered is not None and registered.name != zone.name:
            raise exceptions.Refused(
                f'that zone is registered as {registered.name!r}; expected one that is not'
            )
        values = {
            'name': zone.name,
            'url': zone.url,
            'credential': zone.credential,
            'enabled': int(zone.enabled),
            'last_resort': int(zone.last_resort),
            'trusted': int(zone.trusted),
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
        # First its own row, as a transaction that stores a claim there does: they wait for each
        # other.
        tx.first(sa.select(_child.c.uuid).where(_child.c.uuid == uuid).with_for_update())
        live_query = sa.select(sa.func.count()).where(_below.c.child == uuid, holds_below)
        count = int(tx.first(live_query)[0])
        if count:
            raise exceptions.InUse(
                f'{count} claims of here live in that zone, or are lost there; expected none'
            )
        tx.run(_below.delete().where(_below.c.child == uuid))
        tx.run(models.zone_releases.delete().where(models.zone_releases.c.child == uuid))
        tx.run(_child.delete().where(_child.c.uuid == uuid))

    @reading
    def parent_zones(self, tx: session.Tx) -> list[ParentRecord]:
        return [_of_parent(row) for row in tx.all(sa.select(_parent).order_by(_parent.c.name))]

    @writing
    def save_parent_zone(self, tx: session.Tx, parent: ParentRecord) -> None:
        _one_at_a_time(tx)
        others = sa.select(_parent.c.name).where(
            _parent.c.identity == parent.identity, _parent.c.name != parent.name
        )
        holder = tx.first(others)
        if holder is not None:
            raise exceptions.Refused(
                f'the identity {parent.identity!r} is that of {holder.name!r}; expected another one'
            )
        values = {
            'identity': parent.identity,
            'project_id': parent.project_id,
            'enabled': int(parent.enabled),
            'lease_seconds_max': parent.lease_seconds_max,
            'trusted': int(parent.trusted),
            'certificate_sha256': parent.certificate_sha256,
        }
        if not tx.run(_parent.update().where(_parent.c.name == parent.name).values(values)):
            tx.insert_new(_parent, [{'name': parent.name, **values}], 'name')

    @writing
    def remove_parent_zone(self, tx: session.Tx, name: str) -> None:
        # First its own row, as a transaction that notes an allocation of it does.
        tx.first(sa.select(_parent.c.name).where(_parent.c.name == name).with_for_update())
        claims_here = sa.select(sa.func.count()).where(_c.c.parent_key == name, _c.c.live == 1)
        child_claims = sa.select(sa.func.count()).where(_below.c.parent == name, holds_below)
        count = int(tx.first(claims_here)[0]) + int(tx.first(child_claims)[0])
        if count:
            raise exceptions.InUse(f'{count} claims of {name!r} live here or below; expected none')
        busy_until = tx.first(UNDER_WAY, parent=name, now=tx.now).until
        if busy_until is not None:
            raise exceptions.InUse(
                f'an allocation of {name!r} is under way, for {busy_until - tx.now:.0f} s at most; '
                'expected none: disable it first'
            )
        if not tx.run(_parent.delete().where(_parent.c.name == name)):
            raise exceptions.NotFound(kind='parent zone', name=name)


class SqlZoneRequests:
    """Requests that may go to child zones: ``ports.ZoneRequests`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def open_request(self, wanted: OpenRequest) -> OpenedRequest:
        token = new_lock_token(wanted.stays)
        at_once = self.database.at_once
        if at_once is not None and wanted.takes_over is None:
            consumers = sorted(set(wanted.consumers))
            parameters = {
                'id': wanted.id,
                'fingerprint': wanted.fingerprint,
                'owner': wanted.owner,
                'attempt': wanted.attempt,
                'seconds': wanted.seconds,
                'token': token,
                'purpose': kind_of(wanted.purpose),
                'consumers': consumers,
                'group': None if wanted.group is None else wanted.group.uuid,
            }
            opened_row = at_once.write_once(lambda tx: tx.first(OPEN_AT_ONCE, **parameters))
            new_rows, consumer_rows, has_live_claims, order, *rule_columns = opened_row
            rule = rules.of(rule_columns)
            is_ruled = wanted.group is None or (
                group_rule.holds(wanted.group, rule)
                and rules.is_numbered(rule, wanted.rule_generation, wanted.of_parent)
            )
            if (
                new_rows
                and consumer_rows == len(consumers)
                and (wanted.stays or not has_live_claims)
                and is_ruled
            ):
                return OpenedRequest(outcome=None, lock_token=token, order=order, rule=rule)
        return self._open_request(wanted, token)

    @writing_once
    def _open_request(self, tx: session.Tx, wanted: OpenRequest, token: str) -> OpenedRequest:
        """Open a request by several statements, whatever is stored.

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
        stored = tx.first(LOCK, id=wanted.id)
        if stored is None or stored.token != token:
            outcome = judge_request(stored, draft, tx.now)
            if outcome is not None:
                lock_token = '' if stored is None else stored.token
                return OpenedRequest(outcome=outcome, lock_token=lock_token)
            if takes_over(stored, draft):
                assert stored is not None, 'nothing is taken over of a row that is gone'
                lock_releases.release_in_zones(tx, stored.token)
                cancel_claims(UnitOfWork(tx, self.database.memory), wanted.id, 'taken over')
            values = {
                name: row[name] for name in ('owner', 'attempt', 'deadline', 'token', 'updated_at')
            }
            tx.run(OPEN, b_id=wanted.id, **values)
        rule, reason = _rule_of(tx, wanted)
        order = 0
        if not reason:
            reason, order = _note_consumers(tx, wanted)
        is_new = stored is not None and stored.token == token
        if not reason and not wanted.stays:
            # Claims here of requests without noted consumers: from before there were
            # zones, only for hosts here, or a share of a request that was split.  And claims
            # that were written through the allocation API, without a request, at any time.
            reason = _claimed_here(tx, wanted, is_new)
        if not reason:
            return OpenedRequest(outcome=None, lock_token=token, order=order, rule=rule)
        tx.run(_r.delete().where(_r.c.id == wanted.id))
        tx.run(_way.delete().where(_way.c.request_id == wanted.id))
        barred = RequestOutcome(
            id=wanted.id, outcome=CommitStatus.BARRED, attempt=wanted.attempt, reason=reason
        )
        return OpenedRequest(outcome=barred, lock_token=token)

    def finish_request(
        self,
        request_id: str,
        owner: str,
        attempt: int,
        answer: bytes,
        below: Sequence[StoredBelow],
        own: LocalShare | None = None,
        group: GroupRef | None = None,
    ) -> bool:
        token = uuid.uuid4().hex
        rows = [below_values(claim_below) for claim_below in below]
        at_once = self.database.at_once
        if at_once is not None and own is None:
            parameters = {'id': request_id, 'owner': owner, 'attempt': attempt, 'answer': answer}
            parameters |= {name: [row[name] for row in rows] for name, _ in BELOW}
            parameters['token'] = token
            parameters |= rules.compared(group)
            if at_once.write_once(lambda tx: tx.first(FINISH_AT_ONCE, **parameters)[0]):
                return True
        return self._finish_request(request_id, owner, attempt, answer, rows, own, token, group)

    @writing_once
    def _finish_request(
        self,
        tx: session.Tx,
        request_id: str,
        owner: str,
        attempt: int,
        answer: bytes,
        below: Sequence[dict[str, Any]],
        own: LocalShare | None,
        token: str,
        group: GroupRef | None,
    ) -> bool:
        """Finish a request by several statements.

        :param token: of this answer: a row that has it was written before its COMMIT was lost
        """
        row = tx.first(LOCK, id=request_id)
        if row is None or row.token == token:
            return row is not None
        if (row.state, row.owner, row.attempt) != ('open', owner, attempt):
            return False
        project_id = next((row_below['project_id'] for row_below in below), None)
        if group is not None and not rules.stands(tx, group, project_id):
            return False  # the rule that it was placed under has changed: no claim of it may stay
        children = {row_below['child'] for row_below in below}
        if held_children(tx, children) != children:
            return False  # a zone was removed meanwhile: its claims would get no updates
        now = tx.now
        times = {'request_id': request_id, 'created_at': now, 'updated_at': now}
        tx.insert_new(_below, [row_below | times for row_below in below], 'claim_id', 'child')
        own_claims = 0 if own is None else len(own.members)
        values = {'answer': answer, 'token': token, 'updated_at': now, 'own_claims': own_claims}
        tx.run(FINISH, b_id=request_id, **values)
        if own is not None:
            # Cancelling, extending or reading the request includes these as well, and the parent
            # zone gets their updates: only now, as until now it had no answer of the request.
            of_all = {'request_id': request_id, 'attempt': attempt, 'updated_at': now}
            of_all |= {'b_key': own.key, 'parent': own.parent}
            tx.many(
                TAKE_IN,
                [
                    {'b_id': claim_id, 'member': member, **of_all}
                    for claim_id, member in own.members.items()
                ],
            )
            tx.run(DELETE, b_id=own.key)
        return True

    @reading
    def is_idle_group(self, tx: session.Tx, uuid: str, project: str | None) -> bool:
        return tx.first(rules.IS_IDLE, uuid=uuid, project=project) is not None

    @reading
    def _knows_rule(self, tx: session.Tx, group: GroupRef, declared: int | None) -> bool:
        return rules.is_known(tx, group, declared)

    def note_rule_above(self, group: GroupRef, project: str | None, declared: int | None) -> None:
        if not self._knows_rule(group, declared):
            self._note_rule_above(group, project, declared)

    @writing_once
    def _note_rule_above(
        self, tx: session.Tx, group: GroupRef, project: str | None, declared: int | None
    ) -> None:
        rules.rule_for(tx, group, project, True, declared)

    @reading
    def zone_of_group(self, tx: session.Tx, group: str, own: str) -> str:
        row = tx.first(PLACE_OF_GROUP, id=group)
        promised = '' if row is None else _promised(tx, row)
        return promised or _where_it_lives(tx, group, own)

    @writing_once
    def decide_group_zone(
        self, tx: session.Tx, group: str, own: str, place: str, request_id: str, seconds: float
    ) -> str:
        new_place = {'zone_uuid': place, 'request_id': request_id, 'until': tx.now + seconds}
        tx.insert_new(_places, [{'group_uuid': group, **new_place}], 'group_uuid')
        row = tx.first(PLACE_OF_GROUP.with_for_update(), id=group)
        # First: the members of a request that is answered in between are live by then.
        promised = '' if row.request_id == request_id else _promised(tx, row)
        zone_of_members = _where_it_lives(tx, group, own) or promised
        if zone_of_members and zone_of_members != place:
            return zone_of_members
        tx.run(_places.update().where(_places.c.group_uuid == group).values(new_place))
        return place


def _make_identity(tx: session.Tx) -> None:
    """Insert the identity of this zone, unless it has one."""
    identity = {'id': 1, 'uuid': str(uuid.uuid4()), 'secret': secrets.token_bytes(SECRET_BYTES)}
    tx.insert_new(_self, [identity], 'id')


def _one_at_a_time(tx: session.Tx) -> None:
    """Lock the zone's row, so that concurrent registrations detect a taken name."""
    lock = sa.select(_self.c.id).with_for_update()
    if tx.first(lock) is None:
        _make_identity(tx)
        tx.first(lock)


def held_children(tx: session.Tx, children: Collection[str]) -> set[str]:
    """Return the child zones that are registered; none of them is removed until the commit.

    Locked before rows of ``child_claims``: a removal meanwhile would leave these behind.
    """
    if not children:
        return set()
    zone_rows = tx.all(HELD_CHILDREN, ids=sorted(children))
    return {row.uuid for row in zone_rows}


def _promised(tx: session.Tx, row: Any) -> str:
    """Return the zone that a request is about to place a group in; '' if it is answered."""
    if row.until <= tx.now or tx.first(IS_OPEN, id=row.request_id) is None:
        return ''
    return str(row.zone_uuid)


def _where_it_lives(tx: session.Tx, group: str, own: str) -> str:
    """Return the zone of the live members of a group; '' if there are none."""
    if tx.first(GROUP_LIVES_HERE, id=group) is not None:
        return own
    claim_below = tx.first(GROUP_LIVES_BELOW, id=group)
    return '' if claim_below is None else claim_below.child


def _rule_of(tx: session.Tx, wanted: OpenRequest) -> tuple[GroupRule | None, str]:
    """Return the rule of the request's group, and a reason to refuse the request, or ''."""
    if wanted.group is None:
        return None, ''
    try:
        declared = wanted.rule_generation
        return rules.rule_for(tx, wanted.group, wanted.project_id, wanted.of_parent, declared), ''
    except exceptions.Refused as e:
        return None, e.message


def _note_consumers(tx: session.Tx, wanted: OpenRequest) -> tuple[str, int]:
    """Note a request's consumers as on their way; return (reason to refuse or '', order).

    The order is the time, in microseconds, and higher than that of any earlier opening for one of
    the consumers, however the clocks of two servers differ.
    """
    purpose, order = kind_of(wanted.purpose), int(tx.now * 1_000_000)
    rows = [
        {'consumer': consumer, 'purpose': purpose, 'request_id': wanted.id}
        for consumer in wanted.consumers
    ]
    tx.insert_new(_way, rows, 'consumer', 'purpose')
    others: list[str] = []
    for part in _parts(wanted.consumers):
        way_rows = [
            row
            for row in tx.all(ON_THEIR_WAY.with_for_update(), ids=part)
            if row.purpose == purpose
        ]
        order = max([order, *((row.order_no or 0) + 1 for row in way_rows)])
        others += [
            row.consumer
            for row in way_rows
            if row.request_id != wanted.id
            and _holds(tx, row.consumer, row.request_id, wanted.stays)
        ]
    if others:
        return _has_claim(others), order
    tx.run(
        _way.update()
        .where(_way.c.consumer.in_(list(wanted.consumers)), _way.c.purpose == purpose)
        .values(request_id=wanted.id, order_no=order)
    )
    return '', order


def _claimed_here(tx: session.Tx, wanted: OpenRequest, is_new: bool) -> str:
    """Return a reason to refuse the request, if hosts here have claims for its consumers, or ''.

    :param is_new: nothing of it can be claimed here yet
    """
    claimed_consumers = [
        row.consumer
        for part in _parts(wanted.consumers)
        for row in tx.all(LIVE_HERE, ids=part)
        if kind_of(known_purpose(row.purpose)) == kind_of(wanted.purpose)
        and row.request_id != wanted.id
        and (is_new or row.lifecycle == Lifecycle.API.value)
    ]
    return _has_claim(claimed_consumers) if claimed_consumers else ''


def _has_claim(consumers: Sequence[str]) -> str:
    return f'consumer {min(consumers)} has a claim, or is being placed by another request'


def _parts(consumers: Sequence[str]) -> list[list[str]]:
    return [list(consumers[start : start + _PART]) for start in range(0, len(consumers), _PART)]


def _holds(tx: session.Tx, consumer: str, request_id: str, stays: bool) -> bool:
    """Return whether a request still places a consumer, or has placed it.

    :param stays: consider child zones only; claims on hosts here are judged by the commit

    A request past its deadline does not: its owner may be frozen, and must not finish it once the
    consumer is another request's.
    """
    if not tx.run(LEAVE, b_id=request_id, now=tx.now):
        row = tx.first(sa.select(_r.c.state).where(_r.c.id == request_id))
        if row is not None and row.state == 'open':
            return True
    else:
        left_request = tx.first(sa.select(_r.c.token).where(_r.c.id == request_id))
        lock_releases.release_in_zones(tx, left_request.token)
    if any(claim.request_id == request_id for claim in tx.all(LIVE_BELOW, id=consumer)):
        return True
    if stays:
        return False
    return any(claim.request_id == request_id for claim in tx.all(LIVE_HERE, ids=[consumer]))


def kind_of(purpose: Purpose) -> str:
    """Return the key under which two requests for one consumer conflict: one for all moves."""
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
        own_incarnation=row.own_incarnation or 0,
        trusted=bool(row.trusted),
    )


def _of_parent(row: Any) -> ParentRecord:
    return ParentRecord(
        name=row.name,
        identity=row.identity,
        project_id=row.project_id,
        enabled=bool(row.enabled),
        lease_seconds_max=row.lease_seconds_max,
        trusted=bool(row.trusted),
        certificate_sha256=row.certificate_sha256 or '',
    )
