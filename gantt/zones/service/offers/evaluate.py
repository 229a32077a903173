# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a request in a zone: offers of its own hosts and of its child zones.

Nothing is claimed and nothing is written, so that it may be requested anywhere, and again.  The own
hosts are evaluated while the child zones answer; the search decides round by round which child
zones are queried, see :mod:`gantt.zones.model.search`.
"""

import dataclasses
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec

from gantt.core.messages.base import derived_id
from gantt.core.messages.request import Purpose, RequestKind, SelectDestinations
from gantt.core.records.decision import Outcome, ZoneStep
from gantt.scheduler.ports.process import Clock
from gantt.zones.model import choice
from gantt.zones.model.choice import ScoreSet, ZoneChoice
from gantt.zones.model.messages import (
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneOffer,
    ZoneRecord,
    ZonesQueried,
)
from gantt.zones.model.search import ZoneSearch
from gantt.zones.model.strategies import KnownZone, RandomSource, ZoneStrategy
from gantt.zones.model.summary import BestScoresSeen, missing_capability
from gantt.zones.service import delegation
from gantt.zones.service.directory import ZoneDirectory
from gantt.zones.service.offers.local_hosts import LocalHosts, LocalOffers
from gantt.zones.service.offers.queries import QueriedZone, ZoneQueries
from gantt.zones.service.offers.summaries import ZoneSummaries
from gantt.zones.service.zone_affinity import ZoneAffinity

#: Share of the remaining budget that a hop keeps for itself, and its minimum in milliseconds.
HOP_SHARE, HOP_MS = 0.1, 5.0
#: Seconds that a silent zone costs a request at most.
ANSWER_SECONDS = 2.0
#: Reason why a zone is not queried that may have room.
TOO_MANY_HOPS = 'the request has come through too many zones'
#: Maximum age of facts that rule a zone out for good, in seconds.
FACTS_SECONDS = 2.0


class EvaluationResult(msgspec.Struct, frozen=True):
    """Result of an evaluation, with its choices best first.

    :ivar outcome: outcome, see ``ZoneEvaluated``
    :ivar reason: why there are no choices, in general terms; of the own hosts the verdict
    :ivar silent: names of the zones that have not answered
    :ivar steps: what was done with each zone, this one first
    """

    choices: list[ZoneChoice]
    outcome: Outcome
    reason: str
    hosts: int
    survivors: int
    removed: dict[str, int]
    children: ZonesQueried
    complete: bool
    score_set: str
    silent: tuple[str, ...] = ()
    steps: tuple[ZoneStep, ...] = ()

    def for_parent(self, tokens: Sequence[str], members: int) -> ZoneEvaluated:
        """Return the evaluation as the parent zone gets it.

        :param members: of the request
        :param tokens: of the best choices, in their order
        """
        offers = [
            ZoneOffer(
                token=token,
                level=offered.score.level,
                tier=offered.score.tier,
                score=offered.score.score,
                fits=offered.fits,
            )
            for offered, token in zip(self.choices, tokens, strict=False)
        ]
        return ZoneEvaluated(
            outcome=self.outcome,
            offers=offers,
            hosts=self.hosts,
            survivors=self.survivors,
            removed=self.removed,
            complete=self.complete,
            children=self.children,
            score_set=self.score_set,
            fits=choice.places_in_all(self.choices, members),
        )


@dataclasses.dataclass(frozen=True)
class ZoneSelection:
    """Strategies by which zones are queried; none: all at once.

    :ivar rng: random source of those that draw
    """

    strategies: Sequence[ZoneStrategy] = ()
    rng: RandomSource = dataclasses.field(default_factory=random.Random)


class ZoneEvaluator:
    """An evaluator of requests on the own hosts and in the child zones.  Any thread.

    :param own: the hosts of this zone
    :param bound: places that requests are bound to
    :param queries: evaluations requested of the child zones
    :param choosing: strategies by which zones are queried
    """

    def __init__(
        self,
        own: LocalHosts,
        affinity: ZoneAffinity,
        queries: ZoneQueries,
        directory: ZoneDirectory,
        summaries: ZoneSummaries,
        choosing: ZoneSelection,
        clock: Clock,
        count: Callable[..., None],
    ) -> None:
        self._own = own
        self._affinity = affinity
        self._queries = queries
        self._directory = directory
        self._summaries = summaries
        self._choosing = choosing
        self._clock = clock
        self._count = count
        self._needs_summaries = any(strategy.needs_summary for strategy in choosing.strategies)
        self._best_scores = BestScoresSeen()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Begin no more calls."""
        self._queries.close()

    def evaluate(
        self,
        request: SelectDestinations,
        want: int,
        seconds: float,
        *,
        thorough: bool = False,
    ) -> EvaluationResult:
        """Return the offers of the own hosts and of the child zones.

        :param request: under the rule of its group, see ``ZoneAffinity.with_rule``
        :param seconds: for the whole evaluation
        :param thorough: query all zones at once, whatever the strategies
        :raises InvalidMessage, Refused: no zone could place it, as it is wrong
        """
        seconds = min(seconds, ANSWER_SECONDS)
        start = self._clock.monotonic()
        end = start + seconds
        only = self._affinity.zones_of(request)
        may, left_out = self._queryable_zones(request, only)
        if may and self._needs_summaries:
            self._summaries.follow()
        candidates = [self._known_zone(zone, request) for zone in may]
        strategies = () if thorough else self._choosing.strategies
        search = ZoneSearch(
            request, candidates, strategies, self._choosing.rng, self._best_seen(request, start)
        )
        child_request = request_for_children(request, self._directory.own_uuid(), seconds)
        body = ZoneEvaluation(request=child_request, want=want)
        scores = self._own.score_set()
        below: list[QueriedZone] = []
        own: LocalOffers | None = None
        number = 0
        while zones := search.next_round() or self._no_longer_ruled_out(search, request, end):
            number += 1
            calls = self._queries.begin(zones, body, number, end)
            if own is None:
                own = self._own_offers(request, want, only, is_only=not may)
                search.answered(own.choices)
            for queried in self._queries.wait(calls, search.is_enough, number, end):
                search.answered(self._comparable_choices(request, queried, scores))
                below.append(queried)
        if own is None:
            own = self._own_offers(request, want, only, is_only=not may)
            search.answered(own.choices)
        skipped = search.not_queried()
        for zone in skipped:
            self._count('gantt_zone_queries_saved_total', strategy=zone.strategy)
        steps = [
            ZoneStep(zone=x.zone.zone.name, strategy=x.strategy, reason=x.reason) for x in skipped
        ]
        steps += [ZoneStep(zone=zone.name, reason=why) for zone, why in left_out]
        choices = choice.best_first(search.found)
        self._note_best(request, choices)
        is_cut = any(why is TOO_MANY_HOPS for _, why in left_out)
        return _combined_result(own, choices, below, steps, scores, start, is_cut)

    # -- zones to query ----------------------------------------------------------------
    def _queryable_zones(
        self, request: SelectDestinations, only: Collection[str] | None
    ) -> tuple[list[ZoneRecord], list[tuple[ZoneRecord, str]]]:
        """Return the child zones that may be queried, and the others with the reason why not."""
        may, left_out = [], []
        for zone in self._directory.children():
            if not zone.enabled:
                left_out.append((zone, 'disabled'))
            elif request.spec.kind is not RequestKind.HOST:
                left_out.append((zone, 'requests for pools stay in their zone'))
            elif only is not None and zone.uuid not in only:
                left_out.append((zone, 'the request is bound to another place'))
            elif request.spec.purpose is Purpose.REBUILD:
                left_out.append((zone, 'a guest that is here is rebuilt on its host'))
            elif request.hops <= 0:
                left_out.append((zone, TOO_MANY_HOPS))
            elif not zone.trusted and delegation.names_local_hosts(request):
                left_out.append((zone, 'the request names hosts, and the zone is of another owner'))
            else:
                may.append(zone)
        return may, left_out

    def _known_zone(self, zone: ZoneRecord, request: SelectDestinations) -> KnownZone:
        weight = self._queries.breaker.honoured_share(zone.uuid)
        return self._summaries.zone(zone, request.spec.resources, weight)

    def _best_seen(self, request: SelectDestinations, now: float) -> float | None:
        with self._lock:
            return self._best_scores.best_score(request.spec.resources, now)

    def _note_best(self, request: SelectDestinations, choices: Sequence[ZoneChoice]) -> None:
        if choices:
            best, now = max(candidate.score.score for candidate in choices), self._clock.monotonic()
            with self._lock:
                self._best_scores.note(request.spec.resources, best, now)

    def _no_longer_ruled_out(
        self, search: ZoneSearch, request: SelectDestinations, end: float
    ) -> list[KnownZone]:
        """Return zones to query after all, as newer facts no longer rule them out."""
        if search.is_enough():
            return []
        for skipped in list(search.ruled_out):
            seconds = end - self._clock.monotonic()
            if seconds <= 0:
                break
            facts = self._summaries.refreshed_facts(skipped.zone.zone, FACTS_SECONDS, seconds)
            if facts is None or not missing_capability(facts, request.spec):
                search.query_after_all(skipped.zone)
        return search.next_round()

    # -- results --------------------------------------------------------------------------
    def _own_offers(
        self,
        request: SelectDestinations,
        want: int,
        only: Collection[str] | None,
        is_only: bool,
    ) -> LocalOffers:
        if only is not None and self._directory.own_uuid() not in only:
            return LocalOffers([], Outcome.NO_VALID_HOST, 'the request is bound to another place')
        return self._own.offers(request, want, is_only)

    def _comparable_choices(
        self, request: SelectDestinations, queried_zone: QueriedZone, scores: ScoreSet
    ) -> list[ZoneChoice]:
        """Return the offers of a zone that can be compared."""
        evaluation, zone = queried_zone.evaluation, queried_zone.zone
        if evaluation is None or evaluation.score_set not in (scores.digest, zone.score_set):
            return []
        is_trusted = self._queries.breaker.is_trusted(zone.uuid)
        offers, tier_max = evaluation.offers, scores.tier_max
        return choice.choices_of_offers(
            zone, request.request_id, offers, tier_max, is_trusted, evaluation.fits
        )


