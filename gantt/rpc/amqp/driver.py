# SPDX-License-Identifier: Apache-2.0
"""The private names of oslo.messaging that Gantt rests on.

What the library's public surface does not say (the size of a body, whether the
consumer was attached anew, one bounded try of a reply) is read from its AMQP
driver here; ``straight`` and ``outlet`` do the same for the two places where
speed is won, ``least_privilege`` for what would take permissions of the broker.
``tests/rpc/test_driver_contract.py`` fails when a version of the library moves
one of these names.
"""

import contextlib
import functools
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import msgspec
import oslo_messaging as om
from kombu import Exchange
from kombu.exceptions import OperationalError
from oslo_messaging._drivers import amqpdriver
from oslo_messaging._drivers import common as rpc_common
from oslo_messaging._drivers.amqp import AMQPDestinationNotFound
from oslo_messaging._drivers.amqpdriver import AMQPDriverBase
from oslo_messaging.rpc import client as rpc_client
from oslo_messaging.rpc.server import RPCServer

from gantt import exceptions
from gantt.rpc.amqp import least_privilege, refusals, straight, undecoded

__all__ = [
    'AWAY',
    'RPCServer',
    'ReplyQueueMissing',
    'SharedQueue',
    'acknowledge',
    'answered_within',
    'attachment',
    'attachment_of',
    'away',
    'body_bytes',
    'caller_seconds',
    'connection_beside',
    'consumers',
    'drop_senders',
    'envelope',
    'forget',
    'hear_no_more',
    'hears_answers',
    'is_in_process',
    'let_go',
    'masked',
    'may_have_surrogates',
    'new_connection',
    'options',
    'probe',
    'ready_for_calls',
    'renew',
    'reply',
    'send_again',
    'sender',
    'server_version',
    'speaks_amqp',
    'transport_url',
    'wake_often',
]


#: What the library and the ones below it raise when the broker is away.
AWAY = (om.MessageDeliveryFailure, OperationalError, OSError)


class ReplyQueueMissing(exceptions.Unavailable):
    """The caller's reply queue is not there: it is gone, or reconnecting."""

    code = 'gantt.reply_queue_missing'
    template = 'reply queue {queue!r} does not exist'


def transport_url(conf: Any) -> str:
    """``transport_url`` of a configuration that made no transport yet."""
    conf.register_opts(om.transport._transport_opts)
    return conf.transport_url


def options(transport: om.transport.RPCTransport) -> tuple[Any, Any]:
    """The URL as the library read it, and [oslo_messaging_rabbit] with what that URL adds."""
    return transport._driver._url, transport._driver.conf.oslo_messaging_rabbit


def server_version(transport: om.transport.RPCTransport) -> str:
    """The version of the broker, as it says; one attempt to connect.

    :raises Exception: whatever the driver says; the message is for people
    """
    with transport._driver._get_connection(rpc_common.PURPOSE_SEND, retry=0) as context:
        said = context.connection.connection.connection.server_properties.get('version', '')
    return said.decode() if isinstance(said, bytes) else str(said)


def probe(transport: om.transport.RPCTransport) -> None:
    """Open (or reuse) one connection for sending, without retries.

    :raises Exception: whatever the driver says; the message is for people
    """
    with transport._driver._get_connection(rpc_common.PURPOSE_SEND, retry=0):
        pass


def caller_seconds(conf: Any) -> float:
    """How long callers wait that are configured as this process is: ``rpc_response_timeout``."""
    conf.register_opts(rpc_client._client_opts)  # else only a client does
    return float(conf.rpc_response_timeout)


def body_bytes(incoming: Any) -> int:
    """Size of the body as it came over the wire, 0 where the driver does not say."""
    if isinstance(incoming, straight.Letter):
        return incoming.size
    raw = getattr(incoming.message, '_raw_message', None)
    body = getattr(raw, 'body', None)
    return undecoded.size_of(body) if body is not None else 0


