# SPDX-License-Identifier: Apache-2.0
"""What a zone above or below may do wrong: each has an answer of its own, and changes nothing."""

import uuid

import httpx2 as httpx
import msgspec
import pytest

from gantt.core.messages.request import GroupRef, Policy
from gantt.core.records.decision import Outcome
from gantt.zones.http.seals import TokenSealer
from gantt.zones.model.messages import ZoneAllocation, ZoneEvaluation, ZoneRecord
from gantt.zones.service.offers.evaluate import via_digest
from tests.builders import uuid_of
from tests.world import a_request
from tests.zones.other_side import Liar
from tests.zones.test_protocol import allocate, call, code, evaluate, tokens_of
from tests.zones.tree import VERSION


@pytest.fixture
def east(zone):
    """A zone with two hosts that another may ask."""
    started = zone('east').hosts(2, 8)
    registration = {
        'identity': 'parent-uuid',
        'project_id': 'of-parent',
        'lease_seconds_max': 60,
        'trusted': True,
    }
    assert started.put('/v1/parents/parent', registration).status_code == 200
    return started


def test_each_token_that_is_not_good_is_refused_alike_and_changes_nothing(east):
    request = a_request(vcpu=2)
    good = tokens_of(evaluate(east, request))[0]
    now = east.insights.cache.database_now
    identity = east.around.directory.identity()
    offer = TokenSealer(identity).open_offer(good, 'parent', now)
    other = msgspec.structs.replace(identity, secret=b'x' * 32)
    before = msgspec.structs.replace(identity, incarnation=identity.incarnation - 1)
    for_others = msgspec.structs.replace(offer, members=b'')
    middle = len(good) // 2
    changed = 'A' if good[middle] != 'A' else 'B'
    bad = {
        'expired': TokenSealer(identity).seal(offer, 'parent', now - 3600),
        'altered': good[:middle] + changed + good[middle + 1 :],
        'cut': good[:-10],
        'of another parent': TokenSealer(identity).seal(offer, 'other', now),
        'of another zone': TokenSealer(other).seal(offer, 'parent', now),
        'of a database of before': TokenSealer(before).seal(offer, 'parent', now),
        'for other consumers': TokenSealer(identity).seal(for_others, 'parent', now),
        'nonsense': 'g1.AAAA',
    }
    written = east.written()
    answers = {}
    for name, token in bad.items():
        _, answer = allocate(east, request, [token])
        answers[name] = (answer.status_code, code(answer), answer.json()['errors'][0]['detail'])
    assert len(set(answers.values())) == 1, answers
    assert answers['expired'][:2] == (410, 'gantt.token_refused')
    assert east.written() == written
    # Used again, it is good for its consumers alone, who have a claim once.
    assert allocate(east, request, [good])[1].status_code == 200
    twice = msgspec.structs.replace(request, consumers=[uuid_of('another')])
    _, answer = allocate(east, twice, [good])
    assert code(answer) == 'gantt.token_refused'
    allocate(east, request, [good])
    assert east.live() == 1


