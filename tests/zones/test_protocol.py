# SPDX-License-Identifier: Apache-2.0
"""What a zone says to zones above: keys, tokens, who is let in, and that nothing leaks."""

import itertools
import uuid

import httpx2 as httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.messages.request import OfferedPlace, Purpose
from gantt.core.records.decision import Outcome
from gantt.zones.http.seals import SealedAlternate, SealedClaim, SealedOffer, TokenSealer
from gantt.zones.model.messages import ZoneAllocation, ZoneEvaluation, scoped_id
from gantt.zones.ports import ZoneIdentity
from tests.world import a_request
from tests.zones.tree import VERSION

BY = {'X-User-Id': 'parent-uuid', **VERSION}
OTHER = {'X-User-Id': 'other-uuid', **VERSION}


@pytest.fixture
def east(zone):
    """A zone with two hosts that two others may ask."""
    started = zone('east').hosts(2, 8)
    for name in ('parent', 'other'):
        registration = {
            'identity': f'{name}-uuid',
            'project_id': f'of-{name}',
            'lease_seconds_max': 60,
            'trusted': True,
        }
        assert started.put(f'/v1/parents/{name}', registration).status_code == 200
    return started


ORDERS = itertools.count(1)


def call(zone, method, path, body=None, by=BY):
    content = None if body is None else msgspec.json.encode(body)
    headers = {**by, 'Content-Type': 'application/json'} if body is not None else by
    return httpx.request(method, f'{zone.url}/zone/v1{path}', content=content, headers=headers)


def evaluate(zone, request, by=BY, **said):
    return call(zone, 'POST', '/evaluations', ZoneEvaluation(request=request, **said), by)


def allocate(zone, request, tokens, key=None, by=BY, evaluated=None):
    key = key or str(uuid.uuid4())
    part = msgspec.structs.replace(request, request_id=key)
    body = ZoneAllocation(
        request=part,
        evaluated=evaluated or request.request_id,
        tokens=list(tokens),
        order=next(ORDERS),
    )
    return key, call(zone, 'PUT', f'/allocations/{key}', body, by)


def tokens_of(answer):
    assert answer.status_code == 200, answer.text
    return [offer['token'] for offer in answer.json()['offers']]


def code(answer):
    return answer.json()['errors'][0]['code']


def test_a_zone_says_who_it_is_to_who_is_registered(east):
    answer = call(east, 'GET', '').json()
    assert (answer['uuid'], answer['name'], answer['lease_seconds_max']) == (
        east.uuid,
        'parent',
        60,
    )
    nobody = call(east, 'GET', '', by={'X-User-Id': 'nobody', **VERSION})
    assert (nobody.status_code, code(nobody)) == (403, 'gantt.forbidden')
    assert nobody.headers['Gantt-Zone'] == east.uuid
    east.put('/v1/parents/parent', {'enabled': False})
    assert call(east, 'GET', '').status_code == 403


def test_an_evaluation_writes_nothing_and_names_no_host(east):
    before = east.written()
    answer = evaluate(east, a_request(vcpu=2), want=5)
    assert len(tokens_of(answer)) == 2
    assert 'east-1' not in answer.text
    assert answer.json()['hosts'] == 2
    assert east.written() == before


def test_an_allocation_is_made_once_for_a_key(east):
    request = a_request(vcpu=2)
    tokens = tokens_of(evaluate(east, request))
    key, first = allocate(east, request, tokens)
    _, again = allocate(east, request, tokens, key)
    assert first.status_code == again.status_code == 200
    ids = [[member['claim_id'] for member in answer.json()['members']] for answer in (first, again)]
    assert ids[0] == ids[1] and east.live() == 1
    assert call(east, 'GET', f'/allocations/{key}').json()['state'] == 'placed'
    (claim,) = east.store.claims.list_claims(state='reserved', limit=5)
    assert (claim.project_id, claim.parent_key) == ('of-parent', 'parent')
    assert claim.lease_until - claim.created_at <= 61


def test_another_body_under_a_key_is_refused(east):
    request, other = a_request(vcpu=2), a_request(vcpu=3)
    key, _ = allocate(east, request, tokens_of(evaluate(east, request)))
    _, answer = allocate(east, other, tokens_of(evaluate(east, other)), key)
    assert code(answer) == 'gantt.request_id_reused'
    assert east.live() == 1


