# SPDX-License-Identifier: Apache-2.0
"""Drafts of a plan for the store: its places as claims, its rule, and other groups."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims import inheritance
from gantt.core.claims.claim import claim_id
from gantt.core.claims.commit import ClaimColumns, ClaimDraft, GroupPrecondition
from gantt.core.claims.reservations import placeholder_consumer
from gantt.core.messages.policy_set import POLICIES_POLICY
from gantt.core.messages.request import GroupRef, Lifecycle, RequestSpec, SelectDestinations
from gantt.core.resources.host import Group
from gantt.core.table.host_table import HostTable
from gantt.groups.model.group_description import GroupDescription, MemberDescription
from gantt.groups.model.group_plan import PlannedMember
from gantt.groups.model.place_group import ChangeGroup, PlaceGroup

#: Requests of a group.
Request = PlaceGroup | ChangeGroup


def with_claim_ids(
    group: str, request_id: str, attempt: int, planned: Sequence[PlannedMember]
) -> list[PlannedMember]:
    """Return the planned members with the ids of the claims to be created for them."""
    return [
        msgspec.structs.replace(
            member,
            claim_id=claim_id(request_id, attempt, number),
            consumer=placeholder_consumer(group, member.name),
        )
        for number, member in enumerate(planned)
    ]


class PlanOwner(NamedTuple):
    """Project and user that own the reservations of a plan."""

    project_id: str | None
    user_id: str | None


def claims_of(
    table: HostTable,
    request: Request,
    group: str,
    owner: PlanOwner,
    attempt: int,
    planned: Sequence[PlannedMember],
) -> ClaimColumns:
    """Return a claim for each member: the ``instance_claim`` of its host, of lifecycle ``plan``.

    :param table: host table that the members were planned on
    :param planned: see ``with_claim_ids``
    """
    members = {member.name: member for member in request.group.members}
    consumers = [place.consumer for place in planned]
    host_requests: dict[tuple[str, int], SelectDestinations] = {}
    drafts = ClaimColumns()
    for number, place in enumerate(planned):
        kind = place.member, place.alternative
        host_request = host_requests.get(kind)
        if host_request is None:
            spec = _spec(owner, group, members[place.member], place.alternative)
            host_request = host_requests[kind] = SelectDestinations(
                request_id=request.request_id,
                spec=spec,
                consumers=consumers,
                lifecycle=Lifecycle.PLAN,
            )
        row = table.row_of_id(place.provider_id)
        assert row is not None, 'it was just planned there'
        host = table.host_state(row)
        claim = host.claim(host_request, number, attempt, place.amounts)
        claim = msgspec.structs.replace(claim, layout=place.layout, member_name=place.name)
        shared: tuple[int, ...] = ()
        if inheritance.has_pool_amounts(claim):
            of_id = table.pools.by_id
            shared = tuple(
                pid
                for pid in claim.allocations
                if pid in of_id and of_id[pid].root != place.provider_id
            )
        generation = host.generation if place.layout is not None else None
        drafts.add(ClaimDraft(claim=claim, generation=generation, served_by=shared))
    return drafts


def _spec(owner: PlanOwner, group: str, member: MemberDescription, alternative: int) -> RequestSpec:
    return msgspec.structs.replace(
        member.specs[alternative],
        group=GroupRef(uuid=group),
        project_id=owner.project_id,
        user_id=owner.user_id,
    )


def precondition(group: str, description: GroupDescription, generation: int) -> GroupPrecondition:
    """Return the rule of a planned group, which replaces an earlier one of the same generation."""
    return GroupPrecondition(
        uuid=group,
        generation=generation,
        policy=POLICIES_POLICY,
        policies=description.policy_set.text,
        replaces=True,
    )


def preconditions_of_others(
    description: GroupDescription, groups: Mapping[str, Group]
) -> tuple[GroupPrecondition, ...]:
    """Return the groups that hard policies are about: their members may not change meanwhile.

    :param groups: as they were when it was planned, see ``other_groups``
    """
    rules = {uuid: groups[uuid].rule for uuid in description.policy_set.other_groups}
    return tuple(
        GroupPrecondition(
            uuid=uuid,
            generation=rule.generation,
            policy=rule.policy,
            max_per_host=rule.max_per_host,
            makes=False,
            policies=rule.policies,
        )
        for uuid, rule in rules.items()
    )


def other_groups(description: GroupDescription) -> dict[str, str]:
    """Return the uuid of each other group of a policy -> the field that names it first."""
    fields: dict[str, str] = {}
    for number, policy in enumerate(description.full_policies):
        if policy.target is not None and policy.target.group is not None:
            fields.setdefault(policy.target.group, f'request.group.policies[{number}].target.group')
    return fields


def unknown_group(field: str, uuid: str) -> exceptions.GanttError:
    """Return the error of a policy about a group that does not exist, or is another project's."""
    return exceptions.invalid(field, f'expected a known server group; got {uuid}')
