# SPDX-License-Identifier: Apache-2.0
"""Nested providers in columns: the number of providers of each tree that may supply a part.

These are necessary conditions, reduced to one number for each host: whether the parts fit
together is decided by the search, see :mod:`gantt.core.placement.tree_choice`.  The counts of
a part are cached, and updated for the providers of which an amount has changed since.
"""

from collections.abc import Iterable

import numpy as np

from gantt.core.candidates.query import Part
from gantt.core.candidates.table import (
    AMOUNT_BOUND,
    ClassInventory,
    ClassInventoryColumn,
    Mask,
    NamedSets,
    Shares,
)
from gantt.core.resources.provider import SharedPool
from gantt.core.table.columns import FloatArray, IntArray

_FIRST_SLOTS = 64
#: Parts whose counts are cached, and changes after which the cache is cleared.
CACHED_PARTS_MAX, CACHED_CHANGES_MAX = 64, 512
NO_PROVIDERS: tuple[int, ...] = ()


class _PartCounts:
    """Providers that may supply one part: a mask by slot, a count by tree; as of ``changes``.

    By host row, as of a stamp, also their number and the free share left on the tightest.
    """

    __slots__ = ('by_row', 'by_tree', 'changes', 'fit_stamp', 'mask', 'stamp', 'tightest')

    def __init__(self, mask: Mask, by_tree: IntArray, changes: int) -> None:
        self.mask = mask
        self.by_tree = by_tree
        self.changes = changes
        self.by_row: IntArray | None = None
        self.stamp: object = None
        self.tightest: dict[int, FloatArray] = {}
        self.fit_stamp: object = None


