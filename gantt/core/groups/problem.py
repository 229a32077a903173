# SPDX-License-Identifier: Apache-2.0
"""The problem of a group: arrays alone, so that whoever solves it knows nothing of tables.

A unit is one member by itself.  Units that are alike in all that counts are of one kind; a kind
has choices, what its members need and then their alternatives.
"""

from collections.abc import Mapping, Sequence
from math import fsum

import msgspec
import numpy as np

from gantt.core.group_policies.policies import JointPolicy, PolicyForm, prices, violation
from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import BoolArray, FloatArray, IntArray

#: More of anything than a group takes.
PLENTY = 1 << 40
#: Of the violated weight, so that it is a whole number.
WEIGHT_UNIT = 1000


class MemberOption(msgspec.Struct, frozen=True, eq=False):
    """What a unit may be placed as.

    :ivar demand: by class of the problem
    :ivar mask: hosts that every filter lets pass by themselves, hard rules included
    :ivar unmet: by step of the problem, hosts that do not meet it
    :ivar gain: score by row with this unit on it and nothing else of the group
    :ivar best: the most that the score can be, whatever of the group is there as well
    :ivar crowd: by row, what this unit changes of the score of each other one that is there
    """

    spec: RequestSpec
    demand: IntArray
    mask: BoolArray
    unmet: BoolArray
    gain: FloatArray
    best: FloatArray
    crowd: FloatArray


class Cut(msgspec.Struct, frozen=True):
    """What a host does not take together, as it was found by trying.

    :ivar counts: choice -> how many; so many of each, or more, are refused
    """

    row: int
    counts: Mapping[int, int]


class Goals(msgspec.Struct, frozen=True, order=True):
    """What is to be small, the first first; of two plans the smaller one is better.

    :ivar missing: members without a place, of those that have to be placed
    :ivar optional: of those that may be
    :ivar steps: by step, the last to be given up first: members and policies that do not keep it
    :ivar alternatives: how far down their alternatives members had to go, added up
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
        """All but the last."""
        return (self.missing, self.optional, *self.steps, self.alternatives, self.weight)


class GroupProblem(msgspec.Struct, eq=False):
    """See the module docstring.

    :ivar names: of the units
    :ivar entries: of each unit, the index of its member description
    :ivar required: which units have to be placed
    :ivar kinds: of each unit
    :ivar choices_of: by kind, indices of choices, the best first
    :ivar classes: of resources
    :ivar free: by class and bin
    :ivar bins: by class and row, the bin that it takes from
    :ivar limit: by row, how many units of any choice it takes
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
    cuts: list[Cut] = []

    @property
    def hosts(self) -> int:
        """How many rows there are."""
        return len(self.limit)

    def policies_of(self, unit: int) -> list[JointPolicy]:
        """Policies that a unit counts in."""
        return [p for p in self.policies if p.of[unit] or p.to[unit]]


class Assignment(msgspec.Struct, eq=False):
    """Where each unit is, and as what.

    :ivar rows: by unit, -1: it has no place
    :ivar choices: index of a choice by unit; of one without a place it says nothing
    """

    rows: IntArray
    choices: IntArray

    @classmethod
    def empty(cls, problem: GroupProblem) -> 'Assignment':
        """Nobody has a place."""
        first = np.array([of[0] for of in problem.choices_of], np.int64)
        return cls(np.full(len(problem.names), -1, np.int64), first[problem.kinds])

    def copy(self) -> 'Assignment':
        """Another one, to be changed."""
        return Assignment(self.rows.copy(), self.choices.copy())


def taken(problem: GroupProblem, plan: Assignment) -> IntArray:
    """What a plan takes, by class and bin."""
    used = np.zeros_like(problem.free)
    placed = np.flatnonzero(plan.rows >= 0)
    if not len(placed):
        return used
    demand = np.stack([problem.choices[c].demand for c in plan.choices[placed].tolist()])
    for k in range(len(problem.classes)):
        np.add.at(used[k], problem.bins[k].take(plan.rows[placed]), demand[:, k])
    return used


def goals(problem: GroupProblem, plan: Assignment, score: float | None = None) -> Goals:
    """What a plan comes to.

    :param score: of all of its members on the table with the group on it; None: by ``gain``
    """
    rows, placed = plan.rows, plan.rows >= 0
    steps = [0.0] * len(problem.steps)
    weight, far = 0, 0
    gains: list[float] = []
    first = np.array([of[0] for of in problem.choices_of], np.int64)
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
            weight += _weight(policy, rows)
    return Goals(
        missing=int(np.count_nonzero(problem.required & ~placed)),
        optional=int(np.count_nonzero(~problem.required & ~placed)),
        steps=tuple(round(s) for s in steps),
        alternatives=far,
        weight=weight,
        # Exact: plans of the same scores are equal, in whatever order these are added.
        lack=-(fsum(gains) if score is None else score),
    )


def _weight(policy: JointPolicy, rows: IntArray) -> int:
    """Of a soft policy, in thousandths; each price is a whole number of them."""
    if policy.form is not PolicyForm.NEAR:
        return round(policy.weight * WEIGHT_UNIT) * int(violation(policy, rows))
    mine, target = (rows[of & (rows >= 0)] for of in (policy.of, policy.to))
    return int(np.rint(prices(policy, mine, target) * policy.weight * WEIGHT_UNIT).sum())


def required_first(members: Sequence[tuple[int, int]]) -> BoolArray:
    """Which units have to be placed: of each member (least, most) the first ones."""
    return np.concatenate([np.arange(most) < least for least, most in members])
