# SPDX-License-Identifier: Apache-2.0
"""Handlers for a parent zone: identity, capacity and offers of this zone, and their claims.

A parent is a tenant: its claims are those of one project, with that project's quota and rate, and
it passes every check that callers of the project do; its keys and its groups are names of its own.
No answer names a host, a descendant zone, or an internal error.
"""

import concurrent.futures
import logging
from collections.abc import Iterable
from typing import Annotated

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
    SelectDestinations,
)
from gantt.core.messages.zone_step import ZoneExplanation
from gantt.core.records.decision import Answer, Outcome
from gantt.http import microversion, request_access
from gantt.http.context import Caller
from gantt.http.handlers.requests import BUDGET_MS_MAX
from gantt.http.log_context import with_trace
from gantt.zones.http import parents
from gantt.zones.http.answers import explanation_for_key
from gantt.zones.http.context import ZoneHandlerContext
from gantt.zones.http.parents import parent_of
from gantt.zones.http.seals import (
    SealedAlternate,
    SealedClaim,
    SealedOffer,
    TokenSealer,
    consumer_digests,
    is_offered_to,
)
from gantt.zones.model import choice, host_digests
from gantt.zones.model.host_digests import HostDigests
from gantt.zones.model.messages import (
    HostDigestsPage,
    HostDigestsQuery,
    ParentRecord,
    PlacedBelow,
    UnsealedHost,
    UnsealHost,
    ZoneAllocated,
    ZoneAllocation,
    ZoneCapacity,
    ZoneCapacityOf,
    ZoneChanges,
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneInfo,
    ZoneLease,
    ZoneRecord,
    ZoneSummary,
    scoped_id,
)
from gantt.zones.ports import ParentAllocation
from gantt.zones.service.audit import DIGESTS_SECONDS, hop_digest, read_digests_page
from gantt.zones.service.capacity import child_capacities
from gantt.zones.service.conditions import CONCURRENT_ZONES_MAX
from gantt.zones.service.offers.dedup import quota_evaluation, uncounted_evaluation
from gantt.zones.service.offers.evaluate import EvaluationResult, via_digest
from gantt.zones.service.offers.local_hosts import TABLE_AGE_MAX_SECONDS

LOG = logging.getLogger(__name__)
#: Offers at most, and claims of one answer about changes.
OFFERS_MAX, CHANGES_MAX = 20, 1000
#: Alternates of all members of one answer: each is some hundred bytes, sealed.
ALTERNATES_MAX = 2000
#: Hosts of one page of digests: 2 MiB of an answer.
DIGESTS_PAGE_MAX = 50_000
#: Share of its parent's time for digests that a zone may take: less with each hop.
TIME_SHARE_PER_HOP = 0.7


class ChangesQuery(Message, frozen=True, kw_only=True):
    """From which revision on.

    :ivar after_claim: the last claim of the page before, whose revision ``since`` is
    """

    after_claim: Uuid | None = None
    since: Annotated[float, msgspec.Meta(ge=0, le=1e15)] = 0.0


def discover_zone(context: ZoneHandlerContext, caller: Caller) -> ZoneInfo:
    """Show the identity of this zone, and the limits of the calling parent zone."""
    parent, _ = parent_of(context, caller)
    context.insights.refresh()  # the database's clock is known then
    return ZoneInfo(
        uuid=context.zones.directory.own_uuid(),
        name=parent.name,
        minor=microversion.HISTORY[-1].minor,
        score_set=context.zones.score_set(),
        candidates_max=OFFERS_MAX,
        lease_seconds_max=parent.lease_seconds_max,
        facts=parents.disclosed_facts(parent, context.zones.facts()),
        now=context.insights.cache.database_now,
    )


def summarize_zone(context: ZoneHandlerContext, caller: Caller) -> ZoneSummary:
    """Show what this zone and its descendants have room for: counts by shape, soon outdated."""
    parent, _ = parent_of(context, caller)
    return parents.disclosed_summary(parent, context.zones.summary())


