# SPDX-License-Identifier: Apache-2.0
"""Numbers of a report that nothing could keep or weigh are refused by name."""

import pytest

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.report import HostReport, check

FULL = {
    'name': 'cmp-1',
    'epoch': 1,
    'sequence': 1,
    'full': True,
    'inventories': {'VCPU': {'total': 8}},
    'running': [],
    'pending': [],
}


def refused(**said):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        check(base.decode(FULL | said, HostReport, inside='stats'))
    return caught.value.kwargs['field'], caught.value.kwargs['problem']


@pytest.mark.parametrize('value', [1.1e18, -1e300, 2**70])
def test_a_metric_of_no_size(value):
    field, problem = refused(metrics={'stats.failed_builds': {'value': value}})
    assert field == 'stats.metrics.stats.failed_builds.value'
    assert 'expected -1e+18 to 1e+18' in problem


@pytest.mark.parametrize('name', ['min_unit', 'max_unit', 'step_size'])
def test_a_unit_of_no_size(name):
    field, problem = refused(inventories={'VCPU': {'total': 8, name: 2**63}})
    assert field == f'stats.inventories.VCPU.{name}'
    assert problem.endswith(f'got {2**63}')


@pytest.mark.parametrize('node', [2**70, -1])
def test_a_node_of_no_number(node):
    field, _ = refused(devices=[{'vendor_id': '8086', 'numa_node': node, 'count': 1}])
    assert field.startswith('stats.devices')


def test_facts_of_processors_that_nothing_can_keep():
    field, problem = refused(hypervisor={'cpu_info': {'model': {'steps': [2**65]}}})
    assert field == 'stats.hypervisor.cpu_info'
    assert 'expected whole numbers of 64 bits' in problem


def test_what_is_large_and_makes_sense_passes():
    check(
        base.decode(
            FULL
            | {
                'metrics': {'net.bytes': {'value': 9.9e17}},
                'devices': [{'vendor_id': '8086', 'numa_node': 1, 'count': 1}],
                'hypervisor': {'cpu_info': {'features': ['vmx'], 'mhz': 2**63}},
                'inventories': {'DISK_GB': {'total': 2**40, 'max_unit': 2**31 - 1}},
            },
            HostReport,
            inside='stats',
        )
    )
