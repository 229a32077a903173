# SPDX-License-Identifier: Apache-2.0
"""What flavors and images of Nova ask for, in amounts and traits, and how images become text."""

import pytest

from gantt import exceptions
from gantt.core.messages.tree_request import ResourceGroup
from gantt.nova.model import flavor as nova_flavor


def a_flavor(specs=None, **columns):
    return {
        'vcpus': 4,
        'memory_mb': 2048,
        'root_gb': 10,
        'ephemeral_gb': 0,
        'swap': 0,
        'extra_specs': specs or {},
    } | columns


def asked(specs=None, image=None, *, volume=False, **columns):
    return nova_flavor.requested_resources(a_flavor(specs, **columns), image or {}, volume=volume)


@pytest.mark.parametrize(
    ('columns', 'volume', 'disk'),
    [
        ({}, False, 10),
        ({}, True, None),
        ({'ephemeral_gb': 5}, True, 5),
        ({'swap': 1}, False, 11),
        ({'swap': 1024}, False, 11),
        ({'swap': 1025}, False, 12),
    ],
)
def test_disk_is_root_unless_on_a_volume_and_ephemeral_and_swap(columns, volume, disk):
    assert asked(volume=volume, **columns).resources.get('DISK_GB') == disk


DEDICATED, MIXED = {'hw:cpu_policy': 'dedicated'}, {'hw:cpu_policy': 'mixed'}
APART = {'hw:emulator_threads_policy': 'isolate'}
REAL_TIME = {'hw:cpu_realtime': 'yes'}


@pytest.mark.parametrize(
    ('specs', 'image', 'vcpu', 'pcpu'),
    [
        ({}, {}, 4, None),
        (DEDICATED, {}, None, 4),
        ({}, {'hw_cpu_policy': 'dedicated'}, None, 4),
        (DEDICATED, {'hw_cpu_policy': 'shared'}, None, 4),
        ({'hw:cpu_policy': 'shared'}, {'hw_cpu_policy': 'shared'}, 4, None),
        ({**MIXED, 'hw:cpu_dedicated_mask': '0-1'}, {}, 2, 2),
        ({**MIXED, 'hw:cpu_dedicated_mask': '^0'}, {}, 1, 3),
        ({**DEDICATED, **APART}, {}, None, 5),
        # The emulator's processor is none of the guest's.
        ({**MIXED, 'hw:cpu_dedicated_mask': '0', **APART}, {}, 3, 2),
        ({**MIXED, 'hw:cpu_dedicated_mask': '^0', **APART}, {}, 1, 4),
        ({**MIXED, **REAL_TIME, 'hw:cpu_realtime_mask': '^0', **APART}, {}, 1, 4),
        ({**MIXED, **REAL_TIME, 'hw:cpu_realtime_mask': '^0'}, {'hw_cpu_realtime_mask': '3'}, 3, 1),
        # Only flavors say where the emulator runs.
        (DEDICATED, {'hw_emulator_threads_policy': 'isolate'}, None, 4),
        # Amounts that are said stand for the processors of the flavor.
        ({'resources:PCPU': '4'}, {}, None, 4),
        ({'resources:PCPU': '5', **APART}, {}, None, 5),
        ({'resources:PCPU': '0'}, {}, None, None),
        ({'resources:PCPU': '0', **DEDICATED}, {}, None, 4),
        ({'resources:VCPU': '0', **DEDICATED}, {}, None, 4),
        ({'resources:VCPU': ' 2 '}, {}, 2, None),
    ],
)
def test_dedicated_processors_are_another_class(specs, image, vcpu, pcpu):
    resources = asked(specs, image).resources
    assert (resources.get('VCPU'), resources.get('PCPU')) == (vcpu, pcpu)


@pytest.mark.parametrize(
    ('specs', 'image', 'required', 'forbidden'),
    [
        ({'hw:cpu_thread_policy': 'require'}, {}, True, False),
        ({}, {'hw_cpu_thread_policy': 'isolate'}, False, True),
        ({'hw:cpu_thread_policy': 'prefer'}, {'hw_cpu_thread_policy': 'isolate'}, False, False),
        ({'trait:HW_CPU_HYPERTHREADING': 'forbidden'}, {}, False, True),
        ({}, {'traits_required': 'CUSTOM_A,HW_CPU_HYPERTHREADING'}, True, False),
    ],
)
def test_a_thread_policy_is_a_trait(specs, image, required, forbidden):
    amounts = asked({**DEDICATED, **specs}, image)
    assert ('HW_CPU_HYPERTHREADING' in amounts.required) is required
    assert ('HW_CPU_HYPERTHREADING' in amounts.forbidden) is forbidden


def test_extra_specs_override_amounts_and_zero_takes_a_class_out():
    amounts = asked({'resources:VCPU': '0', 'resources:CUSTOM_X': '2', 'resources:MEMORY_MB': '7'})
    assert amounts.resources == {'MEMORY_MB': 7, 'DISK_GB': 10, 'CUSTOM_X': 2}


