# SPDX-License-Identifier: Apache-2.0
"""Three forms of ``update_resource_stats``, one type behind them."""

import copy
import json

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.base import to_builtins
from gantt.core.messages.report import HostReport, Registered, ReportedMetric, check
from gantt.core.messages.resource_classes import AMOUNT_MAX, Inventory
from gantt.rpc.api import stats, stats_foreign

HOST = 'cmp-1'


def an_object(name, **data):
    return {
        'nova_object.name': name,
        'nova_object.namespace': 'nova',
        'nova_object.version': '1.0',
        'nova_object.data': data,
    }


def a_dictionary(**more):
    return {
        'vcpus': 16,
        'memory_mb': 32768,
        'local_gb': 500,
        'vcpus_used': 3,
        'memory_mb_used': 4608,
        'local_gb_used': 40,
        'free_ram_mb': 28160,
        'running_vms': 2,
        'hypervisor_type': 'QEMU',
        'hypervisor_version': 8002000,
        'hypervisor_hostname': 'node-1',
        'host_ip': '10.0.0.5',
        'cpu_info': json.dumps({'arch': 'x86_64', 'features': ['aes'], 'other': 1}),
        'disk_available_least': 450,
        'supported_instances': [['x86_64', 'kvm', 'hvm']],
        'pci_stats': [
            {'vendor_id': '8086', 'product_id': '154d', 'count': 4, 'physical_network': 'p'}
        ],
        'metrics': [{'name': 'cpu.percent', 'value': 0.25, 'source': 'libvirt', 'timestamp': 'x'}],
        'stats': {
            'num_instances': '2',
            'failed_builds': '1',
            'io_workload': 0,
            'boot': 'uefi',
            'uptime': 'up 3 days',
            'nothing': None,
        },
    } | more


def a_compute_node(**more):
    cells = [
        an_object(
            'NUMACell',
            id=n,
            cpuset=[n * 4, n * 4 + 1],
            pcpuset=[n * 4 + 2, n * 4 + 3],
            memory=16384,
            cpu_usage=1,
            memory_usage=512,
            pinned_cpus=[n * 4 + 2],
            siblings=[[0, 1], [2, 3]],
            socket=n,
            mempages=[an_object('NUMAPagesTopology', size_kb=2048, total=100, used=3, reserved=1)],
        )
        for n in (0, 1)
    ]
    pool = an_object(
        'PciDevicePool', vendor_id='8086', product_id='154d', numa_node=1, count=2, tags={'t': 'x'}
    )
    spec = an_object('HVSpec', arch='x86_64', hv_type='kvm', vm_mode='hvm')
    body = an_object(
        'ComputeNode',
        id=7,
        uuid='10ead4b2-6e8d-4d5b-a17a-3a699b734483',
        host=HOST,
        service_id=None,
        hypervisor_hostname='node-1',
        vcpus=4,
        memory_mb=32768,
        local_gb=500,
        vcpus_used=2,
        memory_mb_used=1024,
        local_gb_used=40,
        hypervisor_type='QEMU',
        hypervisor_version=8002000,
        free_ram_mb=31744,
        free_disk_gb=460,
        current_workload=0,
        running_vms=2,
        cpu_info='{"arch": "x86_64"}',
        disk_available_least=None,
        metrics='[]',
        stats={'failed_builds': '0'},
        host_ip='10.0.0.5',
        supported_hv_specs=[spec],
        numa_topology=json.dumps(an_object('NUMATopology', cells=cells)),
        pci_device_pools=an_object('PciDevicePoolList', objects=[pool]),
        cpu_allocation_ratio=2.0,
        ram_allocation_ratio=1.5,
        disk_allocation_ratio=0.0,
        mapped=1,
        created_at='x',
        updated_at=None,
        deleted_at=None,
        deleted=False,
        a_field_of_tomorrow=1,
    )
    body['nova_object.version'] = '1.19'
    body['nova_object.data'] |= more
    return body


def facts_of(body):
    return stats_foreign.reported_facts(HOST, body, stats.Ratios())


def report_of(body):
    report = facts_of(body).report(epoch=1, sequence=5)
    check(report)
    # It waits as bytes: what the types do not allow would be lost there.
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=HostReport) == report
    return report


@pytest.mark.parametrize('least', [-(2**45), -1, 0, 2**45])
def test_whatever_a_driver_says_is_left_of_its_disk_the_report_is_taken(least):
    used = report_of(a_dictionary(disk_available_least=least)).used['DISK_GB']
    assert used == min(max(40, 500 - least), AMOUNT_MAX)


