# SPDX-License-Identifier: Apache-2.0
"""The queries of Nova's JsonFilter: ``["and", [">=", "$free_ram_mb", 1024], …]``.

A query is checked and bounded when it is parsed; asking it is a few arrays, for
each fact is asked once per distinct value.  What a host lacks, ``""`` and null
drop out of the arguments, and a comparison of fewer than two is false, as in
Nova; what cannot be compared is not equal, and neither smaller nor larger.
"""

import difflib
import json
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core import nova_facts
from gantt.core.columns import BoolArray
from gantt.core.nova_facts import Fact

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable

#: Bounds of one query, checked before anything is asked.
NODES_MAX = 128
DEPTH_MAX = 32
#: Comparisons of several facts with one another, which are asked host by host.
PAIRS_MAX = 8
FIELD = 'request.spec.hints.query'

_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    '=': operator.eq, '<': operator.lt, '>': operator.gt, '<=': operator.le, '>=': operator.ge,
}  # fmt: skip
OPERATORS = (*_RELATIONS, 'in', 'not', 'or', 'and')


class Look(msgspec.Struct, frozen=True):
    """A fact of a host: ``$name.key``."""

    path: tuple[str, ...]


class Literal(msgspec.Struct, frozen=True, eq=False):
    """A value as it stands there."""

    value: Any


class Condition(msgspec.Struct, frozen=True, eq=False):
    """An operator with its arguments."""

    op: str
    of: 'tuple[Look | Literal | Condition, ...]'


Part = Look | Literal | Condition


