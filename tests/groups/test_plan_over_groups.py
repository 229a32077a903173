# SPDX-License-Identifier: Apache-2.0
"""Creates in server groups of Nova whose places one plan has: Nova's policy holds beside it."""

import msgspec
import pytest

from gantt.core.messages.policy_set import GroupPolicyKind, LevelPolicy, PolicySet
from gantt.core.messages.request import GroupRef, Policy
from gantt.core.records.decision import Outcome
from gantt.core.resources.host import Group
from tests.builders import CLEAN
from tests.groups.planned import SPEC, a_body, plan
from tests.groups.test_hint_for_a_plan import a_move, created, hinted, refusal
from tests.http.site import Site, fixed
from tests.world import World, a_request, hosts_of, new_uuid


@pytest.fixture
def world():
    return World(hosts=6)


def nova_group(policy='anti-affinity', **fields):
    return GroupRef(uuid=new_uuid(), policy=Policy(policy), **fields)


def within(request, group, *members, **fields):
    """The request as Nova sends it: in a group with these members."""
    group = msgspec.structs.replace(group, members=list(members), member=request.spec.group.member)
    hints = {**request.spec.hints, 'group': [group.uuid]}
    spec = msgspec.structs.replace(request.spec, group=group, hints=hints, **fields)
    return msgspec.structs.replace(request, spec=spec)


def together(**fields):
    """Three web servers on one host, as far as there is room."""
    return a_body({'name': 'web', 'count': 3, 'spec': SPEC}, policies=['soft-affinity'], **fields)


def test_one_plan_has_the_places_of_two_groups_and_of_a_server_in_none(world):
    group = plan(world)
    front, back = nova_group(), nova_group('affinity')
    first = created(world, within(hinted(group.uuid, 'web'), front))
    second = created(world, within(hinted(group.uuid, 'web'), front, first.consumer))
    third = created(world, within(hinted(group.uuid), back))
    assert [place.host for place in (first, second, third)] == [
        group.hosts[f'web-{i}'] for i in (1, 2, 3)
    ]
    for place, name in ((first, 'web-1'), (second, 'web-2'), (third, 'web-3')):
        claim = world.store.claims.load_claim(place.claim_id)
        assert (claim.group, claim.member_name) == (group.uuid, name)
    assert world.audit() == CLEAN


def test_novas_anti_affinity_holds_where_the_plan_would_not_have_it(world):
    group, nova = plan(world, together()), nova_group()
    assert len(set(group.hosts.values())) == 1
    first = created(world, within(hinted(group.uuid, 'web-1'), nova))
    line = (
        'the place of web-2 cannot be had: server group '
        f'{nova.uuid} has 1 of at most 1 there (hints.gantt_plan: revision 1 of the plan of'
    )
    assert line in refusal(world, within(hinted(group.uuid, 'web-2'), nova, first.consumer))
    two = nova_group(max_per_host=2)
    second = created(world, within(hinted(group.uuid, 'web'), two, first.consumer))
    assert second.host == first.host
    members = (first.consumer, second.consumer)
    assert 'has 2 of at most 2 there' in refusal(
        world, within(hinted(group.uuid, 'web'), two, *members)
    )
    assert world.audit() == CLEAN


def test_creates_of_one_batch_know_of_each_other(world):
    group, nova = plan(world, together()), nova_group()
    requests = [hinted(group.uuid, 'web') for _ in range(2)]
    consumers = [request.consumers[0] for request in requests]
    # Nova lists a server among the members as soon as it is asked for.
    handles = [
        world.ask(within(request, nova, consumers[1 - number]))
        for number, request in enumerate(requests)
    ]
    world.turn(times=12)
    outcomes = [world.replies.answers[handle].outcome for handle in handles]
    assert outcomes == [Outcome.PLACED, Outcome.REFUSED]


@pytest.mark.parametrize('at_once', [True, False])
def test_a_group_with_room_for_two_on_a_host_has_no_third_there(world, at_once):
    """Creates that the table does not show yet are counted one by one."""
    group, nova = plan(world, together()), nova_group(max_per_host=2)
    requests = [hinted(group.uuid, f'web-{number}') for number in (1, 2, 3)]
    members = [request.consumers[0] for request in requests]
    handles = []
    for request in requests:
        handles.append(world.ask(within(request, nova, *members)))
        world.turn(times=0 if at_once else 1)
    world.turn(times=3)
    outcomes = [world.replies.answers[handle].outcome for handle in handles]
    assert outcomes == [Outcome.PLACED, Outcome.PLACED, Outcome.REFUSED]
    assert world.audit() == CLEAN


def test_several_of_one_create_are_apart_as_well(world):
    nova, group = nova_group(), plan(world, together())
    reason = refusal(world, within(hinted(group.uuid, 'web', count=2), nova))
    assert reason.startswith('1 of the 3 places of web is free, and the request has 2 consumers: ')
    assert f'server group {nova.uuid} may have 1 there' in reason
    apart = plan(world)
    answer = world.select(within(hinted(apart.uuid, 'web', count=2), nova))
    assert hosts_of(answer) == [apart.hosts['web-1'], apart.hosts['web-2']]
    assert world.audit() == CLEAN


