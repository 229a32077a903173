# SPDX-License-Identifier: Apache-2.0
"""Identity of this zone, the child and parent zones, and requests that may go to child zones.

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
from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.claim import State
from gantt.core.claims.commit import ClaimColumns, CommitStatus, RequestDraft, RequestOutcome
from gantt.core.claims.idempotency_keys import new_lock_token
from gantt.core.claims.request_state import check_request_row, takes_over
from gantt.core.messages.request import GroupRef, Lifecycle, Purpose
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.db.claims import lock_releases
from gantt.db.claims.held import child_claim_values, is_live_child_claim
from gantt.db.claims.requests import DELETE_REQUEST, LOCK_REQUEST, cancel_claims, forget, new_row
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.database import SqlStore, reading, writing, writing_once
from gantt.db.engine import session
from gantt.db.engine.arrays import array, columns_of, names, texts
from gantt.db.engine.session import CLOCK, bound
from gantt.db.hosts.rows import readable_purpose
from gantt.db.schema import models
from gantt.zones.model.messages import ParentRecord, ZoneRecord
from gantt.zones.ports import LocalShare, OpenedRequest, OpenRequest, ZoneIdentity
from gantt.zones.sql import rules

_NOW = CLOCK['postgresql']
#: Columns of a claim in a child zone that are bound; the others are of its request.
CHILD_CLAIM_COLUMNS = columns_of(
    models.child_claims, 'request_id', 'created_at', 'updated_at', 'restored'
)
_COLUMN_ARRAYS = ', '.join(f'CAST(:{name} AS {kind}[])' for name, kind in CHILD_CLAIM_COLUMNS)

# On PostgreSQL a request is opened, and finished, in one statement: a transaction of its own, and
# one round trip.  Without conflicts it does all of the work of the separate statements, else little
# or nothing: these continue from the rows that it left of a new request.

#: A new request with its consumers: the numbers of rows inserted, whether hosts here have claims
#: for one of them, the order of the opening, and the stored rule of its group.
OPEN_IN_ONE_STATEMENT = sa.text(f"""
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
#: The answer of an open request, with its claims in child zones: 1, or 0 if it is not open, or a
#: zone was removed meanwhile, or the rule of its group is not the one that it was placed under.  A
#: zone that is locked here is removed only after it, and not while claims live there.
FINISH_IN_ONE_STATEMENT = sa.text(f"""
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
        INSERT INTO child_claims (request_id, created_at, updated_at, {names(CHILD_CLAIM_COLUMNS)})
        SELECT done.id, done.updated_at, done.updated_at, b.*
          FROM done, unnest({_COLUMN_ARRAYS}) AS b
            ON CONFLICT (claim_id, child) DO NOTHING)
    SELECT count(*) FROM done
""")  # noqa: S608 - names of columns only


_requests, _claims = models.requests, models.claims
_own_zone, _child_zones, _parent_zones = models.zone, models.child_zones, models.parent_zones
_child_claims, _delegated_consumers = models.child_claims, models.delegated_consumers
_group_zones, _parent_allocations = models.group_zones, models.parent_allocations
#: Bytes of the secret that seals offers: a key of AES-256.
SECRET_BYTES = 32
#: States of a live claim.
LIVE_STATES = (State.RESERVED.value, State.CONFIRMED.value)

