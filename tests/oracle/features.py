# SPDX-License-Identifier: Apache-2.0
"""What random requests ask for besides: features, amounts by extra specs, and what images say.

Added to a request that is there, by dice of its own.
"""

from collections.abc import Callable
from typing import Any

from tests.oracle.clouds import Dice

TRAITS = ('HW_CPU_X86_AVX', 'COMPUTE_SECURITY_UEFI_SECURE_BOOT', 'HW_CPU_X86_AMD_SEV')
#: Extra specs of features, one lot each.
SPECS: tuple[dict[str, str], ...] = (
    {'os:secure_boot': 'required'},
    {'os:secure_boot': 'optional'},
    {'hw:maxphysaddr_mode': 'passthrough'},
    {'hw:maxphysaddr_mode': 'emulate'},
    {'hw:tpm_version': '1.2'},
    {'hw:tpm_version': '2.0', 'hw:tpm_model': 'tpm-crb'},
    {'hw:tpm_version': '2.0', 'hw:tpm_secret_security': 'deployment'},
    {'hw:tpm_model': 'tpm-tis'},
    {'hw:mem_encryption': 'true'},
    {'hw:mem_encryption': 'no'},
    {'hw:mem_encryption': 'on', 'hw:mem_encryption_model': 'amd-sev-es'},
    {'hw:pci_numa_affinity_policy': 'socket'},
    {'hw:virtio_packed_ring': 'True'},
    {'hw:ephemeral_encryption': 'true'},
    {'hw:ephemeral_encryption': 'yes', 'hw:ephemeral_encryption_format': 'luks'},
    {'hw:sound_model': 'virtio'},
    {'hw:sound_model': 'ich6'},
    {'resources:VCPU': '3'},
    {'resources:VCPU': '0'},
    {'resources:DISK_GB': '0'},
    {'resources:MEMORY_MB': '0', 'resources:CUSTOM_BARE': '1'},
    {'resources:VGPU': '2'},
    {'resources:PCPU': '0'},
    {'hw:pmem': '6GB,a-b, 6GB'},
    {'trait:HW_CPU_X86_AVX': 'required'},
    {'trait:HW_CPU_X86_AVX': 'forbidden'},
)
UEFI = {'hw_firmware_type': 'uefi'}
#: Properties of images of the same kind.
IMAGES: tuple[dict[str, str], ...] = (
    {'os_secure_boot': 'required'},
    {'hw_maxphysaddr_mode': 'emulate'},
    {'hw_firmware_stateless': 'true', **UEFI},
    {'hw_firmware_stateless': 'true'},
    {'hw_tpm_version': '2.0'},
    {'hw_tpm_version': '2.0', 'hw_tpm_model': 'tpm-crb'},
    {'hw_mem_encryption': 'true', **UEFI},
    {
        'hw_mem_encryption': 'true',
        'hw_mem_encryption_model': 'amd-sev-snp',
        'hw_firmware_stateless': 'true',
        **UEFI,
    },
    {
        'hw_mem_encryption': 'true',
        'hw_mem_encryption_model': 'intel-tdx',
        'hw_firmware_stateless': 'true',
        'hw_video_model': 'none',
        **UEFI,
    },
    {'hw_pci_numa_affinity_policy': 'socket'},
    {'hw_virtio_packed_ring': 'true'},
    {'hw_ephemeral_encryption': 'true', 'hw_ephemeral_encryption_format': 'plain'},
    {'hw_sound_model': 'virtio'},
    {'hw_vif_model': 'e1000'},
    {'hw_cdrom_bus': 'sata'},
    {'trait:HW_CPU_X86_AVX': 'required'},
)


def options(dice: Dice) -> dict[str, bool]:
    """Which of the pre-filters are on."""
    return {
        name: dice.chance(0.3)
        for name in (
            'limit_tenants_to_placement_aggregate',
            'query_placement_for_image_type_support',
            'enable_isolated_aggregate_filtering',
            'image_metadata_prefilter',
        )
    }


#: Settings of metrics that both sides weigh alike.
METRICS = (['cpu.frequency=1.0'], ['cpu.idle.time=-0.5', 'cpu.frequency=0.001'])


