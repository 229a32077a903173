# SPDX-License-Identifier: Apache-2.0
"""Edits of a host table for a what-if: hosts, or pools, added, removed or changed.

Applied to a copy by the same changes as those of a report, so that everything that follows from a
host (zones, traits, free amounts) follows here as well.  Providers nested below a host or a pool
are copied, emptied and removed with it.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec.structs import replace

from gantt import exceptions
from gantt.core.claims.acceptance import is_over_committed
from gantt.core.messages import resource_classes as resources
from gantt.core.messages.base import UUID_PATTERN, Message, Name, Text, Uuid
from gantt.core.messages.near import did_you_mean, nearest_names
from gantt.core.messages.request import Names, RequestKind
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement import what_if_nested as nested
from gantt.core.resources.host import HostChange, HostFacts, HostKind, HostRow, Placed

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Hosts, and what is nested below them, that may be added to one table.
ADDED_HOSTS_MAX = 10_000
#: Fields that a pool does not have.
_HOST_ONLY_FIELDS = ('enabled', 'reporting', 'cell', 'location')

#: Pattern of trait names.
_TRAIT = re.compile(r'[A-Z0-9_]{1,255}\Z')
_UUID = re.compile(UUID_PATTERN)

Totals = Annotated[
    dict[Name, Annotated[int, msgspec.Meta(ge=0, le=resources.AMOUNT_MAX)]],
    msgspec.Meta(max_length=64),
]


Ratios = Annotated[dict[Name, float], msgspec.Meta(max_length=64)]


class HostEdit(Message, frozen=True, kw_only=True):
    """Assumed change of a host or a pool; what is left out stays as it is.

    :ivar like: of an added host: the host it is a copy of, with what is nested below it and
        without its guests
    :ivar count: of an added host: so many, ``NAME-1`` to ``NAME-<count>``
    :ivar resources: physical totals by class; 0 takes the class away
    :ivar reserved: amount by class that may not be promised
    :ivar allocation_ratios: ratio by class by which the rest may be promised
    :ivar empty: nothing runs there and nothing is claimed, nor of what is nested below it
    :ivar aggregates: further ones that it is in, by name or uuid; a pool may be in one that is not
        known yet, by its uuid
    :ivar without_aggregates: aggregates that it leaves, by name or uuid
    """

    like: Name | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=ADDED_HOSTS_MAX)] = 1
    enabled: bool | None = None
    reporting: bool | None = None
    empty: bool = False
    resources: Totals = {}
    reserved: Totals = {}
    allocation_ratios: Ratios = {}
    traits: Names = []
    without_traits: Names = []
    aggregates: Names = []
    without_aggregates: Names = []
    zone: Name | None = None
    cell: Uuid | None = None
    location: Text | None = None


class HostEdits(Message, frozen=True, kw_only=True):
    """Hosts that come, go and change; pools where the request is for pools."""

    add: Annotated[dict[Name, HostEdit], msgspec.Meta(max_length=256)] = {}
    change: Annotated[dict[Name, HostEdit], msgspec.Meta(max_length=1000)] = {}
    remove: Names = []


def apply_edits(
    whole: 'HostTable',
    edits: HostEdits,
    declared: frozenset[str] = frozenset(),
    kind: RequestKind = RequestKind.HOST,
) -> list[str]:
    """Apply the edits to a writable table; return a line for each change.

    :param declared: custom resource classes known at run time
    :param kind: of the request: hosts or pools
    :raises InvalidMessage, NotFound: the error names the host and the field
    """
    editor = _PoolEditor(whole) if kind is RequestKind.POOL else _HostEditor(whole)
    editor.check(edits, declared)
    return [*editor.remove(edits), *editor.change(edits), *editor.add(edits)]


class _HostEditor:
    """An editor of the hosts of a table; its subclass edits the pools.

    :ivar table: its rows are hosts, or pools
    """

    noun, kind = 'host', HostKind.HOST

    def __init__(self, whole: 'HostTable') -> None:
        self.table = self.edited_table(whole)
        self.nested_providers = self.nested_editor()
        self._number = max((*whole.row_by_id, *whole.known_pools()), default=0)
        self._removed_names: set[str] = set()

    def edited_table(self, whole: 'HostTable') -> 'HostTable':
        """Return the table to edit, of all of a cloud: its hosts, or its pools."""
        return whole

    def nested_editor(self) -> 'nested.NestedProviderEditor':
        """Return the editor of the providers nested below its rows."""
        return nested.BelowHosts(self.table)

    # -- what is done ---------------------------------------------------------------------
    def remove(self, edits: HostEdits) -> Iterator[str]:
        """Remove hosts with the providers below them; yield a line for each."""
        for name in edits.remove:
            if self.table.row_of(name) is None:
                continue  # removed with its root
            row = self.row('remove', name)
            below = self.nested_providers.remove(row.id)
            self.table.apply(HostChange(provider_id=row.id, row=None))
            yield f'without {name}{_nested_count_text(below)}'

    def change(self, edits: HostEdits) -> Iterator[str]:
        """Change hosts; yield a line for each."""
        for name, edit in edits.change.items():
            field = f'hosts.change.{name}'
            row = self.row('change', name)
            if edit.without_aggregates:
                row = self._remove_memberships(row, edit, field)
            placed = [] if edit.empty else list(self.table.placed.on_provider(row.id).values())
            self._apply_row(self._edited(row, edit, field), placed)
            if edit.empty:
                self.nested_providers.empty(row.id)
            yield f'{name} {_edit_text(edit)}'

    def add(self, edits: HostEdits) -> Iterator[str]:
        """Add hosts; yield a line for each entry, which may be several equal hosts."""
        for name, edit in edits.add.items():
            field, below = f'hosts.add.{name}', 0
            like = None if edit.like is None else self.row(f'add.{name}.like', edit.like)
            for host_name in _added_names(name, edit):
                row = self._added(host_name, like)
                if edit.without_aggregates:
                    row = self._remove_memberships(row, edit, field)
                row = self._edited(row, edit, field)
                self._apply_row(row, [])
                if like is not None:
                    below = self.nested_providers.copy(like.id, row, self._next)
            title = name
            if edit.count > 1:
                title = f'{edit.count} {self.noun}s {name}-1 to {name}-{edit.count}'
            copied = f' like {edit.like}{_nested_count_text(below)}' if edit.like else ''
            yield f'with {title}{copied} {_edit_text(edit)}'.strip()

    def row(self, field: str, name: str) -> HostRow:
        """Return the row of a host.

        :raises NotFound: the error names the field
        """
        row = self.table.row_of(name)
        if row is None:
            hint = did_you_mean(nearest_names(name, self.table.names))
            raise exceptions.NotFound(
                f'hosts.{field}: {self.noun} {name!r} was not found{hint}',
                kind=self.noun,
                name=name,
            )
        return self.table.hosts[row]

    def _next(self) -> int:
        """Return an id that no provider has."""
        self._number += 1
        return self._number

    def _apply_row(self, row: HostRow, placed: list[Placed]) -> None:
        self.table.apply(HostChange(provider_id=row.id, row=row, placed=placed))

    def _added(self, name: str, like: HostRow | None) -> HostRow:
        table, number = self.table, self._next()
        if like is not None:
            # A zone that follows from an aggregate follows from it here as well.
            inside = [*dict.fromkeys([*table.aggregates_of(like), *like.aggregates])]
            row = replace(like, used={}, foreign={}, aggregates=inside)
        else:
            row = HostRow(id=number, uuid='', name=name, kind=self.kind)
        return replace(
            row,
            id=number,
            uuid=f'what-if-{number}',
            name=name,
            node='',
            version=0,
            disabled=None,
            service_disabled=None,
            over_committed=False,
            reported_at=table.now,
        )

    def _edited(self, row: HostRow, edit: HostEdit, field: str) -> HostRow:
        facts = _facts(row, edit, field, self.takes_any_ratio(row))
        fields: dict[str, object] = {'facts': facts, 'version': row.version + 1}
        if edit.empty:
            fields |= {'used': {}, 'foreign': {}, 'over_committed': False}
        if edit.enabled is not None:
            off = None if edit.enabled else 'what if'
            fields |= {'disabled': off, 'service_disabled': None}
        if edit.reporting is not None:
            fields['reported_at'] = self.table.now if edit.reporting else 0.0
        if edit.aggregates:
            further = [self._aggregate(name, f'{field}.aggregates') for name in edit.aggregates]
            fields['aggregates'] = [*dict.fromkeys([*row.aggregates, *further])]
        for name in ('zone', 'cell'):
            if getattr(edit, name) is not None:
                fields[name] = getattr(edit, name)
        changed: HostRow = replace(row, **fields)
        if facts.inventories != row.facts.inventories:
            changed = replace(changed, over_committed=self.is_over_full(changed))
        return changed

    def is_over_full(self, row: HostRow) -> bool:
        """Return whether the row takes no new claims as more is used than allowed."""
        return is_over_committed(row)

    def takes_any_ratio(self, row: HostRow) -> bool:
        """Return whether ratios follow Placement's interface, not the rules of reports."""
        return not row.reports_inventories

    # -- aggregates -------------------------------------------------------------------------
    def _aggregate(self, name: str, field: str) -> str:
        """Return the uuid of an aggregate.

        :raises NotFound: no aggregate has this name or uuid
        """
        for uuid, aggregate in self.table.known_aggregates.items():
            if name in (uuid, aggregate.name):
                return uuid
        if self.knows(name):
            return name
        raise exceptions.NotFound(
            f'{field}: aggregate {name!r} was not found', kind='aggregate', name=name
        )

    def knows(self, uuid: str) -> bool:
        """Return whether an aggregate is known by its uuid alone."""
        return self.table.aggregate_codes.get(uuid) is not None

    def _remove_memberships(self, row: HostRow, edit: HostEdit, field: str) -> HostRow:
        """Return the row without membership of the aggregates in ``without_aggregates``.

        :raises InvalidMessage: it is not in one of them
        """
        field = f'{field}.without_aggregates'
        left_aggregates = {self._aggregate(name, field): name for name in edit.without_aggregates}
        inside = {*row.aggregates, *self.table.aggregates_of(row)}
        for uuid, name in left_aggregates.items():
            if uuid not in inside:
                raise exceptions.invalid(
                    field, f'expected a member of aggregate {name!r}; got {row.name}'
                )
        self._remove_from_aggregates(row, left_aggregates)
        return replace(
            row, aggregates=[uuid for uuid in row.aggregates if uuid not in left_aggregates]
        )

    def _remove_from_aggregates(self, row: HostRow, gone: dict[str, str]) -> None:
        """Remove a host from the host lists of aggregates."""
        at = self.table.row_of_id(row.id)
        names = {row.name} if at is None else {row.name, self.table.service_name(at)}
        aggregates = self.table.known_aggregates.values()
        if any(aggregate.uuid in gone and names & set(aggregate.hosts) for aggregate in aggregates):
            self.table.set_aggregates(
                [
                    replace(
                        aggregate, hosts=[host for host in aggregate.hosts if host not in names]
                    )
                    if aggregate.uuid in gone
                    else aggregate
                    for aggregate in aggregates
                ]
            )

    # -- what is refused --------------------------------------------------------------------
    def check(self, edits: HostEdits, declared: frozenset[str]) -> None:
        """Check all edits before any is applied.

        :raises InvalidMessage, NotFound: the error names the field
        """
        for name in edits.remove:
            self._removed_names |= {name, *self.nested_providers.names(self.row('remove', name).id)}
        for name, edit in edits.change.items():
            self._check_change(name, edit)
        for name, edit in edits.add.items():
            if edit.like is None and not any(edit.resources.values()):
                raise exceptions.invalid(
                    f'hosts.add.{name}',
                    f'expected its resources, or a {self.noun} that it is like',
                )
        for field, edit in _named_edits(edits):
            self.check_edit(edit, field)
            _check_words(self.table, edit, field, declared)
        self._check_names(edits)

    def _check_change(self, name: str, edit: HostEdit) -> None:
        for field in ('like', 'count'):
            if getattr(edit, field) not in (None, 1):
                raise exceptions.invalid(
                    f'hosts.change.{name}.{field}',
                    f'expected none: only added {self.noun}s have it',
                )
        if name in self._removed_names:
            problem = f'expected a {self.noun} that is not removed as well'
            raise exceptions.invalid(f'hosts.change.{name}', problem)

    def check_edit(self, edit: HostEdit, field: str) -> None:
        """Check that an edit has no field that such providers do not have.

        :raises InvalidMessage: it has one
        """

    def _check_names(self, edits: HostEdits) -> None:
        """Check the number of added hosts and their names.

        :raises InvalidMessage: too many, or an added host has the name of another
        """
        added: dict[str, str] = {}
        count = 0
        for name, edit in edits.add.items():
            like = None if edit.like is None else self.row(f'add.{name}.like', edit.like).id
            below = 0 if like is None else len(self.nested_providers.below(like))
            count += edit.count * (1 + below)
            if count > ADDED_HOSTS_MAX:
                problem = f'expected at most {ADDED_HOSTS_MAX} {self.noun}s in all'
                raise exceptions.invalid('hosts.add', f'{problem}, with what is below them')
            parts = [] if like is None else sorted(self.nested_providers.names(like))
            for host_name in _added_names(name, edit):
                for new_name in (
                    host_name,
                    *(nested.copied_name(host_name, part) for part in parts),
                ):
                    self._check_name(name, new_name, added)

    def _check_name(self, name: str, one: str, added: dict[str, str]) -> None:
        other = added.setdefault(one, name)
        if other != name:
            problem = f'expected a new name; hosts.add.{other} has a {self.noun} {one} as well'
        elif self.table.row_of(one) is not None and one not in self._removed_names:
            problem = f'expected a new name; there is a {self.noun} {one} already'
        else:
            return
        raise exceptions.invalid(f'hosts.add.{name}', problem)


