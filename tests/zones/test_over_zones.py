# SPDX-License-Identifier: Apache-2.0
"""Requests that go down to other zones: where they are placed, and what is left of them."""

import concurrent.futures
import random
import threading

import httpx2 as httpx
import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.request import Flavor, GroupRef, Policy
from gantt.core.messages.tree_request import DeviceAmount, TreeRequest
from gantt.core.records.decision import Outcome
from gantt.scheduler.work_queue import WaitingReplies
from gantt.zones.model.messages import scoped_id
from gantt.zones.service import request_lock
from gantt.zones.service.offers.local_hosts import TABLE_AGE_MAX_SECONDS
from tests.builders import uuid_of
from tests.nested import below
from tests.world import a_request
from tests.zones.tree import AS_BETWEEN_ZONES, VERSION, until


def children_of(answer):
    return [selections[0].child for selections in answer.selections]


def test_a_request_goes_where_there_is_room(zone):
    top = zone('top').hosts(1, 2)
    east, west = zone('east').hosts(2, 4), zone('west').hosts(1, 32)
    top.above(east, west)
    answer = top.select(a_request(vcpu=16))
    assert answer.outcome is Outcome.PLACED, answer.reason
    (chosen,) = answer.selections[0]
    assert (chosen.child, chosen.host, chosen.provider_id) == ('west', '', 0)
    assert west.store.claims.load_claim(chosen.claim_id).host == 'west-1'
    assert (top.live(), east.live(), west.live()) == (0, 0, 1)
    local = top.select(a_request(vcpu=2))
    assert local.outcome is Outcome.PLACED
    for node in (top, east, west):
        assert not any(node.store.claims.audit().values())


def test_the_best_of_all_zones_is_taken_as_if_there_was_one(zone):
    """The plain reference: one zone that has all hosts, on comparable scores."""
    dice = random.Random(5)
    top, east, west, flat = (
        zone(name, pipeline=AS_BETWEEN_ZONES) for name in ('top', 'east', 'west', 'flat')
    )
    shapes = [dice.choice([4, 8, 12, 24, 48]) for _ in range(12)]
    for n, vcpu in enumerate(shapes):
        (top, east, west)[n % 3].host(f'host-{n}', vcpu)
        flat.host(f'host-{n}', vcpu)
    top.above(east, west)

    refused = 0
    for _ in range(40):
        request = a_request(vcpu=dice.choice([1, 2, 3, 6, 11, 20]), ram=1024)
        flat.around.reload_soon()  # it has placed one just now, and not through its API
        from_above = msgspec.structs.replace(request, parent='above')
        theirs = flat.around.evaluator.evaluate(from_above, 20, 10.0)
        ours = top.select(request)
        refused += ours.outcome is Outcome.NO_VALID_HOST
        assert ours.outcome is theirs.outcome, (ours.reason, theirs.reason)
        if ours.outcome is Outcome.PLACED:
            chosen = ours.selections[0][0]
            where = {'': top, 'east': east, 'west': west}[chosen.child]
            host = where.store.claims.load_claim(chosen.claim_id).host
            scores = {offer.place.hosts[0]: offer.score for offer in theirs.choices}
            assert scores[host] == max(scores.values(), key=lambda score: score.score)
            assert flat.select(request.on_hosts([host])).outcome is Outcome.PLACED
    assert refused, 'the test is to fill all zones'


def test_a_class_of_devices_that_is_declared_below_alone_is_found_there(zone):
    top, east = zone('top').hosts(1, 8), zone('east').hosts(1, 8)
    east.store.vocabulary.declare_class('CUSTOM_SLICE')
    uuid = east.store.feed.load_everything().hosts[0].row.uuid
    below(east.store, 'mig', uuid, CUSTOM_SLICE=7)
    top.above(east)
    tree = TreeRequest(devices=[DeviceAmount(resource_class='CUSTOM_SLICE', amount=3)])
    request = a_request(vcpu=1)
    request = msgspec.structs.replace(
        request, spec=msgspec.structs.replace(request.spec, tree=tree)
    )
    answer = top.select(request)
    assert answer.outcome is Outcome.PLACED, answer.reason
    assert answer.selections[0][0].child == 'east'


