# SPDX-License-Identifier: Apache-2.0
"""Candidates of a query: masks over columns for single-choice trees, a search for the others."""

import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from gantt.core.candidates.columns import Mask, Shares, Slots
from gantt.core.candidates.eligible import Eligible, Trace, eligible, root_mask
from gantt.core.candidates.query import CandidatesQuery, Part
from gantt.core.candidates.table import NOWHERE, ProviderTable
from gantt.core.candidates.tree_search import SearchBudget, TreeSearch

#: Steps that one query may take: about a second.
STEPS_MAX = 1_000_000


class CandidatesFound(msgspec.Struct, frozen=True):
    """Result of a query; slots are valid until the table changes.

    :ivar parts: part that each slot of a row is for
    :ivar rows: slots of the providers, one for each part
    :ivar scores: of each row, 0 to 1: share of the capacity of the scarcest class that would remain
        on the emptiest choice of its tree
    :ivar steps: steps used
    """

    parts: tuple[Part, ...]
    rows: list[tuple[int, ...]]
    scores: list[float]
    steps: int = 0

    def roots(self, table: ProviderTable) -> list[int]:
        """Return the root slots of all trees that a row takes something of, ascending."""
        rows: Iterable[tuple[int, ...]] = self.rows
        giving = [n for n, part in enumerate(self.parts) if part.amounts]
        if len(giving) < len(self.parts):
            rows = (tuple(row[n] for n in giving) for row in rows)
        slots = set(itertools.chain.from_iterable(rows))
        if not slots:
            return []
        roots: list[int] = np.unique(table.root[np.fromiter(slots, np.int64, len(slots))]).tolist()
        return roots


def find(
    table: ProviderTable,
    query: CandidatesQuery,
    steps: int = STEPS_MAX,
    only: Collection[str] | None = None,
) -> CandidatesFound:
    """Return all candidates, or with a limit the best: each tree once before any twice.

    An empty result is a proof that there is none.

    :param only: uuids of the roots that may anchor one; None: all
    :raises SearchOutOfBudget: whether there are more is not known after so many steps
    """
    parts = tuple(query.parts())
    result = CandidatesFound(parts, [], [])
    anchors = root_mask(table, query)
    if only is not None:
        named = np.zeros(table.length, bool)
        named[[slot for uuid in only if (slot := table.slot(uuid)) is not None]] = True
        anchors = named if anchors is None else anchors & named
    if anchors is not None and not anchors.any():
        return result
    givers = []
    for part in parts:
        giver = eligible(table, part)
        if not (len(giver.own) or giver.shared):
            return result
        givers.append(giver)
    finder = _Finder(table, query, givers, anchors, steps)
    finder.fill(result)
    return msgspec.structs.replace(result, steps=steps - finder.budget.left)


