# SPDX-License-Identifier: Apache-2.0
"""Single comparisons: checked against the type of their fact, then asked of all hosts at once."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.rules import facts, tree
from gantt.core.rules.columns import Coded, Members, Numbers, Predicate, Same, Sets, places_of
from gantt.core.rules.facts import Fact, Kind, Rows
from gantt.core.rules.question import RELATIONS, Misfit, Question, allow, misfit
from gantt.core.rules.value_questions import IsSome, of_value, of_word
from gantt.core.table.columns import BoolArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Hypervisors count versions as one number: so much each part may be.
_PART_MAX = 1000


class IsKnown(Question):
    """The host has the fact."""

    def where(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows, negated: bool) -> BoolArray:
        return self.fact.read(hosts, spec, self.key, rows).found() != negated


class OfNumber(Question):
    """A number, or a version that is counted as one."""

    def __init__(self, fact: Fact, key: str, op: str, value: Any) -> None:
        self.op, self.value = op, value
        self.other: tuple[Fact, str] | None = None
        if isinstance(value, tree.Ref):
            self.other = facts.resolve(value.name)
            super().__init__(fact, key, self.other[0])
        else:
            super().__init__(fact, key)

    def where(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows, negated: bool) -> BoolArray:
        column = cast(Numbers, self.fact.read(hosts, spec, self.key, rows))
        values, known, value = column.values, column.known, self.value
        if self.other is not None:
            right = cast(Numbers, self.other[0].read(hosts, spec, self.other[1], rows))
            value = right.values
            if right.known is not None:
                known = right.known if known is None else known & right.known
        mask = self._compare(values, value)
        if negated:
            mask = ~mask
        return mask if known is None else mask & known

    def _compare(self, values: np.ndarray, value: Any) -> BoolArray:
        if isinstance(value, tree.Range):
            mask = np.ones(values.shape, np.bool_)
            if value.low is not None:
                mask &= values >= value.low
            if value.high is not None:
                mask &= values <= value.high
            return mask
        if self.op == 'in':
            mask = np.zeros(values.shape, np.bool_)
            for one in value:
                mask |= values == one
            return mask
        return cast(BoolArray, RELATIONS[self.op](values, value))


class OfText(Question):
    """A text, or some member of a set: asked once per distinct value."""

    def __init__(self, fact: Fact, key: str, op: str, value: Any) -> None:
        self.op, self.value = op, value
        self.other: tuple[Fact, str] | None = None
        self.predicate: Predicate | None = None
        if isinstance(value, tree.Ref):
            self.other = facts.resolve(value.name)
            super().__init__(fact, key, self.other[0])
        else:
            super().__init__(fact, key)
            self.predicate = predicate_of(op, value)

    def where(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows, negated: bool) -> BoolArray:
        column = cast(Coded | Members | Sets | Same, self.fact.read(hosts, spec, self.key, rows))
        predicate = self.predicate
        if self.other is not None:
            asked = self.other[0].read(hosts, spec, self.other[1], np.zeros(1, np.int64))
            texts = asked.texts if isinstance(asked, Same) else cast(Coded, asked).names
            each = [predicate_of(self.op, text) for text in texts if text]
            if not each:
                # How a fact compares with what nobody asked for is not known either.
                return np.zeros(len(hosts) if rows is None else len(rows), np.bool_)

            def predicate(value: str) -> bool:
                return any(one(value) for one in each)

        assert predicate is not None
        return column.where(predicate, negated)


class OfPath(Question):
    """A place in the topology: at or below one of others, or the very same."""

    def __init__(self, fact: Fact, key: str, op: str, value: Any) -> None:
        super().__init__(fact, key)
        self.exact = op == '=='
        self.places = value if isinstance(value, tuple) else (value,)

    def where(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows, negated: bool) -> BoolArray:
        places = places_of(hosts.locations)
        codes = hosts.location if rows is None else hosts.location.take(rows)
        mask = places.below_any(self.places, codes, self.exact)
        return ~mask & places.below('*', codes) if negated else mask


def predicate_of(op: str, value: Any) -> Predicate:
    """What is asked of each distinct text."""
    if isinstance(value, tree.Version | tree.Range) or (
        isinstance(value, tuple) and any(isinstance(v, tree.Version) for v in value)
    ):
        return _of_versions(op, value)
    if op == 'in':
        wanted = frozenset(value)
        return lambda text: text in wanted
    if op == 'contains':
        return lambda text: value in text
    relation = RELATIONS[op]
    return lambda text: relation(text, value)


def _of_versions(op: str, value: Any) -> Predicate:
    if isinstance(value, tree.Range):
        low = value.low.parts if isinstance(value.low, tree.Version) else ()
        high = value.high.parts if isinstance(value.high, tree.Version) else None

        def within(parts: tuple[int, ...]) -> bool:
            return low <= parts and (high is None or parts <= high)
    elif op == 'in':
        wanted = frozenset(v.parts for v in value)

        def within(parts: tuple[int, ...]) -> bool:
            return parts in wanted
    else:
        relation, right = RELATIONS[op], value.parts

        def within(parts: tuple[int, ...]) -> bool:
            return bool(relation(parts, right))

    def says(text: str) -> bool | None:
        parts = tree.version_parts(text)
        return None if parts is None else within(parts)

    return says


# -- checking ------------------------------------------------------------------------


def question_of(node: tree.Comparison | tree.Known | tree.Some) -> Question:
    """The question that a comparison stands for; ``!=`` is left to the caller to turn round.

    :raises Misfit: the type of the fact does not allow it
    """
    try:
        fact, key = facts.resolve(node.fact)
    except facts.Unknown as e:
        raise Misfit('fact', str(e)) from None
    if isinstance(node, tree.Known):
        return IsKnown(fact, key)
    if isinstance(node, tree.Some):
        return IsSome(fact, key)
    op = tree.op_of(node)
    return _CHECKS[fact.kind](fact, key, '==' if op == '!=' else op, node.value)


def _other(fact: Fact, value: tree.Ref, *kinds: Kind) -> Fact:
    try:
        other, _ = facts.resolve(value.name)
    except facts.Unknown as e:
        raise Misfit('value', str(e)) from None
    if other.kind not in kinds:
        raise misfit(fact, f'a {kinds[0]}', value)
    return other


def _of_number(fact: Fact, key: str, op: str, value: Any) -> Question:
    allow(fact, op, '<', '<=', '>', '>=', '==', 'in')
    if isinstance(value, tree.Ref) and op != 'in':
        _other(fact, value, Kind.NUMBER)
    elif op == 'in':
        if isinstance(value, tree.Range):
            right = value != tree.Range() and all(
                v is None or tree.is_number(v) for v in (value.low, value.high)
            )
        else:
            right = isinstance(value, tuple) and all(map(tree.is_number, value))
        if not right:
            raise misfit(fact, 'numbers: a list such as [1, 2] or a range such as 1..5', value)
    elif not tree.is_number(value):
        raise misfit(fact, 'a number of at most 2^53', value)
    return OfNumber(fact, key, op, value)


def _of_version(fact: Fact, key: str, op: str, value: Any) -> Question:
    """Versions of hypervisors are reported as one number."""
    allow(fact, op, '<', '<=', '>', '>=', '==', 'in')
    one = 'a version such as v4.2.1'
    if op == 'in':
        if isinstance(value, tree.Range) and value != tree.Range():
            value = tree.Range(
                *(None if v is None else _as_number(fact, v, one) for v in (value.low, value.high))
            )
        elif isinstance(value, tuple):
            value = tuple(_as_number(fact, v, one) for v in value)
        else:
            raise misfit(fact, 'a range such as v4.2..v5.1 or a list of versions', value)
    else:
        value = _as_number(fact, value, one)
    return OfNumber(fact, key, op, value)


def _as_number(fact: Fact, value: Any, expected: str) -> int:
    if isinstance(value, int) and tree.is_number(value):
        return value
    parts = value.parts if isinstance(value, tree.Version) else None
    if parts is None or len(parts) > 3 or any(p >= _PART_MAX for p in parts[1:]):
        raise misfit(fact, expected, value)
    major, minor, micro = (*parts, 0, 0, 0)[:3]
    number = (major * _PART_MAX + minor) * _PART_MAX + micro
    if not tree.is_number(number):
        raise misfit(fact, expected, value)
    return number


def _of_bool(fact: Fact, key: str, op: str, value: Any) -> Question:
    allow(fact, op, '==')
    if not isinstance(value, bool):
        raise misfit(fact, 'true or false', value)
    return OfNumber(fact, key, op, value)


def _of_text(fact: Fact, key: str, op: str, value: Any) -> Question:
    if op == 'in':
        items = (value.low, value.high) if isinstance(value, tree.Range) else value
        versions = isinstance(value, tree.Range)
        right = (
            value != tree.Range()
            and isinstance(items, tuple)
            and (
                all(v is None or isinstance(v, tree.Version) for v in items)
                or (not versions and all(isinstance(v, str) for v in items))
            )
        )
        if not right:
            raise misfit(fact, 'a list such as ["a", "b"] or a range of versions', value)
    elif isinstance(value, tree.Ref):
        if not _other(fact, value, Kind.TEXT, Kind.SET).of_request:
            raise misfit(fact, 'a text, or a fact of the request', value)
    elif not (isinstance(value, str) or (op != 'contains' and isinstance(value, tree.Version))):
        raise misfit(fact, 'a text in quotes', value)
    return OfText(fact, key, op, value)


def _of_set(fact: Fact, key: str, op: str, value: Any) -> Question:
    # A member that is wanted has the whole text, not a part of it.
    return _of_text(fact, key, '==' if op == 'contains' else op, value)


def _of_path(fact: Fact, key: str, op: str, value: Any) -> Question:
    allow(fact, op, '==', 'in')
    places = value if op == 'in' and isinstance(value, tuple) else (value,)
    for place in places:
        if not (isinstance(place, str) and all(place.split('.'))):
            raise misfit(fact, 'a place such as "site1.room2"', value)
    return OfPath(fact, key, op, value)


_CHECKS: dict[Kind, Callable[[Fact, str, str, Any], Question]] = {
    Kind.NUMBER: _of_number,
    Kind.VERSION: _of_version,
    Kind.BOOL: _of_bool,
    Kind.TEXT: _of_text,
    Kind.SET: _of_set,
    Kind.PATH: _of_path,
    Kind.VALUE: of_value,
    Kind.WORD: of_word,
    Kind.WORDS: of_word,
}
