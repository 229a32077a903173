# SPDX-License-Identifier: Apache-2.0
"""Creates in a planned group: each gets the place that was planned for it, or is told why not."""

import msgspec
import pytest

from gantt.core.messages.policy_set import GroupPolicyKind, LevelPolicy, PolicySet
from gantt.core.messages.request import GetRequest, GroupRef
from gantt.core.records.decision import Outcome
from tests.builders import CLEAN
from tests.groups.planned import LARGE, SPEC, a_body, plan
from tests.world import World, a_request, hosts_of, new_uuid, sqlite_store


@pytest.fixture
def world():
    return World(hosts=4)


def claim_ids(answer):
    return [selections[0].claim_id for selections in answer.selections]


def place_of(world, group, name):
    """The live claim of a member: where a create has ended, its place has another id."""
    claims = world.store.plans.load_reservations([group.uuid])[group.uuid]
    return next(claim for claim in claims if claim.member_name == name)


def test_a_create_that_names_a_member_gets_its_place(world):
    group = plan(world)
    before = world.store.claims.load_claim(group.claims['web-2'])
    request = group.request('web-2', lease_seconds=60)
    answer = world.select(request)
    assert answer.outcome is Outcome.PLACED, answer
    (chosen,) = answer.selections[0]
    assert (chosen.host, chosen.claim_id) == (group.hosts['web-2'], group.claims['web-2'])
    assert (chosen.lease_seconds, chosen.consumer) == (60, request.consumers[0])
    assert chosen.resources == SPEC['resources']
    claim = world.store.claims.load_claim(chosen.claim_id)
    assert (claim.consumer, claim.request_id) == (request.consumers[0], request.request_id)
    assert claim.former_reservation.consumer == before.consumer
    assert world.hosts[chosen.host].confirm(chosen.claim_id) == ['ok']
    claim = world.store.claims.load_claim(chosen.claim_id)
    assert (claim.state, claim.lifecycle, claim.member_name) == ('confirmed', 'host', 'web-2')
    assert len(world.store.claims.list_claims()) == 4
    assert world.audit() == CLEAN


def test_a_description_gives_the_next_free_place_whether_it_is_named_or_not(world):
    group = plan(world)
    named = world.select(group.request('web'))
    like_it = world.select(group.request())
    last = world.select(group.request('web'))
    assert [claim_ids(answer) for answer in (named, like_it, last)] == [
        [group.claims['web-1']],
        [group.claims['web-2']],
        [group.claims['web-3']],
    ]
    other = world.select(group.request(spec=LARGE))
    assert claim_ids(other) == [group.claims['db']]
    again = world.select(group.request())
    assert again.outcome is Outcome.REFUSED
    assert again.reason.startswith('none of the 3 places of web is free: the place of web-1 is ')
    assert world.audit() == CLEAN


def test_several_members_of_one_request_get_as_many_places(world):
    group = plan(world)
    answer = world.select(group.request('web', count=3))
    assert claim_ids(answer) == [group.claims[f'web-{i}'] for i in (1, 2, 3)]
    assert hosts_of(answer) == [group.hosts[f'web-{i}'] for i in (1, 2, 3)]
    assert world.audit() == CLEAN


def test_too_few_places_for_a_request_give_it_none(world):
    group = plan(world)
    world.select(group.request('web-2'))
    answer = world.select(group.request('web', count=3))
    assert answer.outcome is Outcome.REFUSED
    assert answer.reason.startswith(
        '2 of the 3 places of web are free, and the request has 3 consumers: the place of web-2 is'
    )
    assert claim_ids(world.select(group.request('web', count=2))) == [
        group.claims['web-1'],
        group.claims['web-3'],
    ]


def refusal(world, request):
    answer = world.select(request)
    assert answer.outcome is Outcome.REFUSED, answer
    return answer.reason


def test_a_create_that_is_not_as_planned_is_refused_field_by_field(world):
    group = plan(world)
    more = {'resources': {**SPEC['resources'], 'MEMORY_MB': 16384}, 'required_traits': ['X']}
    assert refusal(world, group.request('web-1', spec=more)) == (
        'member web-1 was planned otherwise: resources.MEMORY_MB: the plan has 1024, the request '
        '16384; required_traits: the plan has none, the request X (revision 1 of the plan of '
        f'group {group.uuid})'
    )
    assert refusal(world, group.request(spec=more)).startswith(
        'the plan of the group has no member like it; the nearest is web: resources.MEMORY_MB: '
    )
    assert world.store.claims.load_claim(group.claims['web-1']).is_free_reservation


