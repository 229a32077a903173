# SPDX-License-Identifier: Apache-2.0
"""The same cloud in Gantt and in the real Placement, written straight into both databases."""

import datetime
import random
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.candidates.table import ClassInventory, ProviderEntry
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.db.hosts.trees import NO_HOST_PREFIX
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

TRAITS = (
    'HW_CPU_X86_AVX',
    'HW_CPU_X86_AVX2',
    'HW_CPU_X86_SSE42',
    'COMPUTE_NODE',
    'STORAGE_DISK_SSD',
)
NETWORKS = ('CUSTOM_PHYSNET_0', 'CUSTOM_PHYSNET_1')
DEVICES = 8
CHUNK = 1000


class BenchCloud:
    """A cloud of hosts, each with nested devices where requested; the same for the same number.

    :ivar entries: uuid -> provider, with its use as written to both sides
    """

    def __init__(self, hosts: int, nested: int = 0) -> None:
        self._random = random.Random(hosts)
        self.aggregates = [self.new_id() for _ in range(8)]
        self.entries: dict[str, ProviderEntry] = {}
        self.roots: list[str] = []
        for n in range(hosts):
            self._add_host(n, nested)

    def new_id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _add_host(self, n: int, nested: int) -> None:
        inventories = {
            'VCPU': ClassInventory(cap=64 + 64 * (n % 3), max_unit=64),
            'MEMORY_MB': ClassInventory(cap=131_072 + 65_536 * (n % 4), max_unit=262_144),
            'DISK_GB': ClassInventory(cap=2_000 + 500 * (n % 5), max_unit=4_000),
        }
        traits = {'COMPUTE_NODE', TRAITS[n % 3], TRAITS[4 if n % 2 else 3]}
        root = self._add(None, inventories, traits, self.aggregates[n % 8])
        self.roots.append(root.uuid)
        for device in range(nested):
            free = {'SRIOV_NET_VF': ClassInventory(cap=8, max_unit=8)}
            self._add(root, free, {NETWORKS[device % 2]}, '')

    def _add(
        self,
        parent: ProviderEntry | None,
        inventories: dict[str, ClassInventory],
        traits: Iterable[str],
        aggregate: str,
    ) -> ProviderEntry:
        number = len(self.entries) + 1
        entry = ProviderEntry(
            id=number,
            uuid=self.new_id(),
            root_id=number if parent is None else parent.id,
            parent_id=None if parent is None else parent.id,
            traits=tuple(sorted(traits)),
            aggregates=(aggregate,) if aggregate else (),
            inventories=inventories,
        )
        self.entries[entry.uuid] = entry
        return entry

    def use(self, provider: str, amounts: dict[str, int]) -> None:
        """Add an allocated amount, or subtract where it is below 0."""
        entry = self.entries[provider]
        inventories = dict(entry.inventories)
        for name, amount in amounts.items():
            inventory = inventories[name]
            inventories[name] = msgspec.structs.replace(inventory, used=inventory.used + amount)
        self.entries[provider] = msgspec.structs.replace(entry, inventories=inventories)


def _write(connection: sa.Connection, table: Any, rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), CHUNK):
        connection.execute(sa.insert(table), rows[start : start + CHUNK])


def _codes(connection: sa.Connection, table: Any, names: Iterable[str]) -> dict[str, int]:
    """Return ids by name, of existing rows and of new ones."""
    ids = {row.name: row.id for row in connection.execute(sa.select(table.c.id, table.c.name))}
    _write(connection, table, [{'name': name} for name in sorted(set(names) - ids.keys())])
    return {row.name: row.id for row in connection.execute(sa.select(table.c.id, table.c.name))}


def _names(cloud: BenchCloud) -> tuple[set[str], set[str]]:
    entries = cloud.entries.values()
    classes = {name for entry in entries for name in entry.inventories}
    return classes, {*NETWORKS, *TRAITS}


