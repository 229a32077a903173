# SPDX-License-Identifier: Apache-2.0
"""Every metric of Gantt, as a table, and the registry built from it.

The table is the contract with dashboards: a name keeps its meaning, and the
documentation is generated from it.  A name or label that is not in the table
is refused loudly, so nothing can be counted that is not documented.
"""

import enum
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import prometheus_client
from prometheus_client import exposition
from prometheus_client.metrics import MetricWrapperBase

from gantt import exceptions

CONTENT_TYPE = exposition.CONTENT_TYPE_LATEST


class MetricKind(enum.StrEnum):
    """The kind of a metric: its behaviour."""

    COUNTER = 'counter'
    GAUGE = 'gauge'
    HISTOGRAM = 'histogram'


class MetricDefinition(msgspec.Struct, frozen=True):
    """One row of the table of metrics.

    :ivar labels: names of the labels, all of which every use has to state
    :ivar buckets: upper bounds, histograms only
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


#: Upper bounds of a histogram: of one whose name ends in ``_seconds``, and of any other.
_SECONDS_BUCKETS = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    30,
    60,
)
_SIZE_BUCKETS = tuple(float(2**n) for n in range(10))

#: Of each metric: kind, name and labels; below it what it counts or measures.
_TABLE_TEXT = """
histogram gantt_decision_duration_seconds outcome
  Time from a request's arrival to its answer, queueing included.
gauge gantt_configuration_refused
  1 where the options that SIGHUP had read again were wrong, so that the old ones hold.
gauge gantt_queue_depth
  Requests inside: waiting, being placed or parked.
gauge gantt_queue_projects
  Projects that have requests inside.
histogram gantt_commit_batch_size
  Requests in one group commit.
histogram gantt_commit_duration_seconds
  Time of one group commit.
counter gantt_commits_total path
  Group commits by how they were written: optimistic, in one round trip; pessimistic, in two, where
  more was requested than room or another writer was in the way; or portable, by the statements of
  every database.
counter gantt_lock_conflicts_total
  Requests planned again, or waiting, because another process kept a row of theirs locked.
counter gantt_members_planned_total method
  Members that were planned for a commit: ``evaluated`` on all hosts, or ``identical``, placed by
  the evaluation of the member before.
counter gantt_layout_hosts_total result
  Hosts left by the filters where cells, CPUs or devices were to be laid out: ``searched`` for a
  layout, ``ruled_out`` without a search, or ``outranked``, not searched because a better one
  fits; ``alternate``: searched later, for alternates.
counter gantt_wrong_declarations_total plugin
  Filters and weighers of which a sampled comparison with a whole evaluation found that they read
  more than they declare, or declare a wrong step; from then on they are evaluated whole.
counter gantt_conflicts_total
  Members planned again because another writer was faster on a host or a group.
gauge gantt_host_subset_size
  Number of best hosts among which requests pick at random after lost races; 1 (or 0, before the
  first was lost): the best one is taken.
counter gantt_repeated_requests_total
  Requests answered with the answer stored before.
counter gantt_filtered_hosts_total filter
  Hosts removed, by the filter that did.
counter gantt_requests_rejected_total outcome
  Requests answered at admission without being queued.
counter gantt_zone_requests_total outcome
  Requests that could be delegated to other zones, answered, wherever they were placed.
counter gantt_zone_queries_saved_total strategy
  Child zones that a request did not have to query, by the strategy that left them out.
histogram gantt_zone_call_duration_seconds zone call outcome
  Time of calls to child zones, by the zone, the call (discover, summary, evaluate, capacity,
  allocate, allocation, extend, release, changes, explain, host_digests) and its outcome: answered,
  refused, or unresponsive.
gauge gantt_zones state
  Child zones, as a scheduler follows them: responding, unresponsive, disabled.
gauge gantt_zone_releases_pending
  Allocations in child zones whose release those have not confirmed yet: room that is held there.
gauge gantt_zone_releases_oldest_age_seconds
  Time that the oldest of them has been pending.
counter gantt_zone_releases_dropped_total
  Releases that a child zone did not confirm within a day: the leases there have ended.
counter gantt_quota_refusals_total limit
  Requests, dry runs and server groups refused because the project has as much as its quota lets
  it have, by the name of the limit.
histogram gantt_group_plan_duration_seconds
  Time that one plan of a group took, its check included; a group that lost races has several.
counter gantt_group_plans_total status method
  Plans of groups by status (optimal, feasible, partial, infeasible) and by method: sequential
  placing, search, or the solver.
