# SPDX-License-Identifier: Apache-2.0
"""Which hosts may have a layout: cells and devices together, over many hosts at once.

A layout is a set of the host's cells that take the guest's, one each, and devices as near
to the set as they have to be.  So each set of as many cells is looked at, on all hosts in
one pass: whether the guest's cells can be matched with it, by Hall's theorem, and whether
the devices can be shared out, by that of Gale (as many are free for any of the wishes as
those ask for together).  For a guest without cells the set is empty.  Where there are too
many sets, the cells with the most devices stand for all.

Invariant: a host that :func:`~gantt.core.topology.search.lay_out` finds a layout on is never
ruled out; no other is let pass but where there is too much to look at all of it.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from gantt.core.messages.topology_request import Affinity, Wish
from gantt.core.table.columns import BoolArray, Columns, IntArray
from gantt.core.table.topology import (
    CELLS,
    NOWHERE,
    PAGE_LINES_MAX,
    Kinds,
    has,
    lines_of,
    shapes,
)
from gantt.core.topology.free import BASE_KB_MAX

#: Wishes that may want the same devices, or kinds of cells of one guest, of which every union
#: is looked at; of more each alone, and all together.
UNIONS_OF = 4
#: Sets of cells that are looked at one by one: all of eight cells, and all pairs of sixteen.
SETS_MAX = 128
T = TypeVar('T')


class Judged(msgspec.Struct, frozen=True):
    """The answer, by row as asked.

    :ivar may: who may have a layout
    :ivar surely: who has one, if what its host says of its pages can be so
    """

    may: BoolArray
    surely: BoolArray


class _Requested(msgspec.Struct, frozen=True):
    """Devices that are asked for.

    :ivar lines: of ``kind_free``, whose devices will do
    """

    lines: tuple[int, ...]
    affinity: Affinity


def judge(rows: Columns, kinds: Kinds, wish: Wish, at: IntArray) -> Judged:
    """Judge the hosts at these rows."""
    cells = rows.numa_cells[at]
    guests = _Guests(rows, kinds, wish, at)
    devices = _Devices(rows, kinds, wish, at)
    is_plain = guests.is_plain and devices.is_plain
    if kinds.have_networks and (wish.networks or wish.tunneled):
        is_plain = False
    count = len(wish.cells)
    may = devices.at_most(guests.cells, count, guests.at_most())
    if wish.cells and wish.devices and may.any():
        if math.comb(len(guests.cells), count) > SETS_MAX:
            is_plain = False
        else:
            may &= _has_a_set(guests, devices, count)
    surely = may & (cells <= CELLS) if is_plain else np.zeros(len(at), np.bool_)
    if wish.cells:
        may |= (cells > CELLS) & (cells >= len(wish.cells))
    return Judged(may, surely)


def _has_a_set(guests: '_Guests', devices: '_Devices', count: int) -> BoolArray:
    """On which hosts some set of so many cells takes the guest's and is near to the devices."""
    found = np.zeros(guests.count, np.bool_)
    for chosen in itertools.combinations(guests.cells, count):
        fits = guests.fit(chosen)
        if fits.any():
            found |= devices.fit(chosen, fits)
    return found


class _Guests:
    """Cells of the guest, and which cells of the hosts may take each.

    :ivar cells: those that may take any of them on some host
    :ivar count: of hosts
    :ivar is_plain: whether what the columns say of them is all there is to say
    """

    def __init__(self, rows: Columns, kinds: Kinds, wish: Wish, at: IntArray) -> None:
        fits = [
            (has(rows, kinds, wish, guest, apart, at) & _page_is_there(rows, wish.page, at), count)
            for (guest, apart), count in shapes(wish).items()
        ]
        self.is_plain = len(fits) <= UNIONS_OF and len(kinds.page_lines) <= PAGE_LINES_MAX
        self._unions = [
            (np.logical_or.reduce([fit for fit, _ in some]), sum(count for _, count in some))
            for some in _unions(fits)
        ]
        width = min(CELLS, rows.cell_page.shape[0])
        self.cells = [c for c in range(width) if any(fit[c].any() for fit, _ in self._unions)]
        self.count = len(at)

    def fit(self, chosen: Sequence[int]) -> BoolArray:
        """On which hosts the guest's cells and these can be matched."""
        found = np.ones(self.count, np.bool_)
        for fit, count in self._unions:
            if count == len(chosen):
                for cell in chosen:
                    found &= fit[cell]
            else:
                found &= np.count_nonzero(fit[list(chosen)], axis=0) >= count
        return found

    def at_most(self) -> BoolArray:
        """On which hosts there are enough cells for the guest's, whichever they are."""
        found = np.ones(self.count, np.bool_)
        for fit, count in self._unions:
            found &= np.count_nonzero(fit, axis=0) >= count
        return found


