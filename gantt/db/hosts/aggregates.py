# SPDX-License-Identifier: Apache-2.0
"""Aggregates: named sets of hosts with metadata.

Members are kept by host name in ``aggregate_members``.  Besides, a provider has aggregates by
their uuids only, in ``provider_aggregates``: a host may be in both, see ``details``.
"""

import uuid as uuids
from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages.base import derived_id
from gantt.core.resources.host import Aggregate
from gantt.db.engine import engine, session
from gantt.db.hosts import details, providers
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models

_aggregates = models.aggregates
_aggregate_metadata = models.aggregate_metadata
_aggregate_members = models.aggregate_members
_provider_aggregates = models.provider_aggregates

SELECT_AGGREGATES = sa.select(_aggregates).order_by(_aggregates.c.id)
SELECT_METADATA = sa.select(_aggregate_metadata)
SELECT_MEMBERS = sa.select(_aggregate_members).order_by(_aggregate_members.c.host)
# Not against rows that only refer to this one, such as a new member.
LOCK_AGGREGATE = (
    sa.select(_aggregates)
    .where(_aggregates.c.name == sa.bindparam('name'))
    .with_for_update(key_share=True)
)
SELECT_HOSTS = sa.select(_aggregate_members.c.host).where(
    _aggregate_members.c.aggregate_id == sa.bindparam('id')
)
UPDATE_AGGREGATE = (
    _aggregates.update()
    .where(_aggregates.c.id == sa.bindparam('b_id'))
    .values(generation=_aggregates.c.generation + 1, uuid=sa.bindparam('uuid'))
)


def load(tx: session.Tx) -> list[Aggregate]:
    """Return all aggregates, by id."""
    metadata: dict[int, dict[str, str]] = {}
    for row in tx.all(SELECT_METADATA):
        metadata.setdefault(row.aggregate_id, {})[row.key] = row.value
    members: dict[int, list[str]] = {}
    for row in tx.all(SELECT_MEMBERS):
        members.setdefault(row.aggregate_id, []).append(row.host)
    return [
        Aggregate(
            id=row.id,
            uuid=row.uuid,
            name=row.name,
            metadata=metadata.get(row.id, {}),
            hosts=members.get(row.id, []),
            generation=row.generation,
        )
        for row in tx.all(SELECT_AGGREGATES)
    ]


def save(
    hosts: HostRecords,
    name: str,
    metadata: dict[str, str | None],
    members: list[str] | None,
    uuid: str | None,
) -> Aggregate:
    """Create or change an aggregate.

    :param metadata: merged into the stored metadata; a None value removes its key
    :param members: names of all member hosts; None: unchanged
    """
    tx = hosts.tx
    new_row = {'uuid': uuid or str(uuids.uuid4()), 'name': name}
    if uuid is not None:
        _check_uuid(tx, name, uuid)
    tx.insert_new(_aggregates, [new_row], 'name')
    row = tx.first(LOCK_AGGREGATE, name=name)
    for key, value in sorted(metadata.items()):
        tx.run(
            _aggregate_metadata.delete().where(
                _aggregate_metadata.c.aggregate_id == row.id, _aggregate_metadata.c.key == key
            )
        )
        if value is not None:
            tx.run(_aggregate_metadata.insert().values(aggregate_id=row.id, key=key, value=value))
    hosts_before = {member.host for member in tx.all(SELECT_HOSTS, id=row.id)}
    hosts_now = hosts_before if members is None else set(members)
    has_new_uuid = uuid is not None and uuid != row.uuid
    locked = _lock(hosts, hosts_before | hosts_now if has_new_uuid else hosts_before ^ hosts_now)
    _write_members(tx, row.id, hosts_before, hosts_now)
    tx.run_many(UPDATE_AGGREGATE, [{'b_id': row.id, 'uuid': uuid or row.uuid}])
    providers.announce(tx, 'aggregate', [row.id])
    _refresh_members(hosts, locked)
    return next(aggregate for aggregate in load(tx) if aggregate.id == row.id)


def _check_uuid(tx: session.Tx, name: str, uuid: str) -> None:
    other = tx.first(
        sa.select(_aggregates.c.name).where(_aggregates.c.uuid == uuid, _aggregates.c.name != name)
    )
    if other is not None:
        raise exceptions.Refused(f'aggregate {other.name!r} has the uuid {uuid} already', uuid=uuid)


