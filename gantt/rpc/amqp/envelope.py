# SPDX-License-Identifier: Apache-2.0
"""oslo.messaging's envelope around each message: read for all who consume, and written.

The library unpacks and decodes whatever comes, twice, however large it is.  Here a body is
looked at first: one that is compressed is unpacked up to a bound, and of one beyond the bound
only the address for the answer is read.
"""

import bz2
import ctypes
import json
import lzma
import re
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from gantt import exceptions

VERSION = '2.0'
#: Of a body beyond the bound, for the address and for those who look at it later.
STORED_BYTES = 1 << 16
_CONTEXT = '_context_'

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


class Incoming:
    """A message as it came, with what calls and replies read of it.

    :ivar listener: the library's, on which it came
    :ivar size: bytes of the body
    :ivar is_whole_text: its decoder has refused half characters already
    :ivar redelivered: another process had it before, and did not acknowledge it
    :ivar channel: another one after the consumer was attached anew to the broker
    """

    __slots__ = (
        '_body',
        'channel',
        'client_timeout',
        'ctxt',
        'is_whole_text',
        'listener',
        'message',
        'msg_id',
        'orig_msg_id',
        'redelivered',
        'reply_q',
        'size',
        'unique_id',
    )

    def __init__(self, listener: Any, message: dict[str, Any], size: int = 0) -> None:
        self.listener = listener
        self.size = size
        self.is_whole_text = True
        self.redelivered = False
        self.channel: Any = None
        self._body: bytes | str = b''
        self.unique_id = message.pop('_unique_id', None)
        self.msg_id = self.orig_msg_id = message.pop('_msg_id', None)
        self.reply_q = message.pop('_reply_q', None)
        self.client_timeout = message.pop('_timeout', None)
        first = len(_CONTEXT)
        self.ctxt = {k[first:]: v for k, v in message.items() if k.startswith(_CONTEXT)}
        self.message = message

    @property
    def body(self) -> bytes:
        """The body, or what is left of it; of one that was not kept, as it would be written."""
        return as_bytes(self._body) if self._body else msgspec.json.encode(self.message)

    def keep(self, body: bytes | str) -> None:
        """Remember the body."""
        self._body = body


class Head(bytes):
    """The beginning of a body that was too large to keep.

    :ivar size: bytes that it had
    :ivar address: what an answer needs
    """

    size: int
    address: dict[str, Any]


class _Envelope(msgspec.Struct):
    version: str = msgspec.field(name='oslo.version')
    message: str = msgspec.field(name='oslo.message')


_envelope = msgspec.json.Decoder(_Envelope).decode
_anything = msgspec.json.Decoder().decode
#: What the decoders raise that are strict.
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)


def opened(body: bytes | str) -> str:
    """The text of the message in an envelope.

    :raises msgspec.DecodeError, UnicodeError, RecursionError: it is none
    :raises InvalidMessage: of another version
    """
    found = _envelope(body)
    if found.version != VERSION:
        raise _undecodable(f'an envelope of version {found.version[:20]!r}, not {VERSION!r}')
    return found.message


def closed(message: dict[str, Any]) -> dict[str, str]:
    """A message in its envelope, by a faster encoder than the library's."""
    return {'oslo.version': VERSION, 'oslo.message': msgspec.json.encode(message).decode()}


def incoming(listener: Any, body: bytes | str) -> Incoming:
    """The message in a body.

    :raises Exception: whatever a decoder raises of what a stranger wrote
    """
    if isinstance(body, Head):
        return Incoming(listener, body.address, body.size)
    is_strict = True
    try:
        message = _anything(opened(body))
    except UNREADABLE:
        # JSON as Python writes it: numbers that are none, half characters, no envelope.
        is_strict = False
        message = json.loads(body)
        if isinstance(message, dict) and 'oslo.message' in message:
            if message.get('oslo.version', VERSION) != VERSION:
                raise _undecodable(f'it is no envelope of version {VERSION!r}') from None
            message = json.loads(message['oslo.message'])
    if not isinstance(message, dict):
        raise _undecodable(f'expected an object, got {type(message).__name__}')
    made = Incoming(listener, message, len(body))
    made.is_whole_text = is_strict
    return made


def bounded(raw: Any, limit: int) -> bytes | str:
    """The body of a message off the wire, unpacked; a :class:`Head` of one beyond the bound.

    :param raw: py-amqp's, or one of the in-process broker
    :raises PayloadTooLarge: it would be when unpacked; no more than the limit was
    :raises InvalidMessage: it is compressed in a way that is not known here
    """
    body: bytes | str = raw.body
    kind = (raw.headers or {}).get('compression')
    if kind:
        body = _unpacked(as_bytes(body), kind, limit)
    if len(body) <= limit:
        return body
    head = Head(as_bytes(body[:STORED_BYTES]))
    head.size, head.address = len(body), _address(as_bytes(body))
    # The listener remembers its last message until the next one comes.
    raw.body = body = head
    _give_memory_back()
    return body


def refusal(error: Exception) -> exceptions.GanttError:
    """An error of decoding as it is logged and counted."""
    if isinstance(error, exceptions.GanttError):
        return error
    detail = ' '.join(str(error).split())[:200]
    return _undecodable(f'{type(error).__name__}: {detail}')


def size_of(body: bytes | str) -> int:
    """Bytes (of a text, characters) of a body as it came."""
    return body.size if isinstance(body, Head) else len(body)


def as_bytes(body: bytes | str) -> bytes:
    """A body, which py-amqp decodes where it is marked as text."""
    return body.encode('utf-8', 'surrogatepass') if isinstance(body, str) else body


def _undecodable(why: str) -> exceptions.InvalidMessage:
    return exceptions.invalid('message', f'cannot be decoded: {why}')


def _give_memory_back() -> None:
    """Let the C library return what was freed to the system, where it can be asked to.

    By itself it keeps the pieces in which a large body came.
    """
    trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)
    if trim is not None:
        trim(0)


def _unpacked(body: bytes, kind: object, limit: int) -> bytes:
    make = _UNPACKERS.get(kind) if isinstance(kind, str) else None
    if make is None:
        known = ', '.join(_UNPACKERS)
        raise exceptions.invalid(
            'compression', f'{str(kind)[:50]!r} is not known here; known: {known}'
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
        raise exceptions.invalid('message', 'ends in the middle')
    return found


def _address(body: bytes) -> dict[str, Any]:
    """What an answer needs, found without decoding."""
    found = {name: pattern.search(body) for name, pattern in _ADDRESS.items()}
    return {name: match[1].decode(errors='replace') for name, match in found.items() if match}
