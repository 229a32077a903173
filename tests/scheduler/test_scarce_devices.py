# SPDX-License-Identifier: Apache-2.0
"""Devices are given so that the scarce ones stay, whatever the order of a host's report."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.core.messages.report import DevicePool
from gantt.core.messages.request import DeviceKind, DeviceRequest
from gantt.core.messages.topology_request import Affinity, DeviceSpec, DeviceWish
from gantt.core.records.decision import Outcome
from gantt.core.topology.devices import eligible, share_out
from gantt.core.topology.free import Pool
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
    wanted = [asks_for(), asks_for(3), asks_for(product_id='BIG'), asks_for(8)]
    for devices in [*wanted, asks_for(tags={'switch': 'yes'})]:
        answer = world.select(a_request(devices=devices))
        assert answer.outcome is Outcome.PLACED, answer.reason


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
            unique_by=lambda one: (one.vendor_id, one.product_id, one.address, str(one.tags)),
        )
    )
    wish = st.builds(
        lambda vendor, product, count: DeviceWish(
            alias='', count=count, specs=(DeviceSpec(vendor_id=vendor, product_id=product),)
        ),
        st.sampled_from(['', '10de', '8086']),
        st.sampled_from(['', 'a', 'b']),
        st.integers(1, 3),
    )
    return pools, draw(st.permutations(pools)), draw(st.lists(wish, min_size=1, max_size=3))


def given_of(reported, wishes):
    pools = [Pool(one) for one in reported]
    choices = [eligible(one, pools, (), (), Affinity.LEGACY) for one in wishes]
    shares = share_out(wishes, [pool.free for pool in pools], choices)
    if shares is None:
        return None
    return [{pools[i].key: count for i, count in share.items()} for share in shares]


@settings(max_examples=300, deadline=None)
@given(hosts())
def test_the_order_of_a_report_decides_nothing(world):
    pools, turned, wishes = world
    assert given_of(pools, wishes) == given_of(turned, wishes)
