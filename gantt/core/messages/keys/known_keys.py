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

from gantt.core.messages.near import did_you_mean, near


class KeyOf(enum.StrEnum):
    """Kind of object that has a key."""

    FLAVOR = 'extra spec'
    IMAGE = 'image property'
    HINT = 'hint'
    AGGREGATE = 'aggregate metadata'


#: Readers that are no filter and no weigher.
REQUEST, PREFILTERS, HYPERVISOR = 'request', 'pre-filters', 'hypervisor'
#: The option of a pre-filter that is off by default.
BY_OPTION = 'image_metadata_prefilter'
_NO_PLUGINS = (REQUEST, PREFILTERS, HYPERVISOR, BY_OPTION)


class KnownKey(NamedTuple):
    """A key, or a family of them.

    :ivar readers: filters and weighers by name, or those above; none: no interface takes it
    :ivar says: its effect, or what to use instead where it is refused
    """

    of: KeyOf
    name: str
    readers: tuple[str, ...]
    says: str

    @property
    def places(self) -> bool:
        """True where it affects placement, whatever the options."""
        return self.readers not in ((HYPERVISOR,), (BY_OPTION,))


_NUMA, _PCI = 'NUMATopologyFilter', 'PciPassthroughFilter'
_CAPABLE = 'ComputeCapabilitiesFilter'
_RULES = 'RulesFilter RulesWeigher'
_BOTH = 'both'
_TRAIT = 'a trait is required of the host'
_LEAST = 'a number; the least of a host counts'
_OPTION = 'in place of the option of that name'

