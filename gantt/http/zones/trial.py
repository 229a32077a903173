# SPDX-License-Identifier: Apache-2.0
"""Dry runs over zones: nothing is claimed or written, and no scheduler is called."""

from collections.abc import Sequence

import msgspec

from gantt.core.claims.commit import is_foreign
from gantt.core.messages import request as requests
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import (
    Lifecycle,
    OfferedPlace,
    Purpose,
    RequestKind,
    SelectDestinations,
)
from gantt.core.records.decision import Answer, Outcome, error_of
from gantt.core.records.decision_codec import StoredDecision
from gantt.core.zones import choice
from gantt.core.zones.choice import Choice, Share
from gantt.core.zones.messages import ZoneRecord
from gantt.core.zones.not_queried import zones_not_queried
from gantt.core.zones.score import ZoneScore
from gantt.http.context import HandlerContext
from gantt.insights.explain import explaining, redacting
from gantt.insights.views import Explanation
from gantt.scheduler.ports.zones import StoredBelow
from gantt.scheduler.zones.dry_run import would_be
from gantt.scheduler.zones.offers.evaluate import Evaluated
from gantt.scheduler.zones.rebuild_check import as_evaluated

#: Offers requested of one zone.
WANT = 5


def over_zones(
    world: HandlerContext,
    request: SelectDestinations,
    public: bool,
    is_own_caller: bool,
) -> tuple[Answer, Explanation] | SelectDestinations:
    """Return the place a request would get; where that is on the own hosts, the request as it is.

    :param public: include only what every user may know
    :param is_own_caller: the project would claim by itself: default limits bind it
    :raises GanttError: it is no placement, as for a real request
    """
    directory = world.zones.directory
    directory.freshen()
    children = directory.children()
    if request.spec.kind is not RequestKind.HOST or not children:
        return request
    ruled = world.zones.affinity.with_rule(request)
    if not (request.hops and request.lifecycle is Lifecycle.HOST):
        world.zones.affinity.check_own_zone(ruled)
        return request
    if request.spec.purpose is Purpose.REBUILD:
        location = world.zones.rebuilds.below(request)
        # A guest of another project is not revealed, whether or not there is one.
        if location is None or is_foreign(location[1].project_id, request.only_project):
            return request
        return _rebuilt(world, request, public, *location)
    if world.zones.affinity.of(ruled) == {directory.own_uuid()}:
        return request
    world.insights.quotas.check(request, is_own_caller)
    request, ruled, seconds = request.traced(), ruled.traced(), request.budget_ms / 1000
    evaluated = world.zones.evaluator.evaluate(ruled, WANT, seconds)
    whole = choice.is_whole(request)
    shares = choice.split(range(len(request.consumers)), evaluated.choices, whole)
    if len(shares) == 1 and shares[0].choice.child is None:
        return request
    declared = world.insights.cache.declared_classes(request.spec.classes)
    requests.check(request, declared.union(request.spec.classes))
    return _would_be(world, request, public, evaluated, shares)


def _rebuilt(
    world: HandlerContext,
    request: SelectDestinations,
    public: bool,
    zone: ZoneRecord,
    row: StoredBelow,
) -> tuple[Answer, Explanation]:
    """Return whether the host of a guest fits, which is in a child zone."""
    evaluated = world.zones.rebuilds.evaluated(zone, row.key, request, request.budget_ms / 1000)
    place = Choice(zone.uuid, OfferedPlace(), ZoneScore(0, 0.0, 0.0), 1)
    shares = [Share(place, [0])] if evaluated.outcome is Outcome.PLACED else []
    return _would_be(world, request, public, as_evaluated(zone, evaluated), shares)


def _would_be(
    world: HandlerContext,
    request: SelectDestinations,
    public: bool,
    found: Evaluated,
    shares: Sequence[Share],
) -> tuple[Answer, Explanation]:
    children = world.zones.directory.children()
    decision_id = derived_id('dry run over zones', request.request_id)
    answer, decision = would_be(request, found, shares, children, decision_id)
    now = world.insights.cache.database_now
    stored = StoredDecision(decision, request)
    explanation = explaining.explain(stored, now, now, b'', is_stored=False)
    if public:
        public_words = redacting.words_of(world.insights.pipeline.filters)
        explanation = redacting.redacted(explanation, public_words)
        answer = msgspec.structs.replace(answer, reason=explanation.reason)
    error = error_of(answer)
    if error is not None:
        # The decision is stored nowhere: its explanation goes with the refusal.
        error.kwargs.pop('decision_id', None)
        error.kwargs['explanation'] = explanation.lines
        raise error
    return answer, explanation


def on_local_hosts(
    world: HandlerContext, request: SelectDestinations, public: bool, is_own_caller: bool
) -> tuple[Answer, Explanation]:
    """Return the place a request would get on hosts of this zone.

    :param public: include only what every user may know
    :param is_own_caller: the project would claim by itself: default limits bind it
    :raises GanttError: it is no placement, as for a real request
    """
    children = world.zones.directory.children
    return world.insights.dry_run(
        request, public, is_own_caller, lambda planned: zones_not_queried(children(), planned)
    )