counter gantt_group_conflicts_total
  Plans of groups that were planned again because another writer was faster on a host or a group.
gauge gantt_group_queue_depth
  Groups that wait to be planned.
counter gantt_commit_failures_total
  Group commits that failed: the outcome is unknown, callers repeat their requests.
counter gantt_request_abort_failures_total
  Aborted requests whose claims end with their lease only, the database being away.
counter gantt_decisions_dropped_total
  Decision records dropped because the recorder's queue was full.
counter gantt_claims_created_total
  Claims committed for requests.
counter gantt_reservations_taken_total
  Reservations of planned groups that creates have taken over.
counter gantt_guests_adopted_total
  Guests found running without a claim, and adopted.
counter gantt_claims_refused_total
  Claims that a compute host refused at its second check.
counter gantt_claim_updates_total action outcome
  Updates of claims by compute hosts, by action (confirm, refuse, release) and outcome.
counter gantt_claims_unreadable_total
  Claims past their lease that the sweeper could not read and left, each time it found so.
counter gantt_host_registrations_total
  Registrations of compute hosts.
counter gantt_host_registration_conflicts_total
  Registrations of a host from another journal while an agent with the last one reported.
counter gantt_signature_failures_total method
  Messages in the name of hosts that were not signed with their keys, by method; each changed
  nothing.
gauge gantt_hosts state
  Known hosts: reporting, stale, and mass_outage: unresponsive since most became so together
  (schedulers); up, stale, new, disabled and over_committed (API).
counter gantt_reports_total outcome
  Reports of hosts, by their outcome.
gauge gantt_host_table_age_seconds
  Age of the host table: time since it was last current, but for what is on its way: since the
  oldest change that is missing from the feed.
gauge gantt_host_table_entry_bytes process entry
  Memory of the host tables of a process (scheduler, planner or api) for each entry: host or claim,
  measured twice a minute.
gauge gantt_candidate_providers
  Providers in the table that this process searches for allocation candidates; 0 before the first
  query.
gauge gantt_candidate_table_age_seconds
  Time since that table was last current: each query brings it up to date first.
counter gantt_candidate_searches_over_budget_total
  Queries for allocation candidates answered 503 because their search took more steps than [api]
  candidate_steps_max.
counter gantt_change_feed_missed_total
  Hosts whose change a full comparison found and the change feed had not brought.
counter gantt_database_restores_total
  Times that the database was found at an older state than had been read of it, as after a restore,
  and everything was read again.
counter gantt_job_failures_total job
  Periodic jobs that failed and will be tried again.
counter gantt_rpc_messages_refused_total code
  RPC messages refused, by error code.
counter gantt_dead_letters_total outcome
  Faulty messages for [rpc] dead_letter_queue, by whether it took them: kept, dropped, or
  over_quota, of a project or host that has sent its part of the queue.
counter gantt_rpc_replies_lost_total reason
  Answers that did not reach their caller; a repeated request gets the same answer.
counter gantt_rpc_self_pings_total outcome
  Calls of a scheduler process to itself over the broker, by outcome: answered or failed.
counter gantt_rpc_pauses_total
  Times that calls were left to other schedulers because the database did not respond.
counter gantt_rpc_self_ping_exits_total
  1 where the process ends, for another one to take its place, because no self-ping was answered
  although the broker works.
counter gantt_http_requests_refused_total method code
  HTTP requests refused, by method and route and by error code.
counter gantt_nova_events_total event outcome
  Broadcasts of an unmodified Nova, by kind and by outcome: received, and of these dropped, failed,
  or other_reporter: an agent of Gantt reports for the host.
counter gantt_nova_notifications_total outcome
  Notifications in the name of nova-scheduler, by outcome: sent, dropped, failed.
counter gantt_nova_claims_total action
  Claims that broadcasts of Nova changed: confirmed, released, adopted.
gauge gantt_nova_moves_overdue
  Moves between hosts of Nova open for longer than [claims] nova_move_seconds: an operator has to
  state where the instance is.
counter gantt_nova_source_passes_total outcome
  Passes of gantt-nova-source over the APIs, by outcome: done, failed, fenced: another source
  registered some of its hosts.
gauge gantt_nova_source_pass_duration_seconds
  Time that its last pass took.
gauge gantt_nova_source_hosts state
  Hosts of Nova by state: reported; incomplete, of which too little is known to report; fenced,
  registered later by another source; and refused by the scheduler.
counter gantt_nova_source_claims_total action
  Claims that its lists of guests changed: confirmed, released, adopted.
counter gantt_nova_source_guest_locations_total
  Guests of moves without an end, corrected to the host where Nova has them.
