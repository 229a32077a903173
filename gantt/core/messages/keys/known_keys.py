# SPDX-License-Identifier: Apache-2.0
"""Keys of flavors, images, hints and aggregates that have a meaning, each with its readers.

A key means the same in every interface: Nova's topic, RPC, HTTP, the command line, members of
plans, dry runs and zones.  Keys that no interface supports are refused by name.  Keys that are not
here are free: they are for filters of others, and for rules.

In a name ``*`` stands for any text, ``N`` for a number of a cell.
"""

import enum
import functools
import re
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from gantt.core.messages.near import did_you_mean, nearest_names


class KeyKind(enum.StrEnum):
    """Kind of object that has a key."""

    FLAVOR = 'extra spec'
    IMAGE = 'image property'
    HINT = 'hint'
    AGGREGATE = 'aggregate metadata'


#: Readers that are no filter and no weigher.
READ_BY_REQUEST, READ_BY_PREFILTERS, READ_BY_HYPERVISOR = 'request', 'pre-filters', 'hypervisor'
#: The option of a pre-filter that is off by default.
IMAGE_PREFILTER_OPTION = 'image_metadata_prefilter'
_NO_PLUGIN_READERS = (
    READ_BY_REQUEST,
    READ_BY_PREFILTERS,
    READ_BY_HYPERVISOR,
    IMAGE_PREFILTER_OPTION,
)


class KnownKey(NamedTuple):
    """A key, or a family of them.

    :ivar readers: names of the filters and weighers that read it, or one of the constants above;
        none: no interface accepts it
    :ivar says: its effect, or what to use instead where it is refused
    """

    of: KeyKind
    name: str
    readers: tuple[str, ...]
    says: str

    @property
    def places(self) -> bool:
        """True where it affects placement, whatever the options."""
        return self.readers not in ((READ_BY_HYPERVISOR,), (IMAGE_PREFILTER_OPTION,))


_NUMA_FILTER, _PCI_FILTER = 'NUMATopologyFilter', 'PciPassthroughFilter'
_CAPABILITIES_FILTER = 'ComputeCapabilitiesFilter'
_RULE_PLUGINS = 'RulesFilter RulesWeigher'
_FLAVOR_AND_IMAGE = 'both'
_TRAIT_EFFECT = 'a trait is required of the host'
#: Effect of a key with a number, where a host is in several aggregates.
_LOWEST_VALUE_EFFECT = 'a number; of several aggregates of a host, the lowest one counts'
_OPTION_EFFECT = 'in place of the option of that name'

