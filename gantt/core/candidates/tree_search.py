# SPDX-License-Identifier: Apache-2.0
"""Search within one tree: for each part a provider, so that all of them go together.

Depth first, the part with the fewest providers first.  A branch is cut where the rest cannot
succeed: amounts are summed up as they are taken, subtrees and traits are checked before they are
complete, a matching tells whether the parts that are left find room at all, and a state that failed
once is not tried again where the same is left of other providers.

The cuts change neither the solutions nor their order: they only skip branches without any.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

from gantt import exceptions
from gantt.core.candidates import feasibility
from gantt.core.candidates.query import CandidatesQuery, Part
from gantt.core.candidates.table import NOWHERE, ProviderEntry

#: Steps in one tree after which it pays to look ahead, and to remember failed states.
EASY_LOOKS = 256
#: Steps after which the search pauses for others that wait for the thread.
PAUSED_EACH = 2048
#: Amount taken of a provider that is taken whole: more than any has.
ALL = 2**62


class RoomByPlace(Protocol):
    """Remaining room of one class."""

    def room(self, slot: int) -> int: ...


class SearchedTable(Protocol):
    """Table that a search reads: providers by small numbers, see ``ProviderTable``."""

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
    """Steps that a search may take in all.

    :param steps: each is a provider that is evaluated for a part: about a microsecond, whatever the
        check
    :param pausing: called now and then; may end the search by ``SearchOutOfBudget``
    """

    def __init__(self, steps: int, pausing: Callable[[], None] | None = None) -> None:
        self.steps = steps
        self.left = steps
        self._pausing = pausing
        self._next = 0 if pausing is None else max(steps - PAUSED_EACH, 0)

    def take(self, steps: int = 1) -> None:
        """Use up steps.

        :raises SearchOutOfBudget: they are used up; whether there is more is not known
        """
        self.left -= steps
        if self.left < self._next:
            self._pause()

    def _pause(self) -> None:
        if self.left < 0:
            raise exceptions.SearchOutOfBudget(steps=self.steps)
        self._next = max(self.left - PAUSED_EACH, 0)
        if self._pausing is not None:
            self._pausing()


class TreeSearch:
    """Search of one query in any number of trees one after another.

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
        self.table = table
        self.parts = parts
        self.budget = budget
        self.distinct = distinct
        self.one_of_a_tree = not query.nested and table.nested > 0
        isolated = frozenset(part.suffix for part in parts if part.suffix and query.isolate)
        #: Sets of parts whose providers differ from each other.
        self.apart = [
            rivals
            for suffixes in (isolated, *query.apart)
            if len(rivals := {n for n, p in enumerate(parts) if p.suffix in suffixes}) > 1
        ]
        #: By part, the numbers of the ``apart`` sets that it is in.
        self.sets_of = [
            [k for k, rivals in enumerate(self.apart) if n in rivals] for n in range(len(parts))
        ]
        self.subtrees = [
            members
            for suffixes in query.same_subtree
            if len(members := [n for n, part in enumerate(parts) if part.suffix in suffixes]) > 1
        ]
        names = [name for part in parts for name, _ in part.amounts]
        self.contended = {name for name in names if names.count(name) > 1}
        #: Parts that may conflict with each other.
        self.disputed = [
            n
            for n, part in enumerate(parts)
            if self.sets_of[n] or any(name in self.contended for name, _ in part.amounts)
        ]
        self.scarce = [
            [item for item in part.amounts if item[0] in self.contended] for part in parts
        ]
        #: Whether the search reads nothing of providers but which they are, their room of contended
        #: classes, required traits, and which of them are equal.
        self.is_plain = not (self.subtrees or self.one_of_a_tree)
        self.twins = _twins(query, parts) if query.once else {}
        self.spread = [n for n, part in enumerate(parts) if not part.suffix]
        self.required = parts[self.spread[0]].group.required if self.spread else ()
        self.ancestors: dict[int, frozenset[int]] = {}

    def on(self, table: SearchedTable, budget: SearchBudget) -> 'TreeSearch':
        """Return itself, for another table and the steps that may be taken there."""
        self.table, self.budget = table, budget
        self.ancestors = {}
        return self

    def solutions(
        self, options: Sequence[Sequence[int]], *, largest_first: bool = False
    ) -> Iterator[tuple[int, ...]]:
        """Yield all choices for one anchor, each once: a slot for each part.

        :param options: for each part the slots that may give it, the best first; none of them empty
        :param largest_first: the part with the largest amounts first, for one that is hard to pack
        :raises SearchOutOfBudget:
        """
        order = sorted(range(len(options)), key=[len(slots) for slots in options].__getitem__)
        if largest_first:
            sizes = [max((amount for _, amount in amounts), default=0) for amounts in self.scarce]
            order.sort(key=sizes.__getitem__, reverse=True)
        return _Walk(self, options, order).solutions()

    def above(self, slot: int) -> frozenset[int]:
        """Return a provider and all above it."""
        above = self.ancestors.get(slot)
        if above is None:
            path = [slot]
            while (parent := self.table.parent(path[-1])) != NOWHERE and parent not in path:
                path.append(parent)
            above = self.ancestors[slot] = frozenset(path)
        return above


