# SPDX-License-Identifier: Apache-2.0
"""Small clouds and groups of six families, for which it may matter that a group is decided at once.

Hosts of a cloud have a trait of their own, which its members require: all clouds are one site.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from bench.group_clouds import CLASSES, SIX

Size = tuple[int, ...]
Rng = random.Random

#: Amounts of a guest that is there before the group is placed.
GUEST: Size = (1, 1024, 10)
COST_MAX = 3000
#: Memory and disk of a host, for each processor of it.
_PER_VCPU = (1, 4096, 20)
FLAVORS: list[Size] = [tuple(size) for size in SIX.tolist()]


class JointHost(msgspec.Struct, frozen=True):
    """A host as it is before the group comes.

    :ivar free: by class, without the amounts of guests already there
    :ivar cost: of each member there
    """

    name: str
    room: str
    rack: str
    free: Size
    cost: int

    def domain(self, level: str) -> str:
        """Return the host's domain at a level: host, rack or room."""
        return {'host': self.name, 'rack': self.rack, 'room': self.room}[level]


class JointCloud(msgspec.Struct, frozen=True):
    """A cloud of hosts and a group that is placed there.

    :ivar sizes: member -> its amounts; in the order in which they are placed one by one
    :ivar policies: as a description has them
    :ivar standing: index of the host of each guest of the group already there
    """

    family: str
    number: int
    hosts: list[JointHost]
    sizes: dict[str, Size]
    subgroups: dict[str, list[str]] = {}
    policies: list[dict[str, Any]] = []
    standing: list[int] = []

    @property
    def trait(self) -> str:
        """Trait that its hosts have, and no others."""
        return f'CUSTOM_CLOUD_{self.number}'

    def spec(self, size: Size) -> dict[str, Any]:
        """Return the request spec of one member."""
        return {
            'resources': dict(zip(CLASSES, size, strict=True)),
            'required_traits': [self.trait],
        }

    def room(self, host: int) -> Size:
        """Return what a host reports by class: free amounts, and those of guests on it."""
        guests = self.standing.count(host)
        both = zip(self.hosts[host].free, GUEST, strict=True)
        return tuple(free + guests * each for free, each in both)

    def description(self, group: str) -> dict[str, Any]:
        """Return the group as ``place_group`` takes it; each member may stay without a place."""
        members = [
            {'name': name, 'count': [0, 1], 'spec': self.spec(size)}
            for name, size in self.sizes.items()
        ]
        return {
            'uuid': group,
            'members': members,
            'subgroups': self.subgroups,
            'policies': self.policies,
        }


class _Site:
    """Hosts of one cloud as they are drawn."""

    def __init__(self, number: int, rng: Rng) -> None:
        self._number, self._rng = number, rng
        self.hosts: list[JointHost] = []

    def add(self, rack: int, room: int, free: Size, cost: int | None = None) -> None:
        """Add one host; racks are numbered through all rooms."""
        place = f'site{self._number}.room{room}'
        self.hosts.append(
            JointHost(
                name=f'c{self._number:03}-h{len(self.hosts):02}',
                room=place,
                rack=f'{place}.rack{rack}',
                free=free,
                cost=self._rng.randint(1, COST_MAX) if cost is None else cost,
            )
        )


def _of_vcpus(vcpus: int) -> Size:
    return tuple(vcpus * each for each in _PER_VCPU)


def _sum(sizes: Sequence[Size]) -> Size:
    return tuple(map(sum, zip(*sizes, strict=True))) if sizes else (0,) * len(CLASSES)


def _shuffled(sizes: Mapping[str, Size], rng: Rng) -> dict[str, Size]:
    names = list(sizes)
    rng.shuffle(names)
    return {name: sizes[name] for name in names}


