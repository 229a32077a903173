# SPDX-License-Identifier: Apache-2.0
"""The cloud as one pool, for callers choosing among clouds: bounded in size for any host count."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from gantt import exceptions
from gantt.core.candidates.roll_up import (
    CLASSES_MAX,
    ClassRollUp,
    TreesFitting,
    classes_roll_up,
    trees_fitting,
)
from gantt.core.candidates.table import ProviderTable
from gantt.core.messages.near import did_you_mean, near
from gantt.core.messages.request import RequestSpec
from gantt.core.table.host_table import HostTable
from gantt.insights.candidates import Candidates
from gantt.insights.views import Capacity, View
from gantt.scheduler.host_cache import HostCache

SHAPES_MAX = 16
SHAPE_CLASSES_MAX = 16
AMOUNT_MAX = 2_147_483_647
#: Classes of guests: a shape with one of these is counted as a scheduler would place it.
OF_GUESTS = frozenset({'VCPU', 'PCPU', 'MEMORY_MB'})
_PART = re.compile('([A-Z0-9_]{1,255}):([0-9]{1,10})')


class ShapeRollUp(View, frozen=True, kw_only=True):
    """Number of further members of one shape that fit.

    :ivar on: ``hosts``: that pass every filter now, as a scheduler would place guests there, laid
        out inside of them.  ``trees``: of providers, each amount on one of them
    :ivar places: how many of these it fits on at least once
    :ivar most: how many fit on the one that has the most room
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
    :ivar shapes: those that were asked for, in that order
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
    shapes = [_shape(part, known) for part in text.split(';')] if text else []
    if len(shapes) > SHAPES_MAX:
        raise _wrong(f'expected at most {SHAPES_MAX} shapes, got {len(shapes)}')
    return shapes


def _shape(text: str, known: Collection[str]) -> dict[str, int]:
    shape: dict[str, int] = {}
    for part in text.split(','):
        match = _PART.fullmatch(part.strip())
        amount = int(match[2]) if match else 0
        if match is None or not 0 < amount <= AMOUNT_MAX:
            raise _wrong(
                f'{part[:80]!r} is no amount; expected CLASS:AMOUNT, with amounts from 1 to '
                f'{AMOUNT_MAX}, commas between those of a shape and semicolons between shapes'
            )
        name = match[1]
        if name not in known:
            raise _wrong(f'{name} is no resource class here{did_you_mean(near(name, known))}')
        if name in shape:
            raise _wrong(f'{name} is twice in {text[:80]!r}; expected each class once')
        shape[name] = amount
    if len(shape) > SHAPE_CLASSES_MAX:
        raise _wrong(f'expected at most {SHAPE_CLASSES_MAX} classes in a shape, got {len(shape)}')
    return shape


def _wrong(problem: str) -> exceptions.InvalidMessage:
    return exceptions.invalid('query.shapes', problem)


class RollUpReader:
    """A reader of hosts as in the read model, and of all providers as they are now.

    :param capacity: returns how many more of a guest's shape fit
    """

    def __init__(
        self,
        candidates: Candidates,
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
        loose = [shape for shape in shapes if not OF_GUESTS & shape.keys()]

        def read(table: ProviderTable) -> tuple[int, int, list[ClassRollUp], int, list]:
            fitting = [trees_fitting(table, shape) for shape in loose]
            trees = len(table) - table.nested
            return len(table), trees, classes_roll_up(table), len(table.classes), fitting

        providers, trees, classes, class_count, fitting = self._candidates.look(read)
        fittings = iter(fitting)
        views = [
            self._of_guests(shape) if OF_GUESTS & shape.keys() else _of_trees(shape, next(fittings))
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

    def _of_guests(self, shape: Mapping[str, int]) -> ShapeRollUp:
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


def _of_trees(shape: Mapping[str, int], found: TreesFitting) -> ShapeRollUp:
    return ShapeRollUp(
        resources=dict(shape), on='trees', count=found.times, places=found.trees, most=found.most
    )
