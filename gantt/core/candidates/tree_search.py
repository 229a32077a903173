# SPDX-License-Identifier: Apache-2.0
"""Search within one tree: for each part a provider, so that all of them go together.

Depth first, the part with the fewest providers first.  A branch is cut where the rest cannot
succeed: amounts are summed up as they are taken, subtrees and traits are checked before they are
complete, a matching tells whether the parts that are left find room at all, and a state that failed
once is not tried again where the same is left of other providers.

The cuts change neither the solutions nor their order: they only skip branches without any.

Two necessary conditions end it early.  The matching checks whether parts can be given to providers
at all, each of which takes a limited number.  The bounds check what no matching does: whether
amounts go into rooms of any sizes at all.  Every amount is given a weight; where all of them weigh
more than the most that each room can take, they do not go into the rooms.  The weights are the
amounts themselves, and those of the bounds by S. Martello and P. Toth, "Lower bounds and reduction
procedures for the bin packing problem", Discrete Applied Mathematics 28, 1990: 2 for what is
large, 1 for what is of middle size.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

from gantt import exceptions
from gantt.core.candidates.query import CandidatesQuery, Part
from gantt.core.candidates.table import NO_SLOT, ProviderEntry

#: Steps in one tree after which it pays to look ahead, and to remember failed states.
STEPS_BEFORE_LOOKAHEAD = 256
#: Steps after which the search pauses for others that wait for the thread.
PAUSE_EVERY_STEPS = 2048
#: Amount taken of a provider that is taken whole: more than any has.
WHOLE_PROVIDER = 2**62


class SearchedTable(Protocol):
    """Table that a search reads: providers by small numbers, see ``ProviderTable``."""

    @property
    def nested(self) -> int: ...
    @property
    def root(self) -> Any: ...
    def entry(self, slot: int) -> ProviderEntry: ...
    def free_amount(self, name: str, slot: int) -> int: ...
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
        self.steps_left = steps
        self._pausing = pausing
        self._next_pause = 0 if pausing is None else max(steps - PAUSE_EVERY_STEPS, 0)

    def charge(self, steps: int = 1) -> None:
        """Use up steps.

        :raises SearchOutOfBudget: they are used up; whether there is more is not known
        """
        self.steps_left -= steps
        if self.steps_left < self._next_pause:
            self._pause()

    def _pause(self) -> None:
        if self.steps_left < 0:
            raise exceptions.SearchOutOfBudget(steps=self.steps)
        self._next_pause = max(self.steps_left - PAUSE_EVERY_STEPS, 0)
        if self._pausing is not None:
            self._pausing()


class TreeSearch:
    """Search of one query in any number of trees one after another.

    :param parts: parts of the query, in the order of all answers
    :param distinct: try only one of equal providers below one parent
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
        self.one_provider_per_tree = not query.nested and table.nested > 0
        isolated = frozenset(part.suffix for part in parts if part.suffix and query.isolate)
        #: Sets of parts whose providers differ from each other.
        self.disjoint_sets = [
            rivals
            for suffixes in (isolated, *query.apart)
            if len(rivals := {n for n, p in enumerate(parts) if p.suffix in suffixes}) > 1
        ]
        #: By part, the numbers of the ``disjoint_sets`` sets that it is in.
        self.disjoint_sets_of_part = [
            [k for k, rivals in enumerate(self.disjoint_sets) if n in rivals]
            for n in range(len(parts))
        ]
        self.subtrees = [
            members
            for suffixes in query.same_subtree
            if len(members := [n for n, part in enumerate(parts) if part.suffix in suffixes]) > 1
        ]
        names = [name for part in parts for name, _ in part.amounts]
        self.contended_classes = {name for name in names if names.count(name) > 1}
        #: Parts that may conflict with each other.
        self.conflicting_parts = [
            n
            for n, part in enumerate(parts)
            if self.disjoint_sets_of_part[n]
            or any(name in self.contended_classes for name, _ in part.amounts)
        ]
        self.contended_amounts = [
            [item for item in part.amounts if item[0] in self.contended_classes] for part in parts
        ]
        #: Whether the search reads nothing of providers but which they are, their room of contended
        #: classes, required traits, and which of them are equal.
        self.is_plain = not (self.subtrees or self.one_provider_per_tree)
        self.equal_part_before = _equal_part_before(query, parts) if query.once else {}
        self.unsuffixed_parts = [n for n, part in enumerate(parts) if not part.suffix]
        self.required_traits = (
            parts[self.unsuffixed_parts[0]].group.required if self.unsuffixed_parts else ()
        )
        self.ancestors: dict[int, frozenset[int]] = {}

    def on_table(self, table: SearchedTable, budget: SearchBudget) -> 'TreeSearch':
        """Return itself, for another table and the steps that may be taken there."""
        self.table = table
        self.budget = budget
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
            sizes = [
                max((amount for _, amount in amounts), default=0)
                for amounts in self.contended_amounts
            ]
            order.sort(key=sizes.__getitem__, reverse=True)
        return _TreeWalk(self, options, order).solutions()

    def ancestors_of(self, slot: int) -> frozenset[int]:
        """Return a provider and all above it."""
        above = self.ancestors.get(slot)
        if above is None:
            path = [slot]
            while (parent := self.table.parent(path[-1])) != NO_SLOT and parent not in path:
                path.append(parent)
            above = self.ancestors[slot] = frozenset(path)
        return above


