# SPDX-License-Identifier: Apache-2.0
"""A repeat has the effect of one, also where there is no more room for another."""

from gantt.core.decision import Outcome
from tests.world import World, a_group, a_request


def _fill(world: World) -> tuple:
    request = a_request(ram=32_768)
    return request, world.select(request)


def test_a_repeat_on_a_full_cloud_gets_the_answer_it_was_given():
    world = World(hosts=1)
    request, first = _fill(world)
    assert first.outcome is Outcome.PLACED
    again = world.select(request)
    assert again.selections == first.selections
    assert len(world.store.claims()) == 1


def test_another_body_on_a_full_cloud_is_still_refused_as_such():
    world = World(hosts=1)
    request, _ = _fill(world)
    other = a_request(ram=32_000, request_id=request.request_id)
    assert world.select(other).outcome is Outcome.REUSED


def test_a_cancelled_request_stays_cancelled_on_a_full_cloud():
    world = World(hosts=1)
    request, _ = _fill(world)
    other = a_request(vcpu=1)
    world.store.cancel_request(other.request_id, 'changed my mind')
    assert world.select(other).outcome is Outcome.CANCELLED


def test_a_consumer_asked_for_anew_gives_up_its_older_reserved_claim():
    world = World(hosts=1)
    first = world.select(a_request(ram=10_000))
    consumer = first.selections[0][0].consumer
    second = world.select(a_request(ram=10_000, consumers=[consumer]))
    assert second.outcome is Outcome.PLACED
    assert world.store.load_claim(first.selections[0][0].claim_id).state == 'released'
    assert world.audit() == {'over_commit': [], 'lost': [], 'leaked': [], 'doubled': []}


def test_a_consumer_that_runs_gets_no_second_claim():
    world = World(hosts=2)
    chosen = world.select(a_request()).selections[0][0]
    assert world.hosts[chosen.host].confirm(chosen.claim_id) == ['ok']
    again = world.select(a_request(consumers=[chosen.consumer]))
    assert again.outcome is Outcome.REFUSED
    assert chosen.host in again.reason
    assert len(world.store.claims()) == 1


def test_two_requests_for_one_consumer_in_one_batch_leave_one_claim():
    world = World(hosts=2)
    first = a_request()
    handles = [world.ask(first), world.ask(a_request(consumers=first.consumers))]
    world.turn(times=5)
    assert all(world.replies.answers[h].outcome is Outcome.PLACED for h in handles)
    assert len([c for c in world.store.claims() if c.is_live]) == 1
    assert world.audit()['doubled'] == []


def test_a_move_has_two_claims():
    world = World(hosts=2)
    chosen = world.select(a_request()).selections[0][0]
    world.hosts[chosen.host].confirm(chosen.claim_id)
    moved = world.select(
        a_request(consumers=[chosen.consumer], purpose='resize', ignore_hosts=[chosen.host])
    )
    assert moved.outcome is Outcome.PLACED
    live = [c for c in world.store.claims() if c.is_live]
    assert sorted(c.purpose for c in live) == ['create', 'resize']
    assert world.audit()['doubled'] == []


def test_the_other_members_of_an_older_request_keep_their_claims():
    world = World(hosts=2)
    first = a_request(3)
    answer = world.select(first)
    assert world.select(a_request(consumers=first.consumers[:1])).outcome is Outcome.PLACED
    for selections in answer.selections[1:]:
        assert world.store.load_claim(selections[0].claim_id).state == 'reserved'


def test_an_older_claim_stays_where_the_new_request_finds_no_room():
    world = World(hosts=1)
    chosen = world.select(a_request()).selections[0][0]
    no = world.select(a_request(ram=10**6, consumers=[chosen.consumer]))
    assert no.outcome is Outcome.NO_VALID_HOST
    assert world.store.load_claim(chosen.claim_id).state == 'reserved'


def test_a_claim_that_gave_way_on_its_own_host_leaves_its_group_free():
    world = World(hosts=1)
    group = a_group('anti-affinity')
    first = world.select(a_request(group=group)).selections[0][0]
    assert world.select(a_request(consumers=[first.consumer])).outcome is Outcome.PLACED
    world.turn()
    # Nobody of the group is left there, and every scheduler knows it.
    assert world.select(a_request(group=group)).outcome is Outcome.PLACED


def test_what_runs_for_another_purpose_is_not_created_once_more():
    world = World(hosts=2)
    moved = world.select(a_request(purpose='evacuate')).selections[0][0]
    world.hosts[moved.host].confirm(moved.claim_id)
    again = world.select(a_request(consumers=[moved.consumer]))
    assert again.outcome is Outcome.REFUSED
    assert f'runs on {moved.host}' in again.reason