_id: Any = sa.bindparam('id')
_ids: Any = sa.bindparam('ids', expanding=True)
_incarnation = sa.select(models.meta.c.incarnation).scalar_subquery()
IDENTITY = sa.select(_own_zone, _incarnation.label('incarnation'))
OPEN_REQUEST = (
    _requests.update()
    .where(_requests.c.id == sa.bindparam('b_id'))
    .values(state='open', **bound('owner', 'attempt', 'deadline', 'token', 'updated_at'))
)
FINISH_REQUEST = (
    _requests.update()
    .where(_requests.c.id == sa.bindparam('b_id'))
    .values(
        state='placed',
        claims=sa.bindparam('own_claims'),
        **bound('answer', 'token', 'updated_at'),
    )
)
#: A claim of a share becomes one of the whole request.
MOVE_CLAIM_TO_REQUEST = (
    _claims.update()
    .where(_claims.c.id == sa.bindparam('b_id'), _claims.c.request_id == sa.bindparam('b_key'))
    .values(
        parent_key=sa.bindparam('parent'),
        **bound('request_id', 'attempt', 'member', 'updated_at'),
    )
)
DELEGATED_CONSUMERS = (
    sa.select(_delegated_consumers)
    .where(_delegated_consumers.c.consumer.in_(_ids))
    .order_by(_delegated_consumers.c.consumer)
)
LIVE_CLAIM_BELOW = sa.select(_child_claims.c.request_id).where(
    _child_claims.c.consumer == _id, is_live_child_claim
)
LIVE_CLAIMS_HERE = sa.select(
    _claims.c.consumer, _claims.c.purpose, _claims.c.request_id, _claims.c.lifecycle
).where(_claims.c.consumer.in_(_ids), _claims.c.live == 1)
#: An owner of a request that is past its deadline loses it, even if its process wakes up again.
TAKE_FROM_OWNER = (
    _requests.update()
    .where(_requests.c.id == sa.bindparam('b_id'), _requests.c.state == 'open')
    .where(_requests.c.deadline <= sa.bindparam('now'))
    .values(owner='', attempt=_requests.c.attempt + 1)
)
#: On PostgreSQL writes of rows that refer to such a zone do not wait for this lock.
LOCK_CHILDREN = (
    sa.select(_child_zones.c.uuid)
    .where(_child_zones.c.uuid.in_(_ids))
    .order_by(_child_zones.c.uuid)
    .with_for_update(read=True, key_share=True)
)
#: Latest time at which an unanswered allocation of a parent zone may claim something.
OPEN_ALLOCATIONS_UNTIL = sa.select(sa.func.max(_parent_allocations.c.until).label('until')).where(
    _parent_allocations.c.parent == sa.bindparam('parent'),
    _parent_allocations.c.until > sa.bindparam('now'),
    ~sa.exists().where(
        _requests.c.id == _parent_allocations.c.request_id, _requests.c.state != 'open'
    ),
)
GROUP_ZONE = sa.select(_group_zones).where(_group_zones.c.group_uuid == _id)
OPEN_REQUEST_ROW = sa.select(_requests.c.id).where(
    _requests.c.id == _id, _requests.c.state == 'open'
)
GROUP_LIVES_HERE = (
    sa.select(_claims.c.id).where(_claims.c.group_uuid == _id, _claims.c.live == 1).limit(1)
)
GROUP_LIVES_BELOW = sa.select(_child_claims.c.child).where(
    _child_claims.c.group_uuid == _id, is_live_child_claim
)