def may_have_surrogates(incoming: Any) -> bool:
    """Whether the body has an escape that could be half a character.

    Rare, and cheap to see in the bytes: JSON as Python writes it is plain ASCII.
    """
    if isinstance(incoming, straight.Letter):
        return False  # its decoder takes none
    raw = getattr(incoming.message, '_raw_message', None)
    body = getattr(raw, 'body', None)
    if isinstance(body, str):
        body = body.encode('utf-8', 'surrogatepass')
    return not isinstance(body, bytes) or b'\\ud' in body or b'\\uD' in body


def attachment(incoming: Any) -> object:
    """Something that changes when the consumer is attached anew to the broker."""
    return incoming.listener.conn.channel


def attachment_of(server: Any) -> object:
    """The same of a server that listens; None before it does, and after."""
    listener = getattr(server, 'listener', None)
    consumer = getattr(listener, '_poll_style_listener', None)
    with contextlib.suppress(rpc_common.InvalidRPCConnectionReuse):
        return getattr(getattr(consumer, 'conn', None), 'channel', None)
    return None


def connection_beside(transport: Any) -> Any:
    """A connection of our own to the same broker, not open yet.

    The library's heartbeats read from its own.

    :raises BrokerUnavailable: the library has none to copy
    """
    with sender(transport._driver) as connection:
        return connection.connection.clone()


@contextlib.contextmanager
def answered_within(connection: Any, seconds: float) -> Iterator[None]:
    """Wait no longer for each word of the broker, on an open connection of our own.

    :raises OSError: inside, where it falls silent
    """
    inner = getattr(connection.connection, 'transport', None)
    bound = getattr(inner, 'having_timeout', contextlib.nullcontext)  # none within a process
    try:
        with bound(seconds):
            yield
    except OSError:
        connection.collect()  # to close it politely would take the broker's word again
        raise


@contextlib.contextmanager
def new_connection(transport: om.transport.RPCTransport) -> Iterator[Any]:
    """One of the library's connections for sending that nobody else has or gets.

    :raises Exception: whatever the driver says; may hang as long as TCP does
    """
    made = transport._driver._connection_pool.create(retry=0)
    try:
        yield made
    finally:
        made.close()


def speaks_amqp(transport: om.transport.RPCTransport) -> bool:
    """Whether it is a driver that Gantt knows: that of RabbitMQ, or kombu's in this process."""
    return isinstance(transport._driver, AMQPDriverBase)


def is_in_process(transport: om.transport.RPCTransport) -> bool:
    """Whether there is no broker but this process."""
    return transport._driver._url.transport.startswith('kombu+memory')


@contextlib.contextmanager
def sender(driver: Any) -> Iterator[Any]:
    """A connection to send replies on, for one batch.

    :raises BrokerUnavailable: no connection can be made now
    """
    try:
        context = driver._get_connection(rpc_common.PURPOSE_SEND, retry=0)
    except AWAY as e:
        where = masked(str(driver._url))
        raise exceptions.BrokerUnavailable(url=where, problem=refusals.said(e)) from None
    with context:
        yield context.connection


def masked(url: str) -> str:
    """A broker URL for people: without passwords and options."""
    scheme, sep, rest = url.partition('://')
    if not sep:
        return scheme.partition(':')[0] + ':'
    hosts, slash, path = rest.partition('/')
    shown = []
    for host in hosts.split(','):
        user, at, place = host.rpartition('@')
        shown.append(f'{user.partition(":")[0]}:***@{place}' if at else place)
    return f'{scheme}://{",".join(shown)}{slash}{path.partition("?")[0]}'


def away(connection: Any, error: Exception) -> exceptions.BrokerUnavailable:
    """That the broker of one of the library's connections does not answer, and where it is."""
    where = masked(connection.connection.as_uri())
    return exceptions.BrokerUnavailable(url=where, problem=refusals.said(error))


def envelope(incoming: Any, result: Any, error: Exception | None) -> dict[str, str]:
    """A reply as the library would write it, by a faster encoder."""
    body = {
        'result': result,
        'failure': _failure(error),
        'ending': True,
        '_msg_id': incoming.msg_id,
        '_unique_id': uuid.uuid4().hex,
    }
    return {'oslo.version': '2.0', 'oslo.message': msgspec.json.encode(body).decode()}


