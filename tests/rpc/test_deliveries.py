# SPDX-License-Identifier: Apache-2.0
"""Deliveries parsed in groups are those that py-amqp would have made, one by one.

A connection of py-amqp stands between the two ends of a socket pair; its other end writes what
a broker might.
"""

import contextlib
import inspect
import random
import socket
import struct

import amqp
import pytest
from amqp import connection as amqp_connection
from amqp import method_framing
from amqp.serialization import dumps
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.rpc.amqp import connection as our_connection
from gantt.rpc.amqp import deliveries
from gantt.rpc.amqp.connection import ReadAheadTransport

FRAME_MAX = 4096
CHANNELS = (1, 2)
TAG = '7'
#: What the library says of a message, and what else somebody may say.
USUAL = {
    'content_type': 'application/json',
    'content_encoding': 'utf-8',
    'application_headers': {},
    'delivery_mode': 2,
    'priority': 0,
}
ODD = {
    'content_type': 'text/plain',
    'content_encoding': 'latin-1',
    'application_headers': {'compression': 'application/x-gzip', 'n': 7, 'deep': {'x': [1, 'y']}},
    'expiration': '60000',
    'message_id': 'm' * 100,
    'user_id': 'guest',
}


def frame(kind, channel, payload, end=b'\xce'):
    return struct.pack('>BHI', kind, channel, len(payload)) + payload + end


HEARTBEAT = frame(8, 0, b'')


def delivery(
    channel, number, body, *, tag=TAG, properties=USUAL, most=FRAME_MAX - 8, redelivered=False
):
    """The frames of a delivery."""
    arguments = dumps('sLbss', (tag, number, redelivered, 'gantt', 'gantt-schéduler'))
    message = amqp.Message(body, **properties)
    frames = [
        frame(1, channel, b'\0\x3c\0\x3c' + arguments),
        frame(2, channel, struct.pack('>HHQ', 60, 0, len(body)) + message._serialize_properties()),
    ]
    return frames + [
        frame(3, channel, body[at : at + most]) for at in range(0, len(body), max(1, most))
    ]


class Wire:
    """A connection of py-amqp that was opened, and the broker's end of its socket."""

    def __init__(self, grouped, callback=None):
        ours, self.broker = socket.socketpair()
        ours.settimeout(5)
        self.broker.settimeout(5)
        self.got = []
        self.connection = amqp.Connection('localhost')
        # py-amqp's own, to compare with, reads each frame in three pieces.
        make = our_connection.ReadAheadTcp if grouped else amqp.transport.TCPTransport
        carrier = make('localhost')
        carrier.sock = ours
        carrier._setup_transport()
        carrier.connected = True
        self.connection.transport = carrier
        self.connection.on_inbound_frame = method_framing.frame_handler(
            self.connection, self.connection.on_inbound_method
        )
        self.connection.frame_writer = method_framing.frame_writer(self.connection, carrier)
        for number in CHANNELS:
            channel = amqp.Channel(self.connection, number)
            channel.is_open = True
            channel.callbacks[TAG] = callback or self.take
        if grouped:
            deliveries.group_deliveries(self.connection)

    def take(self, message):
        body = message.body
        self.got.append(
            (
                message.channel.channel_id,
                message.delivery_tag,
                message.delivery_info,
                body.encode(message.properties['content_encoding'])
                if isinstance(body, str) and body
                else bytes(body or b''),
                message.headers,
            )
        )

    def run(self, pieces):
        """Write the pieces one after the other, reading in between; what broke, or None."""
        for piece in pieces:
            self.broker.sendall(piece)
            try:
                while True:
                    self.connection.drain_events(timeout=0.0005)
            except TimeoutError:
                pass
            except Exception as e:
                return e
        return None

    def written(self):
        """What was written to the broker."""
        self.broker.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return self.broker.recv(1 << 20)
        return b''

    def close(self):
        self.broker.close()
        with contextlib.suppress(Exception):
            self.connection.collect()


def outcome(grouped, pieces):
    """What came of a stream: messages, what was written, and what broke."""
    wire = Wire(grouped)
    try:
        broken = wire.run(pieces)
        unread = b''
        if broken is None:
            carrier = wire.connection.transport
            unread = carrier.unread if grouped else carrier._read_buffer
        return wire.got, wire.written(), broken and (type(broken), str(broken)), unread
    finally:
        wire.close()


