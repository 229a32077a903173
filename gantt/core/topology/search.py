# SPDX-License-Identifier: Apache-2.0
"""lay_out(): a wish on a host, or what is in the way.

Which cells of the host a guest's cells get is decided by a search over all
arrangements, best first: each cell of the guest with each cell of the host is
looked at once, and what follows from a set of cells that are taken already is
never looked at again.  So the order of anything decides which of several
layouts is found, never whether one is.
"""

from collections.abc import Sequence

import msgspec

from gantt.core.messages.layout import CellLayout, DeviceLayout, Layout
from gantt.core.messages.topology_request import Affinity, DeviceWish, GuestCell, Wish
from gantt.core.topology import cores
from gantt.core.topology.devices import Known, eligible, matches, share_out
from gantt.core.topology.free import BASE_KB_MAX, FreeCell, FreeTopology, Pool
from gantt.core.topology.violations import Violation, obstacles

#: Steps on one host, at most: a cell with a cell, a pool with a wish.  More than any host that
#: is known needs.
STEPS_MAX = 100_000


class Laid(msgspec.Struct, frozen=True):
    """The answer of :func:`lay_out`: a layout, or what was in the way."""

    layout: Layout | None
    obstacles: list[Violation] = []


def lay_out(wish: Wish, room: FreeTopology, pack: bool = False, known: Known | None = None) -> Laid:
    """Lay a wish out on a host.

    :param pack: prefer the fullest cells that will do, not the emptiest
    :param known: of the wishes for devices, kept from one host to the next
    """
    search = Search(wish, room, pack, {} if known is None else known)
    if search.find():
        return Laid(search.layout())
    return Laid(None, obstacles(wish, room, search.is_cut_short, known))


def page_of(cell: FreeCell, guest: GuestCell, page: str) -> int | None:
    """The size of the pages for a guest's cell here, in KiB, 0: any; None: not to be had."""
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
        # Over-commit is among guests: one alone is within the ordinary memory.
        left = min(cell.base_mb, cell.memory_cap - cell.memory_used)
        return 0 if guest.memory_mb <= left else None
    if guest.memory_mb * 1024 > cell.base_left:
        return None
    if not page:
        return 0
    if not cell.lists_pages:
        return None  # its nova-compute would refuse them
    return cell.base_kb if page in ('small', str(cell.base_kb)) else None


def fits(cell: FreeCell, guest: GuestCell, wish: Wish, is_first: bool) -> bool:
    """Whether a cell of the guest fits on a cell of the host, devices aside."""
    if guest.shared and guest.shared > min(cell.cpus, cell.cpu_cap - cell.cpu_used):
        return False
    apart = int(is_first and wish.emulator_apart)
    needs = cores.needs(len(guest.dedicated), apart, wish.thread_policy)
    if any(need > cores.available(cell, policy) for policy, need in needs.items()):
        return False
    return page_of(cell, guest, wish.page) is not None


def near_networks(wish: Wish, taken: Sequence[FreeCell], host: Sequence[FreeCell]) -> bool:
    """Whether what cells of the host have of the guest's networks, its own cells have.

    A network that no cell of the host is known to have is anywhere.  Of one that several
    have, one of those taken is enough.
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
    """The search of :func:`lay_out`, for who does not ask what is in the way.

    :ivar steps: how many it took
    :ivar is_cut_short: whether there were more of them than may be taken
    """

    def __init__(self, wish: Wish, room: FreeTopology, pack: bool, known: Known) -> None:
        self.wish, self.room, self._known = wish, room, known
        self.is_cut_short = False
        self.steps, self._steps_max = 0, STEPS_MAX
        self._order = sorted(room.cells, key=lambda cell: self._preference(cell, pack))
        self._failed: set[tuple[int, int]] = set()
        self._taken: list[FreeCell] = []
        self._given: list[DeviceLayout] | None = None
        self._strict = True

    def _preference(self, cell: FreeCell, pack: bool) -> tuple[int, ...]:
        """Less is better: near the devices wanted, or away from any; then emptier or fuller."""
        wish = self.wish
        there = [p for p in self.room.pools if p.numa_node == cell.id and p.free > 0]
        if wish.devices:
            wanted = any(matches(p, one, self._known) for p in there for one in wish.devices)
            device = int(not wanted)
        else:
            device = int(bool(there))
        sign = 1 if pack else -1
        left = (
            cell.free.bit_count(),
            cell.cpu_cap - cell.cpu_used,
            cell.memory_cap - cell.memory_used,
        )
        return (device, *(sign * amount for amount in left), cell.index)

    def find(self, steps: int = STEPS_MAX) -> bool:
        """Look for the best layout; whether there is one.

        :param steps: that it may take, if fewer than on any host
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
        # Preferred devices are insisted on first, and given up only where that fails.
        for strict in (True, False) if self._prefers else (True,):
            self._strict = strict
            self._failed.clear()
            # More cells never make devices harder to have: not with all, then with none.
            if self._devices(self._order) is None:
                continue
            self._given = self._place(0, 0, fitting)
            if self._given is not None:
                return True
        return False

    def layout(self) -> Layout:
        """The layout that was found."""
        assert self._given is not None, 'asked where one was found'
        cells = [
            self._cell(cell, guest, number == 0)
            for number, (cell, guest) in enumerate(zip(self._taken, self.wish.cells, strict=True))
        ]
        return Layout(cells=cells, devices=self._given)

    @property
    def _prefers(self) -> bool:
        return any(one.affinity is Affinity.PREFERRED for one in self.wish.devices)

    def _place(
        self, number: int, mask: int, fitting: Sequence[Sequence[FreeCell]]
    ) -> list[DeviceLayout] | None:
        """Cells for the guest's cells from ``number`` on; the devices of the whole."""
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
            eligible(one, pools, cells, self.room.cells, self._affinity(one), self._known)
            for one in wishes
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
