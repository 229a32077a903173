# SPDX-License-Identifier: Apache-2.0
"""Base of all stores: their transactions, and the process's cache of hosts."""

from typing import Any

import sqlalchemy as sa

from gantt.db.engine import retry, session
from gantt.db.hosts.rows import Memory


class HostTables(session.Transactions):
    """A store of one concept, complete by itself; ``SqlStore`` is all of them.

    Its memory is a cache; any number of stores may share a database.
    """

    def __init__(
        self, engine: sa.Engine, policy: retry.RetryPolicy | None = None, **options: Any
    ) -> None:
        super().__init__(engine, policy)
        self.memory = Memory()

    @property
    def engine(self) -> sa.Engine:
        """The engine, for migrations and tests."""
        return self.database.engine

    def close(self) -> None:
        """Close its connections."""
        self.reads.close()
        self.database.close()
        self.engine.dispose()


def is_id(text: str) -> bool:
    """Return whether an id can be stored at all: ids are ASCII, of bounded length."""
    return text.isascii() and 0 < len(text) <= 64 and '\x00' not in text