def test_what_a_parent_says_wrong_has_its_own_answer_and_changes_nothing(east):
    request = a_request(vcpu=2)
    tokens = tokens_of(evaluate(east, request))
    written = east.written()
    unknown = {'OpenStack-API-Version': 'scheduler 1.999', 'X-User-Id': 'parent-uuid'}
    body = msgspec.to_builtins(ZoneEvaluation(request=request))
    looped = msgspec.structs.replace(request, via=[via_digest(request.request_id, east.uuid)])
    ruled = msgspec.to_builtins(ZoneEvaluation(request=request))
    ruled['request']['spec']['group'] = {'uuid': uuid_of('group'), 'policy': 'same-colour'}
    more = msgspec.to_builtins(ZoneEvaluation(request=request))
    more['request']['spec']['of_tomorrow'] = 1
    key = str(uuid.uuid4())
    spent = msgspec.structs.replace(request, budget_ms=1, request_id=key)
    allocation = ZoneAllocation(request=spent, evaluated=request.request_id, tokens=tokens, order=1)
    responses = {
        'version': call(east, 'POST', '/evaluations', body, by=unknown),
        'rule': call(east, 'POST', '/evaluations', ruled),
        'field': call(east, 'POST', '/evaluations', more),
        'loop': evaluate(east, looped),
        'key': call(east, 'PUT', f'/allocations/{uuid.uuid4()}', allocation),
        'no key': call(east, 'PUT', '/allocations/nonsense', allocation),
        'revision': call(east, 'GET', '/changes?since=nan'),
        'nobody': call(east, 'GET', '', by={**VERSION, 'X-User-Id': 'nobody'}),
    }
    assert {
        name: (response.status_code, code(response)) for name, response in responses.items()
    } == {
        'version': (406, 'gantt.unsupported_version'),
        'rule': (400, 'gantt.invalid_message'),
        'field': (400, 'gantt.invalid_message'),
        'loop': (508, 'gantt.zone_loop'),
        'key': (400, 'gantt.invalid_message'),
        'no key': (400, 'gantt.invalid_message'),
        'revision': (400, 'gantt.invalid_message'),
        'nobody': (403, 'gantt.forbidden'),
    }
    assert 'policy' in responses['rule'].text and 'of_tomorrow' in responses['field'].text
    assert east.written() == written
    answer = call(east, 'PUT', f'/allocations/{key}', allocation)
    assert answer.status_code in (200, 504), answer.text
    assert east.live() == (answer.status_code == 200)


def test_a_parent_that_floods_is_turned_away_and_what_it_has_stays(east, monkeypatch):
    request = a_request(vcpu=2)
    tokens = tokens_of(evaluate(east, request))
    key, _ = allocate(east, request, tokens)
    east.put('/v1/quotas/of-parent', {'limits': {'requests_per_minute': 2}})
    east.scheduler.quotas.read()
    responses = []
    for _ in range(5):
        another = a_request(vcpu=1)
        answer = evaluate(east, another)
        if answer.status_code == 200:
            answer = allocate(east, another, tokens_of(answer))[1]
        responses.append(answer)
    assert {response.status_code for response in responses} == {200, 429}, [
        response.text for response in responses
    ]
    turned_away = [response for response in responses if response.status_code == 429]
    assert all(int(response.headers['Retry-After']) > 0 for response in turned_away)
    assert call(east, 'GET', f'/allocations/{key}').json()['state'] == 'placed'
    assert east.live() == 1 + len(responses) - len(turned_away)
    assert east.select(a_request()).outcome is Outcome.PLACED  # others are served


# -- below -------------------------------------------------------------------------------
OFFER = {'token': 't', 'level': 0, 'tier': 1e15, 'score': 1.0, 'fits': 1000}
PLACED = {'state': 'placed', 'level': 0, 'given_up': []}


def members(body, **changes):
    """An allocation as a zone answers it, with something else."""
    request = body['request']
    allocated = [
        {
            'consumer': consumer,
            'claim_id': str(uuid.uuid4()),
            'sealed_host': 'sealed',
            'lease_seconds': 60.0,
            **changes,
        }
        for consumer in request['consumers']
    ]
    return {**PLACED, 'key': request['request_id'], 'members': allocated}


def without(said, field):
    """An answer whose last member lacks a field."""
    *others, last = said['members']
    return {**said, 'members': [*others, {k: value for k, value in last.items() if k != field}]}


