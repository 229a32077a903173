# SPDX-License-Identifier: Apache-2.0
"""What a zone above asks: who this one is, what it has for a request, and to claim it.

A parent is a tenant: its claims are those of one project, with that project's quota and rate.  No
answer names a host, a zone further down, or what went wrong inside.
"""

import contextlib
import hashlib
from typing import Annotated, Any

import falcon
import msgspec

from gantt import exceptions
from gantt.core.messages.base import Message, Uuid, topic_of
from gantt.core.messages.request import (
    STEPS_MAX,
    Lifecycle,
    OfferedPlace,
    RequestSpec,
    SelectDestinations,
)
from gantt.core.messages.since import since
from gantt.core.records.decision import Answer, Outcome
from gantt.core.zones import choice
from gantt.core.zones.messages import (
    ParentRecord,
    PlacedBelow,
    Redeem,
    RedeemedPlace,
    ZoneAllocated,
    ZoneAllocation,
    ZoneCapacity,
    ZoneCapacityOf,
    ZoneChanges,
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneExplanation,
    ZoneInfo,
    ZoneLease,
    ZoneSummary,
)
from gantt.http import microversion
from gantt.http.context import Caller, HandlerContext
from gantt.http.zones.callers import parent_of
from gantt.http.zones.explained import explained_below
from gantt.http.zones.seals import SealedOffer, SealedPlace, Seals, is_for, members_of
from gantt.scheduler.zones.capacity import capacities_below
from gantt.scheduler.zones.evaluate import Evaluated, digest_of

#: Offers at most, and claims of one answer about changes.
OFFERS_MAX, CHANGES_MAX = 20, 1000


class ChangesQuery(Message, frozen=True, kw_only=True):
    """From which revision on.

    :ivar behind: the last claim of the page before, whose revision ``since`` is
    """

    behind: Annotated[Uuid | None, since(8)] = None
    since: Annotated[float, msgspec.Meta(ge=0, le=1e15)] = 0.0


def discover_zone(world: HandlerContext, caller: Caller) -> ZoneInfo:
    """Show who this zone is, and what the zone above that asks may have."""
    parent = parent_of(world, caller)
    world.insights.freshen()  # the database's clock is known then
    return ZoneInfo(
        uuid=world.zones.directory.own_uuid(),
        name=parent.name,
        minor=microversion.HISTORY[-1].minor,
        score_set=world.zones.score_set(),
        candidates_max=OFFERS_MAX,
        lease_seconds_max=parent.lease_seconds_max,
        facts=world.zones.facts(),
        now=world.insights.cache.database_now,
    )


def summarize_zone(world: HandlerContext, caller: Caller) -> ZoneSummary:
    """Show what this zone and those below it have room for: counts by shape, soon outdated."""
    parent_of(world, caller)
    return world.zones.summary()


def evaluate_zone(world: HandlerContext, caller: Caller, body: ZoneEvaluation) -> ZoneEvaluated:
    """Ask what this zone has for a request; nothing is claimed and nothing is written."""
    parent = parent_of(world, caller)
    request = _of_parent(world, parent, body.request)
    _check_loop(world, request)
    with world.gates.evaluations.passing(caller, parent.project_id):
        found = world.zones.evaluator.evaluate(request, body.want, request.budget_ms / 1000)
    world.zones.requested.note(request.spec.resources)
    return found.for_parent(_sealed(world, parent, request, found), len(request.consumers))


def count_capacity_of_zone(
    world: HandlerContext, caller: Caller, body: ZoneCapacityOf
) -> ZoneCapacity:
    """Count how many more of a member fit in this zone and those below it."""
    parent = parent_of(world, caller)
    request = _of_parent(world, parent, body.request)
    _check_loop(world, request)
    directory = world.zones.directory
    with world.gates.evaluations.passing(caller, parent.project_id):
        own = world.insights.capacity(request.spec)
        below = capacities_below(
            world.zones.calls, directory.children(), directory.own_uuid(), request
        )
    known = [one.found for one in below if one.found is not None]
    return ZoneCapacity(
        count=own.count + sum(one.count for one in known),
        eligible=own.eligible + sum(one.eligible for one in known),
        hosts=own.hosts + sum(one.hosts for one in known),
        complete=len(known) == len(below) and all(one.complete for one in known),
    )


def allocate_in_zone(
    world: HandlerContext, caller: Caller, key: str, body: ZoneAllocation
) -> ZoneAllocated:
    """Claim what was offered, under a key: repeating it has the effect of one."""
    parent = parent_of(world, caller)
    if body.request.request_id != key:
        raise exceptions.invalid('body.request.request_id', f'expected the key, {key!r}')
    request = _of_parent(world, parent, body.request)
    _check_loop(world, request)
    known = _allocated(world, parent, key)
    if known is not None and known.state == 'cancelled':
        raise exceptions.RequestCancelled(request_id=key)
    if known is None or known.state == 'open':
        places = _opened(world, parent, body)
        request = msgspec.structs.replace(request, places=places)
    with world.gates.placements.passing(caller, parent.project_id):
        try:
            answer = world.client.select_destinations(request)
        except (exceptions.NoValidHost, exceptions.Conflict):
            raise exceptions.OfferGone() from None
    world.insights.reload_soon()
    return _answered(world, parent, key, answer)


