# SPDX-License-Identifier: Apache-2.0
"""Handlers for a parent zone: identity, capacity and offers of this zone, and their claims.

A parent is a tenant: its claims are those of one project, with that project's quota and rate, and
it passes every check that callers of the project do; its keys and its groups are names of its own.
No answer names a host, a zone further down, or what went wrong inside.
"""

import contextlib
import hashlib
import logging
from collections.abc import Iterable
from typing import Annotated, Any

import falcon
import msgspec

from gantt import exceptions
from gantt.core.claims.claim import State
from gantt.core.messages.base import Message, Uuid, topic_of
from gantt.core.messages.keys import nova_hints
from gantt.core.messages.request import (
    STEPS_MAX,
    Lifecycle,
    OfferedPlace,
    Purpose,
    RequestSpec,
    SelectDestinations,
)
from gantt.core.records.decision import Answer, Outcome
from gantt.core.zones import choice
from gantt.core.zones.idempotency_keys import own_name
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
from gantt.http import microversion, request_access
from gantt.http.context import Caller, HandlerContext
from gantt.http.handlers.requests import BUDGET_MS_MAX
from gantt.http.log_context import traced
from gantt.http.zones import told
from gantt.http.zones.callers import parent_of
from gantt.http.zones.explained import explained_below
from gantt.http.zones.seals import (
    SealedAlternate,
    SealedOffer,
    SealedPlace,
    Seals,
    is_for,
    members_of,
)
from gantt.scheduler.ports.zones import AllocationAbove
from gantt.scheduler.zones.capacity import capacities_below
from gantt.scheduler.zones.offers.dedup import over_quota, uncounted
from gantt.scheduler.zones.offers.evaluate import Evaluated, digest_of
from gantt.scheduler.zones.offers.local_hosts import OLD_SECONDS

LOG = logging.getLogger(__name__)
#: Offers at most, and claims of one answer about changes.
OFFERS_MAX, CHANGES_MAX = 20, 1000
#: Alternates of all members of one answer: each is some hundred bytes, sealed.
ALTERNATES_MAX = 2000


class ChangesQuery(Message, frozen=True, kw_only=True):
    """From which revision on.

    :ivar behind: the last claim of the page before, whose revision ``since`` is
    """

    behind: Uuid | None = None
    since: Annotated[float, msgspec.Meta(ge=0, le=1e15)] = 0.0


def discover_zone(world: HandlerContext, caller: Caller) -> ZoneInfo:
    """Show who this zone is, and what the zone above that asks may have."""
    parent, _ = parent_of(world, caller)
    world.insights.freshen()  # the database's clock is known then
    return ZoneInfo(
        uuid=world.zones.directory.own_uuid(),
        name=parent.name,
        minor=microversion.HISTORY[-1].minor,
        score_set=world.zones.score_set(),
        candidates_max=OFFERS_MAX,
        lease_seconds_max=parent.lease_seconds_max,
        facts=told.facts(parent, world.zones.facts()),
        now=world.insights.cache.database_now,
    )


def summarize_zone(world: HandlerContext, caller: Caller) -> ZoneSummary:
    """Show what this zone and those below it have room for: counts by shape, soon outdated."""
    parent, _ = parent_of(world, caller)
    return told.summary(parent, world.zones.summary())


def evaluate_zone(world: HandlerContext, caller: Caller, body: ZoneEvaluation) -> ZoneEvaluated:
    """Ask what this zone has for a request; nothing is claimed and nothing is written."""
    parent, caller = parent_of(world, caller)
    # Claims that follow are counted by the schedulers, like those of other callers.
    request_access.check_rate(world, caller, parent.project_id)
    request = _of_parent(world, caller, parent, body.request)
    _check_loop(world, request)
    if body.key is not None:
        with world.gates.evaluations.passing(caller, parent.project_id):
            return told.evaluated(parent, _rebuilt(world, parent, request, body.key))
    with world.gates.evaluations.passing(caller, parent.project_id):
        evaluation = _evaluated(world, request, body.want)
    world.zones.note_requested(request.spec.resources)
    LOG.debug(
        'Request of a parent zone was evaluated: zone=%s outcome=%s',
        parent.name,
        evaluation.outcome.value,
    )
    tokens = _sealed(world, parent, request, evaluation)
    return told.evaluated(parent, evaluation.for_parent(tokens, len(request.consumers)))


