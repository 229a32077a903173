# SPDX-License-Identifier: Apache-2.0
"""One run: requests in bursts over a tree whose zones have outdated summaries of each other.

Those of a burst are under way together: they are evaluated on about the same state, and claimed
in whatever order the links bring them.  Between bursts guests come and go; zones send the summary
of their room every ``age`` seconds, each at a moment of its own.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from devel.sim.loop import Loop, Process, ProcessClock, TaskThreadPool
from devel.sim.tasks import TaskPool
from devel.sim.zones import stock
from devel.sim.zones.links import ZoneLinks, unchanged
from devel.sim.zones.look import Sampler, shares_of
from devel.sim.zones.placing import carry_out
from devel.sim.zones.stock import RARE_TRAIT
from devel.sim.zones.zone import SimZone, Surroundings
from gantt import plugin_loader
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import GroupRef, Policy, RequestSpec, SelectDestinations
from gantt.zones.conf import load_strategies
from gantt.zones.model.messages import ZoneRecord, ZoneSummary
from gantt.zones.model.strategies import DEFAULT

#: Between two bursts, how long it takes until all of one have begun, and a step of the load.
BURST_SECONDS, BEGIN_SECONDS, STEP_SECONDS = 8.0, 0.02, 32.0
#: Summaries of room: as it is, once and never again, anything, the opposite.
SUMMARIES = ('true', 'frozen', 'random', 'inverted')
_REQUEST_LIMIT = 1_000_000


class TreePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run.

    :ivar hosts: in all zones together
    :ivar middle: child zones of the top
    :ivar sites: zones with hosts below each of these
    :ivar concurrent: requests of a burst
    :ivar samples: of how many requests the place is compared with all others, about
    :ivar age: seconds after which a zone sends a new summary of its room
    :ivar summaries: the change of these, see ``SUMMARIES``
    """

    seed: int = 1
    hosts: int = 5_000
    middle: int = 10
    sites: int = 10
    load: float = 0.8
    concurrent: int = 16
    bursts: int = 6
    samples: int = 100
    age: float = 300.0
    summaries: str = 'true'
    strategies: Sequence[str] = DEFAULT
    options: Mapping[str, Any] = {}

    @property
    def requests(self) -> int:
        return self.bursts * self.concurrent


class TreeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run.

    :ivar missed: requests without a place although some host has room at that moment
    :ivar conflicts: offers that had ended when they were taken, for each request
    :ivar quality: mean over the sampled requests; ``brute``: of all zones at once
    :ivar overcommitted: hosts with less than nothing left
    :ivar messages: evaluations and allocations of a request over all levels, mean
    """

    requests: int
    placed: int
    refused: int
    missed: int
    conflicts: float
    sampled: int
    quality: float
    quality_p05: float
    brute: float
    messages: float
    messages_p99: float
    evaluations: int
    allocations: int
    overcommitted: int
    defects: list[str] = []


class TreeRun:
    """A tree, and the requests of one plan.

    :param note: gets a line of what is done now
    """

    def __init__(
        self,
        plan: TreePlan,
        stacks: TaskThreadPool | None = None,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.plan, self._note = plan, note
        self.loop = Loop(stacks or TaskThreadPool())
        self._process = Process(self.loop, 'tree')
        self.links = ZoneLinks(self.loop, self._rng('ways'))
        pipeline = plugin_loader.load_pipeline()
        self.sampler = Sampler(pipeline)
        around = Surroundings(
            clock=ProcessClock(self._process),
            pipeline=pipeline,
            links=self.links,
            threads=lambda most, _: TaskPool(self.loop, self._process, most),
            strategies=load_strategies(plan.strategies, plan.options),
            rng=self._rng('strategies'),
            watch=self.sampler,
        )
        each = max(1, plan.hosts // (plan.middle * plan.sites))
        self.tree = stock.build_tree(around, plan.middle, plan.sites, each, plan.load, plan.seed)
        self.links.zones = {zone.uuid: zone for zone in self.tree.zones}
        self.links.altered = self._altered()
        self.sampler.zones = [site.zone for site in self.tree.sites]
        self._messages: list[int] = []
        self._placed = self._refused = self._missed = self._lost = 0

    def figures(self) -> TreeFigures:
        """Run all of it; return the figures."""
        try:
            return self._figures()
        finally:
            self.loop.close()

    # -- the course of a run -----------------------------------------------------------
    def _figures(self) -> TreeFigures:
        plan, rng = self.plan, self._rng('bursts')
        self._note('zones read what those below them have')
        for zone in [*self.tree.middle, self.tree.top]:
            for child in zone.children:
                zone.parts.summaries.read(child)
                if plan.summaries != 'frozen':
                    self.loop.at(rng.uniform(0, plan.age), self._read, zone, child)
        requests = random_requests(plan.requests, plan.seed)
        share = plan.samples / len(requests)
        sampled = [self.sampler.sample(item) for item in requests if rng.random() < share]
        # By then what they know is as old as it is later on.
        begin = plan.age
        self._live(0.0, begin)
        for number in range(plan.bursts):
            at = begin + number * BURST_SECONDS
            for item in requests[number * plan.concurrent : (number + 1) * plan.concurrent]:
                self.loop.at(rng.uniform(0, BEGIN_SECONDS), self._begin, item)
            self._live(at, at + BURST_SECONDS)
            self._note(f'burst {number + 1} of {plan.bursts}; missed: {self._missed}')
        measured = [item for item in sampled if item.brute is not None]
        qualities = [float(np.mean(item.qualities)) for item in measured] or [0.0]
        return TreeFigures(
            requests=len(requests),
            placed=self._placed,
            refused=self._refused,
            missed=self._missed,
            conflicts=round(self._lost / len(requests), 4),
            sampled=len(measured),
            quality=round(float(np.mean(qualities)), 4),
            quality_p05=round(float(np.quantile(qualities, 0.05)), 4),
            brute=round(float(np.mean([item.brute or 0.0 for item in measured] or [0.0])), 4),
            messages=round(float(np.mean(self._messages)), 2),
            messages_p99=round(float(np.quantile(self._messages, 0.99)), 1),
            evaluations=self.links.evaluations,
            allocations=self.links.allocations,
            overcommitted=sum(site.overcommitted() for site in self.tree.sites),
            defects=self.loop.defects,
        )

    def _live(self, first: float, last: float) -> None:
        """Let time pass; in its last part, when no request is under way, some zones change."""
        at, parts = first, int(STEP_SECONDS / BURST_SECONDS)
        while at < last:
            self.loop.run(min(last, at + 0.75 * BURST_SECONDS))
            turn = int(at / BURST_SECONDS) % parts
            for site in self.tree.sites[turn::parts]:
                site.step()
            at += BURST_SECONDS
        self.loop.run(last)

    def _read(self, zone: SimZone, child: ZoneRecord) -> None:
        zone.parts.summaries.read(child)
        self.loop.at(self.plan.age, self._read, zone, child)

    def _begin(self, request: SelectDestinations) -> None:
        self.loop.spawn(self._process, 'request', self._carry_out, request)

    def _carry_out(self, request: SelectDestinations) -> None:
        carried_out = carry_out(self.tree.top, request)
        self._lost += carried_out.lost
        self._messages.append(
            sum(self.links.calls.pop(consumer, 0) for consumer in request.consumers)
        )
        if carried_out.is_placed:
            self._placed += 1
            return
        self._refused += 1
        self._missed += bool(shares_of(self.sampler.zones, request))

    # -- inside ------------------------------------------------------------------------
    def _rng(self, what: str) -> random.Random:
        return random.Random(f'{what} {self.plan.seed}')

    def _altered(self) -> Callable[[ZoneRecord, ZoneSummary], ZoneSummary]:
        """Return the function that changes the summary of a zone."""
        rng = self._rng('summaries')

        def anything(zone: ZoneRecord, summary: ZoneSummary) -> ZoneSummary:
            fits = {name: rng.randrange(_REQUEST_LIMIT) for name in summary.fits}
            return msgspec.structs.replace(summary, fits=fits, revision=str(rng.random()))

        def opposite(zone: ZoneRecord, summary: ZoneSummary) -> ZoneSummary:
            fits = {name: _REQUEST_LIMIT // (1 + count) for name, count in summary.fits.items()}
            return msgspec.structs.replace(summary, fits=fits)

        return {'random': anything, 'inverted': opposite}.get(self.plan.summaries, unchanged)


T = TypeVar('T')

#: Processors of a guest, how often they are requested, and GiB for each: not one of the three
#: is what a host has, so that either may run out first.
VCPUS = {1: 30, 2: 25, 4: 20, 8: 12, 16: 8, 32: 4, 64: 1}
GIB_EACH = {1.5: 30, 3.5: 45, 6.5: 25}
GIB_MOST = 240
#: How often a request is for several members, and by which rule; how often for a rare trait.
KINDS: dict[str, int] = {'one': 84, 'together': 5, 'apart': 5, 'several': 4, 'rare': 2}
MEMBERS_MOST, MEMBER_VCPUS_MOST = 5, 8


def random_requests(count: int, seed: int) -> list[SelectDestinations]:
    """Return so many requests; they follow from the seed."""
    rng = random.Random(f'orders {seed}')
    return [_random_request(number, seed, rng) for number in range(count)]


def _random_request(number: int, seed: int, rng: random.Random) -> SelectDestinations:
    kind = _weighted_choice(KINDS, rng)
    members = rng.randint(2, MEMBERS_MOST) if kind in ('together', 'apart', 'several') else 1
    vcpus, each = _weighted_choice(VCPUS, rng), _weighted_choice(GIB_EACH, rng)
    if members > 1:
        vcpus = min(vcpus, MEMBER_VCPUS_MOST)
    policies = {'together': Policy.AFFINITY, 'apart': Policy.ANTI_AFFINITY}
    group = None
    if kind in policies:
        group = GroupRef(uuid=derived_id('group', seed, number), policy=policies[kind])
    return SelectDestinations(
        request_id=derived_id('order', seed, number),
        spec=RequestSpec(
            resources={'VCPU': vcpus, 'MEMORY_MB': int(min(vcpus * each, GIB_MOST) * 1024)},
            group=group,
            required_traits=[RARE_TRAIT] if kind == 'rare' else [],
        ),
        consumers=[derived_id('guest', seed, number, member) for member in range(members)],
        alternates=0,
    )


def _weighted_choice(of: dict[T, int], rng: random.Random) -> T:
    return rng.choices(list(of), list(of.values()))[0]
