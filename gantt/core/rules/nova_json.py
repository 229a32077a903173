# SPDX-License-Identifier: Apache-2.0
"""Compiler of Nova's conditions to the rule language: queries of JsonFilter, and extra specs.

A comparison of a query has any number of arguments: the first is compared with
each of the others.  Arguments that a host lacks are skipped, and a comparison of
fewer than two is false; so for a fact that a host may lack the condition tests
whether it is known.  Every part of the result is known to hold or known not to,
for any host: its opposite holds wherever it does not.

A query is checked and bounded while it is parsed.  An error has the position in the query: ``at
[2][1]`` is argument 1 of argument 2.

Requirements of extra specs, such as ``>= 4`` or ``<in> avx``, are compiled likewise.  ``=`` is "at
least", Nova's oldest surprise.  A value that is not a number meets no numeric operator, ``!=``
included, and an operator without operand is never met.
"""

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages import extra_specs
from gantt.core.messages.extra_specs import Requirement
from gantt.core.messages.near import nearest_names
from gantt.core.rules import nova_facts as facts
from gantt.core.rules import tree
from gantt.core.rules.comparison import is_related
from gantt.core.rules.expression import Expression
from gantt.core.rules.parser import checked_tree

#: Bounds of one query, checked before anything is evaluated.
QUERY_NODES_MAX = 128
QUERY_DEPTH_MAX = 32
#: Comparisons of several facts with one another, which are evaluated host by host.
COMPARED_PAIRS_MAX = 8
QUERY_FIELD = 'request.spec.hints.query'

OPERATORS = ('=', '<', '>', '<=', '>=', 'in', 'not', 'or', 'and')


class Variable(msgspec.Struct, frozen=True):
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
    of: 'tuple[Variable | Literal | Condition, ...]'
    at: str = ''


Part = Variable | Literal | Condition