#: Kind of object, names, readers, effect.  "both" is ``hw:NAME`` of a flavor
#: and ``hw_NAME`` of an image.  A key without readers is refused, with what to use instead.
_TABLE = (
    (KeyOf.FLAVOR, 'resources:*', REQUEST, 'an amount, as spec.resources'),
    (KeyOf.FLAVOR, 'trait:*', REQUEST, 'required or forbidden, as spec.required_traits'),
    (KeyOf.FLAVOR, 'resources*:* trait*:*', REQUEST, 'of a group, as spec.tree.groups'),
    (KeyOf.FLAVOR, 'group_policy', REQUEST, 'none or isolate, as spec.tree.group_policy'),
    (KeyOf.IMAGE, 'traits_required trait:*', REQUEST, 'as spec.required_traits'),
    (_BOTH, 'cpu_policy cpu_thread_policy', _NUMA, 'processors of its own'),
    (_BOTH, 'cpu_realtime_mask', _NUMA, 'processors for real time'),
    (KeyOf.FLAVOR, 'hw:cpu_dedicated_mask hw:cpu_realtime', _NUMA, 'processors of its own'),
    (KeyOf.FLAVOR, 'hw:emulator_threads_policy', _NUMA, 'a processor for the emulator'),
    (_BOTH, 'numa_nodes numa_cpus.N numa_mem.N', _NUMA, 'cells'),
    (_BOTH, 'mem_page_size', _NUMA, 'pages'),
    (_BOTH, 'cpu_sockets cpu_cores cpu_threads', _NUMA, 'the processors that the guest sees'),
    (_BOTH, 'cpu_max_sockets cpu_max_cores cpu_max_threads', _NUMA, 'bounds of these'),
    (KeyOf.FLAVOR, 'hw:pmem', f'{REQUEST} {_NUMA}', 'amounts are required of the host'),
    (_BOTH, 'mem_encryption', f'{REQUEST} {PREFILTERS} {_NUMA}', 'an amount and a trait'),
    (_BOTH, 'mem_encryption_model', f'{PREFILTERS} {_NUMA}', _TRAIT),
    (KeyOf.FLAVOR, 'pci_passthrough:alias', _PCI, 'devices by the names of pci_aliases'),
    (_BOTH, 'pci_numa_affinity_policy', f'{PREFILTERS} {_PCI}', 'devices near to the guest'),
    (_BOTH, 'tpm_version tpm_model maxphysaddr_mode virtio_packed_ring', PREFILTERS, _TRAIT),
    (_BOTH, 'sound_model ephemeral_encryption', PREFILTERS, _TRAIT),
    (_BOTH, 'ephemeral_encryption_format', PREFILTERS, _TRAIT),
    (KeyOf.FLAVOR, 'hw:tpm_secret_security os:secure_boot', PREFILTERS, _TRAIT),
    (KeyOf.IMAGE, 'os_secure_boot', PREFILTERS, _TRAIT),
    (KeyOf.IMAGE, 'hw_firmware_type hw_firmware_stateless', PREFILTERS, _TRAIT),
    (
        KeyOf.FLAVOR,
        'accel:device_profile',
        '',
        'accelerators cannot be placed by this version; expected a class and a trait of them',
    ),
    (KeyOf.FLAVOR, 'hw:maxphysaddr_bits capabilities:*', _CAPABLE, 'a fact of the host'),
    (
        KeyOf.FLAVOR,
        'aggregate_instance_extra_specs:*',
        'AggregateInstanceExtraSpecsFilter',
        'metadata of an aggregate of the host',
    ),
    (KeyOf.FLAVOR, 'rule:*', _RULES, 'a rule of the operator'),
    (
        KeyOf.IMAGE,
        'hw_architecture img_hv_type hw_vm_mode img_hv_requested_version hw_maxphysaddr_bits',
        'ImagePropertiesFilter',
        'what the hypervisor runs',
    ),
    (KeyOf.IMAGE, 'hw_disk_bus hw_cdrom_bus hw_video_model', BY_OPTION, _TRAIT),
    (KeyOf.IMAGE, 'hw_vif_model hw_viommu_model', BY_OPTION, _TRAIT),
    (KeyOf.IMAGE, 'hw_emulation_architecture', BY_OPTION, _TRAIT),
    (KeyOf.IMAGE, 'architecture', '', 'is called hw_architecture today'),
    (KeyOf.IMAGE, 'hypervisor_type', '', 'is called img_hv_type today'),
    (KeyOf.IMAGE, 'hypervisor_version_requires', '', 'is called img_hv_requested_version today'),
    (KeyOf.IMAGE, 'vm_mode', '', 'is called hw_vm_mode today'),
    (
        KeyOf.FLAVOR,
        """
        hide_hypervisor_id hw:boot_menu hw:hide_hypervisor_id hw:locked_memory hw:pmu
        hw:redirected_usb_ports hw:serial_port_count hw:usb_model hw:vif_multiqueue_enabled
        hw:viommu_model hw:watchdog_action hw_rng:* hw_video:* hw_watchdog:* quota:* vmware:*
        """,
        HYPERVISOR,
        'the guest',
    ),
    (
        KeyOf.IMAGE,
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
        HYPERVISOR,
        'the guest',
    ),
    (KeyOf.HINT, 'same_host', f'{REQUEST} SameHostFilter', 'uuids, as spec.same_host'),
    (KeyOf.HINT, 'different_host', f'{REQUEST} DifferentHostFilter', 'as spec.different_host'),
    (KeyOf.HINT, 'group', REQUEST, 'a uuid, as spec.group.uuid'),
    (KeyOf.HINT, 'gantt_member', REQUEST, 'a name, as spec.group.member'),
    (KeyOf.HINT, 'query', 'JsonFilter', 'facts of the host'),
    (KeyOf.HINT, 'build_near_host_ip cidr', 'SimpleCIDRAffinityFilter', 'addresses of hosts'),
    (KeyOf.HINT, 'rules', _RULES, 'rules of the caller'),
    (KeyOf.HINT, 'location', 'LocationFilter', 'places that hosts are in'),
    (
        KeyOf.HINT,
        '_nova_check_type',
        '',
        "is for Nova's own conductor to say; expected spec.purpose",
    ),
    (KeyOf.AGGREGATE, 'availability_zone', 'AvailabilityZoneFilter', 'the zone of its hosts'),
    (
        KeyOf.AGGREGATE,
        'filter_tenant_id*',
        f'{PREFILTERS} AggregateMultiTenancyIsolation',
        'projects that it is kept for',
    ),
    (KeyOf.AGGREGATE, 'instance_type', 'AggregateTypeAffinityFilter', 'names of flavors'),
    (KeyOf.AGGREGATE, 'trait:*', PREFILTERS, 'kept for who requires the trait'),
    (KeyOf.AGGREGATE, 'rule:*', _RULES, 'a rule of the operator for its hosts'),
    (KeyOf.AGGREGATE, 'cpu_allocation_ratio', 'AggregateCoreFilter', _LEAST),
    (KeyOf.AGGREGATE, 'ram_allocation_ratio', 'AggregateRamFilter', _LEAST),
    (KeyOf.AGGREGATE, 'disk_allocation_ratio', 'AggregateDiskFilter', _LEAST),
    (KeyOf.AGGREGATE, 'max_instances_per_host', 'AggregateNumInstancesFilter', _LEAST),
    (KeyOf.AGGREGATE, 'max_io_ops_per_host', 'AggregateIoOpsFilter', _LEAST),
    (KeyOf.AGGREGATE, 'build_failure_weight_multiplier', 'BuildFailureWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'class_weight_multiplier', 'ResourceClassWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'cpu_weight_multiplier', 'CPUWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'cross_cell_move_weight_multiplier', 'CrossCellWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'device_fit_weight_multiplier', 'DeviceFitWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'disk_weight_multiplier', 'DiskWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'group_policy_weight_multiplier', 'GroupPolicyWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'hypervisor_version_weight_multiplier', 'HypervisorVersionWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'image_props_weight_multiplier', 'ImagePropertiesWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'io_ops_weight_multiplier', 'IoOpsWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'load_weight_multiplier', 'LoadWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'metrics_weight_multiplier', 'MetricsWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'num_instances_weight_multiplier', 'NumInstancesWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'pci_weight_multiplier', 'PCIWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'pool_room_weight_multiplier', 'PoolRoomWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'ram_weight_multiplier', 'RAMWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'rules_weight_multiplier', 'RulesWeigher', _OPTION),
    (KeyOf.AGGREGATE, 'soft_affinity_weight_multiplier', 'ServerGroupSoftAffinityWeigher', _OPTION),
    (
        KeyOf.AGGREGATE,
        'soft_anti_affinity_weight_multiplier',
        'ServerGroupSoftAntiAffinityWeigher',
        _OPTION,
    ),
)


