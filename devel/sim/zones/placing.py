# SPDX-License-Identifier: Apache-2.0
"""A request carried out over a zone, as :mod:`gantt.scheduler.zones.place_over_zones` does it.

Without the rows that make it safe against deaths and lost answers, of which there are none here:
what is offered, which offers are taken in which order, and when it is a refusal, is the same.
"""

from collections.abc import Collection

import msgspec

from devel.sim.zones.zone import ClaimInTree, SimZone
from gantt import exceptions
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Outcome
from gantt.core.zones import choice
from gantt.core.zones.choice import Choice, GoneOffers, Share
from gantt.core.zones.messages import ZoneAllocation, ZonesQueried
from gantt.core.zones.score import ZoneScore
from gantt.scheduler.zones.offers.evaluate import Evaluated, budget_below, digest_of
from gantt.scheduler.zones.place_over_zones import EVALUATE_SHARE, WANT


class CarriedOut(msgspec.Struct, frozen=True):
    """What became of a request in a zone.

    :ivar claims: by member
    :ivar lost: offers that were gone when they were taken
    :ivar attempts: how often it was evaluated
    :ivar evaluated: the last time
    """

    outcome: Outcome
    claims: list[ClaimInTree]
    lost: int
    attempts: int
    evaluated: Evaluated

    @property
    def is_placed(self) -> bool:
        return self.outcome is Outcome.PLACED


def carry_out(zone: SimZone, request: SelectDestinations) -> CarriedOut:
    """Place all members of a request, or none."""
    clock, attempts = zone.around.clock, zone.settings.attempts_per_request
    end = clock.monotonic() + request.budget_ms / 1000
    gone, found = GoneOffers(), None
    for attempt in range(attempts):
        before = gone.count
        found = _offers(zone, request, end, thorough=attempt > 0)
        claims = _take(zone, request, found, gone, end)
        if claims is not None:
            return CarriedOut(Outcome.PLACED, claims, gone.count, attempt + 1, found)
        if clock.monotonic() >= end:
            break
        if gone.count == before:
            return CarriedOut(_refusal(found), [], gone.count, attempt + 1, found)
    assert found is not None
    return CarriedOut(Outcome.CONFLICT, [], gone.count, attempts, found)


def _refusal(found: Evaluated) -> Outcome:
    if found.outcome is not Outcome.PLACED:
        return found.outcome
    return Outcome.NO_VALID_HOST if found.complete else Outcome.UNKNOWN


def _offers(zone: SimZone, request: SelectDestinations, end: float, thorough: bool) -> Evaluated:
    if request.places:
        choices = [
            Choice(place.child, place, ZoneScore(n, 0.0, 0.0), place.fits or len(request.consumers))
            for n, place in enumerate(request.places)
        ]
        return Evaluated(choices, Outcome.PLACED, '', 0, 0, {}, ZonesQueried(), True, '')
    left = max(0.0, end - zone.around.clock.monotonic())
    return zone.parts.evaluator.evaluate(request, WANT, left * EVALUATE_SHARE, thorough=thorough)


def _take(
    zone: SimZone,
    request: SelectDestinations,
    found: Evaluated,
    gone: GoneOffers,
    end: float,
) -> list[ClaimInTree] | None:
    """Claims of all members; None: there are no offers any more."""
    members = range(len(request.consumers))
    while zone.around.clock.monotonic() < end:
        choices = gone.left(found.choices)
        shares = choice.split(members, choices, choice.is_whole(request))
        if not shares:
            return None
        if len(shares) == 1 and shares[0].choice.child is None:
            claims = zone.claim(request, choices)
            if claims is None:
                gone.drop(shares[0])
            return claims
        taken = _take_shares(zone, request, shares, end)
        if not isinstance(taken, Share):
            return taken
        gone.drop(taken)
    return None


def _take_shares(
    zone: SimZone, request: SelectDestinations, shares: Collection[Share], end: float
) -> list[ClaimInTree] | Share:
    """Claims by member; or the share whose offers are gone, where nothing stays claimed."""
    found: dict[int, ClaimInTree] = {}
    for share in shares:
        claims = _claimed(zone, request, share, end)
        if claims is None:
            for claim in found.values():
                claim.zone.release(claim)
            return share
        found.update(zip(share.members, claims, strict=True))
    return [found[member] for member in range(len(request.consumers))]


def _claimed(
    zone: SimZone, request: SelectDestinations, share: Share, end: float
) -> list[ClaimInTree] | None:
    """A share claimed where it was offered; None: the offer is gone."""
    left = max(0.0, end - zone.around.clock.monotonic())
    key = zone.next_key(request.request_id)
    part = msgspec.structs.replace(
        request,
        request_id=key,
        consumers=[request.consumers[member] for member in share.members],
        budget_ms=budget_below(left),
        hops=max(0, request.hops - 1),
        via=[*request.via, digest_of(request.request_id, zone.uuid)],
        places=[] if share.choice.child else request.places,
        alternates=0,
    )
    if share.choice.child is None:
        return zone.claim(part, share.offers)
    child = next(one for one in zone.children if one.uuid == share.choice.child)
    body = ZoneAllocation(
        request=part,
        evaluated=share.choice.place.evaluated or request.request_id,
        tokens=[one.place.token for one in share.offers],
        order=1,
    )
    try:
        zone.links.allocate(child, key, body, left)
    except exceptions.GanttError:
        zone.parts.standing.offer_ended(child.uuid, False)
        return None
    zone.parts.standing.offer_ended(child.uuid, True)
    zone.parts.summaries.took(child.uuid, len(share.members))
    return zone.links.claims(key)
