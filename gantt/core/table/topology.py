# SPDX-License-Identifier: Apache-2.0
"""The free topology of hosts, and masks of the hosts that may fit a guest.

Each cell has as many numbers as are needed to decide whether a cell of a guest may fit
there at all; each kind of device has the free count by cell.  These are necessary
conditions over all hosts, here of cells and of devices separately
(:mod:`gantt.core.table.device_sets` checks both).  A row is written when its host's facts, or
the layouts on it, change.

Invariant: columns and room of a row are the host's facts less the layouts on it.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from gantt.core.messages.layout import Layout
from gantt.core.messages.topology_request import (
    GuestCell,
    PciRequest,
    ThreadPolicy,
    TopologyRequest,
)
from gantt.core.resources.host import HostFacts, HostRow, Placed
from gantt.core.table.columns import BY_CELL, BoolArray, Columns, IntArray
from gantt.core.topology import search
from gantt.core.topology.devices import MatchCache, matches_request
from gantt.core.topology.free import (
    BASE_PAGE_KB_MAX,
    FreeCell,
    FreeTopology,
    Kind,
    Pool,
    free_topology_of,
)

#: Upper bound of a host's cells with columns; a host with more cells passes the check.
CELLS_MAX = 32
#: Upper bound of cells for the filter's mask; a host with more is checked with its devices.
MASKED_CELLS_MAX = 8
#: Places of devices at no cell, and of devices at a cell that is unknown or has no columns.
NO_CELL, OTHER_CELL = CELLS_MAX, CELLS_MAX + 1
#: Upper bound of kinds of devices by place with columns; others match every request, anywhere.
DEVICE_LINES_MAX = 1024
#: Upper bound of page sizes by cell with columns; others match every requested size.
PAGE_LINES_MAX = 256
_ANY_SIZE = 1  # in KiB: it divides every amount, and no host has it beside its usual pages
#: The column that counts free processors by thread policy.
CPU_COLUMN_BY_POLICY = {
    ThreadPolicy.PREFER: 'cell_pinned',
    ThreadPolicy.ISOLATE: 'cell_isolated',
    ThreadPolicy.REQUIRE: 'cell_paired',
}
_INT32_MAX = 2**31 - 1
_TOPOLOGY_COLUMNS = (*BY_CELL, 'cell_pages', 'kind_free')
PlacedClaims = Mapping[str, Placed]
Rows = slice | IntArray


class DeviceKinds:
    """Lines of kinds of devices by place, and of page sizes by cell.

    :ivar pools: an example pool of each line from 1 on
    :ivar places: the place of each line: the number of a cell, NO_CELL or OTHER_CELL
    :ivar page_lines: (size in KiB, number of the cell) -> line of its free pages
    :ivar have_networks: whether a cell near to some network was ever reported
    """

    def __init__(self) -> None:
        self.pools: list[Pool] = []
        self.places: list[int] = []
        self._lines: dict[tuple[Kind, int], int] = {}
        self.page_lines: dict[tuple[int, int], int] = {}
        self.have_networks = False

    def copy(self) -> 'DeviceKinds':
        other = DeviceKinds()
        other.pools, other.places = list(self.pools), list(self.places)
        other._lines, other.page_lines = dict(self._lines), dict(self.page_lines)
        other.have_networks = self.have_networks
        return other

    def line_of(self, pool: Pool, place: int) -> int:
        """Return the line of a pool's devices; 0 if all lines were already assigned."""
        key = (pool.kind, place)
        line = self._lines.get(key)
        if line is None:
            if len(self.pools) >= DEVICE_LINES_MAX:
                return 0
            self.pools.append(pool)
            self.places.append(place)
            line = self._lines[key] = len(self.pools)
        return line

    def page_line_of(self, size_kb: int, cell: int) -> tuple[int, int]:
        """Return the line of free pages at a cell, and the size that they are counted in."""
        key = (size_kb, cell)
        if key not in self.page_lines and len(self.page_lines) >= PAGE_LINES_MAX:
            key = (_ANY_SIZE, cell)
        return self.page_lines.setdefault(key, len(self.page_lines)), key[0]


