# SPDX-License-Identifier: Apache-2.0
"""CPUWeigher: hosts with more free virtual CPUs first."""

from typing import TYPE_CHECKING

from gantt.core.columns import IntArray
from gantt.core.plugin import Option
from gantt.core.request import RequestSpec
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class CPUWeigher(Weigher):
    """More means: more free VCPU, over-commit included."""

    columns = ('free',)
    multiplier_option = 'cpu_weight_multiplier'
    minval = 0.0
    options = (
        Option('cpu_weight_multiplier', float, 1.0,
               'Multiplier for free virtual CPUs; negative packs guests together'),
    )  # fmt: skip
    cpu_weight_multiplier: float

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> IntArray | None:
        code = hosts.class_code('VCPU')
        return None if code is None else hosts.free_of(code).take(rows)
