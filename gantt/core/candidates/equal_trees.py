# SPDX-License-Identifier: Apache-2.0
"""Trees in which a search would do the same are searched once.

What a search looks at in a tree is which providers may give which part, how much room each has of
classes that several parts want, which traits count, and which of them are equal.  Where all that
is the same in two trees, so are the choices, but for the names of the providers.
"""

from collections.abc import Hashable, Iterator, Sequence

from gantt.core.candidates.table import ProviderTable
from gantt.core.candidates.tree_search import SearchBudget, TreeSearch

#: Choices as numbers of providers within their tree.
_Row = tuple[int, ...]


class _Searched:
    """A search under way, and what it has found so far; each finds as much as is asked for."""

    def __init__(self, rows: Iterator[tuple[int, ...]], numbers: dict[int, int]) -> None:
        self._rows = rows
        self._numbers = numbers
        self._found: list[_Row] = []

    def get(self, n: int) -> _Row | None:
        """Choice number n, from 0; None: there are not as many."""
        if n == len(self._found):
            row = next(self._rows, None)
            if row is None:
                return None
            self._found.append(tuple([self._numbers[slot] for slot in row]))
        return self._found[n]


class EqualTrees:
    """One query, for any number of trees one after another.

    :param search: of the same query; nothing is shared where it looks at more than what is said
        above
    """

    def __init__(self, table: ProviderTable, search: TreeSearch, budget: SearchBudget) -> None:
        self._table = table
        self._search = search
        self._budget = budget
        self._searched: dict[Hashable, _Searched] = {}

    def solutions(self, options: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
        """See ``TreeSearch.solutions``.

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
        """All that a plain search looks at of providers, each by itself."""
        table, search = self._table, self._search
        found: list[Hashable] = [
            tuple(map(table.classes[name].rooms().get, slots)) for name in sorted(search.contended)
        ]
        if search.required:
            found += [table.entry(slot).traits for slot in slots]
        return tuple(found)
