# SPDX-License-Identifier: Apache-2.0
"""Table of all providers in columns, updated by changes of single ones.

Providers go by *slots*, small numbers that are used again.  A class has entries only for providers
with an inventory of it, so that a class of few providers costs little.
"""

import copy
import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gantt.core.candidates.query import SHARES_TRAIT

#: No inventory is as large: comparisons stay within 64 bits.
AMOUNT_BOUND = 2**62
_FIRST_COLUMN_LENGTH = 16
#: Masks that are remembered for the traits, and for the aggregates.
_MASKS_MAX = 256

Slots = np.ndarray  # of int64
Shares = np.ndarray  # of float64: remaining share of the capacity, 0 to 1
Mask = np.ndarray  # of bool, one for each slot


class ClassInventory(msgspec.Struct, frozen=True, gc=False):
    """Inventory of one class on a provider.

    :ivar cap: usable capacity; below 2**62
    :ivar used: amount in use by any consumer; more than ``cap`` where it is over-full
    """

    cap: int
    used: int = 0
    min_unit: int = 1
    max_unit: int = AMOUNT_BOUND
    step_size: int = 1

    @property
    def free(self) -> int:
        return self.cap - self.used


class InventoryArrays(NamedTuple):
    """Inventories of one class as arrays, by provider as in ``ClassInventoryColumn.slots``."""

    free: np.ndarray
    min_unit: np.ndarray
    max_unit: np.ndarray
    step: np.ndarray
    cap: np.ndarray


class ClassInventoryColumn:
    """Column of one resource class: five numbers for each slot that has an inventory of it."""

    def __init__(self) -> None:
        self._index_of_slot: dict[int, int] = {}
        self._free_amounts: dict[int, int] = {}
        self._slots = np.zeros(_FIRST_COLUMN_LENGTH, np.int64)
        self._numbers = np.zeros(
            (5, _FIRST_COLUMN_LENGTH), np.int64
        )  # free, min_unit, max_unit, step, cap

    def __len__(self) -> int:
        return len(self._index_of_slot)

    def put(self, slot: int, one: ClassInventory) -> None:
        """Store the inventory of a provider, in place of an earlier one."""
        at = self._index_of_slot.get(slot)
        if at is None:
            at = self._index_of_slot[slot] = len(self._index_of_slot)
            if at == len(self._slots):
                self._slots = np.concatenate([self._slots, np.zeros_like(self._slots)])
                self._numbers = np.hstack([self._numbers, np.zeros_like(self._numbers)])
            self._slots[at] = slot
        self._numbers[:, at] = (
            one.free,
            one.min_unit,
            min(one.max_unit, AMOUNT_BOUND),
            one.step_size,
            one.cap,
        )
        self._free_amounts[slot] = min(one.free, one.max_unit, AMOUNT_BOUND)

    def drop(self, slot: int) -> None:
        at, last = self._index_of_slot.pop(slot), len(self._index_of_slot)
        del self._free_amounts[slot]
        if at != last:  # the last one takes its place
            moved = int(self._slots[last])
            self._slots[at], self._numbers[:, at] = moved, self._numbers[:, last]
            self._index_of_slot[moved] = at

    def copy(self) -> 'ClassInventoryColumn':
        other = ClassInventoryColumn()
        other._index_of_slot, other._free_amounts = (
            dict(self._index_of_slot),
            dict(self._free_amounts),
        )
        other._slots, other._numbers = self._slots.copy(), self._numbers.copy()
        return other

    def unused(self, amount: int) -> Slots:
        """Return slots with all capacity free, at least an amount, that may go to one claim."""
        free, min_unit, max_unit, step, cap = self.inventory_arrays()
        fits = (free == cap) & (cap >= amount) & (cap > 0) & (min_unit <= cap) & (max_unit >= cap)
        return self._slots[np.flatnonzero(fits & (cap % np.maximum(step, 1) == 0))]

    def has(self, slot: int, amount: int, whole: bool) -> bool:
        """Return whether a slot is among those of :meth:`fitting`, or of :meth:`unused`."""
        at = self._index_of_slot.get(slot)
        if at is None or amount >= AMOUNT_BOUND:
            return False
        free, min_unit, max_unit, step, cap = self._numbers[:, at].tolist()
        needed = cap if whole else amount
        has = free == cap >= amount and cap > 0 if whole else free >= amount
        return bool(has and min_unit <= needed <= max_unit and needed % step == 0)

    def share_left(self, slot: int, amount: int) -> float:
        """Return the remaining share of a slot that has an amount, as in :meth:`fitting`."""
        free, _, _, _, cap = self._numbers[:, self._index_of_slot[slot]].tolist()
        return float(free - amount) / float(max(cap, 1))

    def slots(self) -> Slots:
        """Return all slots that have an inventory of the class."""
        return self._slots[: len(self._index_of_slot)]

    def fitting(self, amount: int) -> tuple[Slots, Shares]:
        """Return slots that have an amount in one piece, and the share of capacity that remains."""
        places, numbers = self._fitting_indices(amount), self.inventory_arrays()
        shares = (numbers.free[places] - amount) / np.maximum(numbers.cap[places], 1)
        return self._slots[places], shares

    def _fitting_indices(self, amount: int) -> Slots:
        if amount >= AMOUNT_BOUND:
            return np.zeros(0, np.int64)
        free, min_unit, max_unit, step, _ = self.inventory_arrays()
        fits = (free >= amount) & (min_unit <= amount) & (max_unit >= amount)
        fits &= (step == 1) | (amount % step == 0)
        return np.flatnonzero(fits)

    def inventory_arrays(self) -> InventoryArrays:
        """Return the columns of all slots with an inventory; not to be written to."""
        free, min_unit, max_unit, step, cap = self._numbers[:, : len(self._index_of_slot)]
        return InventoryArrays(free, min_unit, max_unit, step, cap)

    def consumer_counts(self, amount: int) -> tuple[Slots, np.ndarray]:
        """Return slots that have an amount in one piece, and how many consumers fit on each."""
        places = self._fitting_indices(amount)
        return self._slots[places], self.inventory_arrays().free[places] // max(amount, 1)

    def free_amounts(self) -> Mapping[int, int]:
        """Return by slot the amount that one consumer may still take there."""
        return self._free_amounts


