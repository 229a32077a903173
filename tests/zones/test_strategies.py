# SPDX-License-Identifier: Apache-2.0
"""Which zones below are queried: by strategy, by what they say in advance, by how they behave."""

import collections
import concurrent.futures

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.request import GroupRef, Policy, Purpose
from gantt.core.records.decision import Outcome
from gantt.db.schema import models
from gantt.scheduler.zones import evaluate
from tests.builders import uuid_of
from tests.world import a_request
from tests.zones.test_over_zones import children_of
from tests.zones.tree import until

#: All zones are compared, however many there are.
ALL = ('BruteForce',)


def counted(top):
    """Zone -> evaluations asked of it, from now on."""
    calls, found = top.scheduler._zones.calls, collections.Counter()
    evaluate = calls.evaluate

    def noted(record, *args):
        found[record.name] += 1
        return evaluate(record, *args)

    calls.evaluate = noted
    return found


def expires(zone, claim_id):
    """When the lease of a claim ends."""
    with zone.store.engine.connect() as connection:
        query = models.claims.select().where(models.claims.c.id == claim_id)
        return connection.execute(query).one().expires_at


def read_summaries(top):
    """What the zones below say in advance is known from now on."""
    parts = top.scheduler._zones
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
    wanted = {'required_traits': ['CUSTOM_GPU']}
    assert children_of(top.select(a_request(**wanted))) == ['west']
    assert calls == {'west': 1}
    saved = top.metrics.render().decode()
    assert 'gantt_zone_calls_saved_total{strategy="StaticRuleOut"} 1' in saved
    # A host that has it has come meanwhile: before there is no place the facts are read again.
    east.report('east-1', vcpu=64, traits=['CUSTOM_GPU'])
    assert children_of(top.select(a_request(vcpu=32, **wanted))) == ['east']


def test_two_zones_are_drawn_then_all_until_there_is_room(zone):
    top = zone('top', strategies=('WeightedRandom',), options={'weighted_random_then': 1})
    zones = [zone(f'z{n}') for n in range(4)]
    for one in zones[:3]:
        one.hosts(1, 2)
    zones[3].hosts(1, 64)
    top.above(*zones)
    calls = counted(top)
    assert top.select(a_request(vcpu=1)).outcome is Outcome.PLACED
    assert sum(calls.values()) == 2
    calls.clear()
    assert children_of(top.select(a_request(vcpu=32))) == ['z3']
    assert calls['z3'] == 1
    assert top.select(a_request(vcpu=100)).outcome is Outcome.NO_VALID_HOST


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
    calls = top.scheduler._zones.calls
    evaluate, allocate, tries = calls.evaluate, calls.allocate, collections.Counter()

    def boasts(record, *args):
        found = evaluate(record, *args)
        best = 1.0 if record.name == 'liar' else 0.5
        offers = [msgspec.structs.replace(one, score=best) for one in found.offers]
        return msgspec.structs.replace(found, offers=offers)

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
    (there,) = children_of(first)
    # On its own each of these would rather be where nobody is yet.
    assert children_of(top.select(a_request(vcpu=1))) != [there]
    second = top.select(a_request(vcpu=2, group=group))
    assert children_of(second) == [there]
    refused = top.select(a_request(vcpu=5, group=group))
    assert refused.outcome is Outcome.NO_VALID_HOST
    # When all of them have ended the group may be anywhere.
    for answer in (first, second):
        top.client.cancel_claims(answer.request_id)
    until(lambda: east.live() + west.live() == 1)
    fill = top.select(a_request(vcpu=8))
    assert children_of(fill) == [there]
    assert children_of(top.select(a_request(vcpu=5, group=group))) != [there]


def test_two_first_members_at_once_are_in_one_zone(zone):
    top, east, west = zone('top'), zone('east').hosts(1, 8), zone('west').hosts(1, 8)
    top.above(east, west)
    group = GroupRef(uuid=uuid_of('together'), policy=Policy.AFFINITY)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        found = list(threads.map(top.select, [a_request(vcpu=1, group=group) for _ in range(6)]))
    assert {one.outcome for one in found} == {Outcome.PLACED}, [one.reason for one in found]
    assert len({child for one in found for child in children_of(one)}) == 1


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
    before = [one.written() for one in (east, west)]
    tried = top.select(a_request(vcpu=16, dry_run=True))
    assert tried.outcome is Outcome.PLACED and tried.dry_run
    assert (tried.selections[0][0].child, tried.selections[0][0].claim_id) == ('west', None)
    refused = top.select(a_request(vcpu=100, dry_run=True))
    assert refused.outcome is Outcome.NO_VALID_HOST
    assert [one.written() for one in (east, west)] == before
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
    until(lambda: not mid.recorder.flush())
    path = f'/v1/decisions/{placed.decision_id}?explain=true'
    found = top.get(path).json()
    own, below = found['zones']
    assert (own['zone'], below['zone'], below['taken']) == ('', 'mid', 1)
    for one in found['zones']:
        assert one['survivors'] + sum(one['removed'].values()) == one['hosts']
    assert (own['hosts'], below['hosts'], found['hosts']) == (2, 6, 8)
    there = found['zones_explained']['mid']
    assert there['survivors'] + sum(there['removed'].values()) == there['hosts'] == 6
    assert [share['is_own'] for share in there['zones']] == [True, False, False]
    deepest = next(share for share in there['zones'] if share['taken'])['below']
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
    wanted = a_request(lease_seconds=10)
    chosen = top.select(wanted).selections[0][0]
    before = expires(east, chosen.claim_id)
    top.client.extend_claims(wanted.request_id, 5000)
    after = expires(east, chosen.claim_id)
    assert before + 500 < after < before + 650, 'a parent gets 600 s at most'


def test_summaries_and_changes_are_by_conditional_get(zone):
    top, east = zone('top'), zone('east').hosts(1, 8)
    top.above(east)
    calls, record = top.scheduler._zones.calls, top.scheduler._zones.directory.child('east')
    first = calls.summary(record, 5.0)
    assert first.fits['MEMORY_MB:2048,VCPU:1'] == 8
    assert calls.summary(record, 5.0) is first
    top.select(a_request(vcpu=1, ram=2048))
    after = calls.summary(record, 5.0)
    assert after.fits['MEMORY_MB:2048,VCPU:1'] == 7
    headers = {'X-User-Id': top.uuid}
    found = east.get('/zone/v1/changes', **headers)
    again = east.get('/zone/v1/changes', **{**headers, 'If-None-Match': found.headers['ETag']})
    assert (found.status_code, again.status_code, again.content) == (200, 304, b'')


def test_capacity_and_dry_runs_over_http_go_over_zones(zone):
    top, mid, leaf = zone('top'), zone('mid').hosts(1, 2), zone('leaf').hosts(2, 16)
    mid.above(leaf)
    top.above(mid)
    spec = {'resources': {'VCPU': 8, 'MEMORY_MB': 1024}}
    found = top.post('/v1/capacity', {'spec': spec}).json()
    assert found['count'] == 0
    assert [(one['zone'], one['count'], one['hosts']) for one in found['below']] == [('mid', 4, 3)]
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
    found = top.post('/v1/capacity', {'spec': spec}).json()
    assert (found['below'][0]['count'], found['below'][0]['complete']) == (0, False)