def evaluate_zone(
    context: ZoneHandlerContext, caller: Caller, body: ZoneEvaluation
) -> ZoneEvaluated:
    """Ask what this zone has for a request; nothing is claimed and nothing is written."""
    parent, caller = parent_of(context, caller)
    # Claims that follow are counted by the schedulers, like those of other callers.
    request_access.check_rate(context, caller, parent.project_id)
    request = _request_of_parent(context, caller, parent, body.request)
    _check_loop(context, request)
    if body.key is not None:
        with context.gates.evaluations.admit(caller, parent.project_id):
            return parents.disclosed_evaluation(
                parent, _evaluate_rebuild(context, parent, request, body.key)
            )
    with context.gates.evaluations.admit(caller, parent.project_id):
        evaluation = _evaluate_once(context, request, body.want)
    context.zones.note_requested(request.spec.resources)
    LOG.debug(
        'Request of a parent zone was evaluated: zone=%s outcome=%s',
        parent.name,
        evaluation.outcome.value,
    )
    tokens = _sealed_tokens(context, parent, request, evaluation)
    return parents.disclosed_evaluation(
        parent, evaluation.for_parent(tokens, len(request.consumers))
    )


def _evaluate_once(
    context: ZoneHandlerContext, request: SelectDestinations, want: int
) -> EvaluationResult:
    """Evaluate a request, with no candidates where it was evaluated for another parent zone before
    or the parent's quota here is used up.
    """
    seconds, zones = request.budget_ms / 1000, context.zones
    excess = context.insights.quotas.excess_of(request)
    if excess is not None:
        return quota_evaluation(excess, len(context.insights.table()), zones.score_set())
    request = zones.affinity.with_rule(request)
    return zones.dedup.evaluate_once(
        request,
        lambda: zones.evaluator.evaluate(request, want, seconds),
        lambda evaluation: bool(evaluation.choices),
        lambda evaluation: uncounted_evaluation(evaluation, zones.score_set()),
    )


def _evaluate_rebuild(
    context: ZoneHandlerContext, parent: ParentRecord, request: SelectDestinations, key: str
) -> ZoneEvaluated:
    """Evaluate the host of a guest of the parent for a rebuild, without naming the host."""
    if request.spec.purpose is not Purpose.REBUILD:
        raise exceptions.invalid('body.key', "expected null, as the purpose is not 'rebuild'")
    if len(request.consumers) != 1:
        raise exceptions.invalid('body.request.consumers', 'expected one consumer beside body.key')
    seconds = request.budget_ms / 1000
    present = context.zones.rebuilds
    resolved = present.request_under_key(scoped_id(parent.name, key), parent.name, request)
    if isinstance(resolved, SelectDestinations):
        evaluation = context.zones.evaluator.evaluate(resolved, 1, seconds)
        return msgspec.structs.replace(evaluation, choices=[]).for_parent([], 1)
    zone, row = resolved
    below = present.evaluate(zone, row.key, request, seconds)
    return msgspec.structs.replace(below, offers=[])


def count_capacity_of_zone(
    context: ZoneHandlerContext, caller: Caller, body: ZoneCapacityOf
) -> ZoneCapacity:
    """Count how many more of a member fit in this zone and its descendants."""
    parent, caller = parent_of(context, caller)
    parents.check_trusted(parent)
    request_access.check_rate(context, caller, parent.project_id)
    request = _request_of_parent(context, caller, parent, body.request)
    _check_loop(context, request)
    with context.gates.evaluations.admit(caller, parent.project_id):
        return context.zones.dedup.evaluate_once(
            request,
            lambda: _total_capacity(context, request),
            lambda capacity: bool(capacity.hosts),
            lambda _: ZoneCapacity(count=0, eligible=0, hosts=0),
        )


