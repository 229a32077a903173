# SPDX-License-Identifier: Apache-2.0
"""Resource classes and traits by name: standard ones always exist."""

from collections.abc import Collection
from typing import Protocol

from gantt.core.resources.provider import VocabularyEntry


class Vocabulary(Protocol):
    """Classes and traits; changes raise ``NotFound`` where it is missing, ``InUse`` where used."""

    def resource_classes(self) -> list[VocabularyEntry]:
        """Return all resource classes, the standard ones first."""

    def create_class(self, name: str) -> bool:
        """Create a resource class; return whether it is new.

        :raises UnknownResourceClass: it has not the form of a custom one
        """

    def declare_class(self, name: str) -> None:
        """Create a resource class unless it exists, also a standard one.

        :raises UnknownResourceClass: it has not the form of a custom one
        """

    def declared_classes(self) -> frozenset[str]:
        """Return the CUSTOM_ resource classes declared so far."""

    def rename_class(self, name: str, new: str) -> None:
        """Rename a resource class; only while unused, for claims name their classes.

        :raises InUse: it is used, or the new name exists
        """

    def delete_class(self, name: str) -> None:
        """Delete a resource class.  :raises NotFound, InUse:"""

    def traits(
        self,
        *,
        names: Collection[str] | None = None,
        prefix: str = '',
        associated: bool | None = None,
    ) -> list[VocabularyEntry]:
        """Return traits of these names, with the prefix, that a provider has, or none."""

    def create_trait(self, name: str) -> tuple[VocabularyEntry, bool]:
        """Create a trait; return it, and whether it is new."""

    def delete_trait(self, name: str) -> None:
        """Delete a trait.  :raises NotFound, InUse:"""
