# SPDX-License-Identifier: Apache-2.0
"""Resource classes and traits: standard ones always exist, others while they have a row.

A row is inserted for a standard name too, when it is first used.
"""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.resources.provider import VocabularyEntry
from gantt.db.database import Database, reading, writing
from gantt.db.engine import retry, session
from gantt.db.hosts import declared
from gantt.db.hosts.hosts import Ids
from gantt.db.schema import models
from gantt.standard_traits import STANDARD_TRAITS

_c = models.resource_classes
_t = models.traits
_i = models.inventories
_a = models.provider_traits

_name: Any = sa.bindparam('name')
CLASSES = sa.select(_c.c.name, _c.c.changed_at)
TRAITS = sa.select(_t.c.name, _t.c.changed_at)
ASSOCIATED = sa.select(_t.c.name).where(sa.exists().where(_a.c.trait_id == _t.c.id))
CLASS_USED = (
    sa.select(_i.c.provider_id).join(_c, _c.c.id == _i.c.class_id).where(_c.c.name == _name)
)
TRAIT_USED = (
    sa.select(_a.c.provider_id).join(_t, _t.c.id == _a.c.trait_id).where(_t.c.name == _name)
)


class SqlVocabulary:
    """Classes and traits: ``ports.Vocabulary`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @reading
    def resource_classes(self, tx: session.Tx) -> list[VocabularyEntry]:
        return _with_standard(_all(tx, CLASSES), resource_classes.STANDARD)

    @writing
    def create_class(self, tx: session.Tx, name: str) -> bool:
        if not resource_classes.CUSTOM.match(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        return _create(tx, _c, name)

    def declare_class(self, name: str) -> None:
        if not resource_classes.is_class_name(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        self.database.writes.write(lambda tx: Ids(tx, models.resource_classes).of([name]))

    @reading
    def declared_classes(self, tx: session.Tx) -> frozenset[str]:
        return frozenset(row.name for row in tx.all(declared.CLASSES))

    @writing
    def rename_class(self, tx: session.Tx, name: str, new: str) -> None:
        if not resource_classes.CUSTOM.match(new):
            raise exceptions.UnknownResourceClass(field='name', name=new)
        _must_be_there(tx, _c, name, 'resource class')
        if new != name:
            if tx.first(CLASSES.where(_c.c.name == new)) is not None:
                raise exceptions.InUse(f'resource class {new} exists already', name=new)
            _must_be_unused(tx, CLASS_USED, name, 'resource class')
            # Another row: a transaction that has read this one's id, and is about to write that
            # a provider has the class, fails by its foreign key, as we do by rows written before.
            _delete(tx, _c, name)
            with retry.unless_raced():
                tx.run(_c.insert().values(name=new, changed_at=tx.now))

    @writing
    def delete_class(self, tx: session.Tx, name: str) -> None:
        _must_be_there(tx, _c, name, 'resource class')
        _must_be_unused(tx, CLASS_USED, name, 'resource class')
        _delete(tx, _c, name)

    @reading
    def traits(
        self,
        tx: session.Tx,
        *,
        names: Collection[str] | None = None,
        prefix: str = '',
        associated: bool | None = None,
    ) -> list[VocabularyEntry]:
        entries = _with_standard(_all(tx, TRAITS), STANDARD_TRAITS)
        if associated is not None:
            associated_names = {row.name for row in tx.all(ASSOCIATED)}
            entries = [entry for entry in entries if (entry.name in associated_names) == associated]
        return [
            entry
            for entry in entries
            if entry.name.startswith(prefix) and (names is None or entry.name in names)
        ]

    @writing
    def create_trait(self, tx: session.Tx, name: str) -> tuple[VocabularyEntry, bool]:
        is_new = name not in STANDARD_TRAITS and _create(tx, _t, name)
        return _all(tx, TRAITS.where(_t.c.name == name)).get(name, VocabularyEntry(name)), is_new

    @writing
    def delete_trait(self, tx: session.Tx, name: str) -> None:
        _must_be_there(tx, _t, name, 'trait')
        _must_be_unused(tx, TRAIT_USED, name, 'trait')
        _delete(tx, _t, name)


def _all(tx: session.Tx, query: Any) -> dict[str, VocabularyEntry]:
    return {row.name: VocabularyEntry(row.name, row.changed_at) for row in tx.all(query)}


def _with_standard(
    found: dict[str, VocabularyEntry], standard: Collection[str]
) -> list[VocabularyEntry]:
    """Return all of both, the standard ones first, each by name."""
    standard_entries = [found.get(name) or VocabularyEntry(name) for name in sorted(standard)]
    return standard_entries + [found[name] for name in sorted(found) if name not in standard]


def _create(tx: session.Tx, table: sa.Table, name: str) -> bool:
    """Insert a name; return whether it was new."""
    query = sa.select(table.c.name).where(table.c.name == name)
    if tx.first(query) is not None:
        return False
    tx.insert_new(table, [{'name': name, 'changed_at': tx.now}], 'name')
    return True


def _must_be_there(tx: session.Tx, table: sa.Table, name: str, kind: str) -> None:
    if tx.first(sa.select(table.c.name).where(table.c.name == name)) is None:
        raise exceptions.NotFound(kind=kind, name=name)


def _must_be_unused(tx: session.Tx, query: Any, name: str, kind: str) -> None:
    if tx.first(query.limit(1), name=name) is not None:
        raise exceptions.InUse(f'{kind} {name} is in use by a provider', name=name)


def _delete(tx: session.Tx, table: sa.Table, name: str) -> None:
    with retry.unless_raced():
        tx.run(table.delete().where(table.c.name == name))
