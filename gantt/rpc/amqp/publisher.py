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
_PROBE_AFTER_SECONDS = 2.0

#: Frames of AMQP 0-9-1 (sections 2.3.5 and 4.2): method, content header, body.
_METHOD_FRAME, _HEADER_FRAME, _BODY_FRAME, _FRAME_END_MARK = 1, 2, 3, b'\xce'
_BASIC_CLASS, _PUBLISH_METHOD, _MANDATORY_BIT = 60, 40, 1
_pack_frame_header = struct.Struct('>BHI').pack
_pack_content_header = struct.Struct('>HHQ').pack
#: Properties of oslo.messaging's messages: JSON in UTF-8, persistent, priority 0.  The
#: last bit of the flags is that of the message id, which follows.
_PROPERTY_FLAGS = 1 << 15 | 1 << 14 | 1 << 12 | 1 << 11 | 1 << 7
_PACKED_PROPERTIES = struct.pack('>H', _PROPERTY_FLAGS) + b'\x10application/json\x05utf-8\x02\x00'


def frames(channel: int, queue: str, body: bytes, message_id: str, frame_bytes: int) -> list[bytes]:
    """Return a mandatory publish to a queue through the default exchange, as AMQP frames.

    :param frame_bytes: longest frame that was agreed on with the broker
    """
    key, name = queue.encode(), message_id.encode()
    method = struct.pack('>HHHB', _BASIC_CLASS, _PUBLISH_METHOD, 0, 0) + bytes([len(key)]) + key
    header = (
        _pack_content_header(_BASIC_CLASS, 0, len(body))
        + _PACKED_PROPERTIES
        + bytes([len(name)])
        + name
    )
    frame_parts = [
        _pack_frame_header(_METHOD_FRAME, channel, len(method) + 1),
        method,
        bytes([_MANDATORY_BIT]),
        _FRAME_END_MARK,
        _pack_frame_header(_HEADER_FRAME, channel, len(header)),
        header,
        _FRAME_END_MARK,
    ]
    part_bytes = frame_bytes - 8
    for start in range(0, len(body), part_bytes):
        part = body[start : start + part_bytes]
        frame_parts += (_pack_frame_header(_BODY_FRAME, channel, len(part)), part, _FRAME_END_MARK)
    return frame_parts


class PublishResult(NamedTuple):
    """Outcome of a batch, as indices; the rest is confirmed.

    :ivar missing: replies whose queue does not exist
    :ivar refused: replies that the broker rejected
    :ivar stuck: replies that the broker, which works, does not confirm: their queue is stuck
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
        self._last_number = 0
        self._unconfirmed: set[int] = set()
        self._refused: set[int] = set()
        self._missing: set[int] = set()

    def write(
        self, batch: Sequence[tuple[str, bytes]], probe_publisher: 'Publisher'
    ) -> PublishResult:
        """Publish (queue, body) pairs and wait for the broker's outcome of each.

        :param probe_publisher: another publisher of the connection, as a stuck queue may block this
            one
        :raises Exception: unknown; the connection is of no more use
        """
        first_number, now = self._last_number + 1, time.monotonic()
        self._write(batch)
        self._receive(now + _PROBE_AFTER_SECONDS)
        if self._unconfirmed:
            probe_publisher.probe_confirms(now + CONFIRM_SECONDS)
        missing, refused, stuck = (
            [number - first_number for number in sorted(numbers)]
            for numbers in (self._missing, self._refused - self._missing, self._unconfirmed)
        )
        return PublishResult(missing, refused, stuck)

    def probe_confirms(self, end: float) -> None:
        """Check that the broker confirms a message, one that has no queue to go to.

        :raises TimeoutError: the broker does not confirm it
        """
        self._write([(f'gantt-{uuid.uuid4().hex}', b'{}')])
        self._receive(end)
        if self._unconfirmed:
            raise TimeoutError(f'the broker did not confirm within {CONFIRM_SECONDS:.0f} s')

    def publish(self, message: Any, exchange: str, key: str, seconds: float) -> None:
        """Publish a message and wait for the broker's confirm.

        :raises Undeliverable: no queue is bound for it
        :raises Exception: unknown; the connection is of no more use
        """
        self._begin()
        self._last_number += 1
        self._unconfirmed.add(self._last_number)
        end = time.monotonic() + seconds
        self.channel.basic_publish(message, exchange=exchange, routing_key=key, mandatory=True)
        self._receive(end)
        if self._missing:
            raise Undeliverable(key)
        if self._refused:
            raise amqp.RecoverableConnectionError('the broker refused the message')
        if self._unconfirmed:
            raise TimeoutError(f'the broker did not confirm within {seconds:.1f} s')

    def _begin(self) -> None:
        for waiting in (self._unconfirmed, self._refused, self._missing):
            waiting.clear()

    def _write(self, batch: Sequence[tuple[str, bytes]]) -> None:
        self._begin()
        raw, frame_parts = self._connection.raw, []
        for queue, body in batch:
            self._last_number += 1
            self._unconfirmed.add(self._last_number)
            frame_parts += frames(
                self.channel.channel_id, queue, body, str(self._last_number), raw.frame_max
            )
        self._connection.transport.write(b''.join(frame_parts))
        # Heartbeats rely on this.
        raw.bytes_sent += len(frame_parts)

    def _receive(self, end: float) -> None:
        """Wait until every message is confirmed, or the time is over."""
        while self._unconfirmed:
            remaining = end - time.monotonic()
            if remaining <= 0:
                return
            with contextlib.suppress(TimeoutError):
                self._connection.wait(remaining)

    def _numbers(self, tag: int, multiple: bool) -> set[int]:
        return {n for n in self._unconfirmed if n <= tag} if multiple else {tag}

    def _acked(self, tag: int, multiple: bool) -> None:
        self._unconfirmed -= self._numbers(tag, multiple)

    def _nacked(self, tag: int, multiple: bool) -> None:
        numbers = self._numbers(tag, multiple)
        self._refused |= numbers
        self._unconfirmed -= numbers

    def _returned(self, _error: Any, _exchange: str, _queue: str, message: Any) -> None:
        # A confirm follows a return.
        self._missing.add(int(message.properties.get('message_id', self._last_number)))


def write_replies(connection: Connection, batch: Sequence[tuple[str, bytes]]) -> PublishResult:
    """Write a batch of replies, (queue, body) pairs.

    :raises Exception: their outcome is unknown; each may be sent again, on another connection
    """
    publisher, probe_publisher = _publishers(connection)
    outcomes = publisher.write(batch, probe_publisher)
    if outcomes.stuck:
        # The broker may not read this channel any more until that queue moves.
        connection.drop()
    return outcomes


def publish(
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
    :param keep_seconds: seconds after which the broker drops the message
    :param seconds: how long to wait for the broker's confirm
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
    publisher = _publishers(connection)[0] if connection.is_amqp else None
    channel = publisher.channel if publisher is not None else connection.channel()
    message = channel.prepare_message(
        body,
        priority=0,
        content_type='application/json',
        content_encoding='utf-8',
        headers=headers,
        properties=properties,
    )
    if publisher is not None:
        publisher.publish(message, exchange, key, seconds)
    else:
        channel.basic_publish(message, exchange, key)
        channel.close()


def _publishers(connection: Connection) -> tuple[Publisher, Publisher]:
    """Return the publisher of a connection and that of its probes, as long as it is open."""
    if connection.held is None:
        connection.held = Publisher(connection), Publisher(connection)
    publishers: tuple[Publisher, Publisher] = connection.held
    return publishers
