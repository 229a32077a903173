# SPDX-License-Identifier: Apache-2.0
"""The broker is not there, comes late, or goes away in the middle."""

import socket
import threading
import time
import uuid

import kombu
import pytest

from gantt import client, exceptions
from gantt.client.calls import ServerCaller
from gantt.core.messages.report import HostReport
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.records.decision import Outcome
from gantt.rpc.wire import SCHEDULER_TOPIC
from tests.rabbit.wire import Proxy
from tests.rpc.bus import Bus, a_conf
from tests.rpc.facade import Facade, until

pytestmark = [pytest.mark.rabbit, pytest.mark.leaves_sockets]


@pytest.fixture
def proxy(rabbit_url):
    new_proxy = Proxy(rabbit_url)
    yield new_proxy
    new_proxy.close()


@pytest.fixture
def nowhere():
    """A URL where nobody listens."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = server.getsockname()[1]
    return f'rabbit://guest:hunter2@127.0.0.1:{port}/'


def a_request(**fields):
    return SelectDestinations(
        request_id=str(uuid.uuid4()),
        spec=RequestSpec(resources={'VCPU': 1}),
        consumers=[str(uuid.uuid4())],
        **fields,
    )


def test_a_start_without_broker_says_so_and_gives_up(nowhere, caplog):
    start = time.monotonic()
    facade = Facade()
    with pytest.raises(exceptions.BrokerUnavailable) as caught:
        Bus(nowhere, facade, start_wait_seconds=1)
    facade.stop()
    assert time.monotonic() - start >= 1
    assert '127.0.0.1' in str(caught.value)
    assert 'refused' in str(caught.value)
    assert str(caught.value).endswith(' (tried for 1 s); start it, or correct transport_url')
    assert 'hunter2' not in str(caught.value) + caplog.text
    assert 'does not answer; the start waits' in caplog.text


def test_a_start_without_the_broker_of_nova_names_its_option(rabbit_url, nowhere):
    facade = Facade()
    with pytest.raises(exceptions.BrokerUnavailable) as caught:
        Bus(rabbit_url, facade, start_wait_seconds=0, nova_transport_url=nowhere)
    facade.stop()
    assert nowhere.partition('@')[2] in str(caught.value)
    assert str(caught.value).endswith('; start it, or correct [rpc] nova_transport_url')


def test_a_wrong_password_is_told_as_such(rabbit_url):
    facade = Facade()
    with pytest.raises(exceptions.BrokerUnavailable, match='ACCESS_REFUSED'):
        Bus(rabbit_url.replace(':guest@', ':wrong@'), facade, start_wait_seconds=0)
    facade.stop()


def test_a_queue_that_was_declared_otherwise_is_named_with_the_way_out(rabbit_url):
    with kombu.Connection(rabbit_url.replace('rabbit://', 'amqp://', 1)) as connection:
        theirs = kombu.Queue('sched-elsewhere', durable=True, channel=connection.channel())
        theirs.declare()
        facade = Facade()
        with pytest.raises(exceptions.Misconfigured) as caught:
            Bus(rabbit_url, facade, nova_topic='sched-elsewhere')
        facade.stop()
        theirs.delete()
    assert 'topic sched-elsewhere' in str(caught.value)
    assert 'PRECONDITION_FAILED' in str(caught.value)
    assert 'nova_rabbit_options' in str(caught.value)


def test_the_queue_settings_of_nova_are_used_on_its_topic(rabbit_url):
    with kombu.Connection(rabbit_url.replace('rabbit://', 'amqp://', 1)) as connection:
        theirs = kombu.Queue('sched-durable', durable=True, channel=connection.channel())
        theirs.declare()
        bus = Bus(
            rabbit_url,
            nova_topic='sched-durable',
            nova_exchange='nova-durable',
            nova_rabbit_options={'amqp_durable_queues': 'true'},
        )
        bus.close()
        theirs.delete()


def test_a_broker_that_comes_late_is_waited_for(proxy):
    proxy.cut()
    threading.Timer(2.0, proxy.mend).start()
    bus = Bus(proxy.url, start_wait_seconds=30)
    assert bus.scheduler().select_destinations(a_request()).outcome is Outcome.PLACED
    bus.close()


@pytest.mark.parametrize(('asked', 'most'), [('', 3), ('?rabbit_interval_max=20', 20)])
def test_a_service_is_back_soon_after_its_broker_unless_told_otherwise(rabbit_url, asked, most):
    """The pauses of oslo.messaging grow to 30 s."""
    bus = Bus(rabbit_url + asked)
    assert bus.service._own_transport.rabbit.rabbit_interval_max == most
    pauses = bus.service._running[0].consumer.reader._retry_pauses()
    assert max(next(pauses) for _ in range(99)) == most
    bus.close()


def test_a_client_without_broker_is_told_in_time(nowhere):
    carrier = client.get_transport(a_conf(nowhere))
    start = time.monotonic()
    with pytest.raises(exceptions.BrokerUnavailable) as caught:
        client.SchedulerClient(carrier).select_destinations(a_request(budget_ms=1500))
    with pytest.raises(exceptions.BrokerUnavailable):
        client.StatsClient(carrier).update_resource_stats(
            HostReport(
                name='cmp-1', epoch=1, sequence=2, full=False, base=1, running=None, pending=None
            )
        )
    assert time.monotonic() - start < 60
    assert 'hunter2' not in str(caught.value)
    carrier.cleanup()


def test_a_client_keeps_no_connection_that_broke(proxy):
    bus = Bus(proxy.url)
    carrier = client.get_transport(a_conf(proxy.url))
    # A client that calls from several threads has several connections.
    scheduler = client.SchedulerClient(carrier)
    with carrier.sender(), carrier.sender():
        assert scheduler.select_destinations(a_request()).outcome is Outcome.PLACED
    assert len(carrier._idle) == 3
    proxy.cut()
    with pytest.raises(exceptions.BrokerUnavailable):
        scheduler.select_destinations(a_request(budget_ms=1000))
    assert carrier._idle == []
    proxy.mend()
    answer = scheduler.select_destinations(a_request(budget_ms=60_000))
    assert answer.outcome is Outcome.PLACED
    assert len(carrier._idle) == 1
    bus.close()
    carrier.cleanup()


def test_a_client_that_nobody_listens_to_is_told_in_time(rabbit_url):
    carrier = client.get_transport(a_conf(rabbit_url))
    with pytest.raises(exceptions.Unavailable, match='nobody listens'):
        client.ComputeClient(carrier)._send('gantt-compute.nobody', 'build', 'x', False)
    carrier.cleanup()


def a_cancellation():
    return {'request_id': str(uuid.uuid4())}


def test_a_call_that_the_broker_did_not_take_is_published_again(proxy, rabbit_url):
    bus = Bus(rabbit_url)
    carrier = client.get_transport(a_conf(proxy.url))
    scheduler, cancelled = ServerCaller(carrier, SCHEDULER_TOPIC), []
    bus.facade.cancel = lambda message: cancelled.append(message) or {}
    proxy.cut()
    threading.Timer(2.0, proxy.mend).start()
    assert scheduler.call('cancel_claims', 20.0, request=a_cancellation()) == {}
    assert len(cancelled) == 1
    bus.close()
    carrier.cleanup()


def test_a_server_whose_broker_is_away_is_called_once(bus):
    cancelled = []

    def cancel(message):
        cancelled.append(message)
        raise exceptions.BrokerUnavailable(url='rabbit://of-the-server', problem='refused')

    bus.facade.cancel = cancel
    carrier = bus.carrier()
    scheduler = ServerCaller(carrier, SCHEDULER_TOPIC)
    with pytest.raises(exceptions.BrokerUnavailable, match='of-the-server'):
        scheduler.call('cancel_claims', 20.0, request=a_cancellation())
    assert len(cancelled) == 1
    assert carrier._idle, 'the connections of the client are sound'


def test_a_request_survives_a_broker_that_goes_away_in_the_middle(proxy, rabbit_url):
    """The answer is ready while the broker is away; it arrives, or the repeat gets the same."""
    bus = Bus(proxy.url, reply_retry_seconds=30)
    carrier = client.get_transport(a_conf(rabbit_url))
    scheduler = client.SchedulerClient(carrier, attempt_seconds=4)
    bus.facade.hold.clear()
    answers = []
    request = a_request(budget_ms=60_000)
    ask = threading.Thread(target=lambda: answers.append(scheduler.select_destinations(request)))
    ask.start()
    until(lambda: bus.service.health()['calls_pending'] == 1)
    proxy.cut()
    bus.facade.hold.set()
    until(lambda: bus.facade.placed)
    time.sleep(1)
    proxy.mend()
    ask.join(60)
    assert answers
    assert answers[0].outcome is Outcome.PLACED
    assert len(bus.facade.claims) == 1
    bus.close()
    carrier.cleanup()


def test_the_scheduling_thread_is_not_held_by_a_broker_that_is_away(proxy):
    """Answers for an unreachable broker wait elsewhere; the next request is decided."""
    bus = Bus(proxy.url, reply_retry_seconds=40)
    raw = bus.raw('gantt-scheduler').prepare(timeout=60)
    bus.facade.hold.clear()
    callers = []
    for _ in range(3):
        body = {'request': _builtins(a_request(budget_ms=300_000))}
        callers.append(threading.Thread(target=_quietly, args=(raw, body), daemon=True))
        callers[-1].start()
    until(lambda: bus.service.health()['calls_pending'] == 3)
    proxy.cut()
    bus.facade.hold.set()
    # A thread that waited with the first answer would decide the second after 40 s.
    until(lambda: len(bus.facade.placed) == 3)
    proxy.mend()
    bus.close()


def test_answers_go_out_again_after_an_outage_in_which_none_was_kept(proxy, rabbit_url):
    bus = Bus(proxy.url, reply_retry_seconds=0)
    raw = bus.raw('gantt-scheduler').prepare(timeout=60)
    bus.facade.hold.clear()
    body = {'request': _builtins(a_request())}
    threading.Thread(target=_quietly, args=(raw, body), daemon=True).start()
    until(lambda: bus.service.health()['calls_pending'] == 1)
    proxy.cut()
    bus.facade.hold.set()
    lost = ('gantt_rpc_replies_lost_total', 'broker')
    until(lambda: bus.counts.values.get(lost, 0) == 1, 30)
    proxy.mend()
    carrier = client.get_transport(a_conf(rabbit_url))
    scheduler = client.SchedulerClient(carrier, attempt_seconds=4)
    answer = scheduler.select_destinations(a_request(budget_ms=40_000))
    assert answer.outcome is Outcome.PLACED
    bus.close()
    carrier.cleanup()


def _builtins(request):
    from gantt.core.messages import base

    return base.to_builtins(request)


def _quietly(raw, body):
    try:
        raw.call({}, 'select_destinations', **body)
    except Exception:
        return
