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
from gantt.db.database import SqlStore, reading, writing
from gantt.db.engine import retry, session
from gantt.db.hosts import declared
from gantt.db.hosts.hosts import NameIds
from gantt.db.schema import models
from gantt.standard_traits import STANDARD_TRAITS

_resource_classes = models.resource_classes
_traits = models.traits
_inventories = models.inventories
_provider_traits = models.provider_traits

_name: Any = sa.bindparam('name')
SELECT_CLASSES = sa.select(_resource_classes.c.name, _resource_classes.c.changed_at)
SELECT_TRAITS = sa.select(_traits.c.name, _traits.c.changed_at)
SELECT_ASSOCIATED_TRAITS = sa.select(_traits.c.name).where(
    sa.exists().where(_provider_traits.c.trait_id == _traits.c.id)
)
SELECT_PROVIDERS_WITH_CLASS = (
    sa.select(_inventories.c.provider_id)
    .join(_resource_classes, _resource_classes.c.id == _inventories.c.class_id)
    .where(_resource_classes.c.name == _name)
)
SELECT_PROVIDERS_WITH_TRAIT = (
    sa.select(_provider_traits.c.provider_id)
    .join(_traits, _traits.c.id == _provider_traits.c.trait_id)
    .where(_traits.c.name == _name)
)


class SqlVocabulary(SqlStore):
    """Classes and traits: ``ports.Vocabulary`` in SQL."""

    @reading
    def resource_classes(self, tx: session.Tx) -> list[VocabularyEntry]:
        return _with_standard(_all(tx, SELECT_CLASSES), resource_classes.STANDARD_CLASSES)

    @writing
    def create_class(self, tx: session.Tx, name: str) -> bool:
        if not resource_classes.CUSTOM_CLASS_NAME.match(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        return _create(tx, _resource_classes, name)

    def declare_class(self, name: str) -> None:
        if not resource_classes.is_class_name(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        self.database.writes.write(lambda tx: NameIds(tx, models.resource_classes).ids_of([name]))

    @reading
    def declared_classes(self, tx: session.Tx) -> frozenset[str]:
        return frozenset(row.name for row in tx.all(declared.SELECT_CLASS_NAMES))

    @writing
    def rename_class(self, tx: session.Tx, name: str, new: str) -> None:
        if not resource_classes.CUSTOM_CLASS_NAME.match(new):
            raise exceptions.UnknownResourceClass(field='name', name=new)
        _check_exists(tx, _resource_classes, name, 'resource class')
        if new != name:
            if tx.first(SELECT_CLASSES.where(_resource_classes.c.name == new)) is not None:
                raise exceptions.InUse(f'resource class {new} exists already', name=new)
            _check_unused(tx, SELECT_PROVIDERS_WITH_CLASS, name, 'resource class')
            # Another row: a transaction that has read this one's id, and is about to write that
            # a provider has the class, fails by its foreign key, as we do by rows written before.
            _delete(tx, _resource_classes, name)
            with retry.unless_raced():
                tx.run(_resource_classes.insert().values(name=new, changed_at=tx.now))

    @writing
    def delete_class(self, tx: session.Tx, name: str) -> None:
        _check_exists(tx, _resource_classes, name, 'resource class')
        _check_unused(tx, SELECT_PROVIDERS_WITH_CLASS, name, 'resource class')
        _delete(tx, _resource_classes, name)

    @reading
    def traits(
        self,
        tx: session.Tx,
        *,
        names: Collection[str] | None = None,
        prefix: str = '',
        associated: bool | None = None,
    ) -> list[VocabularyEntry]:
        entries = _with_standard(_all(tx, SELECT_TRAITS), STANDARD_TRAITS)
        if associated is not None:
            associated_names = {row.name for row in tx.all(SELECT_ASSOCIATED_TRAITS)}
            entries = [entry for entry in entries if (entry.name in associated_names) == associated]
        return [
            entry
            for entry in entries
            if entry.name.startswith(prefix) and (names is None or entry.name in names)
        ]

    @writing
    def create_trait(self, tx: session.Tx, name: str) -> tuple[VocabularyEntry, bool]:
        is_new = name not in STANDARD_TRAITS and _create(tx, _traits, name)
        return _all(tx, SELECT_TRAITS.where(_traits.c.name == name)).get(
            name, VocabularyEntry(name)
        ), is_new

    @writing
    def delete_trait(self, tx: session.Tx, name: str) -> None:
        _check_exists(tx, _traits, name, 'trait')
        _check_unused(tx, SELECT_PROVIDERS_WITH_TRAIT, name, 'trait')
        _delete(tx, _traits, name)


def _all(tx: session.Tx, query: Any) -> dict[str, VocabularyEntry]:
    return {row.name: VocabularyEntry(row.name, row.changed_at) for row in tx.all(query)}


def _with_standard(
    entries: dict[str, VocabularyEntry], standard: Collection[str]
) -> list[VocabularyEntry]:
    """Return the standard entries, then those of rows, each ordered by name."""
    standard_entries = [entries.get(name) or VocabularyEntry(name) for name in sorted(standard)]
    return standard_entries + [entries[name] for name in sorted(entries) if name not in standard]


def _create(tx: session.Tx, table: sa.Table, name: str) -> bool:
    """Insert a class or trait; return whether its name was new."""
    query = sa.select(table.c.name).where(table.c.name == name)
    if tx.first(query) is not None:
        return False
    tx.insert_new(table, [{'name': name, 'changed_at': tx.now}], 'name')
    return True


def _check_exists(tx: session.Tx, table: sa.Table, name: str, kind: str) -> None:
    if tx.first(sa.select(table.c.name).where(table.c.name == name)) is None:
        raise exceptions.NotFound(kind=kind, name=name)


def _check_unused(tx: session.Tx, query: Any, name: str, kind: str) -> None:
    if tx.first(query.limit(1), name=name) is not None:
        raise exceptions.InUse(f'{kind} {name} is in use by a provider', name=name)


def _delete(tx: session.Tx, table: sa.Table, name: str) -> None:
    with retry.unless_raced():
        tx.run(table.delete().where(table.c.name == name))
