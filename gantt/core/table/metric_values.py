# SPDX-License-Identifier: Apache-2.0
"""What the metrics of hosts count as: within their bounds, and not too old."""

from collections.abc import Iterable

import numpy as np

from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable


def values(hosts: HostTable, name: str) -> FloatArray | None:
    """By row what hosts measured, NaN where it has no say; None: nowhere.  Not to be written to."""
    found = hosts.metrics.get(name)
    declared = hosts.declared_metrics.get(name)
    if found is None or declared is None:
        return found
    # A comparison with NaN is false, and warns of nothing.
    silent = np.zeros(len(found), np.bool_)
    if declared.lower is not None:
        silent |= found < declared.lower
    if declared.upper is not None:
        silent |= found > declared.upper
    if declared.stale_seconds is not None:
        silent |= ages(hosts, name) > declared.stale_seconds
    return np.where(silent, np.nan, found) if silent.any() else found


def may_age(hosts: HostTable, names: Iterable[str]) -> bool:
    """Whether time alone may take its say from one of these metrics."""
    declared = hosts.declared_metrics
    return any(name in declared and declared[name].stale_seconds is not None for name in names)


def ages(hosts: HostTable, name: str, rows: IntArray | None = None) -> FloatArray:
    """Seconds since a metric was measured, as far as the host says: of ``rows``, or of all."""
    reported, age_values = hosts.reported_at, hosts.metric_ages.get(name)
    if rows is not None:
        reported = reported.take(rows)
        age_values = None if age_values is None else age_values.take(rows)
    age = hosts.now - reported
    if len(age) and np.minimum.reduce(age) < 0:
        np.maximum(age, 0.0, out=age)
    if age_values is not None:
        age += age_values
    return age
