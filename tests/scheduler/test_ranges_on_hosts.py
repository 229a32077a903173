# SPDX-License-Identifier: Apache-2.0
"""Amounts that are ranges, of requests for hosts: from the pick to the claim, and back."""

import msgspec
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import Flavor, GetRequest, Purpose
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records import decision_codec
from gantt.core.records.decision import Outcome
from gantt.groups.model import take_reservations
from gantt.insights.explain import explaining
from gantt.insights.replaying import Otherwise, Replayer, decision_differences
from tests.scheduler.stores import KINDS, followed, store_of
from tests.shared_pools import a_shared_pool
from tests.world import Host, World, a_group, a_request, hosts_of, new_uuid, sqlite_store

ROOM = derived_id('aggregate', 'room')


@pytest.fixture(params=KINDS)
def make_world(request, make_store):
    """A world with one host for each dictionary of inventories."""

    def make(*inventories, **settings):
        world = World(store_of(request.param, make_store), **settings)
        for number, has in enumerate(inventories, 1):
            reported = {
                cls: i if isinstance(i, Inventory) else Inventory(i) for cls, i in has.items()
            }
            host = Host(world, f'cmp-{number}', inventories=reported, aggregates=['room'])
            world.hosts[host.name] = host
            host.report()
        world.turn()
        return world

    return make


def ranging(least, most, count=1, **spec):
    """A request for amounts of which there may be more."""
    request = a_request(count, **spec)
    return msgspec.structs.replace(
        request, spec=msgspec.structs.replace(request.spec, resources=least, max_resources=most)
    )


def given(answer, name='VCPU'):
    return [selections[0].resources[name] for selections in answer.selections]


def test_the_host_is_chosen_by_the_least_and_gives_what_it_has(make_world):
    odd = Inventory(total=16, max_unit=7, step_size=2)
    world = make_world({'VCPU': odd, 'MEMORY_MB': 4096}, {'VCPU': 8, 'MEMORY_MB': 4096})
    request = ranging({'VCPU': 2, 'MEMORY_MB': 1024}, {'VCPU': 100})
    answer = world.select(request)
    chosen, other = answer.selections[0]
    assert chosen.host == 'cmp-1', 'more is free there'
    assert chosen.resources == {'VCPU': 6, 'MEMORY_MB': 1024}, 'in one piece'
    assert other.resources == request.spec.resources, 'of an alternate nothing is taken yet'
    claim = world.store.claims.load_claim(chosen.claim_id)
    assert claim.allocations == {chosen.provider_id: {'VCPU': 6, 'MEMORY_MB': 1024}}
    assert world.scheduler.get_request(GetRequest(request_id=request.request_id)) == answer
    again = world.select(request, by=world.another_scheduler())
    assert again.selections == answer.selections
    followed(world)


def test_members_leave_the_least_for_those_behind(make_world):
    world = make_world({'VCPU': 10, 'MEMORY_MB': 4096})
    answer = world.select(ranging({'VCPU': 2, 'MEMORY_MB': 1024}, {'VCPU': 9}, count=3))
    assert given(answer) == [6, 2, 2]
    followed(world)


def test_no_more_is_left_than_can_be_asked_for_there(make_world):
    """Memory has room for one more: the others go elsewhere, and need no processors here."""
    world = make_world({'VCPU': 20, 'MEMORY_MB': 2048}, {'VCPU': 9, 'MEMORY_MB': 8192})
    answer = world.select(ranging({'VCPU': 1, 'MEMORY_MB': 1024}, {'VCPU': 99}, count=8))
    pairs = zip(hosts_of(answer), given(answer), strict=True)
    assert sorted(amount for host, amount in pairs if host == 'cmp-1') == [1, 19]
    followed(world)


def test_a_rule_that_leaves_less_than_is_free_counts(make_world):
    world = make_world({'VCPU': Inventory(total=8, allocation_ratio=4.0), 'MEMORY_MB': 8192})
    scheduler = world.scheduler
    filters = [
        *(host_filter.name for host_filter in plugin_loader.load_pipeline().filters),
        'AggregateCoreFilter',
    ]
    scheduler.placing.use_pipeline(plugin_loader.load_pipeline(filters=filters))
    world.store.declarations.save_aggregate('narrow', {'cpu_allocation_ratio': '0.75'}, ['cmp-1'])
    world.turn()
    assert given(world.select(ranging({'VCPU': 1}, {'VCPU': 20}))) == [6]


def test_hard_affinity_holds_with_ranges(make_world):
    has = {'VCPU': 9, 'MEMORY_MB': 4096}
    world = make_world(has, has)
    answer = world.select(
        ranging({'VCPU': 3}, {'VCPU': 8}, count=3, group=a_group('affinity')),
    )
    assert (given(answer), len(set(hosts_of(answer)))) == ([3, 3, 3], 1)
    followed(world)


