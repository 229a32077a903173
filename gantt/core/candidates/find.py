# SPDX-License-Identifier: Apache-2.0
"""Candidates of a query: masks over columns for single-choice trees, a search for the others.

A provider offers its inventory to its own tree and, where it shares, to each tree that has a
provider in one of its aggregates.  The root that a choice is made for is its *anchor*.
"""

import copy
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gantt.core.candidates.query import SHARES_TRAIT, CandidatesQuery, GroupQuery, Part
from gantt.core.candidates.table import NO_SLOT, Mask, ProviderTable, Shares, Slots
from gantt.core.candidates.tree_search import SearchBudget, TreeSearch

#: Called with the condition evaluated last, and the number of providers left.
TraceCondition = Callable[[str, int], None]


class SharedProvider(NamedTuple):
    """Provider that serves other trees.

    :ivar left: share of its capacity that would remain
    :ivar anchors: roots of these trees
    """

    slot: int
    left: float
    anchors: Slots


class EligibleProviders(NamedTuple):
    """Providers that may give one part.

    :ivar own: slots that serve their own tree; ``left``: share of each that would remain
    """

    part: Part
    own: Slots
    left: Shares
    shared: list[SharedProvider]

    def largest_share_left(self, root: Slots, length: int) -> Shares:
        """Return by root the largest share that would remain; below 0 where no provider fits."""
        shares = np.full(length, -1.0)
        np.maximum.at(shares, root[self.own], self.left)
        for provider in self.shared:
            shares[provider.anchors] = np.maximum(shares[provider.anchors], provider.left)
        return shares

    def provider_counts(self, root: Slots, length: int) -> Slots:
        """Return by root the number of providers that may give the part."""
        counts = np.bincount(root[self.own], minlength=length)
        for provider in self.shared:
            counts[provider.anchors] += 1
        return counts

    def roots_with_any(self, mask: Mask, root: Slots, length: int) -> Mask:
        """Return the roots for which a provider in ``mask`` may give the part."""
        roots = np.zeros(length, bool)
        roots[root[self.own[mask[self.own]]]] = True
        for provider in self.shared:
            if mask[provider.slot]:
                roots[provider.anchors] = True
        return roots


def eligible_providers(
    table: ProviderTable, part: Part, trace: TraceCondition | None = None
) -> EligibleProviders:
    """Return the providers that may give a part."""
    step = trace or (lambda what, left: None)
    slots, shares = _slots_with_amounts(table, part, step)
    placed = table.root[slots] != NO_SLOT
    slots, shares = slots[placed], shares[placed]
    judge = _slots_of_one_provider_group if part.suffix else _slots_of_spread_class
    return judge(table, part, slots, shares, step)


def root_mask(table: ProviderTable, query: CandidatesQuery) -> Mask | None:
    """Return the roots that may anchor a candidate; None: all of them."""
    if not (query.root_required or query.root_forbidden):
        return None
    fits = np.ones(table.length, bool)
    for name in query.root_required:
        fits &= table.traits.mask(name, table.length)
    if query.root_forbidden:
        fits &= ~table.traits.any_of(query.root_forbidden, table.length)
    return fits


def _slots_with_amounts(
    table: ProviderTable, part: Part, step: TraceCondition
) -> tuple[Slots, Shares]:
    """Return the slots that have all amounts of a part, and the shares that remain."""
    if not part.amounts:
        return _slots_without_amounts(table, part.group, step)
    slots, shares = np.zeros(0, np.int64), np.zeros(0)
    for n, (name, amount) in enumerate(part.amounts):
        column = table.classes.get(name)
        if column is None:
            step(f'{name} in stock', 0)
            return np.zeros(0, np.int64), np.zeros(0)
        if part.whole:
            fit = column.unused(amount)
            share = np.zeros(len(fit))
        else:
            fit, share = column.fitting(amount)
        if n:
            by_slot = np.full(table.length, -1.0)
            by_slot[fit] = share
            share = by_slot[slots]
            both = share >= 0
            slots, shares = slots[both], np.minimum(shares, share)[both]
        else:
            slots, shares = fit, share
        step(f'{amount} {name} free in one piece', len(slots))
    return slots, shares


def _slots_without_amounts(
    table: ProviderTable, group: GroupQuery, step: TraceCondition
) -> tuple[Slots, Shares]:
    """Return all placed providers for a part without amounts.

    As in Placement no provider matches unless a trait or an aggregate restricts the group.
    """
    if not (group.required or group.member_of):
        step('a trait or an aggregate that says who gives nothing', 0)
        return np.zeros(0, np.int64), np.zeros(0)
    slots = np.flatnonzero(table.root != NO_SLOT)
    return slots, np.ones(len(slots))