class _PoolEditor(_HostEditor):
    """An editor of the pools that may be requested alone."""

    noun, kind = 'pool', HostKind.POOL

    def edited_table(self, whole: 'HostTable') -> 'HostTable':
        return whole.of_kind(RequestKind.POOL)

    def nested_editor(self) -> 'nested.NestedProviderEditor':
        return nested.BelowPools(self.table)

    def is_over_full(self, row: HostRow) -> bool:
        return False  # room in pools is judged by class

    def takes_any_ratio(self, row: HostRow) -> bool:
        return True

    def knows(self, uuid: str) -> bool:
        return _UUID.match(uuid) is not None

    def check_edit(self, edit: HostEdit, field: str) -> None:
        for name in _HOST_ONLY_FIELDS:
            if getattr(edit, name) is not None:
                raise exceptions.invalid(
                    f'{field}.{name}', 'expected none: only hosts have it, not pools'
                )


def _added_names(name: str, edit: HostEdit) -> list[str]:
    """Return the names of the hosts that one entry adds."""
    return [name] if edit.count == 1 else [f'{name}-{i + 1}' for i in range(edit.count)]


def _nested_count_text(count: int) -> str:
    return f' and {count} below it' if count else ''


def _named_edits(edits: HostEdits) -> Iterator[tuple[str, HostEdit]]:
    for kind, host_edits in (('change', edits.change), ('add', edits.add)):
        for name, edit in host_edits.items():
            yield f'hosts.{kind}.{name}', edit


