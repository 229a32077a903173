# SPDX-License-Identifier: Apache-2.0
"""A host table as it would be: hosts added, removed or changed.

Made on a copy and by the same news that a report would be, so that everything
that follows from a host (zones, traits, free amounts) follows here as well.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec.structs import replace

from gantt import exceptions
from gantt.core.messages import resource_classes as resources
from gantt.core.messages.base import Message, Name, Text, Uuid
from gantt.core.messages.near import did_you_mean, near
from gantt.core.messages.request import Names
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostChange, HostFacts, HostRow, Placed

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Hosts that may be added to one table.
ADDED_MAX = 10_000

#: How traits are named.
_TRAIT = re.compile(r'[A-Z0-9_]{1,255}\Z')

Totals = Annotated[
    dict[Name, Annotated[int, msgspec.Meta(ge=0, le=resources.AMOUNT_MAX)]],
    msgspec.Meta(max_length=64),
]


class HostEdit(Message, frozen=True, kw_only=True):
    """What would be different about a host; what is left out stays as it is.

    :ivar like: of an added host: the host it is a copy of, without its guests
    :ivar count: of an added host: so many, ``NAME-1`` to ``NAME-<count>``
    :ivar resources: physical totals by class; 0 takes the class away
    :ivar empty: nothing runs there and nothing is claimed
    :ivar aggregates: further ones that it is in, by name or uuid
    """

    like: Name | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=ADDED_MAX)] = 1
    enabled: bool | None = None
    reporting: bool | None = None
    empty: bool = False
    resources: Totals = {}
    traits: Names = []
    without_traits: Names = []
    aggregates: Names = []
    zone: Name | None = None
    cell: Uuid | None = None
    location: Text | None = None


class HostEdits(Message, frozen=True, kw_only=True):
    """Hosts that come, go and change."""

    add: Annotated[dict[Name, HostEdit], msgspec.Meta(max_length=256)] = {}
    change: Annotated[dict[Name, HostEdit], msgspec.Meta(max_length=1000)] = {}
    remove: Names = []


def apply(
    table: 'HostTable', edits: HostEdits, declared: frozenset[str] = frozenset()
) -> list[str]:
    """Lay the edits over a writable table; what was done, a line each.

    :param declared: custom resource classes known at run time
    :raises InvalidMessage, NotFound: names the host and the field
    """
    _check(table, edits)
    for field, edit in _each(edits):
        _check_words(table, edit, field, declared)
    texts = []
    for name in edits.remove:
        table.apply(HostChange(provider_id=_row(table, 'remove', name).id, row=None))
        texts.append(f'without {name}')
    for name, edit in edits.change.items():
        row = _row(table, 'change', name)
        placed = [] if edit.empty else list(table.placed.on(row.id).values())
        _fold(table, _edited(table, row, edit, f'change.{name}'), placed)
        texts.append(f'{name} {_words(edit)}')
    number = max(table.ids.tolist(), default=0)
    for name, edit in edits.add.items():
        for one in _names(name, edit):
            number += 1
            _fold(table, _added(table, one, number, edit), [])
        many = f'{edit.count} hosts {name}-1 to {name}-{edit.count}' if edit.count > 1 else name
        texts.append(
            f'with {many}{f" like {edit.like}" if edit.like else ""} {_words(edit)}'.strip()
        )
    return texts


def _check(table: 'HostTable', edits: HostEdits) -> None:
    if sum(edit.count for edit in edits.add.values()) > ADDED_MAX:
        raise exceptions.InvalidMessage(
            field='hosts.add', problem=f'expected at most {ADDED_MAX} hosts in all'
        )
    for name, edit in edits.change.items():
        for field in ('like', 'count'):
            if getattr(edit, field) not in (None, 1):
                raise exceptions.InvalidMessage(
                    field=f'hosts.change.{name}.{field}', problem='expected it of added hosts only'
                )
        if name in edits.remove:
            raise exceptions.InvalidMessage(
                field=f'hosts.change.{name}', problem='this host is removed as well'
            )
    for name, edit in edits.add.items():
        if edit.like is None and not any(edit.resources.values()):
            raise exceptions.InvalidMessage(
                field=f'hosts.add.{name}',
                problem='expected its resources, or a host that it is like',
            )
    _check_names(table, edits)


def _names(name: str, edit: HostEdit) -> list[str]:
    """Names of the hosts that one entry adds."""
    return [name] if edit.count == 1 else [f'{name}-{i + 1}' for i in range(edit.count)]


def _check_names(table: 'HostTable', edits: HostEdits) -> None:
    """:raises InvalidMessage: a host that is added has the name of another"""
    gone, added = frozenset(edits.remove), dict[str, str]()
    for name, edit in edits.add.items():
        for one in _names(name, edit):
            other = added.setdefault(one, name)
            if other != name:
                problem = f'hosts.add.{other} has a host {one} as well'
            elif table.row_of(one) is not None and one not in gone:
                problem = f'there is a host {one} already'
            else:
                continue
            raise exceptions.InvalidMessage(field=f'hosts.add.{name}', problem=problem)


def _each(edits: HostEdits) -> Iterator[tuple[str, HostEdit]]:
    for kind, found in (('change', edits.change), ('add', edits.add)):
        for name, edit in found.items():
            yield f'hosts.{kind}.{name}', edit


def _check_words(table: 'HostTable', edit: HostEdit, field: str, declared: frozenset[str]) -> None:
    """Names of classes and traits are such as hosts may have."""
    for name in edit.resources:
        known = name in resources.STANDARD or name in declared
        if not (known or table.class_code(name) is not None):
            raise exceptions.UnknownResourceClass(field=f'{field}.resources.{name}', name=name)
    for number, name in enumerate(edit.traits):
        if not _TRAIT.match(name) and table.trait_codes.get(name) is None:
            raise exceptions.InvalidMessage(
                field=f'{field}.traits[{number}]',
                problem=f'expected capitals, digits and _, as in CUSTOM_FAST, got {name!r}',
            )


def _row(table: 'HostTable', field: str, name: str) -> HostRow:
    row = table.row_of(name)
    if row is None:
        hint = did_you_mean(near(name, table.names))
        raise exceptions.NotFound(
            f'hosts.{field}: host {name!r} is not known here{hint}',
            kind='host',
            name=name,
        )
    return table.hosts[row]


def _fold(table: 'HostTable', row: HostRow, placed: list[Placed]) -> None:
    table.apply(HostChange(provider_id=row.id, row=row, placed=placed))


def _added(table: 'HostTable', name: str, number: int, edit: HostEdit) -> HostRow:
    if edit.like is not None:
        row = replace(_row(table, f'add.{name}.like', edit.like), used={}, foreign={})
        inside = [*dict.fromkeys([*table.aggregates_of(row), *row.aggregates])]
        zone = table.zone_name(table.row_of(edit.like) or 0)
        row = replace(row, aggregates=inside, zone=row.zone or zone, node='')
    else:
        row = HostRow(id=number, uuid='', name=name)
    row = replace(
        row,
        id=number,
        uuid=f'what-if-{number}',
        name=name,
        version=0,
        disabled=None,
        service_disabled=None,
        over_committed=False,
        reported_at=table.now,
    )
    return _edited(table, row, edit, f'add.{name}')


def _edited(table: 'HostTable', row: HostRow, edit: HostEdit, field: str) -> HostRow:
    fields: dict[str, object] = {'facts': _facts(row, edit), 'version': row.version + 1}
    if edit.empty:
        fields |= {'used': {}, 'foreign': {}, 'over_committed': False}
    if edit.enabled is not None:
        off = None if edit.enabled else 'what if'
        fields |= {'disabled': off, 'service_disabled': None}
    if edit.reporting is not None:
        fields['reported_at'] = table.now if edit.reporting else 0.0
    if edit.aggregates:
        further = [_aggregate(table, name, field) for name in edit.aggregates]
        fields['aggregates'] = [*row.aggregates, *further]
    for name in ('zone', 'cell'):
        if getattr(edit, name) is not None:
            fields[name] = getattr(edit, name)
    changed: HostRow = replace(row, **fields)
    if changed.over_committed and edit.resources:
        within = all(changed.free(name) >= 0 for name in {*changed.used, *changed.foreign})
        changed = replace(changed, over_committed=not within)
    return changed


def _facts(row: HostRow, edit: HostEdit) -> HostFacts:
    facts = row.facts
    inventories = dict(facts.inventories)
    for name, total in edit.resources.items():
        if total:
            known = inventories.get(name, Inventory(total=0))
            inventories[name] = replace(known, total=total, reserved=min(known.reserved, total))
        else:
            inventories.pop(name, None)
    traits_left = [trait for trait in facts.traits if trait not in edit.without_traits]
    return replace(
        facts,
        inventories=inventories,
        traits=[*traits_left, *(trait for trait in edit.traits if trait not in traits_left)],
        location=facts.location if edit.location is None else edit.location,
    )


def _aggregate(table: 'HostTable', name: str, field: str) -> str:
    for uuid, aggregate in table.known_aggregates.items():
        if name in (uuid, aggregate.name):
            return uuid
    raise exceptions.NotFound(
        f'hosts.{field}.aggregates: aggregate {name!r} is not known here',
        kind='aggregate',
        name=name,
    )


def _words(edit: HostEdit) -> str:
    states = {
        'enabled': {True: 'enabled', False: 'disabled', None: ''}[edit.enabled],
        'reporting': {True: 'reporting', False: 'silent', None: ''}[edit.reporting],
        'empty': 'empty' if edit.empty else '',
    }
    texts = [text for text in states.values() if text]
    texts += [
        resources.format_amount(n, amount) + f' {n}' * (n in ('MEMORY_MB', 'DISK_GB'))
        for n, amount in edit.resources.items()
    ]
    texts += [f'trait {name}' for name in edit.traits]
    texts += [f'no trait {name}' for name in edit.without_traits]
    texts += [f'in aggregate {name}' for name in edit.aggregates]
    for name in ('zone', 'cell', 'location'):
        if getattr(edit, name) is not None:
            texts.append(f'{name} {getattr(edit, name)}')
    return ', '.join(texts)
