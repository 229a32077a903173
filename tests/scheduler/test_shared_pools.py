# SPDX-License-Identifier: Apache-2.0
"""Requests that take from pools which hosts share: from the pick to the claim, and back."""

import json
import random

import msgspec
import pytest

from gantt import plugin_loader
from gantt.core.filters.base import removal_reason
from gantt.core.filters.resources import ResourcesFilter
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import Purpose
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records import decision_codec
from gantt.core.records.decision import Outcome
from gantt.core.records.members import AnswerReference
from gantt.groups.model import take_reservations
from gantt.insights.replaying import Otherwise, Replayer, decision_differences
from gantt.nova.wire.objects import allocation_request
from tests.builders import CLEAN, set_inventories
from tests.scheduler.stores import KINDS, followed, store_of
from tests.shared_pools import a_shared_pool, share
from tests.world import Host, World, a_request, new_uuid, sqlite_store

RACK, ROOM = (derived_id('aggregate', name) for name in ('rack', 'room'))
NO_DISK = {'VCPU': Inventory(total=8), 'MEMORY_MB': Inventory(total=32_768)}


@pytest.fixture(params=KINDS)
def make_world(request, make_store):
    """A world with three hosts without disks, two of them in a rack, all in a room."""

    def make(**settings):
        world = World(store_of(request.param, make_store), **settings)
        for number in (1, 2, 3):
            racks = ['rack', 'room'] if number < 3 else ['room']
            host = Host(world, f'cmp-{number}', inventories=NO_DISK, aggregates=racks)
            world.hosts[host.name] = host
            host.report()
        world.turn()
        return world

    return make


@pytest.fixture
def world(make_world):
    return make_world()


def wanting(count=1, **amounts):
    """A request for processors and what else is named."""
    request = a_request(count)
    spec = msgspec.structs.replace(request.spec, resources={'VCPU': 1, **amounts})
    return msgspec.structs.replace(request, spec=spec)


def used(world, pool):
    return world.store.providers.load_provider(pool.uuid).used


def free(scheduler, pool, name='DISK_GB'):
    return scheduler.cache.working.pools.free(pool.id, name)


def test_what_hosts_lack_comes_from_a_pool(world):
    pool = a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=100)
    world.turn()
    answer = world.select(a_request(2, disk=30, alternates=1))
    assert answer.outcome is Outcome.PLACED
    for chosen, *others in answer.selections:
        assert chosen.host in ('cmp-1', 'cmp-2')
        assert chosen.resources == {'VCPU': 1, 'MEMORY_MB': 1024, 'DISK_GB': 30}
        host, of_pool = chosen.allocations
        assert (host.uuid, host.resources) == (chosen.uuid, {'VCPU': 1, 'MEMORY_MB': 1024})
        assert (of_pool.uuid, of_pool.name, of_pool.group) == (pool.uuid, 'ceph', '')
        assert of_pool.resources == {'DISK_GB': 30}
        claim = world.store.claims.load_claim(chosen.claim_id)
        assert claim.allocations == {
            chosen.provider_id: {'VCPU': 1, 'MEMORY_MB': 1024},
            pool.id: {'DISK_GB': 30},
        }
        for other in others:
            assert other.host != chosen.host
            assert [allocation.uuid for allocation in other.allocations] == [other.uuid, pool.uuid]
    assert used(world, pool) == {'DISK_GB': 60}
    assert free(world.scheduler, pool) == 40
    followed(world)


def test_a_repeat_gets_the_answer_with_the_providers(world):
    a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=100)
    world.turn()
    request = a_request(2, disk=30, alternates=1)
    first = world.select(request)
    assert world.select(request).selections == first.selections
    other = world.another_scheduler()
    assert world.select(request, by=other).selections == first.selections
    followed(world)


def test_who_asks_for_none_gets_none(world):
    pool = a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=100)
    world.turn()
    answer = world.select(wanting(4))
    assert [of[0].allocations for of in answer.selections] == [[]] * 4
    assert used(world, pool) == {}
    followed(world)


