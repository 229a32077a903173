# SPDX-License-Identifier: Apache-2.0
"""A long run with faults: whether memory grows, and whether every promise is kept.

Two schedulers and a farm of fake hosts; guests are placed, built and deleted at
a steady rate.  One scheduler is killed with -9 and started again, the ways of
both to the database and to the broker are cut, in turn.  The other scheduler and
the farm live through it all: their memory is what is looked at.

The value is the slope of the scheduler's resident memory, a line fitted through
the time after the warm-up; the yardstick is what is allowed.  Of which types more
objects are there at the end than after the warm-up is said beside it.  The audit counts
what the store finds, guests that ran and have lost their claim, and sockets or
threads that became more.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import collections
import contextlib
import itertools
import os
import pathlib
import signal
import statistics
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa

from bench import Result, callers, conditions, counted_scheduler
from bench.rig import Rig, rig
from gantt import client, exceptions
from gantt.core.messages.build import Delete
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.records.decision import Selection
from tests.nemesis.proxy import Proxy

ALLOWED_MB_PER_HOUR = 1.0
KEEPER, VICTIM, FARM = 'keeper', 'victim', 'farm'
SWEEP_SECONDS = 1
#: Ends within the run what would otherwise be kept for a day: the database is flat as well.
OPTIONS: dict[str, dict[str, object]] = {
    'claims': {'sweep_seconds': SWEEP_SECONDS, 'tombstone_seconds': 60, 'request_seconds': 60},
    'decisions': {'count_max': 2000, 'purge_seconds': 10, 'replay_seconds': 60},
}
#: Allowed growth without a leak: a pool may grow and shrink.
SPARE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--minutes', type=float, default=60.0)
    parser.add_argument('--warm-up', type=float, default=0.4, help='share of them')
    parser.add_argument('--rate', type=float, default=30.0, help='guests a second')
    parser.add_argument('--hosts', type=int, default=200)
    parser.add_argument('--guests', type=int, default=500, help='that run all the time')
    parser.add_argument('--fault-every', type=float, default=30.0, help='seconds')
    parser.add_argument('--lease', type=int, default=20, help='seconds')
    parser.add_argument('--period', type=int, default=10, help='seconds between two reports')


def run(args: argparse.Namespace) -> Result:
    """Load and faults for so long, then a look at everything."""
    options = callers.options(**OPTIONS, scheduler={'report_seconds': args.period})
    options['claims']['lease_seconds'] = args.lease
    with rig(options) as testbed, callers.connected(testbed) as carrier:
        database, broker = Proxy.of(testbed.database), Proxy.of(testbed.broker)
        schedulers = callers.Several(
            testbed,
            {
                'DEFAULT': {'transport_url': broker.url(testbed.broker)},
                'database': {'connection': database.url(testbed.database)},
            },
        )
        schedulers.start(KEEPER, command='counted-scheduler')
        schedulers.start(VICTIM)
        testbed.start(FARM, 'gantt-compute', '--fake', str(args.hosts), '--name', FARM)
        _until_reported(testbed, args.hosts)
        guests = Guests(carrier, args.guests)
        faults = Faults(schedulers, {'database cut': database, 'broker cut': broker})
        seen = _live(testbed, guests, faults, args)
        _tell('the load ends; waiting for leases, reports and sweeps')
        time.sleep(args.lease + 1.2 * args.period + 2 * SWEEP_SECONDS)
        problems = callers.violations(testbed.database) + guests.lost(testbed.database)
        problems += [f'{name}: {line}' for name, s in seen.items() for line in s.grown()]
        stated = callers.servers(testbed) | _grown(testbed)
        callers.end(testbed)
        database.close()
        broker.close()
    slope = seen[KEEPER].slope(args.warm_up)
    return Result(
        bench='soak',
        value=round(slope, 3),
        unit='MB/h of resident memory of a scheduler that nobody killed',
        yardstick={'name': 'MB/h allowed', 'value': ALLOWED_MB_PER_HOUR},
        ratio=round(slope / ALLOWED_MB_PER_HOUR, 3),
        conditions={
            **conditions.here(),
            **stated,
            'minutes': args.minutes,
            'warm_up_share': args.warm_up,
            'hosts': args.hosts,
            'guests': args.guests,
            'guests_per_second': args.rate,
            'faults': dict(faults.done),
            'outcomes': dict(guests.outcomes),
            'processes': {name: s.said(args.warm_up) for name, s in seen.items()},
            'problems': problems[:20],
        },
        audit=len(problems),
    )


def _live(
    made: Rig, guests: 'Guests', faults: 'Faults', args: argparse.Namespace
) -> dict[str, 'Series']:
    """Run the load, the faults and the samples of memory, until the time is over."""
    seen = {name: Series(made.processes[name].pid) for name in (KEEPER, FARM)}
    seconds = args.minutes * 60
    every = max(0.5, min(10.0, seconds / 100))
    began = time.monotonic()
    load = threading.Thread(target=guests.live, args=(args.rate, began + seconds), daemon=True)
    load.start()
    is_counted = False
    fault = look = logged = began
    while time.monotonic() < began + seconds:
        now = time.monotonic()
        if not is_counted and now >= began + seconds * args.warm_up:
            is_counted = True
            _count_objects(made)
        if now >= look:
            look = now + every
            for series in seen.values():
                series.look(now - began)
        if now >= fault + args.fault_every:
            fault = now
            faults.next()
        if now >= logged + 60:
            logged = now
            _tell(f'{(now - began) / 60:.0f} min: {seen[KEEPER].values[-1]} {guests.outcomes}')
        time.sleep(0.1)
    _count_objects(made)
    load.join()
    return seen


def _count_objects(made: Rig) -> None:
    made.processes[KEEPER].send_signal(signal.SIGUSR1)


def _grown(made: Rig) -> dict[str, object]:
    """Return how the scheduler's objects grew from the end of the warm-up to that of the load."""

    def counted(mark: str) -> list[counted_scheduler.Sizes]:
        return counted_scheduler.read(made.log(KEEPER), mark)

    def mb(samples: list[counted_scheduler.Sizes]) -> list[float]:
        return [round(sum(size for _, size in sizes.values()) / 1e6, 2) for sizes in samples]

    every, used = counted_scheduler.ALL, counted_scheduler.USED
    callers.until(lambda: len(counted(every)) == 2, 300, 'objects were counted twice')
    with contextlib.suppress(RuntimeError):  # this count may end without a result
        callers.until(lambda: len(counted(used)) == 2, 150, 'those in use as well')
    (before, after), in_use = counted(every), counted(used)
    last = in_use[-1] if in_use else {}
    return {
        'objects_mb': mb([before, after]),
        'objects_in_use_mb': mb(in_use),
        'grown_by_type': counted_scheduler.grown(before, after, last),
    }


