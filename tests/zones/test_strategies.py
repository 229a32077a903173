# SPDX-License-Identifier: Apache-2.0
"""Which zones below are queried: by strategy, by what they say in advance, by how they behave."""

import collections
import concurrent.futures
import sys

import httpx2 as httpx
import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.request import GroupRef, Policy, Purpose
from gantt.core.records.decision import Outcome
from gantt.db.schema import models
from gantt.zones.model.messages import SHAPES_MAX
from gantt.zones.service.offers import evaluate
from tests.builders import uuid_of
from tests.world import a_request
from tests.zones.test_over_zones import children_of
from tests.zones.tree import VERSION, until

#: All zones are compared, however many there are.
ALL = ('BruteForce',)


def counted(top):
    """Zone -> evaluations asked of it, from now on."""
    calls, counts = top.zones.calls, collections.Counter()
    evaluate = calls.evaluate

    def noted(record, *args):
        counts[record.name] += 1
        return evaluate(record, *args)

    calls.evaluate = noted
    return counts


def expires(zone, claim_id):
    """When the lease of a claim ends."""
    with zone.store.database.engine.connect() as connection:
        query = models.claims.select().where(models.claims.c.id == claim_id)
        return connection.execute(query).one().expires_at


def read_summaries(top):
    """What the zones below say in advance is known from now on."""
    parts = top.zones
    for record in parts.directory.children():
        parts.summaries.read(record)
    return parts.summaries


def test_facts_rule_a_zone_out_until_they_change(zone, monkeypatch):
    monkeypatch.setattr(evaluate, 'FACTS_SECONDS', 0.0)
    top, east, west = zone('top'), zone('east').hosts(1), zone('west').hosts(1)
    top.above(east, west)
    west.report('west-1', traits=['CUSTOM_GPU'])
    read_summaries(top)
    calls = counted(top)
    needs = {'required_traits': ['CUSTOM_GPU']}
    assert children_of(top.select(a_request(**needs))) == ['west']
    assert calls == {'west': 1}
    saved = top.metrics.render().decode()
    assert 'gantt_zone_queries_saved_total{strategy="StaticRuleOut"} 1' in saved
    # A host that has it has come meanwhile: before there is no place the facts are read again.
    east.report('east-1', vcpu=64, traits=['CUSTOM_GPU'])
    assert children_of(top.select(a_request(vcpu=32, **needs))) == ['east']


def test_two_zones_are_drawn_then_all_until_there_is_room(zone):
    top = zone('top', strategies=('WeightedRandom',), options={'weighted_random_then': 1})
    zones = [zone(f'z{n}') for n in range(4)]
    for node in zones[:3]:
        node.hosts(1, 2)
    zones[3].hosts(1, 64)
    top.above(*zones)
    calls = counted(top)
    assert top.select(a_request(vcpu=1)).outcome is Outcome.PLACED
    assert sum(calls.values()) == 2
    calls.clear()
    assert children_of(top.select(a_request(vcpu=32))) == ['z3']
    assert calls['z3'] == 1
    assert top.select(a_request(vcpu=100)).outcome is Outcome.NO_VALID_HOST


def test_a_shape_that_is_too_long_to_be_said_leaves_the_summary_as_it_is(zone):
    top, middle, leaf = zone('top'), zone('middle'), zone('leaf').hosts(1)
    middle.above(leaf)
    top.above(middle)
    request = a_request()
    many = {f'CUSTOM_{"X" * 200}{n}': 1 for n in range(8)}
    spec = msgspec.structs.replace(request.spec, resources=many)
    refused = top.select(msgspec.structs.replace(request, spec=spec))
    assert refused.outcome is Outcome.NO_VALID_HOST, refused.reason
    [below] = top.around.directory.children()
    assert top.around.calls.summary(below, 5.0).fits


def test_shapes_are_noted_by_many_threads_at_once(zone):
    east, errors = zone('east').hosts(1), []

    def note(thread):
        for n in range(2000):
            east.around.note_requested({'VCPU': 1, 'MEMORY_MB': (7 * n + 13 * thread) % 5000 + 3})

    def work(thread):
        try:
            note(thread)
        except Exception as e:
            errors.append(repr(e))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
    finally:
        sys.setswitchinterval(before)
    assert errors == []
    assert len(east.around.summary().fits) <= SHAPES_MAX


