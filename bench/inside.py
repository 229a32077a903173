# SPDX-License-Identifier: Apache-2.0
"""``bench decide --numa``: guests with dedicated processors and huge pages, laid out.

Hosts of two cells with threads, half full of such guests in layouts of their
own, so that free amounts are in pieces; a third of the hosts has too few pages,
processors or cells.  The yardstick is the same requests by amounts alone.
"""

import argparse
import dataclasses
import statistics
import time
import uuid

import numpy as np

from bench import Result, conditions
from gantt import plugin_loader
from gantt.core.messages import base
from gantt.core.messages import layout as layouts
from gantt.core.messages.layout import Layout
from gantt.core.messages.report import NumaCell, NumaPages
from gantt.core.messages.request import Flavor, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import place, undo_decision
from gantt.core.resources.host import HostChange, HostFacts, HostRow, Placed
from gantt.core.table.host_table import HostTable
from gantt.core.topology.fit import doubled_layouts
from gantt.core.topology.free import FreeTopology, free_topology_of
from gantt.core.topology.read import read
from gantt.core.topology.search import find_layout

CORES, THREADS, GIB = 24, 2, 1 << 20
NOW = 1_000_000.0
ROUNDS, SHAPES, STANDING, PATTERNS = 6, 64, 32, 240
AMOUNTS = {'PCPU': 2 * CORES * THREADS, 'MEMORY_MB': 524_288, 'DISK_GB': 8000}
PINNED = {'hw:cpu_policy': 'dedicated', 'hw:mem_page_size': 'large'}
#: Extra specs beside dedicated processors and large pages, and how many processors.
KINDS: list[tuple[dict[str, str], int]] = [
    ({}, 4),
    ({}, 8),
    ({'hw:cpu_thread_policy': 'require'}, 8),
    ({'hw:cpu_thread_policy': 'isolate'}, 4),
    ({'hw:numa_nodes': '2'}, 8),
    ({}, 16),
    ({'hw:emulator_threads_policy': 'isolate'}, 5),
    ({'hw:mem_page_size': '1GB'}, 12),
]


def an_id(kind: int, number: int) -> str:
    """Return a uuid by kind and number."""
    return str(uuid.UUID(int=(kind << 64) + number))


def a_spec(number: int, bare: bool = False) -> RequestSpec:
    """Return the request of a number; ``bare``: by amounts alone."""
    specs, cpus = KINDS[number % len(KINDS)]
    return RequestSpec(
        resources={'PCPU': cpus, 'MEMORY_MB': 1024 * max(2, cpus), 'DISK_GB': 20},
        flavor=Flavor(extra_specs={} if bare else PINNED | specs),
    )


def cells(pages: int) -> list[NumaCell]:
    """Return two cells of 24 cores with two threads each."""
    cell_list = []
    for number in range(2):
        first = number * CORES * THREADS
        cell_list.append(
            NumaCell(
                id=number,
                pinned_cpus=list(range(first, first + CORES * THREADS)),
                siblings=[[first + i, first + CORES + i] for i in range(CORES)],
                memory_mb=262_144,
                pages=[NumaPages(size_kb=GIB, total=pages)],
                socket=number,
            )
        )
    return cell_list


def patterns(rng: np.random.Generator) -> list[tuple[HostFacts, list[Layout]]]:
    """Return hosts between empty and nearly full, one in three of a kind that does not do."""
    inventories = {name: Inventory(total=total) for name, total in AMOUNTS.items()}
    kinds = [cells(200), cells(200), cells(200), cells(200), cells(1), []]
    pairs = []
    for number in range(PATTERNS):
        facts = HostFacts(inventories=inventories, numa=kinds[number % len(kinds)])
        pairs.append((facts, some_layouts(facts, int(rng.integers(0, 14)), rng)))
    return pairs


def some_layouts(facts: HostFacts, count: int, rng: np.random.Generator) -> list[Layout]:
    """Return guests that were placed one after another; some have been deleted since."""
    room, taken = free_topology_of(facts), []
    for _ in range(2 * count):
        wish = read(a_spec(int(rng.integers(len(KINDS)))))
        layout = find_layout(wish, room).layout if wish else None
        if layout is not None:
            room.allocate(layout)
            taken.append(layout)
    return [taken[k] for k in sorted(rng.permutation(len(taken))[:count].tolist())]


