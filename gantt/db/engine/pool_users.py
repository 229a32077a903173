# SPDX-License-Identifier: Apache-2.0
"""Who keeps connections of one engine checked out: where its pool is used up, others get them.

Each keeps some between transactions.  In a small pool what one of them keeps idle would be waited
for by another until that gives up.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

import sqlalchemy as sa

from gantt.db.engine.engine import connections_most


class PoolUser(Protocol):
    """Keeps connections between transactions."""

    def close_idle(self) -> None:
        """Close those that nobody uses just now."""


class PoolUsers:
    """Those of one engine.  Any thread."""

    def __init__(self, engine: sa.Engine) -> None:
        self._most = connections_most(engine)
        # Not the engine or its pool: what is kept for an engine must not keep it.
        self._engine = weakref.ref(engine)
        self._users: weakref.WeakSet[PoolUser] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._opening = 0

    @classmethod
    def of(cls, engine: sa.Engine) -> 'PoolUsers':
        """Those of an engine, the same object each time."""
        with _LOCK:
            found = _USERS.get(engine)
            if found is None:
                found = _USERS[engine] = cls(engine)
            return found

    def add(self, user: PoolUser) -> None:
        """One more, as long as it lives."""
        with self._lock:
            self._users.add(user)

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """While a connection is taken out of the pool: where it has none left, idle ones close."""
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
        """Whether somebody may wait for a connection: then none is kept."""
        engine = self._engine()
        if self._most is None or engine is None:
            return False
        pool = engine.pool
        if not isinstance(pool, sa.pool.QueuePool):
            return False
        return pool.checkedout() + self._opening > self._most


_USERS: 'weakref.WeakKeyDictionary[sa.Engine, PoolUsers]' = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
