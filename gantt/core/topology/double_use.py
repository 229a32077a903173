# SPDX-License-Identifier: Apache-2.0
"""Audit checks for layouts of one host that take the same resource twice."""

from collections import Counter
from collections.abc import Iterable, Iterator

from gantt.core.messages.layout import CellLayout, Layout
from gantt.core.messages.report import NumaCell
from gantt.core.resources.host import HostFacts
from gantt.core.topology.free import BASE_KB_MAX, FreeCell, key_of, numbers_of


def doubled(host: str, layouts: Iterable[tuple[str, Layout]]) -> Iterator[str]:
    """Yield a line for each pair of claims that have a processor of the host in common.

    :param layouts: id of a claim and its layout, ascending by the id
    """
    holders: dict[int, str] = {}
    for claim_id, layout in layouts:
        common_cpus: dict[str, list[int]] = {}
        for cell in layout.cells:
            for cpu in numbers_of(cell.held):
                other = holders.setdefault(cpu, claim_id)
                if other != claim_id:
                    common_cpus.setdefault(other, []).append(cpu)
        for other, cpus in common_cpus.items():
            cpus_text = ', '.join(map(str, sorted(cpus)))
            yield f'{host}: processors {cpus_text} are held by claims {other} and {claim_id}'


def overdrawn(host: str, facts: HostFacts, layouts: Iterable[Layout]) -> Iterator[str]:
    """Yield a line for each page size of a cell, and each device pool, that is over-allocated.

    Compared with all that the host has, whatever use outside of claims there is: later use by
    others is not an error of the claims.  Nor are cells and devices that no longer exist.
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
    pool_counts: Counter[str] = Counter()
    for pool in facts.devices:
        pool_counts[key_of(pool)] += max(pool.count, pool.free)
    for pool in facts.devices:
        taken, pool_count = devices.pop(key_of(pool), 0), pool_counts[key_of(pool)]
        if taken > pool_count:
            name = ' '.join(filter(None, (pool.vendor_id, pool.product_id, pool.address)))
            yield f'{host}: of devices {name} claims have {taken}, there are {pool_count}'


def _size(cell: CellLayout) -> int:
    """Return the page size in KiB of a cell's memory; 0: ordinary; -1: may be over-committed."""
    if cell.page_kb > BASE_KB_MAX:
        return cell.page_kb
    return 0 if cell.page_kb or cell.pins else -1


def _pages(host: str, cell: NumaCell, size: int, taken: int) -> Iterator[str]:
    """Yield a line if pages of a cell are over-allocated; ``taken``: KiB in pages of the size."""
    if size < 0:
        return  # may be over-committed
    if size:
        page_count = sum(pages.total for pages in cell.pages if pages.size_kb == size)
        pages_taken = -(-taken // size)
        if pages_taken > page_count and page_count:
            yield (
                f'{host}: of pages of {size} KiB of NUMA cell {cell.id} claims have {pages_taken}, '
                f'there are {page_count}'
            )
        return
    base = FreeCell(cell, 0, 1.0, 1.0).base_mb
    if taken > base * 1024:
        yield (
            f'{host}: of the ordinary memory of NUMA cell {cell.id} claims have '
            f'{taken // 1024} MiB, there are {base}'
        )
