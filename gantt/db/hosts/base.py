# SPDX-License-Identifier: Apache-2.0
"""What every store stands on: its transactions, and what the process remembers of hosts."""

from typing import Any

import sqlalchemy as sa

from gantt.db.engine import retry, session
from gantt.db.hosts.rows import Memory


class HostTables(session.Transactions):
    """A store of one concept is complete by itself; ``SqlStore`` is all of them.

    What it remembers is a cache; any number of stores may share a database.
    """

    def __init__(
        self, engine: sa.Engine, policy: retry.RetryPolicy | None = None, **options: Any
    ) -> None:
        super().__init__(engine, policy)
        self.memory = Memory()

    @property
    def engine(self) -> sa.Engine:
        """For migrations and tests."""
        return self.database.engine

    def close(self) -> None:
        """Close its connections."""
        self.reads.close()
        self.database.close()
        self.engine.dispose()


def is_id(text: str) -> bool:
    """Whether an id could be stored at all: ids are ASCII, of bounded length."""
    return text.isascii() and 0 < len(text) <= 64 and '\x00' not in text
