# SPDX-License-Identifier: Apache-2.0
"""Single comparisons: checked against the type of their fact, then evaluated for all hosts at once.

One engine for every type.  A comparison is a test of arrays if its fact is one number
per host, else a predicate of each distinct value.  Types differ in the conversion of a
value before the test: none, as a version, or as Nova's filters do.  For a query of
JsonFilter values that cannot be compared are not equal, and neither smaller nor larger;
for an extra spec every value is text, and a number if it is compared with one.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from gantt.core.messages import extra_specs
from gantt.core.rules import facts, nova_facts, tree
from gantt.core.rules.facts import (
    Column,
    Fact,
    FactView,
    Kind,
    Numbers,
    Predicate,
    TextSets,
    Values,
    places_of,
)
from gantt.core.table.columns import BoolArray

#: Bound of each part of a hypervisor's version, which is encoded as one number.
_VERSION_PART_MAX = 1000
_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    '<': operator.lt,
    '<=': operator.le,
    '>': operator.gt,
    '>=': operator.ge,
    '==': operator.eq,
}
_ORDER_OPERATORS = tuple(_RELATIONS)


class TypeMismatch(Exception):
    """A comparison that the type of its fact does not allow.

    :ivar part: the wrong part: ``fact``, ``op`` or ``value``
    """

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(problem)
        self.part = part


# -- questions -------------------------------------------------------------------------


class FactTest:
    """A comparison of a fact.

    :ivar used: the facts that it reads
    :ivar columns: columns of the host table that they are read from
    """

    def __init__(self, fact: Fact, key: str, *others: Fact) -> None:
        self.fact = fact
        self.key = key
        self.used = (fact, *others)
        self.columns = frozenset(fact.columns(key)).union(*(other.reads for other in others))

    def known_mask(self, view: FactView, negated: bool) -> BoolArray:
        """Return a mask of hosts for which the comparison, or its opposite, is known to hold."""
        return self.mask_of_column(self.fact.read(view, self.key), negated)

    def mask_of_column(self, column: Column, negated: bool) -> BoolArray:
        """Return the mask of :meth:`known_mask` for a column of the fact."""
        raise NotImplementedError


class KnownTest(FactTest):
    """A test whether a host has the fact."""

    def mask_of_column(self, column: Column, negated: bool) -> BoolArray:
        return column.found() != negated


class NonEmptyTest(FactTest):
    """A test whether a host has the fact, and it is neither 0, false nor empty."""

    def mask_of_column(self, column: Column, negated: bool) -> BoolArray:
        if isinstance(column, Values):
            mask = column.mask_where(bool)
        else:
            mask = column.found()
            if column.numbers is not None:
                mask &= column.numbers != 0
        return ~mask if negated else mask


class ConstantTest(FactTest):
    """A comparison of a fact with fixed values.

    :ivar predicate: evaluated for each distinct value
    :ivar test: evaluated for numbers as one array; None: numbers are values like others
    """

    def __init__(
        self, fact: Fact, key: str, predicate: Predicate, test: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(fact, key)
        self.predicate = predicate
        self.test = test

    def mask_of_column(self, column: Column, negated: bool) -> BoolArray:
        if isinstance(column, Numbers) or (self.test and column.numbers is not None):
            assert self.test is not None and column.numbers is not None
            return _where_known(self.test(column.numbers), negated, column.known)
        return column.mask_where(self.predicate, negated)


class FactPairTest(FactTest):
    """A comparison of a fact, or its part ``key``, with the other fact called ``name``."""

    def __init__(self, fact: Fact, key: str, op: str, name: str) -> None:
        self.op, (self.other, self.other_key) = op, facts.resolve_fact(name)
        super().__init__(fact, key, self.other)

    def known_mask(self, view: FactView, negated: bool) -> BoolArray:
        left = self.fact.read(view, self.key)
        if self.fact.kind in (Kind.TEXT, Kind.SET):
            first_host = FactView(view.hosts, view.spec, np.zeros(1, np.int64))
            return self._mask_of_texts(
                left, self.other.read(first_host, self.other_key), len(view), negated
            )
        right = self.other.read(view, self.other_key)
        if left.numbers is not None and right.numbers is not None:
            mask = _RELATIONS[self.op](left.numbers, right.numbers)
            return _where_known(mask, negated, left.known, right.known)
        assert isinstance(left, Values) and isinstance(right, Values)
        holds = _fact_relation(self.op, self.key, self.other_key)
        pairs = zip(left.plain(), right.plain(), strict=True)
        results = (
            value is not None and other is not None and holds(value, other) is not negated
            for value, other in pairs
        )
        return np.fromiter(results, np.bool_, left.count)

    def _mask_of_texts(self, left: Any, right: Any, count: int, negated: bool) -> BoolArray:
        """Return a mask of the comparison with the texts of a request, of which any may match."""
        texts = right.sets[0] if isinstance(right, TextSets) else right.names
        predicates = [_text_predicate(self.op, text) for text in texts if text]
        if not predicates:
            # A comparison with a text that the request does not have is unknown.
            return np.zeros(count, np.bool_)
        return left.mask_where(
            lambda value: any(predicate(value) for predicate in predicates), negated
        )


class PathTest(FactTest):
    """A comparison of locations: at or below one of several places, or equal to it."""

    def __init__(self, fact: Fact, key: str, places: tuple[str, ...], exact: bool) -> None:
        super().__init__(fact, key)
        self.places = places
        self.exact = exact

    def known_mask(self, view: FactView, negated: bool) -> BoolArray:
        places, codes = places_of(view.hosts.locations), view.at_rows(view.hosts.location)
        return places.below_any(self.places, codes, self.exact, negated)


def _where_known(mask: BoolArray, negated: bool, *known: BoolArray | None) -> BoolArray:
    """Return a mask, or its opposite, of the hosts that have the facts."""
    mask = ~mask if negated else mask
    for known_mask in known:
        mask = mask if known_mask is None else mask & known_mask
    return mask


# -- relations of a value and an operand -------------------------------------------------


def is_related(op: str, one: Any, other: Any) -> bool:
    """Return whether a relation holds between values of any type; False if not comparable."""
    try:
        return bool(_RELATIONS[op](one, other))
    except (TypeError, RecursionError):
        return False


def _relation_test(op: str, operand: Any) -> Callable[[Any], Any]:
    """Return a test of a relation to an operand, for one value or for an array of numbers."""
    if isinstance(operand, tree.Range):
        low: Any = operand.low
        high: Any = operand.high
        if low is None or high is None:
            return _relation_test('>=', low) if high is None else _relation_test('<=', high)
        return lambda value: (value >= low) & (value <= high)
    if isinstance(operand, frozenset):
        return operand.__contains__
    if op == 'in':

        def among(value: Any) -> Any:
            is_equal = value != value
            for item in operand:
                is_equal = is_equal | (value == item)
            return is_equal

        return among
    if op == 'contains':
        return lambda text: all(part in text for part in operand)
    relation = _RELATIONS[op]
    return lambda value: relation(value, operand)


def _text_predicate(op: str, operand: Any) -> Predicate:
    """Return a predicate of texts, which are compared as versions with versions."""
    if isinstance(operand, tree.Range):
        ends = (None if v is None else _version_parts(v) for v in (operand.low, operand.high))
        within = _relation_test(op, tree.Range(*ends))
    elif isinstance(operand, tree.VersionNumber):
        within = _relation_test(op, _version_parts(operand))
    elif isinstance(operand, tuple) and any(isinstance(v, tree.VersionNumber) for v in operand):
        within = _relation_test(op, frozenset(map(_version_parts, operand)))
    elif op == 'contains':
        return _relation_test(op, (operand,))
    else:
        return _relation_test(op, frozenset(operand) if op == 'in' else operand)

    def as_version(text: str) -> bool | None:
        parts = tree.version_parts(text)
        return None if parts is None else within(parts)

    return as_version


def _version_parts(version: Any) -> Any:
    return version.parts


def _fact_relation(op: str, key: str, other_key: str = '') -> Callable[[Any, Any], bool]:
    """Return a relation of facts of a query: a number of ``stats`` is text beside text."""
    prints, other_prints = _is_stat(key), _is_stat(other_key)

    def holds(one: Any, other: Any) -> bool:
        if prints and isinstance(other, str):
            one = nova_facts.text_of(one)
        if other_prints and isinstance(one, str):
            other = nova_facts.text_of(other)
        return is_related(op, one, other)

    return holds


def _is_stat(key: str) -> bool:
    return key.startswith('stats.') and key.count('.') == 1


def _word_predicate(op: str, operand: Any, whole: bool) -> Predicate:
    """Return a predicate as of extra specs: on texts, or on numbers beside a number.

    :param whole: a list is compared as the text that Python prints, without members
    """
    as_number = op in _ORDER_OPERATORS and not isinstance(operand, str)
    if op == 'contains' and not isinstance(operand, tuple):
        operand = (operand,)
    test = _relation_test(op, frozenset(operand) if op == 'in' else operand)

    def of(value: Any) -> bool | None:
        text = nova_facts.text_of(value)
        if text is None:
            return None
        if op == 'contains' and not whole and isinstance(value, list):
            return bool(test({nova_facts.text_of(item) or '' for item in value}))
        if not as_number:
            return bool(test(text))
        number = extra_specs.number_of(text)
        return None if number is None else bool(test(number))

    return of


# -- checks ------------------------------------------------------------------------------


def test_of(node: tree.Comparison | tree.Known | tree.Some) -> FactTest:
    """Return the test of a comparison; the caller negates it for ``!=``.

    :raises TypeMismatch: the type of the fact does not allow it
    """
    fact, key = _resolve('fact', node.fact)
    if isinstance(node, tree.Known):
        return KnownTest(fact, key)
    if isinstance(node, tree.Some):
        return NonEmptyTest(fact, key)
    op = tree.op_of(node)
    return _TESTS_BY_KIND[fact.kind](fact, key, '==' if op == '!=' else op, node.value)


def _resolve(part: str, name: str) -> tuple[Fact, str]:
    try:
        return facts.resolve_fact(name)
    except facts.UnknownFactName as e:
        raise TypeMismatch(part, str(e)) from None


def _other_fact(fact: Fact, value: tree.Ref, expected: str, *kinds: Kind) -> Fact:
    other, _ = _resolve('value', value.name)
    if other.kind not in kinds:
        raise _type_mismatch(fact, expected, value)
    return other


def _type_mismatch(fact: Fact, expected: str, value: Any, part: str = 'value') -> TypeMismatch:
    """Return the error for a relation or a value."""
    got = value if part == 'op' else tree.operand_text(value)
    return TypeMismatch(part, f'{fact.name} is a {fact.kind}: expected {expected}, got {got}')


def _check_operator(fact: Fact, op: str, *allowed: str) -> None:
    """Check that the type of a fact allows a relation.

    :raises TypeMismatch: it does not
    """
    if op not in allowed:
        shown = ', '.join((*allowed, '!=') if '==' in allowed else allowed)
        raise _type_mismatch(fact, f'one of {shown}', op, 'op')


def _number_test(fact: Fact, key: str, op: str, value: Any) -> FactTest:
    _check_operator(fact, op, *_ORDER_OPERATORS, 'in')
    if isinstance(value, tree.Ref) and op != 'in':
        _other_fact(fact, value, 'a number', Kind.NUMBER)
        return FactPairTest(fact, key, op, value.name)
    if op == 'in':
        items = value if isinstance(value, tuple) else _range_ends(value)
        if items is None or not all(map(tree.is_number, items)):
            raise _type_mismatch(
                fact, 'numbers: a list such as [1, 2] or a range such as 1..5', value
            )
    elif not tree.is_number(value):
        raise _type_mismatch(fact, 'a number of at most 2^53', value)
    return _numeric_test(fact, key, op, value)


def _numeric_test(fact: Fact, key: str, op: str, value: Any) -> FactTest:
    test = _relation_test(op, value)
    return ConstantTest(fact, key, test, test)


def _range_ends(value: Any) -> list[Any] | None:
    """Return the ends of a range; None if the value is not a range, or has no ends."""
    if not isinstance(value, tree.Range):
        return None
    return [end for end in (value.low, value.high) if end is not None] or None


def _version_test(fact: Fact, key: str, op: str, value: Any) -> FactTest:
    """Return the test of a hypervisor's version, which is reported as one number."""
    _check_operator(fact, op, *_ORDER_OPERATORS, 'in')
    if op != 'in':
        value = _as_number(fact, value)
    elif isinstance(value, tuple):
        value = tuple(_as_number(fact, item) for item in value)
    elif _range_ends(value):
        ends = (value.low, value.high)
        value = tree.Range(*(None if end is None else _as_number(fact, end) for end in ends))
    else:
        raise _type_mismatch(fact, 'a range such as v4.2..v5.1 or a list of versions', value)
    return _numeric_test(fact, key, op, value)


