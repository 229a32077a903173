# SPDX-License-Identifier: Apache-2.0
"""Random requests against a cloud: what they ask for is mostly somewhere in it."""

import json
from typing import Any

from tests.oracle import clouds, machines
from tests.oracle.clouds import Dice

OPERATORS = (
    '=',
    '==',
    '!=',
    '>=',
    '<=',
    's==',
    's!=',
    's<',
    's<=',
    's>',
    's>=',
    '<in>',
    '<all-in>',
    '<or>',
)
#: Facts of a host that extra specs and queries name.
FACTS = (
    'vcpus_total',
    'vcpus_used',
    'free_ram_mb',
    'total_usable_ram_mb',
    'free_disk_mb',
    'total_usable_disk_gb',
    'disk_mb_used',
    'hypervisor_type',
    'hypervisor_version',
    'hypervisor_hostname',
    'host',
    'nodename',
    'uuid',
    'num_instances',
    'num_io_ops',
    'failed_builds',
    'cpu_allocation_ratio',
    'ram_allocation_ratio',
    'disk_allocation_ratio',
    'host_ip',
    'cell_uuid',
)
DEEP = (
    'cpu_info:arch',
    'cpu_info:model',
    'cpu_info:vendor',
    'cpu_info:topology:cores',
    'cpu_info:topology:threads',
    'cpu_info:features',
    'cpu_info:maxphysaddr:bits',
    'cpu_info:none',
    'stats:gold',
    'nested:a',
    'nested:a:b',
    'nested:list',
    'stats:num_instances',
)
#: Attributes of Nova's Python objects, which nobody means.
PYTHON = ('update', 'free_ram_mb:numerator', '__doc__', 'stats', 'supported_instances')
_QUERIED = tuple(name for name in FACTS if name != 'host_ip')
_ODD = ('host_ip', 'nothing', 'limits', 'cpu_info.arch', 'stats.a.b', '')
#: What a request may be about, and who has most to say on it.
THEMES: dict[str, tuple[str, ...]] = {
    'extra specs': ('ComputeCapabilitiesFilter', 'AggregateInstanceExtraSpecsFilter'),
    'aggregates': (
        'AggregateInstanceExtraSpecsFilter',
        'AggregateTypeAffinityFilter',
        'AggregateMultiTenancyIsolation',
        'AggregateNumInstancesFilter',
        'AggregateIoOpsFilter',
    ),
    'image': (
        'ImagePropertiesFilter',
        'AggregateImagePropertiesIsolation',
        'IsolatedHostsFilter',
        'ImagePropertiesWeigher',
    ),
    'hints': ('DifferentHostFilter', 'SameHostFilter', 'SimpleCIDRAffinityFilter'),
    'query': ('JsonFilter',),
    'group': (
        'ServerGroupAntiAffinityFilter',
        'ServerGroupAffinityFilter',
        'ServerGroupSoftAffinityWeigher',
        'ServerGroupSoftAntiAffinityWeigher',
    ),
    'state': (
        'ComputeFilter',
        'NumInstancesFilter',
        'IoOpsFilter',
        'MetricsFilter',
        'AllHostsFilter',
        'MetricsWeigher',
        'IoOpsWeigher',
        'NumInstancesWeigher',
        'BuildFailureWeigher',
        'HypervisorVersionWeigher',
        'CrossCellWeigher',
    ),
    'room': ('RAMWeigher', 'CPUWeigher', 'DiskWeigher', 'PCIWeigher'),
    'numa': ('NUMATopologyFilter', 'PciPassthroughFilter'),
    'devices': ('NUMATopologyFilter', 'PciPassthroughFilter', 'PCIWeigher'),
    'numa and devices': ('NUMATopologyFilter', 'PciPassthroughFilter'),
}
EVERYBODY = sorted({name for names in THEMES.values() for name in names})
#: The costly two, which are asked of requests that concern them, and of a few others.
_INSIDE = {'NUMATopologyFilter', 'PciPassthroughFilter'}
_COMMON = [theme for theme in THEMES if theme not in ('numa', 'devices', 'numa and devices')]


def a_wish(dice: Dice, cloud: dict[str, Any]) -> dict[str, Any]:
    """One request; ``theme`` says what it is mostly about."""
    theme = dice.choice([*_COMMON, 'extra specs', 'aggregates', 'image', 'query', 'hints'])
    plan = cloud['plan']
    if plan in ('numa', 'both') and dice.chance(0.5):
        theme = 'numa'
    if plan in ('pci', 'both') and dice.chance(0.5):
        theme = 'devices' if theme != 'numa' else 'numa and devices'
    vcpus, memory = dice.choice((1, 2, 2, 4, 8)), dice.choice((512, 1024, 2048, 4096))
    flavor = {
        'name': dice.choice(clouds.FLAVORS),
        'vcpus': vcpus,
        'memory_mb': memory,
        'root_gb': dice.choice((1, 20)),
        'ephemeral_gb': dice.choice((0, 5)),
        'swap': 0,
        'extra_specs': _specs(dice, cloud, theme, vcpus, memory),
    }
    return {
        'theme': theme,
        'ask': _asked(dice, theme),
        'consumer': dice.a_uuid(),
        'flavor': flavor,
        'image': _image(dice, theme),
        'is_bfv': dice.chance(0.1),
        'project_id': dice.choice((*clouds.PROJECTS, None)),
        'user_id': 'someone',
        'hints': _hints(dice, cloud, theme),
        'group': _group(dice, cloud, theme),
        'destination': _destination(dice, theme),
        'ports': _ports(dice, theme),
        'port_policy': dice.choice((None, None, *machines.NUMA_POLICIES)),
        'network': _network(dice, theme),
    }


