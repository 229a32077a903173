# SPDX-License-Identifier: Apache-2.0
"""The private names of oslo.messaging that ``rpc.amqp`` rests on.

When one of these fails, the library has changed: adapt ``driver``, ``consumer`` and
``least_privilege``, nothing else.
"""

import inspect
import json
import uuid

import amqp
import kombu
import oslo_messaging as om
import pytest
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from oslo_messaging._drivers import amqpdriver, base, impl_rabbit, pool
from oslo_messaging.rpc.server import RPCServer

from gantt import exceptions
from gantt.rpc.amqp import driver, envelope, least_privilege, publisher, transport
from tests.rpc.bus import a_conf


def test_a_transport_listens_as_our_consumer_has_it():
    names = list(inspect.signature(om.transport.RPCTransport._listen).parameters)
    assert names == ['self', 'target', 'batch_size', 'batch_timeout']
    assert 'PollStyleListenerAdapter(listener' in inspect.getsource(
        amqpdriver.AMQPDriverBase.listen
    )
    assert 'self._poll_style_listener = poll' in inspect.getsource(base.PollStyleListenerAdapter)


@pytest.mark.parametrize(
    ('owner', 'name', 'parameters'),
    [
        (amqpdriver.AMQPDriverBase, '_get_connection', ['purpose', 'retry']),
        (amqpdriver.AMQPDriverBase, '_get_reply_q', []),
        (
            impl_rabbit.Connection,
            '_ensure_publishing',
            ['method', 'exchange', 'msg', 'routing_key', 'retry', 'transport_options'],
        ),
        (impl_rabbit.Connection, '_publish_and_raises_on_missing_exchange', []),
        (impl_rabbit.Connection, 'ensure_connection', []),
        (impl_rabbit.Consumer, '_callback', ['message']),
        (impl_rabbit.Consumer, '__init__', ['callback']),
        (impl_rabbit.Connection, 'consume', ['timeout']),
        (impl_rabbit.Connection, '_publish', ['exchange', 'msg', 'routing_key', 'timeout']),
        (impl_rabbit.Connection, 'declare_consumer', ['consumer']),
        (impl_rabbit.Consumer, 'declare', ['conn']),
        (amqpdriver.AMQPDriverBase, '_get_reply_queue_name', []),
        (pool.ConnectionPool, 'create', ['purpose', 'retry']),
        (amqpdriver.MessageOperationsHandler, 'do', ['task']),
        (amqpdriver.MessageOperationsHandler, 'process', []),
        (amqp.Channel, '_basic_publish', ['msg', 'exchange', 'routing_key', 'mandatory']),
        (amqp.Channel, '_on_basic_ack', ['delivery_tag', 'multiple']),
        (amqp.Channel, '_on_basic_nack', ['delivery_tag', 'multiple']),
        (amqp.Channel, '_on_basic_return', ['exchange', 'routing_key', 'message']),
    ],
)
def test_a_private_method_is_as_we_call_it(owner, name, parameters):
    found = inspect.signature(getattr(owner, name)).parameters
    assert all(p in found for p in parameters)


def test_a_consumer_is_called_by_the_name_that_is_replaced():
    assert 'callback=self._callback' in inspect.getsource(impl_rabbit.Consumer.consume)
    assert 'self._message_operations_handler.process()' in inspect.getsource(
        amqpdriver.AMQPListener
    )


def test_an_exchange_that_is_noted_as_declared_is_not_declared_to_publish():
    source = inspect.getsource(impl_rabbit.Connection._publish)
    assert 'if not (exchange.passive or exchange.name in self._declared_exchanges):' in source
    assert 'exchange(self.channel).declare()' in source


def test_a_consumer_is_declared_by_the_name_that_is_replaced_and_may_leave_its_exchange():
    source = inspect.getsource(impl_rabbit.Connection.declare_consumer)
    assert 'consumer.declare(self)' in source
    # Where a connection comes back its consumers are declared again, by the same name.
    assert inspect.getsource(impl_rabbit.Connection).count('consumer.declare(self)') == 2
    declared = inspect.getsource(impl_rabbit.Consumer.declare)
    assert 'exchange=self.exchange' in declared and 'self.queue.declare()' in declared
    names = inspect.signature(impl_rabbit.Consumer.__init__).parameters
    assert {'queue_name', 'routing_key', 'durable'} <= set(names)
    assert not kombu.Exchange('nova', no_declare=True)._can_declare()


def test_the_pool_makes_its_connections_of_the_class_that_is_replaced():
    assert 'self.connection_cls(' in inspect.getsource(pool.ConnectionPool.create)
    assert 'self._get_reply_queue_name()' in inspect.getsource(amqpdriver.AMQPDriverBase)
    carrier = transport.own_transport(a_conf('rabbit://nova:guest@127.0.0.1:1/'))
    assert carrier._driver._get_reply_queue_name().startswith('reply_nova:')
    assert carrier._driver._connection_pool.connection_cls is least_privilege._Careful


@pytest.mark.rabbit
def test_nothing_is_left_behind_where_the_broker_refuses(rabbit_url):
    """py-amqp opens a channel anew that the broker closes: none may stay, and no exchange."""
    name = f'nowhere-{uuid.uuid4().hex}'
    carrier = transport.own_transport(a_conf(rabbit_url))
    # Locked, as the library does it to publish: its heartbeats read the answers otherwise.
    with driver.new_connection(carrier) as connection, connection._connection_lock:
        raw = connection.connection.connection
        before = len(raw.channels)
        for _ in range(3):
            assert not connection._has(kombu.Exchange(name, type='topic'))
            with pytest.raises(amqp.NotFound, match='no queue'):
                least_privilege.send_to_self(connection, name, {})
            assert not connection._has(kombu.Exchange(name, type='topic'))
        assert len(raw.channels) == before


