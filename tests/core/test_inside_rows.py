# SPDX-License-Identifier: Apache-2.0
"""The inside of hosts in the table, and the two filters that read it."""

import random

import numpy as np
import pytest

from gantt.core.filters.topology import NUMATopologyFilter, PciPassthroughFilter
from gantt.core.messages.report import NumaPages
from gantt.core.resources.host import HostChange, Placed
from gantt.core.topology.read import read
from gantt.core.topology.search import find_layout
from tests.core.builders import a_change, a_guest, a_host, a_table
from tests.core.topology.hosts import ALIASES, GIB, a_cell, a_pool, a_spec, aliases, laid, pinned

NUMA = NUMATopologyFilter()
PCI = PciPassthroughFilter({'pci_aliases': ALIASES})
COLUMNS = (
    'numa_cells',
    'cell_pinned',
    'cell_isolated',
    'cell_paired',
    'cell_shared',
    'cell_memory',
    'cell_base',
    'cell_page',
    'cell_socket',
    'cell_pages',
    'kind_free',
)


def a_big_host(number=1, cells=2, **fields):
    """Return a host of so many cells."""
    fields.setdefault('numa', [a_cell(n) for n in range(cells)])
    return a_host(number, **fields)


def a_laid_guest(number, host, layout):
    guest = a_guest(number, host)
    return Placed(guest.claim_id, guest.consumer, host, None, layout)


def columns_of(table, row=0):
    return [np.array(getattr(table, name)[..., row]).tolist() for name in COLUMNS]


def trimmed(lines):
    """Return it without the lines that only wider tables have."""
    if not isinstance(lines, list):
        return lines
    while lines and lines[-1] == -1:
        lines = lines[:-1]
    return lines


def same_columns(first, second, row=0):
    return [*map(trimmed, columns_of(first, row))] == [*map(trimmed, columns_of(second, row))]


def test_a_pick_takes_cores_and_gives_them_back():
    table = a_table(a_big_host())
    before = columns_of(table)
    layout = laid(pinned(4, mem_page_size='large'), table.free_topology(0))
    table.add_pick(1, {}, a_laid_guest(1, 1, layout))
    assert table.cell_pinned[:, 0].tolist() == [4, 8]
    assert table.cell_pages[:2, 0].tolist() == [4, 8]
    table.remove_pick(1, {}, a_guest(1, 1).claim_id)
    assert columns_of(table) == before


def test_news_brings_layouts_and_takes_them_away():
    layout = laid(pinned(4), a_table(a_big_host()).free_topology(0))
    table = a_table(a_change(a_big_host(), a_laid_guest(1, 1, layout)))
    assert table.cell_pinned[:, 0].tolist() == [4, 8]
    table.apply(a_change(a_big_host(version=2), a_guest(2, 1)))
    assert table.cell_pinned[:, 0].tolist() == [8, 8]


def test_what_a_host_says_anew_counts_at_once():
    table = a_table(a_big_host())
    table.apply(a_change(a_big_host(version=2, numa=[a_cell(0, used_pinned_cpus=[4, 5, 6])])))
    assert table.numa_cells[0] == 1 and table.cell_pinned[:, 0].tolist() == [5, -1]
    table.apply(a_change(a_host(1, version=3)))
    assert table.numa_cells[0] == 0 and table.cell_pinned[:, 0].tolist() == [-1, -1]


def test_a_snapshot_keeps_the_room_that_there_was():
    table = a_table(a_big_host())
    layout = laid(pinned(4), table.free_topology(0))
    snapshot, copy = table.snapshot(), table.copy()
    table.add_pick(1, {}, a_laid_guest(1, 1, layout))
    for other in (snapshot, copy):
        assert other.free_topology(0).cells[0].free.bit_count() == 8
        assert other.cell_pinned[0, 0] == 8
    copy.add_pick(1, {}, a_laid_guest(2, 1, layout))
    assert table.free_topology(0).cells[0].free.bit_count() == 4


def test_a_host_that_goes_leaves_the_others_their_rooms():
    table = a_table(a_big_host(1), a_big_host(2, cells=1), a_host(3))
    layout = laid(pinned(4), table.free_topology(1))
    table.add_pick(2, {}, a_laid_guest(1, 2, layout))
    table.apply(HostChange(provider_id=1, row=None))
    row = table.row_of('cmp-2')
    assert sorted(table.numa_cells.tolist()) == [0, 1]
    assert table.free_topology(row).cells[0].free.bit_count() == table.cell_pinned[0, row] == 4


