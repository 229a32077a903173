# SPDX-License-Identifier: Apache-2.0
"""A host table as it would be: hosts added, removed or changed; or pools, of a request for pools.

Made on a copy and by the same news that a report would be, so that everything
that follows from a host (zones, traits, free amounts) follows here as well.
What is nested below a host or a pool is copied, emptied and removed with it.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec.structs import replace

from gantt import exceptions
from gantt.core.claims.acceptance import is_over_committed
from gantt.core.messages import resource_classes as resources
from gantt.core.messages.base import UUID, Message, Name, Text, Uuid
from gantt.core.messages.near import did_you_mean, near
from gantt.core.messages.request import Names, RequestKind
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement import what_if_nested as nested
from gantt.core.resources.host import HostChange, HostFacts, HostKind, HostRow, Placed

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Hosts, and what is nested below them, that may be added to one table.
ADDED_MAX = 10_000
#: What a pool has not.
_OF_HOSTS = ('enabled', 'reporting', 'cell', 'location')

#: How traits are named.
_TRAIT = re.compile(r'[A-Z0-9_]{1,255}\Z')
_UUID = re.compile(UUID)

Totals = Annotated[
    dict[Name, Annotated[int, msgspec.Meta(ge=0, le=resources.AMOUNT_MAX)]],
    msgspec.Meta(max_length=64),
]


Ratios = Annotated[dict[Name, float], msgspec.Meta(max_length=64)]


class HostEdit(Message, frozen=True, kw_only=True):
    """What would be different about a host, or a pool; what is left out stays as it is.

    :ivar like: of an added host: the host it is a copy of, with what is nested below it and
        without its guests
    :ivar count: of an added host: so many, ``NAME-1`` to ``NAME-<count>``
    :ivar resources: physical totals by class; 0 takes the class away
    :ivar reserved: by class, what of the total may not be promised
    :ivar allocation_ratios: by class, how many times the rest may be promised
    :ivar empty: nothing runs there and nothing is claimed, nor of what is nested below it
    :ivar aggregates: further ones that it is in, by name or uuid; a pool may be in one that is not
        known yet, by its uuid
    :ivar without_aggregates: those that it is in no longer, by name or uuid
    """

    like: Name | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=ADDED_MAX)] = 1
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


def apply(
    whole: 'HostTable',
    edits: HostEdits,
    declared: frozenset[str] = frozenset(),
    kind: RequestKind = RequestKind.HOST,
) -> list[str]:
    """Lay the edits over a writable table; what was done, a line each.

    :param declared: custom resource classes known at run time
    :param kind: of the request: whether hosts or pools are meant
    :raises InvalidMessage, NotFound: names the host and the field
    """
    editor = _PoolEditor(whole) if kind is RequestKind.POOL else _Editor(whole)
    editor.check(edits, declared)
    return [*editor.remove(edits), *editor.change(edits), *editor.add(edits)]


class _Editor:
    """Edits the hosts of a table.

    :ivar table: its rows are hosts, or pools
    """

    noun, kind = 'host', HostKind.HOST

    def __init__(self, whole: 'HostTable') -> None:
        self.table = self.table_of(whole)
        self.tree = self.tree_of()
        self._number = max((*whole.row_by_id, *whole.known_pools()), default=0)
        self._gone: set[str] = set()

    def table_of(self, whole: 'HostTable') -> 'HostTable':
        """The table that is edited."""
        return whole

    def tree_of(self) -> 'nested.Nested':
        """What is nested below its rows."""
        return nested.BelowHosts(self.table)

    # -- what is done ---------------------------------------------------------------------
    def remove(self, edits: HostEdits) -> Iterator[str]:
        """A line for each that goes, with what is nested below it."""
        for name in edits.remove:
            if self.table.row_of(name) is None:
                continue  # it went with what it is below of
            row = self.row('remove', name)
            below = self.tree.remove(row.id)
            self.table.apply(HostChange(provider_id=row.id, row=None))
            yield f'without {name}{_and_below(below)}'

    def change(self, edits: HostEdits) -> Iterator[str]:
        """A line for each that changes."""
        for name, edit in edits.change.items():
            field = f'hosts.change.{name}'
            row = self.row('change', name)
            if edit.without_aggregates:
                row = self._leave(row, edit, field)
            placed = [] if edit.empty else list(self.table.placed.on(row.id).values())
            self._fold(self._edited(row, edit, field), placed)
            if edit.empty:
                self.tree.empty(row.id)
            yield f'{name} {_words(edit)}'

    def add(self, edits: HostEdits) -> Iterator[str]:
        """A line for each that comes, or for several that are alike."""
        for name, edit in edits.add.items():
            field, below = f'hosts.add.{name}', 0
            like = None if edit.like is None else self.row(f'add.{name}.like', edit.like)
            for one in _names(name, edit):
                row = self._added(one, like)
                if edit.without_aggregates:
                    row = self._leave(row, edit, field)
                row = self._edited(row, edit, field)
                self._fold(row, [])
                if like is not None:
                    below = self.tree.copy(like.id, row, self._next)
            many = name
            if edit.count > 1:
                many = f'{edit.count} {self.noun}s {name}-1 to {name}-{edit.count}'
            copied = f' like {edit.like}{_and_below(below)}' if edit.like else ''
            yield f'with {many}{copied} {_words(edit)}'.strip()

    def row(self, field: str, name: str) -> HostRow:
        """:raises NotFound: names the field"""
        row = self.table.row_of(name)
        if row is None:
            hint = did_you_mean(near(name, self.table.names))
            raise exceptions.NotFound(
                f'hosts.{field}: {self.noun} {name!r} is not known here{hint}',
                kind=self.noun,
                name=name,
            )
        return self.table.hosts[row]

    def _next(self) -> int:
        """An id that no provider has."""
        self._number += 1
        return self._number

    def _fold(self, row: HostRow, placed: list[Placed]) -> None:
        self.table.apply(HostChange(provider_id=row.id, row=row, placed=placed))

    def _added(self, name: str, like: HostRow | None) -> HostRow:
        table, number = self.table, self._next()
        if like is not None:
            # A zone that comes of an aggregate comes of it here as well.
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
        """Whether nothing new lands there as more is used than may be."""
        return is_over_committed(row)

    def takes_any_ratio(self, row: HostRow) -> bool:
        """Whether ratios are those of Placement's interface, and not those of reports."""
        return not row.reports_inventories

    # -- aggregates -------------------------------------------------------------------------
    def _aggregate(self, name: str, field: str) -> str:
        """The uuid of an aggregate.  :raises NotFound:"""
        for uuid, aggregate in self.table.known_aggregates.items():
            if name in (uuid, aggregate.name):
                return uuid
        if self.knows(name):
            return name
        raise exceptions.NotFound(
            f'{field}: aggregate {name!r} is not known here', kind='aggregate', name=name
        )

    def knows(self, uuid: str) -> bool:
        """Whether there is an aggregate of which there is nothing but the uuid."""
        return self.table.aggregate_codes.get(uuid) is not None

    def _leave(self, row: HostRow, edit: HostEdit, field: str) -> HostRow:
        """:raises InvalidMessage: it is not in one of them"""
        field = f'{field}.without_aggregates'
        gone = {self._aggregate(name, field): name for name in edit.without_aggregates}
        inside = {*row.aggregates, *self.table.aggregates_of(row)}
        for uuid, name in gone.items():
            if uuid not in inside:
                raise exceptions.invalid(field, f'{row.name} is not in aggregate {name!r}')
        self._strike_off(row, gone)
        return replace(row, aggregates=[uuid for uuid in row.aggregates if uuid not in gone])

    def _strike_off(self, row: HostRow, gone: dict[str, str]) -> None:
        """Aggregates that list a host list it no more."""
        at = self.table.row_of_id(row.id)
        names = {row.name} if at is None else {row.name, self.table.service_name(at)}
        known = self.table.known_aggregates.values()
        if any(one.uuid in gone and names & set(one.hosts) for one in known):
            self.table.set_aggregates(
                [
                    replace(one, hosts=[host for host in one.hosts if host not in names])
                    if one.uuid in gone
                    else one
                    for one in known
                ]
            )

    # -- what is refused --------------------------------------------------------------------
    def check(self, edits: HostEdits, declared: frozenset[str]) -> None:
        """:raises InvalidMessage, NotFound:"""
        for name in edits.remove:
            self._gone |= {name, *self.tree.names(self.row('remove', name).id)}
        for name, edit in edits.change.items():
            self._check_change(name, edit)
        for name, edit in edits.add.items():
            if edit.like is None and not any(edit.resources.values()):
                raise exceptions.invalid(
                    f'hosts.add.{name}',
                    f'expected its resources, or a {self.noun} that it is like',
                )
        for field, edit in _each(edits):
            self.check_edit(edit, field)
            _check_words(self.table, edit, field, declared)
        self._check_names(edits)

    def _check_change(self, name: str, edit: HostEdit) -> None:
        for field in ('like', 'count'):
            if getattr(edit, field) not in (None, 1):
                raise exceptions.invalid(
                    f'hosts.change.{name}.{field}', f'expected it of added {self.noun}s only'
                )
        if name in self._gone:
            problem = f'this {self.noun} is removed as well'
            raise exceptions.invalid(f'hosts.change.{name}', problem)

    def check_edit(self, edit: HostEdit, field: str) -> None:
        """:raises InvalidMessage: it is about what these have not"""

    def _check_names(self, edits: HostEdits) -> None:
        """:raises InvalidMessage: too many, or one that is added has the name of another"""
        added: dict[str, str] = {}
        count = 0
        for name, edit in edits.add.items():
            like = None if edit.like is None else self.row(f'add.{name}.like', edit.like).id
            below = 0 if like is None else len(self.tree.below(like))
            count += edit.count * (1 + below)
            if count > ADDED_MAX:
                problem = f'expected at most {ADDED_MAX} {self.noun}s in all'
                raise exceptions.invalid('hosts.add', f'{problem}, with what is below them')
            parts = [] if like is None else sorted(self.tree.names(like))
            for one in _names(name, edit):
                for each in (one, *(nested.copied_name(one, part) for part in parts)):
                    self._check_name(name, each, added)

    def _check_name(self, name: str, one: str, added: dict[str, str]) -> None:
        other = added.setdefault(one, name)
        if other != name:
            problem = f'hosts.add.{other} has a {self.noun} {one} as well'
        elif self.table.row_of(one) is not None and one not in self._gone:
            problem = f'there is a {self.noun} {one} already'
        else:
            return
        raise exceptions.invalid(f'hosts.add.{name}', problem)


