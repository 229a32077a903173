# SPDX-License-Identifier: Apache-2.0
"""Reservations of plans, as the audit reads them."""

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from gantt.core.claims import reservations
from gantt.core.claims.claim import State
from gantt.core.claims.reservations import AuditedReservation
from gantt.core.messages.request import Lifecycle
from gantt.core.records.members import replaced_guests
from gantt.db.engine import session
from gantt.db.hosts import claim_rows
from gantt.db.hosts.rows import DECODE_ERRORS
from gantt.db.schema import models

_claims = models.claims
_providers = models.providers
_group_plans = models.group_plans

SELECT_RESERVATIONS = (
    sa.select(
        _claims.c.id,
        _claims.c.consumer,
        _claims.c.group_uuid,
        _claims.c.member_name,
        _claims.c.state,
        _claims.c.lifecycle,
        _claims.c.lease_until,
        _claims.c.former_reservation,
        claim_rows.GUEST_UUID.label('guest'),
        _claims.c.adopted,
        _claims.c.created_at,
        sa.func.coalesce(_providers.c.name, '').label('host'),
        sa.func.coalesce(_providers.c.reported_at, 0).label('seen_at'),
    )
    .select_from(_claims.outerjoin(_providers, _providers.c.id == _claims.c.provider_id))
    .where(
        claim_rows.is_live,
        sa.or_(_claims.c.member_name.is_not(None), _claims.c.former_reservation.is_not(None)),
        # Claims with other values are another finding.
        _claims.c.state.in_([state.value for state in State]),
        _claims.c.lifecycle.in_([lifecycle.value for lifecycle in Lifecycle]),
    )
    .order_by(_claims.c.id)
)
SELECT_PLAN_LEASES = sa.select(_group_plans.c.group_uuid, _group_plans.c.lease_until)
SELECT_PLANS = sa.select(_group_plans.c.group_uuid, _group_plans.c.plan)

#: Plans that one statement reads.
PLANS_PER_STATEMENT = 100


def _place(row: Any) -> AuditedReservation:
    return AuditedReservation(
        id=row.id,
        consumer=row.consumer,
        group=row.group_uuid,
        member_name=row.member_name,
        state=State(row.state),
        lifecycle=Lifecycle(row.lifecycle),
        lease_until=row.lease_until,
        former_reservation=claim_rows.decode_former_reservation(row.former_reservation),
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
        for row in tx.all(SELECT_RESERVATIONS):
            try:
                self.found.append(_place(row))
            except DECODE_ERRORS as e:
                self._unreadable.append(f'claim {row.id} of {row.consumer}: cannot be read: {e}')
        self.leases: dict[str, float] = dict(tx.all(SELECT_PLAN_LEASES)) if self.found else {}
        self._guests = reservations.guests_of_members(self.found)
        self._replaced_by_group: dict[str, frozenset[str]] = {}
        groups = sorted({group for group, _ in self._guests})
        for part in session.in_parts(groups, PLANS_PER_STATEMENT):
            for row in tx.all(SELECT_PLANS.where(_group_plans.c.group_uuid.in_(part))):
                try:
                    self._replaced_by_group[row.group_uuid] = replaced_guests(bytes(row.plan))
                except DECODE_ERRORS as e:
                    self._unreadable.append(f'plan of group {row.group_uuid}: cannot be read: {e}')

    def doubled(self) -> Iterable[str]:
        """Yield a line for each member with two reservations, or two guests."""
        yield from reservations.doubled_members(self.found)
        yield from reservations.guests_running_twice(self._guests, self._replaced_by_group)

    def unreadable(self) -> Iterable[str]:
        """Return a line for each reservation that cannot be read as a claim."""
        return iter(self._unreadable)
