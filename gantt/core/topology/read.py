# SPDX-License-Identifier: Apache-2.0
"""Derivation of a request's topology wish from its flavor and image.

The names and rules are Nova's.  Amounts are the request's own: ``PCPU`` and
``VCPU`` are the number of processors of the guest, ``MEMORY_MB`` its memory.
"""

import re

import msgspec

from gantt.core.messages.keys.topology_settings import (
    CELLS_MAX,
    VCPUS_MAX,
    TopologySettings,
    cpus,
    in_flavor,
    in_image,
    page_size,
    positive,
    refuse,
)
from gantt.core.messages.request import Networks, Purpose, RequestSpec
from gantt.core.messages.resource_classes import MILLI, MILLI_VCPU
from gantt.core.messages.topology_request import (
    CpuPolicy,
    EmulatorPolicy,
    GuestCell,
    GuestTopology,
    ThreadPolicy,
    Wish,
)
from gantt.core.topology import processors
from gantt.core.topology.aliases import KEY, Aliases

#: Settings that are read here; any other key of the same form is ignored.
NAMES = frozenset(
    {
        'numa_nodes',
        'cpu_policy',
        'cpu_dedicated_mask',
        'cpu_thread_policy',
        'cpu_realtime',
        'cpu_realtime_mask',
        'emulator_threads_policy',
        'mem_page_size',
        'pmem',
        'mem_encryption',
        'mem_encryption_model',
        'cpu_sockets',
        'cpu_cores',
        'cpu_threads',
        'cpu_max_sockets',
        'cpu_max_cores',
        'cpu_max_threads',
        'pci_numa_affinity_policy',
    }
)
_OF_A_CELL = re.compile(r'(?:hw:|hw_)(numa_cpus|numa_mem)\.(.{0,12})\Z', re.DOTALL)
#: The last request read, with and without devices: several callers read the same one.
_last_read: dict[bool, tuple[tuple[object, ...], Wish | None]] = {}
_MODELS = ('amd-sev', 'amd-sev-es', 'amd-sev-snp', 'intel-tdx')


class Inside(msgspec.Struct, frozen=True):
    """Configuration of the layout.

    :ivar numa: number of the filter for cells, cores and pages; -1: they are not laid out
    :ivar pci: number of the filter for devices; -1: they are not laid out
    :ivar aliases: names of devices
    :ivar pack: prefer the fullest cells of a host
    """

    numa: int = -1
    pci: int = -1
    aliases: Aliases | None = None
    pack: bool = False

    def wish(self, spec: RequestSpec) -> Wish | None:
        """Return the wish to lay out for a request; None if there is none.

        :raises InvalidMessage: names the key and the expected value
        """
        if not spec.may_need_topology:
            return None
        if spec.purpose is Purpose.REBUILD:
            return None
        if self.pci < 0 and not all(device.alias for device in spec.devices):
            refuse('request.spec.devices', 'are placed where PciPassthroughFilter is enabled only')
        if self.numa < 0 > self.pci:
            return None
        wish = read(spec, self.aliases if self.pci >= 0 else None)
        if wish is not None and self.numa < 0:
            return wish.without_cells()
        return wish

    def stands_for(self, wish: Wish) -> int:
        """Return the number of the filter that removes a host where a wish cannot be laid out."""
        return self.numa if wish.cells else self.pci


def read(spec: RequestSpec, aliases: Aliases | None = None) -> Wish | None:
    """Return the topology wish of a request; None if it has none.

    :param aliases: names of devices; None: devices are ignored
    :raises InvalidMessage: names the key and the expected value
    """
    if KEY not in spec.flavor.extra_specs and not spec.devices:
        aliases = None  # no devices are requested, whatever their names
    cached = _last_read.get(aliases is None)
    cache_key = (spec.flavor, spec.image, spec.resources, spec.devices, spec.networks, aliases)
    if cached is not None and all(
        cached_part is part for cached_part, part in zip(cached[0], cache_key, strict=True)
    ):
        return cached[1]
    wish = _read(spec, aliases)
    _last_read[aliases is None] = (cache_key, wish)
    return wish


