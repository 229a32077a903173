# SPDX-License-Identifier: Apache-2.0
"""IoOpsWeigher: hosts that are busy building, moving and copying guests last."""

from typing import TYPE_CHECKING

from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table.columns import IntArray
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class IoOpsWeigher(Weigher):
    """More means: more guests are being built, resized, moved or copied there.

    As the host counts them (``stats.io_workload``), and picks that are not committed yet.
    """

    columns = ('io_ops',)
    local = True
    minval = 0.0
    half = 8.0
    half = 8.0
    multiplier_option = 'io_ops_weight_multiplier'
    options = (
        Option(
            'io_ops_weight_multiplier',
            float,
            -1.0,
            'Multiplier for the number of guests being built, resized, moved or copied on a '
            'host; negative prefers idle hosts, positive busy ones',
        ),
    )
    io_ops_weight_multiplier: float

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> IntArray | None:
        return hosts.io_ops.take(rows)

    def value(self, hosts: 'HostTable', spec: RequestSpec, row: int) -> float:
        return hosts.io_ops.item(row)
