# SPDX-License-Identifier: Apache-2.0
"""The read model of HTTP, the command line and the metrics.

It follows the database with a host table of its own, so that reading costs the schedulers nothing.
Where the database is away the last table is shown; every answer read from it states its age.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.candidates.find import QUERY_STEPS_MAX
from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.claim import Claim
from gantt.core.messages.near import did_you_mean, nearest_names
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Answer, Outcome
from gantt.core.records.decision_codec import ID_PREFIX_MIN, unpack
from gantt.core.records.process import ServiceRecord
from gantt.core.resources.host import Aggregate, HostChange, HostKind
from gantt.core.table.host_table import HostTable
from gantt.insights import host_views, views
from gantt.insights.activity import ActivityReader
from gantt.insights.candidates import ProviderTableReader
from gantt.insights.decision_reader import DecisionReader
from gantt.insights.event_log import EventLog
from gantt.insights.explain import explaining
from gantt.insights.host_views import HostMap, HostPage, HostQuery, HostReader
from gantt.insights.replaying import ReservationDecisions
from gantt.insights.roll_up import RollUpReader
from gantt.insights.views import (
    ClaimView,
    Configuration,
    DecisionSummary,
    HostDetail,
    HostSummary,
    RefusalGroup,
    Status,
)
from gantt.insights.what_if import WhatIfPlanner
from gantt.scheduler.host_cache import HostFollower
from gantt.scheduler.ports.process import Clock
from gantt.scheduler.ports.requests import StoredRequest
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.request.answers import StoredAnswers
from gantt.scheduler.request.planner import MakePlanningHook
from gantt.scheduler.settings import SchedulerSettings
from gantt.version import version_string

#: Claims of one host that are read to explain it.
CLAIMS_OF_HOST_MAX = 1000
#: Refusals read per outcome for the status, and how far back they go.
REFUSALS_MAX = 200
WINDOW_SECONDS = 3600.0
#: Maximum age in seconds of a decision that shows its worker's configuration.
CONFIGURATION_SECONDS = 600.0
#: Outcomes of decisions that are no placement and are kept.
REFUSED_OUTCOMES = (Outcome.NO_VALID_HOST, Outcome.CONFLICT, Outcome.UNKNOWN, Outcome.FAILED)
_CACHED_SHAPES_MAX = 5000


class GroupHooks(NamedTuple):
    """The part of planned groups in dry runs and replays.

    :ivar make_hook: of a planner
    :ivar reservations: decides about creates that take over reservations
    """

    make_hook: MakePlanningHook
    reservations: ReservationDecisions


class Insights:
    """The read model of one process.  All methods may be called from any thread.

    :param pipeline: pipeline of the schedulers, which dry runs and capacity use
    :param settings: of the schedulers: when a host is stale, when nothing is known
    :param max_age: maximum age of the table that answers are read from, seconds
    :param count: adds one to a counter by its name
    :param candidate_steps: limit of search steps for one list of candidates
    """

    def __init__(
        self,
        stores: Stores,
        pipeline: Pipeline,
        groups: GroupHooks,
        settings: SchedulerSettings | None = None,
        clock: Clock | None = None,
        max_age: float = 1.0,
        count: Callable[..., None] | None = None,
        candidate_steps: int = QUERY_STEPS_MAX,
    ) -> None:
        self._claims = stores.claims
        self._child_claims = stores.child_claims
        self._requests = stores.requests
        self._records = stores.records
        self._hosts = stores.hosts
        self._services = stores.services
        self.settings = settings or SchedulerSettings(worker='gantt-api')
        self.cache = HostFollower(
            stores.feed,
            stores.vocabulary,
            clock,
            self.settings.reload_seconds,
            default_zone=self.settings.default_zone,
            count=count,
        )
        self._answers = StoredAnswers(
            stores.records, stores.requests, self.cache.host_row, self.cache.pool
        )
        self.quotas = QuotaChecks(
            stores.quotas,
            stores.claims,
            stores.groups,
            self.settings,
            self.cache.clock,
            count or (lambda name, **labels: None),
        )
        self.candidates = ProviderTableReader(
            stores.candidates, candidate_steps, count, self.settings.reload_seconds
        )
        trials = WhatIfPlanner(
            stores,
            self.table,
            groups.make_hook,
            self.cache,
            pipeline,
            self.settings,
            self.quotas,
        )
        self.dry_run = trials.dry_run
        self.what_if = trials.compare
        self.capacity = trials.capacity
        self.roll_up = RollUpReader(self.candidates, self.table, self.cache, self.capacity).read
        reader = DecisionReader(
            stores.records,
            stores.table_logs,
            pipeline,
            self.settings,
            self.table,
            groups.reservations,
        )
        self.decisions = reader.summaries
        self.is_decision = reader.is_decision
        self.explain = reader.explain
        self.scores = reader.scores
        self.replay = reader.replay
        summed = ActivityReader(stores.records, stores.claims, stores.database, self.cache.clock)
        self.activity = summed.activity
        self.refused = summed.refused
        self.pipeline = pipeline
        self.events = EventLog(stores.hosts, self.cache)
        self._max_age = max_age
        # Decisions never change.
        self._cached_shape = functools.lru_cache(_CACHED_SHAPES_MAX)(self._read_shape)

    # -- freshness -----------------------------------------------------------------
    def table(self) -> HostTable:
        """Return a snapshot of the host table.

        :raises DatabaseUnavailable: nothing was ever read
        """
        return self.cache.table(self._max_age)

    def offer(self, changes: Iterable[HostChange]) -> None:
        """Take over changes of hosts that this process wrote itself."""
        self.cache.offer(changes)

    def reload_soon(self) -> None:
        """Read the feed before the next answer, however fresh the table is."""
        self.cache.reload_soon()

    def refresh(self) -> float:
        """Bring the table up to date where that is possible; return its age in seconds.

        :raises DatabaseUnavailable: nothing was ever read
        """
        self.table()
        return self.cache.age_seconds

    def _now(self) -> float:
        """Return the time of the database's clock."""
        return self.table().now

    def _host_reader(self) -> HostReader:
        return HostReader(self.table(), self.settings.stale_after_seconds)

    # -- hosts -----------------------------------------------------------------------
    def hosts(self, query: HostQuery) -> HostPage:
        """Return a page of hosts.

        :raises InvalidMessage, NotFound: see ``HostReader.page``
        """
        reader = self._host_reader()
        if query.aggregate is not None:
            self.aggregate(query.aggregate)
        return reader.page(query, self.cache.age_seconds)

    def host(self, name: str) -> HostDetail:
        """Return a host with all details.

        :raises NotFound:
        """
        self.reload_soon()
        reader = self._host_reader()
        row = reader.row(name)
        claims: list[ClaimView] = []
        for state in ('reserved', 'confirmed'):
            host_claims = self._claims.list_claims(state=state, host=name, limit=CLAIMS_OF_HOST_MAX)
            claims.extend(views.claim_view(claim, reader.table.now) for claim in host_claims)
        claims.sort(key=lambda claim: (-claim.age_seconds, claim.id))
        truncated = len(claims) >= CLAIMS_OF_HOST_MAX
        return reader.detail(row, claims, truncated)

    def drain(self, name: str) -> views.HostDrain:
        """Return how far a host is from being empty.  :raises NotFound:"""
        detail = self.host(name)
        reader = self._host_reader()
        row = reader.table.hosts[reader.row(name)]
        elsewhere = self._claims.live_claims_of({claim.consumer for claim in detail.claims})
        obstacles = host_views.drain_obstacles(detail.claims, elsewhere)
        counts = collections.Counter(obstacle.kind.value for obstacle in obstacles)
        return views.HostDrain(
            host=detail.host,
            is_draining=row.disabled is not None,
            is_empty=not obstacles,
            claims=len(obstacles),
            remaining={kind.value: counts[kind.value] for kind in views.ObstacleKind},
            foreign={use.resource_class: use.foreign for use in detail.use if use.foreign},
            obstacles=obstacles,
            obstacles_truncated=detail.claims_truncated,
        )

    def host_history(self, name: str, limit: int) -> views.HostHistory:
        """Return the latest events of a host, newest first.

        :raises NotFound: it is not known, and no event of it is kept
        """
        records = self._hosts.host_history(name, limit + 1)
        if not records:
            self.host_summary(name)
        now = self._now()
        entries = [
            views.view_of(
                views.HistoryEntry,
                record,
                at=views.utc_text(record.at),
                age_seconds=views.age_seconds(now, record.at),
            )
            for record in records[:limit]
        ]
        return views.HostHistory(host=name, entries=entries, truncated=len(records) > limit)

    def host_summary(self, name: str) -> HostSummary:
        """Return the summary of a host.  :raises NotFound:"""
        reader = self._host_reader()
        return reader.summary(reader.row(name))

    def check_removable(self, name: str) -> HostSummary:
        """Return the summary of a host that may be removed.

        :raises NotFound:
        :raises Refused: it has live claims
        """
        summary = self.host_summary(name)
        if summary.claims:
            raise exceptions.Refused(
                f'host {name} has {summary.claims} live claims; release or move them first, '
                f'see "gantt claim list --host {name}"',
                host=name,
                claims=summary.claims,
            )
        return summary

    # -- aggregates and classes ----------------------------------------------------------
    def aggregates(self) -> list[Aggregate]:
        """Return all aggregates."""
        return list(self.table().known_aggregates.values())

    def aggregate(self, name: str) -> Aggregate:
        """Return an aggregate, by name or uuid.  :raises NotFound:"""
        aggregates = self.aggregates()
        for aggregate in aggregates:
            if name in (aggregate.name, aggregate.uuid):
                return aggregate
        similar = nearest_names(name, [candidate.name for candidate in aggregates])
        raise exceptions.NotFound(
            f'aggregate {name!r} was not found{did_you_mean(similar)}',
            kind='aggregate',
            name=name,
            near=similar,
        )

    def aggregate_after_change(
        self, name: str, metadata: dict[str, str | None], hosts: list[str] | None, uuid: str | None
    ) -> Aggregate:
        """Return an aggregate as it would be after a change."""
        try:
            before = self.aggregate(name)
        except exceptions.NotFound:
            before = Aggregate(id=0, uuid=uuid or '', name=name)
        merged = {**before.metadata, **metadata}
        return msgspec.structs.replace(
            before,
            metadata={key: value for key, value in merged.items() if value is not None},
            hosts=before.hosts if hosts is None else hosts,
        )

    # -- claims and requests -----------------------------------------------------------------
    def claims(
        self, *, host: str | None = None, project: str | None = None, **query: Any
    ) -> list[ClaimView]:
        """Return claims by id; the query is that of ``Claims.list_claims``.

        :raises NotFound: a host that is not known and has no claim, old ones included
        """
        now = self._now()
        stored = self._claims.list_claims(host=host, project=project, **query)
        if host is not None and not stored and project is None:
            self.host_summary(host)
        shown = [self._claim_view(claim, now) for claim in stored]
        if host is not None:
            return shown
        consumer = query.pop('consumer', None)
        consumers = [consumer] if consumer is not None else ()
        below = self._child_claim_views(
            self._child_claims.find(consumers=consumers, project=project, **query)
        )
        all_claims = sorted((*shown, *below), key=lambda claim: claim.id)
        return all_claims[: query.get('limit')]

    def _claim_view(self, claim: Claim, now: float) -> ClaimView:
        """Return the view of a claim here, with the name of its pool where it is on no host."""
        pool = None if claim.host else self.cache.host_row(claim.provider_id)
        return views.claim_view(claim, now, host=pool.name if pool is not None else claim.host)

    def _child_claim_views(self, rows: Sequence[ChildClaim]) -> list[ClaimView]:
        """Return the views of claims in child zones."""
        if not rows:
            return []
        now = self._now()
        names = self._child_claims.child_zone_names()
        return [views.claim_view(row.claim, now, names.get(row.child, '')) for row in rows]

    def claim(self, claim_id: str) -> ClaimView:
        """Return a claim, by its id or a unique prefix.  :raises NotFound:"""
        claim = self._claims.load_claim(claim_id) if len(claim_id) == 36 else None
        if claim is None and ID_PREFIX_MIN <= len(claim_id) < 36:
            blank = '00000000-0000-0000-0000-000000000000'
            after = claim_id + blank[len(claim_id) :]
            here = self._claims.list_claims(limit=2, marker=after)
            below = self._child_claims.find(limit=2, marker=after)
            near = {match.id for match in here} | {match.claim_id for match in below}
            near = {prefix_match for prefix_match in near if prefix_match.startswith(claim_id)}
            if len(near) == 1:
                return self.claim(near.pop())
            if near:
                raise exceptions.NotFound(
                    f'claim {claim_id!r} is not the beginning of one id only; give more of it',
                    kind='claim',
                    name=claim_id,
                )
        if claim is not None:
            return self._claim_view(claim, self._now())
        whole = len(claim_id) == 36
        claim_views = (
            self._child_claim_views(self._child_claims.find(claim_id=claim_id, limit=1))
            if whole
            else []
        )
        if not claim_views:
            raise exceptions.NotFound(kind='claim', name=claim_id)
        return claim_views[0]

    def request(self, request_id: str) -> tuple[StoredRequest, Answer | None, list[ClaimView]]:
        """Return a request, its answer and its claims; by id or a unique prefix.

        :raises NotFound:
        """
        full_id = request_id
        if ID_PREFIX_MIN <= len(request_id) < 36:
            decision_record = self._records.load_decision(request_id)
            full_id = (
                unpack(decision_record[0]).decision.request_id if decision_record else request_id
            )
        stored = self._requests.load_request(full_id) if len(full_id) == 36 else None
        if stored is None:
            raise exceptions.NotFound(kind='request', name=request_id)
        now = self._now()
        answer = self._answers.read(full_id, stored.answer) if stored.answer else None
        claims = [self._claim_view(claim, now) for claim in stored.claims]
        return (
            stored,
            answer,
            [*claims, *self._child_claim_views(self._child_claims.find(full_id))],
        )

    def requests(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[views.RequestSummary]:
        """Return requests by id, after ``marker``; those with claims of one project, or all."""
        now = self._now()
        return [
            views.view_of(
                views.RequestSummary,
                request_row,
                request_id=request_row.id,
                updated_at=views.utc_text(request_row.updated_at),
                age_seconds=views.age_seconds(now, request_row.updated_at),
            )
            for request_row in self._requests.list_requests(limit, marker, project)
        ]

    # -- at a glance ------------------------------------------------------------------------------
    def status(self) -> Status:
        """Return the status of the service."""
        reader = self._host_reader()
        refusals, outcomes, no_valid_pool, truncated = self._refusal_groups(reader.table.now)
        return Status(
            version=version_string(),
            hosts=reader.conditions,
            unreadable=reader.unreadable,
            hosts_total=len(reader.table),
            claims=self._live_claims(reader.table),
            child_claims=self._child_claims.count_live_child_claims(),
            table_age_seconds=round(self.cache.age_seconds, 3),
            usage=reader.usage(),
            outcomes=outcomes,
            no_valid_pool=no_valid_pool,
            window_seconds=WINDOW_SECONDS,
            refusals=refusals,
            refusals_truncated=truncated,
            configurations=self._configurations(),
        )

    def _live_claims(self, table: HostTable) -> int:
        """Return how many live claims there are, on hosts and on pools."""
        on_hosts = int(table.instances.sum())
        # The table has the amounts that are claimed of pools, but not the claims.
        return on_hosts + (self._claims.count_claims_on_pools() if len(table.others) else 0)

    def services(self) -> list[views.ServiceView]:
        """Return the processes of the site, by their own records or their reports."""
        stale_after = self.settings.stale_after_seconds
        return _service_views(self._services.list_services(), self.table(), stale_after)

    def host_map(self, resource_class: str) -> HostMap:
        """Return a few numbers of every host, see ``HostMap``.  :raises InvalidMessage:"""
        return self._host_reader().map(resource_class, self.cache.age_seconds)

    def _refusal_groups(self, now: float) -> tuple[list[RefusalGroup], dict[str, int], int, bool]:
        groups: dict[tuple[str, str, str, str], list[DecisionSummary]] = collections.defaultdict(
            list
        )
        outcomes: dict[str, int] = {}
        no_valid_pool, truncated = 0, False
        for outcome in REFUSED_OUTCOMES:
            summaries = self.decisions(outcome=outcome.value, limit=REFUSALS_MAX)
            recent = [summary for summary in summaries if summary.age_seconds <= WINDOW_SECONDS]
            truncated |= len(recent) == REFUSALS_MAX
            if recent:
                outcomes[outcome.value] = len(recent)
            if outcome is Outcome.NO_VALID_HOST:
                no_valid_pool = sum(summary.kind == HostKind.POOL.value for summary in recent)
            for decision in recent:
                key = (*self._cached_shape(decision.id), outcome.value, decision.kind)
                groups[key].append(decision)
        listed = [
            RefusalGroup(
                shape=shape,
                count=len(group),
                outcome=outcome,
                reason=group[0].reason,
                last_age_seconds=group[0].age_seconds,
                decision_id=group[0].id,
            )
            for (shape, _cause, outcome, _kind), group in groups.items()
        ]
        listed.sort(key=lambda group: (-group.count, group.last_age_seconds))
        return listed, outcomes, no_valid_pool, truncated

    def _configurations(self) -> list[Configuration]:
        """Return the configuration of each worker that decided lately, by its last decision."""
        last: dict[str, DecisionSummary] = {}
        for decision in self.decisions(limit=REFUSALS_MAX):
            if decision.age_seconds <= CONFIGURATION_SECONDS:
                last.setdefault(decision.worker, decision)
        workers: dict[str, list[DecisionSummary]] = collections.defaultdict(list)
        for decision in last.values():
            record = self._records.load_decision(decision.id)
            if record:
                workers[unpack(record[0]).decision.config_digest].append(decision)
        listed = [
            Configuration(
                digest=digest,
                workers=sorted(summary.worker for summary in summaries),
                is_here=digest == self.pipeline.digest,
                last_age_seconds=min(summary.age_seconds for summary in summaries),
            )
            for digest, summaries in workers.items()
        ]
        return sorted(
            listed, key=lambda configuration: (-len(configuration.workers), configuration.digest)
        )

    def _read_shape(self, decision_id: str) -> tuple[str, str]:
        """Return the shape of a stored decision, and its cause."""
        record = self._records.load_decision(decision_id)
        if record is None:
            return 'unknown shape', ''
        stored = unpack(record[0])
        return explaining.shape_of(stored.request), stored.decision.cause

    def export(self, gauge: Callable[..., None]) -> None:
        """Set the gauges that are read from the table, by ``gauge``; as far as it is known."""
        gauge('gantt_candidate_providers', self.candidates.providers)
        age = self.candidates.age_seconds
        if age is not None:
            gauge('gantt_candidate_table_age_seconds', age)
        try:
            reader = self._host_reader()
        except exceptions.Unavailable:
            return
        for condition, count in reader.conditions.items():
            gauge('gantt_hosts', count, state=condition)
        gauge('gantt_host_table_age_seconds', self.cache.age_seconds)


def _service_views(
    notes: Sequence[ServiceRecord], table: HostTable, stale_after: float
) -> list[views.ServiceView]:
    """Return the processes of a site: schedulers and APIs by kind, host and name, then the sources.

    A source has no access to the database: it is known by the hosts that it reports for.

    :param stale_after: seconds of silence after which a source is silent
    """
    usual = _usual_configuration(notes)
    service_views = [
        views.view_of(
            views.ServiceView,
            note,
            differs=not note.is_silent and note.configuration != usual,
            up_seconds=round(note.up_seconds, 1),
            configured_seconds=round(note.configured_seconds, 1),
            seen_seconds=round(note.seen_seconds, 1),
        )
        for note in notes
    ]
    order = {'scheduler': 0, 'planner': 1, 'api': 2}
    service_views.sort(key=lambda service: (order.get(service.kind, 3), service.host, service.name))
    return [*service_views, *_nova_sources(table, stale_after)]


def _usual_configuration(notes: Iterable[ServiceRecord]) -> str:
    """Return the configuration of most live services; of several, the one read last."""
    alive = [note for note in notes if not note.is_silent]
    counts = collections.Counter(note.configuration for note in alive)
    latest: dict[str, float] = {}
    for note in alive:
        age = latest.get(note.configuration, note.configured_seconds)
        latest[note.configuration] = min(age, note.configured_seconds)
    return max(counts, key=lambda digest: (counts[digest], -latest[digest]), default='')


def _nova_sources(table: HostTable, stale_after: float) -> list[views.ServiceView]:
    """Return the reporters for hosts of Nova, as one: their reports do not name the process."""
    reported = [host.reported_at for host in table.hosts if host.reporter == 'nova']
    if not any(reported):
        return []
    age = max(0.0, table.now - max(reported))
    return [
        views.ServiceView(
            name='nova',
            kind='source',
            host='',
            version='',
            is_silent=age > stale_after,
            configuration='',
            differs=False,
            problem='',
            alarm='',
            up_seconds=None,
            configured_seconds=None,
            seen_seconds=round(age, 1),
        )
    ]
