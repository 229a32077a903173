# SPDX-License-Identifier: Apache-2.0
"""All providers in columns, followed by news of single ones."""

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
    """One provider, whole.

    :ivar parent_id: None of a root, whose ``root_id`` is its own id
    :ivar version: grows with every change
    :ivar traits: ascending; ``aggregates`` as well, by uuid
    :ivar others: traits and classes of one that is given to a single query, which does not look at
        them; ascending
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

    Any number may search it at once; whoever applies news has it alone, see :meth:`copy`.

    :ivar classes: name -> amounts
    :ivar traits: who has each; ``aggregates``: who is in each
    :ivar root: slot -> that of its root; ``NOWHERE`` of one that is gone or whose root is not known
    :ivar structure: another number after each change of trees, of aggregates or of who shares
    :ivar uuids: slot -> uuid
    :ivar stamps: slot -> another number after each change of what is there
    :ivar nested: how many are below another one
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
        """Of masks: slots that there is room for."""
        return len(self.root)

    def slot(self, uuid: str) -> int | None:
        return self._by_uuid.get(uuid)

    def entry(self, slot: int) -> ProviderEntry:
        found = self._entries[slot]
        assert found is not None
        return found

    def uuid_of(self, provider_id: int | None) -> str | None:
        """None of one that is not known."""
        slot = None if provider_id is None else self._slots.get(provider_id)
        return None if slot is None else self.entry(slot).uuid

    def ids(self) -> Collection[int]:
        """Of all that are known."""
        return self._slots.keys()

    def parent(self, slot: int) -> int:
        """The slot of its parent, or ``NOWHERE``."""
        above = self.entry(slot).parent_id
        return NOWHERE if above is None else self._slots.get(above, NOWHERE)

    def has_children(self, slot: int) -> bool:
        return bool(self._children.get(self.entry(slot).id))

    def tree(self, root: int) -> Iterable[int]:
        """Slots of all providers of a tree.

        :param root: slot
        """
        return self._trees[self.entry(root).id]

    def is_sharing(self, slot: int) -> bool:
        return SHARES in self.entry(slot).traits

    def anchors(self, slot: int) -> Slots:
        """Roots of the trees that one which shares serves, without its own."""
        if self._anchored != self.structure:
            self._anchors, self._anchored = {}, self.structure
        found = self._anchors.get(slot)
        if found is None:
            served: set[int] = set()
            for aggregate in self.entry(slot).aggregates:
                served.update(self.aggregates.members(aggregate))
            roots = np.unique(self.root[np.fromiter(served, np.int64, len(served))])
            found = roots[(roots != NOWHERE) & (roots != self.root[slot])]
            self._anchors[slot] = found
        return found

    def kind(self, slot: int) -> int:
        """A number that equal ones have: leaves below one parent, with equal contents.

        Numbers hold until news are applied.
        """
        found = self._kinds.get(slot)
        return self._new_kind(slot) if found is None else found

    def kinds(self, slots: Sequence[int]) -> list[int]:
        """``kind`` of each."""
        known = self._kinds
        try:
            return [known[slot] for slot in slots]
        except KeyError:
            return [self.kind(slot) for slot in slots]

    def _new_kind(self, slot: int) -> int:
        entry = self.entry(slot)
        content: Hashable = slot
        if entry.parent_id is not None and not self.has_children(slot):
            content = content_of(entry)
        found = self._kind_numbers.setdefault(content, next(self._kinds_known))
        self._kinds[slot] = found
        return found

    def _forget_kinds(self) -> None:
        """What has changed so, or what was remembered of contents that are no more."""
        if self._kinds_of != self.structure or len(self._kind_numbers) > 2 * self.length:
            self._kinds, self._kind_numbers = {}, {}
            self._kinds_of = self.structure

    # -- news ----------------------------------------------------------------------------
    def copy(self) -> 'ProviderTable':
        """One that changes by itself, while this one is searched on."""
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
        """Providers as they became; what is older than what is known is left out.

        :param gone: ids of such as are no more
        """
        for provider_id in gone:
            self._remove(provider_id)
        moved = []
        for entry in entries:
            slot = self._slots.get(entry.id)
            known = None if slot is None else self._entries[slot]
            if known is None or entry.version >= known.version:
                slot = self._take_slot(entry) if slot is None else slot
                self._write(slot, known, entry)
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
        for name, one in after.items():
            if before.get(name) != one:
                column = self.classes.get(name)
                if column is None:
                    column = self.classes[name] = ClassColumn()
                column.put(slot, one)
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
        """Where a provider belongs; and those that waited for it."""
        entry = self.entry(slot)
        self.root[slot] = self._slots.get(entry.root_id, NOWHERE)
        if entry.root_id == entry.id:
            for below in self._trees[entry.id]:
                self.root[below] = slot

    def _remove(self, provider_id: int) -> None:
        slot = self._slots.pop(provider_id, None)
        if slot is None:
            return
        known = self.entry(slot)
        if self._by_uuid.get(known.uuid) == slot:
            del self._by_uuid[known.uuid]
        self._write_sets(self.traits, slot, known.traits, ())
        self._write_sets(self.aggregates, slot, known.aggregates, ())
        self._write_inventories(slot, known.inventories, {})
        self._leave(slot, known)
        for below in self._trees.get(provider_id, ()):
            self.root[below] = NOWHERE
        self.root[slot] = NOWHERE
        self._entries[slot] = None
        self._free.append(slot)
        self._changes += 1
        self.stamps[slot] = self._changes
        self.structure += 1


def content_of(entry: ProviderEntry) -> Hashable:
    """What leaves below one parent are told apart by."""
    inventories = tuple(sorted(entry.inventories.items(), key=lambda item: item[0]))
    return entry.parent_id, entry.traits, entry.aggregates, inventories


def _take_out(sets: dict[int, set[int]], key: int, slot: int) -> None:
    sets[key].discard(slot)
    if not sets[key]:
        del sets[key]