def _page_is_there(rows: Columns, page: str, at: IntArray) -> BoolArray | bool:
    """Which cells have the pages of the usual size, where such are asked for."""
    if page in ('small', 'any'):
        return rows.cell_page[:, at] > 0
    if page.isdigit() and int(page) <= BASE_KB_MAX:
        return rows.cell_page[:, at] == int(page)
    return True


class _Devices:
    """Devices that are asked for, and how many of them are free where.

    :ivar is_plain: whether what is looked at is all there is to look at
    """

    def __init__(self, rows: Columns, kinds: Kinds, wish: Wish, at: IntArray) -> None:
        free = rows.kind_free
        all_have_lines = int(free[0].max(initial=0)) <= 0
        requested: dict[_Requested, int] = {}
        for one in wish.devices:
            affinity = one.affinity if wish.cells else Affinity.PREFERRED
            lines = lines_of(kinds, one, free.shape[0])[all_have_lines:]
            key = _Requested(lines, affinity)
            requested[key] = requested.get(key, 0) + one.count
        groups = list(_connected(list(requested)))
        self.is_plain = all_have_lines and all(len(group) <= UNIONS_OF for group in groups)
        self._unions = [
            _Union(some, sum(requested[one] for one in some), free, kinds.places, at)
            for group in groups
            for some in _unions(group)
        ]
        self._sockets = rows.cell_socket[:, at] if any(u.by_socket for u in self._unions) else None
        self._known = None if self._sockets is None else (self._sockets != 0).all(axis=0)

    def fit(self, chosen: Sequence[int], among: BoolArray) -> BoolArray:
        """On which hosts the devices can be had near these cells, of those ``among``."""
        found = among
        for union in self._unions:
            free = union.free_near(chosen)
            for cell, count in union.by_socket.items():
                if cell not in chosen:
                    free = free + count * self._is_on_socket(cell, chosen)
            found = found & (free >= union.count)
        return found

    def at_most(self, cells: Sequence[int], count: int, among: BoolArray) -> BoolArray:
        """As :meth:`fit`, near those ``count`` of the cells that have the most."""
        found = among
        for union in self._unions:
            found = found & (union.free_at_most(cells, count) >= union.count)
        return found

    def _is_on_socket(self, cell: int, chosen: Sequence[int]) -> BoolArray:
        sockets, known = self._sockets, self._known
        assert sockets is not None and known is not None, 'read where a union asks for them'
        return known & np.logical_or.reduce([sockets[cell] == sockets[one] for one in chosen])


class _Union:
    """Wishes taken together: how many devices they ask for, and how many would do for any.

    :ivar by_socket: cell -> free devices there that do for whoever is on its socket
    """

    def __init__(
        self,
        some: Sequence[_Requested],
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
        for one in some:
            for line in one.lines:
                affinities.setdefault(line, set()).add(one.affinity)
        for line, wanted in affinities.items():
            here = np.maximum(free[line].take(at), 0)
            place = places[line - 1] if line else None
            if place is None or Affinity.PREFERRED in wanted:
                self._anywhere += here
            elif place < CELLS:
                self._add(self._by_cell, place, here)
                if Affinity.SOCKET in wanted:
                    self._add(self.by_socket, place, here)
            elif place == NOWHERE and Affinity.LEGACY in wanted:
                self._anywhere += here

    @staticmethod
    def _add(to: dict[int, IntArray], place: int, here: IntArray) -> None:
        to[place] = to[place] + here if place in to else here.astype(np.int64)

    def free_near(self, chosen: Sequence[int]) -> IntArray:
        """How many are free on these cells, or wherever they are."""
        found = self._anywhere
        for cell in chosen:
            if cell in self._by_cell:
                found = found + self._by_cell[cell]
        return found

    def free_at_most(self, cells: Sequence[int], count: int) -> IntArray:
        """How many are free on ``count`` of the cells at most, or wherever they are."""
        if self.by_socket:
            return self._anywhere + sum(self._by_cell.values())
        free = [here for cell, here in self._by_cell.items() if cell in cells]
        if len(free) <= count:
            return self._anywhere + sum(free)
        most: IntArray = np.partition(np.stack(free), len(free) - count, axis=0)
        return self._anywhere + most[len(free) - count :].sum(axis=0)


def _connected(requested: list[_Requested]) -> Iterator[list[_Requested]]:
    """Wishes in groups: those of two groups want nothing that is the same."""
    while requested:
        group, lines = [requested.pop()], set[int]()
        for one in group:
            lines.update(one.lines)
            more = [other for other in requested if lines.intersection(other.lines)]
            requested = [other for other in requested if other not in more]
            group += more
        yield group


def _unions(some: Sequence[T]) -> Iterator[Sequence[T]]:
    """Every union of a few; of many each alone, and all."""
    if len(some) <= UNIONS_OF:
        for size in range(1, len(some) + 1):
            yield from itertools.combinations(some, size)
        return
    yield from ([one] for one in some)
    yield some
