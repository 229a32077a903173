# SPDX-License-Identifier: Apache-2.0
"""Layouts of one host that together hold what there is but once: what an audit looks for."""

from collections import Counter
from collections.abc import Iterable, Iterator

from gantt.core.messages.layout import CellLayout, Layout
from gantt.core.messages.report import NumaCell
from gantt.core.resources.host import HostFacts
from gantt.core.topology.free import BASE_KB_MAX, FreeCell, key_of, numbers_of


def doubled(host: str, layouts: Iterable[tuple[str, Layout]]) -> Iterator[str]:
    """A line for each pair of claims that have a processor of the host in common.

    :param layouts: id of a claim and its layout, ascending by the id
    """
    holders: dict[int, str] = {}
    for claim_id, layout in layouts:
        mine: dict[str, list[int]] = {}
        for cell in layout.cells:
            for cpu in numbers_of(cell.held):
                other = holders.setdefault(cpu, claim_id)
                if other != claim_id:
                    mine.setdefault(other, []).append(cpu)
        for other, cpus in mine.items():
            cpus_text = ', '.join(map(str, sorted(cpus)))
            yield f'{host}: processors {cpus_text} are held by claims {other} and {claim_id}'


def overdrawn(host: str, facts: HostFacts, layouts: Iterable[Layout]) -> Iterator[str]:
    """A line for each kind of pages of a cell, and each pool of devices, given out too often.

    Measured by all that the host has, whoever else has some of it: what others took
    since is the world's doing.  So are cells and devices that are gone.
    """
    pages: Counter[tuple[int, int]] = Counter()
    devices: Counter[str] = Counter()
    for layout in layouts:
        for cell in layout.cells:
            pages[cell.cell, _size(cell)] += cell.memory_mb * 1024
        for device in layout.devices:
            devices[device.pool] += device.count
    cells = {cell.id: cell for cell in facts.numa}
    for (number, size), taken in sorted(pages.items()):
        if number in cells:
            yield from _pages(host, cells[number], size, taken)
    have: Counter[str] = Counter()
    for pool in facts.devices:
        have[key_of(pool)] += max(pool.count, pool.free)
    for pool in facts.devices:
        taken, there = devices.pop(key_of(pool), 0), have[key_of(pool)]
        if taken > there:
            name = ' '.join(filter(None, (pool.vendor_id, pool.product_id, pool.address)))
            yield f'{host}: of devices {name} claims have {taken}, there are {there}'


def _size(cell: CellLayout) -> int:
    """Size in KiB of the pages that hold its memory; 0: ordinary, and all of it; -1: promised."""
    if cell.page_kb > BASE_KB_MAX:
        return cell.page_kb
    return 0 if cell.page_kb or cell.pins else -1


def _pages(host: str, cell: NumaCell, size: int, taken: int) -> Iterator[str]:
    """:param taken: KiB in pages of that size"""
    if size < 0:
        return  # may be over-committed
    if size:
        there = sum(pages.total for pages in cell.pages if pages.size_kb == size)
        need = -(-taken // size)
        if need > there and there:
            yield (
                f'{host}: of pages of {size} KiB of NUMA cell {cell.id} claims have {need}, '
                f'there are {there}'
            )
        return
    base = FreeCell(cell, 0, 1.0, 1.0).base_mb
    if taken > base * 1024:
        yield (
            f'{host}: of the ordinary memory of NUMA cell {cell.id} claims have '
            f'{taken // 1024} MiB, there are {base}'
        )
