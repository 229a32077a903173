# SPDX-License-Identifier: Apache-2.0
"""What the store is asked for by a plan: its places as claims, its rule, and other groups."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims import inheritance
from gantt.core.claims.claim import claim_id
from gantt.core.claims.commit import ClaimDraft, GroupSwap
from gantt.core.claims.places import place_consumer
from gantt.core.groups.group_plan import PlannedMember
from gantt.core.messages.group_description import GroupDescription, MemberDescription
from gantt.core.messages.place_group import ChangeGroup, PlaceGroup
from gantt.core.messages.policy_set import POLICIES
from gantt.core.messages.request import GroupRef, Lifecycle, RequestSpec, SelectDestinations
from gantt.core.resources.host import Group
from gantt.core.table.host_table import HostTable

#: Requests of a group: an order of its members of this number is one of so many.
Request = PlaceGroup | ChangeGroup


def numbered(
    group: str, request_id: str, attempt: int, planned: Sequence[PlannedMember]
) -> list[PlannedMember]:
    """Members with the claims that are to be their places."""
    return [
        msgspec.structs.replace(
            one,
            claim_id=claim_id(request_id, attempt, number),
            consumer=place_consumer(group, one.name),
        )
        for number, one in enumerate(planned)
    ]


class PlanOwner(NamedTuple):
    """Whose places they are."""

    project_id: str | None
    user_id: str | None


def claims_of(
    table: HostTable,
    request: Request,
    group: str,
    owner: PlanOwner,
    attempt: int,
    planned: Sequence[PlannedMember],
) -> list[ClaimDraft]:
    """A place for each member: what its host's ``instance_claim`` says, of lifecycle ``plan``.

    :param table: that they were planned on
    :param planned: see ``numbered``
    """
    members = {one.name: one for one in request.group.members}
    consumers = [one.consumer for one in planned]
    wishes: dict[tuple[str, int], SelectDestinations] = {}
    drafts = []
    for number, one in enumerate(planned):
        kind = one.member, one.alternative
        wish = wishes.get(kind)
        if wish is None:
            spec = _spec(owner, group, members[one.member], one.alternative)
            wish = wishes[kind] = SelectDestinations(
                request_id=request.request_id,
                spec=spec,
                consumers=consumers,
                lifecycle=Lifecycle.PLAN,
            )
        row = table.row_of_id(one.provider_id)
        assert row is not None, 'it was just planned there'
        host = table.host_state(row)
        claim = host.claim(wish, number, attempt, one.amounts)
        claim = msgspec.structs.replace(claim, layout=one.layout, member_name=one.name)
        shared: tuple[int, ...] = ()
        if inheritance.of_pools(claim):
            of_id = table.pools.of_id
            shared = tuple(
                pid
                for pid in claim.allocations
                if pid in of_id and of_id[pid].root != one.provider_id
            )
        generation = host.generation if one.layout is not None else None
        drafts.append(ClaimDraft(claim=claim, generation=generation, served_by=shared))
    return drafts


def _spec(owner: PlanOwner, group: str, member: MemberDescription, alternative: int) -> RequestSpec:
    return msgspec.structs.replace(
        member.specs[alternative],
        group=GroupRef(uuid=group),
        project_id=owner.project_id,
        user_id=owner.user_id,
    )


def swap(group: str, description: GroupDescription, generation: int) -> GroupSwap:
    """The rule of a planned group, whatever it had before, guarded by its generation."""
    return GroupSwap(
        uuid=group,
        generation=generation,
        policy=POLICIES,
        policies=description.policy_set.text,
        replaces=True,
    )


def swaps_of_others(
    description: GroupDescription, groups: Mapping[str, Group]
) -> tuple[GroupSwap, ...]:
    """Other groups that hard policies are about: their members may not change meanwhile.

    :param groups: as they were when it was planned, see ``other_groups``
    """
    rules = {uuid: groups[uuid].rule for uuid in description.policy_set.other_groups}
    return tuple(
        GroupSwap(
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
    """Uuid of each other group that a policy is about -> the field that names it first."""
    found: dict[str, str] = {}
    for number, policy in enumerate(description.full_policies):
        if policy.target is not None and policy.target.group is not None:
            found.setdefault(policy.target.group, f'request.group.policies[{number}].target.group')
    return found


def unknown_group(field: str, uuid: str) -> exceptions.GanttError:
    """The error of a policy about a group that is not there, or is another project's."""
    return exceptions.invalid(field, f'there is no server group {uuid}')