def _slots_of_one_provider_group(
    table: ProviderTable, part: Part, slots: Slots, shares: Shares, step: TraceCondition
) -> EligibleProviders:
    """Return the slots that fit a group that comes from one provider, of any root."""
    group, length = part.group, table.length
    fits = np.ones(len(slots), bool)
    for names in group.required:
        fits &= table.traits.any_of(names, length)[slots]
        step(f'trait {_names_text(names)}', int(fits.sum()))
    for names in group.member_of:
        fits &= table.aggregates.any_of(names, length)[slots]
        step(f'aggregate {_names_text(names)}', int(fits.sum()))
    if group.forbidden:
        fits &= ~table.traits.any_of(group.forbidden, length)[slots]
        step(f'not trait {_names_text(group.forbidden)}', int(fits.sum()))
    if group.forbidden_aggregates:
        fits &= ~table.aggregates.any_of(group.forbidden_aggregates, length)[slots]
        step(f'not aggregate {_names_text(group.forbidden_aggregates)}', int(fits.sum()))
    if group.in_tree is not None and part.amounts:
        fits &= _slots_in_tree(table, group.in_tree, slots)
        step(f'tree of {group.in_tree}', int(fits.sum()))
    slots, shares = slots[fits], shares[fits]
    sharing = table.traits.mask(SHARES_TRAIT, length)[slots]
    return EligibleProviders(
        part, slots, shares, _sharing_providers(table, slots[sharing], shares[sharing])
    )


def _slots_of_spread_class(
    table: ProviderTable, part: Part, slots: Slots, shares: Shares, step: TraceCondition
) -> EligibleProviders:
    """Return the slots that fit one class of the group that may be spread over a tree.

    Aggregates of a root count for its whole tree; required traits are evaluated together, later.
    """
    group, length = part.group, table.length
    if group.forbidden:
        fits = ~table.traits.any_of(group.forbidden, length)[slots]
        slots, shares = slots[fits], shares[fits]
        step(f'not trait {_names_text(group.forbidden)}', len(slots))
    inside = np.ones(length, bool)
    for names in group.member_of:
        inside = inside & table.aggregates.any_of(names, length)
    outside = table.aggregates.any_of(group.forbidden_aggregates, length)
    root = table.root[slots]
    fits = inside[slots] | inside[root]
    step('aggregates', int(fits.sum()))
    fits &= ~(outside[slots] | outside[root])
    step('not aggregates', int(fits.sum()))
    shared: list[SharedProvider] = []
    if group.in_tree is None:
        sharing = table.traits.mask(SHARES_TRAIT, length)[slots] & inside[slots] & ~outside[slots]
        shared = _sharing_providers(table, slots[sharing], shares[sharing], outside)
    else:
        fits &= _slots_in_tree(table, group.in_tree, slots)
        step(f'tree of {group.in_tree}', int(fits.sum()))
    return EligibleProviders(part, slots[fits], shares[fits], shared)


def _sharing_providers(
    table: ProviderTable, slots: Slots, shares: Shares, outside: Mask | None = None
) -> list[SharedProvider]:
    """Return the slots that serve other trees, with the roots of these.

    :param outside: roots that are left out
    """
    providers = []
    for slot, share in zip(slots.tolist(), shares.tolist(), strict=True):
        anchors = table.anchors(slot)
        if outside is not None:
            anchors = anchors[~outside[anchors]]
        if len(anchors):
            providers.append(SharedProvider(slot, share, anchors))
    return providers


def _slots_in_tree(table: ProviderTable, uuid: str, slots: Slots) -> Mask:
    slot = table.slot(uuid)
    if slot is None or table.root[slot] == NO_SLOT:
        return np.zeros(len(slots), bool)
    return table.root[slots] == table.root[slot]


def _names_text(names: frozenset[str]) -> str:
    return ' or '.join(sorted(names))


#: Steps that one query may take: about a second.
QUERY_STEPS_MAX = 1_000_000


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


