# SPDX-License-Identifier: Apache-2.0
"""Nova's requests translated: what is asked for, why, and under which id."""

import copy

import pytest

from gantt import exceptions
from gantt.core.messages.request import GroupRef, Policy, Purpose, check
from gantt.core.topology.read import read
from gantt.nova.wire import casts
from gantt.nova.wire import spec as nova_spec
from tests.rpc.bus import load

CELL = '3f08903e-ffa4-442a-bd00-09d817a78499'
CAPTURES = [
    'boot',
    'boot-multi3',
    'boot-anti-affinity-third',
    'boot-az-host',
    'boot-host-2.74',
    'live-migrate',
    'resize',
    'unshelve',
]


def translated(capture, change=None, context=None):
    captured = load(f'select_destinations-{capture}')
    args = copy.deepcopy(captured.args)
    if change:
        change(args, args['spec_obj']['nova_object.data'])
    return nova_spec.translate(
        args, context or captured.context, budget_ms=45_000, lease_seconds=900, max_attempts=3
    )


def spec_of(capture, change=None):
    return translated(capture, change).request.spec


@pytest.mark.parametrize('capture', CAPTURES)
def test_every_captured_request_is_one_of_ours(capture):
    check(translated(capture).request)


def test_a_boot_asks_for_what_its_flavor_says():
    translation = translated('boot')
    request = translation.request
    assert request.spec.resources == {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}
    assert request.spec.purpose is Purpose.CREATE
    assert request.consumers == ['5b32382d-4506-4d79-b51e-7b55cbc183fc']
    assert request.spec.project_id == 'f0892a03f1574ebb8d8197ddc24e9843'
    assert request.spec.image.uuid == '2fcdea51-a250-4d4d-b3bf-9f643f163728'
    assert (request.alternates, request.lease_seconds, request.budget_ms) == (2, 900, 45_000)
    assert translation.as_objects
    assert translation.alternates


def test_a_multi_create_places_every_instance():
    assert len(translated('boot-multi3').request.consumers) == 3


def test_a_group_carries_rule_hosts_and_the_other_members():
    group = spec_of('boot-anti-affinity-third').group
    assert group.uuid == 'db150b0c-3aa8-4b8b-85a9-53a7a8ec478f'
    assert group.policy is Policy.ANTI_AFFINITY
    assert group.max_per_host == 1
    assert group.hosts == ['compute-004', 'compute-001']
    # Nova lists the instance that is being placed as a member as well.
    assert len(group.members) == 2
    assert '8cc714ce-60c3-4ed5-b718-e1d27256337d' not in group.members


def test_a_group_may_allow_several_per_host():
    def change(args, spec):
        spec['instance_group']['nova_object.data']['_rules'] = {'max_server_per_host': '3'}

    assert spec_of('boot-anti-affinity-third', change).group.max_per_host == 3


def test_a_zone_with_a_host_forces_the_host():
    spec = spec_of('boot-az-host')
    assert spec.force_hosts == ['compute-003']
    assert spec.availability_zone == 'nova'


def test_a_requested_host_is_a_destination_not_a_forced_host():
    spec = spec_of('boot-host-2.74')
    assert spec.destination.host == 'compute-003'
    assert spec.force_hosts == []
    assert spec.purpose is Purpose.CREATE


def test_moves_are_told_apart_by_their_marks():
    resize, live, unshelve = spec_of('resize'), spec_of('live-migrate'), spec_of('unshelve')
    assert (resize.purpose, resize.ignore_hosts) == (Purpose.RESIZE, ['compute-004'])
    assert resize.destination.cell == CELL
    assert resize.resources == {'VCPU': 1, 'MEMORY_MB': 2048, 'DISK_GB': 20}
    assert (live.purpose, live.ignore_hosts) == (Purpose.LIVE_MIGRATE, ['compute-002'])
    assert unshelve.purpose is Purpose.UNSHELVE
    assert translated('live-migrate').request.alternates == 0


