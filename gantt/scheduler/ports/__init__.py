# SPDX-License-Identifier: Apache-2.0
"""Ports: the outside world as the service sees it, one protocol for each concern.

A port has at most a dozen methods; code that needs all of the database takes ``Store``.  Stores
raise ``DatabaseUnavailable`` after their own bounded retries, ``Busy`` where another process keeps
indispensable rows locked; no other database error leaks out.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from gantt.scheduler.ports.allocations import (
    Allocations,
    ConsumerAllocations,
    ProviderAllocations,
    ReshapedProvider,
    TypeUsage,
)
from gantt.scheduler.ports.candidates import CandidateReads, ProviderNews
from gantt.scheduler.ports.claims import ClaimOutcome, ClaimResult, Claims
from gantt.scheduler.ports.feed import ChangeFeed, Everything, Feed, Gap
from gantt.scheduler.ports.group_plans import GroupPlans
from gantt.scheduler.ports.groups import Groups
from gantt.scheduler.ports.hosts import (
    Declarations,
    FactsResult,
    Hosts,
    ReportOutcome,
    ReportResult,
    Reports,
)
from gantt.scheduler.ports.nova import Nova, NovaUpdateResult, OpenMove
from gantt.scheduler.ports.process import Clock, Inbox, Recorder, Replies
from gantt.scheduler.ports.providers import ProviderRecords, Providers
from gantt.scheduler.ports.quotas import Quotas
from gantt.scheduler.ports.records import Decisions, Services, TableLogs
from gantt.scheduler.ports.requests import RequestLine, Requests, StoredRequest
from gantt.scheduler.ports.vocabulary import Vocabulary
from gantt.scheduler.ports.zones import (
    AllocationOrders,
    OpenedRequest,
    OpenRequest,
    StoredBelow,
    ZoneFigures,
    ZoneGiveBacks,
    ZoneIdentity,
    ZoneRegistry,
    ZoneRequests,
    Zones,
)

__all__ = [
    'AllocationOrders',
    'Allocations',
    'CandidateReads',
    'ChangeFeed',
    'ClaimOutcome',
    'ClaimResult',
    'Claims',
    'Clock',
    'ConsumerAllocations',
    'Decisions',
    'Declarations',
    'Everything',
    'FactsResult',
    'Feed',
    'Gap',
    'GroupPlans',
    'Groups',
    'NovaUpdateResult',
    'Hosts',
    'Inbox',
    'Nova',
    'OpenMove',
    'PlacementRecords',
    'PlacementStore',
    'ProviderAllocations',
    'ProviderNews',
    'ProviderRecords',
    'Providers',
    'Quotas',
    'Recorder',
    'Replies',
    'ReportOutcome',
    'ReportResult',
    'Reports',
    'RequestLine',
    'Requests',
    'ReshapedProvider',
    'Services',
    'Store',
    'StoredRequest',
    'TableLogs',
    'TypeUsage',
    'Vocabulary',
    'ZoneFigures',
    'ZoneGiveBacks',
    'ZoneIdentity',
    'ZoneRegistry',
    'ZoneRequests',
    'Zones',
    'OpenRequest',
    'OpenedRequest',
    'StoredBelow',
]

T = TypeVar('T')


class PlacementRecords(Allocations, ProviderRecords, Providers, Vocabulary, Protocol):
    """Records that Placement's interface reads and writes."""


class PlacementStore(PlacementRecords, CandidateReads, Protocol):
    """The database, as Placement's interface needs it."""

    def dry_run(self, work: Callable[[PlacementRecords], T]) -> T:
        """Return the result of ``work`` on records all of whose changes are undone in the end.

        Its methods raise and return what they do otherwise, each as if the earlier ones had been
        carried out.

        :param work: may be called repeatedly
        :raises Busy: rows stay locked
        """


class Store(
    AllocationOrders,
    Allocations,
    CandidateReads,
    ChangeFeed,
    Claims,
    Decisions,
    Declarations,
    GroupPlans,
    Groups,
    Hosts,
    Nova,
    ProviderRecords,
    Providers,
    Quotas,
    Reports,
    Requests,
    Services,
    TableLogs,
    Vocabulary,
    ZoneFigures,
    ZoneGiveBacks,
    ZoneRegistry,
    ZoneRequests,
    Protocol,
):
    """The database, in terms of core types.  Every method is one transaction.

    Times are seconds of the database's clock.  Any thread may call any method.
    """
