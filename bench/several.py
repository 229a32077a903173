# SPDX-License-Identifier: Apache-2.0
"""One, two and four schedulers over the same hosts, these at nine tenths of their room.

Every call places the instances of a request and takes back the oldest request, so
that the load stays.  The value is the rate of two processes, the yardstick that of one,
measured before and after the others; beside it stands which part of the
instances met a conflict: planned on a host that another scheduler had filled.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import collections
import functools
import statistics
import sys
import threading
from typing import Any

from bench import Result, callers, conditions, shared
from bench.rig import Rig, rig
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import Inventory

#: An instance takes one VCPU: the other classes do not bind.
VCPUS = 16
ROOM = {
    'VCPU': Inventory(total=VCPUS),
    'MEMORY_MB': Inventory(total=VCPUS * 1024),
    'DISK_GB': Inventory(total=VCPUS * 2),
}
#: Requests that take from a pool as well.
POOLED = RequestSpec(resources=shared.TAKES)
FILL = 50  # instances of a request while hosts are filled
TURNS = 100  # requests, at least, that are taken back in turn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--schedulers', default='1,2,4')
    parser.add_argument('--hosts', type=int, default=1000)
    parser.add_argument('--instances', type=int, default=1, help='of a request')
    parser.add_argument('--load', type=float, default=0.9, help='share of the room in use')
    parser.add_argument('--callers', type=int, default=16)
    parser.add_argument('--seconds', type=float, default=2.0, help='of a window')
    parser.add_argument('--repeats', type=int, default=7, help='windows of each number')
    parser.add_argument(
        '--pool',
        action='store_true',
        help='in turn with requests that take from a pool which all hosts share: pool_ratio',
    )


def run(args: argparse.Namespace) -> Result:
    """Fill the hosts, then windows with each number of schedulers, with one again last."""
    numbers = sorted({1, 2, *(int(n) for n in args.schedulers.split(','))})
    room = int(args.hosts * VCPUS * args.load)
    if room < args.instances * args.callers:
        sys.exit(f'--hosts, --load: {room} instances, too few for a request of each caller')
    with rig(callers.options()) as testbed, callers.connected(testbed) as carrier:
        schedulers = callers.Several(testbed)
        schedulers.start('scheduler-1')
        callers.report_hosts(testbed, carrier, args.hosts, ROOM)
        turnover = Turnover(callers.Placer(carrier), args.instances)
        turnover.fill(room)
        if args.pool:
            shared.add_pool(testbed.database)
        measured: dict[int, dict[str, Any]] = {}
        for number in numbers:
            have = len(schedulers.names)
            schedulers.start(*(f'scheduler-{n + 1}' for n in range(have, number)))
            measured[number] = _measured(testbed, schedulers, turnover, args)
        schedulers.stop(*schedulers.names[1:])
        last = _measured(testbed, schedulers, turnover, args)
        stated = callers.servers(testbed)
        problems = callers.violations(testbed.database) + turnover.broken(testbed.database)
        callers.end(testbed)
    single_rate = statistics.mean([measured[1]['rate'], last['rate']])
    return Result(
        bench='several',
        value=measured[2]['rate'],
        unit='placements/s of two schedulers, each with its cancellation',
        yardstick={'name': 'placements/s of one', 'value': round(single_rate, 1)},
        ratio=round(measured[2]['rate'] / round(single_rate, 1), 3),
        conditions={
            **conditions.here(),
            **stated,
            'hosts': args.hosts,
            'share_of_room_in_use': args.load,
            'instances_held': turnover.held,
            'instances_per_request': args.instances,
            'callers': args.callers,
            'repeats': args.repeats,
            'window_seconds': args.seconds,
            'by_schedulers': measured,
            'one_at_the_end': last,
            **_pool_ratio(measured, last),
            'ratios_to_one': {n: round(f['rate'] / single_rate, 3) for n, f in measured.items()},
            'processes': 'client, schedulers, broker, database on one machine',
            'problems': problems[:20],
        },
        audit=len(problems),
    )


def _measured(
    made: Rig, schedulers: callers.Several, turnover: 'Turnover', args: argparse.Namespace
) -> dict[str, Any]:
    """Run windows of one number of schedulers; return medians, and instances with conflicts."""
    began = schedulers.metric('gantt_conflicts_total')
    callers.window(turnover.turn, args.callers, args.seconds)
    before = schedulers.metric('gantt_conflicts_total'), turnover.placer.requests
    rates, pooled, times = [], [], []
    for _ in range(args.repeats):
        rate, every = callers.window(turnover.turn, args.callers, args.seconds)
        rates.append(rate * args.instances)
        times += every
        if args.pool:
            taking = functools.partial(turnover.turn, POOLED)
            rate, _ = callers.window(taking, args.callers, args.seconds)
            pooled.append(rate * args.instances)
    conflicts = schedulers.metric('gantt_conflicts_total') - before[0]
    placed = (turnover.placer.requests - before[1]) * args.instances
    times.sort()
    return {
        'rate': round(statistics.median(rates), 1),
        'minimum': round(min(rates), 1),
        'maximum': round(max(rates), 1),
        'p99_ms_with_cancellation': callers.percentile(times, 0.99),
        'placed': placed,
        'conflicts': int(conflicts),
        'conflicts_before': int(before[0] - began),  # while new ones learn of each other
        **({'pooled_rate': round(statistics.median(pooled), 1)} if pooled else {}),
        'conflict_share': round(conflicts / max(1, placed), 5),
        'rss_mb': {name: round(made.rss_mb(name), 1) for name in schedulers.names},
    }


def _pool_ratio(by_number: dict[int, dict[str, Any]], last: dict[str, Any]) -> dict[str, float]:
    """Return the least rate of requests that take from a pool, relative to others, over all."""
    every = [*by_number.values(), last]
    if 'pooled_rate' not in last:
        return {}
    return {'pool_ratio': round(min(run['pooled_rate'] / run['rate'] for run in every), 3)}


class Turnover:
    """A steady load: for each request the oldest one is cancelled."""

    def __init__(self, placer: callers.Placer, instances: int) -> None:
        self.placer = placer
        self._instances = instances  # of a request
        self._kept: collections.deque[str] = collections.deque()
        self._cancelled: set[str] = set()
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Instances that have a place now."""
        return len(self.placer.promised) - len(self._cancelled) * self._instances

    def fill(self, instances: int) -> None:
        """Place the instances that stay, most of them by large requests."""
        requests = min(instances // self._instances, max(TURNS, 500 // self._instances))
        large = (instances - requests * self._instances) // FILL
        if large:
            callers.window(functools.partial(self.placer.place, FILL), 4, 36_000, most=large)
        callers.window(self._place, 8, 36_000, most=requests)

    def turn(self, spec: RequestSpec | None = None) -> None:
        """Cancel the oldest request, and place one more."""
        with self._lock:
            oldest = self._kept.popleft()
        self.placer.client.cancel_claims(oldest)
        with self._lock:
            self._cancelled.add(oldest)
        self._place(spec)

    def _place(self, spec: RequestSpec | None = None) -> None:
        request_id = self.placer.place(self._instances, spec)
        with self._lock:
            self._kept.append(request_id)

    def broken(self, database: str) -> list[str]:
        """Return promises not kept, those taken back left out."""
        lines = callers.broken(database, self.placer.promised)
        without = 'was promised a place and has none'
        missing = [line for line in lines if line.endswith(without)]
        lines = [line for line in lines if not line.endswith(without)]
        cancelled = len(self._cancelled) * self._instances
        if len(missing) != cancelled:
            lines.append(f'{cancelled} were cancelled, {len(missing)} have no place')
        return lines