def reply(connection: Any, incoming: Any, result: Any, error: Exception | None) -> None:
    """Publish one reply and wait for the broker's confirm; no second try.

    The library's own ``reply`` tries for a minute when the caller is gone and
    without end when the broker is; the scheduling thread can afford neither.

    :raises ReplyQueueMissing: nobody listens on the caller's reply queue
    :raises BrokerUnavailable: the broker does not take it
    """
    body = envelope(incoming, result, error)
    try:
        _direct_send(connection, incoming.reply_q, body)
    except (om.MessageUndeliverable, AMQPDestinationNotFound):
        raise ReplyQueueMissing(queue=str(incoming.reply_q)) from None
    except AWAY as e:
        forget(connection)
        raise away(connection, e) from None


def _failure(error: Exception | None) -> str | None:
    """An error as the library puts it on the wire, without lines of ours."""
    if error is None:
        return None
    return rpc_common.serialize_remote_exception((type(error), error, None))


def forget(connection: Any) -> None:
    """Close a broken connection without a word, so that its next use makes a new one."""
    with contextlib.suppress(Exception):
        connection.connection.collect()


def drop_senders(transport: Any) -> None:
    """Close the idle connections for sending, whatever they still wait for.

    A thread of the library tends each of them.  Where one is broken that thread connects
    again now and then, which takes it 2 s when the broker is away, and who wants to send on
    it waits that long.  Without one, sending fails at once until the broker is back.
    """
    pool = transport._driver._connection_pool
    with pool._cond:
        dropped = [item for _, item in pool._items]
        pool._items.clear()
        pool._current_size -= len(dropped)
        pool._cond.notify_all()
    for item in dropped:
        _cut(item)
        threading.Thread(target=_close, args=(item,), name='rpc-close', daemon=True).start()


def _direct_send(c: Any, queue: str, body: dict[str, str]) -> None:
    """``Connection.direct_send`` without its endless retries."""
    exchange = Exchange(
        name='',
        type='direct',
        durable=c.rabbit_transient_quorum_queue,
        auto_delete=True,
        passive=True,
    )
    try:
        c._ensure_publishing(
            c._publish_and_raises_on_missing_exchange,
            exchange,
            body,
            routing_key=queue,
            retry=0,
            transport_options=om.TransportOptions(at_least_once=c.direct_mandatory_flag),
        )
    except om.MessageUndeliverable:
        _take_confirm(c)
        raise


def _take_confirm(c: Any) -> None:
    """Read the confirm that follows a returned message.

    Left in the socket it would be taken for that of the next reply, and the
    return of the next lost one be blamed on the one after.
    """
    with c._connection_lock, contextlib.suppress(*AWAY):
        c.connection.drain_events(timeout=0.2)


def ready_for_calls(transport: Any) -> None:
    """Make sure that a first call does not wait without end for a broker that is away.

    The library opens the reply queue of a process with its first call and
    tries that for ever.

    :raises Exception: as :func:`probe`
    """
    if getattr(transport._driver, '_reply_q', None) is None:
        probe(transport)


def hear_no_more(transport: om.transport.RPCTransport) -> None:
    """Have the thread that hears answers end; it takes some seconds to notice."""
    waiter = transport._driver._waiter
    if waiter is not None:
        waiter._thread_exit_event.set()
        waiter.conn.stop_consuming()


# -- consumers that are paused -----------------------------------------------------------------
#: A listener that nothing comes to looks that often whether there is something else to do; the
#: library's own 5 s are too long for a consumer that is to be cancelled or attached.
IDLE_LOOK_SECONDS = 1.0


def wake_often() -> None:
    """Let the listeners of this process, a service, look around more often."""
    amqpdriver.ACK_REQUEUE_EVERY_SECONDS_MAX = IDLE_LOOK_SECONDS


