# SPDX-License-Identifier: Apache-2.0
"""What happens to messages on their way from RabbitMQ, and a broker that blocks publishers.

AMQP 0-9-1: a frame is a type, a channel, a size, that many bytes and 0xCE.  A
message is a method frame, a header frame and body frames, none of another
message between them on its channel.
"""

import random
import struct
import threading
from typing import NamedTuple

from tests.nemesis.proxy import HELD_MAX, Link, Passage, Proxy

METHOD, HEADER, BODY = 1, 2, 3
DELIVER = (60, 60)
#: ``Connection.blocked`` and ``Connection.unblocked``.
BLOCKED, UNBLOCKED = (10, 60), (10, 61)


class Deliveries:
    """What is to happen to messages for queues with a prefix, and what did.

    :ivar rate: share of them that is lost
    :ivar deaf: connections up to this number, as they were made, are open and hear nothing
    """

    def __init__(self, seed: int = 1, prefix: bytes = b'reply_') -> None:
        self.rate = 0.0
        self.deaf = 0
        self.made = 0
        self.seen = 0
        self.lost = 0
        self._prefix = prefix
        self._rng = random.Random(seed)
        self._lock = threading.Lock()

    def deafen(self) -> None:
        """Lose all messages on the way to present connections; heartbeats pass."""
        self.deaf = self.made

    def number(self) -> int:
        """Of a new connection, from 1."""
        with self._lock:
            self.made += 1
            return self.made

    def is_lost(self, routing_key: bytes) -> bool:
        """Called for each delivery."""
        if not routing_key.startswith(self._prefix):
            return False
        with self._lock:
            self.seen += 1
            lost = self._rng.random() < self.rate
            self.lost += lost
        return lost


class _Dropping(NamedTuple):
    """A message that is being left out: bytes of body to come, None before the header."""

    left: int | None


class Amqp(Passage):
    """Leaves messages out on their way to a client; can hold its words back."""

    def __init__(self, deliveries: Deliveries, alarm: 'Alarm') -> None:
        self._deliveries = deliveries
        self._alarm = alarm
        self._number = deliveries.number()
        self._rest = b''
        self._dropping: dict[int, _Dropping] = {}

    def from_client(self, link: Link, data: bytes) -> None:
        """While the alarm is on the broker does not read."""
        self._alarm.off.wait(HELD_MAX)
        link.to_server(data)

    def from_server(self, link: Link, data: bytes) -> None:
        """Frame by frame."""
        self._rest += data
        at, passed = 0, bytearray()
        while len(self._rest) - at >= 8:
            kind, channel, size = struct.unpack_from('!BHI', self._rest, at)
            end = at + 8 + size
            if len(self._rest) < end:
                break
            if not self._drops(kind, channel, self._rest[at + 7 : end - 1]):
                passed += self._rest[at:end]
            at = end
        self._rest = self._rest[at:]
        link.to_client(bytes(passed))

    def _drops(self, kind: int, channel: int, payload: bytes) -> bool:
        if kind == METHOD and struct.unpack_from('!HH', payload) == DELIVER:
            is_deaf = self._number <= self._deliveries.deaf
            if is_deaf or self._deliveries.is_lost(_routing_key(payload)):
                self._dropping[channel] = _Dropping(None)
                return True
            return False
        dropping = self._dropping.get(channel)
        if dropping is None or kind not in (HEADER, BODY):
            return False
        if kind == HEADER:
            (bytes_left,) = struct.unpack_from('!Q', payload, 4)
        else:
            bytes_left = (dropping.left or 0) - len(payload)
        self._dropping[channel] = _Dropping(bytes_left)
        if bytes_left <= 0:
            del self._dropping[channel]
        return True


def _routing_key(deliver: bytes) -> bytes:
    """Of the arguments of basic.deliver: tag, number, redelivered, exchange, routing key."""
    at = 4
    at += 1 + deliver[at]
    at += 9
    at += 1 + deliver[at]
    return deliver[at + 1 : at + 1 + deliver[at]]


class Alarm:
    """A resource alarm: publishers are told, and not read any more."""

    def __init__(self) -> None:
        self.off = threading.Event()
        self.off.set()
        self.proxy: Proxy | None = None

    def on(self, reason: bytes = b'low on disk') -> None:
        """As the broker when its disk is full."""
        self.off.clear()
        self._tell(struct.pack('!HHB', *BLOCKED, len(reason)) + reason)

    def end(self) -> None:
        """There is room again."""
        self._tell(struct.pack('!HH', *UNBLOCKED))
        self.off.set()

    def _tell(self, payload: bytes) -> None:
        assert self.proxy is not None
        frame = struct.pack('!BHI', METHOD, 0, len(payload)) + payload + b'\xce'
        for link in list(self.proxy.links):
            link.to_client(frame)


def proxy(url: str, seed: int = 1) -> tuple[Proxy, Deliveries, Alarm]:
    """A way to the broker of a URL, and what happens on it."""
    deliveries, alarm = Deliveries(seed), Alarm()
    new_proxy = Proxy.of(url, lambda: Amqp(deliveries, alarm))
    alarm.proxy = new_proxy
    return new_proxy, deliveries, alarm
