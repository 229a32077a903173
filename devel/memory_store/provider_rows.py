# SPDX-License-Identifier: Apache-2.0
"""Rows of providers in memory: each has its parent, and all else is derived."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from devel.memory_store.tables import PoolRow, Tables
from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources import provider as rules
from gantt.core.resources.host import HostKind
from gantt.core.resources.provider import ResourceProvider
from gantt.standard_traits import STANDARD_TRAITS

_replace = msgspec.structs.replace


def move(tables: Tables, now: float, uuid: str, parent: str | None) -> int:
    """Move a provider and all below it below another one; return its id."""
    pid = check_is_no_host(tables, uuid)
    above = None
    if parent is not None:
        above = parent_of(tables, parent)
        rules.check_below(parent, tables.subtree(pid), above)
    before = tables.places[pid]
    if before.parent != above:
        touch_tree(tables, pid)
        tables.places[pid] = _replace(before, parent=above, changed_at=now)
        for provider_id in sorted(tables.subtree(pid)):
            tables.touch(provider_id)
        touch_tree(tables, pid)
    return pid


def write_inventories(tables: Tables, uuid: str, inventories: Mapping[str, Inventory]) -> int:
    """Replace the inventories of a provider; return its id."""
    pid = changed_by_requests(tables, uuid)
    row = tables.row(pid)
    assert row is not None
    rules.check_used(uuid, row.used, inventories)
    tables.classes.update(inventories)
    declare(tables, pid, generation=row.generation + 1, inventories=dict(inventories))
    tables.flag([pid])
    return pid


def declare(tables: Tables, pid: int, generation: int, **values: Any) -> None:
    """Set what a provider has from now on; of a host it is a fact."""
    row = tables.row(pid)
    assert row is not None
    if isinstance(row, PoolRow):
        version = row.version + 1
        tables.pools[pid] = _replace(row, version=version, generation=generation, **values)
        tables.append_change('provider', pid)
    else:
        facts = _replace(row.facts, **values)
        tables.hosts[pid] = _replace(row, generation=generation, facts=facts)
        tables.touch(pid)


def changed_by_requests(tables: Tables, uuid: str) -> int:
    """Return the id of a provider whose inventories requests may set."""
    pid = existing_id(tables, uuid)
    host = tables.hosts.get(pid)
    if host is not None and host.reports_inventories:
        raise rules.reported_by_host(uuid, host.name)
    return pid


def existing_id(tables: Tables, uuid: str) -> int:
    """Return the id of a provider.  :raises NotFound:"""
    pid = tables.with_uuid(uuid)
    if pid is None:
        raise exceptions.NotFound(kind='provider', name=uuid)
    return pid


def check_is_no_host(tables: Tables, uuid: str) -> int:
    """Return the id of a provider that is no host."""
    pid = existing_id(tables, uuid)
    if pid in tables.hosts:
        raise rules.provider_is_host(uuid, tables.hosts[pid].name)
    return pid


def touch_tree(tables: Tables, pid: int) -> None:
    """Touch its root and its parent, too."""
    for provider_id in (tables.root(pid), tables.places[pid].parent):
        if provider_id is not None and provider_id != pid:
            tables.touch(provider_id)
    tables.write()


def provider_of(tables: Tables, pid: int) -> ResourceProvider:
    """Return a provider as requests read it."""
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


def change(tables: Tables, now: float, pid: int, **values: object) -> None:
    """Note a change of a provider, with new values of its place."""
    place = tables.places[pid]
    tables.places[pid] = _replace(place, changed_at=now, **values)
    host = tables.hosts.get(pid)
    if host is None:
        tables.pools[pid].version += 1
        tables.append_change('provider', pid)
    else:
        tables.hosts[pid] = _replace(host, aggregates=tables.aggregates_of(host))
        tables.touch(pid)
    tables.write()


def known_classes(tables: Tables) -> set[str]:
    """Return the names of classes beyond the standard ones."""
    return tables.classes.union(*(row.inventories for row in all_providers(tables)))


def known_traits(tables: Tables) -> set[str]:
    """Return the names of all traits."""
    return associated_traits(tables).union(STANDARD_TRAITS, tables.traits)


def associated_traits(tables: Tables) -> set[str]:
    """Return the traits that a provider has."""
    return {name for pid in tables.places for name in traits_of(tables, pid)}


def traits_of(tables: Tables, pid: int) -> frozenset[str]:
    """Return the traits of a provider."""
    host = tables.hosts.get(pid)
    return tables.places[pid].traits if host is None else frozenset(host.facts.traits)


def all_providers(tables: Tables) -> list[ResourceProvider]:
    """Return all providers."""
    return [provider_of(tables, pid) for pid in tables.places]


def check_traits(tables: Tables, names: Iterable[str]) -> None:
    """Check that traits exist.  :raises NotFound:"""
    rules.check_known('trait', names, known_traits(tables))


def check_classes(tables: Tables, names: Iterable[str]) -> None:
    """Check that resource classes exist.  :raises NotFound:"""
    class_names = known_classes(tables) | resource_classes.STANDARD_CLASSES
    rules.check_known('resource class', names, class_names)


def parent_of(tables: Tables, uuid: str) -> int:
    """Return the id of the provider that is to be a parent."""
    pid = tables.with_uuid(uuid)
    if pid is None:
        raise rules.unknown_parent(uuid)
    return pid
