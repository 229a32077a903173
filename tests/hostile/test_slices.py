# SPDX-License-Identifier: Apache-2.0
"""One request of many members does not hold the thread that places for all."""

import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages.request import GroupRef, Policy, Purpose
from gantt.core.placement import place as placing
from gantt.core.placement.place import Pause, place
from gantt.core.records.decision import Outcome
from gantt.scheduler.clock import ManualClock
from gantt.scheduler.placing.admission import PendingRequest
from gantt.scheduler.select_destinations import SLICE_SECONDS
from tests import world
from tests.builders import CLEAN, a_request, uuid_of
from tests.conftest import STORES

TITLE = 'the placing thread lets others through between the members of a request'


class Ticking(ManualClock):
    """A clock by which looking at it takes time, once it is told how much."""

    tick = 0.0

    def monotonic(self):
        self.advance(self.tick)
        return super().monotonic()


@pytest.fixture
def make_world(monkeypatch, make_store):
    monkeypatch.setattr(world, 'ManualClock', Ticking)
    return lambda kind='memory', **more: world.World(
        None if kind == 'memory' else make_store(kind), hosts=4, **more
    )


def consumers(count):
    return [uuid_of('member', number) for number in range(count)]


def told(found, handle):
    return found.replies.answers[handle]


@pytest.mark.finding('H1', TITLE)
@pytest.mark.parametrize('kind', STORES)
def test_members_that_may_be_claimed_apart_are_claimed_slice_by_slice(
    make_world, kind, monkeypatch
):
    monkeypatch.setattr(placing, 'STEPS_MOST', 3)  # else all of them are one step
    found = make_world(kind)
    many = found.ask(a_request(consumers=consumers(30), budget_ms=600_000).build())
    one = found.ask(a_request().build())
    found.clock.tick = SLICE_SECONDS / 3
    found.scheduler.placing.step()
    # The rest of the many was not waited for.
    assert told(found, one).outcome is Outcome.PLACED
    assert 2 < len(found.store.claims()) < 31
    assert many not in found.replies.answers
    found.turn(times=30)
    answer = told(found, many)
    assert answer.outcome is Outcome.PLACED
    assert len(answer.selections) == 30
    assert len(found.store.claims()) == 31
    assert found.store.audit() == CLEAN


@pytest.mark.finding('H1', TITLE)
@pytest.mark.parametrize('kind', STORES)
@pytest.mark.parametrize('policy', [Policy.AFFINITY, Policy.SOFT_ANTI_AFFINITY])
def test_who_waits_behind_members_that_are_claimed_together_is_served_between(
    make_world, kind, policy
):
    found = make_world(kind)
    group = GroupRef(uuid=uuid_of('group'), policy=policy)
    together = a_request(consumers=consumers(12), group=group, budget_ms=600_000).build()
    many = found.ask(together)
    ones = [found.ask(a_request(budget_ms=600_000).build()) for _ in range(5)]
    found.clock.tick = SLICE_SECONDS / 3
    order = []
    found.replies.send = lambda answers: order.extend(handle for handle, _ in answers)
    found.turn(times=20)
    assert set(order) == {many, *ones}
    assert order[-1] is many
    hosts = {claim.provider_id for claim in found.store.claims() if claim.group}
    assert len(found.store.claims()) == 17
    assert policy is not Policy.AFFINITY or len(hosts) == 1
    assert found.store.audit() == CLEAN


@pytest.mark.finding('H1', TITLE)
def test_who_finds_no_room_between_members_keeps_no_other_from_being_served(make_world):
    found = make_world(claims_per_commit=2)
    group = GroupRef(uuid=uuid_of('group'), policy=Policy.SOFT_ANTI_AFFINITY)
    many = found.ask(a_request(consumers=consumers(30), group=group, budget_ms=600_000).build())
    none = [found.ask(world.a_request(vcpu=99, budget_ms=600_000)) for _ in range(4)]
    good = found.ask(a_request(budget_ms=600_000).build())
    found.clock.tick = SLICE_SECONDS / 3
    order = []
    found.replies.send = lambda answers: order.extend(handle for handle, _ in answers)
    found.turn(times=20)
    assert set(order) == {many, good, *none}
    assert order.index(good) < order.index(many)
    assert found.scheduler.placing.admission.depth == 0


