# SPDX-License-Identifier: Apache-2.0
"""Private names of oslo.messaging that Gantt depends on.

Features that the library's public interface lacks (one bounded try of a reply, connections
that are created anew) use its AMQP driver here; ``consumer`` and ``publisher`` do the same for
receiving and replying, ``least_privilege`` for operations that would take permissions of the
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

#: Errors of the library and the ones below it when the broker is away.
AWAY = (om.MessageDeliveryFailure, OperationalError, OSError)


class ReplyQueueMissing(exceptions.Unavailable):
    """An error where the caller's reply queue is missing: it ended, or reconnects."""

    code = 'gantt.reply_queue_missing'
    template = 'reply queue {queue!r} does not exist'


def transport_url(conf: Any) -> str:
    """Return ``transport_url`` of a configuration that created no transport yet."""
    conf.register_opts(om.transport._transport_opts)
    return conf.transport_url


def options(transport: om.transport.RPCTransport) -> tuple[Any, Any]:
    """Return the URL as the library read it, and [oslo_messaging_rabbit] with its additions."""
    return transport._driver._url, transport._driver.conf.oslo_messaging_rabbit


def server_version(transport: om.transport.RPCTransport) -> str:
    """Return the version that the broker reports; one attempt to connect.

    :raises Exception: any error of the driver; the message is for people
    """
    with transport._driver._get_connection(rpc_common.PURPOSE_SEND, retry=0) as context:
        version_text = context.connection.connection.connection.server_properties.get('version', '')
    return version_text.decode() if isinstance(version_text, bytes) else str(version_text)


def probe(transport: om.transport.RPCTransport) -> None:
    """Open (or reuse) one connection for sending, without retries.

    :raises Exception: any error of the driver; the message is for people
    """
    with transport._driver._get_connection(rpc_common.PURPOSE_SEND, retry=0):
        pass


def caller_seconds(conf: Any) -> float:
    """Return how long callers configured as this process wait: ``rpc_response_timeout``."""
    conf.register_opts(rpc_client._client_opts)  # otherwise only a client registers them
    return float(conf.rpc_response_timeout)


def separate_connection(transport: Any) -> Any:
    """Return a connection of our own to the same broker, not open yet.

    The library's heartbeats read from its own.

    :raises BrokerUnavailable: the library has none to copy
    """
    with sender(transport._driver) as connection:
        return connection.connection.clone()


@contextlib.contextmanager
def answered_within(connection: Any, seconds: float) -> Iterator[None]:
    """Bound each wait for the broker, on an open connection of our own.

    :raises OSError: inside, where it falls silent
    """
    amqp_transport = getattr(connection.connection, 'transport', None)
    bound = getattr(
        amqp_transport, 'having_timeout', contextlib.nullcontext
    )  # none within a process
    try:
        with bound(seconds):
            yield
    except OSError:
        connection.collect()  # closing it properly would wait for the broker again
        raise


@contextlib.contextmanager
def new_connection(transport: om.transport.RPCTransport) -> Iterator[Any]:
    """Yield a new connection of the library for sending, which no other thread shares.

    :raises Exception: any error of the driver; may hang as long as TCP does
    """
    connection = transport._driver._connection_pool.create(retry=0)
    try:
        yield connection
    finally:
        connection.close()


def speaks_amqp(transport: om.transport.RPCTransport) -> bool:
    """Return whether the driver is one that Gantt knows: RabbitMQ's, or kombu's in-process one."""
    return isinstance(transport._driver, AMQPDriverBase)


def is_in_process(transport: om.transport.RPCTransport) -> bool:
    """Return whether there is no broker but this process."""
    return transport._driver._url.transport.startswith('kombu+memory')


@contextlib.contextmanager
def sender(driver: Any) -> Iterator[Any]:
    """Yield a connection to send replies on, for one batch.

    :raises BrokerUnavailable: no connection can be opened now
    """
    try:
        context = driver._get_connection(rpc_common.PURPOSE_SEND, retry=0)
    except AWAY as e:
        url = masked(str(driver._url))
        raise exceptions.BrokerUnavailable(url=url, problem=refusals.text_of(e)) from None
    with context:
        yield context.connection


def masked(url: str) -> str:
    """Return a broker URL for people: without passwords and options."""
    scheme, sep, location = url.partition('://')
    if not sep:
        return scheme.partition(':')[0] + ':'
    hosts, slash, path = location.partition('/')
    shown = []
    for host in hosts.split(','):
        user, at_sign, address = host.rpartition('@')
        shown.append(f'{user.partition(":")[0]}:***@{address}' if at_sign else address)
    return f'{scheme}://{",".join(shown)}{slash}{path.partition("?")[0]}'


def away(connection: Any, error: Exception) -> exceptions.BrokerUnavailable:
    """Return the error that a connection's broker does not answer, with its address."""
    url = masked(connection.connection.as_uri())
    return exceptions.BrokerUnavailable(url=url, problem=refusals.text_of(error))


def answer(
    msg_id: str | None, result: Any = None, error: Exception | None = None
) -> dict[str, str]:
    """Return a reply as the library would write it."""
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

    The library's own ``reply`` tries for a minute when the caller has ended and
    without end when the broker is away; the scheduling thread can afford neither.

    :raises ReplyQueueMissing: the caller's reply queue does not exist
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
    """Drop a broken connection without closing it properly; its next use opens a new one."""
    with contextlib.suppress(Exception):
        connection.connection.collect()


