# SPDX-License-Identifier: Apache-2.0
"""Cost of a long history: two schedulers, one with a million old claims in its database.

Both are asked by the same client, in turn: the value is the rate with ended
claims, answered requests and decisions of as many requests in the tables, the
yardstick that on an empty database.  Afterwards all that history is past its
bound, and the purge runs beside the load: what there is to purge must not grow.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import functools
import statistics
import sys
import time
from typing import Any

import sqlalchemy as sa

from bench import Result, callers, conditions
from bench.rig import Rig, rig

#: One placement that was taken back, a million times under other names.
COPY = """
    INSERT INTO {table} ({columns}, {fresh})
    SELECT {columns}, {made} FROM (SELECT * FROM {table} WHERE {which} LIMIT 1) t,
           generate_series(1, :count) AS g
"""
DAY = 86_400.0
_ID = "md5('{kind}' || g)::uuid::text"
_REQUEST, _CLAIM = _ID.format(kind='request'), _ID.format(kind='claim')
_CONSUMER, _DECISION = _ID.format(kind='consumer'), _ID.format(kind='decision')
_LONG_AGO = f't.created_at - {DAY} * 30'
#: table -> (columns that are not copied and their values, which row is copied)
HISTORY = {
    'requests': ({'id': _REQUEST, 'created_at': _LONG_AGO, 'updated_at': _LONG_AGO}, 'id = :id'),
    'claims': (
        {
            'id': _CLAIM,
            'request_id': _REQUEST,
            'consumer': _CONSUMER,
            'created_at': _LONG_AGO,
            'updated_at': _LONG_AGO,
        },
        'request_id = :id',
    ),
    'decisions': (
        {'id': _DECISION, 'request_id': _REQUEST, 'created_at': _LONG_AGO},
        'request_id = :id',
    ),
}
SERIALS = {'number': 'decisions'}
FOR_EVER = 300 * DAY


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--claims', type=int, default=1_000_000, help='old ones, with decisions')
    parser.add_argument('--hosts', type=int, default=1000)
    parser.add_argument('--callers', type=int, default=16)
    parser.add_argument('--seconds', type=float, default=2.0, help='of a window')
    parser.add_argument('--repeats', type=int, default=7, help='windows of each side')
    parser.add_argument('--purge-seconds', type=float, default=60.0, help='of load and purge')


def run(args: argparse.Namespace) -> Result:
    """Run windows in turn, then the purge."""
    keep = callers.options(
        decisions={'count_max': 10 * args.claims + 100_000},
        claims={'tombstone_seconds': FOR_EVER, 'request_seconds': FOR_EVER},
    )
    problems: list[str] = []
    with (
        rig(keep) as old,
        rig(keep) as empty,
        callers.connected(old) as old_carrier,
        callers.connected(empty) as empty_carrier,
    ):
        sides = {
            'history': (old, callers.Placer(old_carrier)),
            'empty': (empty, callers.Placer(empty_carrier)),
        }
        schedulers = {}
        for name, (testbed, placer) in sides.items():
            schedulers[name] = callers.Several(testbed)
            schedulers[name].start('scheduler')
            carrier = old_carrier if testbed is old else empty_carrier
            callers.report_hosts(testbed, carrier, args.hosts)
            _past(testbed, placer, args.claims if testbed is old else 0)
        measured = _in_turn(sides, args)
        stated = callers.servers(old) | {
            'rows': {table: _rows(old, table) for table in HISTORY},
            'scheduler_rss_mb': {n: round(m.rss_mb('scheduler'), 1) for n, (m, _) in sides.items()},
        }
        for testbed, placer in sides.values():
            problems += callers.violations(testbed.database)
            problems += callers.broken(testbed.database, placer.promised)
        schedulers['empty'].stop('scheduler')
        schedulers['history'].stop('scheduler')
        purge = _purged(old, sides['history'][1], args)
        problems += callers.violations(old.database)
        problems += callers.broken(old.database, sides['history'][1].promised)
        if purge['left_at_the_end'] > purge['to_purge']:
            problems.append('there is more to purge than before')
        callers.end(old)
        callers.end(empty)
    value, yardstick = measured['history']['rate'], measured['empty']['rate']
    return Result(
        bench='history',
        value=value,
        unit=f'placements/s with {args.claims} old claims, requests and decisions',
        yardstick={'name': 'placements/s on an empty database', 'value': yardstick},
        ratio=round(value / yardstick, 3),
        conditions={
            **conditions.here(),
            **stated,
            'hosts': args.hosts,
            'claims': args.claims,
            'callers': args.callers,
            'repeats': args.repeats,
            'window_seconds': args.seconds,
            'measured': measured,
            'purge': purge,
            'processes': 'client, two schedulers, broker, database on one machine',
            'problems': problems[:20],
        },
        audit=len(problems),
    )


def _past(made: Rig, placer: callers.Placer, count: int) -> None:
    """Place and cancel one request, and copy it ``count`` times, long ago."""
    request_id = placer.place()
    placer.client.cancel_claims(request_id)
    placer.promised.clear()
    if not count:
        return
    print(f'writing {count} old claims', file=sys.stderr, flush=True)
    engine = sa.create_engine(made.database, isolation_level='AUTOCOMMIT')
    with engine.connect() as connection:
        for table, (fresh, which) in HISTORY.items():
            every = [column['name'] for column in sa.inspect(engine).get_columns(table)]
            serial = [name for name, of in SERIALS.items() if of == table]
            columns = [name for name in every if name not in fresh and name not in serial]
            statement = COPY.format(
                table=table,
                columns=', '.join(columns),
                fresh=', '.join(fresh),
                made=', '.join(fresh.values()),
                which=which,
            )
            written = connection.execute(sa.text(statement), {'count': count, 'id': request_id})
            if written.rowcount != count:
                raise SystemExit(f'{written.rowcount} rows of {table} were written, not {count}')
        connection.execute(sa.text('VACUUM ANALYZE'))
        connection.execute(sa.text('CHECKPOINT'))
    engine.dispose()


def _rows(made: Rig, table: str) -> int:
    engine = sa.create_engine(made.database)
    count_ = callers.count(engine, f'SELECT count(*) FROM {table}')
    engine.dispose()
    return count_


def _in_turn(
    sides: dict[str, tuple[Rig, callers.Placer]], args: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Run windows of both sides in turn; return medians."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(args.repeats + 1):
        for name, (_, placer) in sides.items():
            rate, every = callers.window(placer.place, args.callers, args.seconds)
            if number:  # the first is for warming up
                rates[name].append(rate)
                times[name] += every
    return {
        name: {
            'rate': round(statistics.median(rates[name]), 1),
            'minimum': round(min(rates[name]), 1),
            'maximum': round(max(rates[name]), 1),
            'p50_ms': callers.percentile(sorted(times[name]), 0.5),
            'p99_ms': callers.percentile(sorted(times[name]), 0.99),
        }
        for name in sides
    }


def _purged(made: Rig, placer: callers.Placer, args: argparse.Namespace) -> dict[str, Any]:
    """Load while all of the history is past its bound: how it shrinks, and the rate."""
    schedulers = callers.Several(
        made,
        {
            'claims': {'tombstone_seconds': 60, 'request_seconds': 60},
            'decisions': {'count_max': 1000, 'purge_seconds': 1},
        },
    )
    engine = sa.create_engine(made.database)
    counted = functools.partial(_past_its_bound, engine)
    before = counted()
    schedulers.start('purging')
    rates, remaining = [], []
    began = time.monotonic()
    while time.monotonic() < began + args.purge_seconds:
        rates.append(callers.window(placer.place, args.callers, args.seconds)[0])
        remaining.append(counted())
    took = time.monotonic() - began
    engine.dispose()
    purged = before - remaining[-1]
    return {
        'seconds': round(took, 1),
        'to_purge': before,
        'left_at_the_end': remaining[-1],
        'purged_per_second': round(purged / took, 1),
        'rate': round(statistics.median(rates), 1),
        'minimum': round(min(rates), 1),
        'left_by_window': remaining,
    }


def _past_its_bound(engine: sa.Engine) -> int:
    """Count rows that a purge would take: old requests, tombstones, decisions beyond those kept."""
    old = f'< (SELECT extract(epoch FROM now())) - {DAY}'
    return (
        callers.count(engine, f'SELECT count(*) FROM requests WHERE updated_at {old}')
        + callers.count(engine, f'SELECT count(*) FROM claims WHERE live = 0 AND updated_at {old}')
        + callers.count(engine, 'SELECT greatest(0, count(*) - 1000) FROM decisions')
    )
