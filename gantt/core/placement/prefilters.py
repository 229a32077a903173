# SPDX-License-Identifier: Apache-2.0
"""Additions of operators and images to a request before any host is evaluated.

Nova's request pre-filters, as far as they need no other service.  Each adds aggregates or traits,
which the filters for those then enforce; additions are reported, as the caller did not request
them.  A rebuild stays on its host: nothing is added to it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from gantt.core.filters.aggregates import TENANT_KEY, split_values
from gantt.core.filters.base import names_of
from gantt.core.filters.image_properties import canonical_name
from gantt.core.messages.keys.topology_settings import TopologySettings
from gantt.core.messages.request import Purpose, RequestSpec

if TYPE_CHECKING:
    from gantt.core.resources.host import Aggregate
    from gantt.core.table.host_table import HostTable


DISABLED_TRAIT = 'COMPUTE_STATUS_DISABLED'
TRAIT_KEY_PREFIX = 'trait:'

#: Property of an image -> (prefix of its trait, the values that have one).
IMAGE_TRAITS: dict[str, tuple[str, frozenset[str]]] = {
    'hw_disk_bus': (
        'COMPUTE_STORAGE_BUS_',
        frozenset({'FDC', 'IDE', 'LXC', 'SATA', 'SCSI', 'USB', 'VIRTIO', 'UML', 'XEN'}),
    ),
    'hw_video_model': (
        'COMPUTE_GRAPHICS_MODEL_',
        frozenset({'BOCHS', 'CIRRUS', 'GOP', 'NONE', 'QXL', 'VGA', 'VIRTIO', 'VMVGA', 'XEN'}),
    ),
    'hw_vif_model': (
        'COMPUTE_NET_VIF_MODEL_',
        frozenset(
            {
                'E1000',
                'E1000E',
                'IGB',
                'LAN9118',
                'NETFRONT',
                'NE2K_PCI',
                'PCNET',
                'RTL8139',
                'SPAPR_VLAN',
                'SRIOV',
                'VIRTIO',
                'VMXNET',
                'VMXNET3',
            }
        ),
    ),
    'hw_architecture': (
        'HW_ARCH_',
        frozenset(
            {
                'ALPHA',
                'ARMV6',
                'ARMV7',
                'ARMV7B',
                'AARCH64',
                'CRIS',
                'I686',
                'IA64',
                'LM32',
                'M68K',
                'MICROBLAZE',
                'MICROBLAZEEL',
                'MIPS',
                'MIPSEL',
                'MIPS64',
                'MIPS64EL',
                'OPENRISC',
                'PARISC',
                'PARISC64',
                'PPC',
                'PPCLE',
                'PPC64',
                'PPC64LE',
                'PPCEMB',
                'S390',
                'S390X',
                'SH4',
                'SH4EB',
                'SPARC',
                'SPARC64',
                'UNICORE32',
                'X86_64',
                'XTENSA',
                'XTENSAEB',
            }
        ),
    ),
    'hw_emulation_architecture': (
        'COMPUTE_ARCH_',
        frozenset({'AARCH64', 'PPC64LE', 'MIPSEL', 'S390X', 'RISCV64', 'X86_64'}),
    ),
    'hw_viommu_model': ('COMPUTE_VIOMMU_MODEL_', frozenset({'INTEL', 'SMMUV3', 'VIRTIO', 'AUTO'})),
}
IMAGE_TRAITS['hw_cdrom_bus'] = IMAGE_TRAITS['hw_disk_bus']
_DISK_FORMATS = frozenset(
    {'AKI', 'AMI', 'ARI', 'ISO', 'QCOW2', 'RAW', 'VDI', 'VHD', 'VHDX', 'VMDK', 'PLOOP'}
)
#: Values that have another name in traits.
_RENAMED_ARCHITECTURES = {'ARMV7L': 'ARMV7'}


class Prefilters(msgspec.Struct, frozen=True):
    """Switches of prefilters; names and defaults are Nova's.  The others are always on."""

    limit_tenants_to_placement_aggregate: bool = False
    placement_aggregate_required_for_tenants: bool = False
    query_placement_for_image_type_support: bool = False
    enable_isolated_aggregate_filtering: bool = False
    image_metadata_prefilter: bool = False

    @property
    def any_is_on(self) -> bool:
        """True where an optional pre-filter is enabled."""
        return (
            self.limit_tenants_to_placement_aggregate
            or self.query_placement_for_image_type_support
            or self.enable_isolated_aggregate_filtering
            or self.image_metadata_prefilter
        )