def test_what_a_flavor_requires_is_looked_for_below(zone):
    top, east = zone('top').hosts(1, 64), zone('east').hosts(1, 4, traits=['CUSTOM_SSD'])
    top.above(east)

    def ask(**specs):
        request = a_request(vcpu=1)
        flavor = Flavor(extra_specs=specs)
        spec = msgspec.structs.replace(request.spec, flavor=flavor)
        return top.select(msgspec.structs.replace(request, spec=spec))

    answer = ask(**{'trait:CUSTOM_SSD': 'required'})
    assert answer.outcome is Outcome.PLACED, answer.reason
    assert answer.selections[0][0].child == 'east'
    with pytest.raises(exceptions.InvalidMessage, match='accel:device_profile'):
        ask(**{'accel:device_profile': 'gpu'})


def test_no_room_and_not_known_are_different(zone):
    top, east, west = zone('top'), zone('east').hosts(1, 4), zone('west').hosts(1, 4)
    top.above(east, west)
    answer = top.select(a_request(vcpu=100))
    assert answer.outcome is Outcome.NO_VALID_HOST
    west.cut()
    answer = top.select(a_request(vcpu=100, budget_ms=4000))
    assert answer.outcome is Outcome.UNKNOWN
    assert 'west' in answer.reason
    # The others are served all the same.
    assert children_of(top.select(a_request(vcpu=1, budget_ms=4000))) == ['east']


def test_a_zone_whose_database_is_away_says_nothing_of_room(zone, monkeypatch):
    top, east, west = zone('top'), zone('east').hosts(1, 4), zone('west').hosts(1, 64)
    top.above(east, west)
    assert top.select(a_request(vcpu=100)).outcome is Outcome.NO_VALID_HOST

    def away(*_):
        raise exceptions.DatabaseUnavailable(problem='it is away')

    cache = west.insights.cache
    monkeypatch.setattr(cache.feed, 'poll', away)
    # It has a table in memory, as it was; what it would offer nobody could claim.
    until(lambda: cache.read_seconds_ago > TABLE_AGE_MAX_SECONDS)
    answer = top.select(a_request(vcpu=100))
    assert answer.outcome is Outcome.UNKNOWN, answer.reason
    assert 'west' in answer.reason
    assert children_of(top.select(a_request(vcpu=1))) == ['east']


def test_members_are_split_where_no_place_has_room_for_all(zone):
    top = zone('top').hosts(1, 2)
    east, west = zone('east').hosts(1, 4), zone('west').hosts(1, 4)
    top.above(east, west)
    request = a_request(9, ram=64)
    answer = top.select(request)
    assert answer.outcome is Outcome.PLACED, answer.reason
    assert sorted({*children_of(answer)}) == ['', 'east', 'west']
    assert [chosen.consumer for chosen, *_ in answer.selections] == request.consumers
    assert top.live() + east.live() + west.live() == 9
    # All or none: what was claimed of one that has no place for all is given back.
    answer = top.select(a_request(2, ram=64))
    assert answer.outcome is Outcome.NO_VALID_HOST
    until(lambda: top.live() + east.live() + west.live() == 9)


def test_what_a_split_request_has_on_own_hosts_is_extended_and_cancelled_with_it(zone):
    top, mid, leaf = zone('top'), zone('mid').hosts(1, 4), zone('leaf').hosts(1, 4)
    mid.above(leaf)
    top.above(mid)
    request = a_request(8, ram=64, lease_seconds=60)
    answer = top.select(request)
    assert answer.outcome is Outcome.PLACED, answer.reason
    assert (mid.live(), leaf.live()) == (4, 4)
    (key,) = {row.key for row in top.store.child_claims.find(request.request_id)}
    own = mid.store.requests.load_request(scoped_id('top', key)).claims
    assert sorted(claim.member for claim in own) == [
        n
        for n, (chosen, *_) in enumerate(answer.selections)
        if chosen.claim_id in {claim.id for claim in own}
    ]
    assert not any(mid.store.claims.audit().values())
    before = {claim.id: claim.lease_until for claim in own}
    top.client.extend_claims(request.request_id, 300)
    for claim in mid.store.requests.load_request(scoped_id('top', key)).claims:
        assert claim.lease_until > before[claim.id] + 200
    top.client.cancel_claims(request.request_id)
    until(lambda: mid.live() + leaf.live() == 0)
    assert top.select(request).outcome is Outcome.CANCELLED