#: Kind of object, names, readers, effect.  "both" is ``hw:NAME`` of a flavor
#: and ``hw_NAME`` of an image.  A key without readers is refused, with what to use instead.
_KEY_TABLE = (
    (KeyKind.FLAVOR, 'resources:*', READ_BY_REQUEST, 'an amount, as spec.resources'),
    (KeyKind.FLAVOR, 'trait:*', READ_BY_REQUEST, 'required or forbidden, as spec.required_traits'),
    (KeyKind.FLAVOR, 'resources*:* trait*:*', READ_BY_REQUEST, 'of a group, as spec.tree.groups'),
    (KeyKind.FLAVOR, 'group_policy', READ_BY_REQUEST, 'none or isolate, as spec.tree.group_policy'),
    (KeyKind.IMAGE, 'traits_required trait:*', READ_BY_REQUEST, 'as spec.required_traits'),
    (_FLAVOR_AND_IMAGE, 'cpu_policy cpu_thread_policy', _NUMA_FILTER, 'processors of its own'),
    (_FLAVOR_AND_IMAGE, 'cpu_realtime_mask', _NUMA_FILTER, 'processors for real time'),
    (
        KeyKind.FLAVOR,
        'hw:cpu_dedicated_mask hw:cpu_realtime',
        _NUMA_FILTER,
        'processors of its own',
    ),
    (KeyKind.FLAVOR, 'hw:emulator_threads_policy', _NUMA_FILTER, 'a processor for the emulator'),
    (_FLAVOR_AND_IMAGE, 'numa_nodes numa_cpus.N numa_mem.N', _NUMA_FILTER, 'cells'),
    (_FLAVOR_AND_IMAGE, 'mem_page_size', _NUMA_FILTER, 'pages'),
    (
        _FLAVOR_AND_IMAGE,
        'cpu_sockets cpu_cores cpu_threads',
        _NUMA_FILTER,
        'the processors that the guest sees',
    ),
    (
        _FLAVOR_AND_IMAGE,
        'cpu_max_sockets cpu_max_cores cpu_max_threads',
        _NUMA_FILTER,
        'bounds of these',
    ),
    (
        KeyKind.FLAVOR,
        'hw:pmem',
        f'{READ_BY_REQUEST} {_NUMA_FILTER}',
        'amounts are required of the host',
    ),
    (
        _FLAVOR_AND_IMAGE,
        'mem_encryption',
        f'{READ_BY_REQUEST} {READ_BY_PREFILTERS} {_NUMA_FILTER}',
        'an amount and a trait',
    ),
    (
        _FLAVOR_AND_IMAGE,
        'mem_encryption_model',
        f'{READ_BY_PREFILTERS} {_NUMA_FILTER}',
        _TRAIT_EFFECT,
    ),
    (KeyKind.FLAVOR, 'pci_passthrough:alias', _PCI_FILTER, 'devices by the names of pci_aliases'),
    (
        _FLAVOR_AND_IMAGE,
        'pci_numa_affinity_policy',
        f'{READ_BY_PREFILTERS} {_PCI_FILTER}',
        'devices near to the guest',
    ),
    (
        _FLAVOR_AND_IMAGE,
        'tpm_version tpm_model maxphysaddr_mode virtio_packed_ring',
        READ_BY_PREFILTERS,
        _TRAIT_EFFECT,
    ),
    (_FLAVOR_AND_IMAGE, 'sound_model ephemeral_encryption', READ_BY_PREFILTERS, _TRAIT_EFFECT),
    (_FLAVOR_AND_IMAGE, 'ephemeral_encryption_format', READ_BY_PREFILTERS, _TRAIT_EFFECT),
    (KeyKind.FLAVOR, 'hw:tpm_secret_security os:secure_boot', READ_BY_PREFILTERS, _TRAIT_EFFECT),
    (KeyKind.IMAGE, 'os_secure_boot', READ_BY_PREFILTERS, _TRAIT_EFFECT),
    (KeyKind.IMAGE, 'hw_firmware_type hw_firmware_stateless', READ_BY_PREFILTERS, _TRAIT_EFFECT),
    (
        KeyKind.FLAVOR,
        'accel:device_profile',
        '',
        'accelerators cannot be placed by this version; expected a class and a trait of them',
    ),
    (
        KeyKind.FLAVOR,
        'hw:maxphysaddr_bits capabilities:*',
        _CAPABILITIES_FILTER,
        'a fact of the host',
    ),
    (
        KeyKind.FLAVOR,
        'aggregate_instance_extra_specs:*',
        'AggregateInstanceExtraSpecsFilter',
        'metadata of an aggregate of the host',
    ),
    (KeyKind.FLAVOR, 'rule:*', _RULE_PLUGINS, 'a rule of the operator'),
    (
        KeyKind.IMAGE,
        'hw_architecture img_hv_type hw_vm_mode img_hv_requested_version hw_maxphysaddr_bits',
        'ImagePropertiesFilter',
        'what the hypervisor runs',
    ),
    (
        KeyKind.IMAGE,
        'hw_disk_bus hw_cdrom_bus hw_video_model',
        IMAGE_PREFILTER_OPTION,
        _TRAIT_EFFECT,
    ),
    (KeyKind.IMAGE, 'hw_vif_model hw_viommu_model', IMAGE_PREFILTER_OPTION, _TRAIT_EFFECT),
    (KeyKind.IMAGE, 'hw_emulation_architecture', IMAGE_PREFILTER_OPTION, _TRAIT_EFFECT),
    (KeyKind.IMAGE, 'architecture', '', 'is called hw_architecture today'),
    (KeyKind.IMAGE, 'hypervisor_type', '', 'is called img_hv_type today'),
    (KeyKind.IMAGE, 'hypervisor_version_requires', '', 'is called img_hv_requested_version today'),
    (KeyKind.IMAGE, 'vm_mode', '', 'is called hw_vm_mode today'),
    (
        KeyKind.FLAVOR,
        """
        hide_hypervisor_id hw:boot_menu hw:hide_hypervisor_id hw:locked_memory hw:pmu
        hw:redirected_usb_ports hw:serial_port_count hw:usb_model hw:vif_multiqueue_enabled
        hw:viommu_model hw:watchdog_action hw_rng:* hw_video:* hw_watchdog:* quota:* vmware:*
        """,
        READ_BY_HYPERVISOR,
        'the guest',
    ),
    (
        KeyKind.IMAGE,
        """
        hw_auto_disk_config hw_boot_menu hw_device_id hw_disk_type
        hw_ephemeral_encryption_secret_uuid hw_floppy_bus hw_input_bus hw_ipxe_boot
        hw_locked_memory hw_machine_type hw_pmu hw_pointer_model hw_qemu_guest_agent
        hw_redirected_usb_ports hw_rescue_bus hw_rescue_device hw_rng_model hw_scsi_model
        hw_serial_port_count hw_time_hpet hw_usb_model hw_video_ram hw_vif_multiqueue_enabled
        hw_watchdog_action img_bdm_v2 img_bittorrent img_block_device_mapping img_cache_in_nova
        img_compression_level img_config_drive img_hide_hypervisor_id img_linked_clone
        img_mappings img_owner_id img_root_device_name img_signature* img_use_agent img_version
        os_admin_user os_command_line os_distro os_require_quiesce
        os_skip_agent_inject_files_at_boot os_skip_agent_inject_ssh os_type
        """,
        READ_BY_HYPERVISOR,
        'the guest',
    ),
    (KeyKind.HINT, 'same_host', f'{READ_BY_REQUEST} SameHostFilter', 'uuids, as spec.same_host'),
    (
        KeyKind.HINT,
        'different_host',
        f'{READ_BY_REQUEST} DifferentHostFilter',
        'as spec.different_host',
    ),
    (KeyKind.HINT, 'group', READ_BY_REQUEST, 'a uuid, as spec.group.uuid'),
    (KeyKind.HINT, 'gantt_plan', READ_BY_REQUEST, 'a uuid of a planned group'),
    (KeyKind.HINT, 'gantt_member', READ_BY_REQUEST, 'a name, as spec.group.member'),
    (KeyKind.HINT, 'query', 'JsonFilter', 'facts of the host'),
    (KeyKind.HINT, 'build_near_host_ip cidr', 'SimpleCIDRAffinityFilter', 'addresses of hosts'),
    (KeyKind.HINT, 'rules', _RULE_PLUGINS, 'rules of the caller'),
    (KeyKind.HINT, 'location', 'LocationFilter', 'places that hosts are in'),
    (
        KeyKind.HINT,
        '_nova_check_type',
        '',
        "is for Nova's own conductor to say; expected spec.purpose",
    ),
    (KeyKind.AGGREGATE, 'availability_zone', 'AvailabilityZoneFilter', 'the zone of its hosts'),
    (
        KeyKind.AGGREGATE,
        'filter_tenant_id*',
        f'{READ_BY_PREFILTERS} AggregateMultiTenancyIsolation',
        'projects that it is kept for',
    ),
    (KeyKind.AGGREGATE, 'instance_type', 'AggregateTypeAffinityFilter', 'names of flavors'),
    (KeyKind.AGGREGATE, 'trait:*', READ_BY_PREFILTERS, 'kept for who requires the trait'),
    (KeyKind.AGGREGATE, 'rule:*', _RULE_PLUGINS, 'a rule of the operator for its hosts'),
    (KeyKind.AGGREGATE, 'cpu_allocation_ratio', 'AggregateCoreFilter', _LOWEST_VALUE_EFFECT),
    (KeyKind.AGGREGATE, 'ram_allocation_ratio', 'AggregateRamFilter', _LOWEST_VALUE_EFFECT),
    (KeyKind.AGGREGATE, 'disk_allocation_ratio', 'AggregateDiskFilter', _LOWEST_VALUE_EFFECT),
    (
        KeyKind.AGGREGATE,
        'max_instances_per_host',
        'AggregateNumInstancesFilter',
        _LOWEST_VALUE_EFFECT,
    ),
    (KeyKind.AGGREGATE, 'max_io_ops_per_host', 'AggregateIoOpsFilter', _LOWEST_VALUE_EFFECT),
    (KeyKind.AGGREGATE, 'build_failure_weight_multiplier', 'BuildFailureWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'class_weight_multiplier', 'ResourceClassWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'cpu_weight_multiplier', 'CPUWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'cross_cell_move_weight_multiplier', 'CrossCellWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'device_fit_weight_multiplier', 'DeviceFitWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'disk_weight_multiplier', 'DiskWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'group_policy_weight_multiplier', 'GroupPolicyWeigher', _OPTION_EFFECT),
    (
        KeyKind.AGGREGATE,
        'hypervisor_version_weight_multiplier',
        'HypervisorVersionWeigher',
        _OPTION_EFFECT,
    ),
    (KeyKind.AGGREGATE, 'image_props_weight_multiplier', 'ImagePropertiesWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'io_ops_weight_multiplier', 'IoOpsWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'load_weight_multiplier', 'LoadWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'metrics_weight_multiplier', 'MetricsWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'num_instances_weight_multiplier', 'NumInstancesWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'pci_weight_multiplier', 'PCIWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'pool_room_weight_multiplier', 'PoolRoomWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'ram_weight_multiplier', 'RAMWeigher', _OPTION_EFFECT),
    (KeyKind.AGGREGATE, 'rules_weight_multiplier', 'RulesWeigher', _OPTION_EFFECT),
    (
        KeyKind.AGGREGATE,
        'soft_affinity_weight_multiplier',
        'ServerGroupSoftAffinityWeigher',
        _OPTION_EFFECT,
    ),
    (
        KeyKind.AGGREGATE,
        'soft_anti_affinity_weight_multiplier',
        'ServerGroupSoftAntiAffinityWeigher',
        _OPTION_EFFECT,
    ),
)


def _rows() -> Iterator[KnownKey]:
    for of, names, readers, says in _KEY_TABLE:
        for name in names.split():
            if of == _FLAVOR_AND_IMAGE:
                yield KnownKey(KeyKind.FLAVOR, f'hw:{name}', tuple(readers.split()), says)
                yield KnownKey(KeyKind.IMAGE, f'hw_{name}', tuple(readers.split()), says)
            else:
                yield KnownKey(KeyKind(of), name, tuple(readers.split()), says)


KNOWN_KEYS = tuple(_rows())


@functools.cache
def _patterns(of: KeyKind) -> tuple[tuple[re.Pattern[str], KnownKey], ...]:
    return tuple(
        (_pattern(entry.name), entry)
        for entry in KNOWN_KEYS
        if entry.of is of and _is_family(entry)
    )


def _is_family(key: KnownKey) -> bool:
    return '*' in key.name or key.name.endswith('.N')


def _pattern(name: str) -> re.Pattern[str]:
    text = re.escape(name).replace(r'\*', '.*')
    return re.compile((f'{text[:-1]}[0-9]+' if name.endswith('.N') else text) + r'\Z', re.DOTALL)


@functools.cache
def _by_name(of: KeyKind) -> dict[str, KnownKey]:
    return {entry.name: entry for entry in KNOWN_KEYS if entry.of is of and not _is_family(entry)}


def known_key(of: KeyKind, key: str) -> KnownKey | None:
    """Return the entry of a key; None: it is free."""
    entry = _by_name(of).get(key)
    if entry is None:
        entry = next((family for pattern, family in _patterns(of) if pattern.match(key)), None)
    return entry


_REFUSED_KEYS = {
    of: {key.name: key for key in KNOWN_KEYS if key.of is of and not key.readers} for of in KeyKind
}


def refused_key(of: KeyKind, keys: Mapping[str, object]) -> KnownKey | None:
    """Return the entry of the first of these keys that no interface takes."""
    return next((entry for name, entry in _REFUSED_KEYS[of].items() if name in keys), None)


def note_without_effect(of: KeyKind, key: str, enabled: Container[str]) -> str:
    """Return a note for the writer of a key without effect; '' where there is none.

    :param enabled: names of filters and weighers
    """
    entry = known_key(of, key)
    if entry is None:
        names = [candidate.name.rstrip('*') for candidate in KNOWN_KEYS if candidate.of is of]
        meant = nearest_names(key, names)
        return f'nobody reads {key}{did_you_mean(meant)}' if meant else ''
    readers = [reader for reader in entry.readers if reader not in _NO_PLUGIN_READERS]
    if len(readers) < len(entry.readers) or any(reader in enabled for reader in readers):
        return ''
    return f'{key} is read by {" and ".join(readers)}, which is not enabled'
