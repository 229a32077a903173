# SPDX-License-Identifier: Apache-2.0
"""``bench decide --nested N --pool``: the cost of providers below hosts, and of requests for them.

Two tables of the same hosts, one of them with N providers below each host and with pools that half
of the hosts share, get the same news and the same requests in turn.  None requests what is nested
or shared, but every fourth decision is followed by one that requests three groups of it.
"""

import argparse

import msgspec
import numpy as np

from bench import Result, conditions, decide, pooled
from bench.two_tables import Side, in_turn
from gantt.core.messages import base
from gantt.core.messages.request import SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.tree_request import GroupPolicy, ResourceGroup, TreeRequest
from gantt.core.resources.provider import SharedPool

EACH = 4
GPU, PORT = 'VGPU', 'SRIOV_NET_VF'
HAS = {GPU: Inventory(total=1000), PORT: Inventory(total=16)}


def below(hosts: int, each: int, rng: np.random.Generator) -> list[SharedPool]:
    """Return so many providers below each host: every second one a GPU, partly used."""
    kinds = (GPU, PORT)
    shares = rng.uniform(0, 1, (hosts, each))
    first = hosts + pooled.POOLS + 1
    return [
        SharedPool(
            id=first + host * each + n,
            uuid=decide.an_id(12, host * each + n),
            name=f'{kinds[n % 2]}-{host}-{n}',
            version=1,
            inventories={kinds[n % 2]: HAS[kinds[n % 2]]},
            used={kinds[n % 2]: int(HAS[kinds[n % 2]].total * shares[host, n])},
            root=host + 1,
            parent=host + 1,
            traits=[f'CUSTOM_SLOT_{n}'],
        )
        for host in range(hosts)
        for n in range(each)
    ]


def asking(request: SelectDestinations, number: int) -> SelectDestinations:
    """Return the same request with three groups, which lie apart."""
    groups = {
        'gpu0': ResourceGroup(resources={GPU: 100 + 50 * (number % 4)}),
        'gpu1': ResourceGroup(resources={GPU: 100}),
        'port': ResourceGroup(resources={PORT: 1 + number % 3}),
    }
    tree = TreeRequest(groups=groups, group_policy=GroupPolicy.ISOLATE)
    return msgspec.structs.replace(
        request,
        request_id=base.derived_id('bench nested', number),
        spec=msgspec.structs.replace(request.spec, tree=tree),
    )


def run(args: argparse.Namespace) -> Result:
    """Run rounds of both tables in turn; return medians of all decisions."""
    rng = np.random.default_rng(args.seed)
    world, aggregates = decide.changes(args.hosts, rng), decide.aggregates(args.hosts, rng)
    aggregates += pooled.served([change.row.name for change in world if change.row is not None])
    plain, nested = Side(world, aggregates), Side(world, aggregates)
    devices = below(args.hosts, args.nested, rng)
    for pool in (*pooled.pools(args.hosts), *devices):
        nested.table.set_pool(pool)
    placed: list[str] = []

    def ask(number: int, request: SelectDestinations, spent: dict[str, float]) -> None:
        if number % EACH == 0:
            spent['groups'], where = nested.decide(asking(request, number), number, stands=False)
            placed.extend(where)

    timed = in_turn(args, rng, {'plain': plain, 'nested': nested}, after=ask)
    medians = timed.medians
    value, stick = medians['nested'], medians['plain']
    pools = nested.table.pools
    wrong = sum(
        pools.free(device.id, name) != inventory.cap - device.used.get(name, 0)
        for device in devices
        for name, inventory in device.inventories.items()
    )
    return Result(
        bench='decide --nested',
        value=round(value, 1),
        unit='us',
        yardstick={'name': 'the same table without', 'value': round(stick, 1)},
        ratio=round(value / stick, 3),
        conditions={
            'hosts': args.hosts,
            'nested': args.nested,
            'pools': pooled.POOLS,
            'repeats': timed.repeats,
            'plain_ratio': round(value / stick, 3),
            'groups_us': round(medians['groups'], 1),
            'groups_ratio': round(medians['groups'] / stick, 3),
            'groups_placed': len(placed),
            **conditions.here(),
        },
        # Cancelled placements have freed their amounts.
        audit=timed.elsewhere + plain.wrong() + nested.wrong() + wrong,
    )
