# SPDX-License-Identifier: Apache-2.0
"""Declared metrics, and the checks of reported values against them.

Hosts may report any number under any name.  A declaration adds unit, bounds and the maximum
age of a value.  A value that is out of its bounds or too old is ignored, as if it had not
been reported.
"""

import math
from typing import TYPE_CHECKING

import msgspec

from gantt import exceptions
from gantt.core.messages.base import Message, Name, Text

if TYPE_CHECKING:
    from gantt.core.claims.host_facts import UpdateHostFacts
    from gantt.core.messages.report import HostReport

#: Upper bound of declarations: each may cost a column.
DECLARED_METRICS_MAX = 1024
#: Metrics that resource trackers count beside ``stats.…``: no declaration is needed.
COUNTED_METRICS = frozenset({'running_vms', 'current_workload'})
#: Bounds are no larger, so that sums of them are numbers.
METRIC_BOUND_MAX = 1e15


class DeclaredMetric(Message, frozen=True, kw_only=True):
    """Declaration of a metric.

    :ivar lower: the least that a value can be; None: no bound
    :ivar upper: the most
    :ivar stale_seconds: a value older than this has no say; None: however old
    """

    name: Name
    unit: Text = ''
    lower: float | None = None
    upper: float | None = None
    stale_seconds: float | None = None
    description: Text = ''

    def takes(self, value: float) -> bool:
        """Return whether a value is within the bounds."""
        return (self.lower is None or value >= self.lower) and (
            self.upper is None or value <= self.upper
        )


def check(metric: DeclaredMetric) -> None:
    """Check a declaration beyond its types.

    :raises InvalidMessage: names the field
    """
    for field in ('lower', 'upper', 'stale_seconds'):
        value = getattr(metric, field)
        if value is not None and not (math.isfinite(value) and abs(value) <= METRIC_BOUND_MAX):
            _refuse(field, f'expected -{METRIC_BOUND_MAX:g} to {METRIC_BOUND_MAX:g}, got {value:g}')
    if metric.stale_seconds is not None and metric.stale_seconds <= 0:
        _refuse('stale_seconds', f'expected more than 0, got {metric.stale_seconds:g}')
    if metric.lower is not None and metric.upper is not None and metric.lower >= metric.upper:
        _refuse('upper', f'expected more than lower ({metric.lower:g}), got {metric.upper:g}')


def check_report(
    report: 'HostReport | UpdateHostFacts',
    declared: dict[str, DeclaredMetric],
    inside: str = 'stats',
) -> None:
    """Check that a report has only declared metrics, or those that every agent counts.

    :param inside: name of the message in an error
    :raises InvalidMessage: an undeclared metric, or a value out of its bounds
    """
    metrics = {} if report.metrics is msgspec.UNSET else report.metrics
    for name, metric in metrics.items():
        declaration = declared.get(name)
        if declaration is None and (name.startswith('stats.') or name in COUNTED_METRICS):
            continue
        field = f'{inside}.metrics.{name}'
        if declaration is None:
            raise exceptions.InvalidMessage(
                field=field, problem='expected a declared metric; nobody has declared this one'
            )
        if not declaration.takes(metric.value):
            raise exceptions.InvalidMessage(
                field=f'{field}.value',
                problem=f'expected {bounds_of(declaration)}, got {metric.value:g}',
            )


def bounds_of(metric: DeclaredMetric) -> str:
    """Return the bounds as text."""
    low, high = metric.lower, metric.upper
    if low is not None and high is not None:
        return f'{low:g} to {high:g}'
    if low is not None:
        return f'{low:g} or more'
    return 'any number' if high is None else f'{high:g} or less'


def _refuse(field: str, problem: str) -> None:
    raise exceptions.InvalidMessage(field=f'metric.{field}', problem=problem)
