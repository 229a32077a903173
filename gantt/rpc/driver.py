# SPDX-License-Identifier: Apache-2.0
"""The private names of oslo.messaging that Gantt rests on.

What the library's public surface does not say (the size of a body, whether the
consumer was attached anew, one bounded try of a reply) is read from its AMQP
driver here; ``straight`` and ``outlet`` do the same for the two places where
speed is won.  ``tests/rpc/test_driver_contract.py`` fails when a version of the
library moves one of these names.
"""

import contextlib
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import oslo_messaging as om
from kombu import Exchange
from kombu.exceptions import OperationalError
from oslo_messaging._drivers import common as rpc_common
from oslo_messaging._drivers.amqp import AMQPDestinationNotFound
from oslo_messaging._drivers.amqpdriver import AMQPDriverBase
from oslo_messaging.rpc import client as rpc_client
from oslo_messaging.rpc.server import RPCServer

from gantt import exceptions
from gantt.rpc import straight, undecoded

__all__ = [
    'AWAY',
    'RPCServer', 'ReplyQueueMissing', 'acknowledge', 'answered_within', 'attachment',
    'attachment_of', 'body_bytes', 'caller_seconds', 'connection_beside', 'drop_senders',
    'envelope', 'forget', 'hear_no_more', 'is_in_process', 'let_go', 'may_have_surrogates',
    'new_connection', 'options', 'probe', 'ready_for_calls', 'renew', 'reply',
    'sender', 'server_version', 'speaks_amqp', 'transport_url',
]  # fmt: skip


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
        raise exceptions.BrokerUnavailable(url='', problem=str(e)) from None
    with context:
        yield context.connection


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
        raise exceptions.BrokerUnavailable(url='', problem=str(e)) from None


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


def acknowledge(server: Any) -> None:
    """Have the broker told of all that was received; of a server that consumes no more.

    The library does so now and then, and forgets what is left when it ends.
    """
    poller = getattr(getattr(server, 'listener', None), '_poll_style_listener', None)
    handler = getattr(poller, '_message_operations_handler', None)
    if poller is None or handler is None:
        return
    with contextlib.suppress(Exception):  # whatever a broken connection raises: it comes again
        handler.process()
        # Its own thread may be at the last one.
        lock = getattr(poller.conn.connection, '_connection_lock', None)
        with lock if lock is not None else contextlib.nullcontext():
            pass


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
