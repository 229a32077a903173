# SPDX-License-Identifier: Apache-2.0
"""Records in memory: only what writers need; the rest has its twin in SQLite, see decision 0040."""

from collections.abc import Collection, Sequence

from devel.memory_store.database import MemoryDatabase, atomic
from gantt.core.claims.commit import DecisionRecord
from gantt.core.claims.quota import Limit
from gantt.core.claims.reservations import PlannedUsage, usage_of
from gantt.core.messages.request import Lifecycle


class MemoryRecords:
    """Decisions, and recent history: ``ports.Records`` in memory."""

    def save_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """Save nothing: no caller reads decisions here."""


class MemoryTableLogs:
    """The change logs of host tables, for replay: ``ports.TableLogs`` in memory."""

    def save_table_log(
        self, worker: str, first: int, last: int, checkpoint: bool, chunks: list[bytes]
    ) -> None:
        """Save nothing: no caller replays from here."""

    def purge_table_log(self, keep_seconds: float) -> int:
        """Delete nothing: nothing was stored."""
        return 0


class MemoryRetention:
    """Bounds of what is kept: ``ports.Retention`` in memory."""

    def purge(self, **bounds: object) -> int:
        """Delete nothing: rows stay as long as the store, which lives for a test."""
        return 0


class MemoryQuotas:
    """Limits and usage of projects: ``ports.Quotas`` in memory."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    def limits(self) -> list[Limit]:
        """Return no limits: no project has one here."""
        return []

    @atomic
    def planned_usage(self, project: str) -> PlannedUsage:
        return usage_of(
            claim
            for claim in self.database.tables.all_live()
            if claim.project_id == project
            and claim.lifecycle is Lifecycle.PLAN
            and claim.member_name is not None
        )

    @atomic
    def owners_of(self, consumers: Collection[str]) -> dict[str, str | None]:
        return self.database.tables.owners_of(consumers)
