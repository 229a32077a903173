# SPDX-License-Identifier: Apache-2.0
"""Changes of claims in child zones, and the changes that this zone reports to parent zones.

A zone may report claims that are not known here because this database was restored: they are read
back, so that their consumers are not placed a second time.  Claims that the zone does not know any
more are lost: they hold their consumers until an operator has checked.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.claim import State
from gantt.core.zones.idempotency_keys import key_of
from gantt.core.zones.messages import LOST, ClaimBelow, ZoneChanges
from gantt.db.claims import held
from gantt.db.claims.held import below_values
from gantt.db.database import Database, reading, writing, writing_once
from gantt.db.engine import session
from gantt.db.hosts.base import is_id
from gantt.db.hosts.rows import known_purpose, known_state
from gantt.db.schema import models
from gantt.db.zones.records import LIVE, held_children, kind_of
from gantt.scheduler.ports.zones import ChangedClaim, StoredBelow, UnknownClaims

_r, _c = models.requests, models.claims
_child, _below, _way = models.child_zones, models.child_claims, models.delegated_consumers
_gb, _above = models.zone_releases, models.parent_allocations
#: Ids in one statement.
_PART = 500
#: Fingerprint of a request that is not known to be sent here: no caller comes with it.
READ_BACK = 'read back'

_ids: Any = sa.bindparam('ids', expanding=True)
#: Known states of claims in a child zone.
STATES = sa.select(_below.c.claim_id, _below.c.state).where(
    _below.c.child == sa.bindparam('child'), _below.c.claim_id.in_(_ids)
)
ALLOCATED = sa.select(_below.c.request_key, _below.c.consumer).where(
    _below.c.child == sa.bindparam('child'), _below.c.consumer.in_(_ids)
)
NOTE = (
    _below.update()
    .where(_below.c.claim_id == sa.bindparam('b_id'), _below.c.child == sa.bindparam('b_child'))
    .values(state=sa.bindparam('state'), updated_at=sa.bindparam('updated_at'))
)
END_LOST = (
    _below.update()
    .where(_below.c.child == sa.bindparam('b_child'), _below.c.request_key == sa.bindparam('key'))
    .where(_below.c.state == LOST)
    .values(state=State.RELEASED.value, updated_at=sa.bindparam('now'))
)
END_LOST_CLAIM = END_LOST.where(_below.c.claim_id == sa.bindparam('b_claim'))
#: Openings of requests that place one of these consumers now.
OPENINGS = (
    sa.select(_r.c.token)
    .join(_way, _way.c.request_id == _r.c.id)
    .where(_way.c.consumer.in_(_ids), _r.c.state == 'open')
)
GIVEN_BACK = sa.select(_gb.c.request_key).where(
    _gb.c.child == sa.bindparam('child'), _gb.c.request_key.in_(_ids)
)
_whose: Any = sa.bindparam('parent')
_since: Any = sa.bindparam('since')
_after: Any = sa.bindparam('after')
_most: Any = sa.bindparam('most', type_=sa.Integer)


def _behind(at: Any, claim_id: Any) -> Any:
    return sa.or_(at > _since, sa.and_(at == _since, claim_id > _after))


#: Changed claims of a parent zone, here and below, the oldest change first, with its own key.
CHANGED_HERE = (
    sa.select(
        _c.c.id,
        _c.c.request_id,
        _c.c.consumer,
        _c.c.state,
        _c.c.updated_at,
        _c.c.purpose,
        _c.c.group_uuid,
        _above.c.request_key,
        _above.c.receipt,
    )
    .outerjoin(_above, _above.c.request_id == _c.c.request_id)
    .where(_c.c.parent_key == _whose, _behind(_c.c.updated_at, _c.c.id))
    .order_by(_c.c.updated_at, _c.c.id)
    .limit(_most)
)
#: Lost claims are left out: they are not known to have ended.
CHANGED_BELOW = (
    sa.select(
        _below.c.claim_id.label('id'),
        _below.c.request_id,
        _below.c.consumer,
        _below.c.state,
        _below.c.updated_at,
        _below.c.purpose,
        _below.c.group_uuid,
        _above.c.request_key,
        _above.c.receipt,
    )
    .outerjoin(_above, _above.c.request_id == _below.c.request_id)
    .where(_below.c.parent == _whose, _behind(_below.c.updated_at, _below.c.claim_id))
    .where(_below.c.state != LOST)
    .order_by(_below.c.updated_at, _below.c.claim_id)
    .limit(_most)
)


class SqlZoneClaims:
    """Claims in child zones, and claims of parent zones: ``ports.ZoneClaims`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @reading
    def child_claims(
        self,
        tx: session.Tx,
        request_id: str | None = None,
        consumers: Collection[str] = (),
        child: str = '',
        *,
        claim_id: str | None = None,
        state: str | None = None,
        project: str | None = None,
        group: str | None = None,
        marker: str | None = None,
        limit: int | None = None,
    ) -> list[StoredBelow]:
        filters = {
            _below.c.request_id: request_id,
            _below.c.child: child or None,
            _below.c.claim_id: claim_id,
            _below.c.state: state,
            _below.c.project_id: project,
            _below.c.group_uuid: group,
        }
        ids = [key for key in (request_id, claim_id, group, *consumers) if key is not None]
        if not all(map(is_id, ids)):
            return []
        where = [column == value for column, value in filters.items() if value is not None]
        if consumers:
            where.append(_below.c.consumer.in_(sorted(consumers)))
        if marker is not None:
            where.append(_below.c.claim_id > marker)
        return held.child_claims(tx, *where, limit=limit)

    @writing
    def note_changes_below(
        self,
        tx: session.Tx,
        child: str,
        changes: ZoneChanges,
        known: Mapping[str, str],
        own_incarnation: int,
    ) -> None:
        ids, changed_states = sorted(known), []
        # Most of the states that a zone reports again and again are known.
        for start in range(0, len(ids), _PART):
            changed_states += [
                {'b_id': row.claim_id, 'b_child': child, 'state': known[row.claim_id]}
                for row in tx.all(STATES, child=child, ids=ids[start : start + _PART])
                if row.state != known[row.claim_id]
            ]
        now = tx.now if changed_states else 0.0
        # Before its claims, as a removal of the zone does.
        tx.run(
            _child.update()
            .where(_child.c.uuid == child)
            .values(
                incarnation=changes.incarnation,
                revision=changes.revision,
                own_incarnation=own_incarnation,
            )
        )
        tx.many(NOTE, [row | {'updated_at': now} for row in changed_states])

    @reading
    def unknown_below(
        self, tx: session.Tx, child: str, claims: Collection[ClaimBelow]
    ) -> UnknownClaims:
        unknown_claims = self._not_known(
            tx, child, [claim for claim in claims if claim.state in LIVE]
        )
        settled, undecided = list[ClaimBelow](), list[ClaimBelow]()
        for start in range(0, len(unknown_claims), _PART):
            part = unknown_claims[start : start + _PART]
            openings = tx.all(OPENINGS, ids=sorted({claim.consumer for claim in part}))
            moving_keys = {key_of(row.token, child) for row in openings}
            keys = sorted({claim.key for claim in part})
            moving_keys |= {row.request_key for row in tx.all(GIVEN_BACK, child=child, ids=keys)}
            for claim in part:
                if claim.key not in moving_keys:
                    settled.append(claim)
                elif claim.state == State.CONFIRMED:
                    undecided.append(claim)
        # A request that was finished before its opening was queried has stored them by now.
        return UnknownClaims(
            self._not_known(tx, child, settled),
            {claim.claim_id for claim in self._not_known(tx, child, undecided)},
        )

    @staticmethod
    def _not_known(tx: session.Tx, child: str, claims: Sequence[ClaimBelow]) -> list[ClaimBelow]:
        unknown_claims: list[ClaimBelow] = []
        for start in range(0, len(claims), _PART):
            part = claims[start : start + _PART]
            ids = sorted({claim.claim_id for claim in part})
            known_ids = {row.claim_id for row in tx.all(STATES, child=child, ids=ids)}
            # An allocation has one claim for each of its consumers: a second one is forged.
            consumers = sorted({claim.consumer for claim in part})
            known_pairs = {
                (row.request_key, row.consumer)
                for row in tx.all(ALLOCATED, child=child, ids=consumers)
            }
            unknown_claims += [
                claim
                for claim in part
                if claim.claim_id not in known_ids
                and (claim.key, claim.consumer) not in known_pairs
            ]
        return unknown_claims

    @writing_once
    def read_back(
        self, tx: session.Tx, rows: Sequence[StoredBelow], answers: Mapping[str, bytes]
    ) -> None:
        now = tx.now
        child_uuids = held_children(tx, {row.child for row in rows})
        rows = [row for row in rows if row.child in child_uuids]  # others would get no updates
        request_ids = {row.request_id for row in rows}
        requests = [
            {
                'id': request_id,
                'fingerprint': READ_BACK,
                'state': 'placed',
                'owner': '',
                'attempt': 0,
                'deadline': 0.0,
                'token': uuid.uuid4().hex,
                'answer': answer,
                'created_at': now,
                'updated_at': now,
                'claims': 0,
            }
            for request_id, answer in answers.items()
            if request_id in request_ids
        ]
        tx.insert_new(_r, requests, 'id')
        new_columns = {'created_at': now, 'updated_at': now, 'read_back': 1}
        rows_below = [
            below_values(row) | new_columns | {'request_id': row.request_id} for row in rows
        ]
        tx.insert_new(_below, rows_below, 'claim_id', 'child')
        # A request that places one again conflicts there, unless another has placed it already.
        request_of_consumer = {(row.consumer, kind_of(row.purpose)): row.request_id for row in rows}
        tx.insert_new(
            _way,
            [
                {'consumer': consumer, 'purpose': purpose, 'request_id': request_id}
                for (consumer, purpose), request_id in request_of_consumer.items()
            ],
            'consumer',
            'purpose',
        )

    @writing
    def end_lost(self, tx: session.Tx, child: str, key: str, claim_id: str = '') -> None:
        if claim_id:
            tx.run(END_LOST_CLAIM, b_child=child, key=key, b_claim=claim_id, now=tx.now)
        else:
            tx.run(END_LOST, b_child=child, key=key, now=tx.now)

    @reading
    def claims_of_parent(
        self, tx: session.Tx, parent: str, since: float, limit: int, after: str = ''
    ) -> list[ChangedClaim]:
        claim_rows = [
            row
            for query in (CHANGED_HERE, CHANGED_BELOW)
            for row in tx.all(query, parent=parent, since=since, after=after, most=limit)
        ]
        claim_rows.sort(key=lambda row: (row.updated_at, row.id))
        return [
            ChangedClaim(
                claim=ClaimBelow(
                    claim_id=row.id,
                    key=row.request_key or row.request_id or '',
                    consumer=row.consumer,
                    state=known_state(row.state),
                    changed_at=row.updated_at,
                    purpose=known_purpose(row.purpose),
                    group=row.group_uuid,
                    receipt=row.receipt or '',
                ),
                at=row.updated_at,
            )
            for row in claim_rows[:limit]
        ]