def test_a_zone_of_last_resort_is_not_even_queried_while_others_have_room(zone):
    top, near, far = zone('top'), zone('near').hosts(1, 2), zone('far').hosts(1, 64)
    top.above(near).above(far, last_resort=True)
    calls = counted(top)
    assert children_of(top.select(a_request(vcpu=1))) == ['near']
    assert calls == {'near': 1}
    assert children_of(top.select(a_request(vcpu=32))) == ['far']


def test_a_zone_that_breaks_its_word_is_taken_after_the_others(zone, monkeypatch):
    top, liar, honest = zone('top'), zone('liar').hosts(1, 64), zone('honest').hosts(1, 64)
    top.above(liar, honest)
    calls = top.zones.calls
    evaluate, allocate, tries = calls.evaluate, calls.allocate, collections.Counter()

    def boasts(record, *args):
        evaluated = evaluate(record, *args)
        best = 1.0 if record.name == 'liar' else 0.5
        offers = [msgspec.structs.replace(offer, score=best) for offer in evaluated.offers]
        return msgspec.structs.replace(evaluated, offers=offers)

    def refuses(record, *args):
        tries[record.name] += 1
        if record.name == 'liar':
            raise exceptions.OfferGone()
        return allocate(record, *args)

    monkeypatch.setattr(calls, 'evaluate', boasts)
    monkeypatch.setattr(calls, 'allocate', refuses)
    for _ in range(20):
        assert children_of(top.select(a_request(vcpu=1))) == ['honest']
    assert tries['liar'] <= 10, 'after some refusals its offers are the last ones'


def test_members_that_have_to_be_together_go_where_the_first_one_is(zone):
    top, east, west = zone('top'), zone('east').hosts(1, 8), zone('west').hosts(1, 8)
    top.above(east, west)
    group = GroupRef(uuid=uuid_of('together'), policy=Policy.AFFINITY)
    first = top.select(a_request(vcpu=2, group=group))
    (child,) = children_of(first)
    # On its own each of these would rather be where nobody is yet.
    assert children_of(top.select(a_request(vcpu=1))) != [child]
    second = top.select(a_request(vcpu=2, group=group))
    assert children_of(second) == [child]
    refused = top.select(a_request(vcpu=5, group=group))
    assert refused.outcome is Outcome.NO_VALID_HOST
    # When all of them have ended the group may be anywhere.
    for answer in (first, second):
        top.client.cancel_claims(answer.request_id)
    until(lambda: east.live() + west.live() == 1)
    fill = top.select(a_request(vcpu=8))
    assert children_of(fill) == [child]
    assert children_of(top.select(a_request(vcpu=5, group=group))) != [child]


def test_a_group_whose_members_have_ended_is_bound_to_no_zone(zone):
    top, east, west = zone('top'), zone('east').hosts(1, 8), zone('west').hosts(1, 4)
    top.above(east, west)
    group = GroupRef(uuid=uuid_of('group'), policy=Policy.AFFINITY)
    first = a_request(2, group=group)
    assert children_of(top.select(first)) == 2 * ['east']
    assert children_of(top.select(a_request(vcpu=6))) == ['east']
    assert top.select(a_request(vcpu=3, group=group)).outcome is Outcome.NO_VALID_HOST
    top.client.cancel_claims(first.request_id)
    until(
        lambda: {row.state for row in top.store.child_claims.find(first.request_id)} == {'released'}
    )
    placed = top.select(a_request(vcpu=3, group=group))
    assert children_of(placed) == ['west'], placed.reason


def test_two_first_members_at_once_are_in_one_zone(zone):
    top, east, west = zone('top'), zone('east').hosts(1, 8), zone('west').hosts(1, 8)
    top.above(east, west)
    group = GroupRef(uuid=uuid_of('together'), policy=Policy.AFFINITY)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        answers = list(threads.map(top.select, [a_request(vcpu=1, group=group) for _ in range(6)]))
    assert {answer.outcome for answer in answers} == {Outcome.PLACED}, [
        answer.reason for answer in answers
    ]
    assert len({child for answer in answers for child in children_of(answer)}) == 1


