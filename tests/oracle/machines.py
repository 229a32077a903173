# SPDX-License-Identifier: Apache-2.0
"""The insides of random hosts: NUMA cells, pages, and pools of devices."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.oracle.clouds import Dice

KINDS = ('type-PCI', 'type-PF', 'type-VF')
#: vendor, product and kind: what aliases and pools are made of.
DEVICES = (
    ('8086', '10ed', 'type-VF'),
    ('8086', '10ed', 'type-VF'),
    ('8086', '1520', 'type-PF'),
    ('10de', '1db4', 'type-PCI'),
    ('10de', '1db4', 'type-PF'),
)
PHYSNETS = ('physnet0', 'physnet1')
NUMA_POLICIES = ('legacy', 'preferred', 'required', 'socket')


def cells(dice: 'Dice') -> list[dict[str, Any]]:
    """One to four cells; cores shared, dedicated or both, with or without threads."""
    count, cores = dice.choice((1, 2, 2, 4)), dice.choice((2, 4, 4, 8))
    threads = dice.choice((1, 2, 2))
    style = dice.choice(('shared', 'dedicated', 'both', 'split'))
    memory = dice.choice((2048, 4096, 8192))
    sockets = dice.chance(0.7)
    laid_out = []
    for number in range(count):
        first = number * cores
        cpus = list(range(first, first + cores))
        shared, dedicated = _sets(style, cpus)
        pinned = dice.sample(dedicated, dice.randint(0, len(dedicated))) if dedicated else []
        siblings = [cpus[i : i + threads] for i in range(0, cores, threads)]
        laid_out.append(
            {
                'id': number,
                'cpuset': shared,
                'pcpuset': dedicated,
                'pinned_cpus': sorted(pinned) if dice.chance(0.4) else [],
                'cpu_usage': dice.choice((0, 0, 1, cores, 3 * cores)) if shared else 0,
                'memory': memory,
                'memory_usage': dice.choice((0, 0, 512, memory // 2, memory)),
                'mempages': _pages(dice, memory),
                'siblings': siblings,
                'socket': number // 2 if sockets else None,
                'network_metadata': None,
            }
        )
    if dice.chance(0.3):
        for cell in laid_out:
            if dice.chance(0.7):
                cell['network_metadata'] = networks(dice, 0.5, 0.3)
    return laid_out


def networks(dice: 'Dice', physical: float, tunneled: float) -> dict[str, Any]:
    """Networks of a cell, or of a guest."""
    return {
        'physnets': [name for name in PHYSNETS if dice.chance(physical)],
        'tunneled': dice.chance(tunneled),
    }


def port(dice: 'Dice') -> dict[str, str | None]:
    """What a port with a device asks of it, as the API writes it."""
    values: dict[str, str | None] = {
        'physical_network': dice.choice((None, *PHYSNETS, *PHYSNETS)),
        'remote_managed': dice.choice(('False', 'False', 'False', 'True')),
    }
    if dice.chance(0.2):
        values['dev_type'] = dice.choice(('type-PF', 'vdpa'))
    if dice.chance(0.2):
        values['trusted'] = dice.choice(('true', 'false', 'True'))
    return values


def _sets(style: str, cpus: list[int]) -> tuple[list[int], list[int]]:
    half = len(cpus) // 2
    return {
        'shared': (cpus, []),
        'dedicated': ([], cpus),
        'both': (cpus, cpus),
        'split': (cpus[:half], cpus[half:]),
    }[style]


def _pages(dice: 'Dice', memory: int) -> list[dict[str, int]]:
    large = dice.choice((0, 256, 512, 1024))
    giant = dice.choice((0, 0, 1))
    small = max(0, memory - 2 * large - 1024 * giant) * 256
    pages = [{'size_kb': 4, 'total': small, 'used': dice.choice((0, 0, small // 2)), 'reserved': 0}]
    for size, total in ((2048, large), (1048576, giant)):
        if total:
            used = dice.choice((0, 0, total // 2, total))
            reserved = dice.choice((0, 0, (total - used) // 2))
            pages.append({'size_kb': size, 'total': total, 'used': used, 'reserved': reserved})
    return pages


def pools(dice: 'Dice', cells: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Pools of equal devices, some on a network."""
    offered = []
    for number in range(dice.randint(0, 5)):
        vendor, product, kind = dice.choice(DEVICES)
        tags = {'dev_type': kind, 'address': f'0000:{number:02x}:00.0'}
        if kind != 'type-PCI':
            tags['remote_managed'] = dice.choice(('false', 'false', 'true'))
            if dice.chance(0.6):
                tags['physical_network'] = dice.choice(PHYSNETS)
        if dice.chance(0.2):
            tags['trusted'] = dice.choice(('true', 'false'))
        node = dice.choice([None, *range(len(cells))]) if cells else dice.choice((None, None, 0))
        offered.append(
            {
                'vendor_id': vendor,
                'product_id': product,
                'numa_node': node,
                'tags': tags,
                'count': dice.choice((0, 1, 2, 4)),
            }
        )
    return offered