def show_zone_allocation(world: HandlerContext, caller: Caller, key: str) -> ZoneAllocated:
    """Show what became of an allocation."""
    parent = parent_of(world, caller)
    found = _allocated(world, parent, key)
    if found is None:
        raise exceptions.NotFound(kind='allocation', name=key)
    return found


def give_back_to_zone(world: HandlerContext, caller: Caller, key: str) -> ZoneAllocated:
    """End an allocation, now and for later: one that comes after it claims nothing."""
    parent = parent_of(world, caller)
    _allocated(world, parent, key)
    with world.gates.placements.passing(caller, parent.project_id):
        world.client.cancel_claims(key, f'given back by zone {parent.name}')
    world.insights.reload_soon()
    return ZoneAllocated(key=key, state='cancelled')


def extend_zone_lease(
    world: HandlerContext, caller: Caller, key: str, body: ZoneLease
) -> ZoneAllocated:
    """Lengthen the leases of what is reserved of an allocation, as far as this parent may."""
    parent = parent_of(world, caller)
    if _allocated(world, parent, key) is None:
        raise exceptions.NotFound(kind='allocation', name=key)
    seconds = min(body.seconds, parent.lease_seconds_max)
    with world.gates.placements.passing(caller, parent.project_id):
        world.client.extend_claims(key, seconds)
    found = _allocated(world, parent, key)
    assert found is not None, 'it was there'
    return found


def explain_zone_allocation(world: HandlerContext, caller: Caller, key: str) -> ZoneExplanation:
    """Show how an allocation was decided: counts, and what was queried; nobody is named."""
    parent = parent_of(world, caller)
    if _allocated(world, parent, key) is None:
        raise exceptions.NotFound(kind='allocation', name=key)
    found = world.insights.explain(key)
    return explained_below(found, world.zones, world.store, key)


def show_zone_changes(world: HandlerContext, caller: Caller, query: ChangesQuery) -> ZoneChanges:
    """Show claims of the zone above that asks which have changed since a revision."""
    parent = parent_of(world, caller)
    most, behind = CHANGES_MAX, query.behind or ''
    found = world.store.claims_of_parent(parent.name, query.since, most + 1, behind)
    page = found[:most]
    return ZoneChanges(
        incarnation=world.zones.directory.identity().incarnation,
        revision=max((one.at for one in page), default=query.since),
        claims=[one.claim for one in page],
        more=len(found) > most,
    )


def redeem_place(world: HandlerContext, caller: Caller, body: Redeem) -> RedeemedPlace:
    """Show what a sealed place stands for: where this zone's conductor builds."""
    now = world.insights.cache.database_now
    for parent in world.zones.directory.parents():
        try:
            sealed = _seals(world).open(body.place, SealedPlace, parent.name, now)
        except exceptions.TokenRefused:
            continue
        if sealed.child:
            return RedeemedPlace(child=sealed.child, place=sealed.place)
        claim = world.store.load_claim(sealed.claim_id)
        if claim is None:
            raise exceptions.NotFound(kind='claim', name=sealed.claim_id)
        return RedeemedPlace(
            claim_id=claim.id,
            consumer=claim.consumer,
            state=claim.state.value,
            host=claim.host,
            topic=topic_of(claim.host),
            layout=claim.layout,
        )
    raise exceptions.TokenRefused()


class ZoneName:
    """falcon middleware: who this zone is, in the head of each answer to a zone above."""

    def __init__(self, world: HandlerContext) -> None:
        self._directory = world.zones.directory

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: Any, succeeded: bool
    ) -> None:
        """Say it."""
        if req.path.startswith('/zone/'):
            with contextlib.suppress(exceptions.DatabaseUnavailable):
                resp.set_header('Gantt-Zone', self._directory.own_uuid())


# -- who asks, and what for ------------------------------------------------------------
def _of_parent(
    world: HandlerContext, parent: ParentRecord, request: SelectDestinations
) -> SelectDestinations:
    """A request as it is carried out here: in the name of the parent's project, within its limits.

    :raises InvalidMessage: it says what no parent may say; names the field
    """
    for field in ('parent', 'places', 'only_project'):
        if getattr(request, field):
            raise exceptions.invalid(f'body.request.{field}', 'expected nothing')
    if request.lifecycle is not Lifecycle.HOST:
        raise exceptions.invalid('body.request.lifecycle', "expected 'host'")
    spec = msgspec.structs.replace(request.spec, project_id=parent.project_id, user_id=None)
    lease = min(request.lease_seconds or parent.lease_seconds_max, parent.lease_seconds_max)
    return msgspec.structs.replace(
        request, spec=spec, lease_seconds=lease, parent=parent.name, dry_run=False
    )


