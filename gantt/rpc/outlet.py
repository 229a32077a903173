# SPDX-License-Identifier: Apache-2.0
"""Our own channel for replies: a batch written at once, confirmed together.

The library waits for the broker's confirm after each reply.  Here all replies
of a batch are written to a channel of their own on one of the library's
connections, in one piece, and their confirms and returns are collected
afterwards.  What the broker promises per reply is the same: confirmed,
returned, or unknown.
"""

import contextlib
import struct
import time
import weakref
from collections.abc import Sequence
from typing import Any

from gantt import exceptions
from gantt.rpc import driver

#: The broker confirms within milliseconds, or something is wrong with it.
_CONFIRM_SECONDS = 10.0

#: Frames of AMQP 0-9-1 (sections 2.3.5 and 4.2): method, content header, body.
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b'\xce'
_BASIC, _PUBLISH, _MANDATORY = 60, 40, 1
_frame = struct.Struct('>BHI').pack
_content = struct.Struct('>HHQ').pack
#: What the library says of a message: JSON in UTF-8, persistent, priority 0.  The
#: last bit of the flags stands for the message id, which follows.
_FLAGS = 1 << 15 | 1 << 14 | 1 << 12 | 1 << 11 | 1 << 7
_PROPERTIES = struct.pack('>H', _FLAGS) + b'\x10application/json\x05utf-8\x02\x00'


def frames(channel: int, queue: str, body: bytes, message_id: str, frame_bytes: int) -> list[bytes]:
    """A mandatory publish to a queue through the default exchange, as AMQP frames.

    :param frame_bytes: longest frame that was agreed on with the broker
    """
    key, name = queue.encode(), message_id.encode()
    method = struct.pack('>HHHB', _BASIC, _PUBLISH, 0, 0) + bytes([len(key)]) + key
    header = _content(_BASIC, 0, len(body)) + _PROPERTIES + bytes([len(name)]) + name
    made = [
        _frame(_METHOD, channel, len(method) + 1), method, bytes([_MANDATORY]), _END,
        _frame(_HEADER, channel, len(header)), header, _END,
    ]  # fmt: skip
    most = frame_bytes - 8
    for start in range(0, len(body), most):
        part = body[start : start + most]
        made += (_frame(_BODY, channel, len(part)), part, _END)
    return made


class Outlet:
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

    def write(self, batch: Sequence[tuple[str, bytes]]) -> tuple[list[int], list[int]]:
        """Publish (queue, body) pairs and wait until the broker has said what became of each.

        :returns: indices of what has no queue, and of what the broker would not take
        :raises OSError and what ``driver.AWAY`` names: unknown; the channel is of no more use
        """
        first = self._number + 1
        self._refused.clear()
        self._missing.clear()
        below, made = self.channel.connection, []
        for queue, body in batch:
            self._number += 1
            self._open.add(self._number)
            made += frames(
                self.channel.channel_id, queue, body, str(self._number),
                below.frame_max,
            )  # fmt: skip
        below.transport.write(b''.join(made))
        # The library's heartbeats go by this.
        below.bytes_sent += len(made)
        end = time.monotonic() + _CONFIRM_SECONDS
        while self._open:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f'the broker did not confirm within {_CONFIRM_SECONDS:.0f} s')
            self._connection.drain_events(timeout=left)
        return (
            [number - first for number in sorted(self._missing)],
            [number - first for number in sorted(self._refused - self._missing)],
        )

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


#: Connection below the library's -> its outlet, as long as it has the same socket.
_OUTLETS: 'weakref.WeakKeyDictionary[Any, tuple[Any, Outlet]]' = weakref.WeakKeyDictionary()


def can_batch(connection: Any) -> bool:
    """Whether the library's connection speaks AMQP (the in-process broker does not)."""
    return connection.connection.transport.driver_name == 'py-amqp'


def write(connection: Any, batch: Sequence[tuple[str, bytes]]) -> tuple[list[int], list[int]]:
    """Write a batch of replies on one of the library's connections.

    :param connection: from ``driver.sender``
    :raises BrokerUnavailable: unknown what became of them; each may be sent again
    """
    try:
        with connection._connection_lock:
            if not connection.connection.connected:
                connection.ensure_connection()
            return _outlet(connection.connection).write(batch)
    except (*driver.AWAY, *connection.connection.recoverable_connection_errors) as e:
        with contextlib.suppress(Exception):
            _OUTLETS.pop(connection.connection, None)
        driver.forget(connection)
        raise exceptions.BrokerUnavailable(url='', problem=str(e) or repr(e)) from None


def _outlet(kombu_connection: Any) -> Outlet:
    """The outlet of a connection; a new one where the connection was made anew."""
    socket = kombu_connection.connection
    found = _OUTLETS.get(kombu_connection)
    if found is None or found[0] is not socket or found[1].channel.connection is None:
        found = _OUTLETS[kombu_connection] = (socket, Outlet(kombu_connection))
    return found[1]
