# SPDX-License-Identifier: Apache-2.0
"""``bench decide --pool``: the cost of a pool that hosts share for requests that do not use it.

Two tables of the same hosts, one of them with pools of a class that half of the hosts share,
get the same news and the same requests in turn: one member, or sixteen that are alike.  None
requests the class of the pools but those that are timed apart.
"""

import argparse

import numpy as np

from bench import Result, conditions, decide
from bench.two_tables import Side, in_turn
from gantt.core.messages import base
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Aggregate
from gantt.core.resources.provider import SharedPool

MEMBERS = 16
#: After so many requests one has several members, and one requests what the hosts share.
EACH = 4
SHARED = 'CUSTOM_SHARED'
POOLS = 8


def pools(hosts: int) -> list[SharedPool]:
    """Return pools of one class, of which each of half of the hosts is served by two."""
    has = {SHARED: Inventory(total=1_000_000)}
    return [
        SharedPool(
            id=hosts + 1 + number,
            version=1,
            inventories=has,
            aggregates=[decide.an_id(11, number)],
        )
        for number in range(POOLS)
    ]


def served(names: list[str]) -> list[Aggregate]:
    """Return the aggregates of the pools.

    :param names: of all hosts
    """
    return [
        Aggregate(
            id=1000 + number,
            uuid=decide.an_id(11, number),
            name=f'pool {number}',
            hosts=[
                names[i]
                for i in range(0, len(names), 2)
                if number in (i // 2 % POOLS, i // 3 % POOLS)
            ],
        )
        for number in range(POOLS)
    ]


def alike(number: int, more: dict[str, int], members: int) -> SelectDestinations:
    """Return a request for amounts alone."""
    sizes = {'VCPU': 1 + number % 4, 'MEMORY_MB': 2048, 'DISK_GB': 20}
    return SelectDestinations(
        request_id=base.derived_id('bench pool', number, members),
        spec=RequestSpec(resources=sizes | more),
        consumers=[decide.an_id(10, number * MEMBERS + i) for i in range(members)],
    )


def run(args: argparse.Namespace) -> Result:
    """Run rounds of both tables in turn; return medians of all decisions."""
    rng = np.random.default_rng(args.seed)
    world, aggregates = decide.changes(args.hosts, rng), decide.aggregates(args.hosts, rng)
    aggregates += served([change.row.name for change in world if change.row is not None])
    plain, pooled = Side(world, aggregates), Side(world, aggregates)
    for pool in pools(args.hosts):
        pooled.table.set_pool(pool)
    placed: list[str] = []

    def members(number: int, side: Side) -> tuple[str, float, list[str]] | None:
        if number % EACH:
            return None
        return 'members', *side.decide(alike(number, {}, MEMBERS), number, stands=False)

    def ask(number: int, request: SelectDestinations, spent: dict[str, float]) -> None:
        if number % EACH == 0:
            asking = alike(number, {SHARED: 1}, 1)
            spent['asked'], where = pooled.decide(asking, number, stands=False)
            placed.extend(where)

    timed = in_turn(args, rng, {'plain': plain, 'pooled': pooled}, members, ask)
    medians = timed.medians
    value, stick = medians['pooled'], medians['plain']
    free = sum(pooled.table.pools.free(pool.id, SHARED) for pool in pools(args.hosts))
    return Result(
        bench='decide --pool',
        value=round(value, 1),
        unit='us',
        yardstick={'name': 'the same table without pools', 'value': round(stick, 1)},
        ratio=round(value / stick, 3),
        conditions={
            'hosts': args.hosts,
            'pools': POOLS,
            'repeats': timed.repeats,
            'plain_ratio': round(value / stick, 3),
            'members': MEMBERS,
            'members_us': round(medians['pooled members'], 1),
            'members_ratio': round(medians['pooled members'] / medians['plain members'], 3),
            'asked_us': round(medians['asked'], 1),
            'asked_and_placed': len(placed),
            **conditions.here(),
        },
        # Cancelled placements have freed their amounts.
        audit=timed.elsewhere + plain.wrong() + pooled.wrong() + (free != POOLS * 1_000_000),
    )
