# SPDX-License-Identifier: Apache-2.0
"""A key of a flavor, an image or a hint means the same at every door, or is refused by name."""

import copy
import functools
import json

import httpx2 as httpx
import msgspec
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages import base
from gantt.core.messages.keys import known_keys
from gantt.core.messages.keys.known_keys import KNOWN_KEYS, KeyKind
from gantt.core.messages.report import Hypervisor, NumaCell
from gantt.core.messages.request import SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import error_of
from gantt.http.server import HttpServer
from gantt.nova.wire import spec as nova_spec
from tests.cli.conftest import run
from tests.http.site import Site, fixed
from tests.planner import a_description, a_member
from tests.rpc.bus import load
from tests.world import Host, new_uuid

RESOURCES = {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}
FLAVOR, IMAGE, HINT = KeyKind.FLAVOR, KeyKind.IMAGE, KeyKind.HINT
SMALL, BIG, REFUSED, NOBODY = 'small', 'big', 'refused', 'nobody'
#: What the small host has and the big one has not.
TRAITS = [
    'CUSTOM_SSD',
    'HW_CPU_X86_AMD_SEV',
    'HW_CPU_X86_AMD_SEV_ES',
    'COMPUTE_SOCKET_PCI_NUMA_AFFINITY',
    'COMPUTE_SECURITY_UEFI_SECURE_BOOT',
    'COMPUTE_ADDRESS_SPACE_EMULATED',
    'COMPUTE_NET_VIRTIO_PACKED',
    'COMPUTE_SECURITY_STATELESS_FIRMWARE',
    'COMPUTE_SECURITY_TPM_2_0',
    'COMPUTE_SECURITY_TPM_TIS',
    'COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER',
    'COMPUTE_EPHEMERAL_ENCRYPTION',
    'COMPUTE_EPHEMERAL_ENCRYPTION_LUKS',
    'COMPUTE_SOUND_MODEL_VIRTIO',
]

