# SPDX-License-Identifier: Apache-2.0
"""The stores of a process, put together: a plain container for whoever wires them up."""

import dataclasses
from collections.abc import Callable
from typing import Protocol, TypeVar

from gantt.scheduler.ports.allocations import Allocations
from gantt.scheduler.ports.candidates import CandidateReads
from gantt.scheduler.ports.claims import Claims
from gantt.scheduler.ports.database import DatabaseStatus
from gantt.scheduler.ports.feed import ChangeFeed
from gantt.scheduler.ports.group_plans import GroupPlans
from gantt.scheduler.ports.groups import Groups
from gantt.scheduler.ports.hosts import Declarations, Hosts, Reports
from gantt.scheduler.ports.nova import Nova
from gantt.scheduler.ports.providers import Providers
from gantt.scheduler.ports.quotas import Quotas
from gantt.scheduler.ports.records import Records, Retention, Services, Shadows, TableLogs
from gantt.scheduler.ports.requests import Requests
from gantt.scheduler.ports.vocabulary import Vocabulary
from gantt.scheduler.ports.zones import (
    AllocationOrders,
    ZoneClaims,
    ZoneFigures,
    ZoneRegistry,
    ZoneReleases,
    ZoneRequests,
)

T = TypeVar('T')


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacementStores:
    """The stores that Placement's interface reads and writes."""

    providers: Providers
    vocabulary: Vocabulary
    allocations: Allocations


class DryRuns(Protocol):
    """Work on the database that leaves no trace."""

    def dry_run(self, work: Callable[[PlacementStores], T]) -> T:
        """Return the result of ``work`` on stores all of whose changes are undone in the end.

        Their methods raise and return what they do otherwise, each as if the earlier ones had been
        carried out.

        :param work: may be called repeatedly
        :raises Busy: rows stay locked
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stores:
    """One store for each concern, on one database.  Every method of a store is one transaction.

    Times are seconds of the database's clock.  Any thread may call any method.
    """

    database: DatabaseStatus
    requests: Requests
    claims: Claims
    reports: Reports
    hosts: Hosts
    nova: Nova
    declarations: Declarations
    providers: Providers
    vocabulary: Vocabulary
    allocations: Allocations
    dry_runs: DryRuns
    candidates: CandidateReads
    groups: Groups
    plans: GroupPlans
    quotas: Quotas
    feed: ChangeFeed
    records: Records
    table_logs: TableLogs
    retention: Retention
    services: Services
    shadows: Shadows
    zones: ZoneRegistry
    zone_requests: ZoneRequests
    zone_claims: ZoneClaims
    zone_figures: ZoneFigures
    zone_releases: ZoneReleases
    orders: AllocationOrders