def test_of_a_shared_pool_as_much_is_given_as_it_has(make_world):
    world = make_world({'VCPU': 8}, {'VCPU': 8})
    units = Inventory(total=100, step_size=10, max_unit=60)
    pool = a_shared_pool(world.store, 'ceph', [ROOM], DISK_GB=units)
    world.turn()
    answer = world.select(ranging({'VCPU': 1, 'DISK_GB': 20}, {'DISK_GB': 1000, 'VCPU': 3}, 3))
    assert given(answer, 'DISK_GB') == [60, 20, 20]
    assert sorted(given(answer)) == [3, 3, 3]
    assert world.store.providers.load_provider(pool.uuid).used == {'DISK_GB': 100}
    followed(world)


def test_a_move_grows_by_what_is_left_and_inherits_the_rest(make_world):
    world = make_world({'VCPU': 8}, {'VCPU': 8})
    pool = a_shared_pool(world.store, 'ceph', [ROOM], DISK_GB=100)
    world.turn()
    request = ranging({'VCPU': 1, 'DISK_GB': 70}, {})
    source = world.select(request).selections[0][0]
    assert world.hosts[source.host].confirm(source.claim_id) == ['ok']
    spec = msgspec.structs.replace(
        request.spec,
        purpose=Purpose.MIGRATE,
        max_resources={'DISK_GB': 1000},
        ignore_hosts=[source.host],
    )
    move = msgspec.structs.replace(request, request_id=new_uuid(), spec=spec)
    target = world.select(move).selections[0][0]
    assert target.resources == {'VCPU': 1, 'DISK_GB': 100}
    assert world.store.claims.load_claim(target.claim_id).inherits == {pool.id: {'DISK_GB': 70}}
    assert world.store.providers.load_provider(pool.uuid).used == {'DISK_GB': 100}
    assert world.hosts[target.host].confirm(target.claim_id) == ['ok']
    world.scheduler.release(world.hosts[source.host].words(source.claim_id))
    assert world.store.claims.load_claim(target.claim_id).allocations[pool.id] == {'DISK_GB': 100}
    followed(world)


def test_two_schedulers_never_give_a_host_twice(make_world):
    world = make_world({'VCPU': 30}, {'VCPU': 20})
    other = world.another_scheduler()
    handles = [
        world.ask(ranging({'VCPU': 3}, {'VCPU': 7}), by)
        for _ in range(6)
        for by in (other, world.scheduler)
    ]
    world.turn(times=20)
    answers = [world.replies.answers[handle] for handle in handles]
    placed = [given(answer)[0] for answer in answers if answer.outcome is Outcome.PLACED]
    assert sum(placed) == sum(row.used['VCPU'] for row in world.scheduler.cache.working.hosts)
    assert all(3 <= amount <= 7 for amount in placed)
    assert len(placed) >= 6
    followed(world)


def test_what_was_given_is_explained_and_comes_out_again():
    world = World(sqlite_store, hosts=3, checkpoint_seconds=1.0)
    world.turn(seconds=2)
    request = ranging({'VCPU': 2, 'MEMORY_MB': 1024}, {'VCPU': 5, 'MEMORY_MB': 9000}, count=4)
    answer = world.select(request)
    world.turn(times=3)
    world.scheduler.cache.log.flush(world.store.table_logs)
    records = [
        world.store.records.load_decision(decision.id)[0]
        for decision in world.store.records.list_decisions(limit=9)
    ]
    packed = [*records, *(record.packed for record in world.recorder.records)]
    stored = next(
        kept
        for kept in map(decision_codec.unpack, packed)
        if kept.decision.id == answer.decision_id
    )
    again = Replayer(
        world.store.table_logs, plugin_loader.load_pipeline(), 'nova', take_reservations
    ).again(stored, Otherwise())
    assert decision_differences(stored.decision, again) == []
    shown = [
        explaining._member_explanation(stored.decision, member, stored.request)
        for member in stored.decision.members
    ]
    assert [selection.resources for selection in shown] == [
        selection[0].resources for selection in answer.selections
    ]
    assert given(answer) == [5, 5, 5, 5]


# -- what is no range ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('most', 'spec', 'field'),
    [
        ({'VCPU': 1}, {}, r'spec\.max_resources\.VCPU.*at least 2'),
        ({'DISK_GB': 9}, {}, r'spec\.max_resources\.DISK_GB.*among the resources'),
        ({'VCPU': 4}, {'purpose': 'rebuild'}, r'spec\.max_resources.*rebuild'),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(most, spec, field):
    with pytest.raises(exceptions.InvalidMessage, match=field):
        World(hosts=1).select(ranging({'VCPU': 2, 'MEMORY_MB': 512}, most, **spec))


def test_what_is_laid_out_in_cells_is_no_range():
    world = World(hosts=1)
    world.scheduler.placing.use_pipeline(
        plugin_loader.load_pipeline(filters=['ResourcesFilter', 'NUMATopologyFilter'])
    )
    flavor = Flavor(extra_specs={'hw:numa_nodes': '1'})
    for name in ('VCPU', 'MEMORY_MB'):
        request = ranging({'VCPU': 2, 'MEMORY_MB': 512}, {name: 1024}, flavor=flavor)
        answer = world.select(request)
        assert answer.outcome is Outcome.REFUSED
        assert f'request.spec.max_resources.{name}' in answer.reason
