# SPDX-License-Identifier: Apache-2.0
"""Dependencies of the handlers, passed in by the composition of the process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.records.decision import Answer
from gantt.http.caller import Caller as Caller
from gantt.http.gates import QuotaGates
from gantt.http.policy import PolicyEnforcer
from gantt.http.routes import Route
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.insights.views import Capacity, Explanation
from gantt.scheduler.ports.stores import Stores


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


class ReadOnlyAnswers(Protocol):
    """Answers to dry runs and queries, which child zones may take part in; nothing is claimed."""

    def dry_run(
        self, request: SelectDestinations, public: bool, is_own_caller: bool
    ) -> tuple[Answer, Explanation]:
        """Return the place that a request would get.

        :param public: include only what every user may know
        :param is_own_caller: whether the caller's own project would claim, which default limits
            bind
        :raises GanttError: the request would not be placed; the error of a real request
        """

    def capacity(self, spec: RequestSpec, local: Capacity) -> Capacity:
        """Return how many more of a shape fit in all zones, from ``local``, that of this zone."""

    def explanation(self, local: Explanation) -> Explanation:
        """Return a decision's explanation, completed by child zones, given that of this zone."""


class LocalAnswers:
    """Answers without child zones: only from the hosts of this service."""

    def __init__(self, insights: Insights) -> None:
        self._insights = insights

    def dry_run(
        self, request: SelectDestinations, public: bool, is_own_caller: bool
    ) -> tuple[Answer, Explanation]:
        return self._insights.dry_run(request, public, is_own_caller)

    def capacity(self, spec: RequestSpec, local: Capacity) -> Capacity:
        return local

    def explanation(self, local: Explanation) -> Explanation:
        return local


#: Name of a dependency -> a check that returns a line about it or raises GanttError.
Checks = Mapping[str, Callable[[], str]]


class HandlerContext(msgspec.Struct, frozen=True):
    """The handlers' first argument.

    :ivar routes: routes of the whole interface
    """

    insights: Insights
    stores: Stores
    client: RequestsClient
    metrics: MetricsSource
    settings: HttpSettings
    checks: Checks
    policy: PolicyEnforcer
    gates: QuotaGates
    answers: ReadOnlyAnswers
    routes: Sequence[Route]


class HttpExtension(msgspec.Struct, frozen=True):
    """Part of the interface that a capability adds.

    :ivar routes: further lines of the route table
    :ivar context: returns the first argument of their handlers, from that of the other handlers
    :ivar checks: further health checks
    :ivar middleware: further middleware of Falcon
    """

    routes: Sequence[Route]
    context: Callable[[HandlerContext], HandlerContext]
    checks: Checks = {}
    middleware: Sequence[object] = ()
