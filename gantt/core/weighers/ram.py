# SPDX-License-Identifier: Apache-2.0
"""RAMWeigher: hosts with more free memory first."""

from typing import TYPE_CHECKING

from gantt.core.columns import IntArray
from gantt.core.plugin import Option
from gantt.core.request import RequestSpec
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class RAMWeigher(Weigher):
    """More means: more free MEMORY_MB."""

    columns = ('free',)
    multiplier_option = 'ram_weight_multiplier'
    minval = 0.0
    options = (
        Option('ram_weight_multiplier', float, 1.0,
               'Multiplier for free memory; negative packs guests together'),
    )  # fmt: skip
    ram_weight_multiplier: float

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> IntArray | None:
        code = hosts.class_code('MEMORY_MB')
        return None if code is None else hosts.free_of(code).take(rows)
