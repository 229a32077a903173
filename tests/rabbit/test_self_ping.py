# SPDX-License-Identifier: Apache-2.0
"""Connections that are open and carry nothing: noticed by a process that calls itself."""

import threading
import time
import uuid

import pytest

from gantt import client
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.records.decision import Outcome
from gantt.rpc.amqp import self_ping
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


def counted(bus, name, *labels):
    return bus.counts.values.get((name, *labels), 0)


def answered(bus):
    return counted(bus, 'gantt_rpc_self_pings_total', 'answered')


def failed(bus):
    return counted(bus, 'gantt_rpc_self_pings_total', 'failed')


def rebuilt(bus):
    return counted(bus, 'gantt_rpc_self_ping_exits_total')


def two_more_answers(bus):
    before = answered(bus)
    until(lambda: answered(bus) >= before + 2, 30)


def test_every_topic_answers_the_ping_of_the_library(rabbit_url):
    bus = Bus(rabbit_url)
    for topic in bus.service._topics:
        self_ping.ping_topic(topic, 5)
        # A probe of another version, as deployers have them.
        raw = bus.raw(topic.name, version='7.9', exchange=topic.target.exchange)
        assert raw.call({}, 'oslo_rpc_server_ping') == 'pong'
    bus.close()


def test_a_process_that_is_well_keeps_its_connections(rabbit_url):
    bus = Bus(rabbit_url, **QUICK)
    before = [t.consumer.reader.channel for t in bus.service._topics]
    two_more_answers(bus)
    assert [t.consumer.reader.channel for t in bus.service._topics] == before
    assert failed(bus) == 0
    assert bus.service.problem == ''
    bus.close()


def test_a_process_with_stuck_connections_is_replaced_and_calls_answered_again(
    way, rabbit_url, conductor
):
    """Also the answer to what was accepted before, while the process ends."""
    proxy, deliveries = way
    bus = Bus(proxy.url(rabbit_url), **QUICK)
    two_more_answers(bus)
    held, answers = a_request(budget_ms=60_000), []
    bus.facade.hold.clear()
    ask = threading.Thread(target=lambda: answers.append(conductor.select_destinations(held)))
    ask.start()
    until(lambda: bus.service.health()['calls_pending'] >= 1)
    old = [t.consumer.reader.channel for t in bus.service._topics]
    deliveries.deafen()
    until(lambda: bus.service.problem)
    assert 'gantt-' in bus.service.problem
    assert all(bus.service.attached().values()), 'nothing else shows it'
    until(lambda: bus.stuck, 30)
    assert 'no answer to a call of itself' in bus.stuck[0]
    assert rebuilt(bus) == 1
    assert bus.service.health()['rebuilds'] == 1
    # What a process does then: it finishes and ends, and another one takes its place.
    bus.facade.hold.set()
    bus.stop(20)
    until(lambda: not any(c.is_open for c in old), 30)
    successor = Bus(proxy.url(rabbit_url), **QUICK)
    two_more_answers(successor)
    assert successor.service.problem == ''
    assert conductor.select_destinations(a_request()).outcome is Outcome.PLACED
    ask.join(30)
    assert [a.outcome for a in answers] == [Outcome.PLACED]
    assert all(successor.service.attached().values())
    successor.close()
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
    assert rebuilt(bus) == 0
    assert bus.stuck == []
    assert conductor.select_destinations(a_request()).outcome is Outcome.PLACED
    bus.close()


def test_who_does_not_end_is_told_once_and_goes_on_when_it_hears_again(way, rabbit_url):
    """A process that is somebody else's: its health check fails as long as it receives nothing."""
    proxy, deliveries = way
    bus = Bus(proxy.url(rabbit_url), **QUICK)
    two_more_answers(bus)
    deliveries.deafen()
    until(lambda: bus.stuck, 30)
    before = failed(bus)
    until(lambda: failed(bus) >= before + 4, 30)
    assert len(bus.stuck) == rebuilt(bus) == 1
    assert bus.service.problem
    proxy.cut()  # the library connects anew
    two_more_answers(bus)
    assert bus.service.problem == ''
    bus.close()


def test_who_never_heard_an_answer_does_not_end(way, rabbit_url):
    """Another one in its place would fare no better, and end as well."""
    proxy, deliveries = way
    deliveries.deaf = 10**9
    bus = Bus(proxy.url(rabbit_url), **QUICK)
    until(lambda: failed(bus) >= 6, 60)
    assert bus.service.problem
    assert bus.stuck == []
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
