# SPDX-License-Identifier: Apache-2.0
"""Planning of a group: its problem, members one after the other, then improvement until time is up.

The first plan is that of sequential placing, and another replaces it only where it is better.
Every plan is checked twice: by counting, and member by member through every filter.  Members that a
filter refuses then, or without a layout, are cut and the group is planned again.  After a conflict
members stay where they were planned, if that is still possible on the present table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gantt.core.group_policies.levels import UNKNOWN_DOMAIN, Levels
from gantt.core.group_policies.policies import violation
from gantt.core.messages import image_properties
from gantt.core.messages.layout import layout_json
from gantt.core.messages.request import name_of
from gantt.core.placement.pipeline import Pipeline
from gantt.core.resources.host import Placed
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable
from gantt.groups.model import packing, reduce, sequential
from gantt.groups.model.build import build_problem
from gantt.groups.model.conflict import Conflicts
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.group_plan import (
    GroupConflict,
    GroupPlan,
    GroupRelaxation,
    PlannedMember,
    ProblemSize,
    StepGivenUp,
    shares_of,
)
from gantt.groups.model.group_table import GroupTable, IsOver, never_over
from gantt.groups.model.model import (
    Counts,
    FailureRecordingSolver,
    GroupSolver,
    Model,
    SolverGoal,
    SolverResult,
    least_cost,
)
from gantt.groups.model.problem import Assignment, Goals, GroupProblem, amounts_taken, goals_of

#: Largest number of times that a group is planned again after a cut.
CUTS_MAX = 8
#: Shares of the time left: for one goal before the last, and for search without a solver.
_GOAL_SHARE, _SEARCH_SHARE = 0.6, 0.3
#: Share of the time left to find out why not all can be placed.
_CONFLICT_TIME_SHARE = 0.6
#: Least time to pass one count to a solver.
BUILD_SECONDS_PER_VARIABLE = 4e-5
#: Counts beyond which search is worth its time before a solver has even begun.
VARIABLES_LARGE = 5000
NO_SOLVER_TEXT = 'OR-tools is not installed: what takes a solver to know is not known'


def plan_group(
    table: HostTable,
    description: GroupDescription,
    pipeline: Pipeline,
    *,
    clock: Callable[[], float],
    seconds: float,
    seed: int,
    solver: GroupSolver | None = None,
    members: Mapping[str, str] | None = None,
    placed: Mapping[str, str] | None = None,
    known: Sequence[PlannedMember] = (),
    over: IsOver = never_over,
) -> GroupPlan:
    """Plan a group on a table, which is read and not changed.

    :param clock: seconds, of any origin
    :param seconds: time limit; the first plan and its checks are carried out in any case
    :param solver: None: proofs that need one are missing
    :param members: present consumers of the group -> the member that each of them is
    :param placed: names of existing places -> the member that each of them is; some
        member has none yet
    :param known: a plan of the group, to begin with where it is sound and no worse than the first
        one; the plan is ``known`` where none is better
    :param over: returns whether no caller waits for it any more
    :raises InvalidMessage: names the field of the description
    :raises Interrupted: ``over`` has returned True
    """
    started = clock()
    problem = build_problem(table, description, pipeline, members=members, placed=placed)
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
        planning.improve()
        if not planning.try_and_cut():
            break
    return planning.answer(clock() - started)


def goals_of_known_plan(
    table: HostTable,
    description: GroupDescription,
    pipeline: Pipeline,
    known: Sequence[PlannedMember],
    *,
    members: Mapping[str, str] | None = None,
    placed: Mapping[str, str] | None = None,
    over: IsOver = never_over,
) -> Goals | None:
    """Return the goals of a plan for a group of the same members; None: it is not sound.

    :param members: see ``plan_group``, as ``placed``
    """
    problem = build_problem(table, description, pipeline, members=members, placed=placed)
    checked = _known_plan(table, problem, pipeline, known, over)
    return None if checked is None else checked[0]


def _known_plan(
    table: HostTable,
    problem: GroupProblem,
    pipeline: Pipeline,
    known: Sequence[PlannedMember],
    over: IsOver,
) -> tuple[Goals, Assignment, GroupTable] | None:
    plan = _assignment(table, problem, known)
    trial = GroupTable(table, problem, pipeline, over)
    has_all = np.count_nonzero(plan.rows >= 0) == len(known)
    if not has_all or plan_faults(problem, plan) or trial.try_plan(plan):
        return None
    return goals_of(problem, plan, trial.score()), plan, trial


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
        over: IsOver,
    ) -> None:
        self._table = table
        self._problem = problem
        self._description = description
        self._pipeline = pipeline
        self._seed = seed
        self._over = over
        self._solver = None if solver is None else FailureRecordingSolver(solver)
        self._seconds_left_in_all = left
        self.reserve = 0.0
        self._method = self._first_method = 'sequential'
        #: Lower bounds of the cost: with all placed, and with all goals before it as they are.
        self._cost_bound_of_classes: int | None = None
        self._cost_bound_of_solver: int | None = None
        self._proven_goals = 0
        self._is_impossible = False
        self._model: Model | None = None
        self._untried_plan: Assignment | None = None
        self._conflict: tuple[GroupConflict, list[GroupRelaxation]] | None = None

    def _new_trial(self) -> GroupTable:
        return GroupTable(self._table, self._problem, self._pipeline, self._over)

    def _seconds_left(self) -> float:
        """Return the seconds until the plan is to be tried."""
        return self._seconds_left_in_all() - self.reserve

    # -- the first plan ------------------------------------------------------------------

    def begin(self, known: Sequence[PlannedMember]) -> None:
        """Place members one after the other; in another order where that does not place all.

        :param known: a plan to use if it is as good
        """
        attempts = []
        for order in sequential.unit_orders(self._problem):
            attempts.append(self._place_in_order(order))
            if not attempts[-1][0].missing and not attempts[-1][0].optional:
                break
        self._sequential = attempts[0][0]
        first = min(attempts, key=lambda attempt: attempt[0])
        before = None
        if known:
            before = _known_plan(self._table, self._problem, self._pipeline, known, self._over)
        if before is not None and before[0] <= first[0]:
            first, self._method = before, 'previous'
        self._first_method = self._method
        self._goals, self._plan, self._trial = first
        self._last_sound = (self._goals, self._plan.copy(), self._trial)

    def pack(self) -> None:
        """Place members on the fullest hosts where some have no place, if that is better."""
        for order in sequential.unit_orders(self._problem):
            if not (self._goals.missing or self._goals.optional) or self._seconds_left() <= 0.0:
                return
            packed = self._place_in_order(order, fullest=True)
            if packed[0] < self._goals:
                self._goals, self._plan, self._trial = packed
                self._method = self._first_method = 'sequential'
                self._last_sound = (self._goals, self._plan.copy(), self._trial)

    def _place_in_order(
        self, order: IntArray, *, fullest: bool = False
    ) -> tuple[Goals, Assignment, GroupTable]:
        """Place members one after the other in this order; drop members that break a policy."""
        trial = self._new_trial()
        sequential.place_sequentially(self._problem, trial, order.tolist(), fullest=fullest)
        plan = trial.plan.copy()
        if drop_broken(self._problem, plan):
            trial = self._new_trial()
            trial.try_plan(plan)
            plan = trial.plan.copy()
        return goals_of(self._problem, plan, trial.score()), plan, trial

    # -- better ones -------------------------------------------------------------------------

    def improve(self) -> None:
        """Improve the plan until time is up, or none is better."""
        self._model = model = reduce.reduced_model(self._problem, self._plan)
        self._proven_goals = 0
        self._is_impossible = False
        self._cost_bound_of_solver = None
        self._cost_bound_of_classes = least_cost(model)
        if self._cost_bound_of_classes is None and self._problem.required.all():
            self._is_impossible = self._is_exact(model)
            self._conflict = self._find_conflict() if self._is_impossible else None
        elif self._goals.missing and not self._problem.cuts:
            # A contradiction of a few members is found without searching all of them.
            self._conflict = self._find_conflict(self._missing_units().tolist())
            self._is_impossible = self._conflict is not None
        self._use_if_better(self._improved_locally(_SEARCH_SHARE), 'search')
        if self._is_best():
            return
        if self._solver is None or (not self._goals.missing and model.variables > VARIABLES_LARGE):
            self._improve_by_search(1.0 if self._solver is None else _SEARCH_SHARE)
        if self._is_best():
            return
        if self._solver is not None:
            self._solve(self._solver, model)
        elif not any(self._goals.before_score):
            self._proven_goals = len(self._goals.before_score)

    def _is_exact(self, model: Model) -> bool:
        """Return whether what holds for all plans of the model holds for all plans of the problem.

        A refusal found by trying may depend on the places of other members.
        """
        return model.is_whole and not self._problem.cuts

    @property
    def _cost_bound(self) -> int | None:
        """Lower bound of the cost of plans with the same goals before it; None: not known."""
        if self._goals.missing or self._goals.optional or self._cost_bound_of_classes is None:
            return self._cost_bound_of_solver
        return max(self._cost_bound_of_classes, self._cost_bound_of_solver or 0)

    def _is_best(self) -> bool:
        if any(self._goals.before_score) or self._cost_bound is None:
            return False
        self._proven_goals = len(self._goals.before_score)
        return self._cost() <= self._cost_bound

    def _cost(self) -> int:
        """Return the cost of the plan by the model, from its score."""
        assert self._model is not None, 'it was reduced'
        placed = int(np.count_nonzero(self._plan.rows >= 0))
        lack = self._model.top * placed + self._goals.lack
        return round(lack * self._model.unit - 0.5 * placed)

    def _improved_locally(self, share: float) -> Counts:
        """Return the plan with unplaced items placed, and each on the best host for it alone."""
        assert self._model is not None, 'it was reduced'
        until = self._seconds_left() * (1.0 - share)
        counts = reduce.counts_of(self._model, self._plan)
        return packing.locally_improved(
            self._model, counts, over=lambda: self._seconds_left() <= until
        )

    def _improve_by_search(self, share: float) -> None:
        assert self._model is not None, 'it was reduced'
        until = self._seconds_left() * (1.0 - share)
        counts = packing.improve_counts(
            self._model,
            reduce.counts_of(self._model, self._plan),
            over=lambda: self._seconds_left() <= until,
            seed=self._seed,
            bound=self._cost_bound,
        )
        self._use_if_better(counts, 'search')

    def _use_if_better(self, counts: Counts, by: str) -> bool:
        """Use a plan where it is sound and better; return whether it is at least sound."""
        assert self._model is not None, 'it was reduced'
        plan = reduce.plan_of(self._model, counts)
        if plan_faults(self._problem, plan):
            return False
        reached = goals_of(self._problem, plan)
        if not self._problem.is_steady:
            trial = self._new_trial()
            if trial.try_plan(plan):
                self._untried_plan = plan
                return True
            reached = goals_of(self._problem, plan, trial.score())
        if reached < self._goals:
            self._goals = reached
            self._plan = plan
            self._method = by
        return True

    def _solve(self, solver: GroupSolver, model: Model) -> None:
        """Minimize goal by goal, each as far as possible, those before held at their values."""
        if self._goals.missing and not (
            self._is_impossible or self._search_complete_plan(solver, model)
        ):
            return
        sure = self._is_exact(model)
        if self._is_impossible and self._conflict is None:
            self._conflict = self._find_conflict()
        if self._is_impossible and model.variables <= VARIABLES_LARGE:
            # Some members that have to be on one host may have a place, if not all.
            self._model = model = reduce.reduced_model(self._problem, self._plan, merge=False)
        elif self._is_impossible:
            sure = False
        ceilings: list[int] = []
        steps, self._proven_goals = len(self._problem.steps), 0
        for at in range(5 + steps):
            is_last = at == 4 + steps
            values = self._goals.before_score
            value = None if is_last else values[at]
            if value == 0:
                ceilings.append(0)
                self._proven_goals += sure
                continue
            if is_last and not self._problem.is_steady:
                # The cost of members on each other on a host is not passed to a solver.
                self._improve_by_search(1.0)
                return
            result = self._solve_goal(solver, model, SolverGoal(at, tuple(ceilings)), is_last)
            if is_last:
                if result.counts is not None and sure:
                    self._cost_bound_of_solver = result.bound
                return
            now = self._goals.before_score[at]
            sure = sure and result.status == 'optimal' and result.value >= now
            self._proven_goals += sure
            ceilings.append(max(now, result.value if result.counts is not None else now))

    def _solve_goal(
        self, solver: GroupSolver, model: Model, goal: SolverGoal, is_last: bool
    ) -> SolverResult:
        seconds_left = self._seconds_left()
        if seconds_left <= model.variables * BUILD_SECONDS_PER_VARIABLE:
            return SolverResult('unknown')
        result = solver.solve(
            model,
            goal,
            seconds=seconds_left * (0.9 if is_last else _GOAL_SHARE),
            seed=self._seed,
            hint=reduce.counts_of(model, self._plan),
        )
        if result.counts is not None:
            self._use_if_better(result.counts, 'solver')
        return result

    def _search_complete_plan(self, solver: GroupSolver, model: Model) -> bool:
        """Search for any plan that places all; return whether there may be one."""
        result = solver.solve(
            model,
            SolverGoal(-1, (0,)),
            seconds=max(self._seconds_left() * _GOAL_SHARE, 0.05),
            seed=self._seed,
        )
        if result.counts is not None:
            self._use_if_better(result.counts, 'solver')
        self._is_impossible = result.status == 'infeasible' and self._is_exact(model)
        if self._is_impossible:
            return True
        if self._goals.missing:
            self._improve_by_search(_SEARCH_SHARE)
        return True

    # -- through every filter ----------------------------------------------------------------

    def try_and_cut(self) -> bool:
        """Try the plan member by member; return whether a host refused, which is cut then."""
        pending, self._untried_plan = self._untried_plan, None
        for plan in [candidate for candidate in (pending, self._plan) if candidate is not None]:
            trial = self._new_trial()
            cuts = trial.try_plan(plan)
            if cuts:
                self._problem.cuts.extend(cuts)
                if plan is self._plan:
                    self._goals, plan_before, self._trial = self._last_sound
                    self._plan = plan_before.copy()
                    self._method = self._first_method
                return self._seconds_left() > 0
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
            conflict, relaxations = self._conflict or self._find_conflict() or (None, [])
            count = reached.missing
            if count < np.count_nonzero(problem.required):
                line = f'without {count} of its members'
                relaxations = [*relaxations, GroupRelaxation(policy=None, line=line, amount=count)]
        score, top = -reached.lack, self._score_bound()
        gap = None if top is None else max(top - score, 0.0) / max(abs(score), 1e-12)
        is_proven = self._proven_goals == len(reached.before_score)
        if reached.missing:
            status = 'infeasible' if self._is_impossible else 'partial'
        else:
            is_best = (
                is_proven and self._cost_bound is not None and self._cost() <= self._cost_bound
            )
            status = 'optimal' if is_best else 'feasible'
        names = np.array(problem.names, object)
        return GroupPlan(
            status=status,
            members=self._planned_members(),
            missing=names[problem.required & ~placed].tolist(),
            optional=names[~problem.required & ~placed].tolist(),
            score=score,
            bound=top,
            gap=0.0 if status == 'optimal' else gap,
            goals=reached,
            proven=self._proven_goals,
            sequential=self._sequential,
            method=self._method,
            given_up=self._steps_given_up(),
            conflict=conflict,
            relaxations=relaxations,
            proofs=NO_SOLVER_TEXT if self._solver is None else self._solver.problem,
            seconds=seconds,
            size=self._problem_size(),
        )

    def _problem_size(self) -> ProblemSize:
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

    def _score_bound(self) -> float | None:
        model, plan = self._model, self._plan
        if self._cost_bound is None or model is None:
            return None
        placed = int(np.count_nonzero(plan.rows >= 0))
        # Costs are rounded, each by half a unit at most.
        return model.top * placed - (self._cost_bound - 0.5 * placed) / model.unit

    def _missing_units(self) -> np.ndarray:
        """Return units that have to be placed and are not."""
        return np.flatnonzero(self._problem.required & (self._plan.rows < 0))

    def _find_conflict(
        self, about: Sequence[int] | None = None
    ) -> tuple[GroupConflict, list[GroupRelaxation]] | None:
        """Return the conflict and its relaxations, see ``Conflicts.find``; None: none is known."""
        until = self._seconds_left_in_all() * (1.0 - _CONFLICT_TIME_SHARE)
        conflicts = Conflicts(
            self._problem,
            self._description,
            self._solver,
            lambda: max(self._seconds_left_in_all() - until, 0.0),
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
        return [level for level in named if (levels.codes_of(level).codes == UNKNOWN_DOMAIN).all()]

    def _planned_members(self) -> list[PlannedMember]:
        problem, plan, hosts = self._problem, self._plan, self._table.hosts
        laid = self._trial.placements
        return [
            PlannedMember(
                name=problem.names[unit],
                member=self._description.members[problem.entries[unit]].name,
                host=hosts[plan.rows[unit]].name,
                node=hosts[plan.rows[unit]].node or hosts[plan.rows[unit]].name,
                provider_id=hosts[plan.rows[unit]].id,
                alternative=problem.choices_of[problem.kinds[unit]].index(plan.choices[unit]),
                allocations=shares_of(laid[unit].amounts),
                layout=None if (at := laid[unit].layout) is None else layout_json(at),
            )
            for unit in np.flatnonzero(plan.rows >= 0).tolist()
        ]

    def _steps_given_up(self) -> list[StepGivenUp]:
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
        for unit in np.flatnonzero(
            (policy.subject_units | policy.target_units) & (plan.rows >= 0)
        ).tolist()[::-1]:
            if not violation(policy, plan.rows):
                break
            plan.rows[unit], dropped = -1, True
    return dropped


def plan_faults(problem: GroupProblem, plan: Assignment) -> list[str]:
    """Return the kinds of all faults of a plan; empty: it may be used.

    They are ``choice``, ``host``, ``room``, ``count``, ``cut`` and ``policy``.
    """
    # A unit outside of the problem, or on none of its hosts, cannot be counted.
    unit_faults = _faults_of_units(problem, plan)
    if unit_faults:
        return unit_faults
    faults = [
        'room' for _ in np.argwhere(amounts_taken(problem, plan) > np.maximum(problem.free, 0))
    ]
    counts = np.bincount(plan.rows[plan.rows >= 0], minlength=problem.hosts)
    faults += ['count' for _ in np.flatnonzero(counts > problem.limit)]
    for cut in problem.cuts:
        here = plan.choices[plan.rows == cut.row]
        if all(np.count_nonzero(here == c) >= n for c, n in cut.counts.items()):
            faults.append('cut')
    broken = [p for p in problem.policies if p.is_hard and violation(p, plan.rows) > 0]
    return [*faults, *('policy' for _ in broken)]


def _faults_of_units(problem: GroupProblem, plan: Assignment) -> list[str]:
    faults = []
    for unit in np.flatnonzero(plan.rows >= 0).tolist():
        row, choice = int(plan.rows[unit]), int(plan.choices[unit])
        if choice not in problem.choices_of[problem.kinds[unit]]:
            faults.append('choice')
        elif row >= problem.hosts or not problem.choices[choice].mask[row]:
            faults.append('host')
    return faults


class RemainingMembers(NamedTuple):
    """Members that stay where they were planned.

    :ivar table: a copy, with them on it as members of the group
    :ivar planned: the planned members that stay, with their present amounts
    :ivar lost: names of members that have to go elsewhere
    """

    table: HostTable
    planned: list[PlannedMember]
    lost: list[str]


def retry_planned_members(
    table: HostTable,
    description: GroupDescription,
    pipeline: Pipeline,
    planned: Sequence[PlannedMember],
    consumer_of: Callable[[str], str],
    *,
    members: Mapping[str, str],
    placed: Mapping[str, str],
    over: IsOver = never_over,
) -> RemainingMembers:
    """Try each planned member on its host once more.

    :param consumer_of: maps the name of a member to its placeholder consumer
    :param members: as of ``plan_group``; ``placed`` and ``over``: likewise
    :raises InvalidMessage: see there
    """
    problem = build_problem(table, description, pipeline, members=members, placed=placed)
    plan = _assignment(table, problem, planned)
    drop_broken(problem, plan)
    trial = GroupTable(table, problem, pipeline, over)
    trial.try_plan(plan)
    plan = trial.plan.copy()
    if drop_broken(problem, plan):
        trial = GroupTable(table, problem, pipeline, over)
        trial.try_plan(plan)
    by_name = {member.name: member for member in planned}
    staying, copied = [], table.copy()
    for unit in np.flatnonzero(trial.plan.rows >= 0).tolist():
        member, placement = by_name[problem.names[unit]], trial.placements[unit]
        amounts = {
            provider: dict(class_amounts) for provider, class_amounts in placement.amounts.items()
        }
        layout = None if placement.layout is None else layout_json(placement.layout)
        shares = shares_of(amounts)
        staying.append(msgspec.structs.replace(member, allocations=shares, layout=layout))
        spec = problem.choices[trial.plan.choices[unit]].spec
        consumer = consumer_of(member.name)
        image = image_properties.text_of(spec.image) if spec.image.properties else None
        guest = Placed(
            consumer,
            consumer,
            member.provider_id,
            description.uuid,
            placement.layout,
            image,
            name_of(spec.flavor),
        )
        on_host = amounts.pop(member.provider_id, {})
        copied.add_pick(member.provider_id, on_host, guest, amounts)
    staying_names = {member.name for member in staying}
    return RemainingMembers(
        copied, staying, [member.name for member in planned if member.name not in staying_names]
    )


def _assignment(
    table: HostTable, problem: GroupProblem, planned: Sequence[PlannedMember]
) -> Assignment:
    """Return members on their planned hosts, except members that a filter refuses there now."""
    plan = Assignment.empty(problem)
    unit_of = {name: unit for unit, name in enumerate(problem.names)}
    for member in planned:
        unit, row = unit_of.get(member.name), table.row_of_id(member.provider_id)
        if unit is None or row is None:
            continue
        choice = problem.choices_of[problem.kinds[unit]][member.alternative]
        if problem.choices[choice].mask[row]:
            plan.rows[unit], plan.choices[unit] = row, choice
    return plan
