# SPDX-License-Identifier: Apache-2.0
"""A connection that consumes, lent to a thread that has other things to do as well.

The library reads each such connection in a thread of its own, which wakes for every few
messages and hands over what it found.  Here another thread reads the socket itself, between
two things that it does, as long as it comes by.  The library's thread rests meanwhile.  It goes
on wherever it is needed: to attach consumers, to connect again, and where the other thread is
held up, so that messages are taken all the same.  Heartbeats are its own at any time.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from gantt.rpc.amqp import deliveries, driver

#: Who does not come by for so long is held up.
HELD_UP_SECONDS = 0.5
#: A read by the library while somebody else may read: others wait for it.
_TURN_SECONDS = 0.05
#: The same where nobody else does; between two looks whether anybody does.
_LOOK_SECONDS = 1.0
#: For the rest of a message whose first part is there.
_REST_SECONDS = 0.01


class LentPoller:
    """In place of the library's poller, for the thread that it runs.

    :param poller: the library's
    :param together: messages that are taken by one read at most
    :param taken: ends a read: acknowledges what it took.  It may raise what a broken connection
        does
    """

    def __init__(self, poller: Any, together: int, taken: Callable[[], None]) -> None:
        self._poller = poller
        self._together = together
        self._taken = taken
        self._until = 0.0
        self._lock = threading.Lock()  # of the connection, which the library locks for itself
        # At first: to attach the consumers.
        self._needed = threading.Event()
        self._needed.set()
        self._stopping = False

    # -- for the library ---------------------------------------------------------------
    def poll(self, **_options: Any) -> list[Any]:
        """Called again and again by the library's thread; nothing is ever handed over."""
        left = self._until - time.monotonic()
        if left > 0 and not (self._stopping or self._needed.is_set()) and self._is_whole():
            self._needed.wait(min(left, _LOOK_SECONDS))
            self._beat()
            return []
        self._needed.clear()
        seconds: float | None = _TURN_SECONDS if left > 0 else _LOOK_SECONDS
        if self._stopping:
            # Its thread ends with the first poll that finds nothing, and whoever stops it waits
            # for the library's own last one: that comes back when it was stopped, not before.
            seconds = None
        with self._lock, driver.closing_what_broke(self._poller.conn.connection):
            found: list[Any] = self._poller.poll(timeout=seconds)
            connection = None if self._stopping else self._below()
            if connection is not None and deliveries.holds_back(connection.transport):
                self._read(connection)
        return found

    def _beat(self) -> None:
        """Send a heartbeat where one is due, and look whether those of the broker come."""
        if not self._lock.acquire(blocking=False):
            return
        below, connection = self._poller.conn.connection, self._below()
        try:
            if connection is not None and below._heartbeat_supported_and_enabled():
                connection.heartbeat_tick(rate=below.heartbeat_rate)
        except Exception:  # the broker has been silent for too long, or is gone
            self._break(connection)
        finally:
            self._lock.release()

    def end(self) -> None:
        """Before the library is asked to stop: nobody else reads any more."""
        self._stopping = True
        self._needed.set()

    def stop(self) -> None:
        """Consume no more."""
        self.end()
        self._poller.stop()
        with self._lock:  # who reads has ended as well
            pass

    def cleanup(self) -> None:
        """Let go of the connection."""
        self._poller.cleanup()

    def _is_whole(self) -> bool:
        below = self._poller.conn.connection
        return self._below() is not None and not below._new_tags

    def _below(self) -> Any:
        """py-amqp's connection; None where there is none, and none is to be made here."""
        return driver.opened(self._poller.conn.connection)

    # -- for others --------------------------------------------------------------------
    def ask(self) -> None:
        """Something is to be done between two messages by the library's thread.  Any thread."""
        self._needed.set()

    # -- for the thread that reads -------------------------------------------------------
    def lend(self, seconds: float) -> int:
        """Come by, and be back within ``seconds``.

        :returns: the number of the socket to wait for; -1: there is none to be read now
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
        """Whether a message was read off the socket and not taken yet."""
        connection = None if self._stopping else self._below()
        return connection is not None and deliveries.has_frame(connection.transport._read_buffer)

    def read(self) -> bool:
        """Take what is there; never raises.

        :returns: whether it could be looked at: not while another thread is at the connection
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
        """:param connection: py-amqp's"""
        transport = connection.transport
        try:
            # From the first message on: of TLS a read that takes less than a record leaves the rest
            # where no look at the socket finds it.
            deliveries.group(connection)
            with contextlib.suppress(TimeoutError), transport.having_timeout(_REST_SECONDS):
                for _ in range(self._together):
                    connection.blocking_read()
                    if not deliveries.has_frame(transport._read_buffer):
                        break
            self._taken()
        except Exception:
            # Whatever it is, a queue or a channel that is gone or the broker.
            self._break(connection)

    def _break(self, connection: Any) -> None:
        """Let the library attach all anew: it does so where a connection broke."""
        driver.cut(connection)
        self._needed.set()
