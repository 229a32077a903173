# SPDX-License-Identifier: Apache-2.0
"""A vectorised check of cells and devices together: the hosts that may have a layout.

A layout is a set of host cells that take the guest's cells, one each, and devices as near
to the set as required.  So each set of as many cells is evaluated, on all hosts in one
pass: whether the guest's cells can be matched with it, by Hall's theorem, and whether the
devices can be distributed, by Gale's theorem (as many are free for any of the wishes as
these request together).  For a guest without cells the set is empty.  Where there are too
many sets, the cells with the most devices represent all.

Invariant: a host that :func:`~gantt.core.topology.search.find_layout` finds a layout on is never
ruled out; any other is ruled out, unless there are too many combinations to evaluate all.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from gantt.core.messages.topology_request import Affinity, TopologyRequest
from gantt.core.table.columns import BoolArray, Columns, IntArray
from gantt.core.table.topology import (
    CELLS_MAX,
    NO_CELL,
    PAGE_LINES_MAX,
    DeviceKinds,
    cell_shapes,
    cells_that_fit,
    suitable_lines,
)
from gantt.core.topology.free import BASE_PAGE_KB_MAX

#: Upper bound of wishes for the same devices, or kinds of cells of one guest, of which every
#: union is evaluated; of more, each alone and all together.
UNION_WISHES_MAX = 4
#: Upper bound of sets evaluated one by one: all sets of eight cells, all pairs of sixteen.
CELL_SETS_MAX = 128
T = TypeVar('T')


class LayoutCheck(msgspec.Struct, frozen=True):
    """Hosts that may have, and that have, a layout for a request: masks by row as requested.

    :ivar possible: hosts that may have a layout
    :ivar certain: hosts that have one, provided that their reports of pages are consistent
    """

    possible: BoolArray
    certain: BoolArray


class _RequestedDevices(msgspec.Struct, frozen=True):
    """Requested devices.

    :ivar lines: lines of ``kind_free`` whose devices are suitable
    """

    lines: tuple[int, ...]
    affinity: Affinity


def check_rows(
    rows: Columns, kinds: DeviceKinds, wish: TopologyRequest, at: IntArray
) -> LayoutCheck:
    """Check the hosts at the given rows."""
    cells = rows.numa_cells[at]
    guests = _GuestCells(rows, kinds, wish, at)
    devices = _DeviceMatches(rows, kinds, wish, at)
    is_plain = guests.is_plain and devices.is_plain
    if kinds.have_networks and (wish.networks or wish.tunneled):
        is_plain = False
    count = len(wish.cells)
    may = devices.at_most(guests.cells, count, guests.at_most())
    if wish.cells and wish.devices and may.any():
        if math.comb(len(guests.cells), count) > CELL_SETS_MAX:
            is_plain = False
        else:
            may &= _has_fitting_set(guests, devices, count)
    certain = may & (cells <= CELLS_MAX) if is_plain else np.zeros(len(at), np.bool_)
    if wish.cells:
        may |= (cells > CELLS_MAX) & (cells >= len(wish.cells))
    return LayoutCheck(may, certain)


def _has_fitting_set(guests: '_GuestCells', devices: '_DeviceMatches', count: int) -> BoolArray:
    """Return a mask of hosts where a set of ``count`` cells fits the guest and the devices."""
    has_set = np.zeros(guests.count, np.bool_)
    for chosen in itertools.combinations(guests.cells, count):
        fits = guests.fit(chosen)
        if fits.any():
            has_set |= devices.fit(chosen, fits)
    return has_set


class _GuestCells:
    """Cells of the guest, and the host cells that may take each.

    :ivar cells: host cells that may take a cell of the guest on some host
    :ivar count: number of hosts
    :ivar is_plain: whether the columns hold all constraints of the cells
    """

    def __init__(
        self, rows: Columns, kinds: DeviceKinds, wish: TopologyRequest, at: IntArray
    ) -> None:
        fits = [
            (
                cells_that_fit(rows, kinds, wish, guest, apart, at)
                & _page_is_there(rows, wish.page, at),
                count,
            )
            for (guest, apart), count in cell_shapes(wish).items()
        ]
        self.is_plain = len(fits) <= UNION_WISHES_MAX and len(kinds.page_lines) <= PAGE_LINES_MAX
        self._unions = [
            (np.logical_or.reduce([fit for fit, _ in some]), sum(count for _, count in some))
            for some in _wish_unions(fits)
        ]
        width = min(CELLS_MAX, rows.cell_page.shape[0])
        self.cells = [c for c in range(width) if any(fit[c].any() for fit, _ in self._unions)]
        self.count = len(at)

    def fit(self, chosen: Sequence[int]) -> BoolArray:
        """Return a mask of hosts where the guest's cells can be matched with the chosen ones."""
        can_match = np.ones(self.count, np.bool_)
        for fit, count in self._unions:
            if count == len(chosen):
                for cell in chosen:
                    can_match &= fit[cell]
            else:
                can_match &= np.count_nonzero(fit[list(chosen)], axis=0) >= count
        return can_match

    def at_most(self) -> BoolArray:
        """Return a mask of hosts with enough cells for the guest's, in any combination."""
        has_enough = np.ones(self.count, np.bool_)
        for fit, count in self._unions:
            has_enough &= np.count_nonzero(fit, axis=0) >= count
        return has_enough


def _page_is_there(rows: Columns, page: str, at: IntArray) -> BoolArray | bool:
    """Return a mask of the cells with pages of the base size, if such are requested."""
    if page in ('small', 'any'):
        return rows.cell_page[:, at] > 0
    if page.isdigit() and int(page) <= BASE_PAGE_KB_MAX:
        return rows.cell_page[:, at] == int(page)
    return True


