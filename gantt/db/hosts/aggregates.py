# SPDX-License-Identifier: Apache-2.0
"""Aggregates: named sets of hosts with metadata.

Members are kept by host name in ``aggregate_members``.  Beside these a provider has
aggregates by their uuids alone, in ``provider_aggregates``: a host is in both, see ``details``.
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

_a = models.aggregates
_d = models.aggregate_metadata
_m = models.aggregate_members
_g = models.provider_aggregates

READ = sa.select(_a).order_by(_a.c.id)
METADATA = sa.select(_d)
MEMBERS = sa.select(_m).order_by(_m.c.host)
# Not against those who only refer to the row, as a new member of it does.
LOCK = sa.select(_a).where(_a.c.name == sa.bindparam('name')).with_for_update(key_share=True)
HOSTS_OF = sa.select(_m.c.host).where(_m.c.aggregate_id == sa.bindparam('id'))
CHANGED = (
    _a.update()
    .where(_a.c.id == sa.bindparam('b_id'))
    .values(generation=_a.c.generation + 1, uuid=sa.bindparam('uuid'))
)


def load(tx: session.Tx) -> list[Aggregate]:
    """All aggregates, by id."""
    metadata: dict[int, dict[str, str]] = {}
    for row in tx.all(METADATA):
        metadata.setdefault(row.aggregate_id, {})[row.key] = row.value
    members: dict[int, list[str]] = {}
    for row in tx.all(MEMBERS):
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
        for row in tx.all(READ)
    ]


def save(
    hosts: HostRecords,
    name: str,
    metadata: dict[str, str | None],
    members: list[str] | None,
    uuid: str | None,
) -> Aggregate:
    """Create or change an aggregate.

    :param metadata: merged into what is there; a None value removes its key
    :param members: names of hosts, whole; None: as they are
    """
    tx = hosts.tx
    made = {'uuid': uuid or str(uuids.uuid4()), 'name': name}
    if uuid is not None:
        _check_uuid(tx, name, uuid)
    tx.insert_new(_a, [made], 'name')
    row = tx.first(LOCK, name=name)
    for key, value in sorted(metadata.items()):
        tx.run(_d.delete().where(_d.c.aggregate_id == row.id, _d.c.key == key))
        if value is not None:
            tx.run(_d.insert().values(aggregate_id=row.id, key=key, value=value))
    before = {found.host for found in tx.all(HOSTS_OF, id=row.id)}
    now = before if members is None else set(members)
    has_new_uuid = uuid is not None and uuid != row.uuid
    locked = _lock(hosts, before | now if has_new_uuid else before ^ now)
    _write_members(tx, row.id, before, now)
    tx.many(CHANGED, [{'b_id': row.id, 'uuid': uuid or row.uuid}])
    providers.announce(tx, 'aggregate', [row.id])
    _follow(hosts, locked)
    return next(one for one in load(tx) if one.id == row.id)


def _check_uuid(tx: session.Tx, name: str, uuid: str) -> None:
    other = tx.first(sa.select(_a.c.name).where(_a.c.uuid == uuid, _a.c.name != name))
    if other is not None:
        raise exceptions.Refused(f'aggregate {other.name!r} has the uuid {uuid} already', uuid=uuid)


def _write_members(tx: session.Tx, aggregate_id: int, before: set[str], now: set[str]) -> None:
    gone = sorted(before - now)
    if gone:
        tx.run(_m.delete().where(_m.c.aggregate_id == aggregate_id, _m.c.host.in_(gone)))
    tx.many(
        _m.insert(), [{'aggregate_id': aggregate_id, 'host': host} for host in sorted(now - before)]
    )


def remove(hosts: HostRecords, name: str) -> None:
    """Forget an aggregate.

    :raises NotFound:
    """
    tx = hosts.tx
    row = tx.first(LOCK, name=name)
    if row is None:
        raise exceptions.NotFound(kind='aggregate', name=name)
    locked = _lock(hosts, {found.host for found in tx.all(HOSTS_OF, id=row.id)})
    for table in (_d, _m):
        tx.run(table.delete().where(table.c.aggregate_id == row.id))
    tx.run(_a.delete().where(_a.c.id == row.id))
    providers.announce(tx, 'aggregate', [row.id])
    _follow(hosts, locked)


def _lock(hosts: HostRecords, names: Iterable[str]) -> providers.LockedProviders:
    """Lock hosts whose aggregates are about to change; those that are not known are left out.

    It comes before the rows are written: a process that knows nothing of a host yet reads what it
    has from them, and what is there already would pass for what its record says.
    """
    known = providers.ids_by_name(hosts.tx, names)
    return providers.lock(hosts.tx, hosts.memory, known.values())


def _follow(hosts: HostRecords, locked: providers.LockedProviders) -> None:
    """Bring what is known of these hosts in line with the members."""
    tx = hosts.tx
    of = details.aggregates_of(tx, locked.templates)
    touched = []
    for pid, template in sorted(locked.templates.items()):
        uuids_now = of[pid]
        if pid in locked.counters and uuids_now != template.aggregates:
            hosts.write_facts(locked, msgspec.structs.replace(template, aggregates=uuids_now))
            locked.counters[pid].generation += 1
            touched.append(pid)
    providers.save(tx, locked, touched)


def resolve(tx: session.Tx, names_listed: Iterable[list[str]]) -> dict[str, str]:
    """Names and uuids as reporters say them -> uuid; a name never heard makes an aggregate."""
    stored = {one: engine.storable(one) for names in names_listed for one in names}
    if not stored:
        return {}
    found: dict[str, str] = {}
    for row in tx.all(READ):
        found.setdefault(row.uuid, row.uuid)
        found[row.name] = row.uuid
    unknown = sorted({name for name in stored.values() if name not in found})
    if unknown:
        made = [{'name': name, 'uuid': derived_id('aggregate', name)} for name in unknown]
        tx.insert_new(_a, made, 'name')
        new = [row for row in tx.all(READ) if row.name in set(unknown)]
        found.update((row.name, row.uuid) for row in new)
        providers.announce(tx, 'aggregate', [row.id for row in new])
    return {name: found[stored_name] for name, stored_name in stored.items()}


def join(tx: session.Tx, host: str, uuids_now: list[str], provider_id: int) -> None:
    """Make ``host`` a member of exactly these aggregates; it is in none by its uuid alone."""
    tx.run(_g.delete().where(_g.c.provider_id == provider_id))
    ids = {row.uuid: row.id for row in tx.all(READ)}
    wanted = {ids[uuid] for uuid in uuids_now if uuid in ids}
    query = sa.select(_m.c.aggregate_id).where(_m.c.host == host)
    before = {row.aggregate_id for row in tx.all(query)}
    gone = sorted(before - wanted)
    if gone:
        tx.run(_m.delete().where(_m.c.host == host, _m.c.aggregate_id.in_(gone)))
    tx.many(_m.insert(), [{'aggregate_id': one, 'host': host} for one in sorted(wanted - before)])
    providers.announce(tx, 'aggregate', sorted(before ^ wanted))
