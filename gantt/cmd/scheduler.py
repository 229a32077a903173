# SPDX-License-Identifier: Apache-2.0
"""``gantt-scheduler``: place requests and fold reports, over RabbitMQ.

SIGTERM takes nothing new, answers what it has, and exits 0.
"""

import logging
import sys
from typing import Any

from gantt.cmd import wiring
from gantt.db import store
from gantt.rpc.service import RpcService
from gantt.telemetry import metrics as telemetry
from gantt.version import version_string

LOG = logging.getLogger('gantt.cmd.scheduler')


def main(argv: list[str] | None = None) -> int:
    """Run until told to stop; exit code."""
    return wiring.run(sys.argv[1:] if argv is None else argv, 'gantt-scheduler', _serve)


def _serve(conf: Any) -> int:
    wiring.keep_memory_small()
    stopping = wiring.until_told()
    metrics = telemetry.Metrics()
    scheduler = wiring.scheduler(conf, store.connect(conf), metrics)
    metrics.watch('gantt_queue_depth', lambda: scheduler.placing.admission.depth)
    rpc = RpcService(conf, scheduler, count=metrics.count)
    scheduler.start()
    rpc.start()
    listener = telemetry.listen(metrics, conf)
    _banner(conf, scheduler, rpc)
    stopping.wait()
    LOG.info('Stopping: %s', scheduler.health())
    answered = rpc.stop()
    finished = scheduler.stop(conf.rpc.drain_seconds)
    if listener is not None:
        listener.stop()
    return 0 if answered and finished else 1


def _banner(conf: Any, scheduler: Any, rpc: RpcService) -> None:
    pipeline = scheduler.placing.pipeline
    LOG.info('gantt-scheduler %s as %s', version_string(), scheduler.settings.worker)
    LOG.info('filters: %s', ', '.join(f.name for f in pipeline.filters))
    LOG.info('weighers: %s', ', '.join(f'{w.multiplier:g} × {w.name}' for w in pipeline.weighers))
    LOG.info('broker: %s, database: %s', rpc.address, wiring.database_shown(conf))
    LOG.info('%d hosts known; gantt-scheduler is ready', len(scheduler.cache.fold()))


if __name__ == '__main__':
    sys.exit(main())
