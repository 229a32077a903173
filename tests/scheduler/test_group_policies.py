# SPDX-License-Identifier: Apache-2.0
"""Groups with policies at any level, asked for one member after the other."""

import itertools

import msgspec
import pytest

from gantt.core.messages.policy_set import (
    POLICIES_POLICY,
    GroupPolicyKind,
    LevelPolicy,
    PolicySet,
    PolicyTarget,
)
from gantt.core.messages.request import GroupRef, Policy
from gantt.core.records.decision import Outcome
from gantt.core.records.decision_codec import unpack
from gantt.core.resources.host import Group
from tests.world import Host, World, a_request, hosts_of, new_uuid, sqlite_store

APART = LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, level='rack')


@pytest.fixture
def world():
    """Two hosts in each of three racks."""
    return racks(World())


def racks(world):
    for number in range(1, 7):
        name = f'cmp-{number}'
        host = world.hosts[name] = Host(world, name, location=f's1.r1.k{(number + 1) // 2}')
        host.report()
    world.turn()
    return world


def rack(host):
    return (int(host.removeprefix('cmp-')) + 1) // 2


def a_group(world, *policies, **fields):
    """The uuid of a group with policies."""
    group = Group(uuid=new_uuid(), policy=POLICIES_POLICY, policies=list(policies), **fields)
    world.store.groups.save_group(group)
    world.turn()
    return group.uuid


def test_members_of_requests_of_their_own_are_apart_by_rack(world):
    group = GroupRef(uuid=a_group(world, APART))
    hosts = [hosts_of(world.select(a_request(group=group)))[0] for _ in range(3)]
    assert sorted(map(rack, hosts)) == [1, 2, 3]
    answer = world.select(a_request(group=group))
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert 'none meets this policy: anti-affinity at rack (group)' in answer.reason
    assert not any(world.audit().values())


def test_two_schedulers_at_once_break_nothing(world):
    other = world.another_scheduler()
    for _ in range(5):
        group = GroupRef(uuid=a_group(world, APART))
        by = itertools.cycle((world.scheduler, other))
        handles = [world.ask(a_request(group=group), by=next(by)) for _ in range(4)]
        world.turn(times=30)
        answers = [world.replies.answers[handle] for handle in handles]
        placed = [hosts_of(answer)[0] for answer in answers if answer.outcome is Outcome.PLACED]
        assert sorted(map(rack, placed)) == [1, 2, 3]
    assert world.recorder.counts['gantt_conflicts_total'] > 0
    assert not any(world.audit().values())


def test_policies_of_subgroups_go_by_the_member_that_a_request_names(world):
    near = LevelPolicy(
        policy=GroupPolicyKind.NEAR, level='rack', of='web', target=PolicyTarget(of='db')
    )
    uuid = a_group(world, near, subgroups={'all': ['web', 'db']})
    [db] = hosts_of(
        world.select(a_request(group=GroupRef(uuid=uuid, member='db'), force_hosts=['cmp-5']))
    )
    hosts = [
        hosts_of(world.select(a_request(group=GroupRef(uuid=uuid, member=f'web-{n}'))))[0]
        for n in (1, 2, 3)
    ]
    assert db == 'cmp-5'
    assert set(map(rack, hosts)) == {3}
    names = {claim.member_name for claim in world.store.claims.list_claims()}
    assert names == {'db', 'web-1', 'web-2', 'web-3'}


def test_a_request_may_bring_the_policies_and_makes_the_group(world):
    group = GroupRef(uuid=new_uuid(), policies=PolicySet(policies=[APART]))
    first = hosts_of(world.select(a_request(2, group=group)))
    second = hosts_of(world.select(a_request(group=GroupRef(uuid=group.uuid))))
    assert sorted(map(rack, [*first, *second])) == [1, 2, 3]
    assert world.store.groups.load_group(group.uuid).policies == [APART]


def test_what_a_caller_says_is_no_other_rule(world):
    uuid = a_group(world, APART)
    other = GroupRef(uuid=uuid, policies=PolicySet(policies=['affinity']))
    answer = world.select(a_request(group=other))
    assert answer.outcome is Outcome.REFUSED
    assert 'exists with policies anti-affinity at rack, and policies affinity' in answer.reason
    # Nova says what it knows of the group: the policies stand for that.
    novas = GroupRef(uuid=uuid, policy=Policy.AFFINITY)
    hosts = [hosts_of(world.select(a_request(group=novas)))[0] for _ in range(2)]
    assert len(set(map(rack, hosts))) == 2


def test_what_nova_says_before_the_policies_are_known_is_put_right(world):
    group = Group(uuid=new_uuid(), policy=POLICIES_POLICY, policies=[APART])
    world.store.groups.save_group(group)
    assert group.uuid not in world.scheduler.cache.rules
    novas = GroupRef(uuid=group.uuid, policy=Policy.AFFINITY)
    handles = [world.ask(a_request(group=novas)) for _ in range(3)]
    world.turn(times=30)
    hosts = [hosts_of(world.replies.answers[handle])[0] for handle in handles]
    assert sorted(map(rack, hosts)) == [1, 2, 3]


def test_another_group_may_be_what_members_are_apart_from(world):
    others = a_group(world, 'anti-affinity')
    away = LevelPolicy(
        policy=GroupPolicyKind.ANTI_AFFINITY, level='rack', target=PolicyTarget(group=others)
    )
    group = GroupRef(uuid=a_group(world, away))
    [there] = hosts_of(world.select(a_request(group=GroupRef(uuid=others))))
    scheduler = world.another_scheduler()
    handle = world.ask(a_request(group=GroupRef(uuid=others), force_hosts=['cmp-6']), by=scheduler)
    ours = world.ask(a_request(2, group=group))
    world.turn(times=30)
    taken = {rack(there), *map(rack, hosts_of(world.replies.answers[handle]))}
    assert not taken & set(map(rack, hosts_of(world.replies.answers[ours])))


def test_a_kept_decision_has_the_policies_that_it_was_made_under():
    world = racks(World(sqlite_store))
    group = GroupRef(uuid=a_group(world, APART, subgroups={'a': ['x']}), member='x-1')
    answer = world.select(a_request(group=group))
    kept = unpack(world.store.records.load_decision(answer.decision_id)[0])
    assert kept.request.spec.group.policies.policies == [APART]
    assert kept.request.spec.group.policies.member_of(kept.request.spec.group.member) == 'x'
    assert msgspec.to_builtins(kept.request.spec.group)['member'] == 'x-1'


def test_a_level_that_there_is_not_is_told_to_the_caller(world):
    group = GroupRef(
        uuid=new_uuid(),
        policies=PolicySet(policies=[LevelPolicy(policy=GroupPolicyKind.AFFINITY, level='rak')]),
    )
    answer = world.select(a_request(group=group))
    assert "did you mean 'rack'" in answer.reason
