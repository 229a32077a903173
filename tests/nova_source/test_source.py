# SPDX-License-Identifier: Apache-2.0
"""What is read from Nova and Placement comes to be claims, hosts and groups here."""

import pytest

from gantt import exceptions
from gantt.core.messages.request import Purpose
from gantt.core.table.host_table import HostTable
from gantt.nova.source import api
from tests.nova_source.openstack import new_uuid
from tests.nova_source.region import a_conf
from tests.world import a_request, hosts_of

CELL = '3f08903e-ffa4-442a-bd00-09d817a78499'


# -- hosts -------------------------------------------------------------------------------
def test_a_host_is_what_nova_and_placement_say(openstack, make_region, cells_file):
    node = openstack.host('cmp-1', VCPU=16, MEMORY_MB=65536)
    openstack.providers[node]['inventories']['VCPU'] |= {'allocation_ratio': 4.0, 'reserved': 2}
    region = make_region(cells=cells_file(cmp_1=CELL))
    region.passes()
    row = region.row('cmp-1')
    assert (row.uuid, row.node, row.cell) == (node, 'cmp-1.example.org', CELL)
    assert (row.cap('VCPU'), row.cap('MEMORY_MB'), row.cap('DISK_GB')) == (56, 65536, 0)
    assert row.facts.traits == ['COMPUTE_NODE', 'HW_CPU_X86_AVX2']
    runs = row.facts.hypervisor
    assert (runs.type, runs.version, runs.host_ip) == ('QEMU', 8002000, '192.0.2.1')
    assert runs.cpu_info == {
        'arch': 'x86_64',
        'model': 'EPYC',
        'vendor': 'AMD',
        'features': ['avx2'],
    }
    assert ['x86_64', 'kvm', 'hvm'] in runs.supported
    assert row.is_open
    assert row.reporter == 'nova'


@pytest.mark.parametrize(
    ('service', 'reason'),
    [
        pytest.param(
            {'status': 'disabled', 'disabled_reason': 'new disk'}, 'new disk', id='with-reason'
        ),
        pytest.param({'status': 'disabled'}, 'disabled in Nova', id='without-reason'),
        pytest.param({'state': 'down'}, 'nova-compute is down', id='down'),
        pytest.param(
            {'state': 'down', 'forced_down': True}, 'nova-compute was forced down', id='forced'
        ),
    ],
)
def test_a_service_that_takes_nothing_new_says_why(openstack, region, service, reason):
    openstack.host('cmp-1')
    region.passes()
    openstack.services['cmp-1'] |= service
    region.passes()
    assert region.row('cmp-1').service_disabled == reason
    openstack.services['cmp-1'] |= {'status': 'enabled', 'state': 'up', 'forced_down': False}
    region.passes()
    assert region.row('cmp-1').is_open


def test_a_host_that_the_file_of_cells_does_not_name_gets_nothing_new(
    openstack, make_region, cells_file
):
    openstack.host('cmp-1')
    openstack.host('cmp-2')
    region = make_region(cells=cells_file(cmp_1=CELL))
    region.passes()
    assert region.row('cmp-1').is_open
    assert 'cells_file' in region.row('cmp-2').service_disabled
    # The same file, made anew.
    cells_file(cmp_1=CELL, cmp_2=CELL)
    region.passes()
    assert region.row('cmp-2').is_open


def test_where_there_is_one_cell_every_host_is_in_it(openstack, make_region):
    openstack.host('cmp-1')
    region = make_region(cell=CELL.upper())
    region.passes()
    assert (region.row('cmp-1').cell, region.row('cmp-1').is_open) == (CELL, True)


def test_nothing_is_said_of_a_host_without_a_provider(openstack, region):
    node = openstack.host('cmp-1')
    openstack.host('cmp-2')
    del openstack.providers[node]
    region.passes()
    assert region.rows() == {'cmp-2'}


def test_nodes_of_ironic_are_hosts_of_their_own(openstack, region):
    nodes = [
        openstack.host('metal', node=f'node-{n}', kind='ironic', CUSTOM_METAL=1) for n in (1, 2)
    ]
    guest = openstack.server('metal')
    openstack.servers[-1]['OS-EXT-SRV-ATTR:hypervisor_hostname'] = 'node-2'
    openstack.allocate(nodes[1], guest, CUSTOM_METAL=1)
    region.world.store.vocabulary.declare_class('CUSTOM_METAL')
    region.passes()
    assert region.rows() == {'node-1', 'node-2'}
    row = region.row('node-2')
    assert (row.facts.hypervisor.service, row.uuid) == ('metal', nodes[1])
    assert row.used == {'CUSTOM_METAL': 1}
    assert region.row('node-1').used == {}


