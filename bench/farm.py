# SPDX-License-Identifier: Apache-2.0
"""Cost of many simulated hosts: one ``gantt-compute --fake N``, as an operator starts it.

Every host reports once a minute to a ``gantt-scheduler`` on RabbitMQ and
PostgreSQL, while guests are placed, built and deleted at a steady rate.  The
value is the share of one core that the process of the farm uses; it must stay
below 1.  The yardstick is a stock oslo.messaging client that sends as many
casts and waits for as many answers, and knows nothing.

The audit counts what the store finds, guests that were not built or deleted,
and hosts that did not report in time.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import collections
import itertools
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from bench import Result, conditions
from bench.reports import (
    KEEPS_UP,
    connected_transport,
    database_settings,
    note,
    reported_in_time,
    stock,
    wait_until,
)
from bench.rig import Rig, rig
from gantt import client, exceptions
from gantt.client.calls import ServerCaller
from gantt.client.hosts import topic_of
from gantt.core.messages.build import Delete
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.records.decision import Selection
from gantt.stores import stores_for_url

NAME = 'farm'
TAKES = {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}
#: A full report is answered; so is each update of a claim.
FULL_SHARE = 0.1
WORDS_PER_BUILD_AND_DELETE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--guests', type=int, default=1000, help='that run all the time')
    parser.add_argument('--rate', type=float, default=10.0, help='builds a second, and deletes')
    parser.add_argument('--period', type=int, default=60, help='seconds between two reports')
    parser.add_argument('--seconds', type=float, default=60.0, help='length of one measurement')
    parser.add_argument('--repeats', type=int, default=2)


def run(args: argparse.Namespace) -> Result:
    """Start the hosts, fill them, measure in turn with the yardstick."""
    with rig({'scheduler': {'report_seconds': args.period}}) as testbed, stock(testbed):
        testbed.start('scheduler', 'gantt-scheduler')
        testbed.wait_for('scheduler', 'is ready')
        began = time.monotonic()
        testbed.start(NAME, 'gantt-compute', '--fake', str(args.hosts), '--name', NAME)
        testbed.wait_for(NAME, 'is ready')
        carrier = connected_transport(testbed)
        conductor = Conductor(carrier)
        farm = ServerCaller(carrier, topic_of(NAME))
        wait_until(lambda: _status(farm)['reporting'] == args.hosts, 600, 'every host has reported')
        life = {
            'seconds_to_life': round(time.monotonic() - began, 1),
            'share_until_then': round(testbed.cpu_seconds(NAME) / (time.monotonic() - began), 3),
        }
        note(f'{args.hosts} hosts registered and reported: {life}')
        conductor.fill(args.guests)
        note(f'{args.guests} guests run: {dict(conductor.outcomes)}')
        # The first period is where hosts that came together are spread.
        conductor.steady(args.rate, args.period)
        measured = [_measure(testbed, farm, conductor, args) for _ in range(args.repeats)]
        store = stores_for_url(testbed.database)
        fresh = reported_in_time(store, args.period)
        broken = sum(len(lines) for lines in store.claims.audit().values())
        database = database_settings(store)
        store.database.close()
        carrier.cleanup()
        shares = [m['share'] for m in measured]
        value = sum(shares) / len(shares)
        yardstick = sum(m['stock_share'] for m in measured) / len(measured)
        kept = sum(m['reports'] >= m['due'] * KEEPS_UP for m in measured)
        return Result(
            bench='farm',
            value=round(value, 4),
            unit='share of one core',
            yardstick={
                'name': 'a stock client that sends and asks as often and knows nothing',
                'value': round(yardstick, 4),
            },
            ratio=round(value / yardstick, 2),
            conditions={
                **conditions.here(),
                'hosts': args.hosts,
                'guests': args.guests,
                'builds_per_second': args.rate,
                'deletes_per_second': args.rate,
                'period_seconds': args.period,
                'seconds': args.seconds,
                'repeats': args.repeats,
                'minimum': min(shares),
                'maximum': max(shares),
                'measured': measured,
                'kept_up': f'{kept} of {len(measured)}',
                'farm_rss_mb': round(testbed.rss_mb(NAME), 1),
                'outcomes': dict(conductor.outcomes),
                'hosts_reported_within_a_period_and_a_half': fresh,
                'database': database,
                'queues': 'classic',
                'processes': 'farm, scheduler, conductor, broker, database on one machine',
                **life,
            },
            audit=broken + args.hosts - fresh + len(measured) - kept + conductor.failures,
        )


class Conductor:
    """A conductor that places guests, has them built and deleted, oldest first."""

    def __init__(self, carrier: Any, threads: int = 8) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self._scheduler = client.SchedulerClient(carrier)
        self._computes = client.ComputeClient(carrier, timeout=30.0)
        self._running: collections.deque[Selection] = collections.deque()
        self._threads = threads
        self._counting = threading.Lock()

    @property
    def failures(self) -> int:
        """Number of builds and deletes that failed."""
        return self.outcomes.total() - self.outcomes['running'] - self.outcomes['deleted']

    def fill(self, count: int) -> None:
        """Build ``count`` guests as fast as it goes."""
        with ThreadPoolExecutor(self._threads) as pool:
            for _ in range(count):
                pool.submit(self._build)

    def steady(self, rate: float, seconds: float) -> float:
        """Run ``rate`` builds and deletes a second; return the actual builds a second."""
        before, began = self.outcomes['running'], time.monotonic()
        with ThreadPoolExecutor(self._threads) as pool:
            for number in itertools.count():
                wait = began + number / rate - time.monotonic()
                if time.monotonic() - began + max(0.0, wait) >= seconds:
                    break
                time.sleep(max(0.0, wait))
                pool.submit(self._build)
                pool.submit(self._delete)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        return (self.outcomes['running'] - before) / (time.monotonic() - began)

    def _build(self) -> None:
        consumer = str(uuid.uuid4())
        try:
            answer = self._scheduler.select_destinations(
                SelectDestinations(
                    request_id=str(uuid.uuid4()),
                    spec=RequestSpec(resources=TAKES),
                    consumers=[consumer],
                    budget_ms=20_000,
                )
            )
            chosen = answer.selections[0][0]
            built = self._computes.build(chosen.build_topic, chosen.build(), wait=True)
        except exceptions.GanttError as e:
            self._count(e.code)
            return
        self._running.append(chosen)
        self._count(built['outcome'])

    def _delete(self) -> None:
        try:
            chosen = self._running.popleft()
        except IndexError:
            return
        delete = Delete(consumer=chosen.consumer, host=chosen.host, claim_id=chosen.claim_id)
        try:
            deleted = self._computes.delete(chosen.build_topic, delete, wait=True)
        except exceptions.GanttError as e:
            self._count(e.code)
            return
        self._count(deleted['outcome'])

    def _count(self, outcome: str) -> None:
        with self._counting:
            self.outcomes[outcome] += 1


def _measure(
    made: Rig, farm: ServerCaller, conductor: Conductor, args: argparse.Namespace
) -> dict[str, float]:
    """Measure one stretch of reports, builds and deletes, then the stock client as fast."""
    before, cpu, began = _status(farm), made.cpu_seconds(NAME), time.monotonic()
    rate = conductor.steady(args.rate, args.seconds)
    took = time.monotonic() - began
    share = (made.cpu_seconds(NAME) - cpu) / took
    after = _status(farm)
    reports = (after['reports'] - before['reports']) / took
    answered = reports * FULL_SHARE + rate * WORDS_PER_BUILD_AND_DELETE
    measured = {
        'share': round(share, 4),
        'stock_share': round(_stock_share(made, reports * (1 - FULL_SHARE), answered), 4),
        'reports': round(reports, 1),
        'due': round(args.hosts / args.period, 1),
        'builds': round(rate, 1),
        'late_seconds': after['late_seconds'],
        'failures': after['failures'] - before['failures'],
    }
    note(str(measured))
    return measured


def _stock_share(made: Rig, casts: float, calls: float, seconds: float = 15.0) -> float:
    """Share of a core of a stock client that casts and calls so often a second."""
    done = subprocess.run(
        [
            sys.executable,
            '-m',
            'bench.farm_stock',
            made.broker,
            str(casts),
            str(calls),
            str(seconds),
        ],
        input=msgspec.json.encode(_a_delta()),
        capture_output=True,
        timeout=seconds + 60,
    )
    if done.returncode:
        raise RuntimeError(f'the stock client: {done.stderr.decode()}')
    return float(done.stdout)


def _a_delta() -> dict[str, object]:
    """Return the report that a host sends most of the time: only its load has changed."""
    return {
        'name': 'fake-00000',
        'epoch': 1,
        'sequence': 100,
        'full': False,
        'base': 91,
        'running': [
            {'consumer': str(uuid.uuid4()), 'claim_id': str(uuid.uuid4()), 'resources': TAKES}
        ],
        'pending': [],
        'metrics': {'load': {'value': 0.123, 'source': 'fake'}},
    }


def _status(farm: ServerCaller) -> dict[str, Any]:
    answer = farm.call('farm_command', 30.0, order={'do': 'status'})
    status: dict[str, Any] = answer['status']
    return status
