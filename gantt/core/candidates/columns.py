# SPDX-License-Identifier: Apache-2.0
"""Columns of providers: amounts of one resource class, and sets by trait and aggregate.

Providers go by *slots*, small numbers that are used again.  A class has entries only for providers
with an inventory of it, so that a class of few providers costs little.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

#: No inventory is as large: comparisons stay within 64 bits.
AMOUNT_BOUND = 2**62
_FIRST = 16
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


class ClassNumbers(NamedTuple):
    """Columns of one class, in the order of ``ClassColumn.slots``."""

    free: np.ndarray
    least: np.ndarray
    largest: np.ndarray
    step: np.ndarray
    cap: np.ndarray


class ClassColumn:
    """Column of one resource class: five numbers for each slot that has an inventory of it."""

    def __init__(self) -> None:
        self._at: dict[int, int] = {}
        self._rooms: dict[int, int] = {}
        self._slots = np.zeros(_FIRST, np.int64)
        self._numbers = np.zeros((5, _FIRST), np.int64)  # free, least, largest, step, cap

    def __len__(self) -> int:
        return len(self._at)

    def put(self, slot: int, one: ClassInventory) -> None:
        at = self._at.get(slot)
        if at is None:
            at = self._at[slot] = len(self._at)
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
        self._rooms[slot] = min(one.free, one.max_unit, AMOUNT_BOUND)

    def drop(self, slot: int) -> None:
        at, last = self._at.pop(slot), len(self._at)
        del self._rooms[slot]
        if at != last:  # the last one takes its place
            moved = int(self._slots[last])
            self._slots[at], self._numbers[:, at] = moved, self._numbers[:, last]
            self._at[moved] = at

    def copy(self) -> 'ClassColumn':
        other = ClassColumn()
        other._at, other._rooms = dict(self._at), dict(self._rooms)
        other._slots, other._numbers = self._slots.copy(), self._numbers.copy()
        return other

    def whole(self, amount: int) -> Slots:
        """Return slots with all capacity free, at least an amount, that may go to one claim."""
        free, least, largest, step, cap = self.numbers()
        fits = (free == cap) & (cap >= amount) & (cap > 0) & (least <= cap) & (largest >= cap)
        return self._slots[np.flatnonzero(fits & (cap % np.maximum(step, 1) == 0))]

    def has(self, slot: int, amount: int, whole: bool) -> bool:
        """Return whether a slot is among those of :meth:`fitting`, or of :meth:`whole`."""
        at = self._at.get(slot)
        if at is None or amount >= AMOUNT_BOUND:
            return False
        free, least, largest, step, cap = self._numbers[:, at].tolist()
        needed = cap if whole else amount
        has = free == cap >= amount and cap > 0 if whole else free >= amount
        return bool(has and least <= needed <= largest and needed % step == 0)

    def share_left(self, slot: int, amount: int) -> float:
        """Return the remaining share of a slot that has an amount, as in :meth:`fitting`."""
        free, _, _, _, cap = self._numbers[:, self._at[slot]].tolist()
        return float(free - amount) / float(max(cap, 1))

    def slots(self) -> Slots:
        """Return all slots that have an inventory of the class."""
        return self._slots[: len(self._at)]

    def fitting(self, amount: int) -> tuple[Slots, Shares]:
        """Return slots that have an amount in one piece, and the share of capacity that remains."""
        places, numbers = self._where(amount), self.numbers()
        shares = (numbers.free[places] - amount) / np.maximum(numbers.cap[places], 1)
        return self._slots[places], shares

    def _where(self, amount: int) -> Slots:
        if amount >= AMOUNT_BOUND:
            return np.zeros(0, np.int64)
        free, least, largest, step, _ = self.numbers()
        fits = (free >= amount) & (least <= amount) & (largest >= amount)
        fits &= (step == 1) | (amount % step == 0)
        return np.flatnonzero(fits)

    def numbers(self) -> ClassNumbers:
        """Return the columns of all slots with an inventory; not to be written to."""
        free, least, largest, step, cap = self._numbers[:, : len(self._at)]
        return ClassNumbers(free, least, largest, step, cap)

    def times(self, amount: int) -> tuple[Slots, np.ndarray]:
        """Return slots that have an amount in one piece, and how many consumers fit on each."""
        places = self._where(amount)
        return self._slots[places], self.numbers().free[places] // max(amount, 1)

    def room(self, slot: int) -> int:
        """Return the amount that one consumer may still take there."""
        return self._rooms[slot]

    def rooms(self) -> Mapping[int, int]:
        """Return ``room`` by slot, of all that have an inventory of the class."""
        return self._rooms


class NamedSets:
    """Sets of slots by name, as masks for bulk evaluation.

    A mask is created on demand, and reused until its set changes.
    """

    def __init__(self) -> None:
        self._of: dict[str, set[int]] = {}
        self._masks: dict[str, Mask] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def copy(self) -> 'NamedSets':
        other = NamedSets()
        other._of = {name: set(members) for name, members in self._of.items()}
        return other

    def has(self, name: str, slot: int) -> bool:
        """Return whether a slot is in the set of a name."""
        return slot in self._of.get(name, ())

    def members(self, name: str) -> Iterable[int]:
        return self._of.get(name, ())

    def names(self) -> set[str]:
        """Return names of the sets that have a slot."""
        return set(self._of)

    def add(self, name: str, slot: int) -> None:
        self._of.setdefault(name, set()).add(slot)
        self._masks.pop(name, None)

    def discard(self, name: str, slot: int) -> None:
        members = self._of[name]
        members.discard(slot)
        if not members:
            del self._of[name]
        self._masks.pop(name, None)

    def mask(self, name: str, length: int) -> Mask:
        """Return the mask of a name; not to be written to."""
        mask = self._masks.get(name)
        if mask is None or len(mask) != length:
            members = self._of.get(name)
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
