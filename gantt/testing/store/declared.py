# SPDX-License-Identifier: Apache-2.0
"""The in-memory store: what operators declare, and the lock that makes a method a transaction."""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.table import metrics
from gantt.core.table.metrics import DeclaredMetric
from gantt.testing.store.tables import Tables

F = TypeVar('F', bound=Callable[..., Any])


def atomic(method: F) -> F:
    """One transaction: nobody else is inside meanwhile."""

    @functools.wraps(method)
    def run(self: 'DeclarationTables', *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]


class DeclarationTables:
    """Resource classes and metrics."""

    def __init__(self) -> None:
        self._tables = Tables()
        self._lock = threading.RLock()

    @atomic
    def declare_class(self, name: str) -> None:
        """Declare a CUSTOM_ resource class.

        :raises UnknownResourceClass: neither a standard class nor of that form
        """
        if not resource_classes.is_class_name(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        self._tables.classes.add(name)

    @atomic
    def declared_classes(self) -> frozenset[str]:
        return frozenset(self._tables.classes)

    @atomic
    def save_metric(self, metric: DeclaredMetric) -> DeclaredMetric:
        metrics.check(metric)
        known = self._tables.metrics
        if metric.name not in known and len(known) >= metrics.DECLARED_MAX:
            raise exceptions.Refused(
                f'{metrics.DECLARED_MAX} metrics are declared already, which is as many as may '
                'be; remove one first'
            )
        known[metric.name] = metric
        self._tables.append_change('metric', metric.name)
        return metric

    @atomic
    def remove_metric(self, name: str) -> None:
        if self._tables.metrics.pop(name, None) is None:
            raise exceptions.NotFound(kind='declared metric', name=name)
        self._tables.append_change('metric', name)

    @atomic
    def declared_metrics(self) -> list[DeclaredMetric]:
        known = self._tables.metrics
        return [known[name] for name in sorted(known)]
