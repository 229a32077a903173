# SPDX-License-Identifier: Apache-2.0
"""Users of one engine that keep connections checked out: a pool that runs short gets them back.

Each keeps some between transactions.  In a small pool another user would wait for a connection
that one of them keeps idle, until its wait times out.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

import sqlalchemy as sa

from gantt.db.engine.engine import connections_most


class PoolUser(Protocol):
    """A user that keeps connections between transactions."""

    def close_idle(self) -> None:
        """Close the idle connections."""


class PoolUsers:
    """The users of one engine.  Thread-safe."""

    def __init__(self, engine: sa.Engine) -> None:
        self._most = connections_most(engine)
        # A weak reference: the users of an engine must not keep it alive.
        self._engine = weakref.ref(engine)
        self._users: weakref.WeakSet[PoolUser] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._opening = 0

    @classmethod
    def of(cls, engine: sa.Engine) -> 'PoolUsers':
        """Return the users of an engine, the same object each time."""
        with _LOCK:
            users = _USERS.get(engine)
            if users is None:
                users = _USERS[engine] = cls(engine)
            return users

    def add(self, user: PoolUser) -> None:
        """Add a user, as long as it lives."""
        with self._lock:
            self._users.add(user)

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Wrap taking a connection out of the pool: if it has none left, idle ones close."""
        if self._most is None:
            yield
            return
        with self._lock:
            self._opening += 1
            users = list(self._users) if self.is_short() else []
        try:
            for user in users:
                user.close_idle()
            yield
        finally:
            with self._lock:
                self._opening -= 1

    def is_short(self) -> bool:
        """Return whether a user may have to wait for a connection: then none is kept."""
        engine = self._engine()
        if self._most is None or engine is None:
            return False
        pool = engine.pool
        if not isinstance(pool, sa.pool.QueuePool):
            return False
        return pool.checkedout() + self._opening > self._most


_USERS: 'weakref.WeakKeyDictionary[sa.Engine, PoolUsers]' = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
