# SPDX-License-Identifier: Apache-2.0
"""What a guest takes while its migration is open, by whose name Placement has it."""

from gantt.core.messages.request import Purpose
from tests.world import a_request, hosts_of


def test_a_guest_that_is_about_to_leave_counts_once(openstack, region):
    old, new = openstack.host('cmp-1'), openstack.host('cmp-2')
    guests = [openstack.server('cmp-1') for _ in range(4)]
    for guest in guests[1:]:
        openstack.allocate(old, guest, VCPU=2)
    openstack.now(guests[0], task_state='migrating')
    record = openstack.migration(
        guests[0], 'cmp-1', 'cmp-2', 'running', migration_type='live-migration'
    )
    openstack.allocate(old, record, VCPU=2)
    openstack.allocate(new, guests[0], VCPU=2)
    region.passes()
    row = region.row('cmp-1')
    assert (row.used, row.foreign, row.over_committed) == ({'VCPU': 8}, {}, False)


def test_a_resize_on_its_own_host_takes_both_sizes_there(openstack, region):
    node = openstack.host('cmp-1')
    guest = openstack.server('cmp-1', **{'OS-EXT-STS:vm_state': 'resized'})
    record = openstack.migration(guest, 'cmp-1', 'cmp-1', 'finished')
    openstack.allocate(node, record, VCPU=1)
    openstack.allocate(node, guest, VCPU=4)
    region.passes()
    row = region.row('cmp-1')
    assert (row.used, row.foreign) == ({'VCPU': 4}, {'VCPU': 1})


def an_old_record(openstack, guest):
    """A migration of years ago that never ended."""
    openstack.migration(
        guest,
        'cmp-3',
        'cmp-1',
        'migrating',
        migration_type='live-migration',
        created_at='2019-01-01T00:00:00.000000',
    )


def test_a_record_that_never_ended_does_not_keep_a_later_move_open(openstack, region):
    for name in ('cmp-1', 'cmp-2', 'cmp-3'):
        openstack.host(name)
    guest = openstack.server('cmp-1')
    an_old_record(openstack, guest)
    region.passes(3)
    request = a_request(
        purpose=Purpose.LIVE_MIGRATE, ignore_hosts=['cmp-1', 'cmp-3'], consumers=[guest]
    )
    assert hosts_of(region.world.select(request)) == ['cmp-2']
    openstack.migration(guest, 'cmp-1', 'cmp-2', 'error', migration_type='live-migration')
    region.passes(8)
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    region.audit()


def test_a_record_that_never_ended_takes_no_room_while_its_guest_moves(openstack, region):
    for name in ('cmp-1', 'cmp-2', 'cmp-3'):
        openstack.host(name)
    guest = openstack.server('cmp-1')
    an_old_record(openstack, guest)
    openstack.migration(guest, 'cmp-1', 'cmp-2', 'finished')
    openstack.now(guest, host='cmp-2', vm_state='resized')
    region.passes(3)
    assert [host for host, _ in region.live(guest)] == ['cmp-1', 'cmp-2']
    assert region.row('cmp-3').used == {}


def test_of_two_records_of_one_second_the_later_one_counts(openstack, region):
    for name in ('cmp-1', 'cmp-2', 'cmp-3'):
        openstack.host(name)
    guest = openstack.server('cmp-2', **{'OS-EXT-STS:vm_state': 'resized'})
    openstack.migration(guest, 'cmp-3', 'cmp-1', 'accepted', uuid=None)
    openstack.migration(guest, 'cmp-1', 'cmp-2', 'finished')
    openstack.migrations.reverse()
    # What one list makes a claim of is newer than that list: the other end comes with the next.
    region.passes(2)
    assert [host for host, _ in region.live(guest)] == ['cmp-1', 'cmp-2']
