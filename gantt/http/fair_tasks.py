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
PROJECT_KEY = 'gantt.project'
#: Maximum number of tokens that are remembered.
REMEMBERED_TOKENS_MAX = 10_000
#: Bytes of a body that count as one more thread.
BODY_BYTES_PER_THREAD = 32 << 10


class TokenOwners:
    """Projects of tokens; the least recently used are forgotten."""

    def __init__(self) -> None:
        self._projects: cachetools.LRUCache[bytes, str] = cachetools.LRUCache(REMEMBERED_TOKENS_MAX)
        self._lock = threading.Lock()

    def project_of(self, key: bytes) -> str:
        """Return the project of a token, as far as it is known.

        :param key: see ``caller_digest``
        """
        with self._lock:
            return self._projects.get(key, '')

    def remember(self, key: bytes, project: str) -> None:
        """Remember the project of a token."""
        with self._lock:
            self._projects[key] = project


def caller_digest(headers: Mapping[str, Any], prefix: str = '') -> bytes:
    """Return a digest that identifies the caller of a request: tokens are not kept.

    :param headers: with their names as in WSGI, after ``prefix``
    """
    token, project = (headers.get(prefix + name) for name in ('X_AUTH_TOKEN', 'X_PROJECT_ID'))
    # A project header sent along with a token is not verified.
    owner_text = f'token {token}' if token else f'project {project or ""}'
    return hashlib.blake2b(owner_text.encode('latin-1', 'replace'), digest_size=16).digest()


class PolledSockets(dict[int, Any]):
    """The sockets of a server, by descriptor: at each turn of its loop waitress polls every one.

    With thousands of connections that takes milliseconds of the interpreter, again and again. One
    whose request waits for its turn has nothing to send until then: it is set aside.  It is still
    open, and counts where the number of connections is bounded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._unpolled: dict[int, Any] = {}

    def set_aside(self, channel: Any) -> None:
        """Stop polling a connection of waitress."""
        if self.pop(channel._fileno, None) is not None:
            self._unpolled[channel._fileno] = channel

    def take_back(self, channel: Any) -> None:
        """Poll a connection again, unless it was closed meanwhile."""
        if self._unpolled.pop(channel._fileno, None) is not None:
            self[channel._fileno] = channel

    def __len__(self) -> int:
        return super().__len__() + len(self._unpolled)

    def __contains__(self, number: object) -> bool:
        return super().__contains__(number) or number in self._unpolled

    def __delitem__(self, number: int) -> None:
        if self._unpolled.pop(number, None) is None:
            super().__delitem__(number)


class FairTasks:
    """A queue for waitress's threads, which hold its lock at every call.

    :param shared_threads: threads that are shared between owners; further ones serve first requests
        only
    :param threads_per_owner: threads that may serve one owner; further ones are left to others
    :param dispatcher: waitress's dispatcher, which has the lock and the threads
    :param sockets: of the server
    """

    def __init__(
        self,
        owners: TokenOwners,
        shared_threads: int,
        threads_per_owner: int,
        dispatcher: Any,
        sockets: PolledSockets,
    ) -> None:
        self._owners = owners
        self._shared_threads = shared_threads
        self._threads_per_owner = threads_per_owner
        self._dispatcher = dispatcher
        self._sockets = sockets
        self._queue: FairQueue[TaskTurn] = FairQueue()
        self._begun_by_owner: collections.Counter[str] = (
            collections.Counter()
        )  # and those in the queue
        self._begun_total = 0
        self._held_by_owner: dict[str, collections.deque[TaskTurn]] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def append(self, task: Any) -> None:
        """Queue a connection whose next request is complete."""
        turn = TaskTurn(self, self._owner_of(task), task)
        if self._may_begin(turn.owner):
            self._begin(turn)
        else:
            self._held_by_owner.setdefault(turn.owner, collections.deque()).append(turn)
            self._sockets.set_aside(task)

    def _owner_of(self, task: Any) -> str:
        return (
            self._owners.project_of(caller_digest(task.requests[0].headers))
            if task.requests
            else ''
        )

    def _may_begin(self, owner: str) -> bool:
        running = self._begun_by_owner[owner]
        return not running or running < min(
            self._threads_per_owner, self._shared_threads - self._begun_total
        )

    def _begin(self, turn: 'TaskTurn') -> None:
        self._begun_by_owner[turn.owner] += turn.cost
        self._begun_total += turn.cost
        self._queue.put(turn.owner, turn)

    def popleft(self) -> 'TaskTurn':
        """Return the connection whose turn it is.  :raises IndexError: none waits"""
        return self._queue.pop()

    @property
    def waiting(self) -> int:
        """Number of requests that have no thread yet."""
        with self._dispatcher.lock:
            return len(self._queue) + sum(map(len, self._held_by_owner.values()))

    def note_done_locked(self, turn: 'TaskTurn') -> None:
        """Record the end of a request; the caller holds the lock."""
        self._begun_by_owner[turn.owner] -= turn.cost
        self._begun_total -= turn.cost
        if not self._begun_by_owner[turn.owner]:
            del self._begun_by_owner[turn.owner]
        # The owner with the fewest threads is first; where it may not begin, no other may.
        while self._held_by_owner:
            least = min(self._held_by_owner, key=self._begun_by_owner.__getitem__)
            if not self._may_begin(least):
                break
            held = self._held_by_owner[least]
            following = held.popleft()
            self._sockets.take_back(following.task)
            self._begin(following)
            if not held:
                del self._held_by_owner[least]
            self._dispatcher.queue_cv.notify()

    def note_done(self, turn: 'TaskTurn') -> None:
        """Record the end of a request; the caller does not hold the lock."""
        with self._dispatcher.lock:
            self.note_done_locked(turn)


class TaskTurn:
    """A task of waitress.

    :ivar owner: project of the caller, as far as known
    :ivar cost: number of threads it counts as
    """

    __slots__ = ('_tasks', 'cost', 'owner', 'task')

    def __init__(self, tasks: FairTasks, owner: str, task: Any) -> None:
        self._tasks = tasks
        self.owner = owner
        self.task = task
        body = sum(request.body_bytes_received for request in task.requests[:1])
        self.cost = 1 + body // BODY_BYTES_PER_THREAD

    def service(self) -> None:
        """Serve the request; called by a thread, without the lock."""
        try:
            self.task.service()
        finally:
            self._tasks.note_done(self)

    def cancel(self) -> None:
        """Cancel the request; called where the server ends, with the lock."""
        self.task.cancel()
        self._tasks.note_done_locked(self)


def remembering_projects(
    app: Callable[..., Iterable[bytes]], owners: TokenOwners
) -> Callable[..., Iterable[bytes]]:
    """Return the application that reports the projects of tokens to ``owners``."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        key = caller_digest(environ, 'HTTP_')  # now: checking tokens changes these
        answer = app(environ, start_response)
        if PROJECT_KEY in environ:
            owners.remember(key, environ[PROJECT_KEY])
        return answer

    return application
