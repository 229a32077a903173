# SPDX-License-Identifier: Apache-2.0
"""Input of a solver: classes of interchangeable items, counted by host, and constraints.

An item is a unit, or several that have to be on one host.  Items of one class are alike for every
host and every policy: a solver decides how many of them a host gets, not which.  Numbers are whole.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec
import numpy as np

from gantt.core.group_policies.policies import JointPolicy
from gantt.core.table.columns import IntArray
from gantt.groups.model.problem import GroupProblem


class ItemOption(msgspec.Struct, frozen=True, eq=False):
    """Way to place items of a class: one choice for each of their units.

    :ivar choices: index of the choice, by unit of an item
    :ivar demand: demand of an item, by class of resources
    :ivar rows: rows of the hosts that may have an item
    :ivar most: by row, the largest number of items
    :ivar steps: by step and row, what an item there adds to it, independent of other items
    :ivar weight: by row, what an item there adds to the weight of soft policies
    :ivar cost: by row, the shortfall from the best score, in whole units
    :ivar least_cost: by row, the least cost with any other members of the group there
    :ivar crowd: by row, what an item adds to the cost of each other unit there
    :ivar alternatives: how far down their alternatives its units are
    """

    choices: tuple[int, ...]
    demand: IntArray
    rows: IntArray
    most: IntArray
    steps: IntArray
    weight: IntArray
    cost: IntArray
    least_cost: IntArray
    crowd: IntArray
    alternatives: int

    def restricted_to(self, at: IntArray) -> 'ItemOption':
        """Return the option restricted to some of its rows."""
        return msgspec.structs.replace(
            self,
            rows=self.rows[at],
            most=self.most[at],
            steps=self.steps[:, at],
            weight=self.weight[at],
            cost=self.cost[at],
            least_cost=self.least_cost[at],
            crowd=self.crowd[at],
        )


class DomainCap(msgspec.Struct, frozen=True, eq=False):
    """Upper bound of the items of a class in a domain.

    :ivar codes: domain by row of the table
    """

    codes: np.ndarray
    most: int
    domains: int


class ItemClass(msgspec.Struct, frozen=True, eq=False):
    """Class of equal items.

    :ivar items: units of each item
    :ivar sets: by item, the set that a cap is about; items of several sets are dealt in the end
    :ivar caps: caps on all sets together
    :ivar of: position of a policy in the model -> how many units of an item it is about
    :ivar to: position of a policy in the model -> number of units of an item that count as its
        others
    """

    items: list[list[int]]
    sets: list[int]
    is_required: bool
    options: list[ItemOption]
    caps: list[DomainCap]
    of: Mapping[int, int]
    to: Mapping[int, int]

    @property
    def width(self) -> int:
        """Number of units of an item."""
        return len(self.items[0])


class Model(msgspec.Struct, frozen=True, eq=False):
    """Input of a solver; see the module docstring.

    :ivar policies: those that are not in the rows and caps of classes already
    :ivar unit: units of cost per 1 of score
    :ivar top: the score that costs count from, by unit of the problem
    :ivar is_whole: no host was left out that an optimal plan may need
    """

    problem: GroupProblem
    classes: list[ItemClass]
    policies: list[JointPolicy]
    unit: float
    top: float
    is_whole: bool = True

    @property
    def variables(self) -> int:
        """Number of counts to be decided."""
        return sum(len(option.rows) for item_class in self.classes for option in item_class.options)


#: Class, option -> number of items by row of the option.
Counts = dict[tuple[int, int], IntArray]


class SolverGoal(msgspec.Struct, frozen=True):
    """Goal that a solver minimizes, the goals before it being bounded.

    :ivar at: index of the goal: 0 missing, 1 optional, then the steps, alternatives, weight and
        cost; -1: no goal, any plan will do
    :ivar ceilings: upper bounds of the goals before
    """

    at: int
    ceilings: tuple[int, ...] = ()


class SolverResult(msgspec.Struct, frozen=True, eq=False):
    """Result of a solver.

    :ivar status: ``optimal``, ``feasible``, ``infeasible`` or ``unknown``
    :ivar counts: counts of the plan, where the status is ``optimal`` or ``feasible``
    :ivar value: value of the goal
    :ivar bound: no plan of the model has a smaller one
    :ivar problem: failure of the solver where it has no answer; it is not to be called again
    """

    status: str
    counts: Counts | None = None
    value: int = 0
    bound: int = 0
    problem: str = ''


class GroupSolver(Protocol):
    """Solver of models; see ``gantt.groups.solver``."""

    def solve(
        self,
        model: Model,
        goal: SolverGoal,
        *,
        seconds: float,
        seed: int,
        hint: Counts | None = None,
    ) -> SolverResult:
        """Solve a model in one thread.

        :param seconds: time limit
        :param hint: counts to begin with
        """
        ...


class FailureRecordingSolver:
    """Solver of one group that is not called again after a failure, which is recorded.

    :ivar problem: the failure; '': none
    """

    def __init__(self, solver: GroupSolver) -> None:
        self._solver = solver
        self.problem = ''

    def solve(
        self,
        model: Model,
        goal: SolverGoal,
        *,
        seconds: float,
        seed: int,
        hint: Counts | None = None,
    ) -> SolverResult:
        """Solve a model, see ``GroupSolver.solve``."""
        if self.problem:
            return SolverResult('unknown', problem=self.problem)
        result = self._solver.solve(model, goal, seconds=seconds, seed=seed, hint=hint)
        self.problem = result.problem
        return result


def least_cost(model: Model) -> int | None:
    """Return a lower bound of the cost of plans that place all items; None: a class has no place.

    No solver is needed: each class by itself has the cheapest hosts it may have.  Classes share
    nothing here, and only the caps of one count of policies, so that it is a
    bound whatever else the group requires.
    """
    total = 0
    for item_class in model.classes:
        class_cost = _least_cost_of(item_class)
        if class_cost is None:
            return None
        total += class_cost
    return total


def _least_cost_of(item_class: ItemClass) -> int | None:
    rows = np.concatenate([option.rows for option in item_class.options])
    cost = np.concatenate([option.least_cost for option in item_class.options])
    largest = np.concatenate([option.most for option in item_class.options])
    order = np.argsort(cost, kind='stable')
    cap = item_class.caps[0] if item_class.caps else None
    room_left = None if cap is None else np.full(cap.domains, cap.most, np.int64)
    unplaced, total = len(item_class.items), 0
    for at in order.tolist():
        if not unplaced:
            break
        count = min(int(largest[at]), unplaced)
        if cap is not None and room_left is not None:
            domain = int(cap.codes[rows[at]])
            count = min(count, int(room_left[domain]))
            room_left[domain] -= count
        total += count * int(cost[at])
        unplaced -= count
    return None if unplaced else total
