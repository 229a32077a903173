# SPDX-License-Identifier: Apache-2.0
"""Requests at a steady rate over a tree of thirteen zones: one on top, three, and nine with hosts.

Every zone is a scheduler and an API of its own on RabbitMQ, with a database of its own in
PostgreSQL; the nine have ``--hosts`` simulated hosts each.  Requests come to the top zone by RPC
when their time has come, whether or not those before them are answered, and are timed from
that moment on.  Hosts have room for four of them, so that zones that know old things of them would
fill some too far.  The yardstick is the same rate at one of the nine directly.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import collections
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from bench import Result, callers, conditions, count
from bench.rig import synced_postgresql
from bench.zone_tree import ZoneCaller, ZoneProcesses, wait_until_empty, zone
from gantt import exceptions
from gantt.core.messages.resource_classes import Inventory

#: Zones below each, and in how many levels: 1, 3 and 9.
BELOW, LEVELS = 3, 3
#: Processors of a host; a request takes one of them.
VCPUS = 4
ROOM = {
    'VCPU': Inventory(total=VCPUS),
    'MEMORY_MB': Inventory(total=65_536),
    'DISK_GB': Inventory(total=1000),
}
#: Requests under way at once; beyond it they wait for their turn, on the clock.
AT_ONCE, BUDGET_MS = 64, 20_000
#: Seconds after which a zone has heard of zones registered with it.
HEARD_SECONDS = 12.0
#: Bound of the median latency.
P50_MS_MOST = 100.0
CROWDED = 'SELECT count(*) FROM claims WHERE live = 1 GROUP BY provider_id HAVING count(*) > :most'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument('--hosts', type=count, default=1000, help='of each of the nine zones')
    parser.add_argument('--rate', type=float, default=10.0, help='requests a second')
    parser.add_argument('--seconds', type=float, default=60.0, help='for so long')


def run(args: argparse.Namespace) -> Result:
    """Measure the rate at one of the nine, then at the top; then audit all databases."""
    with _tree(args.hosts) as zones:
        top, leaves = zones[0], zones[-(BELOW ** (LEVELS - 1)) :]
        time.sleep(HEARD_SECONDS)
        direct = RatedCaller(leaves[0])
        direct.ask(args.rate, args.seconds / 4)
        direct.cancel()
        over = RatedCaller(top)
        over.ask(1.0, 3.0)  # what is prepared once
        over.cancel()
        wait_until_empty(zones)
        over.forget()
        over.ask(args.rate, args.seconds)
        crowded = sum(_crowded(leaf) for leaf in leaves)
        problems = over.broken(leaves)
        places = {leaf.name: len(leaf.claims()) for leaf in leaves}
        for zone_processes in zones:
            lines = callers.violations(zone_processes.rig.database)
            problems += [f'{zone_processes.name}: {line}' for line in lines]
        stated = callers.servers(top.rig)
        over.cancel()
        wait_until_empty(zones)
    times, alone = sorted(over.milliseconds), sorted(direct.milliseconds)
    p50, yardstick = callers.percentile(times, 0.5), callers.percentile(alone, 0.5)
    return Result(
        bench='zones-rate',
        value=p50,
        unit='ms of a request at the top zone, from when it was due',
        yardstick={'name': 'ms of the same at a zone with none below', 'value': yardstick},
        ratio=round(p50 / yardstick, 3),
        conditions={
            **conditions.here(),
            **stated,
            'zones': len(zones),
            'hosts_of_a_zone': args.hosts,
            'rate': args.rate,
            'seconds': args.seconds,
            'requests': sum(over.outcomes.values()),
            'placed': over.outcomes['placed'],
            'refused': over.outcomes['NoValidHost'],
            'unknown': over.outcomes['HostsUnknown'],
            'outcomes': dict(over.outcomes),
            'p50_ms_at_most': P50_MS_MOST,
            'p90_ms': callers.percentile(times, 0.9),
            'p99_ms': callers.percentile(times, 0.99),
            'slowest_ms': callers.percentile(times, 1.0),
            'yardstick_p99_ms': callers.percentile(alone, 0.99),
            'over_commit': crowded,
            'placed_in': places,
            'problems': problems[:20],
        },
        audit=crowded + len(problems),
    )


class RatedCaller(ZoneCaller):
    """A caller of one zone, each request sent when it is due.

    :ivar milliseconds: of each request that was placed, from when it was due
    :ivar outcomes: ``placed``, or the name of the error -> how many
    """

    def __init__(self, at: ZoneProcesses) -> None:
        super().__init__(at, BUDGET_MS)
        self.milliseconds: list[float] = []
        self.outcomes: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def ask(self, rate: float, seconds: float) -> None:
        """Send so many requests a second; return when all are answered."""
        begun = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for number in range(max(1, int(rate * seconds))):
                due = begun + number / rate
                time.sleep(max(0.0, due - time.perf_counter()))
                threads.submit(self._place_due, due)

    def forget(self) -> None:
        """Forget all measurements."""
        self.milliseconds.clear()
        self.outcomes.clear()

    def _place_due(self, due: float) -> None:
        outcome = 'placed'
        try:
            self.place()
        except exceptions.GanttError as e:
            outcome = type(e).__name__
        else:
            self.milliseconds.append((time.perf_counter() - due) * 1000)
        with self._lock:
            self.outcomes[outcome] += 1


@contextlib.contextmanager
def _tree(hosts: int) -> Iterator[list[ZoneProcesses]]:
    """Yield all zones, level by level."""
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(synced_postgresql())
        levels = [[stack.enter_context(zone('top', 1, database))]]
        for level in range(2, LEVELS + 1):
            names = [f'{zone_.name}-{n}' for zone_ in levels[-1] for n in range(1, BELOW + 1)]
            levels.append([stack.enter_context(zone(name, level, database)) for name in names])
        all_zones = [zone_ for level in levels for zone_ in level]
        # As many at a time as there are processors: some would not be ready in time.
        for number in range(0, len(all_zones), BELOW):
            for zone_ in all_zones[number : number + BELOW]:
                zone_.start()
            for zone_ in all_zones[number : number + BELOW]:
                zone_.wait()
        for zone_ in levels[-1]:
            callers.report_hosts(zone_.rig, zone_.transport, hosts, ROOM)
        for upper, lower in reversed(list(zip(levels, levels[1:], strict=False))):
            for number, child in enumerate(lower):
                upper[number // BELOW].add_below(child)
        yield all_zones


def _crowded(leaf: ZoneProcesses) -> int:
    """Return hosts with more claims than processors."""
    engine = sa.create_engine(leaf.rig.database, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return len(list(connection.execute(sa.text(CROWDED), {'most': VCPUS})))
