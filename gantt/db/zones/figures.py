# SPDX-License-Identifier: Apache-2.0
"""Counts and comparisons over zones: live claims by zone, hosts by their marks, consumers."""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from gantt.core.messages.request import Purpose
from gantt.core.zones.host_digests import RegisteredHost
from gantt.core.zones.messages import LOST
from gantt.db.claims.held import holds_below
from gantt.db.database import Database, reading, reading_long
from gantt.db.engine import session
from gantt.db.schema import models
from gantt.db.schema.models import child_claims
from gantt.scheduler.ports.zones import LiveClaims, LiveHere, ToLookAt

_p, _c, _f, _b = models.providers, models.claims, models.provider_facts, child_claims
#: Consumers in one statement.
_PART = 500

_live_below = _b.c.state.in_(('reserved', 'confirmed'))
LIVE_OF_CHILDREN = (
    sa.select(_b.c.child, sa.func.count().label('claims')).where(_live_below).group_by(_b.c.child)
)
LIVE_OF_PARENTS = (
    sa.select(_c.c.parent_key.label('parent'), sa.func.count().label('claims'))
    .where(_c.c.live == 1, _c.c.parent_key.is_not(None))
    .group_by(_c.c.parent_key),
    sa.select(_b.c.parent, sa.func.count().label('claims'))
    .where(_live_below, _b.c.parent.is_not(None))
    .group_by(_b.c.parent),
)
_is_lost = _b.c.state == LOST
_is_read_back = sa.and_(_b.c.read_back == 1, _live_below)
#: Purposes without moves, which have two claims.
_no_moves = [purpose.value for purpose in Purpose if not purpose.is_move]
_is_doubled = sa.and_(
    holds_below,
    _b.c.purpose.in_(_no_moves),
    sa.exists().where(_c.c.consumer == _b.c.consumer, _c.c.live == 1, _c.c.purpose == _b.c.purpose),
)
TO_LOOK_AT = (
    sa.select(
        _b.c.child,
        sa.func.sum(sa.case((_is_lost, 1), else_=0)).label('lost'),
        sa.func.sum(sa.case((_is_read_back, 1), else_=0)).label('read_back'),
        sa.func.sum(sa.case((_is_doubled, 1), else_=0)).label('doubled'),
    )
    .where(sa.or_(_is_lost, _is_read_back, _is_doubled))
    .group_by(_b.c.child)
)
REGISTERED = (
    sa.select(_p.c.name, _p.c.uuid, _f.c.journal)
    .join(_f, _f.c.provider_id == _p.c.id)
    .where(_p.c.kind == 'host')
    .order_by(_p.c.name)
)
_ids: Any = sa.bindparam('ids', expanding=True)
LIVE_HERE = sa.select(_c.c.id, _c.c.consumer, _c.c.purpose).where(
    _c.c.consumer.in_(_ids), _c.c.live == 1, _c.c.purpose.in_(_no_moves)
)


class SqlZoneFigures:
    """Counts and comparisons over zones: ``ports.ZoneFigures`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @reading
    def live_claims_over_zones(self, tx: session.Tx) -> LiveClaims:
        children = {row.child: int(row.claims) for row in tx.all(LIVE_OF_CHILDREN)}
        parents: dict[str, int] = {}
        for query in LIVE_OF_PARENTS:
            for row in tx.all(query):
                parents[row.parent] = parents.get(row.parent, 0) + int(row.claims)
        return LiveClaims(children=children, parents=parents)

    @reading
    def claims_to_look_at(self, tx: session.Tx) -> dict[str, ToLookAt]:
        return {
            row.child: ToLookAt(int(row.lost), int(row.read_back), int(row.doubled))
            for row in tx.all(TO_LOOK_AT)
        }

    @reading_long
    def registered_hosts(self, tx: session.Tx) -> list[RegisteredHost]:
        return [RegisteredHost(row.name, row.uuid, row.journal or '') for row in tx.all(REGISTERED)]

    @reading_long
    def live_here(self, tx: session.Tx, consumers: Collection[str]) -> list[LiveHere]:
        sorted_consumers = sorted(consumers)
        claim_rows: list[Any] = []
        for start in range(0, len(sorted_consumers), _PART):
            claim_rows += tx.all(LIVE_HERE, ids=sorted_consumers[start : start + _PART])
        return [LiveHere(row.id, row.consumer, Purpose(row.purpose)) for row in claim_rows]
