# SPDX-License-Identifier: Apache-2.0
"""``bench decide --anti-affinity``: members that must be apart, rather on racks of their own.

Groups of up to 16 members with a hard rule; each request has a soft rule against
the racks on which its group is already, as its caller knows them.  The yardstick
is the same requests without either, on a table of their own.
"""

import argparse
import statistics
import time
import uuid

import numpy as np

from bench import Result, conditions
from gantt import plugin_loader
from gantt.core.messages import base
from gantt.core.messages.request import GroupRef, Policy, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.place import place, undo_decision
from gantt.core.records.decision import Decision
from gantt.core.resources.host import HostChange, HostFacts, HostRow
from gantt.core.table.host_table import HostTable

NOW = 1_000_000.0
CAPS = {'VCPU': 128, 'MEMORY_MB': 1024 * 1024, 'DISK_GB': 8000}
RACK, ROOM = 40, 400  # hosts of one
ROUNDS, SHAPES, MEMBERS = 6, 256, 16
#: Groups at a time; the oldest goes when a new one begins.
GROUPS = 32


def an_id(kind: int, number: int) -> str:
    """Return a uuid by kind and number."""
    return str(uuid.UUID(int=(kind << 64) + number))


def hosts(count: int, rng: np.random.Generator) -> list[HostChange]:
    """Return hosts half full, in racks of 40 and rooms of ten racks."""
    inventories = {name: Inventory(total=cap) for name, cap in CAPS.items()}
    shares = rng.uniform(0, 1, (count, len(CAPS)))
    host_changes = []
    for i in range(count):
        name = f'cmp-{i:06}'
        row = HostRow(
            id=i + 1,
            uuid=an_id(1, i),
            name=name,
            version=1,
            reported_at=NOW - 30.0,
            facts=HostFacts(inventories=inventories, location=f'{rack_of(i)}.{name}'),
            used={key: int(cap * shares[i, k]) for k, (key, cap) in enumerate(CAPS.items())},
        )
        host_changes.append(HostChange(provider_id=row.id, row=row, placed=[]))
    return host_changes


def rack_of(host: int) -> str:
    """Return the place of a host's rack."""
    return f'site1.room{host // ROOM}.rack{host // RACK}'


class Side:
    """A table on which the same requests are placed, with the policies or without."""

    def __init__(self, world: list[HostChange], strict: bool) -> None:
        self.strict = strict
        self.table = HostTable.build(world, [], {}, (), NOW)
        self.pipeline = plugin_loader.load_pipeline()
        self.rows = {change.row.name: i for i, change in enumerate(world) if change.row}
        self.groups: dict[int, list[tuple[Decision, SelectDestinations]]] = {}
        #: Rows of the hosts of a group's members, read from each decision once: to read all of
        #: them before each request would leave the processor's caches cold for what is timed.
        self.hosts: dict[int, list[int]] = {}
        self.racks: list[int] = []  # of whole groups: how many different ones
        self.together = self.refused = 0

    def request(self, number: int) -> SelectDestinations:
        """Return the next member of a group."""
        group = self._group(number)
        spec = RequestSpec(
            resources={
                'VCPU': 1 << number % 4,
                'MEMORY_MB': 2048 << number // 4 % 4,
                'DISK_GB': 20,
            },
            group=GroupRef(uuid=an_id(3, group), policy=Policy.ANTI_AFFINITY)
            if self.strict
            else None,
            hints={'rules': self._apart(group)} if self.strict and group in self.hosts else {},
        )
        return SelectDestinations(
            request_id=base.derived_id('apart', self.strict, number),
            spec=spec,
            consumers=[an_id(4, number)],
        )

    @staticmethod
    def _group(number: int) -> int:
        # Groups grow side by side, as they do with many callers.
        return number // (GROUPS * MEMBERS) * GROUPS + number % GROUPS

    def _apart(self, group: int) -> list[str]:
        racks = ', '.join(f'"{rack}"' for rack in sorted({*map(rack_of, self.hosts[group])}))
        return [f'soft 1: location not in [{racks}]']

    def decide(self, number: int) -> float:
        """Return the seconds of one decision; complete groups are checked and taken back."""
        request = self.request(number)
        started = time.perf_counter()
        decision = place(
            self.table, request, self.pipeline, seed=number, decision_id=request.request_id
        )
        spent = time.perf_counter() - started
        self.refused += not decision.is_placed
        group = self._group(number)
        self.groups.setdefault(group, []).append((decision, request))
        selected = decision.members[0].selection
        if selected is not None:
            self.hosts.setdefault(group, []).append(self.rows[selected.host])
        if len(self.groups[group]) == MEMBERS:
            where = self.hosts.pop(group, [])
            self.together += len(where) - len(set(where))
            self.racks.append(len({*map(rack_of, where)}))
            for pick in self.groups.pop(group):
                undo_decision(self.table, *pick)
        return spent

    def audit(self) -> int:
        """Count members of one group on one host, hosts beyond their capacity, and refusals."""
        over = int((self.table.free < 0).any(axis=0).sum())
        return over + (self.together + self.refused if self.strict else 0)


def run(args: argparse.Namespace) -> Result:
    """Run rounds of both sides in turn; return decisions a second by the mean of all."""
    rng = np.random.default_rng(args.seed)
    world = hosts(args.hosts, rng)
    sides = Side(world, True), Side(world, False)
    spent: tuple[list[float], list[float]] = ([], [])
    rounds = max(args.rounds or ROUNDS, GROUPS * MEMBERS // SHAPES)
    for turn in range(rounds + 1):
        for number in range(turn * SHAPES, (turn + 1) * SHAPES):
            for side, seconds in zip(sides, spent, strict=True):
                took = side.decide(number)
                if turn:  # the first round warms up
                    seconds.append(took)
    value, stick = (1 / statistics.fmean(seconds) for seconds in spent)
    micros = [duration * 1e6 for duration in spent[0]]
    return Result(
        bench='decide --anti-affinity',
        value=round(value, 1),
        unit='decisions/s',
        yardstick={'name': 'the same requests without a policy', 'value': round(stick, 1)},
        ratio=round(value / stick, 3),
        conditions={
            'hosts': args.hosts,
            'racks': -(-args.hosts // RACK),
            'members': MEMBERS,
            'groups': GROUPS,
            'processes': 1,
            'repeats': len(micros),
            'minimum': round(min(micros), 1),
            'maximum': round(max(micros), 1),
            'p50': round(statistics.median(micros), 1),
            'p99': round(float(np.percentile(micros, 99)), 1),
            'yardstick_p50': round(statistics.median(spent[1]) * 1e6, 1),
            'racks_of_a_group': round(statistics.fmean(sides[0].racks), 2),
            'racks_of_a_group_without': round(statistics.fmean(sides[1].racks), 2),
            **conditions.here(),
        },
        audit=sides[0].audit() + sides[1].audit(),
    )
