# SPDX-License-Identifier: Apache-2.0
"""Reservations of plans, as the audit reads them."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from gantt.core.claims import reservation_audit
from gantt.core.claims.claim import State
from gantt.core.claims.reservation_audit import AuditedReservation
from gantt.core.groups import group_answer
from gantt.core.messages.request import Lifecycle
from gantt.db.engine import session
from gantt.db.hosts import claim_rows
from gantt.db.hosts.rows import UNREADABLE
from gantt.db.schema import models

_c = models.claims
_p = models.providers
_t = models.group_plans

PLACES = (
    sa.select(
        _c.c.id,
        _c.c.consumer,
        _c.c.group_uuid,
        _c.c.member_name,
        _c.c.state,
        _c.c.lifecycle,
        _c.c.lease_until,
        _c.c.planned,
        claim_rows.GUEST.label('guest'),
        _c.c.adopted,
        _c.c.created_at,
        sa.func.coalesce(_p.c.name, '').label('host'),
        sa.func.coalesce(_p.c.reported_at, 0).label('seen_at'),
    )
    .select_from(_c.outerjoin(_p, _p.c.id == _c.c.provider_id))
    .where(
        claim_rows.is_live,
        sa.or_(_c.c.member_name.is_not(None), _c.c.planned.is_not(None)),
        # Claims with other values are another finding.
        _c.c.state.in_([state.value for state in State]),
        _c.c.lifecycle.in_([lifecycle.value for lifecycle in Lifecycle]),
    )
    .order_by(_c.c.id)
)
LEASES = sa.select(_t.c.group_uuid, _t.c.lease_until)
PLANS = sa.select(_t.c.group_uuid, _t.c.plan)

#: Plans that one statement reads.
PART = 100


def _place(row: Any) -> AuditedReservation:
    return AuditedReservation(
        id=row.id,
        consumer=row.consumer,
        group=row.group_uuid,
        member_name=row.member_name,
        state=State(row.state),
        lifecycle=Lifecycle(row.lifecycle),
        lease_until=row.lease_until,
        planned=claim_rows.decode_planned(row.planned),
        guest=row.guest,
        host=row.host,
        adopted=bool(row.adopted),
        created_at=row.created_at,
        seen_at=float(row.seen_at),
    )


class AuditedReservations:
    """The reservations of one audit, and lines about unreadable ones."""

    def __init__(self, tx: session.Tx) -> None:
        self.found: list[AuditedReservation] = []
        self._unreadable: list[str] = []
        for row in tx.all(PLACES):
            try:
                self.found.append(_place(row))
            except UNREADABLE as e:
                self._unreadable.append(f'claim {row.id} of {row.consumer}: cannot be read: {e}')
        self.leases: dict[str, float] = dict(tx.all(LEASES)) if self.found else {}
        self._guests = reservation_audit.guests_of_members(self.found)
        self._given_up: dict[str, frozenset[str]] = {}
        groups = sorted({group for group, _ in self._guests})
        for start in range(0, len(groups), PART):
            for row in tx.all(PLANS.where(_t.c.group_uuid.in_(groups[start : start + PART]))):
                try:
                    self._given_up[row.group_uuid] = group_answer.given_up(bytes(row.plan))
                except UNREADABLE as e:
                    self._unreadable.append(f'plan of group {row.group_uuid}: cannot be read: {e}')

    def doubled(self) -> Iterable[str]:
        """Yield a line for each member with two reservations, or two guests."""
        yield from reservation_audit.doubled(self.found)
        yield from reservation_audit.run_twice(self._guests, self._given_up)

    def unreadable(self) -> Iterable[str]:
        """Return a line for each reservation that cannot be read as a claim."""
        return iter(self._unreadable)
