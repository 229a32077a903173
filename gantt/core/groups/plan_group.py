# SPDX-License-Identifier: Apache-2.0
"""Planning of a group: its problem, members one after the other, then improvement until time is up.

The first plan is that of sequential placing, and another replaces it only where it is better.
Every plan is checked twice: by counting, and member by member through every filter.  Members that a
filter refuses then, or without a layout, are cut and the group is planned again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from gantt.core.group_policies.levels import UNKNOWN, Levels
from gantt.core.group_policies.policies import violation
from gantt.core.groups import bound, improve, reduce, sequential
from gantt.core.groups.build import build
from gantt.core.groups.conflict import Conflicts
from gantt.core.groups.group_plan import (
    GroupConflict,
    GroupPlan,
    GroupRelaxation,
    PlannedMember,
    ProblemSize,
    StepGivenUp,
    shares_of,
)
from gantt.core.groups.group_table import GroupTable, Over, never
from gantt.core.groups.model import (
    Counts,
    GroupSolver,
    Model,
    NotedSolver,
    SolverGoal,
    SolverResult,
)
from gantt.core.groups.problem import Assignment, Goals, GroupProblem, goals, taken
from gantt.core.messages.group_description import GroupDescription
from gantt.core.messages.layout import plain
from gantt.core.placement.pipeline import Pipeline
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable

#: Largest number of times that a group is planned again after a cut.
CUTS_MAX = 8
#: Shares of the time left: for one goal before the last, and for search without a solver.
_GOAL_SHARE, _SEARCH_SHARE = 0.6, 0.3
#: Share of the time left to find out why not all can be placed.
_WHY_SHARE = 0.6
#: Least time to pass one count to a solver.
BUILD_SECONDS = 4e-5
#: Counts beyond which search is worth its time before a solver has even begun.
LARGE = 5000
NO_SOLVER = 'OR-tools is not installed: what takes a solver to know is not known'


def plan_group(
    table: HostTable,
    description: GroupDescription,
    pipeline: Pipeline,
    *,
    clock: Callable[[], float],
    seconds: float,
    seed: int,
    solver: GroupSolver | None = None,
    parts: Sequence[str] | None = None,
    members: Mapping[str, str] | None = None,
    placed: Mapping[str, str] | None = None,
    known: Sequence[PlannedMember] = (),
    over: Over = never,
) -> GroupPlan:
    """Plan a group on a table, which is read and not changed.

    :param clock: seconds, of any origin
    :param seconds: time limit; the first plan and its checks are carried out in any case
    :param solver: None: proofs that need one are missing
    :param parts: names of the parts of ``location``, the widest first; None: the pipeline's
    :param members: present consumers of the group -> the member that each of them is
    :param placed: names of existing places -> the member that each of them is; some
        member has none yet
    :param known: a plan of the group, to begin with where it is sound and no worse than the first
        one; the plan is ``known`` where none is better
    :param over: returns whether no caller waits for it any more
    :raises InvalidMessage: names the field of the description
    :raises Interrupted: it is over
    """
    started = clock()
    problem = build(table, description, pipeline, parts=parts, members=members, placed=placed)
    planning = _Planning(
        table,
        problem,
        description,
        pipeline,
        solver,
        lambda: started + seconds - clock(),
        seed,
        over,
    )
    built = clock()
    planning.begin(known)
    # Trying a plan in the end takes about as long as computing the first one.
    planning.reserve = clock() - built
    planning.pack()
    for _ in range(CUTS_MAX):
        planning.better()
        if not planning.is_cut():
            break
    return planning.answer(clock() - started)


def reached_by(
    table: HostTable,
    description: GroupDescription,
    pipeline: Pipeline,
    known: Sequence[PlannedMember],
    *,
    members: Mapping[str, str] | None = None,
    placed: Mapping[str, str] | None = None,
    over: Over = never,
) -> Goals | None:
    """Return the goals of a plan for a group of the same members; None: it is not sound.

    :param members: see ``plan_group``, as ``placed``
    """
    problem = build(table, description, pipeline, members=members, placed=placed)
    checked = _known(table, problem, pipeline, known, over)
    return None if checked is None else checked[0]


def _known(
    table: HostTable,
    problem: GroupProblem,
    pipeline: Pipeline,
    known: Sequence[PlannedMember],
    over: Over,
) -> tuple[Goals, Assignment, GroupTable] | None:
    plan = Assignment.empty(problem)
    units = {name: unit for unit, name in enumerate(problem.names)}
    for member in known:
        unit, row = units.get(member.name), table.row_of_id(member.provider_id)
        if unit is None or row is None:
            return None
        plan.rows[unit] = row
        plan.choices[unit] = problem.choices_of[problem.kinds[unit]][member.alternative]
    trial = GroupTable(table, problem, pipeline, over)
    if plan_faults(problem, plan) or trial.refused(plan):
        return None
    return goals(problem, plan, trial.score()), plan, trial


class _Planning:
    """State of planning one group."""

    def __init__(
        self,
        table: HostTable,
        problem: GroupProblem,
        description: GroupDescription,
        pipeline: Pipeline,
        solver: GroupSolver | None,
        left: Callable[[], float],
        seed: int,
        over: Over,
    ) -> None:
        self._table, self._problem, self._description = table, problem, description
        self._pipeline, self._seed, self._over = pipeline, seed, over
        self._solver = None if solver is None else NotedSolver(solver)
        self._left_in_all, self.reserve = left, 0.0
        self._by = self._first_by = 'sequential'
        #: Lower bounds of the cost: with all placed, and with all goals before it as they are.
        self._of_classes: int | None = None
        self._of_solver: int | None = None
        self._proven = 0
        self._is_impossible = False
        self._model: Model | None = None
        self._pending: Assignment | None = None
        self._why_not: tuple[GroupConflict, list[GroupRelaxation]] | None = None

    def _new_trial(self) -> GroupTable:
        return GroupTable(self._table, self._problem, self._pipeline, self._over)

    def _left(self) -> float:
        """Return the seconds until the plan is to be tried."""
        return self._left_in_all() - self.reserve

    # -- the first plan ------------------------------------------------------------------

    def begin(self, known: Sequence[PlannedMember]) -> None:
        """Place members one after the other; in another order where that does not place all.

        :param known: a plan to use if it is as good
        """
        attempts = []
        for order in sequential.orders(self._problem):
            attempts.append(self._laid(order))
            if not attempts[-1][0].missing and not attempts[-1][0].optional:
                break
        self._sequential = attempts[0][0]
        first = min(attempts, key=lambda attempt: attempt[0])
        before = None
        if known:
            before = _known(self._table, self._problem, self._pipeline, known, self._over)
        if before is not None and before[0] <= first[0]:
            first, self._by = before, 'known'
        self._first_by = self._by
        self._goals, self._plan, self._trial = first
        self._sound = (self._goals, self._plan.copy(), self._trial)

    def pack(self) -> None:
        """Place members on the fullest hosts where some have no place, if that is better."""
        for order in sequential.orders(self._problem):
            if not (self._goals.missing or self._goals.optional) or self._left() <= 0.0:
                return
            packed = self._laid(order, fullest=True)
            if packed[0] < self._goals:
                self._goals, self._plan, self._trial = packed
                self._by = self._first_by = 'sequential'
                self._sound = (self._goals, self._plan.copy(), self._trial)

    def _laid(
        self, order: IntArray, *, fullest: bool = False
    ) -> tuple[Goals, Assignment, GroupTable]:
        """Place members one after the other in this order, and drop those that break a policy."""
        trial = self._new_trial()
        sequential.place(self._problem, trial, order.tolist(), fullest=fullest)
        plan = trial.plan.copy()
        if drop_broken(self._problem, plan):
            trial = self._new_trial()
            trial.refused(plan)
            plan = trial.plan.copy()
        return goals(self._problem, plan, trial.score()), plan, trial

    # -- better ones -------------------------------------------------------------------------

    def better(self) -> None:
        """Improve the plan until time is up, or none is better."""
        self._model = model = reduce.reduce(self._problem, self._plan)
        self._proven, self._is_impossible, self._of_solver = 0, False, None
        self._of_classes = bound.least_cost(model)
        if self._of_classes is None and self._problem.required.all():
            self._is_impossible = self._is_exact(model)
            self._why_not = self._why() if self._is_impossible else None
        elif self._goals.missing and not self._problem.cuts:
            # A contradiction of a few members is found without searching all of them.
            self._why_not = self._why(self._missing().tolist())
            self._is_impossible = self._why_not is not None
        self._offer(self._moved(_SEARCH_SHARE), 'search')
        if self._is_best():
            return
        if self._solver is None or (not self._goals.missing and model.variables > LARGE):
            self._search(1.0 if self._solver is None else _SEARCH_SHARE)
        if self._is_best():
            return
        if self._solver is not None:
            self._solve(self._solver, model)
        elif not any(self._goals.before_score):
            self._proven = len(self._goals.before_score)

    def _is_exact(self, model: Model) -> bool:
        """Return whether facts of all plans of a model hold for all plans.

        A refusal found by trying may depend on the places of other members.
        """
        return model.is_whole and not self._problem.cuts

    @property
    def _least(self) -> int | None:
        """Lower bound of the cost of plans that are as good before; None: not known."""
        if self._goals.missing or self._goals.optional or self._of_classes is None:
            return self._of_solver
        return max(self._of_classes, self._of_solver or 0)

    def _is_best(self) -> bool:
        if any(self._goals.before_score) or self._least is None:
            return False
        self._proven = len(self._goals.before_score)
        return self._cost() <= self._least

    def _cost(self) -> int:
        """Return the cost of the plan by the model, from its score."""
        assert self._model is not None, 'it was reduced'
        placed = int(np.count_nonzero(self._plan.rows >= 0))
        lack = self._model.top * placed + self._goals.lack
        return round(lack * self._model.unit - 0.5 * placed)

    def _moved(self, share: float) -> Counts:
        """Return the plan with unplaced items placed, and each on the best host for it alone."""
        assert self._model is not None, 'it was reduced'
        until = self._left() * (1.0 - share)
        counts = reduce.counts_of(self._model, self._plan)
        return improve.polished(self._model, counts, over=lambda: self._left() <= until)

    def _search(self, share: float) -> None:
        assert self._model is not None, 'it was reduced'
        until = self._left() * (1.0 - share)
        counts = improve.improve(
            self._model,
            reduce.counts_of(self._model, self._plan),
            over=lambda: self._left() <= until,
            seed=self._seed,
            bound=self._least,
        )
        self._offer(counts, 'search')

    def _offer(self, counts: Counts, by: str) -> bool:
        """Take a plan that is sound and better; return whether it is at least sound."""
        assert self._model is not None, 'it was reduced'
        plan = reduce.plan_of(self._model, counts)
        if plan_faults(self._problem, plan):
            return False
        reached = goals(self._problem, plan)
        if not self._problem.is_steady:
            trial = self._new_trial()
            if trial.refused(plan):
                self._pending = plan
                return True
            reached = goals(self._problem, plan, trial.score())
        if reached < self._goals:
            self._goals, self._plan, self._by = reached, plan, by
        return True

    def _solve(self, solver: GroupSolver, model: Model) -> None:
        """Minimize goal by goal, each as far as possible, those before held at their values."""
        if self._goals.missing and not (self._is_impossible or self._all_placed(solver, model)):
            return
        sure = self._is_exact(model)
        if self._is_impossible and self._why_not is None:
            self._why_not = self._why()
        if self._is_impossible and model.variables <= LARGE:
            # Some members that have to be on one host may have a place, if not all.
            self._model = model = reduce.reduce(self._problem, self._plan, merge=False)
        elif self._is_impossible:
            sure = False
        ceilings: list[int] = []
        steps, self._proven = len(self._problem.steps), 0
        for at in range(5 + steps):
            is_last = at == 4 + steps
            values = self._goals.before_score
            value = None if is_last else values[at]
            if value == 0:
                ceilings.append(0)
                self._proven += sure
                continue
            if is_last and not self._problem.is_steady:
                # The cost of members on each other on a host is not passed to a solver.
                self._search(1.0)
                return
            result = self._one_goal(solver, model, SolverGoal(at, tuple(ceilings)), is_last)
            if is_last:
                if result.counts is not None and sure:
                    self._of_solver = result.bound
                return
            now = self._goals.before_score[at]
            sure = sure and result.status == 'optimal' and result.value >= now
            self._proven += sure
            ceilings.append(max(now, result.value if result.counts is not None else now))

    def _one_goal(
        self, solver: GroupSolver, model: Model, goal: SolverGoal, is_last: bool
    ) -> SolverResult:
        seconds_left = self._left()
        if seconds_left <= model.variables * BUILD_SECONDS:
            return SolverResult('unknown')
        result = solver.solve(
            model,
            goal,
            seconds=seconds_left * (0.9 if is_last else _GOAL_SHARE),
            seed=self._seed,
            hint=reduce.counts_of(model, self._plan),
        )
        if result.counts is not None:
            self._offer(result.counts, 'solver')
        return result

    def _all_placed(self, solver: GroupSolver, model: Model) -> bool:
        """Search for any plan that places all; return whether there may be one."""
        result = solver.solve(
            model,
            SolverGoal(-1, (0,)),
            seconds=max(self._left() * _GOAL_SHARE, 0.05),
            seed=self._seed,
        )
        if result.counts is not None:
            self._offer(result.counts, 'solver')
        self._is_impossible = result.status == 'infeasible' and self._is_exact(model)
        if self._is_impossible:
            return True
        if self._goals.missing:
            self._search(_SEARCH_SHARE)
        return True

    # -- through every filter ----------------------------------------------------------------

    def is_cut(self) -> bool:
        """Try the plan member by member; return whether a host refused, which is cut then."""
        pending, self._pending = self._pending, None
        for plan in [candidate for candidate in (pending, self._plan) if candidate is not None]:
            trial = self._new_trial()
            cuts = trial.refused(plan)
            if cuts:
                self._problem.cuts.extend(cuts)
                if plan is self._plan:
                    self._goals, plan_before, self._trial = self._sound
                    self._plan = plan_before.copy()
                    self._by = self._first_by
                return self._left() > 0
            if plan is self._plan:
                self._trial = trial
        return False

    # -- the result ----------------------------------------------------------------------------

    def answer(self, seconds: float) -> GroupPlan:
        """Return the final plan with its proofs."""
        problem, plan, reached = self._problem, self._plan, self._goals
        placed = plan.rows >= 0
        conflict: GroupConflict | None = None
        relaxations: list[GroupRelaxation] = []
        if self._is_impossible:
            conflict, relaxations = self._why_not or self._why() or (None, [])
            count = reached.missing
            if count < np.count_nonzero(problem.required):
                line = f'without {count} of its members'
                relaxations = [*relaxations, GroupRelaxation(policy=None, line=line, amount=count)]
        score, top = -reached.lack, self._bound_of_score()
        gap = None if top is None else max(top - score, 0.0) / max(abs(score), 1e-12)
        is_proven = self._proven == len(reached.before_score)
        if reached.missing:
            status = 'infeasible' if self._is_impossible else 'partial'
        else:
            is_best = is_proven and self._least is not None and self._cost() <= self._least
            status = 'optimal' if is_best else 'feasible'
        names = np.array(problem.names, object)
        return GroupPlan(
            status=status,
            members=self._members(),
            missing=names[problem.required & ~placed].tolist(),
            optional=names[~problem.required & ~placed].tolist(),
            score=score,
            bound=top,
            gap=0.0 if status == 'optimal' else gap,
            goals=reached,
            proven=self._proven,
            sequential=self._sequential,
            by=self._by,
            given_up=self._given_up(),
            conflict=conflict,
            relaxations=relaxations,
            proofs=NO_SOLVER if self._solver is None else self._solver.problem,
            seconds=seconds,
            size=self._size(),
        )

    def _size(self) -> ProblemSize:
        problem = self._problem
        eligible = np.zeros(problem.hosts, np.bool_)
        for choice in problem.choices:
            eligible |= choice.mask
        return ProblemSize(
            units=len(problem.names),
            kinds=len(problem.choices_of),
            choices=len(problem.choices),
            hosts=problem.hosts,
            eligible=int(np.count_nonzero(eligible)),
            policies=len(problem.policies),
            classes=len(problem.classes),
            counts=0 if self._model is None else self._model.variables,
        )

    def _bound_of_score(self) -> float | None:
        model, plan = self._model, self._plan
        if self._least is None or model is None:
            return None
        placed = int(np.count_nonzero(plan.rows >= 0))
        # Costs are rounded, each by half a unit at most.
        return model.top * placed - (self._least - 0.5 * placed) / model.unit

    def _missing(self) -> np.ndarray:
        """Return units that have to be placed and are not."""
        return np.flatnonzero(self._problem.required & (self._plan.rows < 0))

    def _why(
        self, about: Sequence[int] | None = None
    ) -> tuple[GroupConflict, list[GroupRelaxation]] | None:
        """Return the conflict, see ``Conflicts.find``; None: none is known."""
        until = self._left_in_all() * (1.0 - _WHY_SHARE)
        conflicts = Conflicts(
            self._problem,
            self._description,
            self._solver,
            lambda: max(self._left_in_all() - until, 0.0),
            self._seed,
        )
        conflict = conflicts.find(about)
        if conflict is None:
            return None
        unknown = self._unknown_levels(index for index, _ in conflict.policies)
        conflict = msgspec.structs.replace(conflict, unknown_levels=unknown)
        return conflict, conflicts.relaxations(conflict)

    def _unknown_levels(self, policies: Iterable[int]) -> list[str]:
        """Return levels of these policies that no host reports its domain of."""
        levels = Levels(self._table)
        described = self._description.full_policies
        named = dict.fromkeys(described[index].level for index in policies)
        return [level for level in named if (levels.on(level).codes == UNKNOWN).all()]

    def _members(self) -> list[PlannedMember]:
        problem, plan, hosts = self._problem, self._plan, self._table.hosts
        laid = self._trial.laid
        return [
            PlannedMember(
                name=problem.names[unit],
                member=self._description.members[problem.entries[unit]].name,
                host=hosts[plan.rows[unit]].name,
                node=hosts[plan.rows[unit]].node or hosts[plan.rows[unit]].name,
                provider_id=hosts[plan.rows[unit]].id,
                alternative=problem.choices_of[problem.kinds[unit]].index(plan.choices[unit]),
                allocations=shares_of(laid[unit].amounts),
                layout=None if (at := laid[unit].layout) is None else plain(at),
            )
            for unit in np.flatnonzero(plan.rows >= 0).tolist()
        ]

    def _given_up(self) -> list[StepGivenUp]:
        problem, plan = self._problem, self._plan
        steps = []
        placed = np.flatnonzero(plan.rows >= 0).tolist()
        for step, (layer, order) in enumerate(problem.steps):
            count = sum(
                bool(problem.choices[plan.choices[unit]].unmet[step, plan.rows[unit]])
                for unit in placed
            )
            if count:
                owner = 'the operator' if not layer else 'the members'
                steps.append(StepGivenUp(line=f'step {order} of rules of {owner}', amount=count))
        for policy in problem.policies:
            amount = 0.0 if policy.is_hard else violation(policy, plan.rows)
            if amount:
                steps.append(
                    StepGivenUp(line=policy.line, amount=amount, cost=amount * policy.weight)
                )
        return steps


def drop_broken(problem: GroupProblem, plan: Assignment) -> bool:
    """Leave out members that violate a hard policy, the last first; return whether any."""
    dropped = False
    for policy in problem.policies:
        if not policy.is_hard:
            continue
        for unit in np.flatnonzero((policy.of | policy.to) & (plan.rows >= 0)).tolist()[::-1]:
            if not violation(policy, plan.rows):
                break
            plan.rows[unit], dropped = -1, True
    return dropped


class PlanFault(msgspec.Struct, frozen=True):
    """Fault of an invalid plan.

    :ivar kind: ``choice``, ``host``, ``room``, ``count``, ``cut`` or ``policy``
    :ivar line: message of the fault
    """

    kind: str
    line: str


def plan_faults(problem: GroupProblem, plan: Assignment) -> list[PlanFault]:
    """Return all faults of a plan; empty: it may be used."""
    # A unit outside of the problem, or on none of its hosts, cannot be counted.
    unit_faults = _of_units(problem, plan)
    return unit_faults or [*_of_room(problem, plan), *_of_policies(problem, plan)]


def _of_units(problem: GroupProblem, plan: Assignment) -> list[PlanFault]:
    faults = []
    for unit, (row, choice) in enumerate(
        zip(plan.rows.tolist(), plan.choices.tolist(), strict=True)
    ):
        name = problem.names[unit]
        if row < 0:
            continue
        if choice not in problem.choices_of[problem.kinds[unit]]:
            faults.append(PlanFault('choice', f'{name} is planned as what it is not'))
        elif row >= problem.hosts or not problem.choices[choice].mask[row]:
            faults.append(PlanFault('host', f'{name} is on row {row}, which a filter removes'))
    return faults


def _of_room(problem: GroupProblem, plan: Assignment) -> list[PlanFault]:
    faults, used = [], taken(problem, plan)
    for k, at in np.argwhere(used > np.maximum(problem.free, 0)).tolist():
        faults.append(
            PlanFault(
                'room',
                f'{used[k, at]} {problem.classes[k]} taken of {problem.free[k, at]} in bin {at}',
            )
        )
    placed = plan.rows[plan.rows >= 0]
    counts = np.bincount(placed, minlength=problem.hosts)
    for row in np.flatnonzero(counts > problem.limit).tolist():
        faults.append(
            PlanFault(
                'count', f'{counts[row]} members on row {row}, which takes {problem.limit[row]}'
            )
        )
    for cut in problem.cuts:
        here = plan.choices[plan.rows == cut.row]
        if all(np.count_nonzero(here == c) >= n for c, n in cut.counts.items()):
            faults.append(PlanFault('cut', f'row {cut.row} does not take its members together'))
    return faults


def _of_policies(problem: GroupProblem, plan: Assignment) -> list[PlanFault]:
    return [
        PlanFault('policy', f'{policy.line} is violated by {amount:g}')
        for policy in problem.policies
        if policy.is_hard and (amount := violation(policy, plan.rows)) > 0
    ]