# -- parsing ----------------------------------------------------------------------------
def parse(text: str) -> Condition | None:
    """Return a query from its text; None: an empty one, which every host passes.

    :raises InvalidMessage: names the expected form
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise invalid_query(f'expected JSON such as ["=", "$host", "cmp-1"]: {e}') from None
    if body is None or body in ([], {}, ''):
        return None
    if not isinstance(body, list):
        raise invalid_query(f'expected a list, an operator and its arguments, got {_shown(body)}')
    condition = _test(body, '', 1, [0])
    compared = [test for test in _tests(condition) if _variables(test) > 1]
    if len(compared) > COMPARED_PAIRS_MAX:
        raise invalid_query(
            f'expected at most {COMPARED_PAIRS_MAX} comparisons of facts with one another',
            compared[COMPARED_PAIRS_MAX].at,
        )
    return condition


def _test(body: list[Any], at: str, depth: int, count: list[int]) -> Condition:
    op = body[0]
    if not isinstance(op, str) or op not in OPERATORS:
        meant = nearest_names(op, OPERATORS, 1) if isinstance(op, str) else []
        hint = f'; did you mean {meant[0]!r}?' if meant else ''
        raise invalid_query(
            f'expected one of {" ".join(OPERATORS)}, got {_shown(op)}{hint}', f'{at}[0]'
        )
    if depth > QUERY_DEPTH_MAX:
        raise invalid_query(f'expected at most {QUERY_DEPTH_MAX} levels of nesting', at)
    parts = [_part(item, f'{at}[{i}]', depth, count) for i, item in enumerate(body[1:], 1)]
    return Condition(op, tuple(part for part in parts if part is not None), at)


def _part(item: Any, at: str, depth: int, count: list[int]) -> Part | None:
    count[0] += 1
    if count[0] > QUERY_NODES_MAX:
        raise invalid_query(f'expected at most {QUERY_NODES_MAX} arguments', at)
    if isinstance(item, list):
        return _test(item, at, depth + 1, count) if item else Literal(True)
    if item is None or item == '':
        return None
    if isinstance(item, str) and item.startswith('$'):
        return Variable(tuple(item[1:].split('.', facts.PATH_STEPS_MAX)))
    return Literal(item)


def _tests(test: Condition) -> list[Condition]:
    """Return the test and all within it."""
    tests = [test]
    for current in tests:
        tests.extend(part for part in current.of if isinstance(part, Condition))
    return tests


def _variables(test: Condition) -> int:
    """Return the number of different facts of a host in a comparison."""
    if test.op in ('and', 'or', 'not'):
        return 0
    return len({part for part in test.of if not isinstance(part, Literal)})


def invalid_query(problem: str, at: str = '') -> exceptions.InvalidMessage:
    """Return an error with the problem of a query, and its position."""
    where = f'at {at}: ' if at else ''
    return exceptions.invalid(QUERY_FIELD, where + problem)


def _shown(value: Any) -> str:
    text = facts.text_of(value) or type(value).__name__
    return repr(text if len(text) <= 40 else text[:37] + '...')


_ALWAYS_TRUE, _ALWAYS_FALSE = tree.Always(value=True), tree.Always(value=False)
#: Longer texts are not cached.
_CACHED_TEXT_MAX = tree.TEXT_MAX

#: Facts that every host has.
FACTS_OF_EVERY_HOST = frozenset(facts.NOVA_FACT_NAMES) - {
    'cell_uuid',
    'host_ip',
    'hypervisor_type',
    'cpu_info',
}


def compiled_query(text: str, as_nova: bool = False) -> Expression | None:
    """Return the condition of a query; None for an empty one, which every host passes.

    :param as_nova: ``not`` within ``and`` and ``or`` holds wherever it has an argument
    :raises InvalidMessage: it is invalid, or too large; names position and reason
    """
    return (_cached_query if len(text) <= _CACHED_TEXT_MAX else _compiled)(text, as_nova)


def _compiled(text: str, as_nova: bool) -> Expression | None:
    query = parse(text)
    if query is None:
        return None
    try:
        return checked_tree(_Compiler(as_nova).test(query), QUERY_FIELD, tree.COMPILED_BOUNDS)
    except exceptions.InvalidRule as e:
        raise invalid_query(str(e.kwargs['problem'])) from None


_cached_query = functools.lru_cache(maxsize=512)(_compiled)


def all_of(parts: Iterable[tree.Expr]) -> tree.Expr:
    """Return the conjunction of the parts."""
    return _joined(tree.And, parts, _ALWAYS_TRUE, _ALWAYS_FALSE)


def any_of(parts: Iterable[tree.Expr]) -> tree.Expr:
    """Return the disjunction of the parts."""
    return _joined(tree.Or, parts, _ALWAYS_FALSE, _ALWAYS_TRUE)


def negation(part: tree.Expr) -> tree.Expr:
    """Return the negation of a part."""
    if isinstance(part, tree.Always):
        return _ALWAYS_FALSE if part.value else _ALWAYS_TRUE
    return part.of if isinstance(part, tree.Not) else tree.Not(of=part)


def _joined(
    kind: type[tree.And | tree.Or], parts: Iterable[tree.Expr], empty: tree.Expr, full: tree.Expr
) -> tree.Expr:
    non_empty = [part for part in parts if part != empty]
    if full in non_empty:
        return full
    if not non_empty:
        return empty
    return non_empty[0] if len(non_empty) == 1 else kind(of=tuple(non_empty))


def operand(value: Any) -> tree.Operand:
    """Return a value of JSON as the right side of a comparison."""
    if isinstance(value, str | bool) or tree.is_number(value):
        return value
    return tree.Json(text=json.dumps(value))


#: Value of Nova's ``not`` in a comparison: a list, equal to nothing.
_EQUALS_NOTHING = object()


class _Compiler:
    def __init__(self, as_nova: bool) -> None:
        self._as_nova = as_nova

    def test(self, test: Condition) -> tree.Expr:
        """Compile an operator with its arguments; a size error names its position."""
        parts = [
            part
            for part in test.of
            if not (isinstance(part, Variable) and _is_unknown_variable(part))
        ]
        if test.op == 'and':
            compiled_test = all_of(any_of((_is_absent(part), self._truth(part))) for part in parts)
        elif test.op == 'or':
            compiled_test = any_of(all_of((_is_present(part), self._truth(part))) for part in parts)
        elif test.op == 'not':
            compiled_test = any_of(
                all_of((_is_present(part), negation(self._truth(part)))) for part in parts
            )
        else:
            compiled_test = self._compared(test.op, parts)
        try:
            tree.check_size(compiled_test, tree.COMPILED_BOUNDS)
        except tree.TooLarge as e:
            raise invalid_query(f'{e}, once compiled', test.at) from None
        return compiled_test

    def _truth(self, part: Part) -> tree.Expr:
        """Compile the condition that an argument of and, or, not is true."""
        if isinstance(part, Condition):
            if part.op == 'not' and self._as_nova:
                return any_of(map(_is_present, part.of))
            return self.test(part)
        if isinstance(part, Literal):
            return _ALWAYS_TRUE if part.value else _ALWAYS_FALSE
        return tree.Some(fact=_name(part))

    # -- comparisons -------------------------------------------------------------------

    def _compared(self, op: str, parts: Sequence[Part]) -> tree.Expr:
        has_texts = any(isinstance(p, Literal) and isinstance(p.value, str) for p in parts)
        arguments = [_Operand(part, self._of_comparison(part), has_texts) for part in parts]
        compiled_tail: tree.Expr = _ALWAYS_FALSE
        # From the last: the part with the first argument suffices if no host lacks that one.
        for index in range(len(arguments) - 2, -1, -1):
            first, rest = arguments[index], arguments[index + 1 :]
            compile_part = _compare_with_each(
                '==' if op in ('=', 'in') else op, op == 'in', first, rest
            )
            compiled_tail = any_of(
                (all_of((first.has, compile_part)), all_of((first.lacks, compiled_tail)))
            )
        return compiled_tail

    def _of_comparison(self, part: Part) -> Any:
        if isinstance(part, Condition):
            return _EQUALS_NOTHING if part.op == 'not' and self._as_nova else self.test(part)
        return part


class _Operand:
    """An argument of a comparison.

    :ivar is_text: a stat that is compared with a text, and is text itself then
    """

    def __init__(self, part: Part, value: Any, texts: bool) -> None:
        self.value = value
        self.has = _is_present(part)
        self.lacks = _is_absent(part)
        self.is_text = (
            texts and isinstance(part, Variable) and part.path[0] == 'stats' and len(part.path) == 2
        )


def _compare_with_each(op: str, any_: bool, first: _Operand, rest: Sequence[_Operand]) -> tree.Expr:
    """Compile the comparison of the first with each of the others that is known."""
    if any_:
        return any_of(_equal_to_any(first, rest))
    fits = [any_of((other.lacks, _compare_two(op, first, other))) for other in rest]
    return all_of((any_of(other.has for other in rest), *fits))


def _equal_to_any(first: _Operand, rest: Sequence[_Operand]) -> list[tree.Expr]:
    """Compile equality with one of the others, with plain values joined to lists."""
    listed: list[Any] = []
    tests = []
    for other in rest:
        value = other.value.value if isinstance(other.value, Literal) else None
        is_plain = isinstance(value, str) or (tree.is_number(value) and not first.is_text)
        if isinstance(first.value, Variable) and is_plain:
            listed.append(value)
        else:
            tests.append(all_of((other.has, _compare_two('==', first, other))))
    chunk_size = tree.LIST_MAX
    for start in range(0, len(listed), chunk_size):
        chunk = tuple(listed[start : start + chunk_size])
        name = _name(first.value)
        tests.append(
            tree.Equal(fact=name, value=chunk[0])
            if len(chunk) == 1
            else tree.In(fact=name, value=chunk)
        )
    return tests


def _compare_two(op: str, one: _Operand, other: _Operand) -> tree.Expr:
    """Compile a relation between two arguments that are both known."""
    left, right = one.value, other.value
    if left is _EQUALS_NOTHING or right is _EQUALS_NOTHING:
        return _ALWAYS_FALSE
    if not isinstance(left, Variable | Literal):
        return _for_both_values(left, lambda value: _compare_two(op, value, other))
    if not isinstance(right, Variable | Literal):
        return _for_both_values(right, lambda value: _compare_two(op, one, value))
    if isinstance(left, Variable):
        if isinstance(right, Variable):
            return _node(op, left, tree.Ref(name=_name(right)))
        return _compare_with_literal(op, left, right, one.is_text)
    if isinstance(right, Variable):
        return _compare_with_literal(tree.SWAPPED_OPERATORS[op], right, left, other.is_text)
    return _ALWAYS_TRUE if is_related(op, left.value, right.value) else _ALWAYS_FALSE


def _for_both_values(
    condition: tree.Expr, compile_part: Callable[[_Operand], tree.Expr]
) -> tree.Expr:
    """Compile a part for both values of a condition."""
    yes, no = (
        compile_part(_Operand(Literal(value), Literal(value), False)) for value in (True, False)
    )
    return any_of((all_of((condition, yes)), all_of((negation(condition), no))))


def _compare_with_literal(
    op: str, variable: Variable, literal: Literal, is_text: bool
) -> tree.Expr:
    if is_text and not isinstance(literal.value, str):
        return _ALWAYS_FALSE
    return _node(op, variable, operand(literal.value))


def _node(op: str, variable: Variable, value: tree.Operand) -> tree.Expr:
    return tree.COMPARISON_BY_OPERATOR[op](fact=_name(variable), value=value)  # type: ignore[return-value]


# -- facts -----------------------------------------------------------------------------


def _name(variable: Variable) -> str:
    return 'nova.' + '.'.join(variable.path)


def _is_unknown_variable(variable: Variable) -> bool:
    """Return whether no host can have the fact."""
    return variable.path[0] not in facts.NOVA_FACT_NAMES


def _is_present(part: Part) -> tree.Expr:
    """Return the condition that a host has an argument."""
    if not isinstance(part, Variable):
        return _ALWAYS_TRUE
    if _is_unknown_variable(part):
        return _ALWAYS_FALSE
    is_certain = len(part.path) == 1 and part.path[0] in FACTS_OF_EVERY_HOST
    return _ALWAYS_TRUE if is_certain else tree.Known(fact=_name(part))


def _is_absent(part: Part) -> tree.Expr:
    return negation(_is_present(part))


_NEVER = tree.Always(value=False)
_NUMERIC = {'=': '>=', '>=': '>=', '<=': '<=', '==': '==', '!=': '!='}
_TEXTUAL = {'s==': '==', 's!=': '!=', 's<': '<', 's<=': '<=', 's>': '>', 's>=': '>='}


@functools.lru_cache(maxsize=2048)
def requirement(text: str, fact: str, as_nova: bool, absent: bool = False) -> Expression:
    """Return the condition of a requirement.

    :param text: the requirement, at most as long as a text of a message
    :param fact: a fact of kind WORD or WORDS
    :param as_nova: see :func:`gantt.core.messages.extra_specs.parse`
    :param absent: it also holds for hosts without the fact
    """
    expr = condition(extra_specs.parse(text, as_nova=as_nova), fact)
    if absent:
        expr = any_of((tree.Not(of=tree.Known(fact=fact)), expr))
    return Expression(expr, tree.COMPILED_BOUNDS)


def condition(requirement: Requirement, fact: str) -> tree.Expr:
    """Return the condition of a requirement on a fact, or on any member of a set."""
    op, operands = requirement.operator, requirement.operands
    if not op:
        return tree.Equal(fact=fact, value=requirement.text)
    if op in _NUMERIC:
        if requirement.number is None:
            return _NEVER
        is_integer = requirement.number.is_integer() and tree.is_number(requirement.number)
        number = int(requirement.number) if is_integer else requirement.number
        return _compared(_NUMERIC[op], fact, operand(number))
    if not operands:
        return _NEVER
    if op in _TEXTUAL:
        return _compared(_TEXTUAL[op], fact, operands[0])
    if op == '<or>':
        return tree.In(fact=fact, value=operands)
    return tree.Contains(fact=fact, value=operands if op == '<all-in>' else operands[0])


def _compared(op: str, fact: str, value: tree.Operand) -> tree.Expr:
    if op == '!=':
        # Not "none is equal": for a set it is enough that one member differs.
        return tree.Or(of=(tree.Less(fact=fact, value=value), tree.Greater(fact=fact, value=value)))
    return tree.COMPARISON_BY_OPERATOR[op](fact=fact, value=value)  # type: ignore[return-value]
