# SPDX-License-Identifier: Apache-2.0
"""Random trees of zones, and requests to them: small, and often full.

A tree is up to four levels deep, with hosts at any level.  What its zones know of each other is
true, old, or wrong.
"""

import random
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future

import msgspec

from devel.sim.zones.links import ZoneLinks
from devel.sim.zones.zone import SimZone, Surroundings
from gantt import plugin_loader
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import GroupRef, Policy, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostChange, HostFacts, HostRow
from gantt.core.table.host_table import HostTable
from gantt.zones.conf import load_strategies
from gantt.zones.model import choice
from gantt.zones.model.choice import ZoneChoice
from gantt.zones.model.messages import ZoneRecord, ZoneSummary
from gantt.zones.model.strategies import ZoneStrategy
from gantt.zones.service.offers.queries import Call, QueriedZone
from tests.zones.tree import AS_BETWEEN_ZONES

NOW = 1_000_000.0
DEPTH_MOST, BELOW_MOST, HOSTS_MOST, ZONES_MOST = 4, 4, 6, 12
TRAITS = ('CUSTOM_A', 'CUSTOM_B')
STRATEGIES = (
    'StaticRuleOut',
    'BruteForce',
    'RandomOrder',
    'LikelyFirst',
    'TopN',
    'WeightedRandom',
    'GoodEnough',
    'Threshold',
)
GOOD_ENOUGH = 0.8
PIPELINE = plugin_loader.load_pipeline()
COMPARABLE = plugin_loader.load_pipeline(**AS_BETWEEN_ZONES)


class RunAtOnce:
    """Threads whose calls are over when they have begun: no time passes."""

    def __init__(self, most: int, name: str) -> None:
        pass

    def begin(self, job: Callable[[], QueriedZone]) -> Call:
        call: Call = Future()
        call.set_result(job())
        return call

    def wait(
        self, calls: Collection[Call], seconds: float, return_when: str
    ) -> tuple[list[Call], list[Call]]:
        return list(calls), []

    def close(self) -> None:
        pass


