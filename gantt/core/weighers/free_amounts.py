# SPDX-License-Identifier: Apache-2.0
"""Weighers by free amounts: memory, disk, CPUs, any classes with ratios, shares of pools."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gantt.core.messages.request import RequestKind, RequestSpec
from gantt.core.messages.resource_classes import is_class_name
from gantt.core.plugin import Option
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers import metrics
from gantt.core.weighers.base import FreeWeigher, Weigher

#: Ratios are taken to this part of 1.  Sums of amounts times ratios are then exact, up to 2**43,
#: and a pick is followed by steps, bit for bit.
RATIO_GRANULARITY = 1 / 1024
RATIO_MAX = 1_000_000.0


class ResourceClassWeigher(Weigher):
    """More means: a larger sum of free amounts times the ratios of their classes.

    A ratio below 0 leaves hosts that have the class to those who ask for it.  A host without the
    class has nothing free of it.  In the absolute scale the sum counts from the least to the most
    that any host could have, were all its inventories free or used up.
    """

    columns = ('free', 'cap')
    local = True
    multiplier_option = 'class_weight_multiplier'
    multiplier_help = 'Multiplier for the sum of free amounts of classes times their ratios'
    options = (
        Option(
            'class_weight_setting',
            str,
            '',
            'Resource classes and their ratios, "CUSTOM_LICENCE=2.0, SRIOV_NET_VF=-1.0": the free '
            'amounts of a host, each in the unit of its class, times these. Below 0: hosts that '
            'have it come last. Empty: no preference',
        ),
    )
    class_weight_setting: str

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        self._ratios: dict[str, float] = {}
        for name, ratio in metrics.read_ratios(self, 'class_weight_setting').items():
            if not is_class_name(name):
                raise self.refused(
                    'class_weight_setting',
                    f'expected a standard resource class or one of CUSTOM_…, got {name!r}',
                )
            exact = round(ratio / RATIO_GRANULARITY) * RATIO_GRANULARITY
            if abs(ratio) > RATIO_MAX or (ratio and not exact):
                raise self.refused(
                    'class_weight_setting',
                    f'expected 0, or a ratio of {RATIO_GRANULARITY} to {RATIO_MAX:g} with either '
                    f'sign, for {name}, got {ratio}',
                )
            if exact:
                self._ratios[name] = exact

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        total: FloatArray | None = None
        for name, ratio in self._ratios.items():
            code = hosts.class_code(name)
            if code is not None:
                part: FloatArray = hosts.free[code].take(rows).astype(float)
                part *= ratio
                total = part if total is None else total + part
        return total

    def value(self, hosts: HostTable, spec: RequestSpec, row: int) -> float:
        total = 0.0
        for name, ratio in self._ratios.items():
            code = hosts.class_code(name)
            if code is not None:
                total += hosts.free.item(code, row) * ratio
        return total

    def step(self, hosts: HostTable, spec: RequestSpec) -> float:
        return -sum(ratio * spec.resources.get(name, 0) for name, ratio in self._ratios.items())

    def limits(self, hosts: HostTable, spec: RequestSpec) -> tuple[float, float]:
        """Return the least and the most that a host could have."""
        low = high = 0.0
        for name, ratio in self._ratios.items():
            code = hosts.class_code(name)
            if code is not None:
                end = ratio * int(hosts.cap[code].max(initial=0))
                low, high = low + min(end, 0.0), high + max(end, 0.0)
        return low, high


class RAMWeigher(FreeWeigher):
    """More means: more free MEMORY_MB."""

    resource_class = 'MEMORY_MB'
    multiplier_option = 'ram_weight_multiplier'
    physical_option = 'ram_weight_physical'
    multiplier_help = 'Multiplier for free memory; negative packs guests together'
    options = (
        Option(
            'ram_weight_physical',
            bool,
            False,
            'Count only what the hardware has as free memory, without the allocation ratio, as '
            'Nova does: over-committed hosts are all equal',
        ),
    )
    ram_weight_physical: bool


class DiskWeigher(FreeWeigher):
    """More means: more free DISK_GB."""

    resource_class = 'DISK_GB'
    multiplier_option = 'disk_weight_multiplier'
    physical_option = 'disk_weight_physical'
    multiplier_help = 'Multiplier for free disk; negative packs guests together'
    options = (
        Option(
            'disk_weight_physical',
            bool,
            False,
            'Count only what the hardware has as free disk, without the allocation ratio, as '
            'Nova does: over-committed hosts are all equal',
        ),
    )
    disk_weight_physical: bool


class CPUWeigher(FreeWeigher):
    """More means: more free VCPU, over-commit included."""

    resource_class = 'VCPU'
    multiplier_option = 'cpu_weight_multiplier'
    multiplier_help = 'Multiplier for free virtual CPUs; negative packs guests together'


class PoolRoomWeigher(Weigher):
    """More means: a larger share of the capacity is left, of the class with the smallest one.

    For requests that are placed on pools; one without a class has nothing free of it.
    """

    kinds = frozenset({RequestKind.POOL})
    columns = ('free', 'cap')
    local = True
    minval = 0.0
    maxval = 1.0
    multiplier_option = 'pool_room_weight_multiplier'
    multiplier_help = 'Multiplier for the free share of pools; negative fills one after another'
    options = (
        Option(
            'pool_room_classes',
            list,
            [],
            'Resource classes of which the free share of a pool is weighed; empty: those that '
            'the request asks for',
        ),
    )
    pool_room_classes: list[str]

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray:
        least = np.ones(len(rows))
        for name in self.pool_room_classes or spec.resources:
            code = hosts.class_code(name)
            if code is None:
                return np.zeros(len(rows))
            cap = hosts.cap_of(code).take(rows)
            remaining = hosts.free_of(code).take(rows) - spec.resources.get(name, 0)
            share = remaining / np.maximum(cap, 1)
            np.minimum(least, share, out=least)
        return least