class _SpecDraft:
    """Additions so far.

    :ivar requested: traits that open aggregates reserved for requests with them
    """

    def __init__(self, spec: RequestSpec, table: 'HostTable', settings: Prefilters) -> None:
        self.spec = spec
        self.table = table
        self.settings = settings
        self.required = dict.fromkeys(spec.required_traits)
        self.forbidden = dict.fromkeys(spec.forbidden_traits)
        self.member_of = list(spec.member_of)
        self.outside = dict.fromkeys(spec.forbidden_aggregates)
        self.added: list[str] = []
        self.requested = frozenset(spec.required_traits)

    def require(self, trait: str, why: str) -> None:
        """Add a required trait, unless the request has it already."""
        if trait not in self.required:
            self.required[trait] = None
            self.added.append(f'trait {trait} is required: {why}')

    def spec_with_additions(self) -> RequestSpec:
        """Return the spec with all that was added to it."""
        return msgspec.structs.replace(
            self.spec,
            required_traits=list(self.required),
            forbidden_traits=list(self.forbidden),
            member_of=self.member_of,
            forbidden_aggregates=list(self.outside),
        )


def rewrite_spec(
    spec: RequestSpec, table: 'HostTable', settings: Prefilters
) -> tuple[RequestSpec, list[str]]:
    """Return the spec with the additions of aggregates, image and flavor, and a line for each."""
    if spec.purpose is Purpose.REBUILD:
        return spec, []
    has_settings = spec.flavor.extra_specs or spec.image.properties
    built_in = list(requested_traits(spec)) if has_settings else []
    extra = list(prefilter_traits(spec)) if has_settings else []
    # Usually there is nothing to add.
    knows_disabled = table.trait_codes.get(DISABLED_TRAIT) is not None
    if not (built_in or extra or settings.any_is_on or knows_disabled):
        return spec, []
    draft = _SpecDraft(spec, table, settings)
    for trait, why in built_in:
        draft.require(trait, why)
    draft.requested = frozenset(draft.required)
    if settings.limit_tenants_to_placement_aggregate:
        _restrict_tenant(draft)
    if settings.query_placement_for_image_type_support:
        _require_disk_format(draft)
    _forbid_disabled(draft)
    if settings.enable_isolated_aggregate_filtering:
        _forbid_isolated(draft)
    if settings.image_metadata_prefilter:
        _require_image_traits(draft)
    for trait, why in extra:
        draft.require(trait, why)
    changed = draft.added or len(draft.forbidden) != len(spec.forbidden_traits)
    return (draft.spec_with_additions(), draft.added) if changed else (spec, [])


def _restrict_tenant(draft: _SpecDraft) -> None:
    """Restrict a project that has aggregates of its own to these aggregates."""
    project = draft.spec.project_id
    aggregates = [
        a for a in draft.table.known_aggregates.values() if _is_aggregate_of_project(a, project)
    ]
    project_text = project or '(none)'
    if aggregates:
        draft.member_of.append([a.uuid for a in aggregates])
        names = names_of([a.name for a in aggregates])
        draft.added.append(f'only aggregates of project {project_text}: {names}')
    elif draft.settings.placement_aggregate_required_for_tenants:
        draft.member_of.append([])
        draft.added.append(f'no aggregate is of project {project_text}, and projects need one')


def _is_aggregate_of_project(aggregate: 'Aggregate', project: str | None) -> bool:
    return any(
        key.startswith(TENANT_KEY) and project in split_values(value)
        for key, value in aggregate.metadata.items()
    )


def _require_disk_format(draft: _SpecDraft) -> None:
    """Require a host that can start from the format of the image."""
    kind = draft.spec.image.disk_format.upper()
    if not kind or draft.spec.volume_backed:
        return
    if kind in _DISK_FORMATS:
        draft.require(f'COMPUTE_IMAGE_TYPE_{kind}', f'the image is {kind.lower()}')
    else:
        draft.added.append(f'image type {kind.lower()} has no trait and is not looked at')


def _forbid_disabled(draft: _SpecDraft) -> None:
    # Usually no host has the trait: then the request need not be rewritten.
    if draft.table.trait_codes.get(DISABLED_TRAIT) is not None:
        draft.forbidden[DISABLED_TRAIT] = None


def _forbid_isolated(draft: _SpecDraft) -> None:
    """Forbid aggregates that require a trait which the request does not have."""
    for aggregate in draft.table.known_aggregates.values():
        missing = [
            key.removeprefix(TRAIT_KEY_PREFIX)
            for key, value in aggregate.metadata.items()
            if key.startswith(TRAIT_KEY_PREFIX)
            and value == 'required'
            and key.removeprefix(TRAIT_KEY_PREFIX) not in draft.requested
        ]
        if missing and aggregate.uuid not in draft.outside:
            draft.outside[aggregate.uuid] = None
            draft.added.append(
                f'aggregate {aggregate.name} is kept for requests with trait {names_of(missing)}'
            )


