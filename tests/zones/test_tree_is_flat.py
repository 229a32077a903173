# SPDX-License-Identifier: Apache-2.0
"""A tree of zones with hosts at every level answers as one zone with all of these hosts does.

Quotas, hard rules of groups and refusals agree, one request after the other and eight at once, and
what projects have is the same in the end.  Each seed has a project and a group of its own, so that
seeds do not meet: all of a block go to the same zones, which are asked at two levels and at three.
"""

import concurrent.futures
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from gantt.core.messages.base import derived_id
from gantt.core.messages.request import GroupRef, Policy, SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.core.resources.host import Group
from gantt.stores import stores_for_url
from tests.services import UNHURRIED
from tests.world import a_request
from tests.zones.tree import Zone, until

#: Seeds of one kind of database, all of which go to the same zones.
BLOCK = 100
AT_ONCE = 8
#: Hosts of each zone; nobody needs all of one.
HOSTS = {'top': 1, 'middle': 1, 'leaf': 2, 'side': 1}
VCPU, REPORT_SECONDS = 100_000, 60.0
#: What says that it may be asked again, and nothing of the request.
PASSING = (Outcome.CONFLICT, Outcome.BUSY)
REFUSED = (Outcome.NO_VALID_HOST, Outcome.REFUSED)


class Level(NamedTuple):
    """A zone with others below it, and the one zone with all the hosts of these."""

    entry: Zone
    flat: Zone
    tree: Sequence[Zone]


class Zones:
    """Zones, of which the one in the middle, which is above and below, is on a kind of database.

    :param url: makes the URL of an empty database of a kind
    """

    def __init__(self, kind: str, url: Any) -> None:
        self.made: list[Zone] = []

        def zone(name: str, hosts: int) -> Zone:
            store = stores_for_url(url(kind if name == 'middle' else 'sqlite'), timeouts=UNHURRIED)
            started = Zone(name, store)
            self.made.append(started)
            return started.start().hosts(hosts, VCPU)

        named = {name: zone(name, hosts) for name, hosts in HOSTS.items()}
        top, middle, leaf, side = named.values()
        middle.above(leaf)
        top.above(middle, side)
        two, three = [middle, leaf], [top, middle, leaf, side]
        self.levels = [
            Level(tree[0], zone(f'flat-{len(tree)}', sum(HOSTS[node.name] for node in tree)), tree)
            for tree in (two, three)
        ]
        self.callers = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
        self._reported = time.monotonic()

    def report(self) -> None:
        """Have all hosts report again before what is known of them is old."""
        if time.monotonic() - self._reported < REPORT_SECONDS:
            return
        for zone in self.made:
            for name in zone.epochs:
                zone.report(name, VCPU)
        self._reported = time.monotonic()

    def stop(self) -> None:
        self.callers.shutdown()
        with concurrent.futures.ThreadPoolExecutor(len(self.made)) as threads:
            list(threads.map(Zone.stop, self.made))
        for zone in self.made:
            zone.store.database.close()


