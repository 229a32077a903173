# SPDX-License-Identifier: Apache-2.0
"""Comparisons of facts that may be of any type, with what Nova means by them.

Facts of queries are compared as JSON: what cannot be compared is not equal, and
neither smaller nor larger.  Those of extra specs are text, and a number where
they are compared with one; of what is then no number nothing is known.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gantt.core.messages import extra_specs
from gantt.core.messages.request import RequestSpec
from gantt.core.nova import facts as nova_facts
from gantt.core.rules import facts, tree
from gantt.core.rules.columns import Members
from gantt.core.rules.facts import Fact, Kind, Rows
from gantt.core.rules.question import RELATIONS, Misfit, Question, allow, misfit
from gantt.core.rules.values import Values
from gantt.core.table.columns import BoolArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

_ORDERED = ('<', '<=', '>', '>=', '==')


def related(op: str, one: Any, other: Any) -> bool:
    """Whether a relation holds between values of any type; what cannot be compared: it does not."""
    try:
        return bool(RELATIONS[op](one, other))
    except (TypeError, RecursionError):
        return False


class OfValue(Question):
    """A value of any type against others, or against another fact of that kind."""

    def __init__(self, fact: Fact, key: str, op: str, value: Any) -> None:
        self.op = '==' if op == 'in' else op
        self.other: tuple[Fact, str] | None = None
        self.values: tuple[Any, ...] = ()
        if isinstance(value, tree.Ref):
            self.other = facts.resolve(value.name)
            super().__init__(fact, key, self.other[0])
        else:
            super().__init__(fact, key)
            self.values = value if isinstance(value, tuple) else (value,)

    def where(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows, negated: bool) -> BoolArray:
        column = cast(Values, self.fact.read(hosts, spec, self.key, rows))
        if self.other is not None:
            right = cast(Values, self.other[0].read(hosts, spec, self.other[1], rows))
            return self._pairs(column, right, negated)
        if column.numbers is not None and all(map(tree.is_number, self.values)):
            return self._numbers(column.numbers, self.values, negated)

        def says(value: Any) -> bool:
            return any(
                related(self.op, _beside(value, one) if column.prints else value, one)
                for one in self.values
            )

        return column.where(says, negated)

    def _numbers(self, values: np.ndarray, others: tuple[Any, ...], negated: bool) -> BoolArray:
        mask = np.zeros(values.shape, np.bool_)
        for one in others:
            mask |= RELATIONS[self.op](values, one)
        return (~mask if negated else mask) & (values == values)

    def _pairs(self, left: Values, right: Values, negated: bool) -> BoolArray:
        if left.numbers is not None and right.numbers is not None:
            known = right.numbers == right.numbers
            return self._numbers(left.numbers, (right.numbers,), negated) & known

        def says(one: Any, other: Any) -> bool:
            if one is None or other is None:
                return False
            one = _beside(one, other) if left.prints else one
            other = _beside(other, one) if right.prints else other
            return related(self.op, one, other) is (not negated)

        pairs = zip(left.plain(), right.plain(), strict=True)
        return np.fromiter((says(*pair) for pair in pairs), np.bool_, left.count)


def _beside(value: Any, other: Any) -> Any:
    """A number of stats, as text if it stands beside text."""
    return nova_facts.text_of(value) if isinstance(other, str) else value


class OfWord(Question):
    """What extra specs compare: a text, or a number where it stands beside one."""

    def __init__(self, fact: Fact, key: str, op: str, value: Any) -> None:
        super().__init__(fact, key)
        self.op, self.value = op, value
        self.is_number = op in _ORDERED and not isinstance(value, str)

    def where(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows, negated: bool) -> BoolArray:
        column = cast(Values | Members, self.fact.read(hosts, spec, self.key, rows))
        if isinstance(column, Members):
            return column.where(self._says, negated)
        numbers = column.numbers
        if self.is_number and numbers is not None:
            mask = RELATIONS[self.op](numbers, self.value)
            return cast(BoolArray, (~mask if negated else mask) & (numbers == numbers))
        return column.where(lambda value: self._of(value, column.whole), negated)

    def _of(self, value: Any, whole: bool) -> bool | None:
        text = nova_facts.text_of(value)
        if text is None:
            return None
        if self.op != 'contains' or whole or not isinstance(value, list):
            return self._says(text)
        members = {nova_facts.text_of(item) or '' for item in value}
        return all(one in members for one in self._wanted())

    def _says(self, text: str) -> bool | None:
        if self.op == 'contains':
            return all(one in text for one in self._wanted())
        if self.op == 'in':
            return text in self.value
        if not self.is_number:
            return bool(RELATIONS[self.op](text, self.value))
        number = extra_specs.number_of(text)
        return None if number is None else bool(RELATIONS[self.op](number, self.value))

    def _wanted(self) -> tuple[str, ...]:
        return self.value if isinstance(self.value, tuple) else (self.value,)


# -- checking --------------------------------------------------------------------------


def of_value(fact: Fact, key: str, op: str, value: Any) -> Question:
    """:raises Misfit: a fact of a query is not compared like that"""
    allow(fact, op, *_ORDERED, 'in')
    if op == 'in':
        right = isinstance(value, tuple) and not any(isinstance(v, tree.Version) for v in value)
        if not right:
            raise misfit(fact, 'a list such as ["a", 5]', value)
        return OfValue(fact, key, op, value)
    if isinstance(value, tree.Ref):
        try:
            other, _ = facts.resolve(value.name)
        except facts.Unknown as e:
            raise Misfit('value', str(e)) from None
        if other.kind is not Kind.VALUE:
            raise misfit(fact, 'a fact of the same kind', value)
    elif isinstance(value, tree.Json):
        value = _decoded(fact, value)
    elif not (isinstance(value, str | bool) or tree.is_number(value)):
        raise misfit(fact, 'a text, a number of at most 2^53, true, false or json "…"', value)
    return OfValue(fact, key, op, value)


def of_word(fact: Fact, key: str, op: str, value: Any) -> Question:
    """:raises Misfit: a fact of an extra spec is not compared like that"""
    allow(fact, op, *_ORDERED, 'in', 'contains')
    texts = value if isinstance(value, tuple) else (value,)
    if op in ('in', 'contains'):
        if not all(isinstance(v, str) for v in texts) or (op == 'in' and texts is not value):
            raise misfit(fact, 'a list such as ["a", "b"]', value)
    elif isinstance(value, tree.Json):
        value = _decoded(fact, value)
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            raise misfit(fact, 'a number in json "…"', value)
    elif not (isinstance(value, str) or tree.is_number(value)):
        raise misfit(fact, 'a text in quotes or a number', value)
    return OfWord(fact, key, op, value)


def _decoded(fact: Fact, value: tree.Json) -> Any:
    try:
        return value.value
    except ValueError as e:
        raise misfit(fact, f'JSON ({e})', value) from None


class IsSome(Question):
    """The host has the fact, and it is neither 0, false nor empty."""

    def where(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows, negated: bool) -> BoolArray:
        column = self.fact.read(hosts, spec, self.key, rows)
        says: Callable[[Any], bool] = bool
        if isinstance(column, Values):
            mask = column.where(says)
        else:
            mask = column.found()
            values = getattr(column, 'values', None)
            mask = mask if values is None else mask & (values != 0)
        return ~mask if negated else mask