def _total_capacity(context: ZoneHandlerContext, request: SelectDestinations) -> ZoneCapacity:
    """Return the capacity of this zone and its child zones for a request."""
    directory = context.zones.directory
    room_here, only = (
        context.insights.capacity(request.spec),
        context.zones.affinity.zones_for_members(request),
    )
    own_uuid = directory.own_uuid()
    below = child_capacities(context.zones.calls, directory.children(), own_uuid, request, only)
    answered = [report.capacity for report in below if report.capacity is not None]
    is_here = only is None or own_uuid in only
    return ZoneCapacity(
        count=is_here * room_here.count + sum(report.count for report in answered),
        eligible=is_here * room_here.eligible + sum(report.eligible for report in answered),
        hosts=room_here.hosts + sum(report.hosts for report in answered),
        complete=len(answered) == len(below) and all(report.complete for report in answered),
    )


def allocate_in_zone(
    context: ZoneHandlerContext, caller: Caller, key: str, body: ZoneAllocation
) -> ZoneAllocated:
    """Claim offered places, under a key: a repeated request has the effect of one."""
    parent, caller = parent_of(context, caller)
    if body.request.request_id != key:
        raise exceptions.invalid('body.request.request_id', f'expected the key, {key!r}')
    request = _request_of_parent(context, caller, parent, body.request)
    _check_loop(context, request)
    body = msgspec.structs.replace(body, request=request)
    places = _offered_places(context, parent, key, body)
    request = msgspec.structs.replace(
        request, request_id=scoped_id(parent.name, key), places=places
    )
    with context.gates.placements.admit(caller, parent.project_id):
        try:
            if places:
                _note_rule(context, request)
            answer = context.client.select_destinations(request)
        except (exceptions.NoValidHost, exceptions.Conflict):
            raise exceptions.OfferGone() from None
        except exceptions.Refused as e:
            raise request_access.refusal(context, caller, request, e) from None
    context.zones.reload_soon()
    return _placement_for_parent(context, parent, key, answer)


def _note_rule(context: ZoneHandlerContext, request: SelectDestinations) -> None:
    """Store the rule of the parent's group before members are placed under it.

    :raises Refused: the rule is outdated, or members of the group are here under another rule
    """
    group = request.spec.group
    if group is not None and group.is_ruled:
        context.stores.zone_requests.note_parent_rule(
            group, request.spec.project_id, request.rule_generation
        )


def _offered_places(
    context: ZoneHandlerContext, parent: ParentRecord, key: str, body: ZoneAllocation
) -> list[OfferedPlace]:
    """Return the places that an allocation may use, its order noted; empty: it is placed already.

    :raises RequestCancelled, AllocationOutdated, OfferGone: nothing is claimed any more
    :raises TokenRefused, Refused: its tokens or its consumers do not fit the request
    """
    noted, refused = _parent_allocation(parent, key, body), None
    try:
        places = _open_tokens(context, parent, body)
    except (exceptions.TokenRefused, exceptions.OfferGone) as e:
        places, refused = [], e
    if refused is None and context.stores.orders.note_new_allocation(noted):
        return places
    allocation = _allocation_state(context, parent, key)
    if allocation is not None and allocation.state == 'cancelled':
        raise exceptions.RequestCancelled(request_id=key)
    if allocation is not None and allocation.state != 'open':
        return []  # whatever has become of its tokens since
    if refused is not None:
        raise refused
    # Earlier allocations of the parent for the same consumers are cancelled.
    for request_id in context.stores.orders.note_allocation(noted):
        # An allocation that was placed was answered, or its answer is requested: it may live.
        stored = context.stores.requests.load_request(request_id)
        if stored is None or stored.state == 'open':
            context.client.cancel_claims(request_id, f'zone {parent.name} has sent a later one')
    return places


def _parent_allocation(parent: ParentRecord, key: str, body: ZoneAllocation) -> ParentAllocation:
    request = body.request
    return ParentAllocation(
        parent=parent.name,
        key=key,
        order=body.order,
        consumers=request.consumers,
        purpose=request.spec.purpose,
        receipt=body.receipt,
        seconds=request.budget_ms / 1000,
    )


