# SPDX-License-Identifier: Apache-2.0
"""Claims in child zones: ``ports.ChildClaims`` in SQL."""

from collections.abc import Collection

import sqlalchemy as sa

from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.claim import LIVE_STATES
from gantt.db.claims import held
from gantt.db.database import SqlStore, reading
from gantt.db.engine import session
from gantt.db.engine.engine import is_id
from gantt.db.schema import models

_child_claims, _child_zones = models.child_claims, models.child_zones

COUNT_LIVE_CLAIMS = sa.select(sa.func.count()).where(
    _child_claims.c.state.in_([state.value for state in LIVE_STATES])
)
SELECT_ZONE_NAMES = sa.select(_child_zones.c.uuid, _child_zones.c.name).order_by(
    _child_zones.c.name
)


class SqlChildClaims(SqlStore):
    """Claims in child zones: ``ports.ChildClaims`` in SQL."""

    @reading
    def find(
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
    ) -> list[ChildClaim]:
        filters = {
            _child_claims.c.request_id: request_id,
            _child_claims.c.child: child or None,
            _child_claims.c.claim_id: claim_id,
            _child_claims.c.state: state,
            _child_claims.c.project_id: project,
            _child_claims.c.group_uuid: group,
        }
        ids = [key for key in (request_id, claim_id, group, *consumers) if key is not None]
        if not all(map(is_id, ids)):
            return []
        where = [column == value for column, value in filters.items() if value is not None]
        if consumers:
            where.append(_child_claims.c.consumer.in_(sorted(consumers)))
        if marker is not None:
            where.append(_child_claims.c.claim_id > marker)
        return held.child_claims(tx, *where, limit=limit)

    @reading
    def count_live_child_claims(self, tx: session.Tx) -> int:
        return int(tx.first(COUNT_LIVE_CLAIMS)[0])

    @reading
    def child_zone_names(self, tx: session.Tx, *, enabled: bool = False) -> dict[str, str]:
        return dict(
            map(
                tuple,
                tx.all(
                    SELECT_ZONE_NAMES.where(_child_zones.c.enabled == 1)
                    if enabled
                    else SELECT_ZONE_NAMES
                ),
            )
        )