def test_a_guest_below_is_moved_within_its_zone(zone):
    top, east, west = zone('top').hosts(2, 64), zone('east').hosts(2, 8), zone('west').hosts(1, 64)
    top.above(east, west)
    consumer = uuid_of('guest')
    only = top.select(a_request(vcpu=1, consumers=[consumer]))
    (where,) = children_of(only)
    move = a_request(vcpu=1, consumers=[consumer], purpose=Purpose.MIGRATE, move_id=uuid_of('move'))
    moved = top.select(move)
    assert moved.outcome is Outcome.PLACED, moved.reason
    assert children_of(moved) == [where]


def test_a_dry_run_names_the_zone_and_claims_nothing(zone):
    top, east, west = zone('top').hosts(1, 2), zone('east').hosts(1, 4), zone('west').hosts(1, 64)
    top.above(east, west)
    before = [node.written() for node in (east, west)]
    tried = top.select(a_request(vcpu=16, dry_run=True))
    assert tried.outcome is Outcome.PLACED and tried.dry_run
    assert (tried.selections[0][0].child, tried.selections[0][0].claim_id) == ('west', None)
    refused = top.select(a_request(vcpu=100, dry_run=True))
    assert refused.outcome is Outcome.NO_VALID_HOST
    assert [node.written() for node in (east, west)] == before
    assert not top.on_their_way() and top.live() == 0


@pytest.mark.parametrize('strategies', [ALL, ('RandomOrder',), ('TopN', 'GoodEnough')])
def test_whatever_the_strategies_a_refusal_is_a_proof(zone, strategies):
    top = zone('top', strategies=strategies, options={'top_n_zones': 1})
    zones = [zone(f'z{n}').hosts(1, 2 + n) for n in range(3)]
    top.above(*zones)
    read_summaries(top)
    assert children_of(top.select(a_request(vcpu=4))) == ['z2']
    refused = top.select(a_request(vcpu=5))
    assert refused.outcome is Outcome.NO_VALID_HOST
    assert 'none of 3 hosts in 4 zones has room' in refused.reason


def test_a_decision_over_levels_is_explained_by_each_of_them(zone):
    top, mid = zone('top').hosts(2, 1), zone('mid').hosts(1, 2)
    leaf, other = zone('leaf').hosts(2, 16), zone('other').hosts(3, 1)
    mid.above(leaf, other)
    top.above(mid)
    placed = top.select(a_request(vcpu=8))
    assert placed.outcome is Outcome.PLACED
    until(lambda: not top.recorder.flush() and top.insights.is_decision(placed.decision_id))
    path = f'/v1/decisions/{placed.decision_id}?explain=true'

    def is_whole():
        """A zone that has answered may not have stored its decision yet."""
        for node in (mid, leaf, other):
            node.recorder.flush()
        shares = top.get(path).json()['zones_explained'].get('mid', {}).get('zones', ())
        return any(share['taken'] and share['below'] for share in shares)

    until(is_whole)
    explanation = top.get(path).json()
    own, below = explanation['zones']
    assert (own['zone'], below['zone'], below['taken']) == ('', 'mid', 1)
    for share in explanation['zones']:
        assert share['survivors'] + sum(share['removed'].values()) == share['hosts']
    assert (own['hosts'], below['hosts'], explanation['hosts']) == (2, 6, 8)
    mid_explained = explanation['zones_explained']['mid']
    assert (
        mid_explained['survivors'] + sum(mid_explained['removed'].values())
        == mid_explained['hosts']
        == 6
    )
    assert [share['is_own'] for share in mid_explained['zones']] == [True, False, False]
    deepest = next(share for share in mid_explained['zones'] if share['taken'])['below']
    assert (deepest['hosts'], deepest['survivors']) == (2, 2)
    text = top.get(path + '&format=text').text
    for line in ('mid', 'takes 1 member', 'a zone below it', 'ResourcesFilter removed 3'):
        assert line in text, text
    for hidden in ('leaf', 'other-1', 'mid-1'):
        assert hidden not in text, text


