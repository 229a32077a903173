# SPDX-License-Identifier: Apache-2.0
"""Members of one request that belong together go where all of them fit."""

import numpy as np
import pytest

from gantt.core.messages.request import GroupRef, Policy
from gantt.core.pause import Pause
from gantt.core.placement import capacity
from gantt.core.placement.place import undo_decision
from gantt.core.records.decision import Outcome
from tests.core.builders import a_host, a_request, a_table, decide, hosts_of
from tests.core.groups.test_one_member import GROUP, a_group

AFFINITY = {'policy': 'affinity'}
RACK = {'policy': 'affinity', 'level': 'rack'}
APART = {'policy': 'anti-affinity'}
FOUR = {'resources': {'VCPU': 4, 'MEMORY_MB': 1024}}


def a_cloud(*racks):
    """Return hosts with so many processors, rack by rack; those with fewer have more memory."""
    hosts = []
    for number, vcpus in enumerate(racks, 1):
        for vcpu in vcpus:
            place, ram = f's1.r1.k{number}', 1_000_000 // vcpu
            hosts.append(a_host(len(hosts) + 1, location=place, vcpu=vcpu, ram=ram))
    return a_table(*hosts)


@pytest.mark.parametrize(
    'group',
    [
        GroupRef(uuid=GROUP, policy=Policy.AFFINITY),
        a_group(AFFINITY),
        a_group('affinity'),
        a_group({**AFFINITY, 'drop': 1}),
        a_group(RACK, AFFINITY),
    ],
)
def test_a_host_is_chosen_that_takes_all(group):
    decision = decide(a_cloud((4,), (8,)), a_request(2, group=group, **FOUR))
    assert hosts_of(decision) == ['cmp-2', 'cmp-2'], decision.reason
    assert decision.relaxed == []


@pytest.mark.parametrize('strength', [{}, {'drop': 1}, {'drop': 2}])
def test_a_rack_is_chosen_that_takes_all_each_on_a_host_of_its_own(strength):
    cloud = a_cloud((4, 4), (16,), (8, 8, 8), (4, 4))
    group = a_group({**RACK, **strength}, APART)
    decision = decide(cloud, a_request(3, group=group, **FOUR))
    assert sorted(hosts_of(decision)) == ['cmp-4', 'cmp-5', 'cmp-6'], decision.reason
    assert decision.relaxed == []


NEAR = {'policy': 'near', 'level': 'rack', 'of': 'web', 'target': {'of': 'db'}}
BOTH = ['web', 'db']


def near(member, *more, **strength):
    return a_group({**NEAR, **strength}, *more, members=BOTH, member=member)


def ask(cloud, member, *more, count=1, number=0, **strength):
    group = near(member, *more, **strength)
    return hosts_of(decide(cloud, a_request(count, number, group=group, **FOUR)))


@pytest.mark.parametrize('strength', [{}, {'drop': 1}])
@pytest.mark.parametrize('more', [(), ({**APART, 'of': 'web'},)])
def test_those_that_are_to_be_near_to_one_that_comes_wait_where_it_has_room(more, strength):
    cloud = a_cloud((8,), (4, 4, 4), (8, 8, 8), (4,))
    webs = ask(cloud, 'web', *more, count=3, **strength)
    db = ask(cloud, 'db', *more, number=9, **strength)
    assert {*webs, *db} <= {'cmp-5', 'cmp-6', 'cmp-7'}
    assert not more or len(set(webs)) == 3


def test_one_that_others_are_to_be_near_to_goes_where_there_is_room_for_these():
    cloud = a_cloud((4,), (8,), (4,))
    assert ask(cloud, 'db', number=9) + ask(cloud, 'web') == ['cmp-2', 'cmp-2']
    cloud = a_cloud((4,), (4,), (4,))
    assert len(set(ask(cloud, 'db', count=3))) == 3  # none has room for another


def test_they_wait_where_others_do():
    cloud = a_cloud((4,), (8, 8), (16,))
    first = ask(cloud, 'web')
    assert first != ['cmp-1']  # nothing could come there
    both = first + ask(cloud, 'web', number=1) + ask(cloud, 'db', number=9)
    assert set(both) <= {'cmp-2', 'cmp-3'} or set(both) == {'cmp-4'}


@pytest.mark.parametrize('dry_run', [False, True])
def test_those_that_have_no_room_near_to_one_are_placed_for_several_that_come(dry_run):
    cloud = a_cloud((4,), (4,), (4,))
    before = cloud.free.copy()
    decision = decide(cloud, a_request(3, group=near('web'), dry_run=dry_run, **FOUR))
    assert len(set(hosts_of(decision))) == 3
    assert (cloud.free == before).all() == dry_run


@pytest.mark.parametrize('dry_run', [False, True])
@pytest.mark.parametrize(
    ('group', 'racks'),
    [(near('web'), ((4, 4), (16,))), (a_group({**RACK, 'drop': 1}), ((4,), (8,)))],
    ids=['near', 'given up'],
)
def test_the_first_places_stay_where_the_budget_ends_while_better_ones_are_looked_for(
    group, racks, dry_run
):
    cloud = a_cloud(*racks)
    request = a_request(2, group=group, dry_run=dry_run, **FOUR)
    before, answers = cloud.free.copy(), []
    for pause_count in (1, 2):  # each run of two members asks once
        pauses = iter([Pause.GO_ON] * pause_count)
        decision = decide(cloud, request, pause=lambda _, of=pauses: next(of, Pause.OVER))
        assert decision.outcome is Outcome.PLACED, decision.reason
        answers.append((hosts_of(decision), 'its budget ended' in decision.reason))
        assert (before - cloud.free).sum() == (0 if dry_run else 2 * (4 + 1024))
        undo_decision(cloud, decision, request)
        assert (cloud.free == before).all()
        assert not list(cloud.placed)
    assert answers[0] == (['cmp-1', 'cmp-2'], True)
    assert answers[1][0] != answers[0][0]
    assert not answers[1][1]


def test_where_no_domain_takes_all_it_is_refused_or_given_up_as_before():
    cloud = a_cloud((4, 4), (4, 4))
    refused = decide(cloud, a_request(3, group=a_group(RACK), **FOUR))
    assert refused.outcome is Outcome.NO_VALID_HOST
    given_up = decide(cloud, a_request(3, group=a_group({**RACK, 'drop': 1}), **FOUR))
    assert given_up.outcome is Outcome.PLACED
    assert given_up.relaxed == ['for 1 members up to step 1: drop 1: affinity at rack (group)']


def test_a_refused_or_tried_request_leaves_nothing_on_the_table():
    cloud = a_cloud((4, 4), (4, 4))
    for strength in ({}, {'drop': 1}):
        request = a_request(3, group=a_group({**RACK, **strength}), dry_run=True, **FOUR)
        before = cloud.free.copy()
        decide(cloud, request)
        assert (cloud.free == before).all()
        assert not list(cloud.placed)


@pytest.mark.parametrize('group', [GroupRef(uuid=GROUP, policy=Policy.AFFINITY), a_group(AFFINITY)])
def test_room_is_that_of_the_domain_that_takes_most(group):
    cloud, spec = a_cloud((4,), (8,), (4,)), a_request(group=group, **FOUR).spec
    assert capacity.free_capacity(cloud, spec, np.arange(3)).total == 2


def test_room_of_a_rack_is_counted_under_the_other_policies():
    spec = a_request(group=a_group(RACK, APART), **FOUR).spec
    assert capacity.free_capacity(a_cloud((16,), (4, 4, 4), (8, 8)), spec, np.arange(6)).total == 3
