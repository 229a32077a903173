# SPDX-License-Identifier: Apache-2.0
"""Plans of groups and their reservations: created by a commit, extended, released, read.

The row of the group's rule is the lock of its plan: every transaction that writes a plan locks
it first, before the providers that reservations are on.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

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
from gantt.db.claims import groups, held
from gantt.db.claims.unit_of_work import UnitOfWork, lock_claims, providers_of
from gantt.db.database import SqlStore, reading, writing
from gantt.db.engine import session
from gantt.db.engine.engine import is_id
from gantt.db.engine.retry import RetryTransaction
from gantt.db.hosts.claim_rows import is_live, load_claims
from gantt.db.schema import models
from gantt.scheduler.ports.requests import ClaimOutcome, ClaimResult

_claims = models.claims
_group_plans = models.group_plans

_ids: Any = sa.bindparam('ids', expanding=True)
SELECT_PLANS = (
    sa.select(_group_plans)
    .where(_group_plans.c.group_uuid.in_(_ids))
    .order_by(_group_plans.c.group_uuid)
)
UPDATE_PLAN = (
    _group_plans.update()
    .where(
        _group_plans.c.group_uuid == sa.bindparam('b_uuid'),
        _group_plans.c.revision == sa.bindparam('b_revision'),
    )
    .values(
        session.bound(
            *(c.name for c in _group_plans.c if c.name not in ('group_uuid', 'created_at'))
        )
    )
)
UPDATE_PLAN_LEASE = (
    _group_plans.update()
    .where(_group_plans.c.group_uuid == sa.bindparam('b_uuid'))
    .values(session.bound('lease_until', 'updated_at'))
)
DELETE_PLAN = _group_plans.delete().where(_group_plans.c.group_uuid == sa.bindparam('b_uuid'))


# -- within a transaction -----------------------------------------------------------
def load(tx: session.Tx, uuids: Sequence[str]) -> list[GroupPlanRecord]:
    """Return the plans of groups, by uuid."""
    return [record_of(row) for row in tx.all(SELECT_PLANS, ids=list(uuids))]


def member_claims_by_group(
    tx: session.Tx, uuids: Sequence[str], *, ended: bool = False
) -> dict[str, list[Claim]]:
    """Return the claims of members of planned groups, by group; every group is a key.

    :param ended: also ended claims
    """
    claims_of_group: dict[str, list[Claim]] = {uuid: [] for uuid in uuids}
    where: list[Any] = [
        _claims.c.group_uuid.in_(sorted(claims_of_group)),
        _claims.c.member_name.is_not(None),
    ]
    if not ended:
        where.append(is_live)
    for claim in load_claims(tx, where=where) if claims_of_group else ():
        if claim.group is not None:
            claims_of_group[claim.group].append(claim)
    return claims_of_group


def save(
    tx: session.Tx, plans: Sequence[GroupPlanRecord], stored: Mapping[str, GroupPlanRecord]
) -> None:
    """Store plans; the rows of their groups are locked.

    :param stored: the plans as read under these locks
    :raises RetryTransaction: another plan was stored meanwhile, where locks are local to a node
    """
    new_rows, changed_rows = [], []
    for plan in plans:
        values = {
            'request_id': plan.request_id,
            'project_id': plan.project_id,
            'user_id': plan.user_id,
            'description': plan.description,
            'plan': plan.plan,
            'revision': plan.revision,
            'lease_until': plan.lease_until,
            'updated_at': tx.now,
        }
        if plan.group_uuid in stored:
            revision_before = stored[plan.group_uuid].revision
            changed_rows.append(
                {'b_uuid': plan.group_uuid, 'b_revision': revision_before, **values}
            )
        else:
            new_rows.append({'group_uuid': plan.group_uuid, 'created_at': tx.now, **values})
    tx.run_many(_group_plans.insert(), new_rows)
    if changed_rows and tx.run_many(UPDATE_PLAN, changed_rows) != len(changed_rows):
        raise RetryTransaction('a plan was written meanwhile')


def record_of(row: Any) -> GroupPlanRecord:
    """Return the stored plan of a row."""
    values = dict(row._mapping)
    values |= {name: bytes(values[name]) for name in ('description', 'plan')}
    return GroupPlanRecord(**values)


# -- the port -----------------------------------------------------------------------
class SqlGroupPlans(SqlStore):
    """Plans of groups: ``ports.GroupPlans`` in SQL."""

    @reading
    def load_group_plan(self, tx: session.Tx, uuid: str) -> GroupPlanRecord | None:
        plans = load(tx, [uuid]) if is_id(uuid) else []
        return plans[0] if plans else None

    @reading
    def group_plans(
        self, tx: session.Tx, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[GroupPlanRecord]:
        query = sa.select(_group_plans).order_by(_group_plans.c.group_uuid).limit(limit)
        if marker is not None:
            query = query.where(_group_plans.c.group_uuid > marker)
        if project is not None:
            query = query.where(_group_plans.c.project_id == project)
        return [record_of(row) for row in tx.all(query)]

    @reading
    def load_reservations(
        self, tx: session.Tx, uuids: Collection[str], *, ended: bool = False
    ) -> dict[str, list[Claim]]:
        claims_of_group = member_claims_by_group(tx, sorted(filter(is_id, set(uuids))), ended=ended)
        return {
            uuid: sorted_by_member(claims_of_group.get(uuid, ())) for uuid in sorted(set(uuids))
        }

    @reading
    def zones_of_groups(self, tx: session.Tx, uuids: Collection[str]) -> dict[str, set[str]]:
        return held.zones_of_groups(tx, uuids)

    @writing
    def extend_plan(
        self,
        tx: session.Tx,
        uuid: str,
        seconds: float,
        most: float,
        spare: Collection[str] = (),
    ) -> ClaimResult:
        plan = _locked(tx, uuid)
        until = tx.now + min(seconds, most)
        changes = UnitOfWork(tx, self.database.memory)
        outcomes, leases = [], [plan.lease_until]
        for claim in _lock_reservations(changes, uuid):
            if claim.id in spare and claim.is_free_reservation:
                outcomes.append(_outcome(claim, 'kept'))
                continue
            claim_now = extended_reservation(claim, until, most, tx.now)
            if claim_now is not claim:
                changes.change_claim(claim, claim_now)
            if is_reservation_of_plan(claim):
                leases.append(plan_lease_end(claim_now))
            outcomes.append(_outcome(claim, 'ok' if is_reservation_of_plan(claim) else 'kept'))
        changes.write()
        until = max(leases)
        tx.run_many(
            UPDATE_PLAN_LEASE, [{'b_uuid': uuid, 'lease_until': until, 'updated_at': tx.now}]
        )
        return changes.result(outcomes)

    @writing
    def release_plan(
        self,
        tx: session.Tx,
        uuid: str,
        reason: str,
        members: Collection[str] = (),
        planned_by: str | None = None,
    ) -> ClaimResult:
        check_planned_by(_locked(tx, uuid), planned_by)
        changes = UnitOfWork(tx, self.database.memory)
        outcomes = []
        for claim in _lock_reservations(changes, uuid):
            if members and claim.member_name not in members:
                continue
            if claim.is_free_reservation:
                outcomes += changes.end_by_event([claim], Event.CANCEL, reason or 'plan released')
                continue
            if claim.is_taken:
                changes.change_claim(claim, released_from_plan(claim, tx.now))
            outcomes.append(_outcome(claim, 'kept'))
        changes.write()
        if not members:
            tx.run(DELETE_PLAN, b_uuid=uuid)
        return changes.result(outcomes)


def _locked(tx: session.Tx, uuid: str) -> GroupPlanRecord:
    """Lock and return the plan of a group.

    :raises NotFound: the group has no plan
    """
    plans = load(tx, [uuid]) if is_id(uuid) and groups.lock_groups(tx, [uuid]) else []
    if not plans:
        raise exceptions.NotFound(kind='plan of group', name=uuid)
    return plans[0]


def _lock_reservations(changes: UnitOfWork, uuid: str) -> list[Claim]:
    """Return the live claims of members, with all their providers locked."""
    places = member_claims_by_group(changes.tx, [uuid])[uuid]
    return sorted_by_member(
        lock_claims(changes, [claim.id for claim in places], providers_of(places))
    )


def _outcome(claim: Claim, outcome: str) -> ClaimOutcome:
    return ClaimOutcome(
        claim_id=claim.id,
        outcome=outcome if claim.is_live else 'gone',
        state=claim.state.value,
    )
