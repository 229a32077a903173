# SPDX-License-Identifier: Apache-2.0
"""Cost of plans for single requests, and of the creation of members that were planned.

``beside``: windows of single requests while groups are planned and released without end, and
without, in turn; then at half of that rate, for the times.  ``created``: as many creates of planned
members as single requests, in turn.
"""

import argparse
import contextlib
import random
import statistics
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench import Result, callers, conditions, count, group_clouds, group_rig
from bench.group_rig import PLANNER, SCHEDULER, PlannerCaller
from gantt.core.messages.request import GroupRef, RequestSpec, SelectDestinations
from gantt.groups.model import group_description

HOSTS = 1000
#: Members of a group, and hosts of a rack.
MEMBERS, RACK = 50, 40
#: Time limit of the last plan, once no other is begun.
LAST_PLAN_SECONDS = 60.0
#: Time limit of a window that ends by its number of calls.
WINDOW_MAX = 600.0
#: Planning time of the members that are created: it is not measured.
PLAN_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of both benches."""
    group = parser.add_argument_group('of --beside and --create')
    group.add_argument('--callers', type=count, default=16)
    group.add_argument('--repeats', type=count, default=7, help='pairs of windows of each kind')
    group.add_argument('--window', type=float, default=6.0, help='seconds of one')
    group.add_argument('--plan-seconds', type=float, default=2.0, help='of each plan')
    group.add_argument('--groups', type=count, default=16, help='of 50, created in a window')


def _facts(hosts: int) -> dict[str, dict[str, Any]]:
    """Return hosts with ample room, which differ in how much of it; in racks."""
    return {
        f'cmp-{number:05}': {
            'inventories': callers.AMPLE,
            'foreign': {'MEMORY_MB': 1024 * (number % 97)},
            'location': f'site1.room1.rack{number // RACK}',
        }
        for number in range(hosts)
    }


class Endless:
    """Groups that are planned and released, one after the other, while it is switched on.

    :ivar plans: how many were
    :ivar seconds: in which they were, the last ones finished
    :ivar problems: errors answered in place of a plan, a line each
    """

    def __init__(self, transport: Any, hosts: int, seconds: float) -> None:
        self._planner = PlannerCaller(transport)
        cloud = group_clouds.alike(MEMBERS, hosts, 1)
        self._description = group_clouds.description_of(cloud)
        self._seconds = seconds
        self.plans, self.seconds = 0, 0.0
        self.problems: list[str] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Plan one after the other until it is left; none is under way then."""
        ending = threading.Event()
        thread = threading.Thread(target=self._run, args=(ending,))
        began = time.perf_counter()
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join(LAST_PLAN_SECONDS)
            self.seconds += time.perf_counter() - began
        if thread.is_alive():
            raise RuntimeError(f'no plan was finished within {LAST_PLAN_SECONDS:.0f} s')

    def _run(self, ending: threading.Event) -> None:
        while not ending.is_set():
            try:
                answer = self._planner.place(self._description, self._seconds)
                self._planner.release(answer.group)
            except Exception as e:
                self.problems.append(f'plan {self.plans}: {e}')
                return
            if answer.plan is None or len(answer.plan.members) != MEMBERS:
                self.problems.append(f'plan {self.plans} has not all members')
            self.plans += 1


def beside(args: argparse.Namespace) -> Result:
    """Measure rates with plans and without, and at half load the 99th percentiles of both."""
    hosts = args.hosts or HOSTS
    with group_rig.planners({}) as (testbed, transport):
        callers.report_facts(testbed, transport, _facts(hosts))
        placer = callers.Placer(transport)
        endless = Endless(transport, hosts, args.plan_seconds)
        callers.window(placer.place, args.callers, args.window / 2)
        rates: dict[bool, list[float]] = {True: [], False: []}
        cpu = dict.fromkeys((SCHEDULER, PLANNER), 0.0)
        for number in range(args.repeats):
            for planning in (True, False) if number % 2 else (False, True):
                before = {name: testbed.cpu_seconds(name) for name in cpu}
                with endless.running() if planning else contextlib.nullcontext():
                    rate, _ = callers.window(placer.place, args.callers, args.window)
                    rates[planning].append(rate)
                if planning:
                    for name in cpu:
                        cpu[name] += testbed.cpu_seconds(name) - before[name]
        rate = statistics.median(rates[False])
        half = _half_load(placer, endless, rate / 2, args)
        problems = callers.violations(testbed.database) + endless.problems
        problems += callers.broken(testbed.database, placer.promised)
        stated = callers.servers(testbed)
        memory = {name: round(testbed.rss_mb(name), 1) for name in (SCHEDULER, PLANNER)}
    value = round(statistics.median(rates[True]), 1)
    return Result(
        bench='groups --beside',
        value=value,
        unit='single requests/s while groups are planned',
        yardstick={'name': 'the same while none is', 'value': round(rate, 1)},
        ratio=round(value / round(rate, 1), 3),
        conditions={
            **conditions.here(),
            **stated,
            'hosts': hosts,
            'callers': args.callers,
            'members': MEMBERS,
            'plan_seconds': args.plan_seconds,
            'plans': endless.plans,
            'plans_per_minute': round(60 * endless.plans / max(endless.seconds, 0.001), 1),
            'ratios': [
                round(loaded / other, 3)
                for loaded, other in zip(rates[True], rates[False], strict=True)
            ],
            **half,
            'cpu_seconds_while_planning': {name: round(used, 1) for name, used in cpu.items()},
            'rss_mb_of': memory,
            'problems': problems[:20],
        },
        audit=len(problems),
    )


