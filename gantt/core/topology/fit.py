# SPDX-License-Identifier: Apache-2.0
"""Does this demand fit this host, and how is it laid out?

The one answer to that question: the masks of the pipeline are necessary
conditions of it (exact for plain resources, and held against it by tests),
the compute side asks it again before a guest starts.  Cells, pages and devices
of the host are handed in with the rest, so that a demand for them is decided
in this same place.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gantt.core.messages.layout import Layout
from gantt.core.messages.report import DevicePool, NumaCell
from gantt.core.messages.resource_classes import Inventory, format_amount
from gantt.core.topology.free import FreeTopology


class Problem(msgspec.Struct, frozen=True):
    """One thing in the way.

    :ivar kind: missing | capacity | min_unit | max_unit | step_size | inside
    :ivar need: the amount asked for
    :ivar have: the amount that is free, or the bound that was broken
    :ivar text: of what is inside of the host: the problem itself
    """

    resource_class: str
    kind: str
    need: int
    have: int
    text: str = ''

    @property
    def lack(self) -> int:
        """How much less would do, where less is what helps."""
        return self.need - self.have if self.kind in ('capacity', 'max_unit') else 0

    def __str__(self) -> str:
        need = format_amount(self.resource_class, self.need)
        have = format_amount(self.resource_class, self.have)
        match self.kind:
            case 'inside':
                return self.text
            case 'missing':
                return f'the host has no {self.resource_class}'
            case 'capacity':
                return f'too little free {self.resource_class} (need {need}, has {have})'
            case 'max_unit':
                return f'{self.resource_class}: at most {have} in one piece, need {need}'
            case 'min_unit':
                return f'{self.resource_class}: at least {have} in one piece, need {need}'
        return f'{self.resource_class}: only multiples of {have}, need {need}'


class Fit(msgspec.Struct, frozen=True):
    """The answer.

    :ivar problems: empty where it fits
    """

    ok: bool
    problems: list[Problem] = []

    @property
    def reason(self) -> str:
        """The problems as one line, '' where it fits."""
        return '; '.join(map(str, self.problems))


def fit(
    demand: Mapping[str, int],
    inventories: Mapping[str, Inventory],
    used: Mapping[str, int],
    foreign: Mapping[str, int],
    numa: Sequence[NumaCell] | None = None,
    devices: Sequence[DevicePool] | None = None,
    layout: Layout | None = None,
    taken: Iterable[Layout] = (),
) -> Fit:
    """Whether ``demand`` fits beside ``used`` and ``foreign``, laid out as it is.

    :param demand: class -> amount, each to be had in one piece
    :param used: class -> use by claims
    :param foreign: class -> use outside claims
    :param numa: cells of the host; plain amounts do not depend on them
    :param devices: device pools of the host, likewise
    :param layout: cells, cores, pages and devices that it is to have
    :param taken: those that others have
    """
    problems = []
    for name, amount in demand.items():
        inventory = inventories.get(name)
        if inventory is None:
            problems.append(Problem(name, 'missing', amount, 0))
            continue
        found = inventory.unit_problem(amount)
        if found is not None:
            problems.append(Problem(name, found[0], amount, found[1]))
        free = inventory.cap - used.get(name, 0) - foreign.get(name, 0)
        if amount > free:
            problems.append(Problem(name, 'capacity', amount, free))
    if layout is not None:
        why_not = FreeTopology(numa or (), devices or (), inventories, taken).in_the_way(layout)
        if why_not:
            problems.append(Problem('', 'inside', 0, 0, why_not))
    return Fit(not problems, problems)
