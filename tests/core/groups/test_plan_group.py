# SPDX-License-Identifier: Apache-2.0
"""Groups from description to plan: the answers where not all have a place."""

import time
from collections import Counter

import msgspec
import pytest

from gantt import plugin_loader
from gantt.core.filters.base import Filter
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.pipeline import Pipeline
from gantt.core.resources.host import ReportedMetric
from gantt.core.resources.provider import SharedPool
from gantt.core.table.metrics import DeclaredMetric
from gantt.groups import plan_lines
from gantt.groups.model import group_description
from gantt.groups.model.plan_group import plan_group
from gantt.groups.solver.cp_sat import CpSat
from tests.core.builders import a_host, a_table, an_id
from tests.core.topology.hosts import a_cell

CHEAPEST = {'metrics_weight_setting': 'cost=1.0', 'metrics_weight_multiplier': -1.0}
SOLVERS = [None, CpSat()]


class OneOfThem(Filter):
    """A plugin that nobody can see through: one guest on a host, and no word of how many."""

    columns = ('instances',)

    def mask(self, hosts, spec):
        return hosts.instances < 1


def a_cloud(*hosts):
    table = a_table(*hosts)
    table.set_metrics([DeclaredMetric(name='cost', lower=0.0, upper=100.0)])
    return table


def costing(number, cost, **fields):
    return a_host(number, metrics={'cost': ReportedMetric(value=float(cost))}, **fields)


def planned(table, members, policies=(), pipeline=None, solver=None, seconds=20.0, **fields):
    body = {'members': members, 'policies': list(policies), **fields}
    default = plugin_loader.load_pipeline(weighers=['MetricsWeigher'], options=CHEAPEST)
    return plan_group(
        table,
        group_description.read(body),
        pipeline or default,
        clock=time.monotonic,
        seconds=seconds,
        seed=1,
        solver=solver,
    )


def a_member(name, count=1, **fields):
    resources = fields.pop('resources', {'VCPU': 1})
    return {'name': name, 'count': count, 'spec': {'resources': resources, **fields}}


def hosts_of(plan):
    return {member.name: member.host for member in plan.members}


@pytest.mark.parametrize('solver', SOLVERS)
def test_what_a_plugin_refuses_in_the_end_is_cut_and_planned_again(solver):
    default = plugin_loader.load_pipeline(weighers=['MetricsWeigher'], options=CHEAPEST)
    filters, weighers = default.filters, default.weighers
    pipeline = Pipeline([*filters, OneOfThem()], weighers)
    table = a_cloud(costing(1, 1), costing(2, 50), costing(3, 60))
    plan = planned(table, [a_member('a', 3)], pipeline=pipeline, solver=solver, seconds=2.0)
    assert not plan.missing
    assert sorted(hosts_of(plan).values()) == ['cmp-1', 'cmp-2', 'cmp-3']
    assert not table.instances.any(), 'the table is as it was'


@pytest.mark.parametrize('solver', SOLVERS)
def test_members_with_layouts_are_where_these_are_found(solver):
    numa = [a_cell(0), a_cell(1)]
    hosts = [
        costing(n, 10 * n, numa=numa, inventories={'PCPU': Inventory(total=16)}) for n in (1, 2)
    ]
    member = a_member(
        'a',
        3,
        resources={'PCPU': 5, 'MEMORY_MB': 1024},
        flavor={'extra_specs': {'hw:cpu_policy': 'dedicated'}},
    )
    plan = planned(a_cloud(*hosts), [member], solver=solver, seconds=2.0)
    # Three times 5 of 16 is room by amounts, but each cell has 8.
    assert Counter(hosts_of(plan).values()) == {'cmp-1': 2, 'cmp-2': 1}


def test_what_hosts_share_is_counted_once():
    aggregate = an_id(1, 90)
    hosts = [costing(n, n, aggregates=[aggregate]) for n in (1, 2, 3)]
    table = a_cloud(*hosts)
    has = {'CUSTOM_A': Inventory(total=8)}
    table.set_pool(SharedPool(id=100, version=1, inventories=has, aggregates=[aggregate]))
    member = a_member('a', 3, resources={'VCPU': 1, 'CUSTOM_A': 3})
    plan = planned(table, [member], solver=CpSat())
    assert (plan.status, len(plan.missing)) == ('infeasible', 1)
    assert plan.conflict.members == {'a': 3}


def racks(count):
    return [costing(n, n, vcpu=4, location=f's1.r1.k{n % 2}') for n in range(1, count + 1)]


def test_policies_that_contradict_each_other_are_named_with_their_members():
    policies = [
        {'policy': 'spread', 'level': 'rack', 'min_domains': 1},
        {'policy': 'affinity', 'level': 'rack', 'of': 'web'},
        {'policy': 'anti-affinity', 'of': 'db'},
        {'policy': 'anti-affinity', 'level': 'rack', 'of': 'web'},
    ]
    members = [a_member('web', 3), a_member('db', 2), a_member('rest', 4)]
    plan = planned(a_cloud(*racks(6)), members, policies, solver=CpSat())
    assert plan.status == 'infeasible'
    assert [index for index, _ in plan.conflict.policies] == [1, 3]
    assert (plan.conflict.members, plan.conflict.is_minimal) == ({'web': 2}, True)
    assert plan.conflict.line.startswith('2 web cannot be placed together under affinity of web')
    # Three in one rack are two too many apart; two racks are as close as they get otherwise.
    assert {(relaxation.policy, relaxation.amount) for relaxation in plan.relaxations} >= {(3, 2.0)}
    assert len(plan.missing) == 2, 'the others have their places'


