# SPDX-License-Identifier: Apache-2.0
"""Interfaces of the compute side to the outside: the scheduler, and the guests.

Both ports are called from several threads.  A scheduler that does not answer
raises :class:`gantt.exceptions.Unavailable`; the caller tries again, within a
bound.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from gantt import exceptions
from gantt.core.messages.build import Build
from gantt.core.messages.layout import CellLayout
from gantt.core.messages.report import (
    ClaimUpdate,
    DevicePool,
    HostReport,
    Hypervisor,
    NumaCell,
    Registered,
    RegisterHost,
    ReportedMetric,
)
from gantt.core.messages.resource_classes import Inventory


class GuestError(exceptions.Unavailable):
    """An error of a guest that could not be started, stopped or listed."""

    code = 'gantt.guest'
    template = 'guest {consumer}: {problem}'


class RunningGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A guest that exists on the host.

    :ivar claim_id: None where the driver does not know it
    :ivar cells: its use of cells of the host, as far as the driver knows it
    :ivar devices: addresses of the PCI devices that it has
    """

    consumer: str
    claim_id: str | None = None
    resources: dict[str, int] = {}
    cells: list[CellLayout] = []
    devices: list[str] = []

    @classmethod
    def of(cls, build: Build) -> 'RunningGuest':
        """Return the guest that a build creates."""
        return cls(consumer=build.consumer, claim_id=build.claim_id, resources=build.resources)


class HostReadings(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a host, in the fields of a report; UNSET is left out of it."""

    inventories: dict[str, Inventory]
    foreign: dict[str, int] | UnsetType = msgspec.field(default_factory=dict)
    used: dict[str, int] | UnsetType = UNSET
    node: str | UnsetType = UNSET
    cell: str | None | UnsetType = UNSET
    zone: str | None | UnsetType = UNSET
    location: str | UnsetType = UNSET
    traits: list[str] | UnsetType = msgspec.field(default_factory=list)
    aggregates: list[str] | UnsetType = UNSET
    numa: list[NumaCell] | UnsetType = msgspec.field(default_factory=list)
    devices: list[DevicePool] | UnsetType = msgspec.field(default_factory=list)
    hypervisor: Hypervisor | UnsetType = UNSET
    metrics: dict[str, ReportedMetric] | UnsetType = msgspec.field(default_factory=dict)
    disabled: str | None | UnsetType = None


class SchedulerPort(Protocol):
    """Scheduler, over any transport."""

    def register(self, message: RegisterHost) -> Registered:
        """Register the host; the answer has its epoch.

        :raises StaleRegistration: a later one of the same journal was there before
        :raises HostHeld: it is registered in the name of Nova, and an agent has reported lately
        """

    def report(self, report: HostReport) -> str | None:
        """Send a report; return the outcome of a full one (a call), None of a delta (a cast).

        Outcomes: ``applied``, ``stale`` (overtaken), ``needs_full``; see ``report_outcome``.

        :raises StaleEpoch: of an older registration; ``kwargs['current']`` has the newest epoch
        :raises NotFound: the host must register first
        :raises Refused: the report is wrong; the message names the field
        """

    def confirm(self, update: ClaimUpdate) -> dict[str, str]:
        """Return claim id -> ``ok`` | ``gone``; raises as ``report`` does."""

    def refuse(self, update: ClaimUpdate) -> dict[str, str]:
        """Return claim id -> ``ok`` | ``gone`` | ``kept``; raises as ``report`` does."""

    def release(self, update: ClaimUpdate) -> dict[str, str]:
        """Return claim id -> ``ok`` | ``gone`` | ``kept``; raises as ``report`` does."""


def report_outcome(report: HostReport, outcome: str, sequence: int) -> str:
    """Return the outcome of a full report; for one that arrived twice the first copy counts.

    The answer to the first may be lost.  ``stale`` is then no sign that another agent speaks
    for this host.

    :param outcome: as the scheduler reports it
    :param sequence: the last one that it took from this host
    """
    return 'applied' if outcome == 'stale' and sequence == report.sequence else outcome


class GuestDriver(Protocol):
    """Machine and its guests."""

    def facts(self, guests: Sequence[RunningGuest]) -> HostReadings:
        """Return the machine's facts; use beyond that of ``guests`` is foreign."""

    def guests(self) -> list[RunningGuest] | None:
        """Return every guest here; None if they cannot be listed (the journal is believed).

        :raises GuestError: they cannot be listed now
        """

    def objection(self, build: Build) -> str:
        """Return why this build is impossible here whatever is free; '' where it is possible."""

    def start(self, build: Build) -> None:
        """Start a guest and return when it runs.  :raises GuestError:"""

    def stop(self, guest: RunningGuest) -> None:
        """Stop a guest; no error where it has ended already.  :raises GuestError:"""

    def await_start(self, claim_id: str, seconds: float) -> bool:
        """Wait for a start of an earlier process; return whether none is under way."""
