# SPDX-License-Identifier: Apache-2.0
"""Candidates for whoever asks: on providers as they are when the question comes.

Each question reads the head of the change feed, so that what a writer was answered before, by any
process, is seen.  Questions that come while one reads share the read that begins after them.
"""

import itertools
import threading
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from gantt import exceptions
from gantt.core.candidates.find import STEPS_MAX, CandidatesFound, find
from gantt.core.candidates.query import CandidatesQuery
from gantt.core.candidates.table import ProviderTable
from gantt.core.messages.resource_classes import STANDARD
from gantt.scheduler.ports import CandidateReads, ProviderNews
from gantt.standard_traits import STANDARD_TRAITS

T = TypeVar('T')
#: Makes an answer of what was found, while nothing changes.
Answering = Callable[[ProviderTable, CandidatesFound], T]


class Candidates:
    """The providers of one process.  All methods may be called from any thread.

    :param steps: that the search of one query may take
    :param count: adds one to a counter by its name
    """

    def __init__(
        self,
        store: CandidateReads,
        steps: int = STEPS_MAX,
        count: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._steps = steps
        self._count = count or (lambda name: None)
        self._current_at: float | None = None
        self._lock = threading.Lock()
        self._table = ProviderTable()
        self._read: ProviderNews | None = None
        self._arrivals = itertools.count(1)
        self._covered = 0

    def answer(self, query: CandidatesQuery, answering: Answering[T]) -> T:
        """What ``answering`` makes of the candidates.

        :raises SearchOutOfBudget: whether there are more is not known
        :raises DatabaseUnavailable:
        """
        try:
            return self.look(lambda table: answering(table, find(table, query, self._steps)))
        except exceptions.SearchOutOfBudget:
            self._count('gantt_candidates_out_of_budget_total')
            raise

    @property
    def providers(self) -> int:
        """How many are in the table; 0 before the first question."""
        return len(self._table)

    @property
    def age_seconds(self) -> float | None:
        """Time since all was last known that there was; None: before the first question."""
        began = self._current_at
        return None if began is None else time.monotonic() - began

    def look(self, answering: Callable[[ProviderTable], T]) -> T:
        """What ``answering`` makes of all providers.

        :raises DatabaseUnavailable:
        """
        mine = next(self._arrivals)
        with self._lock:
            if self._covered < mine:
                self._follow()
            return answering(self._table)

    def unknown_names(
        self, classes: Collection[str], traits: Collection[str]
    ) -> tuple[Collection[str], Collection[str]]:
        """Those of these resource classes, and of these traits, that there are not.

        Who has an inventory of a class, or a trait, proves that it is there: that cannot be
        deleted.  What was known so and was given up since finds nobody.
        """
        table = self._table
        few = [name for name in classes if name not in STANDARD and name not in table.classes]
        some = [one for one in traits if one not in STANDARD_TRAITS and one not in table.traits]
        return self._store.unknown_names(few, some) if few or some else ((), ())

    def _follow(self) -> None:
        covered = next(self._arrivals)  # whoever has come has a smaller number
        began = time.monotonic()
        if self._read is None:
            found = self._store.load_provider_entries()
        else:
            found = self._store.poll_provider_entries(self._read)
        if found.whole:
            self._table = ProviderTable()
        self._table.apply(found.entries, found.gone)
        self._read = ProviderNews(
            position=found.position, incarnation=found.incarnation, gaps=found.gaps
        )
        self._covered, self._current_at = covered, began
