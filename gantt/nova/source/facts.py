# SPDX-License-Identifier: Apache-2.0
"""Translation of a snapshot of Nova to each host's facts and guests.

Where a service runs many nodes, as Ironic's do, the facts of each name the service.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Set

import msgspec
from msgspec import UNSET

from gantt.compute.ports import HostReadings
from gantt.core.messages import resource_classes
from gantt.core.messages.base import TEXT_MAX
from gantt.core.messages.report import IO_WORKLOAD, RegisterHost, ReportedMetric
from gantt.core.messages.report import Hypervisor as Runs
from gantt.core.messages.resource_classes import AMOUNT_MAX, RATIO_MAX, Inventory
from gantt.nova.model import flavor as nova_flavor
from gantt.nova.model.events import NovaGuest
from gantt.nova.source import reading
from gantt.nova.source.nova_api_types import (
    Amounts,
    ApiFlavor,
    ApiHypervisor,
    ApiProviderDetails,
    ApiServer,
    ApiService,
)
from gantt.nova.source.reading import HostNames, NovaSnapshot

_CPU_KEYS = ('arch', 'model', 'vendor', 'topology', 'cells', 'features', 'maxphysaddr')
SOURCE_NAME = 'nova'
CELL_UNREACHABLE = 'Nova cannot reach its cell'
GUESTS_INCOMPLETE = 'Nova did not list all of its guests'
#: Hypervisors, as libvirt names them, that run whole machines.
_FULL_VIRTUALIZATION = frozenset({'QEMU', 'KVM'})


class HostSnapshot(msgspec.Struct, frozen=True):
    """Registration, facts and all guests of one host, as Nova and Placement have them at a time.

    :ivar guests: all guests of the host
    :ivar requested_at: when reading began
    :ivar database_time: when reading began by the database's clock; None: unknown
    :ivar omits_details: whether the list of guests fits a message only without the fields for
        people
    """

    announcement: RegisterHost
    facts: HostReadings
    guests: list[NovaGuest]
    requested_at: float
    database_time: float | None = None
    omits_details: bool = False


class HostSnapshots(msgspec.Struct, frozen=True):
    """Snapshots of all hosts.

    :ivar silent: host -> why nothing is reported of the host
    :ivar host_names: (service host, node) -> host, as :class:`HostNames` has them
    :ivar inventory_problems: host -> resource class -> why the class is left out
    """

    hosts: dict[str, HostSnapshot] = {}
    silent: dict[str, str] = {}
    host_names: HostNames = HostNames({}, {})
    inventory_problems: dict[str, dict[str, str]] = {}

    def name_of(self, server: ApiServer) -> str | None:
        """Return the host that a server is on; None: it is on no host of the snapshots."""
        return None if server.host is None else self.host_names.name_of(server.host, server.node)


def host_snapshots(
    snapshot: NovaSnapshot,
    cells: Mapping[str, str] | None,
    left_out: frozenset[str],
    declared_hosts: Mapping[str, str],
) -> HostSnapshots:
    """Return the snapshots of all hosts.

    :param cells: host -> uuid of its cell; None: unknown, and not needed
    :param left_out: resource classes that the scheduler does not know
    :param declared_hosts: host -> uuid of the node that was taken for it before
    """
    with_inventory = {
        uuid for uuid, details in snapshot.provider_details.items() if details.inventories
    }
    host_names = reading.host_names(
        snapshot.nodes, snapshot.doubled, declared_hosts, with_inventory
    )
    guests = _guests_by_host(snapshot, HostSnapshots(host_names=host_names))
    snapshots = HostSnapshots({}, dict(host_names.silent), host_names, {})
    for node in snapshot.nodes:
        name = host_names.of.get((node.service.host, node.node))
        if name is None:
            continue
        service, details = (
            snapshot.services.get(node.service.host),
            snapshot.provider_details.get(node.id),
        )
        host_guests = guests.get(name, [])
        malformed = next(
            (
                snapshot.malformed[subject]
                for subject in (node.service.host, node.node, node.id)
                if subject in snapshot.malformed
            ),
            '',
        )
        problem = (
            malformed
            or _node_problem(service, details)
            or _guest_list_problem(node, service, host_guests, snapshot.doubtful)
        )
        if problem or service is None or details is None:
            snapshots.silent[name] = problem
            continue
        inventories, wrong_classes = inventories_to_take_over(details.inventories, left_out)
        if wrong_classes:
            snapshots.inventory_problems[name] = wrong_classes
        if not inventories:
            snapshots.silent[name] = 'Placement knows no inventory of it that is known here'
            continue
        snapshots.hosts[name] = _host_snapshot(
            name, node, service, details, host_guests, cells, inventories, snapshot
        )
    _add_silent(snapshots, snapshot)
    return snapshots


def _add_silent(snapshots: HostSnapshots, snapshot: NovaSnapshot) -> None:
    """Add hosts whose nodes are not listed, or cannot be read."""
    for host, service in snapshot.services.items():
        if not service.is_known and host not in snapshots.hosts:
            snapshots.silent.setdefault(host, CELL_UNREACHABLE)
    uuids = {node.id for node in snapshot.nodes}
    for about, problem in snapshot.malformed.items():
        if about not in snapshots.hosts and about not in uuids:
            snapshots.silent.setdefault(about, problem)


def _node_problem(service: ApiService | None, details: ApiProviderDetails | None) -> str:
    if service is None:
        return 'Nova knows no service nova-compute there'
    if not service.is_known:
        return CELL_UNREACHABLE
    if details is None:
        return 'Placement knows no resource provider with the uuid of its node'
    return ''


def _guest_list_problem(
    node: ApiHypervisor,
    service: ApiService | None,
    guests: list['_SeenGuest'],
    incomplete: frozenset[str],
) -> str:
    """Return why the list of a host's guests cannot be trusted; '' where it can."""
    if node.id in incomplete:
        return GUESTS_INCOMPLETE
    # The number of a service that is down is old: its guests may have been evacuated.
    is_up = service is not None and service.state == 'up'
    return GUESTS_INCOMPLETE if is_up and node.running_vms and not guests else ''


