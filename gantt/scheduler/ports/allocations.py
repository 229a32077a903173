# SPDX-License-Identifier: Apache-2.0
"""Allocations as their writers mean them: all that a consumer has, of any providers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.allocations import AllocationWish
from gantt.core.messages.resource_classes import Inventory


class ConsumerAllocations(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations of a consumer that exists: all its live claims, together.

    :ivar generation: see :func:`gantt.core.claims.allocations.visible_generation`
    :ivar allocations: uuid of a provider -> class -> amount
    :ivar generations: of these providers
    :ivar updated_at: time of the last change of one of its claims, by the database's clock
    """

    consumer: str
    generation: int
    project_id: str | None
    user_id: str | None
    consumer_type: str
    allocations: dict[str, dict[str, int]]
    generations: dict[str, int]
    updated_at: float


class ProviderAllocations(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations of live claims from one provider.

    :ivar generation: of the provider
    :ivar allocations: consumer -> class -> amount
    :ivar generations: of these consumers
    :ivar updated_at: time of the last change of one of the claims; None: there is none
    """

    generation: int
    allocations: dict[str, dict[str, int]]
    generations: dict[str, int]
    updated_at: float | None = None


class TypeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of consumers of one type.

    :ivar consumers: their number
    :ivar resources: class -> amount
    """

    consumer_type: str
    consumers: int
    resources: dict[str, int]


class ReshapedProvider(msgspec.Struct, frozen=True, kw_only=True):
    """All inventories that a provider will have.

    :ivar generation: the provider's, as the writer knows it
    """

    generation: int
    inventories: dict[str, Inventory]


class Allocations(Protocol):
    """Allocations written as a whole, under the locks of all providers concerned."""

    def load_allocations(self, consumer: str) -> ConsumerAllocations | None:
        """Return all that a consumer has; None: it does not exist, as it has no live claim."""

    def provider_allocations(self, uuid: str) -> ProviderAllocations | None:
        """Return the allocations of a provider; None: it does not exist."""

    def write_allocations(self, wishes: Sequence[AllocationWish]) -> None:
        """Replace the allocations of consumers; all of them, or nothing is changed.

        :param wishes: one for each consumer
        :raises ConsumerChanged: a generation is not the consumer's
        :raises ConsumerBelow: a consumer without claims here lives in a child zone
        :raises Busy: it is being placed by a request that may go there
        :raises NotFound: a provider does not exist
        :raises UnknownResourceClass: a class is neither a standard one nor declared
        :raises AllocationRefused: a provider lacks the amounts; ``why``, ``provider``, ``classes``
        :raises Refused: processes that do not know such claims may run
        """

    def delete_allocations(self, consumer: str) -> None:
        """Delete all allocations of a consumer.

        :raises NotFound: it does not exist
        """

    def reshape(
        self, providers: Mapping[str, ReshapedProvider], wishes: Sequence[AllocationWish]
    ) -> None:
        """Change inventories of providers and allocations together; the result is checked.

        :raises NotFound: as above, also a provider whose inventories are to be changed
        :raises ProviderChanged: a generation is not the provider's
        :raises InUse: a class that would be removed is used
        :raises Refused: a host reports its inventories itself
        :raises GanttError: as above
        """

    def type_usages(self, project: str, *, user: str | None = None) -> list[TypeUsage]:
        """Return the usage of a project's live claims, of all providers, by consumer type."""
