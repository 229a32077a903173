# SPDX-License-Identifier: Apache-2.0
"""oslo.messaging's envelope around each message: read for all who consume, and written.

The library unpacks and decodes whatever comes, twice, however large it is.  Here a body is
looked at first: one that is compressed is unpacked up to a bound, and of one beyond the bound
only the address for the answer is read.
"""

import bz2
import contextlib
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
#: What the library says to the one that receives a message.
_AROUND = ('_unique_id', '_msg_id', '_reply_q', '_timeout')

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


class CallHead(msgspec.Struct, kw_only=True):
    """What the library writes around the arguments of a method, which are left as they are.

    Senders may say anything in the place of ids: what they mean is found out where they are used.
    """

    method: str
    args: msgspec.Raw = msgspec.Raw(b'{}')
    version: Any = '1.0'
    namespace: Any = None
    unique_id: Any = msgspec.field(name='_unique_id', default=None)
    msg_id: Any = msgspec.field(name='_msg_id', default=None)
    reply_q: Any = msgspec.field(name='_reply_q', default=None)
    timeout: Any = msgspec.field(name='_timeout', default=None)
    request_id: Any = msgspec.field(name='_context_request_id', default=None)


class Incoming:
    """A message as it came, with what calls and replies read of it.

    Of a call by the library only what is around its arguments is decoded at once.

    :ivar listener: the library's, on which it came
    :ivar size: bytes of the body
    :ivar is_whole_text: its decoder has refused half characters already
    :ivar redelivered: another process had it before, and did not acknowledge it
    :ivar channel: another one after the consumer was attached anew to the broker
    :ivar request_id: of its context
    :ivar raw_args: the arguments as they were sent; None where they were decoded with the rest
    """

    __slots__ = (
        '_args',
        '_body',
        '_ctxt',
        '_message',
        '_text',
        'channel',
        'client_timeout',
        'is_whole_text',
        'listener',
        'method',
        'msg_id',
        'namespace',
        'orig_msg_id',
        'raw_args',
        'redelivered',
        'reply_q',
        'request_id',
        'size',
        'unique_id',
        'version',
    )

    def __init__(
        self,
        listener: Any,
        message: dict[str, Any] | None,
        size: int = 0,
        *,
        called: CallHead | None = None,
        text: str = '',
    ) -> None:
        """:param called: in place of the message, whose text is ``text``"""
        self.listener = listener
        self.size = size
        self.is_whole_text = True
        self.redelivered = False
        self.channel: Any = None
        self._body: bytes | str = b''
        self._ctxt: dict[str, Any] | None = None
        self._args: Any = None
        self._text = text
        self._message = message
        self.raw_args: msgspec.Raw | None = None
        self.method: Any
        if called is not None:
            self.unique_id = called.unique_id
            self.msg_id = self.orig_msg_id = called.msg_id
            self.reply_q = called.reply_q
            self.client_timeout = called.timeout
            self.method = called.method
            self.version = called.version
            self.namespace = called.namespace
            self.request_id = called.request_id
            self.raw_args = called.args
            return
        message = message or {}
        self.unique_id, self.msg_id, self.reply_q, self.client_timeout = (
            message.pop(name, None) for name in _AROUND
        )
        self.orig_msg_id = self.msg_id
        self.method = message.get('method')
        self.version = message.get('version', '1.0')
        self.namespace = message.get('namespace')
        self.request_id = message.get(f'{_CONTEXT}request_id')
        self._args = message.get('args', {})

    @property
    def message(self) -> dict[str, Any]:
        """All of it, without what is said to the library of the one it is from."""
        if self._message is None:
            self._message = self._decoded(self._text)
            for name in _AROUND:
                self._message.pop(name, None)
        return self._message

    @property
    def ctxt(self) -> dict[str, Any]:
        """The context."""
        if self._ctxt is None:
            first = len(_CONTEXT)
            found = self.message.items()
            self._ctxt = {k[first:]: v for k, v in found if k.startswith(_CONTEXT)}
        return self._ctxt

    @property
    def args(self) -> Any:
        """The arguments: an object, or what a stranger wrote."""
        if self.raw_args is not None and self._args is None:
            self._args = self._decoded(bytes(self.raw_args))
        return self._args

    @property
    def has_args(self) -> bool:
        """Whether the arguments are an object; it is not decoded for that."""
        if self.raw_args is None:
            return isinstance(self._args, dict)
        return bytes(self.raw_args)[:1] == b'{'

    @staticmethod
    def _decoded(text: bytes | str) -> Any:
        """What was looked through as a whole before, but for numbers that are too large."""
        try:
            return _anything(text)
        except UNREADABLE:
            return json.loads(text)

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
_called = msgspec.json.Decoder(CallHead).decode
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
        text = opened(body)
        try:
            called = _called(text)
        except msgspec.ValidationError:
            message = _anything(text)  # a notification, or nothing that we know
        else:
            return Incoming(listener, None, len(body), called=called, text=text)
    except UNREADABLE:
        # JSON as Python writes it: numbers that are none, half characters, no envelope.
        is_strict = False
        message = json.loads(_text(body))
        if isinstance(message, dict) and 'oslo.message' in message:
            if message.get('oslo.version', VERSION) != VERSION:
                raise _undecodable(f'it is no envelope of version {VERSION!r}') from None
            message = json.loads(message['oslo.message'])
    if not isinstance(message, dict):
        raise _undecodable(f'expected an object, got {type(message).__name__}')
    made = Incoming(listener, message, len(body))
    made.is_whole_text = is_strict
    return made


def _text(body: bytes | str) -> bytes | str:
    """A body as text where it is UTF-8; of bytes the standard library would guess the encoding."""
    with contextlib.suppress(UnicodeDecodeError):
        return body if isinstance(body, str) else body.decode()
    return body


def bounded(raw: Any, limit: int) -> bytes | str:
    """The body of a message off the wire, unpacked; a :class:`Head` of one beyond the bound.

    :param raw: py-amqp's, one of ``deliveries`` or of the in-process broker
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
    """A body, which is text where py-amqp has decoded it."""
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
