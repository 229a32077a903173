# SPDX-License-Identifier: Apache-2.0
"""Requests of flavors and images for the inside of a host, and those that are refused."""

import pytest

from gantt import exceptions
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.topology_request import Affinity, CpuPolicy, GuestCell, ThreadPolicy
from gantt.core.topology.read import read, read_option
from tests.core.topology.hosts import ALIASES, a_spec, a_wish, aliases

DEDICATED = {'hw:cpu_policy': 'dedicated'}
MIXED = {'hw:cpu_policy': 'mixed'}


@pytest.mark.parametrize(
    'specs',
    [
        {},
        {'hw:vif_multiqueue_enabled': 'true'},
        {'quota:cpu_shares': '5'},
        {'hw:cpu_policy': 'shared'},
        {'hw:cpu_sockets': '2', 'hw:cpu_max_cores': '8'},
        {'hw:mem_encryption': 'true'},
        {'hw:cpu_policy': ''},
        {'hw:numa_cpus': '0'},
    ],
)
def test_a_request_that_asks_nothing(specs):
    assert read(a_spec(specs, {'os_type': 'linux'}, VCPU=2), aliases()) is None


def test_no_processors_at_all_do_where_they_need_no_place():
    assert read(a_spec({}, {'cpu_cores': '4'}, VCPU=0)) is None
    with pytest.raises(exceptions.InvalidMessage, match='VCPU.* expected 1 to'):
        read(a_spec({'hw:numa_nodes': '1'}, VCPU=0))


def test_a_dedicated_guest_has_one_cell_of_pinned_processors():
    wish = a_wish(DEDICATED, PCPU=3)
    assert wish.cells == (GuestCell((0, 1, 2), 4096, (0, 1, 2)),)
    assert (wish.cpu_policy, wish.thread_policy) == (CpuPolicy.DEDICATED, ThreadPolicy.PREFER)


def test_cells_are_even_unless_said_otherwise():
    wish = a_wish({'hw:numa_nodes': '2'}, VCPU=4)
    assert wish.cells == (GuestCell((0, 1), 2048), GuestCell((2, 3), 2048))


def test_cells_as_they_are_said():
    wish = a_wish(
        {
            'hw:numa_nodes': '2',
            'hw:numa_cpus.0': '0,3',
            'hw:numa_cpus.1': '1-2',
            'hw:numa_mem.0': '1024',
            'hw:numa_mem.1': '3072',
            **DEDICATED,
        },
        PCPU=4,
    )
    assert wish.cells == (
        GuestCell((0, 3), 1024, (0, 3)),
        GuestCell((1, 2), 3072, (1, 2)),
    )


def test_what_the_image_says_counts_as_well():
    wish = a_wish({}, {'hw_cpu_policy': 'dedicated', 'hw_cpu_thread_policy': 'isolate'}, PCPU=2)
    assert (wish.cpu_policy, wish.thread_policy) == (CpuPolicy.DEDICATED, ThreadPolicy.ISOLATE)
    wish = a_wish({'hw:mem_page_size': 'any'}, {'hw_mem_page_size': '2MB'}, VCPU=2)
    assert wish.page == '2048'
    assert len(a_wish({}, {'hw_numa_nodes': '2'}, VCPU=2).cells) == 2


@pytest.mark.parametrize('image', ['require', 'isolate'])
def test_a_flavor_that_prefers_threads_keeps_its_word(image):
    wish = a_wish(
        {**DEDICATED, 'hw:cpu_thread_policy': 'prefer'}, {'hw_cpu_thread_policy': image}, PCPU=2
    )
    assert wish.thread_policy is ThreadPolicy.PREFER


@pytest.mark.parametrize(
    ('specs', 'image', 'policy'),
    [
        ({'trait:HW_CPU_HYPERTHREADING': 'required'}, {}, ThreadPolicy.REQUIRE),
        ({'trait:HW_CPU_HYPERTHREADING': 'forbidden'}, {}, ThreadPolicy.ISOLATE),
        ({}, {'traits_required': 'CUSTOM_A,HW_CPU_HYPERTHREADING'}, ThreadPolicy.REQUIRE),
        (
            {'trait:HW_CPU_HYPERTHREADING': 'forbidden'},
            {'traits_required': 'HW_CPU_HYPERTHREADING'},
            ThreadPolicy.ISOLATE,
        ),
        ({'trait:HW_CPU_X86_AVX': 'required'}, {}, ThreadPolicy.PREFER),
    ],
    ids=['required', 'forbidden', 'by the image', 'by both', 'another'],
)
def test_the_trait_of_threads_is_a_thread_policy(specs, image, policy):
    assert a_wish({**DEDICATED, **specs}, image, PCPU=2).thread_policy is policy