LIES = {
    'it refuses what it offers': lambda body: (409, {'errors': [{'code': 'gantt.offer_gone'}]}),
    'it has no words for it': lambda body: (400, {'errors': 'no'}),
    'it leaves out members': lambda body: (200, {**members(body), 'members': []}),
    'it leaves out one member': lambda body: (
        200,
        {**members(body), 'members': members(body)['members'][:1]},
    ),
    'it leaves out what was claimed': lambda body: (200, without(members(body), 'claim_id')),
    'it leaves out the lease': lambda body: (200, without(members(body), 'lease_seconds')),
    'it leaves out its state': lambda body: (
        200,
        {k: value for k, value in members(body).items() if k != 'state'},
    ),
    'it places another one': lambda body: (200, members(body, consumer=uuid_of('another'))),
    'it answers for another key': lambda body: (200, {**members(body), 'key': uuid_of('key')}),
    'it has cancelled it': lambda body: (200, {**members(body), 'state': 'cancelled'}),
    'it has one claim for all': lambda body: (200, members(body, claim_id=uuid_of('one'))),
    'its claim is no claim': lambda body: (200, members(body, claim_id='x' * 5000)),
    'it says nothing that can be read': lambda body: (200, ['?']),
}


def test_a_zone_that_lies_costs_a_call_and_never_a_claim(zone):
    top, west = zone('top'), zone('west').hosts(4, 64)
    top.above(west)
    lie = {}

    def answer(method, path, body):
        if path.startswith('/evaluations'):
            score_set = west.around.score_set()
            evaluated = {'outcome': 'placed', 'offers': [OFFER], 'hosts': 9, 'score_set': score_set}
            return 200, evaluated
        if path.startswith('/changes'):
            return 200, {'incarnation': 1, 'revision': 1.0, 'claims': []}
        if method == 'PUT':
            return lie['is'](body)
        if method == 'GET' and path.startswith('/allocations'):
            return 404, {'errors': [{'code': 'gantt.not_found'}]}
        return 200, {'key': 'k', 'state': 'cancelled'}

    with Liar(str(uuid.uuid4()), answer) as liar:
        record = msgspec.structs.replace(
            top.store.zones.child_zones()[0], uuid=liar.uuid, name='liar', url=liar.url
        )
        top.store.zones.save_child_zone(record)
        top.zones.directory.refresh()
        for n, (name, lies) in enumerate(LIES.items(), 1):
            lie['is'] = lies
            liar.heard.clear()
            # Else nothing of it is taken any more.
            top.zones.breaker._honoured_shares.clear()
            answer = top.select(a_request(2, vcpu=1, budget_ms=20_000))
            assert answer.outcome is Outcome.PLACED, (name, answer.reason)
            where = {selection[0].child for selection in answer.selections}
            assert where == {'west'}, name
            assert west.live() == 2 * n
            puts = [path for method, path in liar.heard if method == 'PUT']
            ended = [path for method, path in liar.heard if method == 'DELETE']
            assert len(puts) == 1, 'one call for one lie'
            if name not in ('it refuses what it offers', 'it has no words for it'):
                assert puts == ended[:1], name
        assert top.store.child_claims.find(child=liar.uuid) == []


def less(body, *fields):
    return {k: value for k, value in body.items() if k not in fields}


