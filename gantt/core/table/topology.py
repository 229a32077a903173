# SPDX-License-Identifier: Apache-2.0
"""The inside of hosts: what is left there, and which hosts may have room for a guest.

Of each cell there are so many numbers as it takes to say whether a cell of a guest may
fit there at all; of each kind of device how many are free: the necessary conditions over
all hosts.  A row is written when its host's facts, or the layouts on it, change.

Invariant: columns and room of a row say what its facts and the layouts there leave.
"""

import functools
from collections.abc import Mapping

import numpy as np

from gantt.core.messages.layout import Layout
from gantt.core.messages.topology_request import GuestCell, ThreadPolicy, Wish
from gantt.core.resources.host import HostFacts, HostRow, Placed
from gantt.core.table.columns import BY_CELL, BoolArray, Columns
from gantt.core.topology import cores
from gantt.core.topology.devices import matches
from gantt.core.topology.free import BASE_KB_MAX, FreeCell, FreeTopology, Pool, room_of

#: Cells of a host that have columns; one with more passes whatever they would say.
CELLS = 8
#: Kinds of devices that have columns; further ones count as whatever is asked for.
KINDS_MAX = 256
#: The column that counts free processors by thread policy.
BY_POLICY = {
    ThreadPolicy.PREFER: 'cell_pinned',
    ThreadPolicy.ISOLATE: 'cell_isolated',
    ThreadPolicy.REQUIRE: 'cell_paired',
}
_MOST = 2**31 - 1
_BLANK = (*BY_CELL, 'cell_pages', 'kind_free')
Here = Mapping[str, Placed]


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


class InsideColumns:
    """Rooms by host, made when asked for, and their columns.

    :ivar kinds: codes of kinds of devices and sizes of pages
    """

    def __init__(self) -> None:
        self.kinds = Kinds()
        self._rooms: dict[int, FreeTopology] = {}
        self._with_layouts: set[int] = set()  # providers

    def copy(self) -> 'InsideColumns':
        other = InsideColumns()
        other.kinds, other._with_layouts = self.kinds.copy(), set(self._with_layouts)
        return other

    def room(self, host: HostRow, here: Here) -> FreeTopology:
        """What is left inside of a host: to be read, not to be changed.

        :param here: claim id -> what is placed there
        """
        room = self._rooms.get(host.id)
        if room is None:
            laid = here.values() if host.id in self._with_layouts else ()
            room = self._rooms[host.id] = room_of(host.facts, [p.layout for p in laid])
        return room

    def write(self, columns: Columns, i: int, host: HostRow, here: Here) -> None:
        """Both anew: facts or layouts are others now."""
        self._rooms.pop(host.id, None)
        _write(columns, self.kinds, i, self.room(host, here))

    def facts_changed(
        self, columns: Columns, i: int, host: HostRow, here: Here, old: HostFacts
    ) -> None:
        """The host has new facts: whatever of them is about its inside."""
        new = host.facts
        if old is not new and (
            (old.numa, old.devices) != (new.numa, new.devices)
            or (new.numa and old.inventories != new.inventories)  # for the ratios
        ):
            self.write(columns, i, host, here)

    def layouts_changed(self, columns: Columns, i: int, host: HostRow, here: Here) -> None:
        """Others are placed on the host."""
        has = any(placed.layout is not None for placed in here.values())
        if has or host.id in self._with_layouts:
            (self._with_layouts.add if has else self._with_layouts.discard)(host.id)
            self.write(columns, i, host, here)

    def lay(
        self, columns: Columns, i: int, host: HostRow, here: Here, layout: Layout, is_new: bool
    ) -> None:
        """A pick with a layout was put on the host."""
        room = self._rooms.get(host.id)
        self._with_layouts.add(host.id)
        if room is None or not is_new:
            self.write(columns, i, host, here)
            return
        room.take(layout)
        _write(columns, self.kinds, i, room)

    def forget(self, provider_id: int) -> None:
        """The host is gone."""
        self._rooms.pop(provider_id, None)
        self._with_layouts.discard(provider_id)


def _write(columns: Columns, kinds: Kinds, i: int, room: FreeTopology) -> None:
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


def _figures(cell: FreeCell) -> tuple[int, ...]:
    return (
        *(cores.available(cell, policy) for policy in BY_POLICY),
        min(cell.cpus, cell.cpu_cap - cell.cpu_used),
        min(cell.memory_mb, cell.base_mb, cell.memory_cap - cell.memory_used),
        min(cell.memory_mb, cell.base_left // 1024),
    )


def may_fit(rows: Columns, kinds: Kinds, wish: Wish, at: slice) -> BoolArray:
    """Which hosts may have room for the cells of a wish, by row within ``at``."""
    cells = rows.numa_cells[at]
    mask = cells >= len(wish.cells)
    for (guest, apart), count in _shapes(wish).items():
        here = _has(rows, kinds, wish, guest, apart, at)
        if count == 1:
            mask &= here.any(axis=0) | (cells > CELLS)
        else:
            mask &= (np.count_nonzero(here, axis=0) >= count) | (cells > CELLS)
    return mask


def may_have(rows: Columns, kinds: Kinds, wish: Wish, at: slice) -> BoolArray:
    """Which hosts may have the devices of a wish, wherever in them, by row within ``at``."""
    free = rows.kind_free[:, at]
    mask = np.ones(free.shape[1], np.bool_)
    counts: dict[tuple[int, ...], int] = {}
    for one in wish.devices:
        mine = [c for c, pool in enumerate(kinds.pools, 1) if matches(pool, one)]
        wanted = tuple(c for c in (0, *mine) if c < free.shape[0])
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


def _has(
    rows: Columns, kinds: Kinds, wish: Wish, guest: GuestCell, apart: int, at: slice
) -> BoolArray:
    """Which cells of which hosts may take a cell of the guest.

    :param guest: its ``vcpus`` are only the shared ones
    """
    needs = cores.needs(len(guest.dedicated), apart, wish.thread_policy)
    enough = (getattr(rows, BY_POLICY[policy])[:, at] >= need for policy, need in needs.items())
    mask: BoolArray = functools.reduce(np.logical_and, enough)
    if guest.vcpus:
        mask &= rows.cell_shared[:, at] >= len(guest.vcpus)
    return np.logical_and(mask, _has_memory(rows, kinds, wish.page, guest, at), out=mask)


def _has_memory(rows: Columns, kinds: Kinds, page: str, guest: GuestCell, at: slice) -> BoolArray:
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
    for code, size in enumerate(kinds.sizes):
        if page.isdigit() and int(page) != size or need * 1024 % size:
            continue
        lines = rows.cell_pages[code * CELLS : code * CELLS + mask.shape[0], at]
        mask[: lines.shape[0]] |= lines >= need * 1024 // size
    return mask
