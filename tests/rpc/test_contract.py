# SPDX-License-Identifier: Apache-2.0
"""Messages, frames and queues are those of oslo.messaging, which peers of Gantt read and write.

Where one of these fails, oslo.messaging has changed: peers with the new release talk otherwise.
"""

import contextlib
import functools
import json
import socket
import struct
import time
import uuid

import amqp
import kombu
import oslo_messaging as om
import pytest
from amqp.method_framing import frame_writer
from amqp.serialization import dumps

from gantt import exceptions
from gantt.rpc.amqp import caller, envelope, publisher, queues, transport
from gantt.rpc.amqp.connection import ReadAheadTransport
from gantt.rpc.amqp.consumer import Consumer
from tests.rpc.bus import a_conf
from tests.rpc.facade import until


def full():
    """An error as a scheduler raises it."""
    return exceptions.NoValidHost(reason='full', decision_id='d')


class Endpoint:
    """A method of a stock server."""

    def echo(self, context, **args):
        return {'context': context, 'args': args}

    def refuse(self, context):
        raise full()

    def fill(self, context, size):
        return 'x' * size


class Stock:
    """A server as oslo.messaging has it, within this process or at a broker."""

    def __init__(self, url=transport.IN_PROCESS_URL):
        self.url = url
        self.topic = f'contract-{uuid.uuid4().hex}'
        self._carrier = om.get_rpc_transport(a_conf(url), url=url)
        target = om.Target(exchange=self.topic, topic=self.topic, server='s')
        self._server = om.get_rpc_server(self._carrier, target, [Endpoint()])
        self._server.start()
        self.ours = transport.own_transport(a_conf(url))

    def call(self, method, server='', **args):
        pending = self.ours.caller.begin(
            self.topic,
            f'{self.topic}.{server}'.rstrip('.'),
            method,
            args,
            version='1.0',
            context={'request_id': 'req-1'},
            seconds=10,
        )
        return pending.result()

    def close(self):
        self.ours.cleanup()
        self._server.stop()
        self._server.wait()
        self._carrier.cleanup()


@pytest.fixture
def stock():
    services = Stock()
    yield services
    services.close()


# -- messages -----------------------------------------------------------------------
@pytest.mark.parametrize('server', ['', 's'])
def test_a_stock_server_reads_our_calls(stock, server):
    answer = stock.call('echo', server, x='y' * 1000)
    assert answer['args'] == {'x': 'y' * 1000}
    assert answer['context']['request_id'] == 'req-1'


def test_an_error_of_a_stock_server_is_rebuilt(stock):
    with pytest.raises(exceptions.NoValidHost) as caught:
        stock.call('refuse')
    assert type(caught.value) is exceptions.NoValidHost
    assert (caught.value.message, caught.value.kwargs) == (full().message, full().kwargs)


def test_an_error_that_is_not_ours_is_told_by_its_class_and_text(stock):
    with pytest.raises(exceptions.Unavailable, match=r'UnsupportedVersion|NoSuchMethod'):
        stock.call('no_such_method')


def test_a_call_without_an_answer_ends_in_time(stock):
    with pytest.raises(caller.NoReply, match='no answer to nothing within 0.2 s'):
        stock.ours.caller.begin(
            stock.topic, 'nobody', 'nothing', {}, version='1.0', context={}, seconds=0.2
        ).result()


def test_an_answer_that_is_too_large_is_refused_with_its_size_and_the_bound(stock, monkeypatch):
    monkeypatch.setattr(caller, 'ANSWER_BYTES_MAX', 100_000)
    assert stock.call('fill', size=90_000) == 'x' * 90_000
    with pytest.raises(
        exceptions.PayloadTooLarge, match=r'^the answer to fill has 1\d{5} bytes'
    ) as e:
        stock.call('fill', size=100_000)
    assert e.value.kwargs['limit'] == 100_000
    assert e.value.kwargs['size'] > 100_000
    assert 'at most 100000 are read' in str(e.value)
    assert stock.call('fill', size=1) == 'x'


@pytest.mark.parametrize('method', ['echo', 'refuse'])
def test_our_reply_is_what_a_stock_server_sends(stock, method):
    with kombu.Connection('memory://') as connection:
        channel = connection.channel()
        reply_q, theirs = f'reply_{uuid.uuid4().hex}', []
        channel.queue_declare(reply_q)
        channel.basic_consume(reply_q, True, theirs.append, 'x')
        message = {'method': method, 'args': {}, 'version': '1.0'}
        around = {'_msg_id': 'm', '_reply_q': reply_q, '_timeout': None}
        stock.ours.caller.send(stock.topic, stock.topic, message | around)
        while not theirs:
            connection.drain_events(timeout=10)
        channel.close()
    result = {'context': {}, 'args': {}} if method == 'echo' else None
    theirs = json.loads(theirs[0].body)
    ours = json.loads(envelope.reply_body('m', result, None if result else full()))
    assert theirs.keys() == ours.keys()
    assert theirs['oslo.version'] == ours['oslo.version']
    theirs, ours = (json.loads(reply['oslo.message']) for reply in (theirs, ours))
    assert theirs.keys() == ours.keys()
    assert [theirs[name] for name in ('_msg_id', 'ending')] == ['m', True]
    assert [ours[name] for name in ('_msg_id', 'ending')] == ['m', True]
    if result is None:
        theirs, ours = (json.loads(reply['failure']) for reply in (theirs, ours))
        del theirs['tb'], ours['tb']
        assert theirs == ours
    else:
        assert theirs['failure'] is ours['failure'] is None
        assert theirs['result'].keys() == ours['result'].keys()


