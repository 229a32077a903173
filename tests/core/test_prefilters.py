# SPDX-License-Identifier: Apache-2.0
"""Fields added to a request before any host is evaluated, and their report."""

from typing import Any

import pytest

from gantt import plugin_loader
from gantt.core.messages.request import Flavor, Image, Purpose, RequestSpec
from gantt.core.placement.prefilters import DISABLED_TRAIT, Prefilters, rewrite_spec
from gantt.core.resources.host import Aggregate
from tests.core.builders import a_host, a_request, a_table, an_id, decide, hosts_of

OWN = Aggregate(
    id=1,
    uuid=an_id(1, 5),
    name='own',
    hosts=['cmp-1'],
    metadata={'filter_tenant_id:7': 'red, blue'},
)
FAST = Aggregate(
    id=2,
    uuid=an_id(2, 5),
    name='fast',
    hosts=['cmp-2'],
    metadata={'trait:HW_FAST': 'required', 'trait:HW_OLD': 'forbidden', 'owner': 'red'},
)


def a_spec(**fields: Any) -> RequestSpec:
    return RequestSpec(resources={'VCPU': 1}, **fields)


def rewritten(spec: RequestSpec, **on: bool) -> tuple[RequestSpec, list[str]]:
    table = a_table(a_host(1), a_host(2), a_host(3), aggregates=[OWN, FAST])
    return rewrite_spec(spec, table, Prefilters(**on))


def test_a_plain_request_stays_what_it_is():
    spec = a_spec()
    assert rewritten(spec) == (spec, [])
    assert rewritten(a_spec(project_id='red'))[1] == []


def test_projects_with_aggregates_stay_in_them():
    spec, added = rewritten(a_spec(project_id='red'), limit_tenants_to_placement_aggregate=True)
    assert spec.member_of == [[OWN.uuid]]
    assert added == ['only aggregates of project red: own']


@pytest.mark.parametrize(('needs', 'hosts'), [(False, ['cmp-1', 'cmp-2', 'cmp-3']), (True, [])])
def test_projects_without_one_go_anywhere_unless_they_need_one(needs, hosts):
    table = a_table(a_host(1), a_host(2), a_host(3), aggregates=[OWN])
    pipeline = plugin_loader.load_pipeline(
        prefilters=Prefilters(
            limit_tenants_to_placement_aggregate=True,
            placement_aggregate_required_for_tenants=needs,
        )
    )
    decision = decide(table, a_request(count=3, project_id='green'), pipeline)
    assert set(filter(None, hosts_of(decision))) <= set(hosts)
    assert decision.is_placed is not needs
    assert bool(decision.added) is needs


def test_an_aggregate_with_required_traits_is_for_those_who_ask_for_them():
    on = {'enable_isolated_aggregate_filtering': True}
    spec, added = rewritten(a_spec(), **on)
    assert spec.forbidden_aggregates == [FAST.uuid]
    assert added == ['aggregate fast is kept for requests with trait HW_FAST']
    assert rewritten(a_spec(required_traits=['HW_FAST']), **on)[1] == []


def test_what_the_hardware_of_a_guest_needs_counts_as_asked_for():
    kept = Aggregate(
        id=3,
        uuid=an_id(3, 5),
        name='safe',
        hosts=['cmp-3'],
        metadata={'trait:COMPUTE_SECURITY_UEFI_SECURE_BOOT': 'required'},
    )
    table = a_table(a_host(1), aggregates=[kept])
    on = Prefilters(enable_isolated_aggregate_filtering=True)
    assert rewrite_spec(a_spec(), table, on)[0].forbidden_aggregates == [kept.uuid]
    secure = a_spec(flavor=Flavor(extra_specs={'os:secure_boot': 'required'}))
    assert rewrite_spec(secure, table, on)[0].forbidden_aggregates == []


@pytest.mark.parametrize(
    ('fields', 'traits'),
    [
        ({}, []),
        ({'disk_format': 'qcow2'}, ['COMPUTE_IMAGE_TYPE_QCOW2']),
        ({'disk_format': 'unheard-of'}, []),
    ],
)
def test_the_type_of_the_image(fields, traits):
    on = {'query_placement_for_image_type_support': True}
    assert rewritten(a_spec(image=Image(**fields)), **on)[0].required_traits == traits
    from_volume = a_spec(image=Image(**fields), volume_backed=True)
    assert rewritten(from_volume, **on)[0].required_traits == []


@pytest.mark.parametrize(
    ('name', 'value', 'trait'),
    [
        ('hw_disk_bus', 'virtio', 'COMPUTE_STORAGE_BUS_VIRTIO'),
        ('hw_cdrom_bus', 'sata', 'COMPUTE_STORAGE_BUS_SATA'),
        ('hw_vif_model', 'spapr-vlan', 'COMPUTE_NET_VIF_MODEL_SPAPR_VLAN'),
        ('hw_architecture', 'amd64', 'HW_ARCH_X86_64'),
        ('hw_architecture', 'armv7l', 'HW_ARCH_ARMV7'),
        ('hw_viommu_model', 'intel', 'COMPUTE_VIOMMU_MODEL_INTEL'),
    ],
)
def test_what_the_image_is_made_for_is_required(name, value, trait):
    image = Image(properties={name: value, 'hw_video_model': 'unheard-of'})
    spec, added = rewritten(a_spec(image=image), image_metadata_prefilter=True)
    assert spec.required_traits == [trait]
    assert added == [
        f'trait {trait} is required: the image has {name}={value}',
        'image property hw_video_model=unheard-of has no trait and is not looked at',
    ]