def find_candidates(
    table: ProviderTable,
    query: CandidatesQuery,
    steps: int = QUERY_STEPS_MAX,
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
        giver = eligible_providers(table, part)
        if not (len(giver.own) or giver.shared):
            return result
        givers.append(giver)
    finder = _Finder(table, query, givers, anchors, steps)
    finder.add_rows(result)
    return msgspec.structs.replace(result, steps=steps - finder.budget.steps_left)


class _Finder:
    """State of one query.

    :ivar roots: slots of the roots that may anchor a candidate, the best first
    :ivar scores: score of each root
    """

    def __init__(
        self,
        table: ProviderTable,
        query: CandidatesQuery,
        givers: Sequence[EligibleProviders],
        anchors: Mask | None,
        steps: int,
    ) -> None:
        self._table = table
        self._query = query
        self._eligible_providers = givers
        self.budget = SearchBudget(steps)
        self.scores = _scores_by_root(table, givers, anchors)
        self.roots = self._possible_roots()
        self._seen_rows: set[tuple[int, ...]] = set()
        self._is_shared = any(giver.shared for giver in givers)
        parts = [giver.part for giver in givers]
        search = TreeSearch(table, query, parts, self.budget, query.limit is not None)
        self._search = EqualTrees(table, search, self.budget)

    def add_rows(self, result: CandidatesFound) -> None:
        single, chosen = self._single_choice_roots()
        limit = math.inf if self._query.limit is None else self._query.limit
        if single.all():
            # Where trees may share one candidate, another tree is searched for each that does.
            is_cut = limit < math.inf and not self._is_shared
            self._add_single_choices(
                result, self.roots[: int(limit)] if is_cut else self.roots, chosen
            )
            return
        if limit == math.inf:
            self._add_single_choices(result, self.roots[single[self.roots]], chosen)
            self._add_all_rows(result, self.roots[~single[self.roots]])
            return
        self._add_best_rows(result, single, chosen)

    def _possible_roots(self) -> Slots:
        """Return the roots that may anchor a candidate, judged by each part alone."""
        possible = self.scores >= 0
        if any(not giver.part.suffix for giver in self._eligible_providers):
            possible = self._roots_with_traits(possible)
        roots = np.flatnonzero(possible)
        if self._query.limit is not None:
            roots = roots[np.argsort(-self.scores[roots], kind='stable')]
        return roots

    def _roots_with_traits(self, possible: Mask) -> Mask:
        """Return roots whose providers may have what the group without suffix requires."""
        spread = [giver for giver in self._eligible_providers if not giver.part.suffix]
        table, length = self._table, self._table.length
        for names in spread[0].part.group.required:
            mask = table.traits.any_of(names, length)
            able = np.zeros(length, bool)
            for giver in spread:
                able |= giver.roots_with_any(mask, table.root, length)
            possible = possible & able
        return possible

    # -- trees with one choice -------------------------------------------------------------
    def _single_choice_roots(self) -> tuple[Mask, list[Slots]]:
        """Return the roots whose tree has exactly one provider for each part, and these by root.

        Only for a query of one group: choices of several depend on each other, so that none of
        their roots is returned.  Roots with one choice whose providers lack a required trait are
        removed from ``roots``.
        """
        table, length = self._table, self._table.length
        if len(self._query.groups) > 1:
            return np.zeros(length, bool), []
        single = np.ones(length, bool)
        chosen = []
        for giver in self._eligible_providers:
            single &= giver.provider_counts(table.root, length) == 1
            of_root = np.full(length, NO_SLOT, np.int64)
            of_root[table.root[giver.own]] = giver.own
            for provider in giver.shared:
                of_root[provider.anchors] = provider.slot
            chosen.append(of_root)
        fits = self._is_single_choice_valid(chosen)
        self.roots = self.roots[fits[self.roots] | ~single[self.roots]]
        others = np.ones(length, bool)
        others[self.roots] = single[self.roots]
        return others, chosen

    def _is_single_choice_valid(self, chosen: list[Slots]) -> Mask:
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

    def _add_single_choices(
        self, result: CandidatesFound, roots: Slots, chosen: list[Slots]
    ) -> None:
        self.budget.charge(len(roots))
        rows = zip(*(of_root[roots].tolist() for of_root in chosen), strict=True)
        if not self._is_shared:
            result.rows.extend(rows)
            result.scores.extend(self.scores[roots].tolist())
            return
        limit = self._query.limit
        for row, score in zip(rows, self.scores[roots].tolist(), strict=True):
            if limit is not None and len(result.rows) >= limit:
                return
            if self._is_new_row(row):
                result.rows.append(row)
                result.scores.append(score)

    # -- trees with several choices --------------------------------------------------------
    def _add_all_rows(self, result: CandidatesFound, roots: Slots) -> None:
        options = self._options(roots)
        for root in roots.tolist():
            score = float(self.scores[root])
            for row in self._rows(options, root):
                self.budget.charge(len(row))  # it is to be serialized as well
                result.rows.append(row)
                result.scores.append(score)

    def _add_best_rows(self, result: CandidatesFound, single: Mask, chosen: list[Slots]) -> None:
        """Add each root once, then those that have more a second time, and so on."""
        limit = self._query.limit
        assert limit is not None
        options = self._options(self.roots[~single[self.roots]])
        more: list[tuple[float, Iterator[tuple[int, ...]]]] = []
        for root in self.roots.tolist():
            if single[root]:
                row = tuple(int(of_root[root]) for of_root in chosen)
                rows = iter([row] if self._is_new_row(row) else [])
            else:
                rows = self._rows(options, root)
            more.append((float(self.scores[root]), rows))
            if not self._add_next_row(result, more, -1):
                more.pop()
            if len(result.rows) >= limit:
                return
        while more:
            at = 0
            while at < len(more) and len(result.rows) < limit:
                if self._add_next_row(result, more, at):
                    at += 1
                else:
                    del more[at]
            if len(result.rows) >= limit:
                return

    def _add_next_row(
        self,
        result: CandidatesFound,
        more: list[tuple[float, Iterator[tuple[int, ...]]]],
        at: int,
    ) -> bool:
        score, rows = more[at]
        row = next(rows, None)
        if row is None:
            return False
        self.budget.charge(len(row))
        result.rows.append(row)
        result.scores.append(score)
        return True

    def _rows(self, options: list[dict[int, list[int]]], root: int) -> Iterator[tuple[int, ...]]:
        for row in self._search.solutions([of_root[root] for of_root in options]):
            if self._is_new_row(row):
                yield row

    def _is_new_row(self, row: tuple[int, ...]) -> bool:
        """Return whether no other root has yielded the same row, of sharing providers only."""
        if not self._is_shared or not all(map(self._table.is_sharing, row)):
            return True
        if row in self._seen_rows:
            return False
        self._seen_rows.add(row)
        return True

    def _options(self, roots: Slots) -> list[dict[int, list[int]]]:
        """Return for each part: root -> slots that may give it there, the best first."""
        is_searched = np.zeros(self._table.length, bool)
        is_searched[roots] = True
        return [self._slots_by_root(giver, is_searched) for giver in self._eligible_providers]

    def _slots_by_root(self, giver: EligibleProviders, is_searched: Mask) -> dict[int, list[int]]:
        root = self._table.root[giver.own]
        is_wanted = is_searched[root]
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
            for anchor in provider.anchors[is_searched[provider.anchors]].tolist():
                options.setdefault(anchor, []).append(provider.slot)
        return options


def _scores_by_root(
    table: ProviderTable, givers: Sequence[EligibleProviders], anchors: Mask | None
) -> Shares:
    """Return by root the best remaining share of its scarcest part; below 0 where one fails."""
    scores = np.ones(table.length)
    for giver in givers:
        scores = np.minimum(scores, giver.largest_share_left(table.root, table.length))
    if anchors is not None:
        scores[~anchors] = -1.0
    return scores


def why_few_candidates(table: ProviderTable, query: CandidatesQuery) -> list[str]:
    """Return why there are few candidates or none: the providers left after each step, by part."""
    lines: list[str] = []

    def noting(suffix: str) -> TraceCondition:
        where = f'group {suffix}' if suffix else 'group without suffix'
        return lambda what, left: lines.append(f'{where}: {what}: {left} providers')

    anchors = root_mask(table, query)
    if anchors is not None:
        fit = int((anchors & (table.root == np.arange(table.length))).sum())
        lines.append(f'traits of the root: {fit} roots')
    givers = []
    for part in query.parts():
        givers.append(eligible_providers(table, part, noting(part.suffix)))
    roots = int((_scores_by_root(table, givers, anchors) >= 0).sum())
    lines.append(f'each part by itself: {roots} trees; the rest is how they go together')
    return lines


class EqualTrees:
    """Search of one query in any number of trees, in which equal trees are searched once.

    A search reads which providers of a tree may give which part, how much room each has of
    classes that several parts take, which traits count, and which of them are equal.  Where all
    that is the same in two trees, so are the choices, but for the names of the providers.

    :param search: search of the same query; nothing is shared where it reads more than the above
    """

    def __init__(self, table: ProviderTable, search: TreeSearch, budget: SearchBudget) -> None:
        self._table = table
        self._search = search
        self._budget = budget
        #: Rows found so far, as numbers of providers within their tree.  A copy of such an
        #: iterator begins with the first row, and advances the search as far as requested.
        self._rows_by_contents: dict[Hashable, Iterator[tuple[int, ...]]] = {}

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
        key = tuple(map(len, options)), tuple(places), tuple(equal), self._provider_contents(slots)
        if key not in self._rows_by_contents:
            rows = self._search.solutions(options)
            in_numbers = (tuple([numbers[slot] for slot in row]) for row in rows)
            (self._rows_by_contents[key],) = itertools.tee(in_numbers, 1)
        for row in copy.copy(self._rows_by_contents[key]):
            self._budget.charge()
            yield tuple([slots[number] for number in row])

    def _provider_contents(self, slots: Sequence[int]) -> Hashable:
        """Return all that a plain search reads of the providers in these slots."""
        table, search = self._table, self._search
        contents: list[Hashable] = [
            tuple(map(table.classes[name].free_amounts().get, slots))
            for name in sorted(search.contended_classes)
        ]
        if search.required_traits:
            contents += [table.entry(slot).traits for slot in slots]
        return tuple(contents)
