# SPDX-License-Identifier: Apache-2.0
"""One request of many members does not hold the thread that places for all."""

import random

import msgspec
import pytest

from devel.doubles import ManualClock
from gantt import exceptions, plugin_loader
from gantt.core.candidates import tree_search
from gantt.core.messages.request import GroupRef, Policy, Purpose, RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.tree_request import DeviceAmount, TreeRequest
from gantt.core.pause import Pause
from gantt.core.placement import place as placing
from gantt.core.placement.place import place
from gantt.core.records.decision import Outcome
from gantt.scheduler.request.loop import MEMBER_SLICE_SECONDS
from gantt.scheduler.request.queue import PendingRequest
from tests import world
from tests.builders import CLEAN, a_request, uuid_of
from tests.conftest import STORES
from tests.nested import below

TITLE = 'the scheduling thread lets others through between the members of a request'


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


def told(slow_world, handle):
    return slow_world.replies.answers[handle]


@pytest.mark.finding('H1', TITLE)
@pytest.mark.parametrize('kind', STORES)
def test_members_that_may_be_claimed_apart_are_claimed_slice_by_slice(
    make_world, kind, monkeypatch
):
    monkeypatch.setattr(placing, 'MEMBERS_BY_STEPS_MAX', 3)  # else all of them are one step
    slow_world = make_world(kind)
    many = slow_world.ask(a_request(consumers=consumers(30), budget_ms=600_000).build())
    single = slow_world.ask(a_request().build())
    slow_world.clock.tick = MEMBER_SLICE_SECONDS / 3
    slow_world.scheduler.placing.step()
    # The rest of the many was not waited for.
    assert told(slow_world, single).outcome is Outcome.PLACED
    assert 2 < len(slow_world.store.claims.list_claims()) < 31
    assert many not in slow_world.replies.answers
    slow_world.turn(times=30)
    answer = told(slow_world, many)
    assert answer.outcome is Outcome.PLACED
    assert len(answer.selections) == 30
    assert len(slow_world.store.claims.list_claims()) == 31
    assert slow_world.store.claims.audit() == CLEAN


@pytest.mark.finding('H1', TITLE)
@pytest.mark.parametrize('kind', STORES)
@pytest.mark.parametrize('policy', [Policy.AFFINITY, Policy.SOFT_ANTI_AFFINITY])
def test_who_waits_behind_members_that_are_claimed_together_is_served_between(
    make_world, kind, policy
):
    slow_world = make_world(kind)
    group = GroupRef(uuid=uuid_of('group'), policy=policy)
    together = a_request(consumers=consumers(12), group=group, budget_ms=600_000).build()
    many = slow_world.ask(together)
    ones = [slow_world.ask(a_request(budget_ms=600_000).build()) for _ in range(5)]
    slow_world.clock.tick = MEMBER_SLICE_SECONDS / 3
    order = []
    slow_world.replies.send = lambda answers: order.extend(handle for handle, _ in answers)
    slow_world.turn(times=20)
    assert set(order) == {many, *ones}
    assert order[-1] is many
    hosts = {claim.provider_id for claim in slow_world.store.claims.list_claims() if claim.group}
    assert len(slow_world.store.claims.list_claims()) == 17
    assert policy is not Policy.AFFINITY or len(hosts) == 1
    assert slow_world.store.claims.audit() == CLEAN


@pytest.mark.finding('H1', TITLE)
def test_who_finds_no_room_between_members_keeps_no_other_from_being_served(make_world):
    slow_world = make_world(claims_per_commit=2)
    group = GroupRef(uuid=uuid_of('group'), policy=Policy.SOFT_ANTI_AFFINITY)
    many = slow_world.ask(
        a_request(consumers=consumers(30), group=group, budget_ms=600_000).build()
    )
    none = [slow_world.ask(world.a_request(vcpu=99, budget_ms=600_000)) for _ in range(4)]
    good = slow_world.ask(a_request(budget_ms=600_000).build())
    slow_world.clock.tick = MEMBER_SLICE_SECONDS / 3
    order = []
    slow_world.replies.send = lambda answers: order.extend(handle for handle, _ in answers)
    slow_world.turn(times=20)
    assert set(order) == {many, good, *none}
    assert order.index(good) < order.index(many)
    assert slow_world.scheduler.placing.admission.depth == 0


