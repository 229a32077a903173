# SPDX-License-Identifier: Apache-2.0
"""The outside world as the compute side sees it.

Both ports are called from several threads.  A scheduler that does not answer
raises :class:`gantt.exceptions.Unavailable`; whoever calls tries again, within
a bound.
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
    """A guest could not be started, stopped or listed."""

    code = 'gantt.guest'
    template = 'guest {consumer}: {problem}'


class RunningGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A guest that exists on the host.

    :ivar claim_id: None where whoever lists it does not know
    :ivar cells: what it has of cells of the host, as far as whoever lists it knows
    :ivar devices: addresses of the PCI devices that it has
    """

    consumer: str
    claim_id: str | None = None
    resources: dict[str, int] = {}
    cells: list[CellLayout] = []
    devices: list[str] = []

    @classmethod
    def of(cls, build: Build) -> 'RunningGuest':
        """The guest that a build makes."""
        return cls(consumer=build.consumer, claim_id=build.claim_id, resources=build.resources)


class HostReadings(msgspec.Struct, frozen=True, kw_only=True):
    """What a host is, in the fields of a report; UNSET is left out of it."""

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
    """The scheduler, however it is reached."""

    def register(self, message: RegisterHost) -> Registered:
        """Announce the host; the answer has its epoch.

        :raises StaleRegistration: a later one of the same journal was there before
        :raises HostHeld: it is said in the name of Nova, and an agent has reported lately
        """

    def report(self, report: HostReport) -> str | None:
        """A full report is a call and returns its fate; a delta is cast: None.

        Fates: ``applied``, ``stale`` (overtaken), ``needs_full``; see ``report_outcome``.

        :raises StaleEpoch: of an older registration; ``kwargs['current']`` has the newest epoch
        :raises NotFound: the host must register first
        :raises Refused: the report is wrong; the message names the field
        """

    def confirm(self, update: ClaimUpdate) -> dict[str, str]:
        """Claim id -> ``ok`` | ``gone``; raises as ``report`` does."""

    def refuse(self, update: ClaimUpdate) -> dict[str, str]:
        """Claim id -> ``ok`` | ``gone`` | ``kept``; raises as ``report`` does."""

    def release(self, update: ClaimUpdate) -> dict[str, str]:
        """Claim id -> ``ok`` | ``gone`` | ``kept``; raises as ``report`` does."""


def report_outcome(report: HostReport, outcome: str, sequence: int) -> str:
    """What became of a full report; of one that arrived twice the first copy counts.

    The answer to the first may be lost.  ``stale`` is then no sign that somebody else speaks
    for this host.

    :param outcome: as the scheduler says it
    :param sequence: the last one that it took from this host
    """
    return 'applied' if outcome == 'stale' and sequence == report.sequence else outcome


class GuestDriver(Protocol):
    """The machine and its guests."""

    def facts(self, guests: Sequence[RunningGuest]) -> HostReadings:
        """What the machine is now; ``guests`` is what runs, so that the rest is foreign use."""

    def guests(self) -> list[RunningGuest] | None:
        """Every guest that exists here; None where nobody can tell (the journal is believed).

        :raises GuestError: it cannot be said now
        """

    def objection(self, build: Build) -> str:
        """Why this build cannot be done here whatever is free; '' where it can."""

    def start(self, build: Build) -> None:
        """Start a guest and return when it runs.  :raises GuestError:"""

    def stop(self, guest: RunningGuest) -> None:
        """Stop a guest; fine where it is gone already.  :raises GuestError:"""

    def await_start(self, claim_id: str, seconds: float) -> bool:
        """Wait for a start that an earlier process began; whether none is under way."""
