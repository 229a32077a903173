# SPDX-License-Identifier: Apache-2.0
"""Answers over zones that claim nothing: dry runs, capacity, and explanations level by level."""

import uuid
from collections.abc import Mapping, Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.commit import is_foreign
from gantt.core.messages import request as requests
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import (
    Lifecycle,
    OfferedPlace,
    Purpose,
    RequestKind,
    RequestSpec,
    SelectDestinations,
)
from gantt.core.messages.zone_step import ExplainedShare, ZoneExplanation, ZoneStep
from gantt.core.records.decision import Answer, Outcome, error_of
from gantt.core.records.decision_codec import StoredDecision
from gantt.insights.explain import explaining, redacting
from gantt.insights.read_model import Insights
from gantt.insights.views import Capacity, Explanation, RoomBelow
from gantt.scheduler.ports.child_claims import ChildClaims
from gantt.zones.model import choice
from gantt.zones.model.choice import ZoneChoice, ZoneScore, ZoneShare
from gantt.zones.model.messages import ZoneRecord
from gantt.zones.model.not_queried import zones_not_queried
from gantt.zones.service.capacity import child_capacities
from gantt.zones.service.context import ZoneContext
from gantt.zones.service.decisions import dry_run_result
from gantt.zones.service.offers.evaluate import EvaluationResult
from gantt.zones.service.rebuild_check import evaluation_result

#: Offers requested of one zone for a dry run.
DRY_RUN_OFFERS = 5
#: Timeout of a child zone's explanation, in seconds.
EXPLAIN_SECONDS = 2.0


class AnswersOverZones:
    """Answers from the hosts of this zone and its child zones, for ``http.context``."""

    def __init__(self, zones: ZoneContext, insights: Insights, claims: ChildClaims) -> None:
        self._zones = zones
        self._insights = insights
        self._claims = claims

    # -- dry runs --------------------------------------------------------------------------
    def dry_run(
        self, request: SelectDestinations, public: bool, is_own_caller: bool
    ) -> tuple[Answer, Explanation]:
        """Return the place a request would get; no scheduler is called.

        :param public: include only what every user may know
        :param is_own_caller: the project would claim by itself: default limits bind it
        :raises GanttError: it is no placement, as for a real request
        """
        over_zones = self._over_zones(request, public, is_own_caller)
        if not isinstance(over_zones, SelectDestinations):
            return over_zones
        children = self._zones.directory.children
        return self._insights.dry_run(
            over_zones,
            public,
            is_own_caller,
            lambda planned: zones_not_queried(children(), planned),
        )

    def _over_zones(
        self,
        request: SelectDestinations,
        public: bool,
        is_own_caller: bool,
    ) -> tuple[Answer, Explanation] | SelectDestinations:
        """Return the place a request would get; on hosts of this zone: the request as it is.

        :param public: include only what every user may know
        :param is_own_caller: the project would claim by itself: default limits bind it
        :raises GanttError: it is no placement, as for a real request
        """
        directory = self._zones.directory
        directory.freshen()
        children = directory.children()
        if request.spec.kind is not RequestKind.HOST or not children:
            return request
        ruled = self._zones.affinity.with_rule(request)
        if not (request.hops and request.lifecycle is Lifecycle.HOST):
            self._zones.affinity.check_own_zone(ruled)
            return request
        if request.spec.purpose is Purpose.REBUILD:
            location = self._zones.rebuilds.child_of_guest(request)
            # A guest of another project is not revealed, whether or not there is one.
            if location is None or is_foreign(location[1].project_id, request.only_project):
                return request
            return self._rebuild_answer(request, public, *location)
        if self._zones.affinity.zones_of(ruled) == {directory.own_uuid()}:
            return request
        self._insights.quotas.check(request, is_own_caller)
        request, ruled, seconds = request.traced(), ruled.traced(), request.budget_ms / 1000
        evaluated = self._zones.evaluator.evaluate(ruled, DRY_RUN_OFFERS, seconds)
        whole = choice.is_whole(request)
        shares = choice.split_over_choices(range(len(request.consumers)), evaluated.choices, whole)
        if len(shares) == 1 and shares[0].choice.child is None:
            return request
        declared = self._insights.cache.declared_classes(request.spec.classes)
        requests.check(request, declared.union(request.spec.classes))
        return self._dry_run_answer(request, public, evaluated, shares)

    def _rebuild_answer(
        self,
        request: SelectDestinations,
        public: bool,
        zone: ZoneRecord,
        row: ChildClaim,
    ) -> tuple[Answer, Explanation]:
        """Return whether the host of a guest fits, which is in a child zone."""
        evaluated = self._zones.rebuilds.evaluate(zone, row.key, request, request.budget_ms / 1000)
        place = ZoneChoice(zone.uuid, OfferedPlace(), ZoneScore(0, 0.0, 0.0), 1)
        shares = [ZoneShare(place, [0])] if evaluated.outcome is Outcome.PLACED else []
        return self._dry_run_answer(request, public, evaluation_result(zone, evaluated), shares)

    def _dry_run_answer(
        self,
        request: SelectDestinations,
        public: bool,
        found: EvaluationResult,
        shares: Sequence[ZoneShare],
    ) -> tuple[Answer, Explanation]:
        children = self._zones.directory.children()
        decision_id = derived_id('dry run over zones', request.request_id)
        answer, decision = dry_run_result(request, found, shares, children, decision_id)
        now = self._insights.cache.database_now
        stored = StoredDecision(decision, request)
        explanation = explaining.explain(stored, now, now, b'', is_stored=False)
        if public:
            public_words = redacting.public_texts(self._insights.pipeline.filters)
            explanation = redacting.redacted_explanation(explanation, public_words)
            answer = msgspec.structs.replace(answer, reason=explanation.reason)
        error = error_of(answer)
        if error is not None:
            # The decision is stored nowhere: its explanation goes with the refusal.
            error.kwargs.pop('decision_id', None)
            error.kwargs['explanation'] = explanation.lines
            raise error
        return answer, explanation

    # -- capacity --------------------------------------------------------------------------
    def capacity(self, spec: RequestSpec, local: Capacity) -> Capacity:
        directory, consumer = self._zones.directory, str(uuid.uuid4())
        directory.freshen()
        request = SelectDestinations(request_id=consumer, spec=spec, consumers=[consumer])
        only = self._zones.affinity.zones_for_members(request)
        if only is not None and directory.own_uuid() not in only:
            local = _capacity_without_room(local)
        return msgspec.structs.replace(local, below=self._capacities_of_children(request, only))

    def _capacities_of_children(
        self, request: SelectDestinations, only: frozenset[str] | None
    ) -> list[RoomBelow]:
        directory = self._zones.directory
        children, own_uuid = directory.children(), directory.own_uuid()
        return [
            RoomBelow(
                zone=below.zone.name,
                count=None if below.capacity is None else below.capacity.count,
                hosts=0 if below.capacity is None else below.capacity.hosts,
                complete=below.capacity is not None and below.capacity.complete,
                problem=below.problem,
            )
            for below in child_capacities(self._zones.calls, children, own_uuid, request, only)
        ]

    # -- explanations ------------------------------------------------------------------------
    def explanation(self, local: Explanation) -> Explanation:
        below = explanations_of_zones(local, self._zones, self._claims)
        return explaining.with_zone_explanations(local, below)


