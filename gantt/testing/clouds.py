# SPDX-License-Identifier: Apache-2.0
"""Random small clouds and requests that touch every fact a plugin may read."""

import random
import uuid
from collections.abc import Iterable, Mapping

import msgspec

from gantt.core.messages.policy_set import (
    GroupPolicyKind,
    LevelPolicy,
    Policy,
    PolicySet,
    PolicyTarget,
)
from gantt.core.messages.report import (
    IO_WORKLOAD,
    DevicePool,
    Hypervisor,
    NumaCell,
    NumaPages,
    ReportedMetric,
)
from gantt.core.messages.request import (
    Destination,
    Flavor,
    GroupRef,
    Image,
    Purpose,
    RequestSpec,
)
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Aggregate, HostChange, HostFacts, HostRow, Placed
from gantt.core.table.host_table import HostTable

NOW = 1_000_000.0
TRAITS = ('HW_CPU_X86_AVX2', 'CUSTOM_FAST', 'COMPUTE_NODE')
ZONES = ('nova', 'east', 'west')
PROJECTS = ('red', 'blue')
METADATA: tuple[dict[str, str], ...] = (
    {},
    {'availability_zone': 'east'},
    {'filter_tenant_id': 'red'},
    {'max_instances_per_host': '1', 'max_io_ops_per_host': '1'},
    {'instance_type': 'small,large', 'cpu_allocation_ratio': '2.0'},
    {'ssd': 'true', 'ram_weight_multiplier': '2', 'os_distro': 'debian'},
)
EXTRA_SPECS: dict[str, tuple[str, ...]] = {
    'ssd': ('true', 's== true', '<or> true <or> yes', '>= abc'),
    'aggregate_instance_extra_specs:ssd': ('true', '!= 1'),
    'capabilities:hypervisor_type': ('QEMU', 's== kvm'),
    'capabilities:cpu_info:vendor': ('Intel',),
    'hw:cpu_policy': ('dedicated', 'shared'),
    'hw:mem_page_size': ('large', '2048'),
    'hw:numa_nodes': ('1', '2'),
    'free_ram_mb': ('>= 100',),
}
PROPERTIES: dict[str, tuple[str, ...]] = {
    'hw_architecture': ('x86_64', 'aarch64'),
    'img_hv_type': ('kvm', 'qemu'),
    'hw_vm_mode': ('hvm', 'xen'),
    'os_distro': ('debian', 'plan9'),
}
HINTS: dict[str, tuple[str, ...]] = {
    'query': ('[">=", "$free_ram_mb", 1024]', '["not", ["=", "$host", "cmp-1"]]', '[', '[]'),
    'build_near_host_ip': ('10.0.0.1', 'nowhere'),
    'cidr': ('/24', '/8', '/x'),
    'reservation': ('abc',),
}
NAMES = tuple(f'cmp-{n}' for n in range(1, 11))


def an_id(kind: int, number: int) -> str:
    """Return a uuid by kind and number."""
    return str(uuid.UUID(int=(kind << 64) + number + 1))


CELLS = tuple(an_id(9, n) for n in range(2))
GUESTS = tuple(an_id(7, n) for n in range(8))
GROUPS = tuple(an_id(8, n) for n in range(2))
FLAVORS = ('small', 'large')
#: Names of members of groups, and what policies there may be between them.
MEMBERS = ('web', 'web-2', 'db')
POLICIES = (
    LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, level='site'),
    LevelPolicy(policy=GroupPolicyKind.AFFINITY, level='zone', drop=1),
    LevelPolicy(policy=GroupPolicyKind.SPREAD, level='host', max_skew=1, soft=2.0),
    LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, of='web', target=PolicyTarget(of='db')),
    LevelPolicy(policy=GroupPolicyKind.NEAR, level='cell', of='web', target=PolicyTarget(of='db')),
    LevelPolicy(policy=GroupPolicyKind.EXCLUSIVE, drop=2),
    Policy.SOFT_ANTI_AFFINITY,
)


def _few(rng: random.Random, names: tuple[str, ...], most: int = 2) -> list[str]:
    return rng.sample(names, rng.randint(0, min(most, len(names))))