class _DeviceMatches:
    """Requested devices, and the number of free ones by place.

    :ivar is_plain: whether all unions of wishes are evaluated
    """

    def __init__(
        self, rows: Columns, kinds: DeviceKinds, wish: TopologyRequest, at: IntArray
    ) -> None:
        free = rows.kind_free
        all_have_lines = int(free[0].max(initial=0)) <= 0
        requested: dict[_RequestedDevices, int] = {}
        for device_wish in wish.devices:
            affinity = device_wish.affinity if wish.cells else Affinity.PREFERRED
            lines = suitable_lines(kinds, device_wish, free.shape[0])[all_have_lines:]
            key = _RequestedDevices(lines, affinity)
            requested[key] = requested.get(key, 0) + device_wish.count
        groups = list(_connected_requests(list(requested)))
        self.is_plain = all_have_lines and all(len(group) <= UNION_WISHES_MAX for group in groups)
        self._unions = [
            _DeviceUnion(
                some, sum(requested[device_wish] for device_wish in some), free, kinds.places, at
            )
            for group in groups
            for some in _wish_unions(group)
        ]
        self._sockets = rows.cell_socket[:, at] if any(u.by_socket for u in self._unions) else None
        self._are_sockets_known = (
            None if self._sockets is None else (self._sockets != 0).all(axis=0)
        )

    def fit(self, chosen: Sequence[int], among: BoolArray) -> BoolArray:
        """Return a mask of the hosts ``among`` which the devices are free near the chosen cells."""
        can_fit = among
        for union in self._unions:
            free = union.free_near(chosen)
            for cell, count in union.by_socket.items():
                if cell not in chosen:
                    free = free + count * self._is_on_socket(cell, chosen)
            can_fit = can_fit & (free >= union.count)
        return can_fit

    def at_most(self, cells: Sequence[int], count: int, among: BoolArray) -> BoolArray:
        """Return the mask of :meth:`fit` for the ``count`` cells with the most free devices."""
        can_fit = among
        for union in self._unions:
            can_fit = can_fit & (union.max_free_on(cells, count) >= union.count)
        return can_fit

    def _is_on_socket(self, cell: int, chosen: Sequence[int]) -> BoolArray:
        sockets, all_known = self._sockets, self._are_sockets_known
        assert sockets is not None and all_known is not None, 'read where a union asks for them'
        return all_known & np.logical_or.reduce([sockets[cell] == sockets[c] for c in chosen])


class _DeviceUnion:
    """Wishes taken together: the number of requested devices, and of devices suitable for any.

    :ivar by_socket: cell -> free devices there that are suitable for any cell of its socket
    """

    def __init__(
        self,
        some: Sequence[_RequestedDevices],
        count: int,
        free: np.ndarray,
        places: Sequence[int],
        at: IntArray,
    ) -> None:
        self.count = count
        self._anywhere: IntArray = np.zeros(len(at), np.int64)
        self._by_cell: dict[int, IntArray] = {}
        self.by_socket: dict[int, IntArray] = {}
        affinities: dict[int, set[Affinity]] = {}
        for devices in some:
            for line in devices.lines:
                affinities.setdefault(line, set()).add(devices.affinity)
        for line, line_affinities in affinities.items():
            line_free = np.maximum(free[line].take(at), 0)
            place = places[line - 1] if line else None
            if place is None or Affinity.PREFERRED in line_affinities:
                self._anywhere += line_free
            elif place < CELLS_MAX:
                self._add(self._by_cell, place, line_free)
                if Affinity.SOCKET in line_affinities:
                    self._add(self.by_socket, place, line_free)
            elif place == NO_CELL and Affinity.LEGACY in line_affinities:
                self._anywhere += line_free

    @staticmethod
    def _add(to: dict[int, IntArray], place: int, here: IntArray) -> None:
        to[place] = to[place] + here if place in to else here.astype(np.int64)

    def free_near(self, chosen: Sequence[int]) -> IntArray:
        """Return, by host, the devices free on the chosen cells, or usable from any place."""
        free_count = self._anywhere
        for cell in chosen:
            if cell in self._by_cell:
                free_count = free_count + self._by_cell[cell]
        return free_count

    def max_free_on(self, cells: Sequence[int], cell_count: int) -> IntArray:
        """Return, by host, the most devices free on ``cell_count`` of the NUMA cells ``cells``.

        Devices that are usable from any place are added.
        """
        if self.by_socket:
            return self._anywhere + sum(self._by_cell.values())
        free = [cell_free for cell, cell_free in self._by_cell.items() if cell in cells]
        if len(free) <= cell_count:
            return self._anywhere + sum(free)
        partitioned: IntArray = np.partition(np.stack(free), len(free) - cell_count, axis=0)
        return self._anywhere + partitioned[len(free) - cell_count :].sum(axis=0)


def _connected_requests(requested: list[_RequestedDevices]) -> Iterator[list[_RequestedDevices]]:
    """Yield wishes in groups; wishes of different groups have no suitable device in common."""
    while requested:
        group, lines = [requested.pop()], set[int]()
        for devices in group:
            lines.update(devices.lines)
            adjacent = [other for other in requested if lines.intersection(other.lines)]
            requested = [other for other in requested if other not in adjacent]
            group += adjacent
        yield group


def _wish_unions(some: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield every union of a few wishes; of many, each alone, and all."""
    if len(some) <= UNION_WISHES_MAX:
        for size in range(1, len(some) + 1):
            yield from itertools.combinations(some, size)
        return
    yield from ([wish] for wish in some)
    yield some
