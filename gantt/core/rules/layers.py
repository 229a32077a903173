# SPDX-License-Identifier: Apache-2.0
"""The layers of rules that apply to a request, the ladder that each is, and conflicts.

The operator's are in the configuration, in extra specs ``rule:NAME`` of the flavor
and in metadata ``rule:NAME`` of aggregates, which apply to the aggregate's hosts only.
A user's are in the hint ``rules``.  The operator's are evaluated first, and their
result is never revised for a user's.

The rules of a layer form a ladder: perfect matches first, then rules are given up in order.
Giving up one step after the other has the same result as an evaluation of the steps from
the last to the first: a step that any host meets beside those kept before is kept.
The latter also keeps a rule that can be kept although an earlier one was not.
"""

import enum
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.messages.request import RequestSpec
from gantt.core.records.decision import USER_SOURCE
from gantt.core.resources.host import Aggregate
from gantt.core.rules import facts, tree
from gantt.core.rules.expression import Expression
from gantt.core.rules.facts import Kind
from gantt.core.rules.rule import RULES_MAX, Rule, Strength, parse_rule, split_rules
from gantt.core.table.columns import BoolArray, FloatArray
from gantt.core.table.host_table import HostTable

#: Prefix of the keys of extra specs and metadata that are rules.
RULE_KEY_PREFIX = 'rule:'
#: Upper bound of tests in all rules of a user, and of a flavor.
RULE_TESTS_MAX = 128
#: The hint with a user's rules.
RULES_HINT = 'rules'


class Layer(msgspec.Struct, frozen=True):
    """The rules of one party.

    :ivar hard: never given up
    :ivar steps: rules that are given up together, the first step first
    :ivar soft: preferences with weights
    """

    hard: tuple[Rule, ...] = ()
    steps: tuple[tuple[Rule, ...], ...] = ()
    soft: tuple[Rule, ...] = ()

    @property
    def binding(self) -> bool:
        """True where any rule can remove a host."""
        return bool(self.hard or self.steps)


_EMPTY_LAYER = Layer()


def layer_of(rules: Iterable[Rule]) -> Layer:
    """Return a layer of rules, by strength; rules of equal order are one step."""
    return _layer(tuple(rules))


@functools.lru_cache(maxsize=512)
def _layer(rules: tuple[Rule, ...]) -> Layer:
    hard, soft, drops = [], [], dict[int, list[Rule]]()
    for rule in rules:
        if rule.strength is Strength.HARD:
            hard.append(rule)
        elif rule.strength is Strength.SOFT:
            soft.append(rule)
        else:
            drops.setdefault(rule.order, []).append(rule)
    steps = tuple(tuple(drops[order]) for order in sorted(drops))
    return Layer(tuple(hard), steps, tuple(soft)) if rules else _EMPTY_LAYER


def operator_layer(hosts: HostTable, spec: RequestSpec, configured: Sequence[Rule]) -> Layer:
    """Return the operator's rules for a request.

    :raises InvalidRule: a rule of the flavor
    """
    of_aggregates = _rules_of_aggregates(hosts.known_aggregates)
    of_flavor = flavor_rules(spec) if spec.flavor.extra_specs else ()
    if not (configured or of_flavor or of_aggregates):
        return _EMPTY_LAYER
    return layer_of((*configured, *of_flavor, *of_aggregates))


def user_layer(spec: RequestSpec) -> Layer:
    """Return the rules of the caller.

    :raises InvalidRule: names the rule, the character and what was expected there
    """
    texts = spec.hints.get(RULES_HINT)
    if not texts:
        return _EMPTY_LAYER
    return _layer_of_user(tuple(texts))


@functools.lru_cache(maxsize=512)
def _layer_of_user(texts: tuple[str, ...]) -> Layer:
    return layer_of(user_rules(texts))


def flavor_rules(spec: RequestSpec) -> list[Rule]:
    """Return the rules among the extra specs of the flavor.

    :raises InvalidRule: names the extra spec
    """
    specs = spec.flavor.extra_specs
    names = sorted([name for name in specs if name.startswith(RULE_KEY_PREFIX)])
    if not names:
        return []
    where = 'request.spec.flavor.extra_specs'
    _check_count(len(names), where)
    rules = [
        _with_source(parse_rule(specs[name], f'{where}.{name}'), f'flavor {name}') for name in names
    ]
    _check_size(rules, where)
    return rules


@functools.lru_cache(maxsize=512)
def user_rules(texts: tuple[str, ...]) -> Sequence[Rule]:
    """Return the rules of the hint.

    :raises InvalidRule: names the rule
    """
    where = f'request.spec.hints.{RULES_HINT}'
    _check_count(len(texts), where)
    rules = [
        _with_source(parse_rule(text, f'{where}[{i}]'), USER_SOURCE) for i, text in enumerate(texts)
    ]
    _check_size(rules, where)
    return rules


