# SPDX-License-Identifier: Apache-2.0
"""Providers of the in-memory store as requests find and change them, and what they name."""

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from devel.memory_store.operators import atomic
from devel.memory_store.providers import ProviderTables
from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources import provider as rules
from gantt.core.resources.provider import (
    ProviderAggregates,
    ProviderFilter,
    ProviderRecord,
    ProviderTraits,
    ResourceProvider,
    VocabularyEntry,
)
from gantt.standard_traits import STANDARD_TRAITS

_replace = msgspec.structs.replace


class MemoryVocabulary(ProviderTables):
    """See ``scheduler.ports.vocabulary``."""

    @atomic
    def resource_classes(self) -> list[VocabularyEntry]:
        return _entries(
            resource_classes.STANDARD, self._known_classes(), self._tables.class_changes
        )

    @atomic
    def create_class(self, name: str) -> bool:
        if not resource_classes.CUSTOM.match(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        if name in self._known_classes():
            return False
        self._tables.classes.add(name)
        self._tables.class_changes[name] = self._now
        return True

    @atomic
    def rename_class(self, name: str, new: str) -> None:
        if not resource_classes.CUSTOM.match(new):
            raise exceptions.UnknownResourceClass(field='name', name=new)
        self._check_there('resource class', name, self._known_classes())
        if new != name:
            if new in self._known_classes():
                raise exceptions.InUse(f'resource class {new} exists already', name=new)
            self.delete_class(name)
            self.create_class(new)

    @atomic
    def delete_class(self, name: str) -> None:
        self._check_there('resource class', name, self._known_classes())
        if any(name in row.inventories or name in row.used for row in self._all()):
            raise exceptions.InUse(f'resource class {name} is in use by a provider', name=name)
        self._tables.classes.discard(name)
        self._tables.class_changes.pop(name, None)

    @atomic
    def traits(
        self,
        *,
        names: Collection[str] | None = None,
        prefix: str = '',
        associated: bool | None = None,
    ) -> list[VocabularyEntry]:
        had = self._associated()
        entries = _entries(STANDARD_TRAITS, had | self._tables.traits.keys(), self._tables.traits)
        return [
            entry
            for entry in entries
            if entry.name.startswith(prefix)
            and (names is None or entry.name in names)
            and (associated is None or (entry.name in had) == associated)
        ]

    @atomic
    def create_trait(self, name: str) -> tuple[VocabularyEntry, bool]:
        names = self._known_traits()
        if name not in names:
            self._tables.traits[name] = self._now
        return VocabularyEntry(name, self._tables.traits.get(name)), name not in names

    @atomic
    def delete_trait(self, name: str) -> None:
        self._check_there('trait', name, self._known_traits() - STANDARD_TRAITS)
        if name in self._associated():
            raise exceptions.InUse(f'trait {name} is in use by a provider', name=name)
        del self._tables.traits[name]

    def _check_there(self, kind: str, name: str, known: Collection[str]) -> None:
        if name not in known:
            raise exceptions.NotFound(kind=kind, name=name)

    def _known_classes(self) -> set[str]:
        return self._tables.classes.union(*(row.inventories for row in self._all()))

    def _known_traits(self) -> set[str]:
        return self._associated().union(STANDARD_TRAITS, self._tables.traits)

    def _associated(self) -> set[str]:
        return {name for pid in self._tables.places for name in self._traits(pid)}

    def _traits(self, pid: int) -> frozenset[str]:
        host = self._tables.hosts.get(pid)
        return self._tables.places[pid].traits if host is None else frozenset(host.facts.traits)

    def _all(self) -> list[ResourceProvider]:
        return [self._provider(pid) for pid in self._tables.places]


def _entries(
    standard: Collection[str], known: Collection[str], changes: Mapping[str, float]
) -> list[VocabularyEntry]:
    names = [*sorted(standard), *sorted(set(known) - set(standard))]
    return [VocabularyEntry(name, changes.get(name)) for name in names]


class MemoryProviderRecords(MemoryVocabulary):
    """See ``scheduler.ports.providers``."""

    @atomic
    def find_providers(self, wanted: ProviderFilter) -> list[ProviderRecord]:
        self._check_traits(wanted.traits)
        self._check_classes(wanted.resources)
        tree = self._tables.with_uuid(wanted.in_tree) if wanted.in_tree is not None else None
        root = None if tree is None else self._tables.root(tree)
        return [
            self._record(pid)
            for pid in sorted(self._tables.places)
            if self._is_wanted(pid, wanted)
            and (wanted.in_tree is None or self._tables.root(pid) == root)
        ]

    def _is_wanted(self, pid: int, wanted: ProviderFilter) -> bool:
        place, traits = self._tables.places[pid], self._traits(pid)
        return (
            wanted.name in (None, place.name)
            and wanted.uuid in (None, place.uuid)
            and all(item & traits for item in wanted.required)
            and not wanted.forbidden & traits
            and all(item & place.aggregates for item in wanted.member_of)
            and not wanted.not_member_of & place.aggregates
            and all(_has_room(self._provider(pid), *item) for item in wanted.resources.items())
        )

    @atomic
    def update_provider(
        self,
        uuid: str,
        *,
        name: str | None = None,
        parent: str | None = '',
        reparent: bool = True,
    ) -> ProviderRecord:
        tables = self._tables
        pid = tables.with_uuid(uuid)
        if pid is None:
            raise exceptions.NotFound(kind='provider', name=uuid)
        before = self._record(pid)
        if name is not None:
            rules.check(name, None, {})
            for place in tables.places.values():
                if place.name == name != before.name:
                    raise rules.name_taken(name, place.uuid)
        above = tables.places[pid].parent
        is_orphan = above is not None and above not in tables.places
        if parent != '' and (parent != before.parent or is_orphan):
            if parent is not None and tables.with_uuid(parent) is None:
                raise rules.unknown_parent(parent)
            if before.parent is not None and not reparent:
                raise rules.keeps_its_parent(parent)
            self._move(uuid, parent)
        if name not in (None, before.name):
            pid = self._changed_by_requests(uuid)
            self._change(pid, name=name)
        return self._record(pid)

    @atomic
    def change_inventories(
        self,
        uuid: str,
        change: Callable[[dict[str, Inventory]], Mapping[str, Inventory]],
        generation: int | None = None,
    ) -> ResourceProvider:
        pid = self._changed_by_requests(uuid)
        rules.check_generation(uuid, self._provider(pid).generation, generation)
        changed = change(dict(self._provider(pid).inventories))
        self._check_classes(changed)
        rules.check_inventories(changed)
        self._write_inventories(uuid, changed)
        self._change(pid)
        return self._provider(pid)

    @atomic
    def load_provider_traits(self, uuid: str) -> ProviderTraits | None:
        pid = self._tables.with_uuid(uuid)
        if pid is None:
            return None
        changes = self._tables.traits
        traits = [VocabularyEntry(name, changes.get(name)) for name in sorted(self._traits(pid))]
        return ProviderTraits(self._record(pid).generation, traits)

    @atomic
    def save_provider_traits(
        self, uuid: str, names: Collection[str], generation: int | None = None
    ) -> ProviderTraits:
        pid = self._changed_by_requests(uuid)
        rules.check_generation(uuid, self._provider(pid).generation, generation)
        self._check_traits(names)
        if self._traits(pid) != set(names):
            self._step(pid, traits=sorted(set(names)))
            self._change(pid, traits=frozenset(names))
        saved = self.load_provider_traits(uuid)
        assert saved is not None
        return saved

    @atomic
    def load_provider_aggregates(self, uuid: str) -> ProviderAggregates | None:
        pid = self._tables.with_uuid(uuid)
        if pid is None:
            return None
        place = self._tables.places[pid]
        return ProviderAggregates(self._record(pid).generation, sorted(place.aggregates))

    @atomic
    def save_provider_aggregates(
        self, uuid: str, uuids: Collection[str], generation: int | None = None
    ) -> ProviderAggregates:
        pid = self._changed_by_requests(uuid)
        rules.check_generation(uuid, self._provider(pid).generation, generation)
        if generation is not None:
            self._step(pid)
        if generation is not None or self._tables.places[pid].aggregates != set(uuids):
            self._change(pid, aggregates=frozenset(uuids))
        saved = self.load_provider_aggregates(uuid)
        assert saved is not None
        return saved

    def _step(self, pid: int, **facts: object) -> None:
        generation = self._provider(pid).generation + 1
        self._declare(pid, generation, **(facts if pid in self._tables.hosts else {}))

    def _change(self, pid: int, **values: object) -> None:
        tables, place = self._tables, self._tables.places[pid]
        tables.places[pid] = _replace(place, changed_at=self._now, **values)
        host = tables.hosts.get(pid)
        if host is None:
            tables.pools[pid].version += 1
            tables.append_change('provider', pid)
        else:
            tables.hosts[pid] = _replace(host, aggregates=tables.aggregates_of(host))
            tables.touch(pid)
        tables.write()

    def _record(self, pid: int) -> ProviderRecord:
        provider = self._provider(pid)
        return ProviderRecord(
            **{name: getattr(provider, name) for name in ProviderRecord.__struct_fields__}
        )

    def _check_traits(self, names: Iterable[str]) -> None:
        rules.check_known('trait', names, self._known_traits())

    def _check_classes(self, names: Iterable[str]) -> None:
        class_names = self._known_classes() | resource_classes.STANDARD
        rules.check_known('resource class', names, class_names)


def _has_room(provider: ResourceProvider, name: str, amount: int) -> bool:
    inventory = provider.inventories.get(name)
    if inventory is None or inventory.unit_problem(amount) is not None:
        return False
    return inventory.cap - provider.used.get(name, 0) >= amount
