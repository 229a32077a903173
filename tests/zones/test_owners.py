# SPDX-License-Identifier: Apache-2.0
"""A zone above that is of another owner is a caller of its project, and no more than that."""

import uuid

import msgspec
import pytest

from gantt.core.messages.request import Destination, Flavor, GroupRef, Policy, Purpose
from gantt.core.records.decision import Outcome
from gantt.zones.model.messages import HostDigestsQuery, ZoneCapacityOf, scoped_id
from tests.world import a_request
from tests.zones.test_protocol import BY, OTHER, allocate, call, code, evaluate, tokens_of

SECRET = 'site-secret.room-7.rack-a'


@pytest.fixture
def east(zone):
    """A zone with three hosts; ``parent`` is of another owner, ``other`` of the same one."""
    started = zone('east').hosts(3, 8, location=SECRET, traits=['CUSTOM_OF_A_PROJECT'])
    for name in ('parent', 'other'):
        registration = {
            'identity': f'{name}-uuid',
            'project_id': f'of-{name}',
            'lease_seconds_max': 60,
            'trusted': name == 'other',
        }
        assert started.put(f'/v1/parents/{name}', registration).status_code == 200
    return started


def placed(east, request, by=BY):
    """Evaluated and allocated; the answer."""
    return allocate(east, request, tokens_of(evaluate(east, request, by)), by=by)[1]


def of_operators():
    """What only operators say -> a request that says it."""
    hint = {'query': ['["=", "$host", "east-3"]']}
    rule = Flavor(extra_specs={'rule:a': 'free.VCPU >= 8'})
    specs = {
        'force_hosts': {'force_hosts': ['east-1']},
        'destination': {'destination': Destination(host='east-1')},
        'ignore_hosts': {'ignore_hosts': ['east-1']},
        'hints.query': {'hints': hint},
        'flavor.extra_specs.rule:a': {'flavor': rule},
        'required_traits': {'required_traits': ['CUSTOM_OF_A_PROJECT']},
        'move_id': {'move_id': str(uuid.uuid4())},
        'group.hosts': {'group': GroupRef(uuid=str(uuid.uuid4()), hosts=['east-1'])},
        'purpose': {'purpose': Purpose.EVACUATE},
    }
    return {field: a_request(vcpu=1, **spec) for field, spec in specs.items()}


def test_only_one_of_the_same_owner_says_what_operators_may(east):
    offers = tokens_of(evaluate(east, a_request(vcpu=1)))
    for field, request in of_operators().items():
        refused = evaluate(east, request)
        assert (refused.status_code, code(refused)) == (403, 'gantt.zone_not_trusted'), field
        assert f'body.request.spec.{field}' in refused.text
        # Neither is it let in with what was offered for something else.
        assert allocate(east, request, offers)[1].status_code == 403
        assert evaluate(east, request, OTHER).status_code in (200, 404), field
    assert east.live() == 0