def configured_rules(text: str) -> list[Rule]:
    """Return the rules of an option.

    :raises InvalidRule: names the rule
    """
    texts = split_rules(text)
    _check_count(len(texts), 'rules')
    return [
        _with_source(parse_rule(rule_text, f'rule {number}'), f'configuration, rule {number}')
        for number, rule_text in enumerate(texts, 1)
    ]


def check_metadata(metadata: Mapping[str, str | None], field: str) -> None:
    """Check the rules in the metadata of an aggregate, before it is stored.

    :raises InvalidRule: names the key, the character and what was expected there
    """
    for key, text in metadata.items():
        if key.startswith(RULE_KEY_PREFIX) and text is not None:
            parse_rule(text, f'{field}.{key}')


_NEVER_TRUE = Expression(tree.Always(value=False))
_last_aggregate_rules: list[tuple[Mapping[str, Aggregate], list[Rule]]] = []


def _rules_of_aggregates(aggregates: Mapping[str, Aggregate]) -> list[Rule]:
    """Return the rules in the metadata of aggregates, cached while the mapping is the same.

    The table never edits its mapping of aggregates, but replaces it.
    """
    if not aggregates:
        return []
    for seen, rules in _last_aggregate_rules:
        if seen is aggregates:
            return rules
    rules = [
        _rules_of_aggregate(aggregate, key)
        for aggregate in aggregates.values()
        for key in sorted(aggregate.metadata)
        if key.startswith(RULE_KEY_PREFIX)
    ]
    _last_aggregate_rules[:] = [(aggregates, rules), *_last_aggregate_rules[:3]]
    return rules


def _rules_of_aggregate(aggregate: Aggregate, key: str) -> Rule:
    source = f'aggregate {aggregate.name}, {key}'
    try:
        rule = parse_rule(aggregate.metadata[key], key)
    except exceptions.InvalidRule as e:
        # An invalid rule cannot be met: nothing is placed there until it is corrected.
        rule = Rule(
            f'{e.kwargs["field"]}, which is not understood: {e.kwargs["problem"]}', _NEVER_TRUE
        )
    return msgspec.structs.replace(rule, source=source, aggregate=aggregate.uuid)


def _with_source(rule: Rule, source: str) -> Rule:
    return msgspec.structs.replace(rule, source=source)


def _check_count(count: int, where: str) -> None:
    if count > RULES_MAX:
        raise exceptions.InvalidRule(
            field=where, problem=f'expected at most {RULES_MAX} rules, got {count}', at=0
        )


def _check_size(rules: Sequence[Rule], where: str) -> None:
    """Check the total number of tests, each of which is evaluated for all hosts."""
    count = sum(rule.condition.size for rule in rules)
    if count > RULE_TESTS_MAX:
        problem = f'expected at most {RULE_TESTS_MAX} tests in all of them together, got {count}'
        raise exceptions.InvalidRule(field=where, problem=problem, at=0)


#: Sums that differ by less are equal.
_COST_TOLERANCE = 1e-9


class Scope(enum.StrEnum):
    """Hosts that a conflict of rules concerns."""

    EVER = 'any host that could be'
    KNOWN = 'all hosts that are known'
    FITTING = 'those that pass everything else'


#: Further rules given up with the last layer: order -> violations of each host, by row.
DroppedCosts = Callable[[BoolArray], Mapping[int, FloatArray]]


