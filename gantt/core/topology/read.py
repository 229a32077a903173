# SPDX-License-Identifier: Apache-2.0
"""Derivation of a request's topology wish from its flavor and image.

The names and rules are Nova's.  Amounts are the request's own: ``PCPU`` and
``VCPU`` are the number of processors of the guest, ``MEMORY_MB`` its memory.  Processors are
requested by policies (``hw:cpu_policy``, ``hw:cpu_thread_policy``) or as Placement has them
(``resources:PCPU``, ``trait:HW_CPU_HYPERTHREADING``); devices by the names of aliases.
"""

import re
from typing import Annotated

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.base import Message, Name, Text
from gantt.core.messages.keys.topology_settings import (
    CELLS_MAX,
    FALSE_SPELLINGS,
    TRUE_SPELLINGS,
    VCPUS_MAX,
    TopologySettings,
    flavor_field,
    image_field,
    page_size,
    parse_bool,
    parse_cpus,
    parse_positive,
    refuse,
)
from gantt.core.messages.request import DeviceRequest, Networks, Purpose, RequestSpec
from gantt.core.messages.resource_classes import MILLI_VCPU, MILLIS_PER_UNIT
from gantt.core.messages.topology_request import (
    Affinity,
    CpuPolicy,
    DeviceSpec,
    EmulatorPolicy,
    GuestCell,
    GuestTopology,
    PciRequest,
    ThreadPolicy,
    TopologyRequest,
)

ALIAS_KEY = 'pci_passthrough:alias'
ALIAS_FIELD = f'request.spec.flavor.extra_specs.{ALIAS_KEY}'
#: Upper bounds of names in one request, and of devices under one name.
ALIAS_NAMES_MAX, DEVICE_COUNT_MAX = 64, 1024
_DEVICE_TYPES = ('type-PCI', 'type-PF', 'type-VF', 'vdpa')


class Alias(Message, frozen=True, kw_only=True):
    """An object of the option; of several with one name any is suitable.

    :ivar numa_policy: NUMA policy, equal in all objects of one name
    :ivar live_migratable: yes or no as text; the tag of a pool is ``true`` or ``false``
    """

    name: Name
    vendor_id: Text = ''
    product_id: Text = ''
    device_type: Text = ''
    numa_policy: Affinity | None = None
    resource_class: Text = ''
    traits: Text = ''
    live_migratable: Text | None = None
    tags: Annotated[dict[Name, Text], msgspec.Meta(max_length=64)] = {}

    @property
    def spec(self) -> DeviceSpec:
        """Required properties of a device."""
        tags = {key.lower(): value.lower() for key, value in self.tags.items()}
        for key in ('resource_class', 'traits'):
            if getattr(self, key):
                tags[key] = getattr(self, key).lower()
        if self.live_migratable is not None:
            is_migratable = self.live_migratable.strip().lower() in TRUE_SPELLINGS
            tags['live_migratable'] = 'true' if is_migratable else 'false'
        return DeviceSpec(
            vendor_id=self.vendor_id.lower(),
            product_id=self.product_id.lower(),
            dev_type=self.device_type.lower(),
            tags=tuple(sorted(tags.items())),
        )


