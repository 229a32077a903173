# SPDX-License-Identifier: Apache-2.0
"""The stores of the base, put together: a capability extends them by its own."""

import dataclasses
from typing import Protocol

from gantt.scheduler.ports.child_claims import ChildClaims
from gantt.scheduler.ports.group_plans import GroupPlans
from gantt.scheduler.ports.hosts import Declarations, Groups, Hosts, Reports
from gantt.scheduler.ports.providers import CandidateReads, Vocabulary
from gantt.scheduler.ports.records import (
    ChangeFeed,
    Records,
    Retention,
    Services,
    Shadows,
    TableLogs,
)
from gantt.scheduler.ports.requests import Claims, Quotas, Requests


class DatabaseStatus(Protocol):
    """The state of the database itself."""

    def ping(self) -> float:
        """Return the database's clock.  :raises DatabaseUnavailable:"""

    def silent_for(self) -> float:
        """Return how long, in seconds, the longest wait for the database now under way has lasted.

        Reads that are known to be long do not count.  Cheap: it sends the database nothing,
        and any thread may call it while others wait.
        """

    def check_rights(self) -> None:
        """Check that the user may write every table; nothing is written, no row is locked.

        :raises DatabaseUnavailable: it may not; names a table
        """

    def close(self) -> None:
        """Close the connections to the database."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stores:
    """One store for each concern, on one database.  Every method of a store is one transaction.

    Times are seconds of the database's clock.  Any thread may call any method.
    """

    database: DatabaseStatus
    requests: Requests
    claims: Claims
    child_claims: ChildClaims
    reports: Reports
    hosts: Hosts
    declarations: Declarations
    vocabulary: Vocabulary
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