def fill_ours(url: str, cloud: BenchCloud) -> None:
    """Write providers that are no hosts: only this interface writes their rows."""
    engine = sa.create_engine(url)
    p = models.providers
    classes, traits = _names(cloud)
    with engine.begin() as connection:
        class_ids = _codes(connection, models.resource_classes, classes)
        trait_ids = _codes(connection, models.traits, traits)
        entries = list(cloud.entries.values())
        rows = []
        for entry in entries:
            row: dict[str, Any] = {
                'id': entry.id,
                'uuid': entry.uuid,
                'name': f'{NO_HOST_PREFIX}{entry.uuid}',
                'placement_name': f'provider-{entry.id}',
                'kind': 'pool' if entry.parent_id is None else 'nested',
                'root_id': None if entry.parent_id is None else entry.root_id,
                'parent_id': entry.parent_id,
                'facts_stamp': entry.id,
                'cold': len(entry.inventories.keys() - set(CORE_CLASSES)),
            }
            for name, column in CORE_CLASS_COLUMNS.items():
                inventory = entry.inventories.get(name)
                row[f'cap_{column}'] = inventory.cap if inventory else 0
            rows.append(row)
        _write(connection, p, rows)
        inventories = [
            {
                'provider_id': entry.id,
                'class_id': class_ids[name],
                'total': inventory.cap,
                'reserved': 0,
                'min_unit': inventory.min_unit,
                'max_unit': inventory.max_unit,
                'step_size': inventory.step_size,
                'allocation_ratio': 1.0,
                'cap': inventory.cap,
            }
            for entry in entries
            for name, inventory in entry.inventories.items()
        ]
        _write(connection, models.inventories, inventories)
        some = [
            {'provider_id': entry.id, 'trait_id': trait_ids[name]}
            for entry in entries
            for name in entry.traits
        ]
        _write(connection, models.provider_traits, some)
        inside = [
            {'provider_id': entry.id, 'uuid': name}
            for entry in entries
            for name in entry.aggregates
        ]
        _write(connection, models.provider_aggregates, inside)
        if connection.dialect.name == 'postgresql':
            connection.execute(
                sa.text("SELECT setval(pg_get_serial_sequence('providers', 'id'), :last)"),
                {'last': len(entries)},
            )
    engine.dispose()


def fill_theirs(url: str, cloud: BenchCloud) -> None:
    """Write the same to the tables of Placement, which it has created."""
    engine = sa.create_engine(url)
    tables = sa.MetaData()
    tables.reflect(engine)
    of = tables.tables
    now = {'created_at': datetime.datetime.now(datetime.UTC).replace(tzinfo=None)}
    classes, traits = _names(cloud)
    with engine.begin() as connection:
        class_ids = _codes(connection, of['resource_classes'], classes)
        trait_ids = _codes(connection, of['traits'], traits)
        entries = list(cloud.entries.values())
        rows = [
            {
                'id': entry.id,
                'uuid': entry.uuid,
                'name': f'provider-{entry.id}',
                'generation': 0,
                'root_provider_id': entry.root_id,
                'parent_provider_id': entry.parent_id,
                **now,
            }
            for entry in entries
        ]
        _write(connection, of['resource_providers'], rows)
        inventories = [
            {
                'resource_provider_id': entry.id,
                'resource_class_id': class_ids[name],
                'total': inventory.cap,
                'reserved': 0,
                'min_unit': inventory.min_unit,
                'max_unit': inventory.max_unit,
                'step_size': inventory.step_size,
                'allocation_ratio': 1.0,
                **now,
            }
            for entry in entries
            for name, inventory in entry.inventories.items()
        ]
        _write(connection, of['inventories'], inventories)
        some = [
            {'resource_provider_id': entry.id, 'trait_id': trait_ids[name], **now}
            for entry in entries
            for name in entry.traits
        ]
        _write(connection, of['resource_provider_traits'], some)
        aggregate_ids = {name: n for n, name in enumerate(cloud.aggregates, 1)}
        named = [{'id': n, 'uuid': name, **now} for name, n in aggregate_ids.items()]
        _write(connection, of['placement_aggregates'], named)
        inside = [
            {'resource_provider_id': entry.id, 'aggregate_id': aggregate_ids[name], **now}
            for entry in entries
            for name in entry.aggregates
        ]
        _write(connection, of['resource_provider_aggregates'], inside)
    engine.dispose()