def metrics(dice: Dice, options: dict[str, Any]) -> None:
    """Some clouds weigh metrics that are no percentages."""
    if dice.chance(0.3):
        options['weight_setting'] = dice.choice(METRICS)


def aggregates(dice: Dice, made_before: list[dict[str, Any]]) -> None:
    """Some are kept for those who ask for a trait."""
    for aggregate in made_before:
        if dice.chance(0.2):
            value = dice.choice(('required', 'required', 'forbidden'))
            aggregate['metadata'][f'trait:{dice.choice(TRAITS)}'] = value


def add(dice: Dice, cloud: dict[str, Any], wish: dict[str, Any]) -> None:
    """Make ``wish`` ask for more; what lays a guest out stays what it was, or is replaced."""
    inside = 'numa' in wish['theme']
    if inside and dice.chance(0.4):
        dice.choice(FORMS)(dice, wish)
    elif not inside and 'devices' not in wish['theme']:
        if dice.chance(0.3):
            wish['flavor']['extra_specs'] |= dice.choice(SPECS)
        if dice.chance(0.15) and wish['image'] is not None:
            wish['image']['properties'] |= dice.choice(IMAGES)
            _boots_by_uefi(wish)
    zones = _zones(cloud)
    if zones and dice.chance(0.4):
        wish['availability_zone'] = dice.choice(zones)
    if wish['image'] is not None and dice.chance(0.3):
        wish['image']['disk_format'] = dice.choice(('raw', 'qcow2', 'iso', 'ploop', 'vmdk'))


def _zones(cloud: dict[str, Any]) -> list[str]:
    """Zones of the cloud; none where a host is in two, which Nova does not let happen."""
    by_host: dict[str, set[str]] = {}
    for aggregate in cloud['aggregates']:
        zone = aggregate['metadata'].get('availability_zone')
        for host in aggregate['hosts'] if zone else ():
            by_host.setdefault(host, set()).add(zone)
    if any(len(zones) > 1 for zones in by_host.values()):
        return []
    return sorted({zone for zones in by_host.values() for zone in zones})


def _boots_by_uefi(wish: dict[str, Any]) -> None:
    if wish['flavor']['extra_specs'].get('hw:mem_encryption') in ('true', 'on'):
        wish['image']['properties'] |= UEFI


def _without_policies(wish: dict[str, Any]) -> dict[str, str]:
    """The extra specs with all taken out that is said of processors."""
    specs = wish['flavor']['extra_specs']
    for key in [k for k in specs if k.startswith(('hw:cpu', 'hw:emulator'))]:
        del specs[key]
    return specs


def _by_amount(dice: Dice, wish: dict[str, Any]) -> None:
    apart = dice.chance(0.3)
    specs = _without_policies(wish)
    specs['resources:PCPU'] = str(wish['flavor']['vcpus'] + apart)
    if apart:
        specs['hw:emulator_threads_policy'] = 'isolate'


def _by_trait(dice: Dice, wish: dict[str, Any]) -> None:
    specs = _without_policies(wish)
    specs['hw:cpu_policy'] = 'dedicated'
    if dice.chance(0.3):
        wish['image']['properties']['trait:HW_CPU_HYPERTHREADING'] = 'required'
    else:
        specs['trait:HW_CPU_HYPERTHREADING'] = dice.choice(('required', 'forbidden'))


def _by_image(dice: Dice, wish: dict[str, Any]) -> None:
    """Policies of the image, with and without those of the flavor."""
    specs, image = _without_policies(wish), wish['image']['properties']
    if dice.chance(0.5):
        specs['hw:cpu_policy'] = 'dedicated'
    image['hw_cpu_policy'] = dice.choice(('dedicated', 'dedicated', 'shared'))
    if 'dedicated' in (specs.get('hw:cpu_policy'), image['hw_cpu_policy']):
        image['hw_cpu_thread_policy'] = dice.choice(('prefer', 'isolate', 'require'))
        if dice.chance(0.3):
            specs['hw:cpu_thread_policy'] = 'prefer'
        if dice.chance(0.3):
            image['hw_emulator_threads_policy'] = 'isolate'


