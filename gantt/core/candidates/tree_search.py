# SPDX-License-Identifier: Apache-2.0
"""The choice within one tree: for each part a provider, so that all of them go together.

Depth first, the part with the fewest providers first.  A choice is not gone on with where what it
leaves cannot do: amounts are summed up as they are taken, subtrees and traits are looked at before
they are complete, and a matching says whether the parts that are left find room at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from gantt import exceptions
from gantt.core.candidates import matching
from gantt.core.candidates.query import CandidatesQuery, Part
from gantt.core.candidates.table import NOWHERE, ProviderEntry

#: Steps in one tree after which each choice is matched with what is left.
MATCHED_AFTER = 64
#: Taken of a provider that is taken whole: more than anybody has.
ALL = 2**62


class RoomByPlace(Protocol):
    """What is left of one class."""

    def room(self, slot: int) -> int: ...


class SearchedTable(Protocol):
    """What a search looks at: providers by small numbers, see ``ProviderTable``."""

    @property
    def nested(self) -> int: ...
    @property
    def classes(self) -> Mapping[str, RoomByPlace]: ...
    @property
    def root(self) -> Any: ...
    def entry(self, slot: int) -> ProviderEntry: ...
    def parent(self, slot: int) -> int: ...
    def kind(self, slot: int) -> int: ...


class SearchBudget:
    """How many steps a search may take in all.

    :param steps: each is a provider that is tried for a part, or an answer; some microseconds
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.left = steps

    def take(self, steps: int = 1) -> None:
        """:raises SearchOutOfBudget: they are used up; whether there is more is not known"""
        self.left -= steps
        if self.left < 0:
            raise exceptions.SearchOutOfBudget(steps=self.steps)


