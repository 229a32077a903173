# SPDX-License-Identifier: Apache-2.0
"""What a repeat is answered: the same as before, from a reference or from what was stored whole."""

import msgspec
import pytest

from gantt.core.messages.report import ReportedMetric
from gantt.core.messages.request import GetRequest
from gantt.core.records import members
from gantt.core.records.decision import Answer, Outcome
from gantt.core.records.members import AnswerReference
from tests.builders import new_uuid
from tests.conftest import READERS
from tests.world import World, a_request

#: The store in memory keeps answers whole.
KINDS = READERS


@pytest.fixture
def world(store):
    new_world = World(store, hosts=4)
    new_world.select(a_request())  # a store knows with its first commit that it may refer
    return new_world


def whole(answer):
    """Of an answer all that a caller is sent."""
    return msgspec.json.encode(members.encodable_answer(answer))


def stored_of(world, request):
    return members.unpack(world.store.requests.load_request(request.request_id).answer)


@pytest.mark.parametrize('count', [1, 3])
def test_a_repeat_is_answered_the_same_alternates_included(world, count):
    request = a_request(count)
    first = world.select(request)
    assert first.outcome is Outcome.PLACED and all(len(places) > 1 for places in first.selections)
    assert whole(world.select(request)) == whole(first)
    assert isinstance(stored_of(world, request), AnswerReference)


def test_it_is_read_for_who_asks_what_became_of_a_request(world):
    first = world.select(request := a_request(2))
    answer = world.scheduler.get_request(GetRequest(request_id=request.request_id))
    assert whole(answer) == whole(first)


def test_another_scheduler_that_has_seen_nothing_of_it_answers_the_same(world):
    first = world.select(request := a_request(2))
    other = world.another_scheduler()
    assert whole(world.select(request, other)) == whole(first)


def test_what_the_host_looks_like_now_changes_no_answer_of_before(world):
    first = world.select(request := a_request(2, ram=2048))
    for host in world.hosts.values():
        host.report(metrics={'load': ReportedMetric(value=0.9)})
    world.turn()
    world.select(a_request(3))
    assert whole(world.select(request)) == whole(first)


def test_without_its_decision_the_claims_tell_and_there_are_no_alternates(world):
    first = world.select(request := a_request(3))
    world.store.retention.purge(decisions=0, tombstone_seconds=60, request_seconds=60, limit=1000)
    again = world.select(request)
    assert [places[0] for places in again.selections] == [
        msgspec.structs.replace(places[0], zone=again.selections[i][0].zone)
        for i, places in enumerate(first.selections)
    ]
    assert [len(places) for places in again.selections] == [1, 1, 1]
    assert (again.outcome, again.decision_id) == (Outcome.PLACED, first.decision_id)


def test_an_answer_that_was_stored_whole_is_read_as_ever():
    answer = Answer(request_id=new_uuid(), decision_id=new_uuid(), outcome=Outcome.PLACED)
    stored = msgspec.msgpack.encode(answer)
    assert members.unpack(stored) == answer


def test_a_request_that_was_placed_in_several_passes_is_stored_whole(store):
    world = World(store, hosts=4, claims_per_commit=2)
    first = world.select(request := a_request(5))
    assert len(first.selections) == 5
    assert isinstance(stored_of(world, request), Answer)
    assert whole(world.select(request)) == whole(first)


def test_a_young_decision_goes_for_its_bytes_and_not_for_their_number(world):
    requests = [a_request() for _ in range(4)]
    for request in requests:
        world.select(request)
    world.turn(times=3)
    bounds = {'tombstone_seconds': 60, 'request_seconds': 60, 'limit': 1000}
    world.store.retention.purge(decisions=1, decision_seconds=3600, **bounds)
    assert len(world.store.records.list_decisions()) == 5
    world.store.retention.purge(decisions=1, decision_seconds=3600, decision_bytes=1, **bounds)
    assert len(world.store.records.list_decisions()) < 5
    world.store.retention.purge(decisions=0, decision_seconds=0, **bounds)
    assert world.store.records.list_decisions() == []
