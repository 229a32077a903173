# SPDX-License-Identifier: Apache-2.0
"""What each policy of a group costs: planned once more without it, in a dry run."""

import itertools

import msgspec
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.resources.host import ReportedMetric
from gantt.core.table.metrics import DeclaredMetric
from gantt.groups.model import group_description
from gantt.groups.model.model import SolverResult
from gantt.groups.model.plan_group import goals_of_known_plan, plan_group
from gantt.groups.service import what_if
from gantt.groups.service.what_if import plans_without_each_policy
from gantt.groups.solver.cp_sat import CpSat
from tests.core.builders import a_host, a_table
from tests.planner import a_change, a_description, a_member, a_plan_request, a_planner, place
from tests.world import World

CHEAPEST = {'metrics_weight_setting': 'cost=1.0', 'metrics_weight_multiplier': -1.0}
APART = {'policy': 'anti-affinity', 'of': 'web'}
#: Of each cost that is worth as much as the host takes of the score.
COSTS = (0, 40, 100)


class EndedSolver:
    """A solver that has ended, and counts how often it is called nevertheless."""

    calls = 0

    def solve(self, model, goal, **more):
        self.calls += 1
        return SolverResult('unknown', problem='it has ended')


def a_cloud():
    table = a_table(
        *(
            a_host(n, vcpu=4, metrics={'cost': ReportedMetric(value=float(cost))})
            for n, cost in enumerate(COSTS, 1)
        )
    )
    table.set_metrics([DeclaredMetric(name='cost', lower=0.0, upper=100.0)])
    return table


def looked_at(members, policies, *, solver=None, seconds=20.0, clock=None, **fields):
    """The plan of a group on three hosts, and what each of its policies costs."""
    ticks = itertools.count()
    clock = clock or (lambda: next(ticks) * 1e-4)
    table, pipeline = (
        a_cloud(),
        plugin_loader.load_pipeline(weighers=['MetricsWeigher'], options=CHEAPEST),
    )
    group = group_description.read({'members': members, 'policies': policies, **fields})
    plan = plan_group(table, group, pipeline, clock=clock, seconds=20.0, seed=1, solver=solver)
    return plan, plans_without_each_policy(
        table, group, plan, pipeline, clock=clock, seconds=seconds, seed=1, solver=solver
    )


def test_the_cost_of_a_policy_is_what_the_score_gains_without_it():
    policies = [APART, {'policy': 'affinity', 'soft': 2.0}]
    plan, (apart, close) = looked_at([a_member('web', 3)], policies, solver=CpSat())
    # One on each host, of which two are not with the rest: 2 x 2.0.
    assert (plan.status, plan.goals.weight) == ('optimal', 4000)
    assert (apart.path, apart.line) == ('policies[0]', 'anti-affinity of web at host')
    assert (apart.strength, apart.outcome, apart.status) == ('hard', 'planned', 'optimal')
    # All three on the first host, which costs nothing: 0.4 + 1.0 less, and no weight.
    assert apart.score_change == pytest.approx(1.4)
    assert apart.weight_change == -4.0
    assert (apart.placed, apart.missing, apart.moved) == (3, 0, {'web': 2})
    assert apart.is_proven and not apart.makes_feasible and not apart.keeps_it
    # The soft one has its weight alone, and nobody goes elsewhere for it.
    assert (close.path, close.line) == ('policies[1]', 'affinity at host (soft 2)')
    assert (close.strength, close.weight_change, close.moved) == ('soft', -4.0, {})
    assert close.score_change == 0.0 and close.keeps_it


def test_of_several_subjects_each_is_left_out_by_itself():
    members = [a_member('web', 2), a_member('db', 2)]
    policy = {'policy': 'anti-affinity', 'of': ['part', 'db']}
    _, lines = looked_at(members, [policy], solver=CpSat(), subgroups={'part': ['web']})
    assert [(line.path, line.line) for line in lines] == [
        ('policies[0].of[0]', 'anti-affinity of part at host'),
        ('policies[0].of[1]', 'anti-affinity of db at host'),
    ]
    assert [line.moved for line in lines] == [{'web': 1}, {'db': 1}]


def test_exactly_one_policy_keeps_the_group_from_being_placed():
    policies = [{'policy': 'affinity', 'of': 'db', 'soft': 1.0}, {**APART}]
    plan, lines = looked_at([a_member('web', 4), a_member('db')], policies, solver=CpSat())
    assert (plan.status, len(plan.missing)) == ('infeasible', 1)
    assert [line.makes_feasible for line in lines] == [False, True]
    assert [(line.status, line.placed, line.missing) for line in lines] == [
        ('infeasible', 4, 1),
        ('optimal', 5, 0),
    ]
    assert [line.score_change for line in lines] == [0.0, None], 'that of other members'
    assert [line.keeps_it for line in lines] == [True, False]
    assert all(line.is_proven for line in lines)


def test_without_time_there_is_a_line_and_no_plan():
    _, lines = looked_at([a_member('web', 2)], [APART], solver=CpSat(), seconds=0.0)
    assert [(line.outcome, line.status) for line in lines] == [('no_time', '')]


