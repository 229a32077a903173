# SPDX-License-Identifier: Apache-2.0
"""The best candidate of one tree, for who has that tree alone: the search without columns.

There is one where :func:`gantt.core.candidates.find.find` finds some in a table of this tree and of
who shares with it: columns pay off from some hundred providers on.  It may be another one, as it is
not offered but taken: the root is tried first, then who is below it, then who shares.  Of these
come first whom others need the least, so that what is scarce stays, then who would have the least
left, so that large pieces stay whole.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property

import msgspec

from gantt import exceptions
from gantt.core.candidates.columns import ClassInventory
from gantt.core.candidates.query import SHARES, CandidatesQuery, GroupQuery, Part
from gantt.core.candidates.table import NOWHERE, ProviderEntry, content_of
from gantt.core.candidates.tree_search import SearchBudget, TreeSearch
from gantt.core.resources import scarcity

#: Of the search for the best one: about 50 milliseconds.
FIRST_STEPS = 50_000
_NOTHING = ClassInventory(cap=0)
_Kind = tuple[tuple[str, ...], ...]


class OneTreeSearch:
    """One query, for any number of trees one after another.

    :param query: of its group without a suffix, where it has one, amounts alone count
    """

    def __init__(self, query: CandidatesQuery) -> None:
        self.query, self.parts = query, tuple(query.parts())
        self._search: TreeSearch | None = None
        groups = [msgspec.structs.replace(part.group, suffix='') for part in self.parts]
        keys = [
            (bool(part.suffix), part.amounts, part.whole, group)
            for part, group in zip(self.parts, groups, strict=True)
        ]
        #: By part, the first one that is like it.
        self._likes = [keys.index(key) for key in keys]

    def best(
        self,
        entries: Sequence[ProviderEntry],
        steps: int,
        pausing: Callable[[], None] | None = None,
    ) -> tuple[tuple[int, ...] | None, int]:
        """For each part the place of who gives it in ``entries``, and the steps that it took.

        Where the best is not found in ``FIRST_STEPS``, any is looked for with the others.  What is
        found does not depend on how many may be taken, as long as they are enough.

        :param entries: the root first; then who is below it, or shares with it
        :param pausing: see ``SearchBudget``
        :returns: None: there is none
        :raises SearchOutOfBudget:
        """
        query, traits = self.query, entries[0].traits
        if not query.root_required.issubset(traits) or not query.root_forbidden.isdisjoint(traits):
            return None, 0
        if not self.parts:  # traits of the root were all that was asked for
            return (), 0
        budget = SearchBudget(steps, pausing)
        options = self._options(entries, budget)
        if options is None:
            return None, steps - budget.left
        tree = _OneTree(entries)
        if self._search is None:
            distinct = query.limit is not None
            self._search = TreeSearch(tree, query, self.parts, budget, distinct)
        first = SearchBudget(max(min(FIRST_STEPS, budget.left), 0), pausing)
        try:
            answer = next(self._search.on(tree, first).solutions(options), None)
            return answer, steps - budget.left + first.steps - first.left
        except exceptions.SearchOutOfBudget:
            budget.take(first.steps + (first.steps < FIRST_STEPS))
        hard = self._search.on(tree, budget).solutions(options, largest_first=True)
        return next(hard, None), steps - budget.left

    def _options(
        self, entries: Sequence[ProviderEntry], budget: SearchBudget
    ) -> list[list[int]] | None:
        """For each part who may give it, the best first; None: nobody may give one of them."""
        offered = _offered(entries)
        of_class = {
            name: [n for n in offered if name in entries[n].inventories]
            for name in {part.amounts[0][0] for part in self.parts if part.amounts}
        }
        options: list[list[int]] = []
        order = _Order(entries)
        for part, like in zip(self.parts, self._likes, strict=True):
            if like < len(options):
                options.append(options[like])
                continue
            among = of_class[part.amounts[0][0]] if part.amounts else offered
            budget.take(2 * len(among))
            found = [n for n in among if _gives(entries, n, part)]
            if not found:
                return None
            if len(found) > 1:
                budget.take(len(entries))  # all of them tell what there are few of
                found = order.of(found, part)
            options.append(found)
        return options


class _RoomOf:
    """What is left of one class, by place."""

    def __init__(self, entries: Sequence[ProviderEntry], name: str) -> None:
        self._entries, self._name = entries, name

    def room(self, slot: int) -> int:
        one = self._entries[slot].inventories[self._name]
        return min(one.free, one.max_unit)


class _OneTree:
    """The tree for the search; see ``ProviderTable``.  Slots are places in ``entries``."""

    def __init__(self, entries: Sequence[ProviderEntry]) -> None:
        self._entries = entries
        self._at = {entry.id: n for n, entry in enumerate(entries)}
        self._above = {entry.parent_id for entry in entries}
        self._kinds: dict[Hashable, int] = {}  # content -> the first slot that has it
        self.root = [self._at[entry.root_id] for entry in entries]
        self.nested = sum(entry.parent_id is not None for entry in entries)
        names = dict.fromkeys(name for entry in entries for name in entry.inventories)
        self.classes = {name: _RoomOf(entries, name) for name in names}

    def entry(self, slot: int) -> ProviderEntry:
        return self._entries[slot]

    def parent(self, slot: int) -> int:
        above = self._entries[slot].parent_id
        return NOWHERE if above is None else self._at.get(above, NOWHERE)

    def kind(self, slot: int) -> int:
        entry = self._entries[slot]
        if entry.parent_id is None or entry.id in self._above:
            return slot
        return self._kinds.setdefault(content_of(entry), slot)


class _Order:
    """Orders the providers of a tree for the search, as the module docstring states."""

    def __init__(self, entries: Sequence[ProviderEntry]) -> None:
        self._entries = entries

    @cached_property
    def _kinds(self) -> list[_Kind]:
        return [_kind(entry) for entry in self._entries]

    def of(self, eligible: list[int], part: Part) -> list[int]:
        """Return the providers eligible for a part, the one to try first at the front."""
        entries, kinds = self._entries, self._kinds
        times = [0, *(_times(entry, part) for entry in entries[1:])]
        needs = scarcity.need(kinds, [sum(map(len, kind)) for kind in kinds], times)

        def order(n: int) -> tuple[bool, bool, tuple[int, int], float, _Kind]:
            return _is_apart(entries, n), n > 0, needs[n], _left(entries[n], part), kinds[n]

        return sorted(eligible, key=order)


def _kind(entry: ProviderEntry) -> _Kind:
    """Return the traits and classes of a provider, including those outside of the query."""
    classes = sorted(name for name, one in entry.inventories.items() if one.cap > 0)
    return entry.traits, tuple(classes), entry.others


def _times(entry: ProviderEntry, part: Part) -> int:
    """Return how often the capacity of an unused provider holds a part."""
    caps = [(entry.inventories.get(name, _NOTHING).cap, amount) for name, amount in part.amounts]
    if part.whole:
        return int(all(cap >= amount for cap, amount in caps))
    return min((cap // amount for cap, amount in caps), default=1)


def _is_apart(entries: Sequence[ProviderEntry], n: int) -> bool:
    """Whether one is not below the root, but shares."""
    return entries[n].root_id != entries[0].id


def _offered(entries: Sequence[ProviderEntry]) -> list[int]:
    """Those of the tree, and those that share with one of the tree."""
    root = entries[0].id
    served = {one for entry in entries if entry.root_id == root for one in entry.aggregates}
    return [
        n
        for n, entry in enumerate(entries)
        if entry.root_id == root
        or (SHARES in entry.traits and not served.isdisjoint(entry.aggregates))
    ]


def _gives(entries: Sequence[ProviderEntry], n: int, part: Part) -> bool:
    entry, group = entries[n], part.group
    for name, amount in part.amounts:
        one = entry.inventories.get(name)
        if one is None:
            return False
        wanted = one.cap if part.whole else amount
        if part.whole and not one.cap == one.free >= max(amount, 1):
            return False
        if one.free < wanted or not one.min_unit <= wanted <= one.max_unit:
            return False
        if wanted % one.step_size:
            return False
    return _is_meant(entries, entry, group, part)


def _is_meant(
    entries: Sequence[ProviderEntry], entry: ProviderEntry, group: GroupQuery, part: Part
) -> bool:
    """Whether traits, aggregates and tree are those that are asked for."""
    if not group.forbidden.isdisjoint(entry.traits):
        return False
    if not part.suffix:
        return True
    if any(names.isdisjoint(entry.traits) for names in group.required):
        return False
    if any(names.isdisjoint(entry.aggregates) for names in group.member_of):
        return False
    if not group.forbidden_aggregates.isdisjoint(entry.aggregates):
        return False
    if group.in_tree is None or not part.amounts:
        return True
    return any(one.uuid == group.in_tree and one.root_id == entry.root_id for one in entries)


def _left(entry: ProviderEntry, part: Part) -> float:
    """The share that would be left of the scarcest class."""
    if part.whole or not part.amounts:
        return 0.0
    return min(
        (entry.inventories[name].free - amount) / max(entry.inventories[name].cap, 1)
        for name, amount in part.amounts
    )
