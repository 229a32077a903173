# SPDX-License-Identifier: Apache-2.0
"""Queues and exchanges as oslo.messaging has them, declared with few permissions of the broker.

The permission to declare an exchange includes deleting it: one that exists is not declared, and
reply queues carry the name of their user.  ``permissions`` has what remains to be allowed.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import amqp

from gantt.rpc.amqp.connection import Connection

#: Seconds for the broker to answer whether an exchange exists.
ANSWER_SECONDS = 10.0
#: Seconds that an agent that starts waits for the first scheduler of a site.
EXCHANGE_SECONDS = 300.0
#: What RabbitMQ says of a queue or an exchange that somebody declared with another durability.
_OTHER_DURABILITY_TEXT = "PRECONDITION_FAILED - inequivalent arg 'durable'"


class NoExchangeYet(amqp.RecoverableConnectionError):
    """Raised where the exchange is not declared yet: the reader connects again and retries."""


class Queue(NamedTuple):
    """A queue to consume, and its binding.

    :ivar exchange: exchange that the queue is bound to; empty: the default exchange
    :ivar arguments: arguments of the queue's declaration
    :ivar consumer_arguments: arguments of the queue's consumer
    """

    name: str
    exchange: str = ''
    kind: str = ''
    key: str = ''
    durable: bool = False
    auto_delete: bool = False
    exchange_auto_delete: bool = False
    arguments: dict[str, Any] = {}
    consumer_arguments: dict[str, Any] = {}


def is_durable(rabbit: Any) -> bool:
    """Return whether queues of topics and their exchanges survive the broker's restart."""
    return bool(rabbit.amqp_durable_queues or rabbit.rabbit_quorum_queue)


def check_rabbit_options(rabbit: Any) -> None:
    """Check options of [oslo_messaging_rabbit] that exclude each other.

    :raises ValueError: two options exclude each other
    """
    if rabbit.rabbit_quorum_queue and rabbit.rabbit_ha_queues:
        raise ValueError('rabbit_quorum_queue and rabbit_ha_queues are both set')
    if rabbit.rabbit_stream_fanout and not (
        rabbit.rabbit_transient_quorum_queue and rabbit.rabbit_qos_prefetch_count > 0
    ):
        raise ValueError(
            'rabbit_stream_fanout needs rabbit_transient_quorum_queue and rabbit_qos_prefetch_count'
        )


