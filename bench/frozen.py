# SPDX-License-Identifier: Apache-2.0
"""Three schedulers; one is stopped, later the way of another one to its database is held.

Callers wait for their answers and ask again at once (a closed loop), and a steady
stream of requests comes beside them, each with a short budget, whether or not those
before were answered (an open loop).  The value is the lowest share of the stream
that is answered "placed" within its budget, over any few seconds from some seconds
after the fault on until the end of the calm that follows it; the yardstick is the
same share before the first fault.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import contextlib
import itertools
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from bench import Result, callers, conditions
from bench.rig import Rig, rig
from gantt import client, exceptions
from gantt.core.messages.request import RequestSpec, SelectDestinations
from tests.nemesis.proxy import Proxy

STOPPED, CUT_OFF, WELL = 'scheduler-1', 'scheduler-2', 'scheduler-3'
#: Time that a caller that waits for its answer has for it; it requests again after an error.
CALLER_BUDGET_MS = 30_000
#: Windows are looked at in such steps.
STEP_SECONDS = 0.25
#: At most so many requests of the stream are under way.
UNDER_WAY = 400


class Asked(NamedTuple):
    """Timing and outcome of one request.

    :ivar at: monotonic seconds when it was due
    :ivar took: seconds until its end
    :ivar placed: whether it was placed
    """

    at: float
    took: float
    placed: bool
    error: str = ''


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--hosts', type=int, default=1000)
    parser.add_argument('--callers', type=int, default=16, help='that wait for their answers')
    parser.add_argument('--rate', type=float, default=20.0, help='of the stream, requests/s')
    parser.add_argument('--budget', type=float, default=5.0, help='of the stream, seconds')
    parser.add_argument('--fault', type=float, default=20.0, help='seconds of each fault')
    parser.add_argument('--calm', type=float, default=15.0, help='seconds before and after each')
    parser.add_argument('--grace', type=float, default=3.0, help='seconds of a fault left out')
    parser.add_argument('--window', type=float, default=5.0, help='seconds of a window')


def run(args: argparse.Namespace) -> Result:
    """Run calm, the first fault, calm, the second fault, calm."""
    with rig(callers.options()) as testbed, callers.connected(testbed) as carrier:
        proxy = Proxy.of(testbed.database)
        try:
            schedulers = callers.Several(testbed)
            schedulers.start(STOPPED, WELL)
            way = proxy.url(testbed.database)
            schedulers.start(CUT_OFF, options={'database': {'connection': way}})
            callers.report_hosts(testbed, carrier, args.hosts)
            load = Load(testbed, args)
            with load.going_on():
                time.sleep(args.calm / 3)
                before = Span('before', time.monotonic(), args.calm)
                time.sleep(args.calm)
                spans = [_stopped(testbed, args), _cut_off(proxy, args)]
            stated = callers.servers(testbed)
            problems = callers.violations(testbed.database) + load.broken(testbed.database)
        finally:
            proxy.close()
        callers.end(testbed)
    judged = {span.name: load.judged(span, args) for span in spans}
    quiet = load.share(before.began, before.began + before.seconds)
    rate_before = load.rate(before.began, before.began + before.seconds)
    value = min(fault['lowest_share'] for fault in judged.values())
    for fault in judged.values():
        fault['callers_share'] = round(fault['callers_rate'] / max(rate_before, 1e-9), 3)
    return Result(
        bench='frozen',
        value=value,
        unit=f'share of a stream answered within {args.budget:g} s, in its worst {args.window:g} s',
        yardstick={'name': 'the same share before the faults', 'value': quiet},
        ratio=round(value / max(quiet, 1e-9), 3),
        conditions={
            **conditions.here(),
            **stated,
            'hosts': args.hosts,
            'schedulers': 3,
            'callers': args.callers,
            'stream_per_second': args.rate,
            'budget_seconds': args.budget,
            'fault_seconds': args.fault,
            'callers_rate_before': round(rate_before, 1),
            'callers_share': min(fault['callers_share'] for fault in judged.values()),
            'faults': judged,
            'stream': load.outcomes(),
            'processes': 'callers, schedulers, broker, database on one machine',
            'problems': problems[:20],
        },
        audit=len(problems),
    )


class Span(NamedTuple):
    """A part of the run: monotonic seconds of its begin, and how many it had."""

    name: str
    began: float
    seconds: float


def _stopped(made: Rig, args: argparse.Namespace) -> Span:
    """Stop one scheduler, and let it go on."""
    process = made.processes[STOPPED]
    began = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(args.fault)
    finally:
        process.send_signal(signal.SIGCONT)
    time.sleep(args.calm)
    return Span('a scheduler is stopped', began, args.fault)


def _cut_off(proxy: Proxy, args: argparse.Namespace) -> Span:
    """Cut one scheduler off from its database; its connections stay open."""
    began = time.monotonic()
    proxy.hold()
    try:
        time.sleep(args.fault)
    finally:
        proxy.mend()
    time.sleep(args.calm)
    return Span('the database of one is held', began, args.fault)


class Load:
    """The callers, the stream, and the answers that both received."""

    def __init__(self, made: Rig, args: argparse.Namespace) -> None:
        self._made = made
        self._args = args
        self._spec = RequestSpec(resources=callers.TAKES)
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._promised: dict[str, str] = {}
        self._unknown: set[str] = set()
        self.stream: list[Asked] = []
        self.closed: list[Asked] = []

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Send requests until the context is left, and wait for the last answers."""
        with callers.connected(self._made) as first, callers.connected(self._made) as other:
            waiting = client.SchedulerClient(first)
            threads = [
                threading.Thread(target=self._caller, args=(waiting,), daemon=True)
                for _ in range(self._args.callers)
            ]
            threads.append(
                threading.Thread(
                    target=self._pace, args=(client.SchedulerClient(other),), daemon=True
                )
            )
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self._ends.set()
                for thread in threads:
                    thread.join(CALLER_BUDGET_MS / 1000 + 30)

    def _caller(self, scheduler: Any) -> None:
        while not self._ends.is_set():
            request = self._ask(scheduler, time.monotonic(), CALLER_BUDGET_MS)
            with self._lock:
                self.closed.append(request)

    def _pace(self, scheduler: Any) -> None:
        budget_ms = int(self._args.budget * 1000)

        def one(due: float) -> None:
            request = self._ask(scheduler, due, budget_ms)
            with self._lock:
                self.stream.append(request)

        began = time.monotonic()
        with ThreadPoolExecutor(UNDER_WAY) as pool:
            for number in itertools.count():
                due = began + number / self._args.rate
                if self._ends.wait(max(0.0, due - time.monotonic())):
                    return
                pool.submit(one, due)

    def _ask(self, scheduler: Any, due: float, budget_ms: int) -> Asked:
        request = SelectDestinations(
            request_id=str(uuid.uuid4()),
            spec=self._spec,
            consumers=[str(uuid.uuid4())],
            budget_ms=budget_ms,
            lease_seconds=callers.LEASE_SECONDS,
        )
        try:
            answer = scheduler.select_destinations(request)
        except exceptions.GanttError as e:
            # It may have its place all the same: its answer came too late, or not at all.
            with self._lock:
                self._unknown.update(request.consumers)
            return Asked(due, time.monotonic() - due, False, type(e).__name__)
        with self._lock:
            self._promised.update((s[0].consumer, s[0].host) for s in answer.selections)
        return Asked(due, time.monotonic() - due, True)

    def share(self, begin: float, end: float) -> float:
        """Return the share of the stream's requests due then answered in time; 1: none was due."""
        due = [a for a in self.stream if begin <= a.at < end]
        good = sum(a.placed and a.took <= self._args.budget for a in due)
        return round(good / len(due), 4) if due else 1.0

    def rate(self, begin: float, end: float) -> float:
        """Return answers "placed" a second to the callers that wait for theirs."""
        done = sum(a.placed and begin <= a.at + a.took < end for a in self.closed)
        return done / (end - begin)

    def judged(self, span: Span, args: argparse.Namespace) -> dict[str, Any]:
        """Return the effect of a fault on both."""
        first, last = span.began + args.grace, span.began + span.seconds + args.calm - args.window
        steps = max(1, int((last - first) / STEP_SECONDS))
        at = [first + n * STEP_SECONDS for n in range(steps)]
        lowest, when = min((self.share(t, t + args.window), t) for t in at)
        during = [a for a in self.stream if span.began <= a.at < span.began + span.seconds]
        times = sorted(a.took * 1000 for a in during if a.placed)
        return {
            'lowest_share': lowest,
            'lowest_after_seconds': round(when - span.began, 1),
            'share_of_the_first_seconds': self.share(span.began, first),
            'callers_rate': round(self.rate(span.began, span.began + span.seconds), 1),
            'callers_by_second': [
                round(self.rate(span.began + n, span.began + n + 1))
                for n in range(int(span.seconds))
            ],
            'stream_p50_ms': callers.percentile(times, 0.5),
            'stream_p99_ms': callers.percentile(times, 0.99),
            'stream_failed': sum(not a.placed for a in during),
        }

    def outcomes(self) -> dict[str, int]:
        """Return how the requests of the stream ended, over the whole run."""
        counts: dict[str, int] = {}
        for request in self.stream:
            name = request.error or 'placed'
            if request.placed and request.took > self._args.budget:
                name = 'placed late'
            counts[name] = counts.get(name, 0) + 1
        return counts

    def broken(self, database: str) -> list[str]:
        """Return the promises not kept; a request without an answer may have a place or none."""
        lines = callers.broken(database, self._promised)
        told_nothing = {f'consumer {c} has a place that nobody was promised' for c in self._unknown}
        return [line for line in lines if line not in told_nothing]
