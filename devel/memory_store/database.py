# SPDX-License-Identifier: Apache-2.0
"""Rows, clock and lock that the stores in memory share."""

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from devel.memory_store.tables import Tables
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.ports.process import Clock

F = TypeVar('F', bound=Callable[..., Any])


class MemoryDatabase:
    """Rows of all stores; one lock replaces the database's transactions.

    :param clock: its ``wall`` is the database's clock
    :ivar incarnation: another number makes every reader load everything anew
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.incarnation = 1
        self.tables = Tables()
        self.lock = threading.RLock()

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self.clock.wall()

    def ping(self) -> float:
        return self.now

    def silent_for(self) -> float:
        """Return 0: no caller waits for what is in this process."""
        return 0.0

    def check_rights(self) -> None:
        """Check nothing: whoever has the object may write."""

    def close(self) -> None:
        """Close nothing: nothing is held outside this object."""


class OnMemoryDatabase(Protocol):
    """A store."""

    database: MemoryDatabase


def atomic(method: F) -> F:
    """Run a method as one transaction: no other caller is inside meanwhile."""

    @functools.wraps(method)
    def run(self: OnMemoryDatabase, *args: Any, **kwargs: Any) -> Any:
        with self.database.lock:
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]
