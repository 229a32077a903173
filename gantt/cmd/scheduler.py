# SPDX-License-Identifier: Apache-2.0
"""``gantt-scheduler``: place requests and fold reports, over RabbitMQ.

SIGTERM takes nothing new, answers what it has, and exits 0.  A process whose
connections to the broker carry nothing does the same and exits 1, for its
supervisor to start another one.  SIGHUP reads the options again, SIGUSR2 writes
a report of what the process is doing.  ``[scheduler] workers`` above 1 makes a
supervisor with so many of these processes.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import cotyledon
from cotyledon.types import WorkerId
from oslo_config import cfg

from gantt import exceptions, stores
from gantt.cmd import checks, planning, wiring
from gantt.cmd.health import Health
from gantt.cmd.presence import Presence
from gantt.cmd.process_signals import ProcessSignals
from gantt.cmd.rpc_service import rpc_service
from gantt.core.messages.prepared import prepare_types
from gantt.nova.service.facade import NovaFacade
from gantt.rpc.amqp.envelope import release_free_memory
from gantt.rpc.service import RpcService
from gantt.scheduler.service import Scheduler
from gantt.stores import AllStores
from gantt.telemetry import guru
from gantt.telemetry.listener import listen
from gantt.telemetry.metrics import MetricRegistry
from gantt.version import version_string

LOG = logging.getLogger('gantt.cmd.scheduler')

#: What a process that ends by itself may take beyond its own bound for finishing.
GRACE_SECONDS = 15


class Companion(Protocol):
    """A further worker in the process of a scheduler."""

    def start(self) -> None:
        """Begin: the scheduler listens."""

    def stop(self) -> bool:
        """Finish what was begun, the scheduler still there; return whether that was in time."""


#: ``make(stores, scheduler, metrics)``: the companions of a scheduler that is not started yet.
Companions = Callable[[AllStores, Scheduler, MetricRegistry], Sequence[Companion]]


def _no_companions(
    opened: AllStores, scheduler: Scheduler, metrics: MetricRegistry
) -> Sequence[Companion]:
    """Return no companions: a scheduler has its process for itself."""
    return ()


def main(argv: list[str] | None = None) -> int:
    """Run until stopped; return the exit code."""
    return wiring.run(sys.argv[1:] if argv is None else argv, 'gantt-scheduler', _serve)


def _serve(conf: Any) -> int:
    # What is wrong with every worker is logged once, before there is any.
    checks.at_start(conf)
    guru.listen(conf, 'gantt-scheduler')
    if conf.scheduler.workers == 1:
        return work(conf, ProcessSignals().handle_signals())
    return supervise(conf)


def work(
    conf: Any,
    signals: ProcessSignals,
    number: int = 0,
    companions: Companions = _no_companions,
    *,
    plans: bool = False,
) -> int:
    """Run one scheduler until it is stopped; return the exit code.

    :param number: number of the worker, from 0; a worker that is started again keeps it
    :param companions: further workers in this process
    :param plans: whether groups are planned here, by a thread of their own
    """
    wiring.keep_memory_small()
    metrics = MetricRegistry()
    connected = wiring.wait_for_database(conf, lambda: stores.connect(conf), signals.is_stopping)
    wiring.wait_for_database(conf, connected.database.check_rights, signals.is_stopping)
    scheduler = wiring.scheduler(conf, connected, metrics)
    nova = NovaFacade(connected, scheduler)
    scheduler.add(nova)
    metrics.watch('gantt_queue_depth', lambda: scheduler.placing.admission.depth)
    metrics.watch('gantt_queue_projects', lambda: scheduler.placing.admission.projects)
    server = f'{conf.host}-{number}' if number else conf.host
    groups = planning.Planning(conf, connected, metrics) if plans else None
    rpc = rpc_service(
        conf,
        scheduler,
        nova=nova,
        planner=None if groups is None else groups.planner,
        server=server,
        count=metrics.count,
        on_stuck=lambda problem: signals.give_up(
            problem, 2 * conf.rpc.drain_seconds + GRACE_SECONDS
        ),
    )
    health = Health(scheduler, rpc)
    metrics.watch('gantt_configuration_refused', lambda: float(bool(health.refused)))
    # Before any call is taken: a process that cannot listen ends, and would take calls each time.
    listener = listen(metrics, conf, 'DEFAULT', number, health)
    running_companions = companions(connected, scheduler, metrics)
    presence = Presence(
        conf,
        connected.services,
        'scheduler',
        lambda: scheduler.settings.worker,
        lambda: scheduler.placing.pipeline.described(),
        alarm=scheduler.signatures.alarm.sentence,
        caches=[*scheduler.caches, *([] if groups is None else [groups.planner.cache])],
        gauge=metrics.gauge,
    )
    prepare_types()
    wiring.wait_for_database(conf, scheduler.cache.fetch, signals.is_stopping)
    scheduler.start()
    if groups is not None:
        groups.start()
    in_time = True
    if rpc.start(signals.is_stopping):
        presence.start()
        for companion in running_companions:
            companion.start()
        _serve_until_stop(conf, signals, scheduler, rpc, health, presence)
        for companion in reversed(running_companions):
            in_time = companion.stop() and in_time
        presence.stop()
    health.note_stopping()
    LOG.info('gantt-scheduler is stopping: health=%s', scheduler.health())
    answered = rpc.stop()
    if groups is not None:
        in_time = groups.stop() and in_time
    finished = scheduler.stop(conf.rpc.drain_seconds)
    if listener is not None:
        listener.stop()
    return 0 if in_time and answered and finished and not signals.problem else 1


def _serve_until_stop(
    conf: Any,
    signals: ProcessSignals,
    scheduler: Any,
    rpc: RpcService,
    health: Health,
    presence: Presence,
) -> None:
    guru.print_report({'Gantt scheduler': lambda: _state_facts(conf, scheduler, rpc)})
    _log_ready(conf, scheduler, rpc)
    wiring.collect_garbage_rarely()
    for _ in signals.requests_until_stop(release_free_memory):
        health.refused = wiring.reload(conf, scheduler.reconfigure)
        presence.configured(health.refused)


def _state_facts(conf: Any, scheduler: Any, rpc: RpcService) -> dict[str, Any]:
    """Return the facts of a report on this process; takes no lock of placing, queries no server."""
    pipeline = scheduler.placing.pipeline
    return {
        'worker': scheduler.settings.worker,
        'broker': rpc.address,
        'database': wiring.database_url_text(conf),
        'hosts in the table': len(scheduler.cache.working),
        'attached topics': rpc.attached(),
        'filters': ', '.join(f.name for f in pipeline.filters),
        'weighers': ', '.join(w.name for w in pipeline.weighers),
        **scheduler.health(),
        **rpc.health(),
    }


def _log_ready(conf: Any, scheduler: Any, rpc: RpcService) -> None:
    LOG.info(
        'gantt-scheduler is starting: version=%s worker=%s',
        version_string(),
        scheduler.settings.worker,
    )
    wiring.log_pipeline(scheduler.placing.pipeline)
    LOG.info(
        'Process uses these servers: broker=%s database=%s',
        rpc.address,
        wiring.database_url_text(conf),
    )
    LOG.info('gantt-scheduler is ready: hosts=%d', len(scheduler.cache.fold()))


class Worker(cotyledon.Service):
    """One worker process; the supervisor's signals become requests to its work.

    The supervisor opens nothing: every worker makes its own connections and threads after the
    fork, since none of them would survive it.
    """

    name = 'gantt-scheduler'

    def __init__(self, number: int, conf: Any) -> None:
        super().__init__(WorkerId(number))
        self._number = number
        self._conf = conf
        self._signals = ProcessSignals()
        self._finished = threading.Event()
        self._code = 1
        guru.listen(conf, f'{self.name}-{number}')

    def run(self) -> None:
        """Work until stopped; ends the process where the work ends by itself."""
        try:
            self._code = work(self._conf, self._signals, self._number)
        except exceptions.GanttError as e:
            LOG.error('Worker ended with an error: number=%d error=%s', self._number, e)
            raise SystemExit(1) from None
        finally:
            self._finished.set()
        if self._signals.problem:
            raise SystemExit(self._code)

    def terminate(self) -> None:
        """Let the work finish; the process ends with its exit code."""
        self._signals.stop()
        self._finished.wait(2 * self._conf.rpc.drain_seconds + GRACE_SECONDS)
        raise SystemExit(self._code)

    def reload(self) -> None:
        """Have the options read again."""
        self._signals.reload()


def supervise(conf: Any) -> int:
    """Run ``[scheduler] workers`` processes until SIGTERM; exit code.

    One that dies is started again, at most about once a second.  SIGTERM and
    SIGHUP are handed on; where the supervisor is killed its workers finish and end.
    """
    seconds = int(2 * conf.rpc.drain_seconds + 2 * GRACE_SECONDS)
    manager = cotyledon.ServiceManager(graceful_shutdown_timeout=seconds)
    manager.add(Worker, workers=conf.scheduler.workers, args=(conf,))
    manager.register_hooks(on_reload=lambda: _reread_options(conf))
    try:
        manager.run()
    except SystemExit as e:
        return int(e.code or 0)
    return 0


def _reread_options(conf: Any) -> None:
    """Read the options again in the supervisor, so that workers started later begin with them.

    What is wrong with the files is logged by the workers, and changes nothing here either.
    """
    with contextlib.suppress(cfg.Error, exceptions.GanttError):
        wiring.reread_options(conf)


if __name__ == '__main__':
    sys.exit(main())