def _until_reported(made: Rig, hosts: int) -> None:
    engine = sa.create_engine(made.database)
    reported = 'SELECT count(*) FROM providers WHERE full_sequence > 0'
    callers.until(
        lambda: callers.count(engine, reported) >= hosts, 120, f'{hosts} hosts have reported'
    )
    engine.dispose()


class Faults:
    """Faults that are injected one after another, in a cycle."""

    def __init__(self, schedulers: callers.Several, ways: dict[str, Proxy]) -> None:
        self.done: collections.Counter[str] = collections.Counter()
        self._schedulers = schedulers
        self._ways = ways
        self._order = itertools.cycle(['kill', *ways])

    def next(self) -> None:
        """Inject the next fault."""
        name = next(self._order)
        if name == 'kill':
            self._schedulers.kill(VICTIM)
            # A soak may run at the lowest priority beside other work, for minutes without a turn.
            self._schedulers.start(VICTIM, seconds=600)
        else:
            self._ways[name].cut()
        self.done[name] += 1


class Series:
    """Memory, sockets and threads of one process over time.

    :ivar values: (seconds, MiB, file descriptors, threads)
    """

    def __init__(self, pid: int) -> None:
        self.values: list[tuple[float, float, int, int]] = []
        self._folder = pathlib.Path('/proc', str(pid))

    def look(self, seconds: float) -> None:
        """Take one more sample."""
        self.values.append(
            (
                round(seconds, 1),
                conditions.rss_mb(int(self._folder.name)),
                len(os.listdir(self._folder / 'fd')),
                len(os.listdir(self._folder / 'task')),
            )
        )

    def settled(self, warm_up: float) -> list[tuple[float, float, int, int]]:
        """Return the series without the first part."""
        return self.values[int(len(self.values) * warm_up) :]

    def slope(self, warm_up: float) -> float:
        """Return MB/h of the line fitted through the points after the warm-up."""
        points = self.settled(warm_up)
        hours, sizes = [p[0] / 3600 for p in points], [p[1] for p in points]
        return statistics.linear_regression(hours, sizes).slope * 1.048576

    def grown(self) -> list[str]:
        """Return sockets or threads that became more from the second quarter to the last."""
        quarter = max(1, len(self.values) // 4)
        grown_lines = []
        for index, what in ((2, 'file descriptors'), (3, 'threads')):
            before = statistics.median(v[index] for v in self.values[quarter : 2 * quarter])
            after = statistics.median(v[index] for v in self.values[-quarter:])
            if after > before + SPARE:
                grown_lines.append(f'{before:g} {what} became {after:g}')
        return grown_lines

    def said(self, warm_up: float) -> dict[str, Any]:
        """Return the conditions of a result; at most some sixty points."""
        step = max(1, len(self.values) // 60)
        sizes = [v[1] for v in self.settled(warm_up)]
        return {
            'slope_mb_per_hour': round(self.slope(warm_up), 3),
            'rss_mb_minimum': min(sizes),
            'rss_mb_maximum': max(sizes),
            'seconds_mb_descriptors_threads': self.values[::step],
        }


class Guests:
    """Guests that are placed, built and deleted, oldest first; those that ran are recorded."""

    def __init__(self, carrier: Any, most: int, threads: int = 16) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self._scheduler = client.SchedulerClient(carrier, attempt_seconds=3.0)
        self._computes = client.ComputeClient(carrier, timeout=20.0)
        self._most = most
        self._running: collections.deque[Selection] = collections.deque()
        self._threads = threads
        self._lock = threading.Lock()

    def live(self, rate: float, end: float) -> None:
        """Run ``rate`` guests a second until monotonic second ``end``, none while all wait."""
        waiting = threading.BoundedSemaphore(8 * self._threads)
        began = time.monotonic()

        def one() -> None:
            try:
                self._one()
            finally:
                waiting.release()

        with ThreadPoolExecutor(self._threads) as pool:
            for number in itertools.count():
                at = began + number / rate
                if max(at, time.monotonic()) >= end:
                    break
                time.sleep(max(0.0, at - time.monotonic()))
                if waiting.acquire(blocking=False):
                    pool.submit(one)
                else:
                    self._count('not asked: too many wait')

    def lost(self, database: str) -> list[str]:
        """Return guests that run as their farm reports, without a confirmed claim in the store."""
        engine = sa.create_engine(database)
        query = """
            SELECT c.consumer, p.name FROM claims c JOIN providers p ON p.id = c.provider_id
             WHERE c.live = 1 AND c.state = 'confirmed'
        """
        with engine.connect() as connection:
            confirmed = {(c, host) for c, host in connection.execute(sa.text(query))}
        engine.dispose()
        return [
            f'guest {guest.consumer} on {guest.host} has no claim'
            for guest in self._running
            if (guest.consumer, guest.host) not in confirmed
        ]

    def _one(self) -> None:
        try:
            chosen = self._build()
            if chosen is not None:
                with self._lock:
                    self._running.append(chosen)
                    oldest = self._running.popleft() if len(self._running) > self._most else None
                if oldest is not None:
                    self._delete(oldest)
        except exceptions.GanttError as e:
            self._count(e.code)

    def _build(self) -> Selection | None:
        consumer = str(uuid.uuid4())
        answer = self._scheduler.select_destinations(
            SelectDestinations(
                request_id=str(uuid.uuid4()),
                spec=RequestSpec(resources=callers.TAKES),
                consumers=[consumer],
                budget_ms=20_000,
            )
        )
        chosen = answer.selections[0][0]
        built = self._computes.build(chosen.build_topic, chosen.build(), wait=True)
        self._count(built['outcome'])
        return chosen if built['outcome'] == 'running' else None

    def _delete(self, guest: Selection) -> None:
        delete = Delete(consumer=guest.consumer, host=guest.host, claim_id=guest.claim_id)
        self._count(self._computes.delete(guest.build_topic, delete, wait=True)['outcome'])

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