def test_a_zone_above_hears_of_all_that_a_split_request_has(zone):
    top, mid, leaf = zone('top'), zone('mid').hosts(1, 4), zone('leaf').hosts(1, 4)
    mid.above(leaf)
    top.above(mid)
    request = a_request(8, ram=64)
    assert top.select(request).outcome is Outcome.PLACED
    (key,) = {row.key for row in top.store.child_claims.find(request.request_id)}
    mid.client.cancel_claims(scoped_id('top', key))
    until(lambda: mid.live() + leaf.live() == 0)

    def states():
        return {row.state for row in top.store.child_claims.find(request.request_id)}

    until(lambda: states() == {'released'})


def test_members_apart_are_split_over_zones_and_members_together_are_not(zone):
    top, east, west = zone('top'), zone('east').hosts(2, 8), zone('west').hosts(3, 4)
    top.above(east, west)
    group = GroupRef(uuid=uuid_of('group'), policy=Policy.ANTI_AFFINITY)
    answer = top.select(a_request(3, group=group))
    assert children_of(answer) == ['west'] * 3
    # No zone has so many hosts, both together have five of them.
    five = GroupRef(uuid=uuid_of('five'), policy=Policy.ANTI_AFFINITY)
    answer = top.select(a_request(5, group=five))
    assert answer.outcome is Outcome.PLACED, answer.reason
    assert sorted(children_of(answer)) == ['east'] * 2 + ['west'] * 3
    stores = {'east': east.store, 'west': west.store}
    chosen = [selections[0] for selections in answer.selections]
    assert (
        len(
            {
                stores[selection.child].claims.load_claim(selection.claim_id).host
                for selection in chosen
            }
        )
        == 5
    )
    six = GroupRef(uuid=uuid_of('six'), policy=Policy.ANTI_AFFINITY)
    answer = top.select(a_request(6, group=six))
    assert answer.outcome is Outcome.NO_VALID_HOST, answer.reason
    # All zones have room for nine, no host has.
    nine = GroupRef(uuid=uuid_of('nine'), policy=Policy.AFFINITY)
    answer = top.select(a_request(9, ram=64, group=nine))
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert 'no one place has room for all 9 members together' in answer.reason
    assert (east.live(), west.live()) == (2, 6)


def test_a_repeat_gets_the_answer_of_before_and_a_cancel_goes_down(zone):
    top, east = zone('top'), zone('east').hosts(1, 8)
    top.above(east)
    request = a_request(vcpu=2)
    first, again = top.select(request), top.select(request)
    assert first == again
    assert east.live() == 1
    other = msgspec.structs.replace(request, consumers=[uuid_of('another')])
    assert top.select(other).outcome is Outcome.REUSED
    top.client.cancel_claims(request.request_id)
    until(lambda: east.live() == 0)
    assert top.select(request).outcome is Outcome.CANCELLED
    assert east.live() == 0


def test_what_only_a_zone_below_knows_is_passed_down(zone):
    top, east, west = zone('top').hosts(1), zone('east').hosts(1), zone('west')
    west.hosts(1, traits=['CUSTOM_ONLY_THERE'])
    top.above(east, west)
    answer = top.select(a_request(required_traits=['CUSTOM_ONLY_THERE']))
    assert children_of(answer) == ['west']


def test_a_last_resort_is_taken_where_nothing_else_has_room(zone):
    top, near, far = zone('top'), zone('near').hosts(1, 2), zone('far').hosts(1, 64)
    top.above(near).above(far, last_resort=True)
    assert [children_of(top.select(a_request(vcpu=1))) for _ in range(3)] == [
        ['near'],
        ['near'],
        ['far'],
    ]


