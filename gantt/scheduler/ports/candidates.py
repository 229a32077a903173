# SPDX-License-Identifier: Apache-2.0
"""All providers as a search for candidates needs them, and their news."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gantt.core.candidates.table import ProviderEntry
from gantt.scheduler.ports.feed import Gap


class ProviderNews(msgspec.Struct, frozen=True, kw_only=True):
    """Providers as one read finds them.

    :ivar position: of the change feed; with the ``gaps`` before it for the next read
    :ivar whole: these are all that there are
    :ivar gone: ids of such as are no more
    """

    position: int
    incarnation: int
    gaps: list[Gap] = []
    entries: list[ProviderEntry] = []
    gone: list[int] = []
    whole: bool = False


class CandidateReads(Protocol):
    """What was committed before a read began is in it, whoever wrote it."""

    @property
    def connections_lost(self) -> int:
        """See ``Store``: where it grew another database may have taken over."""

    def load_provider_entries(self) -> ProviderNews:
        """All providers."""

    def poll_provider_entries(self, known: ProviderNews) -> ProviderNews:
        """Those that changed since, or all where that does not lead on.

        :param known: what the read before this one found; its entries do not matter
        """

    def unknown_names(
        self, classes: Collection[str], traits: Collection[str]
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Those of these resource classes, and of these traits, that there are not."""
