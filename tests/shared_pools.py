# SPDX-License-Identifier: Apache-2.0
"""Pools that hosts share, in stores of any kind: a provider, its trait, its aggregates."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import ResourceProvider
from gantt.core.resources.shared_pool import SHARES
from gantt.db.hosts import providers
from gantt.db.schema import models


def a_shared_pool(
    store: Any, name: str, aggregates: Sequence[str], **inventories: int | Inventory
) -> ResourceProvider:
    """A pool of these classes that serves the hosts in aggregates."""
    made = store.create_provider(
        name,
        inventories={
            name: of if isinstance(of, Inventory) else Inventory(total=of)
            for name, of in inventories.items()
        },
    )
    share(store, made, aggregates)
    return made


def share(store: Any, provider: ResourceProvider, aggregates: Sequence[str] | None) -> None:
    """Let a provider be shared within exactly these aggregates; None: not at all."""
    if hasattr(store, '_tables'):
        _share_in_memory(store._tables, provider.id, aggregates)
        return

    def work(tx: Any) -> None:
        locked = providers.lock(tx, store.memory, [provider.id])
        for table in (models.provider_traits, models.provider_aggregates):
            tx.run(table.delete().where(table.c.provider_id == provider.id))
        if aggregates is not None:
            trait = providers.Ids(tx, models.traits).of([SHARES])[SHARES]
            tx.run(models.provider_traits.insert().values(provider_id=provider.id, trait_id=trait))
        for uuid in aggregates or ():
            row = {'provider_id': provider.id, 'uuid': uuid}
            tx.run(sa.insert(models.provider_aggregates).values(row))
        providers.save(tx, locked, [provider.id])

    store.database.write(work)


def _share_in_memory(tables: Any, pool: int, aggregates: Sequence[str] | None) -> None:
    tables.pools[pool].version += 1
    if aggregates is None:
        tables.sharing.pop(pool, None)
    else:
        tables.sharing[pool] = sorted(aggregates)
    tables.append_change('provider', pool)