def test_a_consumer_has_one_claim_over_all_zones(zone):
    top, east, west = zone('top'), zone('east').hosts(1), zone('west').hosts(1)
    top.above(east, west)
    consumer = uuid_of('guest')
    assert top.select(a_request(consumers=[consumer])).outcome is Outcome.PLACED
    second = top.select(a_request(consumers=[consumer]))
    assert second.outcome is Outcome.REFUSED
    assert consumer in second.reason
    assert east.live() + west.live() == 1


@pytest.mark.parametrize('stays', ['disabled', 'asked so', 'no hop is left', 'its group is here'])
def test_who_lives_below_is_not_placed_here_by_a_request_that_stays(zone, stays):
    top, east = zone('top').hosts(2, 8), zone('east').hosts(1, 32)
    top.above(east)
    request = a_request(vcpu=16)
    assert children_of(top.select(request)) == ['east']
    fields = {'vcpu': 1, 'consumers': request.consumers}
    if stays == 'disabled':
        top.put('/v1/zones/east', {'enabled': False})
        top.zones.directory.refresh()
    elif stays == 'its group is here':
        group = GroupRef(uuid=uuid_of('together'), policy=Policy.AFFINITY)
        first = a_request(vcpu=1, group=group)
        first = msgspec.structs.replace(first, hops=0)
        assert children_of(top.select(first)) == ['']
        fields['group'] = group
    before = top.live()
    another = a_request(**fields)
    if stays == 'no hop is left':
        another = msgspec.structs.replace(another, hops=0)
    waiter = WaitingReplies()
    top.scheduler.submit(another, None, waiter, stays=stays == 'asked so')
    answer = waiter.wait(another, 20.0)
    assert answer.outcome is Outcome.REFUSED, answer.reason
    assert request.consumers[0] in answer.reason
    assert (top.live(), east.live()) == (before, 1)
    assert top.store.requests.load_request(another.request_id) is None
    # Who lives nowhere is placed, and a repeat meets that.
    other = msgspec.structs.replace(a_request(vcpu=1), hops=0)
    placed = top.select(other)
    assert placed.outcome is Outcome.PLACED, placed.reason
    assert top.select(other).selections == placed.selections
    assert top.live() == before + 1
    # Once the zone below has heard that it ended it may be placed here.
    top.client.cancel_claims(request.request_id)
    until(lambda: top.store.child_claims.find(request.request_id)[0].state == 'released')
    again = msgspec.structs.replace(a_request(**fields), hops=0)
    assert top.select(again).outcome is Outcome.PLACED


def test_a_request_that_stays_meets_one_for_its_consumer_that_is_going_down(zone, monkeypatch):
    top, east = zone('top').hosts(1, 8), zone('east').hosts(1, 32)
    top.above(east)
    calls, begun, go_on = top.zones.calls, threading.Event(), threading.Event()
    allocate = calls.allocate

    def slowly(*args):
        begun.set()
        go_on.wait(10)
        return allocate(*args)

    monkeypatch.setattr(calls, 'allocate', slowly)
    request = a_request(vcpu=16)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        first = threads.submit(top.select, request)
        assert begun.wait(10)
        stays = msgspec.structs.replace(a_request(vcpu=1, consumers=request.consumers), hops=0)
        refused = top.select(stays)
        go_on.set()
        assert first.result().outcome is Outcome.PLACED
    assert refused.outcome is Outcome.REFUSED, refused.reason
    assert (top.live(), east.live()) == (0, 1)


def test_what_became_of_a_claim_below_is_followed(zone):
    top, east = zone('top'), zone('east').hosts(1)
    top.above(east)
    request = a_request()
    chosen = top.select(request).selections[0][0]
    assert east.confirm(chosen.claim_id) == 'ok'
    until(
        lambda: (
            [row.state for row in top.store.child_claims.find(request.request_id)] == ['confirmed']
        )
    )


