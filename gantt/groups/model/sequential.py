# SPDX-License-Identifier: Apache-2.0
"""Sequential placing: members one after the other, as single requests, under the policies.

The first plan of every group, so that no plan is worse than this one.
"""

from collections.abc import Sequence

import numpy as np

from gantt.core.group_policies.policies import JointPolicy, added_cost
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.groups.model.group_table import GroupTable
from gantt.groups.model.problem import GroupProblem

#: Largest number of hosts on which a member that needs a layout is tried.
TRIED_HOSTS_MAX = 16


def place_sequentially(
    problem: GroupProblem, trial: GroupTable, order: Sequence[int], *, fullest: bool = False
) -> None:
    """Lay units over the table in this order; those without a host stay without one.

    :param fullest: each on the host with the least room left of those that would do, the rule
        "best fit" of bin packing; else on the host for a request of its own
    """
    room = RemainingCapacity(problem) if fullest else None
    waiting = [int(np.count_nonzero(p.subject_units)) for p in problem.policies]
    policies_of: dict[int, list[int]] = {unit: [] for unit in order}
    for k, policy in enumerate(problem.policies):
        for unit in np.flatnonzero(policy.subject_units | policy.target_units).tolist():
            if unit in policies_of:
                policies_of[unit].append(k)
    for unit in order:
        unit_policies = [(problem.policies[k], waiting[k]) for k in policies_of[unit]]
        for choice in problem.choices_of[problem.kinds[unit]]:
            if _try_place(problem, trial, unit, choice, unit_policies, room):
                break
        for k in policies_of[unit]:
            waiting[k] -= bool(problem.policies[k].subject_units[unit])


def _try_place(
    problem: GroupProblem,
    trial: GroupTable,
    unit: int,
    choice: int,
    policies: Sequence[tuple[JointPolicy, int]],
    room: 'RemainingCapacity | None',
) -> bool:
    """Place a unit by one of its options on the best host of it; return whether it fits on one.

    :param choice: index of the option in ``problem.choices``
    :param policies: each with the number of its units that are not placed yet
    """
    alive = trial.passing_rows(choice)
    if not alive.any():
        return False
    rows = trial.plan.rows
    costs = [(policy, added_cost(policy, unit, rows, unplaced)) for policy, unplaced in policies]
    for policy, cost in costs:
        if policy.is_hard:
            alive &= cost == 0
    alive = _cheapest_hosts(problem, choice, alive, costs)
    if not alive.any():
        return False
    if room is None:
        ranking = trial.rank(choice, alive)
        best = ranking.best(min(TRIED_HOSTS_MAX, len(ranking.rows)))
        return any(trial.try_place(unit, choice, int(ranking.rows[i])) for i in best)
    for row in room.fullest(alive):
        if trial.try_place(unit, choice, row):
            room.take(row, choice)
            return True
    return False


class RemainingCapacity:
    """Remaining room of hosts, as shares of the total of a class, so that none decides alone."""

    def __init__(self, problem: GroupProblem) -> None:
        self._problem = problem
        self._totals = _totals_by_class(problem)
        self._free_shares = problem.free / self._totals[:, None]

    def fullest(self, alive: BoolArray) -> list[int]:
        """Return the rows of ``alive`` with the least room, at most ``TRIED_HOSTS_MAX``."""
        rows = np.flatnonzero(alive)
        room = np.zeros(len(rows))
        for of_class, bins in zip(self._free_shares, self._problem.bins, strict=True):
            room += of_class[bins[rows]]
        order: list[int] = rows[np.argsort(room, kind='stable')][:TRIED_HOSTS_MAX].tolist()
        return order

    def take(self, host_row: int, option: int) -> None:
        """Subtract what one unit takes of the host when placed by ``problem.choices[option]``."""
        share = self._problem.choices[option].demand / self._totals
        for k, bins in enumerate(self._problem.bins):
            self._free_shares[k, bins[host_row]] -= share[k]


def _cheapest_hosts(
    problem: GroupProblem,
    choice: int,
    alive: BoolArray,
    costs: Sequence[tuple[JointPolicy, FloatArray]],
) -> BoolArray:
    """Return the hosts that keep most droppable steps, and cost the least by soft policies."""
    for step, unmet in enumerate(problem.choices[choice].unmet):
        lost = unmet.astype(float)
        for policy, cost in costs:
            if policy.step == step:
                lost += cost
        alive = _least_cost_hosts(alive, lost)
    soft = [policy.weight * cost for policy, cost in costs if policy.weight]
    return _least_cost_hosts(alive, np.sum(soft, axis=0)) if soft else alive


def _least_cost_hosts(alive: BoolArray, cost: FloatArray) -> BoolArray:
    if not alive.any():
        return alive
    narrowed: BoolArray = alive & (cost <= cost[alive].min() + 1e-9)
    return narrowed


def _totals_by_class(problem: GroupProblem) -> FloatArray:
    """Return the total of all hosts, by class."""
    whole: FloatArray = np.maximum(problem.free.astype(float).sum(axis=1), 1.0)
    return whole


def unit_orders(problem: GroupProblem) -> list[IntArray]:
    """Return the order of members in the description, and the largest first."""
    free = _totals_by_class(problem)
    demand = np.array(
        [
            (problem.choices[problem.choices_of[kind][0]].demand / free).sum()
            for kind in problem.kinds.tolist()
        ]
    )
    given = np.argsort(~problem.required, kind='stable')
    large = np.lexsort((np.arange(len(demand)), -demand, ~problem.required))
    return [given, large]
