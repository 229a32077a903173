# SPDX-License-Identifier: Apache-2.0
"""A rule: a condition, its strength, and its source.

free.MEMORY_MB >= 4096                 hard: a host that does not meet it is removed
soft 2.5: location in "site1"          preferred, by its weight
drop 1: metrics.load < 0.8             hard, until nothing fits: then 1 goes before 2
"""

import enum
import functools
import re

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.filters.base import has_any
from gantt.core.messages.base import problem_text
from gantt.core.messages.request import RequestSpec
from gantt.core.rules import parser, tree
from gantt.core.rules.expression import Expression
from gantt.core.rules.facts import RowSelection
from gantt.core.table.columns import BoolArray
from gantt.core.table.host_table import HostTable

#: Upper bound of the rules of one layer.
RULES_MAX = 32
WEIGHT_MAX = 1000.0
ORDER_MAX = 1000
_WEIGHT_EXPECTED = f'expected a weight above 0 and of at most {WEIGHT_MAX:g}'
_ORDER_EXPECTED = f'expected a number from 1 to {ORDER_MAX}'

_SOFT_PREFIX = re.compile(r'\s*soft\b([^:"\']{0,40}):')
_DROP_PREFIX = re.compile(r'\s*drop\b([^:"\']{0,40}):')
_HARD_PREFIX = re.compile(r'\s*hard\s{0,40}:')
_WEIGHT_TEXT = re.compile(r'\s+([0-9]{1,4}(?:\.[0-9]{1,6})?)\s*')
_ORDER_TEXT = re.compile(r'\s+([0-9]{1,4})\s*')


class Strength(enum.StrEnum):
    """Strengths of a rule."""

    HARD = 'hard'
    SOFT = 'soft'
    DROP = 'drop'


class RuleJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule as JSON; hard where it is neither soft nor to be dropped."""

    rule: tree.Expr
    soft: float | None = None
    drop: int | None = None


class Rule(msgspec.Struct, frozen=True, eq=False):
    """A rule with its condition.

    :ivar text: its source text
    :ivar weight: weight of a soft rule
    :ivar order: order of a rule that may be dropped: the smallest is dropped first
    :ivar source: its origin, for messages; '' to show the rule alone
    :ivar aggregate: uuid of the aggregate whose hosts it applies to; None: all hosts
    """

    text: str
    condition: Expression
    strength: Strength = Strength.HARD
    weight: float = 0.0
    order: int = 0
    source: str = ''
    aggregate: str | None = None

    def __str__(self) -> str:
        return f'{self.text} ({self.source})' if self.source else self.text

    @property
    def volatile(self) -> bool:
        """True where a pick may change its result for the picked host."""
        return self.condition.volatile

    def mask(self, hosts: HostTable, spec: RequestSpec, rows: RowSelection = None) -> BoolArray:
        """Return a mask of hosts, or of ``rows``, that meet the rule or are exempt from it."""
        met = self.condition.mask(hosts, spec, rows)
        if self.aggregate is None:
            return met
        bits = hosts.aggregates if rows is None else hosts.aggregates.take(rows, axis=1)
        return met | ~has_any(bits, hosts.aggregate_bits([self.aggregate]))

    def is_met(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        """Return whether one host meets the rule."""
        return bool(self.mask(hosts, spec, np.array([row]))[0])


def parse_rule(text: str, field: str = 'rule') -> Rule:
    """Return a rule from its text, or from JSON.

    :param field: name of the text in an error
    :raises InvalidRule: names the character and what was expected there
    """
    parsed = _cached_rule(text) if len(text) <= tree.TEXT_MAX else _parse_or_problem(text)
    if isinstance(parsed, Rule):
        return parsed
    position, problem = parsed
    where = f'character {position}: ' if position else ''
    raise exceptions.InvalidRule(field=field, problem=where + problem, at=position)


@functools.lru_cache(maxsize=2048)
def _cached_rule(text: str) -> Rule | tuple[int, str]:
    return _parse_or_problem(text)


def _parse_or_problem(text: str) -> Rule | tuple[int, str]:
    start = 0
    try:
        if text.lstrip().startswith('{'):
            return _from_json(text)
        rule, start = _parse_prefix(text)
        condition = parser.parse(text[start:], 'rule')
        return msgspec.structs.replace(rule, text=text.strip(), condition=condition)
    except exceptions.InvalidRule as e:
        position = int(str(e.kwargs['at']))
        message = str(e.kwargs['problem']).removeprefix(f'character {position}: ')
        return (position + start if position else 0), message


_ALWAYS_TRUE = Expression(tree.Always(value=True))


def _bad_prefix(matched: re.Match[str], problem: str) -> exceptions.InvalidRule:
    return exceptions.InvalidRule(field='rule', problem=problem, at=matched.start(1) + 1)


def _parse_prefix(text: str) -> tuple[Rule, int]:
    """Return a rule with its strength, and the position of its condition."""
    if matched := _SOFT_PREFIX.match(text):
        number = _WEIGHT_TEXT.fullmatch(matched[1])
        weight = float(number[1]) if number else 0.0
        if not 0 < weight <= WEIGHT_MAX:
            raise _bad_prefix(matched, f'{_WEIGHT_EXPECTED}, as in soft 2.5:')
        return Rule('', _ALWAYS_TRUE, Strength.SOFT, weight=weight), matched.end()
    if matched := _DROP_PREFIX.match(text):
        number = _ORDER_TEXT.fullmatch(matched[1])
        order = int(number[1]) if number else 0
        if not 0 < order <= ORDER_MAX:
            raise _bad_prefix(matched, f'{_ORDER_EXPECTED}, as in drop 1:; the smaller goes first')
        return Rule('', _ALWAYS_TRUE, Strength.DROP, order=order), matched.end()
    matched = _HARD_PREFIX.match(text)
    return Rule('', _ALWAYS_TRUE), matched.end() if matched else 0


def _from_json(text: str) -> Rule | tuple[int, str]:
    try:
        form = msgspec.json.decode(text, type=RuleJson)
    except msgspec.MsgspecError as e:
        return 0, problem_text(str(e))
    except RecursionError:
        return 0, f'expected at most {tree.DEPTH_MAX} levels of nesting'
    if form.soft is not None and form.drop is not None:
        return 0, 'expected one of soft and drop, got both'
    condition = parser.checked_tree(form.rule)
    if form.soft is not None:
        if not 0 < form.soft <= WEIGHT_MAX:
            return 0, f'soft: {_WEIGHT_EXPECTED}'
        text = f'soft {form.soft:g}: {condition.text}'
        return Rule(text, condition, Strength.SOFT, weight=form.soft)
    if form.drop is not None:
        if not 0 < form.drop <= ORDER_MAX:
            return 0, f'drop: {_ORDER_EXPECTED}'
        return Rule(
            f'drop {form.drop}: {condition.text}', condition, Strength.DROP, order=form.drop
        )
    return Rule(condition.text, condition)


def split_rules(text: str) -> list[str]:
    """Return the rules of one text, separated by semicolons or line ends outside quotes."""
    parts, start, quote, position = [], 0, '', 0
    while position < len(text):
        char = text[position]
        if quote:
            if char == '\\':
                position += 1
            elif char == quote:
                quote = ''
        elif char in '"\'':
            quote = char
        elif char in ';\n':
            parts.append(text[start:position])
            start = position + 1
        position += 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]