def _evaluated(world: HandlerContext, request: SelectDestinations, want: int) -> Evaluated:
    """Evaluate a request, with no candidates where it was evaluated for another parent zone before
    or the parent's quota here is used up.
    """
    seconds, zones = request.budget_ms / 1000, world.zones
    excess = world.insights.quotas.excess_of(request)
    if excess is not None:
        return over_quota(excess, len(world.insights.table()), zones.score_set())
    request = zones.affinity.with_rule(request)
    return zones.dedup.once(
        request,
        lambda: zones.evaluator.evaluate(request, want, seconds),
        lambda evaluation: bool(evaluation.choices),
        lambda evaluation: uncounted(evaluation, zones.score_set()),
    )


def _rebuilt(
    world: HandlerContext, parent: ParentRecord, request: SelectDestinations, key: str
) -> ZoneEvaluated:
    """Evaluate the host of a guest of the parent for a rebuild, without naming the host."""
    if request.spec.purpose is not Purpose.REBUILD:
        raise exceptions.invalid('body.key', "expected none but with the purpose 'rebuild'")
    if len(request.consumers) != 1:
        raise exceptions.invalid('body.request.consumers', 'expected one, with a key')
    seconds = request.budget_ms / 1000
    present = world.zones.rebuilds
    resolved = present.under(own_name(parent.name, key), parent.name, request)
    if isinstance(resolved, SelectDestinations):
        evaluation = world.zones.evaluator.evaluate(resolved, 1, seconds)
        return msgspec.structs.replace(evaluation, choices=[]).for_parent([], 1)
    zone, row = resolved
    below = present.evaluated(zone, row.key, request, seconds)
    return msgspec.structs.replace(below, offers=[])


def count_capacity_of_zone(
    world: HandlerContext, caller: Caller, body: ZoneCapacityOf
) -> ZoneCapacity:
    """Count how many more of a member fit in this zone and those below it."""
    parent, caller = parent_of(world, caller)
    told.check_trusted(parent)
    request_access.check_rate(world, caller, parent.project_id)
    request = _of_parent(world, caller, parent, body.request)
    _check_loop(world, request)
    with world.gates.evaluations.passing(caller, parent.project_id):
        return world.zones.dedup.once(
            request,
            lambda: _capacity(world, request),
            lambda capacity: bool(capacity.hosts),
            lambda _: ZoneCapacity(count=0, eligible=0, hosts=0),
        )


def _capacity(world: HandlerContext, request: SelectDestinations) -> ZoneCapacity:
    """Return the capacity of this zone and its child zones for a request."""
    directory = world.zones.directory
    room_here, only = (
        world.insights.capacity(request.spec),
        world.zones.affinity.of_members(request),
    )
    own_uuid = directory.own_uuid()
    below = capacities_below(world.zones.calls, directory.children(), own_uuid, request, only)
    answered = [report.found for report in below if report.found is not None]
    is_here = only is None or own_uuid in only
    return ZoneCapacity(
        count=is_here * room_here.count + sum(report.count for report in answered),
        eligible=is_here * room_here.eligible + sum(report.eligible for report in answered),
        hosts=room_here.hosts + sum(report.hosts for report in answered),
        complete=len(answered) == len(below) and all(report.complete for report in answered),
    )