def apart(number: int, rng: Rng) -> JointCloud:
    """Return members that are alike, each on a host of its own; any host will do for each."""
    site, size = _Site(number, rng), rng.choice(FLAVORS)
    for host in range(rng.randint(8, 20)):
        site.add(host // 4, 0, _of_vcpus(32))
    count = rng.randint(4, len(site.hosts) + 2)
    sizes = dict.fromkeys((f'web{i}' for i in range(count)), size)
    return JointCloud('apart', number, site.hosts, sizes, {}, [{'policy': 'anti-affinity'}])


def _slack(size: Size, share: float) -> Size:
    return tuple(-int(-amount * (1 + share) // 1) for amount in size)


def sizes(number: int, rng: Rng) -> JointCloud:
    """Return members of six sizes on hosts that have just enough room, without policies."""
    site, members = _Site(number, rng), dict[str, Size]()
    share = rng.choice((0.0, 0.05, 0.1))
    for host in range(rng.randint(4, 7)):
        here = [rng.choice(FLAVORS) for _ in range(rng.randint(2, 4))]
        members |= {f'm{host}{part}': size for part, size in zip('abcd', here, strict=False)}
        site.add(host // 2, 0, _slack(_sum(here), share))
    return JointCloud('sizes', number, site.hosts, _shuffled(members, rng))


def pairs(number: int, rng: Rng) -> JointCloud:
    """Return pairs on one host and triples on racks of their own, with just enough room."""
    site, racks, each = _Site(number, rng), 4, 2
    use: list[list[Size]] = [[] for _ in range(racks * each)]
    members, subgroups = dict[str, Size](), dict[str, list[str]]()
    for triple in range(2):
        size = rng.choice(FLAVORS)
        for part, rack in zip('abc', rng.sample(range(racks), 3), strict=True):
            name = f't{triple}{part}'
            members[name] = size
            use[rack * each + rng.randrange(each)].append(size)
            subgroups.setdefault(f'triple{triple}', []).append(name)
    for pair in range(4):
        host = rng.randrange(racks * each)
        for part in 'ab':
            name = f'p{pair}{part}'
            members[name] = rng.choice(FLAVORS)
            use[host].append(members[name])
            subgroups.setdefault(f'pair{pair}', []).append(name)
    for single in range(3):
        members[f's{single}'] = rng.choice(FLAVORS)
        use[rng.randrange(racks * each)].append(members[f's{single}'])
    share = rng.choice((0.0, 0.1, 0.3))
    for host, here in enumerate(use):
        least = tuple(max(1, amount) for amount in _sum(here))
        site.add(host // each, 0, _slack(least, share))
    policies = [
        {'policy': 'affinity', 'of': [f'pair{pair}' for pair in range(4)]},
        {'policy': 'anti-affinity', 'level': 'rack', 'of': ['triple0', 'triple1']},
    ]
    return JointCloud('pairs', number, site.hosts, _shuffled(members, rng), subgroups, policies)


def storage(number: int, rng: Rng) -> JointCloud:
    """Return data near the rack of its storage, which is cheap for others too, and soon full."""
    site = _Site(number, rng)
    for host in range(8):
        rack = host // 2
        near = rack == 0
        cost = rng.randint(1, 500) if near else rng.randint(501, COST_MAX)
        site.add(rack, rack // 2, _of_vcpus(rng.choice((8, 12) if near else (12, 16))), cost)
    data = {f'data{i}': rng.choice(FLAVORS[1:5]) for i in range(4)}
    web = {f'web{i}': rng.choice(FLAVORS[:4]) for i in range(rng.randint(4, 7))}
    prices = [{'level': 'rack', 'price': 0.0}, {'level': 'room', 'price': 0.25}]
    policies = [
        {
            'policy': 'near',
            'level': 'rack',
            'of': 'data',
            'target': {'domain': site.hosts[0].rack},
            'prices': prices,
            'soft': float(rng.randint(1, 4)),
        },
        {'policy': 'anti-affinity', 'of': 'web', 'max_per_domain': 2},
    ]
    members = _shuffled({**web, **data}, rng)
    subgroups = {'data': list(data), 'web': list(web)}
    return JointCloud('storage', number, site.hosts, members, subgroups, policies)


def weights(number: int, rng: Rng) -> JointCloud:
    """Return soft policies that conflict, each with its weight; in half, one in order."""
    site = _Site(number, rng)
    for host in range(9):
        rack = host // 2
        site.add(rack, rack // 2, _of_vcpus(rng.choice((6, 8, 12))))
    app = {f'app{i}': rng.choice(FLAVORS[:4]) for i in range(rng.randint(4, 6))}
    db = {f'db{i}': rng.choice(FLAVORS[1:5]) for i in range(3)}
    apart_racks: dict[str, Any] = {'policy': 'anti-affinity', 'level': 'rack', 'of': 'db'}
    if rng.random() < 0.5:
        apart_racks['drop'] = 1
    else:
        apart_racks['soft'] = float(rng.randint(1, 5))
    together = {'policy': 'affinity', 'level': 'room', 'of': 'app'}
    near = {'policy': 'near', 'level': 'rack', 'of': 'app', 'target': {'of': 'db'}}
    policies = [
        {**together, 'soft': float(rng.randint(1, 5))},
        apart_racks,
        {**near, 'soft': float(rng.randint(1, 5))},
        {'policy': 'anti-affinity', 'of': 'app', 'soft': 1.0},
    ]
    members = _shuffled({**app, **db}, rng)
    subgroups = {'app': list(app), 'db': list(db)}
    return JointCloud('weights', number, site.hosts, members, subgroups, policies)


def standing(number: int, rng: Rng) -> JointCloud:
    """Return a spread over racks in which guests of the group are already, in mixed sizes."""
    site = _Site(number, rng)
    for host in range(8):
        site.add(host // 2, 0, _of_vcpus(rng.choice((6, 8, 18))))
    guests = [rng.randrange(4) for _ in range(rng.randint(2, 4))]
    sizes_by_member = {f'm{i}': rng.choice(FLAVORS[:5]) for i in range(rng.randint(5, 8))}
    sizes_by_member |= {f'large{i}': FLAVORS[5] for i in range(2)}
    policies = [
        {'policy': 'spread', 'level': 'rack', 'max_skew': 1, 'soft': float(rng.randint(1, 4))},
        {'policy': 'anti-affinity', 'max_per_domain': 3},
    ]
    members = _shuffled(sizes_by_member, rng)
    return JointCloud('standing', number, site.hosts, members, {}, policies, guests)


FAMILIES: dict[str, Callable[[int, Rng], JointCloud]] = {
    'apart': apart,
    'sizes': sizes,
    'pairs': pairs,
    'storage': storage,
    'weights': weights,
    'standing': standing,
}


def clouds(count: int, seed: int) -> list[JointCloud]:
    """Return so many clouds, of each family in turn; those of one seed are always the same."""
    families = list(FAMILIES.values())
    return [
        families[number % len(families)](number, Rng(f'{seed}:{number}')) for number in range(count)
    ]
