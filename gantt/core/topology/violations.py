# SPDX-License-Identifier: Apache-2.0
"""What was in the way of a layout, in numbers."""

import msgspec

from gantt.core.messages.topology_request import Affinity, GuestCell, ThreadPolicy, Wish
from gantt.core.topology import cores
from gantt.core.topology.devices import Known, matches
from gantt.core.topology.free import BASE_KB_MAX, FreeCell, FreeTopology

_HOW = {
    ThreadPolicy.PREFER: 'dedicated processors',
    ThreadPolicy.ISOLATE: 'cores for themselves',
    ThreadPolicy.REQUIRE: 'dedicated thread siblings',
}


class Violation(msgspec.Struct, frozen=True):
    """One thing in the way.

    :ivar what: cells | cpus | shared_cpus | memory | pages | devices | together | bound
    :ivar need: the amount asked for, in one cell where it is about a cell
    :ivar have: the most there is in one cell, or in all for devices
    :ivar text: the same for people
    """

    what: str
    need: int
    have: int
    text: str

    @property
    def lack(self) -> int:
        """How much less would do, where less is what helps."""
        return max(0, self.need - self.have)

    def __str__(self) -> str:
        return self.text


def obstacles(
    wish: Wish, room: FreeTopology, cut_short: bool = False, known: Known | None = None
) -> list[Violation]:
    """Everything that alone keeps a wish out; else that it does not come together."""
    found = [*_of_devices(wish, room, known)]
    if wish.cells:
        found = [*_of_cells(wish, room), *found]
    if cut_short and not found:
        return [Violation('bound', 0, 0, 'too many arrangements of its cells to look at them all')]
    if found:
        return found
    near = any(one.affinity is not Affinity.PREFERRED for one in wish.devices)
    what = ' with its devices near' if near else ''
    if wish.networks or wish.tunneled:
        what += ' and its networks' if what else ' with its networks near'
    many = f'{len(wish.cells)} cells' if len(wish.cells) > 1 else 'one cell'
    return [Violation('together', 0, 0, f'no {many} of the host have all of it together{what}')]


def _of_cells(wish: Wish, room: FreeTopology) -> list[Violation]:
    cells, found = room.cells, []
    if len(wish.cells) > len(cells):
        need, have = len(wish.cells), len(cells)
        return [Violation('cells', need, have, f'too few NUMA cells (need {need}, has {have})')]
    seen = set()
    for number, guest in enumerate(wish.cells):
        apart = int(number == 0 and wish.emulator_apart)
        shape = (guest.shared, len(guest.dedicated), apart, guest.memory_mb)
        if shape not in seen:
            seen.add(shape)
            found += _of_cell(wish, guest, apart, cells)
    return found


def _of_cell(wish: Wish, guest: GuestCell, apart: int, cells: list[FreeCell]) -> list[Violation]:
    found = []
    for policy, need in cores.needs(len(guest.dedicated), apart, wish.thread_policy).items():
        have = max(cores.available(cell, policy) for cell in cells)
        if need > have:
            text = f'too few free {_HOW[policy]} in one NUMA cell'
            found.append(_short('cpus', need, have, text))
    have = max(min(cell.cpus, cell.cpu_cap - cell.cpu_used) for cell in cells)
    if guest.shared and guest.shared > have:
        found.append(
            _short('shared_cpus', guest.shared, have, 'too few shared processors in one NUMA cell')
        )
    page = wish.page
    if page and not any(cell.lists_pages for cell in cells):
        return [*found, Violation('pages', 1, 0, 'it lists no pages, so none can be asked for')]
    if page == 'large' or (page.isdigit() and int(page) > BASE_KB_MAX):
        return [*found, *_of_pages(guest, page, cells)]
    if page == 'any':
        return found
    backed = bool(page or guest.dedicated)
    have = max(
        min(cell.memory_mb, cell.base_left // 1024)
        if backed
        else min(cell.memory_mb, cell.base_mb, cell.memory_cap - cell.memory_used)
        for cell in cells
    )
    if guest.memory_mb > have:
        found.append(
            _short(
                'memory', guest.memory_mb, have, 'too little free memory in one NUMA cell, in MiB'
            )
        )
    return found


def _of_pages(guest: GuestCell, page: str, cells: list[FreeCell]) -> list[Violation]:
    sizes = {int(page)} if page.isdigit() else {size for cell in cells for size in cell.pages}
    if not sizes:
        return [_short('pages', 1, 0, 'no large pages')]
    size = max(sizes)
    if all(guest.memory_mb * 1024 % one for one in sizes):
        text = f'{guest.memory_mb} MiB are no whole number of pages of {size} KiB'
        return [Violation('pages', 0, 0, text)]
    best = max(cell.pages.get(one, 0) * one for cell in cells for one in sizes)
    if guest.memory_mb * 1024 <= best:
        return []
    need, have = -(-guest.memory_mb * 1024 // size), best // size
    return [_short('pages', need, have, f'too few free pages of {size} KiB in one NUMA cell')]


def _of_devices(wish: Wish, room: FreeTopology, known: Known | None) -> list[Violation]:
    found = []
    for one in wish.devices:
        have = sum(max(0, pool.free) for pool in room.pools if matches(pool, one, known))
        if one.count > have:
            found.append(_short('devices', one.count, have, f'too few free devices {one.alias}'))
    return found


def _short(what: str, need: int, have: int, text: str) -> Violation:
    have = max(0, have)
    return Violation(what, need, have, f'{text} (need {need}, best has {have})')
