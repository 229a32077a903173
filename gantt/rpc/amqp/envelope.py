# SPDX-License-Identifier: Apache-2.0
"""Envelope of oslo.messaging around each message: read for all consumers, and written.

oslo.messaging unpacks and decodes every body, twice, however large it is.  Here a body is
checked first: a compressed body is unpacked up to a bound, and of a body beyond the bound
only the address for the answer is read.
"""

import bz2
import contextlib
import ctypes
import json
import lzma
import re
import traceback
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from oslo_serialization import jsonutils

from gantt import exceptions

ENVELOPE_VERSION = '2.0'
#: Bytes kept of a body beyond the bound, for the address and for inspection later.
STORED_BODY_BYTES = 1 << 16
_CONTEXT_PREFIX = '_context_'
#: Fields that the library adds for the receiver of a message.
_LIBRARY_FIELDS = ('_unique_id', '_msg_id', '_reply_q', '_timeout')

#: By kombu's names; kombu has some more where their libraries are installed.
_UNPACKERS: dict[str, Callable[[], Any]] = {
    'application/x-gzip': zlib.decompressobj,
    'application/x-bz2': bz2.BZ2Decompressor,
    'application/x-lzma': lzma.LZMADecompressor,
}

#: Patterns of the address as the library writes it: text inside of a text.
_ADDRESS_PATTERNS = {
    '_msg_id': re.compile(rb'\\"_msg_id\\": *\\"([0-9a-f]{1,64})\\"'),
    '_reply_q': re.compile(rb'\\"_reply_q\\": *\\"([^"\\]{1,255})\\"'),
}


