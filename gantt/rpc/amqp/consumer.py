# SPDX-License-Identifier: Apache-2.0
"""Consumer of a topic: from the bytes on the wire to a handler, and the acknowledgement.

Every message takes one path: bound on the size, decoding, handler, acknowledgement (``reader``
has the connection, ``deliveries`` takes messages off the wire).  Messages that may be run twice
(the broker sends again what was not acknowledged when a connection breaks) are taken together with
those that follow and acknowledged after they were handled; all others before.
"""

import collections
import logging
from collections.abc import Callable
from typing import Any, Protocol

from gantt.rpc.amqp import envelope, queues
from gantt.rpc.amqp.envelope import Head, Incoming
from gantt.rpc.amqp.reader import QueueReader

LOG = logging.getLogger(__name__)

#: Messages taken by one read at most.
TAKEN_TOGETHER = 64
#: Seconds to gather casts: no caller waits for them, and many are taken at once.
GATHER_SECONDS = 0.05
#: Last messages whose ids are kept: a sender that publishes again has sent one twice.
REMEMBERED = 16


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

    :param target: ``oslo_messaging.Target``: exchange, topic, server
    """

    def __init__(self, carrier: Any, target: Any, handler: Handler) -> None:
        self._carrier = carrier
        self._handler = handler
        self._seen: collections.deque[Any] = collections.deque(maxlen=REMEMBERED)
        # Messages taken and not acknowledged yet.
        self._channel: Any = None
        self._last = self._waiting = 0
        self._held = False
        self._topic = target.topic
        connection, rabbit = carrier.connection(), carrier.rabbit
        self._is_amqp = connection.is_amqp
        self._together = 1
        if self._is_amqp:
            prefetch = rabbit.rabbit_qos_prefetch_count
            # So that the broker goes on sending meanwhile.
            together_max = prefetch // 2 if prefetch else TAKEN_TOGETHER
            self._together = max(1, min(TAKEN_TOGETHER, together_max))
        self._queues = queues.of_topic(target.exchange, target.topic, target.server, rabbit)
        self.reader = QueueReader(
            connection,
            self._queues,
            self._receive,
            rabbit,
            f'rpc-{target.topic}',
            together=self._together,
            taken=self._acknowledge,
            gather_seconds=GATHER_SECONDS if handler.undecoded is not None else 0.0,
        )

    def start(self) -> None:
        """Declare the queues and consume.  A broker that is away is tried again and again.

        :raises Exception: the broker refuses
        """
        self.reader.start()

    @property
    def lent(self) -> QueueReader | None:
        """Its connection, for a thread that reads it itself; None within a process."""
        return self.reader if self._is_amqp else None

    @property
    def channel(self) -> Any:
        """Its channel, new after each reconnection; None before the start and after the end."""
        return self.reader.channel

    def stop(self) -> None:
        """Stop consuming.  May take a second."""
        self.reader.stop()

    def close(self) -> None:
        """Acknowledge all that was received, and let go of the connection."""
        self.reader.close(self._forget_broadcasts)

    def _forget_broadcasts(self, channel: Any) -> None:
        """Delete the queue of broadcasts, unless another process goes on with it."""
        rabbit = self._carrier.rabbit
        if not rabbit.rabbit_stream_fanout and not rabbit.use_queue_manager:
            channel.queue_delete(self._queues[-1].name)

    # -- one message ---------------------------------------------------------------------------
    def _receive(self, queue: queues.Queue, raw: Any) -> None:
        """Handle a message, in the thread that reads.

        :raises OSError: the connection broke; what was not acknowledged comes again
        """
        if self._held and self.reader.give_back(raw):
            return
        if raw.channel is not self._channel:
            # Connected anew: the broker sends again what was not acknowledged.
            self._channel, self._waiting = raw.channel, 0
        queues.note_offset(queue, raw)
        handler = self._handler
        run = message = None
        try:
            body = envelope.bounded(raw, handler.bytes_max)
            if handler.undecoded is not None and not isinstance(body, Head):
                run = handler.undecoded(body)
            if run is not None:
                handler.run_undecoded(run, body)
            else:
                message = envelope.incoming(self._carrier, body)
        except Exception as e:  # a foreign body may break a decoder in any way
            # Not requeued: it would break the next one, too.  The broker may dead-letter it.
            raw.channel.basic_reject(raw.delivery_tag, requeue=False)
            LOG.debug('Message cannot be decoded and is rejected', exc_info=e)
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
            LOG.info('Message arrived twice and is handled once: unique_id=%s', message.unique_id)
            return
        self._seen.append(message.unique_id)
        handler.handle(message)

    def _handled(self, raw: Any) -> None:
        """Note that a message is to be acknowledged, with others that are there already."""
        self._last = raw.delivery_tag
        self._waiting += 1
        if self._waiting >= self._together:
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._waiting:
            self._waiting = 0
            self._channel.basic_ack(self._last, multiple=self._is_amqp)

    # -- the shared queue, paused ----------------------------------------------------------------
    @property
    def is_held(self) -> bool:
        """True where nothing is to be taken off the queue that other processes consume as well."""
        return self._held

    def hold(self, held: bool) -> None:
        """Stop taking from the shared queue, or take again; the reader's thread does it soon.

        The queues for this process alone are not affected.  Any thread may call it.
        """
        if self._held != held and self._is_amqp:
            self._held = held
            self.reader.hold([self._topic] if held else [])
