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
MESSAGES_PER_READ_MAX = 64
#: Seconds to gather casts: no caller waits for them, and many are taken at once.
GATHER_SECONDS = 0.05
#: Last messages whose ids are kept: a sender that publishes again has sent one twice.
REMEMBERED_MESSAGE_IDS = 16


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

    def reject_undecodable(self, error: Exception, body: bytes) -> None:
        """Handle a body that is no message, and was rejected."""


class Consumer:
    """Consumer of one topic's queues: shared by all processes, of this process, of broadcasts.

    :param target: ``oslo_messaging.Target``: exchange, topic, server
    :ivar reader: its connection, by which the consumer is started and stopped
    """

    def __init__(self, carrier: Any, target: Any, handler: Handler) -> None:
        self._carrier = carrier
        self._handler = handler
        self._seen_message_ids: collections.deque[Any] = collections.deque(
            maxlen=REMEMBERED_MESSAGE_IDS
        )
        # Messages taken and not acknowledged yet.
        self._channel: Any = None
        self._last_delivery_tag = self._unacknowledged_count = 0
        self._is_held = False
        self._topic = target.topic
        connection, rabbit = carrier.connection(), carrier.rabbit
        self._is_amqp = connection.is_amqp
        self._messages_per_read = 1
        if self._is_amqp:
            prefetch = rabbit.rabbit_qos_prefetch_count
            # So that the broker goes on sending meanwhile.
            together_max = prefetch // 2 if prefetch else MESSAGES_PER_READ_MAX
            self._messages_per_read = max(1, min(MESSAGES_PER_READ_MAX, together_max))
        self._queues = queues.queues_of_topic(target.exchange, target.topic, target.server, rabbit)
        self.reader = QueueReader(
            connection,
            self._queues,
            self._receive,
            rabbit,
            f'rpc-{target.topic}',
            together=self._messages_per_read,
            taken=self._acknowledge,
            gather_seconds=GATHER_SECONDS if handler.undecoded is not None else 0.0,
        )

    @property
    def lendable_reader(self) -> QueueReader | None:
        """The consumer's connection, for another thread to read; None for the in-process broker."""
        return self.reader if self._is_amqp else None

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

        :raises OSError: the connection broke; the broker redelivers what was not acknowledged
        """
        if self._is_held and self.reader.requeue_if_held(raw):
            return
        if raw.channel is not self._channel:
            # Connected anew: the broker sends again what was not acknowledged.
            self._channel = raw.channel
            self._unacknowledged_count = 0
        queues.note_offset(queue, raw)
        handler = self._handler
        run = message = None
        try:
            body = envelope.bounded_body(raw, handler.bytes_max)
            if handler.undecoded is not None and not isinstance(body, Head):
                run = handler.undecoded(body)
            if run is not None:
                handler.run_undecoded(run, body)
            else:
                message = envelope.decode_message(self._carrier, body)
        except Exception as e:  # a foreign body may break a decoder in any way
            # Not requeued: it would break the next one, too.  The broker may dead-letter it.
            raw.channel.basic_reject(raw.delivery_tag, requeue=False)
            LOG.debug('Message cannot be decoded and is rejected', exc_info=e)
            handler.reject_undecodable(envelope.decode_refusal(e), envelope.as_bytes(raw.body))
            return
        if message is None:
            self._note_handled(raw)
            return
        message.channel = raw.channel
        message.redelivered = bool(raw.delivery_info.get('redelivered'))
        method = message.method
        if message.is_whole_text and isinstance(method, str) and method in handler.repeatable:
            handler.handle(message)
            self._note_handled(raw)
            return
        message.keep(body)
        self._note_handled(raw)
        self._acknowledge()
        if message.unique_id is not None and message.unique_id in self._seen_message_ids:
            LOG.info('Message arrived twice and is handled once: unique_id=%s', message.unique_id)
            return
        self._seen_message_ids.append(message.unique_id)
        handler.handle(message)

    def _note_handled(self, raw: Any) -> None:
        """Record that a message is to be acknowledged, together with others that have arrived."""
        self._last_delivery_tag = raw.delivery_tag
        self._unacknowledged_count += 1
        if self._unacknowledged_count >= self._messages_per_read:
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._unacknowledged_count:
            self._unacknowledged_count = 0
            self._channel.basic_ack(self._last_delivery_tag, multiple=self._is_amqp)

    # -- the shared queue, paused ----------------------------------------------------------------
    @property
    def is_held(self) -> bool:
        """True where consuming of the queue shared with other processes is suspended."""
        return self._is_held

    def hold(self, held: bool) -> None:
        """Suspend consuming of the shared queue, or resume it; the reader's thread does so soon.

        The queues that only this process reads are not affected.  Any thread may call it.
        """
        if self._is_held != held and self._is_amqp:
            self._is_held = held
            self.reader.hold([self._topic] if held else [])