class _SeenGuest(msgspec.Struct, frozen=True):
    """A guest on a host.

    :ivar consumers: uuids of which the first that exists in Placement has its allocation there
    :ivar leaves: whether the guest is here only until its migration is over
    """

    server: ApiServer
    consumers: list[str]
    moving: bool
    group: str | None
    leaves: bool = False

    def consumer(self, details: ApiProviderDetails) -> str | None:
        """Return the guest's first consumer with an allocation on the provider; None: none has."""
        return next((uuid for uuid in self.consumers if uuid in details.allocations), None)


def _guests_by_host(
    snapshot: NovaSnapshot, host_snapshots: HostSnapshots
) -> dict[str, list[_SeenGuest]]:
    group_of = {member: group.id for group in snapshot.groups for member in group.members or ()}
    guests: dict[str, list[_SeenGuest]] = defaultdict(list)
    for server in snapshot.servers:
        name, moves = host_snapshots.name_of(server), snapshot.open_migrations.get(server.id, [])
        if not server.is_known or name is None:
            continue
        group = group_of.get(server.id)
        source_of = {
            move.uuid or '': host_snapshots.host_names.name_of(
                move.source_compute, move.source_node
            )
            for move in moves
        }
        # Before it leaves, its allocation at the source is already the migration's.
        local_migrations = [uuid for uuid, source in source_of.items() if source == name]
        guests[name].append(_SeenGuest(server, [server.id, *local_migrations], bool(moves), group))
        for uuid, source in source_of.items():
            # Its old room is kept until its migration is over.
            if source is not None and source != name:
                guests[source].append(_SeenGuest(server, [uuid], True, group, leaves=True))
    return guests


def _host_snapshot(
    name: str,
    node: ApiHypervisor,
    service: ApiService,
    details: ApiProviderDetails,
    guests: list[_SeenGuest],
    cells: Mapping[str, str] | None,
    inventories: dict[str, Inventory],
    snapshot: NovaSnapshot,
) -> HostSnapshot:
    cell = None if cells is None else cells.get(service.host)
    disabled = service.disabled
    if cells is not None and cell is None:
        disabled = 'its cell is not known: it is not in [nova_source] cells_file'
    listed_consumers = {guest.consumer(details) for guest in guests} | {
        guest.server.id for guest in guests
    }
    facts = HostReadings(
        inventories=inventories,
        foreign=_foreign_use(details, listed_consumers, inventories),
        node=node.node,
        cell=cell,
        traits=sorted(set(details.traits)),
        numa=UNSET,
        devices=UNSET,
        hypervisor=_runs_guests(name, node),
        metrics=_metrics(node, guests),
        disabled=disabled if disabled is None else disabled[:TEXT_MAX],
    )
    announcement = RegisterHost(
        name=name,
        node=node.node,
        uuid=node.id.lower(),
        boot_nonce='-',
        cell=cell,
        reporter='nova',
    )
    nova_guests = [_nova_guest(guest, details, inventories) for guest in guests]
    return HostSnapshot(
        announcement, facts, nova_guests, snapshot.requested_at, snapshot.database_time
    )


def _foreign_use(
    details: ApiProviderDetails, listed: Set[str | None], inventories: Mapping[str, Inventory]
) -> dict[str, int]:
    """Return the use by others than the guests: builds on their way, and leaks."""
    foreign_use: Counter[str] = Counter()
    for consumer, amounts in details.allocations.items():
        if consumer not in listed:
            foreign_use.update(
                {kind: amount for kind, amount in amounts.items() if kind in inventories}
            )
    return dict(foreign_use)


