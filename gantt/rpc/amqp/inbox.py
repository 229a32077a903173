# SPDX-License-Identifier: Apache-2.0
"""Messages that a process receives, read by the thread that works on them.

The scheduling thread waits for messages here, and reads them itself: whatever came meanwhile
is decoded in one go, nothing is handed from thread to thread, and no two threads of the process
take turns at its one interpreter lock for one call.
"""

import contextlib
import os
import select
import threading
import weakref
from collections.abc import Callable

from gantt.rpc.amqp.reader import QueueReader

#: Seconds until a connection that another thread uses is tried again.
_AGAIN_SECONDS = 0.005
_WAKE = b'\0'


class BrokerInbox:
    """Implementation of the scheduler's port ``Inbox`` over the connections of consumers.

    :param lent: returns the connections that can be read now; there may be none
    :param has_room: returns whether answers need not wait for the broker
    """

    def __init__(
        self, lent: Callable[[], list[QueueReader]], has_room: Callable[[], bool] = lambda: True
    ) -> None:
        self._lent = lent
        self._ear, self._bell = descriptors = os.pipe()
        for end in descriptors:
            os.set_blocking(end, False)
        self._end = weakref.finalize(self, _close, *descriptors)
        self._lock = threading.Lock()  # for the bell, whose number may be reused once it is closed
        self._has_room = has_room
        self._reader = 0

    def close(self) -> None:
        """Close the pipe, after the reading thread has ended."""
        with self._lock:
            self._end()

    def wake(self) -> None:
        """Let a thread that waits here go on.  Any thread."""
        if threading.get_ident() != self._reader:
            # Where it is full it is rung already.
            with self._lock, contextlib.suppress(BlockingIOError):
                if self._end.alive:
                    os.write(self._bell, _WAKE)

    def wait(self, seconds: float) -> bool:
        """Wait until a message was read or ``wake`` was called; return whether one was in time."""
        self._reader = threading.get_ident()
        was_woken = self._look(seconds)
        if was_woken is None:  # another thread used the one connection that has messages
            was_woken = self._look(min(seconds, _AGAIN_SECONDS), only_bell=True)
            return bool(was_woken) or self.read()
        return was_woken

    def read(self) -> bool:
        """Read what is there already; return whether there was anything."""
        return bool(self._look(0.0))

    # -- while something else is waited for ----------------------------------------------
    def sockets(self) -> list[int]:
        """Return numbers of the sockets to wait for beside another one, for a moment.

        Empty where an answer might wait for the broker: so would the thread that waits.
        """
        if not self._has_room():
            return []
        return [number for reader in self._lent() if (number := reader.lend(0.0)) >= 0]

    def _look(self, seconds: float, *, only_bell: bool = False) -> bool | None:
        """Wait, then read; None: what is there cannot be read at the moment."""
        poll = select.poll()
        poll.register(self._ear, select.POLLIN)
        readers: dict[int, QueueReader] = {}
        has_more = False
        for reader in () if only_bell else self._lent():
            number = reader.lend(seconds)
            if number >= 0:
                readers[number] = reader
                poll.register(number, select.POLLIN)
                has_more = has_more or reader.has_more
        ready = [number for number, _ in poll.poll(0 if has_more else 1000 * seconds)]
        is_rung = self._ear in ready
        if is_rung:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ear, 4096)
        readable = [
            reader for number, reader in readers.items() if number in ready or reader.has_more
        ]
        done = [reader.read() for reader in readable]
        if is_rung or any(done):
            return True
        return None if readable else False


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)
