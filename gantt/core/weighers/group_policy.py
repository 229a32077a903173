# SPDX-License-Identifier: Apache-2.0
"""The soft policies of a server group at any level, each by its weight, which is a price."""

import numpy as np

from gantt.core.group_policies import levels
from gantt.core.group_policies.one_member import costs
from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher


class GroupPolicyWeigher(Weigher):
    """More means: less weight of the group's soft policies is violated by the member there."""

    columns = tuple(sorted({'placed', 'instances', *levels.COLUMNS}))
    ends = (None, 0.0)
    priced = True
    multiplier_option = 'group_policy_weight_multiplier'
    multiplier_min = 0.0
    multiplier_help = 'Multiplier for the soft policies of a server group, in sum'

    def concerns(self, spec: RequestSpec) -> bool:
        group = spec.group
        return group is not None and group.policies is not None and group.policies.is_soft

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        if not self.concerns(spec):
            return None
        could = np.zeros(len(hosts), np.bool_)
        could[rows] = True
        policy_costs = costs(hosts, spec, could=could, strengths=('soft',))
        lost = np.zeros(len(rows))
        for cost in policy_costs:
            lost -= (cost.policy.soft or 1.0) * cost.by_row.take(rows)
        return lost
