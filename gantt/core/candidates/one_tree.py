# SPDX-License-Identifier: Apache-2.0
"""Search for the best candidate of one tree, for callers with that tree alone, without columns.

There is one where :func:`gantt.core.candidates.find.find_candidates` finds some in a table of this
tree and of the providers that share with it: columns pay off from some hundred providers on.  It
may be another one, as it is taken, not offered: the root is tried first, then providers below it,
then sharing ones.  Among these, providers that few other requests need come first, so that what is
scarce stays, then those with the least left, so that large pieces stay whole.
"""

from collections.abc import Callable, Hashable, Sequence

import msgspec

from gantt import exceptions
from gantt.core.candidates.query import SHARES_TRAIT, CandidatesQuery, GroupQuery, Part
from gantt.core.candidates.table import NO_SLOT, ClassInventory, ProviderEntry, content_of
from gantt.core.candidates.tree_search import SearchBudget, TreeSearch
from gantt.core.resources import scarcity

#: Steps of the search for the best one: about 50 milliseconds.
FIRST_STEPS = 50_000
_NO_INVENTORY = ClassInventory(cap=0)
_Kind = tuple[tuple[str, ...], ...]


class OneTreeSearch:
    """Search of one query in any number of trees one after another.

    :param query: of its group without a suffix, if any, only amounts count
    """

    def __init__(self, query: CandidatesQuery) -> None:
        self.query = query
        self.parts = tuple(query.parts())
        self._search: TreeSearch | None = None
        groups = [msgspec.structs.replace(part.group, suffix='') for part in self.parts]
        keys = [
            (bool(part.suffix), part.amounts, part.whole, group)
            for part, group in zip(self.parts, groups, strict=True)
        ]
        #: By part, the first one that is like it.
        self._first_equal_part = [keys.index(key) for key in keys]

    def best_solution(
        self,
        entries: Sequence[ProviderEntry],
        steps: int,
        pausing: Callable[[], None] | None = None,
    ) -> tuple[tuple[int, ...] | None, int]:
        """Return for each part the index in ``entries`` of its provider, and the steps used.

        Where the best is not found in ``FIRST_STEPS``, the other steps search for any.  The result
        does not depend on how many may be taken, as long as they are enough.

        :param entries: the root first; then providers below it, or that share with it
        :param pausing: see ``SearchBudget``
        :returns: None: there is none
        :raises SearchOutOfBudget:
        """
        query, traits = self.query, entries[0].traits
        if not query.root_required.issubset(traits) or not query.root_forbidden.isdisjoint(traits):
            return None, 0
        if not self.parts:  # the query has traits of the root only
            return (), 0
        budget = SearchBudget(steps, pausing)
        options = self._options(entries, budget)
        if options is None:
            return None, steps - budget.steps_left
        tree = _OneTree(entries)
        if self._search is None:
            distinct = query.limit is not None
            self._search = TreeSearch(tree, query, self.parts, budget, distinct)
        first = SearchBudget(max(min(FIRST_STEPS, budget.steps_left), 0), pausing)
        try:
            answer = next(self._search.on_table(tree, first).solutions(options), None)
            return answer, steps - budget.steps_left + first.steps - first.steps_left
        except exceptions.SearchOutOfBudget:
            budget.charge(first.steps + (first.steps < FIRST_STEPS))
        hard = self._search.on_table(tree, budget).solutions(options, largest_first=True)
        return next(hard, None), steps - budget.steps_left

    def _options(
        self, entries: Sequence[ProviderEntry], budget: SearchBudget
    ) -> list[list[int]] | None:
        """Return for each part its providers, the best first; None: one of them has none."""
        offered = _providers_offered(entries)
        of_class = {
            name: [n for n in offered if name in entries[n].inventories]
            for name in {part.amounts[0][0] for part in self.parts if part.amounts}
        }
        options: list[list[int]] = []
        kinds: list[_Kind] = []
        for part, like in zip(self.parts, self._first_equal_part, strict=True):
            if like < len(options):
                options.append(options[like])
                continue
            among = of_class[part.amounts[0][0]] if part.amounts else offered
            budget.charge(2 * len(among))
            givers = [n for n in among if _has_amounts(entries, n, part)]
            if not givers:
                return None
            if len(givers) > 1:
                budget.charge(len(entries))  # scarcity is counted over all of them
                kinds = kinds or [_kind(entry) for entry in entries]
                givers = _in_order(entries, kinds, givers, part)
            options.append(givers)
        return options


