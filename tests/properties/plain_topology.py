# SPDX-License-Identifier: Apache-2.0
"""Does it fit inside a host?  By trying everything, with sets and lists, slowly."""

import itertools
from collections.abc import Iterable, Sequence

from gantt.core.messages.report import DevicePool, NumaCell
from gantt.core.messages.topology_request import PciRequest, TopologyRequest


def fits(
    wish: TopologyRequest,
    cells: Sequence[NumaCell],
    pools: Sequence[DevicePool],
    ratio: float = 1.0,
) -> bool:
    """Whether some arrangement of the guest's cells has all that it asks for."""
    for chosen in itertools.permutations(cells, len(wish.cells)):
        alone = all(_cell_fits(wish, number, cell, ratio) for number, cell in enumerate(chosen))
        if alone and _devices_fit(wish, chosen, cells, pools):
            return True
    return False


def _cell_fits(wish: TopologyRequest, number: int, cell: NumaCell, ratio: float) -> bool:
    guest = wish.cells[number]
    shared = len(guest.vcpus) - len(guest.dedicated)
    if shared > len(cell.cpus) or (shared and cell.cpu_used + shared > len(cell.cpus) * ratio):
        return False
    apart = 1 if number == 0 and wish.emulator_apart else 0
    pinned = len(guest.dedicated) + apart
    if not any(_may_pin(wish, cell, cpus, apart) for cpus in _sets_of(cell, pinned)):
        return False
    return _memory_fits(wish, number, cell, ratio)


def _sets_of(cell: NumaCell, count: int) -> Iterable[tuple[int, ...]]:
    free = sorted(set(cell.pinned_cpus) - set(cell.used_pinned_cpus))
    return itertools.permutations(free, count)


def _may_pin(wish: TopologyRequest, cell: NumaCell, cpus: tuple[int, ...], apart: int) -> bool:
    """The last ``apart`` of them are the emulator's, which need no siblings."""
    free = set(cell.pinned_cpus) - set(cell.used_pinned_cpus)

    def core(cpu: int) -> set[int]:
        return next((set(group) for group in cell.siblings if cpu in group), {cpu})

    if wish.thread_policy == 'isolate':
        if any(not core(cpu) <= free for cpu in cpus):
            return False
        return all(core(a).isdisjoint(core(b)) for a, b in itertools.combinations(cpus, 2))
    if wish.thread_policy == 'require':
        return all(len(core(cpu) & free) > 1 for cpu in cpus[: len(cpus) - apart])
    return True


def _memory_fits(wish: TopologyRequest, number: int, cell: NumaCell, ratio: float) -> bool:
    guest = wish.cells[number]
    if guest.memory_mb > cell.memory_mb:
        return False
    if wish.page and not cell.pages:
        return False  # no size of pages can be had where none is listed
    large = {p.size_kb: (p.total - p.reserved - p.used) * p.size_kb for p in cell.pages}
    ordinary = (cell.memory_mb - cell.memory_used_mb) * 1024 - sum(
        p.total * p.size_kb for p in cell.pages
    )
    need = guest.memory_mb * 1024
    if wish.page == '' and not guest.dedicated:
        in_all = cell.memory_mb * 1024 - sum(p.total * p.size_kb for p in cell.pages)
        return need <= in_all and cell.memory_used_mb + guest.memory_mb <= cell.memory_mb * ratio
    by_large = [need <= free for size, free in large.items() if need % size == 0]
    if wish.page in ('', 'small', '4'):
        return need <= ordinary
    if wish.page == 'large':
        return any(by_large)
    if wish.page == 'any':
        return any(by_large) or need <= ordinary
    size = int(wish.page)
    return need % size == 0 and need <= large.get(size, -1)


def _devices_fit(
    wish: TopologyRequest,
    chosen: Sequence[NumaCell],
    cells: Sequence[NumaCell],
    pools: Sequence[DevicePool],
) -> bool:
    """Give each single device that is wanted any of the single ones that there are."""
    wishes = [device for device in wish.devices for _ in range(device.count)]
    there = [pool for pool in pools for _ in range(pool.free)]
    return _give(wishes, there, chosen, cells)


def _give(
    wishes: list[PciRequest],
    there: list[DevicePool],
    chosen: Sequence[NumaCell],
    cells: Sequence[NumaCell],
) -> bool:
    if not wishes:
        return True
    for i, pool in enumerate(there):
        if _will_do(wishes[0], pool, chosen, cells) and _give(
            wishes[1:], there[:i] + there[i + 1 :], chosen, cells
        ):
            return True
    return False


def _will_do(
    wish: PciRequest, pool: DevicePool, chosen: Sequence[NumaCell], cells: Sequence[NumaCell]
) -> bool:
    if not any(spec.vendor_id in ('', pool.vendor_id) for spec in wish.specs):
        return False
    if not chosen or wish.affinity == 'preferred':
        return True
    nodes = [cell.id for cell in chosen]
    if wish.affinity == 'legacy':
        return pool.numa_node is None or pool.numa_node in nodes
    if wish.affinity == 'required':
        return pool.numa_node in nodes
    if pool.numa_node in nodes:
        return True
    if any(cell.socket is None for cell in cells):
        return False
    sockets = {cell.id: cell.socket for cell in cells}
    return sockets.get(pool.numa_node) in [cell.socket for cell in chosen]