class NamedSets:
    """Sets of slots by name, as masks for bulk evaluation.

    A mask is created on demand, and reused until its set changes.
    """

    def __init__(self) -> None:
        self._slots_by_name: dict[str, set[int]] = {}
        self._masks: dict[str, Mask] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._slots_by_name

    def copy(self) -> 'NamedSets':
        other = NamedSets()
        other._slots_by_name = {name: set(members) for name, members in self._slots_by_name.items()}
        return other

    def has(self, name: str, slot: int) -> bool:
        """Return whether a slot is in the set of a name."""
        return slot in self._slots_by_name.get(name, ())

    def members(self, name: str) -> Iterable[int]:
        """Return the slots in the set of this name."""
        return self._slots_by_name.get(name, ())

    def names(self) -> set[str]:
        """Return names of the sets that have a slot."""
        return set(self._slots_by_name)

    def add(self, name: str, slot: int) -> None:
        """Add a slot to the set of this name."""
        self._slots_by_name.setdefault(name, set()).add(slot)
        self._masks.pop(name, None)

    def discard(self, name: str, slot: int) -> None:
        """Remove a slot from a set; one that is empty then ends."""
        members = self._slots_by_name[name]
        members.discard(slot)
        if not members:
            del self._slots_by_name[name]
        self._masks.pop(name, None)

    def mask(self, name: str, length: int) -> Mask:
        """Return the mask of a name; not to be written to."""
        mask = self._masks.get(name)
        if mask is None or len(mask) != length:
            members = self._slots_by_name.get(name)
            mask = np.zeros(length, bool)
            if members is None:
                return mask  # nothing is remembered of names that come from anywhere
            mask[np.fromiter(members, np.int64, len(members))] = True
            if len(self._masks) >= _MASKS_MAX:
                self._masks.clear()
            self._masks[name] = mask
        return mask

    def any_of(self, names: Iterable[str], length: int) -> Mask:
        """Return the mask of slots that are in any of the named sets."""
        first, *others = sorted(names) or ['']
        mask = self.mask(first, length)
        for name in others:
            mask = mask | self.mask(name, length)
        return mask


