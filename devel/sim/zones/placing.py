# SPDX-License-Identifier: Apache-2.0
"""A request carried out over a zone, as :mod:`gantt.zones.service.zone_planner` does it.

Without the rows that make it safe against deaths and lost answers, of which there are none here:
what is offered, which offers are taken in which order, and when it is a refusal, is the same.
"""

from collections.abc import Collection

import msgspec

from devel.sim.zones.zone import ClaimInTree, SimZone
from gantt import exceptions
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Outcome
from gantt.zones.model import choice
from gantt.zones.model.choice import GoneOffers, ZoneChoice, ZoneScore, ZoneShare
from gantt.zones.model.messages import ZoneAllocation, ZonesQueried
from gantt.zones.service.offers.evaluate import EvaluationResult, child_budget_ms, via_digest
from gantt.zones.service.zone_planner import EVALUATE_SHARE, OFFERS_WANTED


class PlacementResult(msgspec.Struct, frozen=True):
    """The result of a request in a zone.

    :ivar claims: by member
    :ivar lost: offers that had ended when they were taken
    :ivar attempts: how often it was evaluated
    :ivar evaluated: the last time
    """

    outcome: Outcome
    claims: list[ClaimInTree]
    lost: int
    attempts: int
    evaluated: EvaluationResult

    @property
    def is_placed(self) -> bool:
        return self.outcome is Outcome.PLACED


def carry_out(zone: SimZone, request: SelectDestinations) -> PlacementResult:
    """Place all members of a request, or none."""
    clock, attempts = zone.around.clock, zone.settings.attempts_per_request
    end = clock.monotonic() + request.budget_ms / 1000
    ended_offers, evaluated = GoneOffers(), None
    for attempt in range(attempts):
        before = ended_offers.count
        evaluated = _offers(zone, request, end, thorough=attempt > 0)
        claims = _claim_members(zone, request, evaluated, ended_offers, end)
        if claims is not None:
            return PlacementResult(
                Outcome.PLACED, claims, ended_offers.count, attempt + 1, evaluated
            )
        if clock.monotonic() >= end:
            break
        if ended_offers.count == before:
            return PlacementResult(
                _refusal(evaluated), [], ended_offers.count, attempt + 1, evaluated
            )
    assert evaluated is not None
    return PlacementResult(Outcome.CONFLICT, [], ended_offers.count, attempts, evaluated)


def _refusal(evaluated: EvaluationResult) -> Outcome:
    if evaluated.outcome is not Outcome.PLACED:
        return evaluated.outcome
    return Outcome.NO_VALID_HOST if evaluated.complete else Outcome.UNKNOWN


def _offers(
    zone: SimZone, request: SelectDestinations, end: float, thorough: bool
) -> EvaluationResult:
    if request.places:
        choices = [
            ZoneChoice(
                place.child, place, ZoneScore(n, 0.0, 0.0), place.fits or len(request.consumers)
            )
            for n, place in enumerate(request.places)
        ]
        return EvaluationResult(choices, Outcome.PLACED, '', 0, 0, {}, ZonesQueried(), True, '')
    seconds_left = max(0.0, end - zone.around.clock.monotonic())
    return zone.parts.evaluator.evaluate(
        request, OFFERS_WANTED, seconds_left * EVALUATE_SHARE, thorough=thorough
    )


def _claim_members(
    zone: SimZone,
    request: SelectDestinations,
    evaluated: EvaluationResult,
    gone: GoneOffers,
    end: float,
) -> list[ClaimInTree] | None:
    """Return the claims of all members; None: there are no offers any more."""
    members = range(len(request.consumers))
    while zone.around.clock.monotonic() < end:
        choices = gone.remaining(evaluated.choices)
        shares = choice.split_over_choices(members, choices, choice.is_whole(request))
        if not shares:
            return None
        if len(shares) == 1 and shares[0].choice.child is None:
            claims = zone.claim(request, choices)
            if claims is None:
                gone.drop(shares[0])
            return claims
        result = _claim_shares(zone, request, shares, end)
        if not isinstance(result, ZoneShare):
            return result
        gone.drop(result)
    return None


def _claim_shares(
    zone: SimZone, request: SelectDestinations, shares: Collection[ZoneShare], end: float
) -> list[ClaimInTree] | ZoneShare:
    """Return claims by member, or the share whose offers ended, where nothing stays claimed."""
    claim_of: dict[int, ClaimInTree] = {}
    for share in shares:
        claims = _claim_share(zone, request, share, end)
        if claims is None:
            for claim in claim_of.values():
                claim.zone.release(claim)
            return share
        claim_of.update(zip(share.members, claims, strict=True))
    return [claim_of[member] for member in range(len(request.consumers))]


def _claim_share(
    zone: SimZone, request: SelectDestinations, share: ZoneShare, end: float
) -> list[ClaimInTree] | None:
    """Return the claims of a share in its zone; None: the offer has ended."""
    seconds_left = max(0.0, end - zone.around.clock.monotonic())
    key = zone.next_key(request.request_id)
    part = msgspec.structs.replace(
        request,
        request_id=key,
        consumers=[request.consumers[member] for member in share.members],
        budget_ms=child_budget_ms(seconds_left),
        hops=max(0, request.hops - 1),
        via=[*request.via, via_digest(request.request_id, zone.uuid)],
        places=[] if share.choice.child else request.places,
        alternates=0,
    )
    if share.choice.child is None:
        return zone.claim(part, share.offers)
    child = next(item for item in zone.children if item.uuid == share.choice.child)
    body = ZoneAllocation(
        request=part,
        evaluated=share.choice.place.evaluated or request.request_id,
        tokens=[item.place.token for item in share.offers],
        order=1,
    )
    try:
        zone.links.allocate(child, key, body, seconds_left)
    except exceptions.GanttError:
        zone.parts.breaker.note_offer_end(child.uuid, False)
        return None
    zone.parts.breaker.note_offer_end(child.uuid, True)
    zone.parts.summaries.note_claimed(child.uuid, len(share.members))
    return zone.links.claims(key)
