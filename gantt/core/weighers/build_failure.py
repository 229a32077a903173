# SPDX-License-Identifier: Apache-2.0
"""BuildFailureWeigher: hosts whose last builds failed come last."""

from typing import TYPE_CHECKING

import numpy as np

from gantt.core.messages.report import FAILED_BUILDS
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table import metric_values
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class BuildFailureWeigher(Weigher):
    """More means: more builds failed there since the last one that did not; less is better."""

    columns = ('metrics',)
    local = True
    negated = True
    multiplier_option = 'build_failure_weight_multiplier'
    options = (
        Option(
            'build_failure_weight_multiplier',
            float,
            1_000_000.0,
            'Multiplier for recent failed builds; it counts with its sign turned, so that '
            'positive avoids hosts with failures',
        ),
    )
    build_failure_weight_multiplier: float

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        if FAILED_BUILDS not in hosts.metrics:
            return None
        failed = metric_values.values(hosts, FAILED_BUILDS)
        return None if failed is None else np.nan_to_num(failed.take(rows), nan=0.0)

    def limits(self, hosts: 'HostTable', spec: RequestSpec) -> tuple[float | None, float | None]:
        return 0.0, None
