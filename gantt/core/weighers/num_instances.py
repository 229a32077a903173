# SPDX-License-Identifier: Apache-2.0
"""NumInstancesWeigher: by the number of guests that a host has."""

from typing import TYPE_CHECKING

from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table.columns import IntArray
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class NumInstancesWeigher(Weigher):
    """More means: more live claims."""

    columns = ('instances',)
    local = True
    half = 10.0
    multiplier_option = 'num_instances_weight_multiplier'
    options = (
        Option(
            'num_instances_weight_multiplier',
            float,
            0.0,
            'Multiplier for the number of guests on a host; positive packs, negative '
            'spreads, 0 does not look',
        ),
    )
    num_instances_weight_multiplier: float

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> IntArray | None:
        return hosts.instances.take(rows)

    def limits(self, hosts: 'HostTable', spec: RequestSpec) -> tuple[float | None, float | None]:
        return 0.0, None

    def value(self, hosts: 'HostTable', spec: RequestSpec, row: int) -> float:
        return hosts.instances.item(row)