def show_zone_allocation(context: ZoneHandlerContext, caller: Caller, key: str) -> ZoneAllocated:
    """Show what became of an allocation."""
    parent, _ = parent_of(context, caller)
    allocation = _allocation_state(context, parent, key)
    if allocation is None:
        raise exceptions.NotFound(kind='allocation', name=key)
    return allocation


def release_zone_allocation(context: ZoneHandlerContext, caller: Caller, key: str) -> ZoneAllocated:
    """End an allocation; a request for it that comes later claims nothing."""
    parent, caller = parent_of(context, caller)
    with context.gates.placements.admit(caller, parent.project_id):
        context.client.cancel_claims(
            scoped_id(parent.name, key), f'given back by zone {parent.name}'
        )
    context.zones.reload_soon()
    return ZoneAllocated(key=key, state='cancelled')


def end_claim_of_zone(
    context: ZoneHandlerContext, caller: Caller, key: str, claim_id: str
) -> ZoneAllocated:
    """End one claim of an allocation; for a zone of another owner while it is reserved only.

    What its host has confirmed runs and is counted, and ends with its guest.
    """
    parent, project = parent_of(context, caller)
    request_id, reason = scoped_id(parent.name, key), f'given back by zone {parent.name}'
    with context.gates.placements.admit(project, parent.project_id):
        claim = context.stores.claims.load_claim(claim_id)
        if (
            claim is not None
            and (claim.request_id, claim.parent_key) == (request_id, parent.name)
            and (claim.state is State.RESERVED or parent.trusted)
        ):
            context.insights.offer(context.stores.claims.force_release(claim_id, reason).hosts)
        below = context.stores.child_claims.find(request_id, claim_id=claim_id)
        claims_to_end = [
            claim_below
            for claim_below in below
            if claim_below.holds and claim_below.parent == parent.name
        ]
        context.stores.zone_releases.add_releases(
            [(claim_below.child, claim_below.claim_id) for claim_below in claims_to_end]
        )
    context.zones.reload_soon()
    try:
        return show_zone_allocation(context, caller, key)
    except exceptions.NotFound:
        return ZoneAllocated(key=key, state='cancelled')  # nothing of it is here any more


def extend_zone_lease(
    context: ZoneHandlerContext, caller: Caller, key: str, body: ZoneLease
) -> ZoneAllocated:
    """Lengthen the leases of what is reserved of an allocation, as far as this parent may."""
    parent, caller = parent_of(context, caller)
    if _allocation_state(context, parent, key) is None:
        raise exceptions.NotFound(kind='allocation', name=key)
    seconds = min(body.seconds, parent.lease_seconds_max)
    with context.gates.placements.admit(caller, parent.project_id):
        context.client.extend_claims(scoped_id(parent.name, key), seconds)
    # Not known any more where the database was put back meanwhile.
    return show_zone_allocation(context, caller, key)


def explain_zone_allocation(
    context: ZoneHandlerContext, caller: Caller, key: str
) -> ZoneExplanation:
    """Show how an allocation was decided: counts, and what was queried; nobody is named."""
    parent, _ = parent_of(context, caller)
    if _allocation_state(context, parent, key) is None:
        raise exceptions.NotFound(kind='allocation', name=key)
    explanation = context.insights.explain(scoped_id(parent.name, key))
    return parents.disclosed_explanation(
        parent, explanation_for_key(explanation, context.zones, context.stores.child_claims, key)
    )


def show_zone_changes(
    context: ZoneHandlerContext, caller: Caller, query: ChangesQuery
) -> ZoneChanges:
    """Show claims of the calling parent zone which have changed since a revision."""
    parent, _ = parent_of(context, caller)
    after = query.after_claim or ''
    claims = context.stores.zone_claims.claims_of_parent(
        parent.name, query.since, CHANGES_MAX + 1, after
    )
    page = claims[:CHANGES_MAX]
    return ZoneChanges(
        incarnation=context.zones.directory.identity().incarnation,
        revision=max((claim.changed_at for claim in page), default=query.since),
        claims=page,
        more=len(claims) > len(page),
    )


