# SPDX-License-Identifier: Apache-2.0
"""The one read model: what HTTP, the command line and the metrics show.

It follows the database with a host table of its own, so that looking costs the
schedulers nothing.  Where the database is away the last table is shown; every
answer made from it says how old it is.
"""

import collections
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from gantt import exceptions
from gantt.core.messages.near import did_you_mean, near
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.what_if_edits import HostEdits
from gantt.core.records.decision import Answer, Outcome, Score
from gantt.core.records.decision_codec import PREFIX_MIN, unpack
from gantt.core.resources.host import Aggregate, HostChange
from gantt.core.table.host_table import HostTable
from gantt.insights import draining, host_history, host_map, services, views
from gantt.insights.activity import Activity, ActivityReader, RefusedFunnel
from gantt.insights.decision_reader import DecisionReader, Replayed
from gantt.insights.event_log import EventLog
from gantt.insights.explain import explaining
from gantt.insights.host_views import Asked, HostPage, HostReader
from gantt.insights.replaying import Otherwise
from gantt.insights.views import (
    Capacity,
    ClaimView,
    Configuration,
    DecisionSummary,
    Explanation,
    HostDetail,
    HostSummary,
    RefusalGroup,
    Status,
)
from gantt.insights.what_if import WhatIf, WhatIfAnswer
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.placing import answers
from gantt.scheduler.ports import Clock, Store, StoredRequest
from gantt.scheduler.quotas import Quotas
from gantt.scheduler.settings import Settings
from gantt.version import version_string

#: Claims of one host that are read to explain it.
CLAIMS_OF_HOST_MAX = 1000
#: Refusals read per outcome for the status, and how far back they go.
REFUSALS_MAX = 200
WINDOW_SECONDS = 3600.0
#: How old a decision may be that tells what its worker decides with.
CONFIGURATION_SECONDS = 600.0
#: Outcomes of decisions that are no placement and are kept.
REFUSED = (Outcome.NO_VALID_HOST, Outcome.CONFLICT, Outcome.UNKNOWN, Outcome.FAILED)
_SHAPES_MAX = 5000


