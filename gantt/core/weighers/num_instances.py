# SPDX-License-Identifier: Apache-2.0
"""NumInstancesWeigher: by the number of guests that a host has."""

from gantt.core.messages.request import RequestSpec
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import ColumnWeigher


class NumInstancesWeigher(ColumnWeigher):
    """More means: more live claims."""

    columns = ('instances',)
    half = 10.0
    ends = (0.0, None)
    multiplier_option = 'num_instances_weight_multiplier'
    multiplier_default = 0.0
    multiplier_help = (
        'Multiplier for the number of guests on a host; positive packs, negative spreads, 0 '
        'does not look'
    )

    def step(self, hosts: HostTable, spec: RequestSpec) -> float:
        return 1
