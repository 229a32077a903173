# SPDX-License-Identifier: Apache-2.0
"""MetricsWeigher: by a sum of measured metrics, each with a ratio; and such sums, for others."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option, Plugin
from gantt.core.table import metric_values
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher

_minimum, _maximum = np.minimum.reduce, np.maximum.reduce

#: A ratio as people write one: float() takes "1_0", "nan" and digits of other scripts as well.
_NUMBER = re.compile(r'[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?')
#: Most names in one setting.
METRICS_MAX = 64
#: Values beyond count as this: sums stay numbers, and scales have a length.
METRIC_SUM_MAX = 1e200


class MetricsWeigher(Weigher):
    """More means: a larger sum of metrics times their ratios.

    A host without one of the metrics (not reported, out of its declared bounds, or older
    than declared) counts as the worst of the others; see the options for Nova's ways.
    """

    columns = ('metrics',)
    multiplier_option = 'metrics_weight_multiplier'
    multiplier_help = 'Multiplier for the sum of metrics'
    options = (
        Option(
            'metrics_weight_setting',
            str,
            '',
            'Metrics and their ratios, "name1=1.0, name2=-1.0"; empty: no preference',
        ),
        Option(
            'metrics_required',
            bool,
            True,
            'A host without one of the metrics counts as the worst of those that have them '
            'all. False: its sum is metrics_weight_of_unavailable instead, whatever the '
            'others have',
        ),
        Option(
            'metrics_weight_of_unavailable',
            float,
            -10_000.0,
            'The sum of a host without one of the metrics, where metrics_required is false',
            min=-1e15,
            max=1e15,
        ),
        Option(
            'metrics_fail_on_missing',
            bool,
            False,
            'As Nova with a required metric: a request fails where one of several hosts that '
            'are left does not report it',
        ),
    )
    metrics_weight_setting: str
    metrics_required: bool
    metrics_weight_of_unavailable: float
    metrics_fail_on_missing: bool

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        measured_values = read_ratios(self, 'metrics_weight_setting')
        self._ratios = {name: ratio for name, ratio in measured_values.items() if ratio}

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        if not self._ratios:
            return None
        total = np.zeros(len(rows))
        missing: BoolArray | None = None
        for name, ratio in self._ratios.items():
            by_host = metric_values.metric_values(hosts, name)
            if by_host is None:
                missing = np.ones(len(rows), np.bool_)
                continue
            values = by_host.take(rows)
            absent = np.isnan(values)
            if np.logical_or.reduce(absent):
                missing = absent if missing is None else np.logical_or(missing, absent, out=missing)
                np.copyto(values, 0.0, where=absent)
            total += weighted_values(values, ratio)
        if len(self._ratios) > 1:
            bounded_values(total)
        return total if missing is None else self._without(hosts, rows, total, missing)

    def _without(
        self, hosts: HostTable, rows: IntArray, total: FloatArray, missing: BoolArray
    ) -> FloatArray | None:
        if not self.metrics_required:
            multipliers = self.multipliers(hosts, rows)
            # As in Nova: where a host is weighed by 0 times them, none is missed.
            total[missing & (multipliers != 0.0)] = self.metrics_weight_of_unavailable
            return total
        if self.metrics_fail_on_missing and len(rows) > 1:
            first = hosts.names[int(rows[missing][0])]
            raise ValueError(f'host {first} lacks one of the metrics {", ".join(self._ratios)}')
        if np.logical_and.reduce(missing):
            return None
        multipliers = self.multipliers(hosts, rows)
        if isinstance(multipliers, float):
            # Missing values are set beyond all others before the worst is computed.
            unwanted = multipliers < 0
            np.copyto(total, -np.inf if unwanted else np.inf, where=missing)
            worst = np.maximum.reduce(total) if unwanted else np.minimum.reduce(total)
            np.copyto(total, worst, where=missing)
            return total
        low, high = float(total[~missing].min()), float(total[~missing].max())
        return np.where(missing, np.where(multipliers < 0, high, low), total)

    def limits(self, hosts: HostTable, spec: RequestSpec) -> tuple[float | None, float | None]:
        return sum_bounds(hosts, self._ratios)


def read_ratios(plugin: Plugin, option: str) -> dict[str, float]:
    """Return ``name1=1.0, name2=-0.5`` as name -> ratio; empty: none.  A comma may end it.

    :raises PluginError: an entry of another form, or a name that is there twice
    """
    ratios: dict[str, float] = {}
    setting = getattr(plugin, option)
    for entry in setting.strip().removesuffix(',').split(',') if setting.strip() else ():
        name, separator, text = (part.strip() for part in entry.rpartition('='))
        if not separator or not name:
            got = repr(entry.strip()) if entry.strip() else f'nothing at a comma of {setting!r}'
            raise plugin.refused(option, f'expected entries name=ratio, got {got}')
        ratio = _number(text)
        if ratio is None:
            expected = 'a decimal number such as 2, -0.5 or 1e3'
            raise plugin.refused(
                option, f'expected {expected} as the ratio of {name}, got {text!r}'
            )
        if name in ratios:
            raise plugin.refused(option, f'expected each name once, got {name} twice')
        ratios[name] = ratio
    if len(ratios) > METRICS_MAX:
        raise plugin.refused(option, f'expected {METRICS_MAX} names at most, got {len(ratios)}')
    return ratios


def weighted_values(values: FloatArray, ratio: float) -> FloatArray:
    """Return values, multiplied in place by a ratio and bounded so that sums stay numbers."""
    if abs(ratio) > 1.0:
        with np.errstate(over='ignore'):
            np.multiply(values, ratio, out=values)
    elif ratio != 1.0:
        np.multiply(values, ratio, out=values)
    return bounded_values(values)


def bounded_values(values: FloatArray) -> FloatArray:
    """Return values, bounded in place so that sums stay numbers."""
    # Usually they are within: a check costs less than a write.
    if not (_minimum(values) >= -METRIC_SUM_MAX and _maximum(values) <= METRIC_SUM_MAX):
        np.maximum(values, -METRIC_SUM_MAX, out=values)
        np.minimum(values, METRIC_SUM_MAX, out=values)
    return values


def sum_bounds(hosts: HostTable, ratios: dict[str, float]) -> tuple[float | None, float | None]:
    """Return the least and the most of a sum, where all its metrics have declared bounds."""
    low = high = 0.0
    for name, ratio in ratios.items():
        declared = hosts.declared_metrics.get(name)
        if declared is None or declared.lower is None or declared.upper is None:
            return None, None
        ends = (declared.lower * ratio, declared.upper * ratio)
        low, high = low + min(ends), high + max(ends)
    return max(low, -METRIC_SUM_MAX), min(high, METRIC_SUM_MAX)


def _number(text: str) -> float | None:
    """Return a number of the form of ``_NUMBER``; None: another form, or too large."""
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None
