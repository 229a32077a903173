# SPDX-License-Identifier: Apache-2.0
"""The next try of a call reaches a live scheduler, whatever its client knew before."""

import json

import kombu
import pytest

from gantt import client, exceptions
from gantt.core.records.decision import Outcome
from gantt.rpc import wire
from tests.rabbit.test_self_ping import a_request
from tests.rpc.bus import a_conf

pytestmark = pytest.mark.rabbit


class Stopped:
    """A process that takes calls off the schedulers' queue and answers none."""

    def __init__(self, url: str) -> None:
        self._connection = kombu.Connection(url.replace('rabbit://', 'amqp://', 1))
        self._methods: list[str] = []
        queue = kombu.Queue(wire.SCHEDULER_TOPIC, no_declare=True)
        consumer = kombu.Consumer(self._connection.channel(), [queue], on_message=self._keep)
        consumer.consume()

    def _keep(self, message: kombu.Message) -> None:
        self._methods.append(json.loads(json.loads(message.body)['oslo.message'])['method'])

    def methods(self) -> list[str]:
        """Return the methods of the calls that were delivered to it."""
        try:
            while True:
                self._connection.drain_events(timeout=0.2)
        except TimeoutError:
            return self._methods

    def close(self) -> None:
        self._connection.release()


@pytest.fixture
def conductors(rabbit_url):
    """``conductors()``: a client that has had no answer yet."""
    carriers = []

    def make():
        carriers.append(client.get_transport(a_conf(rabbit_url)))
        return client.SchedulerClient(carriers[-1])

    yield make
    for carrier in carriers:
        carrier.cleanup()


@pytest.fixture
def stopped(bus, rabbit_url):
    """Two of three that listen."""
    processes = [Stopped(rabbit_url) for _ in range(2)]
    yield processes
    for process in processes:
        process.close()


@pytest.mark.parametrize('known', [(), ('stopped',)])
def test_the_second_try_is_answered_where_no_live_scheduler_is_known(conductors, stopped, known):
    """The broker deals calls out in turn: after one to the third, two to those that are stopped."""
    other, conductor = conductors(), conductors()
    other.select_destinations(a_request(budget_ms=20_000))
    for name in known:
        conductor._caller._servers.note(name)
    request = a_request(budget_ms=20_000)
    assert conductor.select_destinations(request).outcome is Outcome.PLACED
    had_by_stopped = [method for process in stopped for method in process.methods()]
    assert had_by_stopped.count('select_destinations') == 1
    assert conductor._caller._servers.latest()[0] == 'scheduler-1'


def test_a_try_by_name_that_the_broker_refuses_goes_to_the_shared_queue(
    conductors, stopped, monkeypatch
):
    """As for hosts, whose users may write to no server's own queue."""
    other, conductor = conductors(), conductors()
    other.select_destinations(a_request(budget_ms=20_000))
    caller, refused_topics = conductor._caller._carrier.caller, []
    send = caller.send

    def send_to_shared(exchange, topic, *args):
        if topic != wire.SCHEDULER_TOPIC:
            refused_topics.append(topic)
            raise exceptions.BrokerUnavailable(url='rabbit://', problem='ACCESS_REFUSED')
        send(exchange, topic, *args)

    monkeypatch.setattr(caller, 'send', send_to_shared)
    answer = conductor.select_destinations(a_request(budget_ms=20_000))
    assert answer.outcome is Outcome.PLACED
    assert refused_topics == [f'{wire.SCHEDULER_TOPIC}.scheduler-1']
    had_by_stopped = [method for process in stopped for method in process.methods()]
    assert had_by_stopped.count('select_destinations') == 1
