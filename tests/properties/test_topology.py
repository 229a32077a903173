# SPDX-License-Identifier: Apache-2.0
"""Layouts against trying everything; and what holds for every layout."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.core.messages import layout as layouts
from gantt.core.messages.report import DevicePool, NumaCell, NumaPages
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.topology_request import (
    Affinity,
    CpuPolicy,
    DeviceSpec,
    GuestCell,
    PciRequest,
    ThreadPolicy,
    TopologyRequest,
)
from gantt.core.topology.free import FreeTopology
from gantt.core.topology.search import cores_available, find_layout
from tests.properties import plain_topology

RATIO = 2.0
PAGES = ('', 'small', 'large', 'any', '2048', '1048576')
VENDORS = ('8086', '10de')
few = st.integers(0, 4)


@st.composite
def host_cells(draw):
    """Up to four cells of up to eight processors, some used, some threads apart."""
    cells = []
    for number in range(draw(st.integers(1, 4))):
        base = number * 10
        dedicated = draw(st.sets(st.integers(base, base + 7), max_size=6))
        cpus = sorted(set(range(base, base + 8)) - dedicated)[: draw(few)]
        used = draw(st.sets(st.sampled_from(sorted(dedicated)))) if dedicated else set()
        threads = draw(st.sampled_from([1, 2, 2, 4]))
        groups = [list(range(c, c + threads)) for c in range(base, base + 8, threads)]
        large = draw(st.lists(st.sampled_from([2048, 1 << 20]), unique=True, max_size=2))
        pages = []
        for size in large:
            total = draw(st.integers(0, (4 << 20) // size // 2))
            taken = draw(st.integers(0, total))
            pages.append(NumaPages(size_kb=size, total=total, used=taken // 2, reserved=taken // 3))
        cells.append(
            NumaCell(
                id=number * 3,
                cpus=cpus,
                pinned_cpus=sorted(dedicated),
                used_pinned_cpus=sorted(used),
                siblings=groups if threads > 1 else [],
                memory_mb=4096,
                memory_used_mb=draw(st.sampled_from([0, 0, 512, 2048])),
                cpu_used=draw(few),
                pages=pages,
                socket=draw(st.sampled_from([0, 0, 1, 1, None])),
            )
        )
    return cells


@st.composite
def pools(draw):
    pools = []
    for index in range(draw(st.integers(0, 3))):
        free = draw(st.integers(0, 2))
        pools.append(
            DevicePool(
                vendor_id=draw(st.sampled_from(VENDORS)),
                product_id=str(index),
                numa_node=draw(st.sampled_from([None, 0, 3, 6])),
                count=free,
                free=free,
            )
        )
    return pools


@st.composite
def wishes(draw):
    policy = draw(st.sampled_from(list(CpuPolicy)))
    cells, next_cpu = [], 0
    for _ in range(draw(st.integers(0, 3))):
        count = draw(st.integers(1, 3))
        mine = tuple(range(next_cpu, next_cpu + count))
        next_cpu += count
        pinned = {CpuPolicy.SHARED: 0, CpuPolicy.DEDICATED: count}.get(policy, count // 2)
        memory = draw(st.sampled_from([256, 512, 1024, 1025, 2048, 3072]))
        cells.append(GuestCell(mine, memory, mine[:pinned]))
    devices = tuple(
        PciRequest(
            alias=str(k),
            count=draw(st.integers(1, 2)),
            affinity=draw(st.sampled_from(list(Affinity))),
            specs=tuple(
                DeviceSpec(vendor_id=v)
                for v in draw(st.lists(st.sampled_from([*VENDORS, '']), min_size=1, max_size=2))
            ),
        )
        for k in range(draw(st.integers(0, 2)))
    )
    return TopologyRequest(
        cells=tuple(cells),
        cpu_policy=policy,
        page=draw(st.sampled_from(PAGES)),
        thread_policy=draw(st.sampled_from(list(ThreadPolicy))),
        emulator_apart=bool(cells) and draw(st.booleans()) and policy is not CpuPolicy.SHARED,
        devices=devices,
    )


def a_room(cells, devices, taken=()):
    ratios = {n: Inventory(total=1, allocation_ratio=RATIO) for n in ('VCPU', 'MEMORY_MB')}
    return FreeTopology(cells, devices, ratios, taken)


@settings(max_examples=120, deadline=None)
@given(wish=wishes(), cells=host_cells(), devices=pools(), pack=st.booleans())
def test_a_layout_is_found_where_there_is_one_and_nowhere_else(wish, cells, devices, pack):
    placement = find_layout(wish, a_room(cells, devices), pack)
    assert (placement.layout is not None) == plain_topology.fits(wish, cells, devices, RATIO)
    if placement.layout is None:
        assert placement.obstacles
    else:
        check(wish, placement.layout, cells, devices)


@settings(max_examples=60, deadline=None)
@given(wish=wishes(), cells=host_cells(), devices=pools(), data=st.data())
def test_neither_order_of_cells_decides_whether_it_fits(wish, cells, devices, data):
    other = TopologyRequest(
        cells=wish.cells[:1] + tuple(reversed(wish.cells[1:])),
        cpu_policy=wish.cpu_policy,
        page=wish.page,
        thread_policy=wish.thread_policy,
        emulator_apart=wish.emulator_apart,
        devices=tuple(reversed(wish.devices)),
    )
    shuffled = data.draw(st.permutations(cells))
    layouts = [
        find_layout(w, a_room(c, devices)).layout for w in (wish, other) for c in (cells, shuffled)
    ]
    assert len({layout is None for layout in layouts}) == 1


@settings(max_examples=60, deadline=None)
@given(cells=host_cells(), devices=pools(), data=st.data())
def test_guests_one_after_another_never_share_what_is_dedicated(cells, devices, data):
    room, taken = a_room(cells, devices), []
    for _ in range(4):
        layout = find_layout(data.draw(wishes()), room).layout
        if layout is None:
            continue
        assert room.has_free(layout)
        room.allocate(layout)
        taken.append(layout)
    held = [cpu for layout in taken for cell in layout.cells for cpu in cpus_of(cell)]
    assert len(held) == len(set(held))
    for cell in room.cells:
        assert all(count >= 0 for count in cell.pages.values())
    assert all(pool.free >= 0 for pool in room.pools)
    assert figures(a_room(cells, devices, taken)) == figures(room)
    for layout in reversed(taken):
        room.release(layout)
    assert figures(room) == figures(a_room(cells, devices))


def figures(room):
    return (
        [
            (
                c.free,
                c.cpu_used,
                c.memory_used,
                c.base_left,
                dict(c.pages),
                [cores_available(c, p) for p in ThreadPolicy],
            )
            for c in room.cells
        ],
        [pool.free for pool in room.pools],
    )


def cpus_of(cell):
    return [*(cpu for _, cpu in cell.pins), *cell.emulator, *cell.blocked]


def check(wish, layout, cells, devices):
    """What a layout says is what was asked for, and the host has it."""
    by_id = {cell.id: cell for cell in cells}
    assert len({cell.cell for cell in layout.cells}) == len(wish.cells)
    for number, (got, guest) in enumerate(zip(layout.cells, wish.cells, strict=True)):
        host = by_id[got.cell]
        free = set(host.pinned_cpus) - set(host.used_pinned_cpus)
        assert len(cpus_of(got)) == len(set(cpus_of(got))) and set(cpus_of(got)) <= free
        assert tuple(vcpu for vcpu, _ in got.pins) == guest.dedicated
        assert len(got.emulator) == int(number == 0 and wish.emulator_apart)
        assert (tuple(got.vcpus), got.memory_mb) == (guest.vcpus, guest.memory_mb)
    for wished in wish.devices:
        assert sum(d.count for d in layout.devices if d.alias == wished.alias) == wished.count
    assert layouts.read(layouts.layout_json(layout)) == layout
