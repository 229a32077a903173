# SPDX-License-Identifier: Apache-2.0
"""Search for the layout of a wish on a host, with the obstacles if there is none.

The host cells for a guest's cells are found by a search over all arrangements, best
first: each cell of the guest is checked with each cell of the host once, and the
result for a set of cells already taken is cached.  So the order of cells and devices
decides which of several layouts is found, never whether one is.
"""

from collections.abc import Sequence

import msgspec

from gantt.core.messages.layout import CellLayout, DeviceLayout, Layout
from gantt.core.messages.topology_request import Affinity, DeviceWish, GuestCell, Wish
from gantt.core.topology import cores
from gantt.core.topology.devices import Known, eligible, matches, share_out
from gantt.core.topology.free import BASE_KB_MAX, FreeCell, FreeTopology, Pool
from gantt.core.topology.violations import Violation, obstacles

#: Upper bound of steps on one host (a cell with a cell, a pool with a wish), larger than any
#: known host needs.
STEPS_MAX = 100_000


class Laid(msgspec.Struct, frozen=True):
    """The result of :func:`lay_out`: a layout, or the obstacles."""

    layout: Layout | None
    obstacles: list[Violation] = []


def lay_out(wish: Wish, room: FreeTopology, pack: bool = False, known: Known | None = None) -> Laid:
    """Lay a wish out on a host.

    :param pack: prefer the fullest suitable cells, not the emptiest
    :param known: matches of the device wishes, cached from one host to the next
    """
    search = Search(wish, room, pack, {} if known is None else known)
    if search.find():
        return Laid(search.layout())
    return Laid(None, obstacles(wish, room, search.is_cut_short, known))


def page_of(cell: FreeCell, guest: GuestCell, page: str) -> int | None:
    """Return the page size in KiB for a guest's cell on a host cell, 0: any; None: no fit."""
    need = guest.memory_mb * 1024
    if guest.memory_mb > cell.memory_mb:
        return None
    if page in ('', 'small') or (page.isdigit() and int(page) <= BASE_KB_MAX):
        return _ordinary(cell, guest, page)
    if page.isdigit():
        sizes = [int(page)] if int(page) in cell.pages else []
    else:
        sizes = sorted(cell.pages, reverse=True)
    for size in sizes:
        if need % size == 0 and cell.pages[size] * size >= need:
            return size
    return _ordinary(cell, guest, 'small') if page == 'any' else None


def _ordinary(cell: FreeCell, guest: GuestCell, page: str) -> int | None:
    if guest.memory_mb * 1024 % cell.base_kb:
        return None
    if not page and not guest.dedicated:
        # Memory is over-committed among guests only: each alone has to fit the ordinary memory.
        memory_max = min(cell.base_mb, cell.memory_cap - cell.memory_used)
        return 0 if guest.memory_mb <= memory_max else None
    if guest.memory_mb * 1024 > cell.base_left:
        return None
    if not page:
        return 0
    if not cell.lists_pages:
        return None  # its nova-compute would refuse them
    return cell.base_kb if page in ('small', str(cell.base_kb)) else None


def fits(cell: FreeCell, guest: GuestCell, wish: Wish, is_first: bool) -> bool:
    """Return whether a cell of the guest fits on a cell of the host, devices aside."""
    if guest.shared and guest.shared > min(cell.cpus, cell.cpu_cap - cell.cpu_used):
        return False
    apart = int(is_first and wish.emulator_apart)
    needs = cores.needs(len(guest.dedicated), apart, wish.thread_policy)
    if any(need > cores.available(cell, policy) for policy, need in needs.items()):
        return False
    return page_of(cell, guest, wish.page) is not None


def near_networks(wish: Wish, taken: Sequence[FreeCell], host: Sequence[FreeCell]) -> bool:
    """Return whether the taken cells are near all networks of the guest that are at cells.

    A network that no cell of the host has counts as near to all.  If several cells have it,
    one of those taken is enough.
    """
    if wish.tunneled and _tunneled(host) and not _tunneled(taken):
        return False
    return not any(
        any(name in cell.networks for cell in host)
        and not any(name in cell.networks for cell in taken)
        for name in wish.networks
    )


def _tunneled(cells: Sequence[FreeCell]) -> bool:
    return any(cell.tunneled for cell in cells)


