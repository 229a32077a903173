# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of ``nova.scheduler.rpcapi`` heard by two scheduler processes: each counts once."""

import copy
import time
import uuid
from collections.abc import Iterator

import pytest

from gantt.nova.service.events import CLOCK_TOLERANCE_SECONDS
from tests.conductor.site import CELL, Cloud
from tests.rpc.bus import load

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql]


@pytest.fixture(scope='module')
def cloud(tmp_path_factory, rabbit_url: str, postgresql_url: str) -> Iterator[Cloud]:
    new_cloud = Cloud(tmp_path_factory.mktemp('two'), postgresql_url, rabbit_url, ('one', 'two'))
    yield new_cloud
    new_cloud.close()


class Guest:
    """An instance, and what its hosts say of it."""

    def __init__(self, cloud, conductor):
        self.cloud, self.conductor = cloud, conductor
        self.uuid = str(uuid.uuid4())

    def asked(self, capture='boot', **words):
        answer = self.conductor.select(capture, [self.uuid], **words)
        return answer['selections'][0][0]['service_host']

    def listed(self, host, is_there=True, times=1):
        for _ in range(times):
            uuids = [self.uuid] if is_there else []
            self.conductor.cast('sync_instance_info', host_name=host, instance_uuids=uuids)

    def updated(self, host):
        info = copy.deepcopy(load('update_instance_info').args['instance_info'])
        (host_info,) = info['nova_object.data']['objects']
        host_info['nova_object.data'] |= {'uuid': self.uuid, 'host': host, 'node': host}
        self.conductor.cast('update_instance_info', host_name=host, instance_info=info)

    def deleted(self, host):
        self.conductor.cast('delete_instance_info', host_name=host, instance_uuid=self.uuid)

    def is_at(self, *live):
        self.cloud.until(
            lambda: self.cloud.live(self.uuid) == sorted(live),
            f'{sorted(live)}, now {self.cloud.live(self.uuid)}',
        )

    def heard(self):
        """Until both processes have folded all that was said."""
        marker = Guest(self.cloud, self.conductor)
        host = marker.asked(force='compute-006')
        marker.updated(host)
        marker.is_at((host, 'confirmed'))
        return self.cloud.live(self.uuid)


@pytest.fixture
def guest(cloud, conductor):
    return Guest(cloud, conductor)


def test_lists_confirm_and_release(guest):
    host = guest.asked()
    guest.is_at((host, 'reserved'))
    guest.listed(host)
    assert guest.heard() == [(host, 'reserved')]
    guest.listed(host)
    guest.is_at((host, 'confirmed'))
    guest.listed(host, is_there=False, times=2)
    # Two processes have heard two lists: that is not four.
    assert guest.heard() == [(host, 'confirmed')]
    guest.listed(host, is_there=False)
    guest.is_at()


def test_an_update_confirms_and_a_delete_releases(guest):
    host = guest.asked()
    guest.updated(host)
    guest.is_at((host, 'confirmed'))
    guest.deleted(host)
    guest.is_at()


def test_a_resize_that_is_confirmed(guest):
    source = guest.asked(force='compute-001')
    guest.updated(source)
    guest.is_at((source, 'confirmed'))
    target = guest.asked('resize', ignore=[source], alternates=True, cell=CELL)
    guest.is_at((source, 'confirmed'), (target, 'reserved'))
    guest.updated(target)
    guest.is_at((source, 'confirmed'), (target, 'confirmed'))
    guest.deleted(source)
    guest.is_at((target, 'confirmed'))


def test_a_live_migration_after_another_keeps_the_claim_that_it_runs_under(guest):
    """No list has come since the first: to the commit its target looks given up."""
    first = guest.asked(force='compute-001')
    guest.updated(first)
    guest.is_at((first, 'confirmed'))
    second = guest.asked('live-migrate', ignore=[first])
    guest.is_at((first, 'confirmed'), (second, 'reserved'))
    # What was claimed in the last second is left alone: the request may be the same one twice.
    time.sleep(2 * CLOCK_TOLERANCE_SECONDS)
    third = guest.asked('live-migrate', ignore=[second])
    guest.is_at((second, 'confirmed'), (third, 'reserved'))


def test_a_guest_that_nobody_asked_for_is_adopted(guest):
    guest.updated('compute-002')
    guest.is_at(('compute-002', 'confirmed'))
    (claim,) = guest.cloud.claims(guest.uuid)
    assert claim.adopted
    assert claim.allocations == {claim.provider_id: {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}}


def test_aggregates_are_taken_over(cloud, conductor):
    (aggregate,) = copy.deepcopy(load('update_aggregates').args['aggregates'])
    data = aggregate['nova_object.data']
    data |= {'hosts': ['compute-001'], 'metadata': {'availability_zone': 'north', 'ssd': 'true'}}
    conductor.cast('update_aggregates', aggregates=[aggregate])
    aggregates = cloud.until(
        lambda: cloud.site.store.feed.load_everything().aggregates, 'the aggregate'
    )
    assert [(a.uuid, a.name, a.hosts, a.metadata) for a in aggregates] == [
        (data['uuid'], data['name'], ['compute-001'], data['metadata'])
    ]

    def zone():
        """Of the host as it is chosen; schedulers read of the aggregate within a second."""
        answer = conductor.select('boot', [str(uuid.uuid4())], ignore=['compute-002'])
        selections = [selection for hosts in answer.get('selections', ()) for selection in hosts]
        return {
            selection['service_host']: selection['availability_zone'] for selection in selections
        }.get('compute-001')

    cloud.until(lambda: zone() == 'north', 'its zone')
    conductor.cast('delete_aggregate', aggregate=aggregate)
    cloud.until(lambda: not cloud.site.store.feed.load_everything().aggregates, 'its end')