@pytest.mark.parametrize('seed', range(40))
def test_columns_follow_any_history_and_never_rule_out_who_fits(seed):
    rng = random.Random(seed)
    hosts = [a_big_host(n, **some_facts(rng)) for n in range(1, 6)]
    table = a_table(*hosts)
    guests, serial = {}, 0
    for _ in range(25):
        wish_spec = a_random_spec(rng)
        row = rng.randrange(len(hosts))
        wish, room = wish_of(wish_spec), table.free_topology(row)
        result = find_layout(wish, room)
        for rule in (NUMA, PCI):
            mask = rule.mask(table, wish_spec)
            if mask is not None:
                assert mask[row] or result.layout is None
                assert all(rule.passes(table, wish_spec, i) == mask[i] for i in range(len(hosts)))
        if result.layout is not None:
            serial += 1
            guest = a_laid_guest(serial, hosts[row].id, result.layout)
            table.add_pick(hosts[row].id, {}, guest)
            guests[guest.claim_id] = guest
        elif guests:
            guest = guests.pop(rng.choice(sorted(guests)))
            table.remove_pick(guest.provider_id, {}, guest.claim_id)
    fresh = a_table(
        *(a_change(h, *(g for g in guests.values() if g.provider_id == h.id)) for h in hosts)
    )
    for row in range(len(hosts)):
        assert same_columns(table, fresh, row)


def some_facts(rng):
    sizes = [NumaPages(size_kb=size, total=total) for size, total in ((GIB, 5), (2048, 900))]
    cells = [
        a_cell(
            n,
            used_pinned_cpus=rng.sample(a_cell(n).pinned_cpus, rng.randint(0, 4)),
            pages=sizes[: rng.randint(0, 2)],
        )
        for n in range(rng.choice([0, 1, 2, 4, 10]))
    ]
    pools = [
        a_pool(rng.randint(1, 2), rng.choice([None, 0, 1]), product_id=str(k)) for k in range(3)
    ]
    return {'numa': cells, 'devices': pools[: rng.randint(0, 3)]}


def a_random_spec(rng):
    specs = {'hw:cpu_policy': 'dedicated'}
    if rng.random() < 0.6:
        specs['hw:mem_page_size'] = rng.choice(['small', 'large', 'any', '2048', '1GB'])
    if rng.random() < 0.4:
        specs['hw:numa_nodes'] = '2'
    if rng.random() < 0.5:
        specs['hw:cpu_thread_policy'] = rng.choice(['isolate', 'require', 'prefer'])
    if rng.random() < 0.4:
        specs['pci_passthrough:alias'] = rng.choice(['near', 'any:2', 'near,any'])
    count = rng.choice([2, 4])
    if rng.random() < 0.4:
        specs['hw:emulator_threads_policy'] = 'isolate'
        count += 1
    return a_spec(specs, PCPU=count, MEMORY_MB=rng.choice([512, 2048, 4096]))


def wish_of(spec):
    return read(spec, aliases())


def test_what_was_missing_is_said_by_host():
    table = a_table(
        a_big_host(1, cells=1),
        a_host(2),
        a_big_host(3, numa=[a_cell(0, used_pinned_cpus=[4, 5, 6, 7, 8])]),
    )
    spec = a_spec({'hw:cpu_policy': 'dedicated'}, PCPU=9)
    assert NUMA.mask(table, spec).tolist() == [False] * 3
    assert NUMA.detail(table, spec, np.arange(3)) == {
        'parts': {
            'too few free dedicated processors in one NUMA cell (need 9, best has 8)': 2,
            'too few NUMA cells (need 1, has 0)': 1,
        }
    }
    assert NUMA.remedy(table, spec, np.arange(3)) == (
        'nearest is cmp-1: too few free dedicated processors in one NUMA cell (need 9, best has 8)'
    )


def test_devices_that_are_missing_are_named():
    table = a_table(a_host(1, devices=[a_pool(2)]), a_host(2))
    spec = a_spec({'pci_passthrough:alias': 'gpu:3'}, VCPU=1)
    assert PCI.mask(table, spec).tolist() == [False, False]
    assert PCI.detail(table, spec, np.arange(2)) == {
        'parts': {'too few free devices gpu (need 3, best has 2)': 2}
    }


def test_who_asks_nothing_is_not_looked_at():
    assert NUMA.mask(a_table(a_host(1)), a_spec(VCPU=1)) is None
    assert PCI.mask(a_table(a_host(1)), a_spec({'hw:cpu_policy': 'shared'}, VCPU=1)) is None
