# SPDX-License-Identifier: Apache-2.0
"""``bench decide --rare-classes N``: what classes that ten hosts each have cost all others.

Two tables of the same hosts, one with the classes and one without, get the same news and the
same requests in turn.  The yardstick is the table without; the figure is what requests take
that ask for none of the classes.
"""

import argparse
import gc
import statistics
import time
import tracemalloc

import msgspec
import numpy as np

from bench import Result, conditions, decide
from gantt import plugin_loader
from gantt.core.messages import base
from gantt.core.messages.request import SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.place import place, undo
from gantt.core.records.decision import Decision
from gantt.core.resources.host import Aggregate, HostChange
from gantt.core.table.host_table import HostTable

HOSTS_OF_EACH = 10
#: After so many requests one asks for one of the classes, of the table that has them.
ASKED_EACH = 8


def with_classes(
    world: list[HostChange], classes: int, rng: np.random.Generator
) -> list[HostChange]:
    """The same hosts, ten of them with each of the classes."""
    has: dict[int, dict[str, Inventory]] = {}
    for number in range(classes):
        for host in rng.choice(len(world), min(HOSTS_OF_EACH, len(world)), replace=False):
            has.setdefault(int(host), {})[f'CUSTOM_RARE_{number}'] = Inventory(total=1000)
    found = list(world)
    for host, more in has.items():
        row = world[host].row
        assert row is not None, 'news of a host that is there'
        facts = msgspec.structs.replace(row.facts, inventories=row.facts.inventories | more)
        row = msgspec.structs.replace(row, facts=facts)
        found[host] = msgspec.structs.replace(world[host], row=row)
    return found


class Side:
    """A table, what it and a copy of it take in memory, and the decisions on it."""

    def __init__(self, world: list[HostChange], aggregates: list[Aggregate]) -> None:
        gc.collect()
        tracemalloc.start()
        self.table = HostTable.build(world, aggregates, {}, decide.CAPS, decide.NOW)
        gc.collect()
        self.bytes = tracemalloc.get_traced_memory()[0]
        copy = self.table.snapshot()
        gc.collect()
        self.copy_bytes = tracemalloc.get_traced_memory()[0] - self.bytes
        tracemalloc.stop()
        del copy
        self.rows = [change.row for change in world if change.row is not None]
        self.pipeline = plugin_loader.load_pipeline()
        self.standing: list[tuple[Decision, SelectDestinations]] = []

    def change(self, host: int, used: dict[str, int]) -> None:
        """News of one host."""
        row = self.rows[host]
        row = msgspec.structs.replace(row, used=used, version=row.version + 1)
        self.rows[host] = row
        guests = list(self.table.placed.on(row.id).values())
        self.table.apply(HostChange(provider_id=row.id, row=row, placed=guests))

    def decide(
        self, request: SelectDestinations, seed: int, stands: bool = True
    ) -> tuple[float, list[str]]:
        """One decision, in us, and where to; it is taken back, at once or when 32 others stand."""
        started = time.perf_counter()
        decision = place(
            self.table, request, self.pipeline, seed=seed, decision_id=request.request_id
        )
        spent = time.perf_counter() - started
        self.standing.insert(len(self.standing) if stands else 0, (decision, request))
        if not stands or len(self.standing) > decide.STANDING:
            undo(self.table, *self.standing.pop(0))
        return spent * 1e6, [m.selection.host for m in decision.members if m.selection]

    def wrong(self) -> int:
        """How many classes have wrong arithmetic."""
        table = self.table
        return sum(
            bool((table.free[code] != table.cap[code] - table.used[code]).any())
            for code in range(len(table.classes))
        )


def run(args: argparse.Namespace) -> Result:
    """Rounds of both tables in turn; medians of all decisions."""
    rng = np.random.default_rng(args.seed)
    world, aggregates = decide.changes(args.hosts, rng), decide.aggregates(args.hosts, rng)
    richer = with_classes(world, args.rare_classes, rng)
    plain, rich = Side(world, aggregates), Side(richer, aggregates)
    requests = decide.shapes(args.hosts, rng)
    rounds = args.rounds or (12 if args.hosts <= 20_000 else 4)
    times: dict[str, list[float]] = {'without': [], 'with': [], 'asked': []}
    elsewhere = asked_and_placed = 0
    for number in range((1 + rounds) * decide.SHAPES):
        request = msgspec.structs.replace(
            requests[number % decide.SHAPES],
            request_id=base.derived_id('bench', number),
            consumers=[decide.an_id(9, number)],
        )
        host = int(rng.integers(args.hosts))
        used = {name: int(cap * rng.uniform(0, 1)) for name, cap in decide.CAPS.items()}
        spent, places = {}, {}
        sides = (('without', plain), ('with', rich))
        for name, side in sides if number % 2 else sides[::-1]:
            side.change(host, used)
            spent[name], places[name] = side.decide(request, number)
        elsewhere += places['without'] != places['with']
        if number % ASKED_EACH == 0:
            rare = f'CUSTOM_RARE_{int(rng.integers(args.rare_classes))}'
            spec = msgspec.structs.replace(
                request.spec, resources={'VCPU': 1, rare: 1}, required_traits=[]
            )
            asking = msgspec.structs.replace(
                request, spec=spec, request_id=base.derived_id('bench rare', number)
            )
            spent['asked'], where = rich.decide(asking, number, stands=False)
            asked_and_placed += len(where)
        if number >= decide.SHAPES:
            for name, one in spent.items():
                times[name].append(one)
    medians = {name: statistics.median(found) for name, found in times.items()}
    value, stick = medians['with'], medians['without']
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
            'repeats': len(times['with']),
            'table_mb': round(plain.bytes / 2**20, 2),
            'more_mb': round((rich.bytes - plain.bytes) / 2**20, 2),
            'copy_mb': round(plain.copy_bytes / 2**20, 2),
            'copy_more_mb': round((rich.copy_bytes - plain.copy_bytes) / 2**20, 2),
            'asked_us': round(medians['asked'], 1),
            'asked_and_placed': asked_and_placed,
            **conditions.here(),
        },
        audit=elsewhere + plain.wrong() + rich.wrong(),
    )