def _check_words(table: 'HostTable', edit: HostEdit, field: str, declared: frozenset[str]) -> None:
    """Check that hosts may have the classes and traits that an edit names.

    :raises UnknownResourceClass, InvalidMessage: the error names the field
    """
    for key in ('resources', 'reserved', 'allocation_ratios'):
        for name in getattr(edit, key):
            is_standard = name in resources.STANDARD_CLASSES or name in declared
            if not (is_standard or table.class_code(name) is not None):
                raise exceptions.UnknownResourceClass(field=f'{field}.{key}.{name}', name=name)
    for number, name in enumerate(edit.traits):
        if not _TRAIT.match(name) and table.trait_codes.get(name) is None:
            raise exceptions.InvalidMessage(
                field=f'{field}.traits[{number}]',
                problem=f'expected capitals, digits and _, as in CUSTOM_FAST, got {name!r}',
            )


def _facts(row: HostRow, edit: HostEdit, field: str, any_ratio: bool) -> HostFacts:
    facts = row.facts
    traits_left = [trait for trait in facts.traits if trait not in edit.without_traits]
    return replace(
        facts,
        inventories=_inventories(facts.inventories, edit, field, any_ratio),
        traits=[*traits_left, *(trait for trait in edit.traits if trait not in traits_left)],
        location=facts.location if edit.location is None else edit.location,
    )