def request_for_children(
    request: SelectDestinations, own_uuid: str, seconds: float
) -> SelectDestinations:
    """Return a request as evaluated by child zones: a hop and some time less, claiming nothing."""
    return msgspec.structs.replace(
        request,
        budget_ms=child_budget_ms(seconds),
        hops=max(0, request.hops - 1),
        via=[*request.via, via_digest(request.request_id, own_uuid)],
        places=[],
        parent=None,
        only_project=None,
        dry_run=True,
    ).traced()


def child_budget_ms(seconds: float) -> int:
    """Return the milliseconds of the remaining time here that a child zone gets."""
    ms = seconds * 1000
    return max(1, int(ms - max(HOP_MS, HOP_SHARE * ms)))


def via_digest(request_id: str, zone: str) -> str:
    """Return the digest by which a zone recognizes a request that has come through it.

    No other zone learns from it which zone that was.
    """
    return derived_id('via', request_id, zone)


def _combined_result(
    own: LocalOffers,
    choices: list[ZoneChoice],
    below: Sequence[QueriedZone],
    skipped: Sequence[ZoneStep],
    scores: ScoreSet,
    start: float,
    is_cut: bool,
) -> EvaluationResult:
    """Combine the evaluations of all zones.

    :param choices: best first
    :param skipped: steps of the zones that were not queried
    :param is_cut: some of the skipped zones may have room all the same
    """
    removed = Counter(own.removed)
    hosts, survivors, complete = own.hosts, own.survivors, own.outcome is not Outcome.UNKNOWN
    steps, silent = [_own_step(own)], []
    for queried in below:
        steps.append(_queried_step(queried, choices, start))
        evaluation = queried.evaluation
        if evaluation is None:
            if not queried.refused:
                silent.append(queried.zone.name)
            continue
        removed.update(evaluation.removed)
        hosts, survivors = hosts + evaluation.hosts, survivors + evaluation.survivors
        is_known = evaluation.score_set in (scores.digest, queried.zone.score_set)
        is_final = evaluation.outcome in (Outcome.PLACED, Outcome.NO_VALID_HOST)
        complete = complete and evaluation.complete and is_known and is_final
    complete = complete and not silent and not is_cut
    outcome, reason = own.outcome, own.reason
    if choices:
        outcome, reason = Outcome.PLACED, ''
    elif not complete:
        outcome = Outcome.UNKNOWN
        silence = f'{len(silent)} of {len(below)} child zones have not answered'
        reason = silence if silent else reason
    elif own.outcome is Outcome.PLACED or not own.hosts:
        outcome = Outcome.NO_VALID_HOST
    counts = ZonesQueried(
        queried=len(below),
        answered=len(below) - len(silent),
        silent=len(silent),
        not_queried=len(skipped),
    )
    return EvaluationResult(
        choices,
        outcome,
        reason,
        hosts,
        survivors,
        dict(removed),
        counts,
        complete,
        scores.digest,
        tuple(silent),
        (*steps, *skipped),
    )