class SqlZones(SqlStore):
    """Identity of this zone, and the zones around it: ``ports.ZoneRegistry`` in SQL."""

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
        return [
            _zone_record(row)
            for row in tx.all(sa.select(_child_zones).order_by(_child_zones.c.name))
        ]

    @writing
    def save_child_zone(self, tx: session.Tx, zone: ZoneRecord) -> None:
        _lock_zone(tx)
        others = sa.select(_child_zones.c.uuid).where(
            _child_zones.c.name == zone.name, _child_zones.c.uuid != zone.uuid
        )
        if tx.first(others) is not None:
            raise exceptions.Refused(
                f'name {zone.name!r} is that of another zone; expected a name that no zone has'
            )
        registered = tx.first(
            sa.select(_child_zones.c.name).where(_child_zones.c.uuid == zone.uuid)
        )
        if registered is not None and registered.name != zone.name:
            raise exceptions.Refused(
                f'zone {zone.uuid} is registered as {registered.name!r}; expected the '
                'uuid of a zone that is not'
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
        if tx.run(_child_zones.update().where(_child_zones.c.uuid == zone.uuid).values(values)):
            return
        row = {'uuid': zone.uuid, 'incarnation': zone.incarnation, 'revision': zone.revision}
        tx.insert_new(_child_zones, [{**row, **values}], 'uuid')

    @writing
    def remove_child_zone(self, tx: session.Tx, uuid: str) -> None:
        # First its own row, as a transaction that stores a claim there does: they wait for each
        # other.
        tx.first(
            sa.select(_child_zones.c.uuid).where(_child_zones.c.uuid == uuid).with_for_update()
        )
        live_query = sa.select(sa.func.count()).where(
            _child_claims.c.child == uuid, is_live_child_claim
        )
        count = int(tx.first(live_query)[0])
        if count:
            raise exceptions.InUse(
                f'child zone {uuid}: {count} claims of this zone live there, or are lost; '
                'expected none'
            )
        tx.run(_child_claims.delete().where(_child_claims.c.child == uuid))
        tx.run(models.zone_releases.delete().where(models.zone_releases.c.child == uuid))
        tx.run(_child_zones.delete().where(_child_zones.c.uuid == uuid))

    @reading
    def parent_zones(self, tx: session.Tx) -> list[ParentRecord]:
        return [
            _parent_record(row)
            for row in tx.all(sa.select(_parent_zones).order_by(_parent_zones.c.name))
        ]

    @writing
    def save_parent_zone(self, tx: session.Tx, parent: ParentRecord) -> None:
        _lock_zone(tx)
        others = sa.select(_parent_zones.c.name).where(
            _parent_zones.c.identity == parent.identity, _parent_zones.c.name != parent.name
        )
        holder = tx.first(others)
        if holder is not None:
            raise exceptions.Refused(
                f'identity {parent.identity!r} is that of parent zone {holder.name!r}; expected '
                'an identity that no other parent zone has'
            )
        values = {
            'identity': parent.identity,
            'project_id': parent.project_id,
            'enabled': int(parent.enabled),
            'lease_seconds_max': parent.lease_seconds_max,
            'trusted': int(parent.trusted),
            'certificate_sha256': parent.certificate_sha256,
        }
        if not tx.run(
            _parent_zones.update().where(_parent_zones.c.name == parent.name).values(values)
        ):
            tx.insert_new(_parent_zones, [{'name': parent.name, **values}], 'name')

    @writing
    def remove_parent_zone(self, tx: session.Tx, name: str) -> None:
        # First its own row, as a transaction that notes an allocation of it does.
        tx.first(
            sa.select(_parent_zones.c.name).where(_parent_zones.c.name == name).with_for_update()
        )
        claims_here = sa.select(sa.func.count()).where(
            _claims.c.parent_key == name, _claims.c.live == 1
        )
        child_claims = sa.select(sa.func.count()).where(
            _child_claims.c.parent == name, is_live_child_claim
        )
        count = int(tx.first(claims_here)[0]) + int(tx.first(child_claims)[0])
        if count:
            raise exceptions.InUse(f'{count} claims of parent zone {name!r} live; expected none')
        busy_until = tx.first(OPEN_ALLOCATIONS_UNTIL, parent=name, now=tx.now).until
        if busy_until is not None:
            raise exceptions.InUse(
                f'an allocation of {name!r} is under way, for {busy_until - tx.now:.0f} s at most; '
                'expected none: disable it first'
            )
        if not tx.run(_parent_zones.delete().where(_parent_zones.c.name == name)):
            raise exceptions.NotFound(kind='parent zone', name=name)


class SqlZoneRequests(SqlStore):
    """Requests that may go to child zones: ``ports.ZoneRequests`` in SQL."""

    def open_request(self, opening: OpenRequest) -> OpenedRequest:
        token = new_lock_token(opening.stays)
        autocommit = self.database.autocommit
        if autocommit is not None and opening.takes_over is None:
            consumers = sorted(set(opening.consumers))
            parameters = {
                'id': opening.id,
                'fingerprint': opening.fingerprint,
                'owner': opening.owner,
                'attempt': opening.attempt,
                'seconds': opening.seconds,
                'token': token,
                'purpose': purpose_key(opening.purpose),
                'consumers': texts(consumers),
                'group': None if opening.group is None else opening.group.uuid,
            }
            opened_row = autocommit.write_once(
                lambda tx: tx.first(OPEN_IN_ONE_STATEMENT, **parameters)
            )
            new_rows, consumer_rows, has_live_claims, order, *rule_columns = opened_row
            rule = rules.rule_of_row(rule_columns)
            is_ruled = opening.group is None or (
                group_rule.is_stored_rule(opening.group, rule)
                and rules.has_generation(rule, opening.rule_generation, opening.of_parent)
            )
            if (
                new_rows
                and consumer_rows == len(consumers)
                and (opening.stays or not has_live_claims)
                and is_ruled
            ):
                return OpenedRequest(outcome=None, lock_token=token, order=order, rule=rule)
        return self._open_request(opening, token)

    @writing_once
    def _open_request(self, tx: session.Tx, opening: OpenRequest, token: str) -> OpenedRequest:
        """Open a request by several statements, whatever is stored.

        :param token: of this opening: a row that has it is ours
        """
        draft = RequestDraft(
            id=opening.id,
            fingerprint=opening.fingerprint,
            owner=opening.owner,
            attempt=opening.attempt,
            takes_over=opening.takes_over,
            claims=ClaimColumns(),
        )
        row = new_row(
            tx,
            opening.id,
            token,
            fingerprint=opening.fingerprint,
            state='open',
            owner=opening.owner,
            attempt=opening.attempt,
            deadline=tx.now + opening.seconds,
        )
        tx.insert_new(_requests, [row], 'id')
        stored = tx.first(LOCK_REQUEST, id=opening.id)
        if stored is None or stored.token != token:
            outcome = check_request_row(stored, draft, tx.now)
            if outcome is not None:
                lock_token = '' if stored is None else stored.token
                return OpenedRequest(outcome=outcome, lock_token=lock_token)
            if takes_over(stored, draft):
                assert stored is not None, 'nothing is taken over of a row that is gone'
                lock_releases.release_in_zones(tx, stored.token)
                cancel_claims(UnitOfWork(tx, self.database.memory), opening.id, 'taken over')
            values = {
                name: row[name] for name in ('owner', 'attempt', 'deadline', 'token', 'updated_at')
            }
            tx.run(OPEN_REQUEST, b_id=opening.id, **values)
        rule, reason = _rule_and_refusal(tx, opening)
        order = 0
        if not reason:
            reason, order = _note_consumers(tx, opening)
        is_new = stored is not None and stored.token == token
        if not reason and not opening.stays:
            # Claims here of requests without noted consumers: from before there were
            # zones, only for hosts here, or a share of a request that was split.  And claims
            # that were written through the allocation API, without a request, at any time.
            reason = _local_claim_refusal(tx, opening, is_new)
        if not reason:
            return OpenedRequest(outcome=None, lock_token=token, order=order, rule=rule)
        forget(tx, opening.id)
        rejected = RequestOutcome(
            id=opening.id, outcome=CommitStatus.REJECTED, attempt=opening.attempt, reason=reason
        )
        return OpenedRequest(outcome=rejected, lock_token=token)

    def finish_request(
        self,
        request_id: str,
        owner: str,
        attempt: int,
        answer: bytes,
        child_claims: Sequence[ChildClaim],
        own: LocalShare | None = None,
        group: GroupRef | None = None,
    ) -> bool:
        token = uuid.uuid4().hex
        rows = [child_claim_values(claim) for claim in child_claims]
        autocommit = self.database.autocommit
        if autocommit is not None and own is None:
            parameters = {'id': request_id, 'owner': owner, 'attempt': attempt, 'answer': answer}
            for name, kind in CHILD_CLAIM_COLUMNS:
                parameters[name] = array(kind, [row[name] for row in rows])
            parameters['token'] = token
            parameters |= rules.rule_parameters(group)
            if autocommit.write_once(lambda tx: tx.first(FINISH_IN_ONE_STATEMENT, **parameters)[0]):
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
        child_claim_rows: Sequence[dict[str, Any]],
        own: LocalShare | None,
        token: str,
        group: GroupRef | None,
    ) -> bool:
        """Finish a request by several statements.

        :param token: of this answer: a row that has it was written before its COMMIT was lost
        """
        row = tx.first(LOCK_REQUEST, id=request_id)
        if row is None or row.token == token:
            return row is not None
        if (row.state, row.owner, row.attempt) != ('open', owner, attempt):
            return False
        project_id = next((claim_row['project_id'] for claim_row in child_claim_rows), None)
        if group is not None and not rules.is_rule_in_force(tx, group, project_id):
            return False  # the rule that it was placed under has changed: no claim of it may stay
        children = {claim_row['child'] for claim_row in child_claim_rows}
        if lock_children(tx, children) != children:
            return False  # a zone was removed meanwhile: its claims would get no updates
        now = tx.now
        times = {'request_id': request_id, 'created_at': now, 'updated_at': now}
        tx.insert_new(
            _child_claims,
            [claim_row | times for claim_row in child_claim_rows],
            'claim_id',
            'child',
        )
        own_claims = 0 if own is None else len(own.members)
        values = {'answer': answer, 'token': token, 'updated_at': now, 'own_claims': own_claims}
        tx.run(FINISH_REQUEST, b_id=request_id, **values)
        if own is not None:
            # Cancelling, extending or reading the request includes these as well, and the parent
            # zone gets their updates: only now, as until now it had no answer of the request.
            of_all = {'request_id': request_id, 'attempt': attempt, 'updated_at': now}
            of_all |= {'b_key': own.key, 'parent': own.parent}
            tx.run_many(
                MOVE_CLAIM_TO_REQUEST,
                [
                    {'b_id': claim_id, 'member': member, **of_all}
                    for claim_id, member in own.members.items()
                ],
            )
            tx.run(DELETE_REQUEST, b_id=own.key)
        return True

    @reading
    def _knows_rule(self, tx: session.Tx, group: GroupRef, declared: int | None) -> bool:
        return rules.is_rule_stored(tx, group, declared)

    def note_parent_rule(self, group: GroupRef, project: str | None, declared: int | None) -> None:
        if not self._knows_rule(group, declared):
            self._note_parent_rule(group, project, declared)

    @writing_once
    def _note_parent_rule(
        self, tx: session.Tx, group: GroupRef, project: str | None, declared: int | None
    ) -> None:
        rules.rule_for(tx, group, project, True, declared)

    @reading
    def zone_of_group(self, tx: session.Tx, group: str, own: str) -> str:
        row = tx.first(GROUP_ZONE, id=group)
        promised = '' if row is None else _zone_of_open_request(tx, row)
        return promised or _zone_of_live_members(tx, group, own)

    @writing_once
    def decide_group_zone(
        self, tx: session.Tx, group: str, own: str, place: str, request_id: str, seconds: float
    ) -> str:
        new_place = {'zone_uuid': place, 'request_id': request_id, 'until': tx.now + seconds}
        tx.insert_new(_group_zones, [{'group_uuid': group, **new_place}], 'group_uuid')
        row = tx.first(GROUP_ZONE.with_for_update(), id=group)
        # First: the members of a request that is answered in between are live by then.
        promised = '' if row.request_id == request_id else _zone_of_open_request(tx, row)
        zone_of_members = _zone_of_live_members(tx, group, own) or promised
        if zone_of_members and zone_of_members != place:
            return zone_of_members
        tx.run(_group_zones.update().where(_group_zones.c.group_uuid == group).values(new_place))
        return place


