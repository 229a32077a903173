# SPDX-License-Identifier: Apache-2.0
"""A supervisor that keeps several processes of the same kind alive.

The supervisor opens nothing: every worker makes its own connections and
threads after the fork, since none of them would survive it.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import cotyledon
from cotyledon.types import WorkerId
from oslo_config import cfg

from gantt import exceptions
from gantt.cmd import wiring
from gantt.cmd.process_signals import ProcessSignals
from gantt.telemetry import guru

LOG = logging.getLogger(__name__)

#: What a worker may take beyond its own bound for finishing.
GRACE_SECONDS = 15

#: ``work(conf, told, number) -> exit code``
Work = Callable[[Any, ProcessSignals, int], int]


class Worker(cotyledon.Service):
    """One worker process; the supervisor's signals become requests to its work."""

    name = 'gantt-scheduler'

    def __init__(self, number: int, conf: Any, work: Work) -> None:
        super().__init__(WorkerId(number))
        self._number = number
        self._conf = conf
        self._work = work
        self._signals = ProcessSignals()
        self._finished = threading.Event()
        self._code = 1
        guru.listen(conf, f'{self.name}-{number}')

    def run(self) -> None:
        """Work until stopped; ends the process where the work ends by itself."""
        try:
            self._code = self._work(self._conf, self._signals, self._number)
        except exceptions.GanttError as e:
            LOG.error('worker %d: %s', self._number, e)
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


def supervise(conf: Any, work: Work) -> int:
    """Run ``[scheduler] workers`` processes until SIGTERM; exit code.

    One that dies is started again, at most about once a second.  SIGTERM and
    SIGHUP are handed on; where the supervisor is killed its workers finish and end.
    """
    seconds = int(2 * conf.rpc.drain_seconds + 2 * GRACE_SECONDS)
    manager = cotyledon.ServiceManager(graceful_shutdown_timeout=seconds)
    manager.add(Worker, workers=conf.scheduler.workers, args=(conf, work))
    manager.register_hooks(on_reload=lambda: _read_again(conf))
    try:
        manager.run()
    except SystemExit as e:
        return int(e.code or 0)
    return 0


def _read_again(conf: Any) -> None:
    """Read the options again in the supervisor, so that workers started later begin with them.

    What is wrong with the files is logged by the workers, and changes nothing here either.
    """
    with contextlib.suppress(cfg.Error, exceptions.GanttError):
        wiring.read_again(conf)
