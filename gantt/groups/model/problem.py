# SPDX-License-Identifier: Apache-2.0
"""Problem of a group as arrays, so that its solvers are independent of host tables.

A unit is one member by itself.  Units that are alike in all that counts are of one kind; a kind
has choices, what its members need and then their alternatives.
"""

from collections.abc import Mapping, Sequence
from math import fsum

import msgspec
import numpy as np

from gantt.core.group_policies.policies import JointPolicy, PolicyForm, near_prices, violation
from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import BoolArray, FloatArray, IntArray

#: Amount larger than any that a group takes.
UNLIMITED = 1 << 40
#: Scale of violated weights, so that they are whole numbers.
WEIGHT_UNIT = 1000


class MemberOption(msgspec.Struct, frozen=True, eq=False):
    """Choice that a unit may be placed as.

    :ivar demand: amount by class of the problem
    :ivar mask: hosts that every filter lets pass by themselves, hard rules included
    :ivar unmet: mask of hosts that do not meet a step, by step of the problem
    :ivar gain: score by row with this unit on it and nothing else of the group
    :ivar best: the largest possible score, with any other members of the group there
    :ivar crowd: by row, the change of the score of each other unit there by this unit
    """

    spec: RequestSpec
    demand: IntArray
    mask: BoolArray
    unmet: BoolArray
    gain: FloatArray
    best: FloatArray
    crowd: FloatArray


class ForbiddenCombination(msgspec.Struct, frozen=True):
    """Units that a host does not take together, found by trying.

    :ivar counts: choice -> number; that many of each, or more, are refused
    """

    row: int
    counts: Mapping[int, int]


class Goals(msgspec.Struct, frozen=True, order=True):
    """Amounts to minimize, in order of priority; of two plans the smaller one is better.

    :ivar missing: number of required members without a place
    :ivar optional: number of optional members without a place
    :ivar steps: number of members and policies that do not keep a step, by step, the last
        to be given up first
    :ivar alternatives: sum of the numbers of the alternatives that members are placed as
    :ivar weight: weight of violated soft policies and prices, in thousandths
    :ivar lack: the score, with its sign turned
    """

    missing: int
    optional: int
    steps: tuple[int, ...]
    alternatives: int
    weight: int
    lack: float

    @property
    def before_score(self) -> tuple[int, ...]:
        """Goals but for the last."""
        return (self.missing, self.optional, *self.steps, self.alternatives, self.weight)


class GroupProblem(msgspec.Struct, eq=False):
    """Problem of a group: units by kind, their choices, hosts with free resources, policies.

    :ivar names: names of the units
    :ivar entries: index of its member description by unit
    :ivar required: mask of units that have to be placed
    :ivar kinds: kind by unit
    :ivar choices_of: by kind, indices of choices, the best first
    :ivar classes: classes of resources
    :ivar free: free amount by class and bin
    :ivar bins: bin that a row takes a class from, by class and row
    :ivar limit: number of units of any choice that a host takes, by row
    :ivar steps: (layer, order), the last to be given up first
    :ivar is_steady: no unit changes the score of a host: ``gain`` is exact
    """

    names: list[str]
    entries: IntArray
    required: BoolArray
    kinds: IntArray
    choices_of: list[list[int]]
    choices: list[MemberOption]
    classes: list[str]
    free: IntArray
    bins: IntArray
    limit: IntArray
    policies: list[JointPolicy]
    steps: list[tuple[int, int]]
    is_steady: bool = True
    cuts: list[ForbiddenCombination] = []

    @property
    def hosts(self) -> int:
        """Number of rows."""
        return len(self.limit)


class Assignment(msgspec.Struct, eq=False):
    """Host and choice of each unit.

    :ivar rows: host row by unit, -1: it has no place
    :ivar choices: index of a choice by unit; meaningless for one without a place
    """

    rows: IntArray
    choices: IntArray

    @classmethod
    def empty(cls, problem: GroupProblem) -> 'Assignment':
        """Return an assignment without any place."""
        first = np.array([choices[0] for choices in problem.choices_of], np.int64)
        return cls(np.full(len(problem.names), -1, np.int64), first[problem.kinds])

    def copy(self) -> 'Assignment':
        """Return a copy to change."""
        return Assignment(self.rows.copy(), self.choices.copy())


def amounts_taken(problem: GroupProblem, plan: Assignment) -> IntArray:
    """Return the amounts of a plan, by class and bin."""
    used = np.zeros_like(problem.free)
    placed = np.flatnonzero(plan.rows >= 0)
    if not len(placed):
        return used
    demand = np.stack([problem.choices[c].demand for c in plan.choices[placed].tolist()])
    for k in range(len(problem.classes)):
        np.add.at(used[k], problem.bins[k].take(plan.rows[placed]), demand[:, k])
    return used


def goals_of(problem: GroupProblem, plan: Assignment, score: float | None = None) -> Goals:
    """Return the goals of a plan.

    :param score: score of all of its members on the table with the group on it; None: by ``gain``
    """
    rows, placed = plan.rows, plan.rows >= 0
    steps = [0.0] * len(problem.steps)
    weight, far = 0, 0
    gains: list[float] = []
    first = np.array([choices[0] for choices in problem.choices_of], np.int64)
    for unit in np.flatnonzero(placed & (plan.choices != first[problem.kinds])).tolist():
        far += problem.choices_of[problem.kinds[unit]].index(int(plan.choices[unit]))
    for c in np.unique(plan.choices[placed]).tolist():
        choice, here = problem.choices[c], rows[placed & (plan.choices == c)]
        gains += choice.gain.take(here).tolist()
        for at in range(len(steps)):
            steps[at] += int(choice.unmet[at].take(here).sum())
    for policy in problem.policies:
        if policy.step >= 0:
            steps[policy.step] += violation(policy, rows)
        elif policy.weight:
            weight += _policy_weight(policy, rows)
    return Goals(
        missing=int(np.count_nonzero(problem.required & ~placed)),
        optional=int(np.count_nonzero(~problem.required & ~placed)),
        steps=tuple(round(s) for s in steps),
        alternatives=far,
        weight=weight,
        # Exact: plans of the same scores are equal, in whatever order these are added.
        lack=-(fsum(gains) if score is None else score),
    )


def _policy_weight(policy: JointPolicy, rows: IntArray) -> int:
    """Return the weight of a soft policy, in thousandths; each price is a whole number of them."""
    if policy.form is not PolicyForm.NEAR:
        return round(policy.weight * WEIGHT_UNIT) * int(violation(policy, rows))
    member_rows, target_rows = (
        rows[mask & (rows >= 0)] for mask in (policy.subject_units, policy.target_units)
    )
    return int(
        np.rint(near_prices(policy, member_rows, target_rows) * policy.weight * WEIGHT_UNIT).sum()
    )


def required_first(members: Sequence[tuple[int, int]]) -> BoolArray:
    """Return a mask of the units to be placed: of each member (least, most) the first ones."""
    return np.concatenate([np.arange(most) < least for least, most in members])
