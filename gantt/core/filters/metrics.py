# SPDX-License-Identifier: Apache-2.0
"""MetricsFilter: the host reports every metric that is weighed."""

from typing import TYPE_CHECKING, Any

import numpy as np

from gantt.core import metrics
from gantt.core.columns import BoolArray, IntArray
from gantt.core.filters.base import Filter, names_of, only
from gantt.core.plugin import Option
from gantt.core.request import RequestSpec

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class MetricsFilter(Filter):
    """All metrics named in ``metrics_weight_setting`` are there, whatever they say.

    A value out of the bounds of its declaration, or too old, is not there.
    """

    reason = 'does not report every metric that is weighed'
    columns = ('metrics',)
    options = (
        Option('metrics_weight_setting', str, '',
               'Metrics as name=ratio, separated by commas, as in [weighers] '
               'metrics_weight_setting; only the names count here. Hosts without one of them '
               'are left out by MetricsFilter'),
    )  # fmt: skip
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
            count = int(np.count_nonzero(lacks))
            if count:
                parts[f'do not report metric {name}'] = count
                rows = rows[~lacks]
        return {'parts': parts}

    def remedy(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> str:
        row = int(rows[0])
        lacks = [name for name in self.names if not _reports(hosts, name)[row]]
        more = f' and {len(rows) - 1} more' if len(rows) > 1 else ''
        return f'fits on {hosts.names[row]}{more} once it reports {names_of(lacks)}'


def _reports(hosts: 'HostTable', name: str) -> BoolArray:
    metric = metrics.values(hosts, name)
    return only(hosts, []) if metric is None else ~np.isnan(metric)