_FIRST_SLOTS = 64
NO_SLOT = -1


class ProviderEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Complete entry of a provider.

    :ivar parent_id: None of a root, whose ``root_id`` is its own id
    :ivar version: grows with every change
    :ivar traits: ascending; ``aggregates`` as well, by uuid
    :ivar others: traits and classes outside of the query that the entry is read for; ascending
    """

    id: int
    uuid: str
    root_id: int
    parent_id: int | None = None
    version: int = 0
    traits: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()
    inventories: dict[str, ClassInventory] = {}
    others: tuple[str, ...] = ()


class ProviderTable:
    """Providers by slot.

    Any number of readers may search it at once; a writer needs it alone, see :meth:`copy`.

    :ivar classes: name -> amounts
    :ivar traits: slots by trait; ``aggregates``: slots by aggregate
    :ivar root: slot -> that of its root; ``NO_SLOT`` where deleted or the root is not known
    :ivar structure: another number after each change of trees, aggregates or sharing
    :ivar uuids: slot -> uuid
    :ivar stamps: slot -> another number after each change of its contents
    :ivar nested: number of providers below another one
    :ivar origin: equal for all copies of a table: their stamps are of one count
    """

    def __init__(self) -> None:
        self.origin: object = object()
        self.classes: dict[str, ClassInventoryColumn] = {}
        self.traits = NamedSets()
        self.aggregates = NamedSets()
        self.root = np.full(_FIRST_SLOTS, NO_SLOT, np.int64)
        self.structure = 0
        self.uuids = [''] * _FIRST_SLOTS
        self.stamps = [0] * _FIRST_SLOTS
        self.nested = 0
        self._entries: list[ProviderEntry | None] = [None] * _FIRST_SLOTS
        self._slots: dict[int, int] = {}
        self._by_uuid: dict[str, int] = {}
        self._free_slots = list(range(_FIRST_SLOTS - 1, -1, -1))
        self._trees: dict[int, set[int]] = {}  # id of a root -> slots
        self._children: dict[int, set[int]] = {}  # id of a parent -> slots
        self._anchors: dict[int, Slots] = {}
        self._anchors_structure = -1
        self._changes = 0
        self._kinds: dict[int, int] = {}  # slot -> kind, while the structure is the same
        self._kind_numbers: dict[Hashable, int] = {}
        self._next_kind = itertools.count()
        self._kinds_structure = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def length(self) -> int:
        """Length of masks: slots that there is room for."""
        return len(self.root)

    def slot(self, uuid: str) -> int | None:
        """Return the slot of a provider; None: it is not known."""
        return self._by_uuid.get(uuid)

    def entry(self, slot: int) -> ProviderEntry:
        """Return the provider in a slot that is in use."""
        entry = self._entries[slot]
        assert entry is not None
        return entry

    def free_amount(self, name: str, slot: int) -> int:
        """Return the amount of a class that one consumer may still take of a provider."""
        return self.classes[name].free_amounts()[slot]

    def uuid_of(self, provider_id: int | None) -> str | None:
        """Return the uuid of a provider; None: it is not known."""
        slot = None if provider_id is None else self._slots.get(provider_id)
        return None if slot is None else self.entry(slot).uuid

    def ids(self) -> Collection[int]:
        """Return the ids of all known providers."""
        return self._slots.keys()

    def parent(self, slot: int) -> int:
        """Return the slot of a provider's parent, or ``NO_SLOT``."""
        above = self.entry(slot).parent_id
        return NO_SLOT if above is None else self._slots.get(above, NO_SLOT)

    def has_children(self, slot: int) -> bool:
        return bool(self._children.get(self.entry(slot).id))

    def tree(self, root: int) -> Iterable[int]:
        """Return the slots of all providers of a tree.

        :param root: slot
        """
        return self._trees[self.entry(root).id]

    def is_sharing(self, slot: int) -> bool:
        return SHARES_TRAIT in self.entry(slot).traits

    def anchors(self, slot: int) -> Slots:
        """Return roots of the trees that a sharing provider serves, without its own."""
        if self._anchors_structure != self.structure:
            self._anchors = {}
            self._anchors_structure = self.structure
        anchors = self._anchors.get(slot)
        if anchors is None:
            served: set[int] = set()
            for aggregate in self.entry(slot).aggregates:
                served.update(self.aggregates.members(aggregate))
            roots = np.unique(self.root[np.fromiter(served, np.int64, len(served))])
            anchors = roots[(roots != NO_SLOT) & (roots != self.root[slot])]
            self._anchors[slot] = anchors
        return anchors

    def kind(self, slot: int) -> int:
        """Return a number that equal slots have: leaves below one parent, with equal contents.

        Numbers hold until changes are applied.
        """
        kind = self._kinds.get(slot)
        return self._new_kind(slot) if kind is None else kind

    def kinds(self, slots: Sequence[int]) -> list[int]:
        """Return ``kind`` of each slot."""
        cached = self._kinds
        try:
            return [cached[slot] for slot in slots]
        except KeyError:
            return [self.kind(slot) for slot in slots]

    def _new_kind(self, slot: int) -> int:
        entry = self.entry(slot)
        content: Hashable = slot
        if entry.parent_id is not None and not self.has_children(slot):
            content = content_of(entry)
        kind = self._kind_numbers.setdefault(content, next(self._next_kind))
        self._kinds[slot] = kind
        return kind

    def _forget_kinds(self) -> None:
        """Forget kinds after a change of structure, or when most are of past contents."""
        if self._kinds_structure != self.structure or len(self._kind_numbers) > 2 * self.length:
            self._kinds = {}
            self._kind_numbers = {}
            self._kinds_structure = self.structure

    # -- changes -------------------------------------------------------------------------
    def copy(self) -> 'ProviderTable':
        """Return a table that changes by itself, while this one is still searched."""
        other = copy.copy(self)
        other.classes = {name: column.copy() for name, column in self.classes.items()}
        other.traits, other.aggregates = self.traits.copy(), self.aggregates.copy()
        other.root, other.uuids = self.root.copy(), list(self.uuids)
        other.stamps, other._entries = list(self.stamps), list(self._entries)
        other._slots, other._by_uuid = dict(self._slots), dict(self._by_uuid)
        other._free_slots = list(self._free_slots)
        other._trees = {root: set(slots) for root, slots in self._trees.items()}
        other._children = {parent: set(slots) for parent, slots in self._children.items()}
        other._anchors = {}
        other._anchors_structure = -1
        other._kinds = {}
        other._kind_numbers = {}
        return other

    def apply(self, entries: Iterable[ProviderEntry], gone: Iterable[int] = ()) -> None:
        """Apply providers as they became; versions older than the known ones are ignored.

        :param gone: ids of deleted providers
        """
        for provider_id in gone:
            self._remove(provider_id)
        moved = []
        for entry in entries:
            slot = self._slots.get(entry.id)
            current = None if slot is None else self._entries[slot]
            if current is None or entry.version >= current.version:
                slot = self._allocate_slot(entry) if slot is None else slot
                self._write(slot, current, entry)
                moved.append(slot)
        for slot in moved:
            self._set_root(slot)
        self._forget_kinds()

    def _allocate_slot(self, entry: ProviderEntry) -> int:
        if not self._free_slots:
            length = self.length
            self.root = np.concatenate([self.root, np.full(length, NO_SLOT, np.int64)])
            self.uuids += [''] * length
            self.stamps += [0] * length
            self._entries += [None] * length
            self._free_slots = list(range(2 * length - 1, length - 1, -1))
        slot = self._slots[entry.id] = self._free_slots.pop()
        self._by_uuid[entry.uuid] = slot
        return slot

    def _write(self, slot: int, current: ProviderEntry | None, entry: ProviderEntry) -> None:
        self._changes += 1
        self.stamps[slot] = self._changes
        self._kinds.pop(slot, None)
        self._entries[slot] = entry
        self.uuids[slot] = entry.uuid
        before = current or ProviderEntry(id=entry.id, uuid=entry.uuid, root_id=entry.root_id)
        self._write_sets(self.traits, slot, before.traits, entry.traits)
        self._write_sets(self.aggregates, slot, before.aggregates, entry.aggregates)
        self._write_inventories(slot, before.inventories, entry.inventories)
        self._write_tree(slot, current, entry)
        shares = SHARES_TRAIT in entry.traits
        if (
            current is None
            or before.aggregates != entry.aggregates
            or (SHARES_TRAIT in before.traits) != shares
            or before.parent_id != entry.parent_id
            or before.root_id != entry.root_id
        ):
            self.structure += 1

    def _write_sets(
        self, sets: NamedSets, slot: int, before: Sequence[str], after: Sequence[str]
    ) -> None:
        if before != after:
            for name in set(before).difference(after):
                sets.discard(name, slot)
            for name in set(after).difference(before):
                sets.add(name, slot)

    def _write_inventories(
        self, slot: int, before: dict[str, ClassInventory], after: dict[str, ClassInventory]
    ) -> None:
        for name, inventory in after.items():
            if before.get(name) != inventory:
                column = self.classes.get(name)
                if column is None:
                    column = self.classes[name] = ClassInventoryColumn()
                column.put(slot, inventory)
        for name in before.keys() - after.keys():
            self.classes[name].drop(slot)
            if not len(self.classes[name]):
                del self.classes[name]

    def _write_tree(self, slot: int, current: ProviderEntry | None, entry: ProviderEntry) -> None:
        if current is not None:
            self._remove_from_tree(slot, current)
        self._trees.setdefault(entry.root_id, set()).add(slot)
        if entry.parent_id is not None:
            self.nested += 1
            self._children.setdefault(entry.parent_id, set()).add(slot)

    def _remove_from_tree(self, slot: int, current: ProviderEntry) -> None:
        _discard_slot(self._trees, current.root_id, slot)
        if current.parent_id is not None:
            self.nested -= 1
            _discard_slot(self._children, current.parent_id, slot)

    def _set_root(self, slot: int) -> None:
        """Set the root of a provider, and of those that waited for it."""
        entry = self.entry(slot)
        self.root[slot] = self._slots.get(entry.root_id, NO_SLOT)
        if entry.root_id == entry.id:
            for below in self._trees[entry.id]:
                self.root[below] = slot

    def _remove(self, provider_id: int) -> None:
        slot = self._slots.pop(provider_id, None)
        if slot is None:
            return
        entry = self.entry(slot)
        if self._by_uuid.get(entry.uuid) == slot:
            del self._by_uuid[entry.uuid]
        self._write_sets(self.traits, slot, entry.traits, ())
        self._write_sets(self.aggregates, slot, entry.aggregates, ())
        self._write_inventories(slot, entry.inventories, {})
        self._remove_from_tree(slot, entry)
        for below in self._trees.get(provider_id, ()):
            self.root[below] = NO_SLOT
        self.root[slot] = NO_SLOT
        self._entries[slot] = None
        self._free_slots.append(slot)
        self._changes += 1
        self.stamps[slot] = self._changes
        self.structure += 1


def content_of(entry: ProviderEntry) -> Hashable:
    """Return the contents by which leaves below one parent differ."""
    inventories = tuple(sorted(entry.inventories.items(), key=lambda item: item[0]))
    return entry.parent_id, entry.traits, entry.aggregates, inventories


def _discard_slot(sets: dict[int, set[int]], key: int, slot: int) -> None:
    sets[key].discard(slot)
    if not sets[key]:
        del sets[key]