def aliases(dice: 'Dice') -> list[str]:
    """The option ``[pci] alias``: ``a``, ``b``, and ``c`` with alternatives; one of a few sets."""
    dice = type(dice)(dice.randint(0, 15))
    named = []
    for name in ('a', 'b'):
        vendor, product, kind = dice.choice(DEVICES)
        named.append(
            {
                'name': name,
                'vendor_id': vendor,
                'product_id': product,
                'device_type': kind,
                'numa_policy': dice.choice(NUMA_POLICIES),
            }
        )
    kind, policy = dice.choice(KINDS), dice.choice(NUMA_POLICIES)
    for vendor, product, _ in dice.sample(DEVICES, 2):
        named.append(
            {
                'name': 'c',
                'vendor_id': vendor,
                'product_id': product,
                'device_type': kind,
                'numa_policy': policy,
            }
        )
    return [json.dumps(alias) for alias in named]


def numa_specs(dice: 'Dice', vcpus: int, memory: int) -> dict[str, str]:
    """Extra specs that lay a guest out."""
    specs: dict[str, str] = {}
    policy = dice.choice((None, None, 'dedicated', 'dedicated', 'shared', 'mixed'))
    if policy:
        specs['hw:cpu_policy'] = policy
    if policy == 'mixed':
        specs['hw:cpu_dedicated_mask'] = dice.choice(('^0', '0', '1-3', '0-1'))
    if policy == 'dedicated':
        if dice.chance(0.5):
            specs['hw:cpu_thread_policy'] = dice.choice(('prefer', 'isolate', 'require'))
        if dice.chance(0.2):
            specs['hw:emulator_threads_policy'] = dice.choice(('isolate', 'share'))
        if dice.chance(0.15):
            specs['hw:cpu_realtime'] = 'yes'
            specs['hw:cpu_realtime_mask'] = '^0'
    nodes = dice.choice((0, 0, 1, 2, 2, 4))
    if nodes:
        specs['hw:numa_nodes'] = str(nodes)
        if nodes == 2 and vcpus >= 2 and dice.chance(0.3):
            specs['hw:numa_cpus.0'] = '0'
            specs['hw:numa_cpus.1'] = f'1-{vcpus - 1}' if vcpus > 2 else '1'
            specs['hw:numa_mem.0'] = str(memory // 4)
            specs['hw:numa_mem.1'] = str(memory - memory // 4)
    if dice.chance(0.5):
        specs['hw:mem_page_size'] = dice.choice(
            ('small', 'large', 'any', '2048', '1GB', '2MB', '4')
        )
    return specs


def pci_specs(dice: 'Dice') -> dict[str, str]:
    """Extra specs that ask for devices."""
    names = dice.sample('abc', dice.randint(1, 2))
    specs = {'pci_passthrough:alias': ','.join(f'{x}:{dice.choice((1, 1, 2))}' for x in names)}
    if dice.chance(0.2):
        specs['hw:pci_numa_affinity_policy'] = dice.choice(
            ('required', 'preferred', 'legacy', 'socket')
        )
    return specs
