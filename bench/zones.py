# SPDX-License-Identifier: Apache-2.0
"""One request over a tree of zones, against the same request in one zone.

A top zone without hosts has three zones below it; with ``--levels 3`` each of these has two more.
Every zone is a scheduler and an API of its own on RabbitMQ, with a database of its own in
PostgreSQL.  One caller asks the top zone on its RPC topic, which queries two of the three, and in
turn with that a zone that has nothing below it: ``value`` and ``yardstick`` are the medians.  In
turn with both it asks another top zone over the same ones, which queries all of them
(``brute_p50_ms``).  What was placed is cancelled between blocks.  Then the rate of the caller is
measured on the tree and in one zone with all the hosts, in turn, and calls and bytes between zones
are counted.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import collections
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import Result, callers, conditions, count
from bench.rig import synced_postgresql
from bench.zone_meter import CallCounts, CountedLink
from bench.zone_tree import (
    BELOW_EACH,
    BELOW_TOP,
    TWO_FIRST,
    Tree,
    ZoneCaller,
    ZoneProcesses,
    flat,
    tree,
    wait_until_empty,
)

#: Requests of each kind between two moments at which what was placed is cancelled.
BLOCK = 20
#: Seconds after which a zone has heard of zones registered with it.
HEARD_SECONDS = 5.0
#: Requests that are counted between zones, and those that stay for the audit.
COUNTED, HELD = 20, 10
#: Seconds without any request, to measure what the tree takes by itself.
IDLE_SECONDS = 3.0
#: Bounds of the ratio, by levels.
BOUNDS = {2: 3.0, 3: 5.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument('--levels', type=int, choices=sorted(BOUNDS), default=2)
    parser.add_argument('--hosts', type=count, default=100, help='of each zone but the top one')
    parser.add_argument('--requests', type=count, default=200, help='of the tree, and as many')
    parser.add_argument('--seconds', type=float, default=3.0, help='of a window of the rates')
    parser.add_argument('--repeats', type=count, default=3, help='windows of each')


def run(args: argparse.Namespace) -> Result:
    """Run requests in turn, then windows of the rates, then the count, then the audit."""
    began = time.monotonic()

    def note(line: str) -> None:
        print(f'{time.monotonic() - began:6.0f} s: {line}', file=sys.stderr, flush=True)

    with (
        synced_postgresql() as database,
        tree(args.levels, args.hosts, database) as zones,
        flat(args.hosts * _with_hosts(args), database) as one,
    ):
        note(f'{len(zones.zones) + 1} zones run')
        time.sleep(HEARD_SECONDS)
        turns = Turns(zones)
        turns.measure(min(BLOCK, args.requests))  # what is prepared once
        turns.clear()
        note('requests in turn')
        for first in range(0, args.requests, BLOCK):
            turns.measure(min(BLOCK, args.requests - first))
        note('rates')
        rates = _rates(zones, one, args)
        note('calls between zones')
        counts = _between(zones, COUNTED)
        note('audit')
        problems = _audit(zones, one, HELD)
        stated = callers.servers(zones.top.rig)
    note('all zones have ended')
    over, direct, brute = (sorted(times) for times in (turns.over, turns.direct, turns.brute))
    p50, alone = callers.percentile(over, 0.5), callers.percentile(direct, 0.5)
    return Result(
        bench='zones',
        value=p50,
        unit='ms of a request at the top zone, claimed and recorded',
        yardstick={'name': 'ms of the same in a zone without others below', 'value': alone},
        ratio=round(p50 / alone, 3),
        conditions={
            **conditions.here(),
            **stated,
            'levels': args.levels,
            'zones': len(zones.under_top),
            'hosts_of_a_zone': args.hosts,
            'requests': len(over),
            'minutes': round((time.monotonic() - began) / 60, 2),
            'ratio_at_most': BOUNDS[args.levels],
            'strategies': TWO_FIRST,
            'brute_p50_ms': callers.percentile(brute, 0.5),
            'brute_p99_ms': callers.percentile(brute, 0.99),
            'p90_ms': callers.percentile(over, 0.9),
            'p99_ms': callers.percentile(over, 0.99),
            'yardstick_p99_ms': callers.percentile(direct, 0.99),
            'placed_in': dict(turns.places),
            **rates,
            'calls_per_request': round(sum(counts.calls.values()) / COUNTED, 2),
            'bytes_per_request': round(sum(counts.bytes.values()) / COUNTED),
            'calls': {name: round(n / COUNTED, 2) for name, n in sorted(counts.calls.items())},
            'bytes': {name: round(n / COUNTED) for name, n in sorted(counts.bytes.items())},
            'problems': problems[:20],
        },
        audit=len(problems),
    )


def _with_hosts(args: argparse.Namespace) -> int:
    """Return how many zones have hosts."""
    return BELOW_TOP * (1 if args.levels == 2 else 1 + BELOW_EACH)


class Turns:
    """Requests at the top, at one that queries all, and at a zone with nothing below, in turn.

    :ivar over: milliseconds of each at the top; ``brute``, ``direct``: of the others
    :ivar places: zone -> requests of the top that were placed there
    """

    def __init__(self, zones: Tree) -> None:
        self._zones = zones
        every = (zones.top, zones.thorough, zones.bottom[0])
        self._callers = [ZoneCaller(zone) for zone in every]
        self.over: list[float] = []
        self.brute: list[float] = []
        self.direct: list[float] = []
        self.places: collections.Counter[str] = collections.Counter()

    def clear(self) -> None:
        """Forget the measurements."""
        for measured in (self.over, self.brute, self.direct, self.places):
            measured.clear()

    def measure(self, number: int) -> None:
        """Measure so many requests of each in turn, the first alternating; cancel all of them."""
        sides = list(zip(self._callers, (self.over, self.brute, self.direct), strict=True))
        for n in range(number):
            for caller, times in sides if n % 2 else reversed(sides):
                began = time.perf_counter()
                caller.place()
                times.append((time.perf_counter() - began) * 1000)
        promised = self._callers[0].promised
        for zone in self._zones.zones:
            here = sum(consumer in promised for _, consumer in zone.claims())
            if here:
                self.places[zone.name] += here
        for caller in self._callers:
            caller.cancel()
        wait_until_empty(self._zones.zones)


def _rates(zones: Tree, one: ZoneProcesses, args: argparse.Namespace) -> dict[str, Any]:
    """Measure requests a second of one caller, through the tree and in one zone with all hosts."""
    sides = {
        'tree': Side(ZoneCaller(zones.top), zones.under_top),
        'flat': Side(ZoneCaller(one), [one]),
    }
    idle = sides['tree'].cpu_of(lambda: time.sleep(IDLE_SECONDS)) / IDLE_SECONDS
    for _ in range(args.repeats):
        for side in sides.values():
            side.window(args.seconds)
    tree_side, flat_side = sides.values()
    return {
        'tree_rate': round(statistics.median(tree_side.rates), 1),
        'flat_rate': round(statistics.median(flat_side.rates), 1),
        'cpu_ms_per_request': round(1000 * tree_side.cpu / tree_side.requests, 2),
        'flat_cpu_ms_per_request': round(1000 * flat_side.cpu / flat_side.requests, 2),
        'idle_cpu_ms_per_second': round(1000 * idle, 1),
    }


class Side:
    """The caller of windows, and the zones that work for it.

    :ivar rates: requests a second, by window
    :ivar cpu: seconds of all processes, in windows; ``requests``: that were made in them
    """

    def __init__(self, caller: ZoneCaller, zones: Sequence[ZoneProcesses]) -> None:
        self._caller, self._zones = caller, zones
        self.rates: list[float] = []
        self.cpu, self.requests = 0.0, 0

    def cpu_of(self, what: Callable[[], object]) -> float:
        """Return seconds that all processes take while something is done."""
        before = sum(zone.cpu_seconds() for zone in self._zones)
        what()
        return sum(zone.cpu_seconds() for zone in self._zones) - before

    def window(self, seconds: float) -> None:
        """Measure one window; cancel what was placed after it."""
        self.cpu += self.cpu_of(
            lambda: self.rates.append(callers.window(self._caller.place, 1, seconds)[0])
        )
        self.requests += len(self._caller.promised)
        self._caller.cancel()
        wait_until_empty(self._zones)


def _between(zones: Tree, number: int) -> CallCounts:
    """Count calls and bytes of so many requests, over all links of the tree."""
    counts, caller = CallCounts(), ZoneCaller(zones.top)
    with contextlib.ExitStack() as stack:
        for above, child in zones.links():
            link = CountedLink(child.url, counts)
            stack.callback(link.close)
            above.add_below(child, link.url)
        time.sleep(HEARD_SECONDS)
        caller.place()  # makes the connections
        counts.clear()
        for _ in range(number):
            caller.place()
        difference = counts.of_requests()
        for above, child in zones.links():
            above.add_below(child)
        time.sleep(HEARD_SECONDS)
    caller.cancel()
    wait_until_empty(zones.zones)
    return difference


def _audit(zones: Tree, one: ZoneProcesses, number: int) -> list[str]:
    """Return the problems in any zone, and with places that the top zone has just promised."""
    caller = ZoneCaller(zones.top)
    for _ in range(number):
        caller.place()
    lines = caller.broken(zones.zones)
    caller.cancel()
    wait_until_empty(zones.zones)
    for zone in [*zones.zones, one]:
        lines += [f'{zone.name}: {line}' for line in callers.violations(zone.rig.database)]
    return lines
