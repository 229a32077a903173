# SPDX-License-Identifier: Apache-2.0
"""Random clouds and requests from a seed, small enough to collide often.

Plain ``random.Random``: thousands of cases a second, and a failing seed is a
command that replays it.
"""

import random
from typing import Any

import msgspec

from gantt.core.messages.request import (
    Destination,
    GroupRef,
    Policy,
    Purpose,
    RequestSpec,
    SelectDestinations,
)
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Aggregate, HostChange, HostRow, Placed
from gantt.core.table.host_table import HostTable
from tests.core.builders import NOW, a_host, an_id

CLASSES = ('VCPU', 'MEMORY_MB', 'DISK_GB', 'CUSTOM_X')
TRAITS = ('A', 'B', 'C')
ZONES = ('nova', 'east')
CELLS = (None, an_id(1, 9), an_id(2, 9))
AGGREGATES = ('red', 'blue')
GROUPS = (an_id(1, 8), an_id(2, 8))
GUESTS = tuple(an_id(n, 7) for n in range(6))
NAMES = tuple(f'cmp-{n}' for n in range(1, 9))

Cloud = tuple[list[tuple[HostRow, list[Placed]]], list[Aggregate]]


def few(rng: random.Random, names: tuple[str, ...], least: int = 0, most: int = 2) -> list[str]:
    """Few of ``names``, each once."""
    return rng.sample(names, rng.randint(least, min(most, len(names))))


def either(rng: random.Random, names: tuple[str, ...]) -> list[list[str]]:
    """An AND of ORs."""
    return [few(rng, names, 1) for _ in range(rng.randint(1, 2))]


def an_inventory(rng: random.Random) -> Inventory:
    """Often plain, sometimes with every rule there is."""
    total, least = rng.randint(0, 12), rng.randint(1, 3)
    return Inventory(
        total=total,
        reserved=rng.randint(0, min(2, total)),
        min_unit=rng.choice((1, 1, 1, least)),
        max_unit=rng.choice((None, None, None, least + 2)),
        step_size=rng.choice((1, 1, 1, 2)),
        allocation_ratio=rng.choice((1.0, 1.0, 2.5)),
    )


def a_random_host(rng: random.Random, number: int) -> HostRow:
    """A host of any kind and condition."""
    kinds = {n: an_inventory(rng) for n in CLASSES if rng.random() < 0.8}
    row = a_host(
        number,
        cell=rng.choice(CELLS),
        zone=rng.choice((None, *ZONES)),
        node=rng.choice(('', f'node-{number}')),
        traits=few(rng, TRAITS, most=3),
        aggregates=[an_id(0, 5)] if rng.random() < 0.1 else [],
        used={n: rng.randint(0, 4) for n in few(rng, CLASSES)},
        foreign={n: rng.randint(0, 4) for n in few(rng, CLASSES, most=1)},
        disabled=rng.choice((None,) * 9 + ('x',)),
        over_committed=rng.random() < 0.1,
        reported_at=NOW - rng.choice((0, 10, 100, 180, 181)),
        version=1,
    )
    return msgspec.structs.replace(row, facts=msgspec.structs.replace(row.facts, inventories=kinds))


def guests_on(rng: random.Random, number: int) -> list[Placed]:
    """Up to two claims on a host."""
    return [
        Placed(an_id(number * 10 + i, 6), rng.choice(GUESTS), number, rng.choice((None, *GROUPS)))
        for i in range(rng.choice((0, 0, 1, 2)))
    ]


def a_cloud(rng: random.Random) -> Cloud:
    """Up to seven hosts and two aggregates."""
    count = rng.choice((0, 1, 2, 4, 5, 6, 7, 7, 7))
    hosts = [(a_random_host(rng, n), guests_on(rng, n)) for n in range(1, count + 1)]
    aggregates = [
        Aggregate(
            id=i + 1,
            uuid=an_id(i, 5),
            name=name,
            hosts=few(rng, NAMES, most=8),
            metadata=rng.choice(({}, {}, {'availability_zone': 'east'})),
        )
        for i, name in enumerate(AGGREGATES)
    ]
    return hosts, aggregates


def a_table(cloud: Cloud) -> HostTable:
    """The cloud as a table."""
    hosts, aggregates = cloud
    changes = [HostChange(provider_id=row.id, row=row, placed=placed) for row, placed in hosts]
    return HostTable.build(changes, aggregates, {}, (), NOW)


def a_group(rng: random.Random) -> GroupRef:
    """A group with members and hosts that the caller knows of."""
    return GroupRef(
        uuid=rng.choice(GROUPS),
        policy=rng.choice(list(Policy)),
        max_per_host=rng.choice((1, 1, 2)),
        members=few(rng, GUESTS) if rng.random() < 0.3 else [],
        hosts=few(rng, NAMES) if rng.random() < 0.3 else [],
    )


def a_destination(rng: random.Random) -> Destination:
    """A destination with any of its fields."""
    return Destination(
        host=rng.choice((None,) * 3 + NAMES[:4]),
        node=rng.choice((None,) * 5 + ('node-1', 'cmp-2')),
        cell=rng.choice(CELLS),
        aggregates=either(rng, AGGREGATES) if rng.random() < 0.3 else [],
        forbidden_aggregates=few(rng, AGGREGATES) if rng.random() < 0.3 else [],
    )


def a_spec(rng: random.Random) -> RequestSpec:
    """A spec where each rule is there in one of five."""
    upper = tuple(name.upper() for name in NAMES)
    rules: dict[str, Any] = {
        'availability_zone': lambda: rng.choice(ZONES),
        'required_traits': lambda: few(rng, TRAITS),
        'forbidden_traits': lambda: few(rng, TRAITS),
        'any_traits': lambda: either(rng, (*TRAITS, 'UNKNOWN')),
        'member_of': lambda: either(rng, (*AGGREGATES, 'grey', an_id(1, 5))),
        'forbidden_aggregates': lambda: few(rng, AGGREGATES),
        'force_hosts': lambda: few(rng, upper, most=6),
        'ignore_hosts': lambda: few(rng, upper),
        'destination': lambda: a_destination(rng),
        'same_host': lambda: few(rng, GUESTS, most=4),
        'different_host': lambda: few(rng, GUESTS),
    }
    fields = {name: make() for name, make in rules.items() if rng.random() < 0.15}
    if rng.random() < 0.05:
        fields['force_nodes'] = few(rng, ('node-1', 'cmp-2', 'cmp-3', 'node-4'), most=4)
    if rng.random() < 0.6:
        fields['group'] = a_group(rng)
    return RequestSpec(
        resources={n: rng.choice((1, 1, 2, 3, 4)) for n in few(rng, CLASSES, 1)},
        purpose=rng.choice((Purpose.CREATE, Purpose.RESIZE, Purpose.UNSHELVE)),
        **fields,
    )


def a_random_request(rng: random.Random, number: int = 0) -> SelectDestinations:
    """One to four members; the first may be placed already, as a move's is."""
    consumers = [an_id(number * 10 + i, 4) for i in range(rng.choice((1, 1, 2, 3, 4)))]
    if rng.random() < 0.4:
        consumers[0] = rng.choice(GUESTS)
    return SelectDestinations(
        request_id=an_id(number, 3),
        spec=a_spec(rng),
        consumers=consumers,
        alternates=rng.randint(0, 3),
    )
