# SPDX-License-Identifier: Apache-2.0
"""The two examples of services without Nova, over the in-process broker."""

import uuid

import pytest

from devel.doubles import MemoryRecorder
from devel.examples import addresses, volumes
from devel.memory_store.stores import memory_stores
from gantt import client, exceptions, plugin_loader
from gantt.core.messages.resource_classes import Inventory
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from tests.rpc.bus import Bus
from tests.rpc.facade import until

POOLS = {'ceph-1': {'DISK_GB': 100}, 'ceph-2': {'DISK_GB': 50}, 'net-1': {'IPV4_ADDRESS': 10}}


class SkewedClock(SystemClock):
    """The database's clock may be set on."""

    ahead = 0.0

    def wall(self):
        return super().wall() + self.ahead


class Served:
    """A scheduler with pools and without a single host, and a client of it."""

    def __init__(self):
        self.clock = SkewedClock()
        self.store = memory_stores(self.clock)
        self.pools = {
            name: self.store.providers.create_provider(
                name, inventories={cls: Inventory(total=total) for cls, total in of.items()}
            )
            for name, of in POOLS.items()
        }
        self.running = Scheduler(
            self.store, plugin_loader.load_pipeline(), MemoryRecorder(), SchedulerSettings()
        )
        self.running.start()
        self.bus = Bus(facade=self.running)
        self.scheduler: client.SchedulerClient = self.bus.scheduler()
        until(lambda: len(self.running.cache.working.others) == len(POOLS))

    def used(self, pool, name):
        return self.store.providers.load_provider(self.pools[pool].uuid).used.get(name, 0)

    def later(self, seconds):
        """Time passes for leases."""
        self.clock.ahead += seconds
        self.running.claims.sweep()

    def close(self):
        self.bus.close()
        assert self.running.stop(5)


@pytest.fixture
def served():
    services = Served()
    yield services
    services.close()


# -- volumes ----------------------------------------------------------------------------
def test_volumes_are_made_where_there_is_room_and_deleted(served):
    service = volumes.VolumeService(served.scheduler)
    volume = service.create(60)
    assert (volume.pool, served.used('ceph-1', 'DISK_GB')) == ('ceph-1', 60)
    assert service.create(60, volume=volume.uuid) == volume  # once or more often
    assert service.create(45).pool == 'ceph-2'
    with pytest.raises(exceptions.NoValidHost, match='0/3 pools fit'):
        service.create(60)
    served.later(3600)  # no lease ends what is confirmed
    for _ in range(2):
        service.delete(volume.uuid)
    service.delete(str(uuid.uuid4()))
    assert served.used('ceph-1', 'DISK_GB') == 0
    assert service.create(60).pool == 'ceph-1'


def test_what_cannot_be_made_leaves_nothing(served):
    def broken(volume):
        raise OSError('the backend says no')

    with pytest.raises(OSError, match='the backend says no'):
        volumes.VolumeService(served.scheduler, broken).create(60)
    assert served.used('ceph-1', 'DISK_GB') == 0


def test_a_volume_that_took_too_long_is_destroyed_again(served):
    destroyed = []
    service = volumes.VolumeService(
        served.scheduler, lambda volume: served.later(100), destroyed.append
    )
    with pytest.raises(exceptions.Conflict, match='longer to make'):
        service.create(60)
    assert (len(destroyed), served.used('ceph-1', 'DISK_GB')) == (1, 0)


# -- addresses ----------------------------------------------------------------------------
def test_offers_are_renewed_kept_and_given_back(served):
    service = addresses.AddressService(served.scheduler)
    kept, renewed, forgotten = service.take(3), service.take(3), service.take(4)
    assert {offer.network for offer in (kept, renewed, forgotten)} == {'net-1'}
    assert kept.seconds == addresses.OFFER_SECONDS
    with pytest.raises(exceptions.NoValidHost):
        service.take(1)
    assert service.keep(kept.owner)
    served.later(20)
    assert service.renew(renewed.owner)
    served.later(20)
    assert served.used('net-1', 'IPV4_ADDRESS') == 6
    assert not service.renew(forgotten.owner)
    assert not service.keep(forgotten.owner)
    assert service.keep(renewed.owner)
    for _ in range(2):
        service.give(kept.owner)
    assert served.used('net-1', 'IPV4_ADDRESS') == 3
    assert not service.renew(str(uuid.uuid4()))