#: Key of the table -> (the keys that are given, what becomes of the request), once or more.
FLAVORS = {
    'resources:*': [({'resources:VGPU': '1'}, SMALL), ({'resources:VGPU': 'x'}, REFUSED)],
    'trait:*': [
        ({'trait:CUSTOM_SSD': 'required'}, SMALL),
        ({'trait:CUSTOM_SSD': 'requird'}, REFUSED),
    ],
    'resources*:*': [({'resources1:VGPU': '1'}, SMALL), ({'resources1:VGPU': '9'}, NOBODY)],
    'trait*:*': [({'resources1:VGPU': '1', 'trait1:CUSTOM_SSD': 'forbidden'}, NOBODY)],
    'group_policy': [({'resources1:VGPU': '1', 'group_policy': 'apart'}, REFUSED)],
    'hw:cpu_policy': [({'hw:cpu_policy': 'dedicatd'}, REFUSED)],
    'hw:cpu_thread_policy': [({'hw:cpu_thread_policy': 'x'}, REFUSED)],
    'hw:cpu_realtime': [({'hw:cpu_realtime': 'x'}, REFUSED)],
    'hw:cpu_realtime_mask': [({'hw:cpu_realtime': 'yes', 'hw:cpu_realtime_mask': 'x'}, REFUSED)],
    'hw:cpu_dedicated_mask': [({'hw:cpu_dedicated_mask': '0'}, REFUSED)],
    'hw:emulator_threads_policy': [({'hw:emulator_threads_policy': 'x'}, REFUSED)],
    'hw:numa_nodes': [({'hw:numa_nodes': '1'}, SMALL), ({'hw:numa_nodes': 'x'}, REFUSED)],
    'hw:numa_cpus.N': [({'hw:numa_nodes': '1', 'hw:numa_cpus.1': '0'}, REFUSED)],
    'hw:numa_mem.N': [({'hw:numa_nodes': '1', 'hw:numa_mem.1': '512'}, REFUSED)],
    'hw:mem_page_size': [({'hw:mem_page_size': 'x'}, REFUSED)],
    **{
        f'hw:cpu_{name}': [({f'hw:cpu_{name}': 'x', 'hw:numa_nodes': '1'}, REFUSED)]
        for bound in ('', 'max_')
        for name in (f'{bound}sockets', f'{bound}cores', f'{bound}threads')
    },
    'hw:pmem': [({'hw:pmem': '6GB'}, NOBODY)],
    'hw:mem_encryption': [({'hw:mem_encryption': 'true'}, SMALL)],
    'hw:mem_encryption_model': [
        ({'hw:mem_encryption': 'true', 'hw:mem_encryption_model': 'amd-sev-es'}, SMALL)
    ],
    'pci_passthrough:alias': [({'pci_passthrough:alias': 'none:1'}, REFUSED)],
    'hw:pci_numa_affinity_policy': [({'hw:pci_numa_affinity_policy': 'socket'}, SMALL)],
    'hw:tpm_version': [({'hw:tpm_version': '2.0'}, SMALL)],
    'hw:tpm_model': [({'hw:tpm_version': '2.0', 'hw:tpm_model': 'tpm-crb'}, NOBODY)],
    'hw:tpm_secret_security': [
        ({'hw:tpm_version': '2.0', 'hw:tpm_secret_security': 'host'}, NOBODY)
    ],
    'hw:maxphysaddr_mode': [({'hw:maxphysaddr_mode': 'emulate'}, SMALL)],
    'hw:virtio_packed_ring': [({'hw:virtio_packed_ring': 'true'}, SMALL)],
    'hw:sound_model': [({'hw:sound_model': 'virtio'}, SMALL)],
    'hw:ephemeral_encryption': [({'hw:ephemeral_encryption': 'true'}, SMALL)],
    'hw:ephemeral_encryption_format': [
        ({'hw:ephemeral_encryption': 'true', 'hw:ephemeral_encryption_format': 'plain'}, NOBODY)
    ],
    'os:secure_boot': [({'os:secure_boot': 'required'}, SMALL)],
    'accel:device_profile': [({'accel:device_profile': 'gpu'}, REFUSED)],
    'hw:maxphysaddr_bits': [({'hw:maxphysaddr_bits': '40'}, SMALL)],
    'capabilities:*': [({'capabilities:hypervisor_type': 'QEMU'}, SMALL)],
    'aggregate_instance_extra_specs:*': [({'aggregate_instance_extra_specs:ssd': 'yes'}, SMALL)],
    'rule:*': [({'rule:ssd': 'hard: "CUSTOM_SSD" in traits'}, SMALL), ({'rule:x': '('}, REFUSED)],
}
BOTH = {
    name.replace('hw:', 'hw_'): [
        ({key.replace('hw:', 'hw_'): value for key, value in given.items()}, outcome)
        for given, outcome in cases
    ]
    for name, cases in FLAVORS.items()
    if known_keys.known_key(IMAGE, name.replace('hw:', 'hw_').replace('.N', '.0')) is not None
}
IMAGES = {
    **BOTH,
    'traits_required': [({'traits_required': 'CUSTOM_SSD'}, SMALL)],
    'trait:*': [({'trait:CUSTOM_SSD': 'required'}, SMALL), ({'trait:CUSTOM_SSD': 'x'}, REFUSED)],
    'hw_cpu_policy': [({'hw_cpu_policy': 'dedicatd'}, REFUSED)],
    'hw_cpu_realtime_mask': [],  # of a flavor without real time it says nothing
    'hw_firmware_type': [({'hw_firmware_type': 'uefi', 'hw_firmware_stateless': 'true'}, SMALL)],
    'hw_firmware_stateless': [
        ({'hw_firmware_type': 'uefi', 'hw_firmware_stateless': 'yes'}, SMALL)
    ],
    'os_secure_boot': [({'os_secure_boot': 'required'}, SMALL)],
    'hw_architecture': [({'hw_architecture': 'x86_64'}, SMALL)],
    'img_hv_type': [({'img_hv_type': 'kvm'}, SMALL)],
    'hw_vm_mode': [({'hw_vm_mode': 'hvm'}, SMALL)],
    'img_hv_requested_version': [({'img_hv_requested_version': '>=9'}, BIG)],
    'hw_maxphysaddr_bits': [({'hw_maxphysaddr_bits': '60'}, BIG)],
    **{
        name: [({name: 'x'}, REFUSED)]
        for name in ('architecture', 'hypervisor_type', 'hypervisor_version_requires', 'vm_mode')
    },
}
HINTS = {
    'same_host': [({'same_host': ['x']}, REFUSED), ({'same_host': [fixed(1)]}, NOBODY)],
    'different_host': [({'different_host': ['x']}, REFUSED)],
    'group': [({'group': ['x']}, REFUSED)],
    'gantt_plan': [({'gantt_plan': ['web']}, REFUSED)],
    'gantt_member': [({'gantt_member': ['web']}, REFUSED)],
    'query': [
        ({'query': ['["<", "$total_usable_ram_mb", 9999]']}, SMALL),
        ({'query': ['[']}, REFUSED),
    ],
    'build_near_host_ip': [({'build_near_host_ip': ['x']}, REFUSED)],
    'cidr': [({'build_near_host_ip': ['10.0.0.1'], 'cidr': ['/99']}, REFUSED)],
    'rules': [({'rules': ['hard: "CUSTOM_SSD" in traits']}, SMALL), ({'rules': ['(']}, REFUSED)],
    'location': [({'location': ['hall.r1']}, SMALL)],
    '_nova_check_type': [({'_nova_check_type': ['rebuild']}, REFUSED)],
}
CASES = {FLAVOR: FLAVORS, IMAGE: IMAGES, HINT: HINTS}


