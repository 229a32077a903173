# SPDX-License-Identifier: Apache-2.0
"""``--devices`` of the command line, as a field of the request."""

import argparse

import pytest

from gantt.cli import parsing
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.tree_request import DeviceAmount, ResourceGroup, TreeRequest
from gantt.insights.explain import wording
from tests.cli.conftest import Gantt
from tests.http.site import Site


@pytest.mark.parametrize(
    ('text', 'fields'),
    [
        ('VGPU=500', {'amount': 500}),
        ('VGPU=500x2', {'amount': 500, 'count': 2}),
        ('VGPU=whole', {'whole': True}),
        ('VGPU=wholex4', {'whole': True, 'count': 4}),
    ],
)
def test_devices_are_a_class_an_amount_and_a_count(text: str, fields: dict) -> None:
    assert parsing.devices(text) == {'resource_class': 'VGPU', **fields}


@pytest.mark.parametrize(
    'text',
    [
        *('VGPU', 'VGPU=', '=5', 'VGPU=0', 'VGPU=5x0', 'VGPU=-1', 'VGPU=5y2'),
        *('VGPU=5x', 'VGPU=wholex', 'VGPU=x2', 'VGPU=5xwhole', 'VGPU=wholexwhole'),
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match='VGPU=500x2'):
        parsing.devices(text)


@pytest.mark.parametrize(
    ('resources', 'tree', 'text'),
    [
        ({'VCPU': 2}, {}, '2 vCPU'),
        ({}, {'devices': [DeviceAmount(resource_class='VGPU', amount=500)]}, '500 VGPU'),
        (
            {'VCPU': 1, 'MEMORY_MB': 4096},
            {
                'devices': [
                    DeviceAmount(resource_class='VGPU', amount=500, count=2),
                    DeviceAmount(resource_class='PGPU', whole=True),
                ],
                'groups': {'-net': ResourceGroup(resources={'SRIOV_NET_VF': 1})},
                'group_policy': 'none',
            },
            '1 vCPU, 4 GiB RAM, 1 SRIOV_NET_VF, 2 × 500 VGPU, 1 PGPU of a whole one',
        ),
        (
            {'VCPU': 1},
            {'devices': [DeviceAmount(resource_class='VGPU', amount=n) for n in range(1, 9)]},
            '1 vCPU, 1 VGPU, 2 VGPU, 3 VGPU, 4 VGPU, 5 VGPU, and 3 more',
        ),
        ({'VCPU': 1}, {'root_required': ['HW_CPU_X86_AVX2']}, '1 vCPU'),
    ],
)
def test_what_each_member_needs_has_its_devices(resources: dict, tree: dict, text: str) -> None:
    spec = RequestSpec(resources=resources, tree=TreeRequest(**tree) if tree else None)
    assert wording.needs_text(spec) == text


def test_a_capacity_and_a_refusal_say_which_devices_they_are_about(
    site: Site, gantt: Gantt
) -> None:
    ask = ('--resource', 'VCPU=1', '--devices', 'VGPU=whole')
    assert gantt('capacity', *ask).out.startswith('no more of 1 vCPU, 1 VGPU of a whole one fit')
    refused = gantt('select', *ask)
    assert refused.code == 2
    assert 'no one provider with at least 1 VGPU and all of it free (best' in refused.err
    assert '\n  1 vCPU, 1 VGPU of a whole one\n' in gantt('status').out
