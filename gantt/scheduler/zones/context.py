# SPDX-License-Identifier: Apache-2.0
"""Dependencies of cross-zone scheduling, built once per process."""

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from gantt import exceptions
from gantt.core.placement.pipeline import Pipeline
from gantt.core.zones import summary
from gantt.core.zones.messages import ZoneFacts, ZoneRecord, ZoneSummary
from gantt.core.zones.summary import LADDER, MostRequested
from gantt.scheduler.host_follower import HostFollower
from gantt.scheduler.ports import Stores
from gantt.scheduler.ports.zones import Zones
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.zones.conditions import ZoneConditions
from gantt.scheduler.zones.directory import ZoneDirectory
from gantt.scheduler.zones.offers.circuit_breaker import ZoneCircuitBreaker
from gantt.scheduler.zones.offers.dedup import EvaluationDedup
from gantt.scheduler.zones.offers.evaluate import ZoneChoosing, ZoneEvaluator
from gantt.scheduler.zones.offers.local_hosts import LocalHosts
from gantt.scheduler.zones.offers.queries import CallRunner, ZoneQueries
from gantt.scheduler.zones.offers.summaries import ZoneSummaries
from gantt.scheduler.zones.offers.table_refresher import TableRefresher
from gantt.scheduler.zones.rebuild_check import RebuildCheck
from gantt.scheduler.zones.threads import MakeThreads, ThreadPool
from gantt.scheduler.zones.zone_affinity import ZoneAffinity


class NoCalls:
    """The Zones port of a process that speaks with no zone below."""

    def _none(self, zone: ZoneRecord, *_: object) -> NoReturn:
        raise exceptions.Unavailable(f'this process speaks with no zone below: {zone.name}')

    def close(self) -> None:
        pass

    discover = summary = evaluate = capacity = changes = explain = marks = _none
    allocate = allocation = release = extend = _none


class ZoneConcurrency(NamedTuple):
    """Runners of concurrent work.

    :ivar runner: calls to child zones; None: threads
    :ivar threads: requests
    """

    runner: CallRunner | None = None
    threads: MakeThreads = ThreadPool


THREADS = ZoneConcurrency()


class ZoneContext:
    """Neighbouring zones, offers of this zone for a request, and calls to child zones.

    :ivar directory: the zones around this one
    :ivar calls: to the child zones
    :ivar refresher: reads the local hosts while offers are requested
    :ivar evaluator: evaluates requests on this zone and its child zones
    :ivar dedup: of requests that come through several parents
    :ivar summaries: what child zones report of themselves in advance
    :ivar breaker: the circuit breaker of each child zone
    :ivar affinity: restricts requests to the zone of their guest or group
    :ivar rebuilds: checks the hosts of guests that are rebuilt
    :ivar conditions: of the child zones
    :ivar clock: of the cache
    :ivar threads: carry out requests
    :ivar reload_soon: has the own hosts read before the next offer, after a claim there
    """

    def __init__(
        self,
        stores: Stores,
        calls: Zones,
        cache: HostFollower,
        pipeline: Callable[[], Pipeline],
        settings: SchedulerSettings,
        count: Callable[..., None],
        choosing: ZoneChoosing | None = None,
        concurrency: ZoneConcurrency = THREADS,
    ) -> None:
        """Create the parts; nothing is read yet.

        :param cache: a follower of the database
        :param choosing: by which child zones are queried; None: all at once
        """
        self.clock = clock = cache.clock
        self.directory = ZoneDirectory(stores.zones, clock)
        self.calls, self.threads = calls, concurrency.threads
        self._pipeline = pipeline
        self.refresher = TableRefresher(cache)
        self.reload_soon = self.refresher.reload_soon
        self._own = LocalHosts(stores, cache, pipeline, settings, self.refresher.requested)
        self.summaries = ZoneSummaries(calls, self.directory.children, clock)
        self.breaker, self.dedup = ZoneCircuitBreaker(clock), EvaluationDedup(clock)
        self.affinity = ZoneAffinity(
            stores.claims,
            stores.groups,
            stores.zone_claims,
            stores.zone_requests,
            cache,
            self.directory,
        )
        self.rebuilds = RebuildCheck(
            stores.requests,
            stores.claims,
            stores.zone_claims,
            calls,
            clock,
            self.directory.children,
            self.directory.own_uuid,
        )
        self._requested, self._requested_lock = MostRequested(), threading.Lock()
        self.conditions = ZoneConditions(
            calls,
            self.directory.children,
            self.score_set,
            clock,
            lambda: cache.database_now,
        )
        self.evaluator = ZoneEvaluator(
            self._own,
            self.affinity,
            ZoneQueries(calls, self.breaker, clock, concurrency.runner),
            self.directory,
            self.summaries,
            choosing or ZoneChoosing(),
            clock,
            count,
        )

    def close(self) -> None:
        """Begin no more calls, and close the connections."""
        self.refresher.close()
        self.summaries.close()
        self.evaluator.close()
        self.calls.close()

    def score_set(self) -> str:
        """Return the digest of the weighers that the scores of this zone are computed by."""
        return self._own.score_set().digest

    def config_digest(self) -> str:
        """Return the digest of the configuration that the own hosts are weighed with."""
        return self._pipeline().digest

    def note_requested(self, resources: Mapping[str, int]) -> None:
        """Note a shape that this zone was evaluated for: its summary counts the most frequent."""
        with self._requested_lock:
            self._requested.note(resources)

    def facts(self) -> ZoneFacts:
        """Return what exists in this zone and its child zones."""
        self._follow()
        below = self.summaries.summaries()
        parts = [None] if below is None else [facts for _, facts in below]
        own = summary.facts_of(self._own.table())
        return summary.together(own, parts, self.summaries.facts_age())

    def summary(self) -> ZoneSummary:
        """Return what this zone and its child zones have room for, soon outdated."""
        self._follow()
        with self._requested_lock:
            requested = self._requested.most()
        own = self._own.fits({**LADDER, **requested})
        below = [child_summary for child_summary, _ in self.summaries.summaries() or []]
        return summary.summary_of(summary.added(own, below), self.facts())

    def _follow(self) -> None:
        if self.directory.children():
            self.summaries.follow()
