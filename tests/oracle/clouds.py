# SPDX-License-Identifier: Apache-2.0
"""Random clouds: hosts, guests, aggregates, groups and options, as plain data.

Values come from small palettes, so that what a request asks for is found on
some hosts and not on others.
"""

import random
import uuid
from typing import Any

from tests.oracle import machines

ARCHITECTURES = ('x86_64', 'aarch64', 'ppc64le', 'i686')
HYPERVISORS = ('QEMU', 'VMware vCenter Server', 'ironic', 'hyperv')
SUPPORTED = (
    ['x86_64', 'kvm', 'hvm'],
    ['x86_64', 'qemu', 'hvm'],
    ['i686', 'kvm', 'hvm'],
    ['aarch64', 'kvm', 'hvm'],
    ['x86_64', 'xen', 'xen'],
    ['x86_64', 'vmware', 'hvm'],
    ['ppc64le', 'kvm', 'hvm'],
    ['x86_64', 'baremetal', 'hvm'],
)
PROJECTS = ('red', 'green', 'blue')
FLAVORS = ('m1.small', 'm1.large', 'gold', 'm1.small ', 'a,b')
IMAGES = (
    '00000000-0000-4000-8000-0000000000a1',
    '00000000-0000-4000-8000-0000000000a2',
    '00000000-0000-4000-8000-0000000000a3',
)
METRICS = ('cpu.percent', 'cpu.user.percent', 'cpu.idle.time', 'cpu.frequency', 'numa.membw.max')
CELLS = ('00000000-0000-4000-8000-0000000000c1', '00000000-0000-4000-8000-0000000000c2')
POLICIES = ('anti-affinity', 'affinity', 'soft-affinity', 'soft-anti-affinity')
#: Numbers as text, good and bad.
NUMBERS = (
    '0',
    '1',
    '2',
    '3',
    '4',
    '5',
    '8',
    '10',
    '50',
    '-1',
    ' 5 ',
    '1_0',
    '5.0',
    '2.5',
    '1e1',
    'inf',
    'nan',
    '',
    'many',
    '5,7',
    '0x10',
    '٣',
)
#: Multipliers of weighers that an aggregate may set.
MULTIPLIERS = (
    'ram_weight_multiplier',
    'cpu_weight_multiplier',
    'disk_weight_multiplier',
    'io_ops_weight_multiplier',
    'num_instances_weight_multiplier',
    'pci_weight_multiplier',
    'hypervisor_version_weight_multiplier',
    'soft_affinity_weight_multiplier',
    'soft_anti_affinity_weight_multiplier',
    'build_failure_weight_multiplier',
    'cross_cell_move_weight_multiplier',
    'metrics_weight_multiplier',
    'image_props_weight_multiplier',
)
#: Values that image properties and the metadata that isolates them share.
IMAGE_VALUES: dict[str, tuple[Any, ...]] = {
    'hw_architecture': ('x86_64', 'aarch64', 'ppc64le', 'i686'),
    'img_hv_type': ('kvm', 'qemu', 'xen', 'vmware', 'baremetal'),
    'hw_vm_mode': ('hvm', 'xen', 'exe'),
    'img_hv_requested_version': (
        *('>=2.6.0', '<2.5', '>=2.0,<3.0', '==2.11.1', '>= 1.0.0', '>8.1.0rc1', '<2.11.1.dev2'),
        *('>=v2.6', '>=2.6.0.post1', '>2.6-1', '==2.11.1+local', '>=1!2.5', '<=8.1.0a1'),
        *('>=2.6.0.0.0.0.0.0.0', '>=0000000002.6'),
    ),
    'os_distro': ('ubuntu', 'fedora', 'windows'),
    'os_type': ('linux', 'windows'),
    'hw_disk_bus': ('virtio', 'scsi', 'ide'),
    'hw_video_model': ('virtio', 'vga', 'qxl'),
    'hw_qemu_guest_agent': ('true', 'yes', 'no', 'false'),
    'os_require_quiesce': ('true', 'no'),
    'hw_cpu_cores': ('1', '2', '4'),
    'hw_boot_menu': ('true', 'false', '1'),
    'img_mappings': (),
}
#: The rest of what operators write into aggregates.
METADATA: dict[str, tuple[str, ...]] = {
    'ssd': ('true', 'false', 'True', ' true '),
    'tier': ('gold', 'silver', 'gold,silver', 'bronze, gold', ' gold', '', ',', 'gold silver'),
    'speed': ('1', '5', '10', '5.0', '10,20', 'fast', '1e1'),
    'cpu_gen': ('skylake', 'haswell', 'sky'),
    'instance_type': ('m1.small', 'm1.large, gold', 'm1.small,m1.large', '', ' gold ', 'a,b'),
    'filter_tenant_id': ('red', 'red, green', '', 'blue,', 'nobody'),
    'filter_tenant_id2': ('green', 'blue', ' red '),
    'filter_tenant_ids_of_old': ('red', 'green,blue'),
    'availability_zone': ('az1', 'az2'),
    'architecture': ('x86_64', 'aarch64'),
    'pinned': ('true', 'false'),
}
#: What a driver puts into stats: all text.
STATS: dict[str, tuple[str | None, ...]] = {
    'gold': ('true', 'false', '1', '7', ''),
    'gpu_model': ('A100', 'H100', 'a100 pcie', '[1, 2]'),
    'nested': ('{"a": {"b": "3"}, "list": [1, "x"]}', '{"a": 1}', 'broken {', 'null', '[]'),
    'power': ('100', '250', '2.5', '2.50', '100.0', '-0', '007', '1_000', 'high'),
    'vcpus_total': ('1', '99'),
    'nothing': (None,),
    'proc_count': ('3', '30'),
}


