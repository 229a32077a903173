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

from oslo_config import cfg

from gantt import exceptions
from gantt.cmd import checks, planning, wiring
from gantt.cmd.health import Knock, problem_of_broker, report
from gantt.cmd.presence import Presence
from gantt.cmd.process_signals import ProcessSignals
from gantt.cmd.scheduler import GRACE_SECONDS
from gantt.conf import files
from gantt.core.messages.prepared import prepare_types
from gantt.db import stores
from gantt.rpc.service import RpcService
from gantt.scheduler.groups.planner import GroupPlanner
from gantt.scheduler.ports import DatabaseStatus
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
    signals = ProcessSignals().by_signals()
    wiring.keep_memory_small()
    metrics = MetricRegistry()
    connected = wiring.once_it_answers(conf, lambda: stores.connect(conf), signals.is_stopping)
    wiring.once_it_answers(conf, connected.database.check_rights, signals.is_stopping)
    parts = planning.Planning(conf, connected, metrics)
    planner = parts.planner
    rpc = RpcService(
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
    )
    prepare_types()
    wiring.once_it_answers(conf, planner.cache.fetch, signals.is_stopping)
    parts.start()
    planning.give_way(conf)
    if rpc.start(signals.is_stopping):
        presence.start()
        _until_stop(conf, signals, planner, rpc, health, presence)
        presence.stop()
    health.is_stopping = True
    LOG.info('gantt-planner is stopping: health=%s', planner.health())
    answered = rpc.stop()
    finished = parts.stop()
    if listener is not None:
        listener.stop()
    return 0 if answered and finished and not signals.problem else 1


def _until_stop(
    conf: Any,
    signals: ProcessSignals,
    planner: GroupPlanner,
    rpc: RpcService,
    health: 'PlannerHealth',
    presence: Presence,
) -> None:
    guru.print_report({'Gantt planner': lambda: _state(conf, planner, rpc)})
    LOG.info(
        'gantt-planner is starting: version=%s worker=%s', version_string(), planner.settings.worker
    )
    wiring.say_pipeline(planner.pipeline)
    LOG.info('Servers are in use: broker=%s database=%s', rpc.address, wiring.database_shown(conf))
    LOG.info('gantt-planner is ready: hosts=%d', len(planner.cache.table()))
    wiring.collect_seldom()
    for _ in signals.until_stop(wiring.release_free_memory):
        health.refused = _reload(conf, planner)
        presence.configured(health.refused)


def _reload(conf: Any, planner: GroupPlanner) -> str:
    """Read the configuration files again; why they were not taken over, else nothing."""
    try:
        pipeline, settings = wiring.read_again(conf)
    except (cfg.Error, exceptions.GanttError) as e:
        LOG.error(
            'Configuration is refused; the last one stays in force: error=%s', files.message(e)
        )
        return files.message(e)
    changed = planner.reconfigure(settings, planning.bounds(conf), pipeline)
    checks.at_start(conf)
    LOG.info('Configuration was read again: changed=%s', ','.join(changed) or 'none')
    wiring.say_pipeline(pipeline)
    return ''


def _state(conf: Any, planner: GroupPlanner, rpc: RpcService) -> dict[str, Any]:
    """Return the facts of a report on this process; no server is queried."""
    pipeline = planner.pipeline
    return {
        'worker': planner.settings.worker,
        'broker': rpc.address,
        'database': wiring.database_shown(conf),
        'attached topics': rpc.attached(),
        'filters': ', '.join(f.name for f in pipeline.filters),
        'weighers': ', '.join(w.name for w in pipeline.weighers),
        **planner.health(),
        **rpc.health(),
    }


class PlannerHealth:
    """Health of the planner process; the check ends soon, whatever is away.

    :param database: its port
    :ivar refused: why the options that were read again last were not taken over, else empty
    """

    def __init__(self, planner: GroupPlanner, rpc: RpcService, database: DatabaseStatus) -> None:
        self._planner = planner
        self._rpc = rpc
        self._database = Knock(database.ping)
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