class TwoKinds(Site):
    """``cmp-1`` is small and has everything; the others are large and have nothing of it."""

    def _host(self, name, number):
        small = number == 1
        inventories = {
            'VCPU': Inventory(total=8 if small else 64),
            'MEMORY_MB': Inventory(total=8192 if small else 262_144),
            'DISK_GB': Inventory(total=100 if small else 9000),
        }
        if not small:
            return Host(self.world, name, inventories=inventories)
        few = {'VGPU': Inventory(total=4), 'MEM_ENCRYPTION_CONTEXT': Inventory(total=4)}
        runs = Hypervisor(
            type='QEMU',
            version=6_002_000,
            cpu_info={'maxphysaddr': {'mode': 'emulate', 'bits': 46}},
            supported=[['x86_64', 'kvm', 'hvm']],
        )
        return Host(
            self.world,
            name,
            inventories=inventories | few,
            traits=TRAITS,
            location='hall.r1',
            hypervisor=runs,
            numa=[NumaCell(id=0, cpus=list(range(8)), memory_mb=8192)],
        )


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        more = ('JsonFilter', 'SimpleCIDRAffinityFilter', 'AggregateInstanceExtraSpecsFilter')
        load_all = functools.partial(
            plugin_loader.load_pipeline, (*plugin_loader.DEFAULT_FILTERS, *more)
        )
        patch.setattr(plugin_loader, 'load_pipeline', load_all)
        kinds = TwoKinds()
    kinds.world.store.declarations.save_aggregate('fast', {'ssd': 'yes'}, ['cmp-1'])
    kinds.world.turn()
    kinds.insights.reload_soon()
    server = HttpServer(kinds.app, '127.0.0.1', 0, threads=2)
    server.start()
    kinds.folder = tmp_path_factory.mktemp('doors')
    kinds.endpoint = f'http://127.0.0.1:{server.port}'
    headers = {'OpenStack-API-Version': 'scheduler latest'}
    with httpx.Client(base_url=kinds.endpoint, headers=headers, timeout=30) as kinds.api:
        yield kinds
    assert server.stop(5)


# -- the doors: each gives the host, or the words of the refusal -----------------------------------
def own_rpc(site, spec):
    body = {'request_id': fixed(1), 'consumers': [fixed(2)], 'spec': spec, 'dry_run': True}
    try:
        answer = site.world.select(base.decode(body, SelectDestinations, inside='request'))
        error = error_of(answer)
    except exceptions.GanttError as e:
        error = e
    return answer.selections[0][0].host if error is None else error.message


def nova(site, spec):
    """Nova's topic, with the same in the flavor, the image and the hints of its own message."""
    captured = load('select_destinations-boot')
    args = copy.deepcopy(captured.args)
    data = args['spec_obj']['nova_object.data']
    data['flavor']['nova_object.data']['extra_specs'] = spec['flavor']['extra_specs']
    properties = data['image']['nova_object.data']['properties']['nova_object.data']
    properties.update(spec['image']['properties'])
    if 'traits_required' in properties:
        properties['traits_required'] = properties['traits_required'].split(',')
    data['scheduler_hints'] = spec['hints']
    data['availability_zone'] = None
    terms = {'budget_ms': 45_000, 'lease_seconds': 900, 'max_attempts': 1}
    try:
        request = nova_spec.translate(args, captured.context, **terms).request
        answer = site.world.select(msgspec.structs.replace(request, dry_run=True))
        error = error_of(answer)
    except exceptions.GanttError as e:
        error = e
    return answer.selections[0][0].host if error is None else error.message