def _arguments(rabbit: Any, *, is_quorum: bool, is_transient: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if rabbit.rabbit_ha_queues:
        arguments['x-ha-policy'] = 'all'
    if is_quorum:
        arguments['x-queue-type'] = 'quorum'
        limits = {
            'x-delivery-limit': rabbit.rabbit_quorum_delivery_limit,
            'x-max-in-memory-length': rabbit.rabbit_quorum_max_memory_length,
            'x-max-in-memory-bytes': rabbit.rabbit_quorum_max_memory_bytes,
        }
        arguments |= {name: limit for name, limit in limits.items() if limit}
    if is_transient and rabbit.rabbit_transient_queues_ttl > 0:
        arguments['x-expires'] = rabbit.rabbit_transient_queues_ttl * 1000
    return arguments


def _consumer_arguments(rabbit: Any) -> dict[str, Any]:
    return {'x-cancel-on-ha-failover': True} if rabbit.enable_cancel_on_failover else {}


def queues_of_topic(exchange: str, topic: str, server: str, rabbit: Any) -> list[Queue]:
    """Return a topic's queues: shared by all servers, of this server, of broadcasts."""
    consumer = _consumer_arguments(rabbit)
    named = [
        Queue(
            name,
            exchange,
            'topic',
            name,
            is_durable(rabbit),
            rabbit.amqp_auto_delete,
            rabbit.amqp_auto_delete,
            _arguments(rabbit, is_quorum=rabbit.rabbit_quorum_queue, is_transient=False),
            consumer,
        )
        for name in (topic, f'{topic}.{server}')
    ]
    is_quorum = rabbit.rabbit_transient_quorum_queue
    name = f'{topic}_fanout_{_unique_queue_name(rabbit, server)}'
    arguments = _arguments(rabbit, is_quorum=is_quorum, is_transient=True)
    if rabbit.rabbit_stream_fanout:
        name, arguments = f'{topic}_fanout', {'x-queue-type': 'stream'}
        if rabbit.rabbit_transient_queues_ttl > 0:
            arguments['x-max-age'] = f'{rabbit.rabbit_transient_queues_ttl}s'
        consumer = {'x-stream-offset': 'last'}
    durable = is_quorum or rabbit.rabbit_stream_fanout
    fanout = f'{topic}_fanout'
    return [
        *named,
        Queue(name, fanout, 'fanout', topic, durable, False, True, arguments, consumer),
    ]


def reply_queue(user: str, rabbit: Any) -> Queue:
    """Return a queue for answers to calls of this process."""
    is_quorum = rabbit.rabbit_transient_quorum_queue
    return Queue(
        reply_prefix(user) + _unique_queue_name(rabbit, uuid.uuid4().hex),
        durable=is_quorum,
        arguments=_arguments(rabbit, is_quorum=is_quorum, is_transient=True),
        consumer_arguments=_consumer_arguments(rabbit),
    )


def _unique_queue_name(rabbit: Any, name: str) -> str:
    """Return a queue name of this process; the same after a restart where that is configured."""
    if rabbit.use_queue_manager:
        return f'{rabbit.hostname}:{rabbit.processname}:{name}'
    return uuid.uuid4().hex


def reply_prefix(user: str) -> str:
    """Return the prefix of a user's reply queues, which no other user may read."""
    return f'reply_{user}:'


def note_offset(queue: Queue, raw: Any) -> None:
    """Note where to go on in a stream after a reconnection, with a message of it."""
    if 'x-stream-offset' in queue.consumer_arguments:
        offset = (raw.headers or {}).get('x-stream-offset')
        if offset is not None:
            queue.consumer_arguments['x-stream-offset'] = offset + 1


def restart_stream(queue: Queue) -> None:
    """Forget where to go on in a stream that was deleted."""
    if 'x-stream-offset' in queue.consumer_arguments:
        queue.consumer_arguments['x-stream-offset'] = 'last'


# -- at the broker -----------------------------------------------------------------------------
class Declarer:
    """Declares the queues of one consumer, again after each reconnection."""

    def __init__(self) -> None:
        self._refused_at: float | None = None

    def declare(self, connection: Connection, queue: Queue) -> None:
        """Declare a queue, its binding, and its exchange where there is none.

        :raises amqp.AMQPError: the broker refuses it, or ends the connection
        """
        try:
            self._declare(connection, queue)
        except amqp.PreconditionFailed as e:
            if _OTHER_DURABILITY_TEXT not in str(e) or not queue.durable:
                raise
            # Somebody else made it first, from another configuration.
            self._declare(connection, queue._replace(durable=False))

    def _declare(self, connection: Connection, queue: Queue) -> None:
        if queue.exchange and not has_exchange(connection, queue.exchange, queue.kind):
            try:
                with channel_of(connection) as channel:
                    channel.exchange_declare(
                        queue.exchange,
                        queue.kind,
                        durable=queue.durable,
                        auto_delete=queue.exchange_auto_delete,
                    )
            except amqp.AccessRefused as e:
                if queue.kind != 'topic' or not self._may_wait():
                    raise
                raise NoExchangeYet(
                    f'exchange {queue.exchange!r} is not there yet: a scheduler makes it, which '
                    f'this user may not ({e.reply_text})'
                ) from None
        try:
            _declare_queue(connection, queue)
        except amqp.NotFound:
            # It is on a node that is down; deleted, it is made on another one.
            with contextlib.suppress(amqp.AMQPError), channel_of(connection) as channel:
                channel.queue_delete(queue.name)
            _declare_queue(connection, queue)
        if queue.exchange:
            with channel_of(connection) as channel:
                channel.queue_bind(queue.name, queue.exchange, queue.key)

    def _may_wait(self) -> bool:
        """Return whether to go on waiting for a scheduler that creates the exchange."""
        if self._refused_at is None:
            self._refused_at = time.monotonic()
        return time.monotonic() - self._refused_at < EXCHANGE_SECONDS


def _declare_queue(connection: Connection, queue: Queue) -> None:
    with channel_of(connection) as channel:
        channel.queue_declare(
            queue.name,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            arguments=queue.arguments,
        )


def ensure_exchange(connection: Connection, exchange: str, rabbit: Any) -> None:
    """Declare the exchange of topics before the first publication, where there is none.

    :raises amqp.AMQPError: this user may not
    """
    if exchange in connection.declared:
        return
    if not has_exchange(connection, exchange, 'topic'):
        for durable in {is_durable(rabbit), False}:
            try:
                with channel_of(connection) as channel:
                    channel.exchange_declare(
                        exchange, 'topic', durable=durable, auto_delete=rabbit.amqp_auto_delete
                    )
                break
            except amqp.PreconditionFailed as e:
                if not durable or _OTHER_DURABILITY_TEXT not in str(e):
                    raise
    connection.declared.add(exchange)


def has_exchange(connection: Connection, exchange: str, kind: str) -> bool:
    """Return whether an exchange of topics exists, by a question that takes no permission.

    :raises OSError: the broker does not answer
    """
    if kind != 'topic' or not connection.is_amqp:
        return False
    try:
        with (
            connection.answered_within(ANSWER_SECONDS),
            channel_of(connection) as channel,
        ):
            channel.exchange_declare(exchange, kind, passive=True)
    except amqp.NotFound:
        return False
    return True


@contextlib.contextmanager
def channel_of(connection: Connection) -> Iterator[Any]:
    """Yield a further channel, closed also where the broker refuses something on it.

    The broker has closed it then, but py-amqp opens it again at once: a connection on which
    that happens often enough would have no channel left.
    """
    channel = connection.channel()
    try:
        yield channel
    except amqp.ChannelError:
        channel.close()
        raise
    channel.close()


def send_to_self(connection: Connection, queue: str, body: bytes) -> None:
    """Publish a message to a queue of this process.

    The message goes through an exchange of the queue's name: writing to the default one takes
    a permission that reaches every queue.  Where the connection breaks, the exchange is deleted
    with the queue.
    """
    with channel_of(connection) as channel:
        channel.exchange_declare(queue, 'direct', durable=False, auto_delete=True)
        message = channel.prepare_message(
            body, content_type='application/json', content_encoding='utf-8'
        )
        try:
            channel.queue_bind(queue, queue, queue)
            channel.basic_publish(message, exchange=queue, routing_key=queue)
        except amqp.ChannelError:
            # The queue was deleted, and nothing else would ever delete the exchange.
            channel.exchange_delete(queue)
            raise
        channel.exchange_delete(queue)
