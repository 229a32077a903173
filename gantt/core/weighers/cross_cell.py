# SPDX-License-Identifier: Apache-2.0
"""CrossCellWeigher: a guest that may move to another cell stays in its own where it can."""

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher


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
