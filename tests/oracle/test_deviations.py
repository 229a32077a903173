# SPDX-License-Identifier: Apache-2.0
"""Every deliberate difference from Nova, each in its smallest case."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.oracle import compare, deviations, runs
from tests.oracle.ours import FORCED, SEVERAL, TOGETHER

ONE, TWO = '00000000-0000-4000-8000-000000000001', '00000000-0000-4000-8000-000000000002'
HOST: dict[str, Any] = {
    'host': 'one',
    'hypervisor_hostname': 'one',
    'uuid': ONE,
    'cell': ONE,
    'vcpus': 8,
    'vcpus_used': 0,
    'memory_mb': 8192,
    'memory_mb_used': 0,
    'free_ram_mb': 8192,
    'local_gb': 100,
    'local_gb_used': 0,
    'free_disk_gb': 100,
    'disk_available_least': None,
    'cpu_allocation_ratio': 1.0,
    'ram_allocation_ratio': 1.0,
    'disk_allocation_ratio': 1.0,
    'hypervisor_type': 'QEMU',
    'hypervisor_version': 0,
    'host_ip': '10.0.0.1',
    'cpu_info': '',
    'supported': [],
    'stats': {},
    'metrics': [],
    'numa': None,
    'pci': [],
    'guests': [],
    'service': {'disabled': False, 'last_seen_up': 0, 'created_at': 5},
}
REQUEST: dict[str, Any] = {
    'consumer': '00000000-0000-4000-8000-0000000000ff',
    'image': {'properties': {}},
    'is_bfv': False,
    'project_id': 'red',
    'user_id': 'someone',
    'hints': {},
    'group': None,
    'destination': None,
    'ports': [],
    'port_policy': None,
    'network': None,
}
FLAVOR: dict[str, Any] = {
    'name': 'm1.small',
    'vcpus': 2,
    'memory_mb': 1024,
    'root_gb': 1,
    'ephemeral_gb': 0,
    'swap': 0,
    'extra_specs': {},
}
CELL: dict[str, Any] = {
    'id': 0,
    'cpuset': [0, 1, 2, 3],
    'pcpuset': [],
    'pinned_cpus': [],
    'cpu_usage': 0,
    'memory': 4096,
    'memory_usage': 0,
    'siblings': [[0, 1], [2, 3], [4, 5], [6, 7]],
    'socket': 0,
    'mempages': [
        {'size_kb': 4, 'total': 786432, 'used': 0, 'reserved': 0},
        {'size_kb': 2048, 'total': 512, 'used': 0, 'reserved': 0},
    ],
    'network_metadata': None,
}


def a_host(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(HOST), **fields}


def another(**fields: Any) -> dict[str, Any]:
    return a_host(host='two', hypervisor_hostname='two', uuid=TWO, **fields)


def a_case(
    *hosts: dict[str, Any],
    specs: dict[str, str] | None = None,
    aggregates: list[dict[str, str]] | None = None,
    options: dict[str, dict[str, Any]] | None = None,
    **request: Any,
) -> dict[str, Any]:
    """Hosts, all of them in aggregates with such metadata, and a request."""
    cloud_hosts = list(hosts) or [a_host()]
    rows = [
        {
            'id': i,
            'uuid': f'00000000-0000-4000-8000-0000000000a{i}',
            'name': f'a{i}',
            'metadata': metadata,
            'hosts': [host['host'] for host in cloud_hosts],
        }
        for i, metadata in enumerate(aggregates or [], 1)
    ]
    flavor = {**FLAVOR, 'extra_specs': specs or {}}
    return {
        'cloud': {
            'hosts': cloud_hosts,
            'aggregates': rows,
            'groups': [],
            'options': options or {},
        },
        'request': {**copy.deepcopy(REQUEST), 'flavor': flavor, **request},
    }


def seen_at(age: int | None) -> dict[str, Any]:
    return a_host(service={'disabled': False, 'last_seen_up': age, 'created_at': 5})


def metric(name: str, value: float) -> dict[str, Any]:
    described = {'name': name, 'timestamp': '2026-01-01T00:00:00.000000', 'source': 'libvirt'}
    return {**described, 'value': value}


def weighing(**options: Any) -> dict[str, dict[str, Any]]:
    return {'metrics': options}


OVER_NUMA = {'metrics': [{**metric('numa.membw.max', 0), 'numa_membw_values': {'0': 1}}]}
del OVER_NUMA['metrics'][0]['value']
DEDICATED = {**CELL, 'cpuset': [], 'pcpuset': [0, 1, 2, 3]}

ISOLATED = {'hw:cpu_policy': 'dedicated', 'hw:cpu_thread_policy': 'isolate'}
APART = {'hw:emulator_threads_policy': 'isolate'}
MIXED = {**CELL, 'pcpuset': [4, 5, 6, 7]}
SMALL = {'size_kb': 4, 'total': 524288, 'used': 0, 'reserved': 0}
LARGE = {'size_kb': 2048, 'total': 1024, 'used': 0, 'reserved': 0}


def dedicated(number: int, cpus: int, near: list[str] | None = None) -> dict[str, Any]:
    """A cell of so many dedicated processors, near to such networks."""
    pcpus = [10 * number + i for i in range(cpus)]
    return {
        **CELL,
        'id': number,
        'cpuset': [],
        'pcpuset': pcpus,
        'siblings': [[cpu] for cpu in pcpus],
        'network_metadata': None if near is None else {'physnets': near, 'tunneled': False},
    }


def vfs(bus: str, **tags: str) -> dict[str, Any]:
    """A pool of one virtual function."""
    defaults = {'dev_type': 'type-VF', 'address': f'0000:{bus}:00.0', 'remote_managed': 'false'}
    return {
        'vendor_id': '8086',
        'product_id': '10ed',
        'numa_node': None,
        'count': 1,
        'tags': defaults | tags,
    }


def near_function(cell: int | None, kind: str) -> dict[str, Any]:
    """A pool of one function of a card, near to a cell."""
    card = {'vendor_id': '8086', 'product_id': '1572', 'numa_node': cell, 'count': 1}
    return {**card, 'tags': {'dev_type': kind}}


NEAR = '{"name": "n", "vendor_id": "8086", "product_id": "1572", "numa_policy": "legacy"}'
ALIAS = (
    '{"name": "a", "vendor_id": "8086", "product_id": "10ed", "device_type": "type-VF", '
    '"numa_policy": "preferred"}'
)
UNEVEN = {
    'hw:cpu_policy': 'dedicated',
    'hw:numa_nodes': '2',
    'hw:numa_cpus.0': '0',
    'hw:numa_cpus.1': '1-3',
    'hw:numa_mem.0': '512',
    'hw:numa_mem.1': '512',
}

LISTED = a_case(
    a_host(),
    another(),
    aggregates=[{'filter_tenant_id': 'red, blue'}],
    options={'scheduler': {'limit_tenants_to_placement_aggregate': True}},
)
LISTED['cloud']['aggregates'][0]['hosts'] = ['two']
#: Cells with one shared and one dedicated processor each; the first is full of shared guests.
PAIRS = [
    {
        **CELL,
        'id': n,
        'cpuset': [2 * n],
        'pcpuset': [2 * n + 1],
        'cpu_usage': usage,
        'siblings': [[2 * n, 2 * n + 1]],
        'memory': 2048,
        'socket': min(n, 2) - 1,
        'mempages': [
            {'size_kb': 4, 'total': 262144 if n > 1 else 0, 'used': 0, 'reserved': 0},
            {'size_kb': 2048, 'total': 512, 'used': 0, 'reserved': 0 if n > 1 else 256},
        ],
    }
    for n, usage in ((1, 6), (2, 0), (3, 2))
]
PAIRS[0]['mempages'].append({'size_kb': 1048576, 'total': 1, 'used': 0, 'reserved': 0})
PAIRS[1]['mempages'][0]['used'] = 131072

#: deviation -> (plugin, what Nova says of the first host, what we say, the case)
CASES: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    'hints that are null': ('AllHostsFilter', 'x', 'p', a_case(hints=None)),
    'numbers that are none': (
        'ComputeCapabilitiesFilter',
        'x',
        'r',
        a_case(specs={'capabilities:hypervisor_type': '>= 5'}),
    ),
    'a limit that is no number': (
        'AggregateIoOpsFilter',
        'p',
        'r',
        a_case(
            a_host(stats={'io_workload': '2'}),
            aggregates=[{'max_io_ops_per_host': '1'}, {'max_io_ops_per_host': 'many'}],
        ),
    ),
    'over-committed hosts': ('ComputeFilter', 'p', 'r', a_case(a_host(vcpus_used=9))),
    'clocks that are ahead': ('ComputeFilter', 'r', 'p', a_case(seen_at(-300))),
    'hosts that never reported': ('ComputeFilter', 'p', 'r', a_case(seen_at(None))),
    'multipliers without end': (
        'RAMWeigher',
        float('inf'),
        1.0,
        a_case(a_host(), another(), aggregates=[{'ram_weight_multiplier': 'inf'}]),
    ),
    'metrics of NUMA cells': (
        'MetricsFilter',
        'p',
        'r',
        a_case(a_host(**OVER_NUMA), options=weighing(weight_setting=['numa.membw.max=1'])),
    ),
    'metrics that do not count': (
        'MetricsWeigher',
        None,
        0.0,
        a_case(a_host(), another(), options=weighing(weight_setting=['cpu.frequency=0.0'])),
    ),
    'weighers without effect': (
        'MetricsWeigher',
        None,
        0.0,
        a_case(
            a_host(),
            another(),
            options=weighing(weight_setting=['cpu.frequency=1.0'], weight_multiplier=0.0),
        ),
    ),
    'networks without a slash': (
        'SimpleCIDRAffinityFilter',
        'r',
        'p',
        a_case(hints={'build_near_host_ip': ['10.0.0.2'], 'cidr': ['8']}),
    ),
    'addresses that are none': (
        'SimpleCIDRAffinityFilter',
        'x',
        'r',
        a_case(hints={'build_near_host_ip': ['here']}),
    ),
    'address bits of images': (
        'ImagePropertiesFilter',
        'x',
        'p',
        a_case(
            a_host(supported=[['x86_64', 'kvm', 'hvm']]),
            image={'properties': {'hw_architecture': 'x86_64', 'hw_maxphysaddr_bits': '40'}},
        ),
    ),
    'requests without an image': (TOGETHER, 'x', 'p', a_case(image=None)),
    'attributes of Python': (
        'ComputeCapabilitiesFilter',
        'r',
        'p',
        a_case(specs={'update': 'now'}),
    ),
    'stats that are null': (
        'ComputeCapabilitiesFilter',
        'r',
        'p',
        a_case(a_host(stats={'nothing': None}), specs={'nothing': 'x'}),
    ),
    'queries that fail': (
        'JsonFilter',
        'x',
        'r',
        a_case(hints={'query': ['[">=", "$vcpus_total", "many"]']}),
    ),
    'cores to themselves': (
        TOGETHER,
        'r',
        'p',
        a_case(
            a_host(numa=[DEDICATED]),
            specs=ISOLATED,
        ),
    ),
    'pages that are free': (
        TOGETHER,
        'r',
        'p',
        a_case(a_host(numa=[{**CELL, 'memory_usage': 4096}]), specs={'hw:mem_page_size': '2048'}),
    ),
    'guests with processors of both kinds': (
        TOGETHER,
        'r',
        'p',
        a_case(
            a_host(numa=[{**MIXED, 'cpu_usage': 9}, {**MIXED, 'id': 1, 'pcpuset': []}]),
            specs={
                'hw:cpu_policy': 'mixed',
                'hw:cpu_dedicated_mask': '0',
                'hw:numa_nodes': '2',
            },
        ),
    ),
    'emulators with a core': (
        TOGETHER,
        'p',
        'r',
        a_case(
            a_host(numa=[{**DEDICATED, 'cpuset': [0, 1, 2, 3], 'pinned_cpus': [3]}]),
            flavor={**FLAVOR, 'vcpus': 1, 'extra_specs': {**ISOLATED, **APART}},
        ),
    ),
    'cores that differ': (
        TOGETHER,
        'r',
        'p',
        a_case(
            a_host(numa=[{**DEDICATED, 'cpuset': [0, 1, 2, 3], 'siblings': [[0, 1], [2], [3]]}]),
            specs=ISOLATED,
        ),
    ),
    'pages that are chosen once': (
        TOGETHER,
        'r',
        'p',
        a_case(
            a_host(
                numa=[
                    {**CELL, 'cpuset': [0], 'mempages': [SMALL, LARGE]},
                    {**CELL, 'id': 1, 'memory_usage': 512, 'mempages': [SMALL]},
                ]
            ),
            specs={'hw:mem_page_size': 'any'},
        ),
    ),
    'cells that are mixed up': (
        TOGETHER,
        'r',
        'p',
        a_case(
            a_host(
                vcpus=16,
                numa=[dedicated(0, 4), dedicated(1, 1, ['physnet0']), dedicated(3, 4)],
            ),
            flavor={**FLAVOR, 'vcpus': 4, 'extra_specs': UNEVEN},
            network={'physnets': ['physnet0'], 'tunneled': False},
        ),
    ),
    'devices that are near and not requested': (
        TOGETHER,
        'r',
        'p',
        a_case(
            a_host(
                numa=[{**CELL, 'cpuset': [0, 1]}, {**CELL, 'id': 1, 'cpuset': [2]}],
                pci=[near_function(0, 'type-PF'), near_function(None, 'type-VF')],
            ),
            specs={'pci_passthrough:alias': 'n:1', 'hw:numa_nodes': '1'},
            options={'pci': {'alias': [NEAR]}},
        ),
    ),
    'devices that others could leave': (
        TOGETHER,
        'r',
        'p',
        a_case(
            a_host(pci=[vfs('00'), vfs('01', physical_network='physnet0')]),
            specs={'pci_passthrough:alias': 'a:1'},
            options={'pci': {'alias': [ALIAS]}},
            ports=[{'physical_network': None, 'remote_managed': 'False'}],
        ),
    ),
    'threads that the image requires': (
        TOGETHER,
        'r',
        'p',
        a_case(
            a_host(numa=[{**DEDICATED, 'siblings': [[0], [1], [2], [3]]}]),
            specs={'hw:cpu_policy': 'dedicated', 'hw:cpu_thread_policy': 'prefer'},
            image={'properties': {'hw_cpu_thread_policy': 'require'}},
        ),
    ),
    'projects in a list': ('Placement where', 'pp', 'rp', LISTED),
    'image properties by aggregate': (
        'ImagePropertiesWeigher',
        0.0,
        2.0,
        a_case(
            a_host(guests=[{'uuid': ONE, 'image': {'os_type': 'linux'}, 'claimed': True}]),
            another(),
            aggregates=[{'image_props_weight_multiplier': '2.0'}],
            image={'properties': {'os_type': 'linux'}},
        ),
    ),
    'percentages that are cut': (
        'MetricsWeigher',
        28 / 57,
        29 / 58,
        a_case(
            a_host(metrics=[metric('cpu.percent', 0.29)]),
            another(metrics=[metric('cpu.percent', 0.58)]),
            a_host(host='three', metrics=[metric('cpu.percent', 0.0)]),
            options=weighing(weight_setting=['cpu.percent=1.0']),
        ),
    ),
    'disk that is not there': (
        'JsonFilter',
        'p',
        'r',
        a_case(a_host(disk_available_least=25), hints={'query': ['["<=", "$disk_mb_used", 0]']}),
    ),
    'members that take what they claim': (
        SEVERAL,
        'one, None',
        'one, one',
        a_case(
            specs={'resources:VCPU': '0'},
            hints={'query': ['["<=", "$vcpus_used", 0]']},
            several=['00000000-0000-4000-8000-0000000000fe'],
            ask=['JsonFilter', 'RAMWeigher'],
        ),
    ),
    'pages that are not listed': (
        TOGETHER,
        'p',
        'r',
        a_case(
            a_host(numa=[{**CELL, 'mempages': [{**LARGE, 'total': 2048}]}]),
            specs={'hw:mem_page_size': 'small'},
        ),
    ),
    'facts of the service': (
        'ComputeCapabilitiesFilter',
        'r',
        'p',
        a_case(specs={'capabilities:service:disabled': 'False'}),
    ),
    'cells without siblings': (
        TOGETHER,
        'x',
        'p',
        a_case(a_host(numa=[{**DEDICATED, 'siblings': []}]), specs={'hw:cpu_policy': 'dedicated'}),
    ),
    'groups without policies': (
        'ServerGroupAffinityFilter',
        'x',
        'p',
        a_case(
            group={
                'uuid': TWO,
                'policy': 'affinity',
                'rules': {},
                'members': [],
                'hosts': [],
                'policies': None,
            },
        ),
    ),
    'hosts whose use is not known': ('ComputeFilter', 'p', 'r', a_case(a_host(free_disk_gb=None))),
    'forced hosts that are closed': (
        FORCED,
        'p',
        'r',
        a_case(
            a_host(service={'disabled': True, 'last_seen_up': 0, 'created_at': 5}),
            force_hosts=['one'],
        ),
    ),
    'groups of forced hosts': (
        FORCED,
        'p',
        'r',
        a_case(
            a_host(),
            another(),
            force_hosts=['one'],
            group={'uuid': TWO, 'policy': 'affinity', 'rules': {}, 'members': [], 'hosts': ['two']},
        ),
    ),
    'guests of other nodes': (
        'ImagePropertiesWeigher',
        1.0,
        0.0,
        a_case(
            a_host(hypervisor_hostname='bm-0'),
            a_host(
                hypervisor_hostname='bm-1',
                uuid=TWO,
                guests=[{'uuid': ONE, 'image': {'os_type': 'linux'}, 'claimed': True}],
            ),
            a_host(host='two', hypervisor_hostname='two'),
            options={'filter_scheduler': {'image_props_weight_multiplier': 1.0}},
            image={'properties': {'os_type': 'linux'}},
        ),
    ),
    'members of one request': (
        SEVERAL,
        'one, one',
        'None, None',
        a_case(
            a_host(stats={'num_instances': '0'}),
            specs={'capabilities:num_instances': '<in> 0'},
            several=['00000000-0000-4000-8000-0000000000fe'],
            ask=['ComputeCapabilitiesFilter', 'RAMWeigher'],
        ),
    ),
    'addresses in queries': (
        'JsonFilter',
        'r',
        'p',
        a_case(hints={'query': ['["=", "$host_ip", "10.0.0.1"]']}),
    ),
}


def test_every_deviation_is_documented():
    page = Path(__file__).parents[2] / 'doc/source/reference/differences-from-nova.rst'
    text = ' '.join(page.read_text().replace('`', '').split()).lower()
    for deviation in deviations.TABLE:
        assert f'{deviation.name} '.lower() in text and deviation.reason.lower() in text, (
            deviation.name
        )


def test_every_deviation_has_a_case():
    assert sorted(CASES) == sorted(deviation.name for deviation in deviations.TABLE)


@pytest.mark.parametrize('name', CASES)
def test_deviation(oracle, about, name):
    plugin, nova, gantt, case = CASES[name]
    differing = runs.one_case(oracle, compare.both_have(about), case)
    mine = [difference for difference in differing if difference.plugin == plugin]
    assert mine, 'no difference'
    assert compare.is_same(mine[0].nova, nova) and compare.is_same(mine[0].gantt, gantt), mine[0]
    assert compare.explanation(mine[0]).name == name


def test_cores_to_themselves_may_be_asked_for_by_a_trait(oracle, about):
    case = a_case(
        a_host(numa=[DEDICATED]),
        specs={'hw:cpu_policy': 'dedicated', 'trait:HW_CPU_HYPERTHREADING': 'forbidden'},
    )
    (seen,) = runs.one_case(oracle, compare.both_have(about), case)
    assert (seen.plugin, seen.nova, seen.gantt) == (TOGETHER, 'r', 'p')
    assert compare.explanation(seen).name == 'cores to themselves'


def test_a_multiplier_beyond_bounds_is_not_read(oracle, about):
    case = a_case(a_host(), another(), aggregates=[{'ram_weight_multiplier': '1e13'}])
    differing = runs.one_case(oracle, compare.both_have(about), case)
    seen = next(difference for difference in differing if difference.plugin == 'RAMWeigher')
    assert (seen.nova, seen.gantt) == (1e13, 1.0)
    assert compare.explanation(seen).name == 'multipliers without end'


def test_what_is_no_number_meets_nothing(oracle, about):
    case = a_case(aggregates=[{'max': 'nan'}], specs={'max': '!= 5'})
    (seen,) = runs.one_case(oracle, compare.both_have(about), case)
    assert (seen.plugin, seen.nova, seen.gantt) == (
        'AggregateInstanceExtraSpecsFilter',
        'p',
        'r',
    )
    assert compare.explanation(seen).name == 'numbers that are none'


MIXED_CELLS = {
    'hw:cpu_policy': 'mixed',
    'hw:cpu_dedicated_mask': '1',
    'hw:numa_nodes': '2',
}
FOURS = {**DEDICATED, 'pcpuset': [*range(6)], 'siblings': [[0, 1, 2, 3], [4, 5]]}


@pytest.mark.parametrize(
    ('name', 'cells', 'vcpus', 'specs'),
    [
        (
            'cores that differ',
            [FOURS],
            5,
            {'hw:cpu_policy': 'dedicated', 'hw:cpu_thread_policy': 'require'},
        ),
        (
            'guests with processors of both kinds',
            [MIXED, {**MIXED, 'id': 1}],
            2,
            {**MIXED_CELLS, **APART},
        ),
        (
            'guests with processors of both kinds',
            [MIXED, {**MIXED, 'id': 1, 'pcpuset': []}],
            2,
            {**MIXED_CELLS, 'hw:cpu_thread_policy': 'require'},
        ),
        (
            'guests with processors of both kinds',
            [
                {**MIXED, 'pcpuset': [], 'mempages': [{**SMALL, 'used': 500_000}, LARGE]},
                {**MIXED, 'id': 1},
            ],
            2,
            MIXED_CELLS,
        ),
    ],
    ids=['equally-many', 'emulator', 'siblings', 'memory'],
)
def test_other_cases(oracle, about, name, cells, vcpus, specs):
    flavor = {**FLAVOR, 'vcpus': vcpus, 'extra_specs': specs}
    case = a_case(a_host(numa=cells, ram_allocation_ratio=2.0), flavor=flavor)
    (seen,) = runs.one_case(oracle, compare.both_have(about), case)
    assert (seen.plugin, seen.nova, seen.gantt) == (TOGETHER, 'r', 'p')
    assert compare.explanation(seen).name == name


def test_cells_that_a_guest_does_not_fit_on_are_not_taken(oracle, about):
    case = a_case(
        a_host(vcpus=64, cpu_allocation_ratio=4.0, numa=PAIRS),
        flavor={
            **FLAVOR,
            'vcpus': 4,
            'extra_specs': {
                'hw:cpu_policy': 'mixed',
                'hw:cpu_dedicated_mask': '^0',
                'hw:numa_nodes': '2',
                'hw:mem_page_size': '2MB',
            },
        },
    )
    (seen,) = runs.one_case(oracle, compare.both_have(about), case)
    assert (seen.plugin, seen.nova, seen.gantt, seen.unfit) == (TOGETHER, 'p', 'r', True)
    assert compare.explanation(seen).name == 'cells that are mixed up'
