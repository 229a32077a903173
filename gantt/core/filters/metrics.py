# SPDX-License-Identifier: Apache-2.0
"""MetricsFilter: the host reports every metric that is weighed."""

import numpy as np

from gantt.core.filters.base import Condition, Conditions, ConditionsFilter, Parts, only
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table import metric_values
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable


class MetricsFilter(ConditionsFilter):
    """All metrics named in ``metrics_weight_setting`` are there, whatever they say.

    A value out of the bounds of its declaration, or too old, is not there.
    """

    reason = 'does not report every metric that is weighed'
    columns = ('metrics',)
    options = (
        Option(
            'metrics_weight_setting',
            str,
            '',
            'Metrics as name=ratio, separated by commas, as in [weighers] '
            'metrics_weight_setting; only the names count here. Hosts without one of them '
            'are left out by MetricsFilter',
        ),
    )
    metrics_weight_setting: str
    remedy_text = 'fits on {where} once it reports {what}'

    def conditions(self, hosts: HostTable, spec: RequestSpec) -> Conditions:
        for name in self.names:
            yield (name,), _has_metric(hosts, metric_values.metric_values(hosts, name))

    def parts(self, hosts: HostTable, condition: Condition, rows: IntArray) -> Parts:
        (name,) = condition
        reported = int(np.count_nonzero(_has_metric(hosts, hosts.metrics.get(name)).take(rows)))
        yield f'do not report metric {name}', len(rows) - reported
        yield f'report metric {name} too old or out of its bounds', reported

    @property
    def names(self) -> list[str]:
        """Names of the metrics, each once."""
        settings = self.metrics_weight_setting.split(',')
        metric_names = (setting.partition('=')[0].strip() for setting in settings)
        return list(dict.fromkeys(name for name in metric_names if name))


def _has_metric(hosts: HostTable, metric: FloatArray | None) -> BoolArray:
    return only(hosts, []) if metric is None else ~np.isnan(metric)
