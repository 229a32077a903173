# SPDX-License-Identifier: Apache-2.0
"""Pools that hosts share, and what is nested below hosts, as host tables know them.

A provider that is no host shares what it has with all hosts in its aggregates once it has the
trait that says so.  One without that trait, or in no aggregate, is no pool to anybody.  What is
nested below a host is that host's own.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.messages.resource_classes import CORE_CLASSES, Inventory
from gantt.core.resources.host import HostKind, HostRow
from gantt.core.resources.shared_pool import SHARES, PoolUsage, SharedPool
from gantt.db.engine import session
from gantt.db.hosts import providers, rows
from gantt.db.hosts.inventories import inventories_of
from gantt.db.schema import models

_p = models.providers
_a = models.provider_aggregates
_t = models.provider_traits
_m = models.aggregate_members
_ids: Any = sa.bindparam('ids', expanding=True)

_root = _p.alias('root')
_of_host = sa.case((_root.c.kind == HostKind.HOST.value, _root.c.id), else_=0)
_shares = (
    sa.select(_t.c.provider_id)
    .join(models.traits, models.traits.c.id == _t.c.trait_id)
    .where(models.traits.c.name == SHARES)
)
_POOLS = (
    sa.select(
        *[_p.c[name] for name in rows.COUNTERS],
        *(_p.c.uuid, _p.c.own_name, _p.c.parent_id),
        _of_host.label('of_host'),
    )
    .select_from(_p.outerjoin(_root, _root.c.id == _p.c.root_id))
    .where(
        sa.not_(providers.is_host),
        sa.or_(_root.c.kind == HostKind.HOST.value, _p.c.id.in_(_shares)),
    )
    .order_by(_p.c.id)
)
_TRAITS = (
    sa.select(_t.c.provider_id, models.traits.c.name)
    .join(models.traits, models.traits.c.id == _t.c.trait_id)
    .order_by(_t.c.provider_id, models.traits.c.name)
)
TRAITS_OF = _TRAITS.where(_t.c.provider_id.in_(_ids))
_AGGREGATES = sa.select(_a.c.provider_id, _a.c.uuid).order_by(_a.c.provider_id, _a.c.uuid)
ALL, POOLS_OF = _POOLS, _POOLS.where(_p.c.id.in_(_ids))
AGGREGATES_OF = _AGGREGATES.where(_a.c.provider_id.in_(_ids))
#: Aggregates that pools share in; of a provider that does not share there is none.
SHARED_IN = (
    sa.select(_a.c.provider_id, _a.c.uuid)
    .join(_t, _t.c.provider_id == _a.c.provider_id)
    .join(models.traits, models.traits.c.id == _t.c.trait_id)
    .where(models.traits.c.name == SHARES, _a.c.provider_id.in_(_ids))
)
LISTING = (
    sa.select(models.aggregates.c.uuid)
    .join(_m, _m.c.aggregate_id == models.aggregates.c.id)
    .where(_m.c.host == sa.bindparam('host'))
)
#: Ids in one statement.
CHUNK = 500


def load(tx: session.Tx, ids: Collection[int] | None = None) -> list[SharedPool]:
    """Pools by id: all there are, or those among these providers.

    What is read after the counters of a pool may be newer than its version: then there is news
    of it again.
    """
    if ids is None:
        return list(_pools(tx, tx.all(ALL)))
    return [pool for found in in_parts(tx, POOLS_OF, ids) for pool in _pools(tx, found)]


def shared_in(tx: session.Tx, ids: Iterable[int]) -> Iterator[tuple[int, str]]:
    """(pool, uuid) of the aggregates that these share in."""
    for found in in_parts(tx, SHARED_IN, ids):
        yield from ((pid, uuid) for pid, uuid in found)


def serving(
    tx: session.Tx,
    locked: providers.LockedProviders,
    pairs: Collection[tuple[int, int]],
    shares: Iterable[tuple[int, str]],
) -> dict[int, frozenset[int]]:
    """Pool -> those of its hosts that it serves, all of them under lock.

    :param pairs: (pool, host), of those that are asked for
    :param shares: of these pools, read behind the locks, see :func:`shared_in`
    """
    shared: dict[int, set[str]] = {}
    for pid, uuid in shares:
        shared.setdefault(pid, set()).add(uuid)
    of_host = {
        host: _aggregates_of(tx, locked.templates[host])
        for host in {host for _, host in pairs}
        if locked.is_host(host)
    }
    serves: dict[int, set[int]] = {}
    for pool, host in pairs:
        if not shared.get(pool, set()).isdisjoint(of_host.get(host, ())):
            serves.setdefault(pool, set()).add(host)
    return {pool: frozenset(hosts) for pool, hosts in serves.items()}


def _aggregates_of(tx: session.Tx, host: HostRow) -> set[str]:
    """Those that a host is in, and those that its service is in where that has another name."""
    found, service = set(host.aggregates), host.facts.hypervisor.service
    if service and service != host.name:
        found.update(row.uuid for row in tx.all(LISTING, host=service))
    return found


def in_parts(tx: session.Tx, query: Any, ids: Iterable[int]) -> Iterator[Sequence[Any]]:
    """Rows of a query by ``ids``, ascending, so many of these in a statement."""
    wanted = sorted(ids)
    for start in range(0, len(wanted), CHUNK):
        yield tx.all(query, ids=wanted[start : start + CHUNK])


def counters_of(
    tx: session.Tx, found: Collection[Any], among: Container[int] | None = None
) -> dict[int, rows.Counters]:
    """From rows of counters, with the classes that are not hot; those of ``among``, or of all."""
    counters = {row.id: rows.counters(row) for row in found}
    cold = [pid for pid, of in counters.items() if of.cold and (among is None or pid in among)]
    for others in in_parts(tx, providers.OTHERS_OF, cold):
        for pid, name, cap, used, foreign in others:
            counters[pid].others[name] = [cap, used, foreign]
    return counters


def _pools(tx: session.Tx, found: Collection[Any]) -> Iterable[SharedPool]:
    aggregates: dict[int, list[str]] = {}
    for members in in_parts(tx, AGGREGATES_OF, (row.id for row in found)):
        for pid, uuid in members:
            aggregates.setdefault(pid, []).append(uuid)
    wanted = [row.id for row in found if row.of_host or row.id in aggregates]
    traits: dict[int, list[str]] = {}
    for having in in_parts(tx, TRAITS_OF, wanted):
        for pid, name in having:
            traits.setdefault(pid, []).append(name)
    counters = counters_of(tx, found, set(wanted))
    inventories: dict[int, dict[str, Inventory]] = {}
    for start in range(0, len(wanted), CHUNK):
        inventories |= inventories_of(tx, wanted[start : start + CHUNK])
    for row in found:
        if row.of_host or row.id in aggregates:
            used, foreign = usage(counters[row.id])
            yield SharedPool(
                id=row.id,
                uuid=row.uuid,
                name=row.own_name,
                version=row.version,
                inventories=inventories[row.id],
                used=used,
                foreign=foreign,
                aggregates=aggregates.get(row.id, []),
                root=row.of_host,
                parent=row.parent_id if row.of_host else 0,
                traits=traits.get(row.id, []),
            )


def usages(locked: providers.LockedProviders, written: Collection[int]) -> list[PoolUsage]:
    """Providers that are no hosts, as they become.

    :param written: ids of those that are written, one version up
    """
    found = []
    for pid in sorted(locked.pools):
        used, foreign = usage(locked.counters[pid])
        found.append(
            PoolUsage(
                id=pid,
                version=locked.counters[pid].version,
                is_written=pid in written,
                inventories=locked.pools[pid].inventories,
                used=used,
                foreign=foreign,
            )
        )
    return found


def usage(row: rows.Counters) -> tuple[dict[str, int], dict[str, int]]:
    """What is used, and what is used outside of claims, by class; zeros are left out."""
    used = dict(zip(CORE_CLASSES, row.used, strict=True))
    foreign = dict(zip(CORE_CLASSES, row.foreign, strict=True))
    for name, (_, taken, outside) in row.others.items():
        used[name], foreign[name] = taken, outside
    return (
        {name: amount for name, amount in used.items() if amount},
        {name: amount for name, amount in foreign.items() if amount},
    )
