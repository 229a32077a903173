# SPDX-License-Identifier: Apache-2.0
"""Builds that came to nothing, or elsewhere: their claims end where Nova says so, not by lease."""

import pytest

from tests.world import a_request, hosts_of


@pytest.fixture
def guest(openstack, region):
    """One that was sent to cmp-1; Nova is building it."""
    for name in ('cmp-1', 'cmp-2'):
        openstack.host(name)
    region.passes()
    guest_id = openstack.server(None, **{'OS-EXT-STS:vm_state': 'building'})
    request = a_request(consumers=[guest_id], ignore_hosts=['cmp-2'], lease_seconds=900)
    assert hosts_of(region.world.select(request)) == ['cmp-1']
    return guest_id


def test_a_build_that_takes_long_keeps_its_claim(openstack, region, guest):
    region.passes(8)
    assert region.live(guest) == [('cmp-1', 'reserved')]


def test_a_build_that_failed_on_its_last_host_frees_it(openstack, region, guest):
    openstack.now(guest, vm_state='error')
    region.passes(8)
    assert region.live(guest) == []
    region.audit()


def test_one_that_was_deleted_is_nowhere(openstack, region, guest):
    openstack.delete(guest)
    region.passes(8)
    assert region.live(guest) == []
    region.audit()


def test_one_that_went_to_an_alternate_frees_its_first_host(openstack, region, guest):
    openstack.now(guest, host='cmp-2', vm_state='active')
    region.passes(8)
    assert region.live(guest) == [('cmp-2', 'confirmed')]
    region.audit()


def test_one_that_comes_out_of_a_shelf_keeps_its_claim(openstack, region, guest):
    openstack.now(guest, vm_state='shelved_offloaded', task_state='spawning')
    region.passes(8)
    assert region.live(guest) == [('cmp-1', 'reserved')]
