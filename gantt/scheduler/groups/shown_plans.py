# SPDX-License-Identifier: Apache-2.0
"""A plan as it is shown: what is stored of it, what its members are now, whether it still holds."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gantt import exceptions
from gantt.core.claims.claim import guest_of
from gantt.core.claims.places import GroupPlanRecord
from gantt.core.group_policies.levels import Levels
from gantt.core.group_policies.violated import StandingMember, StandingViolation, violated
from gantt.core.groups import group_answer, plan_view
from gantt.core.groups.group_answer import StoredPlan
from gantt.core.groups.plan_view import GroupMemberView, GroupPlanView, is_host_up
from gantt.core.messages.group_description import GroupDescription
from gantt.core.table.host_table import HostTable
from gantt.scheduler.ports import GroupPlans


def view_of(
    store: GroupPlans,
    record: GroupPlanRecord,
    table: HostTable,
    stale_after: float,
    *,
    check: bool = False,
) -> GroupPlanView:
    """The plan of a record.

    :param stale_after: seconds after which a host that has not reported is down
    :param check: look whether those that stand meet its policies
    """
    plan, problem = _read(record)
    description = None if plan is None else plan.description
    claims = store.load_places([record.group_uuid], ended=True)[record.group_uuid]

    def answers(provider_id: int) -> bool:
        return is_host_up(table, provider_id, stale_after)

    members = plan_view.members(
        description,
        claims,
        table.now,
        answers,
        levels_of(table, description),
        () if plan is None else plan.given_up,
    )
    # Of a member that was healed the guest before may be there still, or again: not by its name.
    shown = {one.claim_id for one in members}
    named = {guest_of(claim) for claim in claims if claim.id in shown}
    on_hosts = table.placed.in_group(record.group_uuid).values()
    others = sorted({consumer for of in on_hosts for consumer in of} - named)
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
        violated=_violated(table, description, members) if check and description else None,
        problem=problem,
    )


def _read(record: GroupPlanRecord) -> tuple[StoredPlan | None, str]:
    """What a record says, or why nothing is known of that."""
    try:
        return group_answer.read_plan(record), ''
    except exceptions.PlanUnreadable as e:
        return None, e.message


def spare(
    store: GroupPlans, record: GroupPlanRecord, table: HostTable, stale_after: float
) -> set[str]:
    """Ids of places that nobody needs, as the guests are back that they were planned instead of.

    :param stale_after: seconds after which a host that has not reported is down
    """

    def answers(provider_id: int) -> bool:
        return is_host_up(table, provider_id, stale_after)

    plan, _ = _read(record)
    if plan is None:
        return set()
    claims = store.load_places([record.group_uuid])[record.group_uuid]
    is_back = plan_view.back(answers, plan.given_up)
    return {one.id for one in plan_view.spare_places(plan_view.by_name(claims, is_back))}


def states_of(
    store: GroupPlans, records: Sequence[GroupPlanRecord], table: HostTable, stale_after: float
) -> dict[str, dict[str, int]]:
    """What has become of the members of several plans: group -> state -> how many.

    :param stale_after: seconds after which a host that has not reported is down
    """
    claims = store.load_places([record.group_uuid for record in records], ended=True)

    def answers(provider_id: int) -> bool:
        return is_host_up(table, provider_id, stale_after)

    found = {}
    for record in records:
        of = claims[record.group_uuid]
        plan, _ = _read(record)
        description, given_up = (None, frozenset[str]()) if plan is None else (plan[0], plan[2])
        members = plan_view.members(description, of, table.now, answers, lambda _: {}, given_up)
        found[record.group_uuid] = dict(Counter(one.state.value for one in members))
    return found


def levels_of(
    table: HostTable, description: GroupDescription | None
) -> Callable[[int], Mapping[str, str]]:
    """From the id of a host to its domains, on parts of places and levels that policies name."""
    levels = Levels(table)
    named = [policy.level for policy in description.full_policies] if description else []
    wanted = [name for name in dict.fromkeys((*table.location_parts, *named)) if name != 'host']
    found = {}
    for name in wanted:
        try:
            found[name] = levels.on(name)
        except exceptions.InvalidMessage:
            continue  # a level that there is not any more

    def of(provider_id: int) -> dict[str, str]:
        row = table.row_of_id(provider_id)
        if row is None:
            return {}
        codes = ((name, level, int(level.codes[row])) for name, level in found.items())
        return {name: str(level.names[code]) for name, level, code in codes if code >= 0}

    return of


def _violated(
    table: HostTable, description: GroupDescription, members: list[GroupMemberView]
) -> list[StandingViolation]:
    row_of = {host.name: host.id for host in table.hosts}
    stands = [
        StandingMember(one.name, one.member, one.consumer, row_of[one.host])
        for one in members
        if one.member and one.consumer and one.host in row_of and one.state != 'expired'
    ]
    return violated(table, description, stands)
