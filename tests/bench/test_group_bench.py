# SPDX-License-Identifier: Apache-2.0
"""The benches of groups run, and their evaluators see what is wrong with a placement."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from bench import group_clouds, group_models, joint, joint_clouds, joint_models
from bench.joint_clouds import JointCloud, JointHost


def servers(test):
    """A test that needs a broker and PostgreSQL."""
    return pytest.mark.rabbit(pytest.mark.postgresql(test))


@pytest.fixture
def run(rabbit_url, postgresql_url):
    """One bench to its end on the servers of the tests; its result."""

    def ended(name, *args):
        done = subprocess.run(
            [sys.executable, '-m', 'bench', name, *args, '--json'],
            capture_output=True,
            text=True,
            timeout=200,
            env=os.environ | {'GANTT_TEST_POSTGRESQL': postgresql_url},
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        result = json.loads(done.stdout.splitlines()[-1])
        assert (result['audit'], result['conditions']['problems']) == (0, [])
        return result

    return ended


@pytest.mark.slow
@servers
def test_the_table_has_a_gap_to_bounds_of_its_own(run):
    result = run('groups', '--members', '10', '--hosts', '100')
    assert (result['bench'], result['unit']) == ('groups', 'gap')
    (case,) = result['conditions']['cases']
    assert (case['members'], case['hosts'], case['alike']) == (10, 100, True)
    assert result['value'] == case['gap'] >= 0
    assert case['seconds'] > case['planned_seconds']


@pytest.mark.slow
@servers
def test_planted_clouds_are_counted_by_case(run):
    result = run('groups', '--planted', '--members', '60', '--hosts', '40', '--seeds', '1')
    assert set(result['conditions']['placed_all']) == {'60/40/0.0', '60/40/0.1', '60/40/0.3'}
    assert all(case['sequential_better'] == 0 for case in result['conditions']['cases'])


@pytest.mark.slow
@servers
def test_what_cannot_be_placed_together_is_named(run):
    result = run('groups', '--contradictions', '--members', '10', '--hosts', '100')
    cases = result['conditions']['cases']
    assert len(cases) == 5
    assert all(case['is_named'] for case in cases)


@pytest.mark.slow
@servers
def test_plans_go_on_beside_single_requests(run):
    options = ('--hosts', '200', '--repeats', '1', '--window', '0.6', '--plan-seconds', '0.2')
    conditions = run('groups', '--beside', *options)['conditions']
    assert conditions['plans'] > 0
    assert conditions['plans_per_minute'] > 0
    assert conditions['p99_ratio'] > 0


@pytest.mark.slow
@servers
def test_members_that_were_planned_are_created_where_they_were(run):
    result = run('groups', '--create', '--hosts', '40', '--repeats', '1', '--groups', '1')
    assert result['value'] > 0
    assert result['conditions']['members'] == 50


@servers
def test_a_group_as_a_whole_is_nowhere_worse_than_one_by_one(run):
    result = run('joint', '--clouds', '6')
    families = result['conditions']['families']
    assert set(families) == set(joint_clouds.FAMILIES)
    assert sum(figures['worse'] for figures in families.values()) == 0
    assert families['apart'] == {'better': 0, 'equal': 1, 'worse': 0}
    assert result['value'] > 0


@pytest.mark.parametrize('slack', [0.0, 0.3])
def test_a_planted_cloud_has_room_for_what_was_drawn(slack):
    cloud = group_clouds.planted(60, 40, slack, 1)
    assert len(cloud.items) == 60
    assert (sum(cloud.demand(i) for i in range(60)) <= cloud.free.sum(axis=0)).all()
    assert sorted(cloud.sets).count(-1) == 24


def pairs():
    free = np.array([[4, 4096, 40], [4, 4096, 40], [4, 4096, 40]])
    size = (1, 1024, 10)
    items = [[size, size], [size, size]]
    return group_clouds.Cloud(free, np.array([0, 0, 1]), np.array([1.0, 2.0, 5.0]), items, [0, 0])


def test_the_evaluator_sees_what_is_wrong():
    cloud = pairs()
    good = {'m0-a': 'cmp-00000', 'm0-b': 'cmp-00000', 'm1-a': 'cmp-00002', 'm1-b': 'cmp-00002'}
    assert group_models.broken(cloud, good) == []
    assert group_models.cost(cloud, good) == 12.0
    assert group_models.broken(cloud, {**good, 'm1-a': 'cmp-00001'})[0] == 'item 1 is on 2 hosts'
    close = {**good, 'm1-a': 'cmp-00001', 'm1-b': 'cmp-00001'}
    assert group_models.broken(cloud, close) == ['set 0 shares a rack']
    cloud.free[2] = 1
    assert group_models.broken(cloud, good) == ['host 2 is over-committed']


def test_no_bound_is_beyond_the_best_placement():
    cloud = pairs()
    assert group_models.separable(cloud) == group_models.by_size(cloud, 5.0) == 12.0
    assert group_models.naive(cloud, 5.0) == 12.0


def two_racks(policies, standing=()):
    """Four hosts on two racks, two members on each: a and b are near, c and d are large."""
    hosts = [
        JointHost(name=f'h{i}', room='s.r', rack=f's.r.k{i // 2}', free=(4, 4096, 40), cost=i + 1)
        for i in range(4)
    ]
    sizes = {'a': (1, 1024, 10), 'b': (1, 1024, 10), 'c': (3, 1024, 10), 'd': (3, 1024, 10)}
    subgroups = {'near': ['a', 'b'], 'large': ['c', 'd']}
    return JointCloud('x', 0, hosts, sizes, subgroups, policies, list(standing))


@pytest.mark.parametrize(
    ('policy', 'where', 'by'),
    [
        ({'policy': 'affinity', 'of': 'near'}, {'a': 'h0', 'b': 'h1'}, 1),
        ({'policy': 'affinity', 'level': 'rack', 'of': 'near'}, {'a': 'h0', 'b': 'h1'}, 0),
        ({'policy': 'anti-affinity', 'level': 'rack'}, {'a': 'h0', 'b': 'h1', 'c': 'h2'}, 1),
        ({'policy': 'anti-affinity', 'max_per_domain': 2}, {'a': 'h0', 'b': 'h0', 'c': 'h1'}, 0),
        ({'policy': 'anti-affinity', 'of': ['near', 'large']}, {'a': 'h0', 'c': 'h0'}, 0),
        (
            {'policy': 'spread', 'level': 'rack', 'max_skew': 1},
            {'a': 'h0', 'b': 'h1', 'c': 'h1'},
            2,
        ),
        ({'policy': 'spread', 'level': 'rack', 'max_skew': 1}, {'a': 'h0', 'c': 'h3'}, 0),
        (
            {'policy': 'near', 'level': 'rack', 'of': 'near', 'target': {'of': 'large'}},
            {'a': 'h0', 'b': 'h2', 'c': 'h1'},
            1,
        ),
        (
            {
                'policy': 'near',
                'level': 'rack',
                'of': 'near',
                'target': {'domain': 's.r.k0'},
                'prices': [{'level': 'rack', 'price': 0.0}, {'level': 'room', 'price': 0.25}],
            },
            {'a': 'h1', 'b': 'h2'},
            0.25,
        ),
    ],
)
def test_a_policy_is_counted_by_who_is_where(policy, where, by):
    hard = two_racks([policy])
    assert bool(joint_models.broken(hard, where)) == (by > 0)
    soft = two_racks([{**policy, 'soft': 2.0}])
    assert joint_models.outcome(soft, where).weight == 2000 * by
    dropped = two_racks([{**policy, 'drop': 1}])
    assert joint_models.outcome(dropped, where).given_up == (round(by),)


def test_guests_that_stand_count_and_what_they_break_is_nobody_s():
    skew = {'policy': 'spread', 'level': 'rack', 'max_skew': 1, 'soft': 1.0}
    cloud = two_racks([skew], standing=[0, 0, 1])
    assert joint_models.outcome(cloud, {'a': 'h2'}).weight == 0
    assert joint_models.outcome(cloud, {'a': 'h1'}).weight == 1000
    assert cloud.room(0) == (6, 6144, 60)
    apart = two_racks([{'policy': 'anti-affinity', 'soft': 1.0}], standing=[0, 0])
    assert joint_models.outcome(apart, {'a': 'h0', 'b': 'h1'}).weight == 1000


def test_members_go_before_policies_before_weight_before_cost():
    soft = {'policy': 'affinity', 'of': 'near', 'soft': 1.0}
    cloud = two_racks([{'policy': 'affinity', 'of': 'large', 'drop': 1}, soft])
    worse_and_worse = [
        {'a': 'h0', 'b': 'h0', 'c': 'h1', 'd': 'h1'},
        {'a': 'h3', 'b': 'h3', 'c': 'h1', 'd': 'h1'},
        {'a': 'h0', 'b': 'h1', 'c': 'h2', 'd': 'h2'},
        {'a': 'h0', 'b': 'h0', 'c': 'h1', 'd': 'h2'},
        {'a': 'h0', 'b': 'h0', 'c': 'h1'},
    ]
    outcomes = [joint_models.outcome(cloud, where) for where in worse_and_worse]
    assert outcomes == sorted(outcomes)
    assert len(set(outcomes)) == len(outcomes)
    full = {'c': 'h0', 'd': 'h0'}
    assert joint_models.broken(cloud, full) == ['host h0 is over-committed']


def test_clouds_of_a_seed_are_the_same_and_have_what_their_families_are_about():
    clouds = joint_clouds.clouds(12, 1)
    assert clouds == joint_clouds.clouds(12, 1)
    assert {cloud.family for cloud in clouds} == set(joint_clouds.FAMILIES)
    assert len({host.name for cloud in clouds for host in cloud.hosts}) == sum(
        len(cloud.hosts) for cloud in clouds
    )
    for cloud in clouds:
        assert (cloud.family == 'standing') == bool(cloud.standing)
        assert set().union(*cloud.subgroups.values(), ()) <= set(cloud.sizes)


def test_both_sides_are_compared_by_family():
    clouds = joint_clouds.clouds(2, 1)
    nobody = {cloud.number: {} for cloud in clouds}
    first = clouds[0]
    one_more = {**nobody, first.number: {next(iter(first.sizes)): first.hosts[0].name}}
    families, cases, problems = joint.compared(clouds, one_more, nobody)
    assert families['apart'] == {'better': 1, 'equal': 0, 'worse': 0}
    assert families['sizes'] == {'better': 0, 'equal': 1, 'worse': 0}
    assert problems == []
    families, cases, _ = joint.compared(clouds, nobody, one_more)
    assert [case['is'] for case in cases] == ['worse', 'equal']
