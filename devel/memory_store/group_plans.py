# SPDX-License-Identifier: Apache-2.0
"""Plans of groups and their places in memory, read and ended."""

from collections.abc import Collection

import msgspec

from devel.memory_store.database import MemoryDatabase, atomic
from gantt import exceptions
from gantt.core.claims.claim import Claim, Event
from gantt.core.claims.reservations import (
    GroupPlanRecord,
    check_planned_by,
    extended_reservation,
    is_reservation_of_plan,
    plan_lease_end,
    released_from_plan,
    sorted_by_member,
)
from gantt.scheduler.ports.requests import ClaimOutcome, ClaimResult


class MemoryGroupPlans:
    """Plans of groups: ``ports.GroupPlans`` in memory; a plan is created by a request's commit."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    @atomic
    def zones_of_groups(self, uuids: Collection[str]) -> dict[str, set[str]]:
        return {}

    def load_group_plan(self, uuid: str) -> GroupPlanRecord | None:
        return self.database.tables.plans.get(uuid)

    @atomic
    def group_plans(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[GroupPlanRecord]:
        plans = [
            plan
            for uuid, plan in sorted(self.database.tables.plans.items())
            if (marker is None or uuid > marker) and project in (None, plan.project_id)
        ]
        return plans[:limit]

    @atomic
    def load_reservations(
        self, uuids: Collection[str], *, ended: bool = False
    ) -> dict[str, list[Claim]]:
        claims_of_group: dict[str, list[Claim]] = {uuid: [] for uuid in sorted(set(uuids))}
        for claim in self.database.tables.claims.values():
            is_member = claim.group in claims_of_group and claim.member_name is not None
            if claim.group is not None and is_member and (ended or claim.is_live):
                claims_of_group[claim.group].append(claim)
        return {uuid: sorted_by_member(claims) for uuid, claims in claims_of_group.items()}

    @atomic
    def extend_plan(
        self, uuid: str, seconds: float, most: float, spare: Collection[str] = ()
    ) -> ClaimResult:
        plan, until = self._plan(uuid), self.database.now + min(seconds, most)
        outcomes, leases = [], [plan.lease_until]
        for claim in self.load_reservations([uuid])[uuid]:
            if claim.id in spare and claim.is_free_reservation:
                outcomes.append(_outcome(claim, 'kept'))
                continue
            becomes = extended_reservation(claim, until, most, self.database.now)
            if becomes is not claim:
                self.database.tables.put_claim(becomes)
            if is_reservation_of_plan(claim):
                leases.append(plan_lease_end(becomes))
            outcomes.append(_outcome(claim, 'ok' if is_reservation_of_plan(claim) else 'kept'))
        until = max(leases)
        self.database.tables.plans[uuid] = msgspec.structs.replace(
            plan, lease_until=until, updated_at=self.database.now
        )
        return ClaimResult(outcomes=outcomes, hosts=self.database.tables.write())

    @atomic
    def release_plan(
        self,
        uuid: str,
        reason: str,
        members: Collection[str] = (),
        planned_by: str | None = None,
    ) -> ClaimResult:
        check_planned_by(self._plan(uuid), planned_by)
        outcomes = []
        for claim in self.load_reservations([uuid])[uuid]:
            if members and claim.member_name not in members:
                continue
            if claim.is_free_reservation:
                outcomes += self.database.tables.happen(
                    [claim], Event.CANCEL, reason or 'plan released', self.database.now
                )
                continue
            if claim.is_taken:
                self.database.tables.put_claim(released_from_plan(claim, self.database.now))
            outcomes.append(_outcome(claim, 'kept'))
        if not members:
            del self.database.tables.plans[uuid]
        return ClaimResult(outcomes=outcomes, hosts=self.database.tables.write())

    def _plan(self, uuid: str) -> GroupPlanRecord:
        """Return the plan of a group.  :raises NotFound: it has none
        :raises NotFound: it has none
        """
        plan = self.database.tables.plans.get(uuid)
        if plan is None:
            raise exceptions.NotFound(kind='plan of group', name=uuid)
        return plan


def _outcome(claim: Claim, outcome: str) -> ClaimOutcome:
    return ClaimOutcome(claim_id=claim.id, outcome=outcome, state=claim.state.value)