class Gauges(Protocol):
    """The metrics registry, as far as it is needed here."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""


class Insights:
    """The read model of one process.  All methods may be called from any thread.

    :param pipeline: as the schedulers have it: dry runs and capacity use it
    :param settings: of the schedulers: when a host is stale, when nothing is known
    :param max_age: how old the table may be that is answered from, seconds
    :param count: adds one to a counter by its name
    """

    def __init__(
        self,
        store: Store,
        pipeline: Pipeline,
        settings: Settings | None = None,
        clock: Clock | None = None,
        max_age: float = 1.0,
        count: Callable[..., None] | None = None,
    ) -> None:
        self.store = store
        self.settings = settings or Settings(worker='gantt-api')
        self.cache = HostCache(
            store,
            clock,
            self.settings.reload_seconds,
            default_zone=self.settings.default_zone,
            count=count,
        )
        self.quotas = Quotas(
            store, self.settings, self.cache.clock, count or (lambda name, **labels: None)
        )
        self._what_if = WhatIf(store, self.cache, pipeline, self.settings, self.quotas)
        self._reader_of_decisions = DecisionReader(store, pipeline, self.settings)
        self._pipeline = pipeline
        self._activity = ActivityReader(store, self.cache.clock)
        self.events = EventLog(store, self.cache)
        self._max_age = max_age
        self._look_again = False
        self._shapes: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()

    # -- freshness -----------------------------------------------------------------
    def table(self) -> HostTable:
        """A snapshot of the host table.

        :raises DatabaseUnavailable: nothing was ever read
        """
        again, self._look_again = self._look_again, False
        return self.cache.table(-1.0 if again else self._max_age)

    def offer(self, changes: Iterable[HostChange]) -> None:
        """News of hosts that this process wrote itself."""
        self.cache.offer(changes)

    def reload_soon(self) -> None:
        """Read the feed before the next answer, however fresh the table is."""
        self._look_again = True

    def freshen(self) -> float:
        """Bring the table up to date where that is possible; its age in seconds.

        :raises DatabaseUnavailable: nothing was ever read
        """
        self.table()
        return self.cache.age_seconds

    def _now(self) -> float:
        """The database's clock."""
        return self.table().now

    def _reader(self) -> HostReader:
        return HostReader(self.table(), self.settings.stale_after_seconds)

    # -- hosts -----------------------------------------------------------------------
    def hosts(self, asked: Asked) -> HostPage:
        """A page of hosts.

        :raises InvalidMessage, NotFound: see ``HostReader.page``
        """
        reader = self._reader()
        if asked.aggregate is not None:
            self.aggregate(asked.aggregate)
        return reader.page(asked, self.cache.age_seconds)

    def host(self, name: str) -> HostDetail:
        """A host with everything that is known of it.

        :raises NotFound:
        """
        self.reload_soon()
        reader = self._reader()
        row = reader.row(name)
        claims: list[ClaimView] = []
        for state in ('reserved', 'confirmed'):
            found = self.store.claims(state=state, host=name, limit=CLAIMS_OF_HOST_MAX)
            claims.extend(views.claim_view(claim, reader.table.now) for claim in found)
        claims.sort(key=lambda claim: (-claim.age_seconds, claim.id))
        truncated = len(claims) >= CLAIMS_OF_HOST_MAX
        return reader.detail(row, claims, truncated)

    def drain(self, name: str) -> views.HostDrain:
        """How far a host is from being empty.  :raises NotFound:"""
        detail = self.host(name)
        reader = self._reader()
        row = reader.table.hosts[reader.row(name)]
        elsewhere = self.store.live_claims_of({claim.consumer for claim in detail.claims})
        found = draining.obstacles(detail.claims, elsewhere)
        counts = collections.Counter(one.kind.value for one in found)
        return views.HostDrain(
            host=detail.host,
            is_draining=row.disabled is not None,
            is_empty=not found,
            claims=len(found),
            remaining={kind.value: counts[kind.value] for kind in views.ObstacleKind},
            foreign={use.resource_class: use.foreign for use in detail.use if use.foreign},
            obstacles=found,
            obstacles_truncated=detail.claims_truncated,
        )

    def host_history(self, name: str, limit: int) -> views.HostHistory:
        """What happened to a host lately, newest first.

        :raises NotFound: it is not known, and nothing is kept of it
        """
        found = self.store.host_history(name, limit + 1)
        if not found:
            self.host_summary(name)
        return host_history.shown(name, found, limit, self._now())

    def host_summary(self, name: str) -> HostSummary:
        """A host in short.  :raises NotFound:"""
        reader = self._reader()
        return reader.summary(reader.row(name))

    def check_removable(self, name: str) -> HostSummary:
        """A host that may be forgotten.

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
        """All aggregates."""
        return list(self.table().known_aggregates.values())

    def aggregate(self, name: str) -> Aggregate:
        """One aggregate, by name or uuid.  :raises NotFound:"""
        known = self.aggregates()
        for aggregate in known:
            if name in (aggregate.name, aggregate.uuid):
                return aggregate
        meant = near(name, [a.name for a in known])
        raise exceptions.NotFound(
            f'aggregate {name!r} is not known here{did_you_mean(meant)}',
            kind='aggregate',
            name=name,
            near=meant,
        )

    def aggregate_if(
        self, name: str, metadata: dict[str, str | None], hosts: list[str] | None, uuid: str | None
    ) -> Aggregate:
        """An aggregate as it would be after a change."""
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

    def declared_classes(self) -> frozenset[str]:
        """Custom resource classes."""
        return self.store.declared_classes()

    # -- claims and requests -----------------------------------------------------------------
    def claims(
        self,
        *,
        state: str | None = None,
        host: str | None = None,
        consumer: str | None = None,
        request_id: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        project: str | None = None,
    ) -> list[ClaimView]:
        """Claims by id, after ``marker``; of one project, or of all.

        :raises NotFound: a host that is not known and has no claim, old ones included
        """
        now = self._now()
        found = self.store.claims(
            state=state,
            host=host,
            consumer=consumer,
            request_id=request_id,
            limit=limit,
            marker=marker,
            project=project,
        )
        if host is not None and not found and project is None:
            self.host_summary(host)
        return [views.claim_view(claim, now) for claim in found]

    def claim(self, claim_id: str) -> ClaimView:
        """One claim, by its id or a unique prefix.  :raises NotFound:"""
        claim = self.store.load_claim(claim_id) if len(claim_id) == 36 else None
        if claim is None and PREFIX_MIN <= len(claim_id) < 36:
            blank = '00000000-0000-0000-0000-000000000000'
            after = claim_id + blank[len(claim_id) :]
            near = self.store.claims(limit=2, marker=after)
            near = [found for found in near if found.id.startswith(claim_id)]
            claim = near[0] if len(near) == 1 else None
            if len(near) > 1:
                raise exceptions.NotFound(
                    f'claim {claim_id!r} is not the beginning of one id only; give more of it',
                    kind='claim',
                    name=claim_id,
                )
        if claim is None:
            raise exceptions.NotFound(kind='claim', name=claim_id)
        return views.claim_view(claim, self._now())

    def request(self, request_id: str) -> tuple[StoredRequest, Answer | None, list[ClaimView]]:
        """A request, the answer it was given, its claims; by id or a unique prefix.

        :raises NotFound:
        """
        whole = request_id
        if PREFIX_MIN <= len(request_id) < 36:
            found = self.store.load_decision(request_id)
            whole = unpack(found[0]).decision.request_id if found else request_id
        stored = self.store.load_request(whole) if len(whole) == 36 else None
        if stored is None:
            raise exceptions.NotFound(kind='request', name=request_id)
        now = self._now()
        answer = answers.unpack(stored.answer) if stored.answer else None
        return stored, answer, [views.claim_view(claim, now) for claim in stored.claims]

    def requests(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[views.RequestSummary]:
        """Requests by id, after ``marker``; those with claims of one project, or all."""
        now = self._now()
        return [
            views.request_summary(line, now) for line in self.store.requests(limit, marker, project)
        ]

    # -- decisions -----------------------------------------------------------------------------
    def decisions(
        self,
        *,
        outcome: str | None = None,
        project: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        consumer: str | None = None,
    ) -> list[DecisionSummary]:
        """Decisions, newest first; of one project, or of all; about one consumer, or any."""
        return self._reader_of_decisions.summaries(
            outcome, project, limit, marker, self._now(), consumer
        )

    def explain(
        self,
        decision_id: str,
        host: str | None = None,
        public: bool = False,
        project: str | None = None,
    ) -> Explanation:
        """A decision, explained; see ``DecisionReader.explain``.

        :param public: only what everybody may know
        """
        if public:
            return self._reader_of_decisions.public(decision_id, self._now(), project)
        return self._reader_of_decisions.explain(decision_id, self.table(), host, project)

    def is_decision(self, decision_id: str, project: str | None = None) -> bool:
        """Whether a decision of just this id is kept; of one project, or of any."""
        found = self.store.load_decision(decision_id, project)
        return found is not None and unpack(found[0]).decision.id == decision_id

    def scores(self, decision_id: str, member: int) -> list[Score]:
        """Of all hosts that a decision chose among; see ``DecisionReader.scores``."""
        return self._reader_of_decisions.scores(decision_id, member)

    def replay(self, decision_id: str, otherwise: Otherwise | None = None) -> Replayed:
        """A decision made again, with other settings where asked; see ``DecisionReader``."""
        return self._reader_of_decisions.replay(decision_id, self.table(), otherwise)

    # -- what if -------------------------------------------------------------------------
    def dry_run(
        self, request: SelectDestinations, public: bool = False, is_own_caller: bool = False
    ) -> tuple[Answer, Explanation]:
        """Place a request on a copy of the table and claim nothing; see ``WhatIf``."""
        return self._what_if.dry_run(self.table(), request, public, is_own_caller)

    def what_if(self, request: SelectDestinations, hosts: HostEdits) -> WhatIfAnswer:
        """A request placed as it is and with hosts edited; see ``WhatIf.compare``."""
        return self._what_if.compare(self.table(), request, hosts)

    def capacity(self, spec: RequestSpec) -> Capacity:
        """How many more of a shape fit now, where, and what runs out first."""
        return self._what_if.capacity(self.table(), spec)

    # -- at a glance ------------------------------------------------------------------------------
    def status(self) -> Status:
        """The service at a glance."""
        reader = self._reader()
        refusals, outcomes, truncated = self._refusals(reader.table.now)
        return Status(
            version=version_string(),
            hosts=reader.conditions,
            hosts_total=len(reader.table),
            claims=int(reader.table.instances.sum()),
            table_age_seconds=round(self.cache.age_seconds, 3),
            usage=reader.usage(),
            outcomes=outcomes,
            window_seconds=WINDOW_SECONDS,
            refusals=refusals,
            refusals_truncated=truncated,
            configurations=self._configurations(),
        )

    def services(self) -> list[views.ServiceView]:
        """The processes of the site, see ``services.listed``."""
        return services.listed(
            self.store.services(), self.table(), self.settings.stale_after_seconds
        )

    def host_map(self, resource_class: str) -> host_map.HostMap:
        """Every host in a few numbers, see ``HostMap``.  :raises InvalidMessage:"""
        stale_after = self.settings.stale_after_seconds
        return host_map.read(self.table(), resource_class, stale_after, self.cache.age_seconds)

    def activity(self, window: int) -> Activity:
        """What is kept of the last ``window`` seconds, in parts of it."""
        return self._activity.activity(window)

    def refused(self, window: int) -> RefusedFunnel:
        """What removed the hosts of the latest refused requests."""
        return self._activity.refused(window)

    def _refusals(self, now: float) -> tuple[list[RefusalGroup], dict[str, int], bool]:
        groups: dict[tuple[str, str, str], list[DecisionSummary]] = collections.defaultdict(list)
        outcomes: dict[str, int] = {}
        truncated = False
        for outcome in REFUSED:
            found = self.decisions(outcome=outcome.value, limit=REFUSALS_MAX)
            lately = [d for d in found if d.age_seconds <= WINDOW_SECONDS]
            truncated |= len(lately) == REFUSALS_MAX
            if lately:
                outcomes[outcome.value] = len(lately)
            for decision in lately:
                groups[(*self._shape(decision.id), outcome.value)].append(decision)
        listed = [
            RefusalGroup(
                shape=shape,
                count=len(group),
                outcome=outcome,
                reason=group[0].reason,
                last_age_seconds=group[0].age_seconds,
                decision_id=group[0].id,
            )
            for (shape, _cause, outcome), group in groups.items()
        ]
        listed.sort(key=lambda group: (-group.count, group.last_age_seconds))
        return listed, outcomes, truncated

    def _configurations(self) -> list[Configuration]:
        """What each worker that decided lately did so with, by its last decision."""
        last: dict[str, DecisionSummary] = {}
        for decision in self.decisions(limit=REFUSALS_MAX):
            if decision.age_seconds <= CONFIGURATION_SECONDS:
                last.setdefault(decision.worker, decision)
        workers: dict[str, list[DecisionSummary]] = collections.defaultdict(list)
        for decision in last.values():
            found = self.store.load_decision(decision.id)
            if found:
                workers[unpack(found[0]).decision.config_digest].append(decision)
        listed = [
            Configuration(
                digest=digest,
                workers=sorted(one.worker for one in found),
                is_here=digest == self._pipeline.digest,
                last_age_seconds=min(one.age_seconds for one in found),
            )
            for digest, found in workers.items()
        ]
        return sorted(listed, key=lambda one: (-len(one.workers), one.digest))

    def _shape(self, decision_id: str) -> tuple[str, str]:
        """The shape of a kept decision, and what decided it.

        Decisions never change, so it is remembered.
        """
        known = self._shapes.get(decision_id)
        if known is not None:
            return known
        found = self.store.load_decision(decision_id)
        whole = unpack(found[0]) if found else None
        shape = (
            explaining.shape_of(whole.request if whole else None),
            whole.decision.cause if whole else '',
        )
        with self._lock:
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            self._shapes[decision_id] = shape
        return shape

    def export(self, metrics: Gauges) -> None:
        """Set the gauges that are read from the table; as far as it is known."""
        try:
            reader = self._reader()
        except exceptions.Unavailable:
            return
        for condition, count in reader.conditions.items():
            metrics.gauge('gantt_hosts', count, state=condition)
        metrics.gauge('gantt_table_age_seconds', self.cache.age_seconds)
