# SPDX-License-Identifier: Apache-2.0
"""Lists of servers that miss some: Nova leaves out what is in a cell that is late."""

import pytest

from gantt import exceptions
from gantt.nova.source import reading
from tests.nova_source.openstack import new_uuid
from tests.world import a_request, hosts_of

AWAY = 'Nova cannot reach its cell'
UNSURE = 'Nova did not list all of its guests'


def test_a_guest_that_is_not_listed_but_there_keeps_its_claim(openstack, region):
    openstack.host('cmp-1')
    guests = [openstack.server('cmp-1') for _ in range(2)]
    region.passes(3)
    openstack.unlisted = set(guests)
    region.passes(4)
    assert [region.live(guest) for guest in guests] == [[('cmp-1', 'confirmed')]] * 2
    assert region.source._snapshots.silent == {}
    # One of them is deleted meanwhile: Nova says so when it is asked.
    openstack.delete(guests[0])
    region.passes(3)
    assert [region.live(guest) for guest in guests] == [[], [('cmp-1', 'confirmed')]]
    region.audit()


def test_nothing_is_said_of_a_host_while_nova_cannot_tell_of_its_guests(openstack, region):
    for name in ('cmp-1', 'cmp-2'):
        openstack.host(name)
    guest, other = openstack.server('cmp-1'), openstack.server('cmp-2')
    region.passes(3)
    openstack.unlisted = openstack.unreachable = {guest}
    region.passes(4)
    assert region.source._snapshots.silent == {'cmp-1': UNSURE}
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    openstack.unlisted = openstack.unreachable = set()
    openstack.delete(other)
    region.passes(4)
    assert region.source._snapshots.silent == {}
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    assert region.live(other) == []


def test_an_allocation_is_word_of_a_guest_that_was_never_listed(openstack, region):
    node = openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    openstack.allocate(node, guest, VCPU=2)
    openstack.allocate(node, leak := new_uuid(), VCPU=1)
    openstack.unlisted = openstack.unreachable = {guest}
    region.passes()
    assert region.source._snapshots.silent == {'cmp-1': UNSURE}
    openstack.unreachable = set()
    openstack.asked.clear()
    region.passes()
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    assert region.row('cmp-1').foreign == {'VCPU': 1}
    # What is no guest is asked for once.
    assert ('GET', f'/compute/v2.1/servers/{leak}') not in openstack.asked


def test_a_host_that_counts_guests_and_lists_none_is_not_believed(openstack, make_region):
    openstack.host('cmp-1')
    region = make_region()
    region.passes()
    request = a_request()
    assert hosts_of(region.world.select(request)) == ['cmp-1']
    guest = openstack.server('cmp-1')
    openstack.servers[-1]['id'] = guest = request.consumers[0]
    region.passes(2)
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    openstack.unlisted = {guest}
    openstack.hypervisors[0]['running_vms'] = 1
    # A process that starts remembers nothing.
    region.reader._host_by_guest.clear()
    region.passes(4)
    assert region.source._snapshots.silent == {'cmp-1': UNSURE}
    assert region.live(guest) == [('cmp-1', 'confirmed')]


def test_a_cell_that_goes_away_while_guests_are_read_is_away(openstack, region):
    openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    region.passes(3)
    answer, whole = openstack._compute, dict(openstack.services)
    away = {'cmp-1': {'binary': 'nova-compute', 'host': 'cmp-1', 'status': 'UNKNOWN'}}

    def later(path, query):
        reply = answer(path, query)
        if path == '/servers/detail':
            openstack.services = away
        return reply

    openstack._compute = later
    region.passes()
    assert region.source._snapshots.silent == {'cmp-1': AWAY}
    openstack._compute, openstack.services = answer, whole
    region.passes()
    assert region.source._snapshots.silent == {}
    assert region.live(guest) == [('cmp-1', 'confirmed')]


def test_more_are_missing_than_are_asked_for_in_one_pass(openstack, region, monkeypatch):
    openstack.host('cmp-1')
    guests = [
        openstack.server(
            'cmp-1',
            flavor={
                'vcpus': 1,
                'ram': 1,
                'disk': 1,
                'original_name': 'tiny',
                'extra_specs': {},
            },
        )
        for _ in range(4)
    ]
    region.passes(3)
    monkeypatch.setattr(reading, 'REQUESTED_GUESTS_MAX', 2)
    for guest in guests:
        openstack.delete(guest)
    region.passes()
    assert region.source._snapshots.silent == {'cmp-1': UNSURE}
    region.passes(3)
    assert region.source._snapshots.silent == {}
    assert [region.live(guest) for guest in guests] == [[]] * 4


def test_servers_whose_host_may_not_be_seen_free_no_claim(openstack, region):
    openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    region.passes(3)
    for name in ('host', 'hypervisor_hostname'):
        del openstack.servers[0][f'OS-EXT-SRV-ATTR:{name}']
    for _ in range(4):
        with pytest.raises(exceptions.Misconfigured, match='may not see OS-EXT-SRV-ATTR:host'):
            region.passes()
    assert region.live(guest) == [('cmp-1', 'confirmed')]
