# SPDX-License-Identifier: Apache-2.0
"""Double use inside of a host, as the audit finds it."""

import random

import pytest

from gantt.core.messages.layout import CellLayout, DeviceLayout, Layout
from gantt.core.messages.report import NumaPages
from gantt.core.resources.host import HostFacts
from gantt.core.topology.fit import doubled_layouts, over_allocated_parts
from gantt.core.topology.free import FreeTopology, pool_key
from gantt.core.topology.search import find_layout
from tests.core.topology.hosts import GIB, a_cell, a_pool, a_wish

CELL = a_cell(0, pages=[NumaPages(size_kb=GIB, total=8), NumaPages(size_kb=4, total=2 << 20)])


def in_cell(memory_mb, page_kb=0, pins=()):
    cell = CellLayout(cell=0, memory_mb=memory_mb, page_kb=page_kb, vcpus=[0], pins=pins)
    return Layout(cells=[cell])


def lines(*layouts, **facts):
    return list(over_allocated_parts('cmp-1', HostFacts(**({'numa': [CELL]} | facts)), layouts))


def test_pages_are_counted_by_size():
    four = in_cell(4096, GIB)
    assert lines(four, four) == []
    assert lines(four, four, in_cell(1024, GIB)) == [
        'cmp-1: of pages of 1048576 KiB of NUMA cell 0 claims have 9, there are 8'
    ]
    assert lines(in_cell(4096, 2048), in_cell(9000, 2048)) == []  # the host has no such pages now


def test_ordinary_memory_is_counted_where_it_is_not_promised_more_than_once():
    assert lines(in_cell(4096, 4), in_cell(4096, pins=[(0, 4)])) == []
    assert lines(in_cell(4096, 4), in_cell(4097, pins=[(0, 4)])) == [
        'cmp-1: of the ordinary memory of NUMA cell 0 claims have 8193 MiB, there are 8192'
    ]
    assert lines(in_cell(9000), in_cell(9000)) == []


def test_devices_are_counted_by_pool():
    pool, other = a_pool(2), a_pool(1, product_id='ff', address='0000:81:00.0')
    first, second = (
        Layout(devices=[DeviceLayout(pool=pool_key(of), count=count)])
        for of, count in ((pool, 2), (other, 1))
    )
    devices = [pool, other]
    assert lines(first, second, devices=devices) == []
    assert lines(first, second, second, devices=devices) == [
        'cmp-1: of devices 10de ff 0000:81:00.0 claims have 2, there are 1'
    ]
    assert lines(first, first, devices=[a_pool(1), a_pool(1)]) == [
        'cmp-1: of devices 10de 1EB8 claims have 4, there are 2'
    ]
    assert lines(first, first, devices=[]) == []


@pytest.mark.parametrize('seed', range(30))
def test_what_was_laid_out_one_after_the_other_is_never_found(seed):
    rng = random.Random(seed)
    facts = HostFacts(
        numa=[CELL, a_cell(1), a_cell(2, pages=[])][: rng.randint(1, 3)],
        devices=[a_pool(3), a_pool(2, 1, product_id='ff')],
    )
    laid = []
    for _ in range(12):
        specs = {'hw:mem_page_size': rng.choice(['small', 'large', 'any'])}
        if rng.random() < 0.5:
            specs['hw:cpu_policy'] = 'dedicated'
        if rng.random() < 0.5:
            specs['pci_passthrough:alias'] = rng.choice(['gpu', 'any:2'])
        amounts = {'PCPU' if 'hw:cpu_policy' in specs else 'VCPU': 1}
        wish = a_wish(specs, MEMORY_MB=rng.choice([1024, 2048, 5120]), **amounts)
        layout = find_layout(wish, FreeTopology(facts.numa, facts.devices, {}, laid)).layout
        if layout is not None:
            laid.append(layout)
    assert laid
    assert list(over_allocated_parts('cmp-1', facts, laid)) == []
    assert list(doubled_layouts('cmp-1', [(str(i), layout) for i, layout in enumerate(laid)])) == []
