# SPDX-License-Identifier: Apache-2.0
"""Refusals of ``bench decide --numa``: pinned cells and eight devices that no host has together.

Every host has more than eight devices free in all, a fifth of them in the wrong place, and the
processors of the requested cells: by amounts, by cells and by devices each host would do.
"""

import argparse
import time

import msgspec
import numpy as np

from bench import Result, inside
from gantt import plugin_loader
from gantt.core.messages import base
from gantt.core.messages.layout import Layout
from gantt.core.messages.report import DevicePool, NumaCell
from gantt.core.messages.request import Flavor, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.place import place
from gantt.core.resources.host import HostChange, HostFacts
from gantt.core.table.host_table import HostTable

REPEATS, WARM = 256, 16
NAMES = 8
SOCKETS = 'COMPUTE_SOCKET_PCI_NUMA_AFFINITY'
#: Free devices by cell, then on no cell that is known; and a cell whose processors are all taken.
SPREADS: list[tuple[tuple[int, ...], int, int | None]] = [
    ((4, 3), 2, None),
    ((8, 2), 0, 0),
    ((7, 0), 2, None),
    ((3, 2, 2, 0), 2, None),
]
#: Extra specs beside dedicated processors: devices, cells and thread policies.
KINDS: list[dict[str, str]] = [
    {'pci_passthrough:alias': 'gpu:8'},
    {'pci_passthrough:alias': 'gpu:8', 'hw:cpu_thread_policy': 'isolate'},
    {'pci_passthrough:alias': 'gpu:8', 'hw:pci_numa_affinity_policy': 'socket'},
    {'pci_passthrough:alias': ','.join(f'gpu-{n}' for n in range(NAMES))},
    {'pci_passthrough:alias': 'gpu:4,gpu-0:4', 'hw:emulator_threads_policy': 'isolate'},
]


def aliases() -> str:
    """Return the option: eight names for a device, and one more."""
    names = ['gpu', *(f'gpu-{n}' for n in range(NAMES))]
    entries = [{'name': n, 'vendor_id': '10de', 'numa_policy': 'required'} for n in names]
    return msgspec.json.encode(entries).decode()


def cells(spread: tuple[tuple[int, ...], int, int | None]) -> list[NumaCell]:
    """Return as many cells as the devices are spread over, two on a socket at most."""
    free, _, full = spread
    two = inside.cells(200)
    cell_list = []
    for number in range(len(free)):
        shift = number // 2 * 2 * len(two[0].pinned_cpus)
        cell = two[number % 2]
        cpus = [cpu + shift for cpu in cell.pinned_cpus]
        cell_list.append(
            msgspec.structs.replace(
                cell,
                id=number,
                pinned_cpus=cpus,
                used_pinned_cpus=cpus if number == full else [],
                siblings=[[cpu + shift for cpu in core] for core in cell.siblings],
                socket=number * 2 // len(free),
            )
        )
    return cell_list


def pools(spread: tuple[tuple[int, ...], int, int | None], products: int) -> list[DevicePool]:
    """Return the free devices, of one or two products."""
    free, nowhere, _ = spread
    pool_list = []
    for node, count in [*enumerate(free), (None, nowhere)]:
        for product in range(products):
            share = count // products + (product < count % products)
            pool_list.append(
                DevicePool(
                    vendor_id='10de',
                    product_id=f'1eb{product}',
                    address=f'0000:{0 if node is None else node + 1}{product}:00.0',
                    numa_node=node,
                    count=share + 2,
                    free=share,
                )
            )
    return pool_list


def patterns(rng: np.random.Generator) -> list[tuple[HostFacts, list[Layout]]]:
    """Return hosts with guests already, between few and many."""
    inventories = {name: Inventory(total=2 * total) for name, total in inside.AMOUNTS.items()}
    pairs = []
    for number in range(inside.PATTERNS):
        spread = SPREADS[number % len(SPREADS)]
        facts = HostFacts(
            inventories=inventories,
            traits=[SOCKETS],
            numa=cells(spread),
            devices=pools(spread, 1 + number // 4 % 2),
        )
        pairs.append((facts, inside.some_layouts(facts, int(rng.integers(0, 6)), rng)))
    return pairs


def a_request(number: int) -> SelectDestinations:
    """Return the request of a number; every other one has two cells, if two may have devices."""
    specs = dict(KINDS[number % len(KINDS)])
    if number // len(KINDS) % 2:
        specs['hw:numa_nodes'] = '2'
    apart = 'hw:emulator_threads_policy' in specs
    return SelectDestinations(
        request_id=base.derived_id('bench', 'refused', number),
        spec=RequestSpec(
            resources={'PCPU': 4 + apart, 'MEMORY_MB': 4096, 'DISK_GB': 20},
            flavor=Flavor(extra_specs=inside.PINNED | specs),
        ),
        consumers=[inside.an_id(4, number)],
    )


def run(args: argparse.Namespace, placed: Result) -> Result:
    """Return the bench's result of placements, with refusals beside it: how long they take.

    The audit counts those of another filter, and requests that were not refused.
    """
    rng = np.random.default_rng(args.seed)
    world: list[HostChange] = inside.hosts(args.hosts, rng, patterns(rng))
    table = HostTable.build(world, [], {}, (), inside.NOW)
    pipeline = plugin_loader.load_pipeline(options={'pci_aliases': aliases()})
    spent, wrong = [], 0
    for number in range(WARM + (32 * args.rounds or REPEATS)):
        request = a_request(number)
        started = time.perf_counter()
        decision = place(table, request, pipeline, seed=number, decision_id=request.request_id)
        if number >= WARM:
            spent.append((time.perf_counter() - started) * 1e3)
        removed = {
            verdicts.name: verdicts.removed
            for verdicts in decision.members[0].filters
            if verdicts.removed
        }
        wrong += removed != {'NUMATopologyFilter': args.hosts}
    conditions = {
        'refused': len(spent),
        'refused_p50_ms': round(float(np.median(spent)), 3),
        'refused_p99_ms': round(float(np.percentile(spent, 99)), 3),
        'refused_maximum_ms': round(max(spent), 3),
        'refused_reason': decision.reason,
    }
    return msgspec.structs.replace(
        placed, conditions=placed.conditions | conditions, audit=placed.audit + wrong
    )
