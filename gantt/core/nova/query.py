# SPDX-License-Identifier: Apache-2.0
"""Queries of Nova's JsonFilter: ``["and", [">=", "$free_ram_mb", 1024], …]``.

A query is checked and bounded while it is parsed; it is translated into the language of rules by
:mod:`gantt.core.rules.nova_json`.  An error has the position in the query: ``at [2][1]`` is
argument 1 of argument 2.
"""

import json
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages.near import near
from gantt.core.nova import facts

#: Bounds of one query, checked before anything is evaluated.
NODES_MAX = 128
DEPTH_MAX = 32
#: Comparisons of several facts with one another, which are evaluated host by host.
PAIRS_MAX = 8
FIELD = 'request.spec.hints.query'

OPERATORS = ('=', '<', '>', '<=', '>=', 'in', 'not', 'or', 'and')


class Look(msgspec.Struct, frozen=True):
    """A fact of a host: ``$name.key``."""

    path: tuple[str, ...]


class Literal(msgspec.Struct, frozen=True, eq=False):
    """A value as it stands there."""

    value: Any


class Condition(msgspec.Struct, frozen=True, eq=False):
    """An operator with its arguments.

    :ivar at: where in the query, '' for the whole
    """

    op: str
    of: 'tuple[Look | Literal | Condition, ...]'
    at: str = ''


Part = Look | Literal | Condition


# -- parsing ----------------------------------------------------------------------------
def parse(text: str) -> Condition | None:
    """Return a query from its text; None: an empty one, which every host passes.

    :raises InvalidMessage: names the expected form
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise bad(f'expected JSON such as ["=", "$host", "cmp-1"]: {e}') from None
    if body is None or body in ([], {}, ''):
        return None
    if not isinstance(body, list):
        raise bad(f'expected a list, an operator and its arguments, got {_shown(body)}')
    condition = _test(body, '', 1, [0])
    compared = [test for test in _tests(condition) if _looks(test) > 1]
    if len(compared) > PAIRS_MAX:
        raise bad(
            f'expected at most {PAIRS_MAX} comparisons of facts with one another',
            compared[PAIRS_MAX].at,
        )
    return condition


def _test(body: list[Any], at: str, depth: int, count: list[int]) -> Condition:
    op = body[0]
    if not isinstance(op, str) or op not in OPERATORS:
        meant = near(op, OPERATORS, 1) if isinstance(op, str) else []
        hint = f'; did you mean {meant[0]!r}?' if meant else ''
        raise bad(f'expected one of {" ".join(OPERATORS)}, got {_shown(op)}{hint}', f'{at}[0]')
    if depth > DEPTH_MAX:
        raise bad(f'expected at most {DEPTH_MAX} levels of nesting', at)
    parts = [_part(item, f'{at}[{i}]', depth, count) for i, item in enumerate(body[1:], 1)]
    return Condition(op, tuple(part for part in parts if part is not None), at)


def _part(item: Any, at: str, depth: int, count: list[int]) -> Part | None:
    count[0] += 1
    if count[0] > NODES_MAX:
        raise bad(f'expected at most {NODES_MAX} arguments', at)
    if isinstance(item, list):
        return _test(item, at, depth + 1, count) if item else Literal(True)
    if item is None or item == '':
        return None
    if isinstance(item, str) and item.startswith('$'):
        return Look(tuple(item[1:].split('.', facts.STEPS_MAX)))
    return Literal(item)


def _tests(test: Condition) -> list[Condition]:
    """Return the test and all within it."""
    tests = [test]
    for current in tests:
        tests.extend(part for part in current.of if isinstance(part, Condition))
    return tests


def _looks(test: Condition) -> int:
    """Return the number of different facts of a host in a comparison."""
    if test.op in ('and', 'or', 'not'):
        return 0
    return len({part for part in test.of if not isinstance(part, Literal)})


def bad(problem: str, at: str = '') -> exceptions.InvalidMessage:
    """Return an error with the problem of a query, and its position."""
    where = f'at {at}: ' if at else ''
    return exceptions.invalid(FIELD, where + problem)


def _shown(value: Any) -> str:
    text = facts.text_of(value) or type(value).__name__
    return repr(text if len(text) <= 40 else text[:37] + '...')
