# SPDX-License-Identifier: Apache-2.0
"""Pools that hosts share, in stores of any kind: a provider, its trait, its aggregates."""

from collections.abc import Sequence
from typing import Any

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import SHARES_TRAIT, ResourceProvider


def a_shared_pool(
    store: Any, name: str, aggregates: Sequence[str], **inventories: int | Inventory
) -> ResourceProvider:
    """Create a pool of these classes that serves the hosts in aggregates."""
    pool = store.providers.create_provider(
        name,
        inventories={
            name: of if isinstance(of, Inventory) else Inventory(total=of)
            for name, of in inventories.items()
        },
    )
    share(store, pool, aggregates)
    return pool


def share(store: Any, provider: ResourceProvider, aggregates: Sequence[str] | None) -> None:
    """Let a provider be shared within exactly these aggregates; None: not at all."""
    traits = [SHARES_TRAIT] if aggregates is not None else []
    store.providers.save_provider_traits(provider.uuid, traits)
    store.providers.save_provider_aggregates(provider.uuid, list(aggregates or ()))
