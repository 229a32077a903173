# SPDX-License-Identifier: Apache-2.0
"""A channel of our own for replies: a batch written at once, confirmed together.

The library waits for the broker's confirm after each reply.  Here all replies
of a batch are written to a channel of their own on one of the library's
connections, in one piece, and their confirms and returns are collected
afterwards.  The broker's guarantee per reply is the same: confirmed, returned,
or unknown.
"""

import contextlib
import struct
import time
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from gantt.rpc.amqp import driver

#: The broker confirms within milliseconds, or something is wrong with it.
_CONFIRM_SECONDS = 10.0
#: Seconds after which a probe finds out whether the broker is slow, or one queue.
_PATIENCE_SECONDS = 2.0

#: Frames of AMQP 0-9-1 (sections 2.3.5 and 4.2): method, content header, body.
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b'\xce'
_BASIC, _PUBLISH, _MANDATORY = 60, 40, 1
_frame = struct.Struct('>BHI').pack
_content = struct.Struct('>HHQ').pack
#: Properties of the library's messages: JSON in UTF-8, persistent, priority 0.  The
#: last bit of the flags is that of the message id, which follows.
_FLAGS = 1 << 15 | 1 << 14 | 1 << 12 | 1 << 11 | 1 << 7
_PROPERTIES = struct.pack('>H', _FLAGS) + b'\x10application/json\x05utf-8\x02\x00'


def frames(channel: int, queue: str, body: bytes, message_id: str, frame_bytes: int) -> list[bytes]:
    """Return a mandatory publish to a queue through the default exchange, as AMQP frames.

    :param frame_bytes: longest frame that was agreed on with the broker
    """
    key, name = queue.encode(), message_id.encode()
    method = struct.pack('>HHHB', _BASIC, _PUBLISH, 0, 0) + bytes([len(key)]) + key
    header = _content(_BASIC, 0, len(body)) + _PROPERTIES + bytes([len(name)]) + name
    frame_parts = [
        _frame(_METHOD, channel, len(method) + 1),
        method,
        bytes([_MANDATORY]),
        _END,
        _frame(_HEADER, channel, len(header)),
        header,
        _END,
    ]
    part_bytes = frame_bytes - 8
    for start in range(0, len(body), part_bytes):
        part = body[start : start + part_bytes]
        frame_parts += (_frame(_BODY, channel, len(part)), part, _END)
    return frame_parts


class PublishResult(NamedTuple):
    """Outcome of a batch, as indices; the rest is confirmed.

    :ivar missing: its queue does not exist
    :ivar refused: the broker would not take it
    :ivar stuck: the broker works and does not confirm it: its queue is stuck
    """

    missing: list[int]
    refused: list[int]
    stuck: list[int]


