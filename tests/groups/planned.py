# SPDX-License-Identifier: Apache-2.0
"""Groups with a plan, for tests of what comes after: planned by the engine, committed as one
request, without a process that plans."""

import time
from typing import Any, NamedTuple

import msgspec

from gantt.core.claims.claim import Claim, State, claim_id
from gantt.core.claims.commit import (
    ClaimColumns,
    ClaimDraft,
    CommitStatus,
    GroupPrecondition,
    RequestDraft,
)
from gantt.core.claims.reservations import GroupPlanRecord, placeholder_consumer
from gantt.core.messages.request import GroupRef, Lifecycle, SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.core.records.members import pack
from gantt.core.resources.group_rule import POLICIES_POLICY
from gantt.groups.model import group_answer, group_description
from gantt.groups.model.group_answer import GroupAnswer
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.plan_group import plan_group
from tests.world import World, a_request, new_uuid

SPEC = {'resources': {'VCPU': 1, 'MEMORY_MB': 1024, 'DISK_GB': 1}}
LARGE = {'resources': {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 1}}


def a_body(*members: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Three web servers apart from each other, and a database beside; or other members."""
    return {
        'policies': ['anti-affinity'],
        'members': list(members)
        or [{'name': 'web', 'count': 3, 'spec': SPEC}, {'name': 'db', 'spec': LARGE}],
        **fields,
    }


class PlannedGroup(NamedTuple):
    """A group that was planned.

    :ivar hosts: name of a member -> the host of its place
    :ivar claims: name of a member -> id of the claim that is its place
    """

    uuid: str
    request_id: str
    description: GroupDescription
    hosts: dict[str, str]
    claims: dict[str, str]

    def request(
        self, member: str | None = None, count: int = 1, spec: dict[str, Any] = SPEC, **top: Any
    ) -> SelectDestinations:
        """A create of so many consumers in it, as ``web`` is described unless told otherwise."""
        template = a_request(count, **top)
        body = {**spec, 'group': msgspec.to_builtins(GroupRef(uuid=self.uuid, member=member))}
        return msgspec.structs.replace(template, spec=msgspec.convert(body, type(template.spec)))


def plan(
    world: World,
    body: dict[str, Any] | None = None,
    *,
    uuid: str | None = None,
    lease_seconds: float = 3600.0,
    project_id: str | None = None,
) -> PlannedGroup:
    """Plan a group over the hosts of a world, and claim its places."""
    world.turn(times=2)
    uuid, request_id = uuid or new_uuid(), new_uuid()
    description = group_description.read({**(body or a_body()), 'uuid': uuid})
    scheduler = world.scheduler
    table = scheduler.cache.working.copy()
    group_plan = plan_group(
        table,
        description,
        scheduler.placing.pipeline,
        clock=time.monotonic,
        seconds=0.05,
        seed=1,
    )
    assert not group_plan.missing, group_plan
    specs = {member.name: member.specs for member in description.members}
    claims = [
        Claim(
            id=claim_id(request_id, 1, number),
            request_id=request_id,
            member=number,
            consumer=placeholder_consumer(uuid, member.name),
            provider_id=member.provider_id,
            host=member.host,
            state=State.RESERVED,
            lifecycle=Lifecycle.PLAN,
            allocations={member.provider_id: specs[member.member][member.alternative].resources},
            group=uuid,
            member_name=member.name,
            project_id=project_id,
        )
        for number, member in enumerate(group_plan.members)
    ]
    loaded = world.store.groups.load_group(uuid)
    policies = description.policy_set
    answer = Answer(request_id=request_id, decision_id='', outcome=Outcome.PLACED)
    draft = RequestDraft(
        id=request_id,
        fingerprint=new_uuid(),
        owner='planner',
        whole=True,
        lease_seconds=lease_seconds,
        project_id=project_id,
        claims=ClaimColumns.of([ClaimDraft(claim=claim) for claim in claims]),
        group=GroupPrecondition(
            uuid=uuid,
            generation=0 if loaded is None else loaded.generation,
            policy=POLICIES_POLICY,
            policies=policies.text,
            makes=True,
            replaces=True,
        ),
        plan=GroupPlanRecord(
            group_uuid=uuid,
            request_id=request_id,
            project_id=project_id,
            description=msgspec.json.encode(description),
            plan=group_answer.pack(
                GroupAnswer(
                    request_id=request_id,
                    group=uuid,
                    revision=1,
                    plan=group_plan,
                    lease_seconds=lease_seconds,
                )
            ),
        ),
        answer=pack(answer),
    )
    (outcome,) = world.store.requests.commit([draft]).outcomes
    assert outcome.outcome is CommitStatus.PLACED, outcome
    world.turn(times=2)
    return PlannedGroup(
        uuid=uuid,
        request_id=request_id,
        description=description,
        hosts={member.name: member.host for member in group_plan.members},
        claims={str(claim.member_name): claim.id for claim in claims},
    )
