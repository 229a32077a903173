# SPDX-License-Identifier: Apache-2.0
"""Offers of the local hosts for a request, with scores that are comparable between zones.

The table is refreshed while offers are requested: no request waits for it.  An offer is no promise:
a claim is chosen anew, under locks.  So it may be computed from a table read a moment ago; but
claims of this process are read before its next offer.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import cast

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.messages import request as requests
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import OfferedPlace, RequestSpec, SelectDestinations
from gantt.core.placement import capacity
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import (
    CHOSEN_VERDICT,
    PASSED_VERDICT,
    Decision,
    MemberDecision,
    Outcome,
)
from gantt.core.records.members import MemberColumns
from gantt.core.table.host_table import HostTable
from gantt.groups.service.group_members import GroupMembers
from gantt.scheduler.host_cache import HostFollower
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.request.planner import dry_run_planner, plan_dry_run, plan_on_table
from gantt.scheduler.settings import SchedulerSettings
from gantt.zones.model import choice
from gantt.zones.model.choice import ScoreSet, ZoneChoice, ZoneScore

LOG = logging.getLogger(__name__)
#: Maximum age of the table that an offer is computed from, in seconds.
OFFER_AGE_MAX_SECONDS = 0.2
#: Seconds between two reads, which leave time for the second one before the table is too old, and
#: seconds without a request after which nothing is read.
REFRESH_SECONDS, IDLE_SECONDS = 0.15, 2.0
#: Seconds by which the thread that answers a claim goes first.
YIELD_SECONDS = 0.001


class TableRefresher:
    """Thread that keeps the table of local hosts fresh.  Any thread may call it.

    :param cache: a follower of the database
    """

    def __init__(self, cache: HostFollower) -> None:
        self._cache = cache
        self._requested_at = float('-inf')
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def note_request(self) -> None:
        """Note a request for offers: keep the table fresh for the next ones."""
        before, self._requested_at = self._requested_at, self._cache.clock.monotonic()
        if self._requested_at - before < IDLE_SECONDS:
            return
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name='own-hosts', daemon=True)
                self._thread.start()
        self._wake.set()

    def reload_soon(self) -> None:
        """Read the table before the next offer, as something was claimed."""
        self._cache.reload_soon()
        self._wake.set()

    def close(self) -> None:
        """Read no more: further offers come from an old table."""
        with self._lock:
            self._is_closed = True
        self._wake.set()

    # -- the thread --------------------------------------------------------------------
    def _run(self) -> None:
        while not self._is_closed:
            is_idle = self._cache.clock.monotonic() - self._requested_at > IDLE_SECONDS
            if self._wake.wait(None if is_idle else REFRESH_SECONDS):
                self._wake.clear()
                self._cache.clock.sleep(YIELD_SECONDS)
            try:
                self._cache.refresh(REFRESH_SECONDS / 2)
            except Exception:  # the thread has to outlive any one reading
                LOG.exception(
                    'Hosts of this zone cannot be read for offers; tried again: retry_seconds=%s',
                    REFRESH_SECONDS,
                )
                self._cache.clock.sleep(REFRESH_SECONDS)


#: The smallest request, for which every host that may be used now has room.
_SMALLEST_REQUEST = SelectDestinations(
    request_id=derived_id('summary'),
    spec=RequestSpec(resources={'VCPU': 1, 'MEMORY_MB': 1}),
    consumers=[derived_id('summary', 'consumer')],
    alternates=0,
    dry_run=True,
)
#: Age in seconds beyond which the table gives no answer: the database is away, and nothing
#: could be claimed there.
TABLE_AGE_MAX_SECONDS = 2.0
#: Hosts named in one offer for several members, beyond those that they would be on.
SPARE_HOSTS = 5


class LocalOffers(msgspec.Struct, frozen=True):
    """Offers of the local hosts, best first.

    :ivar outcome: ``placed``: there are offers; else as of a decision
    :ivar reason: the verdict
    :ivar hosts: number of hosts evaluated; ``survivors`` and those of ``removed``, by filter, add
        up to them
    """

    choices: list[ZoneChoice]
    outcome: Outcome
    reason: str
    hosts: int = 0
    survivors: int = 0
    removed: dict[str, int] = {}

    def has_room_for(self, members: int) -> bool:
        """Return whether there are places for so many members."""
        return bool(self.choices) and self.choices[0].fits >= members


class LocalHosts:
    """Planner of requests on the table of the local hosts, which it leaves as it is.  Any thread.

    :param cache: a follower of the database, whose table may be read from any thread
    :param pipeline: as it is configured now
    :param note_request: called at each request for offers
    """

    def __init__(
        self,
        stores: Stores,
        cache: HostFollower,
        pipeline: Callable[[], Pipeline],
        settings: SchedulerSettings,
        note_request: Callable[[], object],
    ) -> None:
        self._stores = stores
        self._cache = cache
        self._pipeline = pipeline
        self._note_request = note_request
        self._planner = dry_run_planner(stores, cache, settings, GroupMembers)
        self._settings = settings

    def score_set(self) -> ScoreSet:
        """Return the weighers that the scores of this zone are computed by."""
        return ScoreSet.of(self._pipeline().comparable())

    def offers(self, request: SelectDestinations, want: int, is_only: bool) -> LocalOffers:
        """Return the offers of the local hosts for a request.

        :param want: offers at most
        :param is_only: no other zone could know what is unknown here
        :raises InvalidMessage, Refused: no zone could place it, as it is wrong
        :raises HostsUnknown: the database does not report what they have now
        """
        declared = self._cache.declared_classes(request.spec.classes)
        try:
            requests.check(request, declared)
        except exceptions.UnknownResourceClass:
            # A child zone may know it: no host here has it.
            if is_only:
                raise
            return _no_offers(Outcome.NO_VALID_HOST, 'a resource class is not known')
        clock = self._cache.clock
        began = clock.monotonic()
        self._note_request()
        try:
            offers = self._offers_as_of(request, want, OFFER_AGE_MAX_SECONDS)
            has_none = not offers.hosts and not is_only  # a host comes more seldom than room
            if has_none or offers.has_room_for(len(request.consumers)):
                return offers
        except exceptions.Refused:
            pass
        # That there is no room, or that a rule forbids it, is reported as of a moment after the
        # request: its caller may just have given a place back.
        return self._offers_as_of(request, want, clock.monotonic() - began)

    def _offers_as_of(self, request: SelectDestinations, want: int, max_age: float) -> LocalOffers:
        """Return offers as of so many seconds ago at most.

        A tree of resource groups may be searched for long: on a copy, so that no other thread waits
        for it.
        """
        cache, is_brief = self._cache, request.spec.tree is None
        with cache.borrowed(max_age) if is_brief else nullcontext(cache.table(max_age)) as table:
            if self._cache.read_seconds_ago > TABLE_AGE_MAX_SECONDS:
                raise exceptions.HostsUnknown(problem='their states were read too long ago')
            return self._offers_on(table, request, want)

    def _offers_on(self, table: HostTable, request: SelectDestinations, want: int) -> LocalOffers:
        if not len(table):
            return _no_offers(Outcome.NO_VALID_HOST, 'no host is registered here')
        pipeline = self._pipeline()
        if request.parent:
            # An empty zone would offer the same few hosts to every parent zone.
            pipeline = pipeline.shuffling()
        dry = msgspec.structs.replace(request, dry_run=True, alternates=want - 1, places=[])
        decision = self._plan(table, dry, pipeline)
        fits = len(decision.members)
        if decision.outcome is Outcome.NO_VALID_HOST:
            fits -= 1  # the last one has no place
            if fits > 0 and not choice.is_whole(request):
                fewer = msgspec.structs.replace(dry, consumers=dry.consumers[:fits])
                placed = self._plan(table, fewer, pipeline)
                if placed.is_placed:
                    return self._offers_of_decision(table, request, placed, want)
        if not decision.is_placed:
            return _no_offers(decision.outcome, decision.reason, decision)
        return self._offers_of_decision(table, request, decision, want)

    def _offers_of_decision(
        self, table: HostTable, request: SelectDestinations, decision: Decision, want: int
    ) -> LocalOffers:
        """Return the offers of a decision, scored by the worst place of its members.

        A parent zone gets spare hosts as well.  A place is compared with those of child zones as
        the one that it is: how the local hosts are ranked among themselves is the business of the
        pipeline alone.
        """
        scores = ScoreSet.of(self._pipeline().comparable())
        members = cast(MemberColumns, decision.members)
        of_members = list(members.finalists())
        finalists = (
            of_members[0][:want]
            if len(of_members) == 1
            else [of_member[0] for of_member in of_members]
        )
        host_scores = scores.of_finalists(table, request.spec, decision.weighers, finalists)
        hosts = [table.names[finalist.row] for finalist in finalists]
        worst, fits = max(host_scores, key=_score_order), len(of_members)
        if fits == 1:
            # A spare is taken after the preferred hosts here.
            offered = [
                ([host], max(host_scores[: n + 1], key=_score_order))
                for n, host in enumerate(hosts)
            ]
            offered = offered if request.parent else offered[:1]
        elif not request.parent:
            offered = [(hosts, worst)]
        else:
            spare = [table.names[finalist.row] for finalist in of_members[-1][:SPARE_HOSTS]]
            offered = [(list(dict.fromkeys([*hosts, *spare])), worst)]
        first = members[0]
        return LocalOffers(
            [ZoneChoice(None, OfferedPlace(hosts=hosts), score, fits) for hosts, score in offered],
            Outcome.PLACED,
            decision.reason,
            decision.hosts,
            first.survivors,
            _removed_by_filter(first),
        )

    def counts_by_shape(self, shapes: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """Return the number of each shape that fits, host by host."""
        with self._cache.borrowed(OFFER_AGE_MAX_SECONDS) as table:
            if not len(table):
                return dict.fromkeys(shapes, 0)
            decision = self._plan(table, _SMALLEST_REQUEST, self._pipeline())
            verdicts = np.frombuffer(decision.members[0].verdicts, np.uint8)
            rows = np.flatnonzero((verdicts == PASSED_VERDICT) | (verdicts == CHOSEN_VERDICT))
            return {
                name: capacity.free_capacity(table, RequestSpec(resources=dict(shape)), rows).total
                for name, shape in shapes.items()
            }

    def table(self) -> HostTable:
        """Return the table of the local hosts."""
        return self._cache.table(OFFER_AGE_MAX_SECONDS)

    def _plan(self, table: HostTable, request: SelectDestinations, pipeline: Pipeline) -> Decision:
        """Plan on the borrowed table, or on a copy of another one."""
        cache = self._cache
        if table is cache.working:
            return plan_on_table(self._planner, request, pipeline, cache.clock).decision
        return plan_dry_run(
            self._stores, table, request, cache, pipeline, self._settings, GroupMembers
        ).decision


def _no_offers(outcome: Outcome, reason: str, decision: Decision | None = None) -> LocalOffers:
    if decision is None or not decision.members:
        return LocalOffers([], outcome, reason, 0 if decision is None else decision.hosts)
    last = decision.members[-1]
    return LocalOffers(
        [], outcome, reason, decision.hosts, last.survivors, _removed_by_filter(last)
    )


def _removed_by_filter(member: MemberDecision) -> dict[str, int]:
    return {step.name: step.removed for step in member.filters if step.removed}


def _score_order(score: ZoneScore) -> tuple[int, float, float]:
    return score.order
