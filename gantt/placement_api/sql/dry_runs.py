# SPDX-License-Identifier: Apache-2.0
"""Dry runs of Placement's interface: its stores, on savepoints that are all undone in the end."""

from collections.abc import Callable
from typing import TypeVar

from gantt.db.database import Database, SqlStore
from gantt.db.hosts.vocabulary import SqlVocabulary
from gantt.placement_api.ports import PlacementStores
from gantt.placement_api.sql.allocations import SqlAllocations
from gantt.placement_api.sql.providers import SqlProviders

T = TypeVar('T')


class SqlDryRuns(SqlStore):
    """Work on the database that leaves no trace: ``ports.DryRuns`` in SQL."""

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
