# SPDX-License-Identifier: Apache-2.0
"""A million claims through RPC: how long it takes, and whether every one of them is there.

Requests of 50 instances; every one is committed in PostgreSQL with its decision
before it is answered.  The value is the time from the first call to the last
answer, never a part of it made larger.  The yardstick is what the first
twentieth would let one expect: a ratio above 1 is what growing tables cost.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import functools
import sys
import time

import sqlalchemy as sa

from bench import Result, callers, conditions
from bench.rig import rig

PARTS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--hosts', type=int, default=5000)
    parser.add_argument('--claims', type=int, default=1_000_000)
    parser.add_argument('--instances', type=int, default=50, help='of a request')
    parser.add_argument('--callers', type=int, default=8)


def run(args: argparse.Namespace) -> Result:
    """Run twenty parts without a pause between them, then the audit."""
    # The bounds of what is kept are not what is measured.
    options = callers.options(decisions={'count_max': max(100_000, args.claims)})
    with rig(options) as testbed, callers.connected(testbed) as carrier:
        testbed.start('scheduler', 'gantt-scheduler')
        testbed.wait_for('scheduler', 'is ready')
        callers.report_hosts(testbed, carrier, args.hosts)
        placer = callers.Placer(carrier)
        callers.window(functools.partial(placer.place, args.instances), args.callers, 1.0)
        before, cpu = len(placer.promised), testbed.cpu_seconds('scheduler')
        rss = [round(testbed.rss_mb('scheduler'), 1)]
        parts, times = [], []
        began = time.monotonic()
        for calls in _parts(args.claims, args.instances):
            part = time.monotonic()
            times += callers.window(
                functools.partial(placer.place, args.instances), args.callers, 36_000, most=calls
            )[1]
            parts.append((calls * args.instances, time.monotonic() - part))
            rss.append(round(testbed.rss_mb('scheduler'), 1))
        seconds = time.monotonic() - began
        claims = len(placer.promised) - before
        cpu = testbed.cpu_seconds('scheduler') - cpu
        print(f'{claims} claims in {seconds:.1f} s; looking at them', file=sys.stderr, flush=True)
        stated = callers.servers(testbed) | {'database_mb': _database_mb(testbed.database)}
        problems = callers.violations(testbed.database)
        problems += callers.broken(testbed.database, placer.promised)
        problems += callers.unrecorded(testbed.database, placer.requests)
        callers.end(testbed)
    value, expected = round(seconds, 3), round(parts[0][1] / parts[0][0] * claims, 3)
    times.sort()
    rates = [n / s for n, s in parts]
    return Result(
        bench='million',
        value=value,
        unit=f's for {claims} claims, their decisions recorded',
        yardstick={'name': f'{claims} at the rate of the first part', 'value': expected},
        ratio=round(value / expected, 3),
        conditions={
            **conditions.here(),
            **stated,
            'hosts': args.hosts,
            'claims': claims,
            'instances_per_request': args.instances,
            'callers': args.callers,
            'topic': "Gantt's own, by gantt.client; alternates: 2",
            'claims_per_second': round(claims / seconds, 1),
            'claims_per_second_by_part': [round(rate, 1) for rate in rates],
            'last_twentieth': round(rates[-1] / rates[0], 3),
            'p50_ms': callers.percentile(times, 0.5),
            'p99_ms': callers.percentile(times, 0.99),
            'scheduler_cpu_us_per_claim': round(cpu * 1e6 / claims, 1),
            'scheduler_rss_mb_by_part': rss,
            'problems': problems[:20],
        },
        audit=len(problems),
    )


def _database_mb(database: str) -> float:
    """Return the size of tables and indexes of a database on disk, in MB."""
    engine = sa.create_engine(database)
    size = callers.count(engine, 'SELECT pg_database_size(current_database())')
    engine.dispose()
    return round(size / 1e6, 1)


def _parts(claims: int, instances: int) -> list[int]:
    """Return the calls of each part; together as many as it takes, and no more."""
    calls = max(1, -(-claims // instances))
    parts = min(PARTS, calls)
    return [calls * (i + 1) // parts - calls * i // parts for i in range(parts)]
