# SPDX-License-Identifier: Apache-2.0
"""Pools that hosts share, as host tables know them.

A provider that is no host shares what it has with all hosts in its aggregates once it has the
trait that says so.  One without that trait, or in no aggregate, is no pool to anybody.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources.shared_pool import SHARES, PoolUsage, SharedPool
from gantt.db.engine import session
from gantt.db.hosts import providers, rows
from gantt.db.schema import models

_p = models.providers
_a = models.provider_aggregates
_t = models.provider_traits
_ids: Any = sa.bindparam('ids', expanding=True)

_POOLS = (
    sa.select(*[_p.c[name] for name in rows.COUNTERS], _p.c.uuid, _p.c.own_name)
    .join(_t, _t.c.provider_id == _p.c.id)
    .join(models.traits, models.traits.c.id == _t.c.trait_id)
    .where(models.traits.c.name == SHARES, sa.not_(providers.is_host))
    .order_by(_p.c.id)
)
_AGGREGATES = sa.select(_a.c.provider_id, _a.c.uuid).order_by(_a.c.provider_id, _a.c.uuid)
ALL, POOLS_OF = _POOLS, _POOLS.where(_p.c.id.in_(_ids))
AGGREGATES_OF = _AGGREGATES.where(_a.c.provider_id.in_(_ids))
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
    counters = counters_of(tx, found, aggregates)
    inventories = providers.inventories_of(tx, list(aggregates))
    for row in found:
        if row.id in aggregates:
            used, foreign = usage(counters[row.id])
            yield SharedPool(
                id=row.id,
                uuid=row.uuid,
                name=row.own_name,
                version=row.version,
                inventories=inventories[row.id],
                used=used,
                foreign=foreign,
                aggregates=aggregates[row.id],
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
