# SPDX-License-Identifier: Apache-2.0
"""Sums over all providers: totals by class, the largest piece, and pieces that still fit."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from gantt.core.candidates.columns import ClassColumn, Slots
from gantt.core.candidates.table import NOWHERE, ProviderTable

#: Classes that are summed up, in the order of their names.
CLASSES_MAX = 500
#: Powers of two up to which pieces are counted.
POWERS_MAX = 41
#: Largest count of one tree, so that sums over trees stay within 64 bits.
COUNT_MAX = 2**40


class ClassRollUp(msgspec.Struct, frozen=True, kw_only=True):
    """One resource class, over all providers that have it.

    :ivar providers: how many have an inventory of it
    :ivar capacity: what may be taken in all, and of that ``used``, by whomever
    :ivar free: what may still be taken, over providers that are not over-full
    :ivar largest: what one consumer can still get on one provider
    :ivar pieces: how many consumers that want 1, 2, 4, 8 and so on, each on one provider, still
        fit; up to the largest piece there is
    """

    resource_class: str
    providers: int
    capacity: int
    used: int
    free: int
    largest: int
    pieces: list[int]


class TreesFitting(NamedTuple):
    """Number of times that a shape fits into trees of providers.

    :ivar times: total, at most 2**40 for each tree
    :ivar trees: trees where it fits at least once; ``most``: the largest number of times in one
    """

    times: int
    trees: int
    most: int


def class_roll_up(name: str, column: ClassColumn) -> ClassRollUp:
    """Return the sums of one class."""
    numbers = column.numbers()
    free = numbers.free.tolist()
    largest = int(np.minimum(numbers.free, numbers.largest).max(initial=0))
    pieces: list[int] = []
    while len(pieces) < POWERS_MAX and 2 ** len(pieces) <= largest:
        pieces.append(sum(column.times(2 ** len(pieces))[1].tolist()))
    return ClassRollUp(
        resource_class=name,
        providers=len(column),
        capacity=sum(numbers.cap.tolist()),
        used=sum((numbers.cap - numbers.free).tolist()),
        free=sum(amount for amount in free if amount > 0),
        largest=max(largest, 0),
        pieces=pieces,
    )


def classes_roll_up(table: ProviderTable) -> list[ClassRollUp]:
    """Return the sums of all classes, at most ``CLASSES_MAX``."""
    names = sorted(table.classes)[:CLASSES_MAX]
    return [class_roll_up(name, table.classes[name]) for name in names]


def trees_fitting(table: ProviderTable, shape: Mapping[str, int]) -> TreesFitting:
    """Return how often a shape fits, each amount on one provider, all of them in one tree."""
    fits = np.full(table.length, COUNT_MAX, np.int64)
    for name, amount in shape.items():
        here = np.zeros(table.length, np.int64)
        column = table.classes.get(name)
        if column is not None:
            slots, times = column.times(amount)
            _add_up(table, here, slots, times)
        fits = np.minimum(fits, here)
    fitting = fits[fits > 0]
    return TreesFitting(sum(fitting.tolist()), len(fitting), int(fitting.max(initial=0)))


def _add_up(table: ProviderTable, here: np.ndarray, slots: Slots, times: np.ndarray) -> None:
    roots = table.root[slots]
    is_known = roots != NOWHERE
    np.add.at(here, roots[is_known], np.minimum(times[is_known], COUNT_MAX))