def _require_image_traits(draft: _SpecDraft) -> None:
    """Require a host that supports the properties of the image."""
    for name, text in draft.spec.image.properties.items():
        if name not in IMAGE_TRAITS or not text:
            continue
        prefix, values = IMAGE_TRAITS[name]
        canonical_value = canonical_name(0, text) if name.endswith('architecture') else text
        value = canonical_value.replace('-', '_').upper()
        value = _RENAMED_ARCHITECTURES.get(value, value)
        if value in values:
            draft.require(prefix + value, f'the image has {name}={text}')
        else:
            draft.added.append(f'image property {name}={text} has no trait and is not looked at')


TraitsWithReasons = Iterator[tuple[str, str]]
_MAXPHYSADDR_MODES = {'emulate': 'EMULATED'}
_DEFAULT_TPM_MODEL, _DEFAULT_MEMORY_ENCRYPTION = 'tpm-tis', 'amd-sev'
_MEMORY_ENCRYPTION_TRAITS = {'intel-tdx': 'HW_CPU_X86_INTEL_TDX'}


def requested_traits(spec: RequestSpec) -> TraitsWithReasons:
    """Yield (trait, reason) of traits that Nova requests of Placement together with the amounts.

    An unknown value gives a trait that no host has: the request is then placed nowhere, rather than
    where its feature is missing.
    """
    settings = TopologySettings(spec.flavor.extra_specs, spec.image.properties)
    yield from _memory_encryption(settings)
    yield from _tpm(settings)
    if _flavor_or_image(settings, 'pci_numa_affinity_policy') == 'socket':
        yield 'COMPUTE_SOCKET_PCI_NUMA_AFFINITY', 'devices are to be on the socket of the guest'
    boot = settings.flavor.get('os:secure_boot') or settings.image.get('os_secure_boot')
    if boot == 'required':
        yield 'COMPUTE_SECURITY_UEFI_SECURE_BOOT', 'secure boot is required'
    mode = _flavor_or_image(settings, 'maxphysaddr_mode')
    if mode:
        trait = f'COMPUTE_ADDRESS_SPACE_{_MAXPHYSADDR_MODES.get(mode, _trait_spelling(mode))}'
        yield trait, f'physical addresses are to be had by {mode}'
    image = TopologySettings({}, settings.image)
    if image.of_image('firmware_type') == 'uefi' and image.is_on('firmware_stateless'):
        yield 'COMPUTE_SECURITY_STATELESS_FIRMWARE', 'the firmware is to be stateless'


def _memory_encryption(settings: TopologySettings) -> TraitsWithReasons:
    if settings.is_on('mem_encryption'):
        model = _flavor_or_image(settings, 'mem_encryption_model') or _DEFAULT_MEMORY_ENCRYPTION
        trait = _MEMORY_ENCRYPTION_TRAITS.get(model, f'HW_CPU_X86_{_trait_spelling(model)}')
        yield trait, f'memory is to be encrypted by {model}'


def _tpm(settings: TopologySettings) -> TraitsWithReasons:
    version = _flavor_or_image(settings, 'tpm_version')
    if version:
        model = _flavor_or_image(settings, 'tpm_model') or _DEFAULT_TPM_MODEL
        yield f'COMPUTE_SECURITY_{_trait_spelling(model)}', f'a TPM of model {model} is asked for'
        yield f'COMPUTE_SECURITY_TPM_{_trait_spelling(version)}', f'a TPM {version} is asked for'


def prefilter_traits(spec: RequestSpec) -> TraitsWithReasons:
    """Yield (trait, reason) of the other features that the request uses."""
    settings = TopologySettings(spec.flavor.extra_specs, spec.image.properties)
    if settings.is_on('virtio_packed_ring'):
        yield 'COMPUTE_NET_VIRTIO_PACKED', 'packed virtqueues are asked for'
    if settings.is_on('ephemeral_encryption'):
        yield 'COMPUTE_EPHEMERAL_ENCRYPTION', 'ephemeral disks are to be encrypted'
        kind = _flavor_or_image(settings, 'ephemeral_encryption_format')
        if kind:
            trait = f'COMPUTE_EPHEMERAL_ENCRYPTION_{_trait_spelling(kind)}'
            yield trait, f'ephemeral disks are to be encrypted as {kind.lower()}'
    if _flavor_or_image(settings, 'sound_model').lower() == 'virtio':
        yield 'COMPUTE_SOUND_MODEL_VIRTIO', 'a virtio sound device is asked for'
    if _flavor_or_image(settings, 'tpm_version'):
        security = settings.of_flavor('tpm_secret_security') or 'user'
        trait = f'COMPUTE_SECURITY_TPM_SECRET_SECURITY_{_trait_spelling(security)}'
        yield trait, f'the secret of the TPM is for the {security}'


def _flavor_or_image(settings: TopologySettings, name: str) -> str:
    """Return the value of the flavor, or else of the image; '' where neither has one."""
    return settings.of_flavor(name) or settings.of_image(name) or ''


def _trait_spelling(text: str) -> str:
    """Return a text in the spelling of traits."""
    return ''.join(character if character.isalnum() else '_' for character in text.upper())