BAD = {
    'unknown': ('wbe', 1, "has no member 'wbe'; did you mean 'web'?"),
    'far': ('zzz', 1, "has no member 'zzz'; there are web, db"),
    'too-many-of-one': ('web-1', 2, 'web-1 has one place in the plan, and the request has 2'),
    'too-many': ('web', 4, 'web has 3 places in the plan, and the request has 4 consumers'),
}


@pytest.mark.parametrize('what', BAD)
def test_a_member_that_cannot_be_meant_is_refused_by_name(world, what):
    member, count, line = BAD[what]
    group = plan(world)
    assert line in refusal(world, group.request(member, count=count))


def test_a_member_created_twice_is_refused_by_name(world):
    group = plan(world)
    first = world.select(group.request('web-1'))
    consumer = first.selections[0][0].consumer
    line = f'the place of web-1 is taken by consumer {consumer}'
    assert line in refusal(world, group.request('web-1'))
    world.hosts[group.hosts['web-1']].confirm(group.claims['web-1'])
    line = f'web-1 was created before, as consumer {consumer}'
    assert line in refusal(world, group.request('web-1'))


def test_a_repeat_gets_the_answer_it_was_given(world):
    group = plan(world)
    request = group.request('web-1')
    first = world.select(request)
    for again in (request, group.request('web-1', request_id=request.request_id)):
        if again is request:
            assert world.select(again).selections == first.selections
        else:
            assert world.select(again).outcome is Outcome.REUSED
    stored = world.scheduler.get_request(GetRequest(request_id=request.request_id))
    assert stored.selections == first.selections
    unnamed = group.request()
    assert claim_ids(world.select(unnamed)) == [group.claims['web-2']]
    assert claim_ids(world.select(unnamed)) == [group.claims['web-2']]
    assert world.store.claims.load_claim(group.claims['web-3']).is_free_reservation


def test_a_cancelled_create_gives_its_place_back_to_the_next(world):
    group = plan(world)
    request = group.request('web-1')
    world.select(request)
    world.store.requests.cancel_request(request.request_id, 'changed my mind')
    place = place_of(world, group, 'web-1')
    assert place.is_free_reservation and place.host == group.hosts['web-1']
    assert world.select(request).outcome is Outcome.CANCELLED
    assert claim_ids(world.select(group.request('web-1'))) == [place.id]
    assert world.audit() == CLEAN


def test_a_create_whose_lease_ends_gives_its_place_back(world):
    group = plan(world)
    world.select(group.request('web-1', lease_seconds=30))
    world.turn(seconds=10, times=6)
    place = place_of(world, group, 'web-1')
    assert place.is_free_reservation and place.host == group.hosts['web-1']
    for host in world.hosts.values():
        host.report()
    world.turn()
    assert claim_ids(world.select(group.request('web-1'))) == [place.id]


def test_a_place_that_has_expired_is_refused_by_name_with_what_to_do(world):
    group = plan(world, lease_seconds=60)
    world.turn(seconds=10, times=9)
    for host in world.hosts.values():
        host.report()
    world.turn()
    reason = refusal(world, group.request('web-1'))
    assert 'web-1' in reason
    assert 'plan' in reason
    assert world.audit() == CLEAN


def test_a_create_the_host_refused_leaves_the_place_to_another(world):
    group = plan(world)
    world.select(group.request('web-1'))
    host = world.hosts[group.hosts['web-1']]
    world.scheduler.refuse(host.words(group.claims['web-1'], reason='no'))
    place = place_of(world, group, 'web-1')
    assert place.is_free_reservation and place.host == group.hosts['web-1']
    world.turn(seconds=1.5)  # for so long a scheduler gives the next one
    assert claim_ids(world.select(group.request('web'))) == [place.id]
    assert world.audit() == CLEAN


