# SPDX-License-Identifier: Apache-2.0
"""Every metric of Gantt, as a table, and the registry made from it.

The table is the contract with dashboards: a name keeps its meaning, and the
documentation is generated from it.  A name or label that is not in the table
is refused loudly, so nothing can be counted that nobody wrote down.
"""

import enum
from collections.abc import Callable
from typing import Any

import msgspec
import prometheus_client
from prometheus_client import exposition
from prometheus_client.metrics import MetricWrapperBase

from gantt import exceptions

CONTENT_TYPE = exposition.CONTENT_TYPE_LATEST


class Kind(enum.StrEnum):
    """How a metric behaves."""

    COUNTER = 'counter'
    GAUGE = 'gauge'
    HISTOGRAM = 'histogram'


class Metric(msgspec.Struct, frozen=True):
    """One row of the table.

    :ivar labels: all of them are given at every use
    :ivar buckets: upper bounds, histograms only
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SECONDS = (
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
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

#: All metrics, in the order of the documentation.
TABLE: tuple[Metric, ...] = (
    # requests
    Metric(
        'gantt_decision_seconds',
        _H,
        "Time from a request's arrival to its answer, queueing included.",
        ('outcome',),
        _SECONDS,
    ),
    Metric(
        'gantt_configuration_refused',
        _G,
        '1 where the options that SIGHUP had read again were wrong, so that the old ones hold.',
    ),
    Metric('gantt_queue_depth', _G, 'Requests inside: waiting, being placed or parked.'),
    Metric('gantt_queue_projects', _G, 'Projects that have requests inside.'),
    Metric('gantt_batch_size', _H, 'Requests in one group commit.', (), _SIZES),
    Metric('gantt_commit_seconds', _H, 'Time of one group commit.', (), _SECONDS),
    Metric(
        'gantt_locked_total',
        _C,
        'Requests planned again, or waiting, because another process kept a row of theirs locked.',
    ),
    Metric(
        'gantt_conflicts_total',
        _C,
        'Members planned again because another writer was faster on a host or a group.',
    ),
    Metric(
        'gantt_spread',
        _G,
        'Among how many of the best hosts requests pick, because races were lost; 1 (or 0, '
        'before the first was lost): the best one is taken.',
    ),
    Metric('gantt_repeats_total', _C, 'Requests answered with the answer stored before.'),
    Metric('gantt_rejections_total', _C, 'Hosts removed, by the filter that did.', ('filter',)),
    Metric(
        'gantt_turned_away_total',
        _C,
        'Requests answered at the door without being queued.',
        ('outcome',),
    ),
    Metric(
        'gantt_quota_refusals_total',
        _C,
        'Requests, dry runs and server groups refused because the project has as much as its '
        'quota lets it have, by the name of the limit.',
        ('limit',),
    ),
    Metric(
        'gantt_batches_failed_total',
        _C,
        'Batches whose commit failed: the outcome is unknown, callers ask again.',
    ),
    Metric(
        'gantt_give_up_failed_total',
        _C,
        'Given-up requests whose claims wait for their lease, the database being away.',
    ),
    Metric(
        'gantt_decisions_dropped_total',
        _C,
        "Decision records dropped because the recorder's queue was full.",
    ),
    # claims
    Metric('gantt_claims_made_total', _C, 'Claims committed for requests.'),
    Metric('gantt_adopted_total', _C, 'Guests found running without a claim, and adopted.'),
    Metric(
        'gantt_disagreements_total',
        _C,
        'Claims that a compute host refused at its second check.',
    ),
    Metric(
        'gantt_claim_words_total',
        _C,
        'Words of compute hosts about claims (confirm, refuse, release), by what became of them.',
        ('word', 'fate'),
    ),
    Metric(
        'gantt_claims_unreadable_total',
        _C,
        'Claims past their lease that the sweeper could not read and left, each time it found so.',
    ),
    # hosts and their reports
    Metric('gantt_registrations_total', _C, 'Registrations of compute hosts.'),
    Metric(
        'gantt_registrations_elsewhere_total',
        _C,
        'Registrations of a host from another journal while an agent with the last one reported.',
    ),
    Metric(
        'gantt_forged_messages_total',
        _C,
        'Messages in the name of hosts that were not signed with their keys, by method; each '
        'changed nothing.',
        ('method',),
    ),
    Metric(
        'gantt_hosts',
        _G,
        'Known hosts: reporting, stale, and unheard: silent since most fell silent together '
        '(schedulers); up, stale, new, disabled and over_committed (API).',
        ('state',),
    ),
    Metric('gantt_reports_total', _C, 'Reports of hosts, by what became of them.', ('fate',)),
    Metric(
        'gantt_table_age_seconds',
        _G,
        'Age of the host table: time since it was last current, but for what is on its way: '
        'since the oldest change that is missing from the feed.',
    ),
    Metric(
        'gantt_feed_missed_total',
        _C,
        'Hosts whose change a full comparison found and the change feed had not brought.',
    ),
    Metric(
        'gantt_database_went_back_total',
        _C,
        'Times that the database was found at an older state than had been read of it, and '
        'everything was read again.',
    ),
    Metric(
        'gantt_jobs_failed_total',
        _C,
        'Periodic jobs that failed and will be tried again.',
        ('job',),
    ),
    # doors
    Metric(
        'gantt_rpc_refused_total',
        _C,
        'RPC messages refused, by error code.',
        ('code',),
    ),
    Metric(
        'gantt_dead_letters_total',
        _C,
        'Messages at fault for [rpc] dead_letter_queue, by whether it took them: kept, dropped, or '
        'beyond_share, of a project or host that has sent its part of the queue.',
        ('fate',),
    ),
    Metric(
        'gantt_rpc_replies_lost_total',
        _C,
        'Answers that did not reach their caller; asking again gets the same answer.',
        ('reason',),
    ),
    Metric(
        'gantt_rpc_self_pings_total',
        _C,
        'Calls of a scheduler process to itself over the broker, by fate: answered or failed.',
        ('fate',),
    ),
    Metric(
        'gantt_rpc_pauses_total',
        _C,
        'Times that calls were left to other schedulers because the database was silent.',
    ),
    Metric(
        'gantt_rpc_rebuilds_total',
        _C,
        '1 where the process ends, for another one to take its place, because no self-ping was '
        'answered although the broker works; fate: done.',
        ('fate',),
    ),
    Metric(
        'gantt_messages_refused_total',
        _C,
        'HTTP requests refused, by method and route and by error code.',
        ('method', 'code'),
    ),
    Metric(
        'gantt_nova_events_total',
        _C,
        'Broadcasts of an unmodified Nova, by kind and by fate: heard, and of these dropped, '
        'failed, or not_novas: an agent of its own speaks for the host.',
        ('event', 'fate'),
    ),
    Metric(
        'gantt_nova_notifications_total',
        _C,
        'Notifications in the name of nova-scheduler, by fate: sent, dropped, failed.',
        ('fate',),
    ),
    Metric(
        'gantt_nova_claims_total',
        _C,
        'Claims that broadcasts of Nova changed: confirmed, released, adopted.',
        ('what',),
    ),
    Metric(
        'gantt_nova_moves_overdue',
        _G,
        'Moves between hosts of Nova open for longer than [claims] nova_move_seconds: somebody '
        'has to say where the instance is.',
    ),
    Metric(
        'gantt_nova_source_passes_total',
        _C,
        'Passes of gantt-nova-source over the APIs, by fate: done, failed, fenced: somebody else '
        'registered some of its hosts.',
        ('fate',),
    ),
    Metric('gantt_nova_source_seconds', _G, 'Time that its last pass took.'),
    Metric(
        'gantt_nova_source_hosts',
        _G,
        'Hosts of Nova that something is said of, yes, that nothing can be said of, no, that '
        'somebody else registered later, fenced, and that the scheduler did not give us, refused.',
        ('said',),
    ),
    Metric(
        'gantt_nova_source_claims_total',
        _C,
        'Claims that its lists of guests changed: confirmed, released, adopted.',
        ('what',),
    ),
    Metric(
        'gantt_nova_source_settled_total',
        _C,
        'Guests of moves that nobody had ended, settled where Nova says that they are.',
    ),
    Metric(
        'gantt_nova_facts_total',
        _C,
        'Words of agents beside nova-compute about cells, devices and metrics, by fate: applied, '
        'stale, unknown_host, refused.',
        ('fate',),
    ),
    Metric(
        'gantt_shadow_requests_total',
        _C,
        'Requests to Nova that gantt-shadow listened to, by fate: heard, and of these decided, '
        'failed or dropped; and messages that were unreadable.',
        ('fate',),
    ),
    Metric(
        'gantt_shadow_compared_total',
        _C,
        'Instances whose host by Nova was compared with the one decided here: same, tie, other, '
        'removed, not_known, nova_none, neither, not_heard, not_decided.',
        ('verdict',),
    ),
    Metric('gantt_errors_total', _C, 'Unexpected errors caught, by place.', ('where',)),
    Metric(
        'gantt_http_seconds',
        _H,
        'Time of HTTP requests, by route and status.',
        ('method', 'route', 'status'),
        _SECONDS,
    ),
)

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in TABLE}


# When a counter was made, as a series of its own beside each, is of no use here.
prometheus_client.disable_created_metrics()


class Metrics:
    """The metrics of one process, over a registry of their own.

    ``count``, ``observe`` and ``gauge`` may be called from any thread; they
    have the shape of the scheduler's ``Recorder`` port.
    """

    def __init__(self, table: tuple[Metric, ...] = TABLE) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        self._known: dict[str, tuple[Metric, Any]] = {
            metric.name: (metric, self._make(metric)) for metric in table
        }
        prometheus_client.ProcessCollector(registry=self._registry)

    def _make(self, metric: Metric) -> MetricWrapperBase:
        common: dict[str, Any] = {'labelnames': metric.labels, 'registry': self._registry}
        match metric.kind:
            case Kind.COUNTER:
                return prometheus_client.Counter(metric.name, metric.help, **common)
            case Kind.GAUGE:
                return prometheus_client.Gauge(metric.name, metric.help, **common)
            case Kind.HISTOGRAM:
                return prometheus_client.Histogram(
                    metric.name, metric.help, buckets=metric.buckets, **common
                )

    def _child(self, name: str, kind: Kind, labels: dict[str, str]) -> Any:
        known = self._known.get(name)
        if known is None or known[0].kind is not kind:
            raise exceptions.Bug(invariant=f'{name} is a declared {kind.value}')
        metric, collector = known
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
        self._child(name, Kind.COUNTER, labels).inc(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram.

        :raises Bug: the table has no such histogram, or other labels
        """
        self._child(name, Kind.HISTOGRAM, labels).observe(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge.

        :raises Bug: the table has no such gauge, or other labels
        """
        self._child(name, Kind.GAUGE, labels).set(value)

    def watch(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Let a gauge be read when it is scraped; ``read`` must be cheap and thread-safe.

        :raises Bug: the table has no such gauge, or other labels
        """
        self._child(name, Kind.GAUGE, labels).set_function(read)

    def value(self, name: str, **labels: str) -> float:
        """The value of a counter or gauge, the number of observations of a histogram."""
        if name not in self._known:
            raise exceptions.Bug(invariant=f'{name} is a declared metric')
        sample = f'{name}_count' if self._known[name][0].kind is Kind.HISTOGRAM else name
        return self._registry.get_sample_value(sample, labels) or 0.0

    def render(self) -> bytes:
        """Everything in Prometheus' text form; goes with ``CONTENT_TYPE``."""
        return exposition.generate_latest(self._registry)

    @property
    def registry(self) -> prometheus_client.CollectorRegistry:
        """For the listener."""
        return self._registry