def _half_load(
    placer: callers.Placer, endless: Endless, rate: float, args: argparse.Namespace
) -> dict[str, Any]:
    """Send requests at ``rate`` a second; return the median over the pairs of their p99."""
    p99: dict[bool, list[float]] = {True: [], False: []}
    every: dict[bool, list[float]] = {True: [], False: []}
    with ThreadPoolExecutor(callers.OPEN_THREADS) as pool:
        for number in range(args.repeats):
            for planning in (True, False) if number % 2 else (False, True):
                with endless.running() if planning else contextlib.nullcontext():
                    times = callers.open_loop(pool, placer.place, rate, args.window, seed=number)
                p99[planning].append(callers.percentile(sorted(times), 0.99))
                every[planning] += times
    ratios = [loaded / other for loaded, other in zip(p99[True], p99[False], strict=True)]
    return {
        'p99_ratio': round(statistics.median(ratios), 2),
        'p99_ratios': [round(ratio, 2) for ratio in ratios],
        'half_load_rate': round(rate, 1),
        'p50_ms': callers.percentile(sorted(every[True]), 0.5),
        'p99_ms': callers.percentile(sorted(every[True]), 0.99),
        'p50_ms_without': callers.percentile(sorted(every[False]), 0.5),
        'p99_ms_without': callers.percentile(sorted(every[False]), 0.99),
    }


class Creates:
    """Creates of members that were planned, each once, in an order of chance.

    :ivar problems: those that are not where their members were planned, a line each
    """

    def __init__(self, transport: Any, placer: callers.Placer) -> None:
        self._planner, self._placer = PlannerCaller(transport), placer
        self._rng, self._lock = random.Random(1), threading.Lock()
        self._left: list[tuple[GroupRef, str]] = []
        self.problems: list[str] = []

    def plan(self, groups: int) -> int:
        """Plan so many groups; how many members wait to be created."""
        body = {
            'members': [{'name': 'web', 'count': MEMBERS, 'spec': {'resources': callers.TAKES}}],
            'policies': [{'policy': 'anti-affinity', 'max_per_domain': 2}],
        }
        description = group_description.read(body)
        for _ in range(groups):
            answer = self._planner.place(description, PLAN_SECONDS)
            planned = [] if answer.plan is None else answer.plan.members
            self._left += [
                (GroupRef(uuid=answer.group, member=place.name), place.host) for place in planned
            ]
        self._rng.shuffle(self._left)
        return len(self._left)

    def create(self) -> None:
        """Create one planned member that waits."""
        with self._lock:
            group, host = self._left.pop()
        request = SelectDestinations(
            request_id=str(uuid.uuid4()),
            spec=RequestSpec(resources=callers.TAKES, group=group),
            consumers=[str(uuid.uuid4())],
            budget_ms=60_000,
            lease_seconds=callers.LEASE_SECONDS,
        )
        answer = self._placer.client.select_destinations(request)
        self._placer.note(answer)
        claimed_host = answer.selections[0][0].host
        if claimed_host != host:
            with self._lock:
                self.problems.append(f'{group.member} is on {claimed_host}, planned on {host}')


def created(args: argparse.Namespace) -> Result:
    """Measure creates of planned members and single requests, as many of each, in turn."""
    hosts = args.hosts or HOSTS
    rates: dict[str, list[float]] = {'create': [], 'single': []}
    times: dict[str, list[float]] = {'create': [], 'single': []}
    with group_rig.planners({}) as (testbed, transport):
        callers.report_facts(testbed, transport, _facts(hosts))
        placer = callers.Placer(transport)
        creates = Creates(transport, placer)
        calls = {'create': creates.create, 'single': placer.place}
        members = args.groups * MEMBERS
        cpu = dict.fromkeys(calls, 0.0)
        callers.window(placer.place, args.callers, args.window, most=members)
        for number in range(args.repeats):
            waiting = creates.plan(args.groups)
            for kind in ('create', 'single') if number % 2 else ('single', 'create'):
                before = testbed.cpu_seconds(SCHEDULER)
                rate, every = callers.window(calls[kind], args.callers, WINDOW_MAX, most=waiting)
                cpu[kind] += testbed.cpu_seconds(SCHEDULER) - before
                rates[kind].append(rate)
                times[kind] += every
        problems = callers.violations(testbed.database) + creates.problems
        problems += callers.broken(testbed.database, placer.promised)
        stated = callers.servers(testbed)
    value, stick = (round(statistics.median(rates[kind]), 1) for kind in ('create', 'single'))
    return Result(
        bench='groups --create',
        value=value,
        unit='creates/s of planned members',
        yardstick={'name': 'single requests/s', 'value': stick},
        ratio=round(value / stick, 3),
        conditions={
            **conditions.here(),
            **stated,
            'hosts': hosts,
            'callers': args.callers,
            'groups': args.groups,
            'members': MEMBERS,
            'repeats': args.repeats,
            'ratios': [
                round(create_rate / other, 3)
                for create_rate, other in zip(rates['create'], rates['single'], strict=True)
            ],
            **{
                f'p{share}_ms_of_{kind}': callers.percentile(sorted(every), share / 100)
                for kind, every in times.items()
                for share in (50, 99)
            },
            'scheduler_cpu_ms_by_kind': {
                kind: round(used * 1000 / max(1, len(times[kind])), 3) for kind, used in cpu.items()
            },
            'problems': problems[:20],
        },
        audit=len(problems),
    )
