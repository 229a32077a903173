# SPDX-License-Identifier: Apache-2.0
"""CP-SAT of OR-tools as a solver of group models: one thread, no signal handler.

Counts of items by host are the variables; a row that cannot bind is not created.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from gantt.core.groups.model import Counts, Model, SolverGoal, SolverResult
from gantt.solver.policies import post
from gantt.solver.sums import Sum, Sums

_STATUS = {
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
        free: Sequence[int] | None = None,
    ) -> SolverResult:
        """Solve a model; see the port."""
        deadline = time.monotonic() + seconds
        built = _Built(model, hint, free)
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
        status = _STATUS.get(solver.solve(built.cp), 'unknown')
        if status not in ('optimal', 'feasible'):
            return SolverResult(status)
        counts = built.counts(solver)
        if goal.at < 0:
            return SolverResult('feasible', counts)
        value = round(solver.objective_value)
        bound = int(np.ceil(solver.best_objective_bound - 1e-6))
        return SolverResult(status, counts, value, bound)


class _Built:
    """Model of CP-SAT, built from a group model."""

    def __init__(self, model: Model, hint: Counts | None, free: Sequence[int] | None) -> None:
        self.cp = cp_model.CpModel()
        self._model = model
        self._hint = hint or {}
        self._free = None if free is None else frozenset(free)
        #: By class and option: a variable for each row, or the number that it stays at.
        self._x: dict[tuple[int, int], list[Any]] = {}
        self._by_row: dict[int, list[tuple[Any, int, int, int]]] = defaultdict(list)
        problem = model.problem
        goals = 4 + len(problem.steps) + 1
        self._goals = [Sum() for _ in range(goals)]
        self._count()
        self._capacity()
        self._caps()
        self._cuts()
        sums = Sums(self.cp)
        for k, policy in enumerate(model.policies):
            terms = post(sums, policy, *self._sides(k))
            if policy.step >= 0:
                self._goals[2 + policy.step].extend(terms)
            elif policy.weight:
                self._goals[3 + len(problem.steps)].extend(terms)

    def _count(self) -> None:
        model, steps = self._model, len(self._model.problem.steps)
        for c, item_class in enumerate(model.classes):
            total = Sum()
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
            total.add(missing, 1)
            self.cp.add(total.expression() == len(item_class.items))
            self.cp.add_hint(missing, len(item_class.items) - self._hinted(c))
            self._goals[0 if item_class.is_required else 1].add(missing, item_class.width)

    def _variables(self, c: int, o: int) -> list[Any]:
        option = self._model.classes[c].options[o]
        hint = self._hint.get((c, o))
        values = [0] * len(option.rows) if hint is None else hint.tolist()
        free, variables = self._free, []
        for row, count_max, value in zip(
            option.rows.tolist(), option.most.tolist(), values, strict=True
        ):
            if free is not None and row not in free:
                variables.append(value)
                continue
            x = self.cp.new_int_var(0, count_max, '')
            if self._hint:
                self.cp.add_hint(x, value)
            variables.append(x)
        self._x[c, o] = variables
        return variables

    def _hinted(self, c: int) -> int:
        return sum(
            int(counts.sum()) for (class_index, _), counts in self._hint.items() if class_index == c
        )

    def _capacity(self) -> None:
        problem, classes = self._model.problem, self._model.classes
        for k in range(len(problem.classes)):
            sums: dict[int, Sum] = defaultdict(Sum)
            bins = problem.bins[k].tolist()
            for row, terms in self._by_row.items():
                total = sums[bins[row]]
                for x, c, o, count_max in terms:
                    total.add(x, int(classes[c].options[o].demand[k]), count_max)
            for bin_index, total in sums.items():
                total.at_most(self.cp, int(problem.free[k, bin_index]))
        for row, terms in self._by_row.items():
            total = Sum()
            for x, c, _, count_max in terms:
                total.add(x, classes[c].width, count_max)
            total.at_most(self.cp, int(problem.limit[row]))

    def _caps(self) -> None:
        for c, item_class in enumerate(self._model.classes):
            for cap in item_class.caps:
                sums: dict[int, Sum] = defaultdict(Sum)
                for o, option in enumerate(item_class.options):
                    for x, code, count_max in zip(
                        self._x[c, o],
                        cap.codes.take(option.rows).tolist(),
                        option.most.tolist(),
                        strict=True,
                    ):
                        sums[code].add(x, 1, count_max)
                for total in sums.values():
                    total.at_most(self.cp, cap.most)

    def _cuts(self) -> None:
        """Add cuts: a host takes fewer of at least one choice of each."""
        for cut in self._model.problem.cuts:
            fewer = []
            for choice, count in cut.counts.items():
                total = Sum()
                for x, c, o, count_max in self._by_row.get(cut.row, ()):
                    choices = self._model.classes[c].options[o].choices
                    total.add(x, choices.count(choice), count_max)
                is_fewer = self.cp.new_bool_var('')
                self.cp.add(total.expression() <= count - 1).only_enforce_if(is_fewer)
                fewer.append(is_fewer)
            self.cp.add_bool_or(fewer)

    def _sides(self, k: int) -> tuple[dict[int, Sum], dict[int, Sum]]:
        """Return by row the units of a policy, and those of its others."""
        sides: tuple[dict[int, Sum], dict[int, Sum]] = (defaultdict(Sum), defaultdict(Sum))
        for c, item_class in enumerate(self._model.classes):
            weights = (item_class.of.get(k, 0), item_class.to.get(k, 0))
            if not any(weights):
                continue
            for o, option in enumerate(item_class.options):
                for row, x, count_max in zip(
                    option.rows.tolist(), self._x[c, o], option.most.tolist(), strict=True
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
            key: np.array(
                [x if isinstance(x, int) else solver.value(x) for x in variables], np.int64
            )
            for key, variables in self._x.items()
        }