def test_features_that_take_something_override_amounts():
    amounts = asked(
        {
            'resources:MEM_ENCRYPTION_CONTEXT': '3',
            'hw:mem_encryption': 'yes',
            'hw:pmem': '6GB, a-b,6GB',
        },
        {'hw_mem_encryption': 'True'},
    ).resources
    assert amounts['MEM_ENCRYPTION_CONTEXT'] == 1
    assert amounts['CUSTOM_PMEM_NAMESPACE_6GB'] == 2
    assert amounts['CUSTOM_PMEM_NAMESPACE_A_B'] == 1


def test_traits_of_flavor_and_image():
    amounts = asked(
        {'trait:HW_CPU_X86_AVX2': 'required', 'trait:CUSTOM_OLD': 'forbidden'},
        {'traits_required': 'CUSTOM_GOLD'},
    )
    assert amounts.required == ['CUSTOM_GOLD', 'HW_CPU_X86_AVX2']
    assert amounts.forbidden == ['CUSTOM_OLD']


@pytest.mark.parametrize(
    ('specs', 'field'),
    [
        ({'resources1:VCPU': 'x'}, 'resources1:VCPU'),
        ({'trait_a:HW_X': 'maybe'}, 'trait_a:HW_X'),
        ({'resources1:VGPU': '1', 'resources2:VGPU': '1'}, 'group_policy'),
        ({'resources1:VGPU': '1', 'group_policy': 'apart'}, 'group_policy'),
        ({'trait:HW_X': 'maybe'}, 'trait:HW_X'),
        ({'resources:VCPU': 'many'}, 'resources:VCPU'),
        ({'resources:VCPU': '²'}, 'resources:VCPU'),
        ({'resources:VCPU': '٣'}, 'resources:VCPU'),
        ({'resources:VCPU': '9' * 5000}, 'resources:VCPU'),
        ({'resources:vcpu': '1'}, 'resources:vcpu'),
        ({**MIXED, 'hw:cpu_dedicated_mask': 'x'}, 'hw:cpu_dedicated_mask'),
        ({**MIXED, 'hw:cpu_dedicated_mask': '٣'}, 'hw:cpu_dedicated_mask'),
        (MIXED, 'hw:cpu_dedicated_mask'),
        ({'hw:cpu_policy': 'pinned'}, 'hw:cpu_policy'),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(specs, field):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        asked(specs)
    assert caught.value.kwargs['field'].endswith(f'flavor.extra_specs.{field}')
    assert len(str(caught.value)) < 300


def test_an_instance_that_is_there_takes_what_can_be_said():
    flavor = a_flavor({'resources1:VGPU': '1', 'hw:cpu_policy': 'dedicated'})
    amounts = nova_flavor.in_use(flavor, {}, volume=True)
    assert amounts == {'PCPU': 4, 'MEMORY_MB': 2048}
    flavor = a_flavor({'resources1:VGPU': 'x', 'hw:cpu_policy': 'dedicated'})
    amounts = nova_flavor.in_use(flavor, {}, volume=True)
    assert amounts == {'VCPU': 4, 'MEMORY_MB': 2048}


def test_numbered_groups_are_groups_and_take_the_place_of_columns():
    amounts = asked(
        {
            'resources1:VGPU': '1',
            'trait1:CUSTOM_A100': 'required',
            'resources_net:SRIOV_NET_VF': '2',
            'trait_net:CUSTOM_OLD': 'forbidden',
            'resources1:MEMORY_MB': '64',
            'resources_net:CUSTOM_NONE': '0',
            'group_policy': 'isolate',
        }
    )
    assert amounts.resources == {'VCPU': 4, 'DISK_GB': 10}
    assert {suffix: group.as_group() for suffix, group in amounts.groups.items()} == {
        '1': ResourceGroup(resources={'VGPU': 1, 'MEMORY_MB': 64}, required_traits=['CUSTOM_A100']),
        '_net': ResourceGroup(resources={'SRIOV_NET_VF': 2}, forbidden_traits=['CUSTOM_OLD']),
    }
    assert amounts.policy == 'isolate'
    assert asked({}).groups == {}


# -- images -------------------------------------------------------------------------
def test_properties_of_images_become_text_and_those_of_cells_one_by_one():
    properties = nova_flavor.image_properties(
        {
            'hw_numa_cpus': [[0], [3, 1, 2]],
            'hw_numa_mem': [512, 1536],
            'hw_boot_menu': True,
            'traits_required': ['CUSTOM_A', 'CUSTOM_B'],
            'os_distro': None,
        },
        'image',
    )
    assert (properties['hw_numa_cpus.0'], properties['hw_numa_cpus.1']) == ('0', '1,2,3')
    assert (properties['hw_numa_mem.0'], properties['hw_numa_mem.1']) == ('512', '1536')
    assert properties['hw_boot_menu'] == 'True'
    assert properties['traits_required'] == 'CUSTOM_A,CUSTOM_B'
    assert 'os_distro' not in properties


def test_cells_of_an_image_that_are_no_list_are_refused():
    with pytest.raises(exceptions.InvalidMessage) as caught:
        nova_flavor.image_properties({'hw_numa_cpus': '0'}, 'image')
    assert caught.value.kwargs['field'] == 'image.hw_numa_cpus'


@pytest.mark.parametrize('metadata', [None, [], {'boot_roles': 'admin', 'image_os_type': None}])
def test_an_instance_may_remember_nothing_of_its_image(metadata):
    assert nova_flavor.instance_image(metadata) == {}