class _TreeWalk:
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
        self._contended_amounts = search.contended_amounts
        self._disjoint_sets_of_part = search.disjoint_sets_of_part
        self._option_sets = [frozenset(slots) for slots in options] if search.subtrees else []
        self._chosen = [NO_SLOT] * len(options)
        self._taken_amounts: dict[tuple[int, str], int] = {}
        self._parts_by_slot: dict[int, int] = {}
        self._occupied: list[set[int]] = [set() for _ in search.disjoint_sets]
        self._remaining: _RemainingParts | None = None
        self._failed_states: set[Hashable] = set()
        self._solutions_found = 0
        self._is_packed = False
        self._is_hopeless = False
        self._lookahead_at = self._next_match_at = search.budget.steps_left - STEPS_BEFORE_LOOKAHEAD

    def solutions(self) -> Iterator[tuple[int, ...]]:
        """Yield the rows; see ``TreeSearch.solutions``."""
        order = self._order
        if not self._may_have_solution():
            return
        rows = [iter(self._options[order[0]])]
        tried: list[set[int]] = [set()]
        # Of each row the mark of what was left before it, if known, and the count found by then.
        marks: list[tuple[Hashable, int]] = [(None, 0)]
        while rows and not self._is_hopeless:
            part = order[len(rows) - 1]
            self._unassign(part)
            slot = self._next_slot(part, rows[-1], tried[-1])
            if slot is None:
                rows.pop()
                tried.pop()
                mark, count = marks.pop()
                if mark is not None and count == self._solutions_found:
                    self._failed_states.add(mark)
                continue
            depth, mark = len(rows), None
            if depth < len(order):
                if self._budget.steps_left < self._lookahead_at:
                    mark = self._state_key(depth)
                    if mark in self._failed_states or self._is_failed_state(mark, depth):
                        continue
                rows.append(self._slots_to_try(order[depth]))
                tried.append(set())
                marks.append((mark, self._solutions_found))
            elif self._has_traits():
                self._solutions_found += 1
                yield tuple(self._chosen)

    def _may_have_solution(self) -> bool:
        """Return whether there is room for all parts, as far as a matching tells."""
        # Where each has as many options as there are parts, none is left without.
        disputed = self._search.conflicting_parts
        fewest = min((len(self._options[n]) for n in disputed), default=len(disputed))
        return fewest >= len(disputed) or self._has_matching(self._order)

    def _is_failed_state(self, mark: Hashable, depth: int) -> bool:
        """Return whether the remaining parts find no room; False where it is not time to check."""
        before = self._budget.steps_left
        if before >= self._next_match_at:
            return False
        may_go = (self._is_packed or self._may_be_packed()) and self._has_matching(
            self._order[depth:]
        )
        # As many steps go into the search as into looking ahead.
        self._next_match_at = 2 * self._budget.steps_left - before
        if not may_go:
            self._failed_states.add(mark)
        return not may_go

    def _slots_to_try(self, part: int) -> Iterator[int]:
        """Return the slots to try for a part: from the choice of the equal part before it on."""
        options, twin = self._options[part], self._search.equal_part_before.get(part)
        if twin is None:
            return iter(options)
        return iter(options[options.index(self._chosen[twin]) :])

    def _next_slot(self, part: int, row: Iterator[int], tried: set[int]) -> int | None:
        """Return the next slot for a part that goes with the choices so far; None: no slot."""
        distinct = self._search.distinct and len(self._options[part]) > 1
        for slot in row:
            self._budget.charge()
            if distinct and self._is_repeated(slot, tried):
                continue
            if self._fits(part, slot):
                self._assign(part, slot)
                return slot
        return None

    # -- what is taken -------------------------------------------------------------------
    def _fits(self, part: int, slot: int) -> bool:
        if any(slot in self._occupied[k] for k in self._disjoint_sets_of_part[part]):
            return False
        for name, amount in self._contended_amounts[part]:
            taken = self._taken_amounts.get((slot, name), 0)
            if taken and (
                self._parts[part].whole or taken + amount > self._table.free_amount(name, slot)
            ):
                return False
        search = self._search
        if search.is_plain:
            return True
        if (
            search.one_provider_per_tree
            and self._parts[part].amounts
            and not self._is_only_choice(slot)
        ):
            return False
        return all(
            part not in members or self._is_below(part, slot, members)
            for members in search.subtrees
        )

    def _assign(self, part: int, slot: int) -> None:
        self._chosen[part] = slot
        self._parts_by_slot[slot] = self._parts_by_slot.get(slot, 0) + 1
        for k in self._disjoint_sets_of_part[part]:
            self._occupied[k].add(slot)
        for name, amount in self._contended_amounts[part]:
            amount = WHOLE_PROVIDER if self._parts[part].whole else amount
            self._taken_amounts[slot, name] = self._taken_amounts.get((slot, name), 0) + amount

    def _unassign(self, part: int) -> None:
        slot = self._chosen[part]
        if slot == NO_SLOT:
            return
        self._chosen[part] = NO_SLOT
        self._parts_by_slot[slot] -= 1
        for k in self._disjoint_sets_of_part[part]:
            self._occupied[k].discard(slot)
        for name, amount in self._contended_amounts[part]:
            self._taken_amounts[slot, name] -= WHOLE_PROVIDER if self._parts[part].whole else amount

    def _is_only_choice(self, slot: int) -> bool:
        """Return whether nothing else is taken of its tree."""
        root = self._table.root
        return all(
            other in (NO_SLOT, slot) or not part.amounts or root[other] != root[slot]
            for part, other in zip(self._parts, self._chosen, strict=True)
        )

    def _is_repeated(self, slot: int, tried: set[int]) -> bool:
        """Return whether a provider of the same kind, also unused, was tried already."""
        if self._parts_by_slot.get(slot):
            return False
        kind = self._table.kind(slot)
        if kind in tried:
            return True
        tried.add(kind)
        return False

    # -- subtrees and traits -------------------------------------------------------------
    def _is_below(self, part: int, slot: int, members: Sequence[int]) -> bool:
        """Return whether a provider that is chosen, or may still be, is above all chosen ones."""
        above = self._search.ancestors_of(slot)
        open_to: list[frozenset[int]] = []
        chosen = {slot}
        for n in members:
            if n != part and self._chosen[n] != NO_SLOT:
                chosen.add(self._chosen[n])
                above = above & self._search.ancestors_of(self._chosen[n])
            elif n != part:
                open_to.append(self._option_sets[n])
        self._budget.charge(len(members))
        return any(top in chosen or any(top in slots for slots in open_to) for top in above)

    def _has_traits(self) -> bool:
        """Return whether providers of the group without suffix have all required traits."""
        required = self._search.required_traits
        if not required:
            return True
        traits: set[str] = set()
        for n in self._search.unsuffixed_parts:
            traits.update(self._table.entry(self._chosen[n]).traits)
        self._budget.charge(len(required))
        return all(not traits.isdisjoint(names) for names in required)

    # -- looking ahead -------------------------------------------------------------------
    def _has_matching(self, rest: Sequence[int]) -> bool:
        """Return whether parts can find room next to what is taken, as far as a matching tells."""
        take = self._budget.charge
        for apart, occupied in zip(self._search.disjoint_sets, self._occupied, strict=True):
            isolated = [n for n in rest if n in apart]
            if len(isolated) < 2:
                continue
            free = [[s for s in self._options[n] if s not in occupied] for n in isolated]
            take(sum(map(len, free)) // 4)
            if not has_matching(free, lambda slot: 1, take):
                return False
        return all(self._has_room(name, rest) for name in self._search.contended_classes)

    def _has_room(self, name: str, rest: Sequence[int]) -> bool:
        """Return whether parts of one class have a matching, by the number that a slot holds."""
        wanting, amounts = self._amounts_of_class(name, rest)
        if len(wanting) < 2:
            return True
        sums = list(accumulate(sorted(amounts), initial=0))
        table = self._table

        def most(slot: int) -> int:
            return largest_count_within(
                sums, table.free_amount(name, slot) - self._taken_amounts.get((slot, name), 0)
            )

        options = [self._options[n] for n in wanting]
        return has_matching(options, most, self._budget.charge)

    def _may_be_packed(self) -> bool:
        """Return whether amounts can be packed into all rooms, as far as bounds tell: once."""
        self._is_packed = True
        for name in self._search.contended_classes if not self._solutions_found else ():
            wanting, amounts = self._amounts_of_class(name, self._order)
            slots = set[int]().union(*(self._options[n] for n in wanting))
            rooms = [self._table.free_amount(name, slot) for slot in slots]
            if not may_be_packed(amounts, rooms, self._budget.charge):
                self._is_hopeless = True
        return not self._is_hopeless

    def _amounts_of_class(self, name: str, among: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the parts among ``among`` that need a class, and the amount of each."""
        amounts = [(n, dict(self._contended_amounts[n]).get(name)) for n in among]
        self._budget.charge(len(amounts))
        return [n for n, amount in amounts if amount is not None], [
            amount for _, amount in amounts if amount is not None
        ]

    # -- what was in vain ----------------------------------------------------------------
    def _state_key(self, depth: int) -> Hashable:
        """Return a key that is the same wherever the parts that are left have the same options.

        Equal parts have the options from the choice of the one before them on.
        """
        search, chosen = self._search, self._chosen
        left_over = self._remaining
        if left_over is None:
            left_over = self._remaining = _RemainingParts(search, self._options, self._order)
        later = [
            (n, chosen[search.equal_part_before[n]])
            for n in left_over.constrained_equal_parts[depth]
        ]
        if not left_over.merges:
            self._budget.charge(2 * (1 + len(self._taken_amounts)))
            return (
                depth,
                tuple(chosen[n] for n in left_over.identity_parts),
                frozenset(item for item in self._taken_amounts.items() if item[1]),
                tuple(map(frozenset, self._occupied)),
                tuple(slot for _, slot in later),
            )
        self._budget.charge(2 * len(left_over.slots))
        meets = 0
        for n in search.unsuffixed_parts if search.required_traits else ():
            if chosen[n] != NO_SLOT:
                meets |= left_over.traits[chosen[n]]
        return (
            depth,
            meets,
            tuple(
                sorted(self._signatures(left_over, depth, meets, self._excluded(left_over, later)))
            ),
        )

    def _excluded(self, of: '_RemainingParts', later: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Return by provider, as bits, the kinds of parts that have passed it already."""
        excluded: dict[int, int] = {}
        for n, slot in later:
            bit, options = of.kind_bits_of_part[n], self._options[n]
            for passed in options[: options.index(slot)]:
                excluded[passed] = excluded.get(passed, 0) | bit
        return excluded

    def _signatures(
        self, of: '_RemainingParts', depth: int, meets: int, excluded: Mapping[int, int]
    ) -> Iterator[int]:
        """Yield a number for each provider that may give something; equal for equal providers."""
        taken, open_kinds, open_sets = (
            self._taken_amounts,
            of.remaining_kinds[depth],
            of.open_sets[depth],
        )
        for slot in of.slots:
            kinds = of.kind_bits_of_slot[slot] & open_kinds & ~excluded.get(slot, 0)
            if not kinds:
                continue
            signature: list[int] = [kinds, of.traits[slot] & ~meets]
            for name, rooms, sums in of.sums_of_class[depth]:
                used = taken.get((slot, name), 0)
                signature.append(largest_sum_within(sums, rooms.get(slot, 0) - used))
                signature.append(of.has_whole and used > 0)
            signature += [slot in self._occupied[k] for k in open_sets]
            yield of.number(tuple(signature))


class _RemainingParts:
    """State of the search of one tree by depth, for the parts that are left.

    :ivar merges: whether providers count by the contents that matter, not by their identity
    :ivar identity_parts: parts whose choices matter by themselves, where it is not so
    :ivar constrained_equal_parts: parts left that are equal to one that has a provider
    :ivar remaining_kinds: kinds of parts, as bits; ``kind_bits_of_part`` by part,
        ``kind_bits_of_slot`` by provider
    :ivar sums_of_class: classes with the rooms of providers, and the subset sums of amounts
    :ivar open_sets: sets that have a part left
    """

    def __init__(
        self, search: TreeSearch, options: Sequence[Sequence[int]], order: Sequence[int]
    ) -> None:
        parts, take = search.parts, search.budget.charge
        self.merges = search.is_plain
        members = {n for subtree in search.subtrees for n in subtree}
        members.update(search.unsuffixed_parts if search.required_traits else ())
        members.update(
            n for n, part in enumerate(parts) if part.amounts and search.one_provider_per_tree
        )
        self.identity_parts = sorted(members)
        self.has_whole = any(part.whole for part in parts)
        self.slots = list(dict.fromkeys(slot for slots in options for slot in slots))
        take(sum(map(len, options)))
        places = {n: at for at, n in enumerate(order)}
        self.constrained_equal_parts = [
            [
                n
                for n in order[depth:]
                if n in search.equal_part_before and places[search.equal_part_before[n]] < depth
            ]
            for depth in range(len(order))
        ]
        self._numbers: dict[tuple[int, ...], int] = {}
        self.kind_bits_of_part, self.kind_bits_of_slot = self._kinds(search, options)
        self.traits = dict.fromkeys(self.slots, 0)
        if search.required_traits:
            take(len(self.slots) * len(search.required_traits))
            for slot in self.slots:
                traits = search.table.entry(slot).traits
                for k, names in enumerate(search.required_traits):
                    self.traits[slot] |= (not names.isdisjoint(traits)) << k
        self._by_depth(search, options, order)

    def number(self, signature: tuple[int, ...]) -> int:
        """Return the number of providers with equal contents."""
        return self._numbers.setdefault(signature, len(self._numbers))

    @staticmethod
    def _kinds(
        search: TreeSearch, options: Sequence[Sequence[int]]
    ) -> tuple[list[int], dict[int, int]]:
        kinds: dict[Hashable, int] = {}
        chains: dict[int, int] = {}
        bits = []
        may: dict[int, int] = {}
        for n, slots in enumerate(options):
            chains[n] = chains[search.equal_part_before[n]] if n in search.equal_part_before else n
            key = tuple(search.contended_amounts[n]), search.parts[n].whole, tuple(slots)
            is_twin = n in search.equal_part_before or n in search.equal_part_before.values()
            chain = chains[n] if is_twin else None
            is_spread = bool(search.required_traits) and not search.parts[n].suffix
            kind = kinds.setdefault(
                (key, tuple(search.disjoint_sets_of_part[n]), chain, is_spread), len(kinds)
            )
            bits.append(1 << kind)
            for slot in slots:
                may[slot] = may.get(slot, 0) | 1 << kind
        return bits, may

    def _by_depth(
        self, search: TreeSearch, options: Sequence[Sequence[int]], order: Sequence[int]
    ) -> None:
        take, table = search.budget.charge, search.table
        self.remaining_kinds = [0] * len(order)
        self.open_sets: list[list[int]] = [[] for _ in order]
        for depth in range(len(order)):
            for n in order[depth:]:
                self.remaining_kinds[depth] |= self.kind_bits_of_part[n]
            rest = set(order[depth:])
            self.open_sets[depth] = [
                k for k, rivals in enumerate(search.disjoint_sets) if rivals & rest
            ]
        self.sums_of_class: list[list[tuple[str, dict[int, int], list[int] | None]]] = [
            [] for _ in order
        ]
        for name in sorted(search.contended_classes):
            wanting = [
                any(other == name for other, _ in search.contended_amounts[n])
                for n in range(len(order))
            ]
            slots = set[int]().union(*(options[n] for n in order if wanting[n]))
            rooms = {slot: table.free_amount(name, slot) for slot in slots}
            largest = max(rooms.values())
            sums: list[int] | None = [0]
            for depth in range(len(order) - 1, -1, -1):
                part = order[depth]
                if wanting[part] and sums is not None:
                    amount = dict(search.contended_amounts[part])[name]
                    take(len(sums))
                    more = {
                        partial + amount for partial in sums if partial + amount <= largest
                    }.union(sums)
                    sums = sorted(more) if len(more) <= SUBSET_SUMS_MAX else None
                if any(wanting[n] for n in order[depth:]):
                    self.sums_of_class[depth].append((name, rooms, sums))


def _equal_part_before(query: CandidatesQuery, parts: Sequence[Part]) -> dict[int, int]:
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


#: Subset sums that are listed; where there are more, rooms count as they are.
SUBSET_SUMS_MAX = 512
#: Sizes that are tried as the least of what is large, and of what is of middle size.
BOUND_SIZES_MAX = 8
#: Charges a number of steps.
ChargeSteps = Callable[[int], None]


def subset_sums(amounts: Sequence[int], sum_max: int, charge: ChargeSteps) -> list[int] | None:
    """Return all subset sums of the amounts, ascending, up to ``sum_max``; None: too many."""
    sums = {0}
    for amount in amounts:
        charge(len(sums))
        sums |= {partial + amount for partial in sums if partial + amount <= sum_max}
        if len(sums) > SUBSET_SUMS_MAX:
            return None
    return sorted(sums)


def largest_sum_within(sums: Sequence[int] | None, room: int) -> int:
    """Return the largest amount, at most the room, that amounts with these sums can fill."""
    room = max(room, 0)
    return room if sums is None else sums[bisect_right(sums, room) - 1]


def may_be_packed(amounts: Sequence[int], rooms: Sequence[int], charge: ChargeSteps) -> bool:
    """Return whether amounts may go into rooms; True is no promise."""
    total = sum(amounts)
    sums = subset_sums(sorted(amounts, reverse=True), max(rooms, default=0), charge)
    sizes = Counter(largest_sum_within(sums, min(room, total)) for room in rooms)
    if total > sum(size * count for size, count in sizes.items()):
        return False
    for weights, ones, twos in _sums_by_weight(amounts):
        capacity = 0
        for size, count in sizes.items():
            charge(1 + len(twos))
            capacity += count * _max_weight(ones, twos, size)
        if weights > capacity:
            return False
    return True


def _sums_by_weight(amounts: Sequence[int]) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield total weights, and the sums of the smallest that weigh 1, and that weigh 2."""
    ascending = sorted(amounts)
    sizes = sorted(set(amounts))
    sizes = sizes[:: -(-len(sizes) // BOUND_SIZES_MAX)]
    for n, middle in enumerate(sizes):
        for large in sizes[n:]:
            ones = [amount for amount in ascending if middle <= amount < large]
            twos = [amount for amount in ascending if amount >= large]
            yield (
                len(ones) + 2 * len(twos),
                list(accumulate(ones, initial=0)),
                list(accumulate(twos, initial=0)),
            )


def _max_weight(ones: Sequence[int], twos: Sequence[int], size: int) -> int:
    """Return the most weight that goes into a room."""
    return max(
        2 * count + bisect_right(ones, size - taken) - 1
        for count, taken in enumerate(twos[: bisect_right(twos, size)])
    )


def has_matching(
    options: Sequence[Sequence[int]], capacity: Callable[[int], int], charge: Callable[[int], None]
) -> bool:
    """Return whether each part finds one of its providers, none of which is given too many.

    :param options: for each part the providers that may give it
    :param capacity: returns how many parts a provider takes
    :param charge: charges a number of steps
    """
    bounds: dict[int, int] = {}
    given: dict[int, list[int]] = {}
    return all(
        _assign_part(n, options, capacity, charge, bounds, given, set())
        for n in range(len(options))
    )


def _assign_part(
    part: int,
    options: Sequence[Sequence[int]],
    capacity: Callable[[int], int],
    charge: Callable[[int], None],
    bounds: dict[int, int],
    given: dict[int, list[int]],
    seen: set[int],
) -> bool:
    """Give a part to a provider, moving others where that helps."""
    for n, slot in enumerate(options[part]):
        if slot not in bounds:
            bounds[slot] = capacity(slot)
        parts = given.setdefault(slot, [])
        if len(parts) < bounds[slot]:
            charge(n + 1)
            parts.append(part)
            return True
    charge(2 * len(options[part]))
    for slot in options[part]:
        if slot in seen:
            continue
        seen.add(slot)
        parts = given[slot]
        for n, other in enumerate(parts):
            if _assign_part(other, options, capacity, charge, bounds, given, seen):
                parts[n] = part
                return True
    return False


def largest_count_within(sums: Sequence[int], room: int) -> int:
    """Return the largest number of amounts that have room together.

    :param sums: sum of the smallest amounts, by their number, from 0 on
    """
    return max(bisect_right(sums, room) - 1, 0)