def test_a_zone_that_says_less_than_it_owes_is_named_and_nothing_is_taken_as_done(zone):
    top, answers, own = zone('top'), {}, uuid.uuid4()
    digest, standing = top.around.score_set(), top.zones.breaker
    whole = {'outcome': 'placed', 'offers': [OFFER], 'hosts': 9, 'score_set': digest, 'fits': 1000}

    def answer(method, path, body):
        if path.startswith('/evaluations'):
            return 200, answers['evaluated']
        if path.startswith('/changes'):
            return 200, answers['changes']
        if method == 'PUT':
            return 200, members(body)
        if method == 'DELETE':
            return answers['ended']
        return 404, {'errors': [{'code': 'gantt.not_found'}]}

    with Liar(str(own), answer) as liar:
        record = ZoneRecord(uuid=liar.uuid, name='liar', url=liar.url, trusted=True)
        top.store.zones.save_child_zone(record)
        top.zones.directory.refresh()
        answers['changes'] = {'incarnation': 1, 'revision': 1.0, 'claims': []}
        unread = [less(whole, 'outcome'), *({**whole, 'offers': [less(OFFER, f)]} for f in OFFER)]
        for answers['evaluated'] in unread:
            standing.note_answer(liar.uuid)  # else it is asked seldom
            answer = top.select(a_request(2, vcpu=1, budget_ms=3000))
            assert answer.outcome is Outcome.UNKNOWN and 'liar' in answer.reason, answer
        standing.note_answer(liar.uuid)
        # So many as it offers, and no more: here two are to be together.
        for offers, fits in (([], 0), ([{**OFFER, 'fits': 1}], 1)):
            answers['evaluated'] = {**whole, 'offers': offers, 'fits': fits}
            answer = top.select(a_request(2, vcpu=1, budget_ms=3000))
            assert answer.outcome is not Outcome.PLACED, answer
        assert not [call for call in liar.heard if call[0] == 'PUT']
        assert top.store.child_claims.find() == [] and not top.on_their_way()
        # What it does not speak of is there still, and ends once it says so.
        answers['evaluated'], request = whole, a_request(2, vcpu=1)
        assert top.select(request).outcome is Outcome.PLACED
        answers['changes'] = {'incarnation': 1, 'revision': 2.0, 'claims': []}
        answers['ended'] = 200, {'state': 'cancelled'}
        top.cancel(request.request_id)
        assert [row.state for row in top.store.child_claims.find()] == [
            'reserved',
            'reserved',
        ]
        again = a_request(consumers=request.consumers[:1], vcpu=1)
        answer = top.select(again)
        assert answer.outcome is not Outcome.PLACED, answer
        assert len(top.store.child_claims.find()) == 2


def test_an_error_that_nobody_expects_of_one_zone_costs_the_others_nothing(zone, monkeypatch):
    top, east, west = zone('top'), zone('east').hosts(1, 8), zone('west').hosts(1, 8)
    top.above(east, west)
    calls = top.zones.calls
    evaluate_there = calls.evaluate

    def fails(asked, *given):
        if asked.name == 'east':
            raise ZeroDivisionError('not foreseen')
        return evaluate_there(asked, *given)

    monkeypatch.setattr(calls, 'evaluate', fails)
    placed = top.select(a_request())
    assert placed.outcome is Outcome.PLACED, placed.reason
    assert placed.selections[0][0].child == 'west'
    refused = top.select(a_request(vcpu=100))
    assert refused.outcome is Outcome.UNKNOWN
    assert 'east' in refused.reason and 'not foreseen' not in refused.reason


def test_a_zone_where_this_one_is_not_known_is_not_an_answer_of_no_room(zone):
    top, east = zone('top'), zone('east').hosts(1, 8)
    top.above(east)
    east.put('/v1/parents/top', {'enabled': False})
    written = east.written()
    answer = top.select(a_request(budget_ms=4000))
    assert answer.outcome is Outcome.UNKNOWN
    assert 'east' in answer.reason
    assert east.written() == written


def test_a_zone_that_is_removed_while_claims_live_there_stays(zone):
    top, east = zone('top'), zone('east').hosts(1, 8)
    top.above(east)
    finish, request = top.store.zone_requests.finish_request, a_request()
    assert top.select(request).outcome is Outcome.PLACED
    removed = httpx.delete(f'{top.url}/v1/zones/east', headers=VERSION)
    assert removed.status_code == 409
    assert [child.name for child in top.store.zones.child_zones()] == ['east']
    top.client.cancel_claims(request.request_id)

    # Removed between the claim and the answer: nobody is answered with what nobody follows.
    def removes(*args):
        top.store.zones.remove_child_zone(east.uuid)
        return finish(*args)

    top.store.zone_requests.finish_request = removes
    assert top.select(a_request(budget_ms=3000)).outcome is not Outcome.PLACED
    assert top.store.child_claims.find() == []


def test_a_hard_rule_that_no_zone_below_can_hold_is_no_claim(zone):
    top, east = zone('top'), zone('east').hosts(1, 8)
    top.above(east)
    group = GroupRef(uuid=uuid_of('group'), policy=Policy.ANTI_AFFINITY)
    answer = top.select(a_request(2, group=group))
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert east.live() == 0