def _make_identity(tx: session.Tx) -> None:
    """Insert the identity of this zone, unless it has one."""
    identity = {'id': 1, 'uuid': str(uuid.uuid4()), 'secret': secrets.token_bytes(SECRET_BYTES)}
    tx.insert_new(_own_zone, [identity], 'id')


def _lock_zone(tx: session.Tx) -> None:
    """Lock the zone's row, so that concurrent registrations detect a taken name."""
    lock = sa.select(_own_zone.c.id).with_for_update()
    if tx.first(lock) is None:
        _make_identity(tx)
        tx.first(lock)


def lock_children(tx: session.Tx, children: Collection[str]) -> set[str]:
    """Return the child zones that are registered; none of them is removed until the commit.

    Locked before rows of ``child_claims``: a removal meanwhile would leave rows of these.
    """
    if not children:
        return set()
    zone_rows = tx.all(LOCK_CHILDREN, ids=sorted(children))
    return {row.uuid for row in zone_rows}


def _zone_of_open_request(tx: session.Tx, row: Any) -> str:
    """Return the zone that a request is about to place a group in; '' if it is answered."""
    if row.until <= tx.now or tx.first(OPEN_REQUEST_ROW, id=row.request_id) is None:
        return ''
    return str(row.zone_uuid)


def _zone_of_live_members(tx: session.Tx, group: str, own: str) -> str:
    """Return the zone of the live members of a group; '' if there are none."""
    if tx.first(GROUP_LIVES_HERE, id=group) is not None:
        return own
    claim_below = tx.first(GROUP_LIVES_BELOW, id=group)
    return '' if claim_below is None else claim_below.child


