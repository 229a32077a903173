# SPDX-License-Identifier: Apache-2.0
"""Compiler of queries of Nova's JsonFilter to conditions of the rule language.

A comparison of a query has any number of arguments: the first is compared with
each of the others.  Arguments that a host lacks are skipped, and a comparison of
fewer than two is false; so for a fact that a host may lack the condition tests
whether it is known.  Every part of the result is known to hold or known not to,
for any host: its opposite holds wherever it does not.
"""

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gantt import exceptions
from gantt.core.nova import facts
from gantt.core.nova import query as nova_query
from gantt.core.nova.query import Condition, Literal, Look, Part
from gantt.core.rules import tree
from gantt.core.rules.comparison import related
from gantt.core.rules.expression import Expression
from gantt.core.rules.parser import checked

_YES, _NO = tree.Always(value=True), tree.Always(value=False)
#: Longer texts are not cached.
_REMEMBERED_MAX = tree.TEXT_MAX

#: Facts that every host has.
EVERYWHERE = frozenset(facts.NAMES) - {'cell_uuid', 'host_ip', 'hypervisor_type', 'cpu_info'}


def compiled(text: str, as_nova: bool = False) -> Expression | None:
    """Return the condition of a query; None for an empty one, which every host passes.

    :param as_nova: ``not`` within ``and`` and ``or`` holds wherever it has an argument
    :raises InvalidMessage: it is invalid, or too large; names position and reason
    """
    return (_remembered if len(text) <= _REMEMBERED_MAX else _compiled)(text, as_nova)


def _compiled(text: str, as_nova: bool) -> Expression | None:
    query = nova_query.parse(text)
    if query is None:
        return None
    try:
        return checked(_Compiler(as_nova).test(query), nova_query.FIELD, tree.COMPILED)
    except exceptions.InvalidRule as e:
        raise nova_query.bad(str(e.kwargs['problem'])) from None


_remembered = functools.lru_cache(maxsize=512)(_compiled)


def every(parts: Iterable[tree.Expr]) -> tree.Expr:
    """Return the conjunction of the parts."""
    return _joined(tree.And, parts, _YES, _NO)


def some(parts: Iterable[tree.Expr]) -> tree.Expr:
    """Return the disjunction of the parts."""
    return _joined(tree.Or, parts, _NO, _YES)


def opposite(part: tree.Expr) -> tree.Expr:
    """Return the negation of a part."""
    if isinstance(part, tree.Always):
        return _NO if part.value else _YES
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


class _Unlike:
    """Value of Nova's ``not`` in a comparison: a list, equal to nothing."""


_UNLIKE = _Unlike()


class _Compiler:
    def __init__(self, as_nova: bool) -> None:
        self._as_nova = as_nova

    def test(self, test: Condition) -> tree.Expr:
        """Compile an operator with its arguments; a size error names its position."""
        parts = [part for part in test.of if not (isinstance(part, Look) and _is_nowhere(part))]
        if test.op == 'and':
            compiled_test = every(some((_lacks(part), self._truth(part))) for part in parts)
        elif test.op == 'or':
            compiled_test = some(every((_has(part), self._truth(part))) for part in parts)
        elif test.op == 'not':
            compiled_test = some(every((_has(part), opposite(self._truth(part)))) for part in parts)
        else:
            compiled_test = self._compared(test.op, parts)
        try:
            tree.check_size(compiled_test, tree.COMPILED)
        except tree.TooLarge as e:
            raise nova_query.bad(f'{e}, once compiled', test.at) from None
        return compiled_test

    def _truth(self, part: Part) -> tree.Expr:
        """Compile the condition that an argument of and, or, not is true."""
        if isinstance(part, Condition):
            if part.op == 'not' and self._as_nova:
                return some(map(_has, part.of))
            return self.test(part)
        if isinstance(part, Literal):
            return _YES if part.value else _NO
        return tree.Some(fact=_name(part))

    # -- comparisons -------------------------------------------------------------------

    def _compared(self, op: str, parts: Sequence[Part]) -> tree.Expr:
        has_texts = any(isinstance(p, Literal) and isinstance(p.value, str) for p in parts)
        arguments = [_Argued(part, self._of_comparison(part), has_texts) for part in parts]
        compiled_tail: tree.Expr = _NO
        # From the last: the part with the first argument suffices if no host lacks that one.
        for index in range(len(arguments) - 2, -1, -1):
            first, rest = arguments[index], arguments[index + 1 :]
            compile_part = _with_each('==' if op in ('=', 'in') else op, op == 'in', first, rest)
            compiled_tail = some(
                (every((first.has, compile_part)), every((first.lacks, compiled_tail)))
            )
        return compiled_tail

    def _of_comparison(self, part: Part) -> Any:
        if isinstance(part, Condition):
            return _UNLIKE if part.op == 'not' and self._as_nova else self.test(part)
        return part