class SharedQueue:
    """The consumer of a listener on the queue that it shares with other processes.

    While it is held nothing is taken off that queue; the listener's own queues go on.

    :param listener: of a server, before it starts, and after what else looks at its messages
    """

    def __init__(self, listener: Any, queue: str) -> None:
        self._poller = listener._poll_style_listener
        consumers = self._poller.conn.connection._consumers
        self._consumer = next(one for one in consumers if one.queue_name == queue)
        self._tag = consumers[self._consumer]
        self._held = False
        #: Whether the broker has it, or is about to; belongs to the listener's thread.
        self._is_attached = True
        callback = functools.partial(self._receive, self._consumer._callback)
        self._consumer._callback = callback

    @property
    def is_held(self) -> bool:
        """Whether nothing is to be taken."""
        return self._held

    def hold(self, held: bool) -> None:
        """Take nothing from now on, or take again.  Any thread; soon done by the listener's."""
        if self._held != held:
            self._held = held
            self._poller._message_operations_handler.do(self._apply)

    def _receive(self, usual: Callable[[Any], None], raw: Any) -> None:
        if not self._held:
            usual(raw)
            return
        # First: what is rejected would come here again.  Once too often does no harm.
        self._is_attached = False
        raw.channel.basic_cancel(str(self._tag), nowait=True)
        raw.channel.basic_reject(raw.delivery_tag, requeue=True)

    def _apply(self) -> None:
        """Run by the listener between two messages."""
        below = self._poller.conn.connection
        with below._connection_lock:
            if not self._held:
                below._consumers[self._consumer] = self._tag
                if not self._is_attached:  # else the tag would be in use
                    self._is_attached = True
                    below._new_tags.add(self._tag)
                return
            # Where the connection breaks the library attaches those that it still has.
            below._consumers.pop(self._consumer, None)
            below._new_tags.discard(self._tag)
            if self._is_attached:
                self._is_attached = False
                with contextlib.suppress(*AWAY, *below.connection.recoverable_connection_errors):
                    if below.channel is not None:
                        below.channel.basic_cancel(str(self._tag), nowait=True)


def consumers(transport: Any, queue: str) -> int:
    """How many consumers a queue has, those of this process included.

    :raises BrokerUnavailable: nobody knows
    """
    with sender(transport._driver) as connection:
        try:
            with connection._connection_lock:
                found = connection.channel.queue_declare(queue, passive=True)
        except (*AWAY, *connection.connection.recoverable_connection_errors) as e:
            forget(connection)
            raise away(connection, e) from None
        return int(found.consumer_count)


def send_again(incoming: Any, exchange: str, topic: str, seconds: float) -> None:
    """Publish a call that was taken and not begun once more, for another process.

    :param incoming: a ``straight.Letter``
    :param seconds: after which the broker throws it away
    :raises BrokerUnavailable: nobody has it
    """
    body = incoming.message | {
        '_msg_id': incoming.msg_id,
        '_reply_q': incoming.reply_q,
        '_timeout': incoming.client_timeout,
        # The library takes a message that it has seen under this id for a copy.
        '_unique_id': uuid.uuid4().hex,
    }
    envelope = {'oslo.version': '2.0', 'oslo.message': msgspec.json.encode(body).decode()}
    with sender(incoming.listener.driver) as connection:
        try:
            connection.topic_send(exchange, topic, envelope, timeout=seconds, retry=0)
        except (*AWAY, AMQPDestinationNotFound) as e:
            forget(connection)
            raise away(connection, e) from None


def hears_answers(transport: Any, seconds: float) -> bool:
    """Whether answers reach this process: one is sent to its own reply queue.

    True also where the broker does not take it: then it is no answer that is missing.

    :param seconds: to wait for it
    """
    owner = transport._driver
    waiter, queue = owner._waiter, owner._reply_q
    if waiter is None or queue is None:
        return True
    msg_id = uuid.uuid4().hex
    body = {
        'result': None,
        'failure': None,
        'ending': True,
        '_msg_id': msg_id,
        '_unique_id': uuid.uuid4().hex,
    }
    wrapped = {'oslo.version': '2.0', 'oslo.message': msgspec.json.encode(body).decode()}
    waiter.listen(msg_id)
    try:
        with sender(owner) as connection:
            with connection._connection_lock, answered_within(connection.connection, seconds):
                least_privilege.send_to_self(connection, queue, wrapped)
        waiter.waiters.get(msg_id, seconds)
    except om.MessagingTimeout:
        return False
    except (exceptions.BrokerUnavailable, amqp.AMQPError, *AWAY):
        return True
    finally:
        waiter.unlisten(msg_id)
    return True


