# SPDX-License-Identifier: Apache-2.0
"""The host table of a process, or of a part of one, that commits nothing itself.

Any thread may get a version to read, or the table itself, to plan on for a moment.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from gantt import exceptions
from gantt.core.table.host_table import HostTable
from gantt.scheduler.host_cache import HostCache


class HostFollower(HostCache):
    """A cache whose table is owned by the holder of its lock."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._owning = threading.Lock()
        self._refreshing = threading.Lock()
        self._snapshot: HostTable | None = None
        self._not_before = float('-inf')

    def table(self, max_age: float = 1.0) -> HostTable:
        """Return a read-only table no older than ``max_age`` seconds where the database answers.

        Where the database is away the last table is returned; its ``now`` and the cache's
        ``age_seconds`` show its age.

        :raises DatabaseUnavailable: nothing was ever read
        """
        self.refresh(max_age)
        with self._owning:
            self._fold()
            if self._snapshot is None:
                self._snapshot = self.working.snapshot()
            self._snapshot.now = self.database_now
            return self._snapshot

    @contextlib.contextmanager
    def borrowed(self, max_age: float) -> Iterator[HostTable]:
        """Yield the table itself, as fresh as that of :meth:`table`, for the block.

        Whatever the block takes from it must be given back there: a copy costs more than a plan,
        and grows with the number of hosts.

        :raises DatabaseUnavailable: nothing was ever read
        """
        self.refresh(max_age)
        with self._owning:
            self._fold()
            yield self.working

    def refresh(self, max_age: float) -> None:
        """Read the feed where the last read is too old; concurrent callers share one read.

        :raises DatabaseUnavailable: nothing was ever read
        """
        oldest = self.clock.monotonic() - max_age
        if self._is_newer(oldest):
            return
        with self._refreshing:
            if self._is_newer(oldest):
                return
            try:
                self.fetch()
            except exceptions.DatabaseUnavailable:
                if self._incarnation is None:
                    raise

    def reload_soon(self) -> None:
        """Read the feed before the next answer, even if the table is fresh."""
        self._not_before = self.clock.monotonic()

    def take_changed(self) -> dict[int, str | None]:
        """Return hosts whose rows changed since the last call: id -> name, None of one deleted."""
        with self._owning:
            changed, self._changed = self._changed, {}
        return changed or {}

    # -- inside ------------------------------------------------------------------------
    def _is_newer(self, oldest: float) -> bool:
        """Return whether the feed was read after a moment, and after it had to be read again."""
        return self._read_at >= oldest and self._read_at > self._not_before

    def _fold(self) -> None:
        if self._news:
            self._snapshot = None
        self.fold()