def _inventory(rng: random.Random, total: int) -> Inventory:
    return Inventory(
        total=total,
        reserved=rng.choice((0, 0, min(1, total))),
        min_unit=rng.choice((1, 1, 2)),
        step_size=rng.choice((1, 1, 2)),
        allocation_ratio=rng.choice((1.0, 1.0, 2.5)),
    )


def _facts(rng: random.Random, number: int) -> HostFacts:
    totals = {'VCPU': 8, 'PCPU': 4, 'MEMORY_MB': 8192, 'DISK_GB': 100, 'CUSTOM_X': 5}
    cells = [
        NumaCell(
            id=n,
            cpus=list(range(n * 4, n * 4 + 4)),
            pinned_cpus=[n * 4 + 2, n * 4 + 3],
            siblings=[[n * 4, n * 4 + 1], [n * 4 + 2, n * 4 + 3]],
            memory_mb=4096,
            socket=n,
            pages=[NumaPages(size_kb=4, total=524_288), NumaPages(size_kb=2048, total=1024)],
        )
        for n in range(rng.choice((0, 1, 2)))
    ]
    return HostFacts(
        inventories={
            name: _inventory(rng, rng.randint(0, total))
            for name, total in totals.items()
            if rng.random() < 0.9
        },
        traits=_few(rng, TRAITS, 3),
        location=rng.choice(('', f'site.room-{number % 2}.rack-{number % 3}')),
        numa=cells,
        devices=[DevicePool(vendor_id='8086', product_id='1572', count=2, free=rng.randint(0, 2))],
        hypervisor=Hypervisor(
            type=rng.choice(('', 'QEMU', 'kvm')),
            version=rng.choice((0, 6_000_000, 8_002_000)),
            host_ip=rng.choice(('', f'10.0.{number % 2}.{number}')),
            cpu_info=rng.choice(('', '{"vendor": "Intel"}', {'vendor': 'Intel'})),
            supported=rng.choice(([], [['x86_64', 'kvm', 'hvm']])),
            stats=rng.choice(({}, {'io_workload': '3', 'failed_builds': '1'})),
        ),
        metrics={
            **{
                n: ReportedMetric(value=rng.random())
                for n in ('load', 'power')
                if rng.random() < 0.7
            },
            IO_WORKLOAD: ReportedMetric(value=rng.randint(0, 9)),
        },
    )


def _host(rng: random.Random, number: int) -> HostChange:
    row = HostRow(
        id=number,
        uuid=an_id(1, number),
        name=f'cmp-{number}',
        version=1,
        node=rng.choice(('', f'node-{number}')),
        cell=rng.choice((None, *CELLS)),
        zone=rng.choice((None, *ZONES)),
        facts=_facts(rng, number),
        used={n: rng.randint(0, 3) for n in _few(rng, ('VCPU', 'MEMORY_MB', 'DISK_GB'))},
        foreign={n: rng.randint(0, 3) for n in _few(rng, ('VCPU', 'MEMORY_MB'), 1)},
        disabled='x' if rng.random() < 0.1 else None,
        over_committed=rng.random() < 0.1,
        reported_at=NOW - rng.choice((0, 10, 180, 181, 900)),
    )
    guests = rng.sample(GUESTS, rng.choice((0, 0, 1, 3)))
    placed = [
        Placed(
            an_id(6, number * 10 + i),
            guest,
            number,
            rng.choice((None, *GROUPS)),
            flavor=rng.choice((None, *FLAVORS)),
            member=(None, *MEMBERS)[(number + i) % 4],
        )
        for i, guest in enumerate(guests)
    ]
    return HostChange(provider_id=number, row=row, placed=placed)


def a_cloud(rng: random.Random) -> tuple[list[HostChange], list[Aggregate]]:
    """Return up to ten hosts of any kind and condition, and three aggregates."""
    hosts = [_host(rng, number) for number in range(1, rng.choice((1, 3, 7, 10)) + 1)]
    aggregates = [
        Aggregate(
            id=i + 1,
            uuid=an_id(5, i),
            name=name,
            hosts=_few(rng, NAMES, 8),
            metadata=dict(rng.choice(METADATA)),
        )
        for i, name in enumerate(('gold', 'silver', 'lead'))
    ]
    return hosts, aggregates


