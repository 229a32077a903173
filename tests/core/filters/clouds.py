# SPDX-License-Identifier: Apache-2.0
"""Random hosts, aggregates and requests for Nova's filters, from a seed."""

import json
import random
from typing import Any

import msgspec

from gantt.core.messages.report import Hypervisor, ReportedMetric
from gantt.core.messages.request import Flavor, Image, RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Aggregate, HostChange, Placed
from gantt.core.table.host_table import HostTable
from tests.core.builders import NOW, a_host, an_id

CLASSES = ('VCPU', 'MEMORY_MB', 'DISK_GB')
PROJECTS = ('red', 'blue')
FLAVORS = ('small', 'large')
IMAGES = ('image-1', 'image-2')
NAMES = tuple(f'cmp-{n}' for n in range(1, 9))
KEYS = ('ssd', 'cpu', 'hypervisor_type', 'free_ram_mb', 'num_instances', 'cpu_arch', 'boot')
VALUES = ('true', 'yes', 'True', 'False', '', '4', '16', 'QEMU', 'a,b', ' x , y ', 'gold')
REQUIREMENTS = (
    'true',
    's== true',
    '>= 4',
    '<= 4',
    '= 2',
    '== 16',
    '!= 4',
    '<in> Q',
    '<in> aes',
    's!= true',
    '<all-in> aes avx',
    '<or> true <or> QEMU',
    '<or> a b c',
    '>= gold',
    '<or>',
    's< b',
    'QEMU',
    '>= 2000',
    '<in> a',
    '',
    '4',
)
SPEC_KEYS = (
    *KEYS,
    'hw:maxphysaddr_bits',
    'hw:cpu_policy',
    'capabilities:hypervisor_type',
    'capabilities:cpu_info:features',
    'capabilities:cpu_info:topology:cores',
    'cpu_info',
    'capabilities:stats:boot',
    'capabilities:boot',
    'capabilities:free_ram_mb',
    'cpu_arch',
    'capabilities:cpu_info:maxphysaddr:bits',
    'capabilities:nothing',
    'capabilities:',
    'capabilities:vcpus_used',
    'capabilities:service:disabled',
    'capabilities:host',
    'aggregate_instance_extra_specs:ssd',
    'aggregate_instance_extra_specs:a:b',
    'capabilities:json:a',
)
KINDS = (
    ['x86_64', 'kvm', 'hvm'],
    ['X86_64', 'xen', 'hvm'],
    ['i686', 'qemu', 'xen'],
    ['aarch64'],
    [],
)


def some(rng: random.Random, items: Any, least: int = 0, most: int = 3) -> list[Any]:
    return rng.sample(list(items), rng.randint(least, min(most, len(items))))


def a_hypervisor(rng: random.Random) -> Hypervisor:
    cpu_info = rng.choice(
        (
            '',
            '{"arch": "x86_64", "features": ["aes"]}',
            'not json',
            '[1]',
            {'arch': 'x86_64', 'features': ['aes', 'avx2'], 'topology': {'cores': 4}},
            {'features': ['aes', 'avx'], 'maxphysaddr': {'bits': 46}, 'topology': {'cores': '16'}},
            {'maxphysaddr': {'bits': '39'}},
            {'maxphysaddr': 5},
        )
    )
    return Hypervisor(
        type=rng.choice(('QEMU', 'ironic', '')),
        version=rng.choice((0, 2_010_000, 4_002_001, 2_005)),
        host_ip=rng.choice(('', '10.0.0.7', '10.0.1.7', 'fd00::7', '::ffff:10.0.0.9', 'no')),
        cpu_info=cpu_info,
        supported=some(rng, KINDS),
        stats=rng.choice(({}, {}, {'cpu_arch': 'x86_64', 'boot': 'uefi'}, {'json': '{"a": 4}'})),
    )