class Aliases:
    """Known aliases and their device specs."""

    def __init__(self, found: list[Alias], option: str) -> None:
        self._specs: dict[str, tuple[DeviceSpec, ...]] = {}
        self._policies: dict[str, Affinity] = {}
        for alias in found:
            if alias.device_type and alias.device_type not in _DEVICE_TYPES:
                raise _bad_alias(
                    option,
                    f'{alias.name}: device_type {alias.device_type!r} is none of {_DEVICE_TYPES}',
                )
            migratable = alias.live_migratable
            if migratable is not None and migratable.strip().lower() not in (
                *TRUE_SPELLINGS,
                *FALSE_SPELLINGS,
            ):
                raise _bad_alias(
                    option, f'{alias.name}: live_migratable {migratable!r} is neither yes nor no'
                )
            policy = alias.numa_policy or Affinity.LEGACY
            if self._policies.setdefault(alias.name, policy) is not policy:
                raise _bad_alias(option, f'{alias.name}: two numa_policy for one name')
            self._specs[alias.name] = (*self._specs.get(alias.name, ()), alias.spec)

    def wishes(self, spec: RequestSpec) -> tuple[PciRequest, ...]:
        """Return the devices of a request.

        :raises InvalidMessage: an undeclared name, or a wrong count
        """
        named = self._named(spec)
        named_aliases = {wish.alias for wish in named}
        described = [
            _pci_request(device)
            for device in spec.devices
            if not device.alias or device.alias not in named_aliases
        ]
        return (*named, *described)

    def _named(self, spec: RequestSpec) -> list[PciRequest]:
        """Return the devices that the flavor names, except aliases only the request describes."""
        text = spec.flavor.extra_specs.get(ALIAS_KEY, '')
        parts = [part.strip() for part in text.split(',') if part.strip()]
        if not parts:
            return []
        policy = TopologySettings(spec.flavor.extra_specs, spec.image.properties).same(
            'pci_numa_affinity_policy', Affinity
        )
        if len(parts) > ALIAS_NAMES_MAX:
            refuse(ALIAS_FIELD, f'expected at most {ALIAS_NAMES_MAX} names, got {len(parts)}')
        described = {device.alias for device in spec.devices}
        device_wishes = []
        for part in parts:
            name, _, count = (piece.strip() for piece in part.partition(':'))
            if name not in self._specs:
                if name in described:
                    continue
                names = ', '.join(sorted(self._specs)) or 'none'
                refuse(ALIAS_FIELD, f'no device is called {name!r} here; known: {names}')
            device_wishes.append(
                PciRequest(
                    alias=name,
                    count=parse_positive(count, ALIAS_FIELD, DEVICE_COUNT_MAX) if count else 1,
                    specs=self._specs[name],
                    affinity=Affinity(policy) if policy else self._policies[name],
                )
            )
        return device_wishes


def _pci_request(one: DeviceRequest) -> PciRequest:
    specs = tuple(
        DeviceSpec(
            vendor_id=kind.vendor_id.lower(),
            product_id=kind.product_id.lower(),
            dev_type=kind.device_type.lower(),
            tags=tuple(sorted((k.lower(), v and v.lower()) for k, v in kind.tags.items())),
        )
        for kind in one.any_of
    )
    return PciRequest(one.alias or one.port, one.count, specs, one.affinity)


def read_option(text: str, option: str) -> Aliases:
    """Return the aliases of an option: a JSON list of objects, or one object.

    :raises Misconfigured: names the problem
    """
    if not text.strip():
        return Aliases([], option)
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as e:
        raise _bad_alias(option, f'not valid JSON: {e}') from None
    try:
        aliases = base.decode(
            [body] if isinstance(body, dict) else body, list[Alias], inside=option
        )
    except exceptions.InvalidMessage as e:
        raise _bad_alias(option, str(e)) from None
    return Aliases(aliases, option)


def _bad_alias(option: str, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option=option,
        problem=problem,
        fix='Expected e.g. [{"name": "gpu", "vendor_id": "10de", "product_id": "1eb8"}]',
    )


