# SPDX-License-Identifier: Apache-2.0
"""Resource providers: all kinds are read; those that are no hosts are created, changed, deleted."""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import (
    ProviderAggregates,
    ProviderFilter,
    ProviderRecord,
    ProviderTraits,
    ResourceProvider,
)


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

        :raises NotFound, InUse, Refused: it has children or live claims; it is a host
        """

    def find_providers(self, wanted: ProviderFilter) -> list[ProviderRecord]:
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

        :param parent: uuid; None: none; empty: the present one
        :param reparent: it may get a parent other than its present one
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