class _Argued:
    """An argument of a comparison.

    :ivar is_text: a stat that is compared with a text, and is text itself then
    """

    def __init__(self, part: Part, value: Any, texts: bool) -> None:
        self.value = value
        self.has = _has(part)
        self.lacks = _lacks(part)
        self.is_text = (
            texts and isinstance(part, Look) and part.path[0] == 'stats' and len(part.path) == 2
        )


def _with_each(op: str, any_: bool, first: _Argued, rest: Sequence[_Argued]) -> tree.Expr:
    """Compile the comparison of the first with each of the others that is known."""
    if any_:
        return some(_in(first, rest))
    fits = [some((other.lacks, _related(op, first, other))) for other in rest]
    return every((some(other.has for other in rest), *fits))


def _in(first: _Argued, rest: Sequence[_Argued]) -> list[tree.Expr]:
    """Compile equality with one of the others, with plain values joined to lists."""
    listed: list[Any] = []
    tests = []
    for other in rest:
        value = other.value.value if isinstance(other.value, Literal) else None
        is_plain = isinstance(value, str) or (tree.is_number(value) and not first.is_text)
        if isinstance(first.value, Look) and is_plain:
            listed.append(value)
        else:
            tests.append(every((other.has, _related('==', first, other))))
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


def _related(op: str, one: _Argued, other: _Argued) -> tree.Expr:
    """Compile a relation between two arguments that are both known."""
    left, right = one.value, other.value
    if left is _UNLIKE or right is _UNLIKE:
        return _NO
    if not isinstance(left, Look | Literal):
        return _split(left, lambda value: _related(op, value, other))
    if not isinstance(right, Look | Literal):
        return _split(right, lambda value: _related(op, one, value))
    if isinstance(left, Look):
        if isinstance(right, Look):
            return _node(op, left, tree.Ref(name=_name(right)))
        return _against(op, left, right, one.is_text)
    if isinstance(right, Look):
        return _against(tree.TURNED[op], right, left, other.is_text)
    return _YES if related(op, left.value, right.value) else _NO


def _split(condition: tree.Expr, compile_part: Callable[[_Argued], tree.Expr]) -> tree.Expr:
    """Compile a part for both values of a condition."""
    yes, no = (
        compile_part(_Argued(Literal(value), Literal(value), False)) for value in (True, False)
    )
    return some((every((condition, yes)), every((opposite(condition), no))))


def _against(op: str, look: Look, literal: Literal, is_text: bool) -> tree.Expr:
    if is_text and not isinstance(literal.value, str):
        return _NO
    return _node(op, look, operand(literal.value))


def _node(op: str, look: Look, value: tree.Operand) -> tree.Expr:
    return tree.RELATIONS[op](fact=_name(look), value=value)  # type: ignore[return-value]


# -- facts -----------------------------------------------------------------------------


def _name(look: Look) -> str:
    return 'nova.' + '.'.join(look.path)


def _is_nowhere(look: Look) -> bool:
    """Return whether no host can have the fact."""
    return look.path[0] not in facts.NAMES


def _has(part: Part) -> tree.Expr:
    """Return the condition that a host has an argument."""
    if not isinstance(part, Look):
        return _YES
    if _is_nowhere(part):
        return _NO
    is_certain = len(part.path) == 1 and part.path[0] in EVERYWHERE
    return _YES if is_certain else tree.Known(fact=_name(part))


def _lacks(part: Part) -> tree.Expr:
    return opposite(_has(part))
