# SPDX-License-Identifier: Apache-2.0
"""A conductor as a process of its own: asks for places, then has guests built.

Every answer is written down as soon as it is there, one JSON object a line, so
that whoever kills processes can tell afterwards what had been acknowledged.
"""

import argparse
import json
import queue
import random
import sys
import threading
import uuid
from typing import Any

from oslo_config import cfg

import gantt.cmd  # noqa: F401  (chooses native threads, before oslo.messaging comes)
from gantt import client, exceptions
from gantt import conf as options
from gantt.client.hosts import topic_of
from gantt.core.messages.request import GroupRef, Policy, RequestSpec, SelectDestinations


def requests(count: int, seed: int) -> list[SelectDestinations]:
    """Return a mix of sizes, member counts and groups that follows from the seed."""
    rng = random.Random(seed)

    def new() -> str:
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))

    groups = [GroupRef(uuid=new(), policy=Policy.ANTI_AFFINITY) for _ in range(20)]
    messages = []
    for _ in range(count):
        vcpu = rng.choice((1, 2, 4))
        messages.append(
            SelectDestinations(
                request_id=new(),
                spec=RequestSpec(
                    resources={'VCPU': vcpu, 'MEMORY_MB': 2048 * vcpu, 'DISK_GB': 10},
                    group=rng.choice(groups) if rng.random() < 0.05 else None,
                ),
                consumers=[new() for _ in range(rng.choice((1, 1, 1, 3)))],
                budget_ms=120_000,
            )
        )
    return messages


class Conductor:
    """A conductor that requests places, builds guests and writes down the answers."""

    def __init__(self, transport: Any, out: Any) -> None:
        self._scheduler = client.SchedulerClient(transport, attempt_seconds=2.0)
        self._computes = client.ComputeClient(transport, timeout=30.0)
        self._out = out
        self._lock = threading.Lock()

    def handle(self, request: SelectDestinations) -> None:
        """Handle one request to its end."""
        try:
            answer = self._scheduler.select_destinations(request)
        except exceptions.GanttError as e:
            self._write({'request_id': request.request_id, 'error': e.code, 'text': e.message})
            return
        chosen = [selections[0] for selections in answer.selections]
        self._write(
            {
                'request_id': request.request_id,
                'claims': [
                    {'id': s.claim_id, 'consumer': s.consumer, 'host': s.host} for s in chosen
                ],
            }
        )
        for s in chosen:
            try:
                build = s.build(request.request_id)
                built = self._computes.build(s.build_topic or topic_of(s.host), build, wait=True)
                outcome = built['outcome']
            except exceptions.GanttError as e:
                outcome = e.code
            self._write({'claim': s.claim_id, 'built': outcome})

    def _write(self, body: dict[str, Any]) -> None:
        with self._lock:
            self._out.write(json.dumps(body) + '\n')
            self._out.flush()


def main() -> int:
    """Send ``--requests`` requests with ``--callers`` threads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--config-file', required=True)
    parser.add_argument('--out', required=True)
    parser.add_argument('--requests', type=int, default=100)
    parser.add_argument('--callers', type=int, default=8)
    parser.add_argument('--seed', type=int, default=1)
    given = parser.parse_args()
    options.register_opts(cfg.CONF)
    cfg.CONF(['--config-file', given.config_file], project='gantt')
    work: queue.SimpleQueue[SelectDestinations | None] = queue.SimpleQueue()
    for request in requests(given.requests, given.seed):
        work.put(request)
    with open(given.out, 'w') as out:
        conductor = Conductor(client.get_transport(cfg.CONF), out)

        def caller() -> None:
            while (request := work.get()) is not None:
                conductor.handle(request)

        threads = [threading.Thread(target=caller) for _ in range(given.callers)]
        for _ in threads:
            work.put(None)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 0


if __name__ == '__main__':
    sys.exit(main())
