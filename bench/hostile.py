# SPDX-License-Identifier: Apache-2.0
"""Measure the worst that one accepted request costs the threads that others wait for.

Requests are searched for by hypothesis, over all that a request may say: the value is the
milliseconds of the scheduling thread that the worst one takes in one piece, which is for how
long another request waits behind it.  Between two pieces others are served.  The database
is left out, and shown beside.  Groups are searched for that keep the planner longer than
their budget, and queries for candidates for which others wait, see
:mod:`bench.hostile_searches`.  The worst that were ever found are in ``hostile.json`` and
``hostile_plans.json``, and are always tried first; ``--keep`` adds what is worse.
"""

import argparse
import json
import pathlib
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from bench import Result, conditions
from bench import hostile_searches as searches
from bench.hostile_requests import requests as any_request
from devel.doubles import MemoryRecorder
from devel.memory_store.stores import memory_stores
from gantt import exceptions, plugin_loader
from gantt.cmd import wiring
from gantt.core.candidates.table import ClassInventory, ProviderEntry
from gantt.core.messages import base
from gantt.core.messages import request as requests
from gantt.core.messages.report import HostReport, RegisterHost
from gantt.core.messages.request import CancelClaims, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Answer
from gantt.core.table.nested import as_inventory
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.testing import clouds

KEPT = pathlib.Path(__file__).with_name('hostile.json')
KEPT_PLANS = pathlib.Path(__file__).with_name('hostile_plans.json')
STORED_MAX = 24
#: Hosts with devices below them: many that differ on a few hosts, and a few on others.
MANY_ON, MANY, FEW_ON, FEW = 4, 31, 96, 4
REPEATS = 3
STEPS_MAX = 3000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument('--hosts', type=int, default=1000)
    parser.add_argument('--examples', type=int, default=300, help='requests that are tried')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--keep', action='store_true', help='write what is worse to hostile.json')


class Replies:
    """A carrier that takes the answers."""

    def __init__(self) -> None:
        self.answers: dict[object, Answer] = {}

    def send(self, answers: Any) -> None:
        """Keep them by their handle."""
        self.answers.update(answers)

    send_soon = send


class Cost(msgspec.Struct, frozen=True):
    """Costs of one request, in milliseconds of the thread.

    :ivar piece: the longest between two checks for waiting requests
    :ivar whole: all pieces
    :ivar commit: the database's part, which is in neither
    """

    piece: float
    whole: float
    commit: float
    outcome: str


