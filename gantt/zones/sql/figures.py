# SPDX-License-Identifier: Apache-2.0
"""Counts and comparisons over zones: live claims by zone, registered hosts, consumers."""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.claim import LOST_STATE
from gantt.core.messages.request import Purpose
from gantt.db.claims.held import is_live_child_claim
from gantt.db.database import SqlStore, reading, reading_long
from gantt.db.engine import session
from gantt.db.schema import models
from gantt.db.schema.models import child_claims
from gantt.zones.model.audit import ClaimRow
from gantt.zones.model.host_digests import RegisteredHost
from gantt.zones.ports import ClaimsToCheck, LiveClaims

_providers, _claims, _provider_facts, _child_claims = (
    models.providers,
    models.claims,
    models.provider_facts,
    child_claims,
)

_live_child_claim = _child_claims.c.state.in_(('reserved', 'confirmed'))
LIVE_CLAIMS_BY_CHILD = (
    sa.select(_child_claims.c.child, sa.func.count().label('claims'))
    .where(_live_child_claim)
    .group_by(_child_claims.c.child)
)
LIVE_CLAIMS_BY_PARENT = (
    sa.select(_claims.c.parent_key.label('parent'), sa.func.count().label('claims'))
    .where(_claims.c.live == 1, _claims.c.parent_key.is_not(None))
    .group_by(_claims.c.parent_key),
    sa.select(_child_claims.c.parent, sa.func.count().label('claims'))
    .where(_live_child_claim, _child_claims.c.parent.is_not(None))
    .group_by(_child_claims.c.parent),
)
_is_lost = _child_claims.c.state == LOST_STATE
_is_restored = sa.and_(_child_claims.c.restored == 1, _live_child_claim)
#: Purposes without moves, which have two claims.
_purposes_but_moves = [purpose.value for purpose in Purpose if not purpose.is_move]
_is_doubled = sa.and_(
    is_live_child_claim,
    _child_claims.c.purpose.in_(_purposes_but_moves),
    sa.exists().where(
        _claims.c.consumer == _child_claims.c.consumer,
        _claims.c.live == 1,
        _claims.c.purpose == _child_claims.c.purpose,
    ),
)
CLAIMS_TO_CHECK = (
    sa.select(
        _child_claims.c.child,
        sa.func.sum(sa.case((_is_lost, 1), else_=0)).label('lost'),
        sa.func.sum(sa.case((_is_restored, 1), else_=0)).label('restored'),
        sa.func.sum(sa.case((_is_doubled, 1), else_=0)).label('doubled'),
    )
    .where(sa.or_(_is_lost, _is_restored, _is_doubled))
    .group_by(_child_claims.c.child)
)
REGISTERED_HOSTS = (
    sa.select(_providers.c.name, _providers.c.uuid, _provider_facts.c.journal)
    .join(_provider_facts, _provider_facts.c.provider_id == _providers.c.id)
    .where(_providers.c.kind == 'host')
    .order_by(_providers.c.name)
)
_ids: Any = sa.bindparam('ids', expanding=True)
LIVE_CLAIMS_HERE = sa.select(_claims.c.id, _claims.c.consumer, _claims.c.purpose).where(
    _claims.c.consumer.in_(_ids), _claims.c.live == 1, _claims.c.purpose.in_(_purposes_but_moves)
)


class SqlZoneFigures(SqlStore):
    """Counts and comparisons over zones: ``ports.ZoneFigures`` in SQL."""

    @reading
    def live_claims_over_zones(self, tx: session.Tx) -> LiveClaims:
        children = {row.child: int(row.claims) for row in tx.all(LIVE_CLAIMS_BY_CHILD)}
        parents: dict[str, int] = {}
        for query in LIVE_CLAIMS_BY_PARENT:
            for row in tx.all(query):
                parents[row.parent] = parents.get(row.parent, 0) + int(row.claims)
        return LiveClaims(children=children, parents=parents)

    @reading
    def claims_to_check(self, tx: session.Tx) -> dict[str, ClaimsToCheck]:
        return {
            row.child: ClaimsToCheck(int(row.lost), int(row.restored), int(row.doubled))
            for row in tx.all(CLAIMS_TO_CHECK)
        }

    @reading_long
    def registered_hosts(self, tx: session.Tx) -> list[RegisteredHost]:
        return [
            RegisteredHost(row.name, row.uuid, row.journal or '')
            for row in tx.all(REGISTERED_HOSTS)
        ]

    @reading_long
    def live_claims_here(self, tx: session.Tx, consumers: Collection[str]) -> list[ClaimRow]:
        return [
            ClaimRow(row.id, row.consumer, Purpose(row.purpose), 'live')
            for row in tx.in_parts(LIVE_CLAIMS_HERE, ids=sorted(consumers))
        ]
