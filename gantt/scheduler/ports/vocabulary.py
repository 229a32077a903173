# SPDX-License-Identifier: Apache-2.0
"""Resource classes and traits by name: standard ones are there always."""

from collections.abc import Collection
from typing import Protocol

from gantt.core.resources.provider import VocabularyEntry


class Vocabulary(Protocol):
    """Who deletes or renames what is not there is told ``NotFound``; what is used, ``InUse``."""

    def resource_classes(self) -> list[VocabularyEntry]:
        """All, the standard ones first."""

    def create_class(self, name: str) -> bool:
        """Whether it was not there.

        :raises UnknownResourceClass: it has not the form of a custom one
        """

    def rename_class(self, name: str, new: str) -> None:
        """Only while nothing has it, for claims name what they take.

        :raises InUse: it is used, or there is one of the new name
        """

    def delete_class(self, name: str) -> None:
        """:raises NotFound, InUse:"""

    def traits(
        self,
        *,
        names: Collection[str] | None = None,
        prefix: str = '',
        associated: bool | None = None,
    ) -> list[VocabularyEntry]:
        """All of these names, with the prefix, that a provider has, or none."""

    def create_trait(self, name: str) -> tuple[VocabularyEntry, bool]:
        """The trait, and whether it was not there."""

    def delete_trait(self, name: str) -> None:
        """:raises NotFound, InUse:"""