def _check_loop(world: HandlerContext, request: SelectDestinations) -> None:
    """:raises ZoneLoop: it has come through this zone before"""
    own = world.zones.directory.own_uuid()
    if any(digest_of(one, own) in request.via for one in (request.request_id,)):
        raise exceptions.ZoneLoop()


# -- what is sealed ----------------------------------------------------------------------
def _seals(world: HandlerContext) -> Seals:
    return Seals(world.zones.directory.identity())


def _sealed(
    world: HandlerContext, parent: ParentRecord, request: SelectDestinations, found: Evaluated
) -> list[str]:
    """The best choices, sealed."""
    seals, now = _seals(world), world.insights.cache.database_now
    digest = _digest(request.spec)
    members = b''.join(members_of(request.consumers))
    tokens = []
    # Those that were queried go first, the others as far as there is room.
    steps = sorted(found.steps, key=lambda step: not step.outcome)[:STEPS_MAX]
    for one in found.choices[:OFFERS_MAX]:
        epochs = [_epoch(world, name) for name in one.place.hosts]
        generations = _generations(world, one.place)
        place = msgspec.structs.replace(one.place, steps=steps, fits=one.room)
        sealed = SealedOffer(place, request.request_id, digest, epochs, members, generations)
        tokens.append(seals.seal(sealed, parent.name, now))
    return tokens


def _opened(
    world: HandlerContext, parent: ParentRecord, body: ZoneAllocation
) -> list[OfferedPlace]:
    """Where the tokens point to, as far as the hosts are still the same; see ``unchanged_first``.

    :raises TokenRefused: one is not good for this request
    :raises OfferGone: none of the hosts is the same any more
    """
    seals, now = _seals(world), world.insights.cache.database_now
    digest = _digest(
        msgspec.structs.replace(body.request.spec, project_id=parent.project_id, user_id=None)
    )
    places: list[tuple[OfferedPlace, bool]] = []
    for token in body.tokens:
        sealed = seals.open(token, SealedOffer, parent.name, now)
        is_other = (sealed.evaluated, sealed.digest) != (body.evaluated, digest)
        if is_other or not is_for(sealed, body.request.consumers):
            raise exceptions.TokenRefused()
        place = sealed.place
        is_changed = sealed.generations != _generations(world, place)
        if place.child is None:
            same = [
                name
                for name, epoch in zip(place.hosts, sealed.epochs, strict=True)
                if _epoch(world, name) == epoch
            ]
            if not same:
                continue
            place = msgspec.structs.replace(place, hosts=same)
        places.append((place, is_changed))
    if not places:
        raise exceptions.OfferGone()
    return choice.unchanged_first(places)


def _digest(spec: RequestSpec) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(spec), digest_size=16).hexdigest()


def _generations(world: HandlerContext, place: OfferedPlace) -> list[int]:
    """Of the hosts of a place; another one after each change of what is used there."""
    found = (world.insights.cache.row_of(name) for name in place.hosts)
    return [-1 if row is None else row.generation for row in found]


def _epoch(world: HandlerContext, name: str) -> int:
    """Of a host as it has registered last; -1: it is not known."""
    found = world.insights.cache.row_of(name)
    return -1 if found is None else found.epoch


# -- what became of it ---------------------------------------------------------------------
def _allocated(world: HandlerContext, parent: ParentRecord, key: str) -> ZoneAllocated | None:
    """What became of an allocation; None: it is not known, or another one's."""
    try:
        stored, answer, _ = world.insights.request(key)
    except exceptions.NotFound:
        return None
    below = world.store.claims_below(key)
    owners = {claim.parent_key for claim in stored.claims} | {one.parent for one in below}
    if owners - {parent.name}:
        raise exceptions.NotFound(kind='allocation', name=key)
    if stored.state != 'placed' or answer is None:
        return ZoneAllocated(key=key, state=stored.state)
    states = [claim.state.value for claim in stored.claims] + [one.state for one in below]
    if not any(state in ('reserved', 'confirmed') for state in states):
        return ZoneAllocated(key=key, state='cancelled')
    return _answered(world, parent, key, answer)


def _answered(
    world: HandlerContext, parent: ParentRecord, key: str, answer: Answer
) -> ZoneAllocated:
    """A placement as the parent gets it."""
    if answer.outcome is not Outcome.PLACED:
        return ZoneAllocated(key=key, state='open')
    seals, now = _seals(world), world.insights.cache.database_now
    members = []
    for chosen, *_ in answer.selections:
        claim_id = chosen.claim_id or ''
        # Of a zone further down: what that has sealed is sealed again, with who it is.
        sealed = SealedPlace(claim_id, chosen.child, chosen.place)
        members.append(
            PlacedBelow(
                consumer=chosen.consumer,
                claim_id=claim_id,
                place=seals.seal(sealed, parent.name, now),
                lease_seconds=chosen.lease_seconds,
            )
        )
    return ZoneAllocated(key=key, state='placed', members=members, level=answer.level, given_up=[])
