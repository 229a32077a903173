# SPDX-License-Identifier: Apache-2.0
"""PCIWeigher: keep hosts with passthrough devices for requests that need them."""

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher

#: Hosts with this many free devices, or more, are alike: none of them is scarce.
DEVICES_MAX = 100


class PCIWeigher(Weigher):
    """More means: fewer free passthrough devices: 100 for none, 1 for 99 and more.

    Whether the request asks for devices or not: those who do are packed, the others stay
    away.  Where no host has any, free or in use, all are alike.
    """

    columns = ('free_devices', 'kind_free')
    local = True
    ends = (1.0, float(DEVICES_MAX))
    multiplier_option = 'pci_weight_multiplier'
    multiplier_min = 0.0
    multiplier_help = 'Multiplier for having few free passthrough devices'

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> IntArray | None:
        if not hosts.kinds.pools:
            return None
        free = hosts.free_devices.take(rows)
        largest = int(np.maximum.reduce(free)) if len(free) else 0
        # Devices that are all in use count as well: no pick changes whether there are any.
        if not (largest > 0 or hosts.free_devices.any() or (hosts.kind_free >= 0).any()):
            return None
        if largest >= DEVICES_MAX:
            np.minimum(free, DEVICES_MAX - 1, out=free)
        return np.subtract(DEVICES_MAX, free, out=free)

    def step(self, hosts: HostTable, spec: RequestSpec) -> float:
        return 0

    def value(self, hosts: HostTable, spec: RequestSpec, row: int) -> float:
        return float(DEVICES_MAX - min(hosts.free_devices.item(row), DEVICES_MAX - 1))