class _Finder:
    """State of one query.

    :ivar roots: slots of the roots that may anchor a candidate, the best first
    :ivar scores: by root
    """

    def __init__(
        self,
        table: ProviderTable,
        query: CandidatesQuery,
        givers: Sequence[Eligible],
        anchors: Mask | None,
        steps: int,
    ) -> None:
        self._table = table
        self._query = query
        self._givers = givers
        self.budget = SearchBudget(steps)
        self.scores = _scores(table, givers, anchors)
        self.roots = self._roots()
        self._seen: set[tuple[int, ...]] = set()
        self._is_shared = any(giver.shared for giver in givers)
        parts = [giver.part for giver in givers]
        search = TreeSearch(table, query, parts, self.budget, query.limit is not None)
        self._search = EqualTrees(table, search, self.budget)

    def fill(self, found: CandidatesFound) -> None:
        single, chosen = self._single()
        limit = math.inf if self._query.limit is None else self._query.limit
        if single.all():
            some = self.roots if limit == math.inf else self._as_many(limit)
            self._add_single(found, some, chosen)
            return
        if limit == math.inf:
            self._add_single(found, self.roots[single[self.roots]], chosen)
            self._add_all(found, self.roots[~single[self.roots]])
            return
        self._add_best(found, single, chosen)

    def _as_many(self, limit: float) -> Slots:
        # Where trees may share one candidate, another tree is searched for each that does.
        return self.roots if self._is_shared else self.roots[: int(limit)]

    def _roots(self) -> Slots:
        """Return the roots that may anchor a candidate, judged by each part alone."""
        possible = self.scores >= 0
        if any(not giver.part.suffix for giver in self._givers):
            possible = self._with_traits(possible)
        roots = np.flatnonzero(possible)
        if self._query.limit is not None:
            roots = roots[np.argsort(-self.scores[roots], kind='stable')]
        return roots

    def _with_traits(self, possible: Mask) -> Mask:
        """Return roots whose providers may have what the group without suffix requires."""
        spread = [giver for giver in self._givers if not giver.part.suffix]
        table, length = self._table, self._table.length
        for names in spread[0].part.group.required:
            mask = table.traits.any_of(names, length)
            able = np.zeros(length, bool)
            for giver in spread:
                able |= giver.with_any(mask, table.root, length)
            possible = possible & able
        return possible

    # -- trees with one choice -------------------------------------------------------------
    def _single(self) -> tuple[Mask, list[Slots]]:
        """Return the roots with exactly one choice for each part, and these choices by root.

        Where a query has more than one group, these have to go together: no root is taken as such.
        Roots with one choice that lack a required trait are taken out of the roots.
        """
        table, length = self._table, self._table.length
        if len(self._query.groups) > 1:
            return np.zeros(length, bool), []
        single = np.ones(length, bool)
        chosen = []
        for giver in self._givers:
            single &= giver.counts(table.root, length) == 1
            of_root = np.full(length, NOWHERE, np.int64)
            of_root[table.root[giver.own]] = giver.own
            for provider in giver.shared:
                of_root[provider.anchors] = provider.slot
            chosen.append(of_root)
        fits = self._fits_single(chosen)
        self.roots = self.roots[fits[self.roots] | ~single[self.roots]]
        others = np.ones(length, bool)
        others[self.roots] = single[self.roots]
        return others, chosen

    def _fits_single(self, chosen: list[Slots]) -> Mask:
        table, length = self._table, self._table.length
        fits = np.ones(length, bool)
        group = self._query.groups[0]
        for names in group.required:
            mask = table.traits.any_of(names, length)
            have = np.zeros(length, bool)
            for of_root in chosen:
                have |= mask[of_root]
            fits &= have
        if not self._query.nested and table.nested:
            for n, slots in enumerate(chosen):
                for others in chosen[:n]:
                    fits &= (slots == others) | (table.root[slots] != table.root[others])
        return fits

    def _add_single(self, found: CandidatesFound, roots: Slots, chosen: list[Slots]) -> None:
        self.budget.take(len(roots))
        rows = zip(*(of_root[roots].tolist() for of_root in chosen), strict=True)
        if not self._is_shared:
            found.rows.extend(rows)
            found.scores.extend(self.scores[roots].tolist())
            return
        limit = self._query.limit
        for row, score in zip(rows, self.scores[roots].tolist(), strict=True):
            if limit is not None and len(found.rows) >= limit:
                return
            if self._is_new(row):
                found.rows.append(row)
                found.scores.append(score)

    # -- trees with several choices --------------------------------------------------------
    def _add_all(self, found: CandidatesFound, roots: Slots) -> None:
        options = self._options(roots)
        for root in roots.tolist():
            score = float(self.scores[root])
            for row in self._rows(options, root):
                self.budget.take(len(row))  # it is to be serialized as well
                found.rows.append(row)
                found.scores.append(score)

    def _add_best(self, found: CandidatesFound, single: Mask, chosen: list[Slots]) -> None:
        """Add each root once, then those that have more a second time, and so on."""
        limit = self._query.limit
        assert limit is not None
        options = self._options(self.roots[~single[self.roots]])
        more: list[tuple[float, Iterator[tuple[int, ...]]]] = []
        for root in self.roots.tolist():
            if single[root]:
                row = tuple(int(of_root[root]) for of_root in chosen)
                rows = iter([row] if self._is_new(row) else [])
            else:
                rows = self._rows(options, root)
            more.append((float(self.scores[root]), rows))
            if not self._add_next(found, more, -1):
                more.pop()
            if len(found.rows) >= limit:
                return
        while more:
            at = 0
            while at < len(more) and len(found.rows) < limit:
                if self._add_next(found, more, at):
                    at += 1
                else:
                    del more[at]
            if len(found.rows) >= limit:
                return

    def _add_next(
        self,
        found: CandidatesFound,
        more: list[tuple[float, Iterator[tuple[int, ...]]]],
        at: int,
    ) -> bool:
        score, rows = more[at]
        row = next(rows, None)
        if row is None:
            return False
        self.budget.take(len(row))
        found.rows.append(row)
        found.scores.append(score)
        return True

    def _rows(self, options: list[dict[int, list[int]]], root: int) -> Iterator[tuple[int, ...]]:
        for row in self._search.solutions([of_root[root] for of_root in options]):
            if self._is_new(row):
                yield row

    def _is_new(self, row: tuple[int, ...]) -> bool:
        """Return whether no other root has yielded the same row, of sharing providers only."""
        if not self._is_shared or not all(map(self._table.is_sharing, row)):
            return True
        if row in self._seen:
            return False
        self._seen.add(row)
        return True

    def _options(self, roots: Slots) -> list[dict[int, list[int]]]:
        """Return for each part: root -> slots that may give it there, the best first."""
        is_searched = np.zeros(self._table.length, bool)
        is_searched[roots] = True
        return [self._options_of(giver, is_searched) for giver in self._givers]

    def _options_of(self, giver: Eligible, wanted: Mask) -> dict[int, list[int]]:
        root = self._table.root[giver.own]
        is_wanted = wanted[root]
        givers, root, shares = giver.own[is_wanted], root[is_wanted], giver.left[is_wanted]
        order = np.lexsort((-shares, root))
        givers, root = givers[order], root[order]
        anchors, starts = np.unique(root, return_index=True)
        slots, ends = givers.tolist(), np.append(starts[1:], len(givers)).tolist()
        options = {
            anchor: slots[start:end]
            for anchor, start, end in zip(anchors.tolist(), starts.tolist(), ends, strict=False)
        }
        for provider in giver.shared:
            for anchor in provider.anchors[wanted[provider.anchors]].tolist():
                options.setdefault(anchor, []).append(provider.slot)
        return options


