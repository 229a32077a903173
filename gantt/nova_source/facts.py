# SPDX-License-Identifier: Apache-2.0
"""Translation of a picture to each host's facts and guests.

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
from gantt.core.nova.events import NovaGuest
from gantt.nova_source import names
from gantt.nova_source.names import Named
from gantt.nova_source.nova_api_types import (
    AllocatedAmounts,
    Amounts,
    ApiFlavor,
    ApiHypervisor,
    ApiServer,
    ApiService,
)
from gantt.nova_source.reading import Picture
from gantt.rpc.nova import flavor as nova_flavor

_CPU_KEYS = ('arch', 'model', 'vendor', 'topology', 'cells', 'features', 'maxphysaddr')
SOURCE = 'nova'
AWAY = 'Nova cannot reach its cell'
UNSURE = 'Nova did not list all of its guests'
#: Hypervisors, as libvirt names them, that run whole machines.
_FULL = frozenset({'QEMU', 'KVM'})


class HostPicture(msgspec.Struct, frozen=True):
    """Picture of one host.

    :ivar guests: all of its guests, complete
    :ivar requested_at: when reading began
    :ivar begun: the same by the database's clock, None where that was not known
    :ivar is_short: their list fits a message only without the fields for people
    """

    announcement: RegisterHost
    facts: HostReadings
    guests: list[NovaGuest]
    requested_at: float
    begun: float | None = None
    is_short: bool = False


class HostPictures(msgspec.Struct, frozen=True):
    """Pictures of all hosts.

    :ivar silent: host -> why nothing is reported of it
    :ivar named: hosts of nodes
    :ivar wrong: host -> class -> why it is left out
    """

    hosts: dict[str, HostPicture] = {}
    silent: dict[str, str] = {}
    named: Named = Named({}, {})
    wrong: dict[str, dict[str, str]] = {}

    def name_of(self, server: ApiServer) -> str | None:
        """Return the host that a server is on, None where it is none of these."""
        return None if server.host is None else self.named.at(server.host, server.node)


def host_pictures(
    picture: Picture,
    cells: Mapping[str, str] | None,
    left_out: frozenset[str],
    declared_hosts: Mapping[str, str],
) -> HostPictures:
    """Return the pictures of all hosts.

    :param cells: host -> uuid of its cell; None: unknown, and not needed
    :param left_out: resource classes that the scheduler does not know
    :param declared_hosts: host -> uuid of the node that was taken for it before
    """
    roomy = {uuid for uuid, room in picture.rooms.items() if room.inventories}
    named = names.named(picture.nodes, picture.doubled, declared_hosts, roomy)
    guests = _guests(picture, HostPictures(named=named))
    pictures = HostPictures({}, dict(named.silent), named, {})
    for node in picture.nodes:
        name = named.of.get((node.service.host, node.node))
        if name is None:
            continue
        service, room = picture.services.get(node.service.host), picture.rooms.get(node.id)
        host_guests = guests.get(name, [])
        malformed = next(
            (
                picture.odd[subject]
                for subject in (node.service.host, node.node, node.id)
                if subject in picture.odd
            ),
            '',
        )
        problem = (
            malformed
            or _problem(service, room)
            or _doubt(node, service, host_guests, picture.doubtful)
        )
        if problem or service is None or room is None:
            pictures.silent[name] = problem
            continue
        inventories, wrong_classes = taken_over(room.inventories, left_out)
        if wrong_classes:
            pictures.wrong[name] = wrong_classes
        if not inventories:
            pictures.silent[name] = 'Placement knows no inventory of it that is known here'
            continue
        pictures.hosts[name] = _picture_of(
            name, node, service, room, host_guests, cells, inventories, picture
        )
    _add_silent(pictures, picture)
    return pictures


def _add_silent(found: HostPictures, picture: Picture) -> None:
    """Add hosts whose nodes are not listed, or cannot be read."""
    for host, service in picture.services.items():
        if not service.is_known and host not in found.hosts:
            found.silent.setdefault(host, AWAY)
    uuids = {node.id for node in picture.nodes}
    for about, problem in picture.odd.items():
        if about not in found.hosts and about not in uuids:
            found.silent.setdefault(about, problem)


def _problem(service: ApiService | None, room: AllocatedAmounts | None) -> str:
    if service is None:
        return 'Nova knows no service nova-compute there'
    if not service.is_known:
        return AWAY
    if room is None:
        return 'Placement knows no resource provider with the uuid of its node'
    return ''


def _doubt(
    node: ApiHypervisor,
    service: ApiService | None,
    guests: list['_SeenGuest'],
    doubtful: frozenset[str],
) -> str:
    """Return why the list of its guests cannot be trusted."""
    if node.id in doubtful:
        return UNSURE
    # The number of a service that is down is old: its guests may have been evacuated.
    is_up = service is not None and service.state == 'up'
    return UNSURE if is_up and node.running_vms and not guests else ''


class _SeenGuest(msgspec.Struct, frozen=True):
    """A guest on a host.

    :ivar consumers: uuids of which the first that exists in Placement has its allocation there
    :ivar leaves: it is here only until its migration is over
    """

    server: ApiServer
    consumers: list[str]
    moving: bool
    group: str | None
    leaves: bool = False

    def consumer(self, room: AllocatedAmounts) -> str | None:
        """Return the consumer that has an allocation."""
        return next((uuid for uuid in self.consumers if uuid in room.allocations), None)


def _guests(picture: Picture, host_pictures: HostPictures) -> dict[str, list[_SeenGuest]]:
    group_of = {member: group.id for group in picture.groups for member in group.members or ()}
    guests: dict[str, list[_SeenGuest]] = defaultdict(list)
    for server in picture.servers:
        name, moves = host_pictures.name_of(server), picture.open.get(server.id, [])
        if not server.is_known or name is None:
            continue
        group = group_of.get(server.id)
        source_of = {
            move.uuid or '': host_pictures.named.at(move.source_compute, move.source_node)
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


def _picture_of(
    name: str,
    node: ApiHypervisor,
    service: ApiService,
    room: AllocatedAmounts,
    guests: list[_SeenGuest],
    cells: Mapping[str, str] | None,
    inventories: dict[str, Inventory],
    picture: Picture,
) -> HostPicture:
    cell = None if cells is None else cells.get(service.host)
    disabled = service.disabled
    if cells is not None and cell is None:
        disabled = 'its cell is not known: it is not in [nova_source] cells_file'
    listed_consumers = {guest.consumer(room) for guest in guests} | {
        guest.server.id for guest in guests
    }
    facts = HostReadings(
        inventories=inventories,
        foreign=_foreign(room, listed_consumers, inventories),
        node=node.node,
        cell=cell,
        traits=sorted(set(room.traits)),
        numa=UNSET,
        devices=UNSET,
        hypervisor=_runs(name, node),
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
    nova_guests = [_guest(guest, room, inventories) for guest in guests]
    return HostPicture(announcement, facts, nova_guests, picture.requested_at, picture.begun)


def _foreign(
    room: AllocatedAmounts, listed: Set[str | None], known: Mapping[str, Inventory]
) -> dict[str, int]:
    """Return the use by others than the guests: builds on their way, and leaks."""
    foreign_use: Counter[str] = Counter()
    for consumer, amounts in room.allocations.items():
        if consumer not in listed:
            foreign_use.update({kind: amount for kind, amount in amounts.items() if kind in known})
    return dict(foreign_use)


def _runs(name: str, node: ApiHypervisor) -> Runs:
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
    """Return what libvirt hosts of an architecture run: the API has no more detail."""
    if kind not in _FULL or not isinstance(arch, str) or not arch:
        return []
    archs = [arch, 'i686'] if arch == 'x86_64' else [arch]
    return [[architecture, driver, 'hvm'] for architecture in archs for driver in ('kvm', 'qemu')]


def _metrics(node: ApiHypervisor, guests: list[_SeenGuest]) -> dict[str, ReportedMetric]:
    counts = {
        'running_vms': node.running_vms,
        'current_workload': node.current_workload,
        IO_WORKLOAD: sum(guest.server.is_work for guest in guests if not guest.leaves),
    }
    return {
        name: ReportedMetric(value=float(count), source=SOURCE)
        for name, count in counts.items()
        if count is not None
    }


def _guest(seen: _SeenGuest, room: AllocatedAmounts, known: Mapping[str, Inventory]) -> NovaGuest:
    server = seen.server
    consumer = seen.consumer(room)
    if consumer is not None:
        amounts = room.allocations[consumer]
    else:
        # Nova does not have its flavor before a resize.
        amounts = {} if seen.leaves else amounts_of(server)
    return NovaGuest(
        consumer=server.id.lower(),
        node=server.node or '',
        resources={
            kind: amount for kind, amount in amounts.items() if amount > 0 and kind in known
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
        'swap': _swap(flavor),
        'extra_specs': flavor.extra_specs or {},
    }
    volume = not server.image
    amounts = nova_flavor.in_use(body, {}, volume=volume)
    return {
        kind: amount for kind, amount in amounts.items() if resource_classes.is_class_name(kind)
    }


def _swap(flavor: ApiFlavor) -> int:
    swap = str(flavor.swap)
    return int(swap) if swap.isdigit() else 0


# -- Placement's inventories as ours, never with more room than it has.
def taken_over(
    found: Mapping[str, Amounts], left_out: Set[str]
) -> tuple[dict[str, Inventory], dict[str, str]]:
    """Return the inventories by class, and the reason for each that cannot be taken.

    :param left_out: classes that the scheduler does not know
    """
    inventories, problems = {}, {}
    for kind, amounts in found.items():
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