class NestedProviders:
    """The providers that are nested below hosts.

    :ivar of_class: class -> number of nested providers that have it; empty if there are none
    :ivar seq: number of additions, removals, and changes of parent, traits or aggregates
    """

    def __init__(self) -> None:
        self.of_class: dict[str, int] = {}
        self.seq = 0
        # Host -> ids of the providers nested below it, ascending.
        self._of_host: dict[int, tuple[int, ...]] = {}
        # Provider -> its slot in all arrays here, until it is removed or moves; and unused slots.
        self._slots: dict[int, int] = {}
        self._free_slots: list[int] = list(range(_FIRST_SLOTS - 1, -1, -1))
        self._tree_of_slot = np.full(_FIRST_SLOTS, -1, np.int64)  # slot -> number of its tree
        self._tree_numbers: dict[int, int] = {}  # host -> number of its tree
        self._hosts: list[int] = []  # number -> host
        self._columns: dict[str, ClassInventoryColumn] = {}
        self._traits = NamedSets()
        self._aggregates = NamedSets()
        self._changed_slots: list[int] = []  # slots, in the order of changes
        # Part -> counts, brought up to date by ``_changed_slots``; cleared where ``seq`` grows.
        self._cached_counts: dict[object, _PartCounts] = {}
        # Rows of the trees as of a stamp; None: providers were added or removed since.
        self._rows: tuple[object, IntArray, IntArray, IntArray] | None = None

    def trait_names(self) -> set[str]:
        """Return the traits that any nested provider has."""
        return self._traits.names()

    def copy(self) -> 'NestedProviders':
        other = NestedProviders()
        if not self._slots:
            return other
        other.of_class, other.seq = dict(self.of_class), self.seq
        other._of_host, other._slots = dict(self._of_host), dict(self._slots)
        other._free_slots, other._tree_of_slot = list(self._free_slots), self._tree_of_slot.copy()
        other._tree_numbers, other._hosts = dict(self._tree_numbers), list(self._hosts)
        other._columns = {name: column.copy() for name, column in self._columns.items()}
        other._traits, other._aggregates = self._traits.copy(), self._aggregates.copy()
        return other

    def have_any(self, names: Iterable[str]) -> bool:
        """Return whether any nested provider has one of the classes."""
        of_class = self.of_class
        return bool(of_class) and any(name in of_class for name in names)

    def of_host(self, host: int) -> tuple[int, ...]:
        """Return the ids of the nested providers in the tree of a host, ascending."""
        return self._of_host.get(host, NO_PROVIDERS)

    def counts(self, part: Part, stamp: object, by_id: dict[int, int], count: int) -> IntArray:
        """Return the number of providers of each tree that may supply a part alone, by host row.

        Not to be written to.

        :param stamp: changes whenever hosts are in other rows of ``by_id``
        :param count: number of hosts
        """
        if not self._slots:
            return np.zeros(count, np.int64)
        trees, rows, row_of = self._tree_rows(stamp, by_id)
        counted = self._counts_of_part(part, stamp, row_of)
        if counted.by_row is None or counted.stamp != stamp:
            by_row = np.zeros(count, np.int64)
            by_row[rows] = counted.by_tree[trees]
            counted.by_row = by_row
            counted.stamp = stamp
        return counted.by_row

    def tightest(
        self, part: Part, many: int, stamp: object, by_id: dict[int, int], count: int
    ) -> FloatArray:
        """Return the free share left on the tightest providers of each tree for a part, by row.

        The mean share of ``many`` distinct providers, 0 to 1; infinite if a tree has fewer.  Of
        several classes the mean counts; a provider that is allocated whole has nothing left.
        Computed once, then updated for trees that have changed; not to be written to.

        :param stamp: changes whenever hosts are in other rows of ``by_id``
        """
        if not self._slots:
            return np.full(count, np.inf)
        _, _, row_of = self._tree_rows(stamp, by_id)
        counted = self._counts_of_part(part, stamp, row_of)
        if counted.fit_stamp != stamp:
            counted.tightest = {}
            counted.fit_stamp = stamp
        shares_left = counted.tightest.get(many)
        if shares_left is None:
            shares_left = mean_share_left(
                *self._shares_left(part, counted.mask, row_of), many, count
            )
            counted.tightest[many] = shares_left
        return shares_left

    def _shares_left(self, part: Part, mask: Mask, row_of: IntArray) -> tuple[IntArray, Shares]:
        """Return host row and share left of each provider that may supply a part."""
        slots = np.flatnonzero(mask)
        host_rows = row_of[self._tree_of_slot[slots]]
        slots, host_rows = slots[host_rows >= 0], host_rows[host_rows >= 0]
        shares_left = np.zeros(len(slots))
        for name, amount in part.amounts if not part.whole and len(slots) else ():
            by_slot = np.zeros(len(self._tree_of_slot))
            where, shares = self._columns[name].fitting(amount)
            by_slot[where] = shares
            shares_left += by_slot[slots] / len(part.amounts)
        return host_rows, shares_left

    def _share_left(self, part: Part, slot: int) -> float:
        """Return the share that a part would leave free on one provider."""
        share_left = 0.0
        for name, amount in part.amounts if not part.whole else ():
            share_left += self._columns[name].share_left(slot, amount) / len(part.amounts)
        return share_left

    def most(self, name: str, stamp: object, by_id: dict[int, int], count: int) -> IntArray:
        """Return the largest free amount of a class on one provider of each tree, by row."""
        free_max = np.zeros(count, np.int64)
        column = self._columns.get(name)
        if column is not None:
            by_tree = np.zeros(len(self._hosts), np.int64)
            np.maximum.at(
                by_tree, self._tree_of_slot[column.slots()], column.inventory_arrays().free
            )
            trees, rows, _ = self._tree_rows(stamp, by_id)
            free_max[rows] = by_tree[trees]
        return free_max

    # -- changes ---------------------------------------------------------------------
    def put(self, old: SharedPool | None, new: SharedPool | None, taken: dict[str, int]) -> None:
        """Replace a provider; None: it did not exist before, or was removed.

        :param taken: amounts laid over ``new``
        """
        old = old if old is not None and old.root else None
        new = new if new is not None and new.root else None
        if old is None and new is None:
            return
        if old is None or new is None or _structure_key(old) != _structure_key(new):
            self.seq += 1
            self._cached_counts.clear()
            self._changed_slots.clear()
            self._rows = None
            if old is not None:
                self._drop(old)
            if new is not None:
                self._add(new)
        if new is not None:
            self.write(new, taken)

    def write(self, pool: SharedPool, taken: dict[str, int]) -> None:
        """Update the free amounts of one provider."""
        slot = self._slots[pool.id]
        for name in pool.inventories:
            self._columns[name].put(slot, as_inventory(pool, name, taken.get(name, 0)))
        if self._cached_counts:
            self._changed_slots.append(slot)
            if len(self._changed_slots) > CACHED_CHANGES_MAX:
                self._cached_counts.clear()
                self._changed_slots.clear()

    def _add(self, pool: SharedPool) -> None:
        if not self._free_slots:
            length = len(self._tree_of_slot)
            self._tree_of_slot = np.concatenate([self._tree_of_slot, np.full(length, -1, np.int64)])
            self._free_slots = list(range(2 * length - 1, length - 1, -1))
        slot = self._slots[pool.id] = self._free_slots.pop()
        number = self._tree_numbers.get(pool.root)
        if number is None:
            number = self._tree_numbers[pool.root] = len(self._hosts)
            self._hosts.append(pool.root)
        self._tree_of_slot[slot] = number
        self._of_host[pool.root] = tuple(sorted((*self.of_host(pool.root), pool.id)))
        for name in pool.inventories:
            self.of_class[name] = self.of_class.get(name, 0) + 1
            self._columns.setdefault(name, ClassInventoryColumn())
        for trait in pool.traits:
            self._traits.add(trait, slot)
        for uuid in pool.aggregates:
            self._aggregates.add(uuid, slot)

    def _drop(self, pool: SharedPool) -> None:
        slot = self._slots.pop(pool.id)
        self._free_slots.append(slot)
        self._tree_of_slot[slot] = -1
        remaining = tuple(pool_id for pool_id in self.of_host(pool.root) if pool_id != pool.id)
        if remaining:
            self._of_host[pool.root] = remaining
        else:
            del self._of_host[pool.root]
        for name in pool.inventories:
            self._columns[name].drop(slot)
            self.of_class[name] -= 1
            if not self.of_class[name]:
                del self.of_class[name], self._columns[name]
        for trait in pool.traits:
            self._traits.discard(trait, slot)
        for uuid in pool.aggregates:
            self._aggregates.discard(uuid, slot)

    # -- by part -----------------------------------------------------------------------
    def _tree_rows(
        self, stamp: object, by_id: dict[int, int]
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return numbers and rows of the trees whose hosts are known, and the rows of all trees."""
        if self._rows is None or self._rows[0] != stamp:
            rows = np.array([by_id.get(host, -1) for host in self._hosts], np.int64)
            trees = np.flatnonzero(rows >= 0)
            self._rows = (stamp, trees, rows[trees], rows)
        return self._rows[1:]

    def _counts_of_part(self, part: Part, stamp: object, row_of: IntArray) -> _PartCounts:
        key = part_key(part)
        counted = self._cached_counts.get(key)
        if counted is None:
            if len(self._cached_counts) >= CACHED_PARTS_MAX:
                del self._cached_counts[next(iter(self._cached_counts))]
            mask = self._supplier_mask(part)
            by_tree = np.bincount(self._tree_of_slot[mask], minlength=len(self._hosts))
            counted = self._cached_counts[key] = _PartCounts(
                mask, by_tree, len(self._changed_slots)
            )
        elif counted.changes < len(self._changed_slots):
            if counted.stamp != stamp:
                counted.by_row = None
            changed = set(self._changed_slots[counted.changes :])
            for slot in changed:
                self._update_counts(counted, part, slot, row_of)
            if counted.fit_stamp == stamp:
                self._update_tightest(
                    counted, part, {self._tree_of_slot.item(slot) for slot in changed}, row_of
                )
            else:
                counted.tightest = {}
            counted.changes = len(self._changed_slots)
        return counted

    def _update_counts(self, counted: _PartCounts, part: Part, slot: int, row_of: IntArray) -> None:
        """Update the counts of a part for one slot."""
        is_suitable = self._can_supply(part, slot)
        if is_suitable == counted.mask.item(slot):
            return
        counted.mask[slot] = is_suitable
        tree, step = self._tree_of_slot.item(slot), 1 if is_suitable else -1
        counted.by_tree[tree] += step
        if counted.by_row is not None and row_of[tree] >= 0:
            counted.by_row[row_of[tree]] += step

    def _update_tightest(
        self, counted: _PartCounts, part: Part, trees: set[int], row_of: IntArray
    ) -> None:
        """Update the shares left on the tightest providers for some trees."""
        for tree in trees if counted.tightest else ():
            row = row_of.item(tree)
            if row < 0:
                continue
            slots = (self._slots[pool_id] for pool_id in self.of_host(self._hosts[tree]))
            shares_left = sorted(
                self._share_left(part, slot) for slot in slots if counted.mask.item(slot)
            )
            for count, by_row in counted.tightest.items():
                by_row[row] = (
                    sum(shares_left[:count]) / count if len(shares_left) >= count else np.inf
                )

    def _supplier_mask(self, part: Part) -> Mask:
        """Return a mask of the slots that may supply a part."""
        length, group = len(self._tree_of_slot), part.group
        is_suitable = self._tree_of_slot >= 0
        for name, amount in part.amounts:
            has_class, column = np.zeros(length, bool), self._columns.get(name)
            if column is not None:
                has_class[column.unused(amount) if part.whole else column.fitting(amount)[0]] = True
            is_suitable &= has_class
        for names in group.required:
            is_suitable &= self._traits.any_of(names, length)
        if group.forbidden:
            is_suitable &= ~self._traits.any_of(group.forbidden, length)
        if part.suffix:
            for names in group.member_of:
                is_suitable &= self._aggregates.any_of(names, length)
            if group.forbidden_aggregates:
                is_suitable &= ~self._aggregates.any_of(group.forbidden_aggregates, length)
        return is_suitable

    def _can_supply(self, part: Part, slot: int) -> bool:
        """Return whether one slot may supply a part."""
        group, columns = part.group, self._columns
        if not all(
            name in columns and columns[name].has(slot, amount, part.whole)
            for name, amount in part.amounts
        ):
            return False
        traits, aggregates = self._traits, self._aggregates
        if not all(_is_in_any_set(traits, slot, names) for names in group.required):
            return False
        if _is_in_any_set(traits, slot, group.forbidden):
            return False
        return not part.suffix or (
            all(_is_in_any_set(aggregates, slot, names) for names in group.member_of)
            and not _is_in_any_set(aggregates, slot, group.forbidden_aggregates)
        )


def as_inventory(pool: SharedPool, name: str, taken: int) -> ClassInventory:
    """Return the inventory of a class of a provider, for the columns of a search.

    :param taken: amount laid over it
    """
    inventory = pool.inventories[name]
    return ClassInventory(
        cap=min(inventory.cap, AMOUNT_BOUND - 1),
        used=pool.used.get(name, 0) + pool.foreign.get(name, 0) + taken,
        min_unit=inventory.min_unit,
        max_unit=inventory.largest,
        step_size=inventory.step_size,
    )


def _structure_key(pool: SharedPool) -> tuple[object, ...]:
    """Return the attributes that the structure of a tree depends on."""
    return pool.root, pool.parent, pool.traits, pool.aggregates, pool.inventories.keys()


def _is_in_any_set(sets: NamedSets, slot: int, names: Iterable[str]) -> bool:
    return any(sets.has(name, slot) for name in names)


def part_key(part: Part) -> object:
    """Return a key that is equal for parts that the same providers may supply."""
    group = part.group
    return (
        *(part.amounts, part.whole, bool(part.suffix), group.required, group.forbidden),
        *(group.member_of, group.forbidden_aggregates),
    )


def mean_share_left(hosts: IntArray, left: FloatArray, count: int, length: int) -> FloatArray:
    """Return the mean share left on the tightest devices of each host.

    :param hosts: number of the host of each suitable device, below ``length``
    :param left: share of each device that would be left, 0 to 1
    :param count: number of distinct devices that the request takes
    :returns: by number of the host, 0 to 1; infinite if it has fewer devices
    """
    order = np.lexsort((left, hosts))
    hosts, left = hosts[order], left[order]
    device_counts = np.bincount(hosts, minlength=length)
    begins = np.cumsum(device_counts) - device_counts
    # The rank of each device among those of its host, the tightest first.
    place = np.arange(len(hosts)) - begins[hosts]
    taken = place < count
    total = np.bincount(hosts[taken], weights=left[taken], minlength=length)
    return np.where(device_counts >= count, total / count, np.inf)