# -- the typed report --------------------------------------------------------------
def a_report(**more):
    inventories = {'VCPU': Inventory(total=8)}
    return (
        to_builtins(
            HostReport(
                name=HOST,
                epoch=1,
                sequence=2,
                full=True,
                running=[],
                pending=[],
                inventories=inventories,
            )
        )
        | more
    )


def test_the_typed_report_is_read_strictly():
    assert stats.decode(HOST, a_report()).inventories['VCPU'].total == 8


@pytest.mark.parametrize(
    ('body', 'field'),
    [
        (a_report(sequense=3), 'stats.sequense'),
        (a_report(sequence=0), 'stats.sequence'),
        (a_report(name='other'), 'stats.name'),
        (a_report(metrics={'x': {'value': float('nan')}}), 'stats.metrics.x.value'),
        ({'full': True}, 'stats.epoch'),
        ({}, 'stats.epoch'),
        ([], 'stats'),
    ],
)
def test_a_wrong_field_of_the_typed_report_is_named(body, field):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        stats.decode(HOST, body)
    assert caught.value.kwargs['field'] == field


def test_a_misspelled_field_names_the_nearest_known_one():
    with pytest.raises(exceptions.InvalidMessage, match="did you mean 'sequence'"):
        stats.decode(HOST, a_report(sequense=3))


def test_a_newer_minor_version_may_say_more():
    body = a_report(
        brand_new=3,
        inventories={'VCPU': {'total': 8, 'brand_new': 1}},
        metrics={'load_1m': {'value': 1.5, 'brand_new': [1]}},
    )
    report = stats.decode(HOST, body, newer=True)
    assert report.sequence == 2
    # Entries of a map are no fields: all of them stay.
    assert report.inventories == {'VCPU': Inventory(total=8)}
    assert report.metrics == {'load_1m': ReportedMetric(value=1.5)}


# -- the older dictionary -------------------------------------------------------------
def test_a_dictionary_becomes_a_full_report_without_opinion_on_claims():
    report = report_of(a_dictionary())
    assert (report.full, report.running, report.pending) == (True, None, None)
    assert report.node == 'node-1'
    assert report.inventories['VCPU'].cap == 64
    assert report.inventories['MEMORY_MB'].cap == 32768
    assert report.used == {'VCPU': 3, 'MEMORY_MB': 4608, 'DISK_GB': 50}
    assert report.hypervisor.supported == [['x86_64', 'kvm', 'hvm']]
    assert report.hypervisor.cpu_info == {'arch': 'x86_64', 'features': ['aes']}
    assert report.hypervisor.stats == {'boot': 'uefi'}
    (pool,) = report.devices
    assert (pool.count, pool.free, pool.tags) == (4, 4, {'physical_network': 'p'})
    assert report.metrics['cpu.percent'].value == 25
    assert report.metrics['running_vms'].value == 2
    assert report.metrics['stats.failed_builds'].value == 1


def test_what_is_not_free_is_used_where_only_that_is_said():
    body = a_dictionary(free_ram_mb=-100)
    del body['memory_mb_used']
    assert report_of(body).used['MEMORY_MB'] == 32868


def test_the_smallest_dictionary_will_do():
    report = report_of(
        {'vcpus': 1, 'memory_mb': 2, 'local_gb': 3, 'vcpus_used': 0, 'free_ram_mb': 2}
        | {'local_gb_used': 0}
    )
    assert report.used == {'VCPU': 0, 'MEMORY_MB': 0, 'DISK_GB': 0}
    assert report.disabled is None


@pytest.mark.parametrize('field', ['vcpus_used', 'memory_mb_used', 'local_gb_used'])
def test_a_dictionary_without_its_use_closes_the_host(field):
    body = {'vcpus': 1, 'memory_mb': 2, 'local_gb': 3}
    body |= {name: 0 for name in ('vcpus_used', 'memory_mb_used', 'local_gb_used') if name != field}
    report = report_of(body)
    assert report.disabled == f'its last report does not have {field}: room is not known'
    assert report.node == HOST


def test_the_numa_topology_of_old():
    cells = {'cells': [{'id': 0, 'cpus': '0,2-3', 'mem': {'total': 512, 'used': 12}}]}
    (cell,) = report_of(a_dictionary(numa_topology=cells)).numa
    assert (cell.cpus, cell.memory_mb, cell.memory_used_mb) == ([0, 2, 3], 512, 12)


