# SPDX-License-Identifier: Apache-2.0
"""Weighers by one fact of a host each: guests, operations, failed builds, version, cell."""

import numpy as np

from gantt.core.messages.report import FAILED_BUILDS
from gantt.core.messages.request import RequestSpec
from gantt.core.table import metric_values
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import ColumnWeigher, Weigher


class NumInstancesWeigher(ColumnWeigher):
    """More means: more live claims."""

    columns = ('instances',)
    half = 10.0
    ends = (0.0, None)
    multiplier_option = 'num_instances_weight_multiplier'
    multiplier_default = 0.0
    multiplier_help = (
        'Multiplier for the number of guests on a host; positive packs, negative spreads, 0 '
        'ignores it'
    )

    def step(self, hosts: HostTable, spec: RequestSpec) -> float:
        return 1


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


class BuildFailureWeigher(Weigher):
    """More means: more builds failed there since the last one that did not; less is better."""

    columns = ('metrics',)
    local = True
    negated = True
    ends = (0.0, None)
    multiplier_option = 'build_failure_weight_multiplier'
    multiplier_default = 1_000_000.0
    multiplier_help = (
        'Multiplier for recent failed builds; it counts with its sign turned, so that positive '
        'avoids hosts with failures'
    )

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        if FAILED_BUILDS not in hosts.metrics:
            return None
        failed = metric_values.metric_values(hosts, FAILED_BUILDS)
        return None if failed is None else np.nan_to_num(failed.take(rows), nan=0.0)


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


class CrossCellWeigher(Weigher):
    """More means: in the cell that the move prefers, its source: 1 there, -1 elsewhere.

    Only of moves that may cross cells and prefer one (``destination.preferred_cell``).
    """

    columns = ('cell',)
    local = True
    ends = (-1.0, 1.0)
    multiplier_option = 'cross_cell_move_weight_multiplier'
    multiplier_default = 1_000_000.0
    multiplier_help = 'Multiplier for hosts in the preferred cell of a move that may leave it'

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> IntArray | None:
        destination = spec.destination
        if destination is None or destination.preferred_cell is None:
            return None
        code = hosts.cells.get(destination.preferred_cell)
        if code is None:
            return np.full(len(rows), -1)
        return np.where(hosts.cell.take(rows) == code, 1, -1)
