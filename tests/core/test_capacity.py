# SPDX-License-Identifier: Apache-2.0
"""Number of further requests of a shape that fit, and the resource that runs out first."""

import random

import msgspec
import numpy as np
import pytest

from gantt import plugin_loader
from gantt.core.messages.request import GroupRef, Policy, RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.capacity import GROUP_RULE_BOUND, free_capacity
from tests.core.builders import (
    a_change,
    a_guest,
    a_host,
    a_request,
    a_table,
    an_id,
    decide,
    hosts_of,
)
from tests.core.topology.hosts import ALIASES, a_cell, a_pool, a_spec, laid, pinned

GROUP = an_id(9)


def counted(table, group=None, **amounts):
    spec = RequestSpec(resources=amounts, group=group)
    return free_capacity(table, spec, np.arange(len(table)))


def test_counts_by_host_and_what_bounds_them():
    table = a_table(a_host(1), a_host(2, vcpu=4), a_host(3, ram=1000), a_host(4, used={'VCPU': 16}))
    count = counted(table, VCPU=2, MEMORY_MB=4096)
    assert count.counts.tolist() == [8, 2, 0, 0]
    assert count.total == 10
    assert count.bound_counts() == {'VCPU': 3, 'MEMORY_MB': 1}
    assert next(iter(count.bound_counts())) == 'VCPU'


def test_no_host_no_room():
    count = counted(a_table(), VCPU=1)
    assert (count.total, count.bound_counts()) == (0, {})


def test_the_rule_of_a_group_bounds():
    table = a_table(a_change(a_host(1), a_guest(1, 1, GROUP)), a_host(2), a_host(3, vcpu=1))
    apart = GroupRef(uuid=GROUP, policy=Policy.ANTI_AFFINITY, max_per_host=2)
    count = counted(table, apart, VCPU=1)
    assert count.counts.tolist() == [1, 2, 1]
    assert count.bound_counts() == {GROUP_RULE_BOUND: 2, 'VCPU': 1}


def test_together_is_what_one_host_takes_unless_the_group_is_on_several():
    hosts = [a_change(a_host(1, vcpu=3), a_guest(1, 1, GROUP)), a_host(2, vcpu=5)]
    together = GroupRef(uuid=GROUP, policy=Policy.AFFINITY)
    assert counted(a_table(a_host(1, vcpu=3), a_host(2, vcpu=5)), together, VCPU=1).total == 5
    assert counted(a_table(*hosts), together, VCPU=1).total == 8


# -- layouts ------------------------------------------------------------------------------
ROOMY = {'vcpu': 999, 'ram': 999_999, 'inventories': {'PCPU': Inventory(total=999)}}
PIPELINE = plugin_loader.load_pipeline(options={'pci_aliases': ALIASES})


def a_big_host(number=1, **fields):
    """Return a host with ample amounts; by default two cells of 8 dedicated processors."""
    fields.setdefault('numa', [a_cell(0), a_cell(1)])
    return a_host(number, **(ROOMY | fields))


def of_layouts(table, specs=None, layouts_max=1000, **amounts):
    amounts = {'MEMORY_MB': 1024} | amounts
    spec = a_spec({'hw:cpu_policy': 'dedicated'} | (specs or {}), **amounts)
    return free_capacity(table, spec, np.arange(len(table)), PIPELINE.inside, layouts_max)


def test_guests_are_laid_out_one_after_another():
    table = a_table(
        a_big_host(1),
        a_big_host(2, numa=[a_cell(0, used_pinned_cpus=[4, 5, 6])]),
        a_big_host(3, numa=[]),
        a_big_host(4, inventories={'PCPU': Inventory(total=3)}),
    )
    count = of_layouts(table, PCPU=3)
    assert count.counts.tolist() == [4, 1, 0, 1]
    assert (count.total, count.uncounted) == (6, 0)
    assert count.bound_counts() == {
        'dedicated processors in one NUMA cell': 2,
        'NUMA cells': 1,
        'PCPU': 1,
    }


def test_what_is_there_already_and_pages_and_devices_count():
    host = a_big_host(1, devices=[a_pool(3, None)])
    layout = laid(pinned(6), a_table(host).free_topology(0))
    guest = msgspec.structs.replace(a_guest(1, 1), layout=layout)
    table = a_table(a_change(host, guest), msgspec.structs.replace(host, id=2, name='cmp-2'))
    assert of_layouts(table, PCPU=4).counts.tolist() == [2, 4]
    large = {'hw:mem_page_size': '1GB'}
    count = of_layouts(table, large, PCPU=1, MEMORY_MB=3072)
    assert count.counts.tolist() == [4, 4]
    assert next(iter(count.bound_counts())) == 'pages in one NUMA cell'
    count = of_layouts(table, {'pci_passthrough:alias': 'gpu'}, PCPU=1, MEMORY_MB=64)
    assert (count.counts.tolist(), [*count.bound_counts()]) == ([3, 3], ['devices'])
    assert table.free_topology(1).pools[0].free == 3


def test_alike_hosts_are_worked_out_once_and_the_rest_is_an_estimate():
    table = a_table(*(a_big_host(n) for n in range(1, 6)), a_big_host(6, devices=[a_pool(1)]))
    exact = of_layouts(table, PCPU=4)
    assert (exact.counts.tolist(), exact.total, exact.uncounted) == ([4] * 6, 24, 0)
    some = of_layouts(table, PCPU=4, layouts_max=5)
    assert (some.counts.tolist(), some.uncounted) == ([4] * 5 + [249], 1)
    none = of_layouts(table, PCPU=4, layouts_max=3)
    assert (none.counts.tolist(), none.uncounted) == ([249] * 6, 6)


def test_a_request_that_asks_nothing_of_the_inside_is_counted_by_amounts():
    table = a_table(a_big_host(1, vcpu=4))
    spec = RequestSpec(resources={'VCPU': 1})
    assert free_capacity(table, spec, np.arange(1), PIPELINE.inside).counts.tolist() == [4]


@pytest.mark.parametrize('seed', range(25))
def test_as_many_are_counted_as_can_be_placed(seed):
    rng = random.Random(seed)
    hosts = []
    for n in range(1, rng.randint(2, 5)):
        cells = [
            a_cell(i, used_pinned_cpus=rng.sample(a_cell(i).pinned_cpus, rng.randint(0, 6)))
            for i in range(rng.choice((1, 1, 2)))
        ]
        pools = [a_pool(rng.randint(0, 4), rng.choice((None, 0)))]
        ram = rng.choice((8_000, 40_000))
        hosts.append(a_big_host(n, numa=cells, devices=pools, ram=ram))
    specs = {'hw:cpu_policy': 'dedicated'}
    if rng.random() < 0.4:
        specs['pci_passthrough:alias'] = rng.choice(('gpu', 'near'))
    if rng.random() < 0.3:
        specs['hw:mem_page_size'] = rng.choice(('large', 'small'))
    if rng.random() < 0.3:
        specs['hw:numa_nodes'] = '2'
    spec = a_spec(specs, PCPU=2, MEMORY_MB=2048)
    table = a_table(*hosts)
    counted_ = free_capacity(table, spec, np.arange(len(table)), PIPELINE.inside)
    request = msgspec.structs.replace(a_request(alternates=0), spec=spec)
    placed = [0] * len(table)
    for n in range(100):
        single = msgspec.structs.replace(request, request_id=an_id(n, 4), consumers=[an_id(n, 5)])
        (name,) = hosts_of(decide(table, single, PIPELINE))
        if name is None:
            break
        placed[table.row_of(name)] += 1
    assert counted_.counts.tolist() == placed