def _ports(dice: Dice, theme: str) -> list[dict[str, str | None]]:
    if 'devices' not in theme or dice.chance(0.5):
        return []
    return [machines.port(dice) for _ in range(dice.choice((1, 1, 2)))]


def _network(dice: Dice, theme: str) -> dict[str, Any] | None:
    if 'numa' not in theme or dice.chance(0.5):
        return None
    return machines.networks(dice, 0.5, 0.3)


def _asked(dice: Dice, theme: str) -> list[str]:
    """Those with most to say, and a few others, who should say nothing."""
    others = {*dice.sample(EVERYBODY, 5)} - _INSIDE
    return sorted({*THEMES[theme], *others, *(_INSIDE if dice.chance(0.05) else ())})


def _specs(
    dice: Dice, cloud: dict[str, Any], theme: str, vcpus: int, memory: int
) -> dict[str, str]:
    specs: dict[str, str] = {}
    if theme == 'extra specs':
        for _ in range(dice.randint(1, 2)):
            key, value = _capability(dice, cloud)
            specs[key] = value
    if theme == 'aggregates':
        for _ in range(dice.choice((1, 1, 1, 2))):
            key, value = _metadata(dice, cloud)
            specs[key] = value
    if 'numa' in theme:
        specs |= machines.numa_specs(dice, vcpus, memory)
    if 'devices' in theme and dice.chance(0.8):
        specs |= machines.pci_specs(dice)
    if dice.chance(0.05):
        specs[dice.choice(('trait:HW_CPU_X86_AVX', 'foo:bar', 'unknown'))] = 'required'
    if dice.chance(0.03):
        specs['hw:maxphysaddr_bits'] = dice.choice(('40', '46', '52'))
    return specs


def _value_at(host: dict[str, Any], key: str) -> str:
    """About what a host has there, as text."""
    names = {
        'vcpus_total': 'vcpus',
        'total_usable_ram_mb': 'memory_mb',
        'nodename': 'hypervisor_hostname',
        'total_usable_disk_gb': 'local_gb',
        'cell_uuid': 'cell',
    }
    if key in ('num_instances', 'failed_builds'):
        return str(host['stats'][key])
    if key == 'num_io_ops':
        return host['stats']['io_workload']
    if key in ('free_disk_mb', 'disk_mb_used'):
        return str(1024 * host['free_disk_gb' if key == 'free_disk_mb' else 'local_gb_used'])
    if key.startswith('cpu_info:'):
        return _in_cpu_info(host, key.split(':')[1:])
    if names.get(key, key) in host:
        return str(host[names.get(key, key)])
    return str(host['stats'].get(key.split(':')[0]))


def _in_cpu_info(host: dict[str, Any], path: list[str]) -> str:
    try:
        value = json.loads(host['cpu_info'])
        for part in path:
            value = value[part]
    except (ValueError, LookupError, TypeError):
        return '46'
    return str(value)


def _capability(dice: Dice, cloud: dict[str, Any]) -> tuple[str, str]:
    host = dice.choice(cloud['hosts'])
    kind = dice.random()
    if kind < 0.4:
        key = dice.choice(FACTS)
    elif kind < 0.7:
        key = dice.choice(list(clouds.STATS))
    elif kind < 0.97:
        key = dice.choice(DEEP)
    else:
        key = dice.choice(PYTHON)
    prefix = 'capabilities:' if ':' in key or dice.chance(0.7) else ''
    if dice.chance(0.03):
        prefix = dice.choice(('Capabilities:', 'capabilities: ', 'other:'))
    return prefix + key, _requirement(dice, _value_at(host, key))


def _metadata(dice: Dice, cloud: dict[str, Any]) -> tuple[str, str]:
    pairs = [pair for a in cloud['aggregates'] for pair in a['metadata'].items()]
    if not pairs or dice.chance(0.1):
        return dice.choice(('tier', 'speed', 'nobody_has_it')), 'gold'
    key, value = dice.choice(pairs)
    word = dice.choice([x.strip() for x in value.split(',')])
    prefix = 'aggregate_instance_extra_specs:' if dice.chance(0.6) else ''
    return prefix + key, _requirement(dice, word)


