# SPDX-License-Identifier: Apache-2.0
"""What weighers by a free amount share."""

from typing import TYPE_CHECKING, ClassVar

from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.weighers.base import Weigher

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class FreeWeigher(Weigher):
    """More means: more of one resource class is free.

    :cvar resource_class: the class
    :cvar physical_option: name of the option that leaves the allocation ratio out
    """

    columns = ('free', 'cap', 'total', 'reserved')
    local = True
    minval = 0.0
    resource_class: ClassVar[str]
    physical_option: ClassVar[str] = ''

    @property
    def is_physical(self) -> bool:
        """Whether only what the hardware has counts."""
        return bool(self.physical_option and getattr(self, self.physical_option))

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> IntArray | None:
        code = hosts.class_code(self.resource_class)
        if code is None:
            return None
        free = hosts.free[code].take(rows)
        return free - self._promised(hosts, code, rows) if self.is_physical else free

    def value(self, hosts: 'HostTable', spec: RequestSpec, row: int) -> float:
        code = hosts.class_code(self.resource_class)
        if code is None or self.is_physical:
            return super().value(hosts, spec, row)
        return hosts.free.item(code, row)

    def capacities(
        self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray
    ) -> FloatArray | None:
        code = hosts.class_code(self.resource_class)
        if code is None:
            return None
        caps = hosts.cap[code].take(rows)
        if self.is_physical:
            caps -= self._promised(hosts, code, rows)
        return caps.astype(float)

    @staticmethod
    def _promised(hosts: 'HostTable', code: int, rows: IntArray) -> IntArray:
        """What may be promised beyond the hardware."""
        real = hosts.total[code].take(rows) - hosts.reserved[code].take(rows)
        return hosts.cap[code].take(rows) - real
