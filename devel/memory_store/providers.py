# SPDX-License-Identifier: Apache-2.0
"""Providers of the in-memory store: each row has its parent, and all else is derived."""

import uuid as uuids
from collections.abc import Mapping
from typing import Any

import msgspec

from devel.memory_store.operators import Operators, atomic
from devel.memory_store.tables import PoolRow, ProviderPlace, Tables
from gantt import exceptions
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources import provider as rules
from gantt.core.resources.host import HostKind
from gantt.core.resources.provider import ResourceProvider

_replace = msgspec.structs.replace


class ProviderTables(Operators):
    """See ``scheduler.ports.providers``."""

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
        tables = self._tables
        above = None if parent is None else _parent(tables, parent)
        new_uuid = uuid or str(uuids.uuid4())
        for place in tables.places.values():
            if place.uuid == new_uuid:
                raise rules.uuid_taken(new_uuid, place.name)
        for place in tables.places.values():
            if place.name == name:
                raise rules.name_taken(name, place.uuid)
        pid = tables.next_id()
        tables.places[pid] = ProviderPlace(
            uuid=new_uuid, name=name, parent=above, changed_at=self._now
        )
        tables.pools[pid] = PoolRow(id=pid, inventories=dict(inventories))
        tables.classes.update(inventories)
        tables.append_change('provider', pid)
        self._touch_tree(pid)
        return self._provider(pid)

    @atomic
    def load_provider(self, uuid: str) -> ResourceProvider | None:
        pid = self._tables.with_uuid(uuid)
        return None if pid is None else self._provider(pid)

    @atomic
    def providers(
        self,
        *,
        name: str | None = None,
        tree: str | None = None,
        limit: int = 100,
        marker: str | None = None,
    ) -> list[ResourceProvider]:
        matching = [self._provider(pid) for pid in self._tables.places]
        if name is not None:
            matching = [provider for provider in matching if provider.name == name]
        if tree is not None:
            tree_member = self.load_provider(tree)
            matching = [
                provider
                for provider in matching
                if tree_member is not None and provider.root == tree_member.root
            ]
        if marker is not None:
            matching = [provider for provider in matching if provider.uuid > marker]
        return sorted(matching, key=lambda provider: provider.uuid)[:limit]

    @atomic
    def move_provider(self, uuid: str, parent: str | None) -> ResourceProvider:
        return self._provider(self._move(uuid, parent))

    def _move(self, uuid: str, parent: str | None) -> int:
        tables, pid = self._tables, self._no_host(uuid)
        above = None
        if parent is not None:
            above = _parent(tables, parent)
            rules.check_below(parent, tables.subtree(pid), above)
        before = tables.places[pid]
        if before.parent != above:
            self._touch_tree(pid)
            tables.places[pid] = _replace(before, parent=above, changed_at=self._now)
            for provider_id in sorted(tables.subtree(pid)):
                tables.touch(provider_id)
            self._touch_tree(pid)
        return pid

    @atomic
    def save_inventories(self, uuid: str, inventories: Mapping[str, Inventory]) -> ResourceProvider:
        rules.check_inventories(inventories)
        return self._provider(self._write_inventories(uuid, inventories))

    def _write_inventories(self, uuid: str, inventories: Mapping[str, Inventory]) -> int:
        tables, pid = self._tables, self._changed_by_requests(uuid)
        row = tables.row(pid)
        assert row is not None
        rules.check_used(uuid, row.used, inventories)
        tables.classes.update(inventories)
        self._declare(pid, generation=row.generation + 1, inventories=dict(inventories))
        tables.flag([pid])
        return pid

    @atomic
    def delete_provider(self, uuid: str) -> None:
        tables, pid = self._tables, self._no_host(uuid)
        rules.check_unused(uuid, len(tables.children(pid)), tables.claims_on(pid))
        self._touch_tree(pid)
        del tables.places[pid], tables.pools[pid]
        tables.append_change('provider', pid)

    def _declare(self, pid: int, generation: int, **values: Any) -> None:
        """Set what a provider has from now on; of a host it is a fact."""
        tables, row = self._tables, self._tables.row(pid)
        assert row is not None
        if isinstance(row, PoolRow):
            version = row.version + 1
            tables.pools[pid] = _replace(row, version=version, generation=generation, **values)
            tables.append_change('provider', pid)
        else:
            facts = _replace(row.facts, **values)
            tables.hosts[pid] = _replace(row, generation=generation, facts=facts)
            tables.touch(pid)

    # -- derived ---------------------------------------------------------------------
    def _changed_by_requests(self, uuid: str) -> int:
        pid = self._there(uuid)
        host = self._tables.hosts.get(pid)
        if host is not None and host.reports_inventories:
            raise rules.reports_it_itself(uuid, host.name)
        return pid

    def _there(self, uuid: str) -> int:
        pid = self._tables.with_uuid(uuid)
        if pid is None:
            raise exceptions.NotFound(kind='provider', name=uuid)
        return pid

    def _no_host(self, uuid: str) -> int:
        pid = self._there(uuid)
        if pid in self._tables.hosts:
            raise rules.is_a_host(uuid, self._tables.hosts[pid].name)
        return pid

    def _touch_tree(self, pid: int) -> None:
        """Touch its root and its parent, too."""
        tables = self._tables
        for provider_id in (tables.root(pid), tables.places[pid].parent):
            if provider_id is not None and provider_id != pid:
                tables.touch(provider_id)
        tables.write()

    def _provider(self, pid: int) -> ResourceProvider:
        tables = self._tables
        place, root = tables.places[pid], tables.root(pid)
        above = None if place.parent is None else tables.places.get(place.parent)
        host = tables.hosts.get(pid)
        if host is not None:
            row = PoolRow(
                id=pid,
                generation=host.generation,
                inventories=host.facts.inventories,
                used=host.used,
            )
        else:
            row = tables.pools[pid]
        return ResourceProvider(
            id=pid,
            uuid=place.uuid,
            name=place.name,
            kind=HostKind.HOST if host is not None else rules.kind_of(place.parent),
            root=tables.places[root].uuid,
            parent=None if above is None else above.uuid,
            host=None if host is None else host.name,
            generation=row.generation,
            inventories={
                name: inventory for name, inventory in row.inventories.items() if inventory.total
            },
            used={name: amount for name, amount in row.used.items() if amount},
            changed_at=place.changed_at,
        )


def _parent(tables: Tables, uuid: str) -> int:
    pid = tables.with_uuid(uuid)
    if pid is None:
        raise rules.unknown_parent(uuid)
    return pid