class Seed:
    """What one seed asks of a tree, and of the flat zone beside it."""

    def __init__(self, seed: int, zones: Zones) -> None:
        self.dice, self.number = random.Random(f'tree and flat {seed}'), seed
        self.zones, self.level = zones, zones.levels[seed % 3 == 0]
        self.project = f'project-{seed}'
        self.group = self._group()
        self.limits = self._limits()
        self.placed: list[SelectDestinations] = []
        self.consumers: list[str] = []
        for zone in (self.level.entry, self.level.flat):
            if self.limits:
                zone.store.quotas.set_quotas(self.project, self.limits)
                zone.scheduler.quotas.read()

    def _group(self) -> GroupRef | None:
        policy = self.dice.choice((None, Policy.AFFINITY, Policy.ANTI_AFFINITY))
        if policy is None:
            return None
        uuid = derived_id('group of', self.number)
        if self.dice.random() < 0.5:
            return GroupRef(uuid=uuid, policy=policy)
        for zone in (self.level.entry, self.level.flat):
            zone.store.groups.save_group(Group(uuid=uuid, policy=policy, project_id=self.project))
        return GroupRef(uuid=uuid)

    def _limits(self) -> dict[str, int | None]:
        if self.group is not None and self.dice.random() < 0.5:
            return {}
        name = self.dice.choice(('live_claims', 'class:VCPU', 'claims_in_flight'))
        return {name: self.dice.randint(1, 4)}

    def request(self, name: object, vcpu: int | None = None) -> SelectDestinations:
        """One of the project; its id and consumer are those of the seed and ``name``."""
        many = self.dice.randint(1, 2) if self.group is None and vcpu is None else 1
        request = a_request(
            request_id=derived_id('request of', self.number, name),
            consumers=[derived_id('guest of', self.number, name, n) for n in range(many)],
            group=self.group,
            alternates=0,
            budget_ms=20_000,
        )
        resources = {'VCPU': vcpu or self.dice.randint(1, 2), 'MEMORY_MB': 64}
        self.consumers += request.consumers
        spec = msgspec.structs.replace(request.spec, project_id=self.project, resources=resources)
        return msgspec.structs.replace(request, spec=spec, only_project=self.project)

    # -- one after the other -----------------------------------------------------------
    def in_order(self) -> None:
        """Some requests, of which some are cancelled; each is answered alike."""
        for number in range(self.dice.choice((2, 2, 2, 4))):
            request = self.request(number)
            hops = self.dice.choice((0, 3, 3)) if self.group is None else 3
            deep = self.level.entry.select(msgspec.structs.replace(request, hops=hops))
            plain = self.level.flat.select(request)
            assert deep.outcome is plain.outcome, self.told(number, deep, plain)
            assert deep.excess == plain.excess, self.told(number, deep, plain)
            if plain.outcome is Outcome.PLACED:
                self.placed.append(request)
            if self.placed and self.dice.random() < 0.2:
                gone = self.placed.pop(self.dice.randrange(len(self.placed)))
                for zone in (self.level.entry, self.level.flat):
                    zone.cancel(gone.request_id)
                # A zone below that is busy ends its claims after the answer: until then they count.
                until(lambda: self.has(self.level.entry) == self.has(self.level.flat))
        self.check()

    # -- at once -----------------------------------------------------------------------
    def at_once(self) -> None:
        """Eight that are alike: as many are placed, whichever, and no others.

        Who is let in by a quota counts until it is known to have no place, so that of the others
        some are refused for the quota in place of the rule of their group.
        """
        vcpu = self.dice.randint(1, 2)
        requests = [self.request(('at once', n), vcpu) for n in range(AT_ONCE)]
        deep = list(self.zones.callers.map(self.asked, requests))
        plain = [self.level.flat.select(request) for request in requests]
        assert self.outcomes(deep) == self.outcomes(plain), self.told('all', *deep, *plain)
        self.check()

    def outcomes(self, answers: Sequence[Answer]) -> Counter[str]:
        refused = 'no' if self.group is not None and self.limits else None
        return Counter(
            refused if refused and answer.outcome in REFUSED else answer.outcome.value
            for answer in answers
        )

    def asked(self, wanted: SelectDestinations) -> Answer:
        """The answer of the tree, which may say that it is to be asked again."""
        for _ in range(20):
            answer = self.level.entry.select(wanted)
            if answer.outcome not in PASSING:
                return answer
        return answer

    # -- in the end ----------------------------------------------------------------------
    def check(self) -> None:
        entry, flat = self.level.entry, self.level.flat
        until(lambda: self.has(entry) == self.has(flat))
        if self.group is None:
            return
        # A zone below knows the group by another name.
        members = [
            (zone.name, claim.host)
            for zone in self.level.tree
            for claim in zone.store.claims.live_claims_of(self.consumers)
            if claim.child is None
        ]
        group = entry.store.groups.load_group(self.group.uuid)
        policy = self.group.policy or (group and Policy(group.policy))
        if policy is Policy.AFFINITY:
            assert len(set(members)) <= 1, self.told('affinity', members)
        if policy is Policy.ANTI_AFFINITY:
            assert len(set(members)) == len(members), self.told('anti-affinity', members)
        if group is not None:
            assert len(group.members) == len(members), self.told('members', group.members, members)

    def has(self, zone: Zone) -> Any:
        """What the project has, as a zone says."""
        usages = zone.store.quotas.usages(1, project=self.project)
        return usages, zone.store.quotas.quota_usage([self.project], ['VCPU', 'MEMORY_MB'])

    def told(self, *details: object) -> str:
        case = [self.level.entry.name, self.limits, self.group]
        return f'seed {self.number}, {case}: {details}'


def check(zones: Zones, seeds: Sequence[int], each: int = 20) -> None:
    """:param each: of so many seeds one asks eight times at once"""
    for seed in seeds:
        zones.report()
        case = Seed(seed, zones)
        case.in_order() if seed % each else case.at_once()


@pytest.fixture
def zones(request: pytest.FixtureRequest, store_url: Any) -> Iterator[Zones]:
    all_zones = Zones(request.param, store_url)
    yield all_zones
    all_zones.stop()


POSTGRESQL = pytest.param('postgresql', marks=pytest.mark.postgresql)
MARIADB = pytest.param('mysql', marks=pytest.mark.mysql)


@pytest.mark.parametrize('zones', ['sqlite'], indirect=True)
def test_a_tree_answers_as_one_zone_does(zones: Zones) -> None:
    check(zones, range(BLOCK))


@pytest.mark.parametrize('zones', [POSTGRESQL], indirect=True)
def test_a_tree_on_postgresql_answers_as_one_zone_does(zones: Zones) -> None:
    check(zones, range(BLOCK, 2 * BLOCK))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('first', range(2 * BLOCK, 5000 + 2 * BLOCK, BLOCK))
@pytest.mark.parametrize('zones', ['sqlite', POSTGRESQL, MARIADB], indirect=True)
def test_a_tree_answers_as_one_zone_does_in_five_thousand_ways(zones: Zones, first: int) -> None:
    check(zones, range(first, first + BLOCK), each=3)