def test_a_server_that_comes_once_more_under_another_request_goes_where_it_was(world):
    group = plan(world)
    consumer = new_uuid()
    first = world.select(group.request('web', consumers=[consumer]))
    again = world.select(group.request('web', consumers=[consumer]))
    assert claim_ids(again) == claim_ids(first) == [group.claims['web-1']]
    ruled_out = {**SPEC, 'ignore_hosts': [group.hosts['web-1']]}
    elsewhere = world.select(group.request('web', consumers=[consumer], spec=ruled_out))
    assert claim_ids(elsewhere) == [group.claims['web-2']]
    assert place_of(world, group, 'web-1').is_free_reservation
    assert world.audit() == CLEAN


def test_a_host_that_is_closed_has_no_place_for_another_guest(world):
    group = plan(world)
    world.store.hosts.disable_host(group.hosts['web-1'], 'work on it', 'operator')
    world.turn(times=2)
    reason = refusal(world, group.request('web-1'))
    assert 'the place of web-1 cannot be had: its host is closed' in reason
    assert claim_ids(world.select(group.request('web'))) == [group.claims['web-2']]


def test_the_group_of_another_project_is_not_there(world):
    group = plan(world, project_id='ours')
    theirs = {**SPEC, 'project_id': 'theirs'}
    ours = {**SPEC, 'project_id': 'ours'}
    reason = refusal(world, group.request('web-1', spec=theirs))
    assert reason.startswith(f"request.spec.group: server group '{group.uuid}' was not found")
    own = group.request('web-1', spec=ours, only_project='theirs')
    assert refusal(world, own) == reason
    assert world.select(group.request('web-1', spec=ours)).outcome is Outcome.PLACED


def test_a_member_of_a_group_without_a_plan_is_refused_by_name(world):
    group = plan(world)
    other = group._replace(uuid=new_uuid())
    assert 'was not found' in refusal(world, other.request('web-1'))


def test_a_member_that_subgroups_know_needs_no_plan(world):
    rule = PolicySet(
        policies=[LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, of='web')],
        subgroups={'web': ['a', 'b', 'c']},
    )
    uuid, hosts = new_uuid(), []
    for member, policies in (('a', rule), ('b', None), ('c', rule)):
        world.turn(times=2)
        group = GroupRef(uuid=uuid, policies=policies, member=member)
        answer = world.select(a_request(group=group))
        assert answer.outcome is Outcome.PLACED, answer
        hosts += hosts_of(answer)
    assert len(set(hosts)) == 3
    stranger = GroupRef(uuid=uuid, policies=rule, member='d')
    assert 'has no plan' in refusal(world, a_request(group=stranger))
    assert world.audit() == CLEAN


def test_a_dry_run_says_which_place_it_would_be_and_takes_none(world):
    group = plan(world)
    answer = world.select(group.request('web', dry_run=True))
    assert (answer.outcome, hosts_of(answer)) == (Outcome.PLACED, [group.hosts['web-1']])
    assert answer.selections[0][0].claim_id is None
    assert 'the place of web-1 in revision 1' in answer.reason
    assert claim_ids(world.select(group.request('web'))) == [group.claims['web-1']]


def test_creates_of_one_batch_share_the_places_out(world):
    group = plan(world)
    handles = [world.ask(group.request('web')) for _ in range(4)]
    world.turn(times=3)
    answers = [world.replies.answers[handle] for handle in handles]
    placed = [answer for answer in answers if answer.outcome is Outcome.PLACED]
    assert sorted(claim_ids(answer)[0] for answer in placed) == sorted(
        group.claims[f'web-{i}'] for i in (1, 2, 3)
    )
    assert [answer.outcome for answer in answers].count(Outcome.REFUSED) == 1


def test_two_schedulers_give_no_place_twice(world):
    group = plan(world)
    other = world.another_scheduler()
    handles = [
        world.ask(group.request(name), by=by)
        for name in ('web', 'web-3')
        for by in (world.scheduler, other)
    ]
    world.turn(times=12)
    answers = [world.replies.answers[handle] for handle in handles]
    ids = [claim_ids(answer)[0] for answer in answers if answer.outcome is Outcome.PLACED]
    assert len(ids) == len(set(ids)) == 3
    assert world.audit() == CLEAN