class Dice(random.Random):
    """Random choices that read well."""

    def chance(self, share: float) -> bool:
        return self.random() < share

    def some(self, items: Any, most: int) -> list[Any]:
        """Up to ``most`` different ones."""
        items = list(items)
        return self.sample(items, self.randint(0, min(most, len(items))))

    def a_uuid(self) -> str:
        return str(uuid.UUID(int=self.getrandbits(128), version=4))


def a_cloud(dice: Dice) -> dict[str, Any]:
    """Three to six hosts and what is around them."""
    count = dice.randint(3, 6)
    plan = dice.choice(('plain', 'plain', 'numa', 'pci', 'both'))
    keys = dice.sample(sorted(STATS), 4)
    hosts = [_host(dice, number, plan, keys) for number in range(count)]
    guests = [guest['uuid'] for host in hosts for guest in host['guests']]
    return {
        'plan': plan,
        'hosts': hosts,
        'aggregates': _aggregates(dice, hosts),
        'groups': [_group(dice, guests, hosts) for _ in range(2)],
        'options': _options(dice, hosts),
    }


def _host(dice: Dice, number: int, plan: str, keys: list[str]) -> dict[str, Any]:
    name = f'{dice.choice(("cmp", "CMP", "node"))}-{number}'
    vcpus, memory = dice.choice((4, 8, 16, 64)), dice.choice((4096, 16384, 65536))
    disk = dice.choice((100, 500, 2000))
    used = {
        'vcpus': dice.choice((0, 1, vcpus // 2, vcpus, 2 * vcpus)),
        'memory': dice.choice((512, memory // 2, memory, memory)),
        'disk': dice.choice((0, disk // 3, disk)),
    }
    guests = [_guest(dice) for _ in range(dice.choice((0, 0, 1, 2, 3, 6)))]
    stats = {key: dice.choice(STATS[key]) for key in keys if dice.chance(0.85)}
    stats['num_instances'] = str(len(guests))
    stats['io_workload'] = str(dice.choice((0, 1, 2, 5, 7, 8, 9, 12)))
    stats['failed_builds'] = str(dice.choice((0, 0, 0, 1, 2, 5)))
    cells = machines.cells(dice) if plan in ('numa', 'both') and dice.chance(0.9) else None
    return {
        'host': name,
        'hypervisor_hostname': name if dice.chance(0.8) else f'{name}.example.org',
        'uuid': dice.a_uuid(),
        'cell': dice.choice(CELLS),
        'vcpus': vcpus,
        'vcpus_used': used['vcpus'],
        'memory_mb': memory,
        'memory_mb_used': used['memory'],
        'free_ram_mb': memory - used['memory'],
        'local_gb': disk,
        'local_gb_used': used['disk'],
        'free_disk_gb': disk - used['disk'],
        'disk_available_least': dice.choice((None, disk - used['disk'], disk // 4, disk)),
        'cpu_allocation_ratio': dice.choice((1.0, 4.0, 16.0, 1.5)),
        'ram_allocation_ratio': dice.choice((1.0, 1.0, 1.5)),
        'disk_allocation_ratio': dice.choice((1.0, 1.0, 2.0)),
        'hypervisor_type': dice.choice(HYPERVISORS),
        'hypervisor_version': dice.choice((0, 2005000, 2006000, 2011001, 8001000)),
        'host_ip': f'10.0.{dice.choice((0, 0, 1))}.{dice.choice((1, 16, 17, 130))}',
        'cpu_info': _cpu_info(dice),
        'supported': dice.some(SUPPORTED, 3),
        'stats': stats,
        'metrics': _metrics(dice),
        'numa': cells,
        'pci': machines.pools(dice, cells) if plan in ('pci', 'both') else [],
        'service': {
            'disabled': dice.chance(0.15),
            'last_seen_up': dice.choice((None, -300, -10, 0, 5, 59, 60, 61, 179, 180, 181, 3600)),
            'created_at': dice.choice((5, 3600)),
        },
        'guests': guests,
    }


def _cpu_info(dice: Dice) -> str:
    if dice.chance(0.1):
        return ''
    text = (
        '{"arch": "%s", "model": "%s", "vendor": "%s", "features": ["pge", "avx", "sse4.2"], '
        '"topology": {"cores": %d, "threads": %d, "sockets": 2}%s}'
    )
    return text % (
        dice.choice(ARCHITECTURES),
        dice.choice(('Nehalem', 'Broadwell', 'EPYC')),
        dice.choice(('Intel', 'AMD')),
        dice.choice((4, 8, 16)),
        dice.choice((1, 2)),
        dice.choice(('', '', ', "maxphysaddr": {"mode": "passthrough", "bits": 46}')),
    )


def _metrics(dice: Dice) -> list[dict[str, Any]] | None:
    if dice.chance(0.1):
        return None
    metrics = []
    for name in dice.some(METRICS, 4):
        metric = {'name': name, 'timestamp': '2026-01-01T00:00:00.000000', 'source': 'libvirt'}
        if name.startswith('numa.'):
            metric['numa_membw_values'] = {'0': 10, '1': 43}
        elif name.endswith('percent'):
            metric['value'] = dice.choice((0.0, 0.25, 0.29, 0.57, 0.5, 1.0))
        else:
            metric['value'] = dice.choice((0, 10, 250, 3200))
        metrics.append(metric)
    return metrics


def an_image(dice: Dice, most: int) -> dict[str, Any]:
    """Properties of an image."""
    names = dice.some([name for name, values in IMAGE_VALUES.items() if values], most)
    return {name: dice.choice(IMAGE_VALUES[name]) for name in names}


def _guest(dice: Dice) -> dict[str, Any]:
    # Claimed: placed by Gantt, which knows its group; else Nova alone knows it.
    return {'uuid': dice.a_uuid(), 'image': an_image(dice, 3), 'claimed': dice.chance(0.5)}


def _aggregates(dice: Dice, hosts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Up to four, which speak of the same few things."""
    keys = dice.sample(sorted(METADATA), 4)
    keys += dice.some(('max_instances_per_host', 'max_io_ops_per_host'), 2)
    keys += dice.some(MULTIPLIERS, 3) + dice.some(IMAGE_VALUES, 2)
    return [
        {
            'id': number + 1,
            'uuid': dice.a_uuid(),
            'name': f'aggregate {number}',
            'metadata': {key: _metadata(dice, key) for key in keys if dice.chance(0.6)},
            'hosts': [host['host'] for host in hosts if dice.chance(0.5)],
        }
        for number in range(dice.choice((0, 1, 2, 3, 4)))
    ]


def _metadata(dice: Dice, key: str) -> str:
    if key in METADATA:
        return dice.choice(METADATA[key])
    if key not in IMAGE_VALUES:
        return dice.choice(NUMBERS)
    if dice.chance(0.2):
        return dice.choice(('True', 'true', '1', ''))
    values = [str(value) for value in IMAGE_VALUES[key]] or ['x']
    chosen = dice.sample(values, dice.randint(1, min(2, len(values))))
    return dice.choice((',', ', ', ' ,')).join(chosen)


def _group(dice: Dice, guests: list[str], hosts: list[dict[str, Any]]) -> dict[str, Any]:
    members = dice.sample(guests, min(len(guests), dice.choice((0, 1, 2, 3, 4))))
    where = sorted({h['host'] for h in hosts for g in h['guests'] if g['uuid'] in members})
    rules = {'max_server_per_host': dice.choice('123')} if dice.chance(0.3) else {}
    policy = dice.choice(POLICIES)
    return {
        'uuid': dice.a_uuid(),
        'policy': policy,
        'rules': rules if policy == 'anti-affinity' else {},
        'members': members,
        'hosts': where,
    }


def _options(dice: Dice, hosts: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = [host['host'] for host in hosts]
    chosen: dict[str, Any] = {
        'max_io_ops_per_host': dice.choice((1, 5, 8, 9)),
        'max_instances_per_host': dice.choice((1, 2, 3, 50)),
        'isolated_hosts': dice.some(names, 2),
        'isolated_images': dice.some(IMAGES, 2),
        'restrict_isolated_hosts_to_isolated_images': dice.chance(0.7),
        'image_properties_default_architecture': dice.choice((None, None, 'x86_64', 'aarch64')),
        'image_props_weight_setting': dice.choice(
            ([], [], ['os_distro=2.0', 'hw_architecture=-1.0'], ['os_type=1'])
        ),
        'image_props_weight_multiplier': dice.choice((0.0, 1.0, 2.0, -1.0)),
    }
    for name in MULTIPLIERS:
        if dice.chance(0.3) and name not in MULTIPLIERS[-2:]:
            chosen[name] = dice.choice((0.0, 1.0, 2.5, 10.0))
            if name.split('_')[0] in ('ram', 'cpu', 'disk', 'io', 'num', 'hypervisor'):
                chosen[name] *= dice.choice((1, -1))
    return {
        'filter_scheduler': chosen,
        'metrics': {
            'weight_setting': dice.choice(
                (
                    [],
                    ['cpu.percent=1.0'],
                    ['cpu.percent=-1.0', 'cpu.idle.time=0.5'],
                    ['cpu.frequency=0.0'],
                    ['numa.membw.max=1.0'],
                    ['cpu.user.percent=2'],
                )
            ),
            'weight_multiplier': dice.choice((1.0, 1.0, 0.0, -2.0)),
            'required': dice.chance(0.6),
            'weight_of_unavailable': dice.choice((-10000.0, -5.0)),
        },
        'DEFAULT': {'service_down_time': dice.choice((60, 180))},
        'pci': {'alias': machines.aliases(dice)},
    }
