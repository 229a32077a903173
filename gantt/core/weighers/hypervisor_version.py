# SPDX-License-Identifier: Apache-2.0
"""HypervisorVersionWeigher: newer hypervisors first, where the difference is worth it."""

from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import ColumnWeigher


class HypervisorVersionWeigher(ColumnWeigher):
    """More means: a newer hypervisor; one that does not tell its version counts as 0.

    As a fraction of the newest: from the smallest to the largest, as Nova has it, one
    patch level would outweigh all free memory.
    """

    columns = ('hypervisor_version',)
    half = 1_000_000.0  # of versions such as 8002003
    normalization = 'fraction'
    ends = (0.0, None)
    multiplier_option = 'hypervisor_version_weight_multiplier'
    multiplier_help = 'Multiplier for the version of the hypervisor; negative prefers older ones'

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> IntArray | None:
        versions = hosts.hypervisor_version
        any_reported = hosts.array_cache.get(self.name, self.columns, lambda: bool(versions.any()))
        return super().raw(hosts, spec, rows) if any_reported else None
