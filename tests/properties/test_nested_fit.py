# SPDX-License-Identifier: Apache-2.0
"""What is followed of the tightest devices is what a table made anew has, bit for bit."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.core.candidates.query import GroupQuery, Part
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import SharedPool
from gantt.core.table.host_table import HostTable
from tests.core.builders import NOW, a_change, a_host, an_id
from tests.thorough import examples

HOSTS, EACH = 3, 3
AMOUNTS = ({'VGPU': 100}, {'VGPU': 350}, {'VGPU': 100, 'SRIOV_NET_VF': 2})
STEPS = st.tuples(
    st.sampled_from(('use', 'lay', 'lift', 'gone', 'come', 'host')),
    st.integers(0, HOSTS * EACH - 1),
    st.integers(0, 900),
)


def a_device(number: int, version: int = 1, used: int = 0) -> SharedPool:
    host = number // EACH + 1
    return SharedPool(
        id=100 + number,
        uuid=an_id(number, 12),
        name=f'gpu-{number}',
        version=version,
        inventories={'VGPU': Inventory(total=1000), 'SRIOV_NET_VF': Inventory(total=7)},
        used={'VGPU': used, 'SRIOV_NET_VF': used % 7},
        root=host,
        parent=host,
    )


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(STEPS, max_size=30), st.integers(1, 3), st.booleans())
def test_what_is_followed_is_what_is_found_anew(steps, many, whole):
    hosts = [a_change(a_host(n)) for n in range(1, HOSTS + 1)]
    table = HostTable.build(hosts, [], {}, (), NOW)
    for number in range(HOSTS * EACH):
        table.set_pool(a_device(number))
    parts = [
        Part(
            group=GroupQuery(suffix='a', resources=amounts),
            amounts=tuple(amounts.items()),
            whole=whole and len(amounts) == 1,
        )
        for amounts in AMOUNTS
    ]
    for version, (step, number, amount) in enumerate(steps, 2):
        device = a_device(number, version, amount)
        share = {device.id: {'VGPU': amount}}
        match step:
            case 'use' | 'come':
                table.set_pool(device)
            case 'lay':
                table.pools.add_shares(device.root, f'c-{number}', share)
            case 'lift':
                table.pools.forget(device.root, f'c-{number}')
            case 'gone':
                table.remove_pool(device.id)
            case 'host':
                row = msgspec.structs.replace(a_host(HOSTS + version), id=50 + version)
                table.apply(a_change(row))
        anew = table.copy()
        for part in parts:
            followed = table.nested_tightest(part, many).tolist()
            assert followed == anew.nested_tightest(part, many).tolist()
