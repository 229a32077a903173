# SPDX-License-Identifier: Apache-2.0
"""A stock oslo.messaging server with one method that does nothing: the yardstick of RPC.

Run as a process of its own: ``python -m bench.empty_server --config-file FILE``.
"""

import argparse
import signal
import sys
import threading
from typing import Any

from oslo_config import cfg

import gantt.cmd  # noqa: F401  (chooses native threads, before oslo.messaging comes)

import oslo_messaging as om  # isort: skip

TOPIC, EXCHANGE = 'bench-empty', 'bench'


class Empty:
    """An endpoint that takes nothing and returns nothing."""

    target = om.Target(version='1.0')

    def nothing(self, context: Any) -> None:
        """Return nothing: the smallest possible call."""


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