def test_a_class_that_is_not_declared_is_left_out_until_it_is(openstack, region):
    openstack.host('cmp-1', VCPU=8, MEMORY_MB=32768, CUSTOM_LICENSE=3)
    region.passes(2)
    assert region.row('cmp-1').facts.inventories.keys() == {'VCPU', 'MEMORY_MB'}
    region.world.store.vocabulary.declare_class('CUSTOM_LICENSE')
    region.passes(10)
    assert region.row('cmp-1').cap('CUSTOM_LICENSE') == 3


def test_what_placement_says_unchanged_is_not_read_again(openstack, region):
    nodes = [openstack.host(f'cmp-{n}') for n in range(3)]
    region.passes()
    openstack.asked.clear()
    openstack.allocate(nodes[1], new_uuid(), VCPU=1)
    region.passes()
    read = {path for _, path in openstack.asked if '/resource_providers/' in path}
    changed = f'/placement/resource_providers/{nodes[1]}/'
    assert {path for path in read if not path.endswith('/allocations')} == {
        changed + 'inventories',
        changed + 'traits',
    }
    assert changed + 'allocations' in read
    assert region.row('cmp-1').foreign == {'VCPU': 1}


# -- guests ------------------------------------------------------------------------------
def test_a_guest_has_what_placement_gave_it_before_anything_is_placed_beside_it(openstack, region):
    node = openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    group = openstack.group('anti-affinity', guest)
    openstack.allocate(node, guest, VCPU=6, MEMORY_MB=1000, DISK_GB=7)
    region.passes()
    (claim,) = region.claims(guest)
    assert (claim.adopted, claim.state, claim.group, claim.flavor, claim.project_id) == (
        True,
        'confirmed',
        group,
        'm1.small',
        'a-project',
    )
    row = region.row('cmp-1')
    assert row.used == {'VCPU': 6, 'MEMORY_MB': 1000, 'DISK_GB': 7}
    assert row.foreign == {}
    assert region.port.reports[0].running is None
    assert region.world.select(a_request(vcpu=3)).outcome == 'no_valid_host'
    region.audit()


@pytest.mark.parametrize(
    ('more', 'takes'),
    [
        pytest.param({}, {'VCPU': 2, 'MEMORY_MB': 2048, 'DISK_GB': 20}, id='image'),
        pytest.param({'image': ''}, {'VCPU': 2, 'MEMORY_MB': 2048}, id='volume'),
        pytest.param(
            {
                'flavor': {
                    'vcpus': 4,
                    'ram': 512,
                    'disk': 1,
                    'ephemeral': 2,
                    'swap': 1025,
                    'original_name': 'm',
                    'extra_specs': {'resources:VCPU': '1'},
                }
            },
            {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 5},
            id='specs',
        ),
    ],
)
def test_without_an_allocation_a_guest_takes_what_its_flavor_says(openstack, region, more, takes):
    openstack.host('cmp-1')
    guest = openstack.server('cmp-1', **more)
    region.passes()
    (claim,) = region.claims(guest)
    assert claim.allocations == {claim.provider_id: takes}


def test_a_build_on_its_way_is_foreign_use_until_it_is_a_guest(openstack, region):
    node = openstack.host('cmp-1')
    guest = openstack.server(None)
    openstack.allocate(node, guest, VCPU=2)
    region.passes()
    row = region.row('cmp-1')
    assert (row.foreign, row.used) == ({'VCPU': 2}, {})
    openstack.now(guest, host='cmp-1')
    region.passes()
    row = region.row('cmp-1')
    assert (row.foreign, row.used) == ({}, {'VCPU': 2})