def test_an_evacuation_to_a_named_host_and_a_rebuild():
    def evacuate(args, spec):
        data = spec['requested_destination']['nova_object.data']
        data['host'] = 'compute-009'

    def rebuild(args, spec):
        spec['scheduler_hints'] = {'_nova_check_type': ['rebuild']}
        args['return_alternates'] = False

    assert spec_of('live-migrate', evacuate).purpose is Purpose.EVACUATE
    assert spec_of('boot-host-2.74', rebuild).purpose is Purpose.REBUILD


def test_a_hint_of_a_tenant_makes_no_rebuild_of_what_has_to_be_claimed():
    def hinted(args, spec):
        spec['scheduler_hints'] = {'_nova_check_type': ['rebuild']}

    def evacuate(args, spec):
        hinted(args, spec)
        spec['requested_destination']['nova_object.data']['host'] = 'compute-009'

    for name, purpose in (
        ('boot', Purpose.CREATE),
        ('boot-host-2.74', Purpose.CREATE),
        ('resize', Purpose.RESIZE),
        ('live-migrate', Purpose.LIVE_MIGRATE),
        ('unshelve', Purpose.UNSHELVE),
    ):
        spec = spec_of(name, hinted)
        assert spec.purpose is purpose
        assert '_nova_check_type' not in spec.hints
    assert spec_of('live-migrate', evacuate).purpose is Purpose.EVACUATE


@pytest.mark.parametrize('policy', [['affinity'], {'affinity': 1}, 7, 'near', ''])
@pytest.mark.parametrize('key', ['policy', 'policies'])
def test_a_policy_that_is_none_is_refused_by_name(policy, key):
    def change(args, spec):
        data = spec['instance_group']['nova_object.data']
        data.pop('policy', None)
        data.pop('policies', None)
        data[key] = [policy] if key == 'policies' else policy

    with pytest.raises(exceptions.InvalidMessage) as caught:
        spec_of('boot-anti-affinity-third', change)
    assert caught.value.kwargs['field'] == 'spec_obj.instance_group.policy'


def test_no_hints_at_all_are_no_hints():
    def change(args, spec):
        spec['scheduler_hints'] = None

    assert spec_of('boot', change).hints == {}


def test_the_format_of_the_image_and_a_volume_to_boot_from_are_told():
    def change(args, spec):
        spec['is_bfv'] = True

    assert spec_of('boot').image.disk_format == 'raw'
    assert not spec_of('boot').volume_backed
    assert spec_of('boot', change).volume_backed


def test_cells_that_an_image_describes_are_kept_one_by_one():
    def change(args, spec):
        image = spec['image']['nova_object.data']['properties']['nova_object.data']
        image.update(hw_numa_nodes=2, hw_numa_cpus=[[0], [1]], hw_numa_mem=[128, 384])
        spec['flavor']['nova_object.data']['vcpus'] = 2

    cells = read(spec_of('boot', change)).cells
    assert [(cell.vcpus, cell.memory_mb) for cell in cells] == [((0,), 128), ((1,), 384)]


@pytest.mark.parametrize(
    ('specs', 'is_refused'),
    [
        ({'resources:VCPU': '3'}, False),
        ({'resources:VCPU': '1', 'hw:numa_nodes': '1'}, False),
        ({'resources:VCPU': '3', 'hw:numa_nodes': '1'}, True),
        ({'resources:MEMORY_MB': '511', 'hw:mem_page_size': 'large'}, True),
        ({'resources:MEMORY_MB': '0', 'hw:mem_page_size': 'large'}, False),
    ],
    ids=['no cells', 'as the flavor', 'processors', 'memory', 'no guest'],
)
def test_cells_of_other_amounts_than_the_flavor_has_are_refused(specs, is_refused):
    def change(args, spec):
        spec['flavor']['nova_object.data']['extra_specs'] = specs

    if not is_refused:
        assert spec_of('boot', change).flavor.extra_specs == specs
        return
    with pytest.raises(exceptions.InvalidMessage) as caught:
        translated('boot', change)
    assert caught.value.kwargs['field'] == f'flavor.extra_specs.{next(iter(specs))}'


def test_a_move_across_cells_is_not_tied_to_its_cell():
    def change(args, spec):
        spec['requested_destination']['nova_object.data']['allow_cross_cell_move'] = True

    destination = spec_of('resize', change).destination
    assert destination.cell is None
    assert destination.preferred_cell == CELL


