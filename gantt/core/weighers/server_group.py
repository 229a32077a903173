# SPDX-License-Identifier: Apache-2.0
"""The soft rules of server groups: rather together, rather apart."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gantt.core.columns import IntArray
from gantt.core.group import members_by_row
from gantt.core.plugin import Option
from gantt.core.request import Policy, RequestSpec
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class _ServerGroupWeigher(Weigher):
    policy: ClassVar[Policy]
    sign: ClassVar[int] = 1
    columns = ('placed',)

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> IntArray | None:
        if spec.group is None or spec.group.policy is not self.policy:
            return None
        members = members_by_row(hosts, spec.group)
        if not members:
            return None
        counts = np.zeros(len(hosts), np.int64)
        counts[list(members)] = list(members.values())
        return self.sign * counts.take(rows)


class ServerGroupSoftAffinityWeigher(_ServerGroupWeigher):
    """More means: more members of the server group on the host."""

    policy = Policy.SOFT_AFFINITY
    multiplier_option = 'soft_affinity_weight_multiplier'
    options = (
        Option('soft_affinity_weight_multiplier', float, 1.0,
               'Multiplier for members of a soft-affinity group on a host', min=0.0),
    )  # fmt: skip
    soft_affinity_weight_multiplier: float


class ServerGroupSoftAntiAffinityWeigher(_ServerGroupWeigher):
    """More means: fewer members of the server group on the host."""

    policy = Policy.SOFT_ANTI_AFFINITY
    sign = -1
    multiplier_option = 'soft_anti_affinity_weight_multiplier'
    options = (
        Option('soft_anti_affinity_weight_multiplier', float, 1.0,
               'Multiplier for members of a soft-anti-affinity group on a host', min=0.0),
    )  # fmt: skip
    soft_anti_affinity_weight_multiplier: float