def _requirement(dice: Dice, value: str) -> str:
    """Equality, or an operator with operands around ``value``."""
    if dice.chance(0.35):
        return dice.choice((value, value, value, value, f' {value}', f'{value} ', 'gold', ''))
    operator = dice.choice(OPERATORS)
    try:
        near = [value, str(int(value) + 1), str(int(value) - 1), '0', '1_000', '1e3']
    except ValueError:
        near = [value, value[:2], value.upper(), 'gold', '5']
    operand = dice.choice(near)
    if operator == '<or>':
        return dice.choice(
            (
                f'<or> {operand} <or> {dice.choice(near)}',
                f'<or> {operand}',
                f'<or> x {operand} y',
                f'<or> x <or> {operand}',
                '<or>',
            )
        )
    if operator == '<all-in>':
        return dice.choice((f'<all-in> {operand}', '<all-in> avx pge', f'<all-in> {operand} x'))
    text = dice.choice((f'{operator} {operand}',) * 8 + (operator, f'{operator}{operand}'))
    return text if dice.chance(0.9) else f'{text} 99'


def _image(dice: Dice, theme: str) -> dict[str, Any] | None:
    if dice.chance(0.04) and 'numa' not in theme:
        return None
    properties = clouds.an_image(dice, 3 if theme == 'image' else 1)
    if dice.chance(0.02):
        properties['hw_maxphysaddr_bits'] = '46'
    if 'numa' in theme and dice.chance(0.1):
        properties['hw_numa_nodes'] = '2'
    image: dict[str, Any] = {'properties': properties}
    if dice.chance(0.9):
        image['id'] = dice.choice(clouds.IMAGES)
    return image


def _hints(dice: Dice, cloud: dict[str, Any], theme: str) -> dict[str, list[str]] | None:
    hints: dict[str, list[str]] = {}
    guests = [g['uuid'] for host in cloud['hosts'] for g in host['guests']] + [dice.a_uuid()]
    if theme == 'hints':
        for name in dice.some(('different_host', 'same_host'), 2):
            hints[name] = dice.sample(guests, min(len(guests), dice.choice((0, 1, 1, 2, 3))))
        if dice.chance(0.5):
            hints |= _near(dice)
        if dice.chance(0.1):
            hints['reservation'] = ['something']
    if theme == 'query':
        hints['query'] = [json.dumps(_query(dice, cloud, dice.randint(0, 2)))]
        if dice.chance(0.05):
            hints['query'] = [dice.choice(('["=", "$host"', 'nothing', '""', '{}', '[]', 'null'))]
    if theme in ('state', 'image') and dice.chance(0.15):
        hints['_nova_check_type'] = ['rebuild']
    if not hints and dice.chance(0.01):
        return None
    return hints


def _near(dice: Dice) -> dict[str, list[str]]:
    address = dice.choice(('10.0.0.1', '10.0.0.20', '10.0.1.130', '192.168.0.1'))
    hints = {'build_near_host_ip': [address]}
    if dice.chance(0.7):
        hints['cidr'] = [dice.choice(('/24', '/28', '/16', '/32', '/0', '6', '', '/255.255.255.0'))]
    if dice.chance(0.05):
        hints = {'build_near_host_ip': [dice.choice(('here', '10.0.0.300', ''))]}
    return hints


def _query(dice: Dice, cloud: dict[str, Any], depth: int) -> Any:
    if depth:
        inside = [_query(dice, cloud, depth - 1) for _ in range(dice.randint(1, 3))]
        return [dice.choice(('and', 'or', 'not')), *inside]
    host = dice.choice(cloud['hosts'])
    keys = [*_QUERIED, *(f'stats.{name}' for name in host['stats'])]
    key = dice.choice(keys) if dice.chance(0.95) else dice.choice(_ODD)
    text = _value_at(host, key.removeprefix('stats.'))
    value: Any = text
    if not key.startswith('stats.') and text.lstrip('-').isdigit():
        value = int(text) + dice.choice((-1, 0, 0, 1))
    elif key.endswith('_ratio'):
        value = float(text)
    values = [value]
    if dice.chance(0.05):
        values.append(dice.choice((value, 5, 'x', None, '', True, 2.5)))
    if dice.chance(0.05):
        values = []
    operator = dice.choice(('=', '<', '>', 'in', '<=', '>='))
    if dice.chance(0.01):
        operator = dice.choice(('!=', 'xor', 'AND'))
    return [operator, f'${key}', *values]


def _group(dice: Dice, cloud: dict[str, Any], theme: str) -> dict[str, Any] | None:
    if theme != 'group' and dice.chance(0.95):
        return None
    return dict(dice.choice(cloud['groups']))


def _destination(dice: Dice, theme: str) -> dict[str, Any] | None:
    if theme != 'state' or dice.chance(0.5):
        return None
    return {
        'cell': dice.choice((None, *clouds.CELLS)),
        'allow_cross_cell_move': dice.chance(0.7),
    }
