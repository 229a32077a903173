# SPDX-License-Identifier: Apache-2.0
"""The check whether a demand fits a host, with its layout.

The masks of the pipeline are necessary conditions of it (exact for plain resources, and
compared with it by tests), and the compute side repeats it before a guest starts.  Cells,
pages and devices of the host are parameters as well, so that a demand for them is
checked in the same place.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gantt.core.messages.layout import Layout
from gantt.core.messages.report import DevicePool, NumaCell
from gantt.core.messages.resource_classes import Inventory, format_amount
from gantt.core.topology.free import FreeTopology


class Problem(msgspec.Struct, frozen=True):
    """An obstacle of a demand.

    :ivar kind: missing | capacity | min_unit | max_unit | step_size | inside
    :ivar need: the requested amount
    :ivar have: the amount that is free, or the bound that was violated
    :ivar text: of kind ``inside``: the description
    """

    resource_class: str
    kind: str
    need: int
    have: int
    text: str = ''

    @property
    def lack(self) -> int:
        """Amount by which the demand would have to be smaller; 0 if that does not help."""
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
    """The result of the check.

    :ivar problems: empty if the demand fits
    """

    ok: bool
    problems: list[Problem] = []

    @property
    def reason(self) -> str:
        """The problems as one line, '' if the demand fits."""
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
    """Return whether ``demand`` fits beside ``used`` and ``foreign``, with its layout.

    :param demand: class -> amount, each in one piece
    :param used: class -> use by claims
    :param foreign: class -> use outside claims
    :param numa: cells of the host; plain amounts do not depend on them
    :param devices: device pools of the host, likewise
    :param layout: cells, cores, pages and devices of the demand
    :param taken: layouts of other claims
    """
    problems = []
    for name, amount in demand.items():
        inventory = inventories.get(name)
        if inventory is None:
            problems.append(Problem(name, 'missing', amount, 0))
            continue
        unit_problem = inventory.unit_problem(amount)
        if unit_problem is not None:
            problems.append(Problem(name, unit_problem[0], amount, unit_problem[1]))
        free = inventory.cap - used.get(name, 0) - foreign.get(name, 0)
        if amount > free:
            problems.append(Problem(name, 'capacity', amount, free))
    if layout is not None:
        why_not = FreeTopology(numa or (), devices or (), inventories, taken).in_the_way(layout)
        if why_not:
            problems.append(Problem('', 'inside', 0, 0, why_not))
    return Fit(not problems, problems)