def _read(spec: RequestSpec, aliases: Aliases | None) -> Wish | None:
    settings = TopologySettings(spec.flavor.extra_specs, spec.image.properties)
    named = KEY in settings.flavor or spec.devices
    devices = aliases.wishes(spec) if aliases and named else ()
    if not (devices or _concerns(settings) or _is_pinned_by_amount(spec)):
        return None
    policy = _policy(spec, settings)
    threads = _threads(settings, policy)
    apart = _emulator_apart(settings, policy)
    vcpus = _vcpus(spec, policy, apart)
    realtime = _realtime(settings, policy, vcpus)
    dedicated = processors.dedicated(settings, policy, vcpus)
    _check_amounts(spec, policy, len(dedicated) + apart)
    page, pmem = _page(settings), _pmem(settings)
    nodes = _nodes(settings)
    guest = _guest(settings)
    encrypted = _encrypted(settings)
    cells: tuple[GuestCell, ...] = ()
    if nodes or page or pmem or policy is not CpuPolicy.SHARED:
        _check_processors(policy, vcpus, 1)
        cells = _cells(spec, settings, nodes or 1, vcpus, frozenset(dedicated))
    if not (cells or devices):
        return None
    networks = spec.networks or Networks()
    return Wish(
        cells=cells,
        cpu_policy=policy,
        thread_policy=threads,
        page=page,
        emulator_apart=apart,
        realtime=realtime,
        devices=devices,
        guest=guest,
        pmem=pmem,
        encrypted=encrypted,
        networks=tuple(sorted(set(networks.physical))),
        tunneled=networks.tunneled,
    )


def is_of_inside(key: str) -> bool:
    """Return whether an extra spec or an image property concerns the topology of a host."""
    return key.startswith(('hw:', 'hw_')) and (key[3:] in NAMES or bool(_OF_A_CELL.match(key)))


def _concerns(settings: TopologySettings) -> bool:
    for key in settings.flavor:
        if key.startswith('hw:') and is_of_inside(key):
            return True
    return any(key.startswith('hw_') and is_of_inside(key) for key in settings.image)


# -- processors ------------------------------------------------------------------
def _policy(spec: RequestSpec, settings: TopologySettings) -> CpuPolicy:
    """Return the policy of flavor or image, else the one implied by ``PCPU`` amounts."""
    requested = processors.cpu_policy(settings)
    if requested is None:
        return CpuPolicy.DEDICATED if _is_pinned_by_amount(spec) else CpuPolicy.SHARED
    if requested is CpuPolicy.SHARED and spec.resources.get('PCPU'):
        refuse('request.spec.resources.PCPU', 'cpu_policy shared takes none; expected VCPU')
    return requested


def _is_pinned_by_amount(spec: RequestSpec) -> bool:
    """Return whether the request is for a guest (it has memory) with dedicated processors."""
    amounts = spec.resources
    if not ('PCPU' in amounts and 'MEMORY_MB' in amounts):
        return False
    for name in ('VCPU', MILLI_VCPU):
        if name in amounts:
            refuse(
                'request.spec.resources.PCPU',
                f'which processors are dedicated beside {name}? Expected cpu_policy mixed with '
                'a mask',
            )
    return True


def _threads(settings: TopologySettings, policy: CpuPolicy) -> ThreadPolicy:
    thread_policy, field = processors.thread_policy(settings)
    if thread_policy is not None and policy is CpuPolicy.SHARED:
        refuse(field, 'is about dedicated processors; expected cpu_policy dedicated or mixed')
    return thread_policy or ThreadPolicy.PREFER


