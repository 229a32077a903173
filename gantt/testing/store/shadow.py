# SPDX-License-Identifier: Apache-2.0
"""The in-memory store: comparisons of shadow mode."""

import collections
from collections.abc import Sequence

import msgspec

from gantt.core.records.shadow import Compared, Verdict
from gantt.scheduler.ports import Clock
from gantt.testing.store.hosts import HostKeeping
from gantt.testing.store.operators import atomic


class Shadows(HostKeeping):
    """Comparisons in their order; see ``gantt.db.stores.shadow``."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._shadows: dict[str, Compared] = {}

    @atomic
    def save_shadows(self, found: Sequence[Compared], keep: int) -> None:
        """Keep comparisons, one that is there as it is, and of all the newest ``keep``."""
        for one in sorted(found, key=lambda one: one.id):
            self._shadows.setdefault(one.id, msgspec.structs.replace(one, created_at=self._now))
        for gone in list(self._shadows)[: max(0, len(self._shadows) - keep)]:
            del self._shadows[gone]

    @atomic
    def shadows(self, verdicts: Sequence[Verdict] | None, limit: int) -> list[Compared]:
        """Newest first."""
        found = reversed(self._shadows.values())
        return [one for one in found if verdicts is None or one.verdict in verdicts][:limit]

    @atomic
    def count_shadows(self) -> dict[Verdict, int]:
        """How many of those that are kept have which verdict."""
        return dict(collections.Counter(one.verdict for one in self._shadows.values()))