def unseal_host(context: ZoneHandlerContext, caller: Caller, body: UnsealHost) -> UnsealedHost:
    """Show what a sealed host stands for, where this zone's conductor builds."""
    context.zones.directory.freshen()
    now = _database_now(context)
    for parent in context.zones.directory.parents():
        try:
            sealed = _token_sealer(context).open_host(body.sealed_host, parent.name, now)
        except exceptions.TokenRefused:
            continue
        is_alternate = isinstance(sealed, SealedAlternate)
        if sealed.child:
            return UnsealedHost(
                child=sealed.child, sealed_host=sealed.sealed_host, is_alternate=is_alternate
            )
        if isinstance(sealed, SealedAlternate):
            return UnsealedHost(
                consumer=sealed.consumer,
                host=sealed.host,
                topic=topic_of(sealed.host),
                is_alternate=True,
            )
        claim = context.stores.claims.load_claim(sealed.claim_id)
        if claim is None:
            raise exceptions.NotFound(kind='claim', name=sealed.claim_id)
        return UnsealedHost(
            claim_id=claim.id,
            consumer=claim.consumer,
            state=claim.state.value,
            host=claim.host,
            topic=topic_of(claim.host),
            layout=claim.layout,
        )
    raise exceptions.TokenRefused()


def show_host_digests(
    context: ZoneHandlerContext, caller: Caller, body: HostDigestsQuery
) -> HostDigestsPage:
    """Show digests, under a salt, of the identifiers of hosts here and in child zones.

    It is for the audit of the parent zone: the same host has the same digests in each zone, and
    nothing else can be read from them.
    """
    parent, caller = parent_of(context, caller)
    parents.check_trusted(parent)
    own_uuid = context.zones.directory.own_uuid()
    if hop_digest(body.salt, own_uuid) in body.via:
        raise exceptions.ZoneLoop()
    with context.gates.trials.admit(caller, parent.project_id):
        salt = bytes.fromhex(body.salt)
        hosts = context.stores.zone_figures.registered_hosts()
        own_digests = [host_digests.digests_of(host, own_uuid, salt) for host in hosts]
        below, complete = _child_digest_pages(context, body, own_uuid)
        shown, more = host_digests.digests_page(
            own_digests, below, bytes.fromhex(body.after), DIGESTS_PAGE_MAX
        )
    return HostDigestsPage(digests=host_digests.digests_text(shown), more=more, complete=complete)


def _child_digest_pages(
    context: ZoneHandlerContext, body: HostDigestsQuery, own_uuid: str
) -> tuple[list[tuple[list[HostDigests], bool]], bool]:
    """Return a page of each child zone, and whether all of them have answered."""
    children = [zone for zone in context.zones.directory.children() if zone.enabled]
    if not children or not body.hops:
        return [], not children
    query = msgspec.structs.replace(
        body, hops=body.hops - 1, via=[*body.via, hop_digest(body.salt, own_uuid)]
    )
    seconds = DIGESTS_SECONDS * TIME_SHARE_PER_HOP ** len(query.via)

    def page(zone: ZoneRecord) -> tuple[list[HostDigests], bool, bool]:
        try:
            return read_digests_page(context.zones.calls, zone, query, seconds)
        except exceptions.GanttError as e:
            LOG.warning('Hosts of a zone cannot be read: zone=%s error=%s', zone.name, e.message)
            return [], False, False

    with concurrent.futures.ThreadPoolExecutor(CONCURRENT_ZONES_MAX) as threads:
        pages = list(threads.map(page, children))
    return [(zone_digests, more) for zone_digests, more, _ in pages], all(
        whole for *_, whole in pages
    )


