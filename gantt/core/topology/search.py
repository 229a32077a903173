# SPDX-License-Identifier: Apache-2.0
"""Search for the layout of a wish on a host: cells, processors and devices, with the obstacles.

The host cells for a guest's cells are found by a search over all arrangements, best
first: each cell of the guest is checked with each cell of the host once, and the
result for a set of cells already taken is cached.  So the order of cells and devices
decides which of several layouts is found, never whether one is.  Nor does it depend on the
processors that are chosen within a cell: the choice keeps cores whole, and splits few.
"""

from collections.abc import Sequence

import msgspec

from gantt.core.messages.layout import CellLayout, DeviceLayout, Layout
from gantt.core.messages.topology_request import (
    Affinity,
    GuestCell,
    PciRequest,
    ThreadPolicy,
    TopologyRequest,
)
from gantt.core.topology.devices import (
    MatchCache,
    distribute_devices,
    eligible_pools,
    matches_request,
)
from gantt.core.topology.free import (
    BASE_PAGE_KB_MAX,
    FreeCell,
    FreeTopology,
    Pool,
    processor_bits,
    processor_numbers,
)

_POLICY_TEXTS = {
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


def layout_obstacles(
    wish: TopologyRequest,
    room: FreeTopology,
    cut_short: bool = False,
    known: MatchCache | None = None,
) -> list[Violation]:
    """Return every obstacle that alone prevents a layout; else that all are not free together."""
    violations = [*_device_obstacles(wish, room, known)]
    if wish.cells:
        violations = [*_cell_obstacles(wish, room), *violations]
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


def _cell_obstacles(wish: TopologyRequest, room: FreeTopology) -> list[Violation]:
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
            violations += _obstacles_of_cell(wish, guest, apart, cells)
    return violations


def _obstacles_of_cell(
    wish: TopologyRequest, guest: GuestCell, apart: int, cells: list[FreeCell]
) -> list[Violation]:
    violations = []
    for policy, need in cores_needed(len(guest.dedicated), apart, wish.thread_policy).items():
        largest = max(cores_available(cell, policy) for cell in cells)
        if need > largest:
            text = f'too few free {_POLICY_TEXTS[policy]} in one NUMA cell'
            violations.append(_shortage('cpus', need, largest, text))
    largest = max(min(cell.cpus, cell.cpu_cap - cell.cpu_used) for cell in cells)
    if guest.shared and guest.shared > largest:
        violations.append(
            _shortage(
                'shared_cpus', guest.shared, largest, 'too few shared processors in one NUMA cell'
            )
        )
    page = wish.page
    if page and not any(cell.lists_pages for cell in cells):
        return [
            *violations,
            Violation('pages', 1, 0, 'it lists no pages, so none can be asked for'),
        ]
    if page == 'large' or (page.isdigit() and int(page) > BASE_PAGE_KB_MAX):
        return [*violations, *_obstacles_of_pages(guest, page, cells)]
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
            _shortage(
                'memory',
                guest.memory_mb,
                largest,
                'too little free memory in one NUMA cell, in MiB',
            )
        )
    return violations