def test_a_parent_is_near_to_guests_of_its_own_only(east):
    victim = a_request(vcpu=1, project_id='tenant-t')
    host = east.select(victim).selections[0][0].host
    answers = [
        evaluate(east, a_request(vcpu=1, same_host=[consumer]))
        for consumer in (*victim.consumers, str(uuid.uuid4()))
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    texts = {answer.text.replace(victim.consumers[0], '') for answer in answers[:1]}
    assert not any(host in text for text in texts)
    # Of whom to keep away from, others are on no host that it may know of.
    answer = evaluate(east, a_request(vcpu=1, different_host=list(victim.consumers)))
    assert len(tokens_of(answer)) == 3
    mine = a_request(vcpu=1)
    assert placed(east, mine).status_code == 200
    near = a_request(vcpu=1, same_host=list(mine.consumers))
    assert placed(east, near).status_code == 200
    away = evaluate(east, a_request(vcpu=1, different_host=list(mine.consumers)))
    assert len(tokens_of(away)) == 2
    hosts = {
        claim.host
        for claim in east.store.claims.list_claims(state='reserved', limit=9)
        if claim.parent_key
    }
    assert len(hosts) == 1


def test_no_guest_of_others_is_placed_or_moved_by_a_parent(east):
    for purpose in (Purpose.CREATE, Purpose.LIVE_MIGRATE):
        victim = a_request(vcpu=1, project_id='tenant-t')
        assert east.select(victim).outcome is Outcome.PLACED
        spy = a_request(vcpu=1, consumers=victim.consumers, purpose=purpose)
        assert evaluate(east, spy).status_code == 404
    mine = a_request(vcpu=1)
    assert placed(east, mine).status_code == 200
    claim = next(
        claim
        for claim in east.store.claims.list_claims(state='reserved', limit=9)
        if claim.parent_key
    )
    assert east.confirm(claim.id) == 'ok'
    moved = a_request(vcpu=1, consumers=mine.consumers, purpose=Purpose.LIVE_MIGRATE)
    assert placed(east, moved).status_code == 200


@pytest.mark.parametrize('by', [BY, OTHER])
def test_a_group_of_a_parent_is_of_its_own_whatever_its_uuid(east, by):
    group = str(uuid.uuid4())
    body = {'uuid': group, 'name': 'g', 'policy': 'anti-affinity', 'project_id': 'tenant-t'}
    assert east.post('/v1/server-groups', body).is_success
    rule = GroupRef(uuid=group, policy=Policy.ANTI_AFFINITY)
    for _ in range(3):
        assert placed(east, a_request(vcpu=1, group=rule), by).status_code == 200
    full = a_request(vcpu=1, group=rule)
    assert evaluate(east, full, by).json()['outcome'] == 'no_valid_host'
    for _ in range(3):
        own = east.select(a_request(vcpu=1, project_id='tenant-t', group=rule))
        assert own.outcome is Outcome.PLACED, own.reason
    assert len(east.store.groups.load_group(group).members) == 3
    # Without its rule it is a group that nobody knows, though there is one of that uuid.
    assert evaluate(east, a_request(vcpu=1, group=GroupRef(uuid=group)), by).is_success
    unknown = a_request(vcpu=1, group=GroupRef(uuid=str(uuid.uuid4())))
    assert evaluate(east, unknown, by).status_code == 404
    spec = msgspec.to_builtins(a_request(vcpu=1))
    spec['spec']['hints'] = {'group': [group]}
    hinted = call(east, 'POST', '/evaluations', {'request': spec}, by)
    assert hinted.json()['outcome'] == 'no_valid_host', 'its own group is full'


def test_two_parents_with_one_uuid_have_two_groups(east):
    rule = GroupRef(uuid=str(uuid.uuid4()), policy=Policy.ANTI_AFFINITY)
    for by in (BY, OTHER):
        for _ in range(3):
            assert placed(east, a_request(vcpu=1, group=rule), by).status_code == 200


def test_evaluations_count_as_requests_of_the_project(east):
    assert east.put('/v1/quotas/of-parent', {'limits': {'requests_per_minute': 2}}).is_success
    east.insights.quotas.read()
    codes = [evaluate(east, a_request(vcpu=1)).status_code for _ in range(10)]
    assert codes.count(200) <= 3 and codes.count(429) >= 7


def test_the_default_quotas_bind_a_parent_of_another_owner(east):
    assert east.put('/v1/quotas/default', {'limits': {'live_claims': 1}}).is_success
    east.scheduler.quotas.read()
    first, second = a_request(vcpu=1), a_request(vcpu=1)
    offers = [tokens_of(evaluate(east, request, BY)) for request in (first, second)]
    assert allocate(east, first, offers[0], by=BY)[1].status_code == 200
    refused = allocate(east, second, offers[1], by=BY)[1]
    assert code(refused) == 'gantt.quota_exceeded'
    assert tokens_of(evaluate(east, a_request(vcpu=1), BY)) == [], 'who asks now is offered nothing'


def test_what_a_zone_tells_of_itself_follows_trust(east):
    questions = {
        'info': lambda by: call(east, 'GET', '', by=by),
        'summary': lambda by: call(east, 'GET', '/summary', by=by),
        'nothing fits': lambda by: evaluate(east, a_request(vcpu=100), by),
        'some fit': lambda by: evaluate(east, a_request(vcpu=1), by),
    }
    answers = {name: (ask(BY), ask(OTHER)) for name, ask in questions.items()}
    for name, (theirs, ours) in answers.items():
        assert theirs.status_code == ours.status_code == 200, name
        assert 'secret' not in theirs.text and 'CUSTOM_OF' not in theirs.text
    assert 'secret' in answers['info'][1].text
    assert answers['summary'][0].json()['fits'] == {} != answers['summary'][1].json()['fits']
    for name, outcome in (('nothing fits', 'no_valid_host'), ('some fit', 'placed')):
        theirs, ours = (response.json() for response in answers[name])
        assert theirs['outcome'] == ours['outcome'] == outcome
        assert (theirs['hosts'], theirs['survivors'], theirs['removed']) == (0, 0, {})
        assert ours['hosts'] == 3
    marks = HostDigestsQuery(salt='00' * 32)
    room = ZoneCapacityOf(request=a_request(vcpu=1))
    for path, body in (('/host-digests', marks), ('/capacity', room)):
        assert call(east, 'POST', path, body).status_code == 403
        assert call(east, 'POST', path, body, OTHER).status_code == 200
    key, _ = allocate(east, *(r := a_request(vcpu=1), tokens_of(evaluate(east, r))))
    explained = call(east, 'GET', f'/explanations/{key}')
    assert explained.json()['outcome'] == 'placed'
    assert (explained.json()['hosts'], explained.json()['removed']) == (0, {})


def test_keys_of_a_parent_name_no_request_of_others(east):
    mine = a_request(vcpu=2)
    ended = call(east, 'DELETE', f'/allocations/{mine.request_id}')
    assert ended.json()['state'] == 'cancelled'
    assert east.select(mine).outcome is Outcome.PLACED, 'that was another one'
    for method in ('GET', 'DELETE'):
        for by in (BY, OTHER):
            call(east, method, f'/allocations/{mine.request_id}', by=by)
    assert east.store.requests.load_request(mine.request_id).state == 'placed'
    assert call(east, 'GET', f'/allocations/{mine.request_id}').json()['state'] == 'cancelled'
    # As a key it is free still: for the other one.
    request = a_request(vcpu=2)
    offers = tokens_of(evaluate(east, request, OTHER))
    key, response = allocate(east, request, offers, key=str(uuid.uuid4()), by=OTHER)
    assert response.json()['key'] == key
    assert east.store.requests.load_request(scoped_id('other', key)).state == 'placed'
    (change,) = call(east, 'GET', '/changes', by=OTHER).json()['claims']
    assert change['key'] == key
