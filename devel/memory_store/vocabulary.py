# SPDX-License-Identifier: Apache-2.0
"""Resource classes and traits in memory."""

from collections.abc import Collection, Mapping

from devel.memory_store import provider_rows
from devel.memory_store.database import MemoryDatabase, atomic
from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.resources.provider import (
    VocabularyEntry,
)
from gantt.standard_traits import STANDARD_TRAITS


class MemoryVocabulary:
    """Classes and traits: ``ports.Vocabulary`` in memory."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    @atomic
    def resource_classes(self) -> list[VocabularyEntry]:
        return _vocabulary_entries(
            resource_classes.STANDARD_CLASSES,
            provider_rows.known_classes(self.database.tables),
            self.database.tables.class_changes,
        )

    @atomic
    def declare_class(self, name: str) -> None:
        """Declare a CUSTOM_ resource class.

        :raises UnknownResourceClass: neither a standard class nor of that form
        """
        if not resource_classes.is_class_name(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        self.database.tables.classes.add(name)

    @atomic
    def declared_classes(self) -> frozenset[str]:
        return frozenset(self.database.tables.classes)

    @atomic
    def create_class(self, name: str) -> bool:
        if not resource_classes.CUSTOM_CLASS_NAME.match(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        if name in provider_rows.known_classes(self.database.tables):
            return False
        self.database.tables.classes.add(name)
        self.database.tables.class_changes[name] = self.database.now
        return True

    @atomic
    def rename_class(self, name: str, new: str) -> None:
        if not resource_classes.CUSTOM_CLASS_NAME.match(new):
            raise exceptions.UnknownResourceClass(field='name', name=new)
        self._check_there('resource class', name, provider_rows.known_classes(self.database.tables))
        if new != name:
            if new in provider_rows.known_classes(self.database.tables):
                raise exceptions.InUse(f'resource class {new} exists already', name=new)
            self.delete_class(name)
            self.create_class(new)

    @atomic
    def delete_class(self, name: str) -> None:
        self._check_there('resource class', name, provider_rows.known_classes(self.database.tables))
        if any(
            name in row.inventories or name in row.used
            for row in provider_rows.all_providers(self.database.tables)
        ):
            raise exceptions.InUse(f'resource class {name} is in use by a provider', name=name)
        self.database.tables.classes.discard(name)
        self.database.tables.class_changes.pop(name, None)

    @atomic
    def traits(
        self,
        *,
        names: Collection[str] | None = None,
        prefix: str = '',
        associated: bool | None = None,
    ) -> list[VocabularyEntry]:
        had = provider_rows.associated_traits(self.database.tables)
        entries = _vocabulary_entries(
            STANDARD_TRAITS, had | self.database.tables.traits.keys(), self.database.tables.traits
        )
        return [
            entry
            for entry in entries
            if entry.name.startswith(prefix)
            and (names is None or entry.name in names)
            and (associated is None or (entry.name in had) == associated)
        ]

    @atomic
    def create_trait(self, name: str) -> tuple[VocabularyEntry, bool]:
        names = provider_rows.known_traits(self.database.tables)
        if name not in names:
            self.database.tables.traits[name] = self.database.now
        return VocabularyEntry(name, self.database.tables.traits.get(name)), name not in names

    @atomic
    def delete_trait(self, name: str) -> None:
        self._check_there(
            'trait', name, provider_rows.known_traits(self.database.tables) - STANDARD_TRAITS
        )
        if name in provider_rows.associated_traits(self.database.tables):
            raise exceptions.InUse(f'trait {name} is in use by a provider', name=name)
        del self.database.tables.traits[name]

    def _check_there(self, kind: str, name: str, known: Collection[str]) -> None:
        if name not in known:
            raise exceptions.NotFound(kind=kind, name=name)


def _vocabulary_entries(
    standard: Collection[str], known: Collection[str], changes: Mapping[str, float]
) -> list[VocabularyEntry]:
    names = [*sorted(standard), *sorted(set(known) - set(standard))]
    return [VocabularyEntry(name, changes.get(name)) for name in names]