def _own_step(own: LocalOffers) -> ZoneStep:
    best = own.choices[0].score if own.choices else None
    return ZoneStep(
        zone='',
        outcome=own.outcome.value,
        offers=len(own.choices),
        level=best.level if best else 0,
        score=best.score if best else 0.0,
        hosts=own.hosts,
        survivors=own.survivors,
        removed=own.removed,
    )


def _queried_step(
    queried_zone: QueriedZone, choices: Sequence[ZoneChoice], start: float
) -> ZoneStep:
    evaluation = queried_zone.evaluation
    if evaluation is None:
        return ZoneStep(
            zone=queried_zone.zone.name,
            round=queried_zone.round,
            queried_after=round(queried_zone.begun - start, 6),
            seconds=round(queried_zone.seconds, 6),
            outcome=Outcome.REFUSED.value if queried_zone.refused else '',
            reason=queried_zone.problem,
        )
    best = next(
        (offered.score for offered in choices if offered.child == queried_zone.zone.uuid), None
    )
    queried = evaluation.children
    return ZoneStep(
        zone=queried_zone.zone.name,
        round=queried_zone.round,
        queried_after=round(queried_zone.begun - start, 6),
        seconds=round(queried_zone.seconds, 6),
        outcome=evaluation.outcome.value,
        offers=len(evaluation.offers),
        level=best.level if best else 0,
        score=best.score if best else 0.0,
        hosts=evaluation.hosts,
        survivors=evaluation.survivors,
        removed=evaluation.removed,
        below=[queried.queried, queried.answered, queried.silent, queried.not_queried],
        reason='' if best or not evaluation.offers else 'its scores cannot be compared',
    )