def test_a_guest_that_moves_stays_the_member_that_it_is():
    world = World(hosts=6)
    group = plan(world)
    for _ in range(2):
        chosen = world.select(group.request('web')).selections[0][0]
        assert world.hosts[chosen.host].confirm(chosen.claim_id) == ['ok']
    assert chosen.claim_id == group.claims['web-2']
    world.turn(times=2)
    source, consumer = chosen.host, chosen.consumer
    # Nova passes on the hints of the boot, which named the description.
    move = group.request(
        'web', spec={**SPEC, 'purpose': 'migrate', 'ignore_hosts': [source]}, consumers=[consumer]
    )
    answer = world.select(move)
    assert answer.outcome is Outcome.PLACED, answer
    moved = world.store.claims.load_claim(claim_ids(answer)[0])
    assert (moved.member_name, moved.purpose) == ('web-2', 'migrate')
    assert moved.host not in group.hosts.values()
    assert world.hosts[moved.host].confirm(moved.id) == ['ok']
    words = world.hosts[source].words(chosen.claim_id)
    world.scheduler.release(words)
    world.turn(seconds=1.5)
    line = f'web-2 was created before, as consumer {consumer}'
    assert line in refusal(world, group.request('web-2'))
    assert claim_ids(world.select(group.request('web'))) == [group.claims['web-3']]
    assert world.audit() == CLEAN


TINY = {'resources': {'VCPU': 1}}
MORE = {'resources': {**SPEC['resources'], 'MEMORY_MB': 2048}}


def test_others_are_refused_unless_the_plan_allows_them(world):
    group = plan(world)
    assert 'has no member like it' in refusal(world, group.request(spec=TINY))


def test_others_are_placed_under_the_policies_where_the_plan_allows_them(world):
    group = plan(world, a_body(others='allowed'))
    answer = world.select(group.request(spec=TINY))
    # Each of the planned members has a host for itself: the policy holds for this one too.
    assert answer.outcome is Outcome.NO_VALID_HOST
    world = World(hosts=5)
    group = plan(world, a_body(others='allowed'))
    answer = world.select(group.request(spec=TINY))
    assert answer.outcome is Outcome.PLACED, answer
    assert not set(hosts_of(answer)) & set(group.hosts.values())
    for _ in range(3):
        assert world.select(group.request()).outcome is Outcome.PLACED
    assert world.select(group.request()).outcome is Outcome.NO_VALID_HOST
    assert world.audit() == CLEAN


def test_a_create_that_differs_is_planned_anew_where_the_plan_says_so(world):
    group = plan(world, a_body(on_difference='replan'))
    place = group.claims['web-1']
    answer = world.select(group.request('web-1', spec=MORE))
    assert answer.outcome is Outcome.PLACED, answer
    assert answer.reason.startswith(
        'planned anew, as the place of web-1 was planned otherwise: resources.MEMORY_MB: the plan '
        'has 1024, the request 2048; placed on '
    )
    claim = world.store.claims.load_claim(claim_ids(answer)[0])
    assert claim.id != place
    assert (claim.member_name, claim.lifecycle) == ('web-1', 'host')
    others = [host for name, host in group.hosts.items() if name != 'web-1']
    assert hosts_of(answer)[0] not in others
    assert world.store.claims.load_claim(place).state == 'released'
    assert len([claim for claim in world.store.claims.list_claims() if claim.is_live]) == 4
    line = f'web-1 is taken by consumer {claim.consumer}'
    assert world.hosts[claim.host].confirm(claim.id) == ['ok']
    line = f'web-1 was created before, as consumer {claim.consumer}'
    assert line in refusal(world, group.request('web-1'))
    assert world.audit() == CLEAN


def test_what_is_planned_anew_in_vain_leaves_the_place_as_it_was(world):
    group = plan(world, a_body(on_difference='replan'))
    huge = {'resources': {'VCPU': 1, 'MEMORY_MB': 2**30}}
    answer = world.select(group.request('web-1', spec=huge))
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert world.store.claims.load_claim(group.claims['web-1']).is_free_reservation
    assert claim_ids(world.select(group.request('web-1'))) == [group.claims['web-1']]


