# SPDX-License-Identifier: Apache-2.0
"""What is left inside of each host, as columns: the necessary conditions over all hosts.

Of each cell so many numbers as it takes to say whether a cell of a guest may
fit there at all; of each kind of device how many are free.  A row is written
when its host's facts, or the layouts on it, change.
"""

import functools
from typing import TYPE_CHECKING

import numpy as np

from gantt.core.columns import BoolArray
from gantt.core.topology import cores
from gantt.core.topology.devices import matches
from gantt.core.topology.room import BASE_KB_MAX, CellRoom, Pool, Room
from gantt.core.topology.wish import GuestCell, ThreadPolicy, Wish

if TYPE_CHECKING:
    from gantt.core.host_rows import HostRows

#: Cells of a host that have columns; one with more passes whatever they would say.
CELLS = 8
#: Kinds of devices that have columns; further ones count as whatever is asked for.
KINDS_MAX = 256
#: Columns with one line per cell; no cell is there where they are below 0.
BY_CELL = (
    'cell_pinned', 'cell_isolated', 'cell_paired', 'cell_shared', 'cell_memory', 'cell_base',
)  # fmt: skip
#: The column that counts free processors by thread policy.
BY_POLICY = {
    ThreadPolicy.PREFER: 'cell_pinned',
    ThreadPolicy.ISOLATE: 'cell_isolated',
    ThreadPolicy.REQUIRE: 'cell_paired',
}
_MOST = 2**31 - 1
_BLANK = (*BY_CELL, 'cell_pages', 'kind_free')


class Kinds:
    """Kinds of devices by their code, and sizes of pages by theirs."""

    def __init__(self) -> None:
        self.pools: list[Pool] = []
        self.codes: dict[str, int] = {}
        self.sizes: list[int] = []

    def copy(self) -> 'Kinds':
        other = Kinds()
        other.pools, other.codes = list(self.pools), dict(self.codes)
        other.sizes = list(self.sizes)
        return other

    def code_of(self, pool: Pool) -> int:
        """The code of a pool's kind; 0 is all that came too late for one of its own."""
        key = repr((pool.vendor_id, pool.product_id, sorted(pool.tags.items())))
        code = self.codes.get(key)
        if code is None:
            if len(self.pools) >= KINDS_MAX:
                return 0
            self.pools.append(pool)
            code = self.codes[key] = len(self.pools)
        return code

    def size_code(self, size_kb: int) -> int:
        """The code of a size of pages."""
        if size_kb not in self.sizes:
            self.sizes.append(size_kb)
        return self.sizes.index(size_kb)


def write(rows: 'HostRows', i: int, room: Room) -> None:
    """The columns of one row."""
    arrays, cells = rows.arrays, room.cells[:CELLS]
    for name in _BLANK:
        arrays[name][:, i] = -1
    arrays['numa_cells'][i] = len(room.cells)
    if cells:
        rows.widen(BY_CELL, len(cells))
    for cell in cells:
        for name, value in zip(BY_CELL, _figures(cell), strict=True):
            rows.arrays[name][cell.index, i] = max(0, min(value, _MOST))
        for size, free in cell.pages.items():
            line = rows.kinds.size_code(size) * CELLS + cell.index
            rows.widen(('cell_pages',), line + 1)
            rows.arrays['cell_pages'][line, i] = max(0, min(free, _MOST))
    for pool in room.pools:
        code = rows.kinds.code_of(pool)
        rows.widen(('kind_free',), code + 1)
        column = rows.arrays['kind_free']
        column[code, i] = max(0, column[code, i]) + max(0, pool.free)
    free = sum(max(0, pool.free) for pool in room.pools)
    arrays['free_devices'][i] = min(free, _MOST)


def _figures(cell: CellRoom) -> tuple[int, ...]:
    return (
        *(cores.available(cell, policy) for policy in BY_POLICY),
        min(cell.cpus, cell.cpu_cap - cell.cpu_used),
        min(cell.memory_mb, cell.base_mb, cell.memory_cap - cell.memory_used),
        min(cell.memory_mb, cell.base_left // 1024),
    )


def may_fit(rows: 'HostRows', wish: Wish, at: slice) -> BoolArray:
    """Which hosts may have room for the cells of a wish, by row within ``at``."""
    cells = rows.numa_cells[at]
    mask = cells >= len(wish.cells)
    for (guest, apart), count in _shapes(wish).items():
        here = _has(rows, wish, guest, apart, at)
        if count == 1:
            mask &= here.any(axis=0) | (cells > CELLS)
        else:
            mask &= (np.count_nonzero(here, axis=0) >= count) | (cells > CELLS)
    return mask


def may_have(rows: 'HostRows', wish: Wish, at: slice) -> BoolArray:
    """Which hosts may have the devices of a wish, wherever in them, by row within ``at``."""
    free = rows.kind_free[:, at]
    mask = np.ones(free.shape[1], np.bool_)
    counts: dict[tuple[int, ...], int] = {}
    for one in wish.devices:
        kinds = [c for c, pool in enumerate(rows.kinds.pools, 1) if matches(pool, one)]
        wanted = tuple(c for c in (0, *kinds) if c < free.shape[0])
        counts[wanted] = counts.get(wanted, 0) + one.count
    for codes, count in counts.items():
        # Whoever may only have some of these has none besides them.
        count += sum(n for other, n in counts.items() if set(other) < set(codes))
        mask &= np.maximum(free[list(codes)], 0).sum(axis=0) >= count
    return mask


def _shapes(wish: Wish) -> dict[tuple[GuestCell, int], int]:
    """(a cell of the guest, how many it pins besides) -> how many of the cells are alike."""
    found: dict[tuple[GuestCell, int], int] = {}
    for number, guest in enumerate(wish.cells):
        apart = int(number == 0 and wish.emulator_apart)
        alike = GuestCell(
            tuple(range(guest.shared)), guest.memory_mb, tuple(range(len(guest.dedicated)))
        )
        found[alike, apart] = found.get((alike, apart), 0) + 1
    return found


def _has(rows: 'HostRows', wish: Wish, guest: GuestCell, apart: int, at: slice) -> BoolArray:
    """Which cells of which hosts may take a cell of the guest.

    :param guest: its ``vcpus`` are only the shared ones
    """
    needs = cores.needs(len(guest.dedicated), apart, wish.thread_policy)
    enough = (getattr(rows, BY_POLICY[policy])[:, at] >= need for policy, need in needs.items())
    mask: BoolArray = functools.reduce(np.logical_and, enough)
    if guest.vcpus:
        mask &= rows.cell_shared[:, at] >= len(guest.vcpus)
    return np.logical_and(mask, _has_memory(rows, wish.page, guest, at), out=mask)


def _has_memory(rows: 'HostRows', page: str, guest: GuestCell, at: slice) -> BoolArray:
    need = guest.memory_mb
    if not page and not guest.dedicated:
        return rows.cell_memory[:, at] >= need
    if page in ('', 'small') or (page.isdigit() and int(page) <= BASE_KB_MAX):
        return rows.cell_base[:, at] >= need
    mask: BoolArray = (
        rows.cell_base[:, at] >= need
        if page == 'any'
        else np.zeros(rows.cell_base[:, at].shape, np.bool_)
    )
    for code, size in enumerate(rows.kinds.sizes):
        if page.isdigit() and int(page) != size or need * 1024 % size:
            continue
        lines = rows.cell_pages[code * CELLS : code * CELLS + mask.shape[0], at]
        mask[: lines.shape[0]] |= lines >= need * 1024 // size
    return mask
