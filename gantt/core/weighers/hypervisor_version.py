# SPDX-License-Identifier: Apache-2.0
"""HypervisorVersionWeigher: newer hypervisors first, where the difference is worth it."""

from typing import TYPE_CHECKING

from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table.columns import IntArray
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class HypervisorVersionWeigher(Weigher):
    """More means: a newer hypervisor; one that does not tell its version counts as 0.

    As a fraction of the newest: from the smallest to the largest, as Nova has it, one
    patch level would outweigh all free memory.
    """

    columns = ('hypervisor_version',)
    local = True
    half = 1_000_000.0  # of versions such as 8002003
    normalization = 'fraction'
    multiplier_option = 'hypervisor_version_weight_multiplier'
    options = (
        Option(
            'hypervisor_version_weight_multiplier',
            float,
            1.0,
            'Multiplier for the version of the hypervisor; negative prefers older ones',
        ),
    )
    hypervisor_version_weight_multiplier: float

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> IntArray | None:
        versions = hosts.hypervisor_version
        some = hosts.kept.get(self.name, self.columns, lambda: bool(versions.any()))
        return versions.take(rows) if some else None

    def limits(self, hosts: 'HostTable', spec: RequestSpec) -> tuple[float | None, float | None]:
        return 0.0, None
