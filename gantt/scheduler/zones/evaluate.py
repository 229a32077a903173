# SPDX-License-Identifier: Apache-2.0
"""What a zone has for a request: its own hosts, and what the zones directly below offer.

Nothing is claimed and nothing is written, so that it may be asked anywhere, and again.  The own
hosts are looked at while the zones below answer.
"""

import concurrent.futures
import logging
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from gantt import exceptions
from gantt.core.messages import request as requests
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import OfferedPlace, RequestKind, SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Decision, MemberDecision, Outcome, Score
from gantt.core.table.host_table import HostTable
from gantt.core.zones import choice
from gantt.core.zones.choice import Choice
from gantt.core.zones.messages import ZoneEvaluated, ZoneEvaluation, ZoneRecord, ZonesQueried
from gantt.core.zones.score import ScoreSet
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.placing import trial
from gantt.scheduler.ports.zones import Zones
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)
#: Hosts named in one offer for several members, beyond those that they would be on.
SPARE_HOSTS = 5
#: Of what is left of a budget: what a hop takes for itself, at least so many milliseconds.
HOP_SHARE, HOP_MS = 0.1, 5.0
#: How old the table of the own hosts may be.
FRESH_SECONDS = 0.0
#: A zone that is silent costs a request so many seconds at most, and is not asked for so many.
ANSWER_SECONDS, SILENT_SECONDS = 2.0, 5.0
#: Zones below that are asked at once, in one process.
CALLS_MAX = 64


class Evaluated(msgspec.Struct, frozen=True):
    """What was found, best first.

    :ivar outcome: as of ``ZoneEvaluated``
    :ivar reason: why there is nothing, in general words; of the own hosts the verdict
    :ivar silent: names of the zones that have not answered
    """

    choices: list[Choice]
    outcome: Outcome
    reason: str
    hosts: int
    survivors: int
    removed: dict[str, int]
    children: ZonesQueried
    complete: bool
    score_set: str
    silent: tuple[str, ...] = ()


class ZoneEvaluator:
    """Looks at the own hosts, and asks the zones below.  Any thread.

    :param cache: a follower of the database, whose table may be read from any thread
    :param pipeline: as it is configured now
    :param zones: calls to the zones below
    :param children: the zones directly below, as they are registered
    :param own_uuid: of this zone
    """

    def __init__(
        self,
        cache: HostCache,
        pipeline: Callable[[], Pipeline],
        settings: SchedulerSettings,
        zones: Zones,
        children: Callable[[], Sequence[ZoneRecord]],
        own_uuid: Callable[[], str],
        count: Callable[..., None],
        max_age: float = FRESH_SECONDS,
    ) -> None:
        self._cache, self._pipeline, self._settings = cache, pipeline, settings
        self._zones, self._children, self._own_uuid = zones, children, own_uuid
        self._count, self._max_age = count, max_age
        self._calls = concurrent.futures.ThreadPoolExecutor(CALLS_MAX, 'zone-call')
        self._silent_until: dict[str, float] = {}  # uuid of a zone that was silent -> until then

    def close(self) -> None:
        """Begin no more calls."""
        self._calls.shutdown(wait=False, cancel_futures=True)

    def evaluate(self, request: SelectDestinations, want: int, seconds: float) -> Evaluated:
        """Offers of the own hosts and of all zones below that may be asked.

        :param seconds: for all of it
        :raises InvalidMessage, Refused: no zone could place it, as it is wrong
        """
        clock = self._cache.clock
        seconds = min(seconds, ANSWER_SECONDS)
        end = clock.monotonic() + seconds
        asked, left_out = self._to_ask(request)
        # One that has just been silent would have each request wait, and take threads from others.
        now = clock.monotonic()
        silent = [z.name for z in asked if self._silent_until.get(z.uuid, 0.0) > now]
        asked = [zone for zone in asked if zone.name not in silent]
        body = ZoneEvaluation(request=self._for_below(request, seconds), want=want)
        calls = {
            self._calls.submit(self._zones.evaluate, zone, body, seconds): zone for zone in asked
        }
        own = self._own(request, want, is_only=not (asked or silent))
        pipeline = self._pipeline().comparable()
        scores = ScoreSet.of(pipeline)
        below: list[tuple[ZoneRecord, ZoneEvaluated]] = []
        done, late = concurrent.futures.wait(calls, max(0.0, end - clock.monotonic()))
        for call in done:
            zone = calls[call]
            try:
                below.append((zone, call.result()))
            except exceptions.GanttError as e:
                self._count('gantt_zone_calls_failed_total', call='evaluate')
                LOG.warning('zone %s has not answered an evaluation: %s', zone.name, e.message)
                silent.append(zone.name)
                if isinstance(e, exceptions.Unavailable):
                    self._silent_until[zone.uuid] = clock.monotonic() + SILENT_SECONDS
        for call in late:
            call.cancel()
            silent.append(calls[call].name)
            self._silent_until[calls[call].uuid] = clock.monotonic() + SILENT_SECONDS
        return _together(
            request.request_id, own, below, silent, len(below) + len(silent), left_out, scores
        )

    def _to_ask(self, request: SelectDestinations) -> tuple[list[ZoneRecord], int]:
        """The zones below that are asked, and how many are not."""
        known = list(self._children())
        enabled = [zone for zone in known if zone.enabled]
        if request.hops <= 0 or request.spec.kind is not RequestKind.HOST:
            return [], len(known)
        return enabled, len(known) - len(enabled)

    def _for_below(self, request: SelectDestinations, seconds: float) -> SelectDestinations:
        """The request as a zone below gets it: a hop less, and less time."""
        return msgspec.structs.replace(
            request,
            budget_ms=budget_below(seconds),
            hops=max(0, request.hops - 1),
            via=[*request.via, digest_of(request.request_id, self._own_uuid())],
            places=[],
            parent=None,
            only_project=None,
            dry_run=True,
        )

    # -- the own hosts ---------------------------------------------------------------
    def _own(self, request: SelectDestinations, want: int, is_only: bool) -> Evaluated:
        """Offers of the own hosts.

        :param is_only: no other zone could know what is not known here
        """
        pipeline = self._pipeline().comparable()
        scores = ScoreSet.of(pipeline)
        declared = self._cache.declared_classes(request.spec.resources)
        try:
            requests.check(request, declared)
        except exceptions.UnknownResourceClass:
            # It may be known below: here nobody has it.
            if is_only:
                raise
            return _nothing(Outcome.NO_VALID_HOST, 'a resource class is not known', scores)
        table = self._cache.table(self._max_age)
        if not len(table):
            return _nothing(Outcome.NO_VALID_HOST, 'no host is registered here', scores)
        dry = msgspec.structs.replace(request, dry_run=True, alternates=want - 1, places=[])
        decision = self._planned(table, dry, pipeline)
        fits = len(decision.members)
        if decision.outcome is Outcome.NO_VALID_HOST:
            fits -= 1  # the last one has no place
            if fits > 0 and not choice.is_whole(request):
                fewer = msgspec.structs.replace(dry, consumers=dry.consumers[:fits])
                placed = self._planned(table, fewer, pipeline)
                if placed.is_placed:
                    return self._found(placed, want, fits, scores)
        if not decision.is_placed:
            return _nothing(decision.outcome, decision.reason, scores, decision)
        return self._found(decision, want, fits, scores)

    def _planned(
        self, table: HostTable, request: SelectDestinations, pipeline: Pipeline
    ) -> Decision:
        return trial.plan(table, request, self._cache, pipeline, self._settings).decision

    def _found(self, decision: Decision, want: int, fits: int, scores: ScoreSet) -> Evaluated:
        members = list(decision.members)
        first = members[0]
        if len(members) == 1:
            offered = [([one.host], one) for one in first.scores[:want]]
        else:
            chosen = [one.selection.host for one in members if one.selection is not None]
            spare = [one.host for member in members[-1:] for one in member.scores[:SPARE_HOSTS]]
            worst = min((one for member in members for one in member.scores[:1]), key=_total)
            offered = [(list(dict.fromkeys([*chosen, *spare])), worst)]
        level = max(member.level for member in members)
        choices = [
            Choice(None, OfferedPlace(hosts=hosts), scores.score(level, one.weighted), fits)
            for hosts, one in offered
        ]
        return Evaluated(
            choices,
            Outcome.PLACED,
            decision.reason,
            decision.hosts,
            first.survivors,
            _removed(first),
            ZonesQueried(),
            True,
            scores.digest,
        )


