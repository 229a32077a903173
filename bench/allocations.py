# SPDX-License-Identifier: Apache-2.0
"""Allocations written to Gantt and to the real Placement, in turn.

Both stand behind waitress with a thread for each writer, one process each, on one MariaDB server,
without authentication.  Sixteen writers make allocations of new consumers by PUT, each of one
provider and two classes, and end them by DELETE.  The ratio is the lower of both.  Afterwards a
project's usages are asked of ours among as many live allocations as ``--allocations`` says.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import itertools
import pathlib
import statistics
import threading
import time
import uuid
from collections.abc import Callable

from bench import Result, conditions, count
from bench.candidates import Caller, Sides, both
from bench.placement_clouds import BenchCloud

WRITERS = 16
PROVIDERS = 1000
#: Project whose usages are queried.
CONSUMERS_OF_PROJECT = 100
ASKED = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--writes', type=count, default=1600, help='in a round, on a side (1600)')
    parser.add_argument('--rounds', type=count, default=3, help='on each side, in turn (3)')
    parser.add_argument('--seconds', type=count, default=200, help='after which no round begins')
    parser.add_argument('--allocations', type=count, default=100_000, help='live ones (100000)')
    parser.add_argument('--python', type=pathlib.Path, default='.venv-placement/bin/python')


class Writers:
    """Sixteen connections to one server.

    :ivar problems: refusals, in words
    """

    def __init__(self, url: str) -> None:
        self._callers = [Caller(url) for _ in range(WRITERS)]
        self.problems: list[str] = []

    def rate(self, count: int, work: Callable[[Caller, int], object]) -> float:
        """Return the requests a second; each does one of ``count`` numbers."""
        numbers = itertools.count()

        def write(caller: Caller) -> None:
            while (number := next(numbers)) < count:
                try:
                    work(caller, number)
                except (RuntimeError, OSError) as e:
                    self.problems.append(str(e)[:300])

        threads = [threading.Thread(target=write, args=(caller,)) for caller in self._callers]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return count / (time.perf_counter() - began)

    def close(self) -> None:
        for caller in self._callers:
            caller.close()


def put(cloud: BenchCloud, names: list[str], project: str) -> Callable[[Caller, int], object]:
    """Return a PUT of one new consumer, on the provider of its number."""

    def work(caller: Caller, number: int) -> object:
        provider = cloud.roots[number % len(cloud.roots)]
        body = {
            'allocations': {provider: {'resources': {'VCPU': 1, 'MEMORY_MB': 1}}},
            'project_id': project,
            'user_id': 'user',
            'consumer_generation': None,
        }
        return caller.send('PUT', f'/allocations/{names[number]}', body)

    return work


def post(cloud: BenchCloud, parts: list[list[str]]) -> Callable[[Caller, int], object]:
    """Return a POST of many consumers each; the last ones are of the project that is queried."""

    def work(caller: Caller, number: int) -> object:
        project = 'another' if number < len(parts) - 1 else 'asked'
        body = {}
        for n, name in enumerate(parts[number]):
            provider = cloud.roots[(number * len(parts[number]) + n) % len(cloud.roots)]
            body[name] = {
                'allocations': {provider: {'resources': {'VCPU': 1, 'MEMORY_MB': 1}}},
                'project_id': project,
                'user_id': 'user',
                'consumer_generation': None,
            }
        return caller.send('POST', '/allocations', body)

    return work


def delete(names: list[str]) -> Callable[[Caller, int], object]:
    def work(caller: Caller, number: int) -> object:
        return caller.send('DELETE', f'/allocations/{names[number]}')

    return work


def rounds(sides: Sides, cloud: BenchCloud, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return rates by side and method; each round begins with another side."""
    both_sides = {'own': Writers(sides.own.url), 'theirs': Writers(sides.theirs.url)}
    rates: dict[str, list[float]] = {}
    end = time.monotonic() + args.seconds
    for number in range(args.rounds + 1):
        if number > 1 and time.monotonic() > end:
            break
        order = ('own', 'theirs') if number % 2 else ('theirs', 'own')
        for side in order:
            names = [str(uuid.uuid4()) for _ in range(args.writes)]
            writers = both_sides[side]
            for method, work in (('PUT', put(cloud, names, 'project')), ('DELETE', delete(names))):
                rate = writers.rate(args.writes, work)
                if number:  # the first one warms both
                    rates.setdefault(f'{side} {method}', []).append(rate)
    for writers in both_sides.values():
        writers.close()
        if writers.problems:
            raise RuntimeError(f'{len(writers.problems)} were refused: {writers.problems[0]}')
    return rates


def usages_ms(sides: Sides, cloud: BenchCloud, count: int) -> float:
    """Return the median ms of a project's usages with so many allocations, two a consumer."""
    writers = Writers(sides.own.url)
    names = [str(uuid.uuid4()) for _ in range(count // 2)]
    parts = [
        names[n : n + CONSUMERS_OF_PROJECT] for n in range(0, len(names), CONSUMERS_OF_PROJECT)
    ]
    writers.rate(len(parts), post(cloud, parts))
    if writers.problems:
        raise RuntimeError(f'{len(writers.problems)} were refused: {writers.problems[0]}')
    times = [sides.own.seconds('/usages?project_id=asked')[0] for _ in range(ASKED)]
    writers.close()
    return round(statistics.median(times) * 1000, 2)


def run(args: argparse.Namespace) -> Result:
    """Run rounds of both, then usages of ours."""
    cloud = BenchCloud(PROVIDERS, 0)
    with both(cloud, args.python, threads=WRITERS) as sides:
        rates_by_side = rounds(sides, cloud, args)
        usages = usages_ms(sides, cloud, args.allocations) if args.allocations else 0.0
    medians = {name: round(statistics.median(rates), 1) for name, rates in rates_by_side.items()}
    ratios = {
        method: medians[f'own {method}'] / medians[f'theirs {method}']
        for method in ('PUT', 'DELETE')
    }
    lower = min(ratios, key=ratios.__getitem__)
    return Result(
        bench='allocations',
        value=medians[f'own {lower}'],
        unit=f'{lower}/s',
        yardstick={'name': 'Placement', 'value': medians[f'theirs {lower}']},
        ratio=round(ratios[lower], 2),
        conditions={
            **conditions.here(),
            'writers': WRITERS,
            'providers': PROVIDERS,
            'rates': medians,
            'ratios': {name: round(ratio, 2) for name, ratio in ratios.items()},
            'allocations': args.allocations,
            'usages_ms': usages,
        },
    )
