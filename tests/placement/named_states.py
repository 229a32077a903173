# SPDX-License-Identifier: Apache-2.0
"""Which state the files of tests need, by the names of fixtures that stand in them."""

from tests.placement.states import SHARES, Allocation, Provider, State, stock

_USER, _PROJECT = '{USER_ID}', '{PROJECT_ID}'

#: One provider; two consumers of one user and a third of another have some of it.
THREE_CONSUMERS = State(
    providers=(
        Provider(
            'RP_UUID',
            '{RP_NAME}',
            {
                'DISK_GB': stock(2048, step_size=10, min_unit=10, max_unit=1000),
                'VCPU': 10,
            },
        ),
    ),
    allocations=(
        Allocation('RP_UUID', {'DISK_GB': 1000}, 'CONSUMER_0', _USER, _PROJECT),
        Allocation('RP_UUID', {'VCPU': 6}, 'CONSUMER_ID', _USER, _PROJECT),
        Allocation(
            'RP_UUID', {'DISK_GB': 20, 'VCPU': 1}, 'ALT_CONSUMER_ID', '{ALT_USER_ID}', _PROJECT
        ),
    ),
)

_HOST = {'VCPU': stock(24, allocation_ratio=16.0), 'MEMORY_MB': stock(131072, allocation_ratio=1.5)}
_DISK = {'DISK_GB': stock(2000, reserved=100)}

#: Two hosts with two NUMA nodes and a device at each; one has disk, two pools of disk serve both.
SHARED_STORAGE = State(
    providers=(
        Provider(
            *('CN1_UUID', 'cn1', _HOST, ('HW_CPU_X86_SSE', 'HW_CPU_X86_SSE2')),
            aggregates=('AGG_UUID',),
        ),
        Provider('CN2_UUID', 'cn2', _HOST | _DISK, aggregates=('AGG_UUID',)),
        Provider('SS_UUID', 'ss', _DISK, (SHARES,), aggregates=('AGG_UUID',)),
        Provider('SS2_UUID', 'ss2', _DISK, (SHARES,), aggregates=('AGG_UUID',)),
        *(
            Provider(f'NUMA{host}_{n}_UUID', f'numa{host}_{n}', parent=f'CN{host}_UUID')
            for host in (1, 2)
            for n in (1, 2)
        ),
        *(
            Provider(
                f'PF{host}_{n}_UUID',
                f'pf{host}_{n}',
                {'SRIOV_NET_VF': 8},
                parent=f'NUMA{host}_{n}_UUID',
            )
            for host in (1, 2)
            for n in (1, 2)
        ),
    )
)

#: Two hosts that have all their processors in NUMA nodes; pools of disk for both hosts, and for
#: one node.
NUMA_AND_POOLS = State(
    providers=(
        Provider('CN1_UUID', 'cn1', aggregates=('AGGA_UUID',)),
        Provider('CN2_UUID', 'cn2', aggregates=('AGGA_UUID', 'AGGB_UUID')),
        Provider('SS1_UUID', 'ss1', _DISK, (SHARES,), aggregates=('AGGA_UUID',)),
        Provider('SS2_UUID', 'ss2', _DISK, (SHARES,), aggregates=('AGGC_UUID',)),
        *(
            Provider(
                f'NUMA{host}_{n}_UUID',
                f'numa{host}_{n}',
                {'VCPU': stock(24, allocation_ratio=16.0)},
                parent=f'CN{host}_UUID',
                aggregates=('AGGC_UUID',) if (host, n) == (1, 1) else (),
            )
            for host in (1, 2)
            for n in (1, 2)
        ),
    )
)


