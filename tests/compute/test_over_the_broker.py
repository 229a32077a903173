# SPDX-License-Identifier: Apache-2.0
"""A farm over a broker, from the conductor's side: builds arrive on every host's own topic."""

import contextlib
import time
import uuid

import kombu
import pytest

from devel.doubles import MemoryRecorder
from gantt import client, exceptions, plugin_loader
from gantt.client.hosts import topic_of
from gantt.compute.agent.host_agent import HostAgentSettings
from gantt.compute.farm import Farm, FarmPlan
from gantt.compute.listen import BuildListener, interface_of
from gantt.compute.over_rpc import RpcSchedulerPort
from gantt.core.messages.build import Build, Delete
from gantt.rpc import wire
from gantt.rpc.amqp import transport
from gantt.scheduler import settings as scheduler_settings
from gantt.scheduler.service import Scheduler
from tests.compute.hosts_in_memory import HostsInMemory, a_delete
from tests.compute.test_farm import QUICK, until
from tests.rpc.bus import Bus


class Site:
    """A scheduler, a farm with its listener, and a conductor, on one broker."""

    def __init__(self, url: str, memory_hosts, hosts: int = 5) -> None:
        self.town = memory_hosts
        self.scheduler = Scheduler(
            memory_hosts.store,
            plugin_loader.load_pipeline(),
            MemoryRecorder(),
            scheduler_settings.SchedulerSettings(worker='worker-1'),
        )
        self.scheduler.start()
        self.bus = Bus(url, facade=self.scheduler)
        carrier = self.bus.carrier()
        self.name = f'farm-{uuid.uuid4().hex[:6]}'
        self.farm = Farm(
            FarmPlan(count=hosts, seed=7, threads=4),
            RpcSchedulerPort(carrier, 10.0),
            HostAgentSettings(report_seconds=60, change_seconds=0.05),
        )
        self.listener = BuildListener(
            carrier, self.name, interface_of(self.farm, self.farm.command), list(self.farm.hosts)
        )
        self.listener.start()
        self.farm.start()
        self.conductor = client.ComputeClient(self.bus.carrier(), timeout=10.0)
        until(lambda: self.farm.status()['reporting'] == hosts)

    def order(self, **order):
        caller = self.bus.raw(topic_of(self.name), exchange=wire.EXCHANGE)
        return caller.call({}, 'farm_command', order=order)

    def close(self) -> None:
        assert self.listener.stop(10)
        assert self.farm.stop(10)
        self.bus.stop()
        self.scheduler.stop(5)
        self.bus.close()


RABBIT = pytest.param('rabbit', marks=pytest.mark.rabbit)


@pytest.fixture(scope='module', params=['memory', RABBIT])
def url(request):
    if request.param == 'memory':
        return transport.IN_PROCESS_URL
    return request.getfixturevalue('rabbit_url')


@pytest.fixture(scope='module')
def site(url):
    """One for all tests here: it takes seconds to come and to go."""
    new_site = Site(url, HostsInMemory())
    yield new_site
    new_site.close()


def test_a_build_on_the_topic_of_a_host_is_confirmed_and_runs(site):
    memory_hosts = site.town
    build = memory_hosts.claim('fake-00003', **QUICK)
    answer = site.conductor.build(topic_of('fake-00003'), build, wait=True)
    assert answer['outcome'] == 'running'
    assert memory_hosts.state(build) == 'confirmed'
    guests = site.farm.hosts['fake-00003'].driver.guests()
    assert build.consumer in [guest.consumer for guest in guests]
    answer = site.conductor.delete(topic_of('fake-00003'), a_delete(build), wait=True)
    assert answer['outcome'] == 'deleted'
    assert memory_hosts.state(build) == 'released'


def test_a_build_that_is_cast_to_the_topic_of_the_farm_runs(site):
    memory_hosts = site.town
    started = site.farm.status()['started']
    builds = [memory_hosts.claim(f'fake-0000{i}', **QUICK) for i in range(5)]
    for build in builds:
        site.conductor.build(topic_of(site.name), build)
    until(lambda: all(memory_hosts.state(b) == 'confirmed' for b in builds))
    until(lambda: site.farm.status()['started'] == started + 5)


def test_a_wrong_build_is_refused_naming_the_field(site):
    build = Build(
        claim_id=str(uuid.uuid4()), consumer=str(uuid.uuid4()), host='elsewhere', resources={}
    )
    with pytest.raises(
        exceptions.InvalidMessage, match="host: expected a host of this farm; got 'elsewhere'"
    ):
        site.conductor.build(topic_of(site.name), build, wait=True)
    raw = site.bus.raw(topic_of(site.name), exchange=wire.EXCHANGE)
    with pytest.raises(exceptions.InvalidMessage, match=r'build.consumre: unknown field; did you'):
        raw.call({}, 'build', build={'consumre': 'x'})
    with pytest.raises(exceptions.InvalidMessage, match=r'order.do: Invalid enum value'):
        raw.call({}, 'farm_command', order={'do': 'explode'})


def test_the_farm_is_commanded_over_the_broker(site):
    memory_hosts = site.town
    answer = site.order(do='die', hosts={'names': ['fake-00002']})
    assert answer['hosts'] == ['fake-00002']
    assert answer['status']['alive'] == 4
    build = memory_hosts.claim('fake-00002', **QUICK)
    patience = client.ComputeClient(site.bus.carrier(), timeout=1.0)
    with pytest.raises(exceptions.Unavailable, match='no answer'):
        patience.build(topic_of('fake-00002'), build, wait=True)
    site.order(do='revive')
    until(lambda: site.farm.status()['reporting'] == 5)
    assert site.conductor.build(topic_of('fake-00002'), build, wait=True)['outcome'] == 'running'


def test_an_unknown_guest_is_not_deleted(site):
    delete = Delete(consumer=str(uuid.uuid4()), host='fake-00001')
    answer = site.conductor.delete(topic_of('fake-00001'), delete, wait=True)
    assert answer['outcome'] == 'unknown'


@pytest.mark.parametrize('url', [RABBIT], indirect=True, scope='module')
def test_the_topics_of_hosts_are_bound_again_when_the_broker_lost_the_queue(site, url):
    memory_hosts = site.town
    with kombu.Connection(url.replace('rabbit://', 'amqp://')) as connection:
        connection.default_channel.queue_delete(topic_of(site.name))
    started = site.farm.hosts['fake-00003'].driver.started
    build = memory_hosts.claim('fake-00003', **QUICK)
    end = time.monotonic() + 30
    while memory_hosts.state(build) != 'confirmed':
        assert time.monotonic() < end, 'the topic of the host was not bound again'
        with contextlib.suppress(exceptions.Unavailable):  # nobody listens there yet
            site.conductor.build(topic_of('fake-00003'), build)
        time.sleep(0.3)
    until(lambda: site.farm.hosts['fake-00003'].driver.started == started + 1)