# -- requests of a parent ---------------------------------------------------------------
def _request_of_parent(
    context: ZoneHandlerContext, caller: Caller, parent: ParentRecord, request: SelectDestinations
) -> SelectDestinations:
    """Return a request as it is executed here: for the parent's project, within its limits.

    :raises InvalidMessage: a field is set that no parent may set; names the field
    :raises NotTrusted: a field is set that only a parent of the same owner may set; likewise
    :raises NotFound: it names a consumer of another project
    """
    for field in ('parent', 'places', 'only_project'):
        if getattr(request, field):
            raise exceptions.invalid(
                f'body.request.{field}', 'expected it to be absent: a parent zone must not set it'
            )
    if request.lifecycle is not Lifecycle.HOST:
        raise exceptions.invalid(
            'body.request.lifecycle',
            f"expected 'host' from a parent zone; got {request.lifecycle.value!r}",
        )
    spec, group = request.spec, request.spec.group
    if group is not None:
        group = msgspec.structs.replace(group, uuid=scoped_id(parent.name, group.uuid))
    spec = msgspec.structs.replace(
        spec,
        project_id=parent.project_id,
        user_id=None,
        group=group,
        # These hints of Nova are fields of the spec.
        hints={key: value for key, value in spec.hints.items() if key not in nova_hints.HINT_NAMES},
    )
    lease = min(request.lease_seconds or parent.lease_seconds_max, parent.lease_seconds_max)
    within = msgspec.structs.replace(
        request,
        spec=spec,
        lease_seconds=lease,
        budget_ms=min(request.budget_ms, BUDGET_MS_MAX),
        dry_run=False,
    )
    check_request = request_access.check_request(context, caller, within)
    return with_trace(caller, msgspec.structs.replace(check_request, parent=parent.name))


def _check_loop(context: ZoneHandlerContext, request: SelectDestinations) -> None:
    """Refuse a request that has passed through this zone before.

    :raises ZoneLoop: it has
    """
    if via_digest(request.request_id, context.zones.directory.own_uuid()) in request.via:
        raise exceptions.ZoneLoop()


# -- sealed tokens -----------------------------------------------------------------------
def _database_now(context: ZoneHandlerContext) -> float:
    """Return the database's clock, refreshed with the hosts where the cache is old.

    Tokens that are opened here may have been sealed by another process.
    """
    if context.insights.cache.read_seconds_ago > TABLE_AGE_MAX_SECONDS:
        context.insights.refresh()
    return context.insights.cache.database_now


def _token_sealer(context: ZoneHandlerContext) -> TokenSealer:
    return TokenSealer(context.zones.directory.identity())


def _sealed_tokens(
    context: ZoneHandlerContext,
    parent: ParentRecord,
    request: SelectDestinations,
    found: EvaluationResult,
) -> list[str]:
    """Return sealed tokens of the best choices."""
    seals, now = _token_sealer(context), context.insights.cache.database_now
    digest = request.spec.digest
    members = b''.join(consumer_digests(request.consumers))
    tokens = []
    # Those that were queried go first, the others as far as there is room.
    steps = sorted(found.steps, key=lambda step: not step.outcome)[:STEPS_MAX]
    for chosen in found.choices[:OFFERS_MAX]:
        epochs = [_host_epoch(context, name) for name in chosen.place.hosts]
        generations = _host_generations(context, chosen.place)
        place = msgspec.structs.replace(chosen.place, steps=steps, fits=chosen.room)
        sealed = SealedOffer(place, request.request_id, digest, epochs, members, generations)
        tokens.append(seals.seal(sealed, parent.name, now))
    return tokens


