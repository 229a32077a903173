# SPDX-License-Identifier: Apache-2.0
"""select_destinations for many instances at once: durable placements per second through RPC.

Every request claims a place for each of its instances in PostgreSQL and records
its decision before it is answered.  The yardstick is a prototype that leaves
nearly everything out (``bench/prototype.py``), asked by the same client in the
same process and measured in turn.  How many callers serve each side best is
tried first; each side is then measured with its own number.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import contextlib
import functools
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from bench import Result, callers, conditions, prototype
from bench.rig import Rig, postgresql_database, rig, virtual_host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--hosts', type=int, default=5000)
    parser.add_argument('--instances', type=int, default=50, help='of a request')
    parser.add_argument('--callers', default='2,4,8,16', help='numbers that are tried')
    parser.add_argument('--seconds', type=float, default=3.0, help='of a window')
    parser.add_argument('--repeats', type=int, default=7, help='windows of each side')


def run(args: argparse.Namespace) -> Result:
    """Find the best number of callers of each side, then measure both in turn."""
    numbers = [int(n) for n in args.callers.split(',')]
    with (
        rig(callers.options()) as made,
        _prototype(made, args.hosts) as (other_broker, other_database),
        callers.connected(made) as carrier,
        callers.connected(made, other_broker) as other_carrier,
    ):
        made.start('scheduler', 'gantt-scheduler')
        made.wait_for('scheduler', 'is ready')
        callers.report_hosts(made, carrier, args.hosts)
        mine, other = callers.Placer(carrier), callers.Placer(other_carrier)
        sides = {'gantt': mine, 'prototype': other}
        tried = {name: _try(placer, numbers, args) for name, placer in sides.items()}
        best = {name: max(rates, key=rates.__getitem__) for name, rates in tried.items()}
        found = _in_turn(made, sides, best, args)
        stated = callers.servers(made) | {'scheduler_rss_mb': round(made.rss_mb('scheduler'), 1)}
        problems = callers.violations(made.database)
        problems += callers.broken(made.database, mine.promised)
        problems += callers.unrecorded(made.database, mine.requests)
        problems += _of_prototype(other_database, other)
        callers.end(made)
    value, yardstick = found['gantt']['rate'], found['prototype']['rate']
    return Result(
        bench='rpc-batch',
        value=value,
        unit='durable placements/s, their decisions recorded',
        yardstick={'name': 'placements/s of the prototype', 'value': yardstick},
        ratio=round(value / yardstick, 3),
        conditions={
            **conditions.here(),
            **stated,
            'hosts': args.hosts,
            'instances_per_request': args.instances,
            'topic': "Gantt's own, by gantt.client, for both sides; alternates: 2",
            'callers': best,
            'tried': tried,
            'repeats': args.repeats,
            'window_seconds': args.seconds,
            'processes': 'client, scheduler, prototype, broker, database on one machine',
            'measured': found,
            'placed': len(mine.promised),
            'problems': problems[:20],
        },
        audit=len(problems),
    )


@contextlib.contextmanager
def _prototype(made: Rig, hosts: int) -> Iterator[tuple[str, str]]:
    """The prototype; yields its own virtual host and its own database."""
    with virtual_host() as broker, postgresql_database() as database:
        log = (made.folder / 'prototype.log').open('ab')
        made.processes['prototype'] = subprocess.Popen(
            [
                sys.executable,
                '-m',
                'bench.prototype',
                '--config-file',
                str(made.config),
                '--broker',
                broker,
                '--database',
                database,
                '--hosts',
                str(hosts),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()
        made.wait_for('prototype', 'is ready')
        yield broker, database


def _try(placer: callers.Placer, numbers: list[int], args: argparse.Namespace) -> dict[int, float]:
    """Placements/s by number of callers: the better of two short windows."""
    call = functools.partial(placer.place, args.instances)
    callers.window(call, numbers[0], args.seconds / 2)
    rates: dict[int, float] = dict.fromkeys(numbers, 0.0)
    for number in numbers * 2:
        rate, _ = callers.window(call, number, args.seconds / 2)
        rates[number] = max(rates[number], round(rate * args.instances, 1))
    return rates


def _in_turn(
    made: Rig, sides: dict[str, callers.Placer], best: dict[str, int], args: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Windows of both sides in turn; medians."""
    processes = {'gantt': 'scheduler', 'prototype': 'prototype'}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    times: dict[str, list[float]] = {name: [] for name in sides}
    cpu = dict.fromkeys(sides, 0.0)
    for _ in range(args.repeats):
        for name, placer in sides.items():
            before = made.cpu_seconds(processes[name])
            rate, every = callers.window(
                functools.partial(placer.place, args.instances), best[name], args.seconds
            )
            cpu[name] += made.cpu_seconds(processes[name]) - before
            rates[name].append(rate * args.instances)
            times[name] += every
    return {
        name: {
            'rate': round(statistics.median(rates[name]), 1),
            'minimum': round(min(rates[name]), 1),
            'maximum': round(max(rates[name]), 1),
            'p50_ms': callers.percentile(sorted(times[name]), 0.5),
            'p99_ms': callers.percentile(sorted(times[name]), 0.99),
            'cpu_us_per_placement': round(
                cpu[name] * 1e6 / max(1, len(times[name]) * args.instances), 1
            ),
        }
        for name in sides
    }


def _of_prototype(database: str, placer: callers.Placer) -> list[str]:
    """A yardstick that loses places or over-commits would be none."""
    engine = sa.create_engine(database)
    over = callers.count(engine, prototype.OVER)
    engine.dispose()
    found = callers.broken(database, placer.promised, query=prototype.WHO)
    found += [f'{over} hosts are over-committed'] if over else []
    return [f'prototype: {line}' for line in found]