@pytest.mark.finding('H1', 'who is served between the members of another fails by itself')
def test_a_failure_of_who_is_served_between_costs_nobody_the_answer(make_world, monkeypatch):
    slow_world = make_world()
    group = GroupRef(uuid=uuid_of('group'), policy=Policy.AFFINITY)
    many = slow_world.ask(
        a_request(consumers=consumers(12), group=group, budget_ms=600_000).build()
    )
    good = slow_world.ask(a_request(budget_ms=600_000).build())
    bad_request = a_request(budget_ms=600_000).build()
    bad = slow_world.ask(bad_request)
    commit = slow_world.store.requests.commit

    def failing(batch):
        if any(draft.id == bad_request.request_id for draft in batch):
            raise exceptions.Bug(invariant='the database takes what it is given')
        return commit(batch)

    monkeypatch.setattr(slow_world.store.requests, 'commit', failing)
    slow_world.clock.tick = MEMBER_SLICE_SECONDS / 3
    placing = slow_world.scheduler.placing
    for _ in range(20):
        try:
            placing.step()
        except Exception as e:  # as its thread does
            placing._recover_from_failure(e)
        slow_world.scheduler.housekeeping.step()
        slow_world.clock.advance(0.2)
    assert told(slow_world, many).outcome is Outcome.PLACED
    assert told(slow_world, good).outcome is Outcome.PLACED
    assert told(slow_world, bad).outcome is Outcome.FAILED
    assert placing.admission.depth == 0
    assert len(slow_world.store.claims.list_claims()) == 13
    assert not slow_world.scheduler.cache.working.picks()
    assert slow_world.store.claims.audit() == CLEAN


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
    slow_world = make_world()
    handle = slow_world.ask(a_request(consumers=consumers(12), budget_ms=100, **fields).build())
    slow_world.clock.tick = 0.03
    slow_world.turn(seconds=0.0, times=20)
    answer = told(slow_world, handle)
    assert answer.outcome is Outcome.EXPIRED
    assert 'budget' in answer.reason
    slow_world.clock.tick = 0.0
    slow_world.turn(times=5)
    assert not slow_world.store.claims.list_claims(state='reserved')
    assert not slow_world.scheduler.cache.working.picks()
    assert slow_world.store.claims.audit() == CLEAN


def test_a_rebuild_is_looked_at_as_a_whole():
    assert PendingRequest(a_request(purpose=Purpose.REBUILD).build(), 1.0).is_whole
    assert not PendingRequest(a_request(consumers=consumers(2)).build(), 1.0).is_whole


@pytest.mark.finding('H1', 'a dry run is answered for all of its members')
def test_a_dry_run_is_of_all_members_however_many_are_claimed_at_once(make_world):
    slow_world = make_world(claims_per_commit=5)
    handle = slow_world.ask(a_request(consumers=consumers(12), dry_run=True).build())
    slow_world.turn(times=3)
    answer = told(slow_world, handle)
    assert answer.outcome is Outcome.PLACED
    assert len(answer.selections) == 12
    assert not slow_world.scheduler.cache.working.picks()


@pytest.mark.finding('H1', 'a call past its deadline is ended between its members')
def test_past_the_deadline_no_other_host_is_tried_for_members_bound_to_one(make_world):
    """By room each host takes both; a rule that counts guests lets each have one."""
    table = make_world().scheduler.cache.working
    filters = [*plugin_loader.DEFAULT_FILTERS, 'NumInstancesFilter']
    pipeline = plugin_loader.load_pipeline(filters, options={'max_instances_per_host': 1})
    group = GroupRef(uuid=uuid_of('group'), policy=Policy.AFFINITY)
    request = a_request(consumers=consumers(2), group=group).build()
    looks = []

    def pause(_):
        looks.append(len(looks))
        return Pause.GO_ON if len(looks) == 1 else Pause.OVER

    decision = place(table, request, pipeline, seed=1, decision_id='one', pause=pause)
    assert decision.outcome is Outcome.EXPIRED
    assert len(looks) == 2
    assert not table.picks()