def _emulator_apart(settings: TopologySettings, policy: CpuPolicy) -> bool:
    emulator_policy = processors.emulator_policy(settings)
    if emulator_policy is EmulatorPolicy.ISOLATE and policy is CpuPolicy.SHARED:
        refuse(
            in_flavor('emulator_threads_policy'),
            'isolate takes a dedicated processor; expected cpu_policy dedicated or mixed',
        )
    return emulator_policy is EmulatorPolicy.ISOLATE


def _vcpus(spec: RequestSpec, policy: CpuPolicy, apart: bool) -> int:
    """Return the number of processors of the guest; a fraction of one counts as one."""
    amounts = spec.resources
    vcpus = amounts.get('VCPU', 0) + amounts.get('PCPU', 0) - apart
    vcpus += -(-amounts.get(MILLI_VCPU, 0) // MILLI)
    # Zero is allowed, as in Nova's flavors, if none of them is dedicated.
    _check_processors(policy, vcpus, 0 if policy is CpuPolicy.SHARED else 1)
    return vcpus


def _check_processors(policy: CpuPolicy, found: int, least: int) -> None:
    if not least <= found <= VCPUS_MAX:
        field = 'PCPU' if policy is CpuPolicy.DEDICATED else 'VCPU'
        refuse(
            f'request.spec.resources.{field}',
            f'expected 1 to {VCPUS_MAX} processors for the guest, got {found}',
        )


def _realtime(settings: TopologySettings, policy: CpuPolicy, vcpus: int) -> tuple[int, ...]:
    cpu_numbers, field = processors.realtime(settings, vcpus)
    if cpu_numbers and policy is CpuPolicy.SHARED:
        refuse(field, 'needs dedicated processors; expected cpu_policy dedicated or mixed')
    return cpu_numbers


def _check_amounts(spec: RequestSpec, policy: CpuPolicy, dedicated: int) -> None:
    """Check that the requested ``PCPU`` equal the dedicated processors to lay out."""
    requested = spec.resources.get('PCPU', 0)
    if policy is not CpuPolicy.SHARED and requested != dedicated:
        refuse(
            'request.spec.resources.PCPU',
            f'cpu_policy {policy} takes {dedicated} of them; expected that, got {requested}',
        )


def _guest(settings: TopologySettings) -> GuestTopology:
    limits = {}
    for part in ('sockets', 'cores', 'threads'):
        name = f'cpu_max_{part}'
        image, flavor = settings.of_image(name), settings.of_flavor(name)
        limit = positive(flavor, in_flavor(name), VCPUS_MAX) if flavor else 0
        if image:
            image_most = positive(image, in_image(name), VCPUS_MAX)
            if limit and image_most > limit:
                refuse(
                    in_image(name), f'expected at most {limit} as in the flavor, got {image_most}'
                )
            limit = image_most
        limits[f'max_{part}'] = limit
        limits[part] = settings.number(f'cpu_{part}', VCPUS_MAX)
        if limit and limits[part] > limit:
            refuse(in_flavor(f'cpu_{part}'), f'expected at most {limit}, got {limits[part]}')
    return GuestTopology(**limits)


# -- memory ------------------------------------------------------------------------
def _page(settings: TopologySettings) -> str:
    name = 'mem_page_size'
    flavor, image = settings.of_flavor(name), settings.of_image(name)
    requested = page_size(flavor, in_flavor(name)) if flavor else ''
    if not image:
        return requested
    image_size = page_size(image, in_image(name))
    if requested not in ('large', 'any'):
        refuse(
            in_image(name),
            'the flavor has to leave it open: expected hw:mem_page_size large or any there',
        )
    return image_size


def _pmem(settings: TopologySettings) -> tuple[str, ...]:
    labels = settings.pmem()
    if len(labels) > 64:
        refuse(in_flavor('pmem'), f'expected at most 64 namespaces, got {len(labels)}')
    return tuple(labels)


def _encrypted(settings: TopologySettings) -> bool:
    settings.same('mem_encryption_model', _MODELS)
    return settings.flag('mem_encryption')


# -- cells ------------------------------------------------------------------------
def _nodes(settings: TopologySettings) -> int:
    value, field = settings.one_of('numa_nodes')
    return positive(value, field, CELLS_MAX) if value else 0


def _cells(
    spec: RequestSpec, settings: TopologySettings, nodes: int, vcpus: int, dedicated: frozenset[int]
) -> tuple[GuestCell, ...]:
    memory = spec.resources.get('MEMORY_MB', 0)
    if not memory:
        refuse('request.spec.resources.MEMORY_MB', 'expected memory for the guest')
    requested = _cells_of_request(settings, nodes)
    if requested:
        shares = _as_requested(requested, nodes, vcpus, memory)
    else:
        shares = _evenly(nodes, vcpus, memory)
    return tuple(
        GuestCell(cell_cpus, mb, tuple(cpu for cpu in cell_cpus if cpu in dedicated))
        for cell_cpus, mb in shares
    )


def _cells_of_request(
    settings: TopologySettings, nodes: int
) -> dict[tuple[str, int], tuple[str, str]]:
    """Return (setting, number of a cell) -> (value, field)."""
    cell_settings: dict[tuple[str, int], tuple[str, str]] = {}
    for requested, inside in (
        (settings.flavor, 'request.spec.flavor.extra_specs'),
        (settings.image, 'request.spec.image.properties'),
    ):
        for key, value in requested.items():
            match = _OF_A_CELL.match(key)
            if match is None or not key.startswith(
                'hw:' if requested is settings.flavor else 'hw_'
            ):
                continue
            field = f'{inside}.{key}'
            number = match[2]
            if not (number.isascii() and number.isdigit() and int(number) < nodes):
                refuse(field, f'expected a cell of 0 to {nodes - 1}, by numa_nodes, got {number!r}')
            cell_key = (match[1], int(number))
            if cell_key in cell_settings:
                refuse(field, 'the flavor says it as well; expected it in one of them')
            cell_settings[cell_key] = (value.strip(), field)
    return cell_settings


def _as_requested(
    requested: dict[tuple[str, int], tuple[str, str]], nodes: int, vcpus: int, memory: int
) -> list[tuple[tuple[int, ...], int]]:
    shares = []
    seen: set[int] = set()
    for node in range(nodes):
        for name in ('numa_cpus', 'numa_mem'):
            if (name, node) not in requested:
                refuse(in_flavor(f'{name}.{node}'), 'is missing; expected both for every cell')
        text, field = requested['numa_cpus', node]
        cell_cpus = cpus(text, field, vcpus)
        if seen & set(cell_cpus):
            refuse(field, f'processor {min(seen & set(cell_cpus))} is in another cell already')
        seen |= set(cell_cpus)
        text, field = requested['numa_mem', node]
        shares.append((cell_cpus, positive(text, field, 2**40)))
    if len(seen) != vcpus:
        missing = min(set(range(vcpus)) - seen)
        refuse(in_flavor(f'numa_cpus.{nodes - 1}'), f'processor {missing} is in no cell')
    total = sum(mb for _, mb in shares)
    if total != memory:
        refuse(
            in_flavor(f'numa_mem.{nodes - 1}'),
            f'the cells have {total} MiB together; expected the {memory} MiB of the request',
        )
    return shares


def _evenly(nodes: int, vcpus: int, memory: int) -> list[tuple[tuple[int, ...], int]]:
    for unit, amount in (('processors', vcpus), ('MiB of memory', memory)):
        if amount % nodes:
            refuse(
                in_flavor('numa_nodes'),
                f'{amount} {unit} cannot be split evenly over {nodes} cells; '
                'expected hw:numa_cpus.N and hw:numa_mem.N for each of them',
            )
    each = vcpus // nodes
    return [(tuple(range(n * each, (n + 1) * each)), memory // nodes) for n in range(nodes)]