def test_who_took_longer_than_its_share_leaves_less_for_the_next():
    """The first plan is made in any case: where that took all, the rest is not begun."""
    ticks = itertools.count()
    members = [a_member('web', 2)]
    _, lines = looked_at(members, [APART] * 4, seconds=6.0, clock=lambda: float(next(ticks)))
    outcomes = [line.outcome for line in lines]
    assert outcomes[0] == 'planned' and outcomes[-1] == 'no_time'


def test_so_many_are_looked_at_and_the_others_are_named(monkeypatch):
    monkeypatch.setattr(what_if, 'POLICIES_MAX', 2)
    _, lines = looked_at([a_member('web', 2)], [APART] * 3, seconds=1.0)
    assert [line.outcome for line in lines] == ['planned', 'planned', 'not_looked_at']


def test_a_plan_without_a_policy_is_never_worse_and_moves_nobody_for_nothing():
    """Nothing but the plan that there is can be had in no time: that is the one without, too."""
    everywhere = [{'policy': 'spread', 'min_domains': 1}, 'soft-affinity']
    _, lines = looked_at([a_member('web', 2)], everywhere, seconds=0.5)
    assert [(line.score_change, line.moved) for line in lines] == [(0.0, {}), (0.0, {})]


def test_a_better_plan_that_keeps_the_policy_is_no_cost_of_it():
    """The plan of the group is the worst there is: any search finds a better one."""
    table = a_cloud()
    pipeline = plugin_loader.load_pipeline(weighers=['MetricsWeigher'], options=CHEAPEST)
    ticks = itertools.count()
    given = {'clock': lambda: next(ticks) * 1e-4, 'seed': 1, 'solver': CpSat()}
    body = {'members': [a_member('web', 2)], 'policies': ['anti-affinity']}
    group = group_description.read(body)
    best = plan_group(table, group, pipeline, seconds=20.0, **given)
    hosts = [table.hosts[2], table.hosts[1]]
    members = [
        msgspec.structs.replace(member, host=host.name, node=host.name, provider_id=host.id)
        for member, host in zip(best.members, hosts, strict=True)
    ]
    goals = goals_of_known_plan(table, group, pipeline, members)
    bad = msgspec.structs.replace(best, members=members, goals=goals, score=-goals.lack)
    twice = group_description.read(
        {**body, 'policies': [{'policy': 'spread', 'max_per_domain': 1}] * 2}
    )
    first, second = plans_without_each_policy(table, twice, bad, pipeline, seconds=20.0, **given)
    assert first.keeps_it and second.keeps_it, 'the other one says the same'
    assert first.score_change == pytest.approx(best.score - bad.score) and first.moved
    (only,) = plans_without_each_policy(table, group, bad, pipeline, seconds=20.0, **given)
    assert not only.keeps_it and only.score_change > first.score_change


def test_a_solver_that_has_ended_is_called_once_for_all_policies():
    table = a_cloud()
    pipeline = plugin_loader.load_pipeline(weighers=['MetricsWeigher'], options=CHEAPEST)
    body = {'members': [a_member('web', 4)], 'policies': [APART] * 3}
    group = group_description.read(body)
    ticks = itertools.count()
    given = {'clock': lambda: next(ticks) * 1e-4, 'seed': 1}
    plan = plan_group(table, group, pipeline, seconds=1.0, **given)
    solver = EndedSolver()
    lines = plans_without_each_policy(
        table, group, plan, pipeline, seconds=20.0, solver=solver, **given
    )
    assert (len(lines), solver.calls) == (3, 1)


# -- asked for ----------------------------------------------------------------------------
def test_a_dry_run_says_it_where_it_is_wanted():
    world = World(hosts=4)
    planner = a_planner(world, CpSat(), plan_seconds=2.0)
    answer = place(planner, a_plan_request(dry_run=True, what_if=True))
    (line,) = answer.what_if
    assert (line.line, line.outcome) == ('anti-affinity at host', 'planned')
    assert place(planner, a_plan_request(dry_run=True)).what_if is None
    assert world.store.claims.list_claims() == []


def test_a_change_says_it_of_those_that_are_to_be_placed():
    world = World(hosts=4)
    planner = a_planner(world, CpSat(), plan_seconds=2.0)
    plan = place(planner, a_plan_request())
    description = {**a_description(), 'uuid': plan.group}
    dry = {'dry_run': True, 'what_if': True}
    assert place(planner, a_change(description, **dry)).what_if == []
    description['members'] = [a_member('web', 4), a_member('db')]
    answer = place(planner, a_change(description, **dry))
    assert (len(answer.plan.missing), len(answer.stayed)) == (1, 3)
    assert [line.makes_feasible for line in answer.what_if] == [True]


@pytest.mark.parametrize('request_of', [a_plan_request, a_change])
def test_who_would_claim_is_refused_by_the_field(request_of):
    group = {**a_description(), 'uuid': '6d1f0c53-54a7-4a0b-9d35-0e5e2f9d8a11'}
    with pytest.raises(exceptions.InvalidMessage) as e:
        request_of(group, what_if=True)
    assert e.value.kwargs['field'] == 'request.what_if'
    with pytest.raises(exceptions.InvalidMessage) as e:
        request_of(group, dry_run=True, what_if='yes')
    assert e.value.kwargs['field'] == 'request.what_if'
