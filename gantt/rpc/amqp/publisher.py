# SPDX-License-Identifier: Apache-2.0
"""Messages that the broker confirms: one by one, or replies of a batch written at once.

All replies of a batch are written in one piece, and their confirms and returns are collected
afterwards.  The guarantee for each is the same: confirmed, returned, or unknown.
"""

import contextlib
import struct
import time
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import amqp
import kombu.compression

from gantt.rpc.amqp.connection import Connection

#: The broker confirms within milliseconds, or something is wrong with it.
CONFIRM_SECONDS = 10.0
#: Seconds after which a probe finds out whether the broker is slow, or one queue.
_PATIENCE_SECONDS = 2.0

#: Frames of AMQP 0-9-1 (sections 2.3.5 and 4.2): method, content header, body.
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b'\xce'
_BASIC, _PUBLISH, _MANDATORY = 60, 40, 1
_frame = struct.Struct('>BHI').pack
_content = struct.Struct('>HHQ').pack
#: Properties of oslo.messaging's messages: JSON in UTF-8, persistent, priority 0.  The
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


class Undeliverable(Exception):
    """An error where no queue is bound for a message."""


class Publisher:
    """A channel in confirm mode.

    Messages are numbered from 1 as the broker numbers them.
    """

    def __init__(self, connection: Connection) -> None:
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
        self, batch: Sequence[tuple[str, bytes]], probe_publisher: 'Publisher'
    ) -> PublishResult:
        """Publish (queue, body) pairs and wait for the broker's outcome of each.

        :param probe_publisher: another of the connection; a queue that is stuck may block this one
        :raises Exception: unknown; the connection is of no more use
        """
        first_number, now = self._number + 1, time.monotonic()
        self._write(batch)
        self._receive(now + _PATIENCE_SECONDS)
        if self._open:
            probe_publisher.probe_confirms(now + CONFIRM_SECONDS)
        missing, refused, stuck = (
            [number - first_number for number in sorted(numbers)]
            for numbers in (self._missing, self._refused - self._missing, self._open)
        )
        return PublishResult(missing, refused, stuck)

    def probe_confirms(self, end: float) -> None:
        """Have the broker confirm a message that has no queue to go to.

        :raises TimeoutError: it does not
        """
        self._write([(f'gantt-{uuid.uuid4().hex}', b'{}')])
        self._receive(end)
        if self._open:
            raise TimeoutError(f'the broker did not confirm within {CONFIRM_SECONDS:.0f} s')

    def publish(self, message: Any, exchange: str, key: str, seconds: float) -> None:
        """Publish a message and wait for the broker's confirm.

        :raises Undeliverable: no queue is bound for it
        :raises Exception: unknown; the connection is of no more use
        """
        self._begin()
        self._number += 1
        self._open.add(self._number)
        end = time.monotonic() + seconds
        self.channel.basic_publish(message, exchange=exchange, routing_key=key, mandatory=True)
        self._receive(end)
        if self._missing:
            raise Undeliverable(key)
        if self._refused:
            raise amqp.RecoverableConnectionError('the broker refused the message')
        if self._open:
            raise TimeoutError(f'the broker did not confirm within {seconds:.1f} s')

    def _begin(self) -> None:
        for waiting in (self._open, self._refused, self._missing):
            waiting.clear()

    def _write(self, batch: Sequence[tuple[str, bytes]]) -> None:
        self._begin()
        raw, frame_parts = self._connection.raw, []
        for queue, body in batch:
            self._number += 1
            self._open.add(self._number)
            frame_parts += frames(
                self.channel.channel_id, queue, body, str(self._number), raw.frame_max
            )
        self._connection.transport.write(b''.join(frame_parts))
        # Heartbeats rely on this.
        raw.bytes_sent += len(frame_parts)

    def _receive(self, end: float) -> None:
        """Wait until nothing is open, or the time is over."""
        while self._open:
            remaining = end - time.monotonic()
            if remaining <= 0:
                return
            with contextlib.suppress(TimeoutError):
                self._connection.wait(remaining)

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
        self._missing.add(int(message.properties.get('message_id', self._number)))


class _Publishers(NamedTuple):
    """Channels of one connection, as long as it is open."""

    own: Publisher
    probe_publisher: Publisher


def write(connection: Connection, batch: Sequence[tuple[str, bytes]]) -> PublishResult:
    """Write a batch of replies, (queue, body) pairs.

    :raises Exception: their outcome is unknown; each may be sent again, on another connection
    """
    publishers = _publishers(connection)
    outcomes = publishers.own.write(batch, publishers.probe_publisher)
    if outcomes.stuck:
        # The broker may not read this channel any more until that queue moves.
        connection.drop()
    return outcomes


def send(
    connection: Connection,
    exchange: str,
    key: str,
    body: bytes,
    *,
    compression: str | None = None,
    keep_seconds: float | None = None,
    seconds: float = CONFIRM_SECONDS,
) -> None:
    """Publish a message; the broker has it when this returns.

    :param compression: as ``kombu_compression``
    :param keep_seconds: after which the broker throws it away
    :param seconds: to wait for the broker's confirm
    :raises Undeliverable: no queue is bound for it
    :raises Exception: unknown; the connection is of no more use
    """
    headers = None
    if compression:
        body, kind = kombu.compression.compress(body, compression)
        headers = {'compression': kind}
    properties: dict[str, Any] = {'delivery_mode': 2}
    if keep_seconds is not None:
        properties['expiration'] = str(int(keep_seconds * 1000))
    # The broker within the process confirms nothing.
    publishers = _publishers(connection) if connection.is_amqp else None
    channel = publishers.own.channel if publishers is not None else connection.channel()
    message = channel.prepare_message(
        body,
        priority=0,
        content_type='application/json',
        content_encoding='utf-8',
        headers=headers,
        properties=properties,
    )
    if publishers is not None:
        publishers.own.publish(message, exchange, key, seconds)
    else:
        channel.basic_publish(message, exchange, key)
        channel.close()


def _publishers(connection: Connection) -> _Publishers:
    """Return the channels of a connection."""
    if connection.held is None:
        connection.held = _Publishers(Publisher(connection), Publisher(connection))
    publishers: _Publishers = connection.held
    return publishers