def hosts(
    count: int, rng: np.random.Generator, known: list[tuple[HostFacts, list[Layout]]]
) -> list[HostChange]:
    """Return hosts after the patterns, in any order."""
    host_changes = []
    for number in range(count):
        facts, taken = known[int(rng.integers(len(known)))]
        held = sum(cell.held.bit_count() for layout in taken for cell in layout.cells)
        row = HostRow(
            id=number + 1,
            uuid=an_id(1, number),
            name=f'cmp-{number:06}',
            version=1,
            facts=facts,
            used={'PCPU': held, 'MEMORY_MB': 4096 * len(taken), 'DISK_GB': 20 * len(taken)},
            reported_at=NOW - 30.0,
        )
        placed = [
            Placed(an_id(2, number * 64 + i), an_id(3, number * 64 + i), row.id, None, layout)
            for i, layout in enumerate(taken)
        ]
        host_changes.append(HostChange(provider_id=row.id, row=row, placed=placed))
    return host_changes


@dataclasses.dataclass
class Site:
    """The table, and the guests that are on it for a while."""

    table: HostTable
    pipeline: Pipeline
    bare: Pipeline
    standing: list[tuple] = dataclasses.field(default_factory=list)
    outcomes: dict[str, int] = dataclasses.field(default_factory=dict)
    survivors: list[int] = dataclasses.field(default_factory=list)

    def decide(self, number: int, bare: bool) -> float:
        """Return the seconds of one decision; the oldest placement is taken back."""
        request = SelectDestinations(
            request_id=base.derived_id('bench', number, bare),
            spec=a_spec(number, bare),
            consumers=[an_id(4, number)],
        )
        pipeline = self.bare if bare else self.pipeline
        started = time.perf_counter()
        decision = place(self.table, request, pipeline, seed=number, decision_id=request.request_id)
        spent = time.perf_counter() - started
        if bare:
            undo_decision(self.table, decision, request)
            return spent
        self.standing.append((decision, request))
        if len(self.standing) > STANDING:
            undo_decision(self.table, *self.standing.pop(0))
        self.outcomes[decision.outcome] = self.outcomes.get(decision.outcome, 0) + 1
        self.survivors.append(decision.members[0].survivors)
        return spent

    def audit(self) -> int:
        """Count processors held twice, and pages below zero, on any host."""
        faults = 0
        for row, host in enumerate(self.table.hosts):
            here = self.table.placed.on_provider(host.id)
            laid: list[tuple[str, Layout]] = [(c, p.layout) for c, p in here.items() if p.layout]
            faults += len(list(doubled_layouts(host.name, laid)))
            room: FreeTopology = self.table.free_topology(row)
            faults += sum(free < 0 for cell in room.cells for free in cell.pages.values())
        for decision, _ in self.standing:
            for member in decision.members:
                if member.selection is not None:
                    faults += layouts.readable(member.selection.layout) is None
        return faults


def run(args: argparse.Namespace) -> Result:
    """Run rounds of laid out and bare decisions in turn; return medians of all."""
    rng = np.random.default_rng(args.seed)
    started = time.perf_counter()
    world = hosts(args.hosts, rng, patterns(rng))
    hosts_ready = time.perf_counter()
    pipeline = plugin_loader.load_pipeline()
    inside = (pipeline.inside.numa, pipeline.inside.pci)
    names = [rule.name for k, rule in enumerate(pipeline.filters) if k not in inside]
    site = Site(
        HostTable.build(world, [], {}, (), NOW),
        pipeline,
        plugin_loader.load_pipeline(filters=names),
    )
    built = time.perf_counter()
    ours: list[float] = []
    plain: list[float] = []
    for turn in range((args.rounds or ROUNDS) + 1):
        for number in range(turn * SHAPES, (turn + 1) * SHAPES):
            spent = site.decide(number, False) * 1e3, site.decide(number, True) * 1e3
            if turn:  # the first round warms up
                ours.append(spent[0])
                plain.append(spent[1])
    value, stick = statistics.median(ours), statistics.median(plain)
    return Result(
        bench='decide --numa',
        value=round(value, 3),
        unit='ms',
        yardstick={'name': 'the same requests by amounts alone', 'value': round(stick, 3)},
        ratio=round(value / stick, 3),
        conditions={
            'hosts': args.hosts,
            'shapes': len(KINDS),
            'processes': 1,
            'repeats': len(ours),
            'minimum': round(min(ours), 3),
            'maximum': round(max(ours), 3),
            'p99': round(float(np.percentile(ours, 99)), 3),
            'mean': round(statistics.fmean(ours), 3),
            'guests': sum(len(change.placed) for change in world),
            'survivors_median': statistics.median(site.survivors),
            'outcomes': site.outcomes,
            'world_seconds': round(hosts_ready - started, 2),
            'build_seconds': round(built - hosts_ready, 2),
            **conditions.here(),
        },
        audit=site.audit(),
    )