def _numa_and_devices(first: str = '', second: str = '') -> tuple[Provider, ...]:
    """A host of NUMA nodes with devices and agents, and a plain one with three cards.

    :param first, second: the variables of their parents
    """
    pool = Provider('SS1_UUID', 'ss1', {'DISK_GB': 2000}, (SHARES,), aggregates=('AGGA_UUID',))
    first_host = Provider(
        *('CN1_UUID', 'cn1', {}, ('COMPUTE_VOLUME_MULTI_ATTACH',), first),
        aggregates=('AGGA_UUID',),
    )
    nodes = (
        Provider(
            'NUMA0_UUID',
            'numa0',
            {'VCPU': 4, 'MEMORY_MB': stock(2048, min_unit=512, step_size=256)},
            ('HW_NUMA_ROOT',),
            'CN1_UUID',
        ),
        Provider(
            'NUMA1_UUID',
            'numa1',
            {'VCPU': 4, 'MEMORY_MB': stock(2048, min_unit=256, max_unit=1024)},
            ('HW_NUMA_ROOT', 'CUSTOM_FOO'),
            'CN1_UUID',
        ),
    )
    devices = (
        Provider('FPGA0_UUID', 'fpga0', {'FPGA': 1}, parent='NUMA0_UUID'),
        Provider('PGPU0_UUID', 'pgpu0', {'VGPU': 8}, parent='NUMA0_UUID'),
        Provider('FPGA1_0_UUID', 'fpga1_0', {'FPGA': 1}, parent='NUMA1_UUID'),
        Provider('FPGA1_1_UUID', 'fpga1_1', {'FPGA': 1}, parent='NUMA1_UUID'),
    )
    width = 'NET_BW_EGR_KILOBIT_PER_SEC'
    agents = (
        Provider('SRIOV_AGENT_UUID', 'sriov_agent', {}, ('CUSTOM_VNIC_TYPE_DIRECT',), 'CN1_UUID'),
        *(
            Provider(
                f'ESN{n}_UUID',
                f'esn{n}',
                {width: 10000 * n},
                (f'CUSTOM_PHYSNET{n}',),
                'SRIOV_AGENT_UUID',
            )
            for n in (1, 2)
        ),
        Provider('OVS_AGENT_UUID', 'ovs_agent', {}, ('CUSTOM_VNIC_TYPE_NORMAL',), 'CN1_UUID'),
        Provider('BR_INT_UUID', 'br_int', {width: 1000}, ('CUSTOM_PHYSNET0',), 'OVS_AGENT_UUID'),
    )
    two = Provider(
        'CN2_UUID',
        'cn2',
        {
            'VCPU': 8,
            'MEMORY_MB': stock(2048, min_unit=1024, step_size=128),
            'DISK_GB': 1000,
        },
        ('CUSTOM_FOO',),
        second,
        ('AGGA_UUID',),
    )
    cards = tuple(
        Provider(f'NIC{n}_UUID', f'nic{n}', {}, ('CUSTOM_HW_NIC_ROOT',), 'CN2_UUID')
        for n in (1, 2, 3)
    )
    # Card, functions of it, and functions on offer of each; they take turns on two networks.
    functions = tuple(
        Provider(
            f'PF{card}_{n}_UUID',
            f'pf{card}_{n}',
            {'CUSTOM_VF': amount},
            (f'CUSTOM_PHYSNET{2 - n % 2}',),
            f'NIC{card}_UUID',
        )
        for card, count, amount in ((1, 2, 4), (2, 4, 2), (3, 1, 8))
        for n in range(1, count + 1)
    )
    return (pool, first_host, *nodes, *devices, *agents, two, *cards, *functions)


_SOME_PROCESSORS = (
    Allocation('NUMA0_UUID', {'VCPU': 2}),
    Allocation('CN2_UUID', {'VCPU': 3}),
)
NUMA_AND_DEVICES = State(providers=_numa_and_devices(), allocations=_SOME_PROCESSORS)

#: The same below a tree of three empty providers.
DEEP_TREE = State(
    providers=(
        Provider('GRANDPARENT_UUID', 'gp1'),
        Provider('PARENT1_UUID', 'p1', parent='GRANDPARENT_UUID'),
        Provider('PARENT2_UUID', 'p2', parent='GRANDPARENT_UUID'),
        *_numa_and_devices('PARENT1_UUID', 'PARENT2_UUID'),
    ),
    allocations=_SOME_PROCESSORS,
)

#: Three hosts that are alike.
LOCAL_STORAGE = State(
    providers=tuple(
        Provider(f'CN{n}_UUID', f'cn{n}', {'VCPU': 24, 'MEMORY_MB': 131072, 'DISK_GB': 2000})
        for n in (1, 2, 3)
    )
)

