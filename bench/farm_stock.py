# SPDX-License-Identifier: Apache-2.0
"""A stock oslo.messaging client that sends as much as a farm does, and knows nothing.

The yardstick of the bench of farms: the cost of the library alone.  Reads a
report as JSON from standard input, sends it ``casts`` and ``calls`` times a
second to the stock server for ``seconds``, and prints its own share of a core.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import json
import resource
import sys
import time

import oslo_messaging as om
from oslo_config import cfg

from bench import empty_server


def main() -> int:
    """Read the broker's URL, casts and calls a second, and the seconds from ``sys.argv``; run."""
    url, casts, calls, seconds = sys.argv[1], *map(float, sys.argv[2:5])
    body = json.load(sys.stdin)
    cfg.CONF([], project='bench')
    transport = om.get_rpc_transport(cfg.CONF, url=url)
    caller = om.get_rpc_client(transport, empty_server.TARGET)
    caller.call({}, 'update_resource_stats', name='warm', stats={})
    rates = ((caller.cast, casts), (caller.call, calls))
    sent = {caller.cast: 0, caller.call: 0}
    used, began = _own(), time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        late = [s for s, rate in rates if sent[s] < now * rate]
        for say in late:
            say({}, 'update_resource_stats', name=body['name'], stats=body)
            sent[say] += 1
        if not late:
            time.sleep(0.002)
    print((_own() - used) / (time.monotonic() - began))
    return 0


def _own() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == '__main__':
    sys.exit(main())
