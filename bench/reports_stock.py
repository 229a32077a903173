# SPDX-License-Identifier: Apache-2.0
"""A stock oslo.messaging server that takes reports and does nothing with them.

The yardstick of the bench of reports: the cost of the library alone.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import sys

import oslo_messaging as om
from oslo_config import cfg

TOPIC = 'bench-stock-reports'
EXCHANGE = 'bench'


class Endpoint:
    """The method of a report."""

    def update_resource_stats(self, ctxt: object, name: str, stats: dict[str, object]) -> None:
        """Do nothing."""


def main() -> int:
    """Serve until killed; ``sys.argv`` holds the broker's URL."""
    cfg.CONF([], project='bench')
    transport = om.get_rpc_transport(cfg.CONF, url=sys.argv[1])
    server = om.get_rpc_server(
        transport, om.Target(exchange=EXCHANGE, topic=TOPIC, server='stock'), [Endpoint()]
    )
    server.start()
    print('stock server is ready', flush=True)
    server.wait()
    return 0


if __name__ == '__main__':
    sys.exit(main())
