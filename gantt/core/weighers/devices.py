# SPDX-License-Identifier: Apache-2.0
"""Weighers by devices: hosts that have them are kept, and shares go where they fit tightest."""

from collections import Counter

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.table.nested import part_key
from gantt.core.weighers.base import Weigher

#: Hosts with this many free devices, or more, are alike: none of them is scarce.
FREE_DEVICES_MAX = 100


class PCIWeigher(Weigher):
    """More means: fewer free passthrough devices: 100 for none, 1 for 99 and more.

    Whether the request asks for devices or not: those who do are packed, the others stay
    away.  Where no host has any, free or in use, all are alike.
    """

    columns = ('free_devices', 'kind_free')
    local = True
    ends = (1.0, float(FREE_DEVICES_MAX))
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
        if largest >= FREE_DEVICES_MAX:
            np.minimum(free, FREE_DEVICES_MAX - 1, out=free)
        return np.subtract(FREE_DEVICES_MAX, free, out=free)

    def step(self, hosts: HostTable, spec: RequestSpec) -> float:
        return 0

    def value(self, hosts: HostTable, spec: RequestSpec, row: int) -> float:
        return float(FREE_DEVICES_MAX - min(hosts.free_devices.item(row), FREE_DEVICES_MAX - 1))


class DeviceFitWeigher(Weigher):
    """More means: a larger share is left of the devices that are taken from; less is better.

    For requests that take something of what is nested below hosts: the mean over all that they
    take there.  A host that gives it itself, or from a pool that it shares, breaks no device.
    """

    columns = ('free', 'cap')
    local = True
    negated = True
    minval = 0.0
    maxval = 1.0
    normalization = 'absolute'
    multiplier_option = 'device_fit_weight_multiplier'
    multiplier_help = (
        'Multiplier for how tightly shares of devices fit: whole devices stay whole; negative '
        'spreads shares over devices'
    )

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        nested = hosts.pools.nested
        if not nested.of_class or (spec.tree is None and not nested.have_any(spec.resources)):
            return None
        query = hosts.tree_query(spec)
        device_parts = [
            part
            for part in query.parts()
            if part.amounts and all(name in nested.of_class for name, _ in part.amounts)
        ]
        if not device_parts:
            return None
        likes, isolated = Counter(map(part_key, device_parts)), frozenset[str]().union(*query.apart)
        total = np.zeros(len(hosts))
        for part in {part_key(part): part for part in device_parts}.values():
            alike = likes[part_key(part)]
            share_left = hosts.nested_tightest(part, alike if part.suffix in isolated else 1)
            total += np.where(np.isinf(share_left), 0.0, share_left) * (alike / len(device_parts))
        return np.minimum(total, 1.0).take(rows)