def allocate_in_zone(
    world: HandlerContext, caller: Caller, key: str, body: ZoneAllocation
) -> ZoneAllocated:
    """Claim what was offered, under a key: repeating it has the effect of one."""
    parent, caller = parent_of(world, caller)
    if body.request.request_id != key:
        raise exceptions.invalid('body.request.request_id', f'expected the key, {key!r}')
    request = _of_parent(world, caller, parent, body.request)
    _check_loop(world, request)
    body = msgspec.structs.replace(body, request=request)
    places = _places(world, parent, key, body)
    request = msgspec.structs.replace(request, request_id=own_name(parent.name, key), places=places)
    with world.gates.placements.passing(caller, parent.project_id):
        try:
            if places:
                _note_rule(world, request)
            answer = world.client.select_destinations(request)
        except (exceptions.NoValidHost, exceptions.Conflict):
            raise exceptions.OfferGone() from None
        except exceptions.Refused as e:
            raise request_access.refusal(world, caller, request, e) from None
    world.zones.reload_soon()
    return _answered(world, parent, key, answer)


def _note_rule(world: HandlerContext, request: SelectDestinations) -> None:
    """Store the rule of the parent's group before members are placed under it.

    :raises Refused: the rule is outdated, or members of the group are here under another rule
    """
    group = request.spec.group
    if group is not None and group.is_ruled:
        world.stores.zone_requests.note_rule_above(
            group, request.spec.project_id, request.rule_generation
        )


def _places(
    world: HandlerContext, parent: ParentRecord, key: str, body: ZoneAllocation
) -> list[OfferedPlace]:
    """Return the places that an allocation may use, its order noted; empty: it is placed already.

    :raises RequestCancelled, AllocationOutdated, OfferGone: nothing is claimed any more
    :raises TokenRefused, Refused: its tokens or its consumers do not fit the request
    """
    refused: exceptions.GanttError | None = None
    try:
        places = _opened(world, parent, body)
    except (exceptions.TokenRefused, exceptions.OfferGone) as e:
        places, refused = [], e
    if refused is None and _is_noted(world, parent, key, body):
        return places
    allocation = _allocated(world, parent, key)
    if allocation is not None and allocation.state == 'cancelled':
        raise exceptions.RequestCancelled(request_id=key)
    if allocation is not None and allocation.state != 'open':
        return []  # whatever has become of its tokens since
    if refused is not None:
        raise refused
    _note_order(world, parent, key, body)
    return places


def _is_noted(world: HandlerContext, parent: ParentRecord, key: str, body: ZoneAllocation) -> bool:
    """Return whether the allocation is new, its order noted without a conflict."""
    return world.stores.orders.note_new_allocation(_as_noted(parent, key, body))


def _note_order(
    world: HandlerContext, parent: ParentRecord, key: str, body: ZoneAllocation
) -> None:
    """Cancel earlier allocations of the parent for the same consumers.

    :raises AllocationOutdated: a later allocation of the parent arrived before this one
    :raises Refused: a consumer belongs to another caller
    """
    for request_id in world.stores.orders.note_allocation(_as_noted(parent, key, body)):
        # An allocation that was placed was answered, or its answer is requested: it may live.
        stored = world.stores.requests.load_request(request_id)
        if stored is None or stored.state == 'open':
            world.client.cancel_claims(request_id, f'zone {parent.name} has sent a later one')


def _as_noted(parent: ParentRecord, key: str, body: ZoneAllocation) -> AllocationAbove:
    request = body.request
    return AllocationAbove(
        parent=parent.name,
        key=key,
        order=body.order,
        consumers=request.consumers,
        purpose=request.spec.purpose,
        receipt=body.receipt,
        seconds=request.budget_ms / 1000,
    )


def show_zone_allocation(world: HandlerContext, caller: Caller, key: str) -> ZoneAllocated:
    """Show what became of an allocation."""
    parent, _ = parent_of(world, caller)
    allocation = _allocated(world, parent, key)
    if allocation is None:
        raise exceptions.NotFound(kind='allocation', name=key)
    return allocation


