# SPDX-License-Identifier: Apache-2.0
"""Compiled conditions: a mask of the hosts for which a condition is known to hold.

Negations are pushed down to the comparisons first.  So for an unknown fact of a host
neither a comparison nor its opposite holds, and every node is one array.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.rules import comparison, tree
from gantt.core.rules.comparison import FactTest
from gantt.core.rules.facts import Fact, FactView, RowSelection
from gantt.core.table import metric_values
from gantt.core.table.columns import PICK_DEPENDENT_COLUMNS, VERSIONED_COLUMNS, BoolArray
from gantt.core.table.host_table import HostTable

#: Up to so many rows, a mask is computed for them alone if none is cached.
_ROW_BY_ROW_MAX = 64
_METRIC_PREFIX = 'metrics.'

#: Identity of a node -> the node, kept alive so that the identity stays unique, and its question.
QuestionsByNode = dict[int, tuple[tree.Node, FactTest]]


#: Returns a mask of the hosts of a view.
_Mask = Callable[[FactView], BoolArray]


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
        bounds: tree.Bounds = tree.WRITTEN_BOUNDS,
        known_questions: QuestionsByNode | None = None,
    ) -> None:
        """Compile a syntax tree.

        :param known_questions: tests of nodes that were derived already
        :raises TypeMismatch: a comparison is of the wrong type
        :raises TooLarge: it is beyond a bound
        """
        tree.check_size(expr, bounds)
        self.tree = expr
        self._questions: list[FactTest] = []
        self._mask = self._compiled(expr, False, known_questions or {})
        self.size = len(self._questions)
        self.facts: tuple[Fact, ...] = tuple(
            {fact.name: fact for question in self._questions for fact in question.used}.values()
        )
        self.volatile = any(
            not PICK_DEPENDENT_COLUMNS.isdisjoint(fact.reads) for fact in self.facts
        )
        columns = frozenset[str]().union(*(question.columns for question in self._questions))
        of_request = any(fact.of_request for fact in self.facts)
        #: Columns that its mask follows from, if all are followed and it reads nothing else.
        self._followed = (
            tuple(sorted(columns))
            if VERSIONED_COLUMNS.issuperset(columns) and not of_request
            else None
        )
        #: Metrics that it reads, whose age may matter as well.
        metrics_exposure = any(fact.name == _METRIC_PREFIX[:-1] for fact in self.facts)
        self._metrics = _metrics_of(expr) if metrics_exposure else ()

    @property
    def text(self) -> str:
        """Text form of the condition."""
        return tree.to_text(self.tree)

    def mask(self, hosts: HostTable, spec: RequestSpec, rows: RowSelection = None) -> BoolArray:
        """Return a mask of hosts, or of ``rows``, where it is known to hold; read-only."""
        if not self._followed or (self._metrics and metric_values.may_expire(hosts, self._metrics)):
            return self._mask(FactView(hosts, spec, rows))
        zone = hosts.default_zone if 'zone' in self._followed else ''
        stamp = (zone, hosts.versions.of_columns(self._followed))
        try:
            whole = hosts.mask_cache.get(self, b'', stamp)
        except KeyError:
            if rows is not None and len(rows) <= _ROW_BY_ROW_MAX:
                return self._mask(FactView(hosts, spec, rows))
            whole = self._mask(FactView(hosts, spec))
            hosts.mask_cache.put(self, b'', stamp, whole, len(hosts))
        assert whole is not None
        return whole if rows is None else whole.take(rows)

    def holds(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        """Return whether the condition is known to hold for one host."""
        return bool(self.mask(hosts, spec, np.array([row]))[0])

    def _compiled(self, node: tree.Expr, negated: bool, known_questions: QuestionsByNode) -> _Mask:
        if isinstance(node, tree.Not):
            return self._compiled(node.of, not negated, known_questions)
        if isinstance(node, tree.And | tree.Or):
            parts = [self._compiled(child, negated, known_questions) for child in node.of]
            return _joined(parts, isinstance(node, tree.And) != negated)
        if isinstance(node, tree.Always):
            return _joined([], node.value != negated)
        node_and_question = known_questions.get(id(node))
        question = comparison.test_of(node) if node_and_question is None else node_and_question[1]
        self._questions.append(question)
        return functools.partial(
            question.known_mask, negated=negated != isinstance(node, tree.NotEqual)
        )


def _metrics_of(expr: tree.Expr) -> tuple[str, ...]:
    """Return the names of the metrics of a condition, on either side of a comparison."""
    fact_names: list[str] = []
    for node, _ in tree.walk(expr):
        value = getattr(node, 'value', None)
        fact_names += [
            getattr(node, 'fact', ''),
            value.name if isinstance(value, tree.Ref) else '',
        ]
    return tuple(
        {n.removeprefix(_METRIC_PREFIX) for n in fact_names if n.startswith(_METRIC_PREFIX)}
    )


def _joined(parts: Sequence[_Mask], every: bool) -> _Mask:
    """Return the conjunction, or disjunction, of masks."""

    def mask(view: FactView) -> BoolArray:
        if not parts:
            return np.full(len(view), every)
        joined = parts[0](view)
        for part in parts[1:]:
            other = part(view)
            joined = joined & other if every else joined | other
        return joined

    return mask
