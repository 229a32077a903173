# SPDX-License-Identifier: Apache-2.0
"""Deliveries in groups: the bytes that a connection has read ahead, parsed in one pass.

py-amqp hands each frame to a chain of its own.  Here it gets the first frame of what a transport
that reads ahead has read: it waits, notices that a connection broke, and does all that is no
delivery.  The complete deliveries after that frame are taken at once.  Anything unexpected is
left where it is, for py-amqp to read and to judge: other frames, a delivery that is cut or mixed
with frames of another channel, one that is corrupt.  So no state is kept here between two reads.
"""

import contextlib
import functools
import struct
from collections.abc import Callable
from typing import Any

from amqp.serialization import PROPERTY_CLASSES

#: Deliveries in a group at most.
GROUPED_DELIVERIES_MAX = 64

#: Frames of AMQP 0-9-1 (sections 2.3.5 and 4.2): type, channel and size come before a payload.
_METHOD_FRAME, _HEADER_FRAME, _BODY_FRAME, _HEARTBEAT_FRAME, _FRAME_END_MARK = 1, 2, 3, 8, 0xCE
_FRAME_HEADER_BYTES, _FRAME_OVERHEAD_BYTES = 7, 8
_unpack_frame_header = struct.Struct('>BHI').unpack_from
_unpack_content_header = struct.Struct('>HHQ').unpack_from
_CONTENT_HEADER_BYTES = 12
_unpack_tag_and_bits = struct.Struct('>QB').unpack_from
#: basic.deliver: class 60, method 60.
_BASIC_CLASS = 60
_DELIVER_METHOD = b'\0\x3c\0\x3c'

_ENCODING = 'utf-8'
#: Longer properties differ from message to message, or come from unusual senders.
_CACHED_PROPERTIES_BYTES_MAX = 128


class Delivery:
    """A message as it was delivered, with those attributes of py-amqp's that are read.

    :ivar body: for text in UTF-8, as nearly all is, the bytes; py-amqp decodes it
    :ivar end: offset of the next frame in the buffer
    """

    __slots__ = (
        '_header',
        '_method',
        'body',
        'channel',
        'channel_id',
        'delivery_info',
        'delivery_tag',
        'end',
        'properties',
    )

    channel: Any

    def __init__(
        self,
        channel_id: int,
        method: bytes,
        header: bytes,
        body: bytes,
        end: int,
        info: dict[str, Any],
        properties: dict[str, Any],
    ) -> None:
        self.channel_id = channel_id
        self.delivery_info = info
        self.delivery_tag = info['delivery_tag']
        self.properties = properties
        self.body: bytes | str = body
        self.end = end
        self._method = method
        self._header = header

    @property
    def headers(self) -> dict[str, Any] | None:
        """Headers from its sender; not to be edited."""
        return self.properties.get('application_headers')

    def frames(self) -> list[tuple[int, int, bytes]]:
        """Return its frames as py-amqp reads them off a socket."""
        content_frames = [
            (_METHOD_FRAME, self.channel_id, self._method),
            (_HEADER_FRAME, self.channel_id, self._header),
        ]
        if isinstance(self.body, bytes) and self.body:
            content_frames.append((_BODY_FRAME, self.channel_id, self.body))
        return content_frames

    def decode(self) -> None:
        """Decode a body whose encoding is stated and is not the usual one."""
        encoding = self.properties.get('content_encoding')
        if encoding is not None and encoding != _ENCODING and isinstance(self.body, bytes):
            with contextlib.suppress(UnicodeError, LookupError):
                self.body = self.body.decode(encoding)


def parse_delivery(channel: int, method: bytes, buffer: bytes, start: int) -> Delivery | None:
    """Return a delivery whose method was read, and whose content begins at ``start``.

    None where the content is incomplete, not in one piece, or not valid.
    """
    info = _delivery_info(method)
    if info is None:
        return None
    end = len(buffer)
    stop = _payload_end(buffer, start, end, _HEADER_FRAME, channel)
    if stop < start + _FRAME_HEADER_BYTES + _CONTENT_HEADER_BYTES:
        return None
    header = buffer[start + _FRAME_HEADER_BYTES : stop]
    kind, _, size = _unpack_content_header(header)
    properties = _properties(header[_CONTENT_HEADER_BYTES:]) if kind == _BASIC_CLASS else None
    if properties is None:
        return None
    offset, remaining, pieces = stop + 1, size, []
    while remaining > 0:
        stop = _payload_end(buffer, offset, end, _BODY_FRAME, channel)
        if stop < 0:
            return None
        pieces.append(buffer[offset + _FRAME_HEADER_BYTES : stop])
        remaining -= stop - offset - _FRAME_HEADER_BYTES
        offset = stop + 1
    if remaining < 0:
        return None
    body = pieces[0] if len(pieces) == 1 else b''.join(pieces)
    return Delivery(channel, method, header, body, offset, info, properties)


