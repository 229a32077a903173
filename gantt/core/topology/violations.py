# SPDX-License-Identifier: Apache-2.0
"""Obstacles of a layout, in numbers."""

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
    """An obstacle of a layout.

    :ivar what: cells | cpus | shared_cpus | memory | pages | devices | together | bound
    :ivar need: the requested amount, in one cell if it concerns a cell
    :ivar have: the largest amount in one cell, or in total for devices
    :ivar text: a description for operators
    """

    what: str
    need: int
    have: int
    text: str

    @property
    def lack(self) -> int:
        """Amount by which the request would have to be smaller; 0 if that does not help."""
        return max(0, self.need - self.have)

    def __str__(self) -> str:
        return self.text


def obstacles(
    wish: Wish, room: FreeTopology, cut_short: bool = False, known: Known | None = None
) -> list[Violation]:
    """Return every obstacle that alone prevents a layout; else that all are not free together."""
    violations = [*_of_devices(wish, room, known)]
    if wish.cells:
        violations = [*_of_cells(wish, room), *violations]
    if cut_short and not violations:
        return [Violation('bound', 0, 0, 'too many arrangements of its cells to look at them all')]
    if violations:
        return violations
    has_near = any(device.affinity is not Affinity.PREFERRED for device in wish.devices)
    suffix = ' with its devices near' if has_near else ''
    if wish.networks or wish.tunneled:
        suffix += ' and its networks' if suffix else ' with its networks near'
    cells_text = f'{len(wish.cells)} cells' if len(wish.cells) > 1 else 'one cell'
    return [
        Violation('together', 0, 0, f'no {cells_text} of the host have all of it together{suffix}')
    ]


def _of_cells(wish: Wish, room: FreeTopology) -> list[Violation]:
    cells, violations = room.cells, []
    if len(wish.cells) > len(cells):
        need, cell_count = len(wish.cells), len(cells)
        return [
            Violation(
                'cells', need, cell_count, f'too few NUMA cells (need {need}, has {cell_count})'
            )
        ]
    seen = set()
    for number, guest in enumerate(wish.cells):
        apart = int(number == 0 and wish.emulator_apart)
        shape = (guest.shared, len(guest.dedicated), apart, guest.memory_mb)
        if shape not in seen:
            seen.add(shape)
            violations += _of_cell(wish, guest, apart, cells)
    return violations


def _of_cell(wish: Wish, guest: GuestCell, apart: int, cells: list[FreeCell]) -> list[Violation]:
    violations = []
    for policy, need in cores.needs(len(guest.dedicated), apart, wish.thread_policy).items():
        largest = max(cores.available(cell, policy) for cell in cells)
        if need > largest:
            text = f'too few free {_HOW[policy]} in one NUMA cell'
            violations.append(_short('cpus', need, largest, text))
    largest = max(min(cell.cpus, cell.cpu_cap - cell.cpu_used) for cell in cells)
    if guest.shared and guest.shared > largest:
        violations.append(
            _short(
                'shared_cpus', guest.shared, largest, 'too few shared processors in one NUMA cell'
            )
        )
    page = wish.page
    if page and not any(cell.lists_pages for cell in cells):
        return [
            *violations,
            Violation('pages', 1, 0, 'it lists no pages, so none can be asked for'),
        ]
    if page == 'large' or (page.isdigit() and int(page) > BASE_KB_MAX):
        return [*violations, *_of_pages(guest, page, cells)]
    if page == 'any':
        return violations
    is_backed = bool(page or guest.dedicated)
    largest = max(
        min(cell.memory_mb, cell.base_left // 1024)
        if is_backed
        else min(cell.memory_mb, cell.base_mb, cell.memory_cap - cell.memory_used)
        for cell in cells
    )
    if guest.memory_mb > largest:
        violations.append(
            _short(
                'memory',
                guest.memory_mb,
                largest,
                'too little free memory in one NUMA cell, in MiB',
            )
        )
    return violations


def _of_pages(guest: GuestCell, page: str, cells: list[FreeCell]) -> list[Violation]:
    sizes = {int(page)} if page.isdigit() else {size for cell in cells for size in cell.pages}
    if not sizes:
        return [_short('pages', 1, 0, 'no large pages')]
    size = max(sizes)
    if all(guest.memory_mb * 1024 % page_kb for page_kb in sizes):
        text = f'{guest.memory_mb} MiB are no whole number of pages of {size} KiB'
        return [Violation('pages', 0, 0, text)]
    best = max(cell.pages.get(page_kb, 0) * page_kb for cell in cells for page_kb in sizes)
    if guest.memory_mb * 1024 <= best:
        return []
    pages_needed, pages_free = -(-guest.memory_mb * 1024 // size), best // size
    return [
        _short(
            'pages', pages_needed, pages_free, f'too few free pages of {size} KiB in one NUMA cell'
        )
    ]


def _of_devices(wish: Wish, room: FreeTopology, known: Known | None) -> list[Violation]:
    violations = []
    for device in wish.devices:
        free_count = sum(max(0, pool.free) for pool in room.pools if matches(pool, device, known))
        if device.count > free_count:
            violations.append(
                _short('devices', device.count, free_count, f'too few free devices {device.alias}')
            )
    return violations


def _short(what: str, need: int, have: int, text: str) -> Violation:
    have = max(0, have)
    return Violation(what, need, have, f'{text} (need {need}, best has {have})')
