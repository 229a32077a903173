# SPDX-License-Identifier: Apache-2.0
"""What a process receives, read by the thread that works on it.

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

from gantt.rpc.amqp.lending import LentPoller

#: A connection that another thread is at is looked at again after so long.
_AGAIN_SECONDS = 0.005
_WAKE = b'\0'


class BrokerInbox:
    """Implements the scheduler's port ``Inbox`` over the connections of consumers.

    :param lent: the connections that can be read here, now; there may be none
    :param has_room: whether what is read now is answered without waiting for the broker
    """

    def __init__(
        self, lent: Callable[[], list[LentPoller]], has_room: Callable[[], bool] = lambda: True
    ) -> None:
        self._lent = lent
        self._ear, self._bell = ends = os.pipe()
        for end in ends:
            os.set_blocking(end, False)
        self._end = weakref.finalize(self, _close, *ends)
        self._lock = threading.Lock()  # of the bell, whose number is another's once it is closed
        self._has_room = has_room
        self._reader = 0

    def close(self) -> None:
        """After the thread that reads has ended."""
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
        """Until something was read, or somebody rang; whether that was within ``seconds``."""
        self._reader = threading.get_ident()
        found = self._look(seconds)
        if found is None:  # another thread was at the one connection that has something
            found = self._look(min(seconds, _AGAIN_SECONDS), only_bell=True)
            return bool(found) or self.read()
        return found

    def read(self) -> bool:
        """Read what is there already; whether there was anything."""
        return bool(self._look(0.0))

    # -- while something else is waited for ----------------------------------------------
    def sockets(self) -> list[int]:
        """Numbers of the sockets to wait for beside another one, for a moment.

        None where an answer might wait for the broker: so would who waits for the other one.
        """
        if not self._has_room():
            return []
        return [number for one in self._lent() if (number := one.lend(0.0)) >= 0]

    def _look(self, seconds: float, *, only_bell: bool = False) -> bool | None:
        """Wait, then read; None: what there is cannot be read at the moment."""
        poll = select.poll()
        poll.register(self._ear, select.POLLIN)
        connections: dict[int, LentPoller] = {}
        has_more = False
        for one in () if only_bell else self._lent():
            number = one.lend(seconds)
            if number >= 0:
                connections[number] = one
                poll.register(number, select.POLLIN)
                has_more = has_more or one.has_more
        ready = [number for number, _ in poll.poll(0 if has_more else 1000 * seconds)]
        is_rung = self._ear in ready
        if is_rung:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ear, 4096)
        found = [one for number, one in connections.items() if number in ready or one.has_more]
        done = [one.read() for one in found]
        if is_rung or any(done):
            return True
        return None if found else False


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)
