# SPDX-License-Identifier: Apache-2.0
"""Allocations as writers of them mean them: all that a consumer has, of any providers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.allocations import AllocationWish
from gantt.core.messages.resource_classes import Inventory


class ConsumerAllocations(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer that exists: all its live claims, together.

    :ivar generation: see :func:`gantt.core.claims.allocations.visible_generation`
    :ivar allocations: uuid of a provider -> class -> amount
    :ivar generations: of these providers
    :ivar updated_at: when one of its claims changed last, by the database's clock
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
    """What live claims take of one provider.

    :ivar generation: of the provider
    :ivar allocations: consumer -> class -> amount
    :ivar generations: of these consumers
    :ivar updated_at: when one of the claims changed last; None: there is none
    """

    generation: int
    allocations: dict[str, dict[str, int]]
    generations: dict[str, int]
    updated_at: float | None = None


class TypeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What consumers of one type have.

    :ivar consumers: how many they are
    :ivar resources: class -> amount
    """

    consumer_type: str
    consumers: int
    resources: dict[str, int]


class ReshapedProvider(msgspec.Struct, frozen=True, kw_only=True):
    """All inventories that a provider is to have.

    :ivar generation: the provider's, as the writer knows it
    """

    generation: int
    inventories: dict[str, Inventory]


class Allocations(Protocol):
    """Written as a whole, under the locks of all providers concerned."""

    def load_allocations(self, consumer: str) -> ConsumerAllocations | None:
        """All that a consumer has; None: it does not exist, as it has no live claim."""

    def provider_allocations(self, uuid: str) -> ProviderAllocations | None:
        """What is taken of a provider; None: there is no such provider."""

    def write_allocations(self, wishes: Sequence[AllocationWish]) -> None:
        """Let consumers have exactly this; all of them, or nothing is changed.

        :param wishes: of consumers of which each is named once
        :raises ConsumerChanged: a generation is not the consumer's
        :raises ConsumerBelow: one that has nothing here lives in a zone below
        :raises Busy: it is being placed by a request that may go there
        :raises NotFound: a provider is not there
        :raises UnknownResourceClass: a class is neither a standard one nor declared
        :raises AllocationRefused: a provider does not have it; ``why``, ``provider``, ``classes``
        :raises Refused: processes that do not know such claims may run
        """

    def delete_allocations(self, consumer: str) -> None:
        """Let it have nothing.

        :raises NotFound: it does not exist
        """

    def reshape(
        self, providers: Mapping[str, ReshapedProvider], wishes: Sequence[AllocationWish]
    ) -> None:
        """Change inventories of providers and allocations together, judged by the outcome.

        :raises NotFound: as above, also a provider whose inventories are to be changed
        :raises ProviderChanged: a generation is not the provider's
        :raises InUse: something is used of a class that would be gone
        :raises Refused: a host reports its inventories itself
        :raises GanttError: as above
        """

    def type_usages(self, project: str, *, user: str | None = None) -> list[TypeUsage]:
        """What live claims of a project take, of all providers, by the type of consumers."""