def same(pieces):
    """The outcome, which has to be that of py-amqp alone."""
    theirs, ours = outcome(False, pieces), outcome(True, pieces)
    assert ours == theirs
    return ours


def cut(stream, points):
    ends = sorted({point % (len(stream) + 1) for point in points} | {0, len(stream)})
    return [stream[a:b] for a, b in zip(ends, ends[1:], strict=False)]


def a_stream(seed, count):
    """Frames of deliveries on several channels, mixed, with what else a broker sends."""
    draw = random.Random(seed)
    lanes = {channel: [] for channel in CHANNELS}
    for number in range(1, count + 1):
        channel = draw.choice(CHANNELS)
        body = draw.randbytes(draw.choice((0, 1, 20, 500, 4088, 4089, 9000)))
        lanes[channel] += delivery(
            channel,
            number,
            body,
            tag=draw.choice((TAG, TAG, TAG, 'nobody')),
            properties=draw.choice((USUAL, USUAL, ODD, {})),
            most=draw.choice((FRAME_MAX - 8, 300)),
            redelivered=draw.random() < 0.3,
        )
    mixed, queue = [], [lane for lane in lanes.values() if lane]
    while queue:
        lane = draw.choice(queue)
        for _ in range(draw.choice((1, 3, 30))):
            if lane:
                mixed.append(lane.pop(0))
        if draw.random() < 0.1:
            mixed.append(HEARTBEAT)
        queue = [lane for lane in queue if lane]
    return mixed