def http(site, spec, **more):
    body = {'request_id': new_uuid(), 'consumers': [new_uuid()], 'spec': spec, **more}
    response = site.api.post('/v1/requests', json=body)
    if response.is_success and not more:
        site.api.delete(f'/v1/requests/{body["request_id"]}')
    return (
        response.json()['answer']['selections'][0][0]['host']
        if response.is_success
        else response.text
    )


def dry_run(site, spec):
    return http(site, spec, dry_run=True)


def what_if(site, spec):
    request = {'request_id': fixed(5), 'consumers': [fixed(6)], 'spec': spec}
    response = site.api.post('/v1/what-if', json={'request': request, 'hosts': {}})
    if not response.is_success:
        return response.text
    now = response.json()['now']
    return next((member['host'] for member in now['members'] if member['host']), now['reason'])


def capacity(site, spec):
    response = site.api.post('/v1/capacity', json={'spec': spec})
    hosts = [entry['name'] for entry in response.json().get('by_host', ())]
    return max(hosts, default=response.text)


def plan_member(site, spec):
    group = a_description(a_member('web', spec=spec), policies=[])
    body = {'request_id': fixed(7), 'group': group, 'dry_run': True}
    response = site.api.post('/v1/group-plans', json=body)
    members = (response.json().get('plan') or {}).get('members') if response.is_success else ()
    return members[0]['host'] if members else response.text


def command_line(site, spec):
    file = site.folder / 'request.json'
    file.write_text(json.dumps(spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('GANTT_ENDPOINT', site.endpoint)
        completed = run('select', '--request-file', str(file), '--dry-run', '-f', 'json')
    shown = json.loads(completed.out) if completed.code == 0 else {}
    return shown['answer']['selections'][0][0]['host'] if shown else completed.err


QUICK = (own_rpc, nova, dry_run, what_if, capacity)
DOORS = (*QUICK, http, plan_member, command_line)


@pytest.mark.parametrize('of', list(CASES))
def test_a_key_means_the_same_at_every_door(site, of):
    wrong = []
    for name, cases in CASES[of].items():
        assert name in {key.name for key in KNOWN_KEYS if key.of is of}, name
        for given, expected in cases:
            spec = {
                'resources': RESOURCES,
                'flavor': {'extra_specs': given if of is FLAVOR else {}},
                'image': {'properties': given if of is IMAGE else {}},
                'hints': given if of is HINT else {},
            }
            # Of an image it is read by whoever reads it of a flavor: not at the slow doors as well.
            doors = QUICK if name in BOTH and of is IMAGE else DOORS
            answers = {door.__name__: door(site, spec) for door in doors}
            if of is IMAGE and not known_to_nova(name):
                del answers['nova']
            if name == '_nova_check_type':
                del answers['nova']  # its own door takes it
            for door, text in answers.items():
                if outcome(text, given) != expected:
                    wrong.append(f'{door}: {given} expected {expected}: {text[:300]}')
    assert not wrong, '\n'.join(wrong)


def known_to_nova(name):
    """Whether Nova's message has such a property; its API makes the others into such."""
    return name.startswith(('hw_', 'os_', 'img_', 'traits_'))


def outcome(text, given):
    if text == 'cmp-1':
        return SMALL
    if text.startswith('cmp-'):
        return BIG
    return REFUSED if any(key in text for key in given) and 'hosts fit' not in text else NOBODY


def test_every_key_that_places_has_a_case():
    for of, cases in CASES.items():
        named = {key.name for key in KNOWN_KEYS if key.of is of and (key.places or not key.readers)}
        assert cases.keys() >= named, named - cases.keys()


@pytest.mark.parametrize(
    ('metadata', 'note'),
    [
        ({'ram_weight_multiplyer': '2'}, 'did you mean ram_weight_multiplier?'),
        ({'availability_zome': 'az1'}, 'did you mean availability_zone?'),
        ({'cpu_allocation_ratio': '4'}, 'AggregateCoreFilter, which is not enabled'),
        (
            {
                'ram_weight_multiplier': '2',
                'ssd': 'yes',
                'filter_tenant_id2': 'p',
                'rule:x': 'location in "site1"',
            },
            '',
        ),
        ({'ram_weight_multiplyer': None}, ''),
    ],
)
def test_who_writes_a_key_of_an_aggregate_hears_that_nobody_reads_it(site, metadata, note):
    for query in ('?dry_run=true', ''):
        response = site.api.put(f'/v1/aggregates/noted{query}', json={'metadata': metadata})
        assert response.is_success, response.text
        rest = response.json()['message'].partition('saved')[2]
        assert (note in rest) if note else not rest, rest
