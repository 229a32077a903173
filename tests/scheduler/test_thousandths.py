# SPDX-License-Identifier: Apache-2.0
"""Guests that take parts of processors, with devices, in cells and without."""

import argparse

import msgspec
import pytest

from gantt import exceptions, plugin_loader
from gantt.cli import parsing
from gantt.core.messages.report import DevicePool, NumaCell, NumaPages
from gantt.core.messages.request import DeviceKind, DeviceRequest, Flavor, RequestSpec
from gantt.core.messages.resource_classes import MILLI_VCPU, Inventory, format_amount
from gantt.core.messages.topology_request import Affinity
from gantt.core.records.decision import Outcome
from gantt.core.topology import read
from gantt.nova.model import flavor
from tests.builders import CLEAN
from tests.scheduler.stores import KINDS, store_of
from tests.world import Host, World, a_request

FILTERS = [
    *(host_filter.name for host_filter in plugin_loader.load_pipeline().filters),
    *('NUMATopologyFilter', 'PciPassthroughFilter'),
]
GPU = DeviceRequest(any_of=[DeviceKind(vendor_id='10de')], affinity=Affinity.PREFERRED)


@pytest.fixture(params=KINDS)
def world(request, make_store):
    """A host of four processors, all of them in thousandths, and eight devices; one of VCPU."""
    world = World(store_of(request.param, make_store))
    world.store.vocabulary.declare_class(MILLI_VCPU)
    world.scheduler.placing.use_pipeline(
        plugin_loader.load_pipeline(filters=list(dict.fromkeys(FILTERS)))
    )
    cells = [
        NumaCell(
            id=0,
            cpus=[0, 1, 2, 3],
            memory_mb=8192,
            pages=[NumaPages(size_kb=4, total=8192 * 256)],
        )
    ]
    pools = [DevicePool(vendor_id='10de', product_id='1eb8', numa_node=0, count=8, free=8)]
    for number, has in enumerate(({MILLI_VCPU: 4000}, {'VCPU': 4}), 1):
        inventories = {name: Inventory(total=total) for name, total in has.items()}
        inventories['MEMORY_MB'] = Inventory(total=8192)
        name = f'cmp-{number}'
        world.hosts[name] = Host(world, name, inventories=inventories, numa=cells, devices=pools)
        world.hosts[name].report()
    world.turn()
    return world


def asking(thousandths, **spec):
    request = a_request(1, devices=[GPU], **spec)
    resources = {MILLI_VCPU: thousandths, 'MEMORY_MB': 512}
    return msgspec.structs.replace(
        request, spec=msgspec.structs.replace(request.spec, resources=resources)
    )


def test_half_a_processor_and_a_device_each(world):
    answers = [world.select(asking(500)) for _ in range(9)]
    assert [answer.outcome.value for answer in answers] == ['placed'] * 8 + ['no_valid_host']
    chosen = answers[0].selections[0][0]
    assert chosen.host == 'cmp-1'
    assert chosen.resources == {MILLI_VCPU: 500, 'MEMORY_MB': 512}
    assert len(chosen.layout['devices']) == 1
    claim = world.store.claims.load_claim(chosen.claim_id)
    assert claim.allocations == {chosen.provider_id: {MILLI_VCPU: 500, 'MEMORY_MB': 512}}
    world.turn(times=3)
    assert world.audit() == CLEAN


def test_in_cells_a_part_is_a_processor_of_the_guest(world):
    cells = {'flavor': Flavor(extra_specs={'hw:numa_nodes': '1'})}
    answer = world.select(asking(1500, **cells))
    assert answer.outcome is Outcome.PLACED, answer.reason
    assert answer.selections[0][0].layout['cells'][0]['vcpus'] == [0, 1]
    assert world.select(asking(1001, **cells)).outcome is Outcome.PLACED
    assert world.select(asking(100, **cells)).outcome is Outcome.NO_VALID_HOST
    assert world.select(asking(100)).outcome is Outcome.PLACED, 'where it needs no place of its own'
    assert world.audit() == CLEAN


def test_dedicated_processors_beside_parts_need_a_mask():
    spec = RequestSpec(resources={'PCPU': 1, MILLI_VCPU: 500, 'MEMORY_MB': 512})
    with pytest.raises(exceptions.InvalidMessage, match=r'PCPU.*beside CUSTOM_MILLI_VCPU'):
        read.read(spec)
    mixed = {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0', 'hw:numa_nodes': '1'}
    spec = msgspec.structs.replace(spec, flavor=Flavor(extra_specs=mixed))
    (cell,) = read.read(spec).cells
    assert (cell.vcpus, cell.dedicated) == ((0, 1), (0,))


SMALL = {
    'resources:VCPU': '0',
    'resources:CUSTOM_MILLI_VCPU': '500',
    'hw:numa_nodes': '1',
}


@pytest.mark.parametrize(('vcpus', 'fits'), [(1, True), (2, False)])
def test_a_flavor_of_nova_says_it_in_its_extra_specs(vcpus, fits):
    columns = {'vcpus': vcpus, 'memory_mb': 512, 'root_gb': 0, 'ephemeral_gb': 0, 'swap': 0}
    amounts = flavor.requested_resources(columns | {'extra_specs': SMALL}, {}, volume=False)
    assert amounts.resources == {MILLI_VCPU: 500, 'MEMORY_MB': 512}
    spec = RequestSpec(resources=amounts.resources, flavor=Flavor(extra_specs=SMALL))
    if fits:
        flavor.check_cells(columns, spec)
        return
    with pytest.raises(exceptions.InvalidMessage, match='resources:VCPU.*expected 2.*got 1'):
        flavor.check_cells(columns, spec)


def test_people_read_and_are_told_of_parts():
    assert format_amount(MILLI_VCPU, 500) == '0.5 vCPU in thousandths'
    assert format_amount(MILLI_VCPU, -1250) == '-1.25 vCPU in thousandths'
    assert format_amount(MILLI_VCPU, 2000) == '2 vCPU in thousandths'
    assert parsing.resource('CUSTOM_MILLI_VCPU=500') == (MILLI_VCPU, 500)
    with pytest.raises(argparse.ArgumentTypeError, match='CUSTOM_MILLI_VCPU=500'):
        parsing.resource('VCPU=0.5')