def test_a_server_that_may_not_be_where_its_place_is_is_planned_anew(world):
    group = plan(world, a_body(on_difference='replan'))
    ruled_out = {**SPEC, 'ignore_hosts': [group.hosts['web-1']]}
    answer = world.select(group.request('web-1', spec=ruled_out))
    assert answer.outcome is Outcome.NO_VALID_HOST  # each other host has another member
    world = World(hosts=6)
    group = plan(world, a_body(on_difference='replan'))
    ruled_out = {**SPEC, 'ignore_hosts': [group.hosts['web-1']]}
    answer = world.select(group.request('web-1', spec=ruled_out))
    assert answer.outcome is Outcome.PLACED
    assert hosts_of(answer)[0] not in group.hosts.values()
    assert world.store.claims.load_claim(group.claims['web-1']).state == 'released'
    assert world.audit() == CLEAN


def test_two_that_are_planned_anew_for_one_member_get_one_claim(world):
    group = plan(world, a_body(on_difference='replan'))
    other = world.another_scheduler()
    handles = [
        world.ask(group.request('web-1', spec=MORE), by=by)
        for by in (world.scheduler, world.scheduler, other)
    ]
    world.turn(times=12)
    outcomes = [world.replies.answers[handle].outcome for handle in handles]
    assert sorted(outcomes) == ['placed', 'refused', 'refused']
    assert world.audit() == CLEAN


# -- quotas -------------------------------------------------------------------------------
def limited(limits, **of_plan):
    """A world with a planned group, whose project ``p1`` has limits from then on."""
    world = World(hosts=4, store=sqlite_store)
    group = plan(world, **of_plan)
    world.store.quotas.set_quotas('p1', limits)
    world.turn(seconds=6, times=2)
    for host in world.hosts.values():
        host.report()
    world.turn()
    return world, group


def of_project(request, project='p1'):
    spec = msgspec.structs.replace(request.spec, project_id=project)
    return msgspec.structs.replace(request, spec=spec)


def test_a_project_at_its_limit_creates_all_members_that_it_has_places_for():
    world, group = limited({'live_claims': 4, 'class:VCPU': 5}, project_id='p1')
    for request in (group.request('web', count=3), group.request(spec=LARGE)):
        answer = world.select(of_project(request))
        assert answer.outcome is Outcome.PLACED, answer
        for selections in answer.selections:
            world.hosts[selections[0].host].confirm(selections[0].claim_id)
    usage = world.store.quotas.quota_usage(['p1'], ['VCPU'])['p1']
    assert (usage.live_claims, usage.amounts['VCPU']) == (4, 5)
    assert world.audit() == CLEAN


def test_creates_of_places_are_in_flight_as_any_are():
    world, group = limited({'claims_in_flight': 1}, project_id='p1')
    first = world.select(of_project(group.request('web-1')))
    assert first.outcome is Outcome.PLACED, first
    over = world.select(of_project(group.request('web-2')))
    assert over.reason == 'quota claims_in_flight: 1 of 1 used, 1 requested'
    assert world.store.claims.load_claim(
        group.claims['web-2']
    ).is_free_reservation  # for whoever comes later
    [selection] = first.selections[0]
    world.hosts[selection.host].confirm(selection.claim_id)
    assert world.select(of_project(group.request('web-2'))).outcome is Outcome.PLACED
    assert world.audit() == CLEAN


def test_a_member_that_is_planned_anew_needs_no_more_than_its_place_had():
    body = a_body(on_difference='replan')
    world, group = limited({'live_claims': 4, 'class:VCPU': 6}, body=body, project_id='p1')
    two = {'resources': {**SPEC['resources'], 'VCPU': 2}}
    answer = world.select(of_project(group.request('web-1', spec=two)))
    assert answer.outcome is Outcome.PLACED, answer
    over = world.select(of_project(group.request('web-2', spec=two)))
    assert over.reason == 'quota class:VCPU: 5 of 6 used, 2 requested'
    assert world.store.claims.load_claim(group.claims['web-2']).is_free_reservation
    assert world.audit() == CLEAN


def test_places_of_nobodys_plan_count_for_the_project_that_takes_them():
    world, group = limited({'live_claims': 1})
    first = world.select(of_project(group.request('web-1')))
    assert first.outcome is Outcome.PLACED, first
    over = world.select(of_project(group.request('web-2')))
    assert over.reason == 'quota live_claims: 1 of 1 used, 1 requested'
    # What was refused holds no place: another one gets it.
    assert world.select(group.request('web-2')).outcome is Outcome.PLACED
    assert world.audit() == CLEAN