class TreeSearch:
    """One query, for any number of trees one after another.

    :param parts: those of the query, in the order of all answers
    :param distinct: of equal providers below one parent only one is tried
    """

    def __init__(
        self,
        table: SearchedTable,
        query: CandidatesQuery,
        parts: Sequence[Part],
        budget: SearchBudget,
        distinct: bool,
    ) -> None:
        self._table = table
        self._parts = parts
        self._budget = budget
        self._distinct = distinct
        self._one_of_a_tree = not query.nested and table.nested > 0
        isolated = frozenset(part.suffix for part in parts if part.suffix and query.isolate)
        #: Sets of parts whose providers differ from each other.
        self._apart = [
            rivals
            for suffixes in (isolated, *query.apart)
            if len(rivals := {n for n, p in enumerate(parts) if p.suffix in suffixes}) > 1
        ]
        self._rivals = {
            n: sorted(set[int]().union(*(one for one in self._apart if n in one)) - {n})
            for n in set[int]().union(*self._apart)
        }
        self._subtrees = [
            members
            for suffixes in query.same_subtree
            if len(members := [n for n, part in enumerate(parts) if part.suffix in suffixes]) > 1
        ]
        wanted = [name for part in parts for name, _ in part.amounts]
        self.contended = {name for name in wanted if wanted.count(name) > 1}
        self._all = range(len(parts))
        #: Parts that may be in the way of each other.
        self._disputed = [
            n
            for n, part in enumerate(parts)
            if n in self._rivals or any(name in self.contended for name, _ in part.amounts)
        ]
        self._scarce = [
            [item for item in part.amounts if item[0] in self.contended] for part in parts
        ]
        #: Whether nothing is looked at of providers but which they are, how much room they have of
        #: contended classes, required traits, and which of them are equal.
        self.is_plain = not (self._subtrees or self._one_of_a_tree)
        self._twins = _twins(query, parts) if query.once else {}
        self._spread = [n for n, part in enumerate(parts) if not part.suffix]
        self.required = parts[self._spread[0]].group.required if self._spread else ()
        self._ancestors: dict[int, frozenset[int]] = {}
        # Of the tree at hand:
        self._options: Sequence[Sequence[int]] = ()
        self._option_sets: list[frozenset[int]] = []
        self._chosen: list[int] = []
        self._taken: dict[tuple[int, str], int] = {}
        self._loads: dict[int, int] = {}

    def on(self, table: SearchedTable, budget: SearchBudget) -> 'TreeSearch':
        """Itself, for another table and the steps that may be taken there."""
        self._table, self._budget = table, budget
        self._ancestors = {}
        return self

    def solutions(self, options: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
        """All choices for one anchor, each once: a slot for each part.

        :param options: for each part who may give it, the best first; none of them empty
        :raises SearchOutOfBudget:
        """
        self._begin(options)
        sizes = [len(one) for one in options]
        order = sorted(self._all, key=sizes.__getitem__)
        # Where each has as many as there are parts, none is left without.
        fewest = min((sizes[n] for n in self._disputed), default=len(self._disputed))
        if fewest < len(self._disputed) and not self._may_match(self._all):
            return
        rows = [iter(options[order[0]])]
        tried: list[set[int]] = [set()]
        steps = 0
        while rows:
            part = order[len(rows) - 1]
            self._free(part)
            steps += 1
            slot = self._next(part, rows[-1], tried[-1])
            if slot is None:
                rows.pop()
                tried.pop()
                continue
            rest = order[len(rows) :]
            if steps > MATCHED_AFTER and not self._may_match(rest):
                continue
            if rest:
                rows.append(self._row(rest[0]))
                tried.append(set())
            elif self._has_traits():
                state = self._chosen, self._taken, self._loads, self._options, self._option_sets
                yield tuple(self._chosen)
                # Other trees may have been searched meanwhile.
                self._chosen, self._taken, self._loads, self._options, self._option_sets = state

    def _row(self, part: int) -> Iterator[int]:
        """Who is tried for a part: from where the one equal to it before has found its own."""
        options, twin = self._options[part], self._twins.get(part)
        if twin is None:
            return iter(options)
        return iter(options[options.index(self._chosen[twin]) :])

    def _begin(self, options: Sequence[Sequence[int]]) -> None:
        self._options = options
        self._option_sets = [frozenset(one) for one in options] if self._subtrees else []
        self._chosen = [NOWHERE] * len(options)
        self._taken, self._loads = {}, {}

    def _next(self, part: int, row: Iterator[int], tried: set[int]) -> int | None:
        """Take the next one that goes with what is chosen; None: there is none."""
        distinct = self._distinct and len(self._options[part]) > 1
        for slot in row:
            self._budget.take()
            if distinct and self._is_repeated(slot, tried):
                continue
            if self._fits(part, slot):
                self._take(part, slot)
                return slot
        return None

    # -- what is taken -------------------------------------------------------------------
    def _fits(self, part: int, slot: int) -> bool:
        if part in self._rivals and any(self._chosen[n] == slot for n in self._rivals[part]):
            return False
        for name, amount in self._scarce[part]:
            taken = self._taken.get((slot, name), 0)
            if taken and (
                self._parts[part].whole or taken + amount > self._table.classes[name].room(slot)
            ):
                return False
        if self.is_plain:
            return True
        if self._one_of_a_tree and self._parts[part].amounts and not self._is_alone(slot):
            return False
        return all(
            part not in members or self._is_below(part, slot, members) for members in self._subtrees
        )

    def _take(self, part: int, slot: int) -> None:
        self._chosen[part] = slot
        self._loads[slot] = self._loads.get(slot, 0) + 1
        for name, amount in self._scarce[part]:
            amount = ALL if self._parts[part].whole else amount
            self._taken[slot, name] = self._taken.get((slot, name), 0) + amount

    def _free(self, part: int) -> None:
        slot = self._chosen[part]
        if slot == NOWHERE:
            return
        self._chosen[part] = NOWHERE
        self._loads[slot] -= 1
        for name, amount in self._scarce[part]:
            self._taken[slot, name] -= ALL if self._parts[part].whole else amount

    def _is_alone(self, slot: int) -> bool:
        """Whether nothing else is taken of its tree."""
        root = self._table.root
        return all(
            other in (NOWHERE, slot) or not part.amounts or root[other] != root[slot]
            for part, other in zip(self._parts, self._chosen, strict=True)
        )

    def _is_repeated(self, slot: int, tried: set[int]) -> bool:
        """Whether one just like it, of which nothing is taken either, was tried already."""
        if self._loads.get(slot):
            return False
        kind = self._table.kind(slot)
        if kind in tried:
            return True
        tried.add(kind)
        return False

    # -- subtrees, traits, matching ------------------------------------------------------
    def _is_below(self, part: int, slot: int, members: Sequence[int]) -> bool:
        """Whether one that is chosen, or may still be, is above all that are chosen."""
        above = self._above(slot)
        open_to: list[frozenset[int]] = []
        chosen = {slot}
        for n in members:
            if n != part and self._chosen[n] != NOWHERE:
                chosen.add(self._chosen[n])
                above = above & self._above(self._chosen[n])
            elif n != part:
                open_to.append(self._option_sets[n])
        return any(top in chosen or any(top in one for one in open_to) for top in above)

    def _above(self, slot: int) -> frozenset[int]:
        """A provider and all above it."""
        found = self._ancestors.get(slot)
        if found is None:
            path = [slot]
            while (parent := self._table.parent(path[-1])) != NOWHERE and parent not in path:
                path.append(parent)
            found = self._ancestors[slot] = frozenset(path)
        return found

    def _has_traits(self) -> bool:
        """Whether those of the group without suffix have all required traits together."""
        if not self.required:
            return True
        there: set[str] = set()
        for n in self._spread:
            there.update(self._table.entry(self._chosen[n]).traits)
        return all(not there.isdisjoint(names) for names in self.required)

    def _may_match(self, rest: Sequence[int]) -> bool:
        """Whether parts can find room next to what is taken, as far as a matching tells."""
        for apart in self._apart:
            isolated = [n for n in rest if n in apart]
            if len(isolated) < 2:
                continue
            occupied = {self._chosen[n] for n in apart}
            free = [[s for s in self._options[n] if s not in occupied] for n in isolated]
            if not matching.is_possible(free, lambda slot: 1):
                return False
        return all(self._has_room(name, rest) for name in self.contended)

    def _has_room(self, name: str, rest: Sequence[int]) -> bool:
        """The same for one class: each provider has room for so many of the smallest parts."""
        wanting = [n for n in rest if any(one == name for one, _ in self._parts[n].amounts)]
        if len(wanting) < 2:
            return True
        amounts = sorted(dict(self._parts[n].amounts)[name] for n in wanting)
        column = self._table.classes[name]

        def most(slot: int) -> int:
            return matching.most_of(amounts, column.room(slot) - self._taken.get((slot, name), 0))

        return matching.is_possible([self._options[n] for n in wanting], most)


def _twins(query: CandidatesQuery, parts: Sequence[Part]) -> dict[int, int]:
    """Of each part that is like one before it: that one.  Parts of one size keep their order."""
    last: dict[object, int] = {}
    found = {}
    for n, part in enumerate(parts):
        if not part.suffix:
            continue
        sets = [part.suffix in one for one in (*query.same_subtree, *query.apart)]
        group = part.group
        key = (
            *(part.amounts, group.required, group.forbidden, group.member_of),
            *(group.forbidden_aggregates, group.in_tree, group.whole, tuple(sets)),
        )
        if key in last:
            found[n] = last[key]
        last[key] = n
    return found
