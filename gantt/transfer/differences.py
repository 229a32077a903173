# SPDX-License-Identifier: Apache-2.0
"""How two sides differ, each difference by name."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from gantt.core.messages.resource_classes import Inventory
from gantt.transfer import reading
from gantt.transfer.side import (
    ConsumerRecord,
    PlacementSide,
    Progress,
    ProviderContent,
    ProviderOutline,
    Snapshot,
)

#: Ratios that are stored in single precision differ by less from what was written.
RATIO_TOLERANCE = 1e-6
#: Reads of both sides, until they are equal or differ twice by the same.
READS = 4


class SideDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not the same.

    :ivar kind: class | trait | provider | consumer
    :ivar name: of the class or trait; a uuid
    :ivar field: what of it, such as ``inventories.VCPU.total``; empty: all of it
    :ivar here, there: the values; None: it is not there
    """

    kind: str
    name: str
    field: str = ''
    here: Any = None
    there: Any = None

    def line(self, here: str, there: str) -> str:
        """For people.

        :param here, there: what the sides are called
        """
        what = f'{self.kind} {self.name}' + (f': {self.field}' if self.field else '')
        if self.here is None:
            return f'{what}: only {there} has it' + _value(self.there)
        if self.there is None:
            return f'{what}: only {here} has it' + _value(self.here)
        return f'{what}: {here} has {_shown(self.here)}, {there} has {_shown(self.there)}'


def _shown(value: Any) -> str:
    return f'{value:.9g}' if isinstance(value, float) else str(value)


def _value(value: Any) -> str:
    return '' if value is True else f' ({_shown(value)})'


def differences(here: Snapshot, there: Snapshot) -> Iterator[SideDifference]:
    """All, in the order in which they would be copied."""
    yield from _names('class', here.classes, there.classes)
    yield from _names('trait', here.traits, there.traits)
    for uuid in sorted(here.outlines.keys() | there.outlines.keys()):
        one, other = here.outlines.get(uuid), there.outlines.get(uuid)
        if one is None or other is None:
            yield SideDifference(
                kind='provider', name=uuid, here=one and one.name, there=other and other.name
            )
            continue
        yield from _of_provider(one, other)
        yield from _of_content(uuid, here.contents[uuid], there.contents[uuid])
    for uuid in sorted(here.consumers.keys() | there.consumers.keys()):
        yield from _of_consumer(uuid, here.consumers.get(uuid), there.consumers.get(uuid))


def compare(
    here: PlacementSide, there: PlacementSide, progress: Progress
) -> tuple[list[SideDifference], Snapshot, Snapshot]:
    """What differs, and both sides; where something does, both are read again, with a bound."""
    of_here, of_there = None, None
    found: list[SideDifference] = []
    for _ in range(READS):
        before = found
        of_there = reading.read(there, progress, of_there)
        of_here = reading.read(here, progress, of_here)
        found = list(differences(of_here, of_there))
        if not found or found == before:
            break
    assert of_here is not None and of_there is not None
    return found, of_here, of_there


def _names(kind: str, here: Iterable[str], there: Iterable[str]) -> Iterator[SideDifference]:
    for name in sorted(set(here) ^ set(there)):
        yield _one_side(kind, name, '', name in set(here))


def _one_side(kind: str, name: str, field: str, is_here: bool) -> SideDifference:
    return SideDifference(
        kind=kind, name=name, field=field, here=is_here or None, there=not is_here or None
    )


def _of_provider(here: ProviderOutline, there: ProviderOutline) -> Iterator[SideDifference]:
    for field in ('name', 'parent'):
        one, other = getattr(here, field), getattr(there, field)
        if one != other:
            yield SideDifference(
                kind='provider', name=here.uuid, field=field, here=one, there=other
            )


def _of_content(
    uuid: str, here: ProviderContent, there: ProviderContent
) -> Iterator[SideDifference]:
    for name in sorted(here.inventories.keys() | there.inventories.keys()):
        one, other = here.inventories.get(name), there.inventories.get(name)
        if one is None or other is None:
            yield _one_side('provider', uuid, f'inventories.{name}', one is not None)
            continue
        for field in Inventory.__struct_fields__:
            of_one, of_other = getattr(one, field), getattr(other, field)
            if not _is_equal(of_one, of_other):
                yield SideDifference(
                    kind='provider',
                    name=uuid,
                    field=f'inventories.{name}.{field}',
                    here=of_one,
                    there=of_other,
                )
    for field in ('traits', 'aggregates'):
        theirs: frozenset[str] = getattr(there, field)
        for name in sorted(getattr(here, field) ^ theirs):
            yield _one_side('provider', uuid, f'{field}.{name}', name not in theirs)


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=RATIO_TOLERANCE)
    return bool(one == other)


def same_inventories(one: Mapping[str, Inventory], other: Mapping[str, Inventory]) -> bool:
    """Whether all numbers are equal."""
    return one.keys() == other.keys() and all(
        _is_equal(getattr(one[name], field), getattr(other[name], field))
        for name in one
        for field in Inventory.__struct_fields__
    )


def _of_consumer(
    uuid: str, here: ConsumerRecord | None, there: ConsumerRecord | None
) -> Iterator[SideDifference]:
    if here is None or there is None:
        yield _one_side('consumer', uuid, '', here is not None)
        return
    for field in ('project_id', 'user_id', 'consumer_type'):
        one, other = getattr(here, field), getattr(there, field)
        if one != other:
            yield SideDifference(kind='consumer', name=uuid, field=field, here=one, there=other)
    for provider in sorted(here.allocations.keys() | there.allocations.keys()):
        mine, theirs = here.allocations.get(provider, {}), there.allocations.get(provider, {})
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                yield SideDifference(
                    kind='consumer',
                    name=uuid,
                    field=f'allocations.{provider}.{name}',
                    here=mine.get(name),
                    there=theirs.get(name),
                )
