# SPDX-License-Identifier: Apache-2.0
"""Waits for PostgreSQL in which something else is done.

psycopg waits for one socket.  A thread that has asked for a commit has time for what comes on
others meanwhile.
"""

import select
from collections.abc import Generator
from typing import Any, Protocol

import psycopg
from psycopg.waiting import Ready, Wait

#: psycopg's own: between two looks at a connection that says nothing.
_LOOK_SECONDS = 0.1
#: For so long only the server is waited for where nothing could be read.
_BUSY_SECONDS = 0.002
_EVENTS = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}


class Meanwhile(Protocol):
    """What is done while the server works on a commit."""

    def sockets(self) -> list[int]:
        """Numbers of the sockets on which something may come, just now."""

    def read(self) -> bool:
        """Take what has come, as much as takes some milliseconds; never raises."""


def wait(asked: Generator[Any, Any, Any], socket: int, meanwhile: Meanwhile) -> Any:
    """What psycopg's ``waiting.wait`` does.

    :param asked: yields what it waits for on ``socket``, and is sent what is there
    :raises psycopg.Error: the connection broke
    """
    try:
        wants = next(asked)
        while True:
            poll = select.poll()
            poll.register(socket, _EVENTS[wants])
            for number in meanwhile.sockets():
                poll.register(number, select.POLLIN)
            found = dict(poll.poll(1000 * _LOOK_SECONDS))
            events = found.pop(socket, 0)
            ready = Ready.NONE
            if events & select.POLLIN:
                ready = Ready.R
            if events & select.POLLOUT:
                ready = Ready.RW if ready else Ready.W
            if events and not ready:
                raise psycopg.OperationalError('connection socket closed')
            if ready or not found:
                wants = asked.send(ready) or wants
            elif not meanwhile.read():
                # Another thread is at it, and is not to be asked again at once.
                poll = select.poll()
                poll.register(socket, select.POLLIN)
                poll.poll(1000 * _BUSY_SECONDS)
    except StopIteration as e:
        return e.value
