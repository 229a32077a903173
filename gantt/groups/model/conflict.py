# SPDX-License-Identifier: Apache-2.0
"""Conflict of a group that cannot be placed: a minimal set of policies and members, and fixes."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from gantt.core.group_policies.policies import JointPolicy, PolicyForm
from gantt.groups.model import reduce
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.group_plan import GroupConflict, GroupRelaxation
from gantt.groups.model.model import GroupSolver, Model, SolverGoal, least_cost
from gantt.groups.model.packing import Packing
from gantt.groups.model.problem import WEIGHT_UNIT, GroupProblem

#: Longest check of a part of a group, in seconds.
_SOLVE_SECONDS_MAX = 2.0

#: Part of a conflict: a policy by its position, or a unit.
_Element = tuple[str, int]


class Conflicts:
    """Search for conflicts in parts of one problem.

    :param left: returns the seconds that are left
    :param solver: None: only facts that need no solver are known
    """

    def __init__(
        self,
        problem: GroupProblem,
        description: GroupDescription,
        solver: GroupSolver | None,
        seconds_left: Callable[[], float],
        seed: int,
    ) -> None:
        self._problem = problem
        self._description = description
        self._solver = solver
        self._seconds_left = seconds_left
        self._seed = seed
        lines = [(policy.index, policy.line) for policy in problem.policies if policy.is_hard]
        self._lines = list(dict.fromkeys(lines))
        #: By line and unit, whether the policy concerns the unit.
        self._concerns = np.zeros((len(self._lines), len(problem.names)), np.bool_)
        for policy in problem.policies:
            if policy.is_hard:
                self._concerns[self._lines.index((policy.index, policy.line))] |= (
                    policy.subject_units | policy.target_units
                )
        self._is_minimal = True

    def find(self, about: Sequence[int] | None = None) -> GroupConflict | None:
        """Return the conflict of the group; None: no conflict is known.

        :param about: units that found no place: small parts with one of them are checked, and
            not the whole; None: the whole is known to be impossible
        """
        units = np.flatnonzero(self._problem.required).tolist()
        parts = self._candidate_parts(units, units if about is None else about)
        whole = [] if about is not None else [self._with_policies(units)]
        for part in itertools.chain(parts, whole):
            if self._seconds_left() <= 0:
                break
            if self._is_impossible(part):
                elements = self._minimal_set([], part, has_background=False)
                return self._conflict_of(self._without_needless(elements))
        return None

    def _candidate_parts(
        self, units: Sequence[int], about: Sequence[int]
    ) -> Iterator[list[_Element]]:
        """Yield parts that may be impossible alone: of a kind, of a policy, linked by policies."""
        kinds = self._problem.kinds[about]
        for kind in np.unique(kinds).tolist():
            unit = about[int(np.flatnonzero(kinds == kind)[0])]
            yield self._with_policies([unit])
        seen = set()
        lines = np.flatnonzero(self._concerns[:, about].any(axis=1)).tolist()
        for k in lines:
            part = tuple(unit for unit in units if self._concerns[k, unit])
            if part and part not in seen:
                seen.add(part)
                yield self._with_policies(part)
        for part in sorted(self._connected(units, about), key=len):
            if part not in seen:
                yield self._with_policies(part)

    def _connected(self, units: Sequence[int], about: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the units of each connected component that holds a unit of ``about``.

        Hard policies connect the units that they concern; only ``units`` are searched.
        """
        is_searched = np.zeros(self._concerns.shape[1], np.bool_)
        is_searched[units] = True
        open_units = set(about)
        while open_units:
            reached = np.zeros_like(is_searched)
            reached[open_units.pop()] = True
            count = 0
            while count < (count := int(np.count_nonzero(reached))):
                lines = (self._concerns & (reached & is_searched)).any(axis=1)
                reached |= self._concerns[lines].any(axis=0)
            open_units -= set(np.flatnonzero(reached).tolist())
            yield tuple(np.flatnonzero(reached & is_searched).tolist())

    def _with_policies(self, units: Sequence[int]) -> list[_Element]:
        """Return units, and the hard policies that concern them."""
        return [*self._policies(units), *(('unit', u) for u in units)]

    def _policies(self, units: Sequence[int]) -> list[_Element]:
        """Return hard policies that concern any of the units."""
        positions = np.flatnonzero(self._concerns[:, units].any(axis=1))
        return [('policy', k) for k in positions.tolist()]

    def _minimal_set(
        self, background: list[_Element], elements: list[_Element], *, has_background: bool
    ) -> list[_Element]:
        """Return a minimal set of elements impossible beside the background (QuickXplain)."""
        if has_background and self._is_impossible(background):
            return []
        if len(elements) == 1:
            return elements
        if self._seconds_left() <= 0:
            self._is_minimal = False
            return elements
        half = len(elements) // 2
        first, second = elements[:half], elements[half:]
        of_second = self._minimal_set([*background, *first], second, has_background=bool(first))
        of_first = self._minimal_set(
            [*background, *of_second], first, has_background=bool(of_second)
        )
        return [*of_first, *of_second]

    def _without_needless(self, elements: list[_Element]) -> list[_Element]:
        """Return elements without needless ones: nearness may fail only for lack of other units."""
        at = 0
        while at < len(elements) and self._seconds_left() > 0:
            fewer = [*elements[:at], *elements[at + 1 :]]
            if fewer and self._is_impossible(fewer):
                elements, at = fewer, 0
            else:
                at += 1
        self._is_minimal = self._is_minimal and at == len(elements)
        return elements

    def _is_impossible(self, elements: Sequence[_Element]) -> bool:
        part = part_of(
            self._problem,
            [u for kind, u in elements if kind == 'unit'],
            {self._lines[k] for kind, k in elements if kind == 'policy'},
        )
        if part is None:
            return False
        model = reduce.reduced_model(part)
        if least_cost(model) is None:
            return True
        seconds_left = self._seconds_left()
        if _is_greedily_placed(model, lambda: self._seconds_left() <= 0):
            return False
        if self._solver is None or seconds_left <= 0:
            self._is_minimal = False
            return False
        result = self._solver.solve(
            model,
            SolverGoal(-1, (0,)),
            seconds=min(_SOLVE_SECONDS_MAX, seconds_left),
            seed=self._seed,
        )
        if result.status == 'unknown' or (result.status == 'infeasible' and not model.is_whole):
            self._is_minimal = False
        return result.status == 'infeasible' and model.is_whole

    def _conflict_of(self, found: Sequence[_Element]) -> GroupConflict:
        entries = self._problem.entries
        members = Counter(
            self._description.members[entries[u]].name for kind, u in found if kind == 'unit'
        )
        policies = [self._lines[k] for kind, k in found if kind == 'policy']
        return GroupConflict(policies=policies, members=dict(members), is_minimal=self._is_minimal)

    def relaxations(self, conflict: GroupConflict) -> list[GroupRelaxation]:
        """Return the least violation of each policy of the conflict that helps, the least first."""
        relaxations = []
        units = np.flatnonzero(self._problem.required).tolist()
        for index, line in conflict.policies if self._solver is not None else ():
            seconds_left = self._seconds_left()
            part = part_of(self._problem, units, set(self._lines), softened=(index, line))
            if seconds_left <= 0 or part is None or self._solver is None:
                break
            model = reduce.reduced_model(part)
            if least_cost(model) is None:
                continue
            at = 3 + len(part.steps)
            goal = SolverGoal(at, (0, 0, *([UNBOUNDED] * (at - 2))))
            result = self._solver.solve(
                model, goal, seconds=min(_SOLVE_SECONDS_MAX, seconds_left), seed=self._seed
            )
            if result.counts is not None:
                amount = result.value / WEIGHT_UNIT
                relaxations.append(
                    GroupRelaxation(policy=index, line=f'without {line}', amount=amount)
                )
        return sorted(relaxations, key=lambda relaxation: relaxation.amount)