def explanations_of_zones(
    found: Explanation, context: ZoneContext, claims: ChildClaims
) -> dict[str, ZoneExplanation]:
    """Return the explanations by the child zones that have members of a request, by name.

    Zones that do not answer are left out.
    """
    taken = {step.zone for step in found.zones if step.taken and step.zone}
    if not taken:
        return {}
    keys = {row.child: row.key for row in claims.find(found.request_id)}
    explained: dict[str, ZoneExplanation] = {}
    for zone in context.directory.children():
        if zone.name in taken and zone.uuid in keys:
            try:
                explained[zone.name] = context.calls.explain(
                    zone, keys[zone.uuid], EXPLAIN_SECONDS, found.trace or ''
                )
            except exceptions.GanttError:
                continue  # the lines show that it has not explained itself
    return explained


def explanation_for_key(
    found: Explanation, context: ZoneContext, claims: ChildClaims, key: str
) -> ZoneExplanation:
    """Return a decision as the parent zone gets it."""
    if found.zones:
        below = explanations_of_zones(found, context, claims)
        shares = [_explained_share(step, below) for step in found.zones]
        hosts = sum(share.hosts for share in shares)
        survivors = sum(share.survivors for share in shares)
        removed: dict[str, int] = {}
        for share in shares:
            for name, count in share.removed.items():
                removed[name] = removed.get(name, 0) + count
    else:
        shares, hosts = [], found.hosts
        member = found.members[-1] if found.members else None
        survivors = member.survivors if member else 0
        removed = (
            {step.filter: step.removed for step in member.funnel if step.removed} if member else {}
        )
    return ZoneExplanation(
        key=key,
        outcome=found.outcome,
        level=max((member.level for member in found.members), default=0),
        attempts=found.attempts,
        hosts=hosts,
        survivors=survivors,
        removed=removed,
        zones=shares,
    )


def _explained_share(step: ZoneStep, below: Mapping[str, ZoneExplanation]) -> ExplainedShare:
    # The reason why a zone has not answered may name it, or its internal problems.
    reason = step.reason if step.strategy or step.outcome else 'it has not answered'
    return ExplainedShare(
        is_own=not step.zone,
        round=step.round,
        queried_after=step.queried_after,
        seconds=step.seconds,
        outcome=step.outcome,
        offers=step.offers,
        level=step.level,
        score=step.score,
        hosts=step.hosts,
        survivors=step.survivors,
        removed=step.removed,
        strategy=step.strategy,
        reason=reason if not (step.outcome and not step.strategy) else '',
        taken=step.taken,
        below=below.get(step.zone),
    )


def _capacity_without_room(found: Capacity) -> Capacity:
    """Return a capacity without room here: the group is bound to another zone."""
    return msgspec.structs.replace(
        found,
        count=0,
        eligible=0,
        by_zone=[],
        by_aggregate=[],
        by_host=[],
        runs_out={},
        uncounted=0,
        verdict='its server group is to be together, and is in a child zone',
    )
