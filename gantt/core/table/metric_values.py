# SPDX-License-Identifier: Apache-2.0
"""Effective values of the metrics of hosts: within their bounds, and not too old."""

from collections.abc import Iterable

import numpy as np

from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable


def metric_values(hosts: HostTable, name: str) -> FloatArray | None:
    """Return a metric by row, NaN where it is ignored; None: no host has it.  Read-only."""
    measured = hosts.metrics.get(name)
    declared = hosts.declared_metrics.get(name)
    if measured is None or declared is None:
        return measured
    # A comparison with NaN is false, and warns of nothing.
    ignored = np.zeros(len(measured), np.bool_)
    if declared.lower is not None:
        ignored |= measured < declared.lower
    if declared.upper is not None:
        ignored |= measured > declared.upper
    if declared.stale_seconds is not None:
        ignored |= metric_ages(hosts, name) > declared.stale_seconds
    return np.where(ignored, np.nan, measured) if ignored.any() else measured


def may_expire(hosts: HostTable, names: Iterable[str]) -> bool:
    """Return whether one of the metrics may become too old by time alone."""
    declared = hosts.declared_metrics
    return any(name in declared and declared[name].stale_seconds is not None for name in names)


def metric_ages(hosts: HostTable, name: str, rows: IntArray | None = None) -> FloatArray:
    """Return the seconds since a metric was measured, as reported: of ``rows``, or of all."""
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