@pytest.mark.parametrize(
    ('extra_specs', 'properties', 'traits'),
    [
        ({'hw:virtio_packed_ring': 'Yes'}, {}, ['COMPUTE_NET_VIRTIO_PACKED']),
        ({}, {'hw_virtio_packed_ring': 'false'}, []),
        (
            {'hw:ephemeral_encryption': 'true'},
            {'hw_ephemeral_encryption_format': 'luks'},
            ['COMPUTE_EPHEMERAL_ENCRYPTION', 'COMPUTE_EPHEMERAL_ENCRYPTION_LUKS'],
        ),
        ({}, {'hw_sound_model': 'virtio'}, ['COMPUTE_SOUND_MODEL_VIRTIO']),
        ({}, {'hw_sound_model': 'ich6'}, []),
        (
            {},
            {'hw_tpm_version': '1.2'},
            [
                'COMPUTE_SECURITY_TPM_TIS',
                'COMPUTE_SECURITY_TPM_1_2',
                'COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER',
            ],
        ),
        (
            {'hw:tpm_version': '2.0', 'hw:tpm_secret_security': 'host'},
            {'hw_tpm_model': 'tpm-crb'},
            [
                'COMPUTE_SECURITY_TPM_CRB',
                'COMPUTE_SECURITY_TPM_2_0',
                'COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST',
            ],
        ),
        ({'hw:tpm_model': 'tpm-crb'}, {}, []),
        ({'os:secure_boot': 'required'}, {}, ['COMPUTE_SECURITY_UEFI_SECURE_BOOT']),
        ({}, {'os_secure_boot': 'required'}, ['COMPUTE_SECURITY_UEFI_SECURE_BOOT']),
        ({}, {'os_secure_boot': 'optional'}, []),
        ({'hw:maxphysaddr_mode': 'emulate'}, {}, ['COMPUTE_ADDRESS_SPACE_EMULATED']),
        ({}, {'hw_maxphysaddr_mode': 'passthrough'}, ['COMPUTE_ADDRESS_SPACE_PASSTHROUGH']),
        (
            {},
            {'hw_firmware_stateless': 'True', 'hw_firmware_type': 'uefi'},
            ['COMPUTE_SECURITY_STATELESS_FIRMWARE'],
        ),
        ({}, {'hw_firmware_stateless': 'True', 'hw_firmware_type': 'bios'}, []),
        ({'hw:mem_encryption': 'true'}, {}, ['HW_CPU_X86_AMD_SEV']),
        (
            {'hw:mem_encryption_model': 'amd-sev-es'},
            {'hw_mem_encryption': 'True'},
            ['HW_CPU_X86_AMD_SEV_ES'],
        ),
        (
            {'hw:mem_encryption': '1'},
            {'hw_mem_encryption_model': 'intel-tdx'},
            ['HW_CPU_X86_INTEL_TDX'],
        ),
        ({'hw:mem_encryption': 'false'}, {}, []),
        (
            {'hw:pci_numa_affinity_policy': 'socket'},
            {},
            ['COMPUTE_SOCKET_PCI_NUMA_AFFINITY'],
        ),
        ({}, {'hw_pci_numa_affinity_policy': 'required'}, []),
    ],
)
def test_features_that_only_some_hosts_have(extra_specs, properties, traits):
    fields = {'flavor': Flavor(extra_specs=extra_specs), 'image': Image(properties=properties)}
    spec, added = rewritten(a_spec(**fields))
    assert spec.required_traits == traits
    assert len(added) == len(traits)
    assert rewritten(a_spec(purpose=Purpose.REBUILD, **fields))[1] == []


def test_hosts_that_say_they_are_disabled_are_left_out():
    table = a_table(a_host(1, traits=[DISABLED_TRAIT]), a_host(2))
    decision = decide(table, a_request())
    assert hosts_of(decision) == ['cmp-2']
    assert decision.added == []


def test_a_decision_tells_what_was_added_and_the_claims_are_for_what_was_asked():
    request = a_request(flavor=Flavor(extra_specs={'hw:virtio_packed_ring': 'true'}))
    table = a_table(a_host(1), a_host(2, traits=['COMPUTE_NET_VIRTIO_PACKED']))
    decision = decide(table, request)
    assert hosts_of(decision) == ['cmp-2']
    line = 'trait COMPUTE_NET_VIRTIO_PACKED is required: packed virtqueues are asked for'
    assert decision.added == [line]
    assert decision.members[0].selection.resources == request.spec.resources


def test_the_switches_are_part_of_what_a_decision_depends_on():
    usual = plugin_loader.load_pipeline()
    other = plugin_loader.load_pipeline(prefilters=Prefilters(image_metadata_prefilter=True))
    assert usual.digest != other.digest
    assert plugin_loader.changed_pipeline(other).digest == other.digest