def test_lists_confirm_what_was_placed_and_release_what_is_gone(openstack, region):
    openstack.host('cmp-1')
    region.passes()
    request = a_request()
    assert hosts_of(region.world.select(request)) == ['cmp-1']
    guest = openstack.server('cmp-1', id=request.consumers[0])
    openstack.servers[-1]['id'] = guest = request.consumers[0]
    region.passes()
    assert region.live(guest) == [('cmp-1', 'reserved')]
    region.passes()
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    openstack.delete(guest)
    region.passes(2)
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    region.passes()
    assert region.live(guest) == []
    region.audit()


def test_pages_are_read_to_the_end(openstack, make_region):
    openstack.page_most = 3
    for number in range(5):
        openstack.host(f'cmp-{number}')
    guests = [openstack.server(f'cmp-{number % 5}') for number in range(8)]
    groups = [openstack.group('affinity', guest) for guest in guests]
    region = make_region(page_size=2)
    region.passes()
    assert len(region.rows()) == 5
    assert [region.claims(guest)[0].group for guest in guests] == groups


def test_half_a_list_is_no_list(openstack, make_region):
    openstack.host('cmp-1')
    guests = [openstack.server('cmp-1') for _ in range(4)]
    region = make_region(page_size=2)
    region.passes()
    before = region.row('cmp-1').reported_at
    for _ in range(4):
        openstack.broken['/compute/v2.1/servers/detail'] = (500, 3)
        with pytest.raises(exceptions.Unavailable, match='servers/detail.*3 tries'):
            region.source.step()
    assert all(region.live(guest) for guest in guests)
    assert region.row('cmp-1').reported_at == before
    # One failure or two are tried again.
    openstack.broken['/compute/v2.1/servers/detail'] = (503, 2)
    region.passes()
    assert region.row('cmp-1').reported_at > before


def test_a_cell_that_nova_cannot_reach_loses_no_guest(openstack, region):
    openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    region.passes()
    servers, nodes = openstack.servers, openstack.hypervisors
    openstack.services['cmp-1'] = {'binary': 'nova-compute', 'host': 'cmp-1', 'status': 'UNKNOWN'}
    openstack.servers, openstack.hypervisors = [], []
    region.passes(5)
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    assert region.source._snapshots.silent == {'cmp-1': 'Nova cannot reach its cell'}
    openstack.servers, openstack.hypervisors = servers, nodes
    region.passes(5)
    assert region.live(guest) == [('cmp-1', 'confirmed')]


# -- aggregates and groups -----------------------------------------------------------------
def test_aggregates_follow_nova(openstack, region):
    openstack.host('cmp-1')
    rack = openstack.aggregate('rack', 'cmp-1', availability_zone='north')
    gone = openstack.aggregate('gone')
    region.passes()

    def known():
        aggregates = region.world.store.feed.load_everything().aggregates
        return {a.uuid: (a.name, a.hosts, a.metadata) for a in aggregates}

    zone = {'availability_zone': 'north'}
    assert known() == {
        rack['uuid']: ('rack', ['cmp-1'], zone),
        gone['uuid']: ('gone', [], {}),
    }
    openstack.aggregates.remove(gone)
    rack['hosts'], rack['name'] = [], 'gone'
    region.passes()
    assert known() == {rack['uuid']: ('gone', [], zone)}


def test_an_aggregate_of_a_service_has_its_nodes(openstack, region):
    for n in (1, 2):
        openstack.host('metal', node=f'node-{n}', kind='ironic', CUSTOM_METAL=1)
    openstack.host('cmp-1')
    openstack.aggregate('bare', 'metal', availability_zone='north')
    region.world.store.vocabulary.declare_class('CUSTOM_METAL')
    region.passes()
    snapshot = region.world.store.feed.load_everything()
    table = HostTable.build(snapshot.hosts, snapshot.aggregates, snapshot.groups)
    zones = {name: table.zone_name(row) for row, name in enumerate(table.names)}
    assert zones == {'node-1': 'north', 'node-2': 'north', 'cmp-1': 'nova'}
    assert {table.names[row] for row in table.rows_of_host('metal')} == {'node-1', 'node-2'}


def test_a_group_that_nova_knows_is_known_by_its_rule(openstack, region):
    openstack.host('cmp-1')
    uuid = openstack.group('anti-affinity', max_server_per_host=3)
    region.passes()
    group = region.world.store.groups.load_group(uuid)
    assert (group.policy, group.max_per_host, group.project_id) == ('anti-affinity', 3, 'a-project')