class _PoolEditor(_Editor):
    """Edits the pools that may be asked for alone."""

    noun, kind = 'pool', HostKind.POOL

    def table_of(self, whole: 'HostTable') -> 'HostTable':
        return whole.of_kind(RequestKind.POOL)

    def tree_of(self) -> 'nested.Nested':
        return nested.BelowPools(self.table)

    def is_over_full(self, row: HostRow) -> bool:
        return False  # room in pools is judged by class

    def takes_any_ratio(self, row: HostRow) -> bool:
        return True

    def knows(self, uuid: str) -> bool:
        return _UUID.match(uuid) is not None

    def check_edit(self, edit: HostEdit, field: str) -> None:
        for name in _OF_HOSTS:
            if getattr(edit, name) is not None:
                raise exceptions.invalid(
                    f'{field}.{name}', 'expected it of hosts only, not of pools'
                )


def _names(name: str, edit: HostEdit) -> list[str]:
    """Names of the hosts that one entry adds."""
    return [name] if edit.count == 1 else [f'{name}-{i + 1}' for i in range(edit.count)]


def _and_below(count: int) -> str:
    return f' and {count} below it' if count else ''


def _each(edits: HostEdits) -> Iterator[tuple[str, HostEdit]]:
    for kind, found in (('change', edits.change), ('add', edits.add)):
        for name, edit in found.items():
            yield f'hosts.{kind}.{name}', edit


