# SPDX-License-Identifier: Apache-2.0
"""Three forms of ``update_resource_stats(name, stats)`` and the one type behind them.

1. the typed report (``core.messages.report.HostReport``), strict;
2. the older plain dictionary that virt drivers have always sent;
3. the ComputeNode object as Nova serializes it (``stats_nova``).

The latter two have neither epoch nor sequence nor claims: such a host is
registered on its first report, its sequence is the time of arrival, and its
``used`` includes its guests.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import cachetools
import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.base import Name, Opaque, Text, TrimmedName, Uuid
from gantt.core.messages.report import (
    DICTIONARY_NONCE,
    Cells,
    HostReport,
    Hypervisor,
    Metrics,
    Pools,
    Registered,
    RegisterHost,
)
from gantt.core.messages.resource_classes import AMOUNT_MAX, Inventory
from gantt.rpc import wire

LOG = logging.getLogger(__name__)
NONCE = DICTIONARY_NONCE

_EPOCH_SECONDS = 600.0
_HOSTS_MAX = 100_000


class Ratios(msgspec.Struct, frozen=True):
    """Overcommit ratios where a foreign report has none."""

    cpu: float = 4.0
    ram: float = 1.0
    disk: float = 1.0


class ReportedFacts(msgspec.Struct, kw_only=True):
    """Facts that forms 2 and 3 have in common, before epoch and sequence are known.

    :ivar unknown: fields of use that the report does not have: nothing is placed there then
    """

    host: str
    node: str | None = None
    uuid: str | None = None
    vcpus: int
    memory_mb: int
    local_gb: int
    vcpus_used: int = 0
    memory_mb_used: int = 0
    local_gb_used: int = 0
    unknown: tuple[str, ...] = ()
    disk_available_least: int | None = None
    ratios: Ratios = Ratios()
    hypervisor: Hypervisor = Hypervisor()
    numa: Cells = []
    devices: Pools = []
    metrics: Metrics = {}

    def report(self, epoch: int, sequence: int) -> HostReport:
        """Return the full report of these facts."""
        inventories = {
            'VCPU': Inventory(total=self.vcpus, allocation_ratio=self.ratios.cpu),
            'MEMORY_MB': Inventory(total=self.memory_mb, allocation_ratio=self.ratios.ram),
            'DISK_GB': Inventory(total=self.local_gb, allocation_ratio=self.ratios.disk),
        }
        used = {
            'VCPU': self.vcpus_used,
            'MEMORY_MB': self.memory_mb_used,
            'DISK_GB': self._disk_used,
        }
        pinned = sum(len(cell.pinned_cpus) for cell in self.numa)
        if pinned:
            inventories['PCPU'] = Inventory(total=pinned)
            used['PCPU'] = sum(len(cell.used_pinned_cpus) for cell in self.numa)
        return HostReport(
            name=self.host,
            epoch=epoch,
            sequence=sequence,
            full=True,
            running=None,
            pending=None,
            node=self.node or self.host,
            inventories=inventories,
            used=used,
            numa=self.numa,
            devices=self.devices,
            hypervisor=self.hypervisor,
            metrics=self.metrics,
            disabled=self._disabled,
        )

    @property
    def _disabled(self) -> str | None:
        """Reason why no guest may land there: what is in use is not known."""
        if not self.unknown:
            return None
        return f'its last report does not have {", ".join(self.unknown)}: room is not known'

    @property
    def _disk_used(self) -> int:
        """Disk in use, from the driver's own figure of what is left where that is less."""
        if self.disk_available_least is None:
            return self.local_gb_used
        used = max(self.local_gb_used, self.local_gb - self.disk_available_least)
        return min(used, AMOUNT_MAX)  # however negative the reported rest is


_Number = int | float | Annotated[str, msgspec.Meta(max_length=65_536)] | None


