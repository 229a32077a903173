# SPDX-License-Identifier: Apache-2.0
"""Restrictions of oslo.messaging, so that a user of the broker needs few permissions.

Depends on private names of the library, as ``driver`` does.  ``permissions`` has what remains
to be allowed.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import amqp
import msgspec
import oslo_messaging as om
from oslo_messaging._drivers.impl_rabbit import Connection

__all__ = ['needs_little', 'reply_prefix', 'send_to_self']

#: Seconds for the broker to answer whether an exchange exists.
ANSWER_SECONDS = 10.0

#: Seconds that an agent that starts waits for the first scheduler of a site.
EXCHANGE_SECONDS = 300.0


class NoExchangeYet(amqp.RecoverableConnectionError):
    """Raised where the exchange is not declared yet: the library reconnects and retries."""


def reply_prefix(user: str) -> str:
    """Return the prefix of a user's reply queues, which no other user may read."""
    return f'reply_{user}:'


def needs_little(transport: om.transport.RPCTransport) -> None:
    """Let a new transport need as few permissions of the broker as possible.

    Its reply queue is named after its user, and an existing exchange is not declared: the
    permission to declare it includes deleting it.
    """
    rpc_driver = transport._driver
    rpc_driver._connection_pool.connection_cls = _Careful
    user = rpc_driver._url.hosts[0].username if rpc_driver._url.hosts else ''
    queue_name_of = rpc_driver._get_reply_queue_name

    def name() -> str:
        return reply_prefix(user or 'guest') + queue_name_of().removeprefix('reply_')

    rpc_driver._get_reply_queue_name = name


class _Careful(Connection):
    """The library's connection; checks whether a topic exchange exists before declaring it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._refused_at: float | None = None
        super().__init__(*args, **kwargs)

    def _publish(self, exchange: Any, *args: Any, **kwargs: Any) -> None:
        is_known = exchange.passive or exchange.name in self._declared_exchanges
        if not is_known and self._has(exchange):
            self._declared_exchanges.add(exchange.name)
        super()._publish(exchange, *args, **kwargs)

    def declare_consumer(self, consumer: Any) -> Any:
        declare = consumer.declare

        def careful(connection: Any) -> None:
            exchange = consumer.exchange
            exchange.no_declare = self._has(exchange)
            try:
                declare(connection)
            except amqp.AccessRefused as e:
                if exchange.no_declare or exchange.type != 'topic' or not self._may_wait():
                    raise
                raise NoExchangeYet(
                    f'exchange {exchange.name!r} is not there yet: a scheduler makes it, which '
                    f'this user may not ({e.reply_text})'
                ) from None

        # Called again after each reconnection.
        consumer.declare = careful
        return super().declare_consumer(consumer)

    def _may_wait(self) -> bool:
        """Return whether to go on waiting for a scheduler that creates the exchange."""
        if self._refused_at is None:
            self._refused_at = time.monotonic()
        return time.monotonic() - self._refused_at < EXCHANGE_SECONDS

    def _has(self, exchange: Any) -> bool:
        if exchange.type != 'topic' or self.connection.transport.driver_name != 'py-amqp':
            return False
        connection = self.connection.connection
        try:
            # Where the broker falls silent the library reconnects.
            with (
                connection.transport.having_timeout(ANSWER_SECONDS),
                _channel(connection) as channel,
            ):
                channel.exchange_declare(exchange.name, exchange.type, passive=True)
        except amqp.NotFound:
            return False
        return True


@contextlib.contextmanager
def _channel(connection: amqp.Connection) -> Iterator[amqp.Channel]:
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


def send_to_self(connection: Any, queue: str, body: dict[str, str]) -> None:
    """Publish to a queue of our own, on a connection of the library that is locked.

    The message goes through an exchange of the queue's name: writing to the default one takes
    a permission that reaches every queue.  Where the connection breaks, the exchange is deleted
    with the queue.
    """
    message = amqp.Message(
        msgspec.json.encode(body), content_type='application/json', content_encoding='utf-8'
    )
    with _channel(connection.connection.connection) as channel:
        channel.exchange_declare(queue, 'direct', durable=False, auto_delete=True)
        try:
            channel.queue_bind(queue, queue, queue)
            channel.basic_publish(message, exchange=queue, routing_key=queue)
        except amqp.ChannelError:
            # The queue was deleted, and nothing else would ever delete the exchange.
            channel.exchange_delete(queue)
            raise
        channel.exchange_delete(queue)
