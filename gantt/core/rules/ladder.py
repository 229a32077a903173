# SPDX-License-Identifier: Apache-2.0
"""The ladder of rules: perfect matches first, then rules given up in order; and conflicts.

Giving up one step after the other has the same result as an evaluation of the steps from
the last to the first: a step that any host meets beside those kept before is kept.
The latter also keeps a rule that can be kept although an earlier one was not.
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

#: Sums that differ by less are equal.
_SLACK = 1e-9


class Scope(enum.StrEnum):
    """Hosts that a conflict of rules concerns."""

    EVER = 'any host that could be'
    KNOWN = 'all hosts that are known'
    FITTING = 'those that pass everything else'


#: Further rules given up with the last layer: order -> violations of each host, by row.
Dropped = Callable[[BoolArray], Mapping[int, FloatArray]]


def narrow(
    hosts: HostTable,
    spec: RequestSpec,
    alive: BoolArray,
    layers: Sequence[Layer],
    dropped: Dropped | None = None,
) -> BoolArray:
    """Return a mask of the ``alive`` hosts that remain: by layer its hard rules, then its ladder.

    :param dropped: called with the hosts that meet all hard rules
    """
    remaining = alive.copy()
    for layer_number, layer in enumerate(layers, 1):
        for rule in layer.hard:
            remaining &= rule.mask(hosts, spec)
        if not remaining.any():
            return remaining
        violations = (
            dropped(remaining) if dropped is not None and layer_number == len(layers) else {}
        )
        for order, step in reversed(_with(layer, violations)):
            met = remaining.copy()
            for rule in step:
                met &= rule.mask(hosts, spec)
            if order in violations:
                lost = ~met + violations[order]
                remaining &= lost <= lost[remaining].min() + _SLACK
            elif met.any():
                remaining = met
    return remaining


def _with(layer: Layer, more: Collection[int]) -> list[tuple[int, Sequence[Rule]]]:
    """Return (order, rules) of each step, with no rules for the additional orders."""
    if not more:
        return [(step[0].order, step) for step in layer.steps]
    rules_by_order: dict[int, Sequence[Rule]] = dict.fromkeys(more, ())
    rules_by_order.update((step[0].order, step) for step in layer.steps)
    return sorted(rules_by_order.items())


def given_up(
    hosts: HostTable,
    spec: RequestSpec,
    row: int,
    layers: Sequence[Layer],
    more: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> list[tuple[int, str]]:
    """Return (step, rule) of the rules that a host does not meet; the last layer's come first.

    :param more: order -> further rules that it does not meet, for all orders
    """
    unmet, step_offset = [], 0
    for layer in reversed(layers):
        steps = _with(layer, more)
        for number, (order, step) in enumerate(steps, step_offset + 1):
            unmet += [(number, str(rule)) for rule in step if not rule.is_met(hosts, spec, row)]
            unmet += [(number, text) for text in more.get(order, ())]
        more = {}
        step_offset += len(steps)
    return unmet


def steps(
    hosts: HostTable, spec: RequestSpec, layers: Sequence[Layer]
) -> list[tuple[tuple[int, int], BoolArray]]:
    """Return each step that may be given up, with a mask of the hosts that meet all its rules.

    :returns: ((layer, order of its rules), mask); a step of an earlier layer is given up after all
        of a later one, and in a layer that of the smaller order first
    """
    step_masks = []
    for layer_number, layer in enumerate(layers):
        for step in layer.steps:
            met = np.ones(len(hosts), np.bool_)
            for rule in step:
                met &= rule.mask(hosts, spec)
            step_masks.append(((layer_number, step[0].order), met))
    return step_masks


def steadfast(layers: Sequence[Layer]) -> bool:
    """Return whether a pick does not affect any rule of the ladder."""
    return not any(rule.volatile for layer in layers for step in layer.steps for rule in step)


def conflict(
    hosts: HostTable, spec: RequestSpec, alive: BoolArray, layers: Sequence[Layer]
) -> tuple[list[Rule], Scope]:
    """Return a minimal set of rules that no host meets together.

    :param alive: hosts that pass everything else
    :returns: the rules, and the hosts that they concern; no rules: they are not the cause
    """
    rules, masks = _bound(hosts, spec, alive, layers)
    if not rules:
        return [], Scope.FITTING
    never = _never(rules)
    if never:
        return never, Scope.EVER
    all_hosts = np.ones(len(hosts), np.bool_)
    if len(hosts) and not _all_of(all_hosts, masks).any():
        return [rules[i] for i in minimal(all_hosts, masks)], Scope.KNOWN
    if alive.any() and not _all_of(alive, masks).any():
        return [rules[i] for i in minimal(alive, masks)], Scope.FITTING
    return [], Scope.FITTING


def _never(rules: Sequence[Rule]) -> list[Rule]:
    """Return a minimal set of rules that contradict each other for any host."""
    contradicting = [rule for rule in rules if rule.aggregate is None]
    if not impossible(rule.condition.tree for rule in contradicting):
        return []
    index = 0
    while index < len(contradicting):
        # By position: a repeated rule may be one object.
        fewer = contradicting[:index] + contradicting[index + 1 :]
        if impossible(candidate.condition.tree for candidate in fewer):
            contradicting = fewer
        else:
            index += 1
    return contradicting


def _bound(
    hosts: HostTable, spec: RequestSpec, alive: BoolArray, layers: Sequence[Layer]
) -> tuple[list[Rule], list[BoolArray]]:
    """Return the rules that may not be given up, with masks of the hosts that meet them.

    These include the kept steps of all layers but the last, which may not be given up for
    a later layer.
    """
    rules: list[Rule] = []
    masks: list[BoolArray] = []
    for layer_index, layer in enumerate(layers):
        bound = list(layer.hard)
        remaining = narrow(hosts, spec, alive, layers[: layer_index + 1])
        if layer.steps and layer_index + 1 < len(layers) and remaining.any():
            row = int(np.flatnonzero(remaining)[0])
            bound += [
                rule
                for step in layer.steps
                if all(step_rule.is_met(hosts, spec, row) for step_rule in step)
                for rule in step
            ]
        rules += bound
        masks += [rule.mask(hosts, spec) for rule in bound]
    return rules, masks


def _all_of(base: BoolArray, masks: Sequence[BoolArray]) -> BoolArray:
    remaining = base.copy()
    for mask in masks:
        remaining &= mask
    return remaining


def minimal(base: BoolArray, masks: Sequence[BoolArray]) -> list[int]:
    """Return a minimal set of indices of masks that no host of ``base`` passes together.

    Masks are left out one by one while the rest still has no host; the earlier ones are
    left out first.
    """
    behind = [base.copy()]
    for mask in reversed(masks):
        behind.append(behind[-1] & mask)
    behind.reverse()
    dropped, remaining = [], base.copy()
    for i, mask in enumerate(masks):
        if (remaining & behind[i + 1]).any():
            dropped.append(i)
            remaining &= mask
    return dropped


# -- impossible conditions ------------------------------------------------------
#
# Derived only from comparisons of one fact with values, joined by ``and``: sound, but not
# complete.

#: A number; True: a lower bound is exclusive, an upper bound is inclusive.
_Bound = tuple[float, bool]


def impossible(conditions: Iterable[tree.Expr]) -> bool:
    """Return whether it is certain that no host can ever meet all conditions."""
    about: dict[str, list[tree.Comparison]] = {}
    for part in _conjuncts(conditions):
        if isinstance(part, tree.Always) and not part.value:
            return True
        if isinstance(part, tree.Comparison) and not isinstance(part.value, tree.Ref):
            about.setdefault(part.fact, []).append(part)
    return any(_excluded(name, comparisons) for name, comparisons in about.items())


def _conjuncts(conditions: Iterable[tree.Expr]) -> Iterator[tree.Expr]:
    """Yield the conditions that each have to hold."""
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
    for comparison in comparisons:
        value: Any = comparison.value
        if isinstance(comparison, tree.Greater | tree.GreaterEqual | tree.Equal):
            low = max(low, (value, isinstance(comparison, tree.Greater)))
        if isinstance(comparison, tree.Less | tree.LessEqual | tree.Equal):
            high = min(high, (value, not isinstance(comparison, tree.Less)))
        if isinstance(value, tree.Range):
            ends: tuple[Any, Any] = (value.low, value.high)
            low = max(low, (-math.inf if ends[0] is None else ends[0], False))
            high = min(high, (math.inf if ends[1] is None else ends[1], True))
    # Of equal upper bounds the exclusive one is the smaller.
    if low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1])):
        return True
    return _no_value(comparisons)


def _no_value(comparisons: list[tree.Comparison]) -> bool:
    """Return whether required lists and values have no value in common."""
    possible: set[Any] | None = None
    for comparison in comparisons:
        if isinstance(comparison, tree.Equal):
            allowed = {comparison.value}
        elif isinstance(comparison, tree.In) and isinstance(comparison.value, tuple):
            allowed = set(comparison.value)
        else:
            continue
        if any(isinstance(value, tree.VersionNumber) for value in allowed):
            continue  # several texts are the same version
        possible = allowed if possible is None else possible & allowed
    return possible is not None and not possible


def _no_place(comparisons: list[tree.Comparison]) -> bool:
    """Return whether two comparisons require different branches of the topology."""
    required_places: list[list[list[str]]] = []
    for comparison in comparisons:
        if isinstance(comparison, tree.Equal | tree.In):
            places = (
                comparison.value if isinstance(comparison.value, tuple) else (comparison.value,)
            )
            required_places.append([str(place).split('.') for place in places])
    return any(
        not any(_meet(a, b) for a in first for b in second)
        for i, first in enumerate(required_places)
        for second in required_places[:i]
    )


def _meet(one: list[str], other: list[str]) -> bool:
    """Return whether a path can be below both places."""
    return all(a == b or '*' in (a, b) for a, b in zip(one, other, strict=False))
