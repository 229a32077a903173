# SPDX-License-Identifier: Apache-2.0
"""Gantt's own database as a side, through the stores.

Hosts that have registered keep what they report of themselves, and claims that schedulers and
hosts have created stay theirs: for a consumer with such claims, only allocations on other
providers are taken over, see ``merged``.
"""

import contextlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.request import Lifecycle
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import ProviderFilter, ProviderRecord, ResourceProvider
from gantt.placement_api.ports import ApiStores
from gantt.placement_api.transfer.side import (
    CUSTOM_PREFIX,
    PLACEHOLDER_OWNER,
    UNKNOWN_TYPE,
    Amounts,
    ConsumerRecord,
    ProviderContent,
    ProviderOutline,
    SavedConsumer,
    standardized,
)


class TreeRoot(NamedTuple):
    """Root of a provider's tree."""

    uuid: str
    is_host: bool


def merged(own: Amounts, other: Amounts, roots: Mapping[str, TreeRoot]) -> tuple[Amounts, str]:
    """Merge allocations for a consumer that has claims of schedulers or hosts here.

    Its own allocations stay.  Added are amounts on other providers, in the trees of the hosts
    that it has claims on and in trees that are no host's: it is not claimed on a second host.

    :param roots: roots of all providers that are named
    :returns: the allocations that it is to have, and why they differ from elsewhere, or ''
    """
    hosts = {roots[provider_uuid].uuid for provider_uuid in own if roots[provider_uuid].is_host}
    allocations = {provider: dict(own_amounts) for provider, own_amounts in own.items()}
    skipped: list[str] = []
    for provider, amounts in sorted(other.items()):
        if provider in own:
            if own[provider] != amounts:
                skipped.append(f'{amounts} on {provider}, where it has {own[provider]}')
        elif roots[provider].is_host and hosts and roots[provider].uuid not in hosts:
            skipped.append(f'{amounts} on {provider}, as it is claimed on another host')
        else:
            allocations[provider] = dict(amounts)
    problem = f'claimed here already, so not taken over: {"; ".join(skipped)}' if skipped else ''
    return allocations, problem


