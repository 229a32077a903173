# SPDX-License-Identifier: Apache-2.0
"""Requests that are placed on pools, without a host: from the pick to the claim, and to its end."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.request import (
    CancelClaims,
    ConfirmRequest,
    ExtendClaims,
    GetRequest,
    Lifecycle,
    ReleaseRequest,
    RequestKind,
    RequestSpec,
    SelectDestinations,
)
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Outcome
from tests.scheduler.stores import KINDS, OURS, followed, store_of
from tests.world import World, a_request, hosts_of, new_uuid


@pytest.fixture(params=KINDS)
def world(request, make_store):
    """A world with two hosts."""
    return World(store_of(request.param, make_store), hosts=2)


def a_pool(world, name, parent=None, **inventories):
    """A provider that is no host, as the API makes it."""
    pool = world.store.providers.create_provider(
        name,
        parent=parent,
        inventories={
            cls: of if isinstance(of, Inventory) else Inventory(total=of)
            for cls, of in inventories.items()
        },
    )
    world.turn()
    return pool


def a_volume(gigabytes=10, count=1, **spec):
    return SelectDestinations(
        request_id=new_uuid(),
        consumers=[new_uuid() for _ in range(count)],
        spec=RequestSpec(
            kind=RequestKind.POOL,
            resources={'DISK_GB': gigabytes},
            consumer_type='VOLUME',
            project_id='p1',
            **spec,
        ),
    )


def used(world, pool):
    return world.store.providers.load_provider(pool.uuid).used


def test_a_part_that_moves_is_below_its_new_pool(world):
    first, second = (a_pool(world, name, DISK_GB=10) for name in ('one', 'two'))
    part = a_pool(world, 'part', parent=first.uuid, IPV4_ADDRESS=4)
    for parent in (first, second, None):
        world.store.providers.update_provider(part.uuid, parent=parent and parent.uuid)
        followed(world)
        pools = world.scheduler.cache.working.others
        row = pools.hosts[pools.row_by_id[part.id]]
        assert row.parent == (parent.id if parent else 0)


def test_a_volume_is_placed_on_the_pool_with_the_larger_free_share(world):
    a_pool(world, 'ceph-1', DISK_GB=100)
    second = a_pool(world, 'ceph-2', DISK_GB=1000)
    request = a_volume(60)
    answer = world.select(request)
    assert answer.outcome is Outcome.PLACED
    chosen, *others = answer.selections[0]
    assert (chosen.host, chosen.uuid, chosen.build_topic) == ('ceph-2', second.uuid, '')
    assert [selection.host for selection in others] == ['ceph-1']
    claim = world.store.claims.load_claim(chosen.claim_id)
    assert (claim.provider_id, claim.lifecycle) == (second.id, Lifecycle.CALLER)
    assert used(world, second) == {'DISK_GB': 60}
    assert world.scheduler.get_request(GetRequest(request_id=request.request_id)) == answer
    followed(world)


def test_hosts_are_not_asked_and_get_nothing_of_it(world):
    answer = world.select(a_volume())
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert len(world.scheduler.cache.working) == 2


def test_a_request_for_a_host_is_never_placed_on_a_pool(world):
    a_pool(world, 'ceph-1', DISK_GB=10**6)
    request = a_request(1)
    assert hosts_of(world.select(request))[0].startswith('cmp-')


def test_all_members_fit_or_none_does(world):
    pool = a_pool(world, 'ceph-1', DISK_GB=25)
    assert world.select(a_volume(10, count=3)).outcome is Outcome.NO_VALID_HOST
    assert world.select(a_volume(10, count=2)).outcome is Outcome.PLACED
    assert used(world, pool) == {'DISK_GB': 20}
    followed(world)


def test_traits_zones_and_units_of_pools_count(world):
    a_pool(world, 'small', DISK_GB=Inventory(total=100, step_size=7))
    assert world.select(a_volume(10)).outcome is Outcome.NO_VALID_HOST
    assert world.select(a_volume(14)).outcome is Outcome.PLACED
    wanting = a_volume(14, required_traits=['STORAGE_DISK_SSD'])
    assert world.select(wanting).outcome is Outcome.NO_VALID_HOST


def test_what_lies_below_a_pool_may_be_asked_for_too(world):
    top = a_pool(world, 'gpus')
    below = a_pool(world, 'gpu-1', parent=top.uuid, CUSTOM_GPU_SHARE=1000)
    world.scheduler.cache.declared_classes(['CUSTOM_GPU_SHARE'])
    request = a_volume()
    spec = msgspec.structs.replace(request.spec, resources={'CUSTOM_GPU_SHARE': 250})
    answer = world.select(msgspec.structs.replace(request, spec=spec))
    assert hosts_of(answer) == ['gpu-1']
    assert used(world, below) == {'CUSTOM_GPU_SHARE': 250}
    followed(world)


def test_below_a_host_nothing_is_asked_for_alone(world):
    host = world.scheduler.cache.working.hosts[0]
    a_pool(world, 'gpu-of-a-host', parent=host.uuid, DISK_GB=1000)
    assert world.select(a_volume()).outcome is Outcome.NO_VALID_HOST


# -- the life of its claims -----------------------------------------------------------
def states(world, request):
    return [c.state.value for c in world.store.requests.load_request(request.request_id).claims]


def fates(answer):
    return [claim['outcome'] for claim in answer['claims']]


@pytest.mark.parametrize('kind', OURS)
def test_what_nobody_confirms_ends_with_its_lease(kind):
    world = World(OURS[kind], hosts=2)
    pool = a_pool(world, 'ceph-1', DISK_GB=100)
    request = a_volume()
    world.select(request)
    world.turn(seconds=30, times=6)
    assert states(world, request) == ['expired']
    assert not used(world, pool).get('DISK_GB')
    confirmed = world.scheduler.confirm_request(ConfirmRequest(request_id=request.request_id))
    assert fates(confirmed) == ['gone']
    followed(world)


def test_who_asked_confirms_and_releases(world):
    pool = a_pool(world, 'ceph-1', DISK_GB=100)
    request = a_volume(count=2)
    world.select(request)
    scheduler, key = world.scheduler, request.request_id
    extended = scheduler.extend(ExtendClaims(request_id=key, seconds=600))
    assert fates(extended) == ['ok', 'ok']
    for _ in range(2):  # once or more often
        assert fates(scheduler.confirm_request(ConfirmRequest(request_id=key))) == ['ok', 'ok']
    assert states(world, request) == ['confirmed', 'confirmed']
    world.turn(seconds=30, times=10)
    assert states(world, request) == ['confirmed', 'confirmed']
    # A cancel takes back what is reserved, and nothing else.
    assert fates(scheduler.cancel(CancelClaims(request_id=key))) == ['kept', 'kept']
    first = request.consumers[0]
    released = scheduler.release_request(
        ReleaseRequest(request_id=key, consumers=[first], reason='deleted')
    )
    assert fates(released) == ['ok']
    world.turn()
    assert used(world, pool) == {'DISK_GB': 10}
    assert sorted(fates(scheduler.release_request(ReleaseRequest(request_id=key)))) == [
        'gone',
        'ok',
    ]
    followed(world)


def test_only_what_is_on_no_host_is_confirmed_and_released_by_who_asked(world):
    request = a_request(1)
    world.select(request)
    for call, message in (
        (world.scheduler.confirm_request, ConfirmRequest),
        (world.scheduler.release_request, ReleaseRequest),
    ):
        with pytest.raises(exceptions.Refused, match='lifecycle host'):
            call(message(request_id=request.request_id))
        with pytest.raises(exceptions.NotFound):
            call(message(request_id=new_uuid()))
    pool_request = a_volume()
    a_pool(world, 'ceph-1', DISK_GB=100)
    world.select(pool_request)
    with pytest.raises(exceptions.NotFound, match='consumer of request'):
        message = ConfirmRequest(request_id=pool_request.request_id, consumers=[new_uuid()])
        world.scheduler.confirm_request(message)


def test_two_schedulers_never_give_a_pool_twice(world):
    pool = a_pool(world, 'ceph-1', DISK_GB=100)
    other = world.another_scheduler()
    for _ in range(12):
        world.select(a_volume(10), by=other)
        world.select(a_volume(10))
    assert used(world, pool) == {'DISK_GB': 100}
    followed(world)


def test_a_pool_that_is_gone_is_not_chosen(world):
    pool = a_pool(world, 'ceph-1', DISK_GB=100)
    world.store.providers.delete_provider(pool.uuid)
    world.turn()
    assert world.select(a_volume()).outcome is Outcome.NO_VALID_HOST
    followed(world)


# -- what is no such request -----------------------------------------------------------
@pytest.mark.parametrize(
    ('changed', 'field'),
    [
        ({'resources': {'VCPU': 1}}, 'spec.resources.VCPU'),
        ({'same_host': [new_uuid()]}, 'spec.same_host'),
        ({'volume_backed': True}, 'spec.volume_backed'),
        ({'purpose': 'migrate'}, 'spec.purpose'),
    ],
)
def test_what_is_about_hosts_is_refused(changed, field):
    world = World()
    request = a_volume()
    body = msgspec.to_builtins(request.spec) | changed
    spec = msgspec.convert(body, RequestSpec)
    with pytest.raises(exceptions.InvalidMessage, match=field):
        world.select(msgspec.structs.replace(request, spec=spec))


def test_the_lifecycle_follows_from_the_kind():
    world = World(hosts=1)
    with pytest.raises(exceptions.InvalidMessage, match='lifecycle'):
        world.select(msgspec.structs.replace(a_volume(), lifecycle=Lifecycle.PLAN))
    with pytest.raises(exceptions.InvalidMessage, match='lifecycle'):
        world.select(msgspec.structs.replace(a_request(1), lifecycle=Lifecycle.CALLER))


# -- amounts that are ranges ---------------------------------------------------------------
def given(answer):
    return [selections[0].resources['DISK_GB'] for selections in answer.selections]


def test_of_a_range_as_much_is_given_as_there_is(world):
    pool = a_pool(world, 'ceph-1', DISK_GB=Inventory(total=100, step_size=5, max_unit=60))
    request = a_volume(10, max_resources={'DISK_GB': 1000})
    answer = world.select(request)
    assert given(answer) == [60]
    assert world.store.claims.load_claim(answer.selections[0][0].claim_id).allocations == {
        pool.id: {'DISK_GB': 60}
    }
    assert world.scheduler.get_request(GetRequest(request_id=request.request_id)) == answer
    assert given(world.select(a_volume(10, max_resources={'DISK_GB': 27}))) == [25]
    assert given(world.select(a_volume(10, max_resources={'DISK_GB': 27}))) == [15]
    assert (
        world.select(a_volume(10, max_resources={'DISK_GB': 27})).outcome is Outcome.NO_VALID_HOST
    )
    assert used(world, pool) == {'DISK_GB': 100}
    followed(world)


def test_who_comes_first_leaves_the_least_for_those_behind(world):
    pool = a_pool(world, 'ceph-1', DISK_GB=100)
    assert given(world.select(a_volume(10, count=4, max_resources={'DISK_GB': 1000}))) == [
        70,
        10,
        10,
        10,
    ]
    assert used(world, pool) == {'DISK_GB': 100}
    followed(world)


@pytest.mark.parametrize(
    ('most', 'field'),
    [({'DISK_GB': 9}, 'at least 10'), ({'IPV4_ADDRESS': 9}, 'among the resources')],
)
def test_a_range_has_two_ends(most, field):
    with pytest.raises(exceptions.InvalidMessage, match=field):
        World().select(a_volume(10, max_resources=most))