#: Settings that are read here; any other key of the same form is ignored.
TOPOLOGY_PROPERTIES = frozenset(
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
_CELL_PROPERTY = re.compile(r'(?:hw:|hw_)(numa_cpus|numa_mem)\.(.{0,12})\Z', re.DOTALL)
#: The last request read, with and without devices: several callers read the same one.
_last_read: dict[bool, tuple[tuple[object, ...], TopologyRequest | None]] = {}
_MEMORY_ENCRYPTION_MODELS = ('amd-sev', 'amd-sev-es', 'amd-sev-snp', 'intel-tdx')


class LayoutSettings(msgspec.Struct, frozen=True):
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

    def wish(self, spec: RequestSpec) -> TopologyRequest | None:
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

    def stands_for(self, wish: TopologyRequest) -> int:
        """Return the number of the filter that removes a host where a wish cannot be laid out."""
        return self.numa if wish.cells else self.pci


def read(spec: RequestSpec, aliases: Aliases | None = None) -> TopologyRequest | None:
    """Return the topology wish of a request; None if it has none.

    :param aliases: names of devices; None: devices are ignored
    :raises InvalidMessage: names the key and the expected value
    """
    if ALIAS_KEY not in spec.flavor.extra_specs and not spec.devices:
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


def _read(spec: RequestSpec, aliases: Aliases | None) -> TopologyRequest | None:
    settings = TopologySettings(spec.flavor.extra_specs, spec.image.properties)
    named = ALIAS_KEY in settings.flavor or spec.devices
    devices = aliases.wishes(spec) if aliases and named else ()
    if not (devices or _requests_topology(settings) or _is_pinned_by_amount(spec)):
        return None
    policy = _policy(spec, settings)
    threads = _threads(settings, policy)
    apart = _emulator_apart(settings, policy)
    vcpus = _vcpus(spec, policy, apart)
    realtime = _realtime(settings, policy, vcpus)
    dedicated = requested_dedicated(settings, policy, vcpus)
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
    return TopologyRequest(
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


def is_topology_property(key: str) -> bool:
    """Return whether an extra spec or an image property concerns the topology of a host."""
    return key.startswith(('hw:', 'hw_')) and (
        key[3:] in TOPOLOGY_PROPERTIES or bool(_CELL_PROPERTY.match(key))
    )


def _requests_topology(settings: TopologySettings) -> bool:
    for key in settings.flavor:
        if key.startswith('hw:') and is_topology_property(key):
            return True
    return any(key.startswith('hw_') and is_topology_property(key) for key in settings.image)


# -- processors ------------------------------------------------------------------
def _policy(spec: RequestSpec, settings: TopologySettings) -> CpuPolicy:
    """Return the policy of flavor or image, else the one implied by ``PCPU`` amounts."""
    requested = requested_cpu_policy(settings)
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
    thread_policy, field = requested_thread_policy(settings)
    if thread_policy is not None and policy is CpuPolicy.SHARED:
        refuse(field, 'is about dedicated processors; expected cpu_policy dedicated or mixed')
    return thread_policy or ThreadPolicy.PREFER


def _emulator_apart(settings: TopologySettings, policy: CpuPolicy) -> bool:
    emulator_policy = requested_emulator_policy(settings)
    if emulator_policy is EmulatorPolicy.ISOLATE and policy is CpuPolicy.SHARED:
        refuse(
            flavor_field('emulator_threads_policy'),
            'isolate takes a dedicated processor; expected cpu_policy dedicated or mixed',
        )
    return emulator_policy is EmulatorPolicy.ISOLATE


def _vcpus(spec: RequestSpec, policy: CpuPolicy, apart: bool) -> int:
    """Return the number of processors of the guest; a fraction of one counts as one."""
    amounts = spec.resources
    vcpus = amounts.get('VCPU', 0) + amounts.get('PCPU', 0) - apart
    vcpus += -(-amounts.get(MILLI_VCPU, 0) // MILLIS_PER_UNIT)
    # Zero is allowed, as in Nova's flavors, if none of them is dedicated.
    _check_processors(policy, vcpus, 0 if policy is CpuPolicy.SHARED else 1)
    return vcpus


def _check_processors(policy: CpuPolicy, count: int, least: int) -> None:
    if not least <= count <= VCPUS_MAX:
        field = 'PCPU' if policy is CpuPolicy.DEDICATED else 'VCPU'
        refuse(
            f'request.spec.resources.{field}',
            f'expected 1 to {VCPUS_MAX} processors for the guest, got {count}',
        )


def _realtime(settings: TopologySettings, policy: CpuPolicy, vcpus: int) -> tuple[int, ...]:
    cpu_numbers, field = requested_realtime(settings, vcpus)
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
        limit = parse_positive(flavor, flavor_field(name), VCPUS_MAX) if flavor else 0
        if image:
            image_most = parse_positive(image, image_field(name), VCPUS_MAX)
            if limit and image_most > limit:
                refuse(
                    image_field(name),
                    f'expected at most {limit} as in the flavor, got {image_most}',
                )
            limit = image_most
        limits[f'max_{part}'] = limit
        limits[part] = settings.number(f'cpu_{part}', VCPUS_MAX)
        if limit and limits[part] > limit:
            refuse(flavor_field(f'cpu_{part}'), f'expected at most {limit}, got {limits[part]}')
    return GuestTopology(**limits)


# -- memory ------------------------------------------------------------------------
def _page(settings: TopologySettings) -> str:
    name = 'mem_page_size'
    flavor, image = settings.of_flavor(name), settings.of_image(name)
    requested = page_size(flavor, flavor_field(name)) if flavor else ''
    if not image:
        return requested
    image_size = page_size(image, image_field(name))
    if requested not in ('large', 'any'):
        refuse(
            image_field(name),
            'the flavor has to leave it open: expected hw:mem_page_size large or any there',
        )
    return image_size


def _pmem(settings: TopologySettings) -> tuple[str, ...]:
    labels = settings.pmem()
    if len(labels) > 64:
        refuse(flavor_field('pmem'), f'expected at most 64 namespaces, got {len(labels)}')
    return tuple(labels)


def _encrypted(settings: TopologySettings) -> bool:
    settings.same('mem_encryption_model', _MEMORY_ENCRYPTION_MODELS)
    return settings.flag('mem_encryption')


# -- cells ------------------------------------------------------------------------
def _nodes(settings: TopologySettings) -> int:
    value, field = settings.one_of('numa_nodes')
    return parse_positive(value, field, CELLS_MAX) if value else 0


def _cells(
    spec: RequestSpec, settings: TopologySettings, nodes: int, vcpus: int, dedicated: frozenset[int]
) -> tuple[GuestCell, ...]:
    memory = spec.resources.get('MEMORY_MB', 0)
    if not memory:
        refuse('request.spec.resources.MEMORY_MB', 'expected memory for the guest')
    requested = _cells_of_request(settings, nodes)
    if requested:
        shares = _cells_as_requested(requested, nodes, vcpus, memory)
    else:
        shares = _cells_evenly(nodes, vcpus, memory)
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
            match = _CELL_PROPERTY.match(key)
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


def _cells_as_requested(
    requested: dict[tuple[str, int], tuple[str, str]], nodes: int, vcpus: int, memory: int
) -> list[tuple[tuple[int, ...], int]]:
    shares = []
    seen: set[int] = set()
    for node in range(nodes):
        for name in ('numa_cpus', 'numa_mem'):
            if (name, node) not in requested:
                refuse(flavor_field(f'{name}.{node}'), 'is missing; expected both for every cell')
        text, field = requested['numa_cpus', node]
        cell_cpus = parse_cpus(text, field, vcpus)
        if seen & set(cell_cpus):
            refuse(field, f'processor {min(seen & set(cell_cpus))} is in another cell already')
        seen |= set(cell_cpus)
        text, field = requested['numa_mem', node]
        shares.append((cell_cpus, parse_positive(text, field, 2**40)))
    if len(seen) != vcpus:
        missing = min(set(range(vcpus)) - seen)
        refuse(flavor_field(f'numa_cpus.{nodes - 1}'), f'processor {missing} is in no cell')
    total = sum(mb for _, mb in shares)
    if total != memory:
        refuse(
            flavor_field(f'numa_mem.{nodes - 1}'),
            f'the cells have {total} MiB together; expected the {memory} MiB of the request',
        )
    return shares


def _cells_evenly(nodes: int, vcpus: int, memory: int) -> list[tuple[tuple[int, ...], int]]:
    for unit, amount in (('processors', vcpus), ('MiB of memory', memory)):
        if amount % nodes:
            refuse(
                flavor_field('numa_nodes'),
                f'{amount} {unit} cannot be split evenly over {nodes} cells; '
                'expected hw:numa_cpus.N and hw:numa_mem.N for each of them',
            )
    each = vcpus // nodes
    return [(tuple(range(n * each, (n + 1) * each)), memory // nodes) for n in range(nodes)]


HYPERTHREADING = 'HW_CPU_HYPERTHREADING'
#: Keys under which a flavor, and an image, name traits.
_HYPERTHREADING_TRAIT_KEY, _TRAITS_KEY = f'trait:{HYPERTHREADING}', 'traits_required'
_THREAD_POLICY_BY_TRAIT = {'required': ThreadPolicy.REQUIRE, 'forbidden': ThreadPolicy.ISOLATE}


def requested_cpu_policy(settings: TopologySettings) -> CpuPolicy | None:
    """Return the CPU policy that flavor or image name; None if neither does.

    :raises InvalidMessage: names the key and the expected value
    """
    name = 'cpu_policy'
    flavor, image = settings.choices_of_both(name, CpuPolicy)
    if flavor is None:
        return CpuPolicy(image) if image else None
    # The image may request less than the flavor allows, never more.
    stronger = (CpuPolicy.DEDICATED, CpuPolicy.MIXED)[: 2 if flavor == CpuPolicy.SHARED else 1]
    if flavor != CpuPolicy.DEDICATED and image in stronger:
        refuse(image_field(name), f'the flavor gives {flavor} processors only')
    return CpuPolicy(flavor)


def requested_thread_policy(settings: TopologySettings) -> tuple[ThreadPolicy | None, str]:
    """Return the thread policy and the field that sets it; None if no field does.

    The flavor takes precedence, and an image may only repeat its policy, except where the
    flavor has ``prefer``: that stays, whatever the image has.

    :raises InvalidMessage: names the key and the expected value
    """
    name = 'cpu_thread_policy'
    flavor, image = settings.choices_of_both(name, ThreadPolicy)
    if flavor not in (None, ThreadPolicy.PREFER) and image not in (None, flavor):
        refuse(image_field(name), f'expected {flavor} as in the flavor, got {image}')
    field = flavor_field(name) if flavor else image_field(name)
    by_trait, trait = _threads_by_trait(settings)
    if not (flavor or image):
        return by_trait, trait
    if by_trait:
        refuse(trait, f'{field.rpartition(".")[2]} is there as well; expected one of them')
    return ThreadPolicy(flavor or image or ''), field


def _threads_by_trait(settings: TopologySettings) -> tuple[ThreadPolicy | None, str]:
    trait_value = settings.flavor.get(_HYPERTHREADING_TRAIT_KEY)
    if trait_value is not None:
        return _THREAD_POLICY_BY_TRAIT.get(
            trait_value
        ), f'request.spec.flavor.extra_specs.{_HYPERTHREADING_TRAIT_KEY}'
    traits = settings.image.get(_TRAITS_KEY, '').split(',')
    policy = ThreadPolicy.REQUIRE if HYPERTHREADING in map(str.strip, traits) else None
    return policy, f'request.spec.image.properties.{_TRAITS_KEY}'


def requested_emulator_policy(settings: TopologySettings) -> EmulatorPolicy | None:
    """Return the policy of emulator threads, which only flavors may set; None if not set.

    :raises InvalidMessage: names the key and the expected value
    """
    name = 'emulator_threads_policy'
    policy = settings.choice(EmulatorPolicy, settings.of_flavor(name), flavor_field(name))
    return EmulatorPolicy(policy) if policy else None


def requested_realtime(settings: TopologySettings, vcpus: int) -> tuple[tuple[int, ...], str]:
    """Return the real-time processors of a guest, and the field that sets them; (): none.

    :raises InvalidMessage: names the key and the expected value
    """
    switch = flavor_field('cpu_realtime')
    realtime_value = settings.of_flavor('cpu_realtime')
    if not (realtime_value and parse_bool(realtime_value, switch)):
        return (), ''
    name = 'cpu_realtime_mask'
    text, field = settings.of_image(name), image_field(name)
    if not text:
        text, field = settings.of_flavor(name), flavor_field(name)
    cpu_numbers = parse_cpus(text, field, vcpus) if text else tuple(range(vcpus))
    # One processor has to run the emulator's threads.
    if len(cpu_numbers) == vcpus and requested_emulator_policy(settings) is None:
        refuse(
            field if text else switch,
            'expected a cpu_realtime_mask that leaves a processor without, '
            'or an emulator_threads_policy',
        )
    return cpu_numbers, field if text else switch


def requested_dedicated(
    settings: TopologySettings, policy: CpuPolicy, vcpus: int
) -> tuple[int, ...]:
    """Return the processors of a guest that are pinned.

    :raises InvalidMessage: names the key and the expected value
    """
    name = 'cpu_dedicated_mask'
    text, field = settings.of_flavor(name), flavor_field(name)
    if policy is not CpuPolicy.MIXED:
        if text:
            refuse(field, f'is for cpu_policy mixed, not {policy}')
        return tuple(range(vcpus)) if policy is CpuPolicy.DEDICATED else ()
    realtime_cpus, _field = requested_realtime(settings, vcpus)
    if bool(text) == bool(realtime_cpus):
        refuse(field, 'mixed processors need it, or cpu_realtime with a mask; expected one of them')
    cpu_numbers = parse_cpus(text, field, vcpus) if text else realtime_cpus
    # All may be real-time processors if the emulator's threads run elsewhere.
    if text and len(cpu_numbers) == vcpus:
        refuse(field, 'expected a shared processor beside the dedicated ones')
    return cpu_numbers
