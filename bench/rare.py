# SPDX-License-Identifier: Apache-2.0
"""``bench decide --rare-classes N``: the cost for all others of classes that ten hosts each have.

Two tables of the same hosts, one with the classes and one without, get the same news and the
same requests in turn.  The yardstick is the table without; the figure is the time of requests
that use none of the classes.
"""

import argparse

import msgspec
import numpy as np

from bench import Result, conditions, decide
from bench.two_tables import Side, in_turn
from gantt.core.messages import base
from gantt.core.messages.request import SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostChange

HOSTS_OF_EACH = 10
#: After so many requests one needs one of the classes, of the table that has them.
ASKED_EACH = 8


def with_classes(
    world: list[HostChange], classes: int, rng: np.random.Generator
) -> list[HostChange]:
    """Return the same hosts, ten of them with each of the classes."""
    has: dict[int, dict[str, Inventory]] = {}
    for number in range(classes):
        for host in rng.choice(len(world), min(HOSTS_OF_EACH, len(world)), replace=False):
            has.setdefault(int(host), {})[f'CUSTOM_RARE_{number}'] = Inventory(total=1000)
    host_changes = list(world)
    for host, more in has.items():
        row = world[host].row
        assert row is not None, 'news of a host that is there'
        facts = msgspec.structs.replace(row.facts, inventories=row.facts.inventories | more)
        row = msgspec.structs.replace(row, facts=facts)
        host_changes[host] = msgspec.structs.replace(world[host], row=row)
    return host_changes


def run(args: argparse.Namespace) -> Result:
    """Run rounds of both tables in turn; return medians of all decisions."""
    rng = np.random.default_rng(args.seed)
    world, aggregates = decide.changes(args.hosts, rng), decide.aggregates(args.hosts, rng)
    richer = with_classes(world, args.rare_classes, rng)
    plain, rich = Side(world, aggregates), Side(richer, aggregates)
    placed: list[str] = []

    def ask(number: int, request: SelectDestinations, spent: dict[str, float]) -> None:
        if number % ASKED_EACH == 0:
            rare = f'CUSTOM_RARE_{int(rng.integers(args.rare_classes))}'
            spec = msgspec.structs.replace(
                request.spec, resources={'VCPU': 1, rare: 1}, required_traits=[]
            )
            asking = msgspec.structs.replace(
                request, spec=spec, request_id=base.derived_id('bench rare', number)
            )
            spent['asked'], where = rich.decide(asking, number, stands=False)
            placed.extend(where)

    timed = in_turn(args, rng, {'without': plain, 'with': rich}, after=ask)
    value, stick = timed.medians['with'], timed.medians['without']
    return Result(
        bench='decide --rare-classes',
        value=round(value, 1),
        unit='us',
        yardstick={'name': 'the same table without the classes', 'value': round(stick, 1)},
        ratio=round(value / stick, 3),
        conditions={
            'hosts': args.hosts,
            'rare_classes': args.rare_classes,
            'hosts_of_each': min(HOSTS_OF_EACH, args.hosts),
            'repeats': timed.repeats,
            'table_mb': round(plain.bytes / 2**20, 2),
            'more_mb': round((rich.bytes - plain.bytes) / 2**20, 2),
            'copy_mb': round(plain.copy_bytes / 2**20, 2),
            'copy_more_mb': round((rich.copy_bytes - plain.copy_bytes) / 2**20, 2),
            'asked_us': round(timed.medians['asked'], 1),
            'asked_and_placed': len(placed),
            **conditions.here(),
        },
        audit=timed.elsewhere + plain.wrong() + rich.wrong(),
    )