class OwnSide:
    """Gantt as one of the two sides that are compared or copied; see ``PlacementSide``."""

    name = 'Gantt'

    def __init__(self, stores: ApiStores) -> None:
        self._vocabulary = stores.vocabulary
        self._providers = stores.providers
        self._allocations = stores.allocations
        self._claims = stores.claims

    # -- read ----------------------------------------------------------------------------
    def classes(self) -> frozenset[str]:
        classes = self._vocabulary.resource_classes()
        return frozenset(
            resource_class.name
            for resource_class in classes
            if resource_class.name.startswith(CUSTOM_PREFIX)
        )

    def traits(self) -> frozenset[str]:
        return frozenset(trait.name for trait in self._vocabulary.traits(prefix=CUSTOM_PREFIX))

    def outlines(self) -> dict[str, ProviderOutline]:
        return {
            provider.uuid: _outline(provider)
            for provider in self._providers.find_providers(ProviderFilter())
        }

    def content(self, uuid: str) -> ProviderContent | None:
        provider = self._providers.load_provider(uuid)
        traits = self._providers.load_provider_traits(uuid)
        aggregates = self._providers.load_provider_aggregates(uuid)
        if provider is None or traits is None or aggregates is None:
            return None
        return ProviderContent(
            generation=min(provider.generation, traits.generation, aggregates.generation),
            inventories={
                name: standardized(entry)
                for name, entry in provider.inventories.items()
                if entry.total > 0
            },
            traits=frozenset(entry.name for entry in traits.traits),
            aggregates=frozenset(aggregates.aggregates),
        )

    def uses(self, uuid: str) -> dict[str, tuple[int, dict[str, int]]]:
        provider_allocations = self._allocations.provider_allocations(uuid)
        if provider_allocations is None:
            return {}
        return {
            consumer: (provider_allocations.generations.get(consumer, 0), amounts)
            for consumer, amounts in provider_allocations.allocations.items()
        }

    def consumer(self, uuid: str) -> ConsumerRecord | None:
        allocations = self._allocations.load_allocations(uuid)
        if allocations is None or not allocations.allocations:
            return None
        return ConsumerRecord(
            generation=allocations.generation,
            project_id=allocations.project_id or PLACEHOLDER_OWNER,
            user_id=allocations.user_id or PLACEHOLDER_OWNER,
            consumer_type=allocations.consumer_type,
            allocations=allocations.allocations,
        )

    # -- write ---------------------------------------------------------------------------
    def create_class(self, name: str) -> None:
        self._vocabulary.create_class(name)

    def create_trait(self, name: str) -> None:
        self._vocabulary.create_trait(name)

    def create_provider(self, outline: ProviderOutline) -> ProviderOutline:
        provider = self._providers.create_provider(
            outline.name, uuid=outline.uuid, parent=outline.parent
        )
        return _outline(provider)

    def update_provider(self, outline: ProviderOutline) -> None:
        self._providers.update_provider(outline.uuid, name=outline.name, parent=outline.parent)

    def save_inventories(
        self, uuid: str, inventories: Mapping[str, Inventory], generation: int
    ) -> int:
        exact = dict(inventories)
        return self._providers.change_inventories(uuid, lambda now: exact, generation).generation

    def save_traits(self, uuid: str, traits: Collection[str], generation: int) -> int:
        return self._providers.save_provider_traits(uuid, traits, generation).generation

    def save_aggregates(self, uuid: str, aggregates: Collection[str], generation: int) -> int:
        return self._providers.save_provider_aggregates(uuid, aggregates, generation).generation

    def save_consumer(
        self, uuid: str, record: ConsumerRecord, generation: int | None
    ) -> SavedConsumer:
        """Write a consumer's allocations, merged with claims that it has here.

        :raises Refused: the consumer was changed since it was read, or a provider lacks the amounts
        """
        allocations, problem, owned = record.allocations, '', None
        if generation is not None and not self._is_free(uuid):
            owned = self._allocations.load_allocations(uuid)
        if owned is not None:
            generation = owned.generation
            roots = self._roots({*owned.allocations, *record.allocations})
            allocations, problem = merged(owned.allocations, record.allocations, roots)
            if allocations == owned.allocations:
                project, user = (
                    owner or PLACEHOLDER_OWNER for owner in (owned.project_id, owned.user_id)
                )
                return SavedConsumer(
                    False, problem or f'claimed here already, for project {project}, user {user}'
                )
            record = msgspec.structs.replace(
                record,
                project_id=owned.project_id or record.project_id,
                user_id=owned.user_id or record.user_id,
            )
        has_type = record.consumer_type != UNKNOWN_TYPE
        request = WantedAllocations(
            consumer=uuid,
            allocations=allocations,
            project_id=record.project_id,
            user_id=record.user_id,
            consumer_type=record.consumer_type if has_type else None,
            generation=generation,
        )
        self._allocations.write_allocations([request])
        return SavedConsumer(True, problem)

    def _is_free(self, consumer: str) -> bool:
        """Return whether all of a consumer's claims were written as allocations."""
        claims = self._claims.live_claims_of([consumer])
        return all(claim.lifecycle is Lifecycle.API for claim in claims)

    def _roots(self, uuids: Collection[str]) -> dict[str, TreeRoot]:
        """Return the roots of providers.

        :raises NotFound: a provider does not exist
        """
        roots: dict[str, TreeRoot] = {}
        for uuid in sorted(uuids):
            provider = self._providers.load_provider(uuid)
            root = provider and self._providers.load_provider(provider.root)
            if root is None:
                raise exceptions.NotFound(kind='provider', name=uuid)
            roots[uuid] = TreeRoot(root.uuid, root.host is not None)
        return roots

    def delete_consumer(self, uuid: str) -> None:
        """Delete a consumer's allocations.

        :raises Refused: a scheduler or a host has claimed for it
        """
        if not self._is_free(uuid):
            raise exceptions.Refused(
                f'consumer {uuid} has claims that a scheduler or a host has made, which end them'
            )
        # Another client may have deleted it already.
        with contextlib.suppress(exceptions.NotFound):
            self._allocations.delete_allocations(uuid)

    def delete_provider(self, uuid: str) -> None:
        self._providers.delete_provider(uuid)

    def delete_class(self, name: str) -> None:
        self._vocabulary.delete_class(name)

    def delete_trait(self, name: str) -> None:
        self._vocabulary.delete_trait(name)


def _outline(provider: ProviderRecord | ResourceProvider) -> ProviderOutline:
    return ProviderOutline(
        uuid=provider.uuid,
        name=provider.name,
        generation=provider.generation,
        parent=provider.parent,
    )