@given(st.integers(0, 1 << 32), st.integers(1, 30), st.lists(st.integers(0, 1 << 20), max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_split_of_a_stream_gives_the_same_deliveries(seed, count, points):
    stream = b''.join(a_stream(seed, count))
    got, _, broken, unread = same(cut(stream, points))
    assert broken is None and not unread
    assert len(got) <= count


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 8),
    st.integers(0, 1 << 20),
    st.integers(1, 255),
    st.lists(st.integers(0, 1 << 20), max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_a_corrupt_stream_fails_as_it_does_with_py_amqp_alone(seed, count, place, change, points):
    stream = bytearray(b''.join(a_stream(seed, count)))
    stream[place % len(stream)] ^= change
    with pytest.MonkeyPatch.context() as patch:
        # py-amqp alone waits for a frame of any size.
        patch.setattr(ReadAheadTransport, 'frame_max', 1 << 32)
        same(cut(bytes(stream), points))


def test_a_stream_split_at_each_byte():
    stream = b''.join(
        [*delivery(1, 1, b'{}'), HEARTBEAT, *delivery(2, 2, b'[]' * 20, most=7), HEARTBEAT]
    )
    for place in range(len(stream) + 1):
        got, *_ = same([stream[:place], stream[place:]])
        assert [received[:2] for received in got] == [(1, 1), (2, 2)]


def test_what_was_read_ahead_is_one_group(monkeypatch):
    bodies = [b'%d' % n * 1000 for n in range(9)]
    sizes = []
    deliver = deliveries.GroupedFrames._deliver

    def noted(self, group, buffer):
        sizes.append(len(group))
        deliver(self, group, buffer)

    monkeypatch.setattr(deliveries.GroupedFrames, '_deliver', noted)
    wire = Wire(grouped=True)
    wire.run([b''.join(b''.join(delivery(1, n, body)) for n, body in enumerate(bodies))])
    assert [received[3] for received in wire.got] == bodies and sizes == [9]
    wire.close()


@pytest.mark.parametrize(
    ('between', 'error'),
    [
        (
            frame(1, 1, struct.pack('>HH', 60, 30) + dumps('sb', (TAG, True))),
            amqp.ConsumerCancelled,
        ),
        (
            frame(1, 1, struct.pack('>HH', 20, 40) + dumps('BsBB', (404, 'gone', 50, 10)))
            + frame(1, 1, struct.pack('>HHI', 20, 11, 0)),  # py-amqp opens it again
            amqp.NotFound,
        ),
        (
            frame(1, 0, struct.pack('>HH', 10, 50) + dumps('BsBB', (320, 'forced', 0, 0))),
            amqp.ConnectionForced,
        ),
    ],
    ids=['cancel', 'close of the channel', 'close of the connection'],
)
@pytest.mark.parametrize('place', [0, 1, 2, 3, 4])
def test_another_method_in_between_comes_in_its_turn(between, error, place):
    frames = [*delivery(2, 1, b'before'), *delivery(2, 2, b'after')]
    frames.insert(place, between)
    got, _, broken, _ = same([b''.join(frames)])
    assert broken[0] is error
    assert [received[1] for received in got] == ([1] if place >= 3 else [])


def test_the_rest_is_read_again_where_a_callback_raises():
    taken = []

    def callback(message):
        taken.append(message.delivery_tag)
        if len(taken) == 2:
            raise ValueError('a callback that is broken')

    wire = Wire(grouped=True, callback=callback)
    stream = b''.join(b''.join(delivery(1, number, b'{}')) for number in range(1, 6))
    assert isinstance(wire.run([stream]), ValueError)
    assert taken == [1, 2]
    assert wire.run([HEARTBEAT]) is None
    assert taken == [1, 2, 3, 4, 5]
    wire.close()


def test_a_consumer_that_is_cancelled_by_a_callback_gets_no_more_of_its_group():
    """As those that py-amqp alone delivers: they go back to the queue."""

    def outcome(grouped):
        taken = []

        def callback(message):
            taken.append(message.delivery_tag)
            del message.channel.callbacks[TAG]

        wire = Wire(grouped, callback)
        wire.run([b''.join(b''.join(delivery(1, number, b'{}')) for number in range(1, 4))])
        written = wire.written()
        wire.close()
        return taken, written

    assert outcome(True) == outcome(False)
    assert outcome(True)[0] == [1]


def test_no_more_is_held_than_a_frame_and_what_was_read_ahead():
    wire = Wire(grouped=True)
    body = b'x' * (3 << 20)
    frames = delivery(1, 1, body, most=(128 << 10) - 8)
    wire.broker.setblocking(True)
    most = 0
    for piece in frames:
        for at in range(0, len(piece), 50_000):
            wire.run([piece[at : at + 50_000]])
            most = max(most, len(wire.connection.transport.unread))
    assert most <= (128 << 10) + our_connection.READ_AHEAD_BYTES
    assert [len(received[3]) for received in wire.got] == [len(body)]
    wire.close()


def test_remembered_properties_are_few_and_short():
    deliveries._cached_properties.cache_clear()
    stream = b''.join(
        b''.join(delivery(1, n, b'{}', properties={**USUAL, 'expiration': str(n)}))
        for n in range(300)
    )
    long = b''.join(
        b''.join(delivery(1, n, b'{}', properties={**USUAL, 'message_id': f'{n:0200d}'}))
        for n in range(300)
    )
    same([stream, long])
    kept = deliveries._cached_properties.cache_info()
    assert kept.currsize == kept.maxsize
    assert kept.maxsize * deliveries._CACHED_PROPERTIES_BYTES_MAX <= 1 << 15


def test_all_that_is_there_is_read_at_once():
    wire = Wire(grouped=True)
    carrier = wire.connection.transport
    wire.broker.sendall(3 * HEARTBEAT)
    wire.connection.blocking_read()
    assert carrier.unread == 2 * HEARTBEAT and carrier.has_frame
    wire.connection.blocking_read()
    wire.connection.blocking_read()
    assert carrier.unread == b'' and not carrier.has_frame
    wire.close()


@pytest.mark.parametrize('grouped', [True, False])
def test_an_end_of_the_connection_is_noticed(grouped):
    wire = Wire(grouped)
    wire.broker.close()
    with pytest.raises(OSError, match='Server unexpectedly closed connection'):
        wire.connection.drain_events(timeout=1)
    assert not wire.connection.connected
    wire.close()


# -- what py-amqp does with its public names ---------------------------------------------------
def test_py_amqp_uses_the_names_that_groups_rest_on():
    source = inspect.getsource(amqp_connection.Connection)
    assert 'return self.on_inbound_frame(frame)' in source, 'read anew for each frame'
    assert 'self.on_inbound_frame = self.frame_handler_cls(' in source, 'set when connecting'
    assert amqp_connection.Connection.on_inbound_frame.fset is not None
    assert 'frame = self.transport.read_frame()' in source
    assert 'self.transport = self.Transport(' in source
    deliver = inspect.getsource(amqp.Channel._on_basic_deliver)
    assert 'fun = self.callbacks[consumer_tag]' in deliver
    assert 'self.is_closing' in inspect.getsource(amqp.Channel.dispatch_method)
    assert 'connection.bytes_recv += 1' in inspect.getsource(method_framing.frame_handler)