def _is_greedily_placed(model: Model, over: Callable[[], bool]) -> bool:
    """Return whether all items find a host, each on the best one left when its turn comes."""
    packing = Packing(model, {})
    if any(
        not len(option.rows) for item_class in model.classes for option in item_class.options[:1]
    ):
        return False
    for item in range(len(packing.row)):
        place = None if over() else packing.best(item)
        if place is None:
            return False
        packing.put(item, *place)
    return not packing.value(range(len(packing.row)))[0]


def _is_near_to_none(policy: JointPolicy, units: np.ndarray, required: np.ndarray) -> bool:
    """Return whether units are to be near only to units outside of this part, and to no guest.

    Those have a place that no policy of this part determines.
    """
    return (
        policy.form is PolicyForm.NEAR
        and bool((policy.target_units & required).any())
        and not policy.target_units[units].any()
        and not any(level.present.any() for level in policy.near_levels)
    )


#: More than any value of a goal.
UNBOUNDED = 1 << 50


def part_of(
    problem: GroupProblem,
    units: Sequence[int],
    lines: set[tuple[int, str]],
    softened: tuple[int, str] | None = None,
) -> GroupProblem | None:
    """Return the problem restricted to some units, with only the given hard policies.

    :param lines: index and line of the policies
    :param softened: one of them that may be violated, at a weight of 1
    :returns: None where no unit is left
    """
    if not len(units):
        return None
    at = np.array(sorted(units))
    policies = []
    for policy in problem.policies:
        key = (policy.index, policy.line)
        if not policy.is_hard or key not in lines:
            continue
        if not (policy.subject_units[at].any() or policy.target_units[at].any()):
            continue
        if _is_near_to_none(policy, at, problem.required):
            continue
        weight = 1.0 if key == softened else 0.0
        policies.append(
            msgspec.structs.replace(
                policy,
                subject_units=policy.subject_units[at],
                target_units=policy.target_units[at],
                weight=weight,
            )
        )
    return msgspec.structs.replace(
        problem,
        names=[problem.names[unit] for unit in at.tolist()],
        entries=problem.entries[at],
        required=np.ones(len(at), np.bool_),
        kinds=problem.kinds[at],
        policies=policies,
    )