class Search:
    """The search of :func:`lay_out`, for callers that do not need the obstacles.

    :ivar steps: number of steps taken
    :ivar is_cut_short: whether the search stopped at the upper bound of steps
    """

    def __init__(self, wish: Wish, room: FreeTopology, pack: bool, known: Known) -> None:
        self.wish = wish
        self.room = room
        self._known = known
        self.is_cut_short = False
        self.steps = 0
        self._steps_max = STEPS_MAX
        self._order = sorted(room.cells, key=lambda cell: self._preference(cell, pack))
        self._failed: set[tuple[int, int]] = set()
        self._taken: list[FreeCell] = []
        self._given: list[DeviceLayout] | None = None
        self._strict = True

    def _preference(self, cell: FreeCell, pack: bool) -> tuple[int, ...]:
        """Return a sort key: near requested devices, or away from any; then emptier or fuller."""
        wish = self.wish
        cell_pools = [p for p in self.room.pools if p.numa_node == cell.id and p.free > 0]
        if wish.devices:
            has_requested = any(
                matches(p, device_wish, self._known)
                for p in cell_pools
                for device_wish in wish.devices
            )
            device = int(not has_requested)
        else:
            device = int(bool(cell_pools))
        sign = 1 if pack else -1
        free_amounts = (
            cell.free.bit_count(),
            cell.cpu_cap - cell.cpu_used,
            cell.memory_cap - cell.memory_used,
        )
        return (device, *(sign * amount for amount in free_amounts), cell.index)

    def find(self, steps: int = STEPS_MAX) -> bool:
        """Search the best layout; return whether there is one.

        :param steps: upper bound of steps, if lower than ``STEPS_MAX``
        """
        wish, self._steps_max = self.wish, min(steps, STEPS_MAX)
        if not wish.cells:
            self._given = self._devices(())
            return self._given is not None
        if len(wish.cells) > len(self.room.cells):
            return False
        self.steps += len(wish.cells) * len(self._order)
        fitting = [
            [cell for cell in self._order if fits(cell, guest, wish, i == 0)]
            for i, guest in enumerate(wish.cells)
        ]
        if not all(fitting):
            return False
        # Preferred affinities are required first, and given up only if that fails.
        for strict in (True, False) if self._prefers else (True,):
            self._strict = strict
            self._failed.clear()
            # If the devices are not available with all cells, they are not with any subset.
            if self._devices(self._order) is None:
                continue
            self._given = self._place(0, 0, fitting)
            if self._given is not None:
                return True
        return False

    def layout(self) -> Layout:
        """Return the layout that was found."""
        assert self._given is not None, 'asked where one was found'
        cells = [
            self._cell(cell, guest, number == 0)
            for number, (cell, guest) in enumerate(zip(self._taken, self.wish.cells, strict=True))
        ]
        return Layout(cells=cells, devices=self._given)

    @property
    def _prefers(self) -> bool:
        return any(device_wish.affinity is Affinity.PREFERRED for device_wish in self.wish.devices)

    def _place(
        self, number: int, mask: int, fitting: Sequence[Sequence[FreeCell]]
    ) -> list[DeviceLayout] | None:
        """Place the guest's cells from ``number`` on; return the devices of the whole layout."""
        if (number, mask) in self._failed or self.is_cut_short:
            return None
        if number == len(fitting):
            devices = None
            if near_networks(self.wish, self._taken, self.room.cells):
                devices = self._devices(self._taken)
            if devices is None:
                self._failed.add((number, mask))
            return devices
        for cell in fitting[number]:
            if mask >> cell.index & 1:
                continue
            self.steps += 1
            if self.steps > self._steps_max:
                self.is_cut_short = True
                return None
            self._taken.append(cell)
            devices = self._place(number + 1, mask | 1 << cell.index, fitting)
            if devices is not None:
                return devices
            self._taken.pop()
        self._failed.add((number, mask))
        return None

    def _devices(self, cells: Sequence[FreeCell]) -> list[DeviceLayout] | None:
        wishes = self.wish.devices
        if not wishes:
            return []
        pools = self.room.pools
        self.steps += len(wishes) * len(pools)
        choices = [
            eligible(
                device_wish, pools, cells, self.room.cells, self._affinity(device_wish), self._known
            )
            for device_wish in wishes
        ]
        shares = share_out(wishes, [pool.free for pool in pools], choices)
        if shares is None:
            return None
        return [
            _device(wish, pools[i], count)
            for wish, given in zip(wishes, shares, strict=True)
            for i, count in sorted(given.items())
        ]

    def _affinity(self, wish: DeviceWish) -> Affinity:
        if wish.affinity is Affinity.PREFERRED and self._strict:
            return Affinity.REQUIRED
        return wish.affinity

    def _cell(self, cell: FreeCell, guest: GuestCell, is_first: bool) -> CellLayout:
        wish = self.wish
        apart = int(is_first and wish.emulator_apart)
        chosen = cores.choose(cell, len(guest.dedicated), wish.thread_policy, apart)
        page = page_of(cell, guest, wish.page)
        assert chosen is not None and page is not None, 'the cell was found to fit'
        cpus, blocked = chosen
        pinned = cpus[: len(guest.dedicated)]
        return CellLayout(
            cell=cell.id,
            memory_mb=guest.memory_mb,
            page_kb=page,
            vcpus=list(guest.vcpus),
            pins=list(zip(guest.dedicated, pinned, strict=True)),
            emulator=cpus[len(guest.dedicated) :],
            blocked=blocked,
        )


def _device(wish: DeviceWish, pool: Pool, count: int) -> DeviceLayout:
    return DeviceLayout(
        alias=wish.alias,
        pool=pool.key,
        count=count,
        vendor_id=pool.vendor_id,
        product_id=pool.product_id,
        address=pool.address,
        numa_node=pool.numa_node,
    )
