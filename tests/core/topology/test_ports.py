# SPDX-License-Identifier: Apache-2.0
"""Devices that are described with the request, and cells near to the guest's networks."""

import itertools
import random

import msgspec
import pytest

from gantt import exceptions
from gantt.core.filters.topology import NUMATopologyFilter, PciPassthroughFilter, layout_settings_of
from gantt.core.messages.request import DeviceKind, DeviceRequest, Networks, Purpose
from gantt.core.messages.topology_request import Affinity
from gantt.core.topology.free import pool_key
from gantt.core.topology.read import read
from gantt.core.topology.search import find_layout
from tests.core.builders import a_host, a_table
from tests.core.topology.hosts import (
    ALIASES,
    a_cell,
    a_pool,
    a_room,
    a_spec,
    aliases,
    in_the_way,
    laid,
)

PINNED = {'hw:cpu_policy': 'dedicated'}
VF = {'dev_type': 'type-VF', 'physical_network': 'net1', 'remote_managed': 'false'}


def a_port(*kinds, **fields):
    """Return a device of a port on network net1 unless kinds state otherwise."""
    kinds = kinds or ({'physical_network': 'net1', 'remote_managed': 'False'},)
    return DeviceRequest(
        port=fields.pop('port', 'port-1'),
        any_of=[DeviceKind(tags=kind) for kind in kinds],
        **fields,
    )


def asking(*devices, networks=None, **specs):
    spec = a_spec(PINNED | specs, PCPU=2)
    return msgspec.structs.replace(spec, devices=list(devices), networks=networks)


def wish(*devices, networks=None, **specs):
    return read(asking(*devices, networks=networks, **specs), aliases())


def vfs(count=1, node=0, **tags):
    return a_pool(count, node, vendor_id='8086', product_id='10ed', tags=VF | tags)


# -- which devices ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('kind', 'tags', 'fits'),
    [
        ({'physical_network': 'NET1', 'remote_managed': 'False'}, {}, True),
        ({'physical_network': 'net2', 'remote_managed': 'False'}, {}, False),
        ({'physical_network': 'net1', 'remote_managed': 'True'}, {}, False),
        (
            {'physical_network': 'net1', 'remote_managed': 'True'},
            {'remote_managed': 'true'},
            True,
        ),
        ({'physical_network': 'net1'}, {'remote_managed': 'true'}, False),
        ({'physical_network': None}, {}, False),
        ({'physical_network': 'net1', 'trusted': 'true'}, {}, False),
        ({'physical_network': 'net1', 'trusted': 'true'}, {'trusted': 'True'}, True),
    ],
)
def test_tags_of_the_pool_are_as_the_port_asks(kind, tags, fits):
    room = a_room(devices=[vfs(**tags)])
    layout = find_layout(wish(a_port(kind)), room).layout
    assert (layout is not None) is fits
    if fits:
        assert [(d.alias, d.count) for d in layout.devices] == [('port-1', 1)]


def test_a_port_on_no_physical_network_gets_a_device_of_none():
    bare = a_pool(1, 0, tags={'dev_type': 'type-VF'})
    port = a_port({'physical_network': None, 'remote_managed': 'False'})
    assert laid(wish(port), a_room(devices=[vfs(), bare])).devices[0].pool == pool_key(bare)
    # Devices other than network devices have no known manager.
    assert in_the_way(wish(port), a_room(devices=[a_pool(1)]))


def test_whole_cards_are_only_for_who_names_them():
    card = a_pool(1, 0, tags=VF | {'dev_type': 'type-PF'})
    tags = {'physical_network': 'net1', 'remote_managed': 'False'}
    room = a_room(devices=[card])
    assert in_the_way(wish(a_port(tags)), room) == [
        'too few free devices port-1 (need 1, best has 0)'
    ]
    named = DeviceRequest(port='p', any_of=[DeviceKind(device_type='type-PF', tags=tags)])
    assert laid(wish(named), room).devices


def test_ports_and_names_share_pools():
    both = {'pci_passthrough:alias': 'any:2'}
    room = a_room(devices=[vfs(2), a_pool(1)])
    layout = laid(wish(a_port(), **both), room)
    assert sorted((d.alias, d.count) for d in layout.devices) == [
        ('any', 1),
        ('any', 1),
        ('port-1', 1),
    ]
    assert in_the_way(wish(a_port(), a_port(port='port-2'), **both), room)


def test_names_that_are_known_here_are_read_from_the_flavor_and_others_as_described():
    kind = DeviceKind(vendor_id='15B3')
    gpu, other = (DeviceRequest(alias=name, count=3, any_of=[kind]) for name in ('gpu', 'other'))
    read_wish = wish(gpu, other, **{'pci_passthrough:alias': 'gpu:2,other:3'})
    assert [(d.alias, d.count, d.specs[0].vendor_id) for d in read_wish.devices] == [
        ('gpu', 2, '10de'),
        ('other', 3, '15b3'),
    ]
    with pytest.raises(exceptions.InvalidMessage, match="no device is called 'other' here"):
        wish(gpu, **{'pci_passthrough:alias': 'other:3'})
    # Where a flavor does not state it any more the request's own field is all there is.
    assert [d.count for d in wish(gpu).devices] == [3]


