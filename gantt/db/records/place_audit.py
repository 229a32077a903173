# SPDX-License-Identifier: Apache-2.0
"""Places of plans as the audit looks at them."""

from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from gantt.core.claims.claim import State
from gantt.core.claims.place_audit import AuditedPlace
from gantt.core.messages.request import Lifecycle
from gantt.db.engine import session
from gantt.db.hosts import planned
from gantt.db.schema import claim_form, models

_c = models.claims
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
    )
    .where(
        claim_form.is_live,
        sa.or_(_c.c.member_name.is_not(None), _c.c.planned.is_not(None)),
        # Those with other words are another finding.
        _c.c.state.in_([one.value for one in State]),
        _c.c.lifecycle.in_([one.value for one in Lifecycle]),
    )
    .order_by(_c.c.id)
)
LEASES = sa.select(_t.c.group_uuid, _t.c.lease_until)


class AuditedPlaces:
    """Those of one look, and lines about what cannot be read of them."""

    def __init__(self, tx: session.Tx) -> None:
        self.found: list[AuditedPlace] = []
        self._unreadable: list[str] = []
        for row in tx.all(PLACES):
            try:
                held = planned.of_text(row.planned)
            except msgspec.MsgspecError as e:
                self._unreadable.append(f'claim {row.id} of {row.consumer}: cannot be read: {e}')
                continue
            self.found.append(
                AuditedPlace(
                    id=row.id,
                    consumer=row.consumer,
                    group=row.group_uuid,
                    member_name=row.member_name,
                    state=State(row.state),
                    lifecycle=Lifecycle(row.lifecycle),
                    lease_until=row.lease_until,
                    planned=held,
                )
            )
        self.leases: dict[str, float] = dict(tx.all(LEASES)) if self.found else {}

    def unreadable(self) -> Iterable[str]:
        """A line for each that is no claim to whoever reads it."""
        return iter(self._unreadable)
