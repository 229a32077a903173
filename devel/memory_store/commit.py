# SPDX-License-Identifier: Apache-2.0
"""The group commit on the rows of the in-memory store, step by step.

Plain on purpose: the behaviour of every other store, in the simplest way.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec

from devel.memory_store.tables import PoolRow, RequestRow, Tables
from gantt.core.claims import inheritance
from gantt.core.claims.acceptance import Acceptance, ProviderState, accepted_claims, why_closed
from gantt.core.claims.claim import (
    EXPIRING_LIFECYCLES,
    Claim,
    State,
    guest_of,
    with_state,
)
from gantt.core.claims.commit import (
    ClaimColumns,
    CommitResult,
    CommitStatus,
    RefusalKind,
    RequestDraft,
    RequestOutcome,
    consumers_of,
    consumers_to_own,
    is_plain,
    preconditions_of,
    requests_with_changed_group,
    resolve_rivals,
)
from gantt.core.claims.request_state import check_request_row, takes_over
from gantt.core.claims.reservation_commit import (
    ReservationCheck,
    check_plans,
    check_taken_reservations,
    increments_group_generation,
)
from gantt.core.claims.reservations import reservation_taken_over, restored_reservation
from gantt.core.messages.layout import layout_with_amounts
from gantt.core.resources.group_rule import GroupRule, first_generation
from gantt.core.resources.host import Group
from gantt.core.topology.free import free_topology_of

_replace = msgspec.structs.replace


def commit(tables: Tables, batch: Sequence[RequestDraft], now: float) -> CommitResult:
    """Commit one batch; see ``core.claims.commit``."""
    outcomes: dict[str, RequestOutcome] = {}
    tables.handed.clear()
    overtaken, released, remaining_places = _check_requests(tables, batch, outcomes, now)
    groups = _check_groups(tables, batch, outcomes)
    _check_plans(tables, batch, outcomes)
    going = [draft for draft in batch if draft.id not in outcomes]
    owners = tables.owners_of(consumers_to_own(going))
    live_claims = [
        claim for claim in _live_claims(tables, going) if claim.id not in remaining_places
    ]
    rivals, ended = resolve_rivals(live_claims, going, owners)
    outcomes.update(ended)
    going = [draft for draft in going if draft.id not in outcomes]
    leaving = {rival.id for rival_claims in rivals.values() for rival in rival_claims}
    going = [_inheriting(tables, draft, leaving) for draft in going]
    places = _check_reservations(tables, going, outcomes)
    going = [draft for draft in going if draft.id not in outcomes]
    judged = _accept_drafts(tables, going, rivals)
    accepted = {request_id: item.accepted for request_id, item in judged.items()}
    for draft in going:
        outcomes[draft.id] = _write_draft(tables, draft, judged[draft.id], places[draft.id], now)
        reserved = [draft.claims[index].claim.id for index in accepted[draft.id]]
        reserved += [draft.taken_reservations[index].claim_id for index in outcomes[draft.id].taken]
        # The new claim inherits from what stays, and not from these.
        for rival in (rival for claim_id in reserved for rival in rivals.get(claim_id, ())):
            released |= _release(tables, rival, f'replaced by {draft.id}', now, reserved)
        if outcomes[draft.id].outcome is CommitStatus.PLACED:
            for place in (tables.claims.get(item.claim_id) for item in draft.released_reservations):
                if place is not None and place.is_free_reservation and _is_place_of(place, draft):
                    released |= _release(tables, place, f'given back by {draft.id}', now)
    taken_places = {d.taken_reservations[i].claim_id for d in going for i in outcomes[d.id].taken}
    for place_id in sorted(remaining_places - taken_places):
        released |= _release(tables, tables.claims[place_id], 'taken over', now)
    groups |= _step_groups(tables, going, outcomes)
    for request_id in overtaken:
        if outcomes[request_id].outcome in (
            CommitStatus.DROPPED,
            CommitStatus.GROUP_CHANGED,
            CommitStatus.REJECTED,
        ):
            del tables.requests[request_id]
    written = tables.to_write
    tables.write()
    named = {p for d in batch for c in d.claims for p in c.claim.allocations} | released
    named |= {p for d in batch for place in d.taken_reservations for p in place.provider_ids}
    named |= {p for d in batch for place in d.released_reservations for p in place.provider_ids}
    hosts = {p: tables.hosts[p] for p in sorted(named) if p in tables.hosts}
    pool_ids = named & tables.pools.keys()
    # Like a database that has not read any host: it returns what it has written.
    blind = not (released or pool_ids) and all(map(is_plain, batch)) and _is_whole(batch, accepted)
    return CommitResult(
        outcomes=[outcomes[draft.id] for draft in batch],
        hosts=[] if blind else list(hosts.values()),
        stepped={p: row.version for p, row in hosts.items()} if blind else {},
        pools=[tables.pools[p].usage(p in written) for p in sorted(pool_ids)],
        freed=sorted(released),
        handed=sorted(tables.handed),
        groups=groups,
        now=now,
    )


def _check_requests(
    tables: Tables, batch: Sequence[RequestDraft], outcomes: dict[str, RequestOutcome], now: float
) -> tuple[set[str], set[int], set[str]]:
    """Stop what goes no further.

    :returns: requests whose earlier attempt has ended; providers that its claims have left; and
        its places, which end if the next attempt takes them not again
    """
    overtaken: set[str] = set()
    released: set[int] = set()
    remaining_places: set[str] = set()
    for draft in batch:
        row = tables.requests.get(draft.id)
        is_first = row is None and not draft.continues
        outcome = None if is_first else check_request_row(row, draft, now)
        if outcome is not None:
            outcomes[draft.id] = outcome
        elif takes_over(row, draft):
            overtaken.add(draft.id)
            for claim in tables.of_request(draft.id, live=True):
                if restored_reservation(claim, now) is not None:
                    remaining_places.add(claim.id)
                else:
                    released |= _release(tables, claim, 'taken over', now)
    return overtaken, released, remaining_places


def _step_groups(
    tables: Tables, going: Sequence[RequestDraft], outcomes: Mapping[str, RequestOutcome]
) -> dict[str, int]:
    """Count up the groups that gained members, or a plan; their generations."""
    changed: set[str] = set()
    for precondition in [
        d.group for d in going if d.group and increments_group_generation(d, outcomes[d.id])
    ]:
        if precondition.replaces:
            tables.groups[precondition.uuid] = tables.groups[precondition.uuid].ruled(precondition)
        changed.add(precondition.uuid)
    for uuid in sorted(changed):
        tables.bump_group(uuid)
    return {uuid: tables.groups[uuid].generation for uuid in changed}


def _inheriting(tables: Tables, draft: RequestDraft, leaving: Container[str]) -> RequestDraft:
    """Return the draft with what moving consumers have of pools by other claims counted once."""
    claims = []
    for claim_draft in draft.claims:
        claim = claim_draft.claim
        if claim.purpose.is_move:
            live_claims = tables.live_of_guest(guest_of(claim))
            staying = [other for other in live_claims if other.id not in leaving]
            claim = inheritance.with_inherited(claim, inheritance.held_outside_host(staying))
        claims.append(_replace(claim_draft, claim=claim))
    return _replace(draft, claims=ClaimColumns.of(claims))


def _is_whole(batch: Sequence[RequestDraft], accepted: Mapping[str, list[int]]) -> bool:
    """Return whether a batch was committed as planned."""
    return all(len(accepted.get(draft.id, ())) == len(draft.claims) for draft in batch)


def _live_claims(tables: Tables, going: Sequence[RequestDraft]) -> list[Claim]:
    consumers = {consumer for draft in going for consumer in consumers_of(draft)}
    return [claim for consumer in sorted(consumers) for claim in tables.live_of(consumer)]


def _release(
    tables: Tables, claim: Claim, reason: str, now: float, made: Container[str] = ()
) -> set[int]:
    ended = with_state(claim, State.RELEASED, reason, now)
    tables.put_claim(ended, no_heirs=made, ends_place=not claim.is_taken)
    return set(claim.allocations)


def _check_groups(
    tables: Tables, batch: Sequence[RequestDraft], outcomes: dict[str, RequestOutcome]
) -> dict[str, int]:
    """Stop what was planned under another rule or generation; generations of all groups named."""
    rules: dict[str, GroupRule] = {}
    for draft in batch:
        if draft.id in outcomes:
            continue
        precondition = draft.group
        if (
            precondition is not None
            and precondition.uuid not in tables.groups
            and precondition.may_be_first
        ):
            tables.groups[precondition.uuid] = Group(
                uuid=precondition.uuid,
                policy=precondition.policy,
                project_id=draft.project_id,
                generation=first_generation(tables.next_id()),
            ).ruled(precondition)
        for uuid in (member_precondition.uuid for member_precondition in preconditions_of(draft)):
            group = tables.groups.get(uuid)
            if group is not None:
                rules[uuid] = group.rule
    for request_id in requests_with_changed_group(batch, outcomes, rules):
        outcomes[request_id] = RequestOutcome(id=request_id, outcome=CommitStatus.GROUP_CHANGED)
    return {uuid: rule.generation for uuid, rule in rules.items()}


def _check_plans(
    tables: Tables, batch: Sequence[RequestDraft], outcomes: dict[str, RequestOutcome]
) -> None:
    """Stop requests that plan a group beside what others have changed of it."""
    going = [draft for draft in batch if draft.id not in outcomes]
    living: dict[str, list[Claim]] = {}
    for claim in tables.all_live():
        if claim.group is not None and claim.member_name is not None:
            living.setdefault(claim.group, []).append(claim)
    revisions = {uuid: plan.revision for uuid, plan in tables.plans.items()}
    for request_id, why in check_plans(going, revisions, living, {}).items():
        outcomes[request_id] = RequestOutcome(
            id=request_id, outcome=CommitStatus.GROUP_CHANGED, reason=why
        )


def _check_reservations(
    tables: Tables, going: Sequence[RequestDraft], outcomes: dict[str, RequestOutcome]
) -> dict[str, ReservationCheck]:
    """Return the places that each request takes over; stop requests that lack one."""
    judged: dict[str, ReservationCheck] = {}
    taken_ids: set[str] = set()
    closed = {
        row.id: f'{row.name} {why}'
        for row in tables.hosts.values()
        if (why := why_closed(row, over_full=False))
    }
    for draft in going:
        judged[draft.id] = places = check_taken_reservations(
            draft, tables.claims, taken_ids, closed
        )
        if places.ends is not None:
            outcomes[draft.id] = places.ends
        taken_ids.update(draft.taken_reservations[index].claim_id for index in places.taken)
    return judged


def _accept_drafts(
    tables: Tables, going: Sequence[RequestDraft], rivals: Mapping[str, list[Claim]]
) -> dict[str, Acceptance]:
    named = {p for d in going for c in d.claims for p in c.claim.allocations}
    rows = {p: row for p in named if (row := tables.row(p)) is not None}
    served: dict[int, set[int]] = {}
    for claim_draft in (claim_draft for draft in going for claim_draft in draft.claims):
        for pid in claim_draft.served_by:
            if tables.serves(pid, claim_draft.claim.provider_id):
                served.setdefault(pid, set()).add(claim_draft.claim.provider_id)
    hosts = {c.claim.provider_id for d in going for c in d.claims if c.claim.layout is not None}
    insides = {
        p: free_topology_of(
            tables.hosts[p].facts, [layout_with_amounts(c.layout) for c in tables.live_on(p)]
        )
        for p in hosts
        if p in tables.hosts
    }
    classes = {n for d in going for c in d.claims for a in c.claim.allocations.values() for n in a}
    states = {}
    for p, row in rows.items():
        if isinstance(row, PoolRow):
            name, inventories, closed = tables.places[p].name, row.inventories, ''
        else:
            name, inventories = row.name, row.facts.inventories
            closed = why_closed(row, over_full=row.over_committed)
        states[p] = ProviderState(
            name=name,
            generation=row.generation,
            inventories=inventories,
            room={resource_class: row.free(resource_class) for resource_class in classes},
            closed=closed,
            serves=frozenset(served.get(p, ())),
            inside=insides.get(p),
        )
    return accepted_claims(states, going, rivals)


def _write_draft(
    tables: Tables, draft: RequestDraft, judged: Acceptance, places: ReservationCheck, now: float
) -> RequestOutcome:
    accepted, refusal = judged.accepted, judged.refusal
    why: dict[str, Any] = {}
    if places.reason:
        why = {'reason': places.reason, 'refused': RefusalKind.RESERVATION}
    if refusal is not None:
        why = {'reason': refusal.reason, 'refused': refusal.kind}
    taken_places = [] if refusal is not None and draft.whole else places.taken
    until = now + draft.lease_seconds
    if draft.plan is not None:
        until = max(until, _plan_lease(tables, draft.plan.group_uuid))
    for take in (draft.taken_reservations[index] for index in taken_places):
        place = tables.claims[take.claim_id]
        tables.put_claim(reservation_taken_over(place, take, draft.id, draft.attempt, until, now))
    for index in accepted:
        claim = draft.claims[index].claim
        expires = claim.lifecycle in EXPIRING_LIFECYCLES
        tables.put_claim(
            _replace(
                claim,
                state=State.RESERVED,
                lease_until=until if expires else claim.lease_until,
                created_at=now,
                updated_at=now,
            )
        )
    is_all = len(accepted) == len(draft.claims) and len(taken_places) == len(
        draft.taken_reservations
    )
    placed = draft.completes and is_all
    if not accepted and not taken_places and not placed:
        return RequestOutcome(
            id=draft.id, outcome=CommitStatus.DROPPED, attempt=draft.attempt, **why
        )
    before = tables.requests.get(draft.id)
    claims_before = before.claims if before is not None and before.attempt == draft.attempt else 0
    tables.requests[draft.id] = RequestRow(
        id=draft.id,
        fingerprint=draft.fingerprint,
        state='placed' if placed else 'open',
        owner=draft.owner,
        attempt=draft.attempt,
        deadline=now + draft.budget_seconds,
        answer=draft.answer if placed else b'',
        # Of its places a plan has those only that no create takes.
        claims=0 if draft.plan is not None else claims_before + len(accepted),
    )
    if draft.plan is not None and placed:
        earlier = tables.plans.get(draft.plan.group_uuid)
        tables.plans[draft.plan.group_uuid] = _replace(
            draft.plan,
            lease_until=until,
            created_at=now if earlier is None else earlier.created_at,
            updated_at=now,
        )
    return RequestOutcome(
        id=draft.id,
        outcome=CommitStatus.PLACED if placed else CommitStatus.PARTIAL,
        accepted=accepted,
        taken=taken_places,
        attempt=draft.attempt,
        **why,
    )


def _is_place_of(place: Claim, draft: RequestDraft) -> bool:
    """Return whether a place is one of the plan of a draft."""
    return draft.plan is not None and place.group == draft.plan.group_uuid


def _plan_lease(tables: Tables, uuid: str) -> float:
    """Return until when the plan of a group holds its places; 0: there is none."""
    plan = tables.plans.get(uuid)
    return 0.0 if plan is None else plan.lease_until
