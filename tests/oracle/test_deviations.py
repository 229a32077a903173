# SPDX-License-Identifier: Apache-2.0
"""Every deliberate difference from Nova, each in its smallest case."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.oracle import compare, deviations, runs
from tests.oracle.ours import TOGETHER

ONE, TWO = '00000000-0000-4000-8000-000000000001', '00000000-0000-4000-8000-000000000002'
HOST: dict[str, Any] = {
    'host': 'one', 'hypervisor_hostname': 'one', 'uuid': ONE, 'cell': ONE, 'vcpus': 8,
    'vcpus_used': 0, 'memory_mb': 8192, 'memory_mb_used': 0, 'free_ram_mb': 8192, 'local_gb': 100,
    'local_gb_used': 0, 'free_disk_gb': 100, 'disk_available_least': None,
    'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0, 'disk_allocation_ratio': 1.0,
    'hypervisor_type': 'QEMU', 'hypervisor_version': 0, 'host_ip': '10.0.0.1', 'cpu_info': '',
    'supported': [], 'stats': {}, 'metrics': [], 'numa': None, 'pci': [], 'guests': [],
    'service': {'disabled': False, 'last_seen_up': 0, 'created_at': 5},
}  # fmt: skip
REQUEST: dict[str, Any] = {
    'consumer': '00000000-0000-4000-8000-0000000000ff', 'image': {'properties': {}},
    'is_bfv': False, 'project_id': 'red', 'user_id': 'someone', 'hints': {}, 'group': None,
    'destination': None, 'ports': [], 'network': None,
}  # fmt: skip
FLAVOR: dict[str, Any] = {
    'name': 'm1.small', 'vcpus': 2, 'memory_mb': 1024, 'root_gb': 1, 'ephemeral_gb': 0, 'swap': 0,
    'extra_specs': {},
}  # fmt: skip
CELL: dict[str, Any] = {
    'id': 0, 'cpuset': [0, 1, 2, 3], 'pcpuset': [], 'pinned_cpus': [], 'cpu_usage': 0,
    'memory': 4096, 'memory_usage': 0, 'siblings': [[0, 1], [2, 3], [4, 5], [6, 7]], 'socket': 0,
    'mempages': [
        {'size_kb': 4, 'total': 786432, 'used': 0, 'reserved': 0},
        {'size_kb': 2048, 'total': 512, 'used': 0, 'reserved': 0},
    ],
}  # fmt: skip


def a_host(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(HOST), **fields}


def another(**fields: Any) -> dict[str, Any]:
    return a_host(host='two', hypervisor_hostname='two', uuid=TWO, **fields)


def a_case(
    *hosts: dict[str, Any], specs: dict[str, str] | None = None,
    aggregates: list[dict[str, str]] | None = None,
    options: dict[str, dict[str, Any]] | None = None, **request: Any,
) -> dict[str, Any]:  # fmt: skip
    """Hosts, all of them in aggregates with such metadata, and a request."""
    found = list(hosts) or [a_host()]
    known = [
        {'id': i, 'uuid': f'00000000-0000-4000-8000-0000000000a{i}', 'name': f'a{i}',
         'metadata': metadata, 'hosts': [host['host'] for host in found]}
        for i, metadata in enumerate(aggregates or [], 1)
    ]  # fmt: skip
    flavor = {**FLAVOR, 'extra_specs': specs or {}}
    return {
        'cloud': {
            'hosts': found, 'aggregates': known, 'groups': [], 'options': options or {},
        },
        'request': {**copy.deepcopy(REQUEST), 'flavor': flavor, **request},
    }  # fmt: skip


def seen_at(age: int | None) -> dict[str, Any]:
    return a_host(service={'disabled': False, 'last_seen_up': age, 'created_at': 5})


def metric(name: str, value: float) -> dict[str, Any]:
    said = {'name': name, 'timestamp': '2026-01-01T00:00:00.000000', 'source': 'libvirt'}
    return {**said, 'value': value}


def weighing(**options: Any) -> dict[str, dict[str, Any]]:
    return {'metrics': options}


OVER_NUMA = {'metrics': [{**metric('numa.membw.max', 0), 'numa_membw_values': {'0': 1}}]}
del OVER_NUMA['metrics'][0]['value']
DEDICATED = {**CELL, 'cpuset': [], 'pcpuset': [0, 1, 2, 3]}

MIXED = {**CELL, 'pcpuset': [4, 5, 6, 7]}
SMALL = {'size_kb': 4, 'total': 524288, 'used': 0, 'reserved': 0}
LARGE = {'size_kb': 2048, 'total': 1024, 'used': 0, 'reserved': 0}

#: deviation -> (plugin, what Nova says of the first host, what we say, the case)
CASES: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    'hints that are null': ('AllHostsFilter', 'x', 'p', a_case(hints=None)),
    'numbers that are none': (
        'ComputeCapabilitiesFilter', 'x', 'r',
        a_case(specs={'capabilities:hypervisor_type': '>= 5'}),
    ),
    'a limit that is no number': (
        'AggregateIoOpsFilter', 'p', 'r',
        a_case(
            a_host(stats={'io_workload': '2'}),
            aggregates=[{'max_io_ops_per_host': '1'}, {'max_io_ops_per_host': 'many'}],
        ),
    ),
    'over-committed hosts': ('ComputeFilter', 'p', 'r', a_case(a_host(vcpus_used=9))),
    'clocks that are ahead': ('ComputeFilter', 'r', 'p', a_case(seen_at(-300))),
    'hosts that never reported': ('ComputeFilter', 'p', 'r', a_case(seen_at(None))),
    'multipliers without end': (
        'RAMWeigher', float('inf'), 1.0,
        a_case(a_host(), another(), aggregates=[{'ram_weight_multiplier': 'inf'}]),
    ),
    'over-commit of memory': (
        'RAMWeigher', 1.0, 0.5, a_case(a_host(), another(ram_allocation_ratio=2.0))
    ),
    'over-commit of disk': (
        'DiskWeigher', 1.0, 0.5, a_case(a_host(), another(disk_allocation_ratio=2.0))
    ),
    'metrics of NUMA cells': (
        'MetricsFilter', 'p', 'r',
        a_case(a_host(**OVER_NUMA), options=weighing(weight_setting=['numa.membw.max=1'])),
    ),
    'metrics that do not count': (
        'MetricsWeigher', None, 0.0,
        a_case(a_host(), another(), options=weighing(weight_setting=['cpu.frequency=0.0'])),
    ),
    'weighers without a say': (
        'MetricsWeigher', None, 0.0,
        a_case(
            a_host(), another(),
            options=weighing(weight_setting=['cpu.frequency=1.0'], weight_multiplier=0.0),
        ),
    ),
    'networks without a slash': (
        'SimpleCIDRAffinityFilter', 'r', 'p',
        a_case(hints={'build_near_host_ip': ['10.0.0.2'], 'cidr': ['8']}),
    ),
    'addresses that are none': (
        'SimpleCIDRAffinityFilter', 'x', 'r', a_case(hints={'build_near_host_ip': ['here']})
    ),
    'address bits of images': (
        'ImagePropertiesFilter', 'x', 'p',
        a_case(
            a_host(supported=[['x86_64', 'kvm', 'hvm']]),
            image={'properties': {'hw_architecture': 'x86_64', 'hw_maxphysaddr_bits': '40'}},
        ),
    ),
    'requests without an image': (TOGETHER, 'x', 'p', a_case(image=None)),
    'attributes of Python': (
        'ComputeCapabilitiesFilter', 'r', 'p', a_case(specs={'update': 'now'})
    ),
    'stats that are null': (
        'ComputeCapabilitiesFilter', 'r', 'p',
        a_case(a_host(stats={'nothing': None}), specs={'nothing': 'x'}),
    ),
    'queries that fail': (
        'JsonFilter', 'x', 'r', a_case(hints={'query': ['[">=", "$vcpus_total", "many"]']})
    ),
    'cores to themselves': (
        TOGETHER, 'r', 'p',
        a_case(
            a_host(numa=[DEDICATED]),
            specs={'hw:cpu_policy': 'dedicated', 'hw:cpu_thread_policy': 'isolate'},
        ),
    ),
    'pages that are free': (
        TOGETHER, 'r', 'p',
        a_case(a_host(numa=[{**CELL, 'memory_usage': 4096}]), specs={'hw:mem_page_size': '2048'}),
    ),
    'guests with processors of both kinds': (
        TOGETHER, 'r', 'p',
        a_case(
            a_host(numa=[{**MIXED, 'cpu_usage': 9}, {**MIXED, 'id': 1, 'pcpuset': []}]),
            specs={
                'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0', 'hw:numa_nodes': '2',
            },
        ),
    ),
    'pages that are chosen once': (
        TOGETHER, 'r', 'p',
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
    'image properties by aggregate': (
        'ImagePropertiesWeigher', 0.0, 2.0,
        a_case(
            a_host(guests=[{'uuid': ONE, 'image': {'os_type': 'linux'}, 'claimed': True}]),
            another(),
            aggregates=[{'image_props_weight_multiplier': '2.0'}],
            image={'properties': {'os_type': 'linux'}},
        ),
    ),
    'percentages that are cut': (
        'MetricsWeigher', 28 / 57, 29 / 58,
        a_case(
            a_host(metrics=[metric('cpu.percent', 0.29)]),
            another(metrics=[metric('cpu.percent', 0.58)]),
            a_host(host='three', metrics=[metric('cpu.percent', 0.0)]),
            options=weighing(weight_setting=['cpu.percent=1.0']),
        ),
    ),
    'disk that is not there': (
        'JsonFilter', 'p', 'r',
        a_case(
            a_host(disk_available_least=25), hints={'query': ['["<=", "$disk_mb_used", 0]']}
        ),
    ),
    'addresses in queries': (
        'JsonFilter', 'r', 'p', a_case(hints={'query': ['["=", "$host_ip", "10.0.0.1"]']})
    ),
}  # fmt: skip


def test_every_deviation_is_documented():
    page = Path(__file__).parents[2] / 'doc/source/reference/differences-from-nova.rst'
    text = ' '.join(page.read_text().replace('`', '').split()).lower()
    for one in deviations.TABLE:
        assert f'{one.name} '.lower() in text and one.reason.lower() in text, one.name


def test_every_deviation_has_a_case():
    assert sorted(CASES) == sorted(one.name for one in deviations.TABLE)


@pytest.mark.parametrize('name', CASES)
def test_deviation(oracle, about, name):
    plugin, nova, gantt, case = CASES[name]
    found = runs.one_case(oracle, compare.both_have(about), case)
    mine = [one for one in found if one.plugin == plugin]
    assert mine, 'no difference'
    assert compare.is_same(mine[0].nova, nova) and compare.is_same(mine[0].gantt, gantt), mine[0]
    assert compare.explanation(mine[0]).name == name
