# SPDX-License-Identifier: Apache-2.0
"""Reads of all providers for searches of allocation candidates, and their news."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gantt.core.candidates.table import ProviderEntry
from gantt.scheduler.ports.feed import Gap


class ProviderNews(msgspec.Struct, frozen=True, kw_only=True):
    """Providers as one read returns them.

    :ivar position: of the change feed; with the ``gaps`` before it for the next read
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

    def poll_provider_entries(self, known: ProviderNews) -> ProviderNews:
        """Return providers changed since, or all where the feed does not lead on.

        :param known: the result of the read before this one; its entries do not matter
        """

    def unknown_names(
        self, classes: Collection[str], traits: Collection[str]
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Return those of these resource classes, and of these traits, that do not exist."""
