# SPDX-License-Identifier: Apache-2.0
"""Ports: the outside world as the service sees it, one protocol for each concern.

A port has at most a dozen methods, and code takes the ports that it uses; ``Stores`` holds those of
the database together, for whoever wires up a process.  Stores raise ``DatabaseUnavailable`` after
their own bounded retries, ``Busy`` where another process keeps indispensable rows locked; no other
database error leaks out.
"""

from gantt.scheduler.ports.allocations import (
    Allocations,
    ConsumerAllocations,
    ProviderAllocations,
    ReshapedProvider,
    TypeUsage,
)
from gantt.scheduler.ports.candidates import CandidateReads, ProviderNews
from gantt.scheduler.ports.claims import ClaimOutcome, ClaimResult, Claims
from gantt.scheduler.ports.database import DatabaseStatus
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
from gantt.scheduler.ports.providers import Providers
from gantt.scheduler.ports.quotas import Quotas
from gantt.scheduler.ports.records import Records, Retention, Services, Shadows, TableLogs
from gantt.scheduler.ports.requests import RequestLine, Requests, StoredRequest
from gantt.scheduler.ports.stores import DryRuns, PlacementStores, Stores
from gantt.scheduler.ports.vocabulary import Vocabulary
from gantt.scheduler.ports.zones import (
    AllocationOrders,
    OpenedRequest,
    OpenRequest,
    StoredBelow,
    ZoneClaims,
    ZoneFigures,
    ZoneIdentity,
    ZoneRegistry,
    ZoneReleases,
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
    'DatabaseStatus',
    'DryRuns',
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
    'PlacementStores',
    'ProviderAllocations',
    'ProviderNews',
    'Providers',
    'Quotas',
    'Records',
    'Recorder',
    'Replies',
    'ReportOutcome',
    'ReportResult',
    'Reports',
    'RequestLine',
    'Requests',
    'Retention',
    'ReshapedProvider',
    'Services',
    'Shadows',
    'Stores',
    'StoredRequest',
    'TableLogs',
    'TypeUsage',
    'Vocabulary',
    'ZoneClaims',
    'ZoneFigures',
    'ZoneReleases',
    'ZoneIdentity',
    'ZoneRegistry',
    'ZoneRequests',
    'Zones',
    'OpenRequest',
    'OpenedRequest',
    'StoredBelow',
]
