# SPDX-License-Identifier: Apache-2.0
"""BuildFailureWeigher: hosts with recent failed builds come last."""

import numpy as np

from gantt.core.messages.report import FAILED_BUILDS
from gantt.core.messages.request import RequestSpec
from gantt.core.table import metric_values
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher


class BuildFailureWeigher(Weigher):
    """More means: more builds failed there since the last one that did not; less is better."""

    columns = ('metrics',)
    local = True
    negated = True
    ends = (0.0, None)
    multiplier_option = 'build_failure_weight_multiplier'
    multiplier_default = 1_000_000.0
    multiplier_help = (
        'Multiplier for recent failed builds; it counts with its sign turned, so that positive '
        'avoids hosts with failures'
    )

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        if FAILED_BUILDS not in hosts.metrics:
            return None
        failed = metric_values.values(hosts, FAILED_BUILDS)
        return None if failed is None else np.nan_to_num(failed.take(rows), nan=0.0)