class TopologyColumns:
    """Free topologies by host, created on demand, and their columns.

    :ivar kinds: codes of kinds of devices and sizes of pages
    """

    def __init__(self) -> None:
        self.kinds = DeviceKinds()
        # Provider -> its free topology, made at its first request; dropped when the host changes.
        self._free_topologies: dict[int, FreeTopology] = {}
        self._hosts_with_layouts: set[int] = set()  # providers

    def copy(self) -> 'TopologyColumns':
        other = TopologyColumns()
        other.kinds, other._hosts_with_layouts = self.kinds.copy(), set(self._hosts_with_layouts)
        return other

    def free_topology(self, host: HostRow, claims: PlacedClaims) -> FreeTopology:
        """Return the free topology of a host; not to be modified.

        :param claims: claim id -> claim placed there
        """
        room = self._free_topologies.get(host.id)
        if room is None:
            laid = claims.values() if host.id in self._hosts_with_layouts else ()
            room = self._free_topologies[host.id] = free_topology_of(
                host.facts, [p.layout for p in laid]
            )
        return room

    def write(self, columns: Columns, i: int, host: HostRow, claims: PlacedClaims) -> None:
        """Recompute free topology and columns after a change of facts or layouts."""
        self._free_topologies.pop(host.id, None)
        _write_columns(columns, self.kinds, i, self.free_topology(host, claims))

    def facts_changed(
        self, columns: Columns, i: int, host: HostRow, claims: PlacedClaims, old: HostFacts
    ) -> None:
        """Update a host with new facts, if any of them concern its topology."""
        new = host.facts
        if old is not new and (
            (old.numa, old.devices) != (new.numa, new.devices)
            or (new.numa and old.inventories != new.inventories)  # for the ratios
        ):
            self.write(columns, i, host, claims)

    def layouts_changed(
        self, columns: Columns, i: int, host: HostRow, claims: PlacedClaims
    ) -> None:
        """Update a host after a change of its placed claims, if any has or had a layout."""
        has_layout = any(placed.layout is not None for placed in claims.values())
        if has_layout or host.id in self._hosts_with_layouts:
            (self._hosts_with_layouts.add if has_layout else self._hosts_with_layouts.discard)(
                host.id
            )
            self.write(columns, i, host, claims)

    def add_layout(
        self,
        columns: Columns,
        i: int,
        host: HostRow,
        claims: PlacedClaims,
        layout: Layout,
        is_new: bool,
    ) -> None:
        """Update a host after a pick with a layout."""
        room = self._free_topologies.get(host.id)
        self._hosts_with_layouts.add(host.id)
        if room is None or not is_new:
            self.write(columns, i, host, claims)
            return
        room.allocate(layout)
        _write_columns(columns, self.kinds, i, room)

    def forget(self, provider_id: int) -> None:
        """Forget a host that was deleted."""
        self._free_topologies.pop(provider_id, None)
        self._hosts_with_layouts.discard(provider_id)


