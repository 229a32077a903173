# SPDX-License-Identifier: Apache-2.0
"""Inventories of providers, and facts of providers that are no hosts."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostKind
from gantt.db.engine import session
from gantt.db.schema import models

_p = models.providers
_i = models.inventories
_rc = models.resource_classes
_ids: Any = sa.bindparam('ids', expanding=True)
#: Usage without an inventory has a row with a total of 0.
_inventory = (_rc.c.name, *(_i.c[name] for name in Inventory.__struct_fields__))
INVENTORIES_OF = (
    sa.select(_i.c.provider_id, *_inventory)
    .join(_rc, _rc.c.id == _i.c.class_id)
    .where(_i.c.provider_id.in_(_ids), _i.c.total > 0)
    .order_by(_rc.c.name)
)
#: Providers that are no hosts, a row for each inventory, or one without any.
NO_HOSTS = (
    sa.select(_p.c.id, _p.c.own_name, *_inventory)
    .select_from(
        _p.outerjoin(_i, sa.and_(_i.c.provider_id == _p.c.id, _i.c.total > 0)).outerjoin(
            _rc, _rc.c.id == _i.c.class_id
        )
    )
    .where(_p.c.id.in_(_ids), _p.c.kind != HostKind.HOST.value)
    .order_by(_rc.c.name)
)


class PoolFacts(NamedTuple):
    """Name and inventories of a provider that is no host."""

    name: str
    inventories: dict[str, Inventory]


class ReadPools(NamedTuple):
    """Providers that are no hosts, as read behind the lock of their rows.

    :ivar facts: by id
    :ivar others: id -> class -> [cap, used, foreign], of the classes that are not hot
    """

    facts: dict[int, PoolFacts]
    others: dict[int, dict[str, list[int]]]


NONE_READ = ReadPools({}, {})


def pools_of(tx: session.Tx, ids: Sequence[int]) -> dict[int, PoolFacts]:
    """Return the facts of the providers that are no hosts."""
    pools: dict[int, PoolFacts] = {}
    for row in tx.all(NO_HOSTS, ids=ids):
        pool = pools.setdefault(row.id, PoolFacts(row.own_name, {}))
        if row.name is not None:
            pool.inventories[row.name] = _inventory_of(row)
    return pools


def inventories_of(tx: session.Tx, ids: Collection[int]) -> dict[int, dict[str, Inventory]]:
    """Return provider id -> class -> its inventory; every provider is a key."""
    inventories: dict[int, dict[str, Inventory]] = {pid: {} for pid in ids}
    for row in tx.all(INVENTORIES_OF, ids=sorted(ids)) if ids else ():
        inventories[row.provider_id][row.name] = _inventory_of(row)
    return inventories


def _inventory_of(row: Any) -> Inventory:
    return Inventory(**{name: getattr(row, name) for name in Inventory.__struct_fields__})