class _Walk:
    """State of the search in one tree."""

    def __init__(
        self, search: TreeSearch, options: Sequence[Sequence[int]], order: Sequence[int]
    ) -> None:
        self._search = search
        self._options = options
        self._order = order
        self._table = search.table
        self._budget = search.budget
        self._parts = search.parts
        self._scarce = search.scarce
        self._sets_of = search.sets_of
        self._option_sets = [frozenset(slots) for slots in options] if search.subtrees else []
        self._chosen = [NOWHERE] * len(options)
        self._taken: dict[tuple[int, str], int] = {}
        self._loads: dict[int, int] = {}
        self._occupied: list[set[int]] = [set() for _ in search.apart]
        self._left_over: _LeftOver | None = None
        self._in_vain: set[Hashable] = set()
        self._found = 0
        self._is_packed = False
        self._is_hopeless = False
        self._easy_until = self._match_at = search.budget.left - EASY_LOOKS

    def solutions(self) -> Iterator[tuple[int, ...]]:
        """Yield the rows; see ``TreeSearch.solutions``."""
        order = self._order
        if not self._may_begin():
            return
        rows = [iter(self._options[order[0]])]
        tried: list[set[int]] = [set()]
        # Of each row the mark of what was left before it, if known, and the count found by then.
        marks: list[tuple[Hashable, int]] = [(None, 0)]
        while rows and not self._is_hopeless:
            part = order[len(rows) - 1]
            self._free(part)
            slot = self._next(part, rows[-1], tried[-1])
            if slot is None:
                rows.pop()
                tried.pop()
                mark, count = marks.pop()
                if mark is not None and count == self._found:
                    self._in_vain.add(mark)
                continue
            depth, mark = len(rows), None
            if depth < len(order):
                if self._budget.left < self._easy_until:
                    mark = self._mark(depth)
                    if mark in self._in_vain or self._is_in_vain(mark, depth):
                        continue
                rows.append(self._row(order[depth]))
                tried.append(set())
                marks.append((mark, self._found))
            elif self._has_traits():
                self._found += 1
                yield tuple(self._chosen)

    def _may_begin(self) -> bool:
        """Return whether there is room for all parts, as far as a matching tells."""
        # Where each has as many options as there are parts, none is left without.
        disputed = self._search.disputed
        fewest = min((len(self._options[n]) for n in disputed), default=len(disputed))
        return fewest >= len(disputed) or self._may_match(self._order)

    def _is_in_vain(self, mark: Hashable, depth: int) -> bool:
        """Return whether the parts that are left find no room, where it is time to look ahead."""
        before = self._budget.left
        if before >= self._match_at:
            return False
        may_go = (self._is_packed or self._may_pack()) and self._may_match(self._order[depth:])
        # As many steps go into the search as into looking ahead.
        self._match_at = 2 * self._budget.left - before
        if not may_go:
            self._in_vain.add(mark)
        return not may_go

    def _row(self, part: int) -> Iterator[int]:
        """Return the slots to try for a part: from the choice of the equal part before it on."""
        options, twin = self._options[part], self._search.twins.get(part)
        if twin is None:
            return iter(options)
        return iter(options[options.index(self._chosen[twin]) :])

    def _next(self, part: int, row: Iterator[int], tried: set[int]) -> int | None:
        """Take the next slot that goes with what is chosen; None: there is none."""
        distinct = self._search.distinct and len(self._options[part]) > 1
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
        if any(slot in self._occupied[k] for k in self._sets_of[part]):
            return False
        for name, amount in self._scarce[part]:
            taken = self._taken.get((slot, name), 0)
            if taken and (
                self._parts[part].whole or taken + amount > self._table.classes[name].room(slot)
            ):
                return False
        search = self._search
        if search.is_plain:
            return True
        if search.one_of_a_tree and self._parts[part].amounts and not self._is_alone(slot):
            return False
        return all(
            part not in members or self._is_below(part, slot, members)
            for members in search.subtrees
        )

    def _take(self, part: int, slot: int) -> None:
        self._chosen[part] = slot
        self._loads[slot] = self._loads.get(slot, 0) + 1
        for k in self._sets_of[part]:
            self._occupied[k].add(slot)
        for name, amount in self._scarce[part]:
            amount = ALL if self._parts[part].whole else amount
            self._taken[slot, name] = self._taken.get((slot, name), 0) + amount

    def _free(self, part: int) -> None:
        slot = self._chosen[part]
        if slot == NOWHERE:
            return
        self._chosen[part] = NOWHERE
        self._loads[slot] -= 1
        for k in self._sets_of[part]:
            self._occupied[k].discard(slot)
        for name, amount in self._scarce[part]:
            self._taken[slot, name] -= ALL if self._parts[part].whole else amount

    def _is_alone(self, slot: int) -> bool:
        """Return whether nothing else is taken of its tree."""
        root = self._table.root
        return all(
            other in (NOWHERE, slot) or not part.amounts or root[other] != root[slot]
            for part, other in zip(self._parts, self._chosen, strict=True)
        )

    def _is_repeated(self, slot: int, tried: set[int]) -> bool:
        """Return whether a provider of the same kind, also unused, was tried already."""
        if self._loads.get(slot):
            return False
        kind = self._table.kind(slot)
        if kind in tried:
            return True
        tried.add(kind)
        return False

    # -- subtrees and traits -------------------------------------------------------------
    def _is_below(self, part: int, slot: int, members: Sequence[int]) -> bool:
        """Return whether a provider that is chosen, or may still be, is above all chosen ones."""
        above = self._search.above(slot)
        open_to: list[frozenset[int]] = []
        chosen = {slot}
        for n in members:
            if n != part and self._chosen[n] != NOWHERE:
                chosen.add(self._chosen[n])
                above = above & self._search.above(self._chosen[n])
            elif n != part:
                open_to.append(self._option_sets[n])
        self._budget.take(len(members))
        return any(top in chosen or any(top in slots for slots in open_to) for top in above)

    def _has_traits(self) -> bool:
        """Return whether providers of the group without suffix have all required traits."""
        required = self._search.required
        if not required:
            return True
        traits: set[str] = set()
        for n in self._search.spread:
            traits.update(self._table.entry(self._chosen[n]).traits)
        self._budget.take(len(required))
        return all(not traits.isdisjoint(names) for names in required)

    # -- looking ahead -------------------------------------------------------------------
    def _may_match(self, rest: Sequence[int]) -> bool:
        """Return whether parts can find room next to what is taken, as far as a matching tells."""
        take = self._budget.take
        for apart, occupied in zip(self._search.apart, self._occupied, strict=True):
            isolated = [n for n in rest if n in apart]
            if len(isolated) < 2:
                continue
            free = [[s for s in self._options[n] if s not in occupied] for n in isolated]
            take(sum(map(len, free)) // 4)
            if not feasibility.has_matching(free, lambda slot: 1, take):
                return False
        return all(self._has_room(name, rest) for name in self._search.contended)

    def _has_room(self, name: str, rest: Sequence[int]) -> bool:
        """Return whether one class matches: each provider takes so many of the smallest parts."""
        wanting, amounts = self._wanting(name, rest)
        if len(wanting) < 2:
            return True
        sums = list(accumulate(sorted(amounts), initial=0))
        column = self._table.classes[name]

        def most(slot: int) -> int:
            return feasibility.most_of(sums, column.room(slot) - self._taken.get((slot, name), 0))

        options = [self._options[n] for n in wanting]
        return feasibility.has_matching(options, most, self._budget.take)

    def _may_pack(self) -> bool:
        """Return whether amounts can be packed into all rooms, as far as bounds tell: once."""
        self._is_packed = True
        for name in self._search.contended if not self._found else ():
            wanting, amounts = self._wanting(name, self._order)
            slots = set[int]().union(*(self._options[n] for n in wanting))
            rooms = [self._table.classes[name].room(slot) for slot in slots]
            if not feasibility.may_be_packed(amounts, rooms, self._budget.take):
                self._is_hopeless = True
        return not self._is_hopeless

    def _wanting(self, name: str, among: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the parts that take of a class, and how much each."""
        amounts = [(n, dict(self._scarce[n]).get(name)) for n in among]
        self._budget.take(len(amounts))
        return [n for n, amount in amounts if amount is not None], [
            amount for _, amount in amounts if amount is not None
        ]

    # -- what was in vain ----------------------------------------------------------------
    def _mark(self, depth: int) -> Hashable:
        """Return a key that is the same wherever the parts that are left have the same options.

        Equal parts have the options from the choice of the one before them on.
        """
        search, chosen = self._search, self._chosen
        left_over = self._left_over
        if left_over is None:
            left_over = self._left_over = _LeftOver(search, self._options, self._order)
        later = [(n, chosen[search.twins[n]]) for n in left_over.followers[depth]]
        if not left_over.merges:
            self._budget.take(2 * (1 + len(self._taken)))
            return (
                depth,
                tuple(chosen[n] for n in left_over.special),
                frozenset(item for item in self._taken.items() if item[1]),
                tuple(map(frozenset, self._occupied)),
                tuple(slot for _, slot in later),
            )
        self._budget.take(2 * len(left_over.slots))
        meets = 0
        for n in search.spread if search.required else ():
            if chosen[n] != NOWHERE:
                meets |= left_over.traits[chosen[n]]
        return (
            depth,
            meets,
            tuple(sorted(self._looks(left_over, depth, meets, self._barred(left_over, later)))),
        )

    def _barred(self, of: '_LeftOver', later: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Return by provider, as bits, the kinds of parts that have passed it already."""
        barred: dict[int, int] = {}
        for n, slot in later:
            bit, options = of.bits[n], self._options[n]
            for passed in options[: options.index(slot)]:
                barred[passed] = barred.get(passed, 0) | bit
        return barred

    def _looks(
        self, of: '_LeftOver', depth: int, meets: int, barred: Mapping[int, int]
    ) -> Iterator[int]:
        """Yield a number for each provider that may give something; equal for equal providers."""
        taken, open_kinds, open_sets = self._taken, of.left[depth], of.open_sets[depth]
        for slot in of.slots:
            kinds = of.may[slot] & open_kinds & ~barred.get(slot, 0)
            if not kinds:
                continue
            looks: list[int] = [kinds, of.traits[slot] & ~meets]
            for name, rooms, sums in of.wanted[depth]:
                used = taken.get((slot, name), 0)
                looks.append(feasibility.filled(sums, rooms.get(slot, 0) - used))
                looks.append(of.has_whole and used > 0)
            looks += [slot in self._occupied[k] for k in open_sets]
            yield of.number(tuple(looks))


class _LeftOver:
    """State of the search of one tree by depth, for the parts that are left.

    :ivar merges: whether providers count by the contents that matter, not by their identity
    :ivar special: parts whose choices matter by themselves, where it is not so
    :ivar followers: parts left that are equal to one that has a provider
    :ivar left: kinds of parts, as bits; ``bits`` by part, ``may`` by provider
    :ivar wanted: classes with the rooms of providers, and the subset sums of amounts
    :ivar open_sets: sets that have a part left
    """

    def __init__(
        self, search: TreeSearch, options: Sequence[Sequence[int]], order: Sequence[int]
    ) -> None:
        parts, take = search.parts, search.budget.take
        self.merges = search.is_plain
        members = {n for subtree in search.subtrees for n in subtree}
        members.update(search.spread if search.required else ())
        members.update(n for n, part in enumerate(parts) if part.amounts and search.one_of_a_tree)
        self.special = sorted(members)
        self.has_whole = any(part.whole for part in parts)
        self.slots = list(dict.fromkeys(slot for slots in options for slot in slots))
        take(sum(map(len, options)))
        places = {n: at for at, n in enumerate(order)}
        self.followers = [
            [n for n in order[depth:] if n in search.twins and places[search.twins[n]] < depth]
            for depth in range(len(order))
        ]
        self._numbers: dict[tuple[int, ...], int] = {}
        self.bits, self.may = self._kinds(search, options)
        self.traits = dict.fromkeys(self.slots, 0)
        if search.required:
            take(len(self.slots) * len(search.required))
            for slot in self.slots:
                traits = search.table.entry(slot).traits
                for k, names in enumerate(search.required):
                    self.traits[slot] |= (not names.isdisjoint(traits)) << k
        self._by_depth(search, options, order)

    def number(self, looks: tuple[int, ...]) -> int:
        """Return the number of providers with equal contents."""
        return self._numbers.setdefault(looks, len(self._numbers))

    @staticmethod
    def _kinds(
        search: TreeSearch, options: Sequence[Sequence[int]]
    ) -> tuple[list[int], dict[int, int]]:
        kinds: dict[Hashable, int] = {}
        chains: dict[int, int] = {}
        bits = []
        may: dict[int, int] = {}
        for n, slots in enumerate(options):
            chains[n] = chains[search.twins[n]] if n in search.twins else n
            key = tuple(search.scarce[n]), search.parts[n].whole, tuple(slots)
            is_twin = n in search.twins or n in search.twins.values()
            chain = chains[n] if is_twin else None
            is_spread = bool(search.required) and not search.parts[n].suffix
            kind = kinds.setdefault((key, tuple(search.sets_of[n]), chain, is_spread), len(kinds))
            bits.append(1 << kind)
            for slot in slots:
                may[slot] = may.get(slot, 0) | 1 << kind
        return bits, may

    def _by_depth(
        self, search: TreeSearch, options: Sequence[Sequence[int]], order: Sequence[int]
    ) -> None:
        take, table = search.budget.take, search.table
        self.left = [0] * len(order)
        self.open_sets: list[list[int]] = [[] for _ in order]
        for depth in range(len(order)):
            for n in order[depth:]:
                self.left[depth] |= self.bits[n]
            rest = set(order[depth:])
            self.open_sets[depth] = [k for k, rivals in enumerate(search.apart) if rivals & rest]
        self.wanted: list[list[tuple[str, dict[int, int], list[int] | None]]] = [[] for _ in order]
        for name in sorted(search.contended):
            wanting = [
                any(other == name for other, _ in search.scarce[n]) for n in range(len(order))
            ]
            slots = set[int]().union(*(options[n] for n in order if wanting[n]))
            rooms = {slot: table.classes[name].room(slot) for slot in slots}
            largest = max(rooms.values())
            sums: list[int] | None = [0]
            for depth in range(len(order) - 1, -1, -1):
                part = order[depth]
                if wanting[part] and sums is not None:
                    amount = dict(search.scarce[part])[name]
                    take(len(sums))
                    more = {
                        partial + amount for partial in sums if partial + amount <= largest
                    }.union(sums)
                    sums = sorted(more) if len(more) <= feasibility.SUMS_MAX else None
                if any(wanting[n] for n in order[depth:]):
                    self.wanted[depth].append((name, rooms, sums))


def _twins(query: CandidatesQuery, parts: Sequence[Part]) -> dict[int, int]:
    """Return for each part the equal part before it.  Parts of one size keep their order."""
    last: dict[object, int] = {}
    twins = {}
    for n, part in enumerate(parts):
        if not part.suffix:
            continue
        sets = [part.suffix in suffixes for suffixes in (*query.same_subtree, *query.apart)]
        group = part.group
        key = (
            *(part.amounts, group.required, group.forbidden, group.member_of),
            *(group.forbidden_aggregates, group.in_tree, group.whole, tuple(sets)),
        )
        if key in last:
            twins[n] = last[key]
        last[key] = n
    return twins
