# SPDX-License-Identifier: Apache-2.0
"""DiskWeigher: hosts with more free disk first."""

from typing import TYPE_CHECKING

from gantt.core.columns import IntArray
from gantt.core.plugin import Option
from gantt.core.request import RequestSpec
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class DiskWeigher(Weigher):
    """More means: more free DISK_GB."""

    columns = ('free',)
    multiplier_option = 'disk_weight_multiplier'
    minval = 0.0
    options = (
        Option('disk_weight_multiplier', float, 1.0,
               'Multiplier for free disk; negative packs guests together'),
    )  # fmt: skip
    disk_weight_multiplier: float

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> IntArray | None:
        code = hosts.class_code('DISK_GB')
        return None if code is None else hosts.free_of(code).take(rows)