def test_the_own_hosts_win_and_it_is_explained_who_was_queried(zone):
    top, east = zone('top').hosts(1, 64), zone('east').hosts(1, 2)
    top.above(east)
    placed = top.select(a_request(vcpu=8))
    until(lambda: not top.recorder.flush() and top.insights.is_decision(placed.decision_id))
    lines = '\n'.join(top.insights.explain(placed.decision_id).lines)
    assert 'this zone' in lines and 'takes 1 member' in lines and 'no offer' in lines


def test_a_lease_below_is_extended_as_far_as_the_zone_lets(zone):
    top, east = zone('top'), zone('east').hosts(1)
    top.above(east)
    request = a_request(lease_seconds=10)
    chosen = top.select(request).selections[0][0]
    before = expires(east, chosen.claim_id)
    top.client.extend_claims(request.request_id, 5000)
    after = expires(east, chosen.claim_id)
    assert before + 500 < after < before + 650, 'a parent gets 600 s at most'


def test_a_lease_that_is_only_below_is_extended_over_http(zone):
    top, east = zone('top'), zone('east').hosts(1)
    top.above(east)
    request = a_request(lease_seconds=10)
    chosen = top.select(request).selections[0][0]
    before = expires(east, chosen.claim_id)
    path = f'/v1/requests/{request.request_id}'
    response = httpx.delete(f'{top.url}{path}?dry_run=true', headers=VERSION)
    assert '1 reserved claims' in response.json()['message'], response.text
    response = top.put(f'{path}/lease', {'seconds': 60})
    assert response.status_code == 200, response.text
    assert expires(east, chosen.claim_id) > before + 30


def test_summaries_and_changes_are_by_conditional_get(zone):
    top, east = zone('top'), zone('east').hosts(1, 8)
    top.above(east)
    calls, record = top.zones.calls, top.zones.directory.child('east')
    first = calls.summary(record, 5.0)
    assert first.fits['MEMORY_MB:2048,VCPU:1'] == 8
    assert calls.summary(record, 5.0) is first
    top.select(a_request(vcpu=1, ram=2048))
    after = calls.summary(record, 5.0)
    assert after.fits['MEMORY_MB:2048,VCPU:1'] == 7
    headers = {'X-User-Id': top.uuid}
    response = east.get('/zone/v1/changes', **headers)
    again = east.get('/zone/v1/changes', **{**headers, 'If-None-Match': response.headers['ETag']})
    assert (response.status_code, again.status_code, again.content) == (200, 304, b'')


def test_capacity_and_dry_runs_over_http_go_over_zones(zone):
    top, mid, leaf = zone('top'), zone('mid').hosts(1, 2), zone('leaf').hosts(2, 16)
    mid.above(leaf)
    top.above(mid)
    spec = {'resources': {'VCPU': 8, 'MEMORY_MB': 1024}}
    capacity = top.post('/v1/capacity', {'spec': spec}).json()
    assert capacity['count'] == 0
    assert [(child['zone'], child['count'], child['hosts']) for child in capacity['below']] == [
        ('mid', 4, 3)
    ]
    body = {'request_id': uuid_of('dry'), 'spec': spec, 'consumers': [uuid_of('guest')]}
    tried = top.post('/v1/requests', {**body, 'dry_run': True})
    assert tried.status_code == 200, tried.text
    chosen = tried.json()['answer']['selections'][0][0]
    assert (chosen['child'], chosen['claim_id']) == ('mid', None)
    assert 'takes 1 member' in '\n'.join(tried.json()['explanation']['lines'])
    body['spec'] = {'resources': {'VCPU': 64, 'MEMORY_MB': 1024}}
    refused = top.post('/v1/requests', {**body, 'dry_run': True})
    assert refused.status_code == 409 and 'none of 3 hosts in 2 zones' in refused.text
    assert leaf.live() == 0 and not top.on_their_way()
    leaf.cut()
    capacity = top.post('/v1/capacity', {'spec': spec}).json()
    assert (capacity['below'][0]['count'], capacity['below'][0]['complete']) == (0, False)


def rebuild(consumer, **spec):
    return a_request(vcpu=1, consumers=[consumer], purpose=Purpose.REBUILD, **spec)


