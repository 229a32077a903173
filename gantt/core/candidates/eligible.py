# SPDX-License-Identifier: Apache-2.0
"""Who fits one part of a query by itself: by amounts, traits, aggregates and tree.

What a provider offers it offers to its own tree, and where it shares, to each tree that has a
provider in one of its aggregates.  The root that a choice is made for is its *anchor*.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gantt.core.candidates.columns import Mask, Shares, Slots
from gantt.core.candidates.query import SHARES, CandidatesQuery, GroupQuery, Part
from gantt.core.candidates.table import NOWHERE, ProviderTable

#: Called with what was looked at last, and how many providers are left.
Trace = Callable[[str, int], None]


class Shared(NamedTuple):
    """One provider that serves other trees.

    :ivar left: share of what it has that would be left
    :ivar anchors: roots of these trees
    """

    slot: int
    left: float
    anchors: Slots


class Eligible(NamedTuple):
    """Who may give one part.

    :ivar own: each for its own tree; ``left`` goes with it
    """

    part: Part
    own: Slots
    left: Shares
    shared: list[Shared]

    def best(self, root: Slots, length: int) -> Shares:
        """By root the largest share that would be left; below 0 where nobody may give it."""
        found = np.full(length, -1.0)
        np.maximum.at(found, root[self.own], self.left)
        for one in self.shared:
            found[one.anchors] = np.maximum(found[one.anchors], one.left)
        return found

    def counts(self, root: Slots, length: int) -> Slots:
        """By root how many may give it."""
        found = np.bincount(root[self.own], minlength=length)
        for one in self.shared:
            found[one.anchors] += 1
        return found

    def with_any(self, mask: Mask, root: Slots, length: int) -> Mask:
        """Roots for which one of those in ``mask`` may give it."""
        found = np.zeros(length, bool)
        found[root[self.own[mask[self.own]]]] = True
        for one in self.shared:
            if mask[one.slot]:
                found[one.anchors] = True
        return found


def eligible(table: ProviderTable, part: Part, trace: Trace | None = None) -> Eligible:
    """Who may give a part."""
    step = trace or _untraced
    slots, left = _with_amounts(table, part, step)
    placed = table.root[slots] != NOWHERE
    slots, left = slots[placed], left[placed]
    judge = _granular if part.suffix else _spread
    return judge(table, part, slots, left, step)


def root_mask(table: ProviderTable, query: CandidatesQuery) -> Mask | None:
    """Roots that may anchor a candidate; None: all of them."""
    if not (query.root_required or query.root_forbidden):
        return None
    fits = np.ones(table.length, bool)
    for name in query.root_required:
        fits &= table.traits.mask(name, table.length)
    if query.root_forbidden:
        fits &= ~table.traits.any_of(query.root_forbidden, table.length)
    return fits


def _untraced(what: str, left: int) -> None:
    pass


def _with_amounts(table: ProviderTable, part: Part, step: Trace) -> tuple[Slots, Shares]:
    """Who has all amounts of a part."""
    if not part.amounts:
        return _without_amounts(table, part.group, step)
    slots, left = np.zeros(0, np.int64), np.zeros(0)
    for n, (name, amount) in enumerate(part.amounts):
        column = table.classes.get(name)
        if column is None:
            step(f'{name} in stock', 0)
            return np.zeros(0, np.int64), np.zeros(0)
        if part.whole:
            fit = column.whole(amount)
            share = np.zeros(len(fit))
        else:
            fit, share = column.fitting(amount)
        if n:
            by_slot = np.full(table.length, -1.0)
            by_slot[fit] = share
            share = by_slot[slots]
            both = share >= 0
            slots, left = slots[both], np.minimum(left, share)[both]
        else:
            slots, left = fit, share
        step(f'{amount} {name} free in one piece', len(slots))
    return slots, left


def _without_amounts(table: ProviderTable, group: GroupQuery, step: Trace) -> tuple[Slots, Shares]:
    """As in Placement nobody gives nothing unless a trait or an aggregate says who."""
    if not (group.required or group.member_of):
        step('a trait or an aggregate that says who gives nothing', 0)
        return np.zeros(0, np.int64), np.zeros(0)
    slots = np.flatnonzero(table.root != NOWHERE)
    return slots, np.ones(len(slots))


def _granular(
    table: ProviderTable, part: Part, slots: Slots, left: Shares, step: Trace
) -> Eligible:
    """Of these who fits a group that comes from one provider, whoever may be its root."""
    group, length = part.group, table.length
    fits = np.ones(len(slots), bool)
    for names in group.required:
        fits &= table.traits.any_of(names, length)[slots]
        step(f'trait {_shown(names)}', int(fits.sum()))
    for names in group.member_of:
        fits &= table.aggregates.any_of(names, length)[slots]
        step(f'aggregate {_shown(names)}', int(fits.sum()))
    if group.forbidden:
        fits &= ~table.traits.any_of(group.forbidden, length)[slots]
        step(f'not trait {_shown(group.forbidden)}', int(fits.sum()))
    if group.forbidden_aggregates:
        fits &= ~table.aggregates.any_of(group.forbidden_aggregates, length)[slots]
        step(f'not aggregate {_shown(group.forbidden_aggregates)}', int(fits.sum()))
    if group.in_tree is not None and part.amounts:
        fits &= _in_tree(table, group.in_tree, slots)
        step(f'tree of {group.in_tree}', int(fits.sum()))
    slots, left = slots[fits], left[fits]
    sharing = table.traits.mask(SHARES, length)[slots]
    return Eligible(part, slots, left, _shared(table, slots[sharing], left[sharing]))


def _spread(table: ProviderTable, part: Part, slots: Slots, left: Shares, step: Trace) -> Eligible:
    """Of these who fits one class of the group that may be spread over a tree.

    Aggregates of a root count for its whole tree; required traits are looked at together, later.
    """
    group, length = part.group, table.length
    if group.forbidden:
        fits = ~table.traits.any_of(group.forbidden, length)[slots]
        slots, left = slots[fits], left[fits]
        step(f'not trait {_shown(group.forbidden)}', len(slots))
    inside = np.ones(length, bool)
    for names in group.member_of:
        inside = inside & table.aggregates.any_of(names, length)
    outside = table.aggregates.any_of(group.forbidden_aggregates, length)
    root = table.root[slots]
    fits = inside[slots] | inside[root]
    step('aggregates', int(fits.sum()))
    fits &= ~(outside[slots] | outside[root])
    step('not aggregates', int(fits.sum()))
    shared: list[Shared] = []
    if group.in_tree is None:
        sharing = table.traits.mask(SHARES, length)[slots] & inside[slots] & ~outside[slots]
        shared = _shared(table, slots[sharing], left[sharing], outside)
    else:
        fits &= _in_tree(table, group.in_tree, slots)
        step(f'tree of {group.in_tree}', int(fits.sum()))
    return Eligible(part, slots[fits], left[fits], shared)


def _shared(
    table: ProviderTable, slots: Slots, left: Shares, outside: Mask | None = None
) -> list[Shared]:
    """Those of other trees that they serve.

    :param outside: roots that are left out
    """
    found = []
    for slot, share in zip(slots.tolist(), left.tolist(), strict=True):
        anchors = table.anchors(slot)
        if outside is not None:
            anchors = anchors[~outside[anchors]]
        if len(anchors):
            found.append(Shared(slot, share, anchors))
    return found


def _in_tree(table: ProviderTable, uuid: str, slots: Slots) -> Mask:
    slot = table.slot(uuid)
    if slot is None or table.root[slot] == NOWHERE:
        return np.zeros(len(slots), bool)
    return table.root[slots] == table.root[slot]


def _shown(names: frozenset[str]) -> str:
    return ' or '.join(sorted(names))
