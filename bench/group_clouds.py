# SPDX-License-Identifier: Apache-2.0
"""Clouds and groups of the bench of groups: as arrays, and the group as a description."""

from typing import Any

import msgspec
import numpy as np

from gantt.groups.model import group_description
from gantt.groups.model.group_description import GroupDescription

CLASSES = ('VCPU', 'MEMORY_MB', 'DISK_GB')
TYPES = np.array([[64, 262144, 2000], [96, 393216, 4000], [128, 1048576, 8000]])
FLAVORS = np.array([[2, 8192, 40], [4, 16384, 80], [8, 32768, 160], [4, 32768, 100]])
#: Flavors of planted clouds.
SIX = np.array(
    [[1, 2048, 20], [2, 8192, 40], [4, 8192, 40], [8, 16384, 80], [4, 32768, 80], [16, 32768, 160]]
)
COST, COST_MAX = 'cost', 3000.0


class Cloud(msgspec.Struct, eq=False):
    """Hosts and a group, as arrays.

    :ivar free: by host and class
    :ivar rack: by host
    :ivar cost: by host, of each member there
    :ivar items: demands of the members of each item, which go to one host
    :ivar sets: of each item; items of one set are on racks of their own; -1: of none
    """

    free: np.ndarray
    rack: np.ndarray
    cost: np.ndarray
    items: list[list[tuple[int, ...]]]
    sets: list[int]

    @property
    def members(self) -> int:
        """Number of members."""
        return sum(map(len, self.items))

    def demand(self, item: int) -> np.ndarray:
        """Return the amounts that an item takes, by class."""
        return np.sum(self.items[item], axis=0)


def alike(members: int, hosts: int, seed: int) -> Cloud:
    """Return pairs that share a host, in sets of five on racks of their own; four sizes."""
    rng = np.random.default_rng(seed)
    rack = np.arange(hosts) // (20 if hosts <= 100 else 40)
    free, cost = _part_used(hosts, rng)
    items, sets = [], []
    for number in range(max(1, members // 10)):
        pair = [tuple(FLAVORS[(number + k) % 4].tolist()) for k in range(2)]
        items += [list(pair) for _ in range(5)]
        sets += [number] * 5
    return Cloud(free, rack, cost, items, sets)


def unlike(members: int, hosts: int, seed: int) -> Cloud:
    """Return members no two of which are alike, in sets of five on racks of their own."""
    rng = np.random.default_rng(seed)
    rack = np.arange(hosts) // 40
    free, cost = _part_used(hosts, rng)
    seen: dict[tuple[int, ...], None] = {}
    while len(seen) < members:
        size = (
            int(rng.integers(1, 17)),
            int(rng.integers(2, 129)) * 512,
            int(rng.integers(1, 200)),
        )
        seen.setdefault(size)
    return Cloud(free, rack, cost, [[size] for size in seen], [i // 5 for i in range(members)])


def _part_used(hosts: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    caps = TYPES[rng.integers(0, 3, hosts)]
    share = rng.integers(2, 11, hosts) / 10.0 * rng.choice([1.0, 0.9], hosts)
    free = caps - np.minimum(np.ceil(caps * share[:, None]).astype(np.int64), caps)
    return free, np.round((free / TYPES.max(axis=0)).sum(axis=1) * 1000)


def planted(items: int, hosts: int, slack: float, seed: int) -> Cloud:
    """Draw a placement, and hosts that have room for it and a share more.

    Three in five items are of triples on racks of their own, one a pair on one host, one single.
    """
    rng = np.random.default_rng(seed)
    rack = np.arange(hosts) // 10
    use = np.zeros((hosts, 3), np.int64)
    by_item: list[list[tuple[int, ...]]] = []
    sets = []

    def put(host: int, sizes: list[np.ndarray], of_set: int) -> None:
        use[host] += np.sum(sizes, axis=0)
        by_item.append([tuple(size.tolist()) for size in sizes])
        sets.append(of_set)

    for triple in range(items // 5):
        size = SIX[rng.integers(0, 6)]
        for k in rng.choice(int(rack.max()) + 1, 3, replace=False):
            put(int(rng.choice(np.flatnonzero(rack == k))), [size], triple)
    for _ in range(items // 5):
        put(int(rng.integers(hosts)), [SIX[rng.integers(0, 6)], SIX[rng.integers(0, 6)]], -1)
    for _ in range(items - 4 * (items // 5)):
        put(int(rng.integers(hosts)), [SIX[rng.integers(0, 6)]], -1)
    free = np.ceil(use * (1 + slack) - 1e-9).astype(np.int64)
    order = rng.permutation(len(by_item)).tolist()
    return Cloud(free, rack, np.ones(hosts), [by_item[i] for i in order], [sets[i] for i in order])


def location(cloud: Cloud, host: int) -> str:
    """Return the location that a host reports."""
    return f'site1.room1.rack{cloud.rack[host]}'


def description_of(cloud: Cloud, must: bool = True) -> GroupDescription:
    """Return the group: pairs are subgroups on one host, sets are subgroups over racks.

    :param must: whether all members have to be placed
    """
    members: list[dict[str, Any]] = []
    subgroups: dict[str, list[str]] = {}
    for item, sizes in enumerate(cloud.items):
        names = [f'm{item}-{part}' for part in 'abcd'[: len(sizes)]]
        for name, size in zip(names, sizes, strict=True):
            resources = dict(zip(CLASSES, size, strict=True))
            count = 1 if must else [0, 1]
            members.append({'name': name, 'count': count, 'spec': {'resources': resources}})
        if len(names) > 1:
            subgroups[f'pair-{item}'] = names
        if cloud.sets[item] >= 0:
            subgroups.setdefault(f'set-{cloud.sets[item]}', []).extend(names)
    widths = {f'set-{of}': len(cloud.items[item]) for item, of in enumerate(cloud.sets) if of >= 0}
    policies: list[dict[str, Any]] = []
    pairs = [name for name in subgroups if name.startswith('pair-')]
    if pairs:
        policies.append({'policy': 'affinity', 'of': pairs})
    for width in sorted(set(widths.values())):
        of = [name for name, item_width in widths.items() if item_width == width]
        policies.append(
            {'policy': 'anti-affinity', 'level': 'rack', 'of': of, 'max_per_domain': width}
        )
    body = {'members': members, 'subgroups': subgroups, 'policies': policies}
    return group_description.read(body)
