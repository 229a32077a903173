# SPDX-License-Identifier: Apache-2.0
"""Providers that fit one part of a query by itself: by amounts, traits, aggregates and tree.

A provider offers its inventory to its own tree and, where it shares, to each tree that has a
provider in one of its aggregates.  The root that a choice is made for is its *anchor*.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gantt.core.candidates.columns import Mask, Shares, Slots
from gantt.core.candidates.query import SHARES, CandidatesQuery, GroupQuery, Part
from gantt.core.candidates.table import NOWHERE, ProviderTable

#: Called with the condition evaluated last, and the number of providers left.
Trace = Callable[[str, int], None]


class Shared(NamedTuple):
    """Provider that serves other trees.

    :ivar left: share of its capacity that would remain
    :ivar anchors: roots of these trees
    """

    slot: int
    left: float
    anchors: Slots


class Eligible(NamedTuple):
    """Providers that may give one part.

    :ivar own: slots that serve their own tree; ``left`` goes with it
    """

    part: Part
    own: Slots
    left: Shares
    shared: list[Shared]

    def best(self, root: Slots, length: int) -> Shares:
        """Return by root the largest share that would remain; below 0 where no provider fits."""
        shares = np.full(length, -1.0)
        np.maximum.at(shares, root[self.own], self.left)
        for provider in self.shared:
            shares[provider.anchors] = np.maximum(shares[provider.anchors], provider.left)
        return shares

    def counts(self, root: Slots, length: int) -> Slots:
        """Return by root the number of providers that may give the part."""
        counts = np.bincount(root[self.own], minlength=length)
        for provider in self.shared:
            counts[provider.anchors] += 1
        return counts

    def with_any(self, mask: Mask, root: Slots, length: int) -> Mask:
        """Return the roots for which a provider in ``mask`` may give the part."""
        roots = np.zeros(length, bool)
        roots[root[self.own[mask[self.own]]]] = True
        for provider in self.shared:
            if mask[provider.slot]:
                roots[provider.anchors] = True
        return roots


def eligible(table: ProviderTable, part: Part, trace: Trace | None = None) -> Eligible:
    """Return the providers that may give a part."""
    step = trace or _untraced
    slots, shares = _with_amounts(table, part, step)
    placed = table.root[slots] != NOWHERE
    slots, shares = slots[placed], shares[placed]
    judge = _granular if part.suffix else _spread
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


def _untraced(what: str, left: int) -> None:
    pass


def _with_amounts(table: ProviderTable, part: Part, step: Trace) -> tuple[Slots, Shares]:
    """Return the slots that have all amounts of a part, and the shares that remain."""
    if not part.amounts:
        return _without_amounts(table, part.group, step)
    slots, shares = np.zeros(0, np.int64), np.zeros(0)
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
            slots, shares = slots[both], np.minimum(shares, share)[both]
        else:
            slots, shares = fit, share
        step(f'{amount} {name} free in one piece', len(slots))
    return slots, shares


def _without_amounts(table: ProviderTable, group: GroupQuery, step: Trace) -> tuple[Slots, Shares]:
    """Return all placed providers for a part without amounts.

    As in Placement no provider matches unless a trait or an aggregate restricts the group.
    """
    if not (group.required or group.member_of):
        step('a trait or an aggregate that says who gives nothing', 0)
        return np.zeros(0, np.int64), np.zeros(0)
    slots = np.flatnonzero(table.root != NOWHERE)
    return slots, np.ones(len(slots))


def _granular(
    table: ProviderTable, part: Part, slots: Slots, left: Shares, step: Trace
) -> Eligible:
    """Return the slots that fit a group that comes from one provider, of any root."""
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
    """Return the slots that fit one class of the group that may be spread over a tree.

    Aggregates of a root count for its whole tree; required traits are evaluated together, later.
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
    """Return the slots that serve other trees, with the roots of these.

    :param outside: roots that are left out
    """
    providers = []
    for slot, share in zip(slots.tolist(), left.tolist(), strict=True):
        anchors = table.anchors(slot)
        if outside is not None:
            anchors = anchors[~outside[anchors]]
        if len(anchors):
            providers.append(Shared(slot, share, anchors))
    return providers


def _in_tree(table: ProviderTable, uuid: str, slots: Slots) -> Mask:
    slot = table.slot(uuid)
    if slot is None or table.root[slot] == NOWHERE:
        return np.zeros(len(slots), bool)
    return table.root[slots] == table.root[slot]


def _shown(names: frozenset[str]) -> str:
    return ' or '.join(sorted(names))
