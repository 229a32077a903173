# SPDX-License-Identifier: Apache-2.0
"""Messages before the library decodes them: a bound on their size, and nothing lost in silence.

The library unpacks and decodes whatever comes, twice, however large it is; what
it cannot decode it logs with a traceback and throws away, and what it fails on
after it was acknowledged costs its listener a second.  Here a message is looked
at first: one that is compressed is unpacked up to the bound, of one beyond the
bound only the address for the answer is read, and whoever serves the topic is
told of what cannot be decoded.
"""

import bz2
import ctypes
import functools
import logging
import lzma
import re
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from oslo_messaging._drivers import impl_rabbit

from gantt import exceptions
from gantt.rpc.amqp import straight

LOG = logging.getLogger(__name__)

#: ``refused(error, body)``
Refused = Callable[[Exception, bytes], object]

#: As kombu names them; it knows some more where their libraries are installed.
_UNPACKERS: dict[str, Callable[[], Any]] = {
    'application/x-gzip': zlib.decompressobj,
    'application/x-bz2': bz2.BZ2Decompressor,
    'application/x-lzma': lzma.LZMADecompressor,
}

#: Where the library puts them: text inside of a text.
_ADDRESS = {
    '_msg_id': re.compile(rb'\\"_msg_id\\": *\\"([0-9a-f]{1,64})\\"'),
    '_reply_q': re.compile(rb'\\"_reply_q\\": *\\"([^"\\]{1,255})\\"'),
}


#: Of a body beyond the bound, for the address and for those who look at it later.
KEPT_BYTES = 1 << 16


class Head(bytes):
    """The beginning of a body that was too large to keep.

    :ivar size: bytes that it had
    """

    size: int


def size_of(body: bytes | str) -> int:
    """Bytes (of a text, characters) of a body as it came."""
    return body.size if isinstance(body, Head) else len(body)


def watch(listener: Any, limit: int, refused: Refused) -> bool:
    """Look at each message of a listener first.

    :param listener: of a server, before it starts, and before ``straight.take``
    :param limit: bytes that are decoded
    :param refused: told what is thrown away; called in the receiving thread, must not raise
    :returns: False where the driver has no such messages (the in-process broker)
    """
    connection = listener._poll_style_listener.conn.connection
    if connection.connection.transport.driver_name != 'py-amqp':
        return False
    for consumer in connection._consumers:
        consumer._callback = functools.partial(_receive, consumer, limit, refused)
    return True


def _receive(consumer: Any, limit: int, refused: Refused, raw: Any) -> None:
    """``Consumer._callback`` of the library.

    :param raw: py-amqp's message
    """
    try:
        message = _decoded(consumer, limit, raw)
        if isinstance(raw.body, Head):
            _give_back()
    except Exception as e:  # what a stranger wrote may break a decoder in any way
        # Not again: it would break the next one, too.  The broker may have a place for it.
        raw.channel.basic_reject(raw.delivery_tag, requeue=False)
        refused(_told(e), as_bytes(raw.body))
        return
    try:
        # It acknowledges first.
        consumer.callback(message)
    except Exception as e:
        if not message._raw_message.acknowledged:
            message._raw_message.reject()
        refused(_told(e), as_bytes(raw.body))


def _decoded(consumer: Any, limit: int, raw: Any) -> Any:
    headers = raw.properties.get('application_headers') or {}
    kind = headers.pop('compression', None)
    if kind:
        raw.body = _unpacked(as_bytes(raw.body), kind, limit)
    if len(raw.body) <= limit:
        return impl_rabbit.RabbitMessage(consumer.queue.channel.message_to_python(raw))
    message = impl_rabbit.RabbitMessage.__new__(impl_rabbit.RabbitMessage)
    message.update(_address(as_bytes(raw.body)))
    # The listener remembers its last message until the next one comes.
    raw.body = _head(raw.body)
    message._raw_message = consumer.queue.channel.message_to_python(raw)
    return message


def _head(body: bytes | str) -> Head:
    head = Head(as_bytes(body[:KEPT_BYTES]))
    head.size = len(body)
    return head


def _give_back() -> None:
    """Let the C library return what was freed to the system, where it has a word for that.

    By itself it keeps the pieces in which a large body came.
    """
    trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)
    if trim is not None:
        trim(0)


def _unpacked(body: bytes, kind: object, limit: int) -> bytes:
    """
    :raises PayloadTooLarge: it would be; no more than the limit was unpacked
    :raises InvalidMessage: it is compressed in a way that is not known here
    """
    make = _UNPACKERS.get(kind) if isinstance(kind, str) else None
    if make is None:
        known = ', '.join(_UNPACKERS)
        raise exceptions.InvalidMessage(
            field='compression', problem=f'{str(kind)[:50]!r} is not known here; known: {known}'
        )
    unpacker = make()
    # One byte more than allowed.
    found: bytes = unpacker.decompress(body, limit + 1)
    if len(found) > limit:
        raise exceptions.PayloadTooLarge(
            f'the message has {len(body)} bytes, and more than {limit} when it is unpacked',
            limit=limit,
        )
    if not unpacker.eof:
        raise exceptions.InvalidMessage(field='message', problem='ends in the middle')
    return found


def _address(body: bytes) -> dict[str, str]:
    """What an answer needs, found without decoding."""
    found = {name: pattern.search(body) for name, pattern in _ADDRESS.items()}
    return {name: match[1].decode(errors='replace') for name, match in found.items() if match}


def _told(error: Exception) -> Exception:
    if isinstance(error, exceptions.GanttError):
        return error
    LOG.debug('a message cannot be decoded', exc_info=error)
    said = ' '.join(str(error).split())[:200]
    return exceptions.InvalidMessage(
        field='message', problem=f'cannot be decoded: {type(error).__name__}: {said}'
    )


def as_bytes(body: bytes | str) -> bytes:
    """A body, which py-amqp decodes where it says that it is text."""
    return body.encode('utf-8', 'surrogatepass') if isinstance(body, str) else body


def original(incoming: Any) -> bytes:
    """The body of a message that was decoded, or what is left of it.

    :param incoming: the library's incoming message, or a ``straight.Letter``
    """
    if isinstance(incoming, straight.Letter):
        return msgspec.json.encode(incoming.message)
    body = getattr(getattr(incoming.message, '_raw_message', None), 'body', None)
    return as_bytes(body) if isinstance(body, bytes | str) else b''
