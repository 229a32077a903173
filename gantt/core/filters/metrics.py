# SPDX-License-Identifier: Apache-2.0
"""MetricsFilter: the host reports every metric that is weighed."""

from typing import TYPE_CHECKING, Any

import numpy as np

from gantt.core.filters.base import Filter, only, told_apart
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table import metric_values
from gantt.core.table.columns import BoolArray, IntArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class MetricsFilter(Filter):
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

    def mask(self, hosts: 'HostTable', spec: RequestSpec) -> BoolArray | None:
        mask: BoolArray | None = None
        for name in self.names:
            there = _reports(hosts, name)
            mask = there if mask is None else np.logical_and(mask, there, out=mask)
        return mask

    @property
    def names(self) -> list[str]:
        """Names of the metrics, each once."""
        settings = self.metrics_weight_setting.split(',')
        found = (setting.partition('=')[0].strip() for setting in settings)
        return list(dict.fromkeys(name for name in found if name))

    def detail(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Each host is counted for the first metric that it lacks."""
        parts: dict[str, int] = {}
        for name in self.names:
            lacks = ~_reports(hosts, name).take(rows)
            silent = lacks & _said(hosts, name).take(rows)
            for text, there in (
                (f'do not report metric {name}', lacks & ~silent),
                (f'report metric {name} too old or out of its bounds', silent),
            ):
                count = int(np.count_nonzero(there))
                if count:
                    parts[text] = count
            rows = rows[~lacks]
        return {'parts': parts}

    def remedy(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> str:
        wrong = [(name, ~_reports(hosts, name).take(rows)) for name in self.names]
        return told_apart(hosts, rows, wrong, 'fits on {where} once it reports {what}')


def _reports(hosts: 'HostTable', name: str) -> BoolArray:
    """Who reports a metric so that it has a say."""
    metric = metric_values.values(hosts, name)
    return only(hosts, []) if metric is None else ~np.isnan(metric)


def _said(hosts: 'HostTable', name: str) -> BoolArray:
    """Who reports a metric at all."""
    metric = hosts.metrics.get(name)
    return only(hosts, []) if metric is None else ~np.isnan(metric)