class CallHead(msgspec.Struct, kw_only=True):
    """Fields that the library writes around the arguments of a method, which stay undecoded.

    Senders may write anything in the place of ids: they are checked where they are used.
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
    timestamp: Any = msgspec.field(name='_context_timestamp', default=None)
    names_server: Any = msgspec.field(name='_context_names_server', default=None)


class Incoming:
    """A message as it came, with what calls and replies read of it.

    For a call by the library only the fields around its arguments are decoded at once.

    :ivar carrier: transport that it came by
    :ivar size: bytes of the body
    :ivar is_whole_text: its decoder has refused lone surrogates already
    :ivar redelivered: another process had it before, and did not acknowledge it
    :ivar channel: its channel; another one after the consumer was attached anew to the broker
    :ivar request_id: request id of its context; ``timestamp``, ``names_server``: other fields of it
    :ivar raw_args: the arguments as they were sent; None where they were decoded with the rest
    """

    __slots__ = (
        '_args',
        '_body',
        '_ctxt',
        '_message',
        '_text',
        'carrier',
        'channel',
        'client_timeout',
        'is_whole_text',
        'method',
        'msg_id',
        'names_server',
        'namespace',
        'orig_msg_id',
        'raw_args',
        'redelivered',
        'reply_q',
        'request_id',
        'size',
        'timestamp',
        'unique_id',
        'version',
    )

    def __init__(
        self,
        carrier: Any,
        message: dict[str, Any] | None,
        size: int = 0,
        *,
        called: CallHead | None = None,
        text: str = '',
    ) -> None:
        """Keep a message, or its decoded head.

        :param called: in place of the message, whose text is ``text``
        """
        self.carrier = carrier
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
            self.timestamp = called.timestamp
            self.names_server = called.names_server
            self.raw_args = called.args
            return
        message = message or {}
        self.unique_id, self.msg_id, self.reply_q, self.client_timeout = (
            message.pop(name, None) for name in _LIBRARY_FIELDS
        )
        self.orig_msg_id = self.msg_id
        self.method = message.get('method')
        self.version = message.get('version', '1.0')
        self.namespace = message.get('namespace')
        self.request_id, self.timestamp, self.names_server = (
            message.get(f'{_CONTEXT_PREFIX}{name}')
            for name in ('request_id', 'timestamp', 'names_server')
        )
        self._args = message.get('args', {})

    @property
    def message(self) -> dict[str, Any]:
        """Whole message, without the fields that the library adds for the receiver."""
        if self._message is None:
            self._message = self._decoded(self._text)
            for name in _LIBRARY_FIELDS:
                self._message.pop(name, None)
        return self._message

    @property
    def ctxt(self) -> dict[str, Any]:
        """Context of the request."""
        if self._ctxt is None:
            prefix_length = len(_CONTEXT_PREFIX)
            message_fields = self.message.items()
            self._ctxt = {
                k[prefix_length:]: v for k, v in message_fields if k.startswith(_CONTEXT_PREFIX)
            }
        return self._ctxt

    @property
    def args(self) -> Any:
        """Arguments: an object, or what a foreign sender wrote."""
        if self.raw_args is not None and self._args is None:
            self._args = self._decoded(bytes(self.raw_args))
        return self._args

    @property
    def has_args(self) -> bool:
        """True where the arguments are an object; they are not decoded for that."""
        if self.raw_args is None:
            return isinstance(self._args, dict)
        return bytes(self.raw_args)[:1] == b'{'

    @staticmethod
    def _decoded(text: bytes | str) -> Any:
        """Decode text that was checked as a whole before, but for numbers that are too large."""
        try:
            return _decode_any(text)
        except DECODE_ERRORS:
            return json.loads(text)

    @property
    def body(self) -> bytes:
        """Body of the message, or its kept beginning; where none was kept, it is encoded anew."""
        return as_bytes(self._body) if self._body else msgspec.json.encode(self.message)

    def keep(self, body: bytes | str) -> None:
        """Keep the body."""
        self._body = body


class Head(bytes):
    """The beginning of a body that was too large to keep.

    :ivar size: bytes of the whole body
    :ivar address: fields that an answer needs
    """

    size: int
    address: dict[str, Any]


class _Envelope(msgspec.Struct):
    version: str = msgspec.field(name='oslo.version')
    message: str = msgspec.field(name='oslo.message')


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_call_head = msgspec.json.Decoder(CallHead).decode
_decode_any = msgspec.json.Decoder().decode
#: Errors that the strict decoders raise.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)


def message_text(body: bytes | str) -> str:
    """Return the text of the message in an envelope.

    :raises msgspec.DecodeError, UnicodeError, RecursionError: it is no envelope
    :raises InvalidMessage: the envelope has another version
    """
    message_envelope = _decode_envelope(body)
    if message_envelope.version != ENVELOPE_VERSION:
        raise _undecodable_error(
            f'an envelope of version {message_envelope.version[:20]!r}, not {ENVELOPE_VERSION!r}'
        )
    return message_envelope.message


def envelope_body(text: str) -> bytes:
    """Return the body of a message whose text is encoded already."""
    return msgspec.json.encode({'oslo.version': ENVELOPE_VERSION, 'oslo.message': text})


def reply_body(msg_id: str | None, result: Any = None, error: Exception | None = None) -> bytes:
    """Return the body of a reply as oslo.messaging would write it."""
    failure = None
    if error is not None:
        failure = jsonutils.dumps(
            {
                'class': type(error).__name__,
                'module': type(error).__module__,
                'message': str(error),
                'tb': traceback.format_exception(type(error), error, None),
                'args': error.args,
                'kwargs': getattr(error, 'kwargs', {}),
            }
        )
    message = {
        'result': result,
        'failure': failure,
        'ending': True,
        '_msg_id': msg_id,
        '_unique_id': uuid.uuid4().hex,
    }
    return envelope_body(msgspec.json.encode(message).decode())


def error_in_reply(failure: str) -> exceptions.GanttError:
    """Return the error in a reply: ours as it was raised, any other as :class:`Unavailable`."""
    parts = json.loads(failure)
    cls = getattr(exceptions, str(parts['class']), None)
    if parts['module'] == exceptions.__name__ and isinstance(cls, type):
        with contextlib.suppress(TypeError):
            error = cls(*parts['args'], **parts['kwargs'])
            if isinstance(error, exceptions.GanttError):
                return error
    return exceptions.Unavailable(f'{parts["class"]}: {parts["message"]}')


def decode_message(carrier: Any, body: bytes | str) -> Incoming:
    """Return the message in a body.

    :raises Exception: whatever a decoder raises for a foreign body
    """
    if isinstance(body, Head):
        return Incoming(carrier, body.address, body.size)
    is_strict = True
    try:
        text = message_text(body)
        try:
            called = _decode_call_head(text)
        except msgspec.ValidationError:
            message = _decode_any(text)  # a notification, or something unknown
        else:
            return Incoming(carrier, None, len(body), called=called, text=text)
    except DECODE_ERRORS:
        # JSON as Python writes it: NaN and Infinity, lone surrogates, no envelope.
        is_strict = False
        message = json.loads(_text(body))
        if isinstance(message, dict) and 'oslo.message' in message:
            if message.get('oslo.version', ENVELOPE_VERSION) != ENVELOPE_VERSION:
                raise _undecodable_error(
                    f'it is no envelope of version {ENVELOPE_VERSION!r}'
                ) from None
            message = json.loads(message['oslo.message'])
    if not isinstance(message, dict):
        raise _undecodable_error(f'expected an object, got {type(message).__name__}')
    incoming_message = Incoming(carrier, message, len(body))
    incoming_message.is_whole_text = is_strict
    return incoming_message


def _text(body: bytes | str) -> bytes | str:
    """Return a body as text if it is UTF-8; json.loads would guess the encoding of bytes."""
    with contextlib.suppress(UnicodeDecodeError):
        return body if isinstance(body, str) else body.decode()
    return body


def bounded_body(raw: Any, limit: int) -> bytes | str:
    """Return the body of a message off the wire, unpacked; a :class:`Head` if it is too large.

    :param raw: py-amqp's message, one of ``deliveries`` or of the in-process broker
    :raises PayloadTooLarge: the body exceeds the limit when unpacked; no more than the limit was
        unpacked
    :raises InvalidMessage: the kind of compression is unknown
    """
    body: bytes | str = raw.body
    kind = (raw.headers or {}).get('compression')
    if kind:
        body = _unpack_body(as_bytes(body), kind, limit)
    if len(body) <= limit:
        return body
    head = Head(as_bytes(body[:STORED_BODY_BYTES]))
    head.size = len(body)
    head.address = _find_address(as_bytes(body))
    # The listener keeps its last message until the next one comes.
    raw.body = body = head
    release_free_memory()
    return body


def decode_refusal(error: Exception) -> exceptions.GanttError:
    """Return an error of decoding as it is logged and counted."""
    if isinstance(error, exceptions.GanttError):
        return error
    detail = ' '.join(str(error).split())[:200]
    return _undecodable_error(f'{type(error).__name__}: {detail}')


def size_of(body: bytes | str) -> int:
    """Return the bytes (of a text, characters) of a body as it came."""
    return body.size if isinstance(body, Head) else len(body)


def as_bytes(body: bytes | str) -> bytes:
    """Return a body, which is text where py-amqp has decoded it."""
    return body.encode('utf-8', 'surrogatepass') if isinstance(body, str) else body


def _undecodable_error(why: str) -> exceptions.InvalidMessage:
    return exceptions.invalid('message', f'cannot be decoded: {why}')


def release_free_memory() -> None:
    """Let the C library return freed memory to the system, where it has a function for that.

    By itself it keeps the pieces in which a large body came, and what is free between what is in
    use.  Takes 1 ms where there is nothing, some 10 ms for each 100 MB.
    """
    trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)
    if trim is not None:
        trim(0)


def _unpack_body(body: bytes, kind: object, limit: int) -> bytes:
    make = _UNPACKERS.get(kind) if isinstance(kind, str) else None
    if make is None:
        known_kinds = ', '.join(_UNPACKERS)
        raise exceptions.invalid(
            'compression', f'expected one of {known_kinds}; got {str(kind)[:50]!r}'
        )
    unpacker = make()
    # One byte more than allowed.
    unpacked: bytes = unpacker.decompress(body, limit + 1)
    if len(unpacked) > limit:
        raise exceptions.PayloadTooLarge(
            f'the message has {len(body)} bytes, and more than {limit} when it is unpacked',
            limit=limit,
        )
    if not unpacker.eof:
        raise exceptions.invalid(
            'message', 'expected a whole compressed body; it ends in the middle'
        )
    return unpacked


def _find_address(body: bytes) -> dict[str, Any]:
    """Return the fields that an answer needs, found without decoding."""
    matches = {name: pattern.search(body) for name, pattern in _ADDRESS_PATTERNS.items()}
    return {name: match[1].decode(errors='replace') for name, match in matches.items() if match}
