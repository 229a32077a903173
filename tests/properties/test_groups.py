# SPDX-License-Identifier: Apache-2.0
"""Groups on small clouds against every assignment there is: plans, proofs, bounds and conflicts."""

import copy
import itertools
import time

import msgspec
import pytest

from gantt.groups.model.plan_group import plan_group
from gantt.groups.service.what_if import plans_without_each_policy
from gantt.groups.solver.cp_sat import CpSat
from tests.properties.group_worlds import SmallWorld

SHORT, LONG = 120, 1000
#: Rounding of scores.
NEAR = 1e-4


def planned(world, solver, seconds=60.0, seed=1):
    return plan_group(
        world.table(),
        world.description,
        world.pipeline(),
        clock=time.monotonic,
        seconds=seconds,
        seed=seed,
        solver=solver,
        members=world.present_members,
    )


def as_reference(world, plan):
    """The plan as the reference has plans."""
    of = {name: member for name, member, _ in world.units()}
    return {
        member.name: ((member.provider_id - 1, member.alternative), of[member.name])
        for member in plan.members
    }


def before(goals):
    return (goals.missing, goals.optional, *goals.steps, goals.alternatives, goals.weight)


def check_plan(world, plan):
    """Sound, evaluated as it is, and no worse than placing members one after the other."""
    mine = as_reference(world, plan)
    assert world.has_room(mine)
    assert world.is_sound(mine)
    assert before(plan.goals) == pytest.approx(world.goals(mine), abs=1)
    assert before(plan.goals)[:2] == world.goals(mine)[:2]
    assert plan.score == pytest.approx(world.score(mine), abs=NEAR)
    assert (before(plan.goals), -plan.score) <= (
        before(plan.sequential),
        plan.sequential.lack + NEAR,
    )


def check_claims(world, plan):
    """What is claimed of other plans is so."""
    best = world.best()
    goals = (*before(plan.goals), -plan.score)
    assert goals[:-1] > best[:-1] or goals[-1] >= best[-1] - NEAR, 'better than the best there is'
    if plan.status == 'optimal':
        assert goals[:-1] == best[:-1]
        assert goals[-1] == pytest.approx(best[-1], abs=NEAR)
    assert goals[: plan.proven] == best[: plan.proven]
    if plan.bound is not None and goals[:-1] == best[:-1]:
        assert plan.bound >= -best[-1] - NEAR
    is_possible = world.is_possible()
    assert (plan.status == 'infeasible') <= (not is_possible)
    assert (plan.status in ('optimal', 'feasible')) <= is_possible


def check_conflict(world, plan):
    """Nothing of it can be met together, and all but any one of it can."""
    conflict = plan.conflict
    assert conflict is not None and conflict.is_minimal
    policies, members = [index for index, _ in conflict.policies], conflict.members
    assert not world.is_possible(policies, members)
    for gone in policies:
        assert world.is_possible([k for k in policies if k != gone], members)
    for gone in members:
        fewer = {name: n - (name == gone) for name, n in members.items()}
        assert not any(fewer.values()) or world.is_possible(policies, fewer)
    for relaxation in plan.relaxations:
        if relaxation.policy is not None:
            assert relaxation.amount == pytest.approx(
                least_violation(world, relaxation.policy), abs=0.01
            )


def least_violation(world, index):
    """By how much one policy has to be violated for all to have a place under the others."""
    others = [k for k in range(len(world.body['policies'])) if k != index]
    units = [unit for unit in world.units() if unit[2]]
    return min(
        sum(world.violation(p, form, plan) for k, p, form in world.forms() if k == index)
        for plan in world.assignments(units, must=True)
        if world.is_sound(plan, others)
    )


def check_seed(seed):
    world = SmallWorld(seed)
    plan = planned(world, CpSat(), seed=seed)
    check_plan(world, plan)
    check_claims(world, plan)
    if plan.status == 'infeasible':
        check_conflict(world, plan)
    else:
        assert plan.status != 'partial', 'a small group is placed, or known to be impossible'
    if world.steady:
        assert plan.status in ('optimal', 'infeasible'), 'a small group is solved'
    return plan


def test_small_groups_against_every_assignment():
    statuses = [check_seed(seed).status for seed in range(SHORT)]
    assert statuses.count('optimal') > SHORT // 3
    assert statuses.count('infeasible') > SHORT // 20


@pytest.mark.slow
def test_small_groups_against_every_assignment_at_length():
    for seed in range(SHORT, SHORT + LONG):
        check_seed(seed)


def check_without(world, plan, index, line):
    """What is said of the group without one policy is so of every assignment there is."""
    other = copy.deepcopy(world)
    del other.body['policies'][index]
    best = other.best()
    assert line.outcome == 'planned'
    assert line.is_proven and line.missing == best[0]
    assert line.makes_feasible == (plan.status == 'infeasible' and other.is_possible())
    assert line.weight_change == pytest.approx((best[-2] - plan.goals.weight) / 1000)
    if line.score_change is not None:
        assert plan.score + line.score_change == pytest.approx(-best[-1], abs=NEAR)


def test_what_policies_cost_against_every_assignment():
    looked_at = feasible = 0
    for seed in range(SHORT // 2):
        world = SmallWorld(seed)
        if not (world.steady and world.body['policies']):
            continue
        plan = planned(world, CpSat(), seed=seed)
        lines = plans_without_each_policy(
            world.table(),
            world.description,
            plan,
            world.pipeline(),
            clock=time.monotonic,
            seconds=60.0,
            seed=seed,
            solver=CpSat(),
            members=world.present_members,
        )
        for index, line in enumerate(lines):
            check_without(world, plan, index, line)
            looked_at += 1
            feasible += line.makes_feasible
    assert looked_at > SHORT // 4 and feasible


def test_without_a_solver_plans_are_sound_and_nothing_untrue_is_claimed():
    for seed in range(40):
        world = SmallWorld(seed)
        plan = planned(world, None, seconds=0.05, seed=seed)
        check_plan(world, plan)
        check_claims(world, plan)
        assert 'OR-tools' in plan.proofs


def test_the_same_seed_gives_the_same_plan():
    for seed in itertools.islice(range(100), 10):
        world = SmallWorld(seed)
        first, other = (
            msgspec.structs.replace(planned(world, CpSat(), seed=seed), seconds=0.0)
            for _ in range(2)
        )
        assert first == other