def test_a_host_that_has_it_itself_takes_its_own(world):
    pool = a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=100)
    own = Host(
        world,
        'cmp-4',
        inventories=NO_DISK | {'VCPU': Inventory(total=64), 'DISK_GB': Inventory(total=50)},
        aggregates=['rack'],
    )
    own.facts['inventories'] |= {'MEMORY_MB': Inventory(total=999_999)}
    own.report()
    world.turn()
    answer = world.select(a_request(2, disk=50))
    first, second = (of[0] for of in answer.selections)
    assert (first.host, first.allocations) == ('cmp-4', [])
    assert second.host == 'cmp-4'
    assert [allocation.name for allocation in second.allocations] == ['cmp-4', 'ceph']
    claim = world.store.claims.load_claim(first.claim_id)
    assert claim.allocations == {first.provider_id: {'VCPU': 1, 'MEMORY_MB': 1024, 'DISK_GB': 50}}
    assert used(world, pool) == {'DISK_GB': 50}
    followed(world)


def test_two_schedulers_fill_a_pool_and_no_more(world):
    pool = a_shared_pool(world.store, 'ceph', [ROOM], DISK_GB=100)
    other = world.another_scheduler()
    world.turn()
    handles = [
        world.ask(a_request(disk=30), by) for by in (world.scheduler, other) for _ in range(3)
    ]
    world.turn(times=20)
    outcomes = sorted(world.replies.answers[handle].outcome.value for handle in handles)
    assert outcomes == ['no_valid_host'] * 3 + ['placed'] * 3
    assert used(world, pool) == {'DISK_GB': 90}
    followed(world)


def test_a_lost_race_says_which_provider_it_was_and_is_planned_again(world):
    full = a_shared_pool(world.store, 'full', [ROOM], DISK_GB=30)
    other_pool = a_shared_pool(world.store, 'other', [ROOM], DISK_GB=100)
    other = world.another_scheduler()
    world.turn()
    handles = [world.ask(a_request(disk=30), by) for by in (world.scheduler, other)]
    world.turn(times=10)
    taken = [world.replies.answers[handle].selections[0][0].allocations[1] for handle in handles]
    assert sorted(provider.name for provider in taken) == ['full', 'other']
    assert used(world, full) == used(world, other_pool) == {'DISK_GB': 30}
    followed(world)


def test_a_pool_that_shrinks_while_it_is_claimed_takes_nothing_new(world):
    pool = a_shared_pool(world.store, 'ceph', [ROOM], DISK_GB=100)
    world.turn()
    assert world.select(a_request(disk=60)).outcome is Outcome.PLACED
    set_inventories(world.store, pool.uuid, {'DISK_GB': Inventory(total=50)})
    world.turn(times=3)
    assert free(world.scheduler, pool) == -10
    assert world.select(a_request(disk=1)).outcome is Outcome.NO_VALID_HOST
    set_inventories(world.store, pool.uuid, {'DISK_GB': Inventory(total=70)})
    assert world.select(a_request(disk=10)).outcome is Outcome.PLACED
    followed(world)


def test_a_pool_that_shrinks_behind_a_table_refuses_under_the_lock(world):
    pool = a_shared_pool(world.store, 'ceph', [ROOM], DISK_GB=100)
    world.turn()
    handle = world.ask(a_request(disk=60))
    set_inventories(world.store, pool.uuid, {'DISK_GB': Inventory(total=50)})
    world.scheduler.placing.step()  # as it knows the pool
    world.turn(times=5)
    assert world.replies.answers[handle].outcome is Outcome.NO_VALID_HOST
    assert used(world, pool) == {}
    followed(world)


@pytest.mark.parametrize('how', ['pool', 'trait', 'host'])
def test_a_pool_that_is_detached_behind_a_table_refuses_under_the_lock(world, how):
    """Between the plan and its commit it serves nobody any more: what was planned is not made."""
    pool = a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=100)
    world.turn()
    before = world.select(a_request(disk=10))
    assert before.outcome is Outcome.PLACED
    handle = world.ask(a_request(disk=10))
    if how == 'host':
        world.store.declarations.save_aggregate('rack', {}, [])
    else:
        annex = derived_id('aggregate', 'annex')
        share(world.store, pool, None if how == 'trait' else [annex])
    world.scheduler.placing.step()  # as it knows the two
    assert used(world, pool) == {'DISK_GB': 10}
    world.turn(times=5)
    assert world.replies.answers[handle].outcome is Outcome.NO_VALID_HOST
    assert used(world, pool) == {'DISK_GB': 10}
    followed(world)


