# SPDX-License-Identifier: Apache-2.0
"""A consuming connection, lent to a thread that has other things to do as well.

The library reads each such connection in a thread of its own, which wakes for every few
messages and hands them over.  Here another thread reads the socket itself, between its other
tasks, as long as it keeps calling.  The library's thread rests meanwhile.  It resumes wherever
it is needed: to attach consumers, to connect again, and where the other thread is held up, so
that messages are taken all the same.  It sends heartbeats at any time.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from gantt.rpc.amqp import deliveries, driver

#: Seconds without a call after which the reading thread is held up.
HELD_UP_SECONDS = 0.5
#: A read by the library while another thread may read, which waits for it.
_TURN_SECONDS = 0.05
#: The same where no other thread reads; also between two checks whether one does.
_LOOK_SECONDS = 1.0
#: Wait for the rest of a message whose first part is there.
_REST_SECONDS = 0.01


class LentPoller:
    """Replacement of the library's poller, for the thread that it runs.

    :param poller: the library's poller
    :param together: messages that are taken by one read at most
    :param taken: ends a read: acknowledges what it took.  It may raise the errors of a broken
        connection
    """

    def __init__(self, poller: Any, together: int, taken: Callable[[], None]) -> None:
        self._poller = poller
        self._together = together
        self._taken = taken
        self._until = 0.0
        self._lock = threading.Lock()  # for the connection, which the library locks for itself
        # At first: to attach the consumers.
        self._needed = threading.Event()
        self._needed.set()
        self._stopping = False

    # -- for the library ---------------------------------------------------------------
    def poll(self, **_options: Any) -> list[Any]:
        """Read for the library's thread, again and again; nothing is ever handed over."""
        lent_seconds = self._until - time.monotonic()
        if lent_seconds > 0 and not (self._stopping or self._needed.is_set()) and self._is_whole():
            self._needed.wait(min(lent_seconds, _LOOK_SECONDS))
            self._beat()
            return []
        self._needed.clear()
        seconds: float | None = _TURN_SECONDS if lent_seconds > 0 else _LOOK_SECONDS
        if self._stopping:
            # Its thread ends with the first poll that finds nothing, and the stopping thread
            # waits for the library's own last one: that returns when it was stopped, not before.
            seconds = None
        with self._lock, driver.closing_what_broke(self._poller.conn.connection):
            messages: list[Any] = self._poller.poll(timeout=seconds)
            connection = None if self._stopping else self._below()
            if connection is not None and deliveries.holds_back(connection.transport):
                self._read(connection)
        return messages

    def _beat(self) -> None:
        """Send a heartbeat where one is due, and check that those of the broker come."""
        if not self._lock.acquire(blocking=False):
            return
        rabbit_connection, connection = self._poller.conn.connection, self._below()
        try:
            if connection is not None and rabbit_connection._heartbeat_supported_and_enabled():
                connection.heartbeat_tick(rate=rabbit_connection.heartbeat_rate)
        except Exception:  # the broker has been silent for too long, or is away
            self._break(connection)
        finally:
            self._lock.release()

    def end(self) -> None:
        """Stop reading from other threads, before the library is stopped."""
        self._stopping = True
        self._needed.set()

    def stop(self) -> None:
        """Stop consuming."""
        self.end()
        self._poller.stop()
        with self._lock:  # a reading thread has ended as well
            pass

    def cleanup(self) -> None:
        """Let go of the connection."""
        self._poller.cleanup()

    def _is_whole(self) -> bool:
        rabbit_connection = self._poller.conn.connection
        return self._below() is not None and not rabbit_connection._new_tags

    def _below(self) -> Any:
        """Return py-amqp's connection; None where none is open: none is opened here."""
        return driver.opened(self._poller.conn.connection)

    # -- for others --------------------------------------------------------------------
    def ask(self) -> None:
        """Let the library's thread do something between two messages.  Any thread."""
        self._needed.set()

    # -- for the thread that reads -------------------------------------------------------
    def lend(self, seconds: float) -> int:
        """Take over reading; the caller is back within ``seconds``.

        :returns: file number of the socket to wait for; -1: none is to be read now
        """
        if self._stopping:
            return -1
        self._until = time.monotonic() + seconds + HELD_UP_SECONDS
        if self._needed.is_set():
            return -1
        connection = self._below()
        try:
            return -1 if connection is None else int(connection.transport.sock.fileno())
        except (AttributeError, OSError):  # it is being closed
            return -1

    @property
    def has_more(self) -> bool:
        """True where a message was read off the socket and not taken yet."""
        connection = None if self._stopping else self._below()
        return connection is not None and deliveries.has_frame(connection.transport._read_buffer)

    def read(self) -> bool:
        """Take the messages that are there; never raises.

        :returns: whether it could read: not while another thread uses the connection
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            connection = self._below()
            if connection is not None and not self._stopping:
                self._read(connection)
        finally:
            self._lock.release()
        return True

    def _read(self, connection: Any) -> None:
        """Read up to ``together`` messages from py-amqp's connection."""
        transport = connection.transport
        try:
            # From the first message on: with TLS, a read that takes less than a record leaves the
            # rest where polling the socket does not find it.
            deliveries.group(connection)
            with contextlib.suppress(TimeoutError), transport.having_timeout(_REST_SECONDS):
                for _ in range(self._together):
                    connection.blocking_read()
                    if not deliveries.has_frame(transport._read_buffer):
                        break
            self._taken()
        except Exception:
            # Any error: a queue, a channel or the broker has ended.
            self._break(connection)

    def _break(self, connection: Any) -> None:
        """Have the library attach all anew, by breaking the connection."""
        driver.cut(connection)
        self._needed.set()