def test_three_levels_and_the_host_is_unsealed_where_it_is(zone):
    top, mid, leaf = zone('top'), zone('mid').hosts(1, 2), zone('leaf').hosts(1, 16)
    mid.above(leaf)
    top.above(mid)
    answer = top.select(a_request(vcpu=8))
    assert answer.outcome is Outcome.PLACED, answer.reason
    chosen = answer.selections[0][0]
    assert chosen.child == 'mid'
    unsealed = mid.unseal(chosen.sealed_host)
    assert (unsealed['child'], unsealed['host']) == ('leaf', '')
    unsealed = leaf.unseal(unsealed['sealed_host'])
    assert (unsealed['host'], unsealed['claim_id']) == ('leaf-1', chosen.claim_id)
    assert (mid.live(), leaf.live()) == (0, 1)
    # Nobody has in its database who is two levels away, or on which host.
    for node, foreign in ((top, ('leaf', leaf.uuid, leaf.url)), (leaf, ('top', top.uuid, top.url))):
        everything = node.everything()
        for text in foreign:
            assert text not in everything, text
    assert 'leaf-1' not in mid.everything() and 'mid-1' not in top.everything()


def test_a_loop_is_found(zone):
    one, other = zone('one'), zone('other')
    one.above(other)
    other.above(one)
    answer = one.select(a_request(budget_ms=5000))
    assert answer.outcome in (Outcome.UNKNOWN, Outcome.NO_VALID_HOST)
    itself = one.put('/v1/zones/itself', {'url': one.url})
    assert itself.status_code == 400


@pytest.mark.parametrize('lost', ['the answer', 'the request'])
def test_an_allocation_that_is_not_answered_leaves_one_claim_or_none(zone, monkeypatch, lost):
    top, east = zone('top'), zone('east').hosts(1, 8)
    top.above(east)
    calls = top.zones.calls
    allocate = calls.allocate

    def unanswered(*args):
        if lost == 'the answer':
            allocate(*args)
        raise exceptions.Unavailable('the connection broke')

    monkeypatch.setattr(calls, 'allocate', unanswered)
    answer = top.select(a_request(budget_ms=4000))
    if lost == 'the answer':
        assert answer.outcome is Outcome.PLACED
        assert east.live() == 1
    else:
        assert answer.outcome is not Outcome.PLACED
        assert east.live() == 0


def test_who_takes_over_gives_back_what_the_first_one_claimed(zone, monkeypatch):
    top, east = zone('top'), zone('east').hosts(1, 8)
    top.above(east)
    monkeypatch.setattr(request_lock, 'SPARE_SECONDS', 0.0)
    settle = top.store.zone_requests.finish_request
    monkeypatch.setattr(top.store.zone_requests, 'finish_request', lambda *args: 1 / 0)
    request = a_request(budget_ms=1500)
    assert top.select(request).outcome is Outcome.FAILED
    assert east.live() == 1  # nobody knows of it above
    monkeypatch.setattr(top.store.zone_requests, 'finish_request', settle)
    answer = top.select(request)
    assert answer.outcome is Outcome.PLACED, answer.reason
    until(lambda: east.live() == 1)
    assert east.store.claims.load_claim(answer.selections[0][0].claim_id).is_live


def test_hosts_that_a_zone_does_not_tell_of_are_not_counted(zone):
    """A zone of another owner says what fits, and not on how many hosts it looked."""
    top, east = zone('top').hosts(2, 1), zone('east').hosts(3, 8)
    top.above(east, trusted=False)
    east.put('/v1/parents/top', {'trusted': False})
    placed, refused = top.select(a_request(vcpu=4)), top.select(a_request(vcpu=100))
    until(lambda: not top.recorder.flush() and top.insights.is_decision(refused.decision_id))
    assert refused.reason.startswith(
        'none of 2 hosts in 1 zone has room, nor has zone east, which names none: '
    )
    for answer in (placed, refused):
        lines = '\n'.join(top.insights.explain(answer.decision_id).lines)
        assert 'of 0 hosts' not in lines, lines