class Site:
    """A scheduler that is stepped by us, over hosts of many kinds with room for all."""

    def __init__(self, hosts: int, seed: int) -> None:
        self.clock = SystemClock()
        self.store = memory_stores(clock=self.clock)
        self.replies, self.serial = Replies(), 0
        self._pieces: list[float] = []
        self._began = self._store_ms = 0.0
        settings = SchedulerSettings(
            worker='hostile', batch_wait_ms=0.0, stale_after_seconds=1e9, unknown_after_seconds=1e9
        )
        self.pipeline = plugin_loader.load_pipeline()
        self.scheduler = Scheduler(
            self.store, self.pipeline, MemoryRecorder(), settings, self.clock
        )
        self._fill(hosts, random.Random(seed))
        wiring.collect_garbage_rarely()
        self._meter()

    def _fill(self, hosts: int, rng: random.Random) -> None:
        self.store.vocabulary.declare_class('CUSTOM_X')
        for number in range(1, hosts + 1):
            facts = clouds._facts(rng, number)
            inventories = {
                name: msgspec.structs.replace(
                    inventory, total=50 * max(inventory.total, 4), min_unit=1, step_size=1
                )
                for name, inventory in facts.inventories.items()
            }
            name = f'cmp-{number}'
            epoch = self.scheduler.register_host(RegisterHost(name=name, boot_nonce='a')).epoch
            self.scheduler.report(
                HostReport(
                    name=name,
                    epoch=epoch,
                    sequence=1,
                    full=True,
                    running=[],
                    pending=[],
                    inventories=inventories,
                    traits=facts.traits,
                    location=facts.location,
                    numa=facts.numa,
                    devices=facts.devices,
                    hypervisor=facts.hypervisor,
                    metrics=facts.metrics,
                    zone=rng.choice(clouds.ZONES),
                )
            )
            if not number % 50:
                self.scheduler.report_queue.step()
        self._add_devices()
        for number in range(40):
            inside = [f'cmp-{n}' for n in range(1, hosts + 1) if rng.random() < 0.5]
            metadata = dict(rng.choice(clouds.METADATA[2:]))
            self.store.declarations.save_aggregate(f'agg-{number}', metadata, inside, None)
        while self.scheduler.report_queue.step():
            pass
        self.scheduler.cache.fetch()
        self.scheduler.placing.step()

    def _add_devices(self) -> None:
        """Add devices of which no two are equal, so that one gives no information on another."""
        self.scheduler.cache.fetch()
        self.scheduler.placing.step()
        self.store.vocabulary.create_trait('CUSTOM_EVEN')
        table = self.scheduler.cache.working
        for at in range(min(MANY_ON + FEW_ON, len(table))):
            many = at < MANY_ON
            for n in range(MANY if many else FEW):
                reserved = 40 * at + n
                room = 66 if many else 100
                provider = self.store.providers.create_provider(
                    f'gpu-{at}-{n}',
                    parent=table.hosts[at].uuid,
                    inventories={'VGPU': Inventory(total=room + reserved, reserved=reserved)},
                )
                if not n % 2:
                    self.store.providers.save_provider_traits(provider.uuid, ['CUSTOM_EVEN'])

    def entries(self) -> list[ProviderEntry]:
        """Return all providers, for candidates."""
        table = self.scheduler.cache.working
        providers = [
            ProviderEntry(
                id=host.id,
                uuid=host.uuid,
                root_id=host.id,
                inventories={'VCPU': ClassInventory(cap=1000)},
            )
            for host in table.hosts
        ]
        for pid, pool in table.pools.by_id.items():
            providers.append(
                ProviderEntry(
                    id=pid,
                    uuid=pool.uuid,
                    root_id=pool.root,
                    parent_id=pool.parent,
                    traits=tuple(pool.traits),
                    inventories={'VGPU': as_inventory(pool, 'VGPU', 0)},
                )
            )
        return providers

    def _meter(self) -> None:
        """Record when the thread checks for waiting requests, and how long the database has it."""
        admission = self.scheduler.placing.admission
        drain = admission.drain

        def drained(*args: Any) -> Any:
            self._note()
            drained = drain(*args)
            self._began = time.thread_time()
            return drained

        admission.drain = drained  # type: ignore[method-assign]
        for name in ('commit', 'give_up'):
            requests = self.store.requests
            setattr(requests, name, self._left_out(getattr(requests, name)))

    def _left_out(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args)
            finally:
                spent = time.thread_time() - began
                self._store_ms += 1000 * spent
                self._began += spent

        return timed

    def _note(self) -> None:
        self._pieces.append(1000 * (time.thread_time() - self._began))

    def cost(self, body: dict[str, Any]) -> Cost | None:
        """Return the costs of a request; None where it is refused before it gets to the thread."""
        self.serial += 1
        body = body | {
            'request_id': base.derived_id('hostile', self.serial),
            'consumers': [
                base.derived_id('hostile', self.serial, n) for n in range(body['consumers'])
            ],
            'budget_ms': 600_000,
        }
        if len(msgspec.json.encode(body)) > base.REQUEST_BYTES_MAX:
            return None
        try:
            request = base.decode(body, SelectDestinations, inside='request')
            requests.check(request)
        except exceptions.GanttError:
            return None
        return self._placed(request)

    def _placed(self, request: SelectDestinations) -> Cost:
        self._pieces = []
        self._began, self._store_ms = time.thread_time(), 0.0
        self.scheduler.submit(request, request.request_id, self.replies)
        for _ in range(STEPS_MAX):
            self.scheduler.placing.step()
            if request.request_id in self.replies.answers:
                break
        self._note()
        pieces, store_ms = self._pieces, self._store_ms
        answer = self.replies.answers.pop(request.request_id, None)
        if answer is not None and answer.selections:
            self._pieces = []  # what follows is none of the request's
            self.scheduler.cancel(CancelClaims(request_id=request.request_id))
            self.scheduler.placing.step()
        outcome = 'no answer' if answer is None else answer.outcome.value
        return Cost(max(pieces), sum(pieces), store_ms, outcome)

    def worst(self, body: dict[str, Any]) -> Cost | None:
        """Return the least costs of a few repeats, where the machine is at its best."""
        costs = [cost for _ in range(REPEATS) if (cost := self.cost(body)) is not None]
        return min(costs, key=lambda cost: cost.piece, default=None)