def _cells_by_image(dice: Dice, wish: dict[str, Any]) -> None:
    specs, flavor = wish['flavor']['extra_specs'], wish['flavor']
    for key in [k for k in specs if k.startswith('hw:numa') or 'mask' in k or 'realtime' in k]:
        del specs[key]
    if specs.get('hw:cpu_policy') == 'mixed':
        specs['hw:cpu_policy'] = 'shared'
    flavor['vcpus'] = max(2, flavor['vcpus'])
    last, quarter = flavor['vcpus'] - 1, flavor['memory_mb'] // 4
    wish['image']['properties'] |= {
        'hw_numa_nodes': '2',
        'hw_numa_cpus.0': '0',
        'hw_numa_cpus.1': f'1-{last}' if last > 1 else '1',
        'hw_numa_mem.0': str(quarter),
        'hw_numa_mem.1': str(flavor['memory_mb'] - quarter),
    }


def _pages_by_image(dice: Dice, wish: dict[str, Any]) -> None:
    wish['flavor']['extra_specs']['hw:mem_page_size'] = dice.choice(('large', 'any'))
    size = dice.choice(('2048', '1GB', 'small', 'large', 'any', '2MB'))
    wish['image']['properties']['hw_mem_page_size'] = size


def _real_time(dice: Dice, wish: dict[str, Any]) -> None:
    specs, flavor = _without_policies(wish), wish['flavor']
    flavor['vcpus'] = max(4, flavor['vcpus'])
    specs['hw:cpu_policy'] = dice.choice(('dedicated', 'mixed'))
    specs['hw:cpu_realtime'] = dice.choice(('yes', 'true', '1'))
    specs['hw:cpu_realtime_mask'] = dice.choice(('^0', '0', '^0-1', '1-2', '^1,^2', '1,2'))
    if dice.chance(0.4):
        specs['hw:emulator_threads_policy'] = dice.choice(('isolate', 'share'))
        if dice.chance(0.3):
            del specs['hw:cpu_realtime_mask']
    if dice.chance(0.3):
        wish['image']['properties']['hw_cpu_realtime_mask'] = dice.choice(('^0', '1-2'))


def _mixed_apart(dice: Dice, wish: dict[str, Any]) -> None:
    wish['flavor']['vcpus'] = max(4, wish['flavor']['vcpus'])
    wish['flavor']['extra_specs'] = {
        'hw:cpu_policy': 'mixed',
        'hw:emulator_threads_policy': 'isolate',
        'hw:cpu_dedicated_mask': dice.choice(('0', '^0', '1-2', '^0-1')),
    }


def processors(dice: Dice, cloud: dict[str, Any], wishes: list[dict[str, Any]]) -> None:
    """Some hosts have cores of four threads, or of one and two; some emulators a processor."""
    for host in cloud['hosts']:
        kind = dice.choice((1, 1, 1, 2, 4))
        for cell in host['numa'] or ():
            cell['siblings'] = _cores(cell['siblings'], kind)
    for wish in wishes:
        specs = wish['flavor']['extra_specs']
        if specs.get('hw:cpu_policy') in ('dedicated', 'mixed') and dice.chance(0.3):
            specs['hw:emulator_threads_policy'] = 'isolate'


def _cores(pairs: list[list[int]], kind: int) -> list[list[int]]:
    if kind == 2:
        first, *others = pairs
        return [first, *([cpu] for pair in others for cpu in pair)]
    if kind == 4:
        return [sum(pairs[i : i + 2], []) for i in range(0, len(pairs), 2)]
    return pairs


def _persistent(dice: Dice, wish: dict[str, Any]) -> None:
    wish['flavor']['extra_specs']['hw:pmem'] = dice.choice(('6GB', '6GB,6GB', 'a b'))


FORMS: tuple[Callable[[Dice, dict[str, Any]], None], ...] = (
    _by_amount,
    _by_trait,
    _by_image,
    _cells_by_image,
    _pages_by_image,
    _real_time,
    _mixed_apart,
    _persistent,
)