def release_zone_allocation(world: HandlerContext, caller: Caller, key: str) -> ZoneAllocated:
    """End an allocation, now and for later: one that comes after it claims nothing."""
    parent, caller = parent_of(world, caller)
    with world.gates.placements.passing(caller, parent.project_id):
        world.client.cancel_claims(own_name(parent.name, key), f'given back by zone {parent.name}')
    world.zones.reload_soon()
    return ZoneAllocated(key=key, state='cancelled')


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
        below = world.stores.zone_claims.child_claims(request_id, claim_id=claim_id)
        claims_to_end = [
            claim_below
            for claim_below in below
            if claim_below.holds and claim_below.parent == parent.name
        ]
        world.stores.zone_releases.add_releases(
            [(claim_below.child, claim_below.claim_id) for claim_below in claims_to_end]
        )
    world.zones.reload_soon()
    try:
        return show_zone_allocation(world, caller, key)
    except exceptions.NotFound:
        return ZoneAllocated(key=key, state='cancelled')  # nothing of it is here any more


def extend_zone_lease(
    world: HandlerContext, caller: Caller, key: str, body: ZoneLease
) -> ZoneAllocated:
    """Lengthen the leases of what is reserved of an allocation, as far as this parent may."""
    parent, caller = parent_of(world, caller)
    if _allocated(world, parent, key) is None:
        raise exceptions.NotFound(kind='allocation', name=key)
    seconds = min(body.seconds, parent.lease_seconds_max)
    with world.gates.placements.passing(caller, parent.project_id):
        world.client.extend_claims(own_name(parent.name, key), seconds)
    # Not known any more where the database was put back meanwhile.
    return show_zone_allocation(world, caller, key)


def explain_zone_allocation(world: HandlerContext, caller: Caller, key: str) -> ZoneExplanation:
    """Show how an allocation was decided: counts, and what was queried; nobody is named."""
    parent, _ = parent_of(world, caller)
    if _allocated(world, parent, key) is None:
        raise exceptions.NotFound(kind='allocation', name=key)
    explanation = world.insights.explain(own_name(parent.name, key))
    return told.explanation(
        parent, explained_below(explanation, world.zones, world.stores.zone_claims, key)
    )


def show_zone_changes(world: HandlerContext, caller: Caller, query: ChangesQuery) -> ZoneChanges:
    """Show claims of the zone above that asks which have changed since a revision."""
    parent, _ = parent_of(world, caller)
    page_max, behind = CHANGES_MAX, query.behind or ''
    rows = world.stores.zone_claims.claims_of_parent(parent.name, query.since, page_max + 1, behind)
    page = rows[:page_max]
    return ZoneChanges(
        incarnation=world.zones.directory.identity().incarnation,
        revision=max((row.at for row in page), default=query.since),
        claims=[row.claim for row in page],
        more=len(rows) > page_max,
    )


def redeem_place(world: HandlerContext, caller: Caller, body: Redeem) -> RedeemedPlace:
    """Show what a sealed place stands for: where this zone's conductor builds."""
    world.zones.directory.freshen()
    now = _now(world)
    for parent in world.zones.directory.parents():
        try:
            sealed = _seals(world).open_place(body.place, parent.name, now)
        except exceptions.TokenRefused:
            continue
        is_alternate = isinstance(sealed, SealedAlternate)
        if sealed.child:
            return RedeemedPlace(child=sealed.child, place=sealed.place, is_alternate=is_alternate)
        if isinstance(sealed, SealedAlternate):
            return RedeemedPlace(
                consumer=sealed.consumer,
                host=sealed.host,
                topic=topic_of(sealed.host),
                is_alternate=True,
            )
        claim = world.stores.claims.load_claim(sealed.claim_id)
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
    """A falcon middleware that puts this zone's uuid in the header of answers to parent zones."""

    def __init__(self, world: HandlerContext) -> None:
        self._directory = world.zones.directory

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: Any, succeeded: bool
    ) -> None:
        """Set the header ``Gantt-Zone`` on answers below ``/zone/``."""
        if req.path.startswith('/zone/'):
            with contextlib.suppress(exceptions.DatabaseUnavailable):
                resp.set_header('Gantt-Zone', self._directory.own_uuid())