def budget_below(seconds: float) -> int:
    """Milliseconds that a zone below gets of what is left here."""
    ms = seconds * 1000
    return max(1, int(ms - max(HOP_MS, HOP_SHARE * ms)))


def digest_of(request_id: str, zone: str) -> str:
    """By what a zone finds a request again that has come through it; nobody else learns who."""
    return derived_id('via', request_id, zone)


def _total(score: Score) -> float:
    return score.total


def _removed(member: MemberDecision) -> dict[str, int]:
    return {one.name: one.removed for one in member.filters if one.removed}


def _nothing(
    outcome: Outcome, reason: str, scores: ScoreSet, decision: Decision | None = None
) -> Evaluated:
    last = decision.members[-1] if decision is not None and decision.members else None
    return Evaluated(
        [],
        outcome,
        reason,
        0 if decision is None else decision.hosts,
        0 if last is None else last.survivors,
        {} if last is None else _removed(last),
        ZonesQueried(),
        True,
        scores.digest,
    )


def _together(
    evaluated: str,
    own: Evaluated,
    below: Sequence[tuple[ZoneRecord, ZoneEvaluated]],
    silent: Sequence[str],
    asked: int,
    left_out: int,
    scores: ScoreSet,
) -> Evaluated:
    """What all have said, best first."""
    choices = list(own.choices)
    removed = Counter(own.removed)
    hosts, survivors, complete = own.hosts, own.survivors, own.outcome is not Outcome.UNKNOWN
    for zone, found in below:
        is_known = found.score_set in (scores.digest, zone.score_set)
        offers = found.offers if is_known else []
        choices += choice.offered(zone, evaluated, offers, scores.tier_most)
        removed.update(found.removed)
        hosts, survivors = hosts + found.hosts, survivors + found.survivors
        complete = complete and found.complete and is_known
        complete = complete and found.outcome in (Outcome.PLACED, Outcome.NO_VALID_HOST)
    complete = complete and not silent
    outcome, reason = own.outcome, own.reason
    if choices:
        outcome, reason = Outcome.PLACED, ''
    elif not complete:
        outcome = Outcome.UNKNOWN
        reason = f'{len(silent)} of {asked} zones below have not answered' if silent else reason
    elif own.outcome is Outcome.PLACED or not own.hosts:
        outcome = Outcome.NO_VALID_HOST
    return Evaluated(
        choice.ranked(choices),
        outcome,
        reason,
        hosts,
        survivors,
        dict(removed),
        ZonesQueried(queried=asked, answered=len(below), silent=len(silent), not_queried=left_out),
        complete,
        scores.digest,
        tuple(silent),
    )
