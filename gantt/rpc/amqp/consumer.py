# SPDX-License-Identifier: Apache-2.0
"""Consumer of a topic: from the bytes on the wire to a handler, and the acknowledgement.

The library declares the queues, reconnects and waits; it would also acknowledge each message by
itself, and silently drop what it cannot decode.  So every message is taken from it here, on one
path: bound on the size, decoding, handler, acknowledgement (``deliveries`` takes them off the
wire).  Messages that may be run twice (the broker sends again what was not acknowledged when a
connection breaks) are taken together with those that follow and acknowledged after they were
handled; all others before.
"""

import collections
import contextlib
import functools
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import amqp
from oslo_messaging._drivers import common as rpc_common

from gantt.rpc.amqp import deliveries, driver, envelope
from gantt.rpc.amqp.envelope import Head, Incoming
from gantt.rpc.amqp.lending import LentPoller

LOG = logging.getLogger(__name__)

#: Messages taken before the library has its turn again.
TAKEN_TOGETHER = 64
#: Seconds to wait for one more message before the library does, which takes long.
LINGER_SECONDS = 0.01
#: Seconds to gather casts: no caller waits for them, and many are taken at once.
GATHER_SECONDS = 0.05
#: Last messages whose ids are kept: a sender that publishes again has sent one twice.
REMEMBERED = 16
#: Seconds that the library may take for one message when it ends.
_FINISH_SECONDS = 2.0


class Handler(Protocol):
    """Handler of a consumer's messages, in its receiving thread; no method raises.

    :ivar bytes_max: larger bodies are not decoded
    :ivar repeatable: methods that may run twice for one message
    :ivar undecoded: returns the job for a body that needs no decoding, or None; where there is
        one, most messages are casts
    """

    bytes_max: int
    repeatable: frozenset[str]
    undecoded: Callable[[bytes | str], Callable[[], object] | None] | None

    def run_undecoded(self, run: Callable[[], object], body: bytes | str) -> None:
        """Run the job that ``undecoded`` returned."""

    def handle(self, message: Incoming) -> None:
        """Handle a message."""

    def undecodable(self, error: Exception, body: bytes) -> None:
        """Handle a body that is no message, and was rejected."""


