# SPDX-License-Identifier: Apache-2.0
"""Layouts: requests that fit, their layout, and the obstacles of those that do not."""

import pytest

from gantt.core.messages.layout import Layout
from gantt.core.messages.report import NumaPages
from gantt.core.topology.free import FreeTopology
from tests.core.topology.hosts import (
    GIB,
    a_cell,
    a_pool,
    a_room,
    a_wish,
    in_the_way,
    laid,
    pinned,
)


def pins(layout):
    """Return (guest, host) processors of each cell."""
    return [list(cell.pins) for cell in layout.cells]


def hosts_cpus(layout):
    return sorted(cpu for cell in layout.cells for _, cpu in cell.pins)


# -- cores -------------------------------------------------------------------------
def test_a_pinned_guest_gets_whole_cores_of_one_cell():
    layout = laid(pinned(4), a_room())
    assert pins(layout) == [[(0, 4), (1, 5), (2, 6), (3, 7)]]
    assert (layout.cells[0].cell, layout.cells[0].page_kb) == (0, 0)


def test_what_is_pinned_outside_of_claims_is_left_alone():
    room = a_room(a_cell(0, used_pinned_cpus=[4, 6]))
    assert hosts_cpus(laid(pinned(6), room)) == [5, 7, 8, 9, 10, 11]


def test_an_odd_processor_comes_from_a_core_that_is_broken_already():
    room = a_room(a_cell(0, used_pinned_cpus=[4]))
    assert hosts_cpus(laid(pinned(3), room)) == [5, 6, 7]


def test_isolated_processors_block_their_siblings():
    layout = laid(pinned(3, cpu_thread_policy='isolate'), a_room())
    assert hosts_cpus(layout) == [4, 6, 8]
    assert layout.cells[0].blocked == [5, 7, 9]


def test_a_core_half_shared_isolates_nobody():
    cell = a_cell(0, cpus=[0, 1, 2, 3, 4], pinned_cpus=[5, 6, 7])
    assert hosts_cpus(laid(pinned(1, cpu_thread_policy='isolate'), a_room(cell))) == [6]
    assert in_the_way(pinned(2, cpu_thread_policy='isolate'), a_room(cell)) == [
        'too few free cores for themselves in one NUMA cell (need 2, best has 1)'
    ]


def test_required_siblings_are_not_taken_from_half_free_cores():
    cell = a_cell(0, used_pinned_cpus=[4, 6, 8])
    assert hosts_cpus(laid(pinned(2, cpu_thread_policy='require'), a_room(cell))) == [10, 11]
    assert in_the_way(pinned(4, cpu_thread_policy='require'), a_room(cell))


def test_required_siblings_need_threads():
    cell = a_cell(0, siblings=[])
    assert in_the_way(pinned(1, cpu_thread_policy='require'), a_room(cell))
    assert hosts_cpus(laid(pinned(2, cpu_thread_policy='isolate'), a_room(cell))) == [4, 5]


def test_the_emulator_needs_no_siblings():
    specs = {'cpu_thread_policy': 'require', 'emulator_threads_policy': 'isolate'}
    cell = a_cell(0, used_pinned_cpus=[4, 6])
    layout = laid(pinned(5, **specs), a_room(cell))
    assert (hosts_cpus(layout), layout.cells[0].emulator) == ([8, 9, 10, 11], [5])
    odd = laid(pinned(4, **specs), a_room(a_cell(0)))
    assert (hosts_cpus(odd), odd.cells[0].emulator) == ([4, 5, 6], [7])
    full = a_cell(0, used_pinned_cpus=[4, 5, 6, 7])
    assert in_the_way(pinned(5, **specs), a_room(full)) == [
        'too few free dedicated processors in one NUMA cell (need 5, best has 4)'
    ]


def test_the_emulator_of_isolated_processors_has_a_core():
    specs = {'cpu_thread_policy': 'isolate', 'emulator_threads_policy': 'isolate'}
    cell = a_cell(0, used_pinned_cpus=[4, 6, 8])
    assert in_the_way(pinned(2, **specs), a_room(cell)) == [
        'too few free cores for themselves in one NUMA cell (need 2, best has 1)'
    ]
    layout = laid(pinned(2, **specs), a_room(a_cell(0)))
    assert (hosts_cpus(layout), layout.cells[0].emulator) == ([4], [6])
    assert layout.cells[0].blocked == [5, 7]


def test_the_emulator_has_a_processor_of_its_own_in_the_first_cell():
    wish = a_wish(
        {
            'hw:cpu_policy': 'dedicated',
            'hw:emulator_threads_policy': 'isolate',
            'hw:numa_nodes': '2',
        },
        PCPU=9,
    )
    layout = laid(wish, a_room())
    assert [len(cell.emulator) for cell in layout.cells] == [1, 0]
    assert len({*hosts_cpus(layout), *layout.cells[0].emulator}) == 9