# -- requests of a parent ---------------------------------------------------------------
def _of_parent(
    world: HandlerContext, caller: Caller, parent: ParentRecord, request: SelectDestinations
) -> SelectDestinations:
    """Return a request as it is executed here: for the parent's project, within its limits.

    :raises InvalidMessage: a field is set that no parent may set; names the field
    :raises NotTrusted: a field is set that only a parent of the same owner may set; likewise
    :raises NotFound: it names a consumer of another project
    """
    for field in ('parent', 'places', 'only_project'):
        if getattr(request, field):
            raise exceptions.invalid(f'body.request.{field}', 'expected nothing')
    if request.lifecycle is not Lifecycle.HOST:
        raise exceptions.invalid('body.request.lifecycle', "expected 'host'")
    spec, group = request.spec, request.spec.group
    if group is not None:
        group = msgspec.structs.replace(group, uuid=own_name(parent.name, group.uuid))
    spec = msgspec.structs.replace(
        spec,
        project_id=parent.project_id,
        user_id=None,
        group=group,
        # These hints of Nova are fields of the spec.
        hints={key: value for key, value in spec.hints.items() if key not in nova_hints.FIELDS},
    )
    lease = min(request.lease_seconds or parent.lease_seconds_max, parent.lease_seconds_max)
    within = msgspec.structs.replace(
        request,
        spec=spec,
        lease_seconds=lease,
        budget_ms=min(request.budget_ms, BUDGET_MS_MAX),
        dry_run=False,
    )
    checked = request_access.checked(world, caller, within)
    return traced(caller, msgspec.structs.replace(checked, parent=parent.name))


def _check_loop(world: HandlerContext, request: SelectDestinations) -> None:
    """Refuse a request that has passed through this zone before.

    :raises ZoneLoop: it has
    """
    own_uuid = world.zones.directory.own_uuid()
    if any(digest_of(request_id, own_uuid) in request.via for request_id in (request.request_id,)):
        raise exceptions.ZoneLoop()


# -- sealed tokens -----------------------------------------------------------------------
def _now(world: HandlerContext) -> float:
    """Return the database's clock, refreshed with the hosts where the cache is old.

    Tokens that are opened here may have been sealed by another process.
    """
    if world.insights.cache.read_seconds_ago > OLD_SECONDS:
        world.insights.freshen()
    return world.insights.cache.database_now


def _seals(world: HandlerContext) -> Seals:
    return Seals(world.zones.directory.identity())


def _sealed(
    world: HandlerContext, parent: ParentRecord, request: SelectDestinations, found: Evaluated
) -> list[str]:
    """Return sealed tokens of the best choices."""
    seals, now = _seals(world), world.insights.cache.database_now
    digest = _digest(request.spec)
    members = b''.join(members_of(request.consumers))
    tokens = []
    # Those that were queried go first, the others as far as there is room.
    steps = sorted(found.steps, key=lambda step: not step.outcome)[:STEPS_MAX]
    for chosen in found.choices[:OFFERS_MAX]:
        epochs = [_epoch(world, name) for name in chosen.place.hosts]
        generations = _generations(world, chosen.place)
        place = msgspec.structs.replace(chosen.place, steps=steps, fits=chosen.room)
        sealed = SealedOffer(place, request.request_id, digest, epochs, members, generations)
        tokens.append(seals.seal(sealed, parent.name, now))
    return tokens