@pytest.mark.parametrize(
    ('change', 'field'),
    [
        ({'vcpus': -1}, 'stats.vcpus'),
        ({'vcpus': '16'}, 'stats.vcpus'),
        ({'memory_mb': 2**50}, 'stats.memory_mb'),
        ({'vcpu_used': 3}, 'stats.vcpu_used'),
        ({'host': 'cmp-2'}, 'stats.host'),
        ({'cpu_info': '{"arch"'}, 'stats.cpu_info'),
        ({'cpu_info': '[]'}, 'stats.cpu_info'),
        ({'hypervisor_version': 'new'}, 'stats.hypervisor_version'),
        ({'supported_instances': [['x', 7]]}, 'stats.supported_instances'),
        ({'pci_stats': [{'count': -1}]}, 'stats.pci_device_pools.count'),
        ({'pci_stats': 7}, 'stats.pci_device_pools'),
        (
            {'numa_topology': {'cells': [{'id': 0, 'cpus': 'a'}]}},
            'stats.numa_topology.cells.cpuset',
        ),
        ({'numa_topology': 7}, 'stats.numa_topology'),
        ({'metrics': 'x'}, 'stats.metrics'),
        ({'metrics': [7]}, 'stats.metrics'),
        ({'cpu_allocation_ratio': float('inf')}, 'stats.cpu_allocation_ratio'),
    ],
)
def test_a_malformed_part_of_a_dictionary_is_named(change, field):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        facts_of(a_dictionary(**change))
    assert caught.value.kwargs['field'] == field


# -- Nova's object -----------------------------------------------------------------------
def test_a_compute_node_carries_cells_devices_and_ratios():
    report = report_of(a_compute_node())
    assert report.inventories['VCPU'].cap == 8
    assert report.inventories['MEMORY_MB'].allocation_ratio == 1.5
    assert report.inventories['DISK_GB'].allocation_ratio == 1.0  # 0.0 means the default
    assert report.inventories['PCPU'].total == 4
    assert report.used == {'VCPU': 2, 'MEMORY_MB': 1024, 'DISK_GB': 40, 'PCPU': 2}
    first, second = report.numa
    assert (first.cpus, first.pinned_cpus, first.used_pinned_cpus) == ([0, 1], [2, 3], [2])
    assert (second.pages[0].size_kb, second.pages[0].used, second.socket) == (2048, 3, 1)
    (pool,) = report.devices
    assert (pool.numa_node, pool.free, pool.tags) == (1, 2, {'t': 'x'})
    assert facts_of(a_compute_node()).uuid == '10ead4b2-6e8d-4d5b-a17a-3a699b734483'


@pytest.mark.parametrize(
    ('change', 'field'),
    [
        (lambda b: b.update({'nova_object.name': 'Instance'}), 'stats.nova_object.name'),
        (lambda b: b.update({'nova_object.data': []}), 'stats.nova_object.data'),
        (lambda b: b['nova_object.data'].update(vcpus=None), 'stats.vcpus'),
        (lambda b: b['nova_object.data'].pop('memory_mb'), 'stats.memory_mb'),
        (lambda b: b['nova_object.data'].update(uuid='x'), 'stats.uuid'),
    ],
)
def test_a_malformed_compute_node_is_refused_by_field(change, field):
    body = copy.deepcopy(a_compute_node())
    change(body)
    with pytest.raises(exceptions.InvalidMessage) as caught:
        facts_of(body)
    assert caught.value.kwargs['field'] == field


def test_a_compute_node_of_another_major_version_is_refused():
    body = a_compute_node()
    body['nova_object.version'] = '2.0'
    with pytest.raises(exceptions.UnsupportedVersion, match=r'2\.0'):
        facts_of(body)


# -- epochs and sequences -----------------------------------------------------------------
class Registry:
    """Hands out an epoch per registration."""

    def __init__(self):
        self.asked = []

    def __call__(self, message):
        self.asked.append(message)
        return Registered(
            name=message.name,
            uuid=message.uuid or '10ead4b2-6e8d-4d5b-a17a-3a699b734483',
            epoch=len(self.asked),
            incarnation=1,
            report_seconds=60,
        )


def test_a_foreign_host_is_registered_once_and_its_reports_are_ordered_by_arrival():
    registry, wall = Registry(), [1000.0]
    hosts = stats.ForeignHosts(registry, wall=lambda: wall[0], monotonic=lambda: 5.0)
    facts = facts_of(a_dictionary())
    first = hosts.report(facts)
    wall[0] = 900.0  # the clock was set back
    second = hosts.report(facts)
    assert [m.boot_nonce for m in registry.asked] == ['dictionary']
    assert (first.epoch, first.sequence) == (1, 1_000_000)
    assert second.sequence == 1_000_001


def test_a_foreign_host_is_registered_again_when_its_epoch_was_refused():
    registry = Registry()
    hosts = stats.ForeignHosts(registry, monotonic=lambda: 5.0)
    facts = facts_of(a_dictionary())
    assert hosts.report(facts).epoch == 1
    hosts.forget(HOST)
    assert hosts.report(facts).epoch == 2
