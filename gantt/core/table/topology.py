# SPDX-License-Identifier: Apache-2.0
"""The inside of hosts: what is left there, and which hosts may have room for a guest.

Of each cell there are so many numbers as it takes to say whether a cell of a guest may
fit there at all; of each kind of device how many are free at which cell: the necessary
conditions over all hosts, here those of cells and of devices each on their own
(:mod:`gantt.core.table.together` has both).  A row is written when its host's facts, or
the layouts on it, change.

Invariant: columns and room of a row say what its facts and the layouts there leave.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from gantt.core.messages.layout import Layout
from gantt.core.messages.topology_request import DeviceWish, GuestCell, ThreadPolicy, Wish
from gantt.core.resources.host import HostFacts, HostRow, Placed
from gantt.core.table.columns import BY_CELL, BoolArray, Columns, IntArray
from gantt.core.topology import cores
from gantt.core.topology.devices import Known, matches
from gantt.core.topology.free import BASE_KB_MAX, FreeCell, FreeTopology, Kind, Pool, room_of

#: Cells of a host that have columns; one with more passes whatever they would say.
CELLS = 32
#: Cells that the mask of the filter looks at; a host with more is judged with its devices.
CELLS_MASKED = 8
#: Where devices are that are at no cell, and at one that is not known or has no columns.
NOWHERE, ELSEWHERE = CELLS, CELLS + 1
#: Kinds of devices by place that have columns; more count as whatever is asked for, anywhere.
LINES_MAX = 1024
#: Sizes of pages by cell that have columns; more count as pages of whatever size is asked for.
PAGE_LINES_MAX = 256
_ANY_SIZE = 1  # in KiB: it divides every amount, and no host has it beside its usual pages
#: The column that counts free processors by thread policy.
BY_POLICY = {
    ThreadPolicy.PREFER: 'cell_pinned',
    ThreadPolicy.ISOLATE: 'cell_isolated',
    ThreadPolicy.REQUIRE: 'cell_paired',
}
_MOST = 2**31 - 1
_BLANK = (*BY_CELL, 'cell_pages', 'kind_free')
Here = Mapping[str, Placed]
Rows = slice | IntArray


class Kinds:
    """Kinds of devices at places of hosts by their line, and sizes of pages at cells by theirs.

    :ivar pools: one of each line from 1 on
    :ivar places: where those of each line are: the number of a cell, NOWHERE or ELSEWHERE
    :ivar page_lines: (size in KiB, number of the cell) -> line of its free pages
    :ivar have_networks: whether a cell was ever said to be near to some network
    """

    def __init__(self) -> None:
        self.pools: list[Pool] = []
        self.places: list[int] = []
        self._lines: dict[tuple[Kind, int], int] = {}
        self.page_lines: dict[tuple[int, int], int] = {}
        self.have_networks = False

    def copy(self) -> 'Kinds':
        other = Kinds()
        other.pools, other.places = list(self.pools), list(self.places)
        other._lines, other.page_lines = dict(self._lines), dict(self.page_lines)
        other.have_networks = self.have_networks
        return other

    def line_of(self, pool: Pool, place: int) -> int:
        """The line of a pool's devices; 0 is all that came too late for one of its own."""
        key = (pool.kind, place)
        line = self._lines.get(key)
        if line is None:
            if len(self.pools) >= LINES_MAX:
                return 0
            self.pools.append(pool)
            self.places.append(place)
            line = self._lines[key] = len(self.pools)
        return line

    def page_line_of(self, size_kb: int, cell: int) -> tuple[int, int]:
        """The line of free pages at a cell, and the size that they are counted in."""
        key = (size_kb, cell)
        if key not in self.page_lines and len(self.page_lines) >= PAGE_LINES_MAX:
            key = (_ANY_SIZE, cell)
        return self.page_lines.setdefault(key, len(self.page_lines)), key[0]


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
    sockets = [cell.socket for cell in cells if cell.socket is not None]
    for cell in cells:
        kinds.have_networks |= cell.tunneled or bool(cell.networks)
        for name, value in zip(BY_CELL, _figures(cell, sockets), strict=True):
            columns.arrays[name][cell.index, i] = max(0, min(value, _MOST))
        for size, free in cell.pages.items():
            line, unit = kinds.page_line_of(size, cell.index)
            columns.widen(('cell_pages',), line + 1)
            column = columns.arrays['cell_pages']
            column[line, i] = max(0, column.item(line, i), min(free * size // unit, _MOST))
    place_of: dict[int | None, int] = {cell.id: cell.index for cell in cells}
    place_of[None] = NOWHERE
    total = 0
    for pool in room.pools:
        line, free = kinds.line_of(pool, place_of.get(pool.numa_node, ELSEWHERE)), max(0, pool.free)
        columns.widen(('kind_free',), line + 1)
        column = columns.arrays['kind_free']
        column[line, i] = min(max(0, column.item(line, i)) + free, _MOST)
        total += free
    arrays['free_devices'][i] = min(total, _MOST)


def _figures(cell: FreeCell, sockets: Sequence[int]) -> tuple[int, ...]:
    return (
        *(cores.available(cell, policy) for policy in BY_POLICY),
        min(cell.cpus, cell.cpu_cap - cell.cpu_used),
        min(cell.memory_mb, cell.base_mb, cell.memory_cap - cell.memory_used),
        min(cell.memory_mb, cell.base_left // 1024),
        cell.base_kb if cell.lists_pages else 0,
        0 if cell.socket is None else 1 + sockets.index(cell.socket),
    )


def may_fit(rows: Columns, kinds: Kinds, wish: Wish, at: Rows) -> BoolArray:
    """Which hosts may have room for the cells of a wish, by row within ``at``."""
    cells = rows.numa_cells[at]
    mask = cells >= len(wish.cells)
    for (guest, apart), count in shapes(wish).items():
        here = has(rows, kinds, wish, guest, apart, at)
        if count == 1:
            mask &= here.any(axis=0) | (cells > CELLS_MASKED)
        else:
            mask &= (np.count_nonzero(here, axis=0) >= count) | (cells > CELLS_MASKED)
    return mask


def may_have(rows: Columns, kinds: Kinds, wish: Wish, at: Rows) -> BoolArray:
    """Which hosts may have the devices of a wish, wherever in them, by row within ``at``."""
    free = rows.kind_free[:, at]
    mask = np.ones(free.shape[1], np.bool_)
    counts: dict[tuple[int, ...], int] = {}
    for one in wish.devices:
        lines = lines_of(kinds, one, free.shape[0])
        counts[lines] = counts.get(lines, 0) + one.count
    for lines, count in counts.items():
        # Whoever may only have some of these has none besides them.
        count += sum(n for other, n in counts.items() if set(other) < set(lines))
        mask &= np.maximum(free[list(lines)], 0).sum(axis=0) >= count
    return mask


def lines_of(kinds: Kinds, wish: DeviceWish, width: int) -> tuple[int, ...]:
    """The lines of ``kind_free``, which has ``width`` of them, whose devices are wanted."""
    known = Known()
    mine = [n for n, pool in enumerate(kinds.pools[: width - 1], 1) if matches(pool, wish, known)]
    return (0, *mine)


def shapes(wish: Wish) -> dict[tuple[GuestCell, int], int]:
    """(a cell of the guest, how many it pins besides) -> how many of the cells are alike.

    The ``vcpus`` of the cells are only the shared ones.
    """
    found: dict[tuple[GuestCell, int], int] = {}
    for number, guest in enumerate(wish.cells):
        apart = int(number == 0 and wish.emulator_apart)
        alike = GuestCell(
            tuple(range(guest.shared)), guest.memory_mb, tuple(range(len(guest.dedicated)))
        )
        found[alike, apart] = found.get((alike, apart), 0) + 1
    return found


def has(
    rows: Columns, kinds: Kinds, wish: Wish, guest: GuestCell, apart: int, at: Rows
) -> BoolArray:
    """Which cells of which hosts may take a cell of the guest, as :func:`shapes` has it."""
    needs = cores.needs(len(guest.dedicated), apart, wish.thread_policy)
    enough = (getattr(rows, BY_POLICY[policy])[:, at] >= need for policy, need in needs.items())
    mask: BoolArray = functools.reduce(np.logical_and, enough)
    if guest.vcpus:
        mask &= rows.cell_shared[:, at] >= len(guest.vcpus)
    return np.logical_and(mask, _has_memory(rows, kinds, wish.page, guest, at), out=mask)


def _has_memory(rows: Columns, kinds: Kinds, page: str, guest: GuestCell, at: Rows) -> BoolArray:
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
    for (size, cell), line in kinds.page_lines.items():
        if need * 1024 % size:
            continue
        if not page.isdigit() or size in (int(page), _ANY_SIZE):
            mask[cell] |= rows.cell_pages[line, at] >= min(need * 1024 // size, _MOST)
    return mask
