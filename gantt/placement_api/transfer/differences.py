# SPDX-License-Identifier: Apache-2.0
"""Differences between two sides, each by name."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from gantt.core.messages.resource_classes import Inventory
from gantt.placement_api.transfer import reading
from gantt.placement_api.transfer.side import (
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
READS_MAX = 4


class SideDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference of one object.

    :ivar kind: class | trait | provider | consumer
    :ivar name: name of the class or trait; a uuid
    :ivar field: the field that differs, such as ``inventories.VCPU.total``; empty: the whole object
    :ivar here, there: the value on either side; None: it does not exist there
    """

    kind: str
    name: str
    field: str = ''
    here: Any = None
    there: Any = None

    def line(self, here: str, there: str) -> str:
        """Return a line for people.

        :param here, there: names of the sides
        """
        label = f'{self.kind} {self.name}' + (f': {self.field}' if self.field else '')
        if self.here is None:
            return f'{label}: only {there} has it' + _comparable_value(self.there)
        if self.there is None:
            return f'{label}: only {here} has it' + _comparable_value(self.here)
        return (
            f'{label}: {here} has {_value_text(self.here)}, {there} has {_value_text(self.there)}'
        )


def _value_text(value: Any) -> str:
    return f'{value:.9g}' if isinstance(value, float) else str(value)


def _comparable_value(value: Any) -> str:
    return '' if value is True else f' ({_value_text(value)})'


def differences(here: Snapshot, there: Snapshot) -> Iterator[SideDifference]:
    """Yield all differences, in the order in which they would be copied."""
    yield from _names('class', here.classes, there.classes)
    yield from _names('trait', here.traits, there.traits)
    for uuid in sorted(here.outlines.keys() | there.outlines.keys()):
        outline_here, outline_there = here.outlines.get(uuid), there.outlines.get(uuid)
        if outline_here is None or outline_there is None:
            yield SideDifference(
                kind='provider',
                name=uuid,
                here=outline_here and outline_here.name,
                there=outline_there and outline_there.name,
            )
            continue
        yield from _provider_differences(outline_here, outline_there)
        yield from _content_differences(uuid, here.contents[uuid], there.contents[uuid])
    for uuid in sorted(here.consumers.keys() | there.consumers.keys()):
        yield from _consumer_differences(uuid, here.consumers.get(uuid), there.consumers.get(uuid))


def compare(
    here: PlacementSide, there: PlacementSide, progress: Progress
) -> tuple[list[SideDifference], Snapshot, Snapshot]:
    """Return the differences, and both sides; if any, both are read again, with a bound."""
    snapshot_here, snapshot_there = None, None
    result: list[SideDifference] = []
    for _ in range(READS_MAX):
        last_result = result
        snapshot_there = reading.read(there, progress, snapshot_there)
        snapshot_here = reading.read(here, progress, snapshot_here)
        result = list(differences(snapshot_here, snapshot_there))
        if not result or result == last_result:
            break
    assert snapshot_here is not None and snapshot_there is not None
    return result, snapshot_here, snapshot_there


def _names(kind: str, here: Iterable[str], there: Iterable[str]) -> Iterator[SideDifference]:
    for name in sorted(set(here) ^ set(there)):
        yield _difference_of_one_side(kind, name, '', name in set(here))


def _difference_of_one_side(kind: str, name: str, field: str, is_here: bool) -> SideDifference:
    return SideDifference(
        kind=kind, name=name, field=field, here=is_here or None, there=not is_here or None
    )


def _provider_differences(
    here: ProviderOutline, there: ProviderOutline
) -> Iterator[SideDifference]:
    for field in ('name', 'parent'):
        value_here, value_there = getattr(here, field), getattr(there, field)
        if value_here != value_there:
            yield SideDifference(
                kind='provider', name=here.uuid, field=field, here=value_here, there=value_there
            )


def _content_differences(
    uuid: str, here: ProviderContent, there: ProviderContent
) -> Iterator[SideDifference]:
    for name in sorted(here.inventories.keys() | there.inventories.keys()):
        inventory_here, inventory_there = here.inventories.get(name), there.inventories.get(name)
        if inventory_here is None or inventory_there is None:
            yield _difference_of_one_side(
                'provider', uuid, f'inventories.{name}', inventory_here is not None
            )
            continue
        for field in Inventory.__struct_fields__:
            value_here, value_there = (
                getattr(inventory_here, field),
                getattr(inventory_there, field),
            )
            if not _is_equal(value_here, value_there):
                yield SideDifference(
                    kind='provider',
                    name=uuid,
                    field=f'inventories.{name}.{field}',
                    here=value_here,
                    there=value_there,
                )
    for field in ('traits', 'aggregates'):
        names_there: frozenset[str] = getattr(there, field)
        for name in sorted(getattr(here, field) ^ names_there):
            yield _difference_of_one_side(
                'provider', uuid, f'{field}.{name}', name not in names_there
            )


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=RATIO_TOLERANCE)
    return bool(one == other)


def same_inventories(one: Mapping[str, Inventory], other: Mapping[str, Inventory]) -> bool:
    """Return whether two inventories are equal in all numbers."""
    return one.keys() == other.keys() and all(
        _is_equal(getattr(one[name], field), getattr(other[name], field))
        for name in one
        for field in Inventory.__struct_fields__
    )


def _consumer_differences(
    uuid: str, here: ConsumerRecord | None, there: ConsumerRecord | None
) -> Iterator[SideDifference]:
    if here is None or there is None:
        yield _difference_of_one_side('consumer', uuid, '', here is not None)
        return
    for field in ('project_id', 'user_id', 'consumer_type'):
        value_here, value_there = getattr(here, field), getattr(there, field)
        if value_here != value_there:
            yield SideDifference(
                kind='consumer', name=uuid, field=field, here=value_here, there=value_there
            )
    for provider in sorted(here.allocations.keys() | there.allocations.keys()):
        amounts_here, amounts_there = (
            here.allocations.get(provider, {}),
            there.allocations.get(provider, {}),
        )
        for name in sorted(amounts_here.keys() | amounts_there.keys()):
            if amounts_here.get(name) != amounts_there.get(name):
                yield SideDifference(
                    kind='consumer',
                    name=uuid,
                    field=f'allocations.{provider}.{name}',
                    here=amounts_here.get(name),
                    there=amounts_there.get(name),
                )