def test_what_was_decided_is_explained_and_old_requests_are_forgotten(zone):
    top, east = zone('top'), zone('east').hosts(1, 4)
    top.above(east)
    request = a_request()
    placed = top.select(request)
    refused = top.select(a_request(vcpu=100))
    until(lambda: not top.recorder.flush() and top.insights.is_decision(refused.decision_id))
    assert 'placed in zone east' in '\n'.join(top.insights.explain(placed.decision_id).lines)
    lines = '\n'.join(top.insights.explain(refused.decision_id).lines)
    assert 'none of 1 host in 2 zones has room' in lines
    everything = {'decisions': 10, 'tombstone_seconds': -1.0, 'request_seconds': -1.0, 'limit': 100}
    top.store.retention.purge(**everything)
    assert top.store.requests.load_request(request.request_id) is not None  # it has a claim below
    top.client.cancel_claims(request.request_id)
    until(lambda: east.live() == 0)
    for _ in range(3):
        top.store.retention.purge(**everything)
    assert top.store.requests.load_request(request.request_id) is None
    assert top.store.child_claims.find() == []
    assert not top.on_their_way()


def test_a_zone_is_registered_looked_at_and_removed(zone):
    top, east = zone('top'), zone('east').hosts(1, 4)
    unknown = top.put('/v1/zones/east', {'url': east.url})
    assert unknown.status_code == 400 and f'--identity {top.uuid}' in unknown.text
    top.above(east)
    assert top.get('/v1/zones/east').json()['problem'] == ''
    moved = top.put('/v1/zones/east', {'url': top.url})
    assert moved.status_code == 400 and 'this zone itself' in moved.text
    request = a_request()
    top.select(request)
    in_use = httpx.delete(f'{top.url}/v1/zones/east', headers=VERSION)
    assert in_use.status_code == 409
    assert httpx.delete(f'{east.url}/v1/parents/top', headers=VERSION).status_code == 409
    top.put('/v1/zones/east', {'enabled': False})
    top.zones.directory.refresh()
    assert top.select(a_request(budget_ms=2000)).outcome is not Outcome.PLACED
    top.client.cancel_claims(request.request_id)
    until(lambda: east.live() == 0)
    assert httpx.delete(f'{top.url}/v1/zones/east', headers=VERSION).status_code == 200
    assert top.get('/v1/zones').json()['zones'] == []


def test_a_copy_that_comes_meanwhile_waits_for_the_first(zone, monkeypatch):
    top, east = zone('top'), zone('east').hosts(1, 8)
    top.above(east)
    calls, begun, go_on = top.zones.calls, threading.Event(), threading.Event()
    allocate = calls.allocate

    def slowly(*args):
        allocated = allocate(*args)
        begun.set()
        go_on.wait(10)
        return allocated

    monkeypatch.setattr(calls, 'allocate', slowly)
    request = a_request()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        first = threads.submit(top.select, request)
        assert begun.wait(10)
        second = threads.submit(top.select, request)
        other = msgspec.structs.replace(request, consumers=[uuid_of('another')])
        assert top.select(other).outcome is Outcome.REUSED
        go_on.set()
        assert first.result() == second.result()
    (claim,) = east.store.claims.list_claims(state='reserved', limit=5)
    assert claim.id == first.result().selections[0][0].claim_id


def test_a_zone_that_hangs_is_left_alone_and_the_others_serve(zone):
    top, east = zone('top'), zone('east').hosts(1, 8)
    west = zone('west').hosts(1, 8)
    top.above(east, west)
    calls, queried = top.zones.calls, []
    evaluate = calls.evaluate

    def hangs(record, *args):
        if record.name == 'west':
            queried.append(record.name)
            threading.Event().wait(6)
        return evaluate(record, *args)

    calls.evaluate = hangs
    children = [children_of(top.select(a_request(budget_ms=20_000))) for _ in range(5)]
    assert children == [['east']] * 5
    assert len(queried) < 3, 'a zone that was silent is not asked by each request'
    refused = top.select(a_request(vcpu=100, budget_ms=20_000))
    assert refused.outcome is Outcome.UNKNOWN and 'west' in refused.reason