def _payload_end(buffer: bytes, at: int, end: int, kind: int, channel: int) -> int:
    """Return the offset where the payload of a whole frame of ``kind`` ends; -1: there is none."""
    if end - at < _FRAME_OVERHEAD_BYTES:
        return -1
    frame_kind, frame_channel, size = _unpack_frame_header(buffer, at)
    stop: int = at + _FRAME_HEADER_BYTES + size
    if (
        frame_kind != kind
        or frame_channel != channel
        or stop >= end
        or buffer[stop] != _FRAME_END_MARK
    ):
        return -1
    return stop


def _delivery_info(method: bytes) -> dict[str, Any] | None:
    """Return the arguments of basic.deliver; None where the method is another, or malformed."""
    if method[:4] != _DELIVER_METHOD:
        return None
    try:
        offset = 5 + method[4]
        consumer = method[5:offset]
        tag, bits = _unpack_tag_and_bits(method, offset)
        exchange_start = offset + 10
        exchange_end = exchange_start + method[offset + 9]
        if exchange_end + 1 + method[exchange_end] != len(method):
            return None
        return {
            'consumer_tag': consumer.decode('utf-8', 'surrogatepass'),
            'delivery_tag': tag,
            'redelivered': bits & 1 == 1,
            'exchange': method[exchange_start:exchange_end].decode('utf-8', 'surrogatepass'),
            'routing_key': method[exchange_end + 1 :].decode('utf-8', 'surrogatepass'),
        }
    except (IndexError, struct.error, UnicodeDecodeError):
        return None


def _properties(packed: bytes) -> dict[str, Any] | None:
    return (
        _cached_properties(packed)
        if len(packed) <= _CACHED_PROPERTIES_BYTES_MAX
        else _read_properties(packed)
    )


def _read_properties(packed: bytes) -> dict[str, Any] | None:
    """Return properties as py-amqp reads them; None where py-amqp would raise an error."""
    try:
        properties, _ = PROPERTY_CLASSES[_BASIC_CLASS](packed, 0)
    except Exception:  # whatever it raises for foreign bytes
        return None
    return dict(properties)


#: Nearly all messages of a site have one of a few sets of properties.
_cached_properties = functools.lru_cache(maxsize=256)(_read_properties)


class GroupedFrames:
    """Handler of frames that replaces a connection's own, which gets all other frames.

    :param connection: py-amqp's connection
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._original_handler: Callable[[tuple[int, int, bytes]], bool] = (
            connection.on_inbound_frame
        )
        #: Channels on which py-amqp waits for the rest of a message.
        self._unfinished_channels: set[int] = set()

    def __call__(self, frame: tuple[int, int, bytes]) -> bool:
        """Handle a frame off the socket, and with it what was read ahead.

        :returns: whether anything was done
        :raises Exception: errors of py-amqp, and of the callbacks of consumers
        """
        kind, channel, payload = frame
        if kind == _METHOD_FRAME and channel not in self._unfinished_channels:
            buffer = self._transport.unread
            group = self._group(channel, payload, buffer)
            if group:
                self._transport.unread = buffer[group[-1].end :]
                self._deliver(group, buffer)
                return True
        return self._pass_to_original(frame)

    def _pass_to_original(self, frame: tuple[int, int, bytes]) -> bool:
        kind, channel, _ = frame
        is_done = self._original_handler(frame)
        if is_done:
            self._unfinished_channels.discard(channel)
        elif kind != _HEARTBEAT_FRAME:
            self._unfinished_channels.add(channel)
        return is_done

    def _group(self, channel: int, method: bytes, buffer: bytes) -> list[Delivery]:
        """Return consecutive deliveries; the method of the first has been read."""
        deliveries: list[Delivery] = []
        end, start = len(buffer), 0
        while (delivery := parse_delivery(channel, method, buffer, start)) is not None:
            deliveries.append(delivery)
            offset = delivery.end
            if len(deliveries) == GROUPED_DELIVERIES_MAX or end - offset < _FRAME_OVERHEAD_BYTES:
                break
            _, channel, _ = _unpack_frame_header(buffer, offset)
            stop = _payload_end(buffer, offset, end, _METHOD_FRAME, channel)
            if stop < 0 or channel in self._unfinished_channels:
                break
            method, start = buffer[offset + _FRAME_HEADER_BYTES : stop], stop + 1
        return deliveries

    def _deliver(self, group: list[Delivery], buffer: bytes) -> None:
        connection = self._connection
        for delivery in group:
            connection.bytes_recv += 1  # heartbeats rely on it
            try:
                channel = (connection.channels or {}).get(delivery.channel_id)
                callback = None
                if channel is not None and not channel.is_closing:
                    callback = channel.callbacks.get(delivery.delivery_info['consumer_tag'])
                if callback is None:  # its consumer was cancelled
                    for frame in delivery.frames():
                        self._pass_to_original(frame)
                else:
                    delivery.channel = channel
                    delivery.decode()
                    callback(delivery)
            except BaseException:
                # The other deliveries were not begun: they are to be read again.
                unread = buffer[delivery.end : group[-1].end]
                self._transport.unread = unread + self._transport.unread
                raise


def group_deliveries(connection: Any) -> None:
    """Let a connection take deliveries in groups from now on.

    :param connection: py-amqp's, over a transport that reads ahead; all its consumers get a
        :class:`Delivery`
    """
    connection.on_inbound_frame = GroupedFrames(connection)
