# SPDX-License-Identifier: Apache-2.0
"""What single comparisons have in common: they are checked, then asked of all hosts at once."""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gantt.core.messages.request import RequestSpec
from gantt.core.rules import tree
from gantt.core.rules.facts import Fact, Rows
from gantt.core.table.columns import BoolArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    '<': operator.lt,
    '<=': operator.le,
    '>': operator.gt,
    '>=': operator.ge,
    '==': operator.eq,
}


class Misfit(Exception):
    """A comparison that the type of its fact does not allow.

    :ivar part: what of it is wrong: ``fact``, ``op`` or ``value``
    """

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(problem)
        self.part = part


class Question:
    """One comparison of one fact.

    :ivar used: the facts it is about
    :ivar columns: columns of the host table that they follow from
    """

    def __init__(self, fact: Fact, key: str, *others: Fact) -> None:
        self.fact, self.key = fact, key
        self.used = (fact, *others)
        self.columns = frozenset(fact.columns(key)).union(*(other.reads for other in others))

    def where(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows, negated: bool) -> BoolArray:
        """Which hosts it, or its opposite, is known to hold for."""
        raise NotImplementedError


def misfit(fact: Fact, what: str, value: Any) -> Misfit:
    """What is wrong with a relation or a value."""
    got = value if isinstance(value, str) and value in tree.RELATIONS else None
    said = got or tree.operand_text(value)
    part = 'op' if got else 'value'
    return Misfit(part, f'{fact.name} is a {fact.kind}: expected {what}, got {said}')


def allow(fact: Fact, op: str, *allowed: str) -> None:
    """:raises Misfit: the relation is none of those"""
    if op not in allowed:
        shown = ', '.join((*allowed, '!=') if '==' in allowed else allowed)
        raise misfit(fact, f'one of {shown}', op)
