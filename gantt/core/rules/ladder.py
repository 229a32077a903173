# SPDX-License-Identifier: Apache-2.0
"""Perfect matches first, then rules given up in their order; and what stands in the way.

A ladder that gives up one step after the other ends where a look at each step from the
last to the first does: a step that any host meets beside those kept before is kept.
It is a little more as well: a rule that can be kept although an earlier one was not is.
"""

import enum
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.rules import facts, tree
from gantt.core.rules.facts import Kind
from gantt.core.rules.layers import Layer
from gantt.core.rules.rule import Rule
from gantt.core.table.columns import BoolArray, FloatArray
from gantt.core.table.host_table import HostTable

#: Sums that differ by less are the same.
_SLACK = 1e-9


class Scope(enum.StrEnum):
    """Whom a conflict of rules is about."""

    EVER = 'any host that could be'
    KNOWN = 'all hosts that are known'
    FITTING = 'those that pass everything else'


#: What else is given up with the last layer: order -> what each host breaks of it, by row.
Dropped = Callable[[BoolArray], Mapping[int, FloatArray]]


def narrow(
    hosts: HostTable,
    spec: RequestSpec,
    alive: BoolArray,
    layers: Sequence[Layer],
    dropped: Dropped | None = None,
) -> BoolArray:
    """Who of those ``alive`` is left: layer by layer its hard rules, then its ladder.

    :param dropped: asked with those who meet all that is hard
    """
    left = alive.copy()
    for at, layer in enumerate(layers, 1):
        for rule in layer.hard:
            left &= rule.mask(hosts, spec)
        if not left.any():
            return left
        more = dropped(left) if dropped is not None and at == len(layers) else {}
        for order, step in reversed(_with(layer, more)):
            met = left.copy()
            for rule in step:
                met &= rule.mask(hosts, spec)
            if order in more:
                lost = ~met + more[order]
                left &= lost <= lost[left].min() + _SLACK
            elif met.any():
                left = met
    return left


def _with(layer: Layer, more: Collection[int]) -> list[tuple[int, Sequence[Rule]]]:
    """(order, rules) of each step, those of other orders without rules."""
    if not more:
        return [(step[0].order, step) for step in layer.steps]
    of: dict[int, Sequence[Rule]] = dict.fromkeys(more, ())
    of.update((step[0].order, step) for step in layer.steps)
    return sorted(of.items())