def _write_members(tx: session.Tx, aggregate_id: int, before: set[str], now: set[str]) -> None:
    removed_names = sorted(before - now)
    if removed_names:
        tx.run(
            _aggregate_members.delete().where(
                _aggregate_members.c.aggregate_id == aggregate_id,
                _aggregate_members.c.host.in_(removed_names),
            )
        )
    tx.run_many(
        _aggregate_members.insert(),
        [{'aggregate_id': aggregate_id, 'host': host} for host in sorted(now - before)],
    )


def remove(hosts: HostRecords, name: str) -> None:
    """Delete an aggregate.

    :raises NotFound:
    """
    tx = hosts.tx
    row = tx.first(LOCK_AGGREGATE, name=name)
    if row is None:
        raise exceptions.NotFound(kind='aggregate', name=name)
    locked = _lock(hosts, {member.host for member in tx.all(SELECT_HOSTS, id=row.id)})
    for table in (_aggregate_metadata, _aggregate_members):
        tx.run(table.delete().where(table.c.aggregate_id == row.id))
    tx.run(_aggregates.delete().where(_aggregates.c.id == row.id))
    providers.announce(tx, 'aggregate', [row.id])
    _refresh_members(hosts, locked)


def _lock(hosts: HostRecords, names: Iterable[str]) -> providers.LockedProviders:
    """Lock hosts whose aggregates are about to change; unknown hosts are left out.

    Called before the rows are written: a process that does not know a host yet reads its details
    from them, and would take rows already written for those that its record's mark means.
    """
    host_ids = providers.ids_by_name(hosts.tx, names)
    return providers.lock(hosts.tx, hosts.memory, host_ids.values())


def _refresh_members(hosts: HostRecords, locked: providers.LockedProviders) -> None:
    """Update the stored facts of locked hosts to match the aggregates that they are members of."""
    tx = hosts.tx
    aggregates_of_host = details.aggregates_of(tx, locked.templates)
    touched = []
    for pid, template in sorted(locked.templates.items()):
        uuids_now = aggregates_of_host[pid]
        if pid in locked.counters and uuids_now != template.aggregates:
            hosts.write_facts(locked, msgspec.structs.replace(template, aggregates=uuids_now))
            locked.counters[pid].generation += 1
            touched.append(pid)
    providers.save(tx, locked, touched)


def resolve(tx: session.Tx, names_listed: Iterable[list[str]]) -> dict[str, str]:
    """Return name or uuid of reports -> uuid; an unknown name creates an aggregate."""
    stored_names = {name: engine.storable(name) for names in names_listed for name in names}
    if not stored_names:
        return {}
    uuid_by_name: dict[str, str] = {}
    for row in tx.all(SELECT_AGGREGATES):
        uuid_by_name.setdefault(row.uuid, row.uuid)
        uuid_by_name[row.name] = row.uuid
    unknown = sorted({name for name in stored_names.values() if name not in uuid_by_name})
    if unknown:
        new_rows = [{'name': name, 'uuid': derived_id('aggregate', name)} for name in unknown]
        tx.insert_new(_aggregates, new_rows, 'name')
        new_aggregates = [row for row in tx.all(SELECT_AGGREGATES) if row.name in set(unknown)]
        uuid_by_name.update((row.name, row.uuid) for row in new_aggregates)
        providers.announce(tx, 'aggregate', [row.id for row in new_aggregates])
    return {name: uuid_by_name[stored_name] for name, stored_name in stored_names.items()}


def join(tx: session.Tx, host: str, uuids_now: list[str], provider_id: int) -> None:
    """Make ``host`` a member, by its name, of exactly the aggregates ``uuids_now``."""
    tx.run(_provider_aggregates.delete().where(_provider_aggregates.c.provider_id == provider_id))
    ids = {row.uuid: row.id for row in tx.all(SELECT_AGGREGATES)}
    aggregate_ids = {ids[uuid] for uuid in uuids_now if uuid in ids}
    query = sa.select(_aggregate_members.c.aggregate_id).where(_aggregate_members.c.host == host)
    ids_before = {row.aggregate_id for row in tx.all(query)}
    removed_ids = sorted(ids_before - aggregate_ids)
    if removed_ids:
        tx.run(
            _aggregate_members.delete().where(
                _aggregate_members.c.host == host,
                _aggregate_members.c.aggregate_id.in_(removed_ids),
            )
        )
    tx.run_many(
        _aggregate_members.insert(),
        [
            {'aggregate_id': aggregate_id, 'host': host}
            for aggregate_id in sorted(aggregate_ids - ids_before)
        ],
    )
    providers.announce(tx, 'aggregate', sorted(ids_before ^ aggregate_ids))
