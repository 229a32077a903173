# SPDX-License-Identifier: Apache-2.0
"""What Nova and Placement say otherwise than expected is about a host, and no other suffers."""

import pytest

from gantt import exceptions
from gantt.core.messages import base, report
from gantt.core.messages.report import HostReport
from tests.nova_source.openstack import new_uuid
from tests.world import a_request


@pytest.fixture
def cloud(openstack, region):
    """Two hosts, each with a guest; the first is the one that something is odd about."""
    for name in ('cmp-1', 'cmp-2'):
        openstack.host(name)
    guests = [openstack.server(name) for name in ('cmp-1', 'cmp-2')]
    rack = openstack.aggregate('rack', 'cmp-1', 'cmp-2', size='large')
    region.passes(3)
    openstack.delete(guests[1])
    return guests, rack


def aggregates(region):
    of_region = region.world.store.feed.load_everything().aggregates
    return [
        (aggregate.name, sorted(aggregate.hosts), aggregate.metadata) for aggregate in of_region
    ]


@pytest.mark.parametrize(
    ('spoil', 'problem'),
    [
        (lambda o: o.hypervisors[0].update(hypervisor_version=8.5), 'hypervisor_version'),
        (lambda o: o.hypervisors[0].update(running_vms='3'), 'running_vms'),
        (lambda o: o.hypervisors[0].update(id=None), r'\.id'),
        (lambda o: o.services['cmp-1'].update(forced_down='maybe'), 'forced_down'),
        (lambda o: o.servers[0].update(flavor={}), 'flavor'),
        (lambda o: o.servers[0].update({'OS-EXT-STS:task_state': 5}), 'task_state'),
        (
            lambda o: o.allocate(o.hypervisors[0]['id'], new_uuid(), VCPU='two'),
            r'allocations.*resources.VCPU',
        ),
        (
            lambda o: _room(o).update(generation=9, inventories={'VCPU': {'total': None}}),
            'inventories.VCPU.total',
        ),
        (lambda o: _room(o).update(generation='x'), 'generation'),
    ],
)
def test_one_that_is_odd_is_silent_and_the_others_go_on(cloud, openstack, region, spoil, problem):
    guests, _ = cloud
    spoil(openstack)
    region.passes(4)
    silent = region.source._snapshots.silent
    assert set(silent) == {'cmp-1'}
    import re

    assert re.search(problem, silent['cmp-1']), silent
    assert [region.live(guest) for guest in guests] == [[('cmp-1', 'confirmed')], []]
    assert region.counts['gantt_nova_source_passes_total', 'done'] == 7


def _room(openstack):
    return openstack.providers[openstack.hypervisors[0]['id']]


def test_a_hypervisor_that_names_no_service_is_silent_by_its_own_name(cloud, openstack, region):
    openstack.hypervisors[0]['service'] = None
    region.passes(4)
    assert 'service' in region.source._snapshots.silent['cmp-1.example.org']
    assert region.live(cloud[0][0]) == [('cmp-1', 'confirmed')]


@pytest.mark.parametrize(
    'fields',
    [
        {'hypervisor_version': None},
        {'cpu_info': None},
        {'cpu_info': []},
        {'host_ip': None},
        {'hypervisor_type': None},
        {'running_vms': None},
    ],
)
def test_what_is_null_is_as_if_it_were_not_there(cloud, openstack, region, fields):
    openstack.hypervisors[0] |= fields
    region.passes()
    assert region.source._snapshots.silent == {}


def test_aggregates_without_metadata_or_hosts(cloud, openstack, region):
    cloud[1].update(metadata=None, hosts=None)
    region.passes()
    assert aggregates(region) == [('rack', [], {})]


@pytest.mark.parametrize(
    'fields',
    [
        {'hosts': 'cmp-1'},
        {'uuid': None},
        {'name': None},
        {'name': 'a\nb'},
        {'metadata': {'': 'x'}},
        {'metadata': {'note': 'x' * 2000}},
    ],
)
def test_an_aggregate_that_cannot_be_read_stays_as_it_was(cloud, openstack, region, caplog, fields):
    before = aggregates(region)
    cloud[1].update(fields)
    other = openstack.aggregate('other', 'cmp-2')
    region.passes(2)
    assert [aggregate for aggregate in aggregates(region) if aggregate[0] == 'rack'] == before
    assert ('other', ['cmp-2'], {}) in aggregates(region)
    assert len([message for message in caplog.messages if 'stays as it is known' in message]) == 1
    openstack.aggregates.remove(cloud[1])
    region.passes()
    assert [name for name, _, _ in aggregates(region)] == [other['name']]


