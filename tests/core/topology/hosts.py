# SPDX-License-Identifier: Apache-2.0
"""Hosts to lay guests out on, and requests for them."""

from typing import Any

from gantt.core.messages.layout import Layout
from gantt.core.messages.report import DevicePool, NumaCell, NumaPages
from gantt.core.messages.request import Flavor, Image, RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.topology_request import TopologyRequest
from gantt.core.topology.free import FreeTopology
from gantt.core.topology.read import Aliases, read, read_option
from gantt.core.topology.search import find_layout

ALIASES = """[
    {"name": "gpu", "vendor_id": "10DE", "product_id": "1eb8"},
    {"name": "near", "vendor_id": "10de", "numa_policy": "required"},
    {"name": "nic", "vendor_id": "8086", "device_type": "type-VF", "numa_policy": "preferred"},
    {"name": "any", "vendor_id": "8086"}, {"name": "any", "vendor_id": "10de"}
]"""
GIB = 1 << 20


def a_cell(number: int = 0, **fields: Any) -> NumaCell:
    """Return a cell of 4 shared, 8 dedicated processors in pairs, 16 GiB, half in 1 GiB pages."""
    base = number * 100
    defaults: dict[str, Any] = {
        'cpus': [base + i for i in range(4)],
        'pinned_cpus': [base + 4 + i for i in range(8)],
        'siblings': [[base + i, base + i + 1] for i in range(0, 12, 2)],
        'memory_mb': 16384,
        'pages': [NumaPages(size_kb=GIB, total=8)],
        'socket': number,
    }
    return NumaCell(id=number, **(defaults | fields))


def a_pool(count: int = 1, node: int | None = 0, **fields: Any) -> DevicePool:
    """Return free devices; a GPU unless stated otherwise."""
    defaults: dict[str, Any] = {'vendor_id': '10de', 'product_id': '1EB8'}
    return DevicePool(count=count, free=count, numa_node=node, **(defaults | fields))


def a_room(
    *cells: NumaCell, devices: Any = (), taken: Any = (), ratio: float = 1.0
) -> FreeTopology:
    """Return the free room of a host of these cells; two plain ones unless stated otherwise."""
    inventories = {
        name: Inventory(total=1, allocation_ratio=ratio) for name in ('VCPU', 'MEMORY_MB')
    }
    return FreeTopology(cells or (a_cell(0), a_cell(1)), devices, inventories, taken)


def aliases() -> Aliases:
    """Return the names of devices that are known."""
    return read_option(ALIASES, 'pci_aliases')


def a_spec(
    specs: dict[str, str] | None = None, image: dict[str, str] | None = None, **resources: int
) -> RequestSpec:
    """Return a request of 4 GiB with these properties of flavor and image."""
    return RequestSpec(
        resources={'MEMORY_MB': 4096} | resources,
        flavor=Flavor(extra_specs=specs or {}),
        image=Image(properties=image or {}),
    )


def a_wish(
    specs: dict[str, str] | None = None, image: dict[str, str] | None = None, **resources: int
) -> TopologyRequest:
    """Return the wish of such a request for the inside of a host."""
    wish = read(a_spec(specs, image, **resources), aliases())
    assert wish is not None
    return wish


def pinned(count: int = 4, **specs: str) -> TopologyRequest:
    """Return a guest of dedicated processors."""
    return a_wish(
        {'hw:cpu_policy': 'dedicated', **{f'hw:{k}': v for k, v in specs.items()}}, PCPU=count
    )


def laid(wish: TopologyRequest, room: FreeTopology, **how: Any) -> Layout:
    """Return the layout of a wish that fits."""
    result = find_layout(wish, room, **how)
    assert result.layout is not None, [str(obstacle) for obstacle in result.obstacles]
    assert room.has_free(result.layout), room.first_obstacle(result.layout)
    return result.layout


def in_the_way(wish: TopologyRequest, room: FreeTopology) -> list[str]:
    """Return the obstacles of a wish that does not fit."""
    result = find_layout(wish, room)
    assert result.layout is None
    return [str(obstacle) for obstacle in result.obstacles]