def dry(request):
    return msgspec.to_builtins(msgspec.structs.replace(request, dry_run=True))


def test_a_guest_is_rebuilt_where_it_lives_if_its_host_fits(zone, monkeypatch):
    top, mid, leaf = zone('top').hosts(1, 2), zone('mid').hosts(1, 4), zone('leaf').hosts(1, 16)
    leaf.report('leaf-1', vcpu=16, traits=['CUSTOM_A'])
    other = zone('other').hosts(1, 2, traits=['CUSTOM_A', 'CUSTOM_B'])
    mid.above(leaf)
    top.above(mid, other)
    deep, near, here = uuid_of('deep'), uuid_of('near'), uuid_of('here')
    for consumer, vcpu in ((deep, 16), (near, 4)):
        answer = top.select(a_request(vcpu=vcpu, consumers=[consumer]))
        assert children_of(answer) == ['mid'], answer.reason
    assert children_of(top.select(a_request(vcpu=2, consumers=[here], hops=0))) == ['']
    written = [node.written()[:3] for node in (top, mid, leaf, other)]
    # Its host is full, and has room for what it has already.
    fits = top.select(rebuild(deep, required_traits=['CUSTOM_A']))
    assert fits.outcome is Outcome.PLACED, fits.reason
    [chosen] = fits.selections[0]
    assert (chosen.child, chosen.host, chosen.claim_id) == ('mid', '', None)
    assert mid.unseal(chosen.sealed_host)['child'] == 'leaf'
    for consumer, trait in ((deep, 'CUSTOM_B'), (near, 'CUSTOM_A'), (here, 'CUSTOM_A')):
        refused = top.select(rebuild(consumer, required_traits=[trait]))
        assert refused.outcome is Outcome.NO_VALID_HOST, (consumer, refused)
        assert 'leaf' not in refused.reason
        tried = top.post('/v1/requests', dry(rebuild(consumer, required_traits=[trait])))
        assert tried.status_code == 409, tried.text
        assert refused.reason in tried.json()['errors'][0]['detail']
    assert top.select(rebuild(near)).outcome is Outcome.PLACED
    tried = top.post('/v1/requests', dry(rebuild(near)))
    assert tried.status_code == 200, tried.text
    assert tried.json()['answer']['selections'][0][0]['child'] == 'mid'
    # What lives there may be rebuilt when nothing new goes there.
    top.put('/v1/zones/mid', {'enabled': False})
    top.zones.directory.refresh()
    assert children_of(top.select(rebuild(deep))) == ['mid']
    both = msgspec.structs.replace(rebuild(deep), consumers=[deep, near])
    assert top.select(both).outcome is Outcome.REFUSED
    assert [node.written()[:3] for node in (top, mid, leaf, other)] == written
    leaf.cut()
    silent = top.select(rebuild(deep))
    assert silent.outcome not in (Outcome.PLACED, Outcome.NO_VALID_HOST), silent


def test_a_zone_above_asks_of_its_own_guests_alone_whether_they_may_be_rebuilt(zone):
    top, east, thief = zone('top'), zone('east').hosts(1, 8), zone('thief')
    top.above(east)
    thief.above(east)
    request = a_request(vcpu=1)
    assert top.select(request).outcome is Outcome.PLACED
    [row] = top.store.child_claims.find(request.request_id)

    def ask(by, **changes):
        request = msgspec.to_builtins(rebuild(row.consumer))
        body = {'request': {**request, **changes.pop('request', {})}, 'key': row.key, **changes}
        headers = {'X-User-Id': by.uuid, **VERSION}
        return httpx.post(f'{east.url}/zone/v1/evaluations', json=body, headers=headers)

    assert ask(top).json()['outcome'] == 'placed' and ask(top).json()['offers'] == []
    assert ask(thief).status_code == 404
    assert ask(top, key=uuid_of('other')).status_code == 404
    assert ask(top, request={'consumers': [uuid_of('other')]}).status_code == 404
    two = {'consumers': [row.consumer, uuid_of('other')]}
    create = msgspec.to_builtins(a_request(consumers=[row.consumer]))
    for wrong in (two, create):
        assert ask(top, request=wrong).status_code == 400
