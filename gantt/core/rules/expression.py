# SPDX-License-Identifier: Apache-2.0
"""A condition compiled: which hosts it is known to hold for, as one mask.

Opposites are pushed down to the comparisons first.  So what is unknown of a host
makes neither a comparison nor its opposite hold, and every node is one array.
"""

from typing import TYPE_CHECKING

import numpy as np

from gantt.core.columns import TAKEN, BoolArray
from gantt.core.request import RequestSpec
from gantt.core.rules import questions, tree
from gantt.core.rules.facts import Fact, Rows
from gantt.core.rules.questions import Question

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class Expression:
    """A condition, checked and ready to be asked.

    :ivar tree: what it was made from
    :ivar facts: those it is about, each once
    :ivar volatile: whether a pick may change what it says of the picked host
    """

    def __init__(self, expr: tree.Expr) -> None:
        """:raises Misfit: a comparison is of the wrong type
        :raises TooLarge: it is beyond a bound
        """
        tree.check_size(expr)
        self.tree = expr
        self._asked: list[Question] = []
        self._root = self._part(expr, False)
        self.facts: tuple[Fact, ...] = tuple(
            {fact.name: fact for one in self._asked for fact in one.used}.values()
        )
        self.volatile = any(not TAKEN.isdisjoint(fact.reads) for fact in self.facts)

    @property
    def text(self) -> str:
        """The text form."""
        return tree.to_text(self.tree)

    def mask(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows = None) -> BoolArray:
        """Which hosts, or which of ``rows``, it is known to hold for."""
        return self._root.mask(hosts, spec, rows)

    def holds(self, hosts: 'HostTable', spec: RequestSpec, row: int) -> bool:
        """Whether it is known to hold for one host."""
        return bool(self._root.mask(hosts, spec, np.array([row]))[0])

    def _part(self, node: tree.Expr, negated: bool) -> '_Part':
        if isinstance(node, tree.Not):
            return self._part(node.of, not negated)
        if isinstance(node, tree.And | tree.Or):
            parts = [self._part(child, negated) for child in node.of]
            return _All(parts) if isinstance(node, tree.And) != negated else _Any(parts)
        if isinstance(node, tree.Always):
            return _All([]) if node.value != negated else _Any([])
        question = questions.question_of(node)
        self._asked.append(question)
        return _One(question, negated != isinstance(node, tree.NotEqual))


class _Part:
    def mask(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows) -> BoolArray:
        raise NotImplementedError


class _One(_Part):
    def __init__(self, question: Question, negated: bool) -> None:
        self._question, self._negated = question, negated

    def mask(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows) -> BoolArray:
        return self._question.where(hosts, spec, rows, self._negated)


class _Joined(_Part):
    start: bool

    def __init__(self, parts: list[_Part]) -> None:
        self._parts = parts

    def mask(self, hosts: 'HostTable', spec: RequestSpec, rows: Rows) -> BoolArray:
        if not self._parts:
            return np.full(len(hosts) if rows is None else len(rows), self.start)
        mask = self._parts[0].mask(hosts, spec, rows)
        for part in self._parts[1:]:
            mask = self.join(mask, part.mask(hosts, spec, rows))
        return mask

    @staticmethod
    def join(one: BoolArray, other: BoolArray) -> BoolArray:
        raise NotImplementedError


class _All(_Joined):
    start = True

    @staticmethod
    def join(one: BoolArray, other: BoolArray) -> BoolArray:
        return one & other


class _Any(_Joined):
    start = False

    @staticmethod
    def join(one: BoolArray, other: BoolArray) -> BoolArray:
        return one | other