def test_who_moved_to_another_pool_is_planned_there(world):
    pool = a_shared_pool(world.store, 'ceph', [ROOM], DISK_GB=100)
    other = a_shared_pool(world.store, 'other', [ROOM], DISK_GB=200)
    world.turn()
    handle = world.ask(a_request(disk=10))
    share(world.store, pool, [derived_id('aggregate', 'annex')])
    world.scheduler.placing.step()
    world.turn(times=5)
    answer = world.replies.answers[handle]
    assert [allocation.name for allocation in answer.selections[0][0].allocations[1:]] == ['other']
    assert (used(world, pool), used(world, other)) == ({}, {'DISK_GB': 10})
    followed(world)


def test_pools_follow_aggregates_of_both_sides(world):
    pool = a_shared_pool(world.store, 'ceph', [], DISK_GB=100)
    world.turn()
    assert world.select(a_request()).outcome is Outcome.NO_VALID_HOST
    share(world.store, pool, [RACK])
    world.turn()
    assert world.select(a_request()).selections[0][0].host in ('cmp-1', 'cmp-2')
    share(world.store, pool, [derived_id('aggregate', 'annex')])
    world.turn()
    assert world.select(a_request()).outcome is Outcome.NO_VALID_HOST
    world.hosts['cmp-3'].report(aggregates=['annex'])
    world.turn()
    assert world.select(a_request()).selections[0][0].host == 'cmp-3'
    share(world.store, pool, None)
    world.turn()
    assert world.scheduler.cache.working.pools.by_id == {}
    assert world.select(a_request()).outcome is Outcome.NO_VALID_HOST
    assert used(world, pool) == {'DISK_GB': 2}
    share(world.store, pool, [ROOM])
    world.turn(times=3)
    assert free(world.scheduler, pool) == 98
    followed(world)


def test_claims_that_end_give_the_pool_back(world):
    pool = a_shared_pool(world.store, 'ceph', [ROOM], DISK_GB=100)
    world.turn()
    requests = [a_request(2, disk=20) for _ in range(2)]
    answers = [world.select(request) for request in requests]
    assert used(world, pool) == {'DISK_GB': 80}
    world.store.requests.cancel_request(requests[0].request_id, 'enough')
    chosen = answers[1].selections[0][0]
    host = world.hosts[chosen.host]
    assert host.confirm(chosen.claim_id) == ['ok']
    assert used(world, pool) == {'DISK_GB': 40}
    world.scheduler.release(host.words(chosen.claim_id))
    assert used(world, pool) == {'DISK_GB': 20}
    world.turn(times=3)
    assert free(world.scheduler, pool) == 80
    followed(world)


def test_a_pool_goes_when_nothing_of_it_is_claimed(world):
    pool = a_shared_pool(world.store, 'ceph', [ROOM], DISK_GB=100)
    world.turn()
    request = a_request()
    world.select(request)
    with pytest.raises(Exception, match='1 live claims take from it'):
        world.store.providers.delete_provider(pool.uuid)
    world.store.requests.cancel_request(request.request_id, 'enough')
    world.store.providers.delete_provider(pool.uuid)
    world.turn()
    assert world.scheduler.cache.working.pools.by_id == {}
    assert world.select(a_request()).outcome is Outcome.NO_VALID_HOST
    followed(world)


def test_a_class_of_ones_own_is_shared_in_pieces(world):
    world.store.vocabulary.declare_class('CUSTOM_ADDRESS')
    units = Inventory(total=12, min_unit=2, max_unit=4, step_size=2)
    pool = a_shared_pool(world.store, 'addresses', [RACK], CUSTOM_ADDRESS=units)
    world.turn()
    requests = [wanting(CUSTOM_ADDRESS=amount) for amount in (1, 3, 4, 6, 2)]
    outcomes = [world.select(request).outcome.value for request in requests]
    assert outcomes == ['no_valid_host', 'no_valid_host', 'placed', 'no_valid_host', 'placed']
    assert used(world, pool) == {'CUSTOM_ADDRESS': 6}
    followed(world)


