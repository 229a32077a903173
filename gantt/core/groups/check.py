# SPDX-License-Identifier: Apache-2.0
"""The plain check of a plan before it is used: capacity by addition, policies by counting."""

import msgspec
import numpy as np

from gantt.core.group_policies.policies import violation
from gantt.core.groups.problem import Assignment, GroupProblem, taken


class PlanFault(msgspec.Struct, frozen=True):
    """Why a plan is no plan.

    :ivar kind: ``choice``, ``host``, ``room``, ``count``, ``cut`` or ``policy``
    :ivar line: what is wrong, in words
    """

    kind: str
    line: str


def faults(problem: GroupProblem, plan: Assignment) -> list[PlanFault]:
    """All that is wrong with a plan; empty: it may be used."""
    # What is no unit of the problem, or on none of its hosts, cannot be counted.
    of_units = _of_units(problem, plan)
    return of_units or [*_of_room(problem, plan), *_of_policies(problem, plan)]


def _of_units(problem: GroupProblem, plan: Assignment) -> list[PlanFault]:
    found = []
    for unit, (row, choice) in enumerate(
        zip(plan.rows.tolist(), plan.choices.tolist(), strict=True)
    ):
        name = problem.names[unit]
        if row < 0:
            continue
        if choice not in problem.choices_of[problem.kinds[unit]]:
            found.append(PlanFault('choice', f'{name} is planned as what it is not'))
        elif row >= problem.hosts or not problem.choices[choice].mask[row]:
            found.append(PlanFault('host', f'{name} is on row {row}, which a filter removes'))
    return found


def _of_room(problem: GroupProblem, plan: Assignment) -> list[PlanFault]:
    found, used = [], taken(problem, plan)
    for k, at in np.argwhere(used > np.maximum(problem.free, 0)).tolist():
        found.append(
            PlanFault(
                'room',
                f'{used[k, at]} {problem.classes[k]} taken of {problem.free[k, at]} in bin {at}',
            )
        )
    placed = plan.rows[plan.rows >= 0]
    counts = np.bincount(placed, minlength=problem.hosts)
    for row in np.flatnonzero(counts > problem.limit).tolist():
        found.append(
            PlanFault(
                'count', f'{counts[row]} members on row {row}, which takes {problem.limit[row]}'
            )
        )
    for cut in problem.cuts:
        here = plan.choices[plan.rows == cut.row]
        if all(np.count_nonzero(here == c) >= n for c, n in cut.counts.items()):
            found.append(PlanFault('cut', f'row {cut.row} does not take its members together'))
    return found


def _of_policies(problem: GroupProblem, plan: Assignment) -> list[PlanFault]:
    return [
        PlanFault('policy', f'{policy.line} is violated by {found:g}')
        for policy in problem.policies
        if policy.is_hard and (found := violation(policy, plan.rows)) > 0
    ]