def _inventories(
    before: dict[str, Inventory], edit: HostEdit, field: str, any_ratio: bool
) -> dict[str, Inventory]:
    """Return the inventories after an edit.

    :raises InvalidMessage: an edit of a class without inventory, or of an absurd value
    """
    inventories = dict(before)
    for name, total in edit.resources.items():
        if total:
            previous = inventories.get(name, Inventory(total=0))
            inventories[name] = replace(
                previous, total=total, reserved=min(previous.reserved, total)
            )
        else:
            inventories.pop(name, None)
    numbers: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ('reserved', 'reserved', edit.reserved),
        ('allocation_ratio', 'allocation_ratios', edit.allocation_ratios),
    )
    for number, key, values in numbers:
        for name, value in values.items():
            where = f'{field}.{key}.{name}'
            if name not in inventories:
                class_names = ', '.join(sorted(inventories)) or 'nothing'
                raise exceptions.invalid(
                    where, f'expected a class that it has, which is {class_names}'
                )
            inventories[name] = replace(inventories[name], **{number: value})
            problem = inventories[name].problem(free=any_ratio)
            if problem is not None and problem[0] == number:
                raise exceptions.invalid(where, problem[1])
    return inventories


def _edit_text(edit: HostEdit) -> str:
    states = {
        'enabled': {True: 'enabled', False: 'disabled', None: ''}[edit.enabled],
        'reporting': {True: 'reporting', False: 'silent', None: ''}[edit.reporting],
        'empty': 'empty' if edit.empty else '',
    }
    texts = [text for text in states.values() if text]
    texts += [_amount(n, amount) for n, amount in edit.resources.items()]
    texts += [f'{_amount(n, amount)} reserved' for n, amount in edit.reserved.items()]
    texts += [f'{n} at a ratio of {ratio:g}' for n, ratio in edit.allocation_ratios.items()]
    texts += [f'trait {name}' for name in edit.traits]
    texts += [f'no trait {name}' for name in edit.without_traits]
    texts += [f'in aggregate {name}' for name in edit.aggregates]
    texts += [f'not in aggregate {name}' for name in edit.without_aggregates]
    for name in ('zone', 'cell', 'location'):
        if getattr(edit, name) is not None:
            texts.append(f'{name} {getattr(edit, name)}')
    return ', '.join(texts)


def _amount(name: str, amount: int) -> str:
    return resources.format_amount(name, amount) + f' {name}' * (name in ('MEMORY_MB', 'DISK_GB'))
