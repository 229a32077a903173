# SPDX-License-Identifier: Apache-2.0
"""What the handlers work with: passed in by whoever composes the process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer
from gantt.http.caller import Caller as Caller
from gantt.http.gates import QuotaGates
from gantt.http.policy import PolicyEnforcer
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.scheduler.ports import Store
from gantt.scheduler.zones.parts import ZoneParts


class MetricsSource(Protocol):
    """The metrics registry, as far as it is used here."""

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def render(self) -> bytes:
        """Everything in Prometheus' text form."""


class RequestsClient(Protocol):
    """How placements are asked for and taken back: over RPC, or in-process."""

    def select_destinations(self, request: SelectDestinations) -> Answer:
        """Place and claim.

        :raises GanttError: whatever is not a placement, see ``decision.error_of``
        """

    def extend_claims(self, request_id: str, seconds: int) -> object:
        """Lengthen the leases of the reserved claims of a request.

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


#: Name of a dependency -> a check that returns a line about it or raises GanttError.
Checks = Mapping[str, Callable[[], str]]


class HandlerContext(msgspec.Struct, frozen=True):
    """The handlers' first argument."""

    insights: Insights
    store: Store
    client: RequestsClient
    metrics: MetricsSource
    settings: HttpSettings
    checks: Checks
    policy: PolicyEnforcer
    gates: QuotaGates
    zones: ZoneParts