def a_table(hosts: list[HostChange], aggregates: list[Aggregate]) -> HostTable:
    """Return the cloud as a table."""
    return HostTable.build(hosts, aggregates, {}, (), NOW)


def table_of(
    hosts: Mapping[str, Mapping[str, int] | HostFacts], aggregates: Iterable[Aggregate] = ()
) -> HostTable:
    """Return a table of hosts that are enabled, empty, and reported just now, in order.

    :param hosts: name -> total amounts by resource class, or all that the host reported
    :param aggregates: aggregates, whose members are named hosts
    """
    changes = [
        HostChange(
            provider_id=number,
            row=HostRow(
                id=number,
                uuid=an_id(1, number),
                name=name,
                version=1,
                reported_at=NOW,
                facts=description
                if isinstance(description, HostFacts)
                else HostFacts(
                    inventories={key: Inventory(total=total) for key, total in description.items()}
                ),
            ),
        )
        for number, (name, description) in enumerate(hosts.items(), 1)
    ]
    return a_table(changes, list(aggregates))


def _chosen(rng: random.Random, words: dict[str, tuple[str, ...]], share: float) -> dict[str, str]:
    return {key: rng.choice(values) for key, values in words.items() if rng.random() < share}


def _group(rng: random.Random) -> GroupRef:
    """Return a group with a policy of Nova's, or with a set of them at any level."""
    group = GroupRef(
        uuid=rng.choice(GROUPS),
        policy=rng.choice(list(Policy)),
        max_per_host=rng.choice((1, 2)),
        members=_few(rng, GUESTS),
    )
    # What else there is of a cloud is as it was before groups had sets of policies.
    group_rng = random.Random(repr(group))
    if group_rng.random() < 0.6:
        return group
    some = PolicySet(policies=group_rng.sample(POLICIES, 2), subgroups={'all': ['web', 'db']})
    member = group_rng.choice((None, *MEMBERS))
    return msgspec.structs.replace(group, policy=None, member=member, policies=some)


def a_spec(rng: random.Random) -> RequestSpec:
    """Return a request for a few things of any kind."""
    fields: dict[str, object] = {
        'availability_zone': rng.choice(ZONES),
        'required_traits': _few(rng, TRAITS),
        'forbidden_traits': _few(rng, TRAITS),
        'any_traits': [list(TRAITS[:2])],
        'member_of': [['gold', 'silver']],
        'forbidden_aggregates': ['lead'],
        'ignore_hosts': _few(rng, NAMES, 3),
        'force_hosts': _few(rng, NAMES, 3),
        'force_nodes': ['node-2', 'node-3'],
        'destination': Destination(cell=rng.choice(CELLS), aggregates=[['gold']]),
        'same_host': _few(rng, GUESTS, 3),
        'different_host': _few(rng, GUESTS, 3),
        'group': _group(rng),
        'user_id': 'user',
        'volume_backed': True,
    }
    chosen_fields = {name: value for name, value in fields.items() if rng.random() < 0.2}
    return RequestSpec(
        resources={
            'VCPU': rng.randint(1, 3),
            'MEMORY_MB': rng.choice((1, 512, 4096)),
            **({'CUSTOM_X': 1} if rng.random() < 0.1 else {}),
        },
        project_id=rng.choice((None, *PROJECTS)),
        purpose=rng.choice((Purpose.CREATE, Purpose.CREATE, *Purpose)),
        flavor=Flavor(name=rng.choice(('', *FLAVORS)), extra_specs=_chosen(rng, EXTRA_SPECS, 0.15)),
        image=Image(uuid=rng.choice((None, an_id(3, 1))), properties=_chosen(rng, PROPERTIES, 0.3)),
        hints={key: [value] for key, value in _chosen(rng, HINTS, 0.15).items()},
        **chosen_fields,  # type: ignore[arg-type]
    )