def _runs_guests(name: str, node: ApiHypervisor) -> Runs:
    info = node.cpu_info if isinstance(node.cpu_info, dict) else {}
    return Runs(
        type=node.type or '',
        version=max(0, node.version or 0),
        hostname=node.node,
        host_ip=node.host_ip or '',
        supported=_supported(node.type or '', info.get('arch')),
        cpu_info={k: info[k] for k in _CPU_KEYS if k in info} or '',
        service=node.service.host if name != node.service.host else '',
    )


def _supported(kind: str, arch: object) -> list[list[str]]:
    """Return the (architecture, hypervisor type, VM mode) lists that libvirt hosts support."""
    if kind not in _FULL_VIRTUALIZATION or not isinstance(arch, str) or not arch:
        return []
    archs = [arch, 'i686'] if arch == 'x86_64' else [arch]
    return [[architecture, driver, 'hvm'] for architecture in archs for driver in ('kvm', 'qemu')]


def _metrics(node: ApiHypervisor, guests: list[_SeenGuest]) -> dict[str, ReportedMetric]:
    counts = {
        'running_vms': node.running_vms,
        'current_workload': node.current_workload,
        IO_WORKLOAD: sum(guest.server.is_loading_host for guest in guests if not guest.leaves),
    }
    return {
        name: ReportedMetric(value=float(count), source=SOURCE_NAME)
        for name, count in counts.items()
        if count is not None
    }


def _nova_guest(
    seen: _SeenGuest, details: ApiProviderDetails, inventories: Mapping[str, Inventory]
) -> NovaGuest:
    server = seen.server
    consumer = seen.consumer(details)
    if consumer is not None:
        amounts = details.allocations[consumer]
    else:
        # Nova does not have its flavor before a resize.
        amounts = {} if seen.leaves else amounts_of(server)
    return NovaGuest(
        consumer=server.id.lower(),
        node=server.node or '',
        resources={
            kind: amount for kind, amount in amounts.items() if amount > 0 and kind in inventories
        },
        project_id=server.project_id,
        user_id=server.user_id,
        vm_state=server.vm_state or '',
        task_state=server.task_state or '',
        moving=seen.moving,
        flavor=server.flavor.original_name or None if server.flavor else None,
        group=seen.group,
    )


def amounts_of(server: ApiServer) -> dict[str, int]:
    """Return the amounts of a server by its flavor; '' as image: it booted from a volume."""
    flavor = server.flavor
    if flavor is None:
        return {}
    body = {
        'vcpus': flavor.vcpus,
        'memory_mb': flavor.ram,
        'root_gb': flavor.disk,
        'ephemeral_gb': flavor.ephemeral or 0,
        'swap': _swap_mb(flavor),
        'extra_specs': flavor.extra_specs or {},
    }
    volume = not server.image
    amounts = nova_flavor.in_use(body, {}, volume=volume)
    return {
        kind: amount for kind, amount in amounts.items() if resource_classes.is_class_name(kind)
    }


def _swap_mb(flavor: ApiFlavor) -> int:
    swap = str(flavor.swap)
    return int(swap) if swap.isdigit() else 0


# -- Placement's inventories as ours, never with more room than it has.
def inventories_to_take_over(
    amounts_by_class: Mapping[str, Amounts], left_out: Set[str]
) -> tuple[dict[str, Inventory], dict[str, str]]:
    """Return (class -> inventory, class -> why its inventory cannot be reported).

    :param left_out: classes that the scheduler does not know
    """
    inventories, problems = {}, {}
    for kind, amounts in amounts_by_class.items():
        if kind in left_out:
            continue
        converted = inventory(amounts)
        problem = converted.problem()
        if problem is None:
            inventories[kind] = converted
        else:
            problems[kind] = f'{problem[0]}: {problem[1]}'
    return inventories, problems


def inventory(amounts: Amounts) -> Inventory:
    """Return the inventory of one class; values out of bounds are clamped."""
    total, ratio = amounts.total, min(amounts.allocation_ratio, RATIO_MAX)
    reserved = min(max(0, amounts.reserved), max(0, total))
    if ratio <= 0:
        reserved, ratio = max(0, total), 1.0
    min_unit, max_unit = max(1, amounts.min_unit), amounts.max_unit
    if max_unit is not None and max_unit < min_unit:
        # Nothing fits: in valid numbers, no amount is large enough.
        min_unit = max_unit = max(0, total) + 1
    return Inventory(
        total=total,
        reserved=reserved,
        min_unit=min_unit,
        max_unit=None if max_unit is None else min(max_unit, AMOUNT_MAX),
        step_size=min(max(1, amounts.step_size), AMOUNT_MAX),
        allocation_ratio=ratio,
    )
