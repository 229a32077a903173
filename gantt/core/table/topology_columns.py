# SPDX-License-Identifier: Apache-2.0
"""What is left inside of each host, as columns: the necessary conditions over all hosts.

Of each cell so many numbers as it takes to say whether a cell of a guest may
fit there at all; of each kind of device how many are free.  A row is written
when its host's facts, or the layouts on it, change.
"""

from gantt.core.messages.topology_request import ThreadPolicy
from gantt.core.table.columns import Columns
from gantt.core.topology import cores
from gantt.core.topology.room import CellRoom, Pool, Room

#: Cells of a host that have columns; one with more passes whatever they would say.
CELLS = 8
#: Kinds of devices that have columns; further ones count as whatever is asked for.
KINDS_MAX = 256
#: Columns with one line per cell; no cell is there where they are below 0.
BY_CELL = (
    'cell_pinned',
    'cell_isolated',
    'cell_paired',
    'cell_shared',
    'cell_memory',
    'cell_base',
)
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


def write(columns: Columns, kinds: Kinds, i: int, room: Room) -> None:
    """The columns of one row."""
    arrays, cells = columns.arrays, room.cells[:CELLS]
    for name in _BLANK:
        arrays[name][:, i] = -1
    arrays['numa_cells'][i] = len(room.cells)
    if cells:
        columns.widen(BY_CELL, len(cells))
    for cell in cells:
        for name, value in zip(BY_CELL, _figures(cell), strict=True):
            columns.arrays[name][cell.index, i] = max(0, min(value, _MOST))
        for size, free in cell.pages.items():
            line = kinds.size_code(size) * CELLS + cell.index
            columns.widen(('cell_pages',), line + 1)
            columns.arrays['cell_pages'][line, i] = max(0, min(free, _MOST))
    for pool in room.pools:
        code = kinds.code_of(pool)
        columns.widen(('kind_free',), code + 1)
        column = columns.arrays['kind_free']
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
