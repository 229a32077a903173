# SPDX-License-Identifier: Apache-2.0
"""Providers that are no hosts, as host tables know them.

A provider that is no host shares its inventories with all hosts in its aggregates if it has the
trait of sharing.  One without that trait, or in no aggregate, is no pool of any host.  A provider
nested below a host belongs to that host only.

Providers in trees whose root is no host may be requested by themselves.  They are read as rows of
a table like that of hosts.  Their claims are not part of it: a pool may have a hundred thousand of
them, and no rule needs them.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from gantt.core.resources.host import HostChange, HostFacts, HostKind, HostRow
from gantt.core.resources.provider import SHARES_TRAIT, PoolUsage, SharedPool
from gantt.db.engine import session
from gantt.db.hosts import details, providers, rows
from gantt.db.schema import models

_providers = models.providers
_provider_aggregates = models.provider_aggregates
_provider_traits = models.provider_traits
_aggregate_members = models.aggregate_members
_ids: Any = sa.bindparam('ids', expanding=True)

_top = _providers.alias('top')
#: Null in ``root_id`` of a root; the root of a broken tree may be absent.
SELECT_POOLS = (
    sa.select(
        *[
            _providers.c[name]
            for name in (*rows.COUNTER_COLUMNS, 'uuid', 'placement_name', 'parent_id')
        ],
        _top.c.id.label('top'),
        _top.c.kind.label('top_kind'),
    )
    .select_from(
        _providers.outerjoin(
            _top, _top.c.id == sa.func.coalesce(_providers.c.root_id, _providers.c.id)
        )
    )
    .where(sa.not_(providers.is_host))
    .order_by(_providers.c.id)
)
SELECT_POOLS_BY_ID = SELECT_POOLS.where(_providers.c.id.in_(_ids))
#: Aggregates that pools share in; none for a provider that does not share.
SELECT_SHARING_AGGREGATES = (
    sa.select(_provider_aggregates.c.provider_id, _provider_aggregates.c.uuid)
    .join(_provider_traits, _provider_traits.c.provider_id == _provider_aggregates.c.provider_id)
    .join(models.traits, models.traits.c.id == _provider_traits.c.trait_id)
    .where(models.traits.c.name == SHARES_TRAIT, _provider_aggregates.c.provider_id.in_(_ids))
)
SELECT_AGGREGATES_OF_HOST = (
    sa.select(models.aggregates.c.uuid)
    .join(_aggregate_members, _aggregate_members.c.aggregate_id == models.aggregates.c.id)
    .where(_aggregate_members.c.host == sa.bindparam('host'))
)


class LoadedPools(NamedTuple):
    """Providers that are no hosts, ascending by id.

    :ivar of_hosts: providers that hosts share, and providers nested below hosts
    :ivar standalone: providers that may be requested by themselves
    """

    of_hosts: list[SharedPool]
    standalone: list[HostChange]


def load(tx: session.Tx, ids: Collection[int] | None = None) -> LoadedPools:
    """Return all providers that are no hosts, or those with these ids.

    Details read after the counters of a pool may be newer than its version: then the feed has a
    further entry of the pool.
    """
    loaded = LoadedPools([], [])
    parts = (tx.all(SELECT_POOLS_BY_ID, ids=part) for part in session.in_parts(sorted(ids or ())))
    for pool_rows in [tx.all(SELECT_POOLS)] if ids is None else parts:
        counters = _counters_of(tx, pool_rows)
        details_of_pool = details.read(tx, list(counters))
        for row in pool_rows:
            pool = _pool(row, counters[row.id], details_of_pool[row.id])
            if pool is not None:
                loaded.of_hosts.append(pool)
            if row.top_kind not in (None, HostKind.HOST):
                loaded.standalone.append(
                    _standalone(row, counters[row.id], details_of_pool[row.id])
                )
    return loaded


def _pool(row: Any, counters: rows.Counters, of: details.ProviderDetails) -> SharedPool | None:
    """Return a pool of hosts; None: it is nested below none, and shares with none."""
    is_nested = row.top_kind == HostKind.HOST
    if not (is_nested or (of.aggregates and SHARES_TRAIT in of.traits)):
        return None
    used, foreign = rows.usage(counters)
    return SharedPool(
        id=row.id,
        uuid=row.uuid,
        name=row.placement_name,
        version=row.version,
        inventories=of.offered,
        used=used,
        foreign=foreign,
        aggregates=of.aggregates,
        root=row.top if is_nested else 0,
        parent=row.parent_id if is_nested else 0,
        traits=of.traits,
    )


def _standalone(row: Any, counters: rows.Counters, of: details.ProviderDetails) -> HostChange:
    used, foreign = rows.usage(counters)
    return HostChange(
        provider_id=row.id,
        row=HostRow(
            id=row.id,
            uuid=row.uuid,
            name=row.placement_name,
            kind=HostKind.NESTED if row.parent_id else HostKind.POOL,
            parent=row.parent_id or 0,
            generation=row.generation,
            version=row.version,
            facts=HostFacts(inventories=of.inventories, traits=of.traits),
            used=used,
            foreign=foreign,
            aggregates=of.aggregates,
        ),
    )


def shared_in(tx: session.Tx, ids: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield (pool, uuid) of the aggregates that these pools share in."""
    return tx.in_parts(SELECT_SHARING_AGGREGATES, ids=sorted(ids))


def serving(
    tx: session.Tx,
    locked: providers.LockedProviders,
    pairs: Collection[tuple[int, int]],
    shares: Iterable[tuple[int, str]],
) -> dict[int, frozenset[int]]:
    """Return pool -> the hosts of the pairs that it serves, all of them under lock.

    :param pairs: the (pool, host) pairs to check
    :param shares: aggregates of these pools, read under the locks, see :func:`shared_in`
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
        uuids.update(row.uuid for row in tx.all(SELECT_AGGREGATES_OF_HOST, host=service))
    return uuids


def _counters_of(tx: session.Tx, provider_rows: Collection[Any]) -> dict[int, rows.Counters]:
    """Return counters from their rows, with the non-core classes."""
    counters = {row.id: rows.counters(row) for row in provider_rows}
    sparse_ids = [pid for pid, pool_counters in counters.items() if pool_counters.sparse_classes]
    for pid, name, cap, used, foreign in tx.in_parts(
        providers.SELECT_OTHER_CLASSES_BY_ID, ids=sparse_ids
    ):
        counters[pid].others[name] = [cap, used, foreign]
    return counters


def usages(locked: providers.LockedProviders, written: Collection[int]) -> list[PoolUsage]:
    """Return the usage of locked providers that are no hosts, as it will be stored.

    :param written: ids of the providers that are written: their version is one higher
    """
    pool_usages = []
    for pid in sorted(locked.pools):
        used, foreign = rows.usage(locked.counters[pid])
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