def _obstacles_of_pages(guest: GuestCell, page: str, cells: list[FreeCell]) -> list[Violation]:
    sizes = {int(page)} if page.isdigit() else {size for cell in cells for size in cell.pages}
    if not sizes:
        return [_shortage('pages', 1, 0, 'no large pages')]
    size = max(sizes)
    if all(guest.memory_mb * 1024 % page_kb for page_kb in sizes):
        text = f'{guest.memory_mb} MiB are no whole number of pages of {size} KiB'
        return [Violation('pages', 0, 0, text)]
    best = max(cell.pages.get(page_kb, 0) * page_kb for cell in cells for page_kb in sizes)
    if guest.memory_mb * 1024 <= best:
        return []
    pages_needed, pages_free = -(-guest.memory_mb * 1024 // size), best // size
    return [
        _shortage(
            'pages', pages_needed, pages_free, f'too few free pages of {size} KiB in one NUMA cell'
        )
    ]


def _device_obstacles(
    wish: TopologyRequest, room: FreeTopology, known: MatchCache | None
) -> list[Violation]:
    violations = []
    for device in wish.devices:
        free_count = sum(
            max(0, pool.free) for pool in room.pools if matches_request(pool, device, known)
        )
        if device.count > free_count:
            violations.append(
                _shortage(
                    'devices', device.count, free_count, f'too few free devices {device.alias}'
                )
            )
    return violations


def _shortage(what: str, need: int, have: int, text: str) -> Violation:
    have = max(0, have)
    return Violation(what, need, have, f'{text} (need {need}, best has {have})')


#: Upper bound of steps on one host (a cell with a cell, a pool with a wish), larger than any
#: known host needs.
STEPS_MAX = 100_000


class LayoutResult(msgspec.Struct, frozen=True):
    """The result of :func:`find_layout`: a layout, or the obstacles."""

    layout: Layout | None
    obstacles: list[Violation] = []


def find_layout(
    wish: TopologyRequest, room: FreeTopology, pack: bool = False, known: MatchCache | None = None
) -> LayoutResult:
    """Lay a wish out on a host.

    :param pack: prefer the fullest suitable cells, not the emptiest
    :param known: matches of the device wishes, cached from one host to the next
    """
    search = Search(wish, room, pack, {} if known is None else known)
    if search.find():
        return LayoutResult(search.layout())
    return LayoutResult(None, layout_obstacles(wish, room, search.is_cut_short, known))


def page_of(cell: FreeCell, guest: GuestCell, page: str) -> int | None:
    """Return the page size in KiB for a guest's cell on a host cell, 0: any; None: no fit."""
    need = guest.memory_mb * 1024
    if guest.memory_mb > cell.memory_mb:
        return None
    if page in ('', 'small') or (page.isdigit() and int(page) <= BASE_PAGE_KB_MAX):
        return _ordinary_page(cell, guest, page)
    if page.isdigit():
        sizes = [int(page)] if int(page) in cell.pages else []
    else:
        sizes = sorted(cell.pages, reverse=True)
    for size in sizes:
        if need % size == 0 and cell.pages[size] * size >= need:
            return size
    return _ordinary_page(cell, guest, 'small') if page == 'any' else None


def _ordinary_page(cell: FreeCell, guest: GuestCell, page: str) -> int | None:
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


def cell_fits(cell: FreeCell, guest: GuestCell, wish: TopologyRequest, is_first: bool) -> bool:
    """Return whether a cell of the guest fits on a cell of the host, devices aside."""
    if guest.shared and guest.shared > min(cell.cpus, cell.cpu_cap - cell.cpu_used):
        return False
    apart = int(is_first and wish.emulator_apart)
    needs = cores_needed(len(guest.dedicated), apart, wish.thread_policy)
    if any(need > cores_available(cell, policy) for policy, need in needs.items()):
        return False
    return page_of(cell, guest, wish.page) is not None


def near_networks(
    wish: TopologyRequest, taken: Sequence[FreeCell], host: Sequence[FreeCell]
) -> bool:
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
    """The search of :func:`find_layout`, for callers that do not need the obstacles.

    :ivar steps: number of steps taken
    :ivar is_cut_short: whether the search stopped at the upper bound of steps
    """

    def __init__(
        self, wish: TopologyRequest, room: FreeTopology, pack: bool, known: MatchCache
    ) -> None:
        self.wish = wish
        self.room = room
        self._known = known
        self.is_cut_short = False
        self.steps = 0
        self._steps_max = STEPS_MAX
        self._order = sorted(room.cells, key=lambda cell: self._cell_order(cell, pack))
        self._failed: set[tuple[int, int]] = set()
        self._taken: list[FreeCell] = []
        self._devices_given: list[DeviceLayout] | None = None
        self._is_affinity_strict = True

    def _cell_order(self, cell: FreeCell, pack: bool) -> tuple[int, ...]:
        """Return a sort key: near requested devices, or away from any; then emptier or fuller."""
        wish = self.wish
        cell_pools = [p for p in self.room.pools if p.numa_node == cell.id and p.free > 0]
        if wish.devices:
            has_requested = any(
                matches_request(p, device_wish, self._known)
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
            self._devices_given = self._devices(())
            return self._devices_given is not None
        if len(wish.cells) > len(self.room.cells):
            return False
        self.steps += len(wish.cells) * len(self._order)
        fitting = [
            [cell for cell in self._order if cell_fits(cell, guest, wish, i == 0)]
            for i, guest in enumerate(wish.cells)
        ]
        if not all(fitting):
            return False
        # Preferred affinities are required first, and given up only if that fails.
        for strict in (True, False) if self._has_preferred_devices else (True,):
            self._is_affinity_strict = strict
            self._failed.clear()
            # If the devices are not available with all cells, they are not with any subset.
            if self._devices(self._order) is None:
                continue
            self._devices_given = self._place(0, 0, fitting)
            if self._devices_given is not None:
                return True
        return False

    def layout(self) -> Layout:
        """Return the layout that was found."""
        assert self._devices_given is not None, 'asked where one was found'
        cells = [
            self._cell(cell, guest, number == 0)
            for number, (cell, guest) in enumerate(zip(self._taken, self.wish.cells, strict=True))
        ]
        return Layout(cells=cells, devices=self._devices_given)

    @property
    def _has_preferred_devices(self) -> bool:
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
            eligible_pools(
                device_wish, pools, cells, self.room.cells, self._affinity(device_wish), self._known
            )
            for device_wish in wishes
        ]
        shares = distribute_devices(wishes, [pool.free for pool in pools], choices)
        if shares is None:
            return None
        return [
            _device_layout(wish, pools[i], count)
            for wish, given in zip(wishes, shares, strict=True)
            for i, count in sorted(given.items())
        ]

    def _affinity(self, wish: PciRequest) -> Affinity:
        if wish.affinity is Affinity.PREFERRED and self._is_affinity_strict:
            return Affinity.REQUIRED
        return wish.affinity

    def _cell(self, cell: FreeCell, guest: GuestCell, is_first: bool) -> CellLayout:
        wish = self.wish
        apart = int(is_first and wish.emulator_apart)
        chosen = choose_cores(cell, len(guest.dedicated), wish.thread_policy, apart)
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


def _device_layout(wish: PciRequest, pool: Pool, count: int) -> DeviceLayout:
    return DeviceLayout(
        alias=wish.alias,
        pool=pool.key,
        count=count,
        vendor_id=pool.vendor_id,
        product_id=pool.product_id,
        address=pool.address,
        numa_node=pool.numa_node,
    )


def cores_available(cell: FreeCell, policy: ThreadPolicy) -> int:
    """Return the number of processors of a cell that can be pinned under a policy."""
    free = cell.free
    if policy is ThreadPolicy.PREFER:
        return free.bit_count()
    if policy is ThreadPolicy.ISOLATE:
        return sum(1 for core in cell.cores if core & free == core)
    sibling_count = 0
    for core in cell.cores:
        threads = (core & free).bit_count()
        sibling_count += threads if threads > 1 else 0
    return sibling_count


def cores_needed(count: int, apart: int, policy: ThreadPolicy) -> dict[ThreadPolicy, int]:
    """Return the processors that must be available, by policy, for a guest and its emulator.

    Siblings are for the guest: its emulator may run on any thread.  A dedicated core excludes
    any other thread, so that the emulator has its own core.
    """
    if policy is ThreadPolicy.REQUIRE and apart:
        return {policy: count, ThreadPolicy.PREFER: count + apart}
    return {policy: count + apart}


def choose_cores(
    cell: FreeCell, count: int, policy: ThreadPolicy, apart: int = 0
) -> tuple[list[int], list[int]] | None:
    """Return ``count`` processors and the emulator's, and the siblings that these block.

    None: there are too few.
    """
    if any(
        need > cores_available(cell, by) for by, need in cores_needed(count, apart, policy).items()
    ):
        return None
    if policy is ThreadPolicy.ISOLATE:
        return _whole_cores(cell, count + apart)
    if policy is ThreadPolicy.PREFER:
        count, apart = count + apart, 0
    threads_min = 2 if policy is ThreadPolicy.REQUIRE else 1
    cores = []
    for core in cell.cores:
        threads = processor_numbers(core & cell.free)
        if len(threads) >= threads_min:
            cores.append(threads)
    chosen = _threads_together(cores, count)
    return chosen + _cores_left_over(cell, chosen, apart), []


def _whole_cores(cell: FreeCell, count: int) -> tuple[list[int], list[int]]:
    chosen: list[int] = []
    blocked: list[int] = []
    for core in cell.cores:
        if len(chosen) == count:
            break
        if core & cell.free == core:
            first, *others = processor_numbers(core)
            chosen.append(first)
            blocked += others
    return chosen, blocked


def _cores_left_over(cell: FreeCell, chosen: list[int], count: int) -> list[int]:
    """Return further free processors, from the cores with the fewest free ones first."""
    free = cell.free & ~processor_bits(chosen)
    cores = sorted((processor_numbers(core & free) for core in cell.cores), key=len)
    return [cpu for threads in cores for cpu in threads][:count]


def _threads_together(cores: list[list[int]], count: int) -> list[int]:
    """Return threads of whole cores first, then of the fullest core with enough threads."""
    chosen: list[int] = []
    larger: list[list[int]] = []
    for threads in sorted(cores, key=lambda threads: (-len(threads), threads[0])):
        if len(threads) <= count - len(chosen):
            chosen += threads
        else:
            larger.append(threads)
    missing = count - len(chosen)
    if missing:
        sufficient = [threads for threads in larger if len(threads) >= missing]
        chosen += min(sufficient, key=lambda threads: (len(threads), threads[0]))[:missing]
    return chosen
