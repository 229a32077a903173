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

from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.claim import LOST_STATE, State
from gantt.core.claims.idempotency_keys import request_id_in_zone
from gantt.db.claims.held import child_claim_values
from gantt.db.claims.requests import new_row
from gantt.db.database import SqlStore, reading, writing, writing_once
from gantt.db.engine import session
from gantt.db.engine.session import bound
from gantt.db.hosts.rows import readable_purpose, readable_state
from gantt.db.schema import models
from gantt.zones.model.messages import ClaimBelow, ZoneChanges
from gantt.zones.ports import UnknownClaims
from gantt.zones.sql.records import LIVE_STATES, lock_children, purpose_key

_requests, _claims = models.requests, models.claims
_child_zones, _child_claims, _delegated_consumers = (
    models.child_zones,
    models.child_claims,
    models.delegated_consumers,
)
_zone_releases, _parent_allocations = models.zone_releases, models.parent_allocations
#: Fingerprint of a request that is not known to be sent here: no caller comes with it.
RESTORED_FINGERPRINT = 'restored'

_ids: Any = sa.bindparam('ids', expanding=True)
#: Known states of claims in a child zone.
KNOWN_STATES = sa.select(_child_claims.c.claim_id, _child_claims.c.state).where(
    _child_claims.c.child == sa.bindparam('child'), _child_claims.c.claim_id.in_(_ids)
)
KEYS_OF_CONSUMERS = sa.select(_child_claims.c.request_key, _child_claims.c.consumer).where(
    _child_claims.c.child == sa.bindparam('child'), _child_claims.c.consumer.in_(_ids)
)
UPDATE_STATE = (
    _child_claims.update()
    .where(
        _child_claims.c.claim_id == sa.bindparam('b_id'),
        _child_claims.c.child == sa.bindparam('b_child'),
    )
    .values(bound('state', 'updated_at'))
)
END_LOST = (
    _child_claims.update()
    .where(
        _child_claims.c.child == sa.bindparam('b_child'),
        _child_claims.c.request_key == sa.bindparam('key'),
    )
    .where(_child_claims.c.state == LOST_STATE)
    .values(state=State.RELEASED.value, updated_at=sa.bindparam('now'))
)
END_LOST_CLAIM = END_LOST.where(_child_claims.c.claim_id == sa.bindparam('b_claim'))
#: Openings of requests that place one of these consumers now.
OPEN_LOCK_TOKENS = (
    sa.select(_requests.c.token)
    .join(_delegated_consumers, _delegated_consumers.c.request_id == _requests.c.id)
    .where(_delegated_consumers.c.consumer.in_(_ids), _requests.c.state == 'open')
)
PENDING_RELEASES = sa.select(_zone_releases.c.request_key).where(
    _zone_releases.c.child == sa.bindparam('child'), _zone_releases.c.request_key.in_(_ids)
)
_parent_param: Any = sa.bindparam('parent')
_since_param: Any = sa.bindparam('since')
_after_param: Any = sa.bindparam('after')
_limit_param: Any = sa.bindparam('most', type_=sa.Integer)


def _is_later(at: Any, claim_id: Any) -> Any:
    return sa.or_(at > _since_param, sa.and_(at == _since_param, claim_id > _after_param))


#: Changed claims of a parent zone, here and below, the oldest change first, with its own key.
CHANGED_HERE = (
    sa.select(
        _claims.c.id,
        _claims.c.request_id,
        _claims.c.consumer,
        _claims.c.state,
        _claims.c.updated_at,
        _claims.c.purpose,
        _claims.c.group_uuid,
        _parent_allocations.c.request_key,
        _parent_allocations.c.receipt,
    )
    .outerjoin(_parent_allocations, _parent_allocations.c.request_id == _claims.c.request_id)
    .where(_claims.c.parent_key == _parent_param, _is_later(_claims.c.updated_at, _claims.c.id))
    .order_by(_claims.c.updated_at, _claims.c.id)
    .limit(_limit_param)
)
#: Lost claims are left out: they are not known to have ended.
CHANGED_BELOW = (
    sa.select(
        _child_claims.c.claim_id.label('id'),
        _child_claims.c.request_id,
        _child_claims.c.consumer,
        _child_claims.c.state,
        _child_claims.c.updated_at,
        _child_claims.c.purpose,
        _child_claims.c.group_uuid,
        _parent_allocations.c.request_key,
        _parent_allocations.c.receipt,
    )
    .outerjoin(_parent_allocations, _parent_allocations.c.request_id == _child_claims.c.request_id)
    .where(
        _child_claims.c.parent == _parent_param,
        _is_later(_child_claims.c.updated_at, _child_claims.c.claim_id),
    )
    .where(_child_claims.c.state != LOST_STATE)
    .order_by(_child_claims.c.updated_at, _child_claims.c.claim_id)
    .limit(_limit_param)
)