# -- parsing ----------------------------------------------------------------------------
def parse(text: str) -> Condition | None:
    """A query from its text; None: an empty one, which every host passes.

    :raises InvalidMessage: says what was expected
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise _bad(f'expected JSON such as ["=", "$host", "cmp-1"]: {e}') from None
    if body is None or body in ([], {}, ''):
        return None
    if not isinstance(body, list):
        raise _bad(f'expected a list, an operator and its arguments, got {_shown(body)}')
    count = [0]
    found = _test(body, 1, count)
    pairs = sum(1 for test in _tests(found) if _looks(test) > 1)
    if pairs > PAIRS_MAX:
        raise _bad(f'expected at most {PAIRS_MAX} comparisons of facts with one another')
    return found


def _test(body: list[Any], depth: int, count: list[int]) -> Condition:
    op = body[0]
    if not isinstance(op, str) or op not in OPERATORS:
        near = difflib.get_close_matches(op, OPERATORS, 1) if isinstance(op, str) else []
        hint = f'; did you mean {near[0]!r}?' if near else ''
        raise _bad(f'expected one of {" ".join(OPERATORS)}, got {_shown(op)}{hint}')
    if depth > DEPTH_MAX:
        raise _bad(f'expected at most {DEPTH_MAX} levels of nesting')
    parts = (_part(item, depth, count) for item in body[1:])
    return Condition(op, tuple(part for part in parts if part is not None))


def _part(item: Any, depth: int, count: list[int]) -> Part | None:
    count[0] += 1
    if count[0] > NODES_MAX:
        raise _bad(f'expected at most {NODES_MAX} arguments')
    if isinstance(item, list):
        return _test(item, depth + 1, count) if item else Literal(True)
    if item is None or item == '':
        return None
    if isinstance(item, str) and item.startswith('$'):
        return Look(tuple(item[1:].split('.', nova_facts.STEPS_MAX)))
    return Literal(item)


def _tests(test: Condition) -> list[Condition]:
    """The test and all within it."""
    found = [test]
    for each in found:
        found.extend(part for part in each.of if isinstance(part, Condition))
    return found


def _looks(test: Condition) -> int:
    """How many different things of a host a comparison is about."""
    if test.op in ('and', 'or', 'not'):
        return 0
    return len({part for part in test.of if not isinstance(part, Literal)})


def _bad(problem: str) -> exceptions.InvalidMessage:
    return exceptions.InvalidMessage(field=FIELD, problem=problem)


def _shown(value: Any) -> str:
    text = nova_facts.text_of(value) or type(value).__name__
    return repr(text if len(text) <= 40 else text[:37] + '...')


# -- asking -----------------------------------------------------------------------------
class Asking:
    """A query on a table.

    :param as_nova: ``not`` within ``and`` and ``or`` holds wherever it has an argument
    """

    def __init__(self, hosts: 'HostTable', as_nova: bool = False) -> None:
        self._hosts, self._as_nova = hosts, as_nova
        self._facts: dict[tuple[str, ...], Fact] = {}

    def mask(self, test: Condition) -> BoolArray:
        """Which hosts it holds for."""
        if test.op == 'and':
            found = self._all(True)
            for part in test.of:
                found &= self._truth(part) | ~self._is_there(part)
            return found
        if test.op in ('or', 'not'):
            found = self._all(False)
            for part in test.of:
                truth = self._truth(part) if test.op == 'or' else ~self._truth(part)
                found |= truth & self._is_there(part)
            return found
        return self._compared(test)

    def _truth(self, part: Part) -> BoolArray:
        """Where an argument of and, or, not is true."""
        if isinstance(part, Condition):
            if part.op != 'not' or not self._as_nova:
                return self.mask(part)
            found = self._all(False)
            for each in part.of:
                found |= self._is_there(each)
            return found
        if isinstance(part, Literal):
            return self._all(bool(part.value))
        return self._fact(part).where(bool)

    def _is_there(self, part: Part) -> BoolArray:
        return self._fact(part).is_there() if isinstance(part, Look) else self._all(True)

    def _compared(self, test: Condition) -> BoolArray:
        different = {part for part in test.of if not isinstance(part, Literal)}
        if not different:
            return self._all(holds(test.op, [_value(part) for part in test.of]))
        if len(different) == 1:
            found_in = next(iter(different))
            fact = self._values(found_in)
            values = [_value(part) for part in test.of]
            places = [k for k, part in enumerate(test.of) if not isinstance(part, Literal)]
            as_text = _is_stat(found_in) and any(isinstance(value, str) for value in values)

            def decide(value: Any) -> bool:
                if as_text:
                    value = nova_facts.text_of(value)
                for k in places:
                    values[k] = value
                return holds(test.op, values)

            without = [v for k, v in enumerate(values) if k not in places]
            found = fact.where(decide)
            return found | ~fact.is_there() if holds(test.op, without) else found
        return self._row_by_row(test)

    def _row_by_row(self, test: Condition) -> BoolArray:
        facts = [None if isinstance(p, Literal) else self._values(p) for p in test.of]
        constant = [_value(part) for part in test.of]

        def said(row: int) -> bool:
            values = (c if f is None else f.at(row) for f, c in zip(facts, constant, strict=True))
            return holds(test.op, [value for value in values if value is not None])

        return np.fromiter(map(said, range(len(self._hosts))), np.bool_, len(self._hosts))

    def _values(self, part: Part) -> Fact:
        """An argument of a comparison that differs between hosts."""
        if isinstance(part, Look):
            return self._fact(part)
        assert isinstance(part, Condition)
        if part.op == 'not' and self._as_nova:
            return Fact([_UNLIKE], np.zeros(len(self._hosts), np.int32))  # a list there
        return Fact([False, True], self.mask(part).astype(np.int32))

    def _fact(self, look: Look) -> Fact:
        found = self._facts.get(look.path)
        if found is None:
            found = self._facts[look.path] = fact_at(self._hosts, look.path)
        return found

    def _all(self, value: bool) -> BoolArray:
        return np.full(len(self._hosts), value)


def fact_at(hosts: 'HostTable', path: Sequence[str]) -> Fact:
    """What hosts have at a path; a name that is no fact is missing everywhere."""
    if path[0] == 'stats' and len(path) > 1:
        facts = [fact.inside(path[2:]) for fact in nova_facts.stats(hosts, path[1])]
        if len(facts) == 2:
            text, number = facts
            both = ((text.at(row), number.at(row)) for row in range(len(hosts)))
            return Fact([t if t is not None else n for t, n in both])
    else:
        own = nova_facts.fact(hosts, path[0])
        facts = [] if own is None else [own.inside(path[1:])]
    return facts[0] if facts else Fact([None], np.zeros(len(hosts), np.int32))


def holds(op: str, values: list[Any]) -> bool:
    """Whether a comparison holds for arguments that are all there."""
    if len(values) < 2:
        return False
    first, rest = values[0], values[1:]
    if op == 'in':
        return any(_related(operator.eq, first, value) for value in rest)
    return all(_related(_RELATIONS[op], first, value) for value in rest)


def _related(relation: Callable[[Any, Any], Any], one: Any, other: Any) -> bool:
    try:
        return bool(relation(one, other))
    except (TypeError, RecursionError):
        return False


def _is_stat(part: Part) -> bool:
    """Whether it is one of the stats, all of which are text in Nova, numbers included."""
    return isinstance(part, Look) and part.path[0] == 'stats' and len(part.path) == 2


def _value(part: Part) -> Any:
    return part.value if isinstance(part, Literal) else None


class _Unlike:
    """Equal to nothing, not even itself, and neither smaller nor larger."""

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0


_UNLIKE = _Unlike()
