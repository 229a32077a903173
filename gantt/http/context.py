# SPDX-License-Identifier: Apache-2.0
"""Dependencies of the handlers, passed in by the composition of the process."""

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

import msgspec

from gantt import exceptions
from gantt.core.groups.group_answer import GroupAnswer
from gantt.core.messages.place_group import ChangeGroup, PlaceGroup
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer
from gantt.http.caller import Caller as Caller
from gantt.http.gates import QuotaGates
from gantt.http.policy import PolicyEnforcer
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.scheduler.ports import Stores
from gantt.scheduler.zones.context import ZoneContext


class MetricsSource(Protocol):
    """The metrics registry, as far as it is used here."""

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text form."""


class RequestsClient(Protocol):
    """A client for placements: over RPC, or in-process."""

    def select_destinations(self, request: SelectDestinations) -> Answer:
        """Place and claim.

        :raises GanttError: for any outcome but a placement, see ``decision.error_of``
        """

    def extend_claims(self, request_id: str, seconds: int) -> object:
        """Extend the leases of the reserved claims of a request.

        :raises GanttError:
        """

    def confirm_request(self, request_id: str, consumers: Sequence[str] = ()) -> object:
        """Confirm the claims of a request for pools.

        :raises GanttError:
        """

    def release_request(
        self, request_id: str, consumers: Sequence[str] = (), reason: str = ''
    ) -> object:
        """Release the claims of a request for pools.

        :raises GanttError:
        """

    def cancel_claims(self, request_id: str, reason: str = '') -> object:
        """Release the reserved claims of a request; it stays cancelled.

        :raises GanttError:
        """


class PlansClient(Protocol):
    """A client for plans of groups: over RPC, or in-process."""

    def place_group(self, request: PlaceGroup) -> GroupAnswer:
        """Plan a group and hold its places.

        :raises GanttError:
        """

    def change_group(self, request: ChangeGroup) -> GroupAnswer:
        """Change a group to its new description.

        :raises GanttError:
        """

    def extend_group_plan(
        self, group: str, seconds: int, *, only_project: str | None = None
    ) -> object:
        """Extend the leases of the places of a group.

        :raises GanttError:
        """

    def release_group_plan(
        self,
        group: str,
        reason: str = '',
        *,
        only_project: str | None = None,
        planned_by: str | None = None,
    ) -> object:
        """Give back the places of a group.

        :raises GanttError:
        """


class NoPlans:
    """The client of a process without a planner of groups."""

    def _away(self) -> NoReturn:
        raise exceptions.Unavailable('no gantt-planner is reached from here')

    def place_group(self, request: PlaceGroup) -> GroupAnswer:
        """Refuse the call, as all of these.

        :raises Unavailable: always
        """
        self._away()

    def change_group(self, request: ChangeGroup) -> GroupAnswer:
        self._away()

    def extend_group_plan(
        self, group: str, seconds: int, *, only_project: str | None = None
    ) -> object:
        self._away()

    def release_group_plan(
        self,
        group: str,
        reason: str = '',
        *,
        only_project: str | None = None,
        planned_by: str | None = None,
    ) -> object:
        self._away()


#: Name of a dependency -> a check that returns a line about it or raises GanttError.
Checks = Mapping[str, Callable[[], str]]


class HandlerContext(msgspec.Struct, frozen=True):
    """The handlers' first argument."""

    insights: Insights
    stores: Stores
    client: RequestsClient
    metrics: MetricsSource
    settings: HttpSettings
    checks: Checks
    policy: PolicyEnforcer
    gates: QuotaGates
    zones: ZoneContext
    plans: PlansClient = NoPlans()
