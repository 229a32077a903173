# SPDX-License-Identifier: Apache-2.0
"""Views of stored plans: their content, the state of their members, whether they still hold."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gantt import exceptions
from gantt.core.claims.claim import guest_of
from gantt.core.claims.reservations import GroupPlanRecord
from gantt.core.group_policies.levels import Levels
from gantt.core.table.host_table import HostTable
from gantt.groups.model import group_answer
from gantt.groups.model.group_answer import GroupMemberView, GroupPlanView, StoredPlan, is_host_up
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.violations import PolicyViolation, PresentMember, find_violations
from gantt.scheduler.ports.group_plans import GroupPlans


def view_of(
    plans: GroupPlans,
    record: GroupPlanRecord,
    table: HostTable,
    stale_after: float,
    *,
    check: bool = False,
) -> GroupPlanView:
    """Return the view of a plan.

    :param stale_after: seconds after which a host that has not reported is down
    :param check: evaluate whether the existing members meet its policies
    """
    plan, problem = _read_plan(record)
    description = None if plan is None else plan.description
    claims = plans.load_reservations([record.group_uuid], ended=True)[record.group_uuid]

    members = group_answer.member_views(
        description,
        claims,
        table.now,
        _host_up_check(table, stale_after),
        levels_of(table, description),
        () if plan is None else plan.replaced,
    )
    # The former guest of a healed member may still exist, or again: not under its name.
    shown = {member.claim_id for member in members}
    named = {guest_of(claim) for claim in claims if claim.id in shown}
    on_hosts = table.placed.in_group(record.group_uuid).values()
    others = sorted({consumer for consumers in on_hosts for consumer in consumers} - named)
    return GroupPlanView(
        group=record.group_uuid,
        request_id=record.request_id,
        project_id=record.project_id,
        user_id=record.user_id,
        revision=record.revision,
        lease_seconds=max(0.0, record.lease_until - table.now),
        age_seconds=max(0.0, table.now - record.updated_at),
        description=description,
        members=members,
        others=others,
        decided=None if plan is None else plan.decided,
        violated=_violations_now(table, description, members) if check and description else None,
        problem=problem,
    )


def _host_up_check(table: HostTable, stale_after: float) -> Callable[[int], bool]:
    """Return a function that returns whether a host responds, by its id."""
    return lambda provider_id: is_host_up(table, provider_id, stale_after)


def _read_plan(record: GroupPlanRecord) -> tuple[StoredPlan | None, str]:
    """Return the plan of a record, or the reason why it is unreadable."""
    try:
        return group_answer.read_plan(record), ''
    except exceptions.PlanUnreadable as e:
        return None, e.message


def ids_of_spare_reservations(
    plans: GroupPlans, record: GroupPlanRecord, table: HostTable, stale_after: float
) -> set[str]:
    """Return ids of reservations that are not needed: the guests that they replaced are back.

    :param stale_after: seconds after which a host that has not reported is down
    """

    plan, _ = _read_plan(record)
    if plan is None:
        return set()
    claims = plans.load_reservations([record.group_uuid])[record.group_uuid]
    is_back = group_answer.guest_back_check(_host_up_check(table, stale_after), plan.replaced)
    return {
        claim.id
        for claim in group_answer.spare_reservations(group_answer.claims_by_name(claims, is_back))
    }


def states_of(
    plans: GroupPlans, records: Sequence[GroupPlanRecord], table: HostTable, stale_after: float
) -> dict[str, dict[str, int]]:
    """Return the state of the members of several plans: group -> state -> count.

    :param stale_after: seconds after which a host that has not reported is down
    """
    claims = plans.load_reservations([record.group_uuid for record in records], ended=True)

    states, is_up = {}, _host_up_check(table, stale_after)
    for record in records:
        group_claims = claims[record.group_uuid]
        plan, _ = _read_plan(record)
        description, replaced = (None, frozenset[str]()) if plan is None else (plan[0], plan[2])
        members = group_answer.member_views(
            description, group_claims, table.now, is_up, lambda _: {}, replaced
        )
        states[record.group_uuid] = dict(Counter(member.state.value for member in members))
    return states


def levels_of(
    table: HostTable, description: GroupDescription | None
) -> Callable[[int], Mapping[str, str]]:
    """Return a mapping of host ids to domains, on parts of places and levels of policies."""
    levels = Levels(table)
    named = [policy.level for policy in description.full_policies] if description else []
    level_names = [
        name for name in dict.fromkeys((*table.location_parts, *named)) if name != 'host'
    ]
    levels_by_name = {}
    for name in level_names:
        try:
            levels_by_name[name] = levels.codes_of(name)
        except exceptions.InvalidMessage:
            continue  # a level that there is not any more

    def of(provider_id: int) -> dict[str, str]:
        row = table.row_of_id(provider_id)
        if row is None:
            return {}
        codes = ((name, level, int(level.codes[row])) for name, level in levels_by_name.items())
        return {name: str(level.names[code]) for name, level, code in codes if code >= 0}

    return of


def _violations_now(
    table: HostTable, description: GroupDescription, members: list[GroupMemberView]
) -> list[PolicyViolation]:
    row_of = {host.name: host.id for host in table.hosts}
    members_here = [
        PresentMember(member.name, member.member, member.consumer, row_of[member.host])
        for member in members
        if member.member and member.consumer and member.host in row_of and member.state != 'expired'
    ]
    return find_violations(table, description, members_here)