# -- connections that may be stuck -----------------------------------------------------------
def renew(transport: om.transport.RPCTransport) -> Callable[[], None]:
    """Let a transport make its connections for sending and for answers anew.

    Whoever has one of the old ones goes on with it.

    :returns: closes the old ones; waits for what they wait for
    """
    owner = transport._driver
    old = owner._connection_pool
    owner._connection_pool = type(old)(
        old.conf, old._max_size, old._min_size, old._item_ttl, old.url, old.connection_cls
    )
    # What comes back later closes by itself, and not in the thread that had it.
    old.put = lambda item: threading.Thread(target=_close, args=(item,), daemon=True).start()
    # A thread that hangs in there must not hold up those that come.
    owner._reply_q_lock = threading.Lock()
    waiter = owner._waiter if owner._reply_q is not None else None
    hear_no_more(transport)
    owner._reply_q = None

    def close() -> None:
        if waiter is not None:
            _cut(waiter.conn.connection)
        for item in old.iter_free():
            _cut(item)
            _close(item)
        if waiter is not None:
            waiter.stop()
            waiter.conn.close()

    return close


#: For so long the library may be at one message.
_ACKNOWLEDGE_SECONDS = 2.0


def acknowledge(server: Any) -> None:
    """Have the broker told of all that was received; of a server that consumes no more.

    The library does so now and then, and forgets what is left when it ends.
    """
    poller = getattr(getattr(server, 'listener', None), '_poll_style_listener', None)
    handler = getattr(poller, '_message_operations_handler', None)
    if poller is None or handler is None:
        return
    with contextlib.suppress(Exception):  # whatever a broken connection raises: it comes again
        # Its own thread may have taken the last one and not have come to it.
        handler.stop()
        if handler._shutdown_thread.is_alive():
            handler._shutdown_thread.join(_ACKNOWLEDGE_SECONDS)
        handler.process()
        _take_no_more(poller.conn.connection)
        handler.process()  # of what the thread of heartbeats took in between


def _take_no_more(connection: Any) -> None:
    """Give back what arrives while a connection closes: nobody would acknowledge it.

    The library closes without cancelling, and reads on until the broker agrees.
    """
    with connection._connection_lock:
        callbacks = getattr(connection.channel, 'callbacks', None)
        if callbacks is None:  # the broker in memory: it pushes nothing
            return
        for tag in map(str, connection._consumers.values()):
            connection.channel.basic_cancel(tag, nowait=True)
            callbacks[tag] = _requeue


def _requeue(raw: Any) -> None:
    raw.channel.basic_reject(raw.delivery_tag, requeue=True)


def let_go(server: Any) -> None:
    """Have a server end its listening soon, whatever its connection waits for.

    The broker gives to others what was not acknowledged.
    """
    listener = getattr(server, 'listener', None)
    if listener is not None:
        listener._started = False
        poller = listener._poll_style_listener
        poller._shutdown.set()
        poller.conn.stop_consuming()
        _cut(poller.conn.connection)


def _cut(connection: Any) -> None:
    """Break a connection of the library that is not to consume any more."""
    # It would, after connecting again; and with the one and not the other it would spin.
    connection._consumers.clear()
    connection._new_tags = set()
    below = getattr(connection.connection, '_connection', None)
    found = getattr(below, 'sock', None)
    if found is not None:
        with contextlib.suppress(OSError):
            # Not its own method: that of TLS takes away what a reading thread needs.
            socket.socket.shutdown(found, socket.SHUT_RDWR)


def _close(connection: Any) -> None:
    with contextlib.suppress(Exception):
        connection.close()


def use_exchange(carrier: Any, exchange: str) -> None:
    """Let what names no exchange (a notification) go to this one."""
    carrier._driver._default_exchange = exchange
