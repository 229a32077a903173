# SPDX-License-Identifier: Apache-2.0
"""The planner of groups from options, for gantt-planner and processes with everything."""

import contextlib
import logging
import os
import pathlib
import resource
from typing import Any

from gantt.cmd import wiring
from gantt.conf.pipeline import pipeline_from_conf
from gantt.groups import solver
from gantt.groups.model.plan_group import NO_SOLVER_TEXT
from gantt.groups.service.planner import GroupPlanner
from gantt.groups.service.settings import PlannerSettings
from gantt.groups.solver.process import SolverProcess
from gantt.scheduler.recorder import StoreRecorder
from gantt.stores import AllStores
from gantt.telemetry.metrics import MetricRegistry

LOG = logging.getLogger(__name__)


def planner_options(conf: Any) -> PlannerSettings:
    """Return the options of [planner] by their names."""
    names = PlannerSettings.__struct_fields__
    return PlannerSettings(
        **{name: conf.planner[name] for name in conf.planner if name in names},
        retry_after_ms=conf.scheduler.retry_after_ms,
    )


def solver_of(conf: Any) -> SolverProcess | None:
    """Return the solver, in a process of its own; None: it is disabled or not installed."""
    options = conf.planner
    if not options.solver:
        return None
    if not solver.is_installed():
        LOG.warning(
            'No solver is available; install gantt[solver], or set [planner] solver = false: '
            'reason=%s',
            NO_SOLVER_TEXT,
        )
        return None
    return SolverProcess(options.solver_memory_mb, options.nice)


class Planning:
    """The planner of groups in a process, with the solver that belongs to it.

    :ivar planner: the facade
    :raises PluginError: a filter or weigher does not load
    """

    def __init__(self, conf: Any, stores: AllStores, metrics: MetricRegistry) -> None:
        pipeline = pipeline_from_conf(conf)
        settings = wiring.settings(conf, pipeline)
        recorder = StoreRecorder(stores.records, metrics, settings.decision_queue_limit)
        self._solver = solver_of(conf)
        self._seconds = conf.rpc.drain_seconds
        self.planner = GroupPlanner(
            stores, pipeline, recorder, settings, planner_options(conf), solver=self._solver
        )
        metrics.watch('gantt_group_queue_depth', lambda: self.planner.queue.waiting)

    def start(self) -> None:
        """Read the hosts and begin.  :raises DatabaseUnavailable, DatabaseNotSynced:"""
        self.planner.start()
        if self._solver is not None:
            self._solver.start()

    def stop(self) -> bool:
        """Plan the groups that wait, then stop; return whether that was done in time."""
        done = self.planner.stop(self._seconds)
        if self._solver is not None:
            self._solver.stop()
        return done


#: Nice value of the session of this process.  Where the kernel shares out processors by session, as
#: that of most distributions does, the value of a process counts within its session alone.
_SESSION_NICE = pathlib.Path('/proc/self/autogroup')


def lower_priority(conf: Any) -> None:
    """Let other processes of the machine go first, and bound the memory of this one.

    Of a process that does nothing but plan, before it has other threads: each inherits the nice
    value of the one that starts it.
    """
    os.nice(conf.planner.nice)
    if os.getsid(0) == os.getpid():  # as a service is; else others are in its session
        with contextlib.suppress(OSError):
            _SESSION_NICE.write_text(str(os.nice(0)))
    memory_bytes = conf.planner.memory_mb << 20
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        memory_bytes = min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, hard))