def _rule_and_refusal(tx: session.Tx, opening: OpenRequest) -> tuple[GroupRule | None, str]:
    """Return the rule of the request's group, and a reason to refuse the request, or ''."""
    if opening.group is None:
        return None, ''
    try:
        declared = opening.rule_generation
        return rules.rule_for(
            tx, opening.group, opening.project_id, opening.of_parent, declared
        ), ''
    except exceptions.Refused as e:
        return None, e.message


def _note_consumers(tx: session.Tx, opening: OpenRequest) -> tuple[str, int]:
    """Note a request's consumers as on their way; return (reason to refuse or '', order).

    The order is the time, in microseconds, and higher than that of any earlier opening for one of
    the consumers, however the clocks of two servers differ.
    """
    purpose, order = purpose_key(opening.purpose), int(tx.now * 1_000_000)
    rows = [
        {'consumer': consumer, 'purpose': purpose, 'request_id': opening.id}
        for consumer in opening.consumers
    ]
    tx.insert_new(_delegated_consumers, rows, 'consumer', 'purpose')
    others: list[str] = []
    for row in tx.in_parts(DELEGATED_CONSUMERS.with_for_update(), ids=opening.consumers):
        if row.purpose != purpose:
            continue
        order = max(order, (row.order_no or 0) + 1)
        if row.request_id != opening.id and _request_holds(
            tx, row.consumer, row.request_id, opening.stays
        ):
            others.append(row.consumer)
    if others:
        return _has_claim(others), order
    tx.run(
        _delegated_consumers.update()
        .where(
            _delegated_consumers.c.consumer.in_(list(opening.consumers)),
            _delegated_consumers.c.purpose == purpose,
        )
        .values(request_id=opening.id, order_no=order)
    )
    return '', order


