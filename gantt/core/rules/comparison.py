# SPDX-License-Identifier: Apache-2.0
"""Single comparisons: checked against the type of their fact, then asked of all hosts at once.

One engine for every type.  A comparison is a test of arrays where its fact is one number
per host, and a predicate of each distinct value where not.  What differs between types is
how a value is read before the test: as it is, as a version, or as Nova's filters do.  To a
query of JsonFilter what cannot be compared is not equal, and neither smaller nor larger;
to an extra spec everything is text, and a number where it is compared with one.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from gantt.core.messages import extra_specs
from gantt.core.nova import facts as nova_facts
from gantt.core.rules import facts, tree
from gantt.core.rules.columns import Column, Numbers, Predicate, Sets, Values, places_of
from gantt.core.rules.facts import Fact, FactView, Kind
from gantt.core.table.columns import BoolArray

#: Hypervisors count versions as one number: so much each part may be.
_PART_MAX = 1000
_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    '<': operator.lt,
    '<=': operator.le,
    '>': operator.gt,
    '>=': operator.ge,
    '==': operator.eq,
}
_ORDERED = tuple(_RELATIONS)


class TypeMismatch(Exception):
    """A comparison that the type of its fact does not allow.

    :ivar part: what of it is wrong: ``fact``, ``op`` or ``value``
    """

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(problem)
        self.part = part


# -- asking ----------------------------------------------------------------------------


class Question:
    """One comparison of one fact.

    :ivar used: the facts it is about
    :ivar columns: columns of the host table that they follow from
    """

    def __init__(self, fact: Fact, key: str, *others: Fact) -> None:
        self.fact, self.key = fact, key
        self.used = (fact, *others)
        self.columns = frozenset(fact.columns(key)).union(*(other.reads for other in others))

    def where(self, view: FactView, negated: bool) -> BoolArray:
        """Which hosts it, or its opposite, is known to hold for."""
        return self.of(self.fact.read(view, self.key), negated)

    def of(self, column: Column, negated: bool) -> BoolArray:
        """The same, by what hosts have of the fact."""
        raise NotImplementedError


class IsKnown(Question):
    """The host has the fact."""

    def of(self, column: Column, negated: bool) -> BoolArray:
        return column.found() != negated


class IsSome(Question):
    """The host has the fact, and it is neither 0, false nor empty."""

    def of(self, column: Column, negated: bool) -> BoolArray:
        if isinstance(column, Values):
            mask = column.where(bool)
        else:
            mask = column.found()
            if column.numbers is not None:
                mask &= column.numbers != 0
        return ~mask if negated else mask


class WithValues(Question):
    """A fact against fixed values.

    :ivar predicate: asked of each distinct value
    :ivar test: asked of numbers as one array; None: they are values like others
    """

    def __init__(
        self, fact: Fact, key: str, predicate: Predicate, test: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(fact, key)
        self.predicate, self.test = predicate, test

    def of(self, column: Column, negated: bool) -> BoolArray:
        if isinstance(column, Numbers) or (self.test and column.numbers is not None):
            assert self.test is not None and column.numbers is not None
            return _known(self.test(column.numbers), negated, column.known)
        return column.where(self.predicate, negated)


class WithFact(Question):
    """A fact against another one."""

    def __init__(self, fact: Fact, key: str, op: str, name: str) -> None:
        self.op, (self.other, self.other_key) = op, facts.resolve(name)
        super().__init__(fact, key, self.other)

    def where(self, view: FactView, negated: bool) -> BoolArray:
        left = self.fact.read(view, self.key)
        if self.fact.kind in (Kind.TEXT, Kind.SET):
            one = FactView(view.hosts, view.spec, np.zeros(1, np.int64))
            return self._of_texts(left, self.other.read(one, self.other_key), len(view), negated)
        right = self.other.read(view, self.other_key)
        if left.numbers is not None and right.numbers is not None:
            mask = _RELATIONS[self.op](left.numbers, right.numbers)
            return _known(mask, negated, left.known, right.known)
        assert isinstance(left, Values) and isinstance(right, Values)
        holds = _pairs(self.op, self.key, self.other_key)
        pairs = zip(left.plain(), right.plain(), strict=True)
        found = (
            one is not None and other is not None and holds(one, other) is not negated
            for one, other in pairs
        )
        return np.fromiter(found, np.bool_, left.count)

    def _of_texts(self, left: Any, right: Any, count: int, negated: bool) -> BoolArray:
        """Against the texts of a request, any one of them."""
        texts = right.sets[0] if isinstance(right, Sets) else right.names
        each = [_of_texts(self.op, text) for text in texts if text]
        if not each:
            # How a fact compares with what nobody asked for is not known either.
            return np.zeros(count, np.bool_)
        return left.where(lambda value: any(one(value) for one in each), negated)


class OfPath(Question):
    """A place in the topology: at or below one of others, or the very same."""

    def __init__(self, fact: Fact, key: str, places: tuple[str, ...], exact: bool) -> None:
        super().__init__(fact, key)
        self.places, self.exact = places, exact

    def where(self, view: FactView, negated: bool) -> BoolArray:
        places, codes = places_of(view.hosts.locations), view.at(view.hosts.location)
        return places.below_any(self.places, codes, self.exact, negated)


def _known(mask: BoolArray, negated: bool, *known: BoolArray | None) -> BoolArray:
    """A mask, or its opposite, of those who are known."""
    mask = ~mask if negated else mask
    for one in known:
        mask = mask if one is None else mask & one
    return mask


# -- what holds between a value and an operand -------------------------------------------


def related(op: str, one: Any, other: Any) -> bool:
    """Whether a relation holds between values of any type; what cannot be compared: it does not."""
    try:
        return bool(_RELATIONS[op](one, other))
    except (TypeError, RecursionError):
        return False


def _test(op: str, operand: Any) -> Callable[[Any], Any]:
    """A relation to an operand, to be asked of one value or of an array of numbers."""
    if isinstance(operand, tree.Range):
        low: Any = operand.low
        high: Any = operand.high
        if low is None or high is None:
            return _test('>=', low) if high is None else _test('<=', high)
        return lambda value: (value >= low) & (value <= high)
    if isinstance(operand, frozenset):
        return operand.__contains__
    if op == 'in':

        def among(value: Any) -> Any:
            found = value != value
            for one in operand:
                found = found | (value == one)
            return found

        return among
    if op == 'contains':
        return lambda text: all(one in text for one in operand)
    relation = _RELATIONS[op]
    return lambda value: relation(value, operand)


def _of_texts(op: str, operand: Any) -> Predicate:
    """Texts by themselves, or as versions where they stand beside some."""
    if isinstance(operand, tree.Range):
        ends = (None if v is None else _parts(v) for v in (operand.low, operand.high))
        within = _test(op, tree.Range(*ends))
    elif isinstance(operand, tree.VersionNumber):
        within = _test(op, _parts(operand))
    elif isinstance(operand, tuple) and any(isinstance(v, tree.VersionNumber) for v in operand):
        within = _test(op, frozenset(map(_parts, operand)))
    elif op == 'contains':
        return _test(op, (operand,))
    else:
        return _test(op, frozenset(operand) if op == 'in' else operand)

    def as_version(text: str) -> bool | None:
        parts = tree.version_parts(text)
        return None if parts is None else within(parts)

    return as_version


def _parts(version: Any) -> Any:
    return version.parts


def _pairs(op: str, key: str, other_key: str = '') -> Callable[[Any, Any], bool]:
    """A relation of facts of a query, by their keys: a number of ``stats`` is text beside text."""
    prints, other_prints = _is_stat(key), _is_stat(other_key)

    def holds(one: Any, other: Any) -> bool:
        if prints and isinstance(other, str):
            one = nova_facts.text_of(one)
        if other_prints and isinstance(one, str):
            other = nova_facts.text_of(other)
        return related(op, one, other)

    return holds


def _is_stat(key: str) -> bool:
    return key.startswith('stats.') and key.count('.') == 1


def _of_words(op: str, operand: Any, whole: bool) -> Predicate:
    """What extra specs compare: a text, or a number where it stands beside one.

    :param whole: a list is the text that Python prints of it, and has no members
    """
    as_number = op in _ORDERED and not isinstance(operand, str)
    if op == 'contains' and not isinstance(operand, tuple):
        operand = (operand,)
    test = _test(op, frozenset(operand) if op == 'in' else operand)

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


# -- checking ----------------------------------------------------------------------------


def question_of(node: tree.Comparison | tree.Known | tree.Some) -> Question:
    """The question that a comparison stands for; ``!=`` is left to the caller to turn round.

    :raises Misfit: the type of the fact does not allow it
    """
    fact, key = _resolve('fact', node.fact)
    if isinstance(node, tree.Known):
        return IsKnown(fact, key)
    if isinstance(node, tree.Some):
        return IsSome(fact, key)
    op = tree.op_of(node)
    return _CHECKS[fact.kind](fact, key, '==' if op == '!=' else op, node.value)


def _resolve(part: str, name: str) -> tuple[Fact, str]:
    try:
        return facts.resolve(name)
    except facts.UnknownValue as e:
        raise TypeMismatch(part, str(e)) from None


def _other(fact: Fact, value: tree.Ref, expected: str, *kinds: Kind) -> Fact:
    other, _ = _resolve('value', value.name)
    if other.kind not in kinds:
        raise _misfit(fact, expected, value)
    return other


def _misfit(fact: Fact, expected: str, value: Any, part: str = 'value') -> TypeMismatch:
    """What is wrong with a relation or a value."""
    got = value if part == 'op' else tree.operand_text(value)
    return TypeMismatch(part, f'{fact.name} is a {fact.kind}: expected {expected}, got {got}')


def _allow(fact: Fact, op: str, *allowed: str) -> None:
    """:raises Misfit: the relation is none of those"""
    if op not in allowed:
        shown = ', '.join((*allowed, '!=') if '==' in allowed else allowed)
        raise _misfit(fact, f'one of {shown}', op, 'op')


def _of_number(fact: Fact, key: str, op: str, value: Any) -> Question:
    _allow(fact, op, *_ORDERED, 'in')
    if isinstance(value, tree.Ref) and op != 'in':
        _other(fact, value, 'a number', Kind.NUMBER)
        return WithFact(fact, key, op, value.name)
    if op == 'in':
        items = value if isinstance(value, tuple) else _ends(value)
        if items is None or not all(map(tree.is_number, items)):
            raise _misfit(fact, 'numbers: a list such as [1, 2] or a range such as 1..5', value)
    elif not tree.is_number(value):
        raise _misfit(fact, 'a number of at most 2^53', value)
    return _numeric(fact, key, op, value)


def _numeric(fact: Fact, key: str, op: str, value: Any) -> Question:
    test = _test(op, value)
    return WithValues(fact, key, test, test)


def _ends(value: Any) -> list[Any] | None:
    """The ends that a range has; None: it is no range, or has none."""
    if not isinstance(value, tree.Range):
        return None
    return [one for one in (value.low, value.high) if one is not None] or None


def _of_version(fact: Fact, key: str, op: str, value: Any) -> Question:
    """Versions of hypervisors are reported as one number."""
    _allow(fact, op, *_ORDERED, 'in')
    if op != 'in':
        value = _as_number(fact, value)
    elif isinstance(value, tuple):
        value = tuple(_as_number(fact, one) for one in value)
    elif _ends(value):
        ends = (value.low, value.high)
        value = tree.Range(*(None if one is None else _as_number(fact, one) for one in ends))
    else:
        raise _misfit(fact, 'a range such as v4.2..v5.1 or a list of versions', value)
    return _numeric(fact, key, op, value)


def _as_number(fact: Fact, value: Any) -> int:
    if isinstance(value, int) and tree.is_number(value):
        return value
    parts = value.parts if isinstance(value, tree.VersionNumber) else None
    if parts is not None and len(parts) <= 3 and all(part < _PART_MAX for part in parts[1:]):
        major, minor, micro = (*parts, 0, 0, 0)[:3]
        number = (major * _PART_MAX + minor) * _PART_MAX + micro
        if tree.is_number(number):
            return number
    raise _misfit(fact, 'a version such as v4.2.1', value)


def _of_bool(fact: Fact, key: str, op: str, value: Any) -> Question:
    _allow(fact, op, '==')
    if not isinstance(value, bool):
        raise _misfit(fact, 'true or false', value)
    return _numeric(fact, key, op, value)


def _of_text(fact: Fact, key: str, op: str, value: Any) -> Question:
    if op == 'in':
        items = value if isinstance(value, tuple) else _ends(value)
        kinds = (tree.VersionNumber,) if items is not value else (tree.VersionNumber, str)
        if items is None or not any(all(isinstance(v, kind) for v in items) for kind in kinds):
            raise _misfit(fact, 'a list such as ["a", "b"] or a range of versions', value)
    elif isinstance(value, tree.Ref):
        if not _other(fact, value, 'a text', Kind.TEXT, Kind.SET).of_request:
            raise _misfit(fact, 'a text, or a fact of the request', value)
        return WithFact(fact, key, op, value.name)
    elif not (
        isinstance(value, str) or (op != 'contains' and isinstance(value, tree.VersionNumber))
    ):
        raise _misfit(fact, 'a text in quotes', value)
    return WithValues(fact, key, _of_texts(op, value))


def _of_set(fact: Fact, key: str, op: str, value: Any) -> Question:
    # A member that is wanted has the whole text, not a part of it.
    return _of_text(fact, key, '==' if op == 'contains' else op, value)


def _of_path(fact: Fact, key: str, op: str, value: Any) -> Question:
    _allow(fact, op, '==', 'in')
    places = value if op == 'in' and isinstance(value, tuple) else (value,)
    for place in places:
        if not (isinstance(place, str) and all(place.split('.'))):
            raise _misfit(fact, 'a place such as "site1.room2"', value)
    return OfPath(fact, key, places, op == '==')


def _of_value(fact: Fact, key: str, op: str, value: Any) -> Question:
    _allow(fact, op, *_ORDERED, 'in')
    if isinstance(value, tree.Ref) and op != 'in':
        _other(fact, value, 'a fact of the same kind', Kind.VALUE)
        return WithFact(fact, key, op, value.name)
    if op == 'in':
        if not isinstance(value, tuple) or any(isinstance(v, tree.VersionNumber) for v in value):
            raise _misfit(fact, 'a list such as ["a", 5]', value)
    elif isinstance(value, tree.Json):
        value = _decoded(fact, value)
    elif not (isinstance(value, str | bool) or tree.is_number(value)):
        raise _misfit(fact, 'a text, a number of at most 2^53, true, false or json "…"', value)
    operands = value if op == 'in' else (value,)
    relation = _pairs('==' if op == 'in' else op, key)
    test = _test(op, value) if all(map(tree.is_number, operands)) else None
    return WithValues(
        fact, key, lambda one: any(relation(one, operand) for operand in operands), test
    )


def _of_word(fact: Fact, key: str, op: str, value: Any) -> Question:
    _allow(fact, op, *_ORDERED, 'in', 'contains')
    if op in ('in', 'contains'):
        texts = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(v, str) for v in texts) or (op == 'in' and texts is not value):
            raise _misfit(fact, 'a list such as ["a", "b"]', value)
    elif isinstance(value, tree.Json):
        value = _decoded(fact, value)
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            raise _misfit(fact, 'a number in json "…"', value)
    elif not (isinstance(value, str) or tree.is_number(value)):
        raise _misfit(fact, 'a text in quotes or a number', value)
    predicate = _of_words(op, value, whole=fact.name == 'capabilities_printed')
    has_test = op in _ORDERED and not isinstance(value, str)
    return WithValues(fact, key, predicate, _test(op, value) if has_test else None)


def _decoded(fact: Fact, value: tree.Json) -> Any:
    try:
        return value.value
    except ValueError as e:
        raise _misfit(fact, f'JSON ({e})', value) from None


_CHECKS: dict[Kind, Callable[[Fact, str, str, Any], Question]] = {
    Kind.NUMBER: _of_number,
    Kind.VERSION: _of_version,
    Kind.BOOL: _of_bool,
    Kind.TEXT: _of_text,
    Kind.SET: _of_set,
    Kind.PATH: _of_path,
    Kind.VALUE: _of_value,
    Kind.WORD: _of_word,
    Kind.WORDS: _of_word,
}