def _open_tokens(
    context: ZoneHandlerContext, parent: ParentRecord, body: ZoneAllocation
) -> list[OfferedPlace]:
    """Return the places in the tokens whose hosts are still the same; see ``unchanged_first``.

    :raises TokenRefused: a token is not valid for this request
    :raises OfferGone: none of the hosts is the same any more
    """
    seals, now = _token_sealer(context), _database_now(context)
    digest = body.request.spec.digest
    offers: list[SealedOffer] = []
    for token in body.tokens:
        sealed = seals.open_offer(token, parent.name, now)
        is_other = (sealed.evaluated, sealed.digest) != (body.evaluated, digest)
        if is_other or not is_offered_to(sealed, body.request.consumers):
            raise exceptions.TokenRefused()
        offers.append(sealed)
    places = _unchanged_places(context, offers)
    if not places:
        # A host may have registered since they were read here, and before it was offered.
        context.insights.reload_soon()
        context.insights.refresh()
        places = _unchanged_places(context, offers)
    if not places:
        raise exceptions.OfferGone()
    return choice.unchanged_first(places)


def _unchanged_places(
    context: ZoneHandlerContext, offers: Iterable[SealedOffer]
) -> list[tuple[OfferedPlace, bool]]:
    """Return the places on hosts that are still the same, each with whether its usage changed."""
    places: list[tuple[OfferedPlace, bool]] = []
    for sealed in offers:
        place = sealed.place
        is_changed = sealed.generations != _host_generations(context, place)
        if place.child is None:
            same_hosts = [
                name
                for name, epoch in zip(place.hosts, sealed.epochs, strict=True)
                if _host_epoch(context, name) == epoch
            ]
            if not same_hosts:
                continue
            place = msgspec.structs.replace(place, hosts=same_hosts)
        places.append((place, is_changed))
    return places


def _host_generations(context: ZoneHandlerContext, place: OfferedPlace) -> list[int]:
    """Return the generations of the hosts of a place; each change of usage increments one."""
    rows = (context.insights.cache.row_of(name) for name in place.hosts)
    return [-1 if row is None else row.generation for row in rows]


def _host_epoch(context: ZoneHandlerContext, name: str) -> int:
    """Return the epoch of a host's last registration; -1: the host is not known."""
    row = context.insights.cache.row_of(name)
    return -1 if row is None else row.epoch


# -- state of an allocation ----------------------------------------------------------------
def _allocation_state(
    context: ZoneHandlerContext, parent: ParentRecord, key: str
) -> ZoneAllocated | None:
    """Return the state of an allocation; None: it is not known."""
    request_id = scoped_id(parent.name, key)
    try:
        stored, answer, _ = context.insights.request(request_id)
    except exceptions.NotFound:
        return None
    below = context.stores.child_claims.find(request_id)
    if stored.state != 'placed' or answer is None:
        return ZoneAllocated(key=key, state=stored.state)
    # A claim that is lost below may live, and nothing is reported of it.
    if not any(claim.is_live for claim in stored.claims) and not any(held.holds for held in below):
        return ZoneAllocated(key=key, state='cancelled')
    return _placement_for_parent(context, parent, key, answer)


def _placement_for_parent(
    context: ZoneHandlerContext, parent: ParentRecord, key: str, answer: Answer
) -> ZoneAllocated:
    """Return a placement in the form that the parent receives."""
    if answer.outcome is not Outcome.PLACED:
        return ZoneAllocated(key=key, state='open')
    seals, now = _token_sealer(context), context.insights.cache.database_now
    members = []
    alternates_max = ALTERNATES_MAX // max(1, len(answer.selections))
    for chosen, *others in answer.selections:
        claim_id = chosen.claim_id or ''
        # A host of a child zone is sealed again, together with the uuid of that zone.
        sealed = SealedClaim(claim_id, chosen.child, chosen.sealed_host)
        members.append(
            PlacedBelow(
                consumer=chosen.consumer,
                claim_id=claim_id,
                sealed_host=seals.seal(sealed, parent.name, now),
                lease_seconds=chosen.lease_seconds,
                alternates=[
                    seals.seal(
                        SealedAlternate(
                            alternate.consumer,
                            alternate.host,
                            alternate.child,
                            alternate.sealed_host,
                        ),
                        parent.name,
                        now,
                    )
                    for alternate in others[:alternates_max]
                ],
            )
        )
    return ZoneAllocated(key=key, state='placed', members=members, level=answer.level, given_up=[])
