# SPDX-License-Identifier: Apache-2.0
"""ResourceClassWeigher: by the free amounts of any classes, each with a ratio."""

from collections.abc import Mapping
from typing import Any

from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import is_class_name
from gantt.core.plugin import Option
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers import metrics
from gantt.core.weighers.base import Weigher

#: Ratios are taken to this part of 1.  Sums of amounts times ratios are then exact, up to 2**43,
#: and a pick is followed by steps, bit for bit.
GRAIN = 1 / 1024
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
            exact = round(ratio / GRAIN) * GRAIN
            if abs(ratio) > RATIO_MAX or (ratio and not exact):
                raise self.refused(
                    'class_weight_setting',
                    f'expected 0, or a ratio of {GRAIN} to {RATIO_MAX:g} with either sign, for '
                    f'{name}, got {ratio}',
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
