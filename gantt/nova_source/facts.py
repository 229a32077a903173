# SPDX-License-Identifier: Apache-2.0
"""From a picture to what is said of each host: its facts, and its guests.

Where a service runs many nodes, as Ironic's do, each of them says which service that is.
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
    """What is said of one host.

    :ivar guests: all of them, whole
    :ivar asked_at: when reading began
    :ivar begun: the same by the database's clock, None where that was not known
    :ivar is_short: their list fits a message only without what is for people
    """

    announcement: RegisterHost
    facts: HostReadings
    guests: list[NovaGuest]
    asked_at: float
    begun: float | None = None
    is_short: bool = False


class HostPictures(msgspec.Struct, frozen=True):
    """What a picture says.

    :ivar silent: host -> why nothing is reported of it
    :ivar named: which host a node is
    :ivar wrong: host -> class -> why it is left out
    """

    hosts: dict[str, HostPicture] = {}
    silent: dict[str, str] = {}
    named: Named = Named({}, {})
    wrong: dict[str, dict[str, str]] = {}

    def name_of(self, server: ApiServer) -> str | None:
        """The host that a server is on, None where that is none of these."""
        return None if server.host is None else self.named.at(server.host, server.node)


def host_pictures(
    picture: Picture,
    cells: Mapping[str, str] | None,
    left_out: frozenset[str],
    declared_hosts: Mapping[str, str],
) -> HostPictures:
    """What is said of every host.

    :param cells: host -> uuid of its cell; None: nobody knows, and nobody need
    :param left_out: resource classes that the scheduler does not know
    :param declared_hosts: host -> uuid of the node that was taken for it before
    """
    roomy = {uuid for uuid, room in picture.rooms.items() if room.inventories}
    named = names.named(picture.nodes, picture.doubled, declared_hosts, roomy)
    guests = _guests(picture, HostPictures(named=named))
    found = HostPictures({}, dict(named.silent), named, {})
    for node in picture.nodes:
        name = named.of.get((node.service.host, node.node))
        if name is None:
            continue
        service, room = picture.services.get(node.service.host), picture.rooms.get(node.id)
        mine = guests.get(name, [])
        odd = next(
            (
                picture.odd[of]
                for of in (node.service.host, node.node, node.id)
                if of in picture.odd
            ),
            '',
        )
        problem = odd or _problem(service, room) or _doubt(node, service, mine, picture.doubtful)
        if problem or service is None or room is None:
            found.silent[name] = problem
            continue
        made, wrong = taken_over(room.inventories, left_out)
        if wrong:
            found.wrong[name] = wrong
        if not made:
            found.silent[name] = 'Placement knows no inventory of it that is known here'
            continue
        found.hosts[name] = _picture_of(name, node, service, room, mine, cells, made, picture)
    _add_silent(found, picture)
    return found


def _add_silent(found: HostPictures, picture: Picture) -> None:
    """Hosts whose nodes are not listed, or cannot be read."""
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
    """Why the list of its guests cannot be believed."""
    if node.id in doubtful:
        return UNSURE
    # Of a service that is down the number is old: its guests may have been evacuated.
    is_up = service is not None and service.state == 'up'
    return UNSURE if is_up and node.running_vms and not guests else ''


class _SeenGuest(msgspec.Struct, frozen=True):
    """A guest on a host.

    :ivar consumers: under which of these uuids, the first that is there, Placement has what it
        takes there
    :ivar leaves: it is here only until its migration is over
    """

    server: ApiServer
    consumers: list[str]
    moving: bool
    group: str | None
    leaves: bool = False

    def consumer(self, room: AllocatedAmounts) -> str | None:
        """The one of them that has an allocation."""
        return next((one for one in self.consumers if one in room.allocations), None)


def _guests(picture: Picture, host_pictures: HostPictures) -> dict[str, list[_SeenGuest]]:
    group_of = {one: group.id for group in picture.groups for one in group.members or ()}
    found: dict[str, list[_SeenGuest]] = defaultdict(list)
    for server in picture.servers:
        name, moves = host_pictures.name_of(server), picture.open.get(server.id, [])
        if not server.is_known or name is None:
            continue
        group = group_of.get(server.id)
        old_of = {
            move.uuid or '': host_pictures.named.at(move.source_compute, move.source_node)
            for move in moves
        }
        # Before it leaves, what it takes at its source is already the migration's.
        here = [uuid for uuid, old in old_of.items() if old == name]
        found[name].append(_SeenGuest(server, [server.id, *here], bool(moves), group))
        for uuid, old in old_of.items():
            # Its old place is kept until its migration is over.
            if old is not None and old != name:
                found[old].append(_SeenGuest(server, [uuid], True, group, leaves=True))
    return found


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
    listed = {seen.consumer(room) for seen in guests} | {seen.server.id for seen in guests}
    facts = HostReadings(
        inventories=inventories,
        foreign=_foreign(room, listed, inventories),
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
        speaks_for='nova',
    )
    found = [_guest(seen, room, inventories) for seen in guests]
    return HostPicture(announcement, facts, found, picture.asked_at, picture.begun)


def _foreign(
    room: AllocatedAmounts, listed: Set[str | None], known: Mapping[str, Inventory]
) -> dict[str, int]:
    """What Placement has given to others than the guests: builds on their way, and leaks."""
    taken: Counter[str] = Counter()
    for consumer, amounts in room.allocations.items():
        if consumer not in listed:
            taken.update({kind: amount for kind, amount in amounts.items() if kind in known})
    return dict(taken)


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
    """What libvirt hosts of an architecture run: the API does not say it any closer."""
    if kind not in _FULL or not isinstance(arch, str) or not arch:
        return []
    archs = [arch, 'i686'] if arch == 'x86_64' else [arch]
    return [[one, driver, 'hvm'] for one in archs for driver in ('kvm', 'qemu')]


def _metrics(node: ApiHypervisor, guests: list[_SeenGuest]) -> dict[str, ReportedMetric]:
    counts = {
        'running_vms': node.running_vms,
        'current_workload': node.current_workload,
        IO_WORKLOAD: sum(seen.server.is_work for seen in guests if not seen.leaves),
    }
    return {
        name: ReportedMetric(value=float(n), source=SOURCE)
        for name, n in counts.items()
        if n is not None
    }


def _guest(seen: _SeenGuest, room: AllocatedAmounts, known: Mapping[str, Inventory]) -> NovaGuest:
    server = seen.server
    consumer = seen.consumer(room)
    if consumer is not None:
        amounts = room.allocations[consumer]
    else:
        # Of what it was before a resize Nova says nothing.
        amounts = {} if seen.leaves else amounts_of(server)
    return NovaGuest(
        consumer=server.id.lower(),
        node=server.node or '',
        resources={kind: n for kind, n in amounts.items() if n > 0 and kind in known},
        project_id=server.project_id,
        user_id=server.user_id,
        vm_state=server.vm_state or '',
        task_state=server.task_state or '',
        moving=seen.moving,
        flavor=server.flavor.original_name or None if server.flavor else None,
        group=seen.group,
    )


def amounts_of(server: ApiServer) -> dict[str, int]:
    """What a server takes by its flavor; '' as image: it booted from a volume."""
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
    found = nova_flavor.in_use(body, {}, volume=volume)
    return {kind: amount for kind, amount in found.items() if resource_classes.is_class_name(kind)}


def _swap(flavor: ApiFlavor) -> int:
    swap = str(flavor.swap)
    return int(swap) if swap.isdigit() else 0


# -- Placement's inventories as ours, never with more room than it says.
def taken_over(
    found: Mapping[str, Amounts], left_out: Set[str]
) -> tuple[dict[str, Inventory], dict[str, str]]:
    """The inventories by class, and of those that cannot be taken: why.

    :param left_out: classes that the scheduler does not know
    """
    made, wrong = {}, {}
    for kind, amounts in found.items():
        if kind in left_out:
            continue
        one = inventory(amounts)
        problem = one.problem()
        if problem is None:
            made[kind] = one
        else:
            wrong[kind] = f'{problem[0]}: {problem[1]}'
    return made, wrong


def inventory(amounts: Amounts) -> Inventory:
    """Of one class; what is out of bounds is drawn in."""
    total, ratio = amounts.total, min(amounts.allocation_ratio, RATIO_MAX)
    reserved = min(max(0, amounts.reserved), max(0, total))
    if ratio <= 0:
        reserved, ratio = max(0, total), 1.0
    least, most = max(1, amounts.min_unit), amounts.max_unit
    if most is not None and most < least:
        # Nothing fits: in numbers that can be said, nothing is large enough.
        least = most = max(0, total) + 1
    return Inventory(
        total=total,
        reserved=reserved,
        min_unit=least,
        max_unit=None if most is None else min(most, AMOUNT_MAX),
        step_size=min(max(1, amounts.step_size), AMOUNT_MAX),
        allocation_ratio=ratio,
    )
