# SPDX-License-Identifier: Apache-2.0
"""Fair order of requests for the threads of the server: projects take turns.

The caller is known only once a thread has checked its token, so the project of a token is
remembered for the next requests with it.  Requests with unknown tokens are one project together:
many new ones are no more than one owner.

A project has as many threads as it leaves free of those for placements, and half of all at most;
its first request is never held back.  The rule is that of ``gates``, so a request waits here, at
the cost of a connection, where it would be refused there: refusals at once would be repeated at
once, and reading them again takes the processor from all callers.  A large body counts for several
threads: while it is decoded no other thread has the interpreter.
"""

import collections
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import cachetools

from gantt.core.fair_queue import FairQueue

#: Key in the environment of a request: the project of its token.
PROJECT = 'gantt.project'
#: Maximum number of tokens that are remembered.
KNOWN_MAX = 10_000
#: Bytes of a body that count as one more thread.
BYTES_OF_A_THREAD = 32 << 10


class Owners:
    """Projects of tokens; the least recently used are forgotten."""

    def __init__(self) -> None:
        self._known: cachetools.LRUCache[bytes, str] = cachetools.LRUCache(KNOWN_MAX)
        self._lock = threading.Lock()

    def of(self, key: bytes) -> str:
        """Return the project of a token, as far as it is known.

        :param key: see ``key_of``
        """
        with self._lock:
            return self._known.get(key, '')

    def learn(self, key: bytes, project: str) -> None:
        """Remember the project of a token."""
        with self._lock:
            self._known[key] = project


def key_of(headers: Mapping[str, Any], prefix: str = '') -> bytes:
    """Return a digest that identifies the caller of a request: tokens are not kept.

    :param headers: with their names as in WSGI, after ``prefix``
    """
    token, project = (headers.get(prefix + name) for name in ('X_AUTH_TOKEN', 'X_PROJECT_ID'))
    # The project header beside a token is not verified.
    owner_text = f'token {token}' if token else f'project {project or ""}'
    return hashlib.blake2b(owner_text.encode('latin-1', 'replace'), digest_size=16).digest()


class Sockets(dict[int, Any]):
    """The sockets of a server, by descriptor: at each turn of its loop waitress polls every one.

    With thousands of connections that takes milliseconds of the interpreter, again and again. One
    whose request waits for its turn has nothing to send until then: it is set aside.  It is still
    open, and counts where the number of connections is bounded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._aside: dict[int, Any] = {}

    def set_aside(self, channel: Any) -> None:
        """Stop polling a connection of waitress."""
        if self.pop(channel._fileno, None) is not None:
            self._aside[channel._fileno] = channel

    def take_back(self, channel: Any) -> None:
        """Poll a connection again, unless it was closed meanwhile."""
        if self._aside.pop(channel._fileno, None) is not None:
            self[channel._fileno] = channel

    def __len__(self) -> int:
        return super().__len__() + len(self._aside)

    def __contains__(self, number: object) -> bool:
        return super().__contains__(number) or number in self._aside

    def __delitem__(self, number: int) -> None:
        if self._aside.pop(number, None) is None:
            super().__delitem__(number)


class FairTasks:
    """A queue for waitress's threads, which hold its lock at every call.

    :param most: threads that are shared out; the others are for first requests
    :param of_one: threads that may serve one owner; further ones are left to others
    :param dispatcher: has the lock, and threads that wait for a task
    :param sockets: of the server
    """

    def __init__(
        self, owners: Owners, most: int, of_one: int, dispatcher: Any, sockets: Sockets
    ) -> None:
        self._owners = owners
        self._most = most
        self._of_one = of_one
        self._dispatcher = dispatcher
        self._sockets = sockets
        self._queue: FairQueue[TaskTurn] = FairQueue()
        self._begun: collections.Counter[str] = collections.Counter()  # and those in the queue
        self._all_begun = 0
        self._held: dict[str, collections.deque[TaskTurn]] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def append(self, task: Any) -> None:
        """Queue a connection whose next request is complete."""
        turn = TaskTurn(self, self._owner_of(task), task)
        if self._may_begin(turn.owner):
            self._begin(turn)
        else:
            self._held.setdefault(turn.owner, collections.deque()).append(turn)
            self._sockets.set_aside(task)

    def _owner_of(self, task: Any) -> str:
        return self._owners.of(key_of(task.requests[0].headers)) if task.requests else ''

    def _may_begin(self, owner: str) -> bool:
        running = self._begun[owner]
        return not running or running < min(self._of_one, self._most - self._all_begun)

    def _begin(self, turn: 'TaskTurn') -> None:
        self._begun[turn.owner] += turn.cost
        self._all_begun += turn.cost
        self._queue.put(turn.owner, turn)

    def popleft(self) -> 'TaskTurn':
        """Return the connection whose turn it is.  :raises IndexError: none waits"""
        return self._queue.pop()

    @property
    def waiting(self) -> int:
        """Number of requests that have no thread yet."""
        with self._dispatcher.lock:
            return len(self._queue) + sum(map(len, self._held.values()))

    def done(self, turn: 'TaskTurn') -> None:
        """End a request; the lock is held."""
        self._begun[turn.owner] -= turn.cost
        self._all_begun -= turn.cost
        if not self._begun[turn.owner]:
            del self._begun[turn.owner]
        # The owner with the fewest threads is first; where it may not begin, no other may.
        while self._held:
            least = min(self._held, key=self._begun.__getitem__)
            if not self._may_begin(least):
                break
            held = self._held[least]
            following = held.popleft()
            self._sockets.take_back(following.task)
            self._begin(following)
            if not held:
                del self._held[least]
            self._dispatcher.queue_cv.notify()

    def served(self, turn: 'TaskTurn') -> None:
        """End a request by a thread that does not hold the lock."""
        with self._dispatcher.lock:
            self.done(turn)


class TaskTurn:
    """A task of waitress.

    :ivar owner: its project
    :ivar cost: number of threads it counts as
    """

    __slots__ = ('_tasks', 'cost', 'owner', 'task')

    def __init__(self, tasks: FairTasks, owner: str, task: Any) -> None:
        self._tasks = tasks
        self.owner = owner
        self.task = task
        body = sum(request.body_bytes_received for request in task.requests[:1])
        self.cost = 1 + body // BYTES_OF_A_THREAD

    def service(self) -> None:
        """Serve it; called by a thread, without the lock."""
        try:
            self.task.service()
        finally:
            self._tasks.served(self)

    def cancel(self) -> None:
        """Cancel it; called where the server ends, with the lock."""
        self.task.cancel()
        self._tasks.done(self)


def learning(app: Callable[..., Iterable[bytes]], owners: Owners) -> Callable[..., Iterable[bytes]]:
    """Return the application that reports the projects of tokens to ``owners``."""

    def called(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        key = key_of(environ, 'HTTP_')  # now: checking tokens changes these
        answer = app(environ, start_response)
        if PROJECT in environ:
            owners.learn(key, environ[PROJECT])
        return answer

    return called
