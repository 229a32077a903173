# SPDX-License-Identifier: Apache-2.0
"""Perfect matches first, then rules given up in their order; and what stands in the way.

A ladder that gives up one step after the other ends where a look at each step from the
last to the first does: a step that any host meets beside those kept before is kept.
It is a little more as well: a rule that can be kept although an earlier one was not is.
"""

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.rules.impossible import impossible
from gantt.core.rules.layers import Layer
from gantt.core.rules.rule import Rule
from gantt.core.table.columns import BoolArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class Scope(enum.StrEnum):
    """Whom a conflict of rules is about."""

    EVER = 'any host that could be'
    KNOWN = 'all hosts that are known'
    FITTING = 'those that pass everything else'


def narrow(
    hosts: 'HostTable', spec: RequestSpec, alive: BoolArray, layers: Sequence[Layer]
) -> BoolArray:
    """Who of those ``alive`` is left: layer by layer its hard rules, then its ladder."""
    left = alive.copy()
    for layer in layers:
        for rule in layer.hard:
            left &= rule.mask(hosts, spec)
        for step in reversed(layer.steps) if left.any() else ():
            met = left.copy()
            for rule in step:
                met &= rule.mask(hosts, spec)
            if met.any():
                left = met
    return left


def given_up(
    hosts: 'HostTable', spec: RequestSpec, row: int, layers: Sequence[Layer]
) -> list[tuple[int, str]]:
    """(step, rule) of what a host does not meet; the last layer's steps come first."""
    found, before = [], 0
    for layer in reversed(layers):
        for number, step in enumerate(layer.steps, before + 1):
            found += [(number, str(rule)) for rule in step if not rule.is_met(hosts, spec, row)]
        before += len(layer.steps)
    return found


def steadfast(layers: Sequence[Layer]) -> bool:
    """Whether a pick changes nothing that the ladder looks at."""
    return not any(rule.volatile for layer in layers for step in layer.steps for rule in step)


def conflict(
    hosts: 'HostTable', spec: RequestSpec, alive: BoolArray, layers: Sequence[Layer]
) -> tuple[list[Rule], Scope]:
    """Rules that no host meets together, none of them in vain.

    :param alive: those that pass everything else
    :returns: the rules, and of whom that is said; no rules: they are not it
    """
    rules, masks = _bound(hosts, spec, alive, layers)
    if not rules:
        return [], Scope.FITTING
    never = _never(rules)
    if never:
        return never, Scope.EVER
    everybody = np.ones(len(hosts), np.bool_)
    if len(hosts) and not _all_of(everybody, masks).any():
        return [rules[i] for i in minimal(everybody, masks)], Scope.KNOWN
    if alive.any() and not _all_of(alive, masks).any():
        return [rules[i] for i in minimal(alive, masks)], Scope.FITTING
    return [], Scope.FITTING


def _never(rules: Sequence[Rule]) -> list[Rule]:
    """Rules that contradict each other by themselves; without any one they would not."""
    kept = [rule for rule in rules if rule.aggregate is None]
    if not impossible(rule.condition.tree for rule in kept):
        return []
    at = 0
    while at < len(kept):
        # By place: a rule that was said twice may be one object.
        fewer = kept[:at] + kept[at + 1 :]
        if impossible(one.condition.tree for one in fewer):
            kept = fewer
        else:
            at += 1
    return kept


def _bound(
    hosts: 'HostTable', spec: RequestSpec, alive: BoolArray, layers: Sequence[Layer]
) -> tuple[list[Rule], list[BoolArray]]:
    """The rules that may not be given up, with who meets them.

    Of the layers but the last also those steps that they kept: nobody may give
    them up for the sake of a later layer.
    """
    rules: list[Rule] = []
    masks: list[BoolArray] = []
    for at, layer in enumerate(layers):
        bound = list(layer.hard)
        left = narrow(hosts, spec, alive, layers[: at + 1])
        if layer.steps and at + 1 < len(layers) and left.any():
            row = int(np.flatnonzero(left)[0])
            bound += [
                rule
                for step in layer.steps
                if all(one.is_met(hosts, spec, row) for one in step)
                for rule in step
            ]
        rules += bound
        masks += [rule.mask(hosts, spec) for rule in bound]
    return rules, masks


def _all_of(base: BoolArray, masks: Sequence[BoolArray]) -> BoolArray:
    left = base.copy()
    for mask in masks:
        left &= mask
    return left


def minimal(base: BoolArray, masks: Sequence[BoolArray]) -> list[int]:
    """Indices of masks that nobody of ``base`` passes together; without any one somebody does.

    One after the other is left out where the rest is still too much; the earlier
    ones are left out first.
    """
    behind = [base.copy()]
    for mask in reversed(masks):
        behind.append(behind[-1] & mask)
    behind.reverse()
    kept, left = [], base.copy()
    for i, mask in enumerate(masks):
        if (left & behind[i + 1]).any():
            kept.append(i)
            left &= mask
    return kept