def test_hosts_that_failed_before_are_ignored():
    def change(args, spec):
        node = {
            'nova_object.name': 'ComputeNode',
            'nova_object.data': {'host': 'compute-002', 'hypervisor_hostname': 'node-2'},
        }
        hosts = {'nova_object.name': 'ComputeNodeList', 'nova_object.data': {'objects': [node]}}
        spec['retry'] = {
            'nova_object.name': 'SchedulerRetries',
            'nova_object.data': {'num_attempts': 2, 'hosts': hosts},
        }

    assert spec_of('boot', change).ignore_hosts == ['compute-002']


def test_aggregates_of_the_destination_are_and_of_ors():
    def change(args, spec):
        data = spec['requested_destination']['nova_object.data']
        data['aggregates'] = ['a1,a2', 'b']
        data['forbidden_aggregates'] = ['c']

    destination = spec_of('boot-host-2.74', change).destination
    assert destination.aggregates == [['a1', 'a2'], ['b']]
    assert destination.forbidden_aggregates == ['c']


def test_hints_are_lists_and_name_other_instances():
    other = 'c7676d29-1dc7-4b50-bd7c-331e9aa7a45d'

    def change(args, spec):
        spec['scheduler_hints'] = {'different_host': other, 'same_host': [other], 'query': '["x"]'}

    spec = spec_of('boot', change)
    assert spec.different_host == [other]
    assert spec.same_host == [other]
    assert spec.hints['query'] == ['["x"]']


def test_the_hint_of_a_group_may_be_its_name_beside_the_group():
    def change(args, spec):
        spec['scheduler_hints'] = {'group': ['web']}

    spec = spec_of('boot-anti-affinity-third', change)
    assert spec.hints['group'] == [spec.group.uuid]
    alone = 'c7676d29-1dc7-4b50-bd7c-331e9aa7a45d'

    def named(args, spec):
        spec['scheduler_hints'] = {'group': alone}

    assert spec_of('boot', named).group == GroupRef(uuid=alone)


# -- the request id ---------------------------------------------------------------
def test_a_repeated_call_has_the_same_id_whatever_its_message_id():
    assert translated('boot').request.request_id == translated('boot').request.request_id


def test_another_step_of_the_same_api_request_has_another_id():
    def next_try(args, spec):
        spec['ignore_hosts'] = ['compute-002', 'compute-003']

    first = translated('live-migrate').request.request_id
    assert translated('live-migrate', next_try).request.request_id != first


def test_another_api_request_has_another_id():
    context = load('select_destinations-boot').context | {'request_id': 'req-other'}
    assert (
        translated('boot', context=context).request.request_id
        != translated('boot').request.request_id
    )


def a_device(**fields):
    """One of a port unless it has an alias."""
    defaults = {'alias_name': None, 'count': 1, 'spec': [{'physical_network': 'net'}]}
    return {
        'nova_object.name': 'InstancePCIRequest',
        'nova_object.data': {**defaults, 'requester_id': CELL, **fields},
    }


def asking(requests):
    return {
        'nova_object.name': 'InstancePCIRequests',
        'nova_object.data': {'requests': requests},
    }


def on(physnets, tunneled=False):
    return {
        'nova_object.name': 'NetworkMetadata',
        'nova_object.data': {'physnets': physnets, 'tunneled': tunneled},
    }