class SetClock:
    """A clock that stands still but for what is added to it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class AnyTree:
    """The tree of a seed.

    :param strategies: that are in force; None: any
    :param is_plain: what zones know of each other is so, none is a last resort, and each prefers
        what zones are compared by
    :ivar zones: all of them, the top one first
    """

    def __init__(
        self, seed: int, strategies: Sequence[str] | None = None, is_plain: bool = False
    ) -> None:
        self._last_resorts = 0.0 if is_plain else 0.1
        self.rng = random.Random(f'tree {seed}')
        self.seed, self.clock = seed, SetClock()
        self.names = list(self._some() if strategies is None else strategies)
        self.links = ZoneLinks(None, self.rng)
        self.links.altered = self._altered
        self._around = Surroundings(
            clock=self.clock,
            pipeline=COMPARABLE if is_plain else PIPELINE,
            links=self.links,
            threads=RunAtOnce,
            strategies=self._strategies(),
            rng=self.rng,
        )
        self.zones: list[SimZone] = []
        self._summaries = self.rng.choice(('true', 'random', 'inverted'))
        self.top = self._zone(1)
        self._read()
        if self.rng.random() < 0.5 and not is_plain:
            self._change()

    def _some(self) -> list[str]:
        chosen = [name for name in STRATEGIES if self.rng.random() < 0.4]
        return self.rng.sample(chosen, len(chosen))

    def _strategies(self) -> list[ZoneStrategy]:
        small = {
            'brute_force_max': 2,
            'top_n_zones': 1,
            'likely_first_each': 1,
            'weighted_random_first': 1,
            'weighted_random_then': 1,
            'good_enough_share': GOOD_ENOUGH,
        }
        return load_strategies(self.names, small)

    # -- what there is -------------------------------------------------------------------
    def _zone(self, level: int) -> SimZone:
        rng = self.rng
        is_last = level == DEPTH_MOST or (level > 1 and rng.random() < 0.5)
        hosts = rng.randint(0, HOSTS_MOST) if is_last or rng.random() < 0.4 else 0
        name = f'{self.seed}-{len(self.zones)}'
        zone = SimZone(name, self._around, self._table(name, hosts))
        self.zones.append(zone)
        self.links.zones[zone.uuid] = zone
        if not is_last:
            for _ in range(rng.randint(1, BELOW_MOST)):
                if len(self.zones) < ZONES_MOST:
                    zone.put_above(
                        self._zone(level + 1), last_resort=rng.random() < self._last_resorts
                    )
        return zone

    def _table(self, name: str, hosts: int) -> HostTable:
        traits = [trait for trait in TRAITS if self.rng.random() < 0.3]
        changes = [self._change_of(f'{name}-{n}', n, 1, traits) for n in range(1, hosts + 1)]
        return HostTable.build(changes, [], {}, now=NOW)

    def _change_of(self, name: str, number: int, version: int, traits: list[str]) -> HostChange:
        vcpus = self.rng.choice((2, 4, 8))
        inventories = {'VCPU': Inventory(total=vcpus), 'MEMORY_MB': Inventory(total=16 * 1024)}
        row = HostRow(
            id=number,
            uuid=name,
            name=name,
            version=version,
            facts=HostFacts(inventories=inventories, traits=traits),
            used={
                'VCPU': self.rng.randint(0, vcpus),
                'MEMORY_MB': self.rng.randint(0, 16) * 1024,
            },
            reported_at=NOW,
        )
        return HostChange(provider_id=number, row=row)

    # -- what is known of it ---------------------------------------------------------------
    def _altered(self, zone: ZoneRecord, summary: ZoneSummary) -> ZoneSummary:
        if self._summaries == 'random':
            fits = {name: self.rng.randrange(100) for name in summary.fits}
        elif self._summaries == 'inverted':
            fits = {name: 100 // (1 + count) for name, count in summary.fits.items()}
        else:
            return summary
        return msgspec.structs.replace(summary, fits=fits)

    def _read(self) -> None:
        for zone in reversed(self.zones):
            for child in zone.children:
                zone.parts.summaries.read(child)

    def _change(self) -> None:
        """All hosts of some zones are others by now, their traits too."""
        for zone in self.zones:
            if self.rng.random() < 0.5:
                traits = [trait for trait in TRAITS if self.rng.random() < 0.3]
                for row in list(zone.table.hosts):
                    zone.table.apply(self._change_of(row.name, row.id, row.version + 1, traits))
        self.clock.now += 10.0

    # -- what is requested -------------------------------------------------------------------
    def request(self, number: int, rules: bool = False) -> SelectDestinations:
        """For one guest or some.

        :param rules: some that may be given up
        """
        rng = self.rng
        kind = rng.choice(('one', 'one', 'one', 'together', 'apart', 'several'))
        many = 1 if kind == 'one' or rules else rng.randint(2, 3)
        policies = {'together': Policy.AFFINITY, 'apart': Policy.ANTI_AFFINITY}
        group = None
        if kind in policies and many > 1:
            group = GroupRef(uuid=derived_id(self.seed, number), policy=policies[kind])
        texts = [f'drop {n}: free.VCPU >= {rng.randint(3, 8)}' for n in (1, 2)] if rules else []
        return SelectDestinations(
            request_id=derived_id('request', self.seed, number),
            spec=RequestSpec(
                resources={
                    'VCPU': rng.choice((1, 1, 2, 3, 8)),
                    'MEMORY_MB': rng.choice((1, 2, 5, 12)) * 1024,
                },
                group=group,
                required_traits=[rng.choice(TRAITS)] if rng.random() < 0.3 else [],
                hints={'rules': texts} if texts else {},
            ),
            consumers=[derived_id('guest', self.seed, number, k) for k in range(many)],
            alternates=0,
        )

    # -- what is so ------------------------------------------------------------------------
    def all_choices(self, request: SelectDestinations) -> list[ZoneChoice]:
        """What all zones have, of its own hosts alone; best first."""
        choices = []
        for zone in self.zones:
            for offered in zone.own.offers(request, 1, is_only=True).choices:
                choices.append(msgspec.structs.replace(offered, child=zone.uuid))
        return choice.best_first(choices)

    def has_room(self, request: SelectDestinations) -> bool:
        """Whether a look at all hosts finds places for all members.

        Those that may be split over places go to zones directly below, as brute force has it.
        """
        members, whole = range(len(request.consumers)), choice.is_whole(request)
        if len(members) == 1 or whole:
            return bool(choice.split_over_choices(members, self.all_choices(request), whole))
        evaluated = self.top.parts.evaluator.evaluate(request, 20, 2.0, thorough=True)
        return bool(choice.split_over_choices(members, evaluated.choices, whole))