def test_a_cancel_leaves_a_guest_that_runs_below(zone):
    top, east = zone('top'), zone('east').hosts(1)
    top.above(east)
    request = a_request()
    chosen = top.select(request).selections[0][0]
    assert east.confirm(chosen.claim_id) == 'ok'
    top.client.cancel_claims(request.request_id)
    assert [row.state for row in top.store.child_claims.find(request.request_id)] == ['confirmed']
    assert east.live() == 1
    again = top.select(a_request(consumers=request.consumers))
    assert again.outcome is Outcome.REFUSED


def test_a_cancelled_consumer_is_placed_again_once_the_zone_below_has_heard_of_it(
    zone, monkeypatch
):
    top, east = zone('top').hosts(1, 2), zone('east').hosts(1, 8)
    top.above(east)
    request = a_request(vcpu=4)
    assert children_of(top.select(request)) == ['east']
    calls = top.zones.calls
    release = calls.release

    def unheard(*args):
        raise exceptions.Unavailable('the connection broke')

    monkeypatch.setattr(calls, 'release', unheard)
    top.client.cancel_claims(request.request_id)
    # A conductor that has the place may still have a guest started there.
    assert east.live() == 1
    another = top.select(a_request(vcpu=1, consumers=request.consumers))
    assert another.outcome is Outcome.REFUSED
    monkeypatch.setattr(calls, 'release', release)
    until(lambda: top.store.child_claims.find(request.request_id)[0].state == 'released')
    answer = top.select(a_request(vcpu=1, consumers=request.consumers))
    assert answer.outcome is Outcome.PLACED, answer.reason
    # At once, where everybody answers.
    top.client.cancel_claims(answer.request_id)
    answer = top.select(a_request(vcpu=4, consumers=request.consumers))
    assert children_of(answer) == ['east'], answer.reason
    assert east.live() == 1


def test_what_is_to_be_given_back_is_not_taken_again(zone, monkeypatch):
    """Its end may arrive at any time, even after the answer."""
    top, east = zone('top'), zone('east').hosts(3, 8)
    top.above(east)
    calls = top.zones.calls
    allocate, allocation, release = calls.allocate, calls.allocation, calls.release

    def unheard(*args):
        raise exceptions.Unavailable('the connection broke')

    def unanswered(*args):
        allocate(*args)
        for name, call in (('allocate', allocate), ('allocation', allocation)):
            monkeypatch.setattr(calls, name, call)
        raise exceptions.Unavailable('the connection broke')

    monkeypatch.setattr(calls, 'allocate', unanswered)
    monkeypatch.setattr(calls, 'allocation', unheard)
    monkeypatch.setattr(calls, 'release', unheard)
    answer = top.select(a_request(budget_ms=6000))
    assert answer.outcome is Outcome.PLACED, answer.reason
    monkeypatch.setattr(calls, 'release', release)
    until(lambda: not top.store.zone_releases.waiting_releases().number)
    assert east.live() == 1
    assert east.store.claims.load_claim(answer.selections[0][0].claim_id).is_live


def test_a_scheduler_that_wakes_up_too_late_finishes_nothing(zone, monkeypatch):
    """Meanwhile the consumer was placed by another request: frozen, it had a claim below."""
    top, east = zone('top').hosts(1, 2), zone('east').hosts(1, 8)
    top.above(east)
    finish, frozen, wakes = (
        top.store.zone_requests.finish_request,
        threading.Event(),
        threading.Event(),
    )

    def late(*args):
        frozen.set()
        wakes.wait(20)
        return finish(*args)

    monkeypatch.setattr(top.store.zone_requests, 'finish_request', late)
    request = a_request(vcpu=4, budget_ms=500)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        first = threads.submit(top.select, request)
        assert frozen.wait(10)
        assert east.live() == 1
        another = a_request(vcpu=1, consumers=request.consumers)
        until(lambda: top.select(another).outcome is Outcome.PLACED)
        wakes.set()
        assert first.result().outcome is not Outcome.PLACED
    assert top.live() == 1
    until(lambda: east.live() == 0)


def test_a_consumer_with_a_claim_of_before_there_were_zones_is_not_placed_below(zone):
    top, east = zone('top').hosts(1, 2), zone('east').hosts(1, 8)
    request = a_request(vcpu=1)
    assert top.select(request).outcome is Outcome.PLACED
    top.above(east)
    another = top.select(a_request(vcpu=4, consumers=request.consumers))
    assert another.outcome is Outcome.REFUSED, another.reason
    assert (top.live(), east.live()) == (1, 0)


