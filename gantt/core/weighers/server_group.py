# SPDX-License-Identifier: Apache-2.0
"""Weighers of server groups: soft rules, and soft policies at any level by their weights."""

from typing import ClassVar

import numpy as np

from gantt.core.group_policies import levels
from gantt.core.group_policies.one_member import costs_of_policies
from gantt.core.messages.request import Policy, RequestSpec
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.group_members import members_by_row, members_on_row
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher


class _ServerGroupWeigher(Weigher):
    policy: ClassVar[Policy]
    sign: ClassVar[int] = 1
    columns = ('placed', 'names')
    local = True

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> IntArray | None:
        if spec.group is None or spec.group.policy is not self.policy:
            return None
        # All 0 is a preference too: the next member has one, and starts from here.
        counts = np.zeros(len(hosts), np.int64)
        members = members_by_row(hosts, spec.group)
        if members:
            counts[list(members)] = list(members.values())
        return self.sign * counts.take(rows)

    def value(self, hosts: HostTable, spec: RequestSpec, row: int) -> float:
        assert spec.group is not None, 'a weigher with a preference has a group'
        return self.sign * members_on_row(hosts, spec.group, row)


class ServerGroupSoftAffinityWeigher(_ServerGroupWeigher):
    """More means: more members of the server group on the host."""

    policy = Policy.SOFT_AFFINITY
    ends = (0.0, None)
    multiplier_option = 'soft_affinity_weight_multiplier'
    multiplier_min = 0.0
    multiplier_help = 'Multiplier for members of a soft-affinity group on a host'


class ServerGroupSoftAntiAffinityWeigher(_ServerGroupWeigher):
    """More means: fewer members of the server group on the host."""

    policy = Policy.SOFT_ANTI_AFFINITY
    sign = -1
    ends = (None, 0.0)
    multiplier_option = 'soft_anti_affinity_weight_multiplier'
    multiplier_min = 0.0
    multiplier_help = 'Multiplier for members of a soft-anti-affinity group on a host'


class GroupPolicyWeigher(Weigher):
    """More means: less weight of the group's soft policies is violated by the member there."""

    columns = tuple(sorted({'placed', 'instances', *levels.LEVEL_COLUMNS}))
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
        policy_costs = costs_of_policies(hosts, spec, could=could, strengths=('soft',))
        lost = np.zeros(len(rows))
        for cost in policy_costs:
            lost -= (cost.policy.soft or 1.0) * cost.by_row.take(rows)
        return lost
