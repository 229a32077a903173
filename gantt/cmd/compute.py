# SPDX-License-Identifier: Apache-2.0
"""``gantt-compute``: the agent of this host, a farm of fake ones, or a file's speaker.

With ``--facts-only`` it tells of a host of Nova what its APIs do not carry.

SIGTERM takes no new build, finishes what was begun, and exits 0.  SIGHUP logs
how things stand.  In a farm, SIGUSR1 lets a tenth of the hosts die and SIGUSR2
revives the dead.
"""

import logging
import signal
import sys
import threading
from typing import Any

from oslo_config import cfg

from gantt import exceptions
from gantt.cmd import USAGE
from gantt.compute import service
from gantt.conf import base, compute, files, rpc
from gantt.telemetry import log
from gantt.version import version_string

LOG = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Run until told to stop; exit code."""
    conf = cfg.CONF
    for options in (base, rpc, compute):
        options.register_opts(conf)
    compute.register_cli_opts(conf)
    log.register_opts(conf)
    try:
        files.read(conf, sys.argv[1:] if argv is None else argv, 'gantt-compute')
        log.setup(conf, 'gantt-compute')
        return _serve(conf)
    except SystemExit as e:
        return USAGE if e.code else 0
    except (exceptions.GanttError, cfg.Error) as e:
        LOG.error('%s', files.said(e))
        print(f'gantt-compute: {files.said(e)}', file=sys.stderr)
        return 1


def _serve(conf: Any) -> int:
    running = service.from_conf(conf)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    for wish, act in running.signals().items():
        signal.signal(wish, lambda *_, act=act: LOG.info('%s', act()))
    running.start()
    LOG.info('gantt-compute %s is ready', version_string())
    stopping.wait()
    LOG.info('Stopping: %s', running.status())
    return 0 if running.stop(conf.rpc.drain_seconds) else 1


if __name__ == '__main__':
    sys.exit(main())
