# SPDX-License-Identifier: Apache-2.0
"""Providers below hosts, in stores of any kind."""

from collections.abc import Sequence
from typing import Any

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import ResourceProvider


def below(
    store: Any, name: str, parent: str, traits: Sequence[str] = (), **inventories: int | Inventory
) -> ResourceProvider:
    """Create a provider of these classes below another one, which is identified by its uuid."""
    provider: ResourceProvider = store.providers.create_provider(
        name,
        parent=parent,
        inventories={
            name: of if isinstance(of, Inventory) else Inventory(total=of)
            for name, of in inventories.items()
        },
    )
    for trait in traits:
        store.vocabulary.create_trait(trait)
    if traits:
        store.providers.save_provider_traits(provider.uuid, list(traits))
    return provider
