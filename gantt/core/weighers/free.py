# SPDX-License-Identifier: Apache-2.0
"""What weighers by a free amount share."""

from typing import TYPE_CHECKING, ClassVar

from gantt.core.columns import FloatArray, IntArray
from gantt.core.request import RequestSpec
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class FreeWeigher(Weigher):
    """More means: more of one resource class is free.

    :cvar resource_class: the class
    """

    columns = ('free',)
    local = True
    minval = 0.0
    resource_class: ClassVar[str]

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> IntArray | None:
        code = hosts.class_code(self.resource_class)
        return None if code is None else hosts.free_of(code).take(rows)

    def value(self, hosts: 'HostTable', spec: RequestSpec, row: int) -> float:
        code = hosts.class_code(self.resource_class)
        if code is None or code in hosts.pooled:
            return super().value(hosts, spec, row)
        return hosts.free.item(code, row)

    def capacities(
        self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray
    ) -> FloatArray | None:
        code = hosts.class_code(self.resource_class)
        return None if code is None else hosts.cap_of(code).take(rows).astype(float)