def test_processors_that_are_dedicated_by_amount_are_laid_out():
    wish = a_wish({}, PCPU=3)
    assert wish.cells == (GuestCell((0, 1, 2), 4096, (0, 1, 2)),)
    assert a_wish({'resources:PCPU': '3'}, PCPU=3) == wish
    apart = a_wish({'hw:emulator_threads_policy': 'isolate'}, PCPU=3)
    assert apart.emulator_apart and apart.cells[0].dedicated == (0, 1)


def test_an_amount_without_memory_is_no_guest():
    assert read(RequestSpec(resources={'PCPU': 3})) is None


def test_mixed_processors_by_either_mask():
    by_mask = a_wish({**MIXED, 'hw:cpu_dedicated_mask': '^0-1'}, VCPU=2, PCPU=2)
    by_time = a_wish(
        {**MIXED, 'hw:cpu_realtime': 'yes', 'hw:cpu_realtime_mask': '2-3'}, VCPU=2, PCPU=2
    )
    assert by_mask.cells == by_time.cells == (GuestCell((0, 1, 2, 3), 4096, (2, 3)),)
    assert by_time.realtime == (2, 3)


def test_an_emulator_apart_is_no_processor_of_the_guest():
    wish = a_wish({**DEDICATED, 'hw:emulator_threads_policy': 'isolate'}, PCPU=3)
    assert wish.emulator_apart and wish.cells[0].vcpus == (0, 1)
    everywhere = {**DEDICATED, 'hw:cpu_realtime': '1', 'hw:emulator_threads_policy': 'isolate'}
    assert a_wish(everywhere, PCPU=3).realtime == (0, 1)
    mixed = {**MIXED, 'hw:cpu_dedicated_mask': '0', 'hw:emulator_threads_policy': 'isolate'}
    assert a_wish(mixed, VCPU=3, PCPU=2).cells == (GuestCell((0, 1, 2, 3), 4096, (0,)),)


def test_an_emulator_that_shares_may_run_beside_real_time():
    shared = {**DEDICATED, 'hw:cpu_realtime': '1', 'hw:emulator_threads_policy': 'share'}
    assert a_wish(shared, PCPU=2).realtime == (0, 1)


def test_an_image_does_not_say_where_the_emulator_runs():
    wish = a_wish(DEDICATED, {'hw_emulator_threads_policy': 'isolate'}, PCPU=3)
    assert not wish.emulator_apart and wish.cells[0].vcpus == (0, 1, 2)


def test_cells_as_the_image_says_them():
    wish = a_wish(
        {},
        {
            'hw_numa_nodes': '2',
            'hw_numa_cpus.0': '0',
            'hw_numa_cpus.1': '1,2,3',
            'hw_numa_mem.0': '1024',
            'hw_numa_mem.1': '3072',
        },
        VCPU=4,
    )
    assert wish.cells == (GuestCell((0,), 1024), GuestCell((1, 2, 3), 3072))


@pytest.mark.parametrize('model', ['amd-sev', 'amd-sev-snp', 'intel-tdx'])
def test_flavor_and_image_may_agree_on_how_memory_is_encrypted(model):
    encryption = {'hw:mem_encryption': 'true', 'hw:mem_encryption_model': model}
    assert a_wish({**DEDICATED, **encryption}, {'hw_mem_encryption_model': model}, PCPU=1).encrypted


def test_devices_by_the_names_that_they_have_here():
    wish = a_wish({'pci_passthrough:alias': 'gpu:2, near'}, VCPU=1)
    assert [(d.alias, d.count, d.affinity) for d in wish.devices] == [
        ('gpu', 2, Affinity.LEGACY),
        ('near', 1, Affinity.REQUIRED),
    ]
    assert wish.devices[0].specs[0].vendor_id == '10de'
    wish = a_wish(
        {'pci_passthrough:alias': 'near', 'hw:pci_numa_affinity_policy': 'socket'}, VCPU=1
    )
    assert wish.devices[0].affinity is Affinity.SOCKET
    assert len(a_wish({'pci_passthrough:alias': 'any'}, VCPU=1).devices[0].specs) == 2


def test_persistent_memory_makes_a_cell():
    wish = a_wish(
        {'hw:pmem': '6GB,16GB'}, VCPU=1, CUSTOM_PMEM_NAMESPACE_6GB=1, CUSTOM_PMEM_NAMESPACE_16GB=1
    )
    assert (wish.pmem, len(wish.cells)) == (('6GB', '16GB'), 1)


