# SPDX-License-Identifier: Apache-2.0
"""Pools that hosts share, and providers nested below hosts, as host tables know them.

A provider that is no host shares its inventories with all hosts in its aggregates if it has the
trait of sharing.  One without that trait, or in no aggregate, is no pool of any host.  A provider
nested below a host belongs to that host only.
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
        _p.c.uuid,
        _p.c.own_name,
        _p.c.parent_id,
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
#: Aggregates that pools share in; none for a provider that does not share.
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
    """Return pools by id: all, or those among these providers.

    Details read after the counters of a pool may be newer than its version: then the feed has
    another entry of it.
    """
    if ids is None:
        return list(_pools(tx, tx.all(ALL)))
    return [pool for pool_rows in in_parts(tx, POOLS_OF, ids) for pool in _pools(tx, pool_rows)]


def shared_in(tx: session.Tx, ids: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield (pool, uuid) of the aggregates that these pools share in."""
    for sharing_rows in in_parts(tx, SHARED_IN, ids):
        yield from ((pid, uuid) for pid, uuid in sharing_rows)


def serving(
    tx: session.Tx,
    locked: providers.LockedProviders,
    pairs: Collection[tuple[int, int]],
    shares: Iterable[tuple[int, str]],
) -> dict[int, frozenset[int]]:
    """Return pool -> the hosts of the pairs that it serves, all of them under lock.

    :param pairs: the (pool, host) pairs to check
    :param shares: aggregates of these pools, read behind the locks, see :func:`shared_in`
    """
    shared: dict[int, set[str]] = {}
    for pid, uuid in shares:
        shared.setdefault(pid, set()).add(uuid)
    aggregates_of_host = {
        host: _aggregates_of(tx, locked.templates[host])
        for host in {host for _, host in pairs}
        if locked.is_host(host)
    }
    serves: dict[int, set[int]] = {}
    for pool, host in pairs:
        if not shared.get(pool, set()).isdisjoint(aggregates_of_host.get(host, ())):
            serves.setdefault(pool, set()).add(host)
    return {pool: frozenset(hosts) for pool, hosts in serves.items()}


def _aggregates_of(tx: session.Tx, host: HostRow) -> set[str]:
    """Return the aggregates of a host, and of its service where that has another name."""
    uuids, service = set(host.aggregates), host.facts.hypervisor.service
    if service and service != host.name:
        uuids.update(row.uuid for row in tx.all(LISTING, host=service))
    return uuids


def in_parts(tx: session.Tx, query: Any, ids: Iterable[int]) -> Iterator[Sequence[Any]]:
    """Yield rows of a query by ``ids``, ascending, :data:`CHUNK` ids per statement."""
    sorted_ids = sorted(ids)
    for start in range(0, len(sorted_ids), CHUNK):
        yield tx.all(query, ids=sorted_ids[start : start + CHUNK])


def counters_of(
    tx: session.Tx, found: Collection[Any], among: Container[int] | None = None
) -> dict[int, rows.Counters]:
    """Return counters from their rows, with the classes that are not hot: of ``among``, or all."""
    counters = {row.id: rows.counters(row) for row in found}
    sparse_ids = [
        pid
        for pid, row_counters in counters.items()
        if row_counters.sparse_classes and (among is None or pid in among)
    ]
    for others in in_parts(tx, providers.OTHERS_OF, sparse_ids):
        for pid, name, cap, used, foreign in others:
            counters[pid].others[name] = [cap, used, foreign]
    return counters


def _pools(tx: session.Tx, found: Collection[Any]) -> Iterable[SharedPool]:
    aggregates: dict[int, list[str]] = {}
    for members in in_parts(tx, AGGREGATES_OF, (row.id for row in found)):
        for pid, uuid in members:
            aggregates.setdefault(pid, []).append(uuid)
    pool_ids = [row.id for row in found if row.of_host or row.id in aggregates]
    traits: dict[int, list[str]] = {}
    for trait_rows in in_parts(tx, TRAITS_OF, pool_ids):
        for pid, name in trait_rows:
            traits.setdefault(pid, []).append(name)
    counters = counters_of(tx, found, set(pool_ids))
    inventories: dict[int, dict[str, Inventory]] = {}
    for start in range(0, len(pool_ids), CHUNK):
        inventories |= inventories_of(tx, pool_ids[start : start + CHUNK])
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
    """Return the usage of providers that are no hosts, as they become.

    :param written: ids of those that are written, one version up
    """
    pool_usages = []
    for pid in sorted(locked.pools):
        used, foreign = usage(locked.counters[pid])
        pool_usages.append(
            PoolUsage(
                id=pid,
                version=locked.counters[pid].version,
                is_written=pid in written,
                inventories=locked.pools[pid].inventories,
                used=used,
                foreign=foreign,
            )
        )
    return pool_usages


def usage(row: rows.Counters) -> tuple[dict[str, int], dict[str, int]]:
    """Return the usage by claims, and outside of claims, by class; zeros are left out."""
    used = dict(zip(CORE_CLASSES, row.used, strict=True))
    foreign = dict(zip(CORE_CLASSES, row.foreign, strict=True))
    for name, (_, claimed, unclaimed) in row.others.items():
        used[name], foreign[name] = claimed, unclaimed
    return (
        {name: amount for name, amount in used.items() if amount},
        {name: amount for name, amount in foreign.items() if amount},
    )