def test_a_request_that_no_zone_can_understand_leaves_nothing_open(zone, monkeypatch):
    top, east = zone('top'), zone('east').hosts(1)
    top.above(east)

    def refuses(*args, **kwargs):
        raise exceptions.Refused('no')

    monkeypatch.setattr(top.over_zones._planner._evaluator, 'evaluate', refuses)
    request = a_request()
    assert top.select(request).outcome is Outcome.REFUSED
    assert top.store.requests.load_request(request.request_id) is None
    assert not top.on_their_way()


def test_members_are_split_over_all_that_a_zone_has_and_what_is_below_it(zone):
    top, mid, leaf = zone('top'), zone('mid').hosts(1, 4), zone('leaf').hosts(1, 4)
    far = zone('far').hosts(1, 64)
    mid.above(leaf)
    top.above(mid).above(far, last_resort=True)
    answer = top.select(a_request(8, ram=64))
    assert answer.outcome is Outcome.PLACED, answer.reason
    assert children_of(answer) == ['mid'] * 8
    assert (mid.live(), leaf.live(), far.live()) == (4, 4, 0)


def test_who_has_not_heard_from_all_zones_below_it_does_not_know(zone):
    top, mid, leaf = zone('top'), zone('mid').hosts(1, 2), zone('leaf').hosts(1, 16)
    mid.above(leaf)
    top.above(mid)
    leaf.cut()
    answer = top.select(a_request(vcpu=8, budget_ms=5000))
    assert answer.outcome is Outcome.UNKNOWN
    assert 'not all child zones of mid have answered' in answer.reason


def test_a_zone_with_none_below_reads_nothing_of_them(zone, monkeypatch):
    alone = zone('alone').hosts(1, 4)
    monkeypatch.setattr(alone.store.child_claims, 'find', lambda *args, **more: 1 / 0)
    request = a_request()
    assert alone.select(request).outcome is Outcome.PLACED
    alone.client.extend_claims(request.request_id, 60)
    alone.client.cancel_claims(request.request_id)
    assert alone.live() == 0


def test_alternates_come_from_the_zone_that_has_the_place(zone):
    top, mid, leaf = zone('top').hosts(1, 2), zone('mid'), zone('leaf').hosts(4, 8)
    mid.above(leaf)
    top.above(mid)
    request = a_request(vcpu=4, alternates=2)
    answer = top.select(request)
    assert answer.outcome is Outcome.PLACED, answer.reason
    chosen, *others = answer.selections[0]
    assert [(alternate.child, alternate.host, alternate.claim_id) for alternate in others] == 2 * [
        ('mid', '', None)
    ]
    assert top.select(request).selections == answer.selections
    hosts = [leaf.store.claims.load_claim(chosen.claim_id).host]
    for alternate in others:
        unsealed = mid.unseal(alternate.sealed_host)
        assert (unsealed['child'], unsealed['is_alternate'], unsealed['host']) == ('leaf', True, '')
        unsealed = leaf.unseal(unsealed['sealed_host'])
        assert unsealed['is_alternate'] and unsealed['consumer'] == request.consumers[0]
        assert (unsealed['claim_id'], unsealed['topic']) == (
            '',
            f'gantt-compute.{unsealed["host"]}',
        )
        hosts.append(unsealed['host'])
    assert len(set(hosts)) == 3 and all(host.startswith('leaf-') for host in hosts)
    assert not mid.unseal(chosen.sealed_host)['is_alternate']
    assert leaf.live() == 1
    # Who asks for none gets none; and of none that is there nothing is made up.
    assert [len(selection) for selection in top.select(a_request(alternates=0)).selections] == [1]
    assert [
        len(selection) for selection in top.select(a_request(vcpu=8, alternates=9)).selections
    ] == [3]
    for hidden in ('leaf-1', 'leaf-2', 'leaf-3', 'leaf-4'):
        assert hidden not in top.everything() + mid.everything()
