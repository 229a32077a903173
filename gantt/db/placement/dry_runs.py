# SPDX-License-Identifier: Apache-2.0
"""Dry runs of Placement's interface: its stores, on savepoints that are all undone in the end."""

from collections.abc import Callable
from typing import TypeVar

from gantt.db.database import Database
from gantt.db.placement.allocations import SqlAllocations
from gantt.db.placement.providers import SqlProviders
from gantt.db.placement.vocabulary import SqlVocabulary
from gantt.scheduler.ports import PlacementStores

T = TypeVar('T')


class SqlDryRuns:
    """Work on the database that leaves no trace: ``ports.DryRuns`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def dry_run(self, work: Callable[[PlacementStores], T]) -> T:
        return self.database.writes.rolled_back(
            lambda savepoints: work(_stores_on(Database.on(savepoints)))
        )


def _stores_on(database: Database) -> PlacementStores:
    return PlacementStores(
        providers=SqlProviders(database),
        vocabulary=SqlVocabulary(database),
        allocations=SqlAllocations(database),
    )