@pytest.mark.parametrize(
    ('change', 'field'),
    [
        (lambda a, s: a.pop('spec_obj'), 'spec_obj'),
        (lambda a, s: a['spec_obj'].update({'nova_object.name': 'Junk'}), 'spec_obj.nova_object'),
        (lambda a, s: a['spec_obj'].update({'nova_object.data': 7}), 'spec_obj.nova_object.data'),
        (lambda a, s: s.update(flavor=None), 'spec_obj.flavor'),
        (lambda a, s: s['flavor']['nova_object.data'].update(vcpus=-1), 'flavor.vcpus'),
        (lambda a, s: s['flavor']['nova_object.data'].update(memory_mb='x'), 'flavor.memory_mb'),
        (lambda a, s: s.update(requested_resources=[{}]), 'spec_obj.requested_resources'),
        (lambda a, s: s.update(pci_requests=asking(7)), 'spec_obj.pci_requests.requests'),
        (lambda a, s: s.update(pci_requests=asking([7])), 'spec_obj.pci_requests.requests'),
        (lambda a, s: s.update(pci_requests=asking([a_device(spec=[])])), 'spec_obj.pci_requests'),
        (lambda a, s: s.update(pci_requests=asking([a_device(spec=[7])])), 'spec_obj.pci_requests'),
        (
            lambda a, s: s.update(pci_requests=asking([a_device(spec=[{'traits': 'X'}])])),
            'spec_obj.pci_requests.requests[0].spec.traits',
        ),
        (
            lambda a, s: s.update(pci_requests=asking([a_device(numa_policy='far')])),
            'request.spec.devices[0].affinity',
        ),
        (
            lambda a, s: s.update(pci_requests=asking([a_device(count=0)])),
            'request.spec.devices[0].count',
        ),
        (lambda a, s: s.update(network_metadata=on(7)), 'spec_obj.network_metadata.physnets'),
        (lambda a, s: s.update(ignore_hosts='compute-001'), 'spec_obj.ignore_hosts'),
        (lambda a, s: s.update(scheduler_hints=['x']), 'spec_obj.scheduler_hints'),
        (lambda a, s: s.update(availability_zone=7), 'request.spec.availability_zone'),
        (lambda a, s: a.update(instance_uuids=['nope']), 'instance_uuids[0]'),
        (
            lambda a, s: (a.update(instance_uuids=[]), s.update(instance_uuid=None)),
            'instance_uuids',
        ),
    ],
)
def test_a_wrong_part_is_named(change, field):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        translated('boot', change)
    assert caught.value.kwargs['field'].startswith(field)


# -- broadcasts ----------------------------------------------------------------------
def test_broadcasts_become_typed_events():
    updated = casts.update_instance_info(load('update_instance_info').args)
    (guest,) = updated.guests
    assert (updated.host, guest.consumer) == (
        'compute-003',
        'd46918eb-41b5-4340-99b1-aaa242a959dc',
    )
    assert guest.resources == {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}
    assert (guest.vm_state, guest.moving) == ('active', False)
    gone = casts.delete_instance_info(load('delete_instance_info').args)
    assert gone.consumer == '834c9a6d-e3d4-445d-a4dd-86cbf6ebd6d2'
    listed = casts.sync_instance_info(load('sync_instance_info').args)
    assert (listed.host, listed.consumers) == ('compute-001', [])
    (aggregate,) = casts.update_aggregates(load('update_aggregates').args).aggregates
    assert aggregate.uuid == '9ec8bf1d-39a6-44b2-b9c7-d1bdf7097161'
    deleted = casts.delete_aggregate(load('delete_aggregate').args).aggregate
    assert deleted.metadata == {'ssd': 'true'}


def test_an_instance_from_a_volume_whose_image_pins_it():
    args = copy.deepcopy(load('update_instance_info').args)
    (instance,) = args['instance_info']['nova_object.data']['objects']
    data = instance['nova_object.data']
    data['system_metadata']['image_hw_cpu_policy'] = 'dedicated'
    data['image_ref'] = ''
    (guest,) = casts.update_instance_info(args).guests
    assert guest.resources == {'PCPU': 1, 'MEMORY_MB': 512}


@pytest.mark.parametrize(
    ('decode', 'args'),
    [
        (casts.update_aggregates, {'aggregates': {}}),
        (casts.delete_aggregate, {}),
        (casts.delete_instance_info, {'host_name': 'a', 'instance_uuid': 'b'}),
        (casts.sync_instance_info, {'host_name': 7, 'instance_uuids': []}),
        (casts.update_instance_info, {'host_name': 'a', 'instance_info': []}),
    ],
)
def test_a_malformed_broadcast_is_refused(decode, args):
    with pytest.raises(exceptions.InvalidMessage):
        decode(args)
