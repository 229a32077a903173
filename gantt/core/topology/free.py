# SPDX-License-Identifier: Apache-2.0
"""The free topology of a host, by cell and by device pool.

Sets of processors are integers, a bit for each: free cores are found by a few
operations on them, however many there are.  A free topology is created from the facts that
the host reports (its own use outside of claims included) and the layouts of its
live claims; ``allocate`` and ``release`` are inverse to each other.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gantt.core.messages.layout import CPU_MAX, UNREADABLE_LAYOUT, CellLayout, Layout
from gantt.core.messages.report import DevicePool, NumaCell
from gantt.core.messages.resource_classes import MILLI_VCPU, Inventory

#: The host's ordinary memory consists of pages up to this size.
BASE_PAGE_KB_MAX = 64
DEFAULT_PAGE_KB = 4


def processor_bits(numbers: Iterable[int]) -> int:
    """Return a set of processors as bits; numbers out of range are left out."""
    bits = 0
    for number in numbers:
        if 0 <= number <= CPU_MAX:
            bits |= 1 << number
    return bits


def processor_numbers(bits: int) -> list[int]:
    """Return the processors of a set, ascending."""
    numbers = []
    while bits:
        low = bits & -bits
        numbers.append(low.bit_length() - 1)
        bits ^= low
    return numbers


class FreeCell:
    """Free topology of one cell of a host.

    :ivar index: its position among the cells of the host
    :ivar dedicated: processors that may be pinned, as bits
    :ivar free: dedicated processors that are not allocated
    :ivar cores: threads of each core that has a dedicated one, as bits
    :ivar cpus: number of shared processors
    :ivar cpu_cap: number of guest processors that may share them
    :ivar memory_cap: MiB that may be allocated without pages
    :ivar lists_pages: whether the host reports pages: else none can be requested
    :ivar base_kb: size of ordinary pages
    :ivar base_left: KiB of ordinary memory that are free
    :ivar base_mb: MiB of ordinary memory in total
    :ivar pages: size in KiB of larger pages -> number of free ones
    :ivar networks: physical networks whose devices are in the cell
    :ivar tunneled: whether the device of tunneled networks is in the cell
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
        self.networks = frozenset(cell.networks)
        self.tunneled = cell.tunneled
        self.dedicated = processor_bits(cell.pinned_cpus)
        self.free = self.dedicated & ~processor_bits(cell.used_pinned_cpus)
        self.cores = _threads_by_core(self.dedicated, cell.siblings)
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
        total_kb, base, self.base_kb = 0, None, DEFAULT_PAGE_KB
        self.base_mb = 0
        for pages in sorted(cell.pages, key=lambda pages: pages.size_kb):
            free_pages = pages.total - pages.reserved - pages.used
            if pages.size_kb <= BASE_PAGE_KB_MAX:
                if base is None:
                    base, self.base_kb = free_pages * pages.size_kb, pages.size_kb
                    self.base_mb = pages.total * pages.size_kb // 1024
                continue
            self.pages[pages.size_kb] = self.pages.get(pages.size_kb, 0) + free_pages
            total_kb += pages.total * pages.size_kb
        if base is None:
            # Memory that is not in large pages is ordinary memory.
            base = (cell.memory_mb - cell.memory_used_mb) * 1024 - total_kb
            self.base_mb = cell.memory_mb - total_kb // 1024
        self.base_left = base

    def first_obstacle(self, layout: CellLayout) -> str:
        """Return the first part of a layout that is not free in the cell; '' if all is."""
        held, shared = layout.held, layout.shared
        if held & ~self.free:
            taken = ', '.join(map(str, processor_numbers(held & ~self.free)[:8]))
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
        if page_kb > BASE_PAGE_KB_MAX:
            return self.pages.get(page_kb, 0) * page_kb >= memory_mb * 1024
        if page_kb and page_kb != self.base_kb:
            return False
        if page_kb or pinned:
            return memory_mb * 1024 <= self.base_left
        return memory_mb <= self.base_mb and self.memory_used + memory_mb <= self.memory_cap

    def allocate(self, layout: CellLayout, sign: int = 1) -> None:
        """Allocate the resources of a layout, or release them with ``sign`` -1."""
        held = layout.held & self.dedicated
        self.free = self.free & ~held if sign > 0 else self.free | held
        self.cpu_used += sign * layout.shared
        self.memory_used += sign * layout.memory_mb
        page_kb = layout.page_kb
        if page_kb > BASE_PAGE_KB_MAX:
            if page_kb in self.pages:
                self.pages[page_kb] -= sign * -(-layout.memory_mb * 1024 // page_kb)
        else:
            self.base_left -= sign * layout.memory_mb * 1024


Kind = tuple[str, str, frozenset[tuple[str, str]]]


class Pool:
    """Equal devices of a host.

    :ivar key: its identifier in layouts
    :ivar kind: kind of its devices, which other pools may have as well
    :ivar count: number of devices, allocated or not
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
        self.key = pool_key(pool)
        self.vendor_id = pool.vendor_id.lower()
        self.product_id = pool.product_id.lower()
        self.address = pool.address
        self.numa_node = pool.numa_node
        self.tags = {key.lower(): value.lower() for key, value in pool.tags.items()}
        self.dev_type = self.tags.get('dev_type', 'type-pci')
        self.free = pool.free
        self.count = max(pool.count, pool.free)
        self.kind: Kind = (self.vendor_id, self.product_id, frozenset(self.tags.items()))


def pool_key(pool: DevicePool) -> str:
    """Return the identifier of a pool in layouts, which depends only on its devices."""
    identity = (
        pool.vendor_id.lower(),
        pool.product_id.lower(),
        pool.address,
        pool.numa_node,
        sorted((key.lower(), value.lower()) for key, value in pool.tags.items()),
    )
    return hashlib.blake2b(repr(identity).encode(errors='replace'), digest_size=8).hexdigest()


class FreeTopology:
    """Free topology of one host.

    :param numa: cells as the host reports them, use outside of claims included
    :param inventories: inventories, for the ratios of shared processors and memory
    :param layouts: layouts of the live claims there
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
        for device_pool in devices:
            pool = Pool(device_pool)
            same_pool = self._by_key.setdefault(pool.key, pool)
            if same_pool is pool:
                self.pools.append(pool)
            else:
                same_pool.free += pool.free
                same_pool.count += pool.count
        for layout in layouts:
            if layout is not None:
                self.allocate(layout)

    def has_free(self, layout: Layout) -> bool:
        """Return whether all that a layout takes is free."""
        return not self.first_obstacle(layout)

    def first_obstacle(self, layout: Layout) -> str:
        """Return the first part of a layout that is not free on the host; '' if all is."""
        seen: set[int] = set()
        for cell in layout.cells:
            host_cell = self._by_id.get(cell.cell)
            if host_cell is None:
                return f'the host has no NUMA cell {cell.cell}'
            if cell.cell in seen:
                return f'two cells of the guest are on NUMA cell {cell.cell}'
            seen.add(cell.cell)
            if why_not := host_cell.first_obstacle(cell):
                return why_not
        counts: dict[str, int] = {}
        for device in layout.devices:
            counts[device.pool] = counts.get(device.pool, 0) + device.count
        for key, count in counts.items():
            pool = self._by_key.get(key)
            free = pool.free if pool is not None else 0
            if free < count:
                name = next(d.alias or d.product_id for d in layout.devices if d.pool == key)
                return f'{free} of {count} devices {name} are free'
        return ''

    def allocate(self, layout: Layout, sign: int = 1) -> None:
        """Allocate the resources of a layout; cells and pools that no longer exist are skipped."""
        if layout.reported:
            return
        if layout == UNREADABLE_LAYOUT:
            self._allocate_all()
            return
        for cell in layout.cells:
            host_cell = self._by_id.get(cell.cell)
            if host_cell is not None:
                host_cell.allocate(cell, sign)
        for device in layout.devices:
            pool = self._by_key.get(device.pool)
            if pool is not None:
                pool.free -= sign * device.count

    def _allocate_all(self) -> None:
        """Allocate everything; the topology is recreated once all its layouts can be read."""
        for cell in self.cells:
            cell.free = 0
            cell.base_left = 0
            cell.cpu_used, cell.memory_used = cell.cpu_cap, max(cell.memory_cap, cell.memory_used)
            cell.pages = dict.fromkeys(cell.pages, 0)
        for pool in self.pools:
            pool.free = 0

    def release(self, layout: Layout) -> None:
        """Undo the ``allocate`` of a layout."""
        self.allocate(layout, -1)


def free_topology_of(facts: Any, layouts: Iterable[Layout | None] = ()) -> FreeTopology:
    """Return the free topology of a host by its facts.

    :param facts: facts with ``numa``, ``devices`` and ``inventories``
    """
    return FreeTopology(facts.numa, facts.devices, facts.inventories, layouts)


def shared_ratios(inventories: Mapping[str, Inventory]) -> tuple[float, float]:
    """Return the allocation ratios of shared processors and of memory of a host."""
    cpu = 'VCPU' if 'VCPU' in inventories else MILLI_VCPU
    return _ratio(inventories, cpu), _ratio(inventories, 'MEMORY_MB')


def _ratio(inventories: Mapping[str, Inventory], name: str) -> float:
    inventory = inventories.get(name)
    return 1.0 if inventory is None else inventory.allocation_ratio


def _threads_by_core(dedicated: int, siblings: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return threads by core, the lowest first; a thread without siblings is its own core."""
    cores = []
    remaining = dedicated
    for group in siblings:
        bits = processor_bits(group)
        if bits & remaining:
            cores.append(bits)
            remaining &= ~bits
    cores += [1 << cpu for cpu in processor_numbers(remaining)]
    return tuple(sorted(cores, key=lambda core: core & -core))
