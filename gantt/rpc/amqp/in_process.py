# SPDX-License-Identifier: Apache-2.0
"""A broker within the process that sleeps while nothing happens.

kombu's memory transport polls; under oslo.messaging it polls without a pause,
which costs a whole core as soon as there is a listener.  Here each message put
wakes all listeners.  ``install`` makes the URL ``kombu+memory:///`` mean this
transport in this process.
"""

import logging
import threading
import time
from typing import Any

from kombu import transport as kombu_transport
from kombu.transport import memory, virtual


class _Bell:
    """A count of messages put; a listener waits until it changes."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self.count = 0

    def ring(self) -> None:
        with self._moved:
            self.count += 1
            self._moved.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self.count != seen, seconds)


BELL = _Bell()


class Channel(memory.Channel):
    """A channel whose messages wake the listeners."""

    queues: dict[str, Any] = {}

    def basic_publish(self, *args: Any, **kwargs: Any) -> None:
        """Publish a message."""
        super().basic_publish(*args, **kwargs)
        BELL.ring()

    def basic_reject(self, *args: Any, **kwargs: Any) -> None:
        """Reject a message, which may put it back."""
        super().basic_reject(*args, **kwargs)
        BELL.ring()


class InProcessTransport(memory.Transport):
    """The memory transport, with waiting in place of polling."""

    Channel = Channel
    global_state = virtual.BrokerState()

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Deliver one message, or raise TimeoutError after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            seen_count = BELL.count
            try:
                super().drain_events(connection, timeout=0)
                return
            except TimeoutError:
                remaining = 1.0 if end is None else end - time.monotonic()
                if remaining <= 0:
                    raise
                BELL.wait(seen_count, min(remaining, 1.0))


class _Noise(logging.Filter):
    """A filter of log messages about host name and heartbeat that mean nothing here."""

    PARTS = ('No hostname was supplied', 'Heartbeat support requested')

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(self.PARTS)


_NOISE = _Noise()


def install() -> None:
    """Let ``memory`` URLs of this process use this transport."""
    kombu_transport.TRANSPORT_ALIASES['memory'] = f'{__name__}:InProcessTransport'
    for name in ('kombu.connection', 'oslo.messaging._drivers.impl_rabbit'):
        logging.getLogger(name).addFilter(_NOISE)  # adding it twice adds it once