def moving(request, **amounts):
    """The same consumers, to elsewhere."""
    spec = msgspec.structs.replace(
        request.spec, purpose=Purpose.MIGRATE, resources={'VCPU': 1, **amounts}
    )
    return msgspec.structs.replace(request, request_id=new_uuid(), spec=spec)


def test_a_move_in_a_full_pool_stays_in_it(world):
    pool = a_shared_pool(world.store, 'ceph', [ROOM], DISK_GB=100)
    a_shared_pool(world.store, 'empty', [ROOM], DISK_GB=1000)
    world.turn()
    request = wanting(DISK_GB=90)
    source = world.select(request).selections[0][0]
    assert world.hosts[source.host].confirm(source.claim_id) == ['ok']
    assert world.select(wanting(DISK_GB=10)).outcome is Outcome.PLACED
    ignored = [source.host]
    move = moving(request, DISK_GB=90)
    move = msgspec.structs.replace(
        move, spec=msgspec.structs.replace(move.spec, ignore_hosts=ignored)
    )
    target = world.select(move).selections[0][0]
    assert target.host != source.host
    assert target.resources == {'VCPU': 1, 'DISK_GB': 90}
    assert [(allocation.name, allocation.resources) for allocation in target.allocations[1:]] == [
        ('ceph', {'DISK_GB': 90})
    ]
    assert used(world, pool) == {'DISK_GB': 100}
    assert world.select(move).selections[0][0] == target
    followed(world)
    assert world.hosts[target.host].confirm(target.claim_id) == ['ok']
    world.scheduler.release(world.hosts[source.host].words(source.claim_id))
    assert world.store.claims.load_claim(target.claim_id).allocations[pool.id] == {'DISK_GB': 90}
    assert used(world, pool) == {'DISK_GB': 100}
    followed(world)


def test_every_decision_is_made_again_bit_for_bit():
    world = World(sqlite_store, checkpoint_seconds=1.0, reload_seconds=1.0)
    for number in range(1, 7):
        host = Host(world, f'cmp-{number}', inventories=NO_DISK, aggregates=['room'])
        world.hosts[host.name] = host
        host.report()
    pools = [a_shared_pool(world.store, f'pool-{n}', [ROOM], DISK_GB=60 + 30 * n) for n in range(3)]
    other = world.another_scheduler()
    world.turn()
    rng = random.Random(1)
    for number in range(12):
        request = wanting(rng.randint(1, 3), DISK_GB=rng.randint(1, 12))
        answer = world.select(request, by=rng.choice(world.schedulers))
        world.ask(wanting(2, DISK_GB=9), by=other)
        if answer.outcome is Outcome.PLACED and number % 3 == 0:
            for of in answer.selections:
                world.hosts[of[0].host].confirm(of[0].claim_id)
            world.select(moving(request, DISK_GB=14))
        if number % 4 == 1:
            share(world.store, pools[number % 3], [ROOM] if number % 8 == 5 else [])
        if number % 5 == 4:
            total = Inventory(total=50 + 10 * number)
            set_inventories(world.store, pools[2].uuid, {'DISK_GB': total})
        world.turn(times=2)
    for scheduler in world.schedulers:
        scheduler.cache.log.flush(world.store.table_logs)
    records = [
        world.store.records.load_decision(decision.id)[0]
        for decision in world.store.records.list_decisions(limit=1000)
    ]
    records += [record.packed for record in world.recorder.records]
    seen = inherited = 0
    replayer = Replayer(
        world.store.table_logs, plugin_loader.load_pipeline(), 'nova', take_reservations
    )
    for packed in records:
        stored = decision_codec.unpack(packed)
        again = replayer.again(stored, Otherwise())
        assert decision_differences(stored.decision, again) == []
        seen += bool(stored.decision.members)
        inherited += bool(stored.decision.held)
    assert seen > 20
    assert inherited
    assert world.audit() == CLEAN


