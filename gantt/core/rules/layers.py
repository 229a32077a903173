# SPDX-License-Identifier: Apache-2.0
"""The layers of rules that apply to a request.

The operator's are in the configuration, in extra specs ``rule:NAME`` of the flavor
and in metadata ``rule:NAME`` of aggregates, which apply to the aggregate's hosts only.
A user's are in the hint ``rules``.  The operator's are evaluated first, and their
result is never revised for a user's.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gantt import exceptions
from gantt.core.messages.request import RequestSpec
from gantt.core.records.rule_texts import USER
from gantt.core.resources.host import Aggregate
from gantt.core.rules import tree
from gantt.core.rules.expression import Expression
from gantt.core.rules.rule import RULES_MAX, Rule, Strength, read, split
from gantt.core.table.host_table import HostTable

#: Prefix of the keys of extra specs and metadata that are rules.
PREFIX = 'rule:'
#: Upper bound of tests in all rules of a user, and of a flavor.
TESTS_MAX = 128
#: The hint with a user's rules.
HINT = 'rules'


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


_EMPTY = Layer()


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
    return Layer(tuple(hard), steps, tuple(soft)) if rules else _EMPTY


def of_operator(hosts: HostTable, spec: RequestSpec, configured: Sequence[Rule]) -> Layer:
    """Return the operator's rules for a request.

    :raises InvalidRule: a rule of the flavor
    """
    of_aggregates = _of_aggregates(hosts.known_aggregates)
    of_flavor = flavor_rules(spec) if spec.flavor.extra_specs else ()
    if not (configured or of_flavor or of_aggregates):
        return _EMPTY
    return layer_of((*configured, *of_flavor, *of_aggregates))


def of_user(spec: RequestSpec) -> Layer:
    """Return the rules of the caller.

    :raises InvalidRule: names the rule, the character and what was expected there
    """
    texts = spec.hints.get(HINT)
    if not texts:
        return _EMPTY
    return _layer_of_user(tuple(texts))


@functools.lru_cache(maxsize=512)
def _layer_of_user(texts: tuple[str, ...]) -> Layer:
    return layer_of(user_rules(texts))


def flavor_rules(spec: RequestSpec) -> list[Rule]:
    """Return the rules among the extra specs of the flavor.

    :raises InvalidRule: names the extra spec
    """
    specs = spec.flavor.extra_specs
    names = sorted([name for name in specs if name.startswith(PREFIX)])
    if not names:
        return []
    where = 'request.spec.flavor.extra_specs'
    _check_count(len(names), where)
    rules = [_with_source(read(specs[name], f'{where}.{name}'), f'flavor {name}') for name in names]
    _check_size(rules, where)
    return rules


@functools.lru_cache(maxsize=512)
def user_rules(texts: tuple[str, ...]) -> Sequence[Rule]:
    """Return the rules of the hint.

    :raises InvalidRule: names the rule
    """
    where = f'request.spec.hints.{HINT}'
    _check_count(len(texts), where)
    rules = [_with_source(read(text, f'{where}[{i}]'), USER) for i, text in enumerate(texts)]
    _check_size(rules, where)
    return rules


def configured(text: str) -> list[Rule]:
    """Return the rules of an option.

    :raises InvalidRule: names the rule
    """
    texts = split(text)
    _check_count(len(texts), 'rules')
    return [
        _with_source(read(rule_text, f'rule {number}'), f'configuration, rule {number}')
        for number, rule_text in enumerate(texts, 1)
    ]


def check_metadata(metadata: Mapping[str, str | None], field: str) -> None:
    """Check the rules in the metadata of an aggregate, before it is stored.

    :raises InvalidRule: names the key, the character and what was expected there
    """
    for key, text in metadata.items():
        if key.startswith(PREFIX) and text is not None:
            read(text, f'{field}.{key}')


_NEVER = Expression(tree.Always(value=False))
_last: list[tuple[Mapping[str, Aggregate], list[Rule]]] = []


def _of_aggregates(known: Mapping[str, Aggregate]) -> list[Rule]:
    """Return the rules in the metadata of aggregates, cached while the mapping is the same.

    The table never edits its mapping of aggregates, but replaces it.
    """
    if not known:
        return []
    for seen, rules in _last:
        if seen is known:
            return rules
    rules = [
        _of_aggregate(aggregate, key)
        for aggregate in known.values()
        for key in sorted(aggregate.metadata)
        if key.startswith(PREFIX)
    ]
    _last[:] = [(known, rules), *_last[:3]]
    return rules


def _of_aggregate(aggregate: Aggregate, key: str) -> Rule:
    source = f'aggregate {aggregate.name}, {key}'
    try:
        rule = read(aggregate.metadata[key], key)
    except exceptions.InvalidRule as e:
        # An invalid rule cannot be met: nothing is placed there until it is corrected.
        rule = Rule(f'{e.kwargs["field"]}, which is not understood: {e.kwargs["problem"]}', _NEVER)
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
    if count > TESTS_MAX:
        problem = f'expected at most {TESTS_MAX} tests in all of them together, got {count}'
        raise exceptions.InvalidRule(field=where, problem=problem, at=0)
