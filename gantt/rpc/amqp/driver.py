# SPDX-License-Identifier: Apache-2.0
"""The private names of oslo.messaging that Gantt rests on.

What the library's public surface does not have (one bounded try of a reply, connections
that are made anew) is read from its AMQP driver here; ``consumer`` and ``publisher`` do the
same for receiving and replying, ``least_privilege`` for what would take permissions of the
broker.  ``tests/rpc/test_driver_contract.py`` fails when a version of the library moves
one of these names.
"""

import contextlib
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import amqp
import oslo_messaging as om
from kombu import Exchange
from kombu.exceptions import OperationalError
from oslo_messaging._drivers import amqpdriver
from oslo_messaging._drivers import common as rpc_common
from oslo_messaging._drivers.amqp import AMQPDestinationNotFound
from oslo_messaging._drivers.amqpdriver import AMQPDriverBase
from oslo_messaging.rpc import client as rpc_client

from gantt import exceptions
from gantt.rpc.amqp import envelope, least_privilege, refusals

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
        version_text = context.connection.connection.connection.server_properties.get('version', '')
    return version_text.decode() if isinstance(version_text, bytes) else str(version_text)


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


def separate_connection(transport: Any) -> Any:
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
        raise exceptions.BrokerUnavailable(url=where, problem=refusals.text_of(e)) from None
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
    return exceptions.BrokerUnavailable(url=where, problem=refusals.text_of(error))


def answer(
    msg_id: str | None, result: Any = None, error: Exception | None = None
) -> dict[str, str]:
    """A reply as the library would write it."""
    failure = error and rpc_common.serialize_remote_exception((type(error), error, None))
    return envelope.closed(
        {
            'result': result,
            'failure': failure,
            'ending': True,
            '_msg_id': msg_id,
            '_unique_id': uuid.uuid4().hex,
        }
    )


def reply(connection: Any, incoming: Any, result: Any, error: Exception | None) -> None:
    """Publish one reply and wait for the broker's confirm; no second try.

    The library's own ``reply`` tries for a minute when the caller is gone and
    without end when the broker is; the scheduling thread can afford neither.

    :raises ReplyQueueMissing: nobody listens on the caller's reply queue
    :raises BrokerUnavailable: the broker does not take it
    """
    body = answer(incoming.msg_id, result, error)
    try:
        _direct_send(connection, incoming.reply_q, body)
    except (om.MessageUndeliverable, AMQPDestinationNotFound):
        raise ReplyQueueMissing(queue=str(incoming.reply_q)) from None
    except AWAY as e:
        forget(connection)
        raise away(connection, e) from None


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
    _let_go(dropped)


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


def stop_receiving(transport: om.transport.RPCTransport) -> None:
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


def opened(connection: Any) -> Any:
    """py-amqp's connection below one of the library's; None where it is not open.

    To ask kombu for it would open another one, which nobody attaches consumers to.
    """
    kombu_connection = None if connection is None else connection.connection
    found = None if kombu_connection is None else kombu_connection._connection
    return found if found is not None and found.connected else None


def cut(connection: Any) -> None:
    """End both ways of a connection of py-amqp's, so that whoever reads it finds it broken.

    Not by the socket's own method: that of TLS drops what a read needs, which then raises a
    ``ValueError``, and neither py-amqp nor the library takes that for a broken connection.
    """
    with contextlib.suppress(OSError, AttributeError):  # it is closed already
        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


@contextlib.contextmanager
def closing_what_broke(connection: Any) -> Iterator[None]:
    """Let go of the connection of py-amqp below, where another has come in its place inside.

    The library drops it as it is.  Its channels and it refer to each other, so that its socket and
    what was read ahead would stay until all garbage is looked for, which is seldom.
    """
    before = connection.connection._connection
    try:
        yield
    finally:
        kombu_connection = connection.connection
        after = None if kombu_connection is None else kombu_connection._connection
        if before is not None and before is not after:
            with contextlib.suppress(Exception):  # whatever it raises, it is of no more use
                before.collect()


def consumers(transport: Any, queue: str) -> int:
    """How many consumers a queue has, those of this process included.

    :raises BrokerUnavailable: nobody knows
    """
    with sender(transport._driver) as connection:
        try:
            with connection._connection_lock:
                found = connection.channel.queue_declare(queue, passive=True)
        except (
            *AWAY,
            *connection.connection.recoverable_connection_errors,
            amqp.AMQPError,  # it may not ask, or there is no such queue: the channel is closed
        ) as e:
            forget(connection)
            raise away(connection, e) from None
        return int(found.consumer_count)


def send_again(incoming: Any, exchange: str, topic: str, seconds: float) -> None:
    """Publish a call that was taken and not begun once more, for another process.

    :param incoming: an ``envelope.Incoming``
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
    with sender(incoming.listener.driver) as connection:
        try:
            connection.topic_send(exchange, topic, envelope.closed(body), timeout=seconds, retry=0)
        except (*AWAY, AMQPDestinationNotFound) as e:
            forget(connection)
            raise away(connection, e) from None


def receives_answers(transport: Any, seconds: float) -> bool:
    """Whether answers reach this process: one is sent to its own reply queue.

    True also where the broker does not take it: then it is no answer that is missing.

    :param seconds: to wait for it
    """
    owner = transport._driver
    waiter, queue = owner._waiter, owner._reply_q
    if waiter is None or queue is None:
        return True
    msg_id = uuid.uuid4().hex
    waiter.listen(msg_id)
    try:
        with sender(owner) as connection:
            with connection._connection_lock, answered_within(connection.connection, seconds):
                least_privilege.send_to_self(connection, queue, answer(msg_id))
        waiter.waiters.get(msg_id, seconds)
    except om.MessagingTimeout:
        return False
    except (exceptions.BrokerUnavailable, amqp.AMQPError, *AWAY):
        return True
    finally:
        waiter.unlisten(msg_id)
    return True


# -- connections that may be stuck -----------------------------------------------------------
def renew(transport: om.transport.RPCTransport) -> None:
    """Let a client's transport make its connections for sending and for answers anew.

    Whoever has one of the old ones goes on with it.  (A process of our own that receives nothing
    is replaced as a whole; a client lives in somebody else's.)
    """
    owner = transport._driver
    old = owner._connection_pool
    owner._connection_pool = type(old)(
        old.conf, old._max_size, old._min_size, old._item_ttl, old.url, old.connection_cls
    )
    # What comes back later closes by itself, and not in the thread that had it.
    old.put = lambda item: _let_go([item])
    # A thread that hangs in there must not hold up those that come.
    owner._reply_q_lock = threading.Lock()
    stop_receiving(transport)
    waiter = owner._waiter if owner._reply_q is not None else None
    owner._reply_q = None
    _let_go([*old.iter_free(), *([waiter.conn.connection] if waiter is not None else [])])


def _let_go(connections: Iterable[Any]) -> None:
    """Break connections of the library, and close them where that waits for nobody."""
    for connection in connections:
        # It would consume, after connecting again; with one and not the other it would spin.
        connection._consumers.clear()
        connection._new_tags = set()
        cut(getattr(connection.connection, '_connection', None))
        threading.Thread(target=_close, args=(connection,), name='rpc-close', daemon=True).start()


def _close(connection: Any) -> None:
    with contextlib.suppress(Exception):
        connection.close()


def use_exchange(carrier: Any, exchange: str) -> None:
    """Let what names no exchange (a notification) go to this one."""
    carrier._driver._default_exchange = exchange