def metrics(rng: random.Random) -> dict[str, ReportedMetric]:
    names = ('stats.num_instances', 'stats.io_workload', 'cpu.percent', 'stats.boot', 'stats.ssd')
    return {
        name: ReportedMetric(
            value=rng.choice((0.0, 1.0, 4.0, 8.0, 0.5 if 'stats' not in name else 3.0))
        )
        for name in some(rng, names, most=5)
    }


def an_inventory(rng: random.Random) -> Inventory:
    total = rng.choice((0, 4, 16, 64))
    return Inventory(
        total=total,
        reserved=rng.choice((0, min(2, total))),
        allocation_ratio=rng.choice((1.0, 1.5, 4.0)),
    )


def an_aggregate(rng: random.Random, number: int) -> Aggregate:
    keys = (
        *KEYS,
        'filter_tenant_id',
        'filter_tenant_id_2',
        'instance_type',
        'hw_architecture',
        'img.secure',
        'max_instances_per_host',
        'max_io_ops_per_host',
        'ram_allocation_ratio',
        'cpu_allocation_ratio',
        'disk_allocation_ratio',
        'hw_rescue',
        'a:b',
    )
    special = {
        'filter_tenant_id': ('red', 'blue, red', ''),
        'filter_tenant_id_2': ('blue',),
        'instance_type': ('small', 'small, large', ''),
        'hw_architecture': ('x86_64', 'i686,x86_64'),
        'max_instances_per_host': ('2', ' 5 ', '5,7', '-1', 'x', '5.0', '9' * 30),
        'max_io_ops_per_host': ('1', '4', 'many'),
        'ram_allocation_ratio': ('0.5', '2', 'x', 'nan'),
        'cpu_allocation_ratio': ('1.0', '0.25', '-1'),
        'disk_allocation_ratio': ('1', 'inf'),
    }
    return Aggregate(
        id=number,
        uuid=an_id(number, 5),
        name=f'agg-{number}',
        hosts=some(rng, NAMES, most=8),
        metadata={k: rng.choice(special.get(k, VALUES)) for k in some(rng, keys, most=7)},
    )


def a_table(rng: random.Random) -> HostTable:
    """Return up to eight hosts, some with a pick laid over them."""
    changes = []
    for number in range(1, rng.randint(0, 8) + 1):
        row = a_host(
            number,
            hypervisor=a_hypervisor(rng),
            metrics=metrics(rng),
            node=rng.choice(('', f'n{number}')),
            cell=rng.choice((None, an_id(1, 9))),
            disabled=rng.choice((None, None, 'x')),
            used={name: rng.randint(0, 4) for name in some(rng, CLASSES)},
            foreign={name: rng.randint(0, 4) for name in some(rng, ('VCPU', 'DISK_GB'))},
        )
        kinds = {n: an_inventory(rng) for n in some(rng, CLASSES, 1)}
        facts = msgspec.structs.replace(row.facts, inventories=kinds)
        placed = [
            Placed(
                an_id(number * 10 + i, 6),
                an_id(i, 7),
                number,
                flavor=rng.choice((None, 'small', 'small', 'large')),
            )
            for i in range(rng.randint(0, 3))
        ]
        changes.append(
            HostChange(
                provider_id=number, row=msgspec.structs.replace(row, facts=facts), placed=placed
            )
        )
    aggregates = [an_aggregate(rng, n) for n in range(1, rng.randint(1, 4) + 1)]
    table = HostTable.build(changes, aggregates, {}, (), NOW)
    for number in range(1, len(changes) + 1):
        if rng.random() < 0.3:
            table.add_pick(number, {'VCPU': 1}, Placed(an_id(number, 8), an_id(number, 4), number))
    return table


LOOKS = (
    '$free_ram_mb',
    '$vcpus_used',
    '$num_instances',
    '$host',
    '$hypervisor_type',
    '$nothing',
    '$stats.boot',
    '$stats.ssd',
    '$stats.json.a',
    '$cpu_info.topology.cores',
    '$cpu_info.features',
    '$service.disabled',
    '$host_ip',
    '$free_ram_mb.x',
    '$',
    '$cpu_allocation_ratio',
)
LITERALS = (0, 1, 4, 12, 1.5, True, False, None, '', 'cmp-1', 'QEMU', 'uefi', '10.0.0.7', {'a': 1})