def _check_words(table: 'HostTable', edit: HostEdit, field: str, declared: frozenset[str]) -> None:
    """Names of classes and traits are such as hosts may have."""
    for key in ('resources', 'reserved', 'allocation_ratios'):
        for name in getattr(edit, key):
            known = name in resources.STANDARD or name in declared
            if not (known or table.class_code(name) is not None):
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
    """
    :raises InvalidMessage: of a class that it has not, or absurd
    """
    found = dict(before)
    for name, total in edit.resources.items():
        if total:
            known = found.get(name, Inventory(total=0))
            found[name] = replace(known, total=total, reserved=min(known.reserved, total))
        else:
            found.pop(name, None)
    numbers: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ('reserved', 'reserved', edit.reserved),
        ('allocation_ratio', 'allocation_ratios', edit.allocation_ratios),
    )
    for number, key, given in numbers:
        for name, value in given.items():
            where = f'{field}.{key}.{name}'
            if name not in found:
                has = ', '.join(sorted(found)) or 'nothing'
                raise exceptions.invalid(where, f'expected a class that it has, which is {has}')
            found[name] = replace(found[name], **{number: value})
            problem = found[name].problem(free=any_ratio)
            if problem is not None and problem[0] == number:
                raise exceptions.invalid(where, problem[1])
    return found


def _words(edit: HostEdit) -> str:
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
