# SPDX-License-Identifier: Apache-2.0
"""The group commit on the rows of the in-memory store, step by step.

Plain on purpose: what every other store must do, said in the simplest way.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec

from gantt.core.claims import inheritance
from gantt.core.claims.acceptance import Acceptance, ProviderState, accept, why_closed
from gantt.core.claims.claim import EXPIRES, Claim, State, guest_of
from gantt.core.claims.commit import (
    CommitResult,
    CommitStatus,
    RequestDraft,
    RequestOutcome,
    behind_others,
    consumers_to_own,
    is_plain,
    judge_rivals,
)
from gantt.core.claims.request_state import judge_request, takes_over
from gantt.core.messages.layout import unsettled
from gantt.core.resources.group_rule import GroupRule, first_generation
from gantt.core.resources.host import Group
from gantt.core.topology.free import room_of
from gantt.testing.store.tables import PoolRow, RequestRow, Tables

_replace = msgspec.structs.replace


def commit(tables: Tables, batch: Sequence[RequestDraft], now: float) -> CommitResult:
    """One batch; see ``core.claims.commit``."""
    outcomes: dict[str, RequestOutcome] = {}
    overtaken: set[str] = set()
    released: set[int] = set()
    for draft in batch:
        row = tables.requests.get(draft.id)
        is_first = row is None and not draft.continues
        outcome = None if is_first else judge_request(row, draft, now)
        if outcome is not None:
            outcomes[draft.id] = outcome
        elif takes_over(row, draft):
            overtaken.add(draft.id)
            for claim in tables.of_request(draft.id, live=True):
                released |= _release(tables, claim, 'taken over', now)
    groups = _judge_groups(tables, batch, outcomes)
    going = [draft for draft in batch if draft.id not in outcomes]
    owners = tables.owners_of(consumers_to_own(going))
    rivals, ended = judge_rivals(_live_of(tables, going), going, owners)
    outcomes.update(ended)
    going = [draft for draft in going if draft.id not in outcomes]
    leaving = {rival.id for of in rivals.values() for rival in of}
    going = [_inheriting(tables, draft, leaving) for draft in going]
    judged = _accept(tables, going, rivals)
    accepted = {request_id: one.accepted for request_id, one in judged.items()}
    for draft in going:
        outcomes[draft.id] = _write(tables, draft, judged[draft.id], now)
        made = [draft.claims[index].claim.id for index in accepted[draft.id]]
        # The new claim inherits from what stays, and not from these.
        for rival in (rival for claim_id in made for rival in rivals.get(claim_id, ())):
            released |= _release(tables, rival, f'replaced by {draft.id}', now, made)
    guarded = [d for d in going if d.group and d.group.is_guarded]
    for uuid in sorted({d.group.uuid for d in guarded if d.group and accepted[d.id]}):
        tables.bump_group(uuid)
        groups[uuid] = tables.groups[uuid].generation
    for request_id in overtaken:
        if outcomes[request_id].outcome in (
            CommitStatus.DROPPED,
            CommitStatus.GROUP_CHANGED,
            CommitStatus.BARRED,
        ):
            del tables.requests[request_id]
    written = tables.to_write
    tables.write()
    named = {p for d in batch for c in d.claims for p in c.claim.allocations} | released
    hosts = {p: tables.hosts[p] for p in sorted(named) if p in tables.hosts}
    others = named & tables.pools.keys()
    # As a database that has not looked at any host: it tells what it has written.
    blind = not (released or others) and all(map(is_plain, batch)) and _is_whole(batch, accepted)
    return CommitResult(
        outcomes=[outcomes[draft.id] for draft in batch],
        hosts=[] if blind else list(hosts.values()),
        stepped={p: row.version for p, row in hosts.items()} if blind else {},
        pools=[tables.pools[p].usage(p in written) for p in sorted(others)],
        freed=sorted(released),
        groups=groups,
        now=now,
    )


def _inheriting(tables: Tables, draft: RequestDraft, leaving: Container[str]) -> RequestDraft:
    """What consumers that move have of pools by other claims counts once."""
    claims = []
    for made in draft.claims:
        claim = made.claim
        if claim.purpose.is_move:
            theirs = tables.live_of_guest(guest_of(claim))
            others = [one for one in theirs if one.id not in leaving]
            claim = inheritance.reduced(claim, inheritance.held(others))
        claims.append(_replace(made, claim=claim))
    return _replace(draft, claims=claims)


def _is_whole(batch: Sequence[RequestDraft], accepted: Mapping[str, list[int]]) -> bool:
    """Whether a batch became what it was planned to be."""
    return all(len(accepted.get(draft.id, ())) == len(draft.claims) for draft in batch)


def _live_of(tables: Tables, going: Sequence[RequestDraft]) -> list[Claim]:
    consumers = {made.claim.consumer for draft in going for made in draft.claims}
    return [claim for consumer in sorted(consumers) for claim in tables.live_of(consumer)]


def _release(
    tables: Tables, claim: Claim, reason: str, now: float, made: Container[str] = ()
) -> set[int]:
    ended = _replace(claim, state=State.RELEASED, reason=reason, updated_at=now)
    tables.put_claim(ended, no_heirs=made)
    return set(claim.allocations)


def _judge_groups(
    tables: Tables, batch: Sequence[RequestDraft], outcomes: dict[str, RequestOutcome]
) -> dict[str, int]:
    """Stop what was planned under another rule or generation; generations of all groups named."""
    rules: dict[str, GroupRule] = {}
    for draft in batch:
        swap = draft.group
        if swap is None or draft.id in outcomes:
            continue
        if swap.uuid not in tables.groups and swap.may_be_first:
            tables.groups[swap.uuid] = Group(
                uuid=swap.uuid,
                policy=swap.policy,
                max_per_host=swap.max_per_host,
                project_id=draft.project_id,
                generation=first_generation(tables.next_id()),
            )
        known = tables.groups.get(swap.uuid)
        if known is not None:
            rules[swap.uuid] = known.rule
    for request_id in behind_others(batch, outcomes, rules):
        outcomes[request_id] = RequestOutcome(id=request_id, outcome=CommitStatus.GROUP_CHANGED)
    return {uuid: rule.generation for uuid, rule in rules.items()}


def _accept(
    tables: Tables, going: Sequence[RequestDraft], rivals: Mapping[str, list[Claim]]
) -> dict[str, Acceptance]:
    named = {p for d in going for c in d.claims for p in c.claim.allocations}
    rows = {p: row for p in named if (row := tables.row(p)) is not None}
    served: dict[int, set[int]] = {}
    for made in (made for draft in going for made in draft.claims):
        for pid in made.served_by:
            if tables.serves(pid, made.claim.provider_id):
                served.setdefault(pid, set()).add(made.claim.provider_id)
    hosts = {c.claim.provider_id for d in going for c in d.claims if c.claim.layout is not None}
    insides = {
        p: room_of(tables.hosts[p].facts, [unsettled(c.layout) for c in tables.live_on(p)])
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
            room={one: row.free(one) for one in classes},
            closed=closed,
            serves=frozenset(served.get(p, ())),
            inside=insides.get(p),
        )
    return accept(states, going, rivals)


def _write(tables: Tables, draft: RequestDraft, judged: Acceptance, now: float) -> RequestOutcome:
    took, refusal = judged.accepted, judged.refusal
    why: dict[str, Any] = (
        {} if refusal is None else {'reason': refusal.reason, 'refused': refusal.kind}
    )
    for index in took:
        claim = draft.claims[index].claim
        expires = claim.lifecycle in EXPIRES
        tables.put_claim(
            _replace(
                claim,
                state=State.RESERVED,
                lease_until=now + draft.lease_seconds if expires else claim.lease_until,
                created_at=now,
                updated_at=now,
            )
        )
    placed = draft.completes and len(took) == len(draft.claims)
    if not took and not placed:
        return RequestOutcome(
            id=draft.id, outcome=CommitStatus.DROPPED, attempt=draft.attempt, **why
        )
    before = tables.requests.get(draft.id)
    made = before.claims if before is not None and before.attempt == draft.attempt else 0
    tables.requests[draft.id] = RequestRow(
        id=draft.id,
        fingerprint=draft.fingerprint,
        state='placed' if placed else 'open',
        owner=draft.owner,
        attempt=draft.attempt,
        deadline=now + draft.budget_seconds,
        answer=draft.answer if placed else b'',
        claims=made + len(took),
    )
    return RequestOutcome(
        id=draft.id,
        outcome=CommitStatus.PLACED if placed else CommitStatus.PARTIAL,
        accepted=took,
        attempt=draft.attempt,
        **why,
    )
