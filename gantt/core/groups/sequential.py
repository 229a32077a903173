# SPDX-License-Identifier: Apache-2.0
"""Members placed one after the other, as requests of their own would be, under the policies.

The first plan of every group, so that no plan is worse than this one.
"""

from collections.abc import Sequence

import numpy as np

from gantt.core.group_policies.policies import JointPolicy, added
from gantt.core.groups.group_table import GroupTable
from gantt.core.groups.problem import GroupProblem
from gantt.core.table.columns import BoolArray, FloatArray, IntArray

#: Hosts on which one member is tried where it asks for a layout.
TRIED_MAX = 16


def place(problem: GroupProblem, trial: GroupTable, order: Sequence[int]) -> None:
    """Lay units over the table in this order; those without a host stay without one."""
    waiting = [int(np.count_nonzero(p.of)) for p in problem.policies]
    of_unit: dict[int, list[int]] = {unit: [] for unit in order}
    for k, policy in enumerate(problem.policies):
        for unit in np.flatnonzero(policy.of | policy.to).tolist():
            if unit in of_unit:
                of_unit[unit].append(k)
    for unit in order:
        mine = [(problem.policies[k], waiting[k]) for k in of_unit[unit]]
        for choice in problem.choices_of[problem.kinds[unit]]:
            if _placed(problem, trial, unit, choice, mine):
                break
        for k in of_unit[unit]:
            waiting[k] -= bool(problem.policies[k].of[unit])


def _placed(
    problem: GroupProblem,
    trial: GroupTable,
    unit: int,
    choice: int,
    policies: Sequence[tuple[JointPolicy, int]],
) -> bool:
    alive = trial.passing(choice)
    if not alive.any():
        return False
    rows = trial.plan.rows
    costs = [(policy, added(policy, unit, rows, left)) for policy, left in policies]
    for policy, cost in costs:
        if policy.is_hard:
            alive &= cost == 0
    alive = _narrowed(problem, choice, alive, costs)
    if not alive.any():
        return False
    ranking = trial.rank(choice, alive)
    best = ranking.best(min(TRIED_MAX, len(ranking.rows)))
    return any(trial.lay(unit, choice, int(ranking.rows[i])) for i in best)


def _narrowed(
    problem: GroupProblem,
    choice: int,
    alive: BoolArray,
    costs: Sequence[tuple[JointPolicy, FloatArray]],
) -> BoolArray:
    """Those that keep the most of what may be given up, and cost the least by soft policies."""
    for step, unmet in enumerate(problem.choices[choice].unmet):
        lost = unmet.astype(float)
        for policy, cost in costs:
            if policy.step == step:
                lost += cost
        alive = _least(alive, lost)
    soft = [policy.weight * cost for policy, cost in costs if policy.weight]
    return _least(alive, np.sum(soft, axis=0)) if soft else alive


def _least(alive: BoolArray, cost: FloatArray) -> BoolArray:
    if not alive.any():
        return alive
    narrowed: BoolArray = alive & (cost <= cost[alive].min() + 1e-9)
    return narrowed


def orders(problem: GroupProblem) -> list[IntArray]:
    """The order in which members stand in the description, and the largest first."""
    free = np.maximum(problem.free.astype(float).sum(axis=1), 1.0)
    demand = np.array(
        [
            (problem.choices[problem.choices_of[kind][0]].demand / free).sum()
            for kind in problem.kinds.tolist()
        ]
    )
    given = np.argsort(~problem.required, kind='stable')
    large = np.lexsort((np.arange(len(demand)), -demand, ~problem.required))
    return [given, large]