class Dictionary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Form 2: every key that drivers and resource trackers have put there."""

    vcpus: base.Amount
    memory_mb: base.Amount
    local_gb: base.Amount
    vcpus_used: base.Amount | None = None
    memory_mb_used: base.Amount | None = None
    local_gb_used: base.Amount | None = None
    free_ram_mb: int | None = None
    free_disk_gb: int | None = None
    disk_available_least: int | None = None
    cpu_allocation_ratio: float | None = None
    ram_allocation_ratio: float | None = None
    disk_allocation_ratio: float | None = None
    running_vms: int | None = None
    current_workload: int | None = None
    hypervisor_type: Text | None = None
    hypervisor_version: int | Text | None = None
    hypervisor_hostname: TrimmedName | None = None
    host: TrimmedName | None = None
    host_ip: Text | None = None
    cpu_info: Opaque = None
    supported_instances: Opaque = None
    supported_hv_specs: Opaque = None
    pci_stats: Opaque = None
    pci_device_pools: Opaque = None
    pci_passthrough_devices: Opaque = None
    numa_topology: Opaque = None
    metrics: Opaque = None
    stats: Annotated[dict[Name, _Number | bool], msgspec.Meta(max_length=4096)] | None = None
    id: Opaque = None
    uuid: Uuid | None = None
    service_id: Opaque = None
    mapped: Opaque = None
    created_at: Opaque = None
    updated_at: Opaque = None
    deleted_at: Opaque = None
    deleted: Opaque = None


def is_report(stats: Any) -> bool:
    """Return whether ``stats`` means to be the typed report.

    Stats with the marks of neither form are taken for one, so that the refusal
    names the fields of the report.
    """
    if not isinstance(stats, dict) or 'nova_object.name' in stats:
        return False
    typed = stats.keys() & {'epoch', 'sequence', 'full', 'inventories', 'running'}
    return bool(typed) or not stats.keys() & {'vcpus', 'memory_mb', 'local_gb'}


def decode(name: Any, stats: Any, *, newer: bool = False) -> HostReport | None:
    """Return the typed report, or None where ``stats`` is of another form.

    :raises InvalidMessage: names the field
    """
    base.decode(name, TrimmedName, inside='name')
    if not isinstance(stats, dict):
        raise exceptions.invalid('stats', f'expected an object, got {type(stats).__name__}')
    if not is_report(stats):
        return None
    wire.finite(stats, 'stats')
    report = base.decode({'name': name} | stats, HostReport, inside='stats', newer_minor=newer)
    if report.name != name:
        raise exceptions.invalid('stats.name', f'expected {name!r} as in the argument name')
    return report


class ForeignHosts:
    """Epochs and sequences for hosts whose reports have none.

    :param register: ``Scheduler.register_host``
    :param wall: seconds of a clock that all schedulers share, for sequences that grow
        over restarts and from one scheduler to the next
    """

    def __init__(
        self,
        register: Callable[[RegisterHost], Registered],
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._register = register
        self._wall = wall
        self._epochs: cachetools.TTLCache[str, int] = cachetools.TTLCache(
            _HOSTS_MAX, _EPOCH_SECONDS, monotonic
        )
        self._sequence = 0
        self._lock = threading.Lock()

    def report(self, facts: ReportedFacts) -> HostReport:
        """Return a full report of a host, registered if need be.  May wait for the database."""
        sequence = self._next()
        with self._lock:
            epoch = self._epochs.get(facts.host)
        if epoch is None:
            host = RegisterHost(name=facts.host, node=facts.node, uuid=facts.uuid, boot_nonce=NONCE)
            epoch = self._register(host).epoch
            with self._lock:
                self._epochs[facts.host] = epoch
        return facts.report(epoch, sequence)

    def forget(self, host: str) -> None:
        """Register again with the next report: its epoch was refused."""
        with self._lock:
            self._epochs.pop(host, None)

    def is_behind(self, outcome: Any) -> bool:
        """Return whether a report is stale only because a clock was once ahead.

        The next report is then not stale.  A number that our clock has not reached yet comes
        from such a clock, or from a scheduler that counts on from it.  A number that it has
        passed belongs to a report that came later than ours: that one stays, and ours is stale.

        :param outcome: ``ReportOutcome`` of a report created here
        """
        if outcome.outcome != 'stale':
            return False
        with self._lock:
            if outcome.current_sequence <= int(self._wall() * 1000):
                return False
            self._sequence = max(self._sequence, outcome.current_sequence)
        LOG.warning(
            'Last report was numbered by a clock that was ahead; numbers continue from it: '
            'host=%s ahead_seconds=%.0f',
            outcome.name,
            outcome.current_sequence / 1000 - self._wall(),
        )
        return True

    def _next(self) -> int:
        with self._lock:
            self._sequence = max(self._sequence + 1, int(self._wall() * 1000))
            return self._sequence
