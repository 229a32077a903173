# SPDX-License-Identifier: Apache-2.0
"""What becomes of claims below, as their zones say; and what this zone says to those above it.

A zone knows of claims that are not known here where the database of this one went back: they are
read back, so that their consumers are not placed a second time.  Claims that the zone does not know
any more are lost: that holds their consumers until somebody has looked.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.claim import State
from gantt.core.zones.keys import key_of
from gantt.core.zones.messages import LOST, ClaimBelow, ZoneChanges
from gantt.db.claims.held import below_values
from gantt.db.engine import session
from gantt.db.engine.session import reading, writing, writing_once
from gantt.db.hosts.rows import known_purpose, known_state
from gantt.db.schema import models
from gantt.db.zones.records import LIVE, SqlZones, held_children, kind_of
from gantt.scheduler.ports.zones import ChangedClaim, StoredBelow

_r, _c = models.requests, models.claims
_child, _below, _way = models.child_zones, models.claims_below, models.consumers_on_their_way
_gb, _above = models.give_backs, models.allocations_above
#: Ids looked for in one statement.
_PART = 500
#: Of a request that nobody here has sent, as far as is known: no caller comes with it.
READ_BACK = 'read back'

_ids: Any = sa.bindparam('ids', expanding=True)
#: What is known of claims in a zone below, and what it says of them now.
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


#: Changed claims of a zone above, here and below, the oldest change first; by its own key.
CHANGED_HERE = (
    sa.select(
        *(_c.c.id, _c.c.request_id, _c.c.consumer, _c.c.state, _c.c.updated_at),
        *(_c.c.purpose, _c.c.group_uuid, _above.c.request_key, _above.c.receipt),
    )
    .outerjoin(_above, _above.c.request_id == _c.c.request_id)
    .where(_c.c.parent_key == _whose, _behind(_c.c.updated_at, _c.c.id))
    .order_by(_c.c.updated_at, _c.c.id)
    .limit(_most)
)
#: What is lost is not known to have ended: nothing is said of it.
CHANGED_BELOW = (
    sa.select(
        _below.c.claim_id.label('id'),
        *(_below.c.request_id, _below.c.consumer, _below.c.state, _below.c.updated_at),
        *(_below.c.purpose, _below.c.group_uuid, _above.c.request_key, _above.c.receipt),
    )
    .outerjoin(_above, _above.c.request_id == _below.c.request_id)
    .where(_below.c.parent == _whose, _behind(_below.c.updated_at, _below.c.claim_id))
    .where(_below.c.state != LOST)
    .order_by(_below.c.updated_at, _below.c.claim_id)
    .limit(_most)
)


class SqlZoneChanges(SqlZones):
    """See ``scheduler.ports.zones``."""

    @writing
    def note_changes_below(
        self,
        tx: session.Tx,
        child: str,
        changes: ZoneChanges,
        known: Mapping[str, str],
        own_incarnation: int,
    ) -> None:
        ids, changed = sorted(known), []
        # Most of what a zone says again and again is known.
        for first in range(0, len(ids), _PART):
            changed += [
                {'b_id': row.claim_id, 'b_child': child, 'state': known[row.claim_id]}
                for row in tx.all(STATES, child=child, ids=ids[first : first + _PART])
                if row.state != known[row.claim_id]
            ]
        now = tx.now if changed else 0.0
        # Before its claims, as whoever removes it does.
        tx.run(
            _child.update()
            .where(_child.c.uuid == child)
            .values(
                incarnation=changes.incarnation,
                revision=changes.revision,
                own_incarnation=own_incarnation,
            )
        )
        tx.many(NOTE, [row | {'updated_at': now} for row in changed])

    @reading
    def unknown_below(
        self, tx: session.Tx, child: str, claims: Collection[ClaimBelow]
    ) -> list[ClaimBelow]:
        left = self._not_known(tx, child, [one for one in claims if one.state in LIVE])
        found: list[ClaimBelow] = []
        for first in range(0, len(left), _PART):
            part = left[first : first + _PART]
            openings = tx.all(OPENINGS, ids=sorted({one.consumer for one in part}))
            moving = {key_of(row.token, child) for row in openings}
            keys = sorted({one.key for one in part})
            moving |= {row.request_key for row in tx.all(GIVEN_BACK, child=child, ids=keys)}
            found += [one for one in part if one.key not in moving]
        # A request that was finished before its opening was looked for has stored them by now.
        return self._not_known(tx, child, found)

    @staticmethod
    def _not_known(tx: session.Tx, child: str, claims: Sequence[ClaimBelow]) -> list[ClaimBelow]:
        found: list[ClaimBelow] = []
        for first in range(0, len(claims), _PART):
            part = claims[first : first + _PART]
            ids = sorted({one.claim_id for one in part})
            known = {row.claim_id for row in tx.all(STATES, child=child, ids=ids)}
            # An allocation has one claim for each of its consumers: a second one was made up.
            consumers = sorted({one.consumer for one in part})
            of = {
                (row.request_key, row.consumer)
                for row in tx.all(ALLOCATED, child=child, ids=consumers)
            }
            found += [
                one
                for one in part
                if one.claim_id not in known and (one.key, one.consumer) not in of
            ]
        return found

    @writing_once
    def read_back(
        self, tx: session.Tx, rows: Sequence[StoredBelow], answers: Mapping[str, bytes]
    ) -> None:
        now = tx.now
        held = held_children(tx, {one.child for one in rows})
        rows = [one for one in rows if one.child in held]  # nobody would hear of the others
        known = {one.request_id for one in rows}
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
            if request_id in known
        ]
        tx.insert_new(_r, requests, 'id')
        new = {'created_at': now, 'updated_at': now, 'read_back': 1}
        below = [below_values(one) | new | {'request_id': one.request_id} for one in rows]
        tx.insert_new(_below, below, 'claim_id', 'child')
        # Whoever places one of them again meets it there, unless somebody has placed it already.
        way = {(one.consumer, kind_of(one.purpose)): one.request_id for one in rows}
        tx.insert_new(
            _way,
            [
                {'consumer': consumer, 'purpose': purpose, 'request_id': request_id}
                for (consumer, purpose), request_id in way.items()
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
            for row in found[:limit]
        ]
