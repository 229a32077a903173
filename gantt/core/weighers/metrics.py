# SPDX-License-Identifier: Apache-2.0
"""MetricsWeigher: by numbers that hosts measure, each with a ratio."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table import metric_values
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.weighers import measured
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class MetricsWeigher(Weigher):
    """More means: a larger sum of metrics times their ratios.

    A host without one of the metrics (not reported, out of its declared bounds, or older
    than declared) counts as the worst of the others; see the options for Nova's ways.
    """

    columns = ('metrics',)
    multiplier_option = 'metrics_weight_multiplier'
    options = (
        Option('metrics_weight_multiplier', float, 1.0, 'Multiplier for the sum of metrics'),
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
    metrics_weight_multiplier: float
    metrics_weight_setting: str
    metrics_required: bool
    metrics_weight_of_unavailable: float
    metrics_fail_on_missing: bool

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        said = measured.read(self, 'metrics_weight_setting')
        self._ratios = {name: ratio for name, ratio in said.items() if ratio}

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        if not self._ratios:
            return None
        total = np.zeros(len(rows))
        missing: BoolArray | None = None
        for name, ratio in self._ratios.items():
            known = metric_values.values(hosts, name)
            if known is None:
                missing = np.ones(len(rows), np.bool_)
                continue
            mine = known.take(rows)
            gone = np.isnan(mine)
            if np.logical_or.reduce(gone):
                missing = gone if missing is None else np.logical_or(missing, gone, out=missing)
                np.copyto(mine, 0.0, where=gone)
            total += measured.weighted(mine, ratio)
        if len(self._ratios) > 1:
            measured.bounded(total)
        return total if missing is None else self._without(hosts, rows, total, missing)

    def _without(
        self, hosts: 'HostTable', rows: IntArray, total: FloatArray, missing: BoolArray
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
            # The worst is looked for among numbers that none of the others can be.
            unwanted = multipliers < 0
            np.copyto(total, -np.inf if unwanted else np.inf, where=missing)
            worst = np.maximum.reduce(total) if unwanted else np.minimum.reduce(total)
            np.copyto(total, worst, where=missing)
            return total
        low, high = float(total[~missing].min()), float(total[~missing].max())
        return np.where(missing, np.where(multipliers < 0, high, low), total)

    def limits(self, hosts: 'HostTable', spec: RequestSpec) -> tuple[float | None, float | None]:
        return measured.limits(hosts, self._ratios)