class _OneTree:
    """Tree as the search reads it; see ``ProviderTable``.  Slots are indices into ``entries``."""

    def __init__(self, entries: Sequence[ProviderEntry]) -> None:
        self._entries = entries
        self._slot_of_provider = {entry.id: n for n, entry in enumerate(entries)}
        self._parent_ids = {entry.parent_id for entry in entries}
        self._kinds: dict[Hashable, int] = {}  # content -> the first slot that has it
        self.root = [self._slot_of_provider[entry.root_id] for entry in entries]
        self.nested = sum(entry.parent_id is not None for entry in entries)

    def entry(self, slot: int) -> ProviderEntry:
        return self._entries[slot]

    def free_amount(self, name: str, slot: int) -> int:
        inventory = self._entries[slot].inventories[name]
        return min(inventory.free, inventory.max_unit)

    def parent(self, slot: int) -> int:
        above = self._entries[slot].parent_id
        return NO_SLOT if above is None else self._slot_of_provider.get(above, NO_SLOT)

    def kind(self, slot: int) -> int:
        entry = self._entries[slot]
        if entry.parent_id is None or entry.id in self._parent_ids:
            return slot
        return self._kinds.setdefault(content_of(entry), slot)


def _in_order(
    entries: Sequence[ProviderEntry], kinds: Sequence[_Kind], eligible: list[int], part: Part
) -> list[int]:
    """Return the providers eligible for a part, the one to try first at the front.

    The root comes first, then providers below it, then sharing ones; among these what few others
    need, then what has the least left.

    :param kinds: of each entry
    """
    root_id = entries[0].id
    times = [0, *(_consumers_that_fit(entry, part) for entry in entries[1:])]
    needs = scarcity.scarcity_ranks(kinds, [sum(map(len, kind)) for kind in kinds], times)

    def order(n: int) -> tuple[bool, bool, tuple[int, int], float, _Kind]:
        entry = entries[n]
        return entry.root_id != root_id, n > 0, needs[n], _share_left(entry, part), kinds[n]

    return sorted(eligible, key=order)


def _kind(entry: ProviderEntry) -> _Kind:
    """Return the traits and classes of a provider, including those outside of the query."""
    classes = sorted(name for name, inventory in entry.inventories.items() if inventory.cap > 0)
    return entry.traits, tuple(classes), entry.others


def _consumers_that_fit(entry: ProviderEntry, part: Part) -> int:
    """Return how often the capacity of an unused provider holds a part."""
    caps = [
        (entry.inventories.get(name, _NO_INVENTORY).cap, amount) for name, amount in part.amounts
    ]
    if part.whole:
        return int(all(cap >= amount for cap, amount in caps))
    return min((cap // amount for cap, amount in caps), default=1)


def _providers_offered(entries: Sequence[ProviderEntry]) -> list[int]:
    """Return the providers of the tree, and those that share with a provider of the tree."""
    root = entries[0].id
    served = {
        aggregate for entry in entries if entry.root_id == root for aggregate in entry.aggregates
    }
    return [
        n
        for n, entry in enumerate(entries)
        if entry.root_id == root
        or (SHARES_TRAIT in entry.traits and not served.isdisjoint(entry.aggregates))
    ]


def _has_amounts(entries: Sequence[ProviderEntry], n: int, part: Part) -> bool:
    entry, group = entries[n], part.group
    for name, amount in part.amounts:
        inventory = entry.inventories.get(name)
        if inventory is None:
            return False
        needed = inventory.cap if part.whole else amount
        if part.whole and not inventory.cap == inventory.free >= max(amount, 1):
            return False
        if inventory.free < needed or not inventory.min_unit <= needed <= inventory.max_unit:
            return False
        if needed % inventory.step_size:
            return False
    return _matches_group(entries, entry, group, part)


def _matches_group(
    entries: Sequence[ProviderEntry], entry: ProviderEntry, group: GroupQuery, part: Part
) -> bool:
    """Return whether traits, aggregates and tree match the group."""
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
    return any(other.uuid == group.in_tree and other.root_id == entry.root_id for other in entries)


def _share_left(entry: ProviderEntry, part: Part) -> float:
    """Return the share that would remain of the scarcest class."""
    if part.whole or not part.amounts:
        return 0.0
    return min(
        (entry.inventories[name].free - amount) / max(entry.inventories[name].cap, 1)
        for name, amount in part.amounts
    )
