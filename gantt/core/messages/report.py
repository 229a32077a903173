# SPDX-License-Identifier: Apache-2.0
"""Messages of a compute host: registration, reports, and updates of claims.

Every message of a host carries ``epoch`` (handed out by ``register_host``) and ``sequence``
(counted by the host within the epoch).  A full report states every fact.  A delta is cumulative: it
states every field that changed at any time since the full report ``base`` of the same epoch; a
field left out is as in that full report or an earlier delta.  ``running`` and ``pending`` are
always whole: ``None`` means "no opinion" and frees nothing, ``[]`` means none.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from gantt import exceptions
from gantt.core.messages import base as message
from gantt.core.messages import resource_classes as resources
from gantt.core.messages.base import Amount, Message, Name, Text, TrimmedName, Uuid

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Amounts = Annotated[dict[TrimmedName, Amount], msgspec.Meta(max_length=256)]
#: Metrics that weighers and filters read: guests being built, resized, moved or copied, and
#: builds that failed since the last one that did not.
IO_WORKLOAD = 'stats.io_workload'
FAILED_BUILDS = 'stats.failed_builds'
#: Days for which a host has taken builds without a check of its own.
UNCHECKED_DAYS = 'stats.unchecked_days'

#: Nonce of a host without an agent, whose reports have no epoch: the same each time.
DICTIONARY_NONCE = 'dictionary'

#: The largest value of a metric, either way.
METRIC_MAX = 1e18

#: Processors of a host, and so of a cell: as many as Linux can be built for.
PROCESSORS_MAX = 8192
#: Most bytes of a description of the processor, as msgpack.
CPU_INFO_BYTES_MAX = 64 << 10
Processors = Annotated[list[Count], msgspec.Meta(max_length=PROCESSORS_MAX)]

Level = Annotated[str, msgspec.Meta(max_length=255)]


class NumaPages(Message, frozen=True, kw_only=True):
    """Pages of one size in a NUMA cell."""

    size_kb: Count
    total: Count
    used: Count = 0
    reserved: Count = 0


class NumaCell(Message, frozen=True, kw_only=True):
    """One NUMA cell of a host; cores are numbers of logical processors."""

    id: Count
    cpus: Processors = []  # shared
    pinned_cpus: Processors = []  # dedicated: those that may be pinned
    used_pinned_cpus: Processors = []
    siblings: Annotated[
        list[Annotated[list[Count], msgspec.Meta(max_length=64)]],
        msgspec.Meta(max_length=PROCESSORS_MAX),
    ] = []
    memory_mb: Count = 0
    memory_used_mb: Count = 0
    cpu_used: Count = 0
    pages: Annotated[list[NumaPages], msgspec.Meta(max_length=64)] = []
    socket: Count | None = None
    networks: Annotated[list[Name], msgspec.Meta(max_length=256)] = []  # physical ones at hand
    tunneled: bool = False  # its are the tunneled networks


class DevicePool(Message, frozen=True, kw_only=True):
    """Equal devices of a host."""

    vendor_id: Text = ''
    product_id: Text = ''
    address: Text = ''
    numa_node: Count | None = None
    count: Count = 0
    free: Count = 0
    tags: Annotated[dict[Name, Text], msgspec.Meta(max_length=64)] = {}


class ReportedMetric(Message, frozen=True, kw_only=True):
    """A number that the host measured about itself."""

    value: float
    source: Text = ''
    age_seconds: float = 0.0


Cells = Annotated[list[NumaCell], msgspec.Meta(max_length=256)]
Pools = Annotated[list[DevicePool], msgspec.Meta(max_length=1000)]
Metrics = Annotated[dict[Name, ReportedMetric], msgspec.Meta(max_length=256)]
#: Libvirt's description of a processor; its total size is checked with the report.
CpuInfo = Annotated[
    dict[Name, Annotated[Any, msgspec.Meta(extra={message.OPAQUE_META_KEY: CPU_INFO_BYTES_MAX})]],
    msgspec.Meta(max_length=64),
]


class Hypervisor(Message, frozen=True, kw_only=True):
    """Hypervisor that runs the guests.

    :ivar stats: further facts reported by its driver, as text; numbers are metrics
    :ivar service: the service host, where that runs several nodes and the host is one of them
    """

    type: Text = ''
    version: Count = 0
    hostname: Text = ''
    host_ip: Text = ''
    cpu_info: CpuInfo | Text = ''
    # [architecture, hypervisor type, vm mode]
    supported: Annotated[
        list[Annotated[list[Text], msgspec.Meta(max_length=8)]], msgspec.Meta(max_length=1000)
    ] = []
    stats: Annotated[dict[Name, Text], msgspec.Meta(max_length=256)] = {}
    service: Text = ''


class Running(Message, frozen=True, kw_only=True):
    """A consumer that the host runs or is about to run.

    ``resources`` is what it takes on the host: needed to adopt a consumer
    that no claim is known for.  So is ``flavor``, the name of its flavor.
    """

    consumer: Uuid
    claim_id: Uuid | None = None
    resources: Amounts = {}
    flavor: Text | None = None


class RegisterHost(Message, frozen=True, kw_only=True):
    """Registration of a host; the answer carries its epoch.

    ``boot_nonce`` is chosen anew for each registration: the same nonce again gives the same epoch.

    :ivar journal: id of the agent's journal, another one for another disk
    :ivar journal_count: number of registrations begun from that journal, this one included.  One
        that arrives after a later one of the same journal was sent by an agent that is dead: it
        is refused
    :ivar last_epoch: the last epoch that the agent was given, in this process or an earlier one
        with its journal; the new one is beyond it, also where the database has been restored
        to an older state.  At most 1,000,000 beyond what the database has
    :ivar reporter: the party whose messages confirm and end claims there: an agent on the host,
        or Nova.  None: an agent where there is a journal, else unchanged
    """

    name: TrimmedName  # service host
    node: TrimmedName | None = None  # hypervisor host name; None: as name
    uuid: Uuid | None = None
    boot_nonce: Name
    journal: Uuid | None = None  # None: it has none, and the last that registers counts
    journal_count: Count = 0
    last_epoch: Count = 0
    cell: Uuid | None = None
    zone: TrimmedName | None = None
    reporter: Literal['host', 'nova'] | None = None
    proof: Text | None = None  # of its key, see host_keys


class Registered(Message, frozen=True, kw_only=True):
    """The answer to :class:`RegisterHost`."""

    name: TrimmedName
    uuid: Uuid
    epoch: int
    incarnation: int  # of the database; another one: register again
    report_seconds: int  # how often to report


class HostReport(Message, frozen=True, kw_only=True):
    """The body of ``update_resource_stats``; UNSET in a delta means unchanged.

    :ivar foreign: use by what runs outside any claim, by class
    :ivar used: use including our own guests, for reporters that cannot tell
        them apart; only one of ``foreign`` and ``used`` may be given
    :ivar aggregates: names or uuids the host is in as far as the reporter says;
        UNSET leaves membership to the API
    """

    name: TrimmedName
    epoch: Number
    sequence: Number
    full: bool
    base: Number | None = None  # delta: sequence of its full report
    running: Annotated[list[Running], msgspec.Meta(max_length=100_000)] | None
    pending: Annotated[list[Running], msgspec.Meta(max_length=100_000)] | None
    node: TrimmedName | UnsetType = UNSET
    cell: Uuid | None | UnsetType = UNSET
    zone: TrimmedName | None | UnsetType = UNSET
    location: Level | UnsetType = UNSET  # site.room.rack.host
    inventories: (
        Annotated[dict[TrimmedName, resources.Inventory], msgspec.Meta(max_length=256)] | UnsetType
    ) = UNSET
    foreign: Amounts | UnsetType = UNSET
    used: Amounts | UnsetType = UNSET
    traits: Annotated[list[TrimmedName], msgspec.Meta(max_length=2000)] | UnsetType = UNSET
    aggregates: Annotated[list[TrimmedName], msgspec.Meta(max_length=500)] | UnsetType = UNSET
    numa: Cells | UnsetType = UNSET
    devices: Pools | UnsetType = UNSET
    hypervisor: Hypervisor | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    disabled: Text | None | UnsetType = UNSET  # reason; None: the service is enabled
    signature: Text | None = None  # see host_keys

    #: Fields that a delta may leave out.
    FACTS: ClassVar[tuple[str, ...]]


HostReport.FACTS = tuple(f.name for f in msgspec.structs.fields(HostReport) if f.default is UNSET)


class ClaimUpdate(Message, frozen=True, kw_only=True):
    """``confirm_claims``, ``refuse_claims`` and ``release_claims``."""

    name: TrimmedName
    epoch: Number
    sequence: Number
    claim_ids: Annotated[list[Uuid], msgspec.Meta(min_length=1, max_length=message.LIST_MAX)]
    reason: Text = ''
    signature: Text | None = None


def classes_of(report: HostReport) -> set[str]:
    """Return the resource classes that a report names."""
    return {name for _, name in _named_classes(report)}


def _named_classes(report: HostReport) -> Iterator[tuple[str, str]]:
    """Yield field and name of each resource class in a report."""
    for field in ('inventories', 'foreign', 'used'):
        amounts = getattr(report, field)
        yield from ((field, name) for name in (() if amounts is UNSET else amounts))
    for field in ('running', 'pending'):
        for index, entry in enumerate(getattr(report, field) or ()):
            yield from ((f'{field}[{index}].resources', name) for name in entry.resources)


def check(report: HostReport, declared: frozenset[str] = frozenset()) -> None:
    """Check the constraints of a report that its types do not express.

    :raises InvalidMessage: names the field and the expected value
    :raises UnknownResourceClass: a class that is neither standard nor declared
    """
    if report.full and report.base is not None:
        _refuse('base', 'a full report has no base')
    if not report.full and (report.base is None or report.base >= report.sequence):
        _refuse('base', 'a delta names the sequence of the full report it rests on, below its own')
    if report.full and report.inventories is UNSET:
        _refuse('inventories', 'a full report states every inventory')
    if (report.running is None) != (report.pending is None):
        _refuse('pending', 'running and pending are both given or both null')
    if report.foreign is not UNSET and report.used is not UNSET:
        _refuse('used', 'expected only one of foreign and used; got both')
    _check_amounts(report, declared)
    _check_shape(report)
    check_metrics(report.metrics, 'stats')
    if report.hypervisor is not UNSET:
        message.check_opaque(report.hypervisor, 'stats.hypervisor')
    for field in ('running', 'pending'):
        entries = [(r.consumer, r.claim_id) for r in getattr(report, field) or ()]
        if len(set(entries)) != len(entries):
            _refuse(field, 'expected each consumer once with a claim; got one twice')


def _check_amounts(report: HostReport, declared: frozenset[str]) -> None:
    for field, name in _named_classes(report):
        if name not in resources.STANDARD_CLASSES and name not in declared:
            raise exceptions.UnknownResourceClass(field=f'stats.{field}.{name}', name=name)
    for name, inventory in {} if report.inventories is UNSET else report.inventories.items():
        problem = inventory.problem()
        if problem:
            _refuse(f'inventories.{name}.{problem[0]}', problem[1])


def _check_shape(report: HostReport) -> None:
    place = '' if report.location is UNSET else report.location
    if place and not all(place.split('.')):
        _refuse('location', f'expected names separated by single dots, got {place!r}')
    check_topology_report(report.numa, report.devices, 'stats')


def check_topology_report(
    numa: list[NumaCell] | UnsetType, devices: list[DevicePool] | UnsetType, inside: str
) -> None:
    """Check the constraints of cells and devices that their types do not express.

    :param inside: name of the message in an error
    :raises InvalidMessage: names the field and the expected value
    """
    for index, pool in enumerate(() if devices is UNSET else devices):
        if pool.free > pool.count:
            _refuse(
                f'devices[{index}].free',
                f'expected 0 to count ({pool.count}), got {pool.free}',
                inside,
            )
    _check_numa([] if numa is UNSET else numa, inside)


def _check_numa(cells: list[NumaCell], inside: str) -> None:
    """Check that cells have distinct ids, and that no processor is in two of them."""
    ids: set[int] = set()
    cpus: dict[int, int] = {}
    for index, cell in enumerate(cells):
        where = f'numa[{index}]'
        if cell.id in ids:
            _refuse(f'{where}.id', f'expected distinct ids, got {cell.id} twice', inside)
        ids.add(cell.id)
        for cpu in {*cell.cpus, *cell.pinned_cpus}:
            if cpus.setdefault(cpu, index) != index:
                _refuse(f'{where}.cpus', f'processor {cpu} is in numa[{cpus[cpu]}] already', inside)
        if not set(cell.used_pinned_cpus) <= set(cell.pinned_cpus):
            _refuse(f'{where}.used_pinned_cpus', 'expected processors of pinned_cpus only', inside)
        for number, pages in enumerate(cell.pages):
            if pages.size_kb < 1:
                _refuse(f'{where}.pages[{number}].size_kb', 'expected at least 1, got 0', inside)


def check_metrics(metrics: dict[str, ReportedMetric] | UnsetType, inside: str) -> None:
    """Check that values have a size that can be weighed.

    NaN is let through: a driver may report that it could not measure.

    :raises InvalidMessage: names the field and the expected value
    """
    for name, metric in ({} if metrics is UNSET else metrics).items():
        if METRIC_MAX < abs(metric.value) < math.inf:
            problem = f'expected {-METRIC_MAX:g} to {METRIC_MAX:g}, got {metric.value:g}'
            _refuse(f'metrics.{name}.value', problem, inside)


def _refuse(field: str, problem: str, inside: str = 'stats') -> NoReturn:
    raise exceptions.invalid(f'{inside}.{field}', problem)
