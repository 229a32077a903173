# SPDX-License-Identifier: Apache-2.0
"""Hosts judged by arrays, against a search on every host, and against trying everything.

A host that a search finds able is never ruled out; and where all that is asked for is
looked at, no other is let pass.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import plugin_loader
from gantt.core.messages.request import Flavor
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.topology_request import (
    Affinity,
    CpuPolicy,
    DeviceSpec,
    GuestCell,
    PciRequest,
    TopologyRequest,
)
from gantt.core.resources.host import Placed
from gantt.core.table import device_sets, topology
from gantt.core.table.topology import CELLS_MAX
from gantt.core.topology.read import read
from gantt.core.topology.search import find_layout
from tests.core.builders import a_guest, a_host, a_request, a_table, decide
from tests.core.topology.hosts import ALIASES, a_cell, a_pool
from tests.properties import plain_topology
from tests.properties.test_topology import RATIO, host_cells, pools, wishes
from tests.thorough import examples

PRODUCTS = ('1eb8', '1eb9')
RATIOS = {
    'VCPU': Inventory(total=64, allocation_ratio=RATIO),
    'MEMORY_MB': Inventory(total=65536, allocation_ratio=RATIO),
}
PIPELINE = plugin_loader.load_pipeline(options={'pci_aliases': ALIASES})


@st.composite
def tables(draw):
    """Up to four hosts, on some of which guests were laid out."""
    insides = draw(st.lists(st.tuples(host_cells() | st.just([]), pools()), min_size=1, max_size=4))
    table = a_table(
        *(
            a_host(n, numa=cells, devices=devices, inventories=RATIOS)
            for n, (cells, devices) in enumerate(insides, 1)
        )
    )
    for serial in range(draw(st.integers(0, 3))):
        row = draw(st.integers(0, len(insides) - 1))
        layout = find_layout(draw(wishes()), table.free_topology(row)).layout
        if layout is not None:
            guest = a_guest(serial, table.hosts[row].id)
            guest = Placed(guest.claim_id, guest.consumer, guest.provider_id, None, layout)
            table.add_pick(guest.provider_id, {}, guest)
    return table


@st.composite
def roomy_tables(draw):
    """Hosts whose processors are seldom short: where devices are decides."""
    hosts = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        many = draw(st.integers(2, 4))
        full = draw(st.sets(st.integers(0, many - 1), min_size=1, max_size=many - 1))
        sockets = draw(st.sampled_from([[0, 0, 1, 1], [0, 1, 0, 1], [0, 0, None, 0]]))
        cells = [
            a_cell(
                n, socket=sockets[n], used_pinned_cpus=a_cell(n).pinned_cpus if n in full else []
            )
            for n in range(many)
        ]
        devices = [
            a_pool(free, node, product_id=product, address=str(address))
            for address, (free, node, product) in enumerate(
                draw(
                    st.lists(
                        st.tuples(
                            st.integers(1, 3),
                            st.sampled_from([None, 0, 1, 2, 3, 9]),
                            st.sampled_from(PRODUCTS),
                        ),
                        max_size=6,
                    )
                )
            )
        ]
        hosts.append(a_host(number, numa=cells, devices=devices))
    return a_table(*hosts)


@st.composite
def wishes_for_devices(draw):
    """Guests of one or two cells, with devices that may be the same."""
    cells = tuple(
        GuestCell((n, n + 9), 512, (n,) if n == 0 or draw(st.booleans()) else ())
        for n in range(draw(st.integers(1, 2)))
    )
    devices = [
        PciRequest(
            alias=str(number),
            count=draw(st.integers(1, 2)),
            affinity=draw(st.sampled_from([Affinity.SOCKET, Affinity.SOCKET, *Affinity])),
            specs=tuple(
                DeviceSpec(product_id=product)
                for product in draw(st.lists(st.sampled_from(PRODUCTS), min_size=1, max_size=2))
            ),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    return TopologyRequest(cells=cells, cpu_policy=CpuPolicy.MIXED, devices=tuple(devices))


def judged(table, wish, rows=None):
    return device_sets.check_rows(
        table, table.kinds, wish, np.arange(len(table)) if rows is None else rows
    )


@settings(max_examples=examples(200), deadline=None)
@given(table=tables(), wish=wishes())
def test_who_is_judged_able_is_who_a_search_finds_able(table, wish):
    verdict = judged(table, wish)
    fits = [
        find_layout(wish, table.free_topology(row)).layout is not None for row in range(len(table))
    ]
    assert verdict.possible.tolist() == verdict.certain.tolist() == fits


@settings(max_examples=examples(200), deadline=None)
@given(table=roomy_tables(), wish=wishes_for_devices())
def test_it_is_so_where_the_places_of_devices_decide(table, wish):
    verdict = judged(table, wish)
    fits = [
        find_layout(wish, table.free_topology(row)).layout is not None for row in range(len(table))
    ]
    assert verdict.possible.tolist() == verdict.certain.tolist() == fits


@settings(max_examples=60, deadline=None)
@given(cells=host_cells(), devices=pools(), wish=wishes())
def test_who_is_judged_able_is_who_trying_everything_finds_able(cells, devices, wish):
    table = a_table(a_host(numa=cells, devices=devices, inventories=RATIOS))
    assert judged(table, wish).possible.tolist() == [
        plain_topology.fits(wish, cells, devices, RATIO)
    ]


@settings(max_examples=examples(150), deadline=None)
@given(wish=wishes() | wishes_for_devices(), data=st.data())
def test_who_is_able_is_never_ruled_out_where_not_all_is_looked_at(wish, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_sets, 'UNION_WISHES_MAX', data.draw(st.integers(0, 1)))
        patch.setattr(device_sets, 'CELL_SETS_MAX', data.draw(st.integers(0, 3)))
        patch.setattr(topology, 'DEVICE_LINES_MAX', data.draw(st.integers(0, 4)))
        patch.setattr(topology, 'PAGE_LINES_MAX', sizes := data.draw(st.integers(0, 3)))
        patch.setattr(device_sets, 'PAGE_LINES_MAX', sizes)
        patch.setattr(device_sets, 'CELLS_MAX', most := data.draw(st.sampled_from([2, CELLS_MAX])))
        patch.setattr(topology, 'CELLS_MAX', most)
        patch.setattr(topology, 'NO_CELL', most)
        patch.setattr(device_sets, 'NO_CELL', most)
        patch.setattr(topology, 'OTHER_CELL', most + 1)
        table = data.draw(tables() | roomy_tables())
        verdict = judged(table, wish)
    for row in range(len(table)):
        is_able = find_layout(wish, table.free_topology(row)).layout is not None
        assert verdict.possible[row] or not is_able
        assert is_able or not verdict.certain[row]


@settings(max_examples=60, deadline=None)
@given(table=tables(), wish=wishes(), data=st.data())
def test_a_host_is_judged_alike_alone_and_among_others(table, wish, data):
    rows = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, unique=True))
    among, all_rows = judged(table, wish, np.array(sorted(rows))), judged(table, wish)
    assert among.possible.tolist() == all_rows.possible[sorted(rows)].tolist()


@st.composite
def fleets(draw):
    """Hosts with as many processors and devices as the others, not in the same places.

    One is better the higher its number is.
    """
    hosts = []
    for number in range(1, draw(st.integers(6, 12)) + 1):
        full = draw(st.sampled_from([None, 0, 0, 1]))
        numa = [
            a_cell(n, used_pinned_cpus=a_cell(n).pinned_cpus if n == full else []) for n in (0, 1)
        ]
        near = draw(st.integers(0, 4))
        devices = [a_pool(near, 0), a_pool(4 - near, draw(st.sampled_from([1, None])))]
        pinned = {'PCPU': Inventory(total=16)}
        ram = 32768 + 8192 * number
        hosts.append(a_host(number, numa=numa, devices=devices, inventories=pinned, ram=ram))
    return hosts


@settings(max_examples=60, deadline=None)
@given(hosts=fleets(), count=st.integers(1, 4), nodes=st.sampled_from(['1', '2']))
def test_the_pick_is_the_best_host_that_a_search_finds_able(hosts, count, nodes):
    specs = {'hw:cpu_policy': 'dedicated', 'hw:numa_nodes': nodes}
    request = a_request(
        resources={'PCPU': 2, 'MEMORY_MB': 2048, 'DISK_GB': 1},
        flavor=Flavor(extra_specs=specs | {'pci_passthrough:alias': f'near:{count}'}),
    )
    table = a_table(*hosts)
    wish = read(request.spec, PIPELINE.inside.aliases)
    able = [
        row
        for row in range(len(table))
        if find_layout(wish, table.free_topology(row)).layout is not None
    ]
    member = decide(table, request, PIPELINE).members[0]
    if not able:
        assert member.selection is None
        assert member.survivors == 0
    else:
        assert member.selection.host == table.names[able[-1]]
        removed = {count.name: count.removed for count in member.filters if count.removed}
        assert sum(removed.values()) >= len(table) - 1 - able[-1]
        assert set(removed) <= {'NUMATopologyFilter'}


def full(number, **fields):
    """A cell without a dedicated processor that is free."""
    return a_cell(number, used_pinned_cpus=a_cell(number).pinned_cpus, **fields)


def wanted(count, affinity=Affinity.REQUIRED, shared=0, page=''):
    """A cell with a processor of its own, and others that share; devices near to them."""
    cells = [GuestCell((0,), 512, (0,)), *(GuestCell((n,), 512) for n in range(1, 1 + shared))]
    device = PciRequest('near', count, (DeviceSpec(vendor_id='10de'),), affinity)
    return TopologyRequest(cells=tuple(cells), page=page, devices=(device,) if count else ())


@pytest.mark.parametrize(
    ('is_able', 'wish', 'cells', 'pools'),
    [
        (True, wanted(1, Affinity.SOCKET), [a_cell(0, socket=5), full(1, socket=5)], {1: 1}),
        (False, wanted(1, Affinity.SOCKET), [a_cell(0, socket=5), full(1, socket=6)], {1: 1}),
        # Where one socket is not known, only the very cell counts.
        (
            False,
            wanted(1, Affinity.SOCKET),
            [a_cell(0, socket=5), full(1, socket=5), full(2, socket=None)],
            {1: 1},
        ),
        (True, wanted(4, shared=1), [full(0), a_cell(1), a_cell(2)], {0: 2, 1: 2}),
        # The cells that the devices are near to take a guest each, but not these two.
        (False, wanted(4, shared=1), [full(0), full(1), a_cell(2)], {0: 2, 1: 2}),
        (True, wanted(0, page='small'), [a_cell(0)], {}),
        (False, wanted(0, page='small'), [a_cell(0, pages=[])], {}),
        (False, wanted(0, page='any'), [a_cell(0, pages=[])], {}),
    ],
)
def test_hosts_by_hand(is_able, wish, cells, pools):
    devices = [a_pool(count, node) for node, count in pools.items()]
    table = a_table(a_host(numa=cells, devices=devices))
    assert (find_layout(wish, table.free_topology(0)).layout is not None) == is_able
    assert judged(table, wish).possible.tolist() == [is_able]