def _rows() -> Iterator[KnownKey]:
    for of, names, readers, says in _TABLE:
        for name in names.split():
            if of == _BOTH:
                yield KnownKey(KeyOf.FLAVOR, f'hw:{name}', tuple(readers.split()), says)
                yield KnownKey(KeyOf.IMAGE, f'hw_{name}', tuple(readers.split()), says)
            else:
                yield KnownKey(KeyOf(of), name, tuple(readers.split()), says)


KNOWN = tuple(_rows())


@functools.cache
def _patterns(of: KeyOf) -> tuple[tuple[re.Pattern[str], KnownKey], ...]:
    return tuple(
        (_pattern(entry.name), entry) for entry in KNOWN if entry.of is of and _is_family(entry)
    )


def _is_family(key: KnownKey) -> bool:
    return '*' in key.name or key.name.endswith('.N')


def _pattern(name: str) -> re.Pattern[str]:
    text = re.escape(name).replace(r'\*', '.*')
    return re.compile((f'{text[:-1]}[0-9]+' if name.endswith('.N') else text) + r'\Z', re.DOTALL)


@functools.cache
def _by_name(of: KeyOf) -> dict[str, KnownKey]:
    return {entry.name: entry for entry in KNOWN if entry.of is of and not _is_family(entry)}


def known(of: KeyOf, key: str) -> KnownKey | None:
    """Return the entry of a key; None: it is free."""
    entry = _by_name(of).get(key)
    if entry is None:
        entry = next((family for pattern, family in _patterns(of) if pattern.match(key)), None)
    return entry


_REFUSED = {
    of: {key.name: key for key in KNOWN if key.of is of and not key.readers} for of in KeyOf
}


def refused(of: KeyOf, keys: Mapping[str, object]) -> KnownKey | None:
    """Return the entry of the first of these keys that no interface takes."""
    return next((entry for name, entry in _REFUSED[of].items() if name in keys), None)


def note(of: KeyOf, key: str, enabled: Container[str]) -> str:
    """Return a note for the writer of a key without effect; '' where there is none.

    :param enabled: names of filters and weighers
    """
    entry = known(of, key)
    if entry is None:
        names = [candidate.name.rstrip('*') for candidate in KNOWN if candidate.of is of]
        meant = near(key, names)
        return f'nobody reads {key}{did_you_mean(meant)}' if meant else ''
    readers = [reader for reader in entry.readers if reader not in _NO_PLUGINS]
    if len(readers) < len(entry.readers) or any(reader in enabled for reader in readers):
        return ''
    return f'{key} is read by {" and ".join(readers)}, which is not enabled'