#: Three hosts that lack different things, and pools of disk and of network that serve some.
HOSTS_AND_POOLS = State(
    providers=(
        Provider(
            'CN_LEFT',
            'cn_left',
            {
                'VCPU': 8,
                'MEMORY_MB': 4096,
                'DISK_GB': 500,
                'VGPU': 8,
                'SRIOV_NET_VF': 8,
                'CUSTOM_NET_MBPS': 4000,
            },
            (
                'HW_CPU_X86_AVX',
                'HW_CPU_X86_AVX2',
                'HW_GPU_API_DXVA',
                'HW_NIC_DCB_PFC',
                'CUSTOM_FOO',
            ),
            aggregates=('AGGA',),
        ),
        Provider(
            'CN_MIDDLE',
            'cn_middle',
            {'VCPU': 8, 'MEMORY_MB': 4096, 'SRIOV_NET_VF': 8, 'CUSTOM_NET_MBPS': 4000},
            ('HW_CPU_X86_AVX', 'HW_CPU_X86_AVX2', 'HW_CPU_X86_SSE', 'HW_NIC_ACCEL_TLS'),
            aggregates=('AGGA', 'AGGB'),
        ),
        Provider(
            'CN_RIGHT',
            'cn_right',
            {'VCPU': 8, 'MEMORY_MB': 4096, 'DISK_GB': 500, 'VGPU': stock(8, max_unit=2)},
            ('HW_CPU_X86_MMX', 'HW_GPU_API_DXVA', 'CUSTOM_DISK_SSD'),
            aggregates=('AGGB', 'AGGC'),
        ),
        Provider(
            *('SHR_DISK_1', 'shr_disk_1', {'DISK_GB': 1000}, (SHARES, 'CUSTOM_DISK_SSD')),
            aggregates=('AGGA',),
        ),
        Provider(
            *('SHR_DISK_2', 'shr_disk_2', {'DISK_GB': 1000}, (SHARES,)),
            aggregates=('AGGA', 'AGGB'),
        ),
        Provider(
            'SHR_NET',
            'shr_net',
            {'SRIOV_NET_VF': 16, 'CUSTOM_NET_MBPS': 40000},
            (SHARES,),
            aggregates=('AGGC',),
        ),
    )
)

_NORMAL = 'CUSTOM_VNIC_TYPE_NORMAL'
_DIRECT = (
    'CUSTOM_VNIC_TYPE_DIRECT',
    'CUSTOM_VNIC_TYPE_DIRECT_PHYSICAL',
    'CUSTOM_VNIC_TYPE_MACVTAP',
)


def _width(amount: int) -> dict[str, int]:
    return {'NET_BW_EGR_KILOBIT_PER_SEC': amount, 'NET_BW_IGR_KILOBIT_PER_SEC': amount}


def _host_with_agents(
    host: str, networks: tuple[str, ...], bridge: int, port: int
) -> tuple[Provider, ...]:
    """A host with Neutron's two agents, each with one device on each of the networks.

    :param bridge: kbit/s of a bridge
    :param port: kbit/s of a port
    """
    return (
        Provider(host, host, {'VCPU': 8, 'MEMORY_MB': 4096, 'DISK_GB': 500}),
        Provider(
            f'{host}:ovs_agent',
            f'{host}:Open vSwitch agent',
            {'NET_PACKET_RATE_KILOPACKET_PER_SEC': 1000},
            (_NORMAL,),
            host,
        ),
        *(
            Provider(
                f'{host}:br_ex{n or ""}',
                f'{host}:Open vSwitch agent:br-ex{n or ""}',
                _width(bridge),
                (_NORMAL, f'CUSTOM_PHYSNET_{network}'),
                f'{host}:ovs_agent',
            )
            for n, network in zip((0, 2), networks, strict=False)
        ),
        Provider(f'{host}:sriov_agent', f'{host}:NIC Switch agent', {}, _DIRECT, host),
        *(
            Provider(
                f'{host}:pf{n}',
                f'{host}:NIC Switch agent:enp129s0f{n}',
                _width(port),
                (*_DIRECT, f'CUSTOM_PHYSNET_{network}'),
                f'{host}:sriov_agent',
            )
            for n, network in enumerate(networks)
        ),
    )


#: Hosts on a network of two segments: none of them, the first, the second, both but narrow.
SEGMENTS = State(
    providers=(
        *_host_with_agents('compute0', ('OTHER',), 5000, 10000),
        *_host_with_agents('compute1', ('MSN_S1',), 5000, 10000),
        *_host_with_agents('compute2', ('MSN_S2',), 5000, 10000),
        *_host_with_agents('compute3', ('MSN_S1', 'MSN_S2'), 1000, 1000),
    )
)

#: The names are those that the files have.
STATES = {
    'APIFixture': State(),
    'LegacyRBACPolicyFixture': State(),
    'SecureRBACPolicyFixture': State('secure'),
    'OpenPolicyFixture': State('open'),
    'CORSFixture': State('cors'),
    'AllocationFixture': THREE_CONSUMERS,
    'SharedStorageFixture': SHARED_STORAGE,
    'NUMAAggregateFixture': NUMA_AND_POOLS,
    'NUMANetworkFixture': NUMA_AND_DEVICES,
    'DeepNUMANetworkFixture': DEEP_TREE,
    'NonSharedStorageFixture': LOCAL_STORAGE,
    'GranularFixture': HOSTS_AND_POOLS,
    'NeutronQoSMultiSegmentFixture': SEGMENTS,
}
