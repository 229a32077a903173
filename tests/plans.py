# SPDX-License-Identifier: Apache-2.0
"""Drafts that plan a group, and drafts of creates that take over its places."""

from collections.abc import Mapping

import msgspec

from gantt.core.claims.claim import Claim, claim_id
from gantt.core.claims.commit import ClaimDraft, GroupPrecondition
from gantt.core.claims.reservations import GroupPlanRecord, TakenReservation, placeholder_consumer
from gantt.core.messages.policy_set import POLICIES_POLICY, Policy, PolicySet
from gantt.core.messages.request import Lifecycle
from gantt.stores import AllStores
from tests.builders import ADraft, Host, a_draft, amounts, new_uuid, report_outcome

DOCUMENT = PolicySet(policies=[Policy.SOFT_ANTI_AFFINITY]).text


def a_plan(
    group: str,
    hosts: Mapping[str, Host],
    *,
    revision: int = 1,
    generation: int = 0,
    seconds: float = 3600.0,
    project: str | None = None,
    precondition: GroupPrecondition | None = None,
    request_id: str | None = None,
    **short: int,
) -> ADraft:
    """Return a request that plans members of a group by name, each on its host."""
    precondition = precondition or GroupPrecondition(
        group, generation, POLICIES_POLICY, policies=DOCUMENT
    )
    draft = a_draft(request_id, group=precondition, project_id=project).whole().leased(seconds)
    claims = []
    for number, (name, host) in enumerate(hosts.items()):
        claim = Claim(
            id=claim_id(draft.id, 1, number),
            request_id=draft.id,
            member=number,
            consumer=placeholder_consumer(group, name),
            provider_id=host.id,
            host=host.name,
            lifecycle=Lifecycle.PLAN,
            allocations={host.id: amounts(**(short or {'vcpu': 1}))},
            group=group,
            member_name=name,
            project_id=project,
            flavor='planned',
        )
        claims.append(ClaimDraft(claim=claim))
    plan = GroupPlanRecord(
        group_uuid=group,
        request_id=draft.id,
        project_id=project,
        description=b'{}',
        plan=b'packed',
        revision=revision,
    )
    return draft.having(claims=claims, plan=plan)


def planned(store: AllStores, hosts: Mapping[str, Host], **fields: object) -> dict[str, Claim]:
    """Plan a group; return its places by the names of their members."""
    group = str(fields.pop('group', None) or new_uuid())
    outcome = report_outcome(store, a_plan(group, hosts, **fields))  # type: ignore[arg-type]
    assert outcome.outcome == 'placed', outcome
    return places(store, group)


def places(store: AllStores, group: str) -> dict[str, Claim]:
    """Return the live claims of members by their names, of which there is one each."""
    claims = store.plans.load_reservations([group])[group]
    by_name = {claim.member_name: claim for claim in claims if claim.member_name is not None}
    assert len(by_name) == len(claims)
    return by_name


def by(place: Claim, consumer: str | None = None, **fields: object) -> TakenReservation:
    """Return a place as a create names it."""
    assert place.group is not None and place.member_name is not None
    return TakenReservation(
        claim_id=place.id,
        group=place.group,
        member_name=place.member_name,
        consumer=consumer or new_uuid(),
        provider_ids=tuple(place.allocations),
        **{'project_id': 'p2', 'user_id': 'u2', 'flavor': 'created', **fields},  # type: ignore[arg-type]
    )


def a_create(*takes: TakenReservation, request_id: str | None = None, **fields: object) -> ADraft:
    """Return a request that takes over places, a member for each."""
    numbered = tuple(
        msgspec.structs.replace(create, member=number) for number, create in enumerate(takes)
    )
    return a_draft(request_id, taken_reservations=numbered, first_member=len(takes), **fields)


def created(
    store: AllStores,
    place: Claim,
    consumer: str | None = None,
    request_id: str | None = None,
    **fields: object,
) -> ADraft:
    """Return a create that has taken over a place."""
    draft = a_create(by(place, consumer), request_id=request_id, **fields)
    outcome = report_outcome(store, draft)
    assert (outcome.outcome, outcome.taken) == ('placed', [0]), outcome
    return draft
