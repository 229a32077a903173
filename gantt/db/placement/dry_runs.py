# SPDX-License-Identifier: Apache-2.0
"""The stores of Placement's interface, and the same ones for a dry run."""

from collections.abc import Callable
from typing import TypeVar

from gantt.db.engine.session import Savepoints
from gantt.db.placement.providers import SqlProviderRecords
from gantt.db.placement.reshaping import SqlReshaping
from gantt.db.placement.usages import SqlUsages
from gantt.db.placement.vocabulary import SqlVocabulary
from gantt.scheduler.ports import PlacementRecords

T = TypeVar('T')


class SqlPlacement(SqlReshaping, SqlUsages, SqlProviderRecords, SqlVocabulary):
    """See ``scheduler.ports.PlacementStore``."""

    def dry_run(self, work: Callable[[PlacementRecords], T]) -> T:
        return self.database.rolled_back(lambda savepoints: work(_DryRun(savepoints)))


class _DryRun(SqlPlacement):
    """The stores on savepoints, with caches of their own: nothing undone stays in memory."""

    def __init__(self, savepoints: Savepoints) -> None:
        super().__init__(savepoints.engine)
        self.database = self.reads = savepoints