def test_mixed_processors_take_both_kinds_of_one_cell():
    wish = a_wish({'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '2-3'}, VCPU=2, PCPU=2)
    layout = laid(wish, a_room(a_cell(0, cpus=[0]), a_cell(1)))
    assert pins(layout) == [[(2, 104), (3, 105)]]
    assert layout.cells[0].shared == 2


def test_a_guest_never_shares_more_processors_than_a_cell_has():
    wish = a_wish({'hw:numa_nodes': '1'}, VCPU=5)
    assert in_the_way(wish, a_room(ratio=16.0)) == [
        'too few shared processors in one NUMA cell (need 5, best has 4)'
    ]
    assert laid(a_wish({'hw:numa_nodes': '1'}, VCPU=4), a_room(a_cell(cpu_used=60), ratio=16.0))
    assert in_the_way(
        a_wish({'hw:numa_nodes': '1'}, VCPU=4), a_room(a_cell(cpu_used=61), ratio=16.0)
    )


# -- pages ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('page', 'size'),
    [('large', GIB), ('any', GIB), ('1GB', GIB), ('1048576', GIB), ('small', 4), ('4', 4)],
)
def test_pages_of_the_size_that_was_asked_for(page, size):
    layout = laid(a_wish({'hw:mem_page_size': page}, VCPU=2), a_room())
    assert layout.cells[0].page_kb == size


def test_pages_come_all_from_one_cell():
    cells = [a_cell(n, pages=[NumaPages(size_kb=GIB, total=3)]) for n in (0, 1)]
    assert in_the_way(a_wish({'hw:mem_page_size': 'large'}, VCPU=2), a_room(*cells)) == [
        'too few free pages of 1048576 KiB in one NUMA cell (need 4, best has 3)'
    ]


def test_pages_reserved_or_used_are_not_to_be_had():
    cell = a_cell(0, pages=[NumaPages(size_kb=GIB, total=8, used=3, reserved=2)])
    assert in_the_way(a_wish({'hw:mem_page_size': 'large'}, VCPU=2), a_room(cell))


def test_the_largest_pages_that_will_do_are_taken():
    sizes = [NumaPages(size_kb=2048, total=4096), NumaPages(size_kb=GIB, total=3)]
    layout = laid(a_wish({'hw:mem_page_size': 'large'}, VCPU=2), a_room(a_cell(0, pages=sizes)))
    assert layout.cells[0].page_kb == 2048


def test_memory_that_is_no_whole_number_of_pages():
    wish = a_wish({'hw:mem_page_size': '1GB'}, VCPU=2, MEMORY_MB=1500)
    assert in_the_way(wish, a_room()) == ['1500 MiB are no whole number of pages of 1048576 KiB']


def test_a_pinned_guest_does_not_share_its_memory():
    wish = pinned(2)
    assert laid(wish, a_room(a_cell(0, memory_used_mb=4096), ratio=4.0))
    assert in_the_way(wish, a_room(a_cell(0, memory_used_mb=4097), ratio=4.0)) == [
        'too little free memory in one NUMA cell, in MiB (need 4096, best has 4095)'
    ]


# -- cells ------------------------------------------------------------------------------
def test_two_cells_of_a_guest_are_on_two_of_the_host():
    layout = laid(pinned(8, numa_nodes='2'), a_room())
    assert sorted(cell.cell for cell in layout.cells) == [0, 1]
    assert in_the_way(pinned(8, numa_nodes='2'), a_room(a_cell(0))) == [
        'too few NUMA cells (need 2, has 1)'
    ]


def test_unequal_cells_find_their_places_whatever_their_order():
    room = a_room(a_cell(0, used_pinned_cpus=[4, 5, 6, 7]), a_cell(1))
    for first, second in (('0-1', '2-7'), ('0-5', '6-7')):
        wish = pinned(
            8,
            numa_nodes='2',
            **{
                'numa_cpus.0': first,
                'numa_cpus.1': second,
                'numa_mem.0': '1024',
                'numa_mem.1': '3072',
            },
        )
        layout = laid(wish, room)
        assert {len(cell.pins): cell.cell for cell in layout.cells} == {2: 0, 6: 1}


def test_an_emptier_cell_is_preferred_or_a_fuller_one_where_packing():
    room = a_room(a_cell(0, used_pinned_cpus=[4, 5]), a_cell(1))
    assert laid(pinned(2), room).cells[0].cell == 1
    assert laid(pinned(2), room, pack=True).cells[0].cell == 0


def test_a_guest_without_devices_stays_away_from_them():
    assert laid(pinned(2), a_room(devices=[a_pool(node=0)])).cells[0].cell == 1


def test_what_is_enough_apart_but_not_together():
    cells = [a_cell(0, pages=[]), a_cell(1, pinned_cpus=[])]
    wish = pinned(4, mem_page_size='large')
    assert in_the_way(wish, a_room(*cells)) == ['no one cell of the host have all of it together']


def test_a_host_that_says_nothing_of_cells_has_none():
    assert in_the_way(pinned(1), FreeTopology([], [], {})) == ['too few NUMA cells (need 1, has 0)']


# -- devices ----------------------------------------------------------------------------
def with_devices(text, count=2, **specs):
    return a_wish(
        {
            'pci_passthrough:alias': text,
            'hw:cpu_policy': 'dedicated',
            **{f'hw:{k}': v for k, v in specs.items()},
        },
        PCPU=count,
    )


def test_a_device_that_must_be_near_decides_the_cell():
    layout = laid(with_devices('near:1'), a_room(devices=[a_pool(node=1)]))
    assert (layout.cells[0].cell, layout.devices[0].numa_node) == (1, 1)
    assert layout.devices[0].alias == 'near'


def test_a_device_that_must_be_near_is_no_use_far_away():
    full = a_cell(1, used_pinned_cpus=a_cell(1).pinned_cpus)
    room = a_room(a_cell(0), full, devices=[a_pool(node=1)])
    assert in_the_way(with_devices('near'), room) == [
        'no one cell of the host have all of it together with its devices near'
    ]
    assert laid(with_devices('near', pci_numa_affinity_policy='preferred'), room)


def test_a_preferred_device_is_taken_near_where_it_can_be():
    vf = {'vendor_id': '8086', 'tags': {'dev_type': 'type-VF'}}
    pools = [a_pool(node=0, **vf), a_pool(node=1, **vf)]
    layout = laid(with_devices('nic'), a_room(a_cell(0, pinned_cpus=[]), a_cell(1), devices=pools))
    assert layout.devices[0].numa_node == 1


@pytest.mark.parametrize(('policy', 'ok'), [('legacy', True), ('required', False)])
def test_a_device_on_no_known_cell(policy, ok):
    wish = with_devices('gpu', pci_numa_affinity_policy=policy)
    room = a_room(devices=[a_pool(node=None)])
    assert bool(laid(wish, room)) if ok else in_the_way(wish, room)


def test_a_device_on_the_socket_of_the_guest():
    cells = [a_cell(0, socket=0, pinned_cpus=[]), a_cell(1, socket=0), a_cell(2, socket=1)]
    wish = with_devices('gpu', pci_numa_affinity_policy='socket')
    layout = laid(wish, a_room(*cells, devices=[a_pool(node=0)]))
    assert layout.cells[0].cell == 1
    assert in_the_way(wish, a_room(*cells, devices=[a_pool(node=None)]))
    silent = [a_cell(0, pinned_cpus=[]), a_cell(1, socket=None)]
    assert in_the_way(wish, a_room(*silent, devices=[a_pool(node=0)]))
    assert laid(wish, a_room(*silent, devices=[a_pool(node=1)])).cells[0].cell == 1


def test_a_name_that_any_device_meets_leaves_the_others_theirs():
    pools = [a_pool(2, vendor_id='10de'), a_pool(1, vendor_id='8086')]
    layout = laid(a_wish({'pci_passthrough:alias': 'any:1,gpu:2'}, VCPU=1), a_room(devices=pools))
    assert sorted((d.alias, d.vendor_id, d.count) for d in layout.devices) == [
        ('any', '8086', 1),
        ('gpu', '10de', 2),
    ]


def test_special_devices_are_for_those_who_name_them():
    pools = [a_pool(tags={'dev_type': 'type-PF'}), a_pool(tags={'remote_managed': 'true'})]
    assert in_the_way(a_wish({'pci_passthrough:alias': 'gpu'}, VCPU=1), a_room(devices=pools)) == [
        'too few free devices gpu (need 1, best has 0)'
    ]


def test_devices_alone_need_no_cells():
    room = FreeTopology([], [a_pool(2)], {})
    layout = laid(a_wish({'pci_passthrough:alias': 'near:2'}, VCPU=1), room)
    assert layout.cells == [] and layout.devices[0].count == 2


# -- rooms ------------------------------------------------------------------------------
def test_what_one_takes_the_next_does_not_get():
    room = a_room()
    taken = []
    for _ in range(4):
        layout = laid(pinned(4, mem_page_size='large'), room)
        room.allocate(layout)
        taken += hosts_cpus(layout)
    assert len(set(taken)) == 16
    assert in_the_way(pinned(1, mem_page_size='large'), room)


def test_a_layout_given_back_leaves_no_trace():
    room = a_room(devices=[a_pool(3)])
    layout = laid(with_devices('gpu:2', mem_page_size='large', cpu_thread_policy='isolate'), room)
    room.allocate(layout)
    assert not room.has_free(layout)
    room.release(layout)
    assert (
        laid(with_devices('gpu:2', mem_page_size='large', cpu_thread_policy='isolate'), room)
        == layout
    )


def test_a_settled_layout_takes_nothing_more():
    layout = laid(pinned(4), a_room())
    settled = Layout(cells=layout.cells, reported=True)
    assert a_room(taken=[settled]).cells[0].free == a_room().cells[0].free


def test_what_is_in_the_way_of_a_layout_is_named():
    layout = laid(pinned(4), a_room())
    assert a_room(taken=[layout]).first_obstacle(layout) == (
        'processors 4, 5, 6, 7 of NUMA cell 0 are not free'
    )
    assert a_room(a_cell(1)).first_obstacle(layout) == 'the host has no NUMA cell 0'
    layout = laid(a_wish({'pci_passthrough:alias': 'gpu'}, VCPU=1), a_room(devices=[a_pool()]))
    assert a_room().first_obstacle(layout) == '0 of 1 devices gpu are free'