def _as_number(fact: Fact, value: Any) -> int:
    if isinstance(value, int) and tree.is_number(value):
        return value
    parts = value.parts if isinstance(value, tree.VersionNumber) else None
    if (
        parts is not None
        and len(parts) <= 3
        and all(part < _VERSION_PART_MAX for part in parts[1:])
    ):
        major, minor, micro = (*parts, 0, 0, 0)[:3]
        number = (major * _VERSION_PART_MAX + minor) * _VERSION_PART_MAX + micro
        if tree.is_number(number):
            return number
    raise _type_mismatch(fact, 'a version such as v4.2.1', value)


def _bool_test(fact: Fact, key: str, op: str, value: Any) -> FactTest:
    _check_operator(fact, op, '==')
    if not isinstance(value, bool):
        raise _type_mismatch(fact, 'true or false', value)
    return _numeric_test(fact, key, op, value)


def _text_test(fact: Fact, key: str, op: str, value: Any) -> FactTest:
    if op == 'in':
        items = value if isinstance(value, tuple) else _range_ends(value)
        kinds = (tree.VersionNumber,) if items is not value else (tree.VersionNumber, str)
        if items is None or not any(all(isinstance(v, kind) for v in items) for kind in kinds):
            raise _type_mismatch(fact, 'a list such as ["a", "b"] or a range of versions', value)
    elif isinstance(value, tree.Ref):
        if not _other_fact(fact, value, 'a text', Kind.TEXT, Kind.SET).of_request:
            raise _type_mismatch(fact, 'a text, or a fact of the request', value)
        return FactPairTest(fact, key, op, value.name)
    elif not (
        isinstance(value, str) or (op != 'contains' and isinstance(value, tree.VersionNumber))
    ):
        raise _type_mismatch(fact, 'a text in quotes', value)
    return ConstantTest(fact, key, _text_predicate(op, value))