@pytest.mark.parametrize(
    ('affinity', 'node', 'fits'),
    [
        (Affinity.LEGACY, None, True),
        (Affinity.LEGACY, 1, False),
        (Affinity.PREFERRED, 1, True),
        (Affinity.REQUIRED, None, False),
        (Affinity.SOCKET, 1, False),
        (Affinity.REQUIRED, 0, True),
    ],
)
def test_a_port_has_an_affinity_of_its_own(affinity, node, fits):
    room = a_room(a_cell(0), a_cell(1, pinned_cpus=[]), devices=[vfs(1, node)])
    layout = find_layout(wish(a_port(affinity=affinity)), room).layout
    assert (layout is not None) is fits


# -- readers of ports ------------------------------------------------------------------------
def test_the_filters_look_at_ports():
    rules = [NUMATopologyFilter(), PciPassthroughFilter({'pci_aliases': ALIASES})]
    table = a_table(a_host(1, devices=[vfs()]), a_host(2))
    spec = msgspec.structs.replace(a_spec(VCPU=1), devices=[a_port()])
    assert rules[1].mask(table, spec).tolist() == [True, False]
    assert layout_settings_of(rules).wish(spec).devices[0].alias == 'port-1'
    assert (
        layout_settings_of(rules).wish(msgspec.structs.replace(spec, purpose=Purpose.REBUILD))
        is None
    )


@pytest.mark.parametrize('rules', [[], [NUMATopologyFilter()]])
def test_where_nobody_looks_at_devices_ports_are_refused_by_name(rules):
    spec = msgspec.structs.replace(a_spec(VCPU=1), devices=[a_port()])
    with pytest.raises(exceptions.InvalidMessage, match='request.spec.devices'):
        layout_settings_of(rules).wish(spec)
    named = DeviceRequest(alias='gpu', any_of=[DeviceKind()])
    assert layout_settings_of(rules).wish(msgspec.structs.replace(spec, devices=[named])) is None


# -- networks ---------------------------------------------------------------------------------
def near(*cells):
    """Return a host of cells at networks; a cell is (names, whether tunneled, free cores)."""
    return a_room(
        *(
            a_cell(
                n,
                networks=list(names),
                tunneled=tunneled,
                used_pinned_cpus=a_cell(n).pinned_cpus[free:],
            )
            for n, (names, tunneled, free) in enumerate(cells)
        )
    )


def test_the_cell_is_the_one_of_the_network():
    room = near(('', False, 8), (['net1'], False, 4))
    assert laid(wish(networks=Networks(physical=['net1'])), room).cells[0].cell == 1
    assert laid(wish(networks=Networks(physical=['net2'])), room).cells[0].cell == 0
    assert laid(wish(networks=Networks(tunneled=True)), room).cells[0].cell == 0
    room = near(('', False, 8), ('', True, 4))
    assert laid(wish(networks=Networks(tunneled=True)), room).cells[0].cell == 1


def test_two_networks_at_two_cells_take_a_guest_of_two():
    room = near((['net1'], False, 8), (['net2'], False, 8))
    both = Networks(physical=['net1', 'net2'])
    assert in_the_way(wish(networks=both), room) == [
        'no one cell of the host have all of it together with its networks near'
    ]
    assert len(laid(wish(networks=both, **{'hw:numa_nodes': '2'}), room).cells) == 2


def test_a_guest_without_cells_is_near_to_everything():
    spec = msgspec.structs.replace(
        a_spec(VCPU=1), devices=[a_port()], networks=Networks(physical=['net1'])
    )
    room = a_room(a_cell(0), a_cell(1, networks=['net1']), devices=[vfs()])
    assert find_layout(read(spec, aliases()), room).layout is not None


def plainly_near(networks, taken, host):
    """Evaluate the rule literally: a network of some cell of the host is one of those taken."""
    required = {('name', name) for name in networks.physical} | (
        {'tunnel'} & {networks.tunneled and 'tunnel'}
    )
    has = [
        {('name', n) for n in cell.networks} | ({'tunnel'} if cell.tunneled else set())
        for cell in host
    ]
    here = set().union(*has) if has else set()
    mine = set().union(*(has[cell.index] for cell in taken)) if taken else set()
    return required & here <= mine


@pytest.mark.parametrize('seed', range(60))
def test_a_guest_is_laid_out_where_any_arrangement_is_near(seed):
    rng = random.Random(seed)
    names = ['net1', 'net2', 'net3']
    room = near(
        *(
            (rng.sample(names, rng.randint(0, 2)), rng.random() < 0.3, rng.choice((0, 2, 8)))
            for _ in range(rng.randint(1, 4))
        )
    )
    networks = Networks(physical=rng.sample(names, rng.randint(0, 2)), tunneled=rng.random() < 0.3)
    count = rng.choice((1, 2))
    layout = find_layout(wish(networks=networks, **{'hw:numa_nodes': str(count)}), room).layout
    able = [cell for cell in room.cells if cell.free.bit_count() >= 2 // count]
    right = any(
        plainly_near(networks, some, room.cells) for some in itertools.combinations(able, count)
    )
    assert (layout is not None) == right
    if layout is not None:
        by_id = {cell.id: cell for cell in room.cells}
        assert plainly_near(networks, [by_id[c.cell] for c in layout.cells], room.cells)
