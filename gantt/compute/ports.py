# SPDX-License-Identifier: Apache-2.0
"""Interfaces of the compute side to the outside: the scheduler, the guests, and report sources.

Both ports are called from several threads.  A scheduler that does not answer
raises :class:`gantt.exceptions.Unavailable`; the caller tries again, within a
bound.

A report source is a class in the entry-point group ``gantt.report_sources``, a plugin of
``gantt-report-source`` for hosts without our agent.  It runs in a process of its own, never in a
scheduler: it may wait for others, and holds credentials.  It uses the same building blocks as an
agent: :class:`~gantt.compute.over_rpc.RpcSchedulerPort`,
:class:`~gantt.compute.agent.host_agent.HostAgent`, :class:`~gantt.compute.agent.runner.Runner`.
"""

import abc
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

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

        :raises StaleRegistration: a later registration with the same journal has arrived before
        :raises HostHeld: the registration is in the name of Nova, and an agent of the host has
            reported lately
        """

    def report(self, report: HostReport) -> str | None:
        """Send a report; return the outcome of a full one (a call), None of a delta (a cast).

        Outcomes: ``applied``, ``stale`` (overtaken), ``needs_full``; see ``report_outcome``.

        :raises StaleEpoch: the epoch is of an older registration; ``kwargs['current']`` has the
            newest epoch
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
    """Return the outcome of a full report; where it arrived twice, that of its first copy.

    The answer to the first may be lost.  ``stale`` is then no sign that another agent speaks
    for this host.

    :param outcome: as the scheduler reports it
    :param sequence: the last sequence that the scheduler has accepted from this host
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
        """Wait for a start that an earlier agent process began; return whether it is over."""


#: Called with a metric's name, how much, and labels.
CountCallback = Callable[..., None]


class ReportSource(abc.ABC):
    """Base class of report sources; see ``doc/source/contributor/write-a-report-source.rst``.

    :cvar metrics_group: group of options whose ``metrics_port`` is that of its metrics
    :ivar stopping: set by the handler of a signal: begin nothing new
    """

    metrics_group = 'report_source'

    def __init__(self) -> None:
        self.stopping = threading.Event()

    @classmethod  # noqa: B027 - most will have none of their own
    def register_opts(cls, conf: Any) -> None:
        """Register the source's groups of options; none by default.

        :param conf: a ``ConfigOpts`` that has read its files
        """

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, conf: Any, count: CountCallback, gauge: CountCallback) -> 'ReportSource':
        """Return a source as configured, which has sent nothing yet.

        :param conf: the process's global configuration object, as oslo.messaging needs it
        :param count: counts an event
        :param gauge: sets a current amount
        :raises GanttError: e.g. an option is wrong, or the broker is away
        """

    @abc.abstractmethod
    def start(self) -> None:
        """Start the source; return once its credentials and servers have been seen to work.

        :raises GanttError: the source cannot work, and waiting will not help
        """

    @abc.abstractmethod
    def stop(self, seconds: float) -> bool:
        """Stop the source; return whether work under way was finished in time."""

    def status(self) -> dict[str, object]:
        """Return the state of the source as key -> value, for a log line."""
        return {}
