# SPDX-License-Identifier: Apache-2.0
"""Three forms of ``update_resource_stats(name, stats)`` and the one type that they decode to.

1. the typed report (``core.messages.report.HostReport``), strict;
2. the older plain dictionary that virt drivers have always sent;
3. the ComputeNode object as Nova serializes it (``stats_foreign``).

The latter two have neither epoch nor sequence nor claims: such a host is
registered on its first report, its sequence is the time of arrival, and its
``used`` includes its guests.

Most messages of a site are the reports of its hosts.  They are decoded straight from the bytes on
the wire, without dictionaries in between.  Only what is right in every respect goes this way:
anything else is left to the checks of ``server``, which report the error.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
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
from gantt.rpc.amqp import envelope

LOG = logging.getLogger(__name__)
DICTIONARY_REPORT_NONCE = DICTIONARY_NONCE

_EPOCH_CACHE_SECONDS = 600.0
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
        """Disk in use in GiB, by the driver's figure of free disk where that is less."""
        if self.disk_available_least is None:
            return self.local_gb_used
        used = max(self.local_gb_used, self.local_gb - self.disk_available_least)
        return min(used, AMOUNT_MAX)  # however negative the reported rest is


_Number = int | float | Annotated[str, msgspec.Meta(max_length=65_536)] | None


class ResourceDictionary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    wire.check_finite(stats, 'stats')
    report = base.decode({'name': name} | stats, HostReport, inside='stats', newer_minor=newer)
    if report.name != name:
        raise exceptions.invalid('stats.name', f'expected {name!r} as in the argument name')
    return report


class ForeignHosts:
    """Epochs and sequences for hosts whose reports have none.

    :param register: registers a host, as ``Scheduler.register_host``
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
            _HOSTS_MAX, _EPOCH_CACHE_SECONDS, monotonic
        )
        self._sequence = 0
        self._lock = threading.Lock()

    def report(self, facts: ReportedFacts) -> HostReport:
        """Return a full report of a host, registered if need be.  May wait for the database."""
        sequence = self._next()
        with self._lock:
            epoch = self._epochs.get(facts.host)
        if epoch is None:
            host = RegisterHost(
                name=facts.host,
                node=facts.node,
                uuid=facts.uuid,
                boot_nonce=DICTIONARY_REPORT_NONCE,
            )
            epoch = self._register(host).epoch
            with self._lock:
                self._epochs[facts.host] = epoch
        return facts.report(epoch, sequence)

    def forget(self, host: str) -> None:
        """Register a host again with its next report, as its epoch was refused."""
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


STATS_METHOD = 'update_resource_stats'


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    stats: msgspec.Raw


class _Cast(msgspec.Struct):
    """Message as the library writes it; a call has a message id and a queue for its answer."""

    method: str
    args: _Arguments
    version: str = '1.0'
    namespace: None = None
    msg_id: None = msgspec.field(name='_msg_id', default=None)
    reply_q: None = msgspec.field(name='_reply_q', default=None)
    request_id: Any = msgspec.field(name='_context_request_id', default=None)


_decode_cast = msgspec.json.Decoder(_Cast).decode
_decode_report = msgspec.json.Decoder(HostReport).decode
_decode_any = msgspec.json.Decoder().decode


class RpcCast(Mapping[str, Any]):
    """A report that was cast, and its body as it was sent, which only a signature check reads."""

    def __init__(self, report: HostReport, raw: msgspec.Raw) -> None:
        self.report = report
        self._raw = raw
        self._body: dict[str, Any] | None = None

    def _sent(self) -> dict[str, Any]:
        if self._body is None:
            self._body = _decode_any(self._raw)
        return self._body

    def __getitem__(self, key: str) -> Any:
        return self._sent()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent())

    def __len__(self) -> int:
        return len(self._sent())


def cast_report(body: bytes | str) -> RpcCast | None:
    """Return the report that a body casts, None where it is anything else or not quite right."""
    try:
        cast = _decode_cast(envelope.message_text(body))
        host_report = _decode_report(cast.args.stats)
    except (*envelope.DECODE_ERRORS, exceptions.InvalidMessage):
        return None
    if (
        cast.method != STATS_METHOD
        or cast.version != wire.VERSION
        or host_report.name != cast.args.name
    ):
        return None
    return RpcCast(host_report, cast.args.stats)