def test_connections_are_kept_where_we_replace_them():
    """What ``driver.renew`` takes hold of."""
    pools = inspect.signature(pool.ConnectionPool.__init__).parameters
    assert list(pools) == ['self', 'conf', 'max_size', 'min_size', 'ttl', 'url', 'connection_cls']
    carrier = transport.own_transport(a_conf(), 'rabbit://guest:guest@127.0.0.1:1/')
    owner = carrier._driver
    for name in ('_connection_pool', '_reply_q_lock', '_reply_q', '_waiter'):
        assert name in vars(owner)
    for name in ('_max_size', '_min_size', '_item_ttl', 'conf', 'url', 'connection_cls'):
        assert name in vars(owner._connection_pool)
    # And ``driver.drop_senders``.
    for name in ('_cond', '_items', '_current_size'):
        assert name in vars(owner._connection_pool)
    taken = inspect.getsource(pool.Pool.get)
    assert 'ttl_watch, item = self._items.pop()' in taken
    assert 'if self._current_size < self._max_size:' in taken
    carrier.cleanup()
    send = inspect.getsource(amqpdriver.AMQPDriverBase)
    assert 'ConnectionContext(self._connection_pool' in send, 'read anew each time'
    assert 'with self._reply_q_lock:' in send
    waiter = inspect.getsource(amqpdriver.ReplyWaiter)
    assert 'while not self._thread_exit_event.is_set():' in waiter
    assert 'while not self._shutdown.is_set():' in inspect.getsource(amqpdriver.AMQPListener)
    assert 'while self._started:' in inspect.getsource(base.PollStyleListenerAdapter)
    consume = inspect.getsource(impl_rabbit.Connection.consume)
    assert 'while self._new_tags:' in consume
    assert 'self._new_tags = set(self._consumers.values())' in consume


class Keeping:
    """Stands where the library expects a connection; keeps what is sent."""

    rabbit_transient_quorum_queue = False
    direct_mandatory_flag = True
    _publish_and_raises_on_missing_exchange = None

    def direct_send(self, queue, body):
        self.sent = queue, json.loads(body['oslo.message']), body['oslo.version']

    def _ensure_publishing(self, method, exchange, body, *, routing_key, **options):
        self.direct_send(routing_key, body)


@pytest.mark.parametrize('error', [None, exceptions.NoValidHost(reason='full', decision_id='d')])
def test_our_reply_is_what_the_library_would_have_sent(listening, error):
    listening.client.call({}, 'm')
    (message,) = listening.got
    theirs, ours = Keeping(), Keeping()
    result = None if error else [{'a': 1}]
    message._send_reply(theirs, result, (type(error), error, None) if error else None)
    driver.reply(ours, message, result, error)
    for kept in (theirs, ours):
        kept.sent[1].pop('_unique_id')
    assert ours.sent == theirs.sent


class Listening:
    """A server that keeps what the library hands it."""

    def __init__(self):
        self.got = []
        self.carrier = transport.own_transport(a_conf())
        topic = f'contract-{uuid.uuid4().hex}'
        kept = self.got

        class Keeper(RPCServer):
            def _on_incoming(self, incoming):
                kept.extend(incoming)
                for message in incoming:
                    message.reply('kept')

        self.server = om.get_rpc_server(
            self.carrier, om.Target(topic=topic, server='s'), [], server_cls=Keeper
        )
        self.server.start()
        self.client = om.get_rpc_client(
            self.carrier, om.Target(topic=topic, version='1.0'), timeout=5
        )

    def close(self):
        self.server.stop()
        self.server.wait()
        self.carrier.cleanup()


@pytest.fixture
def listening():
    made = Listening()
    yield made
    made.close()


def test_what_is_read_from_a_message_is_there(listening):
    client = listening.client.prepare(call_monitor_timeout=7)
    assert client.call({'request_id': 'req-1'}, 'm', x='y' * 1000) == 'kept'
    (message,) = listening.got
    assert message.message['method'] == 'm'
    assert message.message['version'] == '1.0'
    assert message.message['args'] == {'x': 'y' * 1000}
    assert message.ctxt['request_id'] == 'req-1'
    assert message.client_timeout == 7
    assert message.orig_msg_id
    assert message.listener.driver is listening.carrier._driver


def test_a_cast_wants_no_answer(listening):
    listening.client.cast({}, 'm')
    listening.client.call({}, 'm')
    assert not listening.got[0].orig_msg_id


def test_what_we_read_of_a_message_is_what_the_library_reads(listening):
    client = listening.client.prepare(call_monitor_timeout=7)
    client.call({'request_id': 'req-1', 'project_id': 'p'}, 'm', x='y' * 1000)
    (theirs,) = listening.got
    body = theirs.message._raw_message.body
    ours = envelope.incoming(theirs.listener, body)
    assert 1000 < ours.size < 2000
    for name in ('msg_id', 'orig_msg_id', 'reply_q', 'client_timeout', 'unique_id', 'listener'):
        assert getattr(ours, name) == getattr(theirs, name)
    assert {key: ours.ctxt[key] for key in ('request_id', 'project_id')} == {
        key: theirs.ctxt[key] for key in ('request_id', 'project_id')
    }
    for key in ('method', 'version', 'args'):
        assert ours.message[key] == theirs.message[key]


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
    assert own._driver.conf.oslo_messaging_rabbit.rabbit_quorum_queue is False
    assert nova._driver.conf.oslo_messaging_rabbit.rabbit_quorum_queue is True


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