def _set_test(fact: Fact, key: str, op: str, value: Any) -> FactTest:
    # A member has to equal the whole text, not contain it.
    return _text_test(fact, key, '==' if op == 'contains' else op, value)


def _path_test(fact: Fact, key: str, op: str, value: Any) -> FactTest:
    _check_operator(fact, op, '==', 'in')
    places = value if op == 'in' and isinstance(value, tuple) else (value,)
    for place in places:
        if not (isinstance(place, str) and all(place.split('.'))):
            raise _type_mismatch(fact, 'a place such as "site1.room2"', value)
    return PathTest(fact, key, places, op == '==')


def _value_test(fact: Fact, key: str, op: str, value: Any) -> FactTest:
    _check_operator(fact, op, *_ORDER_OPERATORS, 'in')
    if isinstance(value, tree.Ref) and op != 'in':
        _other_fact(fact, value, 'a fact of the same kind', Kind.VALUE)
        return FactPairTest(fact, key, op, value.name)
    if op == 'in':
        if not isinstance(value, tuple) or any(isinstance(v, tree.VersionNumber) for v in value):
            raise _type_mismatch(fact, 'a list such as ["a", 5]', value)
    elif isinstance(value, tree.Json):
        value = _decoded(fact, value)
    elif not (isinstance(value, str | bool) or tree.is_number(value)):
        raise _type_mismatch(
            fact, 'a text, a number of at most 2^53, true, false or json "…"', value
        )
    operands = value if op == 'in' else (value,)
    relation = _fact_relation('==' if op == 'in' else op, key)
    test = _relation_test(op, value) if all(map(tree.is_number, operands)) else None
    return ConstantTest(
        fact,
        key,
        lambda host_value: any(relation(host_value, operand) for operand in operands),
        test,
    )


