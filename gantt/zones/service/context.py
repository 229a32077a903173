# SPDX-License-Identifier: Apache-2.0
"""Dependencies of cross-zone scheduling, built once per process."""

import threading
from collections.abc import Callable, Mapping
from typing import NoReturn

from gantt import exceptions
from gantt.core.placement.pipeline import Pipeline
from gantt.scheduler.host_cache import HostFollower
from gantt.scheduler.settings import SchedulerSettings
from gantt.zones.model import summary
from gantt.zones.model.messages import ZoneFacts, ZoneRecord, ZoneSummary
from gantt.zones.model.summary import STANDARD_SHAPES, MostRequested
from gantt.zones.ports import ZoneCalls, ZoneStores
from gantt.zones.service.conditions import ZoneConditions
from gantt.zones.service.directory import ZoneDirectory
from gantt.zones.service.offers.dedup import EvaluationDedup
from gantt.zones.service.offers.evaluate import ZoneEvaluator, ZoneSelection
from gantt.zones.service.offers.local_hosts import LocalHosts, TableRefresher
from gantt.zones.service.offers.queries import ZoneCircuitBreaker, ZoneQueries
from gantt.zones.service.offers.summaries import ZoneSummaries
from gantt.zones.service.rebuild_check import RebuildCheck
from gantt.zones.service.threads import MakeThreads, ThreadPool
from gantt.zones.service.zone_affinity import ZoneAffinity


class NoCalls:
    """The Zones port of a process that speaks with no child zone."""

    def _no_call(self, zone: ZoneRecord, *_: object) -> NoReturn:
        raise exceptions.Unavailable(f'this process calls no child zones: {zone.name}')

    def close(self) -> None:
        pass

    discover = summary = evaluate = capacity = changes = explain = host_digests = _no_call
    allocate = allocation = release = extend = _no_call


class ZoneContext:
    """Neighbouring zones, offers of this zone for a request, and calls to child zones.

    :ivar directory: the zones around this one
    :ivar calls: to the child zones
    :ivar refresher: reads the local hosts while offers are requested
    :ivar evaluator: evaluates requests on this zone and its child zones
    :ivar dedup: recognizes requests that come through several parents
    :ivar summaries: summaries that child zones report in advance
    :ivar breaker: the circuit breaker of each child zone
    :ivar affinity: restricts requests to the zone of their guest or group
    :ivar rebuilds: checks the hosts of guests that are rebuilt
    :ivar conditions: of the child zones
    :ivar clock: of the cache
    :ivar threads: creates threads for requests
    :ivar reload_soon: has the own hosts read before the next offer, after a claim there
    """

    def __init__(
        self,
        stores: ZoneStores,
        calls: ZoneCalls,
        cache: HostFollower,
        pipeline: Callable[[], Pipeline],
        settings: SchedulerSettings,
        count: Callable[..., None],
        choosing: ZoneSelection | None = None,
        threads: MakeThreads = ThreadPool,
    ) -> None:
        """Create the parts; nothing is read yet.

        :param cache: a follower of the database
        :param choosing: strategies by which child zones are queried; None: all at once
        """
        self.clock = clock = cache.clock
        self.directory = ZoneDirectory(stores.zones, clock)
        self.calls = calls
        self.threads = threads
        self._pipeline = pipeline
        self.refresher = TableRefresher(cache)
        self.reload_soon = self.refresher.reload_soon
        self._local_hosts = LocalHosts(
            stores, cache, pipeline, settings, self.refresher.note_request
        )
        self.summaries = ZoneSummaries(calls, self.directory.children, clock)
        self.breaker = ZoneCircuitBreaker(clock)
        self.dedup = EvaluationDedup(clock)
        self.affinity = ZoneAffinity(stores, cache, self.directory)
        self.rebuilds = RebuildCheck(stores, calls, clock, self.directory)
        self._requested = MostRequested()
        self._requested_lock = threading.Lock()
        self.conditions = ZoneConditions(
            calls,
            self.directory.children,
            self.score_set,
            clock,
            lambda: cache.database_now,
        )
        self.evaluator = ZoneEvaluator(
            self._local_hosts,
            self.affinity,
            ZoneQueries(calls, self.breaker, clock, threads),
            self.directory,
            self.summaries,
            choosing or ZoneSelection(),
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
        return self._local_hosts.score_set().digest

    def config_digest(self) -> str:
        """Return the digest of the configuration that the own hosts are weighed with."""
        return self._pipeline().digest

    def note_requested(self, resources: Mapping[str, int]) -> None:
        """Note a shape that this zone was evaluated for: its summary counts the most frequent."""
        with self._requested_lock:
            self._requested.note(resources)

    def facts(self) -> ZoneFacts:
        """Return what exists in this zone and its child zones."""
        self._follow_summaries()
        below = self.summaries.summaries()
        parts = [None] if below is None else [facts for _, facts in below]
        own = summary.capabilities_of(self._local_hosts.table())
        return summary.joint_capabilities(own, parts, self.summaries.facts_age())

    def summary(self) -> ZoneSummary:
        """Return what this zone and its child zones have room for, soon outdated."""
        self._follow_summaries()
        with self._requested_lock:
            requested = self._requested.shapes()
        own = self._local_hosts.counts_by_shape({**STANDARD_SHAPES, **requested})
        below = [child_summary for child_summary, _ in self.summaries.summaries() or []]
        return summary.summary_of(summary.guest_counts_by_shape(own, below), self.facts())

    def _follow_summaries(self) -> None:
        if self.directory.children():
            self.summaries.follow()
