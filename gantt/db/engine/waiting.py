# SPDX-License-Identifier: Apache-2.0
"""Waits for PostgreSQL during which a callback runs.

psycopg waits for one socket.  A thread that waits for a commit has time to read other sockets
meanwhile.
"""

import select
from collections.abc import Generator
from typing import Any, Protocol

import psycopg
from psycopg.waiting import Ready, Wait

#: psycopg's own: seconds between two checks of a connection without messages.
_LOOK_SECONDS = 0.1
#: Seconds in which only the server is waited for after nothing could be read.
_BUSY_SECONDS = 0.002
_EVENTS = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}


class Meanwhile(Protocol):
    """Work that is done while the server works on a commit."""

    def sockets(self) -> list[int]:
        """Return the numbers of the sockets on which messages may come, as of now."""

    def read(self) -> bool:
        """Read what has come, for at most some milliseconds; never raises."""


def wait(asked: Generator[Any, Any, Any], socket: int, meanwhile: Meanwhile) -> Any:
    """Wait like psycopg's ``waiting.wait``.

    :param asked: yields what it waits for on ``socket``, and is sent what is ready
    :raises psycopg.Error: the connection broke
    """
    try:
        awaited = next(asked)
        while True:
            poll = select.poll()
            poll.register(socket, _EVENTS[awaited])
            for number in meanwhile.sockets():
                poll.register(number, select.POLLIN)
            ready_sockets = dict(poll.poll(1000 * _LOOK_SECONDS))
            events = ready_sockets.pop(socket, 0)
            ready = Ready.NONE
            if events & select.POLLIN:
                ready = Ready.R
            if events & select.POLLOUT:
                ready = Ready.RW if ready else Ready.W
            if events and not ready:
                raise psycopg.OperationalError('connection socket closed')
            if ready or not ready_sockets:
                awaited = asked.send(ready) or awaited
            elif not meanwhile.read():
                # Another thread reads, and is not to be tried again at once.
                poll = select.poll()
                poll.register(socket, select.POLLIN)
                poll.poll(1000 * _BUSY_SECONDS)
    except StopIteration as e:
        return e.value
