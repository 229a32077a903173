# SPDX-License-Identifier: Apache-2.0
"""Providers in memory, as requests find and change them."""

import uuid as uuids
from collections.abc import Callable, Collection, Mapping

import msgspec

from devel.memory_store import provider_rows
from devel.memory_store.database import MemoryDatabase, atomic
from devel.memory_store.tables import PoolRow, ProviderPlace
from gantt import exceptions
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

_replace = msgspec.structs.replace


class MemoryProviders:
    """Trees of providers, as Placement requests find and change them.

    It is ``ports.Providers`` in memory.
    """

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    @atomic
    def create_provider(
        self,
        name: str,
        *,
        uuid: str | None = None,
        parent: str | None = None,
        inventories: Mapping[str, Inventory] = {},
    ) -> ResourceProvider:
        rules.check(name, uuid, inventories)
        tables = self.database.tables
        above = None if parent is None else provider_rows.parent_of(tables, parent)
        new_uuid = uuid or str(uuids.uuid4())
        for place in tables.places.values():
            if place.uuid == new_uuid:
                raise rules.uuid_taken(new_uuid, place.name)
        for place in tables.places.values():
            if place.name == name:
                raise rules.name_taken(name, place.uuid)
        pid = tables.next_id()
        tables.places[pid] = ProviderPlace(
            uuid=new_uuid, name=name, parent=above, changed_at=self.database.now
        )
        tables.pools[pid] = PoolRow(id=pid, inventories=dict(inventories))
        tables.classes.update(inventories)
        tables.append_change('provider', pid)
        provider_rows.touch_tree(self.database.tables, pid)
        return provider_rows.provider_of(self.database.tables, pid)

    @atomic
    def load_provider(self, uuid: str) -> ResourceProvider | None:
        pid = self.database.tables.with_uuid(uuid)
        return None if pid is None else provider_rows.provider_of(self.database.tables, pid)

    @atomic
    def delete_provider(self, uuid: str) -> None:
        tables, pid = (
            self.database.tables,
            provider_rows.check_is_no_host(self.database.tables, uuid),
        )
        rules.check_unused(uuid, len(tables.children(pid)), tables.claims_on(pid))
        provider_rows.touch_tree(self.database.tables, pid)
        del tables.places[pid], tables.pools[pid]
        tables.append_change('provider', pid)

    @atomic
    def find_providers(self, wanted: ProviderFilter) -> list[ProviderRecord]:
        provider_rows.check_traits(self.database.tables, wanted.traits)
        provider_rows.check_classes(self.database.tables, wanted.resources)
        tree = (
            self.database.tables.with_uuid(wanted.in_tree) if wanted.in_tree is not None else None
        )
        root = None if tree is None else self.database.tables.root(tree)
        return [
            self._record(pid)
            for pid in sorted(self.database.tables.places)
            if self._matches(pid, wanted)
            and (wanted.in_tree is None or self.database.tables.root(pid) == root)
        ]

    def _matches(self, pid: int, wanted: ProviderFilter) -> bool:
        place, traits = (
            self.database.tables.places[pid],
            provider_rows.traits_of(self.database.tables, pid),
        )
        return (
            wanted.name in (None, place.name)
            and wanted.uuid in (None, place.uuid)
            and all(item & traits for item in wanted.required)
            and not wanted.forbidden & traits
            and all(item & place.aggregates for item in wanted.member_of)
            and not wanted.not_member_of & place.aggregates
            and all(
                _has_room(provider_rows.provider_of(self.database.tables, pid), *item)
                for item in wanted.resources.items()
            )
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
        tables = self.database.tables
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
                raise rules.parent_cannot_change(parent)
            provider_rows.move(self.database.tables, self.database.now, uuid, parent)
        if name not in (None, before.name):
            pid = provider_rows.changed_by_requests(self.database.tables, uuid)
            provider_rows.change(self.database.tables, self.database.now, pid, name=name)
        return self._record(pid)

    @atomic
    def change_inventories(
        self,
        uuid: str,
        change: Callable[[dict[str, Inventory]], Mapping[str, Inventory]],
        generation: int | None = None,
    ) -> ResourceProvider:
        pid = provider_rows.changed_by_requests(self.database.tables, uuid)
        rules.check_generation(
            uuid, provider_rows.provider_of(self.database.tables, pid).generation, generation
        )
        changed = change(dict(provider_rows.provider_of(self.database.tables, pid).inventories))
        provider_rows.check_classes(self.database.tables, changed)
        rules.check_inventories(changed)
        provider_rows.write_inventories(self.database.tables, uuid, changed)
        provider_rows.change(self.database.tables, self.database.now, pid)
        return provider_rows.provider_of(self.database.tables, pid)

    @atomic
    def load_provider_traits(self, uuid: str) -> ProviderTraits | None:
        pid = self.database.tables.with_uuid(uuid)
        if pid is None:
            return None
        changes = self.database.tables.traits
        traits = [
            VocabularyEntry(name, changes.get(name))
            for name in sorted(provider_rows.traits_of(self.database.tables, pid))
        ]
        return ProviderTraits(self._record(pid).generation, traits)

    @atomic
    def save_provider_traits(
        self, uuid: str, names: Collection[str], generation: int | None = None
    ) -> ProviderTraits:
        pid = provider_rows.changed_by_requests(self.database.tables, uuid)
        rules.check_generation(
            uuid, provider_rows.provider_of(self.database.tables, pid).generation, generation
        )
        provider_rows.check_traits(self.database.tables, names)
        if provider_rows.traits_of(self.database.tables, pid) != set(names):
            self._increase_generation(pid, traits=sorted(set(names)))
            provider_rows.change(
                self.database.tables, self.database.now, pid, traits=frozenset(names)
            )
        saved = self.load_provider_traits(uuid)
        assert saved is not None
        return saved

    @atomic
    def load_provider_aggregates(self, uuid: str) -> ProviderAggregates | None:
        pid = self.database.tables.with_uuid(uuid)
        if pid is None:
            return None
        place = self.database.tables.places[pid]
        return ProviderAggregates(self._record(pid).generation, sorted(place.aggregates))

    @atomic
    def save_provider_aggregates(
        self, uuid: str, uuids: Collection[str], generation: int | None = None
    ) -> ProviderAggregates:
        pid = provider_rows.changed_by_requests(self.database.tables, uuid)
        rules.check_generation(
            uuid, provider_rows.provider_of(self.database.tables, pid).generation, generation
        )
        if generation is not None:
            self._increase_generation(pid)
        if generation is not None or self.database.tables.places[pid].aggregates != set(uuids):
            provider_rows.change(
                self.database.tables, self.database.now, pid, aggregates=frozenset(uuids)
            )
        saved = self.load_provider_aggregates(uuid)
        assert saved is not None
        return saved

    def _increase_generation(self, pid: int, **facts: object) -> None:
        generation = provider_rows.provider_of(self.database.tables, pid).generation + 1
        provider_rows.declare(
            self.database.tables,
            pid,
            generation,
            **(facts if pid in self.database.tables.hosts else {}),
        )

    def _record(self, pid: int) -> ProviderRecord:
        provider = provider_rows.provider_of(self.database.tables, pid)
        return ProviderRecord(
            **{name: getattr(provider, name) for name in ProviderRecord.__struct_fields__}
        )


def _has_room(provider: ResourceProvider, name: str, amount: int) -> bool:
    inventory = provider.inventories.get(name)
    if inventory is None or inventory.unit_problem(amount) is not None:
        return False
    return inventory.cap - provider.used.get(name, 0) >= amount
