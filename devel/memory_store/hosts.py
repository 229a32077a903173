# SPDX-License-Identifier: Apache-2.0
"""Hosts in memory as operators manage them, and their aggregates."""

import msgspec

from devel.memory_store.database import MemoryDatabase, atomic
from gantt import exceptions
from gantt.core.claims.registration import with_inventories_by
from gantt.core.messages.base import derived_id
from gantt.core.resources.host import Aggregate, HostChange, HostRow
from gantt.core.resources.host_keys import HostKey

_replace = msgspec.structs.replace


class MemoryHosts:
    """Hosts as operators manage them: ``ports.Hosts`` in memory."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    @atomic
    def disable_host(self, name: str, reason: str, by: str) -> HostChange:
        return self._write_row(_replace(self._find_host(name), disabled=reason, disabled_by=by))

    @atomic
    def enable_host(self, name: str, by: str = '') -> HostChange:
        return self._write_row(_replace(self._find_host(name), disabled=None, disabled_by=None))

    @atomic
    def set_inventories_by(self, name: str, by: str | None, who: str = '') -> HostChange:
        return self._write_row(with_inventories_by(self._find_host(name), by))

    @atomic
    def load_host_key(self, name: str) -> HostKey | None:
        row = self.database.tables.named(name)
        return None if row is None else row.key

    @atomic
    def remove_host(self, name: str) -> HostChange:
        row, tables = self._find_host(name), self.database.tables
        count = tables.claims_on(row.id)
        if count:
            raise exceptions.Refused(
                f'host {name!r} has {count} live claims; move or release what runs there first',
                name=name,
                claims=count,
            )
        below = len(tables.children(row.id))
        if below:
            raise exceptions.Refused(
                f'host {name!r} has {below} providers below it; delete or move them first',
                name=name,
                providers=below,
            )
        del tables.hosts[row.id], tables.ids[name], tables.places[row.id]
        tables.epochs[name] = row.epoch
        tables.append_change('host', row.id)
        return HostChange(provider_id=row.id, row=None)

    def _find_host(self, name: str) -> HostRow:
        row = self.database.tables.named(name)
        if row is None:
            raise exceptions.NotFound(kind='host', name=name)
        return row

    def _write_row(self, row: HostRow) -> HostChange:
        self.database.tables.hosts[row.id] = row
        self.database.tables.touch(row.id)
        return self.database.tables.write()[0]


class MemoryDeclarations:
    """Declarations of operators: aggregates and metrics: ``ports.Declarations`` in memory."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    @atomic
    def save_aggregate(
        self,
        name: str,
        metadata: dict[str, str | None],
        hosts: list[str] | None,
        uuid: str | None = None,
    ) -> Aggregate:
        tables = self.database.tables
        same_uuid = next((a for a in tables.aggregates.values() if a.uuid == uuid), None)
        if same_uuid is not None and same_uuid.name != name:
            raise exceptions.Refused(
                f'aggregate {same_uuid.name!r} has the uuid {uuid} already', uuid=uuid
            )
        before = tables.aggregate(name)
        if before is None:
            number = tables.next_id()
            new_uuid = uuid or derived_id('aggregate', name, number)
            before = Aggregate(id=number, uuid=new_uuid, name=name)
        merged: dict[str, str | None] = {**before.metadata, **metadata}
        now = _replace(
            before,
            uuid=uuid or before.uuid,
            metadata={key: value for key, value in merged.items() if value is not None},
            hosts=before.hosts if hosts is None else sorted(set(hosts)),
        )
        tables.put_aggregate(now)
        tables.refresh_membership({*before.hosts, *now.hosts})
        tables.write()
        return tables.aggregates[now.id]

    @atomic
    def remove_aggregate(self, name: str) -> None:
        aggregate = self.database.tables.aggregate(name)
        if aggregate is None:
            raise exceptions.NotFound(kind='aggregate', name=name)
        del self.database.tables.aggregates[aggregate.id]
        self.database.tables.append_change('aggregate', aggregate.id)
        self.database.tables.refresh_membership(aggregate.hosts)
        self.database.tables.write()