@pytest.mark.finding('H1', 'who is served between the members of another fails by itself')
def test_a_failure_of_who_is_served_between_costs_nobody_the_answer(make_world, monkeypatch):
    found = make_world()
    group = GroupRef(uuid=uuid_of('group'), policy=Policy.AFFINITY)
    many = found.ask(a_request(consumers=consumers(12), group=group, budget_ms=600_000).build())
    good = found.ask(a_request(budget_ms=600_000).build())
    bad_request = a_request(budget_ms=600_000).build()
    bad = found.ask(bad_request)
    commit = found.store.commit

    def failing(batch):
        if any(draft.id == bad_request.request_id for draft in batch):
            raise exceptions.Bug(invariant='the database takes what it is given')
        return commit(batch)

    monkeypatch.setattr(found.store, 'commit', failing)
    found.clock.tick = SLICE_SECONDS / 3
    placing = found.scheduler.placing
    for _ in range(20):
        try:
            placing.step()
        except Exception as e:  # as its thread does
            placing._abandon(e)
        found.scheduler.housekeeping.step()
        found.clock.advance(0.2)
    assert told(found, many).outcome is Outcome.PLACED
    assert told(found, good).outcome is Outcome.PLACED
    assert told(found, bad).outcome is Outcome.FAILED
    assert placing.admission.depth == 0
    assert len(found.store.claims()) == 13
    assert not found.scheduler.cache.working.picks()
    assert found.store.audit() == CLEAN


@pytest.mark.finding('H1', 'a call past its deadline is ended between its members')
@pytest.mark.parametrize(
    'fields',
    [
        {},
        {'group': GroupRef(uuid=uuid_of('group'), policy=Policy.AFFINITY)},
        {'dry_run': True},
    ],
    ids=['apart', 'together', 'dry run'],
)
def test_a_call_past_its_deadline_is_ended_between_members(make_world, fields):
    found = make_world()
    handle = found.ask(a_request(consumers=consumers(12), budget_ms=100, **fields).build())
    found.clock.tick = 0.03
    found.turn(seconds=0.0, times=20)
    answer = told(found, handle)
    assert answer.outcome is Outcome.EXPIRED
    assert 'budget' in answer.reason
    found.clock.tick = 0.0
    found.turn(times=5)
    assert not found.store.claims(state='reserved')
    assert not found.scheduler.cache.working.picks()
    assert found.store.audit() == CLEAN


def test_a_rebuild_is_looked_at_as_a_whole():
    assert PendingRequest(a_request(purpose=Purpose.REBUILD).build(), 1.0).is_whole
    assert not PendingRequest(a_request(consumers=consumers(2)).build(), 1.0).is_whole


@pytest.mark.finding('H1', 'a dry run is answered for all of its members')
def test_a_dry_run_is_of_all_members_however_many_are_claimed_at_once(make_world):
    found = make_world(claims_per_commit=5)
    handle = found.ask(a_request(consumers=consumers(12), dry_run=True).build())
    found.turn(times=3)
    answer = told(found, handle)
    assert answer.outcome is Outcome.PLACED
    assert len(answer.selections) == 12
    assert not found.scheduler.cache.working.picks()


@pytest.mark.finding('H1', 'a call past its deadline is ended between its members')
def test_past_the_deadline_no_other_host_is_tried_for_members_bound_to_one(make_world):
    """By room each host takes both; a rule that counts guests lets each have one."""
    table = make_world().scheduler.cache.working
    filters = [*plugin_loader.DEFAULT_FILTERS, 'NumInstancesFilter']
    pipeline = plugin_loader.load_pipeline(filters, options={'max_instances_per_host': 1})
    group = GroupRef(uuid=uuid_of('group'), policy=Policy.AFFINITY)
    request = a_request(consumers=consumers(2), group=group).build()
    asked = []

    def pause():
        asked.append(len(asked))
        return Pause.GO_ON if len(asked) == 1 else Pause.OVER

    decision = place(table, request, pipeline, seed=1, decision_id='one', pause=pause)
    assert decision.outcome is Outcome.EXPIRED
    assert len(asked) == 2
    assert not table.picks()