class ReplyPublisher:
    """A channel in confirm mode; used under the lock of its connection.

    Messages are numbered from 1 as the broker numbers them.
    """

    def __init__(self, connection: Any) -> None:
        self.channel = connection.channel()
        self.channel.confirm_select()
        self.channel.events['basic_ack'].add(self._acked)
        self.channel.events['basic_nack'].add(self._nacked)
        self.channel.events['basic_return'].add(self._returned)
        self._connection = connection
        self._number = 0
        self._open: set[int] = set()
        self._refused: set[int] = set()
        self._missing: set[int] = set()

    def write(
        self, batch: Sequence[tuple[str, bytes]], probe_publisher: 'ReplyPublisher'
    ) -> PublishResult:
        """Publish (queue, body) pairs and wait for the broker's outcome of each.

        :param probe_publisher: another of the connection; a queue that is stuck may block this one
        :raises OSError and those in ``driver.AWAY``: unknown; the channel is of no more use
        """
        first_number, now = self._number + 1, time.monotonic()
        self._publish(batch)
        self._receive(now + _PATIENCE_SECONDS)
        if self._open:
            probe_publisher.probe_confirms(now + _CONFIRM_SECONDS)
        missing, refused, stuck = (
            [number - first_number for number in sorted(numbers)]
            for numbers in (self._missing, self._refused - self._missing, self._open)
        )
        return PublishResult(missing, refused, stuck)

    def probe_confirms(self, end: float) -> None:
        """Have the broker confirm a message that has no queue to go to.

        :raises TimeoutError: it does not
        """
        self._publish([(f'gantt-{uuid.uuid4().hex}', b'{}')])
        self._receive(end)
        if self._open:
            raise TimeoutError(f'the broker did not confirm within {_CONFIRM_SECONDS:.0f} s')

    def _publish(self, batch: Sequence[tuple[str, bytes]]) -> None:
        for waiting in (self._open, self._refused, self._missing):
            waiting.clear()
        amqp_connection, frame_parts = self.channel.connection, []
        for queue, body in batch:
            self._number += 1
            self._open.add(self._number)
            frame_parts += frames(
                self.channel.channel_id,
                queue,
                body,
                str(self._number),
                amqp_connection.frame_max,
            )
        amqp_connection.transport.write(b''.join(frame_parts))
        # The library's heartbeats rely on this.
        amqp_connection.bytes_sent += len(frame_parts)

    def _receive(self, end: float) -> None:
        """Wait until nothing is open, or the time is over."""
        while self._open:
            remaining = end - time.monotonic()
            if remaining <= 0:
                return
            with contextlib.suppress(TimeoutError):
                self._connection.drain_events(timeout=remaining)

    def _numbers(self, tag: int, multiple: bool) -> set[int]:
        return {n for n in self._open if n <= tag} if multiple else {tag}

    def _acked(self, tag: int, multiple: bool) -> None:
        self._open -= self._numbers(tag, multiple)

    def _nacked(self, tag: int, multiple: bool) -> None:
        numbers = self._numbers(tag, multiple)
        self._refused |= numbers
        self._open -= numbers

    def _returned(self, _error: Any, _exchange: str, _queue: str, message: Any) -> None:
        # A confirm follows a return.
        self._missing.add(int(message.properties['message_id']))


class _Publishers(NamedTuple):
    """Channels of one connection, as long as it has the same socket."""

    socket: Any
    own: ReplyPublisher
    probe_publisher: ReplyPublisher


#: Attribute of the connection below the library's that holds its channels.  They refer to
#: it: any other holder would keep it for ever.
_HELD = '_gantt_outlets'


def can_batch(connection: Any) -> bool:
    """Return whether the library's connection speaks AMQP (the in-process broker does not)."""
    return connection.connection.transport.driver_name == 'py-amqp'


def write(connection: Any, batch: Sequence[tuple[str, bytes]]) -> PublishResult:
    """Write a batch of replies on one of the library's connections.

    :param connection: from ``driver.sender``
    :raises BrokerUnavailable: their outcome is unknown; each may be sent again
    """
    try:
        with connection._connection_lock:
            if not connection.connection.connected:
                connection.ensure_connection()
            publishers = _publishers(connection.connection)
            outcomes = publishers.own.write(batch, publishers.probe_publisher)
    except (*driver.AWAY, *connection.connection.recoverable_connection_errors) as e:
        _give_up(connection)
        raise driver.away(connection, e) from None
    if outcomes.stuck:
        # The broker may not read this channel any more until that queue moves.
        _give_up(connection)
    return outcomes


def _give_up(connection: Any) -> None:
    with contextlib.suppress(Exception):
        setattr(connection.connection, _HELD, None)
    driver.forget(connection)


def _publishers(kombu_connection: Any) -> _Publishers:
    """Return the channels of a connection; new ones where it has reconnected."""
    socket = kombu_connection.connection
    pair: _Publishers | None = getattr(kombu_connection, _HELD, None)
    if pair is None or pair.socket is not socket or pair.own.channel.connection is None:
        pair = _Publishers(
            socket, ReplyPublisher(kombu_connection), ReplyPublisher(kombu_connection)
        )
        setattr(kombu_connection, _HELD, pair)
    return pair
