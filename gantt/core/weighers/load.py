# SPDX-License-Identifier: Apache-2.0
"""LoadWeigher: by the load of hosts, discounted by the age of the measurement."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table import metric_values
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers import metrics
from gantt.core.weighers.base import Weigher

#: Numbers of one line of a sum.
_LINE_LENGTH = 256
#: Partial sums of a line that are added one by one at the end.
_PARTIAL_SUMS = 16


class LoadWeigher(Weigher):
    """More means: more load, as a sum of metrics times their ratios.

    A measurement loses its say with age: it moves from what was measured towards what is
    expected of anybody, which is the middle of the declared bounds, else the mean of the
    others.  Half of the way is gone after the half-life, three quarters after three of them.
    """

    columns = ('metrics',)
    multiplier_option = 'load_weight_multiplier'
    multiplier_default = -1.0
    multiplier_help = 'Multiplier for the load; negative prefers idle hosts'
    options = (
        Option(
            'load_weight_setting',
            str,
            '',
            'Metrics of load and their ratios, "load_5m=1.0"; empty: no preference',
        ),
        Option(
            'load_half_life_seconds',
            float,
            60.0,
            'A measurement of this age counts half: a/(a+age) of it counts. 0: however old, '
            'it counts whole',
            min=0.0,
        ),
        Option(
            'load_stale_seconds',
            float,
            180.0,
            'A measurement older than this is stale. A metric may be declared with less',
            min=0.0,
        ),
        Option(
            'load_when_stale',
            str,
            'silent',
            'How a host counts whose measurement is stale or missing. silent: as the middle of '
            'the declared bounds, else the mean of the other hosts; worst: as the most loaded',
            choices=('silent', 'worst'),
        ),
    )
    load_weight_setting: str
    load_half_life_seconds: float
    load_stale_seconds: float
    load_when_stale: str

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        measured_values = metrics.read_ratios(self, 'load_weight_setting')
        self._ratios = {name: ratio for name, ratio in measured_values.items() if ratio}

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        total: FloatArray | None = None
        for name, ratio in self._ratios.items():
            load = self._load(hosts, rows, name, ratio > 0)
            if load is not None:
                if ratio != 1.0:  # it is bounded as it is
                    load = metrics.weighted_values(load, ratio)
                total = load if total is None else metrics.bounded_values(total + load)
        return total

    def _load(self, hosts: HostTable, rows: IntArray, name: str, rises: bool) -> FloatArray | None:
        """Return one metric of ``rows`` discounted by age; None: no host has a fresh value."""
        by_host = metric_values.metric_values(hosts, name)
        if by_host is None:
            return None
        measured_values, age = by_host.take(rows), metric_values.metric_ages(hosts, name, rows)
        silent = np.isnan(measured_values)
        silent |= age > self.load_stale_seconds
        quiet = int(np.count_nonzero(silent))
        if quiet == len(rows):
            return None
        # Not a power of two: one processor's powers are not another's, and a replay has
        # to come to the same.
        half = self.load_half_life_seconds
        trust = half / np.add(age, half, out=age) if half else np.ones(len(rows))
        if quiet:
            np.copyto(measured_values, 0.0, where=silent)
            np.copyto(trust, 0.0, where=silent)
        metrics.bounded_values(measured_values)
        middle = self._middle(hosts, name, measured_values, trust, silent)
        load = measured_values - middle
        load *= trust
        load += middle
        if quiet and self.load_when_stale == 'worst':
            load[silent] = self._ends(hosts, name, measured_values[~silent])[int(rises)]
        return load

    @staticmethod
    def _ends(hosts: HostTable, name: str, measured_values: FloatArray) -> tuple[float, float]:
        """Return the declared lower and upper bounds, else those of the measured values."""
        declared = hosts.declared_metrics.get(name)
        if declared is not None and declared.lower is not None and declared.upper is not None:
            return declared.lower, declared.upper
        return float(measured_values.min()), float(measured_values.max())

    def _middle(
        self,
        hosts: HostTable,
        name: str,
        measured_values: FloatArray,
        trust: FloatArray,
        silent: BoolArray,
    ) -> float:
        """Return the expected value of any host.  Silent hosts have value 0 and trust 0."""
        declared = hosts.declared_metrics.get(name)
        if declared is not None and declared.lower is not None and declared.upper is not None:
            return (declared.lower + declared.upper) / 2
        worth = _sum(trust)
        if worth > 0:
            return _sum(measured_values * trust) / worth
        low, high = self._ends(hosts, name, measured_values[~silent])
        return (low + high) / 2

    def limits(self, hosts: HostTable, spec: RequestSpec) -> tuple[float | None, float | None]:
        return metrics.sum_bounds(hosts, self._ratios)


def _sum(values: FloatArray) -> float:
    """Return the sum in an order equal on every processor: line by line, then across."""
    whole = len(values) // _LINE_LENGTH * _LINE_LENGTH
    if not whole:
        return float(np.cumsum(values)[-1])
    lines = np.add.reduce(values[:whole].reshape(-1, _LINE_LENGTH), axis=0)
    rest = values[whole:]
    np.add(lines[: len(rest)], rest, out=lines[: len(rest)])
    return sum(np.add.reduce(lines.reshape(-1, _PARTIAL_SUMS), axis=0).tolist())
