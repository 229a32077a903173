# SPDX-License-Identifier: Apache-2.0
"""The check whether a demand fits a host, with its layout, and whether layouts overlap.

The masks of the pipeline are necessary conditions of it (exact for plain resources, and
compared with it by tests), and the compute side repeats it before a guest starts.  Cells,
pages and devices of the host are parameters as well, so that a demand for them is
checked in the same place.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gantt.core.messages.layout import CellLayout, Layout
from gantt.core.messages.report import DevicePool, NumaCell
from gantt.core.messages.resource_classes import Inventory, format_amount
from gantt.core.resources.host import HostFacts
from gantt.core.topology.free import (
    BASE_PAGE_KB_MAX,
    FreeCell,
    FreeTopology,
    pool_key,
    processor_numbers,
)


class Problem(msgspec.Struct, frozen=True):
    """An obstacle of a demand.

    :ivar kind: missing | capacity | min_unit | max_unit | step_size | inside
    :ivar need: the requested amount
    :ivar have: the amount that is free, or the bound that was violated
    :ivar text: of kind ``inside``: the description
    """

    resource_class: str
    kind: str
    need: int
    have: int
    text: str = ''

    @property
    def lack(self) -> int:
        """Amount by which the demand would have to be smaller; 0 if that does not help."""
        return self.need - self.have if self.kind in ('capacity', 'max_unit') else 0

    def __str__(self) -> str:
        need = format_amount(self.resource_class, self.need)
        have = format_amount(self.resource_class, self.have)
        match self.kind:
            case 'inside':
                return self.text
            case 'missing':
                return f'the host has no {self.resource_class}'
            case 'capacity':
                return f'too little free {self.resource_class} (need {need}, has {have})'
            case 'max_unit':
                return f'{self.resource_class}: at most {have} in one piece, need {need}'
            case 'min_unit':
                return f'{self.resource_class}: at least {have} in one piece, need {need}'
        return f'{self.resource_class}: only multiples of {have}, need {need}'


class Fit(msgspec.Struct, frozen=True):
    """The result of the check.

    :ivar problems: empty if the demand fits
    """

    ok: bool
    problems: list[Problem] = []

    @property
    def reason(self) -> str:
        """The problems as one line, '' if the demand fits."""
        return '; '.join(map(str, self.problems))


def fit(
    demand: Mapping[str, int],
    inventories: Mapping[str, Inventory],
    used: Mapping[str, int],
    foreign: Mapping[str, int],
    numa: Sequence[NumaCell] | None = None,
    devices: Sequence[DevicePool] | None = None,
    layout: Layout | None = None,
    taken: Iterable[Layout] = (),
) -> Fit:
    """Return whether ``demand`` fits beside ``used`` and ``foreign``, with its layout.

    :param demand: class -> amount, each in one piece
    :param used: class -> use by claims
    :param foreign: class -> use outside claims
    :param numa: cells of the host; plain amounts do not depend on them
    :param devices: device pools of the host, likewise
    :param layout: cells, cores, pages and devices of the demand
    :param taken: layouts of other claims
    """
    problems = []
    for name, amount in demand.items():
        inventory = inventories.get(name)
        if inventory is None:
            problems.append(Problem(name, 'missing', amount, 0))
            continue
        unit_problem = inventory.unit_problem(amount)
        if unit_problem is not None:
            problems.append(Problem(name, unit_problem[0], amount, unit_problem[1]))
        free = inventory.cap - used.get(name, 0) - foreign.get(name, 0)
        if amount > free:
            problems.append(Problem(name, 'capacity', amount, free))
    if layout is not None:
        why_not = FreeTopology(numa or (), devices or (), inventories, taken).first_obstacle(layout)
        if why_not:
            problems.append(Problem('', 'inside', 0, 0, why_not))
    return Fit(not problems, problems)


def doubled_layouts(host: str, layouts: Iterable[tuple[str, Layout]]) -> Iterator[str]:
    """Yield a line for each pair of claims that have a processor of the host in common.

    :param layouts: id of a claim and its layout, ascending by the id
    """
    holders: dict[int, str] = {}
    for claim_id, layout in layouts:
        common_cpus: dict[str, list[int]] = {}
        for cell in layout.cells:
            for cpu in processor_numbers(cell.held):
                other = holders.setdefault(cpu, claim_id)
                if other != claim_id:
                    common_cpus.setdefault(other, []).append(cpu)
        for other, cpus in common_cpus.items():
            cpus_text = ', '.join(map(str, sorted(cpus)))
            yield f'{host}: processors {cpus_text} are held by claims {other} and {claim_id}'


def over_allocated_parts(host: str, facts: HostFacts, layouts: Iterable[Layout]) -> Iterator[str]:
    """Yield a line for each page size of a cell, and each device pool, that is over-allocated.

    Compared with all that the host has, whatever use outside of claims there is: later use by
    others is not an error of the claims.  Nor are cells and devices that no longer exist.
    """
    pages: Counter[tuple[int, int]] = Counter()
    devices: Counter[str] = Counter()
    for layout in layouts:
        for cell in layout.cells:
            pages[cell.cell, _page_size_kb(cell)] += cell.memory_mb * 1024
        for device in layout.devices:
            devices[device.pool] += device.count
    cells = {cell.id: cell for cell in facts.numa}
    for (number, size), taken in sorted(pages.items()):
        if number in cells:
            yield from _over_allocated_pages(host, cells[number], size, taken)
    pool_counts: Counter[str] = Counter()
    for pool in facts.devices:
        pool_counts[pool_key(pool)] += max(pool.count, pool.free)
    for pool in facts.devices:
        taken, pool_count = devices.pop(pool_key(pool), 0), pool_counts[pool_key(pool)]
        if taken > pool_count:
            name = ' '.join(filter(None, (pool.vendor_id, pool.product_id, pool.address)))
            yield f'{host}: of devices {name} claims have {taken}, there are {pool_count}'


def _page_size_kb(cell: CellLayout) -> int:
    """Return the page size in KiB of a cell's memory; 0: ordinary; -1: may be over-committed."""
    if cell.page_kb > BASE_PAGE_KB_MAX:
        return cell.page_kb
    return 0 if cell.page_kb or cell.pins else -1


def _over_allocated_pages(host: str, cell: NumaCell, size: int, taken: int) -> Iterator[str]:
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