def a_query(rng: random.Random, depth: int = 0) -> list[Any]:
    """Return a query with any contents."""
    if rng.random() < 0.05:
        return []
    if depth < 3 and rng.random() < 0.5:
        parts = [a_query(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        parts += rng.choices((*LOOKS, *LITERALS), k=rng.choice((0, 0, 0, 1)))
        return [rng.choice(('and', 'or', 'not')), *parts]
    values: list[Any] = [*rng.choices(LOOKS, k=rng.choice((1, 1, 1, 2)))]
    values += rng.choices(LITERALS, k=rng.randint(0, 2))
    if rng.random() < 0.1:
        values.append(a_query(rng, depth + 2))
    rng.shuffle(values)
    return [rng.choice(('=', '<', '>', '<=', '>=', 'in', 'in')), *values]


def a_spec(rng: random.Random) -> RequestSpec:
    """Return a request with fields for every filter."""
    properties = {
        'hw_architecture': ('x86_64', 'amd64', 'aarch64', 'hvm', ''),
        'img_hv_type': ('kvm', 'xen'),
        'hw_vm_mode': ('hvm', 'xen', 'HV'),
        'hw_maxphysaddr_bits': ('40', '46', '0', 'x'),
        'img_hv_requested_version': ('>=2.10', '<4, >=2', '==2.5.0', '!=4.2.1', '>= x', '2'),
        'hw_rescue': VALUES,
        'ssd': VALUES,
        'img.secure': VALUES,
        'boot': VALUES,
    }
    hints = {
        'build_near_host_ip': (['10.0.0.1'], ['fd00::1'], ['x'], ['10.0.0.1', '10.0.0.2'], ['::1']),
        'cidr': (['/16'], ['24'], ['/x'], ['/64'], [''], ['/0'], []),
    }
    return RequestSpec(
        resources={n: rng.choice((1, 2, 4, 14, 16)) for n in some(rng, CLASSES, 1)},
        project_id=rng.choice((None, *PROJECTS)),
        ignore_hosts=some(rng, [name.upper() for name in NAMES], most=2),
        flavor=Flavor(
            name=rng.choice(('', *FLAVORS)),
            extra_specs={key: rng.choice(REQUIREMENTS) for key in some(rng, SPEC_KEYS, most=2)},
        ),
        image=Image(
            uuid=rng.choice((None, *IMAGES)),
            properties={k: rng.choice(properties[k]) for k in some(rng, properties)},
        ),
        hints={k: rng.choice(hints[k]) for k in some(rng, hints)}
        | ({'query': [json.dumps(a_query(rng))]} if rng.random() < 0.9 else {}),
    )


OPTIONS: dict[str, tuple[Any, ...]] = {
    'extra_specs_as_nova': (False, True),
    'image_properties_as_nova': (False, True),
    'image_properties_default_architecture': ('', 'x86_64'),
    'aggregate_image_properties_isolation_namespace': ('', 'img'),
    'aggregate_image_properties_isolation_as_nova': (False, True),
    'isolated_images': ([], ['image-1']),
    'isolated_hosts': ([], ['cmp-1', 'cmp-3', 'nobody']),
    'restrict_isolated_hosts_to_isolated_images': (False, True),
    'metrics_weight_setting': ('', 'cpu.percent=1.0', ' stats.ssd = 2, cpu.percent=-1', 'none'),
    'json_filter_as_nova': (False, True),
    'max_instances_per_host': (50, 3, 1),
    'max_io_ops_per_host': (8, 2, 0),
    'type_affinity_ignores_unknown': (False, True),
}


def options_of(rng: random.Random, plugin: Any) -> dict[str, Any]:
    """Return some setting of a filter's options."""
    return {o.name: rng.choice(OPTIONS[o.name]) for o in plugin.options if o.name in OPTIONS}