# -- queues -------------------------------------------------------------------------
class Heard:
    """Keeps arguments of messages."""

    bytes_max = 1 << 20
    repeatable = frozenset()
    undecoded = None

    def __init__(self):
        self.args = []

    def handle(self, message):
        self.args.append(message.args)


STREAM = '?rabbit_stream_fanout=true&rabbit_transient_quorum_queue=true&rabbit_qos_prefetch_count=9'


@pytest.mark.rabbit
@pytest.mark.parametrize(
    'options',
    [
        '',
        '?amqp_durable_queues=true',
        '?amqp_auto_delete=true',
        '?rabbit_quorum_queue=true&rabbit_quorum_delivery_limit=9',
        '?rabbit_quorum_queue=true&rabbit_transient_quorum_queue=true',
        '?rabbit_transient_queues_ttl=77',
        '?enable_cancel_on_failover=true',
        STREAM,
        STREAM + '&rabbit_transient_queues_ttl=0&enable_cancel_on_failover=true',
    ],
)
def test_queues_are_declared_and_consumed_as_a_stock_server_does(rabbit_url, options, monkeypatch):
    """RabbitMQ refuses to declare a queue or an exchange again with anything else."""
    consumed, consume = [], amqp.Channel.basic_consume

    def noted(channel, queue='', *args, arguments=None, **kwargs):
        consumed.append((queue, arguments or {}))
        return consume(channel, queue, *args, arguments=arguments, **kwargs)

    monkeypatch.setattr(amqp.Channel, 'basic_consume', noted)
    theirs = Stock(rabbit_url + options)
    until(lambda: len(consumed) == 3)
    of_theirs = sorted(consumed)
    consumed.clear()
    target = om.Target(exchange=theirs.topic, topic=theirs.topic, server='s')
    ours = Consumer(theirs.ours, target, Heard())
    ours.reader.start()
    ours.reader.stop()
    of_ours = sorted(consumed)
    ours.close()
    theirs.close()
    is_stream = options.startswith(STREAM)
    assert len(of_ours) == 3
    for (our_queue, our_arguments), (queue, arguments) in zip(of_ours, of_theirs, strict=True):
        assert our_arguments == arguments
        assert our_queue == queue or ('_fanout_' in queue and not is_stream)
    if is_stream:
        with theirs.ours.opened() as connection:
            connection.channel().queue_delete(f'{theirs.topic}_fanout')


def is_connected_anew(reader, channel):
    return reader.channel is not channel and reader.connection.is_open


@pytest.fixture
def stock_of_stream(rabbit_url):
    services = Stock(rabbit_url + STREAM)
    yield services
    services.close()
    with services.ours.opened() as connection:
        connection.channel().queue_delete(f'{services.topic}_fanout')


@pytest.mark.rabbit
def test_a_stream_of_broadcasts_is_read_by_all_and_further_after_a_reconnection(
    rabbit_url, stock_of_stream
):
    stock = stock_of_stream
    with contextlib.ExitStack() as closing:
        carrier = om.get_rpc_transport(a_conf(rabbit_url), url=rabbit_url + STREAM)
        closing.callback(carrier.cleanup)
        client = om.get_rpc_client(
            carrier, om.Target(exchange=stock.topic, topic=stock.topic, fanout=True)
        )
        heard, consumers = [Heard(), Heard()], []
        for number, handler in enumerate(heard):
            target = om.Target(exchange=stock.topic, topic=stock.topic, server=f'ours-{number}')
            consumers.append(Consumer(stock.ours, target, handler))
            closing.callback(consumers[-1].close)
            consumers[-1].reader.start()

        def tell(number):
            client.cast({}, 'echo', number=number)

        def has_heard(*numbers):
            return all([args['number'] for args in h.args] == [*numbers] for h in heard)

        tell(1)
        until(lambda: has_heard(1))
        consumers[0].reader.connection.break_connection()
        tell(2)
        until(lambda: has_heard(1, 2))
        readers = [consumer.reader for consumer in consumers]
        channels = [reader.channel for reader in readers]
        with stock.ours.opened() as connection:
            connection.channel().queue_delete(f'{stock.topic}_fanout')
        for reader, channel in zip(readers, channels, strict=True):
            until(functools.partial(is_connected_anew, reader, channel), 60)

        def is_heard_by_all(number):
            # What is sent while the stream is made anew is lost, as with the library.
            tell(number)
            time.sleep(0.3)
            return all(h.args[-1]['number'] == number for h in heard)

        until(lambda: is_heard_by_all(3), 60)
        # It is not deleted with one of those that read it.
        consumers[0].close()
        tell(4)
        until(lambda: heard[1].args[-1]['number'] == 4)


