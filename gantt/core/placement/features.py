# SPDX-License-Identifier: Apache-2.0
"""What a guest makes use of and only some hosts have, as the traits of those hosts.

Nova knows two kinds: what it asks Placement for with the amounts, and what its
pre-filters add.  Aggregates that are kept for who asks for a trait look at the
first kind only.  A word that is unknown gives a trait that no host has: the
request is then placed nowhere, rather than where its feature is missing.
"""

from collections.abc import Iterator

from gantt.core.messages.keys.topology_settings import TopologySettings
from gantt.core.messages.request import RequestSpec

Traits = Iterator[tuple[str, str]]
_MAXPHYSADDR = {'emulate': 'EMULATED'}
_TPM_MODEL, _MEM_MODEL = 'tpm-tis', 'amd-sev'
_MEM_TRAITS = {'intel-tdx': 'HW_CPU_X86_INTEL_TDX'}


def built_in(spec: RequestSpec) -> Traits:
    """(trait, why) of what the guest's own hardware is made of."""
    settings = TopologySettings(spec.flavor.extra_specs, spec.image.properties)
    yield from _memory_encryption(settings)
    yield from _tpm(settings)
    if _either(settings, 'pci_numa_affinity_policy') == 'socket':
        yield 'COMPUTE_SOCKET_PCI_NUMA_AFFINITY', 'devices are to be on the socket of the guest'
    boot = settings.flavor.get('os:secure_boot') or settings.image.get('os_secure_boot')
    if boot == 'required':
        yield 'COMPUTE_SECURITY_UEFI_SECURE_BOOT', 'secure boot is required'
    mode = _either(settings, 'maxphysaddr_mode')
    if mode:
        trait = f'COMPUTE_ADDRESS_SPACE_{_MAXPHYSADDR.get(mode, _word(mode))}'
        yield trait, f'physical addresses are to be had by {mode}'
    image = TopologySettings({}, settings.image)
    if image.of_image('firmware_type') == 'uefi' and image.is_on('firmware_stateless'):
        yield 'COMPUTE_SECURITY_STATELESS_FIRMWARE', 'the firmware is to be stateless'


def _memory_encryption(settings: TopologySettings) -> Traits:
    if settings.is_on('mem_encryption'):
        model = _either(settings, 'mem_encryption_model') or _MEM_MODEL
        trait = _MEM_TRAITS.get(model, f'HW_CPU_X86_{_word(model)}')
        yield trait, f'memory is to be encrypted by {model}'


def _tpm(settings: TopologySettings) -> Traits:
    version = _either(settings, 'tpm_version')
    if version:
        model = _either(settings, 'tpm_model') or _TPM_MODEL
        yield f'COMPUTE_SECURITY_{_word(model)}', f'a TPM of model {model} is asked for'
        yield f'COMPUTE_SECURITY_TPM_{_word(version)}', f'a TPM {version} is asked for'


def extra_traits(spec: RequestSpec) -> Traits:
    """(trait, why) of what else it makes use of."""
    settings = TopologySettings(spec.flavor.extra_specs, spec.image.properties)
    if settings.is_on('virtio_packed_ring'):
        yield 'COMPUTE_NET_VIRTIO_PACKED', 'packed virtqueues are asked for'
    if settings.is_on('ephemeral_encryption'):
        yield 'COMPUTE_EPHEMERAL_ENCRYPTION', 'ephemeral disks are to be encrypted'
        kind = _either(settings, 'ephemeral_encryption_format')
        if kind:
            trait = f'COMPUTE_EPHEMERAL_ENCRYPTION_{_word(kind)}'
            yield trait, f'ephemeral disks are to be encrypted as {kind.lower()}'
    if _either(settings, 'sound_model').lower() == 'virtio':
        yield 'COMPUTE_SOUND_MODEL_VIRTIO', 'a virtio sound device is asked for'
    if _either(settings, 'tpm_version'):
        security = settings.of_flavor('tpm_secret_security') or 'user'
        trait = f'COMPUTE_SECURITY_TPM_SECRET_SECURITY_{_word(security)}'
        yield trait, f'the secret of the TPM is for the {security}'


def _either(settings: TopologySettings, name: str) -> str:
    """What the flavor says, or else the image; '': neither does."""
    return settings.of_flavor(name) or settings.of_image(name) or ''


def _word(text: str) -> str:
    """As traits are written."""
    return ''.join(one if one.isalnum() else '_' for one in text.upper())