def _write_columns(columns: Columns, kinds: DeviceKinds, i: int, room: FreeTopology) -> None:
    """Write the columns of one row."""
    arrays, cells = columns.arrays, room.cells[:CELLS_MAX]
    for name in _TOPOLOGY_COLUMNS:
        arrays[name][:, i] = -1
    arrays['numa_cells'][i] = len(room.cells)
    if cells:
        columns.widen(BY_CELL, len(cells))
    sockets = [cell.socket for cell in cells if cell.socket is not None]
    for cell in cells:
        kinds.have_networks |= cell.tunneled or bool(cell.networks)
        for name, value in zip(BY_CELL, _cell_figures(cell, sockets), strict=True):
            columns.arrays[name][cell.index, i] = max(0, min(value, _INT32_MAX))
        for size, free in cell.pages.items():
            line, unit = kinds.page_line_of(size, cell.index)
            columns.widen(('cell_pages',), line + 1)
            column = columns.arrays['cell_pages']
            column[line, i] = max(0, column.item(line, i), min(free * size // unit, _INT32_MAX))
    place_of: dict[int | None, int] = {cell.id: cell.index for cell in cells}
    place_of[None] = NO_CELL
    total = 0
    for pool in room.pools:
        line, free = (
            kinds.line_of(pool, place_of.get(pool.numa_node, OTHER_CELL)),
            max(0, pool.free),
        )
        columns.widen(('kind_free',), line + 1)
        column = columns.arrays['kind_free']
        column[line, i] = min(max(0, column.item(line, i)) + free, _INT32_MAX)
        total += free
    arrays['free_devices'][i] = min(total, _INT32_MAX)


def _cell_figures(cell: FreeCell, sockets: Sequence[int]) -> tuple[int, ...]:
    return (
        *(search.cores_available(cell, policy) for policy in CPU_COLUMN_BY_POLICY),
        min(cell.cpus, cell.cpu_cap - cell.cpu_used),
        min(cell.memory_mb, cell.base_mb, cell.memory_cap - cell.memory_used),
        min(cell.memory_mb, cell.base_left // 1024),
        cell.base_kb if cell.lists_pages else 0,
        0 if cell.socket is None else 1 + sockets.index(cell.socket),
    )


def cells_may_fit(rows: Columns, kinds: DeviceKinds, wish: TopologyRequest, at: Rows) -> BoolArray:
    """Return a mask of the hosts that may fit the cells of a wish, by row within ``at``."""
    cells = rows.numa_cells[at]
    mask = cells >= len(wish.cells)
    for (guest, apart), count in cell_shapes(wish).items():
        has_room = cells_that_fit(rows, kinds, wish, guest, apart, at)
        if count == 1:
            mask &= has_room.any(axis=0) | (cells > MASKED_CELLS_MAX)
        else:
            mask &= (np.count_nonzero(has_room, axis=0) >= count) | (cells > MASKED_CELLS_MAX)
    return mask


def devices_may_fit(
    rows: Columns, kinds: DeviceKinds, wish: TopologyRequest, at: Rows
) -> BoolArray:
    """Return a mask of the hosts that may have the devices of a wish, by row within ``at``."""
    free = rows.kind_free[:, at]
    mask = np.ones(free.shape[1], np.bool_)
    counts: dict[tuple[int, ...], int] = {}
    for devices in wish.devices:
        lines = suitable_lines(kinds, devices, free.shape[0])
        counts[lines] = counts.get(lines, 0) + devices.count
    for lines, count in counts.items():
        # Wishes whose suitable devices are a subset of these compete for the same devices.
        count += sum(n for other, n in counts.items() if set(other) < set(lines))
        mask &= np.maximum(free[list(lines)], 0).sum(axis=0) >= count
    return mask


def suitable_lines(kinds: DeviceKinds, wish: PciRequest, width: int) -> tuple[int, ...]:
    """Return the lines of ``kind_free``, which has ``width`` lines, with suitable devices."""
    match_cache = MatchCache()
    suitable = [
        n
        for n, pool in enumerate(kinds.pools[: width - 1], 1)
        if matches_request(pool, wish, match_cache)
    ]
    return (0, *suitable)


def cell_shapes(wish: TopologyRequest) -> dict[tuple[GuestCell, int], int]:
    """Return (cell of the guest, CPUs pinned in addition) -> number of equal cells.

    The ``vcpus`` of the cells are only the shared ones.
    """
    counts: dict[tuple[GuestCell, int], int] = {}
    for number, guest in enumerate(wish.cells):
        apart = int(number == 0 and wish.emulator_apart)
        alike = GuestCell(
            tuple(range(guest.shared)), guest.memory_mb, tuple(range(len(guest.dedicated)))
        )
        counts[alike, apart] = counts.get((alike, apart), 0) + 1
    return counts


def cells_that_fit(
    rows: Columns, kinds: DeviceKinds, wish: TopologyRequest, guest: GuestCell, apart: int, at: Rows
) -> BoolArray:
    """Return a mask of host cells by host that may take a guest cell of :func:`cell_shapes`."""
    needs = search.cores_needed(len(guest.dedicated), apart, wish.thread_policy)
    enough = (
        getattr(rows, CPU_COLUMN_BY_POLICY[policy])[:, at] >= need for policy, need in needs.items()
    )
    mask: BoolArray = functools.reduce(np.logical_and, enough)
    if guest.vcpus:
        mask &= rows.cell_shared[:, at] >= len(guest.vcpus)
    return np.logical_and(mask, _has_memory(rows, kinds, wish.page, guest, at), out=mask)


def _has_memory(
    rows: Columns, kinds: DeviceKinds, page: str, guest: GuestCell, at: Rows
) -> BoolArray:
    need = guest.memory_mb
    if not page and not guest.dedicated:
        return rows.cell_memory[:, at] >= need
    if page in ('', 'small') or (page.isdigit() and int(page) <= BASE_PAGE_KB_MAX):
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
            mask[cell] |= rows.cell_pages[line, at] >= min(need * 1024 // size, _INT32_MAX)
    return mask
