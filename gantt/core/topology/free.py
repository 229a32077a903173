# SPDX-License-Identifier: Apache-2.0
"""Room: what is left inside a host, cell by cell and pool by pool.

Sets of processors are integers, a bit for each: which cores are free is a few
operations on them, however many there are.  A room is made from what the host
says of itself (its own use outside of claims included) and the layouts of its
live claims; ``take`` and ``give`` are inverse to each other.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gantt.core.messages.layout import ALL_OF_IT, CPU_MAX, CellLayout, Layout
from gantt.core.messages.report import DevicePool, NumaCell
from gantt.core.messages.resource_classes import MILLI_VCPU, Inventory

#: A page up to this size is what the host's ordinary memory is made of.
BASE_KB_MAX = 64
BASE_KB = 4


def bits_of(numbers: Iterable[int]) -> int:
    """A set of processors as bits; absurd numbers are left out."""
    bits = 0
    for number in numbers:
        if 0 <= number <= CPU_MAX:
            bits |= 1 << number
    return bits


def numbers_of(bits: int) -> list[int]:
    """The processors of a set, ascending."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


class FreeCell:
    """One cell of a host.

    :ivar index: its place among the cells of the host
    :ivar dedicated: processors that may be pinned, as bits
    :ivar free: those of them that nobody has
    :ivar cores: threads of each core that has a dedicated one, as bits
    :ivar cpus: how many shared processors it has
    :ivar cpu_cap: how many processors of guests may share them
    :ivar memory_cap: MiB that may be promised without pages
    :ivar lists_pages: whether the host says anything of pages: else none can be asked for
    :ivar base_kb: size of ordinary pages
    :ivar base_left: KiB of ordinary memory that nobody has
    :ivar base_mb: MiB of ordinary memory in all
    :ivar pages: size in KiB of larger pages -> how many are free
    :ivar networks: physical networks whose devices are there
    :ivar tunneled: whether the device of tunneled networks is there
    """

    __slots__ = (
        'base_kb',
        'base_left',
        'base_mb',
        'cores',
        'cpu_cap',
        'cpu_used',
        'cpus',
        'dedicated',
        'free',
        'id',
        'index',
        'lists_pages',
        'memory_cap',
        'memory_mb',
        'memory_used',
        'networks',
        'pages',
        'socket',
        'tunneled',
    )

    def __init__(self, cell: NumaCell, index: int, cpu_ratio: float, ram_ratio: float) -> None:
        self.id = cell.id
        self.index = index
        self.socket = cell.socket
        self.networks, self.tunneled = frozenset(cell.networks), cell.tunneled
        self.dedicated = bits_of(cell.pinned_cpus)
        self.free = self.dedicated & ~bits_of(cell.used_pinned_cpus)
        self.cores = _cores(self.dedicated, cell.siblings)
        self.cpus = len(set(cell.cpus))
        self.cpu_cap = math.floor(self.cpus * cpu_ratio)
        self.cpu_used = cell.cpu_used
        self.memory_mb = cell.memory_mb
        self.memory_cap = math.floor(cell.memory_mb * ram_ratio)
        self.memory_used = cell.memory_used_mb
        self._read_pages(cell)

    def _read_pages(self, cell: NumaCell) -> None:
        self.pages: dict[int, int] = {}
        self.lists_pages = bool(cell.pages)
        total_kb, base, self.base_kb = 0, None, BASE_KB
        self.base_mb = 0
        for pages in sorted(cell.pages, key=lambda pages: pages.size_kb):
            left = pages.total - pages.reserved - pages.used
            if pages.size_kb <= BASE_KB_MAX:
                if base is None:
                    base, self.base_kb = left * pages.size_kb, pages.size_kb
                    self.base_mb = pages.total * pages.size_kb // 1024
                continue
            self.pages[pages.size_kb] = self.pages.get(pages.size_kb, 0) + left
            total_kb += pages.total * pages.size_kb
        if base is None:
            # What is not made of large pages is ordinary memory.
            base = (cell.memory_mb - cell.memory_used_mb) * 1024 - total_kb
            self.base_mb = cell.memory_mb - total_kb // 1024
        self.base_left = base

    def in_the_way(self, layout: CellLayout) -> str:
        """What a layout takes that is not free here; '' where all is."""
        held, shared = layout.held, layout.shared
        if held & ~self.free:
            taken = ', '.join(map(str, numbers_of(held & ~self.free)[:8]))
            return f'processors {taken} of NUMA cell {self.id} are not free'
        if held.bit_count() != layout.held_count:
            return f'a processor of NUMA cell {self.id} is given twice'
        if shared and shared > min(self.cpus, self.cpu_cap - self.cpu_used):
            return f'NUMA cell {self.id} has too few shared processors left'
        if self._has_memory(layout.memory_mb, layout.page_kb, bool(layout.pins)):
            return ''
        size = f' in pages of {layout.page_kb} KiB' if layout.page_kb else ''
        return f'NUMA cell {self.id} has less than {layout.memory_mb} MiB{size} left'

    def _has_memory(self, memory_mb: int, page_kb: int, pinned: bool) -> bool:
        if memory_mb > self.memory_mb:
            return False
        if page_kb > BASE_KB_MAX:
            return self.pages.get(page_kb, 0) * page_kb >= memory_mb * 1024
        if page_kb and page_kb != self.base_kb:
            return False
        if page_kb or pinned:
            return memory_mb * 1024 <= self.base_left
        return memory_mb <= self.base_mb and self.memory_used + memory_mb <= self.memory_cap

    def take(self, layout: CellLayout, sign: int = 1) -> None:
        """Use what a layout takes, or with -1 give it back."""
        held = layout.held & self.dedicated
        self.free = self.free & ~held if sign > 0 else self.free | held
        self.cpu_used += sign * layout.shared
        self.memory_used += sign * layout.memory_mb
        page_kb = layout.page_kb
        if page_kb > BASE_KB_MAX:
            if page_kb in self.pages:
                self.pages[page_kb] -= sign * -(-layout.memory_mb * 1024 // page_kb)
        else:
            self.base_left -= sign * layout.memory_mb * 1024


Kind = tuple[str, str, frozenset[tuple[str, str]]]


class Pool:
    """Equal devices of a host.

    :ivar key: what layouts know it by
    :ivar kind: what its devices are; those of other pools may be the same
    :ivar count: how many it has, given away or not
    """

    __slots__ = (
        'address',
        'count',
        'dev_type',
        'free',
        'key',
        'kind',
        'numa_node',
        'product_id',
        'tags',
        'vendor_id',
    )

    def __init__(self, pool: DevicePool) -> None:
        self.key = key_of(pool)
        self.vendor_id = pool.vendor_id.lower()
        self.product_id = pool.product_id.lower()
        self.address = pool.address
        self.numa_node = pool.numa_node
        self.tags = {key.lower(): value.lower() for key, value in pool.tags.items()}
        self.dev_type = self.tags.get('dev_type', 'type-pci')
        self.free, self.count = pool.free, max(pool.count, pool.free)
        self.kind: Kind = (self.vendor_id, self.product_id, frozenset(self.tags.items()))


def key_of(pool: DevicePool) -> str:
    """What layouts know a pool by: the same as long as its devices are."""
    problem_text = (
        pool.vendor_id.lower(),
        pool.product_id.lower(),
        pool.address,
        pool.numa_node,
        sorted((key.lower(), value.lower()) for key, value in pool.tags.items()),
    )
    return hashlib.blake2b(repr(problem_text).encode(errors='replace'), digest_size=8).hexdigest()


class FreeTopology:
    """The inside of one host.

    :param numa: cells as the host reports them, use outside of claims included
    :param inventories: for the ratios of shared processors and memory
    :param layouts: of the live claims there
    """

    __slots__ = ('cells', 'pools', '_by_id', '_by_key')

    def __init__(
        self,
        numa: Sequence[NumaCell],
        devices: Sequence[DevicePool],
        inventories: Mapping[str, Inventory],
        layouts: Iterable[Layout | None] = (),
    ) -> None:
        cpu, ram = shared_ratios(inventories)
        self.cells = [FreeCell(cell, i, cpu, ram) for i, cell in enumerate(numa)]
        self.pools: list[Pool] = []
        self._by_id = {cell.id: cell for cell in self.cells}
        self._by_key: dict[str, Pool] = {}
        for one in devices:
            pool = Pool(one)
            known = self._by_key.setdefault(pool.key, pool)
            if known is pool:
                self.pools.append(pool)
            else:
                known.free += pool.free
                known.count += pool.count
        for layout in layouts:
            if layout is not None:
                self.take(layout)

    def holds(self, layout: Layout) -> bool:
        """Whether all that a layout takes is free."""
        return not self.in_the_way(layout)

    def in_the_way(self, layout: Layout) -> str:
        """What a layout takes that is not free; '' where all is."""
        seen: set[int] = set()
        for cell in layout.cells:
            here = self._by_id.get(cell.cell)
            if here is None:
                return f'the host has no NUMA cell {cell.cell}'
            if cell.cell in seen:
                return f'two cells of the guest are on NUMA cell {cell.cell}'
            seen.add(cell.cell)
            if why_not := here.in_the_way(cell):
                return why_not
        wanted: dict[str, int] = {}
        for device in layout.devices:
            wanted[device.pool] = wanted.get(device.pool, 0) + device.count
        for key, count in wanted.items():
            pool = self._by_key.get(key)
            free = pool.free if pool is not None else 0
            if free < count:
                name = next(d.alias or d.product_id for d in layout.devices if d.pool == key)
                return f'{free} of {count} devices {name} are free'
        return ''

    def take(self, layout: Layout, sign: int = 1) -> None:
        """Use what a layout takes; a cell or pool that is gone took it along."""
        if layout.settled:
            return
        if layout == ALL_OF_IT:
            self._fill()
            return
        for cell in layout.cells:
            here = self._by_id.get(cell.cell)
            if here is not None:
                here.take(cell, sign)
        for device in layout.devices:
            pool = self._by_key.get(device.pool)
            if pool is not None:
                pool.free -= sign * device.count

    def _fill(self) -> None:
        """Leave nothing free, for good: such a room is made anew once its layouts can be read."""
        for cell in self.cells:
            cell.free, cell.base_left = 0, 0
            cell.cpu_used, cell.memory_used = cell.cpu_cap, max(cell.memory_cap, cell.memory_used)
            cell.pages = dict.fromkeys(cell.pages, 0)
        for pool in self.pools:
            pool.free = 0

    def give(self, layout: Layout) -> None:
        """Undo the ``take`` of a layout that held."""
        self.take(layout, -1)


def room_of(facts: Any, layouts: Iterable[Layout | None] = ()) -> FreeTopology:
    """The room of a host by its facts.

    :param facts: with ``numa``, ``devices`` and ``inventories``
    """
    return FreeTopology(facts.numa, facts.devices, facts.inventories, layouts)


def shared_ratios(inventories: Mapping[str, Inventory]) -> tuple[float, float]:
    """How often shared processors are promised in the cells of a host, and memory."""
    cpu = 'VCPU' if 'VCPU' in inventories else MILLI_VCPU
    return _ratio(inventories, cpu), _ratio(inventories, 'MEMORY_MB')


def _ratio(inventories: Mapping[str, Inventory], name: str) -> float:
    inventory = inventories.get(name)
    return 1.0 if inventory is None else inventory.allocation_ratio


def _cores(dedicated: int, siblings: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Threads of each core, ascending by the lowest; one without siblings is one of its own."""
    cores = []
    left = dedicated
    for group in siblings:
        bits = bits_of(group)
        if bits & left:
            cores.append(bits)
            left &= ~bits
    cores += [1 << cpu for cpu in numbers_of(left)]
    return tuple(sorted(cores, key=lambda core: core & -core))
