# SPDX-License-Identifier: Apache-2.0
"""Members of a group that leave their host, or their rack, in one request."""

import pytest

from gantt.core.messages.policy_set import POLICIES_POLICY, GroupPolicyKind, LevelPolicy
from gantt.core.messages.request import GroupRef, Policy
from gantt.core.records.decision import Outcome
from gantt.core.resources.host import Group
from tests.world import Host, World, a_request, hosts_of, new_uuid, sqlite_store

MOVES = ('resize', 'migrate', 'live_migrate', 'evacuate')
AFFINITY, ANTI = GroupPolicyKind.AFFINITY, GroupPolicyKind.ANTI_AFFINITY
RACK = LevelPolicy(policy=AFFINITY, level='rack')
APART = LevelPolicy(policy=ANTI)


@pytest.fixture
def world():
    """Two hosts in each of two racks."""
    new_world = World(store=sqlite_store)
    for number in range(1, 5):
        name = f'cmp-{number}'
        new_world.hosts[name] = Host(new_world, name, location=f's1.r1.k{(number + 1) // 2}')
        new_world.hosts[name].report()
    new_world.turn()
    return new_world


def a_group(world, *policies, **fields):
    """One with a set of policies, or with Nova's affinity where there are none."""
    uuid = new_uuid()
    policy = POLICIES_POLICY if policies else Policy.AFFINITY
    world.store.groups.save_group(
        Group(uuid=uuid, policy=policy, policies=list(policies), **fields)
    )
    world.turn()
    return uuid


def placed(world, group, *hosts, member=None):
    """Consumers of the group that run, each where it was told to."""
    consumers = []
    for host in hosts:
        ref = GroupRef(uuid=group, member=member)
        request = a_request(group=ref, force_hosts=[host])
        answer = world.select(request)
        assert hosts_of(answer) == [host], answer.reason
        assert world.hosts[host].confirm(answer.selections[0][0].claim_id) == ['ok']
        consumers += request.consumers
    world.turn()
    return consumers


def move(world, group, consumers, purpose='evacuate', ignored=('cmp-1',), **fields):
    request = a_request(
        len(consumers),
        consumers=consumers,
        group=GroupRef(uuid=group, **fields),
        purpose=purpose,
        ignore_hosts=list(ignored),
    )
    return world.select(request)


@pytest.mark.parametrize('purpose', MOVES)
@pytest.mark.parametrize('policies', [(), (LevelPolicy(policy=AFFINITY),)])
def test_all_members_of_an_affinity_group_leave_their_host_together(world, purpose, policies):
    group = a_group(world, *policies)
    answer = move(world, group, placed(world, group, 'cmp-1', 'cmp-1'), purpose)
    assert answer.outcome is Outcome.PLACED, answer.reason
    [host] = set(hosts_of(answer))
    assert host != 'cmp-1'
    assert not any(world.audit().values())


@pytest.mark.parametrize('policies', [(), (RACK,)])
def test_one_alone_is_told_that_all_have_to_be_asked_for(world, policies):
    group = a_group(world, *policies)
    first, other, third = placed(world, group, 'cmp-1', 'cmp-1', 'cmp-1')
    for some in ([first], [first, other]):
        answer = move(world, group, some, ignored=('cmp-1', 'cmp-2'))
        assert answer.outcome is Outcome.NO_VALID_HOST
        assert 'moves as a whole, all members in one request' in answer.reason
    answer = move(world, group, [first, other, third], ignored=('cmp-1', 'cmp-2'))
    assert answer.outcome is Outcome.PLACED, answer.reason


def test_a_rack_is_left_together_and_its_members_stay_apart(world):
    group = a_group(world, RACK, APART)
    both = placed(world, group, 'cmp-1', 'cmp-2')
    answer = move(world, group, both, ignored=('cmp-1', 'cmp-2'))
    assert sorted(hosts_of(answer)) == ['cmp-3', 'cmp-4']


def test_members_that_are_apart_do_not_change_places(world):
    group = a_group(world, APART)
    both = placed(world, group, 'cmp-1', 'cmp-2')
    answer = move(world, group, both, 'live_migrate', ignored=())
    assert sorted(hosts_of(answer)) == ['cmp-3', 'cmp-4']
