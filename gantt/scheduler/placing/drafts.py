# SPDX-License-Identifier: Apache-2.0
"""The claims that a decision asks the store for, and what their consumers have of pools already."""

from collections.abc import Sequence

import msgspec

from gantt.core.claims import inheritance
from gantt.core.claims.claim import Claim, guest_of, is_rival
from gantt.core.claims.commit import ClaimColumns, ClaimDraft
from gantt.core.claims.places import PlaceLetGo
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Decision
from gantt.core.records.members import MemberColumns
from gantt.core.table.host_table import HostTable
from gantt.scheduler.ports import Store


def held(
    store: Store, table: HostTable, request: SelectDestinations
) -> dict[str, dict[int, dict[str, int]]]:
    """What consumers that move have of pools: consumer -> provider id -> class -> amount.

    Asked for only where a pool has what they want; they do not need it once more.

    :raises DatabaseUnavailable:
    """
    purpose = request.spec.purpose
    if not (purpose.is_move and table.pools.have_any(request.spec.resources)):
        return {}
    of: dict[str, list[Claim]] = {}
    for claim in store.live_claims_of(request.consumers):
        if not is_rival(claim, purpose):  # it gives way
            of.setdefault(guest_of(claim), []).append(claim)
    return {one: found for one, mine in of.items() if (found := inheritance.held(mine))}


def claims_of(
    table: HostTable, request: SelectDestinations, attempt: int, decision: Decision
) -> ClaimColumns:
    """What the elected hosts' ``instance_claim`` or ``resize_claim`` say, to be committed."""
    members, drafts = decision.members, ClaimColumns()
    table = table.of_kind(request.spec.kind)
    assert isinstance(members, MemberColumns), 'it was just decided'
    like: dict[str, int] | None = None  # what the last kind takes of its host; None: no more of it
    like_others: dict[int, dict[str, int]] = {}  # and of others
    for one in members.placed():
        place = one.host
        # As it was picked: by now the table has the picks on it.
        amounts = one.amounts(request.spec.resources)
        others = dict(amounts)
        own = others.pop(place.provider_id)
        if own == like and others == like_others and one.layout is None and one.claim_id:
            # As the first one's, but for whose and where it is.
            drafts.add_like(one.claim_id, one.member, one.consumer, place.provider_id, place.host)
            continue
        host = table.host_state(one.row)
        claim, generation = host.claim(request, one.member, attempt, amounts), None
        claim = inheritance.reduced(claim, decision.held.get(one.consumer, {}))
        like = None if one.layout is not None or request.spec.purpose.is_move else own
        like_others = others
        if one.layout is not None:
            claim = msgspec.structs.replace(claim, layout=one.layout)
            generation = host.generation
        shared: tuple[int, ...] = ()
        if inheritance.of_pools(claim):
            of_id, host_id = table.pools.of_id, claim.provider_id
            shared = tuple(
                pid for pid in claim.allocations if pid in of_id and of_id[pid].root != host_id
            )
        drafts.add(ClaimDraft(claim=claim, generation=generation, served_by=shared))
    return drafts


def of_members(drafts: ClaimColumns, instead_of: Sequence[PlaceLetGo]) -> ClaimColumns:
    """The same claims, each of the member of a plan whose place it comes in place of."""
    named = ClaimColumns()
    for draft, place in zip(drafts, instead_of, strict=True):
        claim = msgspec.structs.replace(draft.claim, member_name=place.member_name)
        named.add(msgspec.structs.replace(draft, claim=claim))
    return named
