# SPDX-License-Identifier: Apache-2.0
"""Connections that are open and carry nothing: noticed by a process that calls itself."""

import threading
import time
import uuid

import pytest

from gantt import client, exceptions
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.records.decision import Outcome
from gantt.rpc.amqp import driver, self_ping
from tests.nemesis import amqp
from tests.rpc.bus import Bus, a_conf
from tests.rpc.facade import until

pytestmark = [
    pytest.mark.rabbit,
    # py-amqp leaves the sockets of failed connections to the garbage collector.
    pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning'),
    pytest.mark.filterwarnings(
        'ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning'
    ),
]

QUICK = {'self_ping_seconds': 0.2, 'self_ping_wait_seconds': 0.5, 'self_ping_failures': 2}


@pytest.fixture
def way(rabbit_url):
    proxy, deliveries, _ = amqp.proxy(rabbit_url)
    yield proxy, deliveries
    proxy.close()


@pytest.fixture
def conductor(rabbit_url):
    carrier = client.get_transport(a_conf(rabbit_url))
    yield client.SchedulerClient(carrier, attempt_seconds=2)
    carrier.cleanup()


def a_request(**fields):
    return SelectDestinations(
        request_id=str(uuid.uuid4()),
        spec=RequestSpec(resources={'VCPU': 1}),
        consumers=[str(uuid.uuid4())],
        **fields,
    )


def counted(bus, name, fate):
    return bus.counts.values.get((name, fate), 0)


def answered(bus):
    return counted(bus, 'gantt_rpc_self_pings_total', 'answered')


def failed(bus):
    return counted(bus, 'gantt_rpc_self_pings_total', 'failed')


def rebuilt(bus):
    return counted(bus, 'gantt_rpc_rebuilds_total', 'done')


def two_more_answers(bus):
    before = answered(bus)
    until(lambda: answered(bus) >= before + 2, 30)


def test_every_topic_answers_the_ping_of_the_library(rabbit_url):
    bus = Bus(rabbit_url)
    for topic in bus.service._topics:
        self_ping.call(topic, 5)
        # A probe of another version, as deployers have them.
        raw = bus.raw(topic.name, version='7.9', exchange=topic.target.exchange)
        assert raw.call({}, 'oslo_rpc_server_ping') == 'pong'
    bus.close()


def test_a_process_that_is_well_keeps_its_connections(rabbit_url):
    bus = Bus(rabbit_url, **QUICK)
    before = [driver.attachment_of(t._server) for t in bus.service._topics]
    two_more_answers(bus)
    assert [driver.attachment_of(t._server) for t in bus.service._topics] == before
    assert failed(bus) == 0
    assert bus.service.problem == ''
    bus.close()


@pytest.mark.parametrize('channel', ['own', 'stock'])
def test_stuck_connections_are_made_anew_and_calls_answered_again(
    way, rabbit_url, conductor, channel
):
    """Also the answer to what was accepted before, over the new ones."""
    proxy, deliveries = way
    bus = Bus(proxy.url(rabbit_url), reply_channel=channel, **QUICK)
    two_more_answers(bus)
    held, answers = a_request(budget_ms=60_000), []
    bus.facade.hold.clear()
    ask = threading.Thread(target=lambda: answers.append(conductor.select_destinations(held)))
    ask.start()
    until(lambda: bus.service.health()['calls_pending'] >= 1)
    old = [driver.attachment_of(t._server) for t in bus.service._running]
    deliveries.deafen()
    until(lambda: bus.service.problem)
    assert 'gantt-' in bus.service.problem
    assert all(bus.service.attached().values()), 'nothing else shows it'
    until(lambda: rebuilt(bus) == 1, 30)
    bus.facade.hold.set()
    two_more_answers(bus)
    assert bus.service.problem == ''
    assert conductor.select_destinations(a_request()).outcome is Outcome.PLACED
    ask.join(30)
    assert [a.outcome for a in answers] == [Outcome.PLACED]
    assert rebuilt(bus) == 1
    assert bus.service.health()['rebuilds'] == 1
    assert all(bus.service.attached().values())
    # The old ones are let go: no consumer of theirs takes a message away.
    until(lambda: not any(c.is_open for c in old), 30)
    until(lambda: 'abandon' not in str(threading.enumerate()), 30)
    bus.close()


def test_a_broker_that_is_away_is_left_to_the_library(way, rabbit_url, conductor):
    proxy, _ = way
    # More than fail while the library, once the broker is back, has not noticed yet.
    bus = Bus(proxy.url(rabbit_url), **{**QUICK, 'self_ping_failures': 12})
    two_more_answers(bus)
    proxy.refuse()
    until(lambda: failed(bus) >= 12, 60)
    assert bus.service.problem
    proxy.mend()
    two_more_answers(bus)
    assert counted(bus, 'gantt_rpc_rebuilds_total', 'done') == 0
    assert counted(bus, 'gantt_rpc_rebuilds_total', 'failed') == 0
    assert conductor.select_destinations(a_request()).outcome is Outcome.PLACED
    bus.close()


def test_what_does_not_help_is_not_repeated_at_once(way, rabbit_url):
    """Connections that go deaf again and again: one rebuild, then a pause."""
    proxy, deliveries = way
    bus = Bus(proxy.url(rabbit_url), **QUICK)
    two_more_answers(bus)
    deliveries.deaf = 10**9
    until(lambda: rebuilt(bus) == 1, 30)
    before = failed(bus)
    until(lambda: failed(bus) >= before + 4, 30)
    assert rebuilt(bus) == 1
    bus.service._self_ping._not_before = time.monotonic()
    deliveries.deafen()
    until(lambda: rebuilt(bus) == 2, 30)
    assert bus.service._self_ping._not_before - time.monotonic() > self_ping.PAUSE_SECONDS
    two_more_answers(bus)
    bus.close()


def test_where_nothing_new_can_be_declared_the_old_connections_stay(
    way, rabbit_url, conductor, monkeypatch
):
    proxy, deliveries = way
    bus = Bus(proxy.url(rabbit_url), **QUICK)
    two_more_answers(bus)
    old = [driver.attachment_of(t._server) for t in bus.service._running]
    start = bus.service._started
    made = []

    def all_but_the_last(topic):
        start(topic)
        made.append(topic)
        if len(made) == len(old):
            raise exceptions.Misconfigured(option='-', problem='refused', fix='-')

    monkeypatch.setattr(bus.service, '_started', all_but_the_last)
    deliveries.deafen()
    until(lambda: counted(bus, 'gantt_rpc_rebuilds_total', 'failed') == 1, 30)
    assert [driver.attachment_of(t._server) for t in bus.service._running] == old
    until(lambda: not any(t.is_attached for t in made), 30)
    # The next one works.
    monkeypatch.setattr(bus.service, '_started', start)
    bus.service._self_ping._not_before = time.monotonic()
    until(lambda: rebuilt(bus) == 1, 30)
    two_more_answers(bus)
    assert conductor.select_destinations(a_request()).outcome is Outcome.PLACED
    bus.close()


def test_a_stop_while_stuck_ends_soon(way, rabbit_url):
    proxy, deliveries = way
    bus = Bus(proxy.url(rabbit_url), **QUICK)
    two_more_answers(bus)
    deliveries.deafen()
    until(lambda: bus.service.problem)
    began = time.monotonic()
    bus.close()
    assert time.monotonic() - began < 30