def _word_test(fact: Fact, key: str, op: str, value: Any) -> FactTest:
    _check_operator(fact, op, *_ORDER_OPERATORS, 'in', 'contains')
    if op in ('in', 'contains'):
        texts = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(v, str) for v in texts) or (op == 'in' and texts is not value):
            raise _type_mismatch(fact, 'a list such as ["a", "b"]', value)
    elif isinstance(value, tree.Json):
        value = _decoded(fact, value)
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            raise _type_mismatch(fact, 'a number in json "…"', value)
    elif not (isinstance(value, str) or tree.is_number(value)):
        raise _type_mismatch(fact, 'a text in quotes or a number', value)
    predicate = _word_predicate(op, value, whole=fact.name == 'capabilities_printed')
    has_test = op in _ORDER_OPERATORS and not isinstance(value, str)
    return ConstantTest(fact, key, predicate, _relation_test(op, value) if has_test else None)


def _decoded(fact: Fact, value: tree.Json) -> Any:
    try:
        return value.value
    except ValueError as e:
        raise _type_mismatch(fact, f'JSON ({e})', value) from None


_TESTS_BY_KIND: dict[Kind, Callable[[Fact, str, str, Any], FactTest]] = {
    Kind.NUMBER: _number_test,
    Kind.VERSION: _version_test,
    Kind.BOOL: _bool_test,
    Kind.TEXT: _text_test,
    Kind.SET: _set_test,
    Kind.PATH: _path_test,
    Kind.VALUE: _value_test,
    Kind.WORD: _word_test,
    Kind.WORDS: _word_test,
}
