# SPDX-License-Identifier: Apache-2.0
"""``gantt-planner``: place groups as a whole, over RabbitMQ.

A host table of its own, one group at a time, at low priority: no scheduler plans a group or waits
for one.  Several of these share the queue.  One that is killed loses nothing that was answered;
callers repeat under the same request id.

SIGTERM takes nothing new, answers what it has, and exits 0.  SIGHUP reads the options again,
SIGUSR2 writes a report of what the process is doing.
"""

import logging
import sys
from typing import Any

from gantt import stores
from gantt.cmd import checks, planning, wiring
from gantt.cmd.health import BackgroundProbe, problem_of_broker, report
from gantt.cmd.presence import Presence
from gantt.cmd.process_signals import ProcessSignals
from gantt.cmd.rpc_service import rpc_service
from gantt.cmd.scheduler import GRACE_SECONDS
from gantt.core.messages.prepared import prepare_types
from gantt.groups.service.planner import GroupPlanner
from gantt.rpc.amqp.envelope import release_free_memory
from gantt.rpc.service import RpcService
from gantt.scheduler.ports.stores import DatabaseStatus
from gantt.telemetry import guru
from gantt.telemetry.listener import listen
from gantt.telemetry.metrics import MetricRegistry
from gantt.version import version_string

LOG = logging.getLogger('gantt.cmd.planner')


def main(argv: list[str] | None = None) -> int:
    """Run until stopped; return the exit code."""
    return wiring.run(sys.argv[1:] if argv is None else argv, 'gantt-planner', _serve)


def _serve(conf: Any) -> int:
    checks.at_start(conf)
    guru.listen(conf, 'gantt-planner')
    signals = ProcessSignals().handle_signals()
    wiring.keep_memory_small()
    planning.lower_priority(conf)
    metrics = MetricRegistry()
    connected = wiring.wait_for_database(conf, lambda: stores.connect(conf), signals.is_stopping)
    wiring.wait_for_database(conf, connected.database.check_rights, signals.is_stopping)
    parts = planning.Planning(conf, connected, metrics)
    planner = parts.planner
    rpc = rpc_service(
        conf,
        None,
        planner=planner,
        count=metrics.count,
        on_stuck=lambda problem: signals.give_up(
            problem, 2 * conf.rpc.drain_seconds + GRACE_SECONDS
        ),
    )
    health = PlannerHealth(planner, rpc, connected.database)
    listener = listen(metrics, conf, 'planner', health=health)
    presence = Presence(
        conf,
        connected.services,
        'planner',
        lambda: planner.settings.worker,
        lambda: planner.pipeline.described(),
        caches=[planner.cache],
        gauge=metrics.gauge,
    )
    prepare_types()
    wiring.wait_for_database(conf, planner.cache.fetch, signals.is_stopping)
    parts.start()
    if rpc.start(signals.is_stopping):
        presence.start()
        _serve_until_stop(conf, signals, planner, rpc, health, presence)
        presence.stop()
    health.is_stopping = True
    LOG.info('gantt-planner is stopping: health=%s', planner.health())
    answered = rpc.stop()
    finished = parts.stop()
    if listener is not None:
        listener.stop()
    return 0 if answered and finished and not signals.problem else 1


def _serve_until_stop(
    conf: Any,
    signals: ProcessSignals,
    planner: GroupPlanner,
    rpc: RpcService,
    health: 'PlannerHealth',
    presence: Presence,
) -> None:
    guru.print_report({'Gantt planner': lambda: _state_facts(conf, planner, rpc)})
    LOG.info(
        'gantt-planner is starting: version=%s worker=%s', version_string(), planner.settings.worker
    )
    wiring.log_pipeline(planner.pipeline)
    LOG.info(
        'Process uses these servers: broker=%s database=%s',
        rpc.address,
        wiring.database_url_text(conf),
    )
    LOG.info('gantt-planner is ready: hosts=%d', len(planner.cache.table()))
    wiring.collect_garbage_rarely()
    for _ in signals.requests_until_stop(release_free_memory):
        health.refused = wiring.reload(
            conf,
            lambda settings, pipeline: planner.reconfigure(
                settings, planning.planner_options(conf), pipeline
            ),
        )
        presence.configured(health.refused)


def _state_facts(conf: Any, planner: GroupPlanner, rpc: RpcService) -> dict[str, Any]:
    """Return the facts of a report on this process; no server is queried."""
    pipeline = planner.pipeline
    return {
        'worker': planner.settings.worker,
        'broker': rpc.address,
        'database': wiring.database_url_text(conf),
        'attached topics': rpc.attached(),
        'filters': ', '.join(f.name for f in pipeline.filters),
        'weighers': ', '.join(w.name for w in pipeline.weighers),
        **planner.health(),
        **rpc.health(),
    }


class PlannerHealth:
    """Health of the planner process; the check ends soon, whatever is away.

    :param database: its port
    :ivar refused: why the options were refused when they were read again last; '': they are in
        force
    """

    def __init__(self, planner: GroupPlanner, rpc: RpcService, database: DatabaseStatus) -> None:
        self._planner = planner
        self._rpc = rpc
        self._database = BackgroundProbe(database.ping)
        self.is_stopping = False
        self.refused = ''

    def __call__(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the process is healthy, and the body of the answer for JSON."""
        facts = self._planner.health() | self._rpc.health()
        facts['configuration_refused'] = self.refused
        facts['configuration'] = self._planner.pipeline.digest
        waiting, limit = facts['groups_waiting'], self._planner.bounds.queue_limit
        problems = {
            'process': 'stopping: it takes nothing new' if self.is_stopping else '',
            'host_table': '' if facts['loaded'] else 'the hosts were not read yet',
            'database': self._database.problem(),
            'broker': problem_of_broker(self._rpc),
            'queue': '' if waiting < limit else f'{waiting} groups wait, {limit} may',
        }
        return report(problems, facts)


if __name__ == '__main__':
    sys.exit(main())
