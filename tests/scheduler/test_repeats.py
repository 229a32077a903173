# SPDX-License-Identifier: Apache-2.0
"""A repeat has the effect of one, also where there is no more room for another."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.request import GetRequest
from gantt.core.records.decision import Outcome
from tests.builders import CLEAN
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
    assert len(world.store.claims.list_claims()) == 1


def test_another_body_on_a_full_cloud_is_still_refused_as_such():
    world = World(hosts=1)
    request, _ = _fill(world)
    other = a_request(ram=32_000, request_id=request.request_id)
    assert world.select(other).outcome is Outcome.REUSED


def test_a_cancelled_request_stays_cancelled_on_a_full_cloud():
    world = World(hosts=1)
    request, _ = _fill(world)
    other = a_request(vcpu=1)
    world.store.requests.cancel_request(other.request_id, 'changed my mind')
    assert world.select(other).outcome is Outcome.CANCELLED


def test_a_consumer_asked_for_anew_gives_up_its_older_reserved_claim():
    world = World(hosts=1)
    first = world.select(a_request(ram=10_000))
    consumer = first.selections[0][0].consumer
    second = world.select(a_request(ram=10_000, consumers=[consumer]))
    assert second.outcome is Outcome.PLACED
    assert world.store.claims.load_claim(first.selections[0][0].claim_id).state == 'released'
    assert world.audit() == CLEAN


def test_a_consumer_that_runs_gets_no_second_claim():
    world = World(hosts=2)
    chosen = world.select(a_request()).selections[0][0]
    assert world.hosts[chosen.host].confirm(chosen.claim_id) == ['ok']
    again = world.select(a_request(consumers=[chosen.consumer]))
    assert again.outcome is Outcome.REFUSED
    assert chosen.host in again.places[0]
    assert len(world.store.claims.list_claims()) == 1


def test_two_requests_for_one_consumer_in_one_batch_leave_one_claim():
    world = World(hosts=2)
    first = a_request()
    handles = [world.ask(first), world.ask(a_request(consumers=first.consumers))]
    world.turn(times=5)
    assert all(world.replies.answers[h].outcome is Outcome.PLACED for h in handles)
    assert len([c for c in world.store.claims.list_claims() if c.is_live]) == 1
    assert world.audit()['doubled'] == []


def test_a_move_has_two_claims():
    world = World(hosts=2)
    chosen = world.select(a_request()).selections[0][0]
    world.hosts[chosen.host].confirm(chosen.claim_id)
    moved = world.select(
        a_request(consumers=[chosen.consumer], purpose='resize', ignore_hosts=[chosen.host])
    )
    assert moved.outcome is Outcome.PLACED
    live = [c for c in world.store.claims.list_claims() if c.is_live]
    assert sorted(c.purpose for c in live) == ['create', 'resize']
    assert world.audit()['doubled'] == []


def test_the_other_members_of_an_older_request_keep_their_claims():
    world = World(hosts=2)
    first = a_request(3)
    answer = world.select(first)
    assert world.select(a_request(consumers=first.consumers[:1])).outcome is Outcome.PLACED
    for selections in answer.selections[1:]:
        assert world.store.claims.load_claim(selections[0].claim_id).state == 'reserved'


def test_an_older_claim_stays_where_the_new_request_finds_no_room():
    world = World(hosts=1)
    chosen = world.select(a_request()).selections[0][0]
    no = world.select(a_request(ram=10**6, consumers=[chosen.consumer]))
    assert no.outcome is Outcome.NO_VALID_HOST
    assert world.store.claims.load_claim(chosen.claim_id).state == 'reserved'


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
    assert again.reason == f'consumer {moved.consumer} has a place already'
    assert again.places == [f'host {moved.host}, claim {moved.claim_id}']


def test_a_repeat_elsewhere_waits_within_its_budget_for_the_first_to_be_done():
    """On a full cloud, where the first holds its request open between two commits."""
    world = World(hosts=1, claims_per_commit=2)
    first, second = world.scheduler, world.another_scheduler()
    request = a_request(4, ram=8192, budget_ms=60_000)
    world.ask(request)
    world.schedulers = [second]
    first.placing.step()
    assert world.select(a_request(2, ram=8192), by=second).outcome is Outcome.PLACED
    began = world.clock.monotonic()
    second.submit(request, 'repeat', world.replies)
    while 'repeat' not in world.replies.answers:
        world.turn(0.1)
        assert world.clock.monotonic() - began < 120
    assert world.replies.answers['repeat'].outcome is not Outcome.CONFLICT
    assert world.clock.monotonic() - began > 5


def _two_copies(world, room_later):
    """A copy waits at the first scheduler; its repeat is refused by another one."""
    first, second = world.scheduler, world.another_scheduler()
    request = a_request(ram=20_000, budget_ms=60_000)
    blocker = world.select(a_request(ram=20_000), by=second)
    early = object()
    first.submit(request, early, world.replies)
    world.schedulers = [second]
    repeat = msgspec.structs.replace(request, repeat=True)
    refused = world.select(repeat, by=second)
    assert refused.outcome is Outcome.NO_VALID_HOST
    if room_later:
        world.store.requests.cancel_request(blocker.request_id, 'gone')
    world.schedulers = [first, second]
    while early not in world.replies.answers:
        world.turn(0.1)
    return request, repeat, refused, world.replies.answers[early]


def test_after_its_repeat_was_refused_the_first_copy_is_not_placed():
    world = World(hosts=1)
    request, repeat, refused, first = _two_copies(world, room_later=True)
    assert first.outcome is Outcome.NO_VALID_HOST
    assert first.reason == refused.reason
    assert not [
        claim
        for claim in world.store.claims.list_claims()
        if claim.request_id == request.request_id
    ]
    assert world.audit() == CLEAN


def test_who_asks_once_more_is_told_the_refusal_again():
    world = World(hosts=1)
    request, repeat, refused, _ = _two_copies(world, room_later=True)
    for asked in (repeat, request):
        again = world.select(asked)
        assert (again.outcome, again.reason) == (refused.outcome, refused.reason)
        assert again.decision_id == refused.decision_id != ''
    stored = world.scheduler.get_request(GetRequest(request_id=request.request_id))
    assert stored.outcome is Outcome.NO_VALID_HOST


def test_a_first_refusal_is_not_kept():
    """Only of a repeat another copy may be on its way."""
    world = World(hosts=1)
    blocker = world.select(a_request(ram=20_000))
    request = a_request(ram=20_000)
    assert world.select(request).outcome is Outcome.NO_VALID_HOST
    world.store.requests.cancel_request(blocker.request_id, 'gone')
    assert world.select(request).outcome is Outcome.PLACED


def test_what_was_placed_and_taken_back_is_told_so_whoever_asks():
    world = World(hosts=1)
    request = a_request(ram=32_768)
    assert world.select(request).outcome is Outcome.PLACED
    world.store.requests.cancel_request(request.request_id, 'changed my mind')
    for asked in (request, msgspec.structs.replace(request, repeat=True)):
        assert world.select(asked).outcome is Outcome.CANCELLED
    with pytest.raises(exceptions.RequestCancelled):
        world.scheduler.get_request(GetRequest(request_id=request.request_id))
