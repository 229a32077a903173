# SPDX-License-Identifier: Apache-2.0
"""Devices are given so that the scarce ones stay, whatever the order of a host's report."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.core.messages.report import DevicePool
from gantt.core.messages.request import DeviceKind, DeviceRequest
from gantt.core.messages.topology_request import Affinity, DeviceSpec, PciRequest
from gantt.core.messages.tree_request import DeviceAmount, ResourceGroup, TreeRequest
from gantt.core.records.decision import Outcome
from gantt.core.topology.devices import distribute_devices, eligible_pools
from gantt.core.topology.free import Pool
from tests.nested import below
from tests.world import Host, World, a_request, sqlite_store

SMALL = DevicePool(vendor_id='10de', product_id='small', address='0', count=4, free=4)
BIG = DevicePool(vendor_id='10de', product_id='big', address='1', count=1, free=1)
TAGGED = DevicePool(
    vendor_id='10de', product_id='a', address='2', count=9, free=9, tags={'switch': 'yes'}
)


def asks_for(count=1, **spec):
    return [DeviceRequest(count=count, any_of=[DeviceKind(**{'vendor_id': '10de', **spec})])]


@pytest.mark.parametrize('pools', list(itertools.permutations([SMALL, BIG, TAGGED]))[::2])
def test_any_device_leaves_those_that_few_or_special_ones_are_asked_for(pools):
    world = World(store=sqlite_store)
    host = world.hosts['cmp-1'] = Host(world, 'cmp-1', devices=list(pools))
    host.report()
    world.turn()
    wishes = [asks_for(), asks_for(3), asks_for(product_id='BIG'), asks_for(8)]
    for devices in [*wishes, asks_for(tags={'switch': 'yes'})]:
        answer = world.select(a_request(devices=devices))
        assert answer.outcome is Outcome.PLACED, answer.reason


#: Below a host: of each the traits and amounts.  The last named is asked for at last.
SCARCE_BELOW = {
    'one has a trait more': [
        ('plain', [], {'VGPU': 2}),
        ('fast', ['CUSTOM_FAST'], {'VGPU': 2}),
    ],
    'one has a class more': [
        ('plain', [], {'VGPU': 2}),
        ('both', [], {'VGPU': 2, 'CUSTOM_CODEC': 1}),
    ],
    'of one kind there are few': [
        ('small-0', ['CUSTOM_SMALL'], {'VGPU': 1}),
        ('small-1', ['CUSTOM_SMALL'], {'VGPU': 1}),
        ('big', ['CUSTOM_BIG'], {'VGPU': 1}),
    ],
}


def a_tree_of(providers) -> World:
    world = World(store=sqlite_store, hosts=1)
    root = world.scheduler.cache.working.hosts[0].uuid
    for name, traits, amounts in providers:
        below(world.store, name, root, traits, **amounts)
    world.turn()
    return world


def a_group_of(traits=(), **amounts):
    group = ResourceGroup(resources=amounts, required_traits=list(traits))
    return a_request(tree=TreeRequest(groups={'g': group}))


@pytest.mark.parametrize('turned', [False, True])
@pytest.mark.parametrize('providers', SCARCE_BELOW.values(), ids=SCARCE_BELOW)
def test_any_provider_below_a_host_leaves_those_that_few_are_like(providers, turned):
    *others, (_, traits, amounts) = providers
    world = a_tree_of(providers[::-1] if turned else providers)
    for _ in range(sum(needs['VGPU'] for _, _, needs in others)):
        answer = world.select(a_group_of(VGPU=1))
        assert answer.outcome is Outcome.PLACED, answer.reason
    answer = world.select(a_group_of(traits, **amounts))
    assert answer.outcome is Outcome.PLACED, answer.reason


@pytest.mark.parametrize('whole', [False, True])
def test_amounts_without_a_group_and_whole_devices_leave_them_too(whole):
    wish = DeviceAmount(resource_class='VGPU', count=1, amount=2, whole=True)
    world = a_tree_of(SCARCE_BELOW['one has a trait more'][::-1])
    request = a_request(tree=TreeRequest(devices=[wish])) if whole else a_request()
    if not whole:
        resources = {**request.spec.resources, 'VGPU': 2}
        spec = msgspec.structs.replace(request.spec, resources=resources)
        request = msgspec.structs.replace(request, spec=spec)
    assert world.select(request).outcome is Outcome.PLACED
    assert world.select(a_group_of(['CUSTOM_FAST'], VGPU=2)).outcome is Outcome.PLACED


@st.composite
def hosts(draw):
    """Pools, the same in another order, and wishes for their devices."""
    pools = draw(
        st.lists(
            st.builds(
                DevicePool,
                vendor_id=st.sampled_from(['10de', '8086']),
                product_id=st.sampled_from(['a', 'b', 'c']),
                address=st.sampled_from(['0', '1']),
                count=st.just(3),
                free=st.integers(0, 3),
                tags=st.sampled_from([{}, {'x': '1'}, {'x': '1', 'y': '2'}]),
            ),
            min_size=1,
            max_size=6,
            unique_by=lambda pool: (pool.vendor_id, pool.product_id, pool.address, str(pool.tags)),
        )
    )
    wish = st.builds(
        lambda vendor, product, count: PciRequest(
            alias='', count=count, specs=(DeviceSpec(vendor_id=vendor, product_id=product),)
        ),
        st.sampled_from(['', '10de', '8086']),
        st.sampled_from(['', 'a', 'b']),
        st.integers(1, 3),
    )
    return pools, draw(st.permutations(pools)), draw(st.lists(wish, min_size=1, max_size=3))


def given_of(reported, wishes):
    pools = [Pool(reported_pool) for reported_pool in reported]
    choices = [eligible_pools(wish, pools, (), (), Affinity.LEGACY) for wish in wishes]
    shares = distribute_devices(wishes, [pool.free for pool in pools], choices)
    if shares is None:
        return None
    return [{pools[i].key: count for i, count in share.items()} for share in shares]


@settings(max_examples=300, deadline=None)
@given(hosts())
def test_the_order_of_a_report_decides_nothing(world):
    pools, turned, wishes = world
    assert given_of(pools, wishes) == given_of(turned, wishes)
