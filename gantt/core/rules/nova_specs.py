# SPDX-License-Identifier: Apache-2.0
"""Compiler of requirements of Nova's extra specs, such as ``>= 4`` or ``<in> avx``.

``=`` is "at least", Nova's oldest surprise.  A value that is not a number meets no numeric
operator, ``!=`` included, and an operator without operand is never met.
"""

import functools

from gantt.core.messages import extra_specs
from gantt.core.messages.extra_specs import Requirement
from gantt.core.rules import tree
from gantt.core.rules.expression import Expression
from gantt.core.rules.nova_json import operand, some

_NEVER = tree.Always(value=False)
_NUMERIC = {'=': '>=', '>=': '>=', '<=': '<=', '==': '==', '!=': '!='}
_TEXTUAL = {'s==': '==', 's!=': '!=', 's<': '<', 's<=': '<=', 's>': '>', 's>=': '>='}


@functools.lru_cache(maxsize=2048)
def expression(text: str, fact: str, as_nova: bool, absent: bool = False) -> Expression:
    """Return the condition of a requirement.

    :param text: the requirement, at most as long as a text of a message
    :param fact: a fact of kind WORD or WORDS
    :param as_nova: see :func:`gantt.core.messages.extra_specs.parse`
    :param absent: it also holds for hosts without the fact
    """
    expr = condition(extra_specs.parse(text, as_nova=as_nova), fact)
    if absent:
        expr = some((tree.Not(of=tree.Known(fact=fact)), expr))
    return Expression(expr, tree.COMPILED)


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
    return tree.RELATIONS[op](fact=fact, value=value)  # type: ignore[return-value]
