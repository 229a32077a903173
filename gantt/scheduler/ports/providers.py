# SPDX-License-Identifier: Apache-2.0
"""Providers of all kinds are read; those that are no hosts are created, moved and deleted."""

from collections.abc import Mapping
from typing import Protocol

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import ResourceProvider


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
