# SPDX-License-Identifier: Apache-2.0
"""Allocation candidates: on providers as they are when the query comes.

Each query reads the head of the change feed, so that earlier writes, of any process, are seen.
Queries that come while one reads share the read that begins after them.  Only that is done under a
lock: each searches a table that does not change while a query reads it.

Now and then, and after connections were lost, one of them reads everything: a database that was
restored from an older copy may have gone on since, so that its feed does not show it.
"""

import itertools
import threading
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from gantt import exceptions
from gantt.core.candidates.find import QUERY_STEPS_MAX, CandidatesFound, find_candidates
from gantt.core.candidates.query import CandidatesQuery
from gantt.core.candidates.table import ProviderTable
from gantt.core.messages.resource_classes import STANDARD_CLASSES
from gantt.scheduler.ports.providers import CandidateReads, ProviderNews
from gantt.standard_traits import STANDARD_TRAITS

T = TypeVar('T')
#: Builds an answer from the candidates, while nothing changes.
BuildAnswer = Callable[[ProviderTable, CandidatesFound], T]


class _PublishedTable:
    """A table, and its number of readers."""

    def __init__(self, table: ProviderTable) -> None:
        self.table = table
        self.readers = 0


class ProviderTableReader:
    """The providers of one process.  All methods may be called from any thread.

    :param steps: limit of search steps for one query
    :param count: adds one to a counter by its name
    :param reload_seconds: interval of reading everything
    """

    def __init__(
        self,
        providers: CandidateReads,
        steps: int = QUERY_STEPS_MAX,
        count: Callable[[str], None] | None = None,
        reload_seconds: float = 300.0,
    ) -> None:
        self._providers = providers
        self._steps = steps
        self._count = count or (lambda name: None)
        self._reload_seconds = reload_seconds
        self._current_at: float | None = None
        self._loaded_at = float('-inf')
        self._lost = 0
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._published = _PublishedTable(ProviderTable())
        self._read: ProviderNews | None = None
        self._query_count = itertools.count(1)
        self._covered = 0

    def answer(self, query: CandidatesQuery, build_answer: BuildAnswer[T]) -> T:
        """Return what ``build_answer`` builds from the candidates.

        :raises SearchOutOfBudget: whether there are more is not known
        :raises DatabaseUnavailable:
        """
        try:
            return self.read_all(
                lambda table: build_answer(table, find_candidates(table, query, self._steps))
            )
        except exceptions.SearchOutOfBudget:
            self._count('gantt_candidate_searches_over_budget_total')
            raise

    @property
    def providers(self) -> int:
        """Number of providers in the table; 0 before the first query."""
        return len(self._published.table)

    @property
    def age_seconds(self) -> float | None:
        """Time since the table was last known to be current; None: before the first query."""
        began = self._current_at
        return None if began is None else time.monotonic() - began

    def read_all(self, build_answer: Callable[[ProviderTable], T]) -> T:
        """Return what ``build_answer`` builds from all providers.

        :raises DatabaseUnavailable:
        """
        arrival = next(self._query_count)
        with self._lock:
            is_due = self._is_reload_due()
        if is_due:
            self._reload()
        with self._lock:
            if self._covered < arrival:
                self._read_changes()
            published = self._published
            with self._counting:
                published.readers += 1
        try:
            return build_answer(published.table)
        finally:
            with self._counting:
                published.readers -= 1

    def unknown_names(
        self, classes: Collection[str], traits: Collection[str]
    ) -> tuple[Collection[str], Collection[str]]:
        """Return which of these resource classes, and which of these traits, do not exist.

        A provider with an inventory of a class, or a trait, proves that it exists: that cannot be
        deleted.  A name that was known so and was given up since matches no provider.
        """
        table = self._published.table
        unknown_classes = [
            name for name in classes if name not in STANDARD_CLASSES and name not in table.classes
        ]
        unknown_traits = [
            trait for trait in traits if trait not in STANDARD_TRAITS and trait not in table.traits
        ]
        return (
            self._providers.unknown_names(unknown_classes, unknown_traits)
            if unknown_classes or unknown_traits
            else ((), ())
        )

    def _is_reload_due(self) -> bool:
        """Return whether this query is to read everything; the next one is not to meanwhile."""
        now, lost = time.monotonic(), self._providers.connections_lost
        if lost == self._lost and now - self._loaded_at < self._reload_seconds:
            return False
        self._loaded_at = now
        self._lost = lost
        return True

    def _reload(self) -> None:
        """Read everything; other queries go on with the present table."""
        try:
            news = self._providers.load_provider_entries()
        except BaseException:
            self._loaded_at = float('-inf')
            raise
        table = ProviderTable()
        table.apply(news.entries)
        with self._lock:
            # Changes that others have read since come with the next read.
            self._published = _PublishedTable(table)
            self._covered = 0
            self._apply_news(news)

    def _read_changes(self) -> None:
        covered = next(self._query_count)  # queries that have come have smaller numbers
        began = time.monotonic()
        if self._read is None:
            news = self._providers.load_provider_entries()
        else:
            news = self._providers.poll_provider_entries(self._read)
        if news.whole:
            self._published = _PublishedTable(ProviderTable())
        elif (news.entries or news.gone) and self._published.readers:
            self._published = _PublishedTable(self._published.table.copy())
        self._published.table.apply(news.entries, news.gone)
        self._apply_news(news)
        self._covered = covered
        self._current_at = began

    def _apply_news(self, news: ProviderNews) -> None:
        self._read = ProviderNews(
            position=news.position, incarnation=news.incarnation, gaps=news.gaps
        )
