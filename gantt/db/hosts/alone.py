# SPDX-License-Identifier: Apache-2.0
"""Pools that may be requested alone: providers in trees whose root is no host.

They are read as rows of a table like that of hosts.  Their claims are not part of it: a pool may
have a hundred thousand of them, and no rule needs them.
"""

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa

from gantt.core.resources.host import HostChange, HostFacts, HostKind, HostRow
from gantt.db.engine import session
from gantt.db.hosts import details, pools, providers, rows
from gantt.db.schema import models

_p = models.providers
_top = _p.alias('top')
_ids: Any = sa.bindparam('ids', expanding=True)

#: Null in ``root_id`` of a root.
ALL = (
    sa.select(
        *[_p.c[name] for name in rows.COUNTERS],
        *(_p.c[name] for name in ('uuid', 'own_name', 'parent_id')),
    )
    .join(_top, _top.c.id == sa.func.coalesce(_p.c.root_id, _p.c.id))
    .where(sa.not_(providers.is_host), _top.c.kind != HostKind.HOST.value)
    .order_by(_p.c.id)
)
ALONE_OF = ALL.where(_p.c.id.in_(_ids))


def load(tx: session.Tx, ids: Collection[int] | None = None) -> list[HostChange]:
    """Return pools by id: all, or those among these providers.

    Details read after the counters of a pool may be newer than its version: then the feed has
    another entry of it.
    """
    if ids is None:
        return list(_changes(tx, tx.all(ALL)))
    return [
        change
        for pool_rows in pools.in_parts(tx, ALONE_OF, ids)
        for change in _changes(tx, pool_rows)
    ]


def _changes(tx: session.Tx, found: Collection[Any]) -> Iterable[HostChange]:
    counters = pools.counters_of(tx, found)
    details_of_pool = details.read(tx, list(counters))
    for row in found:
        used_of, foreign_of = pools.usage(counters[row.id])
        pool_details = details_of_pool[row.id]
        yield HostChange(
            provider_id=row.id,
            row=HostRow(
                id=row.id,
                uuid=row.uuid,
                name=row.own_name,
                kind=HostKind.NESTED if row.parent_id else HostKind.POOL,
                parent=row.parent_id or 0,
                generation=row.generation,
                version=row.version,
                facts=HostFacts(inventories=pool_details.inventories, traits=pool_details.traits),
                used=used_of,
                foreign=foreign_of,
                aggregates=pool_details.aggregates,
            ),
        )