def search(site: Site, examples: int, seed: int) -> list[tuple[float, dict[str, Any]]]:
    """Return requests that cost much, worst first."""

    def piece(body: dict[str, Any]) -> float | None:
        cost = site.cost(body)
        return None if cost is None else cost.piece

    return searches.worst(any_request(), piece, examples, seed) if examples else []


def search_plans(site: Site, args: argparse.Namespace) -> dict[str, Any]:
    """Measure how long groups keep the planner, and queries for candidates the others."""
    planning = searches.Planning(site.store, site.pipeline, site.clock)
    kept_plans = json.loads(KEPT_PLANS.read_text()) if KEPT_PLANS.exists() else []
    tried = args.examples // 3
    ranked = searches.worst(searches.plans(), planning.cost, tried, args.seed) if tried else []
    costs = []
    for body in [*kept_plans, *(body for _, body in ranked[:4])]:
        again = [cost for _ in range(REPEATS) if (cost := planning.cost(body)) is not None]
        if again:
            costs.append((min(again), body))
    costs.sort(key=lambda cost: -cost[0])
    if args.keep:
        kept = [json.dumps(body, separators=(',', ':')) for _, body in costs[:STORED_MAX]]
        KEPT_PLANS.write_text('[' + ',\n'.join(kept) + ']\n')
    asking = searches.Asking(site.entries())
    waits: list[tuple[float, float]] = []

    def asked(query: tuple[list[dict[str, int]], int | None]) -> float:
        waits.append(asking.cost(*query))
        return waits[-1][1]

    searches.worst(searches.queries(), asked, max(tried, 1), args.seed)
    longest = max((cost for cost, _ in costs), default=0.0)
    return {
        'plans_tried': tried,
        'plans_accepted': len(ranked),
        'plans_known': len(kept_plans),
        'planner_ms': round(max(longest - searches.BUDGET_MS, 0.0), 1),
        'planner_whole_ms': [round(cost, 1) for cost, _ in costs[:6]],
        'planner_budget_ms': searches.BUDGET_MS,
        'candidates_wait_ms': round(min(wait for wait, _ in waits[:REPEATS]), 1),
        'candidates_whole_ms': round(max(whole for _, whole in waits), 1),
    }


def run(args: argparse.Namespace) -> Result:
    """Try what was found before, search for worse, and measure the worst again."""
    site = Site(args.hosts, args.seed)
    plain = site.worst({'consumers': 1, 'spec': {'resources': {'VCPU': 1}}})
    assert plain is not None, 'a plain request is accepted'
    kept_bodies = json.loads(KEPT.read_text()) if KEPT.exists() else []
    ranked = search(site, args.examples, args.seed)
    tried = [*kept_bodies, *(body for _, body in ranked[:8])]
    costs = [(cost, body) for body in tried if (cost := site.worst(body)) is not None]
    costs.sort(key=lambda cost: -cost[0].piece)
    worst, body = costs[0]
    others = search_plans(site, args)
    value = max(worst.piece, others['candidates_wait_ms'])
    if args.keep:
        kept = [body for _, body in costs[:STORED_MAX]]
        KEPT.write_text(json.dumps(kept, separators=(',', ':')).replace('},{"c', '},\n{"c') + '\n')
    return Result(
        bench='hostile',
        value=value,
        unit='ms of a thread that others wait for in one piece, the worst accepted request',
        yardstick={'name': 'a request for one VCPU', 'value': plain.piece},
        ratio=value / plain.piece,
        conditions=conditions.here()
        | others
        | {
            'clock': 'processor time of the thread: neighbours of the machine are not in it',
            'hosts': args.hosts,
            'tried': args.examples,
            'accepted': len(ranked),
            'known': len(kept_bodies),
            'worst_whole_ms': round(worst.whole, 1),
            'worst_commit_ms': round(worst.commit, 1),
            'worst_outcome': worst.outcome,
            'worst_members': body['consumers'],
            'worst_says': sorted(body['spec']),
            'longest_whole_ms': round(max(cost.whole for cost, _ in costs), 1),
            'longest_commit_ms': round(max(cost.commit for cost, _ in costs), 1),
            'next_ms': [round(cost.piece, 1) for cost, _ in costs[1:6]],
        },
        audit=sum(map(len, site.store.claims.audit().values())),
    )