def test_what_comes_after_a_delete_claims_nothing(east):
    request = a_request()
    tokens = tokens_of(evaluate(east, request))
    key = str(uuid.uuid4())
    assert call(east, 'DELETE', f'/allocations/{key}').json()['state'] == 'cancelled'
    _, answer = allocate(east, request, tokens, key)
    assert (answer.status_code, code(answer)) == (409, 'gantt.request_cancelled')
    key, _ = allocate(east, request, tokens)
    assert call(east, 'DELETE', f'/allocations/{key}').status_code == 200
    assert call(east, 'DELETE', f'/allocations/{key}').status_code == 200
    assert call(east, 'GET', f'/allocations/{key}').json()['state'] == 'cancelled'
    assert east.live() == 0
    assert call(east, 'GET', f'/allocations/{uuid.uuid4()}').status_code == 404


def test_one_parent_sees_nothing_of_another(east):
    request = a_request()
    tokens = tokens_of(evaluate(east, request))
    key, _ = allocate(east, request, tokens)
    assert call(east, 'GET', f'/allocations/{key}', by=OTHER).status_code == 404
    ended = call(east, 'DELETE', f'/allocations/{key}', by=OTHER)
    assert ended.json()['state'] == 'cancelled', 'of that name it has none, and never will'
    _, stolen = allocate(east, request, tokens, by=OTHER)
    assert (stolen.status_code, code(stolen)) == (410, 'gantt.token_refused')
    assert east.live() == 1
    theirs = call(east, 'GET', '/changes', by=OTHER).json()['claims']
    ours = call(east, 'GET', '/changes').json()['claims']
    assert (theirs, [allocation['key'] for allocation in ours]) == ([], [key])


@pytest.mark.parametrize('purpose', [Purpose.CREATE, Purpose.LIVE_MIGRATE])
@pytest.mark.parametrize('whose', ['another parent', 'this zone'])
def test_a_parent_claims_for_no_consumer_of_others(east, whose, purpose):
    mine = a_request(vcpu=2)
    if whose == 'this zone':
        assert east.select(mine).outcome is Outcome.PLACED
    else:
        allocate(east, mine, tokens_of(evaluate(east, mine)))
    if purpose is Purpose.LIVE_MIGRATE:
        (claim,) = east.store.claims.list_claims(state='reserved', limit=5)
        assert east.confirm(claim.id) == 'ok'
    before = [(claim.id, claim.state) for claim in east.store.claims.list_claims(limit=5)]
    theirs = a_request(vcpu=2, consumers=mine.consumers, purpose=purpose)
    _, answer = allocate(east, theirs, tokens_of(evaluate(east, theirs, OTHER)), by=OTHER)
    assert (answer.status_code, code(answer)) == (400, 'gantt.refused')
    assert mine.consumers[0] in answer.text and 'parent-uuid' not in answer.text
    assert [(claim.id, claim.state) for claim in east.store.claims.list_claims(limit=5)] == before


def test_a_token_is_good_for_its_request_alone(east):
    request = a_request()
    tokens = tokens_of(evaluate(east, request))
    larger = msgspec.structs.replace(
        request, spec=msgspec.structs.replace(request.spec, resources={'VCPU': 7})
    )
    for other_request, evaluated in ((larger, None), (request, str(uuid.uuid4()))):
        _, answer = allocate(east, other_request, tokens, evaluated=evaluated)
        assert code(answer) == 'gantt.token_refused'
    assert east.live() == 0


def test_an_offer_of_a_host_that_has_registered_anew_is_gone(east):
    request = a_request()
    tokens = tokens_of(evaluate(east, request))
    for name in ('east-1', 'east-2'):
        east.host(name)
    east.insights.reload_soon()
    east.insights.table()
    _, answer = allocate(east, request, tokens)
    assert (answer.status_code, code(answer)) == (409, 'gantt.offer_gone')


def test_an_offer_that_others_have_taken_is_gone(east):
    request = a_request(vcpu=8)
    tokens = tokens_of(evaluate(east, request))
    for _ in range(2):
        assert east.select(a_request(vcpu=8)).selections
    _, answer = allocate(east, request, tokens)
    assert (answer.status_code, code(answer)) == (409, 'gantt.offer_gone')


