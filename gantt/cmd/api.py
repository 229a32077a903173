# SPDX-License-Identifier: Apache-2.0
"""``gantt-api``: the HTTP interface, served by waitress.

SIGTERM refuses new connections, finishes what was begun, and exits 0.  SIGUSR2 writes
a report of what the process is doing.
"""

import atexit
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gantt import client, exceptions, stores
from gantt.cmd import policies, wiring
from gantt.cmd.http_app import make_app
from gantt.cmd.presence import Presence
from gantt.cmd.process_signals import ProcessSignals
from gantt.conf import clear_text
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.messages.base import derived_id
from gantt.core.messages.prepared import prepare_types
from gantt.groups.client import PlannerClient
from gantt.groups.insights import HOOKS
from gantt.http import auth, settings
from gantt.http.middleware import Wsgi
from gantt.http.server import HttpServer
from gantt.http.settings import HttpSettings
from gantt.insights.event_log import EventLog
from gantt.insights.read_model import Insights
from gantt.placement_api.http.app import make_placement_app
from gantt.placement_api.http.dispatch import mounted_app
from gantt.rpc.amqp import refusals, transport
from gantt.stores import AllStores
from gantt.telemetry import guru
from gantt.telemetry.metrics import MetricRegistry
from gantt.version import version_string

LOG = logging.getLogger('gantt.cmd.api')

PROBE_TIMEOUT_SECONDS = 3.0
PROBE_CACHE_SECONDS = 5.0
#: One thread reads from all connections, and has to come by those that work on requests.
THREAD_SWITCH_SECONDS = 0.0005


def compose(conf: Any) -> Wsgi:
    """Return the configured WSGI application, for a server that is not ours.

    :raises GanttError: see ``parts``
    """
    api_parts = parts(conf)
    api_parts.presence.start()
    atexit.register(api_parts.presence.stop)
    return api_parts.app


class ApiParts(NamedTuple):
    """The parts of a process that serves the API.

    :ivar presence: presence of this process, not started
    :ivar events: the events; requests that wait for them are to be answered before the process ends
    """

    app: Wsgi
    presence: Presence
    events: EventLog


