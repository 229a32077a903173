# SPDX-License-Identifier: Apache-2.0
"""Allocations come and go; of those that go the generation of their provider says nothing."""

from gantt.nova.source import reading
from tests.nova_source.openstack import new_uuid
from tests.world import a_request, hosts_of


def test_guests_that_are_deleted_leave_their_room(openstack, region):
    node = openstack.host('cmp-1')
    guests = [openstack.server('cmp-1') for _ in range(4)]
    for guest in guests:
        openstack.allocate(node, guest, VCPU=2, MEMORY_MB=2048, DISK_GB=20)
    region.passes(3)
    assert region.row('cmp-1').used['VCPU'] == 8
    for guest in guests:
        openstack.delete(guest)
        openstack.allocate(node, guest)
    region.passes(4)
    row = region.row('cmp-1')
    assert (row.used, row.foreign) == ({}, {})
    assert hosts_of(region.world.select(a_request(vcpu=8))) == ['cmp-1']
    region.audit()


def test_a_guest_that_is_shelved_leaves_its_room_though_it_is_listed(openstack, region):
    node = openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    openstack.allocate(node, guest, VCPU=2)
    region.passes(3)
    openstack.now(guest, host=None, vm_state='shelved_offloaded')
    openstack.allocate(node, guest)
    region.passes(4)
    row = region.row('cmp-1')
    assert (row.used, row.foreign) == ({}, {})


def test_a_migration_that_is_over_leaves_its_room(openstack, region):
    old, new = openstack.host('cmp-1'), openstack.host('cmp-2')
    guest = openstack.server('cmp-2', **{'OS-EXT-STS:vm_state': 'resized'})
    record = openstack.migration(guest, 'cmp-1', 'cmp-2', 'finished')
    openstack.allocate(old, record, VCPU=1)
    openstack.allocate(new, guest, VCPU=4)
    region.passes(2)
    openstack.migrations[0]['status'] = 'confirmed'
    openstack.now(guest, vm_state='active')
    openstack.allocate(old, record)
    region.passes(4)
    assert (region.row('cmp-1').used, region.row('cmp-1').foreign) == ({}, {})


def test_an_allocation_that_goes_while_its_guest_stays_is_seen_some_passes_later(openstack, region):
    node = openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    openstack.allocate(node, guest, VCPU=7)
    region.passes(3)
    assert region.row('cmp-1').used == {'VCPU': 7}
    openstack.allocate(node, guest)
    region.passes(reading.FULL_READ_PASSES)
    assert region.reader._provider_details[node].allocations == {}


def test_what_is_as_it_was_is_asked_for_seldom(openstack, region):
    nodes = [openstack.host(f'cmp-{number}') for number in range(3)]
    for number, node in enumerate(nodes):
        openstack.allocate(node, openstack.server(f'cmp-{number}'), VCPU=1)
    region.passes()
    openstack.asked.clear()
    region.passes(reading.FULL_READ_PASSES)
    asked = [path for _, path in openstack.asked if '/resource_providers/' in path]
    assert sorted(asked) == sorted(
        f'/placement/resource_providers/{node}/allocations' for node in nodes
    )


def test_a_guest_that_was_not_found_once_is_looked_for_when_it_is_missed(openstack, region):
    node = openstack.host('cmp-1')
    guest = new_uuid()
    openstack.allocate(node, guest, VCPU=2)
    region.passes()  # Nova answers 404
    openstack.server('cmp-1', id=guest)
    region.passes(3)
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    openstack.unlisted = openstack.unreachable = {guest}
    region.passes(4)
    assert region.live(guest) == [('cmp-1', 'confirmed')]