def test_who_comes_later_is_placed_where_it_is_still_as_it_was_offered(east):
    requests = [a_request(vcpu=2, ram=64) for _ in range(2)]
    offered = [tokens_of(evaluate(east, request)) for request in requests]
    assert [len(tokens) for tokens in offered] == [2, 2]
    keys = []
    for request, tokens in zip(requests, offered, strict=True):
        key, answer = allocate(east, request, tokens)
        assert answer.status_code == 200, answer.text
        keys.append(key)
        east.insights.table()  # as the next evaluation reads it
    ids = [scoped_id('parent', key) for key in keys]
    hosts = [
        claim.host for request_id in ids for claim in east.insights.request(request_id)[0].claims
    ]
    assert sorted(hosts) == ['east-1', 'east-2']


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('parent', 'other'),
        ('lifecycle', 'plan'),
        ('places', [{'hosts': ['east-1']}]),
        ('only_project', 'of-other'),
    ],
)
def test_a_parent_may_not_say_what_is_not_its_to_say(east, field, value):
    body = msgspec.to_builtins(ZoneEvaluation(request=a_request()))
    body['request'][field] = value
    answer = call(east, 'POST', '/evaluations', body)
    assert answer.status_code == 400
    assert field in answer.json()['errors'][0]['detail']


def test_a_parent_with_a_quota_gets_no_more_than_that(east):
    assert east.put('/v1/quotas/of-parent', {'limits': {'live_claims': 1}}).status_code == 200
    east.scheduler.quotas.read()
    request, another = a_request(), a_request()
    tokens = tokens_of(evaluate(east, another))
    allocate(east, request, tokens_of(evaluate(east, request)))
    _, answer = allocate(east, another, tokens)
    assert code(answer) == 'gantt.quota_exceeded'
    # It is told so when it asks, too: nothing is offered.
    assert tokens_of(evaluate(east, a_request())) == []
    theirs = a_request()
    _, answer = allocate(east, theirs, tokens_of(evaluate(east, theirs, by=OTHER)), by=OTHER)
    assert answer.status_code == 200


def test_a_loop_has_an_end(zone):
    one, two, three = (zone(name) for name in ('one', 'two', 'three'))
    three.hosts(1)
    one.above(two)
    two.above(three)
    three.above(one)
    answer = one.select(a_request(budget_ms=8000))
    assert [chosen.child for chosen, *_ in answer.selections] == ['two']
    assert three.live() == 1


# -- what is sealed ----------------------------------------------------------------------
IDENTITY = ZoneIdentity(uuid='z', secret=b'k' * 32, incarnation=7)


def test_a_seal_is_opened_by_its_zone_for_its_parent_in_its_time():
    seals = TokenSealer(IDENTITY)
    token = seals.seal(SealedClaim('claim'), 'parent', 100.0)
    assert seals.open_host(token, 'parent', 101.0) == SealedClaim('claim')
    assert token != seals.seal(SealedClaim('claim'), 'parent', 100.0)
    back = msgspec.structs.replace(IDENTITY, incarnation=8)
    stranger = msgspec.structs.replace(IDENTITY, secret=b'x' * 32)
    alternate = SealedAlternate('guest', host='cmp-1')
    assert seals.open_host(seals.seal(alternate, 'parent', 100.0), 'parent', 101.0) == alternate
    offer = seals.seal(SealedOffer(OfferedPlace(), 'e', 'd', []), 'parent', 100.0)
    for wrong in (
        lambda: seals.open_host(token, 'other', 101.0),
        lambda: seals.open_offer(token, 'parent', 101.0),
        lambda: seals.open_host(offer, 'parent', 101.0),
        lambda: seals.open_host(token, 'parent', 100.0 + 86_401),
        lambda: TokenSealer(back).open_host(token, 'parent', 101.0),
        lambda: TokenSealer(stranger).open_host(token, 'parent', 101.0),
    ):
        with pytest.raises(exceptions.TokenRefused):
            wrong()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(max_size=200), st.binary(max_size=200)), st.integers(0, 10_000))
def test_nothing_else_is_taken_for_a_token(text, at):
    seals = TokenSealer(IDENTITY)
    token = seals.seal(SealedClaim('claim'), 'parent', 100.0)
    if isinstance(text, bytes):  # a token of which a part is another
        at %= len(token)
        text = token[:at] + text.decode('latin-1') + token[at + len(text) :]
    if text == token:
        return
    with pytest.raises(exceptions.TokenRefused):
        seals.open_host(text, 'parent', 101.0)