# -- moves ---------------------------------------------------------------------------------
def a_move(openstack, region, purpose):
    """A guest with a claim on cmp-1 and one on its way to cmp-2, whatever Nova knows of it."""
    for name in ('cmp-1', 'cmp-2'):
        openstack.host(name)
    guest = openstack.server('cmp-1')
    region.passes()
    request = a_request(purpose=purpose, ignore_hosts=['cmp-1'], consumers=[guest])
    assert hosts_of(region.world.select(request)) == ['cmp-2']
    return guest


def test_a_move_whose_end_nobody_heard_ends_where_nova_says(openstack, region):
    guest = a_move(openstack, region, Purpose.RESIZE)
    record = openstack.migration(guest, 'cmp-1', 'cmp-2', 'finished')
    openstack.now(guest, host='cmp-2', vm_state='resized')
    region.passes(8)
    # The user has not decided: both places are kept.
    assert region.live(guest) == [('cmp-1', 'confirmed'), ('cmp-2', 'confirmed')]
    openstack.migrations[0]['status'] = 'confirmed'
    openstack.now(guest, vm_state='active')
    region.passes(2)
    assert region.live(guest) == [('cmp-2', 'confirmed')]
    assert record
    region.audit()


def test_a_live_migration_that_was_rolled_back_frees_its_destination(openstack, region):
    guest = a_move(openstack, region, Purpose.LIVE_MIGRATE)
    openstack.migration(guest, 'cmp-1', 'cmp-2', 'error', migration_type='live-migration')
    region.passes(4)
    assert len(region.live(guest)) == 2
    region.passes(4)
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    assert region.counts['gantt_nova_source_guest_locations_total',] == 1


def test_a_guest_that_was_deleted_in_its_move_is_nowhere(openstack, region):
    guest = a_move(openstack, region, Purpose.RESIZE)
    openstack.delete(guest)
    region.passes(9)
    assert region.live(guest) == []


def test_a_resize_that_began_before_us_keeps_its_old_place(openstack, region):
    old, new = openstack.host('cmp-1'), openstack.host('cmp-2')
    guest = openstack.server('cmp-2', **{'OS-EXT-STS:vm_state': 'resized'})
    record = openstack.migration(guest, 'cmp-1', 'cmp-2', 'finished')
    openstack.allocate(old, record, VCPU=1)
    openstack.allocate(new, guest, VCPU=4)
    region.passes(4)
    assert (region.row('cmp-1').used, region.row('cmp-2').used) == ({'VCPU': 1}, {'VCPU': 4})
    assert region.row('cmp-1').foreign == {}
    openstack.migrations.clear()
    openstack.now(guest, vm_state='active')
    openstack.allocate(old, record)
    region.passes(4)
    assert (region.row('cmp-1').used, region.row('cmp-2').used) == ({}, {'VCPU': 4})
    region.audit()


# -- what may be wrong ---------------------------------------------------------------------
def test_wrong_credentials_are_named(openstack):
    nova, _ = api.apis(a_conf(openstack, 'wrong'), 5.0)
    with pytest.raises(exceptions.Misconfigured, match=r'\[nova\].*requires authentication'):
        nova.get('/os-services', list, 'services')


def test_a_user_who_may_not_is_told_so(openstack):
    openstack.role = 'reader'
    nova, _ = api.apis(a_conf(openstack), 5.0)
    with pytest.raises(exceptions.Misconfigured, match='role admin'):
        nova.get('/os-services', list, 'services')


def test_an_api_that_is_away_is_named_and_asked_again(openstack, region):
    openstack.host('cmp-1')
    region.passes()
    openstack.close()
    with pytest.raises(exceptions.Unavailable, match=r'Nova: GET /os-services.*3 tries'):
        region.source.step()


def test_a_group_of_options_without_credentials_is_named():
    from oslo_config import cfg

    conf = cfg.ConfigOpts()
    conf([], project='gantt', default_config_files=[])
    with pytest.raises(exceptions.Misconfigured, match=r'\[nova\] auth_type.*auth_url'):
        api.apis(conf, 5.0)


def test_a_list_without_end_is_given_up(openstack, region):
    openstack.host('cmp-1')
    openstack._page = lambda items, query: items
    with pytest.raises(exceptions.Unavailable, match='does not end'):
        region.source.step()