@pytest.mark.rabbit
def test_nothing_is_left_behind_where_the_broker_refuses(rabbit_url):
    """py-amqp opens a channel anew that the broker closes: none may stay, and no exchange."""
    name = f'nowhere-{uuid.uuid4().hex}'
    carrier = transport.own_transport(a_conf(rabbit_url))
    with carrier.opened() as connection:
        before = len(connection.raw.channels)
        for _ in range(3):
            assert not queues.has_exchange(connection, name, 'topic')
            with pytest.raises(amqp.NotFound, match='no queue'):
                queues.send_to_self(connection, name, b'{}')
            assert not queues.has_exchange(connection, name, 'topic')
        assert len(connection.raw.channels) == before
    carrier.cleanup()


def test_a_queue_for_answers_is_named_after_its_user():
    carrier = transport.own_transport(a_conf('rabbit://nova:guest@127.0.0.1:1/'))
    queue = queues.reply_queue(carrier.user, carrier.rabbit)
    assert queue.name.startswith('reply_nova:')
    assert queue.arguments == {'x-expires': 1_800_000}
    assert not (queue.durable or queue.auto_delete or queue.exchange)


# -- transports ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ('url', 'problem'),
    [
        ('carrier-pigeon://roof/', 'carrier-pigeon'),
        ('rabbit', 'No scheme'),
        ('rabbit://guest:secret@localhost/?no_such_option=1', 'no_such_option'),
        ('rabbit://guest:secret@localhost:port/', 'port'),
    ],
)
def test_a_url_that_cannot_be_used_is_named_without_its_password(url, problem):
    with pytest.raises(exceptions.Misconfigured) as caught:
        transport.own_transport(a_conf(), url)
    assert caught.value.kwargs['option'] == 'transport_url'
    assert problem in str(caught.value)
    assert 'secret' not in str(caught.value)


@pytest.mark.parametrize(
    ('url', 'shown'),
    [
        ('rabbit://u:p@h:5672/v', 'rabbit://u:***@h:5672/v'),
        ('rabbit://u:p@a:1,u:p@b:2/v?ssl=1', 'rabbit://u:***@a:1,u:***@b:2/v'),
        ('rabbit://h/', 'rabbit://h/'),
        ('kombu+memory:///', 'kombu+memory:///'),
    ],
)
def test_a_url_is_shown_without_passwords(url, shown):
    assert transport.masked(url) == shown


def test_novas_queue_settings_are_for_its_transport_only():
    conf = a_conf(
        'rabbit://guest:guest@localhost/', nova_rabbit_options={'rabbit_quorum_queue': 'true'}
    )
    own, nova = transport.own_transport(conf), transport.nova_transport(conf)
    assert own.rabbit.rabbit_quorum_queue is False
    assert nova.rabbit.rabbit_quorum_queue is True


@pytest.mark.parametrize('size', [0, 1, 100, 4087, 4088, 4089, 20_000])
def test_our_frames_are_those_that_the_library_would_have_written(size):
    written = []

    class Wire:
        frame_max = 4096
        bytes_sent = 0

        @staticmethod
        def write(piece):
            written.append(bytes(piece))  # its buffer is used again

    body = b'x' * size
    properties = {
        'content_type': 'application/json',
        'content_encoding': 'utf-8',
        'delivery_mode': 2,
        'priority': 0,
        'message_id': '123',
    }
    arguments = dumps('Bssbb', (0, '', 'reply_é', True, False))
    message = amqp.Message(body, **properties)
    frame_writer(Wire, Wire)(1, 7, amqp.spec.Basic.Publish, arguments, message)
    theirs = b''.join(written)
    ours = b''.join(publisher.frames(7, 'reply_é', body, '123', Wire.frame_max))
    assert ours == theirs


def test_a_frame_larger_than_agreed_is_refused_before_it_is_read():
    """A broker that lies, or a stream out of step, is not read into memory for ever."""
    own, other = socket.socketpair()
    transport = ReadAheadTransport()
    transport.sock, transport.connected = own, True
    with own, other:
        own.settimeout(5)
        other.sendall(struct.pack('>BHI', 3, 1, 1 << 31) + b'x')
        with pytest.raises(amqp.UnexpectedFrame, match='2147483648 bytes while expecting 131072'):
            transport.read_frame()