def hard_devices(world, count=1):
    """Devices below hosts, and amounts that fill them to the last unit: long to search."""
    pick, amounts = random.Random(1), []
    for _ in range(12):
        remaining = 100
        while remaining > 0:
            amounts.append(min(remaining, pick.randint(15, 60)))
            remaining -= amounts[-1]
    pick.shuffle(amounts)
    table = world.scheduler.cache.working
    for host in range(count):
        for n in range(12):
            reserved = 20 * host + n
            inventory = Inventory(total=100 + reserved, reserved=reserved)
            below(world.store, f'gpu{host}-{n}', table.hosts[host].uuid, VGPU=inventory)
    world.turn(times=2)
    return TreeRequest(
        devices=[DeviceAmount(resource_class='VGPU', amount=amount) for amount in amounts]
    )


def of_trees(tree, **fields):
    spec = RequestSpec(resources={'VCPU': 1}, tree=tree)
    return msgspec.structs.replace(a_request(**fields).build(), spec=spec)


def test_others_are_placed_in_the_middle_of_a_search(make_world):
    slow_world = make_world()
    tree = hard_devices(slow_world, 2)
    hard = slow_world.ask(of_trees(tree, budget_ms=600_000))
    single = slow_world.ask(a_request().build())
    slow_world.clock.tick = MEMBER_SLICE_SECONDS / 3
    for _ in range(10):
        slow_world.scheduler.placing.step()
    assert list(slow_world.replies.answers) == [single, hard]
    assert told(slow_world, single).outcome is Outcome.PLACED
    # Whether there is room is not known, which is another answer than that there is none.
    assert told(slow_world, hard).outcome is Outcome.UNKNOWN
    assert 'is not known' in told(slow_world, hard).reason


def test_who_searches_long_itself_waits_until_others_have_searched(make_world):
    slow_world = make_world()
    tree = hard_devices(slow_world)
    hard = [slow_world.ask(of_trees(tree, budget_ms=600_000)) for _ in range(3)]
    single = slow_world.ask(a_request().build())
    slow_world.clock.tick = MEMBER_SLICE_SECONDS / 3
    for _ in range(10):
        slow_world.scheduler.placing.step()
    assert next(iter(slow_world.replies.answers)) == single
    assert {told(slow_world, handle).outcome for handle in hard} == {Outcome.UNKNOWN}


def test_a_search_ends_with_the_budget_of_its_request(make_world):
    slow_world = make_world()
    hard = slow_world.ask(of_trees(hard_devices(slow_world), budget_ms=200))
    slow_world.clock.tick = MEMBER_SLICE_SECONDS / 3
    slow_world.scheduler.placing.step()
    assert told(slow_world, hard).outcome is Outcome.EXPIRED


def test_a_search_goes_on_where_others_have_taken_of_its_tree_meanwhile(make_world, monkeypatch):
    monkeypatch.setattr(tree_search, 'PAUSE_EVERY_STEPS', 1)
    slow_world = make_world()
    tree = hard_devices(slow_world)
    table, pipeline = slow_world.scheduler.cache.working, plugin_loader.load_pipeline()
    some = TreeRequest(devices=tree.devices[:30])  # there is room for these
    request, other = of_trees(some), of_trees(TreeRequest(devices=tree.devices[-1:]))
    taken = []

    def pause(is_searching):
        if is_searching and not taken:
            taken.append(place(table, other, pipeline, seed=1, decision_id='two'))
            return Pause.REEVALUATE
        return Pause.GO_ON

    decision = place(table, request, pipeline, seed=1, decision_id='one', pause=pause)
    assert taken[0].outcome is decision.outcome is Outcome.PLACED
    assert all(table.pools.free(pool, 'VGPU') >= 0 for pool in table.pools.nested.of_host(1))


def test_many_groups_that_go_nowhere_are_refused_at_once(make_world):
    slow_world = make_world()
    host = slow_world.scheduler.cache.working.hosts[0].uuid
    for n in range(31):
        below(slow_world.store, f'gpu{n}', host, VGPU=Inventory(total=66 + n, reserved=n))
    slow_world.turn(times=2)
    amounts = [33] * 48 + [34] * 8
    tree = TreeRequest(
        devices=[DeviceAmount(resource_class='VGPU', amount=amount) for amount in amounts]
    )
    answer = slow_world.select(of_trees(tree))
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert 'VGPU' in answer.reason or 'go together' in answer.reason