def _scores(table: ProviderTable, givers: Sequence[Eligible], anchors: Mask | None) -> Shares:
    """Return by root the best remaining share of its scarcest part; below 0 where one fails."""
    scores = np.ones(table.length)
    for giver in givers:
        scores = np.minimum(scores, giver.best(table.root, table.length))
    if anchors is not None:
        scores[~anchors] = -1.0
    return scores


def reasons(table: ProviderTable, query: CandidatesQuery) -> list[str]:
    """Return why there are few candidates or none: the providers left after each step, by part."""
    lines: list[str] = []

    def noting(suffix: str) -> Trace:
        where = f'group {suffix}' if suffix else 'group without suffix'
        return lambda what, left: lines.append(f'{where}: {what}: {left} providers')

    anchors = root_mask(table, query)
    if anchors is not None:
        fit = int((anchors & (table.root == np.arange(table.length))).sum())
        lines.append(f'traits of the root: {fit} roots')
    givers = []
    for part in query.parts():
        givers.append(eligible(table, part, noting(part.suffix)))
    roots = int((_scores(table, givers, anchors) >= 0).sum())
    lines.append(f'each part by itself: {roots} trees; the rest is how they go together')
    return lines


#: Choices as numbers of providers within their tree.
_Row = tuple[int, ...]


class _Searched:
    """Search under way with the rows found so far; it advances only as far as requested."""

    def __init__(self, rows: Iterator[tuple[int, ...]], numbers: dict[int, int]) -> None:
        self._rows = rows
        self._numbers = numbers
        self._found: list[_Row] = []

    def get(self, n: int) -> _Row | None:
        """Return choice number n, from 0; None: there are not as many."""
        if n == len(self._found):
            row = next(self._rows, None)
            if row is None:
                return None
            self._found.append(tuple([self._numbers[slot] for slot in row]))
        return self._found[n]


class EqualTrees:
    """Search of one query in any number of trees, in which equal trees are searched once.

    A search reads which providers of a tree may give which part, how much room each has of
    classes that several parts take, which traits count, and which of them are equal.  Where all
    that is the same in two trees, so are the choices, but for the names of the providers.

    :param search: of the same query; nothing is shared where it reads more than the above
    """

    def __init__(self, table: ProviderTable, search: TreeSearch, budget: SearchBudget) -> None:
        self._table = table
        self._search = search
        self._budget = budget
        self._searched: dict[Hashable, _Searched] = {}

    def solutions(self, options: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
        """Yield the rows of one anchor; see ``TreeSearch.solutions``.

        :raises SearchOutOfBudget:
        """
        if not self._search.is_plain:
            yield from self._search.solutions(options)
            return
        numbers: dict[int, int] = {}
        places = [numbers.setdefault(slot, len(numbers)) for part in options for slot in part]
        slots = list(numbers)
        kinds: dict[int, int] = {}
        equal = [kinds.setdefault(kind, len(kinds)) for kind in self._table.kinds(slots)]
        key = tuple(map(len, options)), tuple(places), tuple(equal), self._looks(slots)
        searched = self._searched.get(key)
        if searched is None:
            rows = self._search.solutions(options)
            searched = self._searched[key] = _Searched(rows, numbers)
        n = 0
        while (row := searched.get(n)) is not None:
            self._budget.take()
            yield tuple([slots[number] for number in row])
            n += 1

    def _looks(self, slots: Sequence[int]) -> Hashable:
        """Return all that a plain search reads of providers, each by itself."""
        table, search = self._table, self._search
        contents: list[Hashable] = [
            tuple(map(table.classes[name].rooms().get, slots)) for name in sorted(search.contended)
        ]
        if search.required:
            contents += [table.entry(slot).traits for slot in slots]
        return tuple(contents)