def _opened(
    world: HandlerContext, parent: ParentRecord, body: ZoneAllocation
) -> list[OfferedPlace]:
    """Return the places in the tokens whose hosts are still the same; see ``unchanged_first``.

    :raises TokenRefused: a token is not valid for this request
    :raises OfferGone: none of the hosts is the same any more
    """
    seals, now = _seals(world), _now(world)
    digest = _digest(body.request.spec)
    offers: list[SealedOffer] = []
    for token in body.tokens:
        sealed = seals.open_offer(token, parent.name, now)
        is_other = (sealed.evaluated, sealed.digest) != (body.evaluated, digest)
        if is_other or not is_for(sealed, body.request.consumers):
            raise exceptions.TokenRefused()
        offers.append(sealed)
    places = _same(world, offers)
    if not places:
        # A host may have registered since they were read here, and before it was offered.
        world.insights.reload_soon()
        world.insights.freshen()
        places = _same(world, offers)
    if not places:
        raise exceptions.OfferGone()
    return choice.unchanged_first(places)


def _same(world: HandlerContext, offers: Iterable[SealedOffer]) -> list[tuple[OfferedPlace, bool]]:
    """Return the places on hosts that are still the same, each with whether its usage changed."""
    places: list[tuple[OfferedPlace, bool]] = []
    for sealed in offers:
        place = sealed.place
        is_changed = sealed.generations != _generations(world, place)
        if place.child is None:
            same_hosts = [
                name
                for name, epoch in zip(place.hosts, sealed.epochs, strict=True)
                if _epoch(world, name) == epoch
            ]
            if not same_hosts:
                continue
            place = msgspec.structs.replace(place, hosts=same_hosts)
        places.append((place, is_changed))
    return places


def _digest(spec: RequestSpec) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(spec), digest_size=16).hexdigest()


def _generations(world: HandlerContext, place: OfferedPlace) -> list[int]:
    """Return the generations of the hosts of a place; each change of usage increments one."""
    rows = (world.insights.cache.row_of(name) for name in place.hosts)
    return [-1 if row is None else row.generation for row in rows]


def _epoch(world: HandlerContext, name: str) -> int:
    """Return the epoch of a host's last registration; -1: the host is not known."""
    row = world.insights.cache.row_of(name)
    return -1 if row is None else row.epoch


# -- state of an allocation ----------------------------------------------------------------
def _allocated(world: HandlerContext, parent: ParentRecord, key: str) -> ZoneAllocated | None:
    """Return the state of an allocation; None: it is not known."""
    request_id = own_name(parent.name, key)
    try:
        stored, answer, _ = world.insights.request(request_id)
    except exceptions.NotFound:
        return None
    below = world.stores.zone_claims.child_claims(request_id)
    if stored.state != 'placed' or answer is None:
        return ZoneAllocated(key=key, state=stored.state)
    # A claim that is lost below may live, and nothing is reported of it.
    if not any(claim.is_live for claim in stored.claims) and not any(held.holds for held in below):
        return ZoneAllocated(key=key, state='cancelled')
    return _answered(world, parent, key, answer)


def _answered(
    world: HandlerContext, parent: ParentRecord, key: str, answer: Answer
) -> ZoneAllocated:
    """Return a placement in the form that the parent receives."""
    if answer.outcome is not Outcome.PLACED:
        return ZoneAllocated(key=key, state='open')
    seals, now = _seals(world), world.insights.cache.database_now
    members = []
    alternates_max = ALTERNATES_MAX // max(1, len(answer.selections))
    for chosen, *others in answer.selections:
        claim_id = chosen.claim_id or ''
        # A place of a child zone is sealed again, together with the uuid of that zone.
        sealed = SealedPlace(claim_id, chosen.child, chosen.place)
        members.append(
            PlacedBelow(
                consumer=chosen.consumer,
                claim_id=claim_id,
                place=seals.seal(sealed, parent.name, now),
                lease_seconds=chosen.lease_seconds,
                alternates=[
                    seals.seal(
                        SealedAlternate(
                            alternate.consumer, alternate.host, alternate.child, alternate.place
                        ),
                        parent.name,
                        now,
                    )
                    for alternate in others[:alternates_max]
                ],
            )
        )
    return ZoneAllocated(key=key, state='placed', members=members, level=answer.level, given_up=[])
