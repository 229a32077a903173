# SPDX-License-Identifier: Apache-2.0
"""Ports for resource providers: their vocabulary, and what candidates are found among."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gantt.core.candidates.table import ProviderEntry
from gantt.core.resources.provider import (
    VocabularyEntry,
)
from gantt.scheduler.ports.records import Gap


class Vocabulary(Protocol):
    """Resource classes and traits; changes raise ``NotFound`` if missing, ``InUse`` if used."""

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
        """Return traits by names, prefix, and whether a provider has them (``associated``)."""

    def create_trait(self, name: str) -> tuple[VocabularyEntry, bool]:
        """Create a trait; return it, and whether it is new."""

    def delete_trait(self, name: str) -> None:
        """Delete a trait.  :raises NotFound, InUse:"""


class ProviderNews(msgspec.Struct, frozen=True, kw_only=True):
    """Providers as one read returns them.

    :ivar position: position in the change feed; with the ``gaps`` before it for the next read
    :ivar whole: these are all existing providers
    :ivar gone: ids of deleted providers
    """

    position: int
    incarnation: int
    gaps: list[Gap] = []
    entries: list[ProviderEntry] = []
    gone: list[int] = []
    whole: bool = False


class CandidateReads(Protocol):
    """Reads that include everything committed before they began, by any writer."""

    @property
    def connections_lost(self) -> int:
        """Number of broken connections so far: another server may have taken over since."""

    def load_provider_entries(self) -> ProviderNews:
        """Return all providers."""

    def poll_provider_entries(self, last_news: ProviderNews) -> ProviderNews:
        """Return providers changed since, or all where the feed does not lead on.

        :param last_news: the result of the read before this one; its entries do not matter
        """

    def unknown_names(
        self, classes: Collection[str], traits: Collection[str]
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Return which of these resource classes, and which of these traits, do not exist."""
