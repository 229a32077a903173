# SPDX-License-Identifier: Apache-2.0
"""select_destinations for many instances at once: durable placements per second through RPC.

Every request claims a place for each of its instances in PostgreSQL and records
its decision before it is answered.  The yardstick is a prototype that leaves
nearly everything out (``bench/prototype.py``), asked by the same client in the
same process and measured in turn.  How many callers serve each side best is
tried first; each side is then measured with its own number.

``--database mysql``: the scheduler on MariaDB, and in place of the prototype the
same scheduler on PostgreSQL.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import contextlib
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from bench import Result, callers, conditions, prototype, shared
from bench.rig import Rig, mysql_database, postgresql_database, rig, virtual_host

#: After a pool was added, until schedulers have read it.
KNOWN_SECONDS = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--hosts', type=int, default=5000)
    parser.add_argument('--instances', type=int, default=50, help='of a request')
    parser.add_argument('--callers', default='2,4,8,16', help='numbers that are tried')
    parser.add_argument('--seconds', type=float, default=3.0, help='of a window')
    parser.add_argument('--repeats', type=int, default=7, help='windows of each side')
    parser.add_argument(
        '--database',
        choices=('postgresql', 'mysql'),
        default='postgresql',
        help="the scheduler's; mysql: MariaDB, against the scheduler on PostgreSQL",
    )
    parser.add_argument(
        '--pool',
        action='store_true',
        help='requests that take from a pool which all hosts share, against those that do not',
    )


class Side(NamedTuple):
    """One of the two systems measured in turn: its client and its server.

    :ivar cpu_seconds: CPU time of the process that answers
    :ivar problems: broken promises, a line each
    """

    placer: callers.Placer
    cpu_seconds: Callable[[], float]
    problems: Callable[[], list[str]]


def run(args: argparse.Namespace) -> Result:
    """Find the best number of callers of each side, then measure both in turn."""
    if args.pool:
        return _pooled(args)
    numbers = [int(n) for n in args.callers.split(',')]
    on_mysql = args.database == 'mysql'
    first, second = ('mysql', 'postgresql') if on_mysql else ('gantt', 'prototype')
    with contextlib.ExitStack() as stack:
        database = mysql_database if on_mysql else postgresql_database
        bed = stack.enter_context(rig(callers.options(), database))
        mine = stack.enter_context(_scheduler(bed, args.hosts))
        if on_mysql:
            beside = stack.enter_context(rig(callers.options()))
            other = stack.enter_context(_scheduler(beside, args.hosts))
            stack.callback(callers.end, beside)
            name, stated = (
                'placements/s of the same on PostgreSQL',
                {'beside': callers.servers(beside)},
            )
        else:
            other = stack.enter_context(_prototype(bed, args.hosts))
            name, stated = 'placements/s of the prototype', {}
        stack.callback(callers.end, bed)
        sides = {first: mine, second: other}
        tried = {who: _try(side.placer, numbers, args) for who, side in sides.items()}
        best = {who: max(rates, key=rates.__getitem__) for who, rates in tried.items()}
        measured = _in_turn(sides, best, args)
        stated |= callers.servers(bed) | {'scheduler_rss_mb': round(bed.rss_mb('scheduler'), 1)}
        problems = mine.problems() + other.problems()
    value, yardstick = measured[first]['rate'], measured[second]['rate']
    return Result(
        bench='rpc-batch',
        value=value,
        unit='durable placements/s, their decisions recorded',
        yardstick={'name': name, 'value': yardstick},
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
            'processes': f'client, scheduler, {second}, broker, database on one machine',
            'measured': measured,
            'placed': len(mine.placer.promised),
            'problems': problems[:20],
        },
        audit=len(problems),
    )


def _pooled(args: argparse.Namespace) -> Result:
    """Measure one scheduler, with two kinds of requests in turn."""
    numbers = [int(n) for n in args.callers.split(',')]
    database = mysql_database if args.database == 'mysql' else postgresql_database
    with contextlib.ExitStack() as stack:
        bed = stack.enter_context(rig(callers.options(), database))
        plain = stack.enter_context(_scheduler(bed, args.hosts))
        shared.add_pool(bed.database)
        time.sleep(KNOWN_SECONDS)
        carrier = stack.enter_context(callers.connected(bed))
        placer = callers.Placer(carrier, shared.TAKES)
        placer.promised = plain.placer.promised
        pooled = plain._replace(placer=placer)
        stack.callback(callers.end, bed)
        sides = {'pooled': pooled, 'plain': plain}
        tried = {who: _try(side.placer, numbers, args) for who, side in sides.items()}
        best = {who: max(rates, key=rates.__getitem__) for who, rates in tried.items()}
        measured = _in_turn(sides, best, args)
        stated = callers.servers(bed)
        plain.placer.requests += placer.requests
        problems = plain.problems()
    value, stick = measured['pooled']['rate'], measured['plain']['rate']
    return Result(
        bench='rpc-batch --pool',
        value=value,
        unit='durable placements/s that take from a shared pool',
        yardstick={'name': 'placements/s that do not', 'value': stick},
        ratio=round(value / stick, 3),
        conditions={
            **conditions.here(),
            **stated,
            'hosts': args.hosts,
            'instances_per_request': args.instances,
            'callers': best,
            'tried': tried,
            'repeats': args.repeats,
            'window_seconds': args.seconds,
            'processes': 'client, scheduler, broker, database on one machine',
            'measured': measured,
            'pool_ratio': round(value / stick, 3),
            'problems': problems[:20],
        },
        audit=len(problems),
    )


@contextlib.contextmanager
def _scheduler(made: Rig, hosts: int) -> Iterator[Side]:
    """Yield a scheduler, and hosts that have reported to it."""
    with callers.connected(made) as carrier:
        made.start('scheduler', 'gantt-scheduler')
        made.wait_for('scheduler', 'is ready')
        callers.report_hosts(made, carrier, hosts)
        placer = callers.Placer(carrier)

        def problems() -> list[str]:
            return (
                callers.violations(made.database)
                + callers.broken(made.database, placer.promised)
                + callers.unrecorded(made.database, placer.requests)
            )

        yield Side(placer, functools.partial(made.cpu_seconds, 'scheduler'), problems)


@contextlib.contextmanager
def _prototype(made: Rig, hosts: int) -> Iterator[Side]:
    """Yield the prototype, on a virtual host and a database of its own."""
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
        with callers.connected(made, broker) as carrier:
            placer = callers.Placer(carrier)
            yield Side(
                placer,
                functools.partial(made.cpu_seconds, 'prototype'),
                functools.partial(_of_prototype, database, placer),
            )


def _try(placer: callers.Placer, numbers: list[int], args: argparse.Namespace) -> dict[int, float]:
    """Measure placements/s by number of callers: the better of two short windows."""
    call = functools.partial(placer.place, args.instances)
    callers.window(call, numbers[0], args.seconds / 2)
    rates: dict[int, float] = dict.fromkeys(numbers, 0.0)
    for number in numbers * 2:
        rate, _ = callers.window(call, number, args.seconds / 2)
        rates[number] = max(rates[number], round(rate * args.instances, 1))
    return rates


def _in_turn(
    sides: dict[str, Side], best: dict[str, int], args: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Run windows of both sides in turn; return medians."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    times: dict[str, list[float]] = {name: [] for name in sides}
    cpu = dict.fromkeys(sides, 0.0)
    for _ in range(args.repeats):
        for name, side in sides.items():
            before = side.cpu_seconds()
            rate, every = callers.window(
                functools.partial(side.placer.place, args.instances), best[name], args.seconds
            )
            cpu[name] += side.cpu_seconds() - before
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
    """Return the problems of the prototype: a yardstick that loses places would be none."""
    engine = sa.create_engine(database)
    over = callers.count(engine, prototype.OVER)
    engine.dispose()
    lines = callers.broken(database, placer.promised, query=prototype.WHO)
    lines += [f'{over} hosts are over-committed'] if over else []
    return [f'prototype: {line}' for line in lines]
