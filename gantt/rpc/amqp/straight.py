# SPDX-License-Identifier: Apache-2.0
"""Messages taken off a listener before the library decodes them.

The library reads each frame in three pieces, acknowledges each message by
itself and decodes it by a slow decoder, twice.  What has a method that may be
run twice (the broker sends again what was not acknowledged when a connection
breaks) is taken here instead, as many as there are, and acknowledged together.
Whatever is unusual about a message leaves it to the library and to the checks
that follow it.
"""

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import msgspec
import oslo_messaging as om
from kombu.exceptions import OperationalError

#: Bytes asked for at once, where the library would read each frame in three pieces.
READ_AHEAD = 1 << 16
#: Messages taken before the library has its turn again.
TAKEN_TOGETHER = 64
#: Seconds to wait for one more message before the library is asked to, which takes long.
LINGER_SECONDS = 0.01

_AWAY = (om.MessageDeliveryFailure, OperationalError, OSError)
_CONTEXT = '_context_'


class Letter:
    """A call as the library hands it over, decoded by a faster decoder.

    Has what ``Call`` and the replies read of the library's incoming message.
    """

    __slots__ = (
        'client_timeout',
        'ctxt',
        'listener',
        'message',
        'msg_id',
        'orig_msg_id',
        'redelivered',
        'reply_q',
        'size',
    )

    def __init__(
        self, listener: Any, body: dict[str, Any], size: int, redelivered: bool = False
    ) -> None:
        self.listener = listener
        self.redelivered = redelivered
        self.size = size
        self.msg_id = self.orig_msg_id = body.pop('_msg_id', None)
        self.reply_q = body.pop('_reply_q', None)
        self.client_timeout = body.pop('_timeout', None)
        first = len(_CONTEXT)
        self.ctxt = {k[first:]: v for k, v in body.items() if k.startswith(_CONTEXT)}
        self.message = body


class _Envelope(msgspec.Struct):
    version: str = msgspec.field(name='oslo.version')
    message: str = msgspec.field(name='oslo.message')


_envelope = msgspec.json.Decoder(_Envelope).decode
_anything = msgspec.json.Decoder().decode


def letter(listener: Any, body: bytes | str, redelivered: bool = False) -> Letter | None:
    """The call in a body; None where the body is not what the library writes.

    :param listener: the library's, on which it came
    :param redelivered: another process had it before, and did not acknowledge it
    """
    try:
        envelope = _envelope(body)
        if envelope.version != '2.0':
            return None
        found = _anything(envelope.message)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return Letter(listener, found, len(body), redelivered) if isinstance(found, dict) else None


def take(listener: Any, door: Callable[[Any, Any], bool], gather_seconds: float) -> bool:
    """Let ``door`` see each message of py-amqp first; what it declines goes the usual way.

    :param listener: of a server, before it starts
    :param door: called in the receiving thread with the library's listener and a message, must
        not raise; True: it is dealt with
    :param gather_seconds: to let more messages come when none is there: waking up costs more
        than one takes.  0 where somebody waits for the answer
    :returns: False where the driver has no such bodies (the in-process broker)
    """
    poller = listener._poll_style_listener
    connection = poller.conn.connection
    if connection.connection.transport.driver_name != 'py-amqp':
        return False
    straight = _Straight(poller, door, gather_seconds)
    for consumer in connection._consumers:
        consumer._callback = functools.partial(straight.on_message, consumer._callback)
    return True


class _Straight:
    """Takes messages off a listener; all in its receiving thread.

    What was taken is acknowledged together when no more is there, after it was
    dealt with: a message may come twice after a broken connection, but none is lost.
    With a bounded prefetch that happens at half of it at the latest, so that the
    broker goes on sending meanwhile.
    """

    def __init__(
        self, poller: Any, door: Callable[[Any, Any], bool], gather_seconds: float
    ) -> None:
        self._poller = poller
        self._door = door
        self._gather_seconds = gather_seconds
        prefetch = poller.conn.connection.rabbit_qos_prefetch_count
        self._together = max(1, min(TAKEN_TOGETHER, prefetch // 2)) if prefetch else TAKEN_TOGETHER
        self._channel: Any = None
        self._last = 0
        self._waiting = 0
        self._taken = 0
        self._scheduled = False

    def on_message(self, usual: Callable[[Any], None], message: Any) -> None:
        """Called in place of the library's own callback, ``usual``."""
        if message.channel is not self._channel:
            # Connected anew: the broker sends again what was not acknowledged.
            self._channel, self._waiting = message.channel, 0
            read_ahead(message.channel.connection.transport)
        if not self._door(self._poller, message):
            # The library acknowledges each message by itself: first those before it.
            self._acknowledge()
            usual(message)
            return
        self._last = message.delivery_info['delivery_tag']
        self._waiting += 1
        self._taken += 1
        if self._waiting >= self._together:
            self._acknowledge()
        if not self._scheduled:
            self._scheduled = True
            self._poller._message_operations_handler.do(self._drain)

    def _drain(self) -> None:
        """Run by the listener between two messages: take all that has been read already."""
        try:
            conn = self._poller.conn.connection
            broken = (*_AWAY, *conn.connection.recoverable_connection_errors)
            with contextlib.suppress(*broken, *conn.connection.recoverable_channel_errors):
                # Of a broken connection the library hears with its next read.
                with conn._connection_lock:
                    is_empty = self._read_all(conn.connection.connection)
                    self._acknowledge()
                if is_empty and self._gather_seconds and not self._poller.incoming:
                    time.sleep(self._gather_seconds)
        finally:
            self._scheduled = False

    def _read_all(self, connection: Any) -> bool:
        """Whether no more is there.

        :param connection: py-amqp's
        """
        self._taken = 0
        try:
            # Once for all messages: it costs two system calls.
            with connection.transport.having_timeout(LINGER_SECONDS):
                while self._taken < TAKEN_TOGETHER and not self._poller.incoming:
                    connection.drain_events()
        except TimeoutError:
            return True
        return False

    def _acknowledge(self) -> None:
        if self._waiting:
            self._waiting = 0
            self._channel.basic_ack(self._last, multiple=True)


def read_ahead(transport: Any) -> None:
    """Let a connection read as much as is there; what is not asked for yet, it keeps."""
    receive = transport._quick_recv
    if not isinstance(receive, functools.partial):
        transport._quick_recv = functools.partial(_receive, receive)


def _receive(receive: Callable[[int], bytes], size: int) -> bytes:
    return receive(max(size, READ_AHEAD))