def narrow_hosts(
    hosts: HostTable,
    spec: RequestSpec,
    alive: BoolArray,
    layers: Sequence[Layer],
    dropped: DroppedCosts | None = None,
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
        for order, step in reversed(_layer_with(layer, violations)):
            met = remaining.copy()
            for rule in step:
                met &= rule.mask(hosts, spec)
            if order in violations:
                lost = ~met + violations[order]
                remaining &= lost <= lost[remaining].min() + _COST_TOLERANCE
            elif met.any():
                remaining = met
    return remaining


def _layer_with(layer: Layer, more: Collection[int]) -> list[tuple[int, Sequence[Rule]]]:
    """Return (order, rules) of each step, with no rules for the additional orders."""
    if not more:
        return [(step[0].order, step) for step in layer.steps]
    rules_by_order: dict[int, Sequence[Rule]] = dict.fromkeys(more, ())
    rules_by_order.update((step[0].order, step) for step in layer.steps)
    return sorted(rules_by_order.items())


def rules_given_up(
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
        steps = _layer_with(layer, more)
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


def is_unaffected_by_picks(layers: Sequence[Layer]) -> bool:
    """Return whether a pick does not affect any rule of the ladder."""
    return not any(rule.volatile for layer in layers for step in layer.steps for rule in step)


def conflicting_rules(
    hosts: HostTable, spec: RequestSpec, alive: BoolArray, layers: Sequence[Layer]
) -> tuple[list[Rule], Scope]:
    """Return a minimal set of rules that no host meets together.

    :param alive: hosts that pass everything else
    :returns: the rules, and the hosts that they concern; no rules: they are not the cause
    """
    rules, masks = _binding_rules(hosts, spec, alive, layers)
    if not rules:
        return [], Scope.FITTING
    never = _rules_that_contradict(rules)
    if never:
        return never, Scope.EVER
    all_hosts = np.ones(len(hosts), np.bool_)
    if len(hosts) and not _all_of(all_hosts, masks).any():
        return [rules[i] for i in minimal_conflict(all_hosts, masks)], Scope.KNOWN
    if alive.any() and not _all_of(alive, masks).any():
        return [rules[i] for i in minimal_conflict(alive, masks)], Scope.FITTING
    return [], Scope.FITTING


def _rules_that_contradict(rules: Sequence[Rule]) -> list[Rule]:
    """Return a minimal set of rules that contradict each other for any host."""
    contradicting = [rule for rule in rules if rule.aggregate is None]
    if not is_impossible(rule.condition.tree for rule in contradicting):
        return []
    index = 0
    while index < len(contradicting):
        # By position: a repeated rule may be one object.
        fewer = contradicting[:index] + contradicting[index + 1 :]
        if is_impossible(candidate.condition.tree for candidate in fewer):
            contradicting = fewer
        else:
            index += 1
    return contradicting


def _binding_rules(
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
        remaining = narrow_hosts(hosts, spec, alive, layers[: layer_index + 1])
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


def minimal_conflict(base: BoolArray, masks: Sequence[BoolArray]) -> list[int]:
    """Return a minimal set of indices of masks that no host of ``base`` passes together.

    Masks are left out one by one while the rest still has no host; the earlier ones are
    left out first.
    """
    masks_after = [base.copy()]
    for mask in reversed(masks):
        masks_after.append(masks_after[-1] & mask)
    masks_after.reverse()
    dropped, remaining = [], base.copy()
    for i, mask in enumerate(masks):
        if (remaining & masks_after[i + 1]).any():
            dropped.append(i)
            remaining &= mask
    return dropped


# -- impossible conditions ------------------------------------------------------
#
# Derived only from comparisons of one fact with values, joined by ``and``: sound, but not
# complete.


class _NumberBound(NamedTuple):
    """A bound of numbers: just above a value, which a lower one excludes and an upper one includes.

    :ivar is_above: False: just below the value
    """

    value: float
    is_above: bool


def is_impossible(conditions: Iterable[tree.Expr]) -> bool:
    """Return whether it is certain that no host can ever meet all conditions."""
    about: dict[str, list[tree.Comparison]] = {}
    for part in _conjuncts(conditions):
        if isinstance(part, tree.Always) and not part.value:
            return True
        if isinstance(part, tree.Comparison) and not isinstance(part.value, tree.Ref):
            about.setdefault(part.fact, []).append(part)
    return any(_is_excluded(name, comparisons) for name, comparisons in about.items())


def _conjuncts(conditions: Iterable[tree.Expr]) -> Iterator[tree.Expr]:
    """Yield the conditions that each have to hold."""
    todo = list(conditions)
    while todo:
        part = todo.pop()
        if isinstance(part, tree.And):
            todo.extend(part.of)
        else:
            yield part


def _is_excluded(name: str, comparisons: list[tree.Comparison]) -> bool:
    fact, _ = facts.resolve_fact(name)
    if fact.kind is Kind.NUMBER:
        return _no_number(comparisons)
    if fact.kind in (Kind.TEXT, Kind.BOOL):
        return _no_value(comparisons)
    return fact.kind is Kind.PATH and _no_place(comparisons)


def _no_number(comparisons: list[tree.Comparison]) -> bool:
    low, high = _NumberBound(-math.inf, False), _NumberBound(math.inf, False)
    for comparison in comparisons:
        value: Any = comparison.value
        if isinstance(comparison, tree.Greater | tree.GreaterEqual | tree.Equal):
            low = max(low, _NumberBound(value, isinstance(comparison, tree.Greater)))
        if isinstance(comparison, tree.Less | tree.LessEqual | tree.Equal):
            high = min(high, _NumberBound(value, not isinstance(comparison, tree.Less)))
        if isinstance(value, tree.Range):
            ends: tuple[Any, Any] = (value.low, value.high)
            low = max(low, _NumberBound(-math.inf if ends[0] is None else ends[0], False))
            high = min(high, _NumberBound(math.inf if ends[1] is None else ends[1], True))
    # Of equal upper bounds the exclusive one is the smaller.
    if low.value > high.value or (low.value == high.value and (low.is_above or not high.is_above)):
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
        not any(_paths_may_meet(a, b) for a in first for b in second)
        for i, first in enumerate(required_places)
        for second in required_places[:i]
    )


def _paths_may_meet(one: list[str], other: list[str]) -> bool:
    """Return whether a path can be below both places."""
    return all(a == b or '*' in (a, b) for a, b in zip(one, other, strict=False))