@pytest.mark.parametrize('fields', [{'members': 'none'}, {'name': 'x' * 2000}])
def test_a_group_that_cannot_be_read_is_passed_over(cloud, openstack, region, caplog, fields):
    odd, other = openstack.group('affinity'), openstack.group('affinity')
    openstack.groups[0].update(fields)
    region.passes(2)
    store = region.world.store
    assert (store.groups.load_group(odd), store.groups.load_group(other).policy) == (
        None,
        'affinity',
    )
    assert (
        len([message for message in caplog.messages if f'group {odd} is passed over' in message])
        == 1
    )


def test_a_listed_guest_of_which_nothing_is_said_is_not_gone(cloud, openstack, region):
    openstack.servers[0]['flavor'] = None  # so one looks whose cell is away
    region.passes(4)
    assert 'did not list all' in region.source._snapshots.silent['cmp-1']
    assert region.live(cloud[0][0]) == [('cmp-1', 'confirmed')]


def test_a_server_that_nobody_can_lay_at_a_hosts_door_ends_the_pass(cloud, openstack, region):
    openstack.servers[0].update({'OS-EXT-SRV-ATTR:host': 7})
    with pytest.raises(exceptions.InvalidMessage, match='servers/detail: servers.0.*host'):
        region.source.step()
    assert region.live(cloud[0][0]) == [('cmp-1', 'confirmed')]


def test_a_guest_that_is_odd_while_it_moves_keeps_both_places(openstack, region):
    for name in ('cmp-1', 'cmp-2'):
        openstack.host(name)
    guest = openstack.server('cmp-2', **{'OS-EXT-STS:vm_state': 'resized'})
    openstack.migration(guest, 'cmp-1', 'cmp-2', 'finished')
    region.passes(3)
    before = region.live(guest)
    assert len(before) == 2
    openstack.servers[0]['flavor'] = []
    region.passes(4)
    assert set(region.source._snapshots.silent) == {'cmp-1', 'cmp-2'}
    assert region.live(guest) == before


# -- amounts -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('amounts', 'room', 'takes'),
    [
        ({'allocation_ratio': 9999.0}, 8000, {1, 2, 4, 8}),
        ({'allocation_ratio': 0.0}, 0, set()),
        ({'min_unit': 4, 'max_unit': 2}, 8, set()),
        ({'max_unit': 0}, 8, set()),
        ({'min_unit': 0, 'step_size': 0, 'allocation_ratio': 2.0}, 16, {1, 2, 4, 8}),
        ({'reserved': 20}, 0, set()),
        ({'reserved': -1, 'allocation_ratio': 2.0}, 16, {1, 2, 4, 8}),
        ({'max_unit': 2**50, 'step_size': 2**50}, 8, set()),
        ({'total': 0}, 0, set()),
    ],
)
def test_amounts_that_placement_allows_cost_no_host(openstack, region, amounts, room, takes):
    node = openstack.host('cmp-1')
    openstack.providers[node]['inventories']['VCPU'] |= amounts
    region.passes()
    for host_report in region.port.reports:
        report.check(base.decode(base.to_builtins(host_report), HostReport, inside='report'))
    row = region.row('cmp-1')
    assert (row.is_open, row.cap('VCPU')) == (True, room)
    for count in (1, 2, 4, 8):
        fits = region.world.select(a_request(vcpu=count)).outcome != 'no_valid_host'
        assert fits == (count in takes), count


def test_a_class_that_fits_no_way_is_left_out_and_the_host_stays(openstack, region, caplog):
    node = openstack.host('cmp-1')
    openstack.providers[node]['inventories']['DISK_GB']['total'] = -1
    region.passes(5)
    assert region.row('cmp-1').facts.inventories.keys() == {'VCPU', 'MEMORY_MB'}
    messages = [message for message in caplog.messages if 'DISK_GB' in message]
    assert len(messages) == 1
    assert 'total' in messages[0]
    assert 'cmp-1' in messages[0]
