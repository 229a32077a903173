# SPDX-License-Identifier: Apache-2.0
"""Claims of this zone's requests in child zones, as this zone stores them.

They count like claims here: for quotas, for server groups, and where a consumer may have one only.
"""

import msgspec

from gantt.core.claims.claim import LOST_STATE, Claim, State
from gantt.core.messages.request import Purpose

#: States of a claim that holds its consumer: it lives, or may.
HOLDING_STATES = (State.RESERVED.value, State.CONFIRMED.value, LOST_STATE)
_CLAIM_STATES = frozenset(State)


class ChildClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that a request of this zone has in a child zone.

    :ivar child: uuid of the zone
    :ivar key: the request's id there
    :ivar parent: name of the parent zone that sent the request; None: it is of this zone
    :ivar state: state as of a claim, or ``lost``
    :ivar group: uuid of the server group
    :ivar restored: its record was lost here, and restored from the zone
    :ivar resources: class -> the largest amount requested; empty: not known here
    """

    claim_id: str
    child: str
    request_id: str
    key: str
    consumer: str
    purpose: Purpose
    project_id: str | None
    parent: str | None = None
    state: str
    sealed_host: str
    group: str | None = None
    restored: bool = False
    resources: dict[str, int] = {}
    user_id: str | None = None
    consumer_type: str = 'INSTANCE'
    created_at: float = 0.0
    updated_at: float = 0.0

    @property
    def holds(self) -> bool:
        """True where the claim is live, or may be."""
        return self.state in HOLDING_STATES

    @property
    def claim(self) -> Claim:
        """The same as a claim, on a host without a name in this zone."""
        is_lost, is_known = self.state == LOST_STATE, self.state in _CLAIM_STATES
        return Claim(
            id=self.claim_id,
            request_id=self.request_id,
            consumer=self.consumer,
            provider_id=0,
            state=State(self.state) if is_known else State.CONFIRMED,
            purpose=self.purpose,
            allocations={0: self.resources} if self.resources else {},
            group=self.group,
            parent_key=self.parent,
            project_id=self.project_id,
            user_id=self.user_id,
            consumer_type=self.consumer_type,
            created_at=self.created_at,
            updated_at=self.updated_at,
            child=self.child,
            is_lost=is_lost,
            problem='' if is_known or is_lost else f'state: {self.state!r} is not known',
        )
