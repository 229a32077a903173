# SPDX-License-Identifier: Apache-2.0
"""The plain check refuses each kind of broken plan, and a sound one not."""

import numpy as np
import pytest

from gantt import plugin_loader
from gantt.groups.model import group_description, plan_group
from gantt.groups.model.build import build_problem
from gantt.groups.model.problem import Assignment, ForbiddenCombination
from tests.core.builders import a_change, a_guest, a_host, a_table, an_id

GROUP = an_id(1, 80)
#: cmp-1 and cmp-2 in one rack, cmp-3 and cmp-4 in another, cmp-5 in none; 4 cores each.
RACKS = ['s1.r1.k1', 's1.r1.k1', 's1.r1.k2', 's1.r1.k2', None]


def a_cloud(*guests):
    hosts = [a_host(i, vcpu=4, location=rack) for i, rack in enumerate(RACKS, 1)]
    return a_table(
        *(a_change(host, *(g for g in guests if g.provider_id == host.id)) for host in hosts)
    )


def a_problem(*policies, guests=(), members=None, **spec):
    body = {
        'uuid': GROUP,
        'policies': list(policies),
        'members': members
        or [
            {'name': 'web', 'count': 3, 'spec': {'resources': {'VCPU': 1}, **spec}},
            {'name': 'db', 'spec': {'resources': {'VCPU': 3}, **spec}},
        ],
    }
    description = group_description.read(body)
    return build_problem(a_cloud(*guests), description, plugin_loader.load_pipeline())


def kinds(problem, rows, choices=None):
    plan = Assignment.empty(problem)
    plan.rows[:] = np.array(rows)
    if choices is not None:
        plan.choices[:] = choices
    return plan_group.plan_faults(problem, plan)


def test_a_sound_plan_is_let_and_one_of_nobody_too():
    problem = a_problem('anti-affinity')
    assert kinds(problem, [0, 1, 2, 3]) == []
    assert kinds(problem, [-1, -1, -1, -1]) == []


def test_more_is_taken_than_a_host_has():
    assert kinds(a_problem(), [0, 0, 0, 1]) == []
    assert kinds(a_problem(), [0, 0, 1, 0]) == ['room']


def test_a_host_that_a_filter_removes():
    problem = a_problem(ignore_hosts=['cmp-2'])
    assert kinds(problem, [0, 0, 0, 2]) == []
    assert kinds(problem, [0, 1, 0, 2]) == ['host']
    assert kinds(problem, [0, 7, 0, 2]) == ['host']


def test_a_member_as_what_it_is_not():
    assert kinds(a_problem(), [0, 0, 0, 1], choices=[0, 0, 1, 1]) == ['choice']


def test_what_was_tried_in_vain_together():
    problem = a_problem()
    problem.cuts.append(ForbiddenCombination(0, {0: 2}))
    assert kinds(problem, [0, 1, 2, 3]) == []
    assert kinds(problem, [0, 0, 2, 3]) == ['cut']


WEB = {'of': 'web'}


@pytest.mark.parametrize(
    ('policy', 'sound', 'broken'),
    [
        ({'policy': 'affinity', 'level': 'rack', **WEB}, [2, 3, 3, 0], [2, 3, 0, 0]),
        ({'policy': 'anti-affinity', **WEB}, [0, 1, 2, 3], [0, 0, 2, 3]),
        (
            {'policy': 'anti-affinity', 'max_per_domain': 2, 'level': 'rack', **WEB},
            [0, 1, 2, 3],
            [0, 1, 1, 3],
        ),
        ({'policy': 'spread', 'level': 'rack', 'min_domains': 2}, [0, 0, 0, 2], [0, 0, 0, 1]),
        ({'policy': 'spread', 'level': 'rack', 'max_skew': 1, **WEB}, [0, 0, 2, 3], [0, 0, 0, 3]),
        ({'policy': 'exclusive', 'of': 'db', 'level': 'rack'}, [0, 0, 1, 2], [0, 0, 3, 2]),
        (
            {'policy': 'anti-affinity', **WEB, 'target': {'of': 'db'}, 'level': 'rack'},
            [0, 0, 1, 2],
            [0, 0, 3, 2],
        ),
        (
            {'policy': 'near', **WEB, 'target': {'of': 'db'}, 'level': 'rack'},
            [3, 3, 3, 2],
            [3, 3, 1, 2],
        ),
        (
            {'policy': 'near', **WEB, 'target': {'host': 'cmp-4'}, 'level': 'rack'},
            [3, 3, 2, 0],
            [3, 3, 1, 0],
        ),
        # A host in no rack is none that any policy of racks is met by.
        ({'policy': 'affinity', 'level': 'rack', **WEB}, [0, 1, 1, 4], [4, 4, 4, 0]),
        ({'policy': 'anti-affinity', 'level': 'rack', 'of': 'db'}, [0, 1, 1, 2], [0, 1, 1, 4]),
    ],
)
def test_a_policy_that_is_violated(policy, sound, broken):
    problem = a_problem(policy)
    assert kinds(problem, sound) == []
    assert kinds(problem, broken) == ['policy']
    soft = a_problem({**policy, 'soft': 1.0})
    assert kinds(soft, broken) == []


def test_guests_that_stand_count():
    stands = a_guest(1, 1, GROUP)
    assert kinds(a_problem('anti-affinity', guests=[stands]), [1, 2, 3, 4]) == []
    assert kinds(a_problem('anti-affinity', guests=[stands]), [0, 2, 3, 4]) == ['policy']
    assert kinds(a_problem('affinity', guests=[stands]), [0, 0, 0, -1]) == []
    assert kinds(a_problem('affinity', guests=[stands]), [1, 1, 1, -1]) == ['policy']
    alone = {'policy': 'exclusive'}
    assert kinds(a_problem(alone, guests=[a_guest(2, 1)]), [1, 2, 3, 4]) == []
    assert kinds(a_problem(alone, guests=[a_guest(2, 1)]), [0, 2, 3, 4]) == ['policy']