@pytest.mark.parametrize(
    ('level', 'line'),
    [
        ('rack', 'no host says its rack: it is part of its location ([compute] location)'),
        ('cell', 'no host says its cell ([compute] cell)'),
        ('metadata.row', 'no host is in aggregates with one value of metadata.row'),
        ('cpu.model', 'no host says its cpu.model'),
    ],
)
def test_a_level_that_no_host_says_its_domain_of_is_named(level, line):
    hosts = [costing(n, n, vcpu=4) for n in range(1, 7)]
    policies = [{'policy': 'anti-affinity', 'level': level, 'of': 'web'}]
    plan = planned(a_cloud(*hosts), [a_member('web', 5)], policies, solver=CpSat())
    assert (plan.status, len(plan.missing)) == ('infeasible', 5)
    assert plan.conflict.unknown_levels == [level]
    assert plan.conflict.line.endswith(f'; {line}')
    of_command = plan_lines.conflict_lines(msgspec.to_builtins(plan.conflict), 200)
    assert of_command[-1].strip() == line, 'as the answer over HTTP and RPC'
    assert 'without 5 of its members' not in [relaxation.line for relaxation in plan.relaxations], (
        'five are all'
    )


def test_a_level_that_hosts_say_their_domains_of_is_not_named():
    policies = [{'policy': 'anti-affinity', 'level': 'rack', 'of': 'web'}]
    known_plan = planned(a_cloud(*racks(6)), [a_member('web', 5)], policies, solver=CpSat())
    assert (known_plan.status, known_plan.conflict.unknown_levels) == ('infeasible', [])


def test_a_member_that_no_host_has_room_for_is_the_conflict():
    plan = planned(
        a_cloud(*racks(4)), [a_member('a'), a_member('big', resources={'VCPU': 99})], solver=CpSat()
    )
    assert (plan.status, plan.missing) == ('infeasible', ['big'])
    assert (plan.conflict.policies, plan.conflict.members) == ([], {'big': 1})


def test_without_a_solver_the_answer_says_that_it_is_not_known():
    policies = [{'policy': kind, 'level': 'rack'} for kind in ('affinity', 'anti-affinity')]
    plan = planned(a_cloud(*racks(6)), [a_member('a', 2)], policies, seconds=0.2)
    assert (plan.status, plan.conflict) == ('partial', None)
    assert 'OR-tools is not installed' in plan.proofs


def test_what_counting_shows_is_known_without_a_solver():
    policies = [{'policy': 'anti-affinity', 'level': 'rack'}]
    plan = planned(a_cloud(*racks(6)), [a_member('a', 5)], policies, seconds=0.5)
    assert (plan.status, plan.conflict.members) == ('infeasible', {'a': 3})
    assert [index for index, _ in plan.conflict.policies] == [0]


def test_members_make_room_for_each_other_where_scores_change_with_them():
    # One after the other the large one takes the host that both small ones would be best on.
    pipeline = plugin_loader.load_pipeline(weighers=['CPUWeigher'])
    hosts = [a_host(1, vcpu=16), a_host(2, vcpu=8), a_host(3, vcpu=8)]
    sizes = {'a': 4, 'b': 4, 'c': 4, 'd': 8}
    members = [a_member(name, resources={'VCPU': size}) for name, size in sizes.items()]
    plan = planned(a_cloud(*hosts), members, pipeline=pipeline, solver=CpSat(), seconds=5.0)
    assert plan.score > -plan.sequential.lack + 0.05


def test_pairs_that_one_after_the_other_end_in_a_dead_end_are_placed():
    # The cheapest host has room for one of the two alone.
    hosts = [costing(1, 1, vcpu=4), costing(2, 50, vcpu=8)]
    members = [a_member('a', resources={'VCPU': 4}), a_member('b', resources={'VCPU': 4})]
    for solver in SOLVERS:
        plan = planned(a_cloud(*hosts), members, ['affinity'], solver=solver, seconds=2.0)
        assert plan.sequential.missing == 1
        assert hosts_of(plan) == {'a': 'cmp-2', 'b': 'cmp-2'}
        assert plan.status == 'optimal'


def test_what_was_given_up_is_told_with_its_cost():
    policies = [
        {'policy': 'anti-affinity', 'level': 'rack', 'soft': 2.0},
        {'policy': 'affinity', 'level': 'host', 'drop': 1},
    ]
    plan = planned(a_cloud(*racks(4)), [a_member('a', 6)], policies, solver=CpSat())
    assert not plan.missing
    # Four cores a host: two members are away from most of them, and in one rack there are four.
    assert {
        (concession.line, concession.amount, concession.cost) for concession in plan.given_up
    } == {
        ('affinity at host', 2.0, 0.0),
        ('anti-affinity at rack', 4.0, 8.0),
    }


def test_where_members_are_spread_and_some_have_no_place_the_fullest_hosts_are_tried():
    """3, 3, 2, 2, 2 on two hosts of 6: spread, the last one finds 1 and 1 left."""
    table = a_cloud(*(a_host(n, vcpu=6) for n in (1, 2)))
    members = [
        *(a_member(f'large-{n}', resources={'VCPU': 3}) for n in range(2)),
        *(a_member(f'small-{n}', resources={'VCPU': 2}) for n in range(3)),
    ]
    spread = plugin_loader.load_pipeline(weighers=['CPUWeigher'])
    plan = planned(table, members, pipeline=spread, seconds=20.0)
    assert plan.sequential.missing == 1
    assert len(plan.members) == 5
    assert plan.method == 'sequential'
    hosts = hosts_of(plan)
    assert hosts['large-0'] == hosts['large-1'] != hosts['small-0'] == hosts['small-1']
