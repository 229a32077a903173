# SPDX-License-Identifier: Apache-2.0
"""Ports for hosts, their reports and declarations, and server groups."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.host_event import HostEvent
from gantt.core.claims.host_facts import UpdateHostFacts
from gantt.core.claims.reconcile import RegistrationOutcome, ReportEffect
from gantt.core.messages.report import HostReport, RegisterHost
from gantt.core.resources.host import Aggregate, Group, HostChange
from gantt.core.resources.host_keys import HostKey
from gantt.core.table.metrics import DeclaredMetric


class ReportOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one report.

    ``outcome``: applied | stale | gone (old epoch) | unknown_host | needs_full | locked (others
    keep the host's row locked: give it to the store again).
    ``changed_pipeline``: whether a claim, usage or a fact changed (the generation grew).
    """

    name: str
    outcome: str
    changed: bool = False
    confirmed: list[str] = []
    released: list[str] = []
    adopted: list[str] = []
    current_epoch: int = 0
    current_sequence: int = 0

    @classmethod
    def of(cls, effect: ReportEffect) -> 'ReportOutcome':
        """Return the outcome of a report that was applied, or was not."""
        return cls(
            name=effect.row.name,
            outcome=effect.outcome,
            changed=effect.changed,
            confirmed=effect.confirmed,
            released=effect.released,
            adopted=effect.adopted,
            current_epoch=effect.row.epoch,
            current_sequence=effect.row.sequence,
        )


class ReportResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes in the order given, and the touched hosts with their placed claims."""

    outcomes: list[ReportOutcome]
    hosts: list[HostChange] = []
    now: float = 0.0


class FactsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of an agent's update of facts.

    :ivar outcome: applied | stale | unknown_host | refused (its own agent reports for the host)
    :ivar sequence: the last one that is known of the host
    :ivar hosts: the host as it is now, where the update was applied
    """

    outcome: str
    sequence: int = 0
    hosts: list[HostChange] = []


class Reports(Protocol):
    """Registrations and reports of agents about their hosts."""

    def register_hosts(self, messages: Sequence[RegisterHost]) -> list[RegistrationOutcome]:
        """Register distinct hosts, in one transaction; each gets its next epoch.

        The same nonce again gets the same epoch.  The error of a host is ``StaleRegistration``
        where a later message of the same journal was received before, and ``Busy`` where others
        keep its row locked.
        """

    def apply_reports(self, reports: Sequence[HostReport]) -> ReportResult:
        """Fold reports into their hosts and claims, in the order given."""

    def update_host_facts(self, update: UpdateHostFacts) -> FactsResult:
        """Fold facts that an agent sends beside its host's reports; see ``core.claims.host_facts``.

        :raises NotProven: its sender is not the host's known agent
        """


class Hosts(Protocol):
    """Hosts as operators manage them."""

    def disable_host(self, name: str, reason: str, by: str) -> HostChange:
        """Disable a host for new placements.  :raises NotFound:"""

    def enable_host(self, name: str, by: str = '') -> HostChange:
        """Enable a host for new placements.  :raises NotFound:"""

    def set_inventories_by(self, name: str, by: str | None, who: str = '') -> HostChange:
        """Let reports or the Placement interface set a host's inventories.

        The same goes for its traits and aggregates by uuid; reports always set all else.

        :param by: ``core.resources.host.API``, or None: its reports
        :raises NotFound:
        :raises InvalidMessage: ``by`` is neither
        :raises Refused: processes that would let a report set them may run
        """

    def revoke_host_key(self, name: str) -> HostChange:
        """Refuse reports for the host until its key is forgotten; that key is never accepted again.

        :raises NotFound: the host is not known, or has no key
        """

    def load_host_key(self, name: str) -> HostKey | None:
        """Return the key of a host as it is now; None: it has none, or is not known."""

    def forget_host_key(self, name: str) -> HostChange:
        """Accept the next key that the host registers with.  :raises NotFound:"""

    def remove_host(self, name: str) -> HostChange:
        """Remove a host without live claims.  :raises NotFound, Refused:"""

    def rename_host(self, old: str, new: str) -> HostChange:
        """Rename a host with its claims, history and aggregates; its agent registers by ``new``.

        :raises NotFound:
        :raises Refused: there is a host ``new``
        """

    def decommission_host(self, name: str) -> HostChange:
        """Remove a host as ``remove_host``, and from its aggregates.  :raises NotFound, Refused:"""

    def host_history(self, name: str, limit: int) -> list[HostEvent]:
        """Return recent events of a host, newest first; [] where none are stored."""

    def recent_events(
        self, hosts: Collection[str], since: float, limit: int
    ) -> list[tuple[str, HostEvent]]:
        """Return recent events of these hosts, with the name of each, oldest first.

        :param since: begin, by the database's clock; older events are left out
        :param limit: of lines and of claims, the newest each
        """


class Declarations(Protocol):
    """Declarations of operators: aggregates and metrics."""

    def save_aggregate(
        self,
        name: str,
        metadata: dict[str, str | None],
        hosts: list[str] | None,
        uuid: str | None = None,
    ) -> Aggregate:
        """Create or change an aggregate; a None value removes its key."""

    def remove_aggregate(self, name: str) -> None:
        """Remove an aggregate.  :raises NotFound:"""

    def save_metric(self, metric: DeclaredMetric) -> DeclaredMetric:
        """Declare a metric, or change its declaration.

        :raises InvalidMessage: a field has no meaning
        :raises Refused: there are too many already
        """

    def remove_metric(self, name: str) -> None:
        """Remove the declaration of a metric.  :raises NotFound:"""

    def declared_metrics(self) -> list[DeclaredMetric]:
        """Return all declarations, by name."""


class Groups(Protocol):
    """Server groups."""

    def save_group(self, group: Group) -> Group:
        """Create a server group, or return it unchanged where it is the same.

        :raises Refused: it exists with another rule
        """

    def remove_group(self, uuid: str) -> None:
        """Remove a server group.  :raises NotFound, Refused: it has live claims"""

    def load_group(self, uuid: str) -> Group | None:
        """Return the group with the consumers of its live claims."""

    def list_groups(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[Group]:
        """Return groups by uuid, after ``marker``; of one project, or of all."""

    def is_idle_group(self, uuid: str, project: str | None) -> bool:
        """Return whether a group's rule came with a request of a project, and it has no members."""

    def count_groups(self, project: str) -> int:
        """Return the number of a project's server groups."""