@pytest.mark.parametrize(
    ('specs', 'image', 'resources', 'field'),
    [
        ({'hw:cpu_policy': 'pinned'}, {}, {'VCPU': 1}, 'hw:cpu_policy'),
        ({'hw:cpu_policy': 'shared'}, {'hw_cpu_policy': 'dedicated'}, {'VCPU': 1}, 'hw_cpu_policy'),
        (MIXED, {'hw_cpu_policy': 'dedicated'}, {'VCPU': 1}, 'hw_cpu_policy'),
        (DEDICATED, {}, {'VCPU': 2}, 'resources.PCPU'),
        ({'hw:cpu_policy': 'shared'}, {}, {'PCPU': 2}, 'resources.PCPU'),
        ({}, {}, {'VCPU': 2, 'PCPU': 2}, 'resources.PCPU'),
        (
            {
                **DEDICATED,
                'hw:cpu_thread_policy': 'prefer',
                'trait:HW_CPU_HYPERTHREADING': 'required',
            },
            {},
            {'PCPU': 2},
            'trait:HW_CPU_HYPERTHREADING',
        ),
        (
            {'hw:numa_nodes': '1', 'trait:HW_CPU_HYPERTHREADING': 'forbidden'},
            {},
            {'VCPU': 2},
            'trait:HW_CPU_HYPERTHREADING',
        ),
        ({**MIXED, 'hw:cpu_dedicated_mask': '٣'}, {}, {'PCPU': 4}, 'hw:cpu_dedicated_mask'),
        ({'hw:mem_page_size': '٣'}, {}, {'VCPU': 2}, 'hw:mem_page_size'),
        (DEDICATED, {}, {}, 'resources.PCPU'),
        (MIXED, {}, {'VCPU': 1, 'PCPU': 1}, 'hw:cpu_dedicated_mask'),
        ({**MIXED, 'hw:cpu_dedicated_mask': '0-1'}, {}, {'PCPU': 2}, 'hw:cpu_dedicated_mask'),
        ({**MIXED, 'hw:cpu_dedicated_mask': '5'}, {}, {'PCPU': 2}, 'hw:cpu_dedicated_mask'),
        ({**MIXED, 'hw:cpu_dedicated_mask': 'x'}, {}, {'PCPU': 2}, 'hw:cpu_dedicated_mask'),
        ({**DEDICATED, 'hw:cpu_dedicated_mask': '0'}, {}, {'PCPU': 2}, 'hw:cpu_dedicated_mask'),
        ({'hw:cpu_thread_policy': 'isolate'}, {}, {'VCPU': 2}, 'hw:cpu_thread_policy'),
        (
            {**DEDICATED, 'hw:cpu_thread_policy': 'isolate'},
            {'hw_cpu_thread_policy': 'require'},
            {'PCPU': 1},
            'hw_cpu_thread_policy',
        ),
        ({'hw:cpu_realtime': 'true'}, {}, {'VCPU': 2}, 'hw:cpu_realtime'),
        ({**DEDICATED, 'hw:cpu_realtime': 'true'}, {}, {'PCPU': 2}, 'hw:cpu_realtime'),
        ({**DEDICATED, 'hw:cpu_realtime': 'maybe'}, {}, {'PCPU': 2}, 'hw:cpu_realtime'),
        ({'hw:emulator_threads_policy': 'isolate'}, {}, {'VCPU': 2}, 'hw:emulator_threads_policy'),
        ({'hw:emulator_threads_policy': 'apart'}, {}, {'VCPU': 2}, 'hw:emulator_threads_policy'),
        ({'hw:mem_page_size': 'huge'}, {}, {'VCPU': 2}, 'hw:mem_page_size'),
        ({'hw:mem_page_size': '0'}, {}, {'VCPU': 2}, 'hw:mem_page_size'),
        ({'hw:mem_page_size': 'small'}, {'hw_mem_page_size': '4'}, {'VCPU': 2}, 'hw_mem_page_size'),
        ({}, {'hw_mem_page_size': '4'}, {'VCPU': 2}, 'hw_mem_page_size'),
        ({'hw:numa_nodes': '3'}, {}, {'VCPU': 4}, 'hw:numa_nodes'),
        ({'hw:numa_nodes': '0'}, {}, {'VCPU': 4}, 'hw:numa_nodes'),
        ({'hw:numa_nodes': '2'}, {'hw_numa_nodes': '2'}, {'VCPU': 4}, 'hw_numa_nodes'),
        ({'hw:numa_nodes': '1', 'hw:numa_cpus.0': '0'}, {}, {'VCPU': 1}, 'hw:numa_mem.0'),
        ({'hw:numa_nodes': '1', 'hw:numa_cpus.1': '0'}, {}, {'VCPU': 1}, 'hw:numa_cpus.1'),
        ({'hw:numa_nodes': '1', 'hw:numa_cpus.x': '0'}, {}, {'VCPU': 1}, 'hw:numa_cpus.x'),
        (
            {'hw:numa_nodes': '1', 'hw:numa_cpus.0': '0', 'hw:numa_mem.0': '4096'},
            {},
            {'VCPU': 2},
            'hw:numa_cpus.0',
        ),
        (
            {'hw:numa_nodes': '1', 'hw:numa_cpus.0': '0', 'hw:numa_mem.0': '4095'},
            {},
            {'VCPU': 1},
            'hw:numa_mem.0',
        ),
        (
            {
                'hw:numa_nodes': '2',
                'hw:numa_cpus.0': '0',
                'hw:numa_mem.0': '1',
                'hw:numa_cpus.1': '0',
                'hw:numa_mem.1': '1',
            },
            {},
            {'VCPU': 2},
            'hw:numa_cpus.1',
        ),
        ({'hw:cpu_sockets': 'two'}, {}, {'VCPU': 2}, 'hw:cpu_sockets'),
        ({'hw:cpu_max_cores': '2'}, {'hw_cpu_max_cores': '4'}, {'VCPU': 2}, 'hw_cpu_max_cores'),
        ({'hw:mem_encryption_model': 'x'}, {}, {'VCPU': 2}, 'hw:mem_encryption_model'),
        ({'pci_passthrough:alias': 'fpga:1'}, {}, {'VCPU': 2}, 'pci_passthrough:alias'),
        ({'pci_passthrough:alias': 'gpu:0'}, {}, {'VCPU': 2}, 'pci_passthrough:alias'),
        ({'pci_passthrough:alias': 'gpu:1:2'}, {}, {'VCPU': 2}, 'pci_passthrough:alias'),
        (
            {'pci_passthrough:alias': 'gpu', 'hw:pci_numa_affinity_policy': 'required'},
            {'hw_pci_numa_affinity_policy': 'legacy'},
            {'VCPU': 2},
            'hw_pci_numa_affinity_policy',
        ),
    ],
)
def test_what_is_refused_names_its_key(specs, image, resources, field):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        read(a_spec(specs, image, **resources), aliases())
    assert str(caught.value).partition(': ')[0].endswith(field)


