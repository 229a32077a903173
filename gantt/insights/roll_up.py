# SPDX-License-Identifier: Apache-2.0
"""The cloud as one pool, for callers choosing among clouds: bounded in size for any host count."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.candidates.table import NO_SLOT, ClassInventoryColumn, ProviderTable, Slots
from gantt.core.messages.near import did_you_mean, nearest_names
from gantt.core.messages.request import RequestSpec
from gantt.core.table.host_table import HostTable
from gantt.insights.candidates import ProviderTableReader
from gantt.insights.views import Capacity, View
from gantt.scheduler.host_cache import HostCache

#: Classes that are summed up, in the order of their names.
CLASSES_MAX = 500
#: Powers of two up to which pieces are counted.
SIZE_POWERS_MAX = 41
#: Largest count of one tree, so that sums over trees stay within 64 bits.
COUNT_MAX = 2**40


class ClassRollUp(msgspec.Struct, frozen=True, kw_only=True):
    """One resource class, over all providers that have it.

    :ivar providers: number of providers with an inventory of it
    :ivar capacity: total usable capacity; ``used``: the amount of it in use, by anybody
    :ivar free: amount that may still be used, over providers that are not over-full
    :ivar largest: largest amount that one consumer can still get on one provider
    :ivar pieces: number of consumers of 1, 2, 4, 8 and so on, each on one provider, that still fit;
        up to the largest piece there is
    """

    resource_class: str
    providers: int
    capacity: int
    used: int
    free: int
    largest: int
    pieces: list[int]


def class_roll_up(name: str, column: ClassInventoryColumn) -> ClassRollUp:
    """Return the sums of one class."""
    numbers = column.inventory_arrays()
    free = numbers.free.tolist()
    largest = int(np.minimum(numbers.free, numbers.max_unit).max(initial=0))
    pieces: list[int] = []
    while len(pieces) < SIZE_POWERS_MAX and 2 ** len(pieces) <= largest:
        pieces.append(sum(column.consumer_counts(2 ** len(pieces))[1].tolist()))
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


def trees_fitting(table: ProviderTable, shape: Mapping[str, int]) -> 'ShapeRollUp':
    """Return how often a shape fits, each amount on one provider, all of them in one tree.

    Each tree counts 2**40 times at most.
    """
    fits = np.full(table.length, COUNT_MAX, np.int64)
    for name, amount in shape.items():
        here = np.zeros(table.length, np.int64)
        column = table.classes.get(name)
        if column is not None:
            slots, times = column.consumer_counts(amount)
            _count_trees(table, here, slots, times)
        fits = np.minimum(fits, here)
    fitting = fits[fits > 0]
    return ShapeRollUp(
        resources=dict(shape),
        on='trees',
        count=sum(fitting.tolist()),
        places=len(fitting),
        most=int(fitting.max(initial=0)),
    )


def _count_trees(table: ProviderTable, here: np.ndarray, slots: Slots, times: np.ndarray) -> None:
    roots = table.root[slots]
    is_known = roots != NO_SLOT
    np.add.at(here, roots[is_known], np.minimum(times[is_known], COUNT_MAX))


SHAPES_MAX = 16
SHAPE_CLASSES_MAX = 16
AMOUNT_MAX = 2_147_483_647
#: Classes of guests: a shape with one of these is counted as a scheduler would place it.
GUEST_CLASSES = frozenset({'VCPU', 'PCPU', 'MEMORY_MB'})
_AMOUNT_FORM = re.compile('([A-Z0-9_]{1,255}):([0-9]{1,10})')


class ShapeRollUp(View, frozen=True, kw_only=True):
    """Number of further members of one shape that fit.

    :ivar on: ``hosts``: that pass every filter now, as a scheduler would place guests there, laid
        out inside of them.  ``trees``: of providers, each amount on one of them
    :ivar places: number of these that it fits on at least once
    :ivar most: number that fit on the one with the most room
    :ivar uncounted: hosts where it was not worked out how many can be laid out: ``count`` is the
        most that may fit
    """

    resources: dict[str, int]
    on: Literal['hosts', 'trees']
    count: int
    places: int
    most: int
    uncounted: int = 0


class RollUp(View, frozen=True, kw_only=True):
    """The cloud as one pool.

    :ivar hosts: how many there are, in any condition; ``providers`` are all, with what is below
        hosts and what is no host, and ``trees`` those that are below no other one
    :ivar classes: by name; ``classes_truncated`` where there are more
    :ivar shapes: the requested shapes, in their order
    :ivar table_age_seconds: of what is said of hosts; the rest is as it is now
    """

    hosts: int
    providers: int
    trees: int
    classes: list[ClassRollUp]
    classes_truncated: bool
    shapes: list[ShapeRollUp]
    table_age_seconds: float


def parse_shapes(text: str, known: Collection[str]) -> list[dict[str, int]]:
    """Return the shapes of a query.

    :param known: the existing resource classes
    :raises InvalidMessage: it is none, or too many
    """
    shapes = [_parse_shape(part, known) for part in text.split(';')] if text else []
    if len(shapes) > SHAPES_MAX:
        raise _invalid_shapes(f'expected at most {SHAPES_MAX} shapes, got {len(shapes)}')
    return shapes


def _parse_shape(text: str, known: Collection[str]) -> dict[str, int]:
    shape: dict[str, int] = {}
    for part in text.split(','):
        match = _AMOUNT_FORM.fullmatch(part.strip())
        amount = int(match[2]) if match else 0
        if match is None or not 0 < amount <= AMOUNT_MAX:
            raise _invalid_shapes(
                f'{part[:80]!r} is no amount; expected CLASS:AMOUNT, with amounts from 1 to '
                f'{AMOUNT_MAX}, commas between those of a shape and semicolons between shapes'
            )
        name = match[1]
        if name not in known:
            raise _invalid_shapes(
                f'{name} is no resource class here{did_you_mean(nearest_names(name, known))}'
            )
        if name in shape:
            raise _invalid_shapes(f'{name} is twice in {text[:80]!r}; expected each class once')
        shape[name] = amount
    if len(shape) > SHAPE_CLASSES_MAX:
        raise _invalid_shapes(
            f'expected at most {SHAPE_CLASSES_MAX} classes in a shape, got {len(shape)}'
        )
    return shape


def _invalid_shapes(problem: str) -> exceptions.InvalidMessage:
    return exceptions.invalid('query.shapes', problem)


class RollUpReader:
    """A reader of hosts as in the read model, and of all providers as they are now.

    :param capacity: returns how many more of a guest's shape fit
    """

    def __init__(
        self,
        candidates: ProviderTableReader,
        table: Callable[[], HostTable],
        cache: HostCache,
        capacity: Callable[[RequestSpec], Capacity],
    ) -> None:
        self._candidates = candidates
        self._table = table
        self._cache = cache
        self._capacity = capacity

    def read(self, shapes: Sequence[Mapping[str, int]] = ()) -> RollUp:
        """Return the roll-up, with the room for some shapes.

        :raises DatabaseUnavailable: providers cannot be read now
        :raises HostsUnknown: a shape is a guest's, and too little is known of hosts
        """
        loose = [shape for shape in shapes if not GUEST_CLASSES & shape.keys()]

        def read(table: ProviderTable) -> tuple[int, int, list[ClassRollUp], int, list]:
            fitting = [trees_fitting(table, shape) for shape in loose]
            trees = len(table) - table.nested
            return len(table), trees, classes_roll_up(table), len(table.classes), fitting

        providers, trees, classes, class_count, fitting = self._candidates.read_all(read)
        fittings = iter(fitting)
        views = [
            self._guest_shape_roll_up(shape) if GUEST_CLASSES & shape.keys() else next(fittings)
            for shape in shapes
        ]
        return RollUp(
            hosts=len(self._table()),
            providers=providers,
            trees=trees,
            classes=classes,
            classes_truncated=class_count > CLASSES_MAX,
            shapes=views,
            table_age_seconds=self._cache.age_seconds,
        )

    def _guest_shape_roll_up(self, shape: Mapping[str, int]) -> ShapeRollUp:
        capacity = self._capacity(RequestSpec(resources=dict(shape)))
        counts = [host_room.count for host_room in capacity.by_host]
        return ShapeRollUp(
            resources=dict(shape),
            on='hosts',
            count=capacity.count,
            places=capacity.eligible,
            most=max(counts, default=0),
            uncounted=capacity.uncounted,
        )
