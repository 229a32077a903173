# SPDX-License-Identifier: Apache-2.0
"""CP-SAT of OR-tools as a solver of group models: one thread, no signal handler.

Counts of items by host are the variables; a row that cannot bind is not created.

Policies are constraints: hard ones hold, the violation of others is a sum.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from gantt.core.group_policies.levels import UNKNOWN_DOMAIN
from gantt.core.group_policies.policies import JointPolicy, PolicyForm
from gantt.groups.model.model import Counts, Model, SolverGoal, SolverResult
from gantt.groups.model.problem import WEIGHT_UNIT


class WeightedSum:
    """A weighted sum.

    :ivar upper_bound: bound of the sum, whatever the variables are, where their bounds were given
    """

    def __init__(self) -> None:
        self._variables: list[Any] = []
        self._weights: list[int] = []
        self.upper_bound = 0

    def add(self, x: Any, weight: int, upper_bound: int = 0) -> None:
        """Add a variable times a weight.

        :param upper_bound: of the variable
        """
        if not weight:
            return
        self._variables.append(x)
        self._weights.append(weight)
        self.upper_bound += weight * upper_bound

    def extend(self, other: 'WeightedSum') -> None:
        """Add another sum."""
        self._variables += other._variables
        self._weights += other._weights
        self.upper_bound += other.upper_bound

    def expression(self) -> Any:
        """Return the sum as an expression of CP-SAT."""
        return cp_model.LinearExpr.weighted_sum(self._variables, self._weights)

    def add_upper_bound(self, cp: cp_model.CpModel, bound: int) -> None:
        """Bound the sum; no constraint is created where it cannot exceed the bound."""
        if self.upper_bound > bound:
            cp.add(self.expression() <= bound)


def _integer_variable(cp: cp_model.CpModel, upper_bound: int) -> Any:
    """Return an integer variable from 0 to ``upper_bound``."""
    return cp.new_int_var(0, max(upper_bound, 0), '')


#: Sums by domain.
_Domains = dict[int, WeightedSum]


def add_policy(
    cp: cp_model.CpModel,
    policy: JointPolicy,
    of: Mapping[int, WeightedSum],
    to: Mapping[int, WeightedSum],
) -> WeightedSum:
    """Add one policy.

    :param of: sum of the units that it is about, by row
    :param to: sum of its others, by row
    :returns: weight of the violation of a soft policy; violation of one to be dropped
    """
    weight = round(policy.weight * WEIGHT_UNIT) if policy.weight else 1
    units, units_lost = _by_domain(policy.codes, of)
    if policy.form is PolicyForm.NEAR:
        return _add_near(cp, policy, of, to)
    units_of_others, others_lost = _by_domain(policy.codes, to)
    total = WeightedSum()
    match policy.form:
        case PolicyForm.MAX_PER_DOMAIN:
            terms = _add_max_per_domain(cp, policy, units)
        case PolicyForm.MIN_DOMAINS:
            terms = _add_min_domains(cp, policy, units, units_lost)
        case PolicyForm.SKEW:
            terms = _add_skew(cp, policy, units)
        case PolicyForm.TOGETHER:
            terms = _add_together(cp, policy, units)
        case _:
            terms = _add_apart(cp, policy, units, units_of_others)
            if policy.needs_known_targets and not policy.is_hard:
                terms.append((others_lost, 1))
    if not policy.is_hard:
        terms.append((units_lost, 1))
        for violation, times in terms:
            scaled = _integer_variable(cp, violation.upper_bound)
            cp.add(scaled >= violation.expression())
            total.add(scaled, times * weight, violation.upper_bound)
    return total


#: Sums that form the violation, each with its factor.
_WeightedSums = list[tuple[WeightedSum, int]]


def _by_domain(codes: np.ndarray, sides: Mapping[int, WeightedSum]) -> tuple[_Domains, WeightedSum]:
    by_domain: _Domains = defaultdict(WeightedSum)
    lost = WeightedSum()
    for row, row_sum in sides.items():
        code = int(codes[row])
        (lost if code == UNKNOWN_DOMAIN else by_domain[code]).extend(row_sum)
    return by_domain, lost


def _add_max_per_domain(
    cp: cp_model.CpModel, policy: JointPolicy, own_sums: _Domains
) -> _WeightedSums:
    violation = WeightedSum()
    for code, total in own_sums.items():
        present = int(policy.present[code])
        room = max(policy.amount, present) - present
        if policy.is_hard:
            total.add_upper_bound(cp, room)
        elif total.upper_bound > room:
            excess = _integer_variable(cp, total.upper_bound - room)
            cp.add(excess >= total.expression() - room)
            violation.add(excess, 1, total.upper_bound - room)
    return [(violation, 1)]


def _add_min_domains(
    cp: cp_model.CpModel, policy: JointPolicy, own_sums: _Domains, lost: WeightedSum
) -> _WeightedSums:
    present_domains = int(np.count_nonzero(policy.present > 0))
    used, placed = WeightedSum(), WeightedSum()
    placed.extend(lost)
    for code, total in own_sums.items():
        placed.extend(total)
        if policy.present[code] > 0:
            continue
        is_used = cp.new_bool_var('')
        cp.add(is_used <= total.expression())
        used.add(is_used, 1, 1)
    shortfall = _integer_variable(cp, policy.amount)
    if policy.is_hard:
        cp.add(shortfall == 0)
    # As many domains as requested, or as there are members.
    is_few = cp.new_bool_var('')
    have = used.expression() + present_domains + shortfall
    cp.add(have >= policy.amount).only_enforce_if(~is_few)
    members = placed.expression() + int(policy.present.sum())
    cp.add(have >= members).only_enforce_if(is_few)
    violation = WeightedSum()
    violation.add(shortfall, 1, policy.amount)
    return [(violation, 1)]


def _add_skew(cp: cp_model.CpModel, policy: JointPolicy, own_sums: _Domains) -> _WeightedSums:
    present_counts, eligible = policy.present, np.flatnonzero(policy.eligible).tolist()
    width = int(present_counts.max(initial=0)) + sum(
        total.upper_bound for total in own_sums.values()
    )
    least_used, violation, joined = (
        _integer_variable(cp, width),
        WeightedSum(),
        [code_ for code_ in eligible if code_ in own_sums],
    )
    for code in eligible:
        cp.add(least_used <= own_sums[code].expression() + int(present_counts[code]))
    for code in joined:
        total, present = own_sums[code], int(present_counts[code])
        bound = least_used + policy.amount
        if present > policy.amount:
            # More members than that may be there already: then none joins them.
            is_more, bound = cp.new_bool_var(''), _integer_variable(cp, width + policy.amount)
            cp.add(bound <= present).only_enforce_if(is_more)
            cp.add(bound <= least_used + policy.amount).only_enforce_if(~is_more)
        if policy.is_hard:
            cp.add(total.expression() + present <= bound)
            continue
        beyond = _integer_variable(cp, total.upper_bound)
        cp.add(beyond >= total.expression() + present - bound)
        violation.add(beyond, 1, total.upper_bound)
    return [(violation, 1)]


def _add_together(cp: cp_model.CpModel, policy: JointPolicy, own_sums: _Domains) -> _WeightedSums:
    chosen, violation = [], WeightedSum()
    for total in own_sums.values():
        is_chosen = cp.new_bool_var('')
        chosen.append(is_chosen)
        if policy.is_hard:
            cp.add(total.expression() <= total.upper_bound * is_chosen)
            continue
        away = _integer_variable(cp, total.upper_bound)
        cp.add(away >= total.expression() - total.upper_bound * is_chosen)
        violation.add(away, 1, total.upper_bound)
    cp.add_at_most_one(chosen)
    return [(violation, 1)]


def _add_apart(
    cp: cp_model.CpModel, policy: JointPolicy, own_sums: _Domains, others: _Domains
) -> _WeightedSums:
    violation = WeightedSum()
    for code, total in own_sums.items():
        if policy.occupied[code]:
            violation.extend(total)  # a hard policy has no such variable
            continue
        if code not in others:
            continue
        is_theirs = cp.new_bool_var('')
        cp.add(others[code].expression() <= others[code].upper_bound * is_theirs)
        if policy.is_hard:
            cp.add(total.expression() <= total.upper_bound * (1 - is_theirs))
            continue
        away = _integer_variable(cp, total.upper_bound)
        cp.add(away >= total.expression() - total.upper_bound * (1 - is_theirs))
        violation.add(away, 1, total.upper_bound)
    for code, total in others.items():
        if policy.present[code] > 0:
            violation.extend(total)
    return [(violation, 1)]


def _add_near(
    cp: cp_model.CpModel,
    policy: JointPolicy,
    of: Mapping[int, WeightedSum],
    to: Mapping[int, WeightedSum],
) -> WeightedSum:
    """Return the sum of members by domains shared with the target, level by level."""
    present = [_target_present(cp, level.codes, level.present, to) for level in policy.near_levels]
    groups: dict[tuple[int, ...], WeightedSum] = defaultdict(WeightedSum)
    for row, row_sum in of.items():
        groups[tuple(int(level.codes[row]) for level in policy.near_levels)].extend(row_sum)
    cost, factor = WeightedSum(), policy.weight * WEIGHT_UNIT if policy.weight else 1.0
    values = [round(level.price * factor) for level in policy.near_levels] + [
        round(policy.price_beyond * factor)
    ]
    for codes, total in groups.items():
        flags = [
            flags_of_level.get(code) for flags_of_level, code in zip(present, codes, strict=True)
        ]
        if policy.is_hard:
            if flags[0] is True:
                continue
            is_near = 0 if flags[0] is None else flags[0]
            cp.add(total.expression() <= total.upper_bound * is_near)
            continue
        # Cost of all members as beyond, less the savings of those near at a level.
        members = _integer_variable(cp, total.upper_bound)
        cp.add(members == total.expression())
        cost.add(members, values[-1], total.upper_bound)
        for level_index in range(len(policy.near_levels)):
            saved = values[level_index + 1] - values[level_index]
            nearer = [flag for flag in flags[: level_index + 1] if flag is not None]
            if not saved or not nearer:
                continue
            near_count = _integer_variable(cp, total.upper_bound)
            cp.add(near_count <= total.expression())
            if not any(flag is True for flag in nearer):
                cp.add(near_count <= total.upper_bound * sum(nearer))
            cost.add(near_count, -saved, 0)
    return cost


def _target_present(
    cp: cp_model.CpModel, codes: np.ndarray, stands: np.ndarray, to: Mapping[int, WeightedSum]
) -> dict[int, Any]:
    """Return by domain whether the target is there: True, or a flag that may be 1 if it is."""
    flags: dict[int, Any] = {code: True for code in np.flatnonzero(stands).tolist()}
    by_code, _ = _by_domain(codes, to)
    for code, total in by_code.items():
        if code not in flags:
            flags[code] = cp.new_bool_var('')
            cp.add(flags[code] <= total.expression())
    return flags


_STATUS_NAMES = {
    cp_model.OPTIMAL: 'optimal',
    cp_model.FEASIBLE: 'feasible',
    cp_model.INFEASIBLE: 'infeasible',
}


class CpSat:
    """Solver of group models by CP-SAT; see the module docstring."""

    def solve(
        self,
        model: Model,
        goal: SolverGoal,
        *,
        seconds: float,
        seed: int,
        hint: Counts | None = None,
    ) -> SolverResult:
        """Solve a model; see the port."""
        deadline = time.monotonic() + seconds
        built = _CpModel(model, hint)
        built.bound(goal)
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = 1
        parameters.random_seed = seed % (1 << 31)
        parameters.catch_sigint_signal = False
        # Where any plan will do several search strategies take turns.
        parameters.interleave_search = goal.at < 0
        # Bounds come from the relaxation of all rows: with it, minutes become a tenth of a second.
        parameters.linearization_level = 1 if goal.at < 0 else 2
        parameters.max_time_in_seconds = max(deadline - time.monotonic(), 0.01)
        status = _STATUS_NAMES.get(solver.solve(built.cp), 'unknown')
        if status not in ('optimal', 'feasible'):
            return SolverResult(status)
        counts = built.counts(solver)
        if goal.at < 0:
            return SolverResult('feasible', counts)
        value = round(solver.objective_value)
        bound = int(np.ceil(solver.best_objective_bound - 1e-6))
        return SolverResult(status, counts, value, bound)


class _CpModel:
    """Model of CP-SAT, built from a group model."""

    def __init__(self, model: Model, hint: Counts | None) -> None:
        self.cp = cp_model.CpModel()
        self._model = model
        self._hint = hint or {}
        #: By class and option: a variable for each row.
        self._variables_by_option: dict[tuple[int, int], list[Any]] = {}
        self._by_row: dict[int, list[tuple[Any, int, int, int]]] = defaultdict(list)
        problem = model.problem
        goals = 4 + len(problem.steps) + 1
        self._goals = [WeightedSum() for _ in range(goals)]
        self._add_count_constraints()
        self._add_capacity()
        self._add_caps()
        self._add_cuts()
        for k, policy in enumerate(model.policies):
            terms = add_policy(self.cp, policy, *self._units_by_row(k))
            if policy.step >= 0:
                self._goals[2 + policy.step].extend(terms)
            elif policy.weight:
                self._goals[3 + len(problem.steps)].extend(terms)

    def _add_count_constraints(self) -> None:
        model, steps = self._model, len(self._model.problem.steps)
        for c, item_class in enumerate(model.classes):
            total = WeightedSum()
            for o, option in enumerate(item_class.options):
                variables = self._variables(c, o)
                for index, (row, x) in enumerate(zip(option.rows.tolist(), variables, strict=True)):
                    total.add(x, 1)
                    self._by_row[row].append((x, c, o, int(option.most[index])))
                for goal, values in (
                    *((2 + s, option.steps[s]) for s in range(steps)),
                    (3 + steps, option.weight),
                    (4 + steps, option.cost),
                ):
                    if values.any():
                        for x, value in zip(variables, values.tolist(), strict=True):
                            self._goals[goal].add(x, value)
                if option.alternatives:
                    for x in variables:
                        self._goals[2 + steps].add(x, option.alternatives)
            missing = self.cp.new_int_var(0, len(item_class.items), '')
            hinted = sum(int(counts.sum()) for (k, _), counts in self._hint.items() if k == c)
            total.add(missing, 1)
            self.cp.add(total.expression() == len(item_class.items))
            self.cp.add_hint(missing, len(item_class.items) - hinted)
            self._goals[0 if item_class.is_required else 1].add(missing, item_class.width)

    def _variables(self, c: int, o: int) -> list[Any]:
        option = self._model.classes[c].options[o]
        hint = self._hint.get((c, o))
        values = [0] * len(option.rows) if hint is None else hint.tolist()
        variables = []
        for count_max, value in zip(option.most.tolist(), values, strict=True):
            x = self.cp.new_int_var(0, count_max, '')
            if self._hint:
                self.cp.add_hint(x, value)
            variables.append(x)
        self._variables_by_option[c, o] = variables
        return variables

    def _add_capacity(self) -> None:
        problem, classes = self._model.problem, self._model.classes
        for k in range(len(problem.classes)):
            sums: dict[int, WeightedSum] = defaultdict(WeightedSum)
            bins = problem.bins[k].tolist()
            for row, terms in self._by_row.items():
                total = sums[bins[row]]
                for x, c, o, count_max in terms:
                    total.add(x, int(classes[c].options[o].demand[k]), count_max)
            for bin_index, total in sums.items():
                total.add_upper_bound(self.cp, int(problem.free[k, bin_index]))
        for row, terms in self._by_row.items():
            total = WeightedSum()
            for x, c, _, count_max in terms:
                total.add(x, classes[c].width, count_max)
            total.add_upper_bound(self.cp, int(problem.limit[row]))

    def _add_caps(self) -> None:
        for c, item_class in enumerate(self._model.classes):
            for cap in item_class.caps:
                sums: dict[int, WeightedSum] = defaultdict(WeightedSum)
                for o, option in enumerate(item_class.options):
                    for x, code, count_max in zip(
                        self._variables_by_option[c, o],
                        cap.codes.take(option.rows).tolist(),
                        option.most.tolist(),
                        strict=True,
                    ):
                        sums[code].add(x, 1, count_max)
                for total in sums.values():
                    total.add_upper_bound(self.cp, cap.most)

    def _add_cuts(self) -> None:
        """Add cuts: a host takes fewer of at least one choice of each."""
        for cut in self._model.problem.cuts:
            fewer = []
            for choice, count in cut.counts.items():
                total = WeightedSum()
                for x, c, o, count_max in self._by_row.get(cut.row, ()):
                    choices = self._model.classes[c].options[o].choices
                    total.add(x, choices.count(choice), count_max)
                is_fewer = self.cp.new_bool_var('')
                self.cp.add(total.expression() <= count - 1).only_enforce_if(is_fewer)
                fewer.append(is_fewer)
            self.cp.add_bool_or(fewer)

    def _units_by_row(self, k: int) -> tuple[dict[int, WeightedSum], dict[int, WeightedSum]]:
        """Return, by row, the units that a policy is about, and the units that it counts beside."""
        sides: tuple[dict[int, WeightedSum], dict[int, WeightedSum]] = (
            defaultdict(WeightedSum),
            defaultdict(WeightedSum),
        )
        for c, item_class in enumerate(self._model.classes):
            weights = (item_class.of.get(k, 0), item_class.to.get(k, 0))
            if not any(weights):
                continue
            for o, option in enumerate(item_class.options):
                for row, x, count_max in zip(
                    option.rows.tolist(),
                    self._variables_by_option[c, o],
                    option.most.tolist(),
                    strict=True,
                ):
                    for side, weight in zip(sides, weights, strict=True):
                        if weight:
                            side[row].add(x, weight, count_max)
        return sides

    def bound(self, goal: SolverGoal) -> None:
        """Bound earlier goals by their ceilings, and minimize this one."""
        for total, ceiling in zip(self._goals, goal.ceilings, strict=False):
            self.cp.add(total.expression() <= ceiling)
        if goal.at >= 0:
            self.cp.minimize(self._goals[goal.at].expression())

    def counts(self, solver: cp_model.CpSolver) -> Counts:
        """Return the counts of the solution."""
        return {
            key: np.array([solver.value(x) for x in variables], np.int64)
            for key, variables in self._variables_by_option.items()
        }