def test_who_finds_no_room_reads_which_pools_were_looked_at():
    world = World(sqlite_store)
    for number in (1, 2):
        racks = ['rack', 'room'] if number == 1 else ['room']
        host = Host(world, f'cmp-{number}', inventories=NO_DISK, aggregates=racks)
        host.report()
    a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=10)
    world.turn()
    answer = world.select(wanting(DISK_GB=30))
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert 'too little free DISK_GB (need 30 GiB, best has 10 GiB)' in answer.reason
    table, spec = world.scheduler.cache.working, wanting(DISK_GB=30).spec
    rule = ResourcesFilter()
    whys = [removal_reason(rule, table, spec, row) for row in (0, 1)]
    assert whys == [
        'too little free DISK_GB (need 30 GiB, has 10 GiB); pool ceph has 10 GiB',
        'too little free DISK_GB (need 30 GiB, has 0 GiB); no pool of it serves the host',
    ]
    assert 'ceph' not in removal_reason(rule, table, spec, 0, True), 'operators only'
    assert rule.facts(table, spec, 0)[1] == '0 GiB DISK_GB free, 10 GiB in pool ceph'


def test_novas_allocation_request_names_every_provider(world):
    pool = a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=100)
    world.turn()
    chosen, other = world.select(a_request(disk=30, alternates=1)).selections[0]
    for selection in (chosen, other):
        body = json.loads(allocation_request(selection))
        assert body == {
            'allocations': {
                selection.uuid: {'resources': {'MEMORY_MB': 1024, 'VCPU': 1}},
                pool.uuid: {'resources': {'DISK_GB': 30}},
            },
            'mappings': {'': [selection.uuid, pool.uuid]},
        }


def test_an_alternate_counts_on_what_the_chosen_one_gives_back(world):
    """The last of the pool: who is refused by the chosen host has it back for the next one."""
    pool = a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=30)
    world.turn()
    _, other = world.select(a_request(disk=30, alternates=1)).selections[0]
    assert [allocation.uuid for allocation in other.allocations] == [other.uuid, pool.uuid]


def test_an_answer_made_of_claims_names_the_providers(world):
    pool = a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=100)
    world.turn()
    answer = world.select(a_request(disk=30))
    stored = world.scheduler.stored_answers
    rebuilt = stored._answer_of_claims(answer.request_id, AnswerReference('x', 120.0))
    ours, theirs = answer.selections[0][0], rebuilt.selections[0][0]
    assert theirs.allocations == ours.allocations
    assert [allocation.uuid for allocation in theirs.allocations] == [ours.uuid, pool.uuid]
    assert theirs.resources == ours.resources


def test_hosts_that_come_and_go_and_the_pool_stays(world):
    pool = a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=100)
    world.turn()
    world.store.hosts.remove_host('cmp-1')
    world.turn()
    assert world.select(a_request(disk=5)).selections[0][0].host == 'cmp-2'
    new = Host(world, 'cmp-9', inventories=NO_DISK | {'VCPU': Inventory(total=99)})
    new.report(aggregates=['rack'])
    world.turn()
    assert world.select(a_request(disk=5)).selections[0][0].host in ('cmp-2', 'cmp-9')
    assert used(world, pool) == {'DISK_GB': 10}
    followed(world)


def test_a_full_comparison_finds_what_the_feed_did_not_bring(world):
    pool = a_shared_pool(world.store, 'ceph', [RACK], DISK_GB=100)
    cache = world.scheduler.cache
    cache._position = world.store.feed.load_everything().position  # as if it had been read
    world.turn()
    assert cache.working.pools.by_id == {}
    cache._compare(world.clock.monotonic())
    cache.fold()
    assert list(cache.working.pools.by_id) == [pool.id]
    world.store.providers.delete_provider(pool.uuid)
    cache._position = world.store.feed.load_everything().position
    cache._compare(world.clock.monotonic())
    cache.fold()
    assert cache.working.pools.by_id == {}
