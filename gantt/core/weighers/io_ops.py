# SPDX-License-Identifier: Apache-2.0
"""IoOpsWeigher: hosts that are busy building, moving and copying guests last."""

from gantt.core.messages.request import RequestSpec
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import ColumnWeigher


class IoOpsWeigher(ColumnWeigher):
    """More means: more guests are being built, resized, moved or copied there.

    As the host counts them (``stats.io_workload``), and picks that are not committed yet.
    """

    columns = ('io_ops',)
    minval = 0.0
    half = 8.0
    multiplier_option = 'io_ops_weight_multiplier'
    multiplier_default = -1.0
    multiplier_help = (
        'Multiplier for the number of guests being built, resized, moved or copied on a host; '
        'negative prefers idle hosts, positive busy ones'
    )

    def step(self, hosts: HostTable, spec: RequestSpec) -> float:
        return 1
