# SPDX-License-Identifier: Apache-2.0
"""A stock oslo.messaging server whose methods do nothing: the yardstick of RPC and of reports.

Run as a process of its own: ``python -m bench.empty_server --config-file FILE``.
"""

import argparse
import signal
import subprocess
import sys
import threading
from typing import Any

from oslo_config import cfg

import gantt.cmd  # noqa: F401  (chooses native threads, before oslo.messaging comes)
from bench.rig import Rig

import oslo_messaging as om  # isort: skip

NAME = 'empty'
TOPIC, EXCHANGE = 'bench-empty', 'bench'
TARGET = om.Target(exchange=EXCHANGE, topic=TOPIC, version='1.0')


class Empty:
    """An endpoint that takes nothing and returns nothing."""

    target = om.Target(version='1.0')

    def nothing(self, context: Any) -> None:
        """Return nothing: the smallest possible call."""

    def update_resource_stats(self, context: Any, name: str, stats: dict[str, object]) -> None:
        """Take a report, and do nothing with it."""


def start(made: Rig) -> None:
    """Start it as a process of a rig."""
    with (made.folder / f'{NAME}.log').open('ab') as log:
        made.processes[NAME] = subprocess.Popen(
            [sys.executable, '-m', 'bench.empty_server', '--config-file', str(made.config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    made.wait_for(NAME, 'is ready')


def main() -> int:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--config-file', required=True)
    given = parser.parse_args()
    cfg.CONF(['--config-file', given.config_file], project='gantt')
    transport = om.get_rpc_transport(cfg.CONF)
    server = om.get_rpc_server(
        transport, om.Target(exchange=EXCHANGE, topic=TOPIC, server='empty'), [Empty()]
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    server.start()
    print('the empty server is ready', flush=True)
    stopping.wait()
    server.stop()
    server.wait()
    return 0


if __name__ == '__main__':
    sys.exit(main())
