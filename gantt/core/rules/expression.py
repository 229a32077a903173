# SPDX-License-Identifier: Apache-2.0
"""Compiled conditions: a mask of the hosts for which a condition is known to hold.

Negations are pushed down to the comparisons first.  So for an unknown fact of a host
neither a comparison nor its opposite holds, and every node is one array.
"""

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.rules import comparison, tree
from gantt.core.rules.comparison import Question
from gantt.core.rules.facts import Fact, FactView, Rows
from gantt.core.table import metric_values
from gantt.core.table.columns import FOLLOWED, TAKEN, BoolArray
from gantt.core.table.host_table import HostTable

#: Up to so many rows, a mask is computed for them alone if none is cached.
_FEW = 64
_METRIC = 'metrics.'

#: Identity of a node -> the node, kept alive so that the identity stays unique, and its question.
QuestionsByNode = dict[int, tuple[tree.Node, Question]]


class Expression:
    """A condition, checked and ready to be evaluated.

    :ivar tree: its syntax tree
    :ivar facts: the facts that it reads, each once
    :ivar size: number of its tests
    :ivar volatile: whether a pick may change its result for the picked host
    """

    def __init__(
        self,
        expr: tree.Expr,
        bounds: tree.Bounds = tree.WRITTEN,
        known_questions: QuestionsByNode | None = None,
    ) -> None:
        """Compile a syntax tree.

        :param known_questions: questions of nodes that were derived already
        :raises TypeMismatch: a comparison is of the wrong type
        :raises TooLarge: it is beyond a bound
        """
        tree.check_size(expr, bounds)
        self.tree = expr
        self._questions: list[Question] = []
        self._root = self._part(expr, False, known_questions or {})
        self.size = len(self._questions)
        self.facts: tuple[Fact, ...] = tuple(
            {fact.name: fact for question in self._questions for fact in question.used}.values()
        )
        self.volatile = any(not TAKEN.isdisjoint(fact.reads) for fact in self.facts)
        columns = frozenset[str]().union(*(question.columns for question in self._questions))
        of_request = any(fact.of_request for fact in self.facts)
        #: Columns that its mask follows from, if all are followed and it reads nothing else.
        self._followed = (
            tuple(sorted(columns)) if FOLLOWED.issuperset(columns) and not of_request else None
        )
        #: Metrics that it reads, whose age may matter as well.
        of_metrics = any(fact.name == _METRIC[:-1] for fact in self.facts)
        self._metrics = _metrics_of(expr) if of_metrics else ()

    @property
    def text(self) -> str:
        """Text form of the condition."""
        return tree.to_text(self.tree)

    def mask(self, hosts: HostTable, spec: RequestSpec, rows: Rows = None) -> BoolArray:
        """Return a mask of hosts, or of ``rows``, for which it is known to hold; read-only."""
        if not self._followed or (self._metrics and metric_values.may_age(hosts, self._metrics)):
            return self._root.mask(FactView(hosts, spec, rows))
        zone = hosts.default_zone if 'zone' in self._followed else ''
        stamp = (zone, hosts.versions.at(self._followed))
        try:
            whole = hosts.mask_cache.get(self, b'', stamp)
        except KeyError:
            if rows is not None and len(rows) <= _FEW:
                return self._root.mask(FactView(hosts, spec, rows))
            whole = self._root.mask(FactView(hosts, spec))
            hosts.mask_cache.put(self, b'', stamp, whole, len(hosts))
        assert whole is not None
        return whole if rows is None else whole.take(rows)

    def holds(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        """Return whether it is known to hold for one host."""
        return bool(self.mask(hosts, spec, np.array([row]))[0])

    def _part(self, node: tree.Expr, negated: bool, known_questions: QuestionsByNode) -> '_Part':
        if isinstance(node, tree.Not):
            return self._part(node.of, not negated, known_questions)
        if isinstance(node, tree.And | tree.Or):
            parts = [self._part(child, negated, known_questions) for child in node.of]
            return _Joined(parts, isinstance(node, tree.And) != negated)
        if isinstance(node, tree.Always):
            return _Joined([], node.value != negated)
        node_and_question = known_questions.get(id(node))
        question = (
            comparison.question_of(node) if node_and_question is None else node_and_question[1]
        )
        self._questions.append(question)
        return _One(question, negated != isinstance(node, tree.NotEqual))


def _metrics_of(expr: tree.Expr) -> tuple[str, ...]:
    """Return the names of the metrics of a condition, on either side of a comparison."""
    fact_names: list[str] = []
    for node, _ in tree.walk(expr):
        value = getattr(node, 'value', None)
        fact_names += [
            getattr(node, 'fact', ''),
            value.name if isinstance(value, tree.Ref) else '',
        ]
    return tuple({n.removeprefix(_METRIC) for n in fact_names if n.startswith(_METRIC)})


class _One:
    """A comparison, or its opposite."""

    def __init__(self, question: Question, negated: bool) -> None:
        self._question = question
        self._negated = negated

    def mask(self, view: FactView) -> BoolArray:
        return self._question.where(view, self._negated)


class _Joined:
    """Conjunction or disjunction of parts."""

    def __init__(self, parts: 'list[_Part]', every: bool) -> None:
        self._parts = parts
        self._every = every

    def mask(self, view: FactView) -> BoolArray:
        if not self._parts:
            return np.full(len(view), self._every)
        mask = self._parts[0].mask(view)
        for part in self._parts[1:]:
            other = part.mask(view)
            mask = mask & other if self._every else mask | other
        return mask


_Part = _One | _Joined
