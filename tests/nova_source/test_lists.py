# SPDX-License-Identifier: Apache-2.0
"""Lists of guests that are larger than a message may be."""

import copy

import pytest

from gantt.nova.client import NovaClient
from gantt.nova.source import source
from tests.nova_source.openstack import new_uuid
from tests.rpc.bus import Bus


def many(openstack, count):
    """A cluster with so many guests, all alike."""
    openstack.host('cluster', VCPU=100_000, MEMORY_MB=10**8, DISK_GB=10**6)
    openstack.page_most = 10_000
    openstack.server('cluster', tenant_id=new_uuid(), user_id=new_uuid())
    (server,) = openstack.servers
    openstack.servers += [copy.copy(server) | {'id': new_uuid()} for _ in range(count - 1)]


@pytest.fixture
def wire(region):
    """The scheduler as its clients reach it."""
    bus = Bus(facade=region.world.scheduler)
    region.source.nova = NovaClient(bus.carrier(), timeout=60.0)
    yield bus
    bus.close()


def test_a_list_that_is_too_long_is_told_in_shorter_words(openstack, region, wire):
    many(openstack, 3400)
    region.passes()
    picture = region.source._snapshots.hosts['cluster']
    assert (len(picture.guests), picture.omits_details) == (3400, True)
    assert region.row('cluster').used['VCPU'] == 6800
    (claim,) = region.claims(openstack.servers[0]['id'])
    assert (claim.project_id, claim.flavor) == (openstack.servers[0]['tenant_id'], 'm1.small')


def test_a_list_that_no_words_make_short_enough_is_named(openstack, region, caplog):
    openstack.host('cmp-1')
    many(openstack, 3)
    region.passes(3)
    before = region.row('cluster').used
    openstack.servers += [openstack.servers[0] | {'id': new_uuid()} for _ in range(5600)]
    region.passes(3)
    assert '[rpc] payload_bytes_max is 1048576' in region.source._snapshots.silent['cluster']
    assert len([message for message in caplog.messages if 'payload_bytes_max' in message]) == 1
    assert region.row('cluster').used == before
    assert set(region.source.host_agents) == {'cmp-1'}
    region.source.list_bytes = 4 << 20
    region.source.nova.sync_guests = lambda listed: _Heard
    region.passes()
    assert region.source._snapshots.hosts['cluster'].omits_details is False


class _Heard:
    confirmed = released = adopted = 0


def test_more_guests_than_a_list_can_have_are_named(openstack, region):
    many(openstack, 10_001)
    region.source.list_bytes = 64 << 20
    region.source.step()
    assert '10001 guests; expected 10000 at most' in region.source._snapshots.silent['cluster']
    assert source.GUESTS_MOST == 10_000