def test_a_device_that_nobody_declared_is_told_with_those_that_are():
    with pytest.raises(exceptions.InvalidMessage, match="'fpga' here; known: any, gpu, near, nic"):
        read(a_spec({'pci_passthrough:alias': 'fpga'}, VCPU=1), aliases())


@pytest.mark.parametrize(
    'text',
    [
        '{',
        '[1]',
        '{"vendor_id": "10de"}',
        '[{"name": "a", "colour": "blue"}]',
        '{"name": "a", "device_type": "card"}',
        '{"name": "a", "numa_policy": "close"}',
        '[{"name": "a", "numa_policy": "required"}, {"name": "a", "numa_policy": "preferred"}]',
    ],
)
def test_a_wrong_list_of_devices_names_its_option(text):
    with pytest.raises(exceptions.Misconfigured, match='pci_aliases'):
        read_option(text, 'pci_aliases')


def test_no_list_of_devices_is_an_empty_one():
    assert read_option('', 'pci_aliases').wishes(a_spec(VCPU=1)) == ()
    assert read_option(ALIASES, 'pci_aliases').wishes(a_spec(VCPU=1)) == ()


def test_what_was_read_last_is_not_taken_for_another_request():
    first = a_spec(DEDICATED, PCPU=2)
    assert read(first, aliases()).cells[0].vcpus == (0, 1)
    assert read(a_spec(DEDICATED, PCPU=3), aliases()).cells[0].vcpus == (0, 1, 2)
    assert read(first) == read(first, aliases())
    assert read(a_spec({'pci_passthrough:alias': 'gpu'}, VCPU=1)) is None
    assert read(a_spec({'pci_passthrough:alias': 'gpu'}, VCPU=1), aliases()).devices


def test_an_alias_may_be_of_two_types():
    entries = (
        '[{"name": "n", "vendor_id": "8086", "device_type": "type-PF"}, '
        '{"name": "n", "vendor_id": "10de"}]'
    )
    named = read_option(entries, 'pci_aliases')
    (wish,) = read(a_spec({'pci_passthrough:alias': 'n:1'}, VCPU=1), named).devices
    assert [device_spec.dev_type for device_spec in wish.specs] == ['type-pf', '']