counter gantt_nova_facts_total outcome
  Facts of cells, devices and metrics from agents next to nova-compute, by outcome: applied, stale,
  unknown_host, refused.
counter gantt_shadow_requests_total outcome
  Requests to Nova that gantt-shadow observed, by outcome: received, and of these decided, failed
  or dropped; and messages that were unreadable.
counter gantt_shadow_comparisons_total verdict
  Instances whose host by Nova was compared with the one decided here: same, tie, other,
  removed, not_known, nova_none, neither, not_observed, not_decided.
counter gantt_errors_total component
  Unexpected errors caught, by component.
histogram gantt_http_request_duration_seconds method route status
  Time of HTTP requests, by route and status.
"""


def _parse_row(row: str) -> MetricDefinition:
    head, _, text = row.partition('\n')
    kind, name, *labels = head.split()
    bounds = _SECONDS_BUCKETS if name.endswith('_seconds') else _SIZE_BUCKETS
    return MetricDefinition(
        name=name,
        kind=MetricKind(kind),
        help=' '.join(text.split()),
        labels=tuple(labels),
        buckets=bounds if kind == MetricKind.HISTOGRAM else (),
    )


#: All metrics, in the order of the documentation.
TABLE = tuple(map(_parse_row, re.split(r'\n(?! )', _TABLE_TEXT.strip())))
BY_NAME: dict[str, MetricDefinition] = {metric.name: metric for metric in TABLE}


# The creation time of a counter, a series of its own beside each, is of no use here.
prometheus_client.disable_created_metrics()


class MetricRegistry:
    """The metrics of one process, over a registry of their own.

    ``count``, ``observe``, ``observe_all`` and ``gauge`` may be called from any
    thread; they have the shape of the scheduler's ``Recorder`` port.
    """

    def __init__(self, table: tuple[MetricDefinition, ...] = TABLE) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        self._known = {metric.name: (metric, self._make(metric)) for metric in table}
        prometheus_client.ProcessCollector(registry=self._registry)

    def _make(self, metric: MetricDefinition) -> MetricWrapperBase:
        more: dict[str, Any] = {'buckets': metric.buckets} if metric.buckets else {}
        make: type[MetricWrapperBase] = getattr(prometheus_client, metric.kind.name.capitalize())
        return make(metric.name, metric.help, metric.labels, registry=self._registry, **more)

    def _child(self, name: str, kind: MetricKind, labels: dict[str, str]) -> Any:
        entry = self._known.get(name)
        if entry is None or entry[0].kind is not kind:
            raise exceptions.Bug(invariant=f'{name} is a declared {kind.value}')
        metric, collector = entry
        if set(labels) != set(metric.labels):
            raise exceptions.Bug(
                invariant=f'{name} is used with the labels {sorted(metric.labels)}, '
                f'not {sorted(labels)}'
            )
        return collector.labels(**labels) if labels else collector

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter.

        :raises Bug: the table has no such counter, or other labels
        """
        self._child(name, MetricKind.COUNTER, labels).inc(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram.

        :raises Bug: the table has no such histogram, or other labels
        """
        self._child(name, MetricKind.HISTOGRAM, labels).observe(value)

    def observe_all(self, name: str, values: Iterable[float], **labels: str) -> None:
        """Add values to a histogram, in the order given: to find it costs more than to add.

        :raises Bug: the table has no such histogram, or other labels
        """
        observe = self._child(name, MetricKind.HISTOGRAM, labels).observe
        for value in values:
            observe(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge.

        :raises Bug: the table has no such gauge, or other labels
        """
        self._child(name, MetricKind.GAUGE, labels).set(value)

    def watch(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Let a gauge be read when it is scraped; ``read`` must be cheap and thread-safe.

        :raises Bug: the table has no such gauge, or other labels
        """
        self._child(name, MetricKind.GAUGE, labels).set_function(read)

    def value(self, name: str, **labels: str) -> float:
        """Return the value of a counter or gauge, the number of observations of a histogram."""
        if name not in self._known:
            raise exceptions.Bug(invariant=f'{name} is a declared metric')
        sample = f'{name}_count' if self._known[name][0].kind is MetricKind.HISTOGRAM else name
        return self._registry.get_sample_value(sample, labels) or 0.0

    def render(self) -> bytes:
        """Return everything in Prometheus' text form; goes with ``CONTENT_TYPE``."""
        return exposition.generate_latest(self._registry)

    @property
    def registry(self) -> prometheus_client.CollectorRegistry:
        """The registry, for the listener."""
        return self._registry