class SqlZoneClaims(SqlStore):
    """Claims in child zones, and claims of parent zones: ``ports.ZoneClaims`` in SQL."""

    @writing
    def note_child_changes(
        self,
        tx: session.Tx,
        child: str,
        changes: ZoneChanges,
        state_of_claim: Mapping[str, str],
        synced_incarnation: int,
    ) -> None:
        ids, changed_states = sorted(state_of_claim), []
        # Most of the states that a zone reports again and again are known.
        for part in session.in_parts(ids):
            changed_states += [
                {'b_id': row.claim_id, 'b_child': child, 'state': state_of_claim[row.claim_id]}
                for row in tx.all(KNOWN_STATES, child=child, ids=part)
                if row.state != state_of_claim[row.claim_id]
            ]
        now = tx.now if changed_states else 0.0
        # Before its claims, as a removal of the zone does.
        tx.run(
            _child_zones.update()
            .where(_child_zones.c.uuid == child)
            .values(
                incarnation=changes.incarnation,
                revision=changes.revision,
                synced_incarnation=synced_incarnation,
            )
        )
        tx.run_many(UPDATE_STATE, [row | {'updated_at': now} for row in changed_states])

    @reading
    def unknown_child_claims(
        self, tx: session.Tx, child: str, claims: Collection[ClaimBelow]
    ) -> UnknownClaims:
        unknown_claims = self._claims_without_record(
            tx, child, [claim for claim in claims if claim.state in LIVE_STATES]
        )
        settled, undecided = list[ClaimBelow](), list[ClaimBelow]()
        for part in session.in_parts(unknown_claims):
            openings = tx.all(OPEN_LOCK_TOKENS, ids=sorted({claim.consumer for claim in part}))
            moving_keys = {request_id_in_zone(row.token, child) for row in openings}
            keys = sorted({claim.key for claim in part})
            moving_keys |= {
                row.request_key for row in tx.all(PENDING_RELEASES, child=child, ids=keys)
            }
            for claim in part:
                if claim.key not in moving_keys:
                    settled.append(claim)
                elif claim.state == State.CONFIRMED:
                    undecided.append(claim)
        # A request that was finished before its opening was queried has stored them by now.
        return UnknownClaims(
            self._claims_without_record(tx, child, settled),
            {claim.claim_id for claim in self._claims_without_record(tx, child, undecided)},
        )

    @staticmethod
    def _claims_without_record(
        tx: session.Tx, child: str, claims: Sequence[ClaimBelow]
    ) -> list[ClaimBelow]:
        unknown_claims: list[ClaimBelow] = []
        for part in session.in_parts(claims):
            ids = sorted({claim.claim_id for claim in part})
            known_ids = {row.claim_id for row in tx.all(KNOWN_STATES, child=child, ids=ids)}
            # An allocation has one claim for each of its consumers: a second one is forged.
            consumers = sorted({claim.consumer for claim in part})
            known_pairs = {
                (row.request_key, row.consumer)
                for row in tx.all(KEYS_OF_CONSUMERS, child=child, ids=consumers)
            }
            unknown_claims += [
                claim
                for claim in part
                if claim.claim_id not in known_ids
                and (claim.key, claim.consumer) not in known_pairs
            ]
        return unknown_claims

    @writing_once
    def restore(
        self, tx: session.Tx, rows: Sequence[ChildClaim], answers: Mapping[str, bytes]
    ) -> None:
        now = tx.now
        child_uuids = lock_children(tx, {row.child for row in rows})
        rows = [row for row in rows if row.child in child_uuids]  # others would get no updates
        request_ids = {row.request_id for row in rows}
        requests = [
            new_row(
                tx,
                request_id,
                uuid.uuid4().hex,
                fingerprint=RESTORED_FINGERPRINT,
                state='placed',
                answer=answer,
            )
            for request_id, answer in answers.items()
            if request_id in request_ids
        ]
        tx.insert_new(_requests, requests, 'id')
        new_columns = {'created_at': now, 'updated_at': now, 'restored': 1}
        rows_below = [
            child_claim_values(row) | new_columns | {'request_id': row.request_id} for row in rows
        ]
        tx.insert_new(_child_claims, rows_below, 'claim_id', 'child')
        # A request that places one again conflicts there, unless another has placed it already.
        request_of_consumer = {
            (row.consumer, purpose_key(row.purpose)): row.request_id for row in rows
        }
        tx.insert_new(
            _delegated_consumers,
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
    ) -> list[ClaimBelow]:
        claim_rows = [
            row
            for query in (CHANGED_HERE, CHANGED_BELOW)
            for row in tx.all(query, parent=parent, since=since, after=after, most=limit)
        ]
        claim_rows.sort(key=lambda row: (row.updated_at, row.id))
        return [
            ClaimBelow(
                claim_id=row.id,
                key=row.request_key or row.request_id or '',
                consumer=row.consumer,
                state=readable_state(row.state),
                changed_at=row.updated_at,
                purpose=readable_purpose(row.purpose),
                group=row.group_uuid,
                receipt=row.receipt or '',
            )
            for row in claim_rows[:limit]
        ]
