# SPDX-License-Identifier: Apache-2.0
"""Two tables of the same hosts, one of them with something more, get the same news and requests.

The figure is the cost of a request that does not use the addition; the table without is the
yardstick.
"""

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from bench import decide
from gantt import plugin_loader
from gantt.core.messages import base
from gantt.core.messages.request import SelectDestinations
from gantt.core.placement.place import place, undo_decision
from gantt.core.records.decision import Decision
from gantt.core.resources.host import Aggregate, HostChange
from gantt.core.table.host_table import HostTable

#: A number, the request of that number, and the time of each decision by what it is called.
After = Callable[[int, SelectDestinations, dict[str, float]], None]


class Side:
    """A table, the memory of it and of a copy, and the decisions on it."""

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
        """Apply a change of one host."""
        row = self.rows[host]
        row = msgspec.structs.replace(row, used=used, version=row.version + 1)
        self.rows[host] = row
        guests = list(self.table.placed.on_provider(row.id).values())
        self.table.apply(HostChange(provider_id=row.id, row=row, placed=guests))

    def decide(
        self, request: SelectDestinations, seed: int, stands: bool = True
    ) -> tuple[float, list[str]]:
        """Return the us of one decision and its hosts; it is undone, at once or after 32 others."""
        started = time.perf_counter()
        decision = place(
            self.table, request, self.pipeline, seed=seed, decision_id=request.request_id
        )
        spent = time.perf_counter() - started
        self.standing.insert(len(self.standing) if stands else 0, (decision, request))
        if not stands or len(self.standing) > decide.STANDING:
            undo_decision(self.table, *self.standing.pop(0))
        return spent * 1e6, [m.selection.host for m in decision.members if m.selection]

    def wrong(self) -> int:
        """Return how many classes have wrong arithmetic."""
        table = self.table
        return sum(
            bool((table.free[code] != table.cap[code] - table.used[code]).any())
            for code in range(len(table.classes))
        )


class Measured(NamedTuple):
    """Results of ``in_turn``.

    :ivar medians: in us, by the name of what was timed
    :ivar repeats: of each side
    :ivar elsewhere: requests that the two sides placed on different hosts
    """

    medians: dict[str, float]
    repeats: int
    elsewhere: int


def in_turn(
    args: argparse.Namespace,
    rng: np.random.Generator,
    sides: Mapping[str, Side],
    also: Callable[[int, Side], tuple[str, float, list[str]] | None] = lambda number, side: None,
    after: After = lambda number, request, spent: None,
) -> Measured:
    """Run rounds of both tables in turn; the first round warms up.

    :param also: a further decision on each side, of some numbers: its name after the
        side's name, its time and where to
    :param after: further timings, once both sides have decided
    """
    requests = decide.shapes(args.hosts, rng)
    rounds = args.rounds or (12 if args.hosts <= 20_000 else 4)
    times: dict[str, list[float]] = {}
    elsewhere = 0
    for number in range((1 + rounds) * decide.SHAPES):
        request = msgspec.structs.replace(
            requests[number % decide.SHAPES],
            request_id=base.derived_id('bench', number),
            consumers=[decide.an_id(9, number)],
        )
        host = int(rng.integers(args.hosts))
        used = {name: int(cap * rng.uniform(0, 1)) for name, cap in decide.CAPS.items()}
        spent: dict[str, float] = {}
        places: list[list[str]] = []
        # The first side alternates from decision to decision, and every fourth time once more.
        named = list(sides.items())
        for name, side in named if (number + number // 4) % 2 else reversed(named):
            side.change(host, used)
            spent[name], where = side.decide(request, number)
            more = also(number, side)
            if more is not None:
                spent[f'{name} {more[0]}'] = more[1]
                where += more[2]
            places.append(where)
        elsewhere += places[0] != places[1]
        after(number, request, spent)
        if number >= decide.SHAPES:
            for name, duration in spent.items():
                times.setdefault(name, []).append(duration)
    medians = {name: statistics.median(durations) for name, durations in times.items()}
    return Measured(medians, rounds * decide.SHAPES, elsewhere)