class Consumer:
    """Queues of one topic: the one that processes share, that of this one, the broadcasts.

    :param target: the library's target
    """

    def __init__(self, transport: Any, target: Any, handler: Handler) -> None:
        self._transport = transport
        self._target = target
        self._handler = handler
        self._gather_seconds = GATHER_SECONDS if handler.undecoded is not None else 0.0
        self._listener: Any = None
        self._poller: Any = None
        #: For a thread that reads these messages itself; None before the start, and within a
        #: process.
        self.lent: LentPoller | None = None
        self._speaks_amqp = False
        self._seen: collections.deque[Any] = collections.deque(maxlen=REMEMBERED)
        # For the receiving thread: messages taken and not acknowledged yet.
        self._channel: Any = None
        self._last = self._waiting = self._taken = 0
        self._together = 1
        self._scheduled = False
        # The library's consumer of the shared queue, and whether it is paused.
        self._shared: Any = None
        self._tag: Any = None
        self._held = False
        self._is_attached = True

    def start(self) -> None:
        """Declare the queues and consume.

        :raises Exception: errors of the library; it tries for ever where the broker refuses
        """
        listener = self._transport._listen(self._target, 1, None)
        self._poller = listener._poll_style_listener
        rabbit_connection = self._poller.conn.connection
        self._speaks_amqp = rabbit_connection.connection.transport.driver_name == 'py-amqp'
        if self._speaks_amqp:
            prefetch = rabbit_connection.rabbit_qos_prefetch_count
            # So that the broker goes on sending meanwhile.
            together_max = prefetch // 2 if prefetch else TAKEN_TOGETHER
            self._together = max(1, min(TAKEN_TOGETHER, together_max))
        for consumer, tag in rabbit_connection._consumers.items():
            is_shared = consumer.queue_name == self._target.topic
            if is_shared:
                self._shared, self._tag = consumer, tag
            consumer._callback = functools.partial(self._receive, is_shared)
        self._listener = listener
        if self._speaks_amqp:
            self.lent = LentPoller(self._poller, self._together, self._acknowledge)
            listener._poll_style_listener = self.lent
        # Nothing is left for the library to hand over.
        listener.start(lambda incoming: None)

    @property
    def channel(self) -> Any:
        """Its channel, new after each reconnection; None before the start and after the end."""
        with contextlib.suppress(rpc_common.InvalidRPCConnectionReuse):
            return self._poller and self._poller.conn.channel
        return None

    def stop(self) -> None:
        """Stop consuming.  May take some seconds."""
        if self.lent is not None:
            self.lent.end()
        if self._listener is not None:
            self._listener.stop()

    def close(self) -> None:
        """Acknowledge all that was received, and let go of the connection.

        The library acknowledges now and then, and forgets what is left when it ends.
        """
        if self._listener is None:
            return
        handler = self._poller._message_operations_handler
        with contextlib.suppress(Exception):  # any error of a broken connection: it is sent again
            # Its own thread may have taken the last one and not handled it yet.
            handler.stop()
            if handler._shutdown_thread.is_alive():
                handler._shutdown_thread.join(_FINISH_SECONDS)
            handler.process()
            self._take_no_more()
            handler.process()  # what the thread of heartbeats took in between
        self._listener.cleanup()

    def _take_no_more(self) -> None:
        """Give back messages that arrive while a connection closes, as they stay unacknowledged.

        The library closes without cancelling, and reads on until the broker agrees.
        """
        rabbit_connection = self._poller.conn.connection
        with rabbit_connection._connection_lock:
            if not self._speaks_amqp:  # the broker in memory pushes nothing
                return
            for tag in map(str, rabbit_connection._consumers.values()):
                rabbit_connection.channel.basic_cancel(tag, nowait=True)
                rabbit_connection.channel.callbacks[tag] = _requeue

    # -- one message ---------------------------------------------------------------------------
    def _receive(self, is_shared: bool, raw: Any) -> None:
        """Handle a message of the library's consumer, in place of its own callback.

        :raises OSError: the connection broke; what was not acknowledged comes again
        """
        if is_shared and self._held:
            # Cancel first: what is rejected would come here again.  Once too often does no harm.
            self._is_attached = False
            raw.channel.basic_cancel(str(self._tag), nowait=True)
            _requeue(raw)
            return
        if raw.channel is not self._channel:
            # Connected anew: the broker sends again what was not acknowledged.
            self._channel, self._waiting = raw.channel, 0
            if self._speaks_amqp:
                deliveries.group(raw.channel.connection)
        handler = self._handler
        self._taken += 1
        run = message = None
        try:
            body = envelope.bounded(raw, handler.bytes_max)
            if handler.undecoded is not None and not isinstance(body, Head):
                run = handler.undecoded(body)
            if run is not None:
                handler.run_undecoded(run, body)
            else:
                message = envelope.incoming(self._poller, body)
        except Exception as e:  # a foreign body may break a decoder in any way
            # Not requeued: it would break the next one, too.  The broker may dead-letter it.
            raw.channel.basic_reject(raw.delivery_tag, requeue=False)
            LOG.debug('a message cannot be decoded', exc_info=e)
            handler.undecodable(envelope.refusal(e), envelope.as_bytes(raw.body))
            return
        if message is None:
            self._handled(raw)
            return
        message.channel = raw.channel
        message.redelivered = bool(raw.delivery_info.get('redelivered'))
        method = message.method
        if message.is_whole_text and isinstance(method, str) and method in handler.repeatable:
            handler.handle(message)
            self._handled(raw)
            return
        message.keep(body)
        self._handled(raw)
        self._acknowledge()
        if message.unique_id is not None and message.unique_id in self._seen:
            LOG.info('a message came twice and is handled once: %s', message.unique_id)
            return
        self._seen.append(message.unique_id)
        handler.handle(message)

    def _handled(self, raw: Any) -> None:
        """Note that a message is to be acknowledged, with others that are there already."""
        self._last = raw.delivery_tag
        self._waiting += 1
        if self._waiting >= self._together:
            self._acknowledge()
        if self._speaks_amqp and not self._scheduled:
            self._scheduled = True
            self._poller._message_operations_handler.do(self._drain)

    def _drain(self) -> None:
        """Take all that has been read already, run by the listener between two messages."""
        try:
            rabbit_connection = self._poller.conn.connection
            amqp_connection = driver.opened(rabbit_connection)
            if amqp_connection is None:
                return
            broken = (*driver.AWAY, *rabbit_connection.connection.recoverable_connection_errors)
            with contextlib.suppress(
                *broken, *rabbit_connection.connection.recoverable_channel_errors
            ):
                # The library notices a broken connection with its next read.
                with rabbit_connection._connection_lock:
                    try:
                        is_empty = self._read_all(amqp_connection)
                    except amqp.ConsumerCancelled:
                        # The queue ended, and the connection did not: its next read would not
                        # show it.  The library declares and attaches all when it breaks.
                        driver.cut(amqp_connection)
                        return
                    self._acknowledge()
                if is_empty and self._gather_seconds:
                    time.sleep(self._gather_seconds)
        finally:
            self._scheduled = False

    def _read_all(self, connection: Any) -> bool:
        """Take the messages that are there; return whether no more are.

        :param connection: py-amqp's connection
        """
        self._taken = 0
        try:
            # Once for all messages: it costs two system calls.
            with connection.transport.having_timeout(LINGER_SECONDS):
                while self._taken < TAKEN_TOGETHER:
                    connection.drain_events()
        except TimeoutError:
            return True
        return False

    def _acknowledge(self) -> None:
        if self._waiting:
            self._waiting = 0
            self._channel.basic_ack(self._last, multiple=True)

    # -- the shared queue, paused ----------------------------------------------------------------
    @property
    def is_held(self) -> bool:
        """True where nothing is to be taken off the queue that other processes consume as well."""
        return self._held

    def hold(self, held: bool) -> None:
        """Stop taking from the shared queue, or take again; the listener's thread does it soon.

        The queues for this process alone are not affected.  Any thread may call it.
        """
        if self._held != held and self._speaks_amqp:
            self._held = held
            self._poller._message_operations_handler.do(self._apply)
            if self.lent is not None:
                self.lent.ask()

    def _apply(self) -> None:
        """Cancel or attach the shared queue, run by the listener between two messages."""
        rabbit_connection = self._poller.conn.connection
        with rabbit_connection._connection_lock:
            if not self._held:
                rabbit_connection._consumers[self._shared] = self._tag
                if not self._is_attached:  # else the tag would be in use
                    self._is_attached = True
                    rabbit_connection._new_tags.add(self._tag)
                return
            # Where the connection breaks the library attaches the consumers that it still has.
            rabbit_connection._consumers.pop(self._shared, None)
            rabbit_connection._new_tags.discard(self._tag)
            if self._is_attached:
                self._is_attached = False
                errors = rabbit_connection.connection.recoverable_connection_errors
                with contextlib.suppress(*driver.AWAY, *errors):
                    if rabbit_connection.channel is not None:
                        rabbit_connection.channel.basic_cancel(str(self._tag), nowait=True)


def _requeue(raw: Any) -> None:
    raw.channel.basic_reject(raw.delivery_tag, requeue=True)