def given_up(
    hosts: HostTable,
    spec: RequestSpec,
    row: int,
    layers: Sequence[Layer],
    more: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> list[tuple[int, str]]:
    """(step, rule) of what a host does not meet; the last layer's steps come first.

    :param more: order -> what else it does not meet, of all orders there are
    """
    found, before = [], 0
    for layer in reversed(layers):
        steps = _with(layer, more)
        for number, (order, step) in enumerate(steps, before + 1):
            found += [(number, str(rule)) for rule in step if not rule.is_met(hosts, spec, row)]
            found += [(number, text) for text in more.get(order, ())]
        more = {}
        before += len(steps)
    return found


def steps(
    hosts: HostTable, spec: RequestSpec, layers: Sequence[Layer]
) -> list[tuple[tuple[int, int], BoolArray]]:
    """Each step that may be given up, and who meets all of it.

    :returns: ((layer, order of its rules), mask); a step of an earlier layer is given up after all
        of a later one, and in a layer that of the smaller order first
    """
    found = []
    for at, layer in enumerate(layers):
        for step in layer.steps:
            met = np.ones(len(hosts), np.bool_)
            for rule in step:
                met &= rule.mask(hosts, spec)
            found.append(((at, step[0].order), met))
    return found


def steadfast(layers: Sequence[Layer]) -> bool:
    """Whether a pick changes nothing that the ladder looks at."""
    return not any(rule.volatile for layer in layers for step in layer.steps for rule in step)


def conflict(
    hosts: HostTable, spec: RequestSpec, alive: BoolArray, layers: Sequence[Layer]
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
    contradicting = [rule for rule in rules if rule.aggregate is None]
    if not impossible(rule.condition.tree for rule in contradicting):
        return []
    at = 0
    while at < len(contradicting):
        # By place: a rule that was said twice may be one object.
        fewer = contradicting[:at] + contradicting[at + 1 :]
        if impossible(one.condition.tree for one in fewer):
            contradicting = fewer
        else:
            at += 1
    return contradicting


def _bound(
    hosts: HostTable, spec: RequestSpec, alive: BoolArray, layers: Sequence[Layer]
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
    dropped, left = [], base.copy()
    for i, mask in enumerate(masks):
        if (left & behind[i + 1]).any():
            dropped.append(i)
            left &= mask
    return dropped


# -- what no host could meet ----------------------------------------------------
#
# Only what follows from comparisons of one fact with values, joined by ``and``: what is called
# impossible is; of the rest nothing is said.

#: A number, and of a lower bound whether it is itself left out, of an upper one whether not.
_Bound = tuple[float, bool]


def impossible(conditions: Iterable[tree.Expr]) -> bool:
    """Whether it is certain that no host could ever meet all of them."""
    about: dict[str, list[tree.Comparison]] = {}
    for part in _conjuncts(conditions):
        if isinstance(part, tree.Always) and not part.value:
            return True
        if isinstance(part, tree.Comparison) and not isinstance(part.value, tree.Ref):
            about.setdefault(part.fact, []).append(part)
    return any(_excluded(name, comparisons) for name, comparisons in about.items())


def _conjuncts(conditions: Iterable[tree.Expr]) -> Iterator[tree.Expr]:
    """What has to hold each by itself."""
    todo = list(conditions)
    while todo:
        part = todo.pop()
        if isinstance(part, tree.And):
            todo.extend(part.of)
        else:
            yield part


def _excluded(name: str, comparisons: list[tree.Comparison]) -> bool:
    fact, _ = facts.resolve(name)
    if fact.kind is Kind.NUMBER:
        return _no_number(comparisons)
    if fact.kind in (Kind.TEXT, Kind.BOOL):
        return _no_value(comparisons)
    return fact.kind is Kind.PATH and _no_place(comparisons)


def _no_number(comparisons: list[tree.Comparison]) -> bool:
    low: _Bound = (-math.inf, False)
    high: _Bound = (math.inf, False)
    for one in comparisons:
        value: Any = one.value
        if isinstance(one, tree.Greater | tree.GreaterEqual | tree.Equal):
            low = max(low, (value, isinstance(one, tree.Greater)))
        if isinstance(one, tree.Less | tree.LessEqual | tree.Equal):
            high = min(high, (value, not isinstance(one, tree.Less)))
        if isinstance(value, tree.Range):
            ends: tuple[Any, Any] = (value.low, value.high)
            low = max(low, (-math.inf if ends[0] is None else ends[0], False))
            high = min(high, (math.inf if ends[1] is None else ends[1], True))
    # Of equal upper bounds the one that leaves its number out is the smaller.
    if low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1])):
        return True
    return _no_value(comparisons)


def _no_value(comparisons: list[tree.Comparison]) -> bool:
    """Whether lists and single values that are wanted have nothing in common."""
    left: set[Any] | None = None
    for one in comparisons:
        if isinstance(one, tree.Equal):
            wanted = {one.value}
        elif isinstance(one, tree.In) and isinstance(one.value, tuple):
            wanted = set(one.value)
        else:
            continue
        if any(isinstance(value, tree.VersionNumber) for value in wanted):
            continue  # several texts say the same version
        left = wanted if left is None else left & wanted
    return left is not None and not left


def _no_place(comparisons: list[tree.Comparison]) -> bool:
    """Whether two of them want to be in different branches of the tree."""
    wanted: list[list[list[str]]] = []
    for one in comparisons:
        if isinstance(one, tree.Equal | tree.In):
            places = one.value if isinstance(one.value, tuple) else (one.value,)
            wanted.append([str(place).split('.') for place in places])
    return any(
        not any(_meet(a, b) for a in first for b in second)
        for i, first in enumerate(wanted)
        for second in wanted[:i]
    )


def _meet(one: list[str], other: list[str]) -> bool:
    """Whether a path can be below both."""
    return all(a == b or '*' in (a, b) for a, b in zip(one, other, strict=False))
