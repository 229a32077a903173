# SPDX-License-Identifier: Apache-2.0
"""Hosts are chosen by what is left on each of their devices."""

import random

import msgspec
import numpy as np
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages.request import RequestSpec
from gantt.core.records.decision import Outcome
from gantt.core.weighers.devices import DeviceFitWeigher
from tests.builders import CLEAN
from tests.nested import below
from tests.scheduler.test_nested import a_world, devices, groups, uuid_of, wanting
from tests.world import new_uuid, sqlite_store


@pytest.fixture
def world():
    """Two of three hosts have two GPUs of 1000 units each."""
    return a_world(None)


def host_of(world, tree, **amounts):
    answer = world.select(wanting(tree, **amounts))
    assert answer.outcome is Outcome.PLACED, answer.reason
    return answer.selections[0][0].host


def raw(world, tree, **amounts):
    """By host, as the weigher says."""
    table = world.scheduler.cache.working
    spec = RequestSpec(resources={'VCPU': 1, **amounts}, tree=tree)
    weights = DeviceFitWeigher().raw(table, spec, np.arange(len(table)))
    return None if weights is None else dict(zip(table.names, weights.tolist(), strict=True))


def test_shares_gather_on_devices_that_are_in_use(world):
    # Who is building a guest is left alone until it has reported it.
    options = {'io_ops_weight_multiplier': 0.0}
    world.scheduler.placing.use_pipeline(plugin_loader.load_pipeline(options=options))
    first = host_of(world, devices(1, 300))
    assert [host_of(world, devices(1, 300)) for _ in range(2)] == [first] * 2
    used = {
        provider.name: provider.used.get('VGPU', 0)
        for provider in map(
            world.store.providers.load_provider, (gpu.uuid for gpu in world.gpus.values())
        )
    }
    assert sorted(used.values()) == [0, 0, 0, 900]


def test_with_the_other_sign_they_spread(world):
    options = {'io_ops_weight_multiplier': 0.0, 'device_fit_weight_multiplier': -1.0}
    world.scheduler.placing.use_pipeline(plugin_loader.load_pipeline(options=options))
    hosts = [host_of(world, devices(1, 300)) for _ in range(2)]
    assert sorted(hosts) == ['cmp-1', 'cmp-2']


def test_what_the_tightest_devices_have_left_is_told(world):
    host = host_of(world, devices(1, 300))
    other = 'cmp-2' if host == 'cmp-1' else 'cmp-1'
    assert raw(world, devices(1, 300)) == pytest.approx({host: 0.4, other: 0.7, 'cmp-3': 0.0})
    # Two devices: one of them is whole.
    assert raw(world, devices(2, 300)) == pytest.approx({host: 0.55, other: 0.7, 'cmp-3': 0.0})
    # Two groups may lie on one.
    both = groups(a={'VGPU': 300}, b={'VGPU': 300})
    assert raw(world, both) == pytest.approx({host: 0.4, other: 0.7, 'cmp-3': 0.0})
    # Of one that is taken whole nothing is left, whoever it is.
    assert raw(world, devices(1, 500, whole=True)) == {host: 0.0, other: 0.0, 'cmp-3': 0.0}
    # Without a group it is the same.
    assert raw(world, None, VGPU=300) == pytest.approx({host: 0.4, other: 0.7, 'cmp-3': 0.0})


def test_who_asks_for_no_device_has_no_preference(world):
    assert raw(world, None) is None
    assert raw(world, groups(None, a={'VCPU': 1})) is None


def plain(table, tree_devices):
    """The reference: each host and each of its devices by itself."""
    pools, values_by_host = table.pools, {}
    for host in table.hosts:
        below_it = [pool for pool in pools.by_id.values() if pool.root == host.id]
        values, many = 0.0, sum(device.count for device in tree_devices)
        for device in tree_devices:
            name, amount = device.resource_class, device.amount
            shares = sorted(
                (pools.free(pool.id, name) - amount) / pool.inventories[name].cap
                for pool in below_it
                if name in pool.inventories and pools.free(pool.id, name) >= amount
            )[: device.count]
            if len(shares) == device.count:
                values += sum(shares)
        values_by_host[host.name] = values / many
    return values_by_host


@pytest.mark.parametrize('seed', range(6))
def test_it_says_what_looking_at_each_device_says(seed):
    """While claims are made, and picks lie over the table."""
    rng = random.Random(seed)
    world = a_world(sqlite_store)
    for number in range(6):
        host = f'cmp-{rng.randint(1, 3)}'
        total = rng.choice((400, 1000, 1600))
        name = f'more-{number}'
        world.gpus[name] = below(world.store, name, uuid_of(world, host), VGPU=total)
    world.turn()
    table = world.scheduler.cache.working
    for _ in range(12):
        tree = devices(rng.randint(1, 2), rng.choice((100, 250, 400)))
        before = raw(world, tree)
        assert before == pytest.approx(plain(table, tree.devices))
        request = wanting(tree, count=rng.randint(1, 2))
        answer = world.select(msgspec.structs.replace(request, request_id=new_uuid()))
        if answer.outcome is Outcome.PLACED and rng.random() < 0.3:
            world.store.requests.cancel_request(answer.request_id, 'enough')
            world.turn()


def test_a_range_of_what_lies_below_a_host_is_given_by_one_device(world):
    request = wanting(None, count=2, VGPU=300)
    spec = msgspec.structs.replace(request.spec, max_resources={'VGPU': 5000, 'VCPU': 3})
    answer = world.select(msgspec.structs.replace(request, spec=spec))
    for chosen, *_ in answer.selections:
        assert chosen.resources == {'VCPU': 3, 'VGPU': chosen.allocations[1].resources['VGPU']}
    given = sorted(of[0].allocations[1].resources['VGPU'] for of in answer.selections)
    used = [
        world.store.providers.load_provider(gpu.uuid).used.get('VGPU', 0)
        for gpu in world.gpus.values()
    ]
    assert sum(used) == sum(given)
    # Who came first left the least on its device for the one behind.
    assert given in ([300, 700], [700, 1000])
    assert world.audit() == CLEAN


def test_a_range_beside_groups_is_refused(world):
    request = wanting(devices(1, 300), VGPU=100)
    spec = msgspec.structs.replace(request.spec, max_resources={'VCPU': 3})
    with pytest.raises(exceptions.InvalidMessage, match=r'spec\.max_resources'):
        world.select(msgspec.structs.replace(request, spec=spec))
