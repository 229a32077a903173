# SPDX-License-Identifier: Apache-2.0
"""Ports of Placement's interface: resource providers, and allocations of consumers.

Allocations are as their writers mean them: all that a consumer has, of any providers.  All kinds
of providers are read; those that are no hosts are created, changed, deleted.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import (
    ProviderAggregates,
    ProviderFilter,
    ProviderRecord,
    ProviderTraits,
    ResourceProvider,
)
from gantt.scheduler.ports.providers import Vocabulary
from gantt.scheduler.ports.stores import Stores

T = TypeVar('T')


class ConsumerAllocations(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations of a consumer that exists: all its live claims, together.

    :ivar generation: see :func:`gantt.core.claims.allocations.visible_generation`
    :ivar allocations: uuid of a provider -> class -> amount
    :ivar generations: uuid of a provider -> its generation
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

    :ivar generation: generation of the provider
    :ivar allocations: consumer -> class -> amount
    :ivar generations: consumer -> its generation
    :ivar updated_at: time of the last change of one of the claims; None: there is none
    """

    generation: int
    allocations: dict[str, dict[str, int]]
    generations: dict[str, int]
    updated_at: float | None = None


class TypeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of consumers of one type.

    :ivar consumers: number of the consumers
    :ivar resources: class -> amount
    """

    consumer_type: str
    consumers: int
    resources: dict[str, int]


class ReshapedProvider(msgspec.Struct, frozen=True, kw_only=True):
    """All inventories that a provider will have.

    :ivar generation: generation of the provider, as the writer knows it
    """

    generation: int
    inventories: dict[str, Inventory]


class Allocations(Protocol):
    """Allocations written as a whole, under the locks of all providers concerned."""

    def load_allocations(self, consumer: str) -> ConsumerAllocations | None:
        """Return all that a consumer has; None: it does not exist, as it has no live claim."""

    def provider_allocations(self, uuid: str) -> ProviderAllocations | None:
        """Return the allocations of a provider; None: it does not exist."""

    def write_allocations(self, wishes: Sequence[WantedAllocations]) -> None:
        """Replace the allocations of consumers; all of them, or nothing is changed.

        :param wishes: the wanted allocations, one entry for each consumer
        :raises ConsumerChanged: a generation is not the consumer's
        :raises ConsumerInChildZone: a consumer without claims here lives in a child zone
        :raises Busy: a consumer is being placed by a request that may go to a child zone
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
        self, providers: Mapping[str, ReshapedProvider], wishes: Sequence[WantedAllocations]
    ) -> None:
        """Change inventories of providers and allocations together; the result is checked.

        :raises NotFound: as above, also a provider whose inventories are to be changed
        :raises StaleGeneration: a generation is not the provider's
        :raises InUse: a class that would be removed is used
        :raises Refused: a host reports its inventories itself
        :raises GanttError: as above
        """

    def type_usages(self, project: str, *, user: str | None = None) -> list[TypeUsage]:
        """Return the usage of a project's live claims, of all providers, by consumer type."""


class Providers(Protocol):
    """Trees of providers, as Placement requests find and change them.

    A ``generation`` that is given must be the current one: the writers that take one raise
    ``NotFound`` where the provider does not exist, ``ReportedByHost`` where it is a host, and
    ``StaleGeneration``.  Errors of ``InvalidMessage`` name the field: ``provider.name``,
    ``provider.uuid``, ``provider.parent``, ``provider.inventories.CLASS.FIELD``.
    """

    def create_provider(
        self,
        name: str,
        *,
        uuid: str | None = None,
        parent: str | None = None,
        inventories: Mapping[str, Inventory] = ...,
    ) -> ResourceProvider:
        """Create a provider that is no host: below another provider, or a root of its own.

        :param parent: uuid
        :raises InvalidMessage: name or uuid are taken, the parent does not exist, an inventory is
            invalid
        :raises Refused: processes that do not know such providers may run
        """

    def load_provider(self, uuid: str) -> ResourceProvider | None:
        """Return one provider, of any kind."""

    def delete_provider(self, uuid: str) -> None:
        """Delete a provider.

        :raises NotFound, InUse, Refused: the provider has children or live claims, or is a host
        """

    def find_providers(self, criteria: ProviderFilter) -> list[ProviderRecord]:
        """Return the providers that meet all conditions, hosts among them.

        :raises NotFound: of kind ``trait`` or ``resource class``: a name is not known
        """

    def update_provider(
        self,
        uuid: str,
        *,
        name: str | None = None,
        parent: str | None = '',
        reparent: bool = True,
    ) -> ProviderRecord:
        """Rename and move a provider; its generation stays.

        :param parent: uuid of the new parent; None: a root; '': the present parent
        :param reparent: whether a provider with a parent may get another parent
        :raises InvalidMessage: the name is taken; the parent does not exist, is inside of the
            subtree, or has to stay: ``why`` states which
        """

    def change_inventories(
        self,
        uuid: str,
        change: Callable[[dict[str, Inventory]], Mapping[str, Inventory]],
        generation: int | None = None,
    ) -> ResourceProvider:
        """Replace the inventories by what a function makes of them; one generation up.

        Less than is used is accepted.

        :param change: called under the lock, perhaps repeatedly; may raise
        :raises NotFound: of kind ``resource class``: one is not known
        :raises InvalidMessage: an inventory is invalid
        :raises InUse: a class that would be removed is used
        """

    def load_provider_traits(self, uuid: str) -> ProviderTraits | None:
        """Return the traits of a provider; None: it does not exist."""

    def save_provider_traits(
        self, uuid: str, names: Collection[str], generation: int | None = None
    ) -> ProviderTraits:
        """Replace the traits of a provider; one generation up where that is a change.

        :raises NotFound: of kind ``trait``: one is not known
        """

    def load_provider_aggregates(self, uuid: str) -> ProviderAggregates | None:
        """Return the aggregates of a provider; None: it does not exist."""

    def save_provider_aggregates(
        self, uuid: str, uuids: Collection[str], generation: int | None = None
    ) -> ProviderAggregates:
        """Replace the aggregates of a provider; one generation up where one was given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacementStores:
    """The stores that Placement's interface reads and writes."""

    providers: Providers
    vocabulary: Vocabulary
    allocations: Allocations


class DryRuns(Protocol):
    """Work on the database that leaves no trace."""

    def dry_run(self, work: Callable[[PlacementStores], T]) -> T:
        """Return the result of ``work`` on stores all of whose changes are undone in the end.

        Their methods raise and return what they do otherwise, each as if the earlier ones had been
        carried out.

        :param work: may be called repeatedly
        :raises Busy: rows stay locked
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApiStores(Stores):
    """The stores of a process with Placement's interface."""

    providers: Providers
    allocations: Allocations
    dry_runs: DryRuns
