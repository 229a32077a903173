# SPDX-License-Identifier: Apache-2.0
"""A pool that all hosts of a site share, for requests that take from it and others that do not."""

from bench import callers
from gantt.core.messages.base import derived_id
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import SHARES_TRAIT
from gantt.db.hosts import providers
from gantt.db.schema import models
from gantt.stores import stores_for_url

SHARED = 'CUSTOM_SHARED'
AGGREGATE = 'of the pool'
#: Larger than any run takes.
UNITS = 1_000_000_000
#: Resources of a request that takes from the pool as well.
TAKES = {**callers.TAKES, SHARED: 1}


def add_pool(database: str) -> None:
    """Add one pool for all hosts that are there; schedulers learn of it by their feed."""
    store = stores_for_url(database)
    try:
        store.vocabulary.declare_class(SHARED)
        with store.database.engine.connect() as connection:
            host_rows = connection.execute(
                models.providers.select()
                .where(providers.is_host)
                .with_only_columns(models.providers.c.name)
            )
            names = [row.name for row in host_rows]
        store.declarations.save_aggregate(AGGREGATE, {}, names)
        uuids = {
            aggregate.name: aggregate.uuid for aggregate in store.feed.load_everything().aggregates
        }
        pool = store.providers.create_provider(
            derived_id('bench', 'pool'), inventories={SHARED: Inventory(total=UNITS)}
        )
        store.providers.save_provider_traits(pool.uuid, [SHARES_TRAIT])
        store.providers.save_provider_aggregates(pool.uuid, [uuids[AGGREGATE]])
    finally:
        store.database.close()