def drop_senders(transport: Any) -> None:
    """Close the idle connections for sending, whatever they still wait for.

    A thread of the library tends each of them.  Where one is broken that thread connects
    again now and then, which takes it 2 s when the broker is away, and a sender that wants
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
    """Publish as ``Connection.direct_send`` does, without its endless retries."""
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
    """Stop the thread that receives answers; it takes some seconds to notice."""
    waiter = transport._driver._waiter
    if waiter is not None:
        waiter._thread_exit_event.set()
        waiter.conn.stop_consuming()


# -- consumers that are paused -----------------------------------------------------------------
#: Seconds between an idle listener's checks for other work; the library's own 5 s are too long
#: for a consumer that is to be cancelled or attached.
IDLE_LOOK_SECONDS = 1.0


def wake_often() -> None:
    """Have the listeners of this process, a service, check for other work more often."""
    amqpdriver.ACK_REQUEUE_EVERY_SECONDS_MAX = IDLE_LOOK_SECONDS


def opened(connection: Any) -> Any:
    """Return py-amqp's connection below one of the library's; None where it is not open.

    Kombu's property would open another one, to which no consumers are attached.
    """
    kombu_connection = None if connection is None else connection.connection
    amqp_connection = None if kombu_connection is None else kombu_connection._connection
    return amqp_connection if amqp_connection is not None and amqp_connection.connected else None


def cut(connection: Any) -> None:
    """Shut down both ways of a connection of py-amqp's, so that its reader finds it broken.

    Not by the socket's own method: that of TLS drops what a read needs, which then raises a
    ``ValueError``, and neither py-amqp nor the library takes that for a broken connection.
    """
    with contextlib.suppress(OSError, AttributeError):  # it is closed already
        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


@contextlib.contextmanager
def closing_what_broke(connection: Any) -> Iterator[None]:
    """Close the connection of py-amqp below, where another has replaced it inside.

    The library drops it as it is.  Its channels and it refer to each other, so that its socket and
    what was read ahead would stay until a full garbage collection, which is seldom.
    """
    old_connection = connection.connection._connection
    try:
        yield
    finally:
        kombu_connection = connection.connection
        current_connection = None if kombu_connection is None else kombu_connection._connection
        if old_connection is not None and old_connection is not current_connection:
            with contextlib.suppress(Exception):  # whatever it raises, it is of no more use
                old_connection.collect()


def consumers(transport: Any, queue: str) -> int:
    """Return how many consumers a queue has, those of this process included.

    :raises BrokerUnavailable: it cannot be found out
    """
    with sender(transport._driver) as connection:
        try:
            with connection._connection_lock:
                declared = connection.channel.queue_declare(queue, passive=True)
        except (
            *AWAY,
            *connection.connection.recoverable_connection_errors,
            amqp.AMQPError,  # not permitted, or there is no such queue: the channel is closed
        ) as e:
            forget(connection)
            raise away(connection, e) from None
        return int(declared.consumer_count)


def send_again(incoming: Any, exchange: str, topic: str, seconds: float) -> None:
    """Publish a call that was taken but not begun once more, for another process.

    :param incoming: an ``envelope.Incoming``
    :param seconds: after which the broker throws it away
    :raises BrokerUnavailable: it was not published
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
    """Return whether answers reach this process, by sending one to its own reply queue.

    True also where the broker does not take it: then what fails is not the receiving.

    :param seconds: to wait for it
    """
    rpc_driver = transport._driver
    waiter, queue = rpc_driver._waiter, rpc_driver._reply_q
    if waiter is None or queue is None:
        return True
    msg_id = uuid.uuid4().hex
    waiter.listen(msg_id)
    try:
        with sender(rpc_driver) as connection:
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
    """Replace a client transport's connections for sending and for answers by new ones.

    A thread that has an old one goes on with it.  (A process of our own that receives nothing
    is replaced as a whole; a client lives in another program's process.)
    """
    rpc_driver = transport._driver
    old_pool = rpc_driver._connection_pool
    rpc_driver._connection_pool = type(old_pool)(
        old_pool.conf,
        old_pool._max_size,
        old_pool._min_size,
        old_pool._item_ttl,
        old_pool.url,
        old_pool.connection_cls,
    )
    # Connections returned later close by themselves, and not in the thread that had them.
    old_pool.put = lambda item: _let_go([item])
    # A thread that hangs in there must not hold up those that come.
    rpc_driver._reply_q_lock = threading.Lock()
    stop_receiving(transport)
    waiter = rpc_driver._waiter if rpc_driver._reply_q is not None else None
    rpc_driver._reply_q = None
    _let_go([*old_pool.iter_free(), *([waiter.conn.connection] if waiter is not None else [])])


def _let_go(connections: Iterable[Any]) -> None:
    """Break connections of the library, and close them in threads that no other waits for."""
    for connection in connections:
        # It would consume after connecting again; clearing only one of the two would make it spin.
        connection._consumers.clear()
        connection._new_tags = set()
        cut(getattr(connection.connection, '_connection', None))
        threading.Thread(target=_close, args=(connection,), name='rpc-close', daemon=True).start()


def _close(connection: Any) -> None:
    with contextlib.suppress(Exception):
        connection.close()


def use_exchange(carrier: Any, exchange: str) -> None:
    """Set the exchange for messages that name none (a notification)."""
    carrier._driver._default_exchange = exchange