def _local_claim_refusal(tx: session.Tx, opening: OpenRequest, is_new: bool) -> str:
    """Return a reason to refuse the request, if hosts here have claims for its consumers, or ''.

    :param is_new: nothing of it can be claimed here yet
    """
    claimed_consumers = [
        row.consumer
        for row in tx.in_parts(LIVE_CLAIMS_HERE, ids=opening.consumers)
        if purpose_key(readable_purpose(row.purpose)) == purpose_key(opening.purpose)
        and row.request_id != opening.id
        and (is_new or row.lifecycle == Lifecycle.API.value)
    ]
    return _has_claim(claimed_consumers) if claimed_consumers else ''


def _has_claim(consumers: Sequence[str]) -> str:
    return f'consumer {min(consumers)} has a claim, or is being placed by another request'


def _request_holds(tx: session.Tx, consumer: str, request_id: str, stays: bool) -> bool:
    """Return whether a request still places a consumer, or has placed it.

    :param stays: consider child zones only; claims on hosts here are judged by the commit

    A request past its deadline does not: its owner may be frozen, and must not finish it once the
    consumer is another request's.
    """
    if not tx.run(TAKE_FROM_OWNER, b_id=request_id, now=tx.now):
        row = tx.first(sa.select(_requests.c.state).where(_requests.c.id == request_id))
        if row is not None and row.state == 'open':
            return True
    else:
        left_request = tx.first(sa.select(_requests.c.token).where(_requests.c.id == request_id))
        lock_releases.release_in_zones(tx, left_request.token)
    if any(claim.request_id == request_id for claim in tx.all(LIVE_CLAIM_BELOW, id=consumer)):
        return True
    if stays:
        return False
    return any(claim.request_id == request_id for claim in tx.all(LIVE_CLAIMS_HERE, ids=[consumer]))


def purpose_key(purpose: Purpose) -> str:
    """Return the key under which two requests for one consumer conflict: equal for all moves."""
    return 'move' if purpose.is_move else purpose.value


def _zone_record(row: Any) -> ZoneRecord:
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
        synced_incarnation=row.synced_incarnation or 0,
        trusted=bool(row.trusted),
    )


def _parent_record(row: Any) -> ParentRecord:
    return ParentRecord(
        name=row.name,
        identity=row.identity,
        project_id=row.project_id,
        enabled=bool(row.enabled),
        lease_seconds_max=row.lease_seconds_max,
        trusted=bool(row.trusted),
        certificate_sha256=row.certificate_sha256 or '',
    )