def test_novas_affinity_holds_where_the_plan_would_not_have_it(world):
    group, nova = plan(world), nova_group('affinity')
    first = created(world, within(hinted(group.uuid, 'web-1'), nova))
    reason = refusal(world, within(hinted(group.uuid, 'web-2'), nova, first.consumer))
    assert f'server group {nova.uuid} has its members elsewhere' in reason
    soft = nova_group('soft-affinity')
    second = created(world, within(hinted(group.uuid, 'web-2'), soft, first.consumer))
    assert second.host == group.hosts['web-2']


def test_what_is_planned_anew_keeps_to_both(world):
    group, nova = plan(world, together(on_difference='replan')), nova_group()
    first = created(world, within(hinted(group.uuid, 'web-1'), nova))
    second = created(world, within(hinted(group.uuid, 'web-2'), nova, first.consumer))
    assert second.host != first.host
    claim = world.store.claims.load_claim(second.claim_id)
    assert (claim.group, claim.member_name) == (group.uuid, 'web-2')
    assert world.audit() == CLEAN


def test_a_guest_that_moves_keeps_its_member_and_to_novas_policy(world):
    group, nova = plan(world), nova_group()
    chosen = created(world, within(hinted(group.uuid, 'web'), nova))
    free = sorted(set(world.hosts) - set(group.hosts.values()))
    other = created(world, a_request(force_hosts=free[:1]))
    move = within(a_move(group.uuid, chosen, 'migrate'), nova, other.consumer)
    answer = world.select(move)
    assert answer.outcome is Outcome.PLACED, answer
    moved = world.store.claims.load_claim(answer.selections[0][0].claim_id)
    assert (moved.group, moved.member_name) == (group.uuid, 'web-1')
    assert moved.host not in {*group.hosts.values(), other.host}
    assert world.audit() == CLEAN


@pytest.mark.parametrize('policy', ['affinity', 'anti-affinity'])
def test_a_move_to_named_hosts_finds_none_that_novas_policy_rules_out(world, policy):
    group, nova = plan(world), nova_group(policy)
    chosen = created(world, within(hinted(group.uuid, 'web'), nova))
    free = sorted(set(world.hosts) - set(group.hosts.values()))
    other = created(world, a_request(force_hosts=[free[0]]))
    to = free[0] if policy == 'anti-affinity' else free[1]
    move = within(a_move(group.uuid, chosen, 'migrate'), nova, other.consumer)
    assert world.select(move.on_hosts([to])).outcome is Outcome.NO_VALID_HOST


def test_a_group_with_policies_of_its_own_is_not_beside_a_plan(world):
    group = plan(world)
    chosen = created(world, hinted(group.uuid, 'web'))
    rule = PolicySet(policies=[LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY)])
    own = GroupRef(uuid=new_uuid(), policies=rule)
    line = f'hints.gantt_plan: server group {own.uuid} has policies of its own here; expected it or'
    assert refusal(world, within(hinted(group.uuid, 'web'), own)).startswith(line)
    answer = world.select(within(a_move(group.uuid, chosen, 'migrate'), own))
    moved = world.store.claims.load_claim(answer.selections[0][0].claim_id)
    assert (moved.group, moved.member_name) == (own.uuid, None)


def test_a_group_that_is_known_by_its_uuid_needs_no_policy_in_the_request(world):
    group, uuid = plan(world, together()), new_uuid()
    world.store.groups.save_group(Group(uuid=uuid, policy='anti-affinity'))
    first = created(world, within(hinted(group.uuid, 'web-1'), GroupRef(uuid=uuid)))
    again = within(hinted(group.uuid, 'web-2'), GroupRef(uuid=uuid), first.consumer)
    assert 'has 1 of at most 1 there' in refusal(world, again)
    unknown = within(hinted(group.uuid, 'web-2'), GroupRef(uuid=new_uuid()))
    assert refusal(world, unknown).startswith('request.spec.group: server group')


def test_decisions_beside_a_group_are_made_again():
    site = Site()
    site.world.hosts = site.hosts
    nova = nova_group()
    body = a_body(
        {'name': 'web', 'count': 2, 'spec': SPEC},
        policies=['soft-affinity'],
        on_difference='replan',
    )
    group = plan(site.world, body)
    first = created(site.world, within(hinted(group.uuid, 'web-1', request_id=fixed(1)), nova))
    anew = within(hinted(group.uuid, 'web-2', request_id=fixed(2)), nova, first.consumer)
    second = created(site.world, anew)
    move = within(a_move(group.uuid, first, 'migrate'), nova, second.consumer)
    site.world.select(msgspec.structs.replace(move, request_id=fixed(3)))
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    site.insights.reload_soon()
    for number in (1, 2, 3):
        replay = site.insights.replay(fixed(number))
        assert replay.same, (number, replay.differences)
    line = f'beside the plan, server group {nova.uuid} asks for anti-affinity'
    assert [line in site.insights.explain(fixed(number)).reason for number in (1, 2, 3)] == [
        False,
        True,
        True,
    ]
