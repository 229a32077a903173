# SPDX-License-Identifier: Apache-2.0
"""Table of all providers in columns, updated by changes of single ones."""

import copy
import itertools
from collections.abc import Collection, Hashable, Iterable, Sequence

import msgspec
import numpy as np

from gantt.core.candidates.columns import ClassColumn, ClassInventory, NamedSets, Slots
from gantt.core.candidates.query import SHARES

_FIRST = 64
NOWHERE = -1


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
    :ivar root: slot -> that of its root; ``NOWHERE`` where deleted or the root is not known
    :ivar structure: another number after each change of trees, aggregates or sharing
    :ivar uuids: slot -> uuid
    :ivar stamps: slot -> another number after each change of its contents
    :ivar nested: number of providers below another one
    :ivar origin: the same of all copies of one: their stamps are of one count
    """

    def __init__(self) -> None:
        self.origin: object = object()
        self.classes: dict[str, ClassColumn] = {}
        self.traits = NamedSets()
        self.aggregates = NamedSets()
        self.root = np.full(_FIRST, NOWHERE, np.int64)
        self.structure = 0
        self.uuids = [''] * _FIRST
        self.stamps = [0] * _FIRST
        self.nested = 0
        self._entries: list[ProviderEntry | None] = [None] * _FIRST
        self._slots: dict[int, int] = {}
        self._by_uuid: dict[str, int] = {}
        self._free = list(range(_FIRST - 1, -1, -1))
        self._trees: dict[int, set[int]] = {}  # id of a root -> slots
        self._children: dict[int, set[int]] = {}  # id of a parent -> slots
        self._anchors: dict[int, Slots] = {}
        self._anchored = -1
        self._changes = 0
        self._kinds: dict[int, int] = {}  # slot -> kind, while the structure is the same
        self._kind_numbers: dict[Hashable, int] = {}
        self._kinds_known = itertools.count()
        self._kinds_of = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def length(self) -> int:
        """Length of masks: slots that there is room for."""
        return len(self.root)

    def slot(self, uuid: str) -> int | None:
        return self._by_uuid.get(uuid)

    def entry(self, slot: int) -> ProviderEntry:
        entry = self._entries[slot]
        assert entry is not None
        return entry

    def uuid_of(self, provider_id: int | None) -> str | None:
        """Return the uuid of a provider; None: it is not known."""
        slot = None if provider_id is None else self._slots.get(provider_id)
        return None if slot is None else self.entry(slot).uuid

    def ids(self) -> Collection[int]:
        """Return the ids of all known providers."""
        return self._slots.keys()

    def parent(self, slot: int) -> int:
        """Return the slot of its parent, or ``NOWHERE``."""
        above = self.entry(slot).parent_id
        return NOWHERE if above is None else self._slots.get(above, NOWHERE)

    def has_children(self, slot: int) -> bool:
        return bool(self._children.get(self.entry(slot).id))

    def tree(self, root: int) -> Iterable[int]:
        """Return the slots of all providers of a tree.

        :param root: slot
        """
        return self._trees[self.entry(root).id]

    def is_sharing(self, slot: int) -> bool:
        return SHARES in self.entry(slot).traits

    def anchors(self, slot: int) -> Slots:
        """Return roots of the trees that a sharing provider serves, without its own."""
        if self._anchored != self.structure:
            self._anchors, self._anchored = {}, self.structure
        anchors = self._anchors.get(slot)
        if anchors is None:
            served: set[int] = set()
            for aggregate in self.entry(slot).aggregates:
                served.update(self.aggregates.members(aggregate))
            roots = np.unique(self.root[np.fromiter(served, np.int64, len(served))])
            anchors = roots[(roots != NOWHERE) & (roots != self.root[slot])]
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
        kind = self._kind_numbers.setdefault(content, next(self._kinds_known))
        self._kinds[slot] = kind
        return kind

    def _forget_kinds(self) -> None:
        """Forget kinds after a change of structure, or when most are of past contents."""
        if self._kinds_of != self.structure or len(self._kind_numbers) > 2 * self.length:
            self._kinds, self._kind_numbers = {}, {}
            self._kinds_of = self.structure

    # -- changes -------------------------------------------------------------------------
    def copy(self) -> 'ProviderTable':
        """Return a table that changes by itself, while this one is still searched."""
        other = copy.copy(self)
        other.classes = {name: column.copy() for name, column in self.classes.items()}
        other.traits, other.aggregates = self.traits.copy(), self.aggregates.copy()
        other.root, other.uuids = self.root.copy(), list(self.uuids)
        other.stamps, other._entries = list(self.stamps), list(self._entries)
        other._slots, other._by_uuid = dict(self._slots), dict(self._by_uuid)
        other._free = list(self._free)
        other._trees = {root: set(slots) for root, slots in self._trees.items()}
        other._children = {parent: set(slots) for parent, slots in self._children.items()}
        other._anchors, other._anchored = {}, -1
        other._kinds, other._kind_numbers = {}, {}
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
                slot = self._take_slot(entry) if slot is None else slot
                self._write(slot, current, entry)
                moved.append(slot)
        for slot in moved:
            self._set_root(slot)
        self._forget_kinds()

    def _take_slot(self, entry: ProviderEntry) -> int:
        if not self._free:
            length = self.length
            self.root = np.concatenate([self.root, np.full(length, NOWHERE, np.int64)])
            self.uuids += [''] * length
            self.stamps += [0] * length
            self._entries += [None] * length
            self._free = list(range(2 * length - 1, length - 1, -1))
        slot = self._slots[entry.id] = self._free.pop()
        self._by_uuid[entry.uuid] = slot
        return slot

    def _write(self, slot: int, known: ProviderEntry | None, entry: ProviderEntry) -> None:
        self._changes += 1
        self.stamps[slot] = self._changes
        self._kinds.pop(slot, None)
        self._entries[slot] = entry
        self.uuids[slot] = entry.uuid
        before = known or ProviderEntry(id=entry.id, uuid=entry.uuid, root_id=entry.root_id)
        self._write_sets(self.traits, slot, before.traits, entry.traits)
        self._write_sets(self.aggregates, slot, before.aggregates, entry.aggregates)
        self._write_inventories(slot, before.inventories, entry.inventories)
        self._write_place(slot, known, entry)
        shares = SHARES in entry.traits
        if (
            known is None
            or before.aggregates != entry.aggregates
            or (SHARES in before.traits) != shares
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
                    column = self.classes[name] = ClassColumn()
                column.put(slot, inventory)
        for name in before.keys() - after.keys():
            self.classes[name].drop(slot)
            if not len(self.classes[name]):
                del self.classes[name]

    def _write_place(self, slot: int, known: ProviderEntry | None, entry: ProviderEntry) -> None:
        if known is not None:
            self._leave(slot, known)
        self._trees.setdefault(entry.root_id, set()).add(slot)
        if entry.parent_id is not None:
            self.nested += 1
            self._children.setdefault(entry.parent_id, set()).add(slot)

    def _leave(self, slot: int, known: ProviderEntry) -> None:
        _take_out(self._trees, known.root_id, slot)
        if known.parent_id is not None:
            self.nested -= 1
            _take_out(self._children, known.parent_id, slot)

    def _set_root(self, slot: int) -> None:
        """Set the root of a provider, and of those that waited for it."""
        entry = self.entry(slot)
        self.root[slot] = self._slots.get(entry.root_id, NOWHERE)
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
        self._leave(slot, entry)
        for below in self._trees.get(provider_id, ()):
            self.root[below] = NOWHERE
        self.root[slot] = NOWHERE
        self._entries[slot] = None
        self._free.append(slot)
        self._changes += 1
        self.stamps[slot] = self._changes
        self.structure += 1


def content_of(entry: ProviderEntry) -> Hashable:
    """Return the contents by which leaves below one parent differ."""
    inventories = tuple(sorted(entry.inventories.items(), key=lambda item: item[0]))
    return entry.parent_id, entry.traits, entry.aggregates, inventories


def _take_out(sets: dict[int, set[int]], key: int, slot: int) -> None:
    sets[key].discard(slot)
    if not sets[key]:
        del sets[key]
