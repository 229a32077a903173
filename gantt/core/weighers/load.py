# SPDX-License-Identifier: Apache-2.0
"""LoadWeigher: by how busy hosts are, as far as what they measured is still worth anything."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gantt.core import metrics
from gantt.core.columns import FloatArray, IntArray
from gantt.core.plugin import Option
from gantt.core.request import RequestSpec
from gantt.core.weighers import measured
from gantt.core.weighers.base import Weigher
from gantt.core.weighers.measured import SUM_MAX

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class LoadWeigher(Weigher):
    """More means: more load, as a sum of metrics times their ratios.

    A measurement loses its say with age: it moves from what was measured towards what is
    expected of anybody, which is the middle of the declared bounds, else the mean of the
    others.  Half of the way is gone after the half-life, three quarters after three of them.
    """

    columns = ('metrics',)
    multiplier_option = 'load_weight_multiplier'
    options = (
        Option('load_weight_multiplier', float, -1.0,
               'Multiplier for the load; negative prefers idle hosts'),
        Option('load_weight_setting', str, '',
               'Metrics of load and their ratios, "load_5m=1.0"; empty: no preference'),
        Option('load_half_life_seconds', float, 60.0,
               'A measurement of this age counts half: a/(a+age) of it counts. 0: however old, '
               'it counts whole', min=0.0),
        Option('load_stale_seconds', float, 180.0,
               'A measurement older than this is stale. A metric may be declared with less',
               min=0.0),
        Option('load_when_stale', str, 'silent',
               'What a host counts as whose measurement is stale or missing. silent: as what is '
               'expected of anybody; worst: as the most loaded', choices=('silent', 'worst')),
    )  # fmt: skip
    load_weight_multiplier: float
    load_weight_setting: str
    load_half_life_seconds: float
    load_stale_seconds: float
    load_when_stale: str

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        said = measured.read(self, 'load_weight_setting')
        self._ratios = {name: ratio for name, ratio in said.items() if ratio}

    def raw(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        total: FloatArray | None = None
        for name, ratio in self._ratios.items():
            load = self._load(hosts, rows, name, ratio > 0)
            if load is not None:
                with np.errstate(over='ignore'):
                    load = np.clip(load * ratio, -SUM_MAX, SUM_MAX)
                total = load if total is None else np.clip(total + load, -SUM_MAX, SUM_MAX)
        return total

    def _load(
        self, hosts: 'HostTable', rows: IntArray, name: str, rises: bool
    ) -> FloatArray | None:
        """One metric of ``rows`` by what it is worth; None: no host has a say."""
        known = metrics.values(hosts, name)
        if known is None:
            return None
        said, age = known.take(rows), metrics.ages(hosts, name).take(rows)
        silent = np.isnan(said) | (age > self.load_stale_seconds)
        if silent.all():
            return None
        said = np.clip(np.where(silent, 0.0, said), -SUM_MAX, SUM_MAX)
        # Not a power of two: one processor's powers are not another's, and a replay has
        # to come to the same.
        half = self.load_half_life_seconds
        trust = half / (half + np.maximum(age, 0.0)) if half else np.ones(len(rows))
        trust[silent] = 0.0
        middle, low, high = self._ends(hosts, name, said[~silent], trust[~silent])
        load = middle + trust * (said - middle)
        if self.load_when_stale == 'worst':
            load[silent] = high if rises else low
        return load

    @staticmethod
    def _ends(
        hosts: 'HostTable', name: str, said: FloatArray, trust: FloatArray
    ) -> tuple[float, float, float]:
        """What is expected of anybody, the least and the most."""
        declared = hosts.declared_metrics.get(name)
        low, high = float(said.min()), float(said.max())
        if declared is not None and declared.lower is not None and declared.upper is not None:
            return (declared.lower + declared.upper) / 2, declared.lower, declared.upper
        # One after the other, for the same reason as above.
        worth = float(np.cumsum(trust)[-1])
        middle = float(np.cumsum(said * trust)[-1]) / worth if worth > 0 else (low + high) / 2
        return middle, low, high

    def limits(self, hosts: 'HostTable', spec: RequestSpec) -> tuple[float | None, float | None]:
        return measured.limits(hosts, self._ratios)
