# SPDX-License-Identifier: Apache-2.0
"""Providers of all kinds are read; those that are no hosts are created, changed and deleted."""

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
    """Trees of providers.

    Errors of ``InvalidMessage`` name the field: ``provider.name``, ``provider.uuid``,
    ``provider.parent``, ``provider.inventories.CLASS.FIELD``.
    """

    def create_provider(
        self,
        name: str,
        *,
        uuid: str | None = None,
        parent: str | None = None,
        inventories: Mapping[str, Inventory] = ...,
    ) -> ResourceProvider:
        """Make one that is no host: below another provider, or a root of its own.

        :param parent: uuid
        :raises InvalidMessage: name or uuid are taken, the parent is not there, an inventory is
            absurd
        :raises Refused: processes that do not know such providers may run
        """

    def load_provider(self, uuid: str) -> ResourceProvider | None:
        """One provider, whatever it is."""

    def providers(
        self,
        *,
        name: str | None = None,
        tree: str | None = None,
        limit: int = 100,
        marker: str | None = None,
    ) -> list[ResourceProvider]:
        """Providers, hosts among them, by uuid, after ``marker``.

        :param tree: uuid of any provider: those of its tree
        """

    def move_provider(self, uuid: str, parent: str | None) -> ResourceProvider:
        """Let it and all below it be below another provider; None: be a tree of its own.

        :raises NotFound:
        :raises InvalidMessage: the parent is not there, or in the subtree itself
        :raises Refused: it is a host
        """

    def save_inventories(self, uuid: str, inventories: Mapping[str, Inventory]) -> ResourceProvider:
        """Let it have exactly these; less than is used is fine.

        :raises NotFound:
        :raises InvalidMessage: an inventory is absurd
        :raises InUse: something is used of a class that would be gone
        :raises Refused: it is a host
        """

    def delete_provider(self, uuid: str) -> None:
        """:raises NotFound, InUse, Refused: it has children or live claims; it is a host"""


class ProviderRecords(Protocol):
    """Providers as requests find and change them.

    A ``generation`` that is given has to be the current one.  All writers raise ``NotFound`` where
    there is no such provider, ``ReportedByHost`` where it is a host, and ``StaleGeneration``.
    """

    def find_providers(self, wanted: ProviderFilter) -> list[ProviderRecord]:
        """Those that meet all of it, hosts among them.

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
        """Rename and move it; its generation stays.

        :param parent: uuid; None: none; empty: that which it has
        :param reparent: it may get another one than it has
        :raises InvalidMessage: the name is taken; the parent is not there, is inside of the
            subtree, or has to stay: ``why`` says which
        """

    def change_inventories(
        self,
        uuid: str,
        change: Callable[[dict[str, Inventory]], Mapping[str, Inventory]],
        generation: int | None = None,
    ) -> ResourceProvider:
        """Let it have exactly what the function makes of what it has; one generation up.

        :param change: is called under the lock, may be called again, and may raise
        :raises NotFound: of kind ``resource class``: one is not known
        :raises InvalidMessage: an inventory is absurd
        :raises InUse: something is used of a class that would be gone
        """

    def load_provider_traits(self, uuid: str) -> ProviderTraits | None:
        """None: there is no such provider."""

    def save_provider_traits(
        self, uuid: str, names: Collection[str], generation: int | None = None
    ) -> ProviderTraits:
        """Let it have exactly these; one generation up where that is a change.

        :raises NotFound: of kind ``trait``: one is not known
        """

    def load_provider_aggregates(self, uuid: str) -> ProviderAggregates | None:
        """None: there is no such provider."""

    def save_provider_aggregates(
        self, uuid: str, uuids: Collection[str], generation: int | None = None
    ) -> ProviderAggregates:
        """Let it be in exactly these; one generation up where one was given."""