def parts(
    conf: Any,
    connected: AllStores | None = None,
    metrics: MetricRegistry | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> ApiParts:
    """Build the parts of this process, the host table read.

    :param connected: stores that the process has opened; ``metrics``: its registry, if any
    :param is_stopping: whether to wait no longer for a database that is away
    :raises GanttError: the database is away or not synced, a plugin does not
        load, an option is wrong
    """
    strategy = auth.strategy(conf.api.auth_strategy, conf)
    rules = policies.enforcer(conf)
    pipeline = pipeline_from_conf(conf)
    if connected is None:
        connected = wiring.wait_for_database(conf, lambda: stores.connect(conf), is_stopping)
        wiring.wait_for_database(conf, connected.database.check_rights, is_stopping)
    metrics = metrics or MetricRegistry()
    insights = Insights(
        connected,
        pipeline,
        HOOKS,
        wiring.settings(conf, pipeline),
        max_age=conf.api.table_age_seconds,
        count=metrics.count,
        candidate_steps=conf.api.candidate_steps_max,
    )
    carrier = client.get_transport(conf)
    schedulers, plans = client.SchedulerClient(carrier), PlannerClient(carrier)
    transport.service_defaults(conf)
    probe = SchedulerProbe(schedulers)
    _warm_table(insights)
    guru.print_report({'Gantt API': lambda: _state_facts(conf, insights)})
    http_settings = settings_of(conf)
    keep = wiring.audit_trail_file(conf).write
    application = make_app(
        insights,
        connected,
        schedulers,
        metrics,
        http_settings,
        {'broker': probe.broker, 'schedulers': probe.schedulers},
        strategy,
        rules,
        keep,
        zone_context=wiring.zone_context(
            conf, connected, insights.cache, lambda: pipeline, metrics
        ),
        plans=plans,
    )
    placement = make_placement_app(
        connected, metrics, http_settings, rules, strategy, keep, insights.candidates
    )
    application = mounted_app(application, placement, conf.api.placement_at_root)
    presence = Presence(
        conf,
        connected.services,
        'api',
        lambda: wiring.worker_name(conf),
        pipeline.described,
        caches=[insights.cache],
        gauge=metrics.gauge,
    )
    prepare_types()
    return ApiParts(application, presence, insights.events)


class HttpInterface:
    """The HTTP interface in this process, from its socket to its end.

    :param connected: stores that the process has opened; ``metrics``: its registry, if any
    :raises GanttError: see ``parts``; the address cannot be bound
    """

    def __init__(
        self,
        conf: Any,
        connected: AllStores | None = None,
        metrics: MetricRegistry | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        clear_text.warn_of_exposures(conf, clear_text.api_exposure(conf))
        self._seconds = conf.api.drain_seconds
        self._parts = parts(conf, connected, metrics, is_stopping)
        self._server = HttpServer(
            self._parts.app,
            conf.api.host,
            conf.api.port,
            conf.api.threads,
            connections_max=conf.api.connections_max,
            idle_seconds=conf.api.idle_seconds,
        )

    def start(self) -> None:
        """Serve."""
        server = self._server
        server.start()
        self._parts.presence.start()
        LOG.info(
            'gantt-api is ready: version=%s address=http://%s:%d',
            version_string(),
            server.host,
            server.port,
        )

    def stop(self) -> bool:
        """Refuse new connections, finish what was begun; whether that was done in time."""
        LOG.info(
            'gantt-api is stopping and finishes the requests that have begun: seconds_max=%d',
            self._seconds,
        )
        self._parts.events.stop()
        done = self._server.stop(self._seconds)
        self._parts.presence.stop()
        return done


def _warm_table(insights: Insights) -> None:
    """Read all hosts before the first request does: with many of them that takes seconds."""
    try:
        insights.table()
    except exceptions.DatabaseUnavailable as e:
        LOG.warning(
            'Hosts cannot be read yet; the first request that needs them reads them: error=%s', e
        )


def _state_facts(conf: Any, insights: Insights) -> dict[str, Any]:
    """Return the facts of a report on this process; no server is queried."""
    cache, age = insights.cache, insights.candidates.age_seconds
    return {
        'database': wiring.database_url_text(conf),
        'hosts in the table': len(cache.working),
        'table_age_seconds': round(cache.age_seconds, 3),
        'providers in the table of candidates': insights.candidates.providers,
        'candidates_age_seconds': 'never asked for' if age is None else round(age, 3),
    }


def settings_of(conf: Any) -> HttpSettings:
    """Return the HTTP application's settings from its options."""
    api = conf.api
    return HttpSettings(
        body_bytes_max=api.body_bytes_max,
        placements_max=settings.placement_threads(api.threads),
        placements_of_one_max=settings.threads_of_one_project(api.threads),
        plans_max=settings.waiting_threads(api.threads),
        evaluations_max=settings.threads_of_one_project(api.threads),
        waits_max=settings.waiting_threads(api.threads),
        table_age_seconds=api.table_age_seconds,
        table_age_unhealthy_seconds=api.table_age_unhealthy_seconds,
        cors_allowed_origins=tuple(api.cors_allowed_origins),
        served_names=(*api.served_names, api.host),
        behind_proxy=api.behind_proxy,
        disable_by_file=api.disable_by_file,
        site_name=api.site_name,
    )


def policy_enforcer() -> Any:
    """Return the rules in force, for oslo.policy's commands, which find it by its entry point."""
    return policies.enforcer(wiring.parse([], 'gantt-api')).enforcer


class SchedulerProbe:
    """Health check of the schedulers by a call over the broker; keeps the result for a moment."""

    def __init__(self, schedulers: Any) -> None:
        self._client = schedulers
        self._lock = threading.Lock()
        self._probed_at = float('-inf')
        self._last_error: exceptions.GanttError | None = None

    def broker(self) -> str:
        """Check the broker.  :raises BrokerUnavailable:"""
        error = self._probe()
        if isinstance(error, exceptions.BrokerUnavailable):
            raise error
        return 'the broker takes messages'

    def schedulers(self) -> str:
        """Check the schedulers.  :raises Unavailable: none of them answers"""
        error = self._probe()
        if isinstance(error, exceptions.Unavailable):
            raise error
        return 'a scheduler answers'

    def _probe(self) -> exceptions.GanttError | None:
        # A caller that comes during the query reads the last answer: the query may take
        # seconds, and any caller may request the health.
        if not self._lock.acquire(blocking=self._probed_at == float('-inf')):
            return self._last_error
        try:
            if time.monotonic() - self._probed_at < PROBE_CACHE_SECONDS:
                return self._last_error
            try:
                self._client.get_request(derived_id('probe'), timeout=PROBE_TIMEOUT_SECONDS)
                self._last_error = None
            except exceptions.NotFound:
                self._last_error = None  # nobody ever made this request: that is an answer
            except exceptions.GanttError as e:
                self._last_error = e
            except Exception as e:  # sockets, AMQP, TLS: whatever keeps us out is the reason
                self._last_error = exceptions.BrokerUnavailable(
                    url='', problem=refusals.refusal_text(e)
                )
            self._probed_at = time.monotonic()
            return self._last_error
        finally:
            self._lock.release()


def main(argv: list[str] | None = None) -> int:
    """Run until stopped; return the exit code."""
    return wiring.run(sys.argv[1:] if argv is None else argv, 'gantt-api', _serve)


def _serve(conf: Any) -> int:
    signals = ProcessSignals().handle_signals()
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    guru.listen(conf, 'gantt-api')
    interface = HttpInterface(conf, is_stopping=signals.is_stopping)
    interface.start()
    for _ in signals.requests_until_stop():
        LOG.info('gantt-api reads its options only at its start; restart it to change them')
    return 0 if interface.stop() else 1


if __name__ == '__main__':
    sys.exit(main())
