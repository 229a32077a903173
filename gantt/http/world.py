# SPDX-License-Identifier: Apache-2.0
"""What the handlers work with: passed in by whoever composes the process."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.scheduler.ports import Store


class Metrics(Protocol):
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

    def cancel_claims(self, request_id: str, reason: str = '') -> object:
        """Release the reserved claims of a request; it stays cancelled.

        :raises GanttError:
        """


#: Name of a dependency -> a check that returns a line about it or raises GanttError.
Checks = Mapping[str, Callable[[], str]]


class Policy(Protocol):
    """The rules in force, as far as handlers ask them; see ``policy.Policy``."""

    open: frozenset[str]

    def admit(self, rule: str, caller: 'Caller') -> 'Caller':
        """The caller, knowing how far the rule lets it.  :raises Forbidden:"""

    def check(self, rule: str, caller: 'Caller', field: str = '', expected: str = '') -> None:
        """Refuse who does not meet the rule, naming what in its request asks for it.

        :raises Forbidden:
        """

    def allows(self, rule: str, caller: 'Caller') -> bool:
        """Whether the caller meets the rule for all that it has been let at."""


class Gate(Protocol):
    """A bound on calls at once; see ``gates.Gate``."""

    def passing(self, caller: 'Caller', project: str | None = None) -> AbstractContextManager[None]:
        """Be inside, for a project where the caller may ask for any.  :raises Busy:"""


class Gates(Protocol):
    """The gates of this process; see ``gates.Gates``."""

    @property
    def placements(self) -> Gate:
        """Who waits for the schedulers."""

    @property
    def trials(self) -> Gate:
        """What is placed in this process."""

    @property
    def waits(self) -> Gate:
        """Who waits until something happens."""


class World(msgspec.Struct, frozen=True):
    """The handlers' first argument."""

    insights: Insights
    store: Store
    client: RequestsClient
    metrics: Metrics
    settings: HttpSettings
    checks: Checks
    policy: Policy
    gates: Gates


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, as far as the authentication strategy can say.

    :ivar user: its id; ``user_name`` is for people
    :ivar project: that it acts for, by id
    :ivar domain: that it acts for, by id: then it acts for no project
    :ivar system: it acts for the whole system
    :ivar service_roles: of the service that passes the request on, where one says so
    :ivar base: the address of ``/`` as it was asked for, see ``links.base``
    :ivar everywhere: the rule of the route lets it at things of all projects,
        else at those of its own only
    """

    user: str = ''
    user_name: str = ''
    project: str | None = None
    domain: str | None = None
    system: bool = False
    roles: tuple[str, ...] = ()
    service_roles: tuple[str, ...] = ()
    everywhere: bool = False
    base: str = ''

    @property
    def only(self) -> str | None:
        """The one project of whose things lists are; None: of all."""
        return None if self.everywhere else self.project or ''

    def sees(self, project: str | None) -> bool:
        """Whether a thing of that project is there for the caller."""
        return self.everywhere or (project is not None and project == self.project)

    def credentials(self) -> dict[str, Any]:
        """As oslo.policy reads them; what is not known is not in it."""
        known = {
            'user_id': self.user,
            'project_id': self.project,
            'domain_id': self.domain,
            'system_scope': 'all' if self.system else None,
        }
        return {
            **{key: value for key, value in known.items() if value},
            'roles': list(self.roles),
            'service_roles': list(self.service_roles),
        }

    def words(self) -> str:
        """Roles and scope, for a refusal."""
        roles = ', '.join(self.roles) or 'none'
        if self.system:
            return f'the roles {roles} on the system'
        if self.domain:
            return f'the roles {roles} on domain {self.domain}'
        return f'the roles {roles} on ' + (f'project {self.project}' if self.project else 'nothing')


#: Who has said nothing of itself.
NOBODY = Caller()
