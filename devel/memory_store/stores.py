# SPDX-License-Identifier: Apache-2.0
"""The stores in memory, put together: the write side, for tests of it and the simulator.

What people read (decisions, quotas, logs, lists, history) has its twin in SQLite, see decision
0040.

One lock replaces the database's transactions: every method is atomic, and a
method that raises has changed nothing.  It does in the simplest way what the
SQL stores must do, and the same contract suite holds both to it.
"""

import dataclasses
from typing import Any, cast

from devel.memory_store.allocations import MemoryAllocations
from devel.memory_store.claims import MemoryClaims
from devel.memory_store.database import MemoryDatabase
from devel.memory_store.feed import MemoryFeed
from devel.memory_store.group_plans import MemoryGroupPlans
from devel.memory_store.groups import MemoryGroups
from devel.memory_store.hosts import MemoryDeclarations, MemoryHosts
from devel.memory_store.nova import MemoryNova
from devel.memory_store.providers import MemoryProviders
from devel.memory_store.records import (
    MemoryQuotas,
    MemoryRecords,
    MemoryRetention,
    MemoryTableLogs,
)
from devel.memory_store.reports import MemoryReports
from devel.memory_store.requests import MemoryRequests
from devel.memory_store.vocabulary import MemoryVocabulary
from devel.memory_store.zones import MemoryChildClaims, MemoryZoneRequests
from gantt.scheduler.ports.process import Clock
from gantt.stores import AllStores


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryStores(AllStores):
    """Stores in memory; those that only readers and zones need are None."""

    database: MemoryDatabase


def memory_stores(clock: Clock | None = None, *, report_seconds: int = 60) -> MemoryStores:
    """Return empty stores.

    :param clock: its ``wall`` is the database's clock
    :param report_seconds: how often hosts are to report
    """
    database = MemoryDatabase(clock)
    absent: Any = None
    return MemoryStores(
        database=database,
        requests=cast(Any, MemoryRequests(database)),
        claims=cast(Any, MemoryClaims(database)),
        child_claims=cast(Any, MemoryChildClaims()),
        reports=cast(Any, MemoryReports(database, report_seconds)),
        hosts=cast(Any, MemoryHosts(database)),
        nova=cast(Any, MemoryNova(database)),
        declarations=cast(Any, MemoryDeclarations(database)),
        providers=MemoryProviders(database),
        vocabulary=MemoryVocabulary(database),
        allocations=MemoryAllocations(database),
        dry_runs=absent,
        candidates=absent,
        groups=cast(Any, MemoryGroups(database)),
        plans=MemoryGroupPlans(database),
        quotas=cast(Any, MemoryQuotas(database)),
        feed=MemoryFeed(database),
        records=cast(Any, MemoryRecords()),
        table_logs=cast(Any, MemoryTableLogs()),
        retention=cast(Any, MemoryRetention()),
        services=absent,
        shadows=absent,
        zones=absent,
        zone_requests=cast(Any, MemoryZoneRequests()),
        zone_claims=absent,
        zone_figures=absent,
        zone_releases=absent,
        orders=absent,
    )
