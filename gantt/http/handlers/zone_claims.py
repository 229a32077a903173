# SPDX-License-Identifier: Apache-2.0
"""A handler that ends one claim of a parent zone's allocation; its others stay."""

from gantt import exceptions
from gantt.core.claims.claim import State
from gantt.core.zones.keys import own_name
from gantt.core.zones.messages import ZoneAllocated
from gantt.http.context import Caller, HandlerContext
from gantt.http.handlers import zones
from gantt.http.zones.callers import parent_of


def end_claim_of_zone(
    world: HandlerContext, caller: Caller, key: str, claim_id: str
) -> ZoneAllocated:
    """End one claim of an allocation; for a zone of another owner while it is reserved only.

    What its host has confirmed runs and is counted, and ends with its guest.
    """
    parent, project = parent_of(world, caller)
    request_id, reason = own_name(parent.name, key), f'given back by zone {parent.name}'
    with world.gates.placements.passing(project, parent.project_id):
        claim = world.stores.claims.load_claim(claim_id)
        if (
            claim is not None
            and (claim.request_id, claim.parent_key) == (request_id, parent.name)
            and (claim.state is State.RESERVED or parent.trusted)
        ):
            world.insights.offer(world.stores.claims.force_release(claim_id, reason).hosts)
        below = world.stores.zone_claims.claims_below(request_id, claim_id=claim_id)
        claims_to_end = [
            claim_below
            for claim_below in below
            if claim_below.holds and claim_below.parent == parent.name
        ]
        world.stores.give_backs.add_give_backs(
            [(claim_below.child, claim_below.claim_id) for claim_below in claims_to_end]
        )
    world.zones.reload_soon()
    try:
        return zones.show_zone_allocation(world, caller, key)
    except exceptions.NotFound:
        return ZoneAllocated(key=key, state='cancelled')  # nothing of it is here any more
