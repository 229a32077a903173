# SPDX-License-Identifier: Apache-2.0
"""The order in which filters run: first those that remove most at least cost, as measured.

The surviving hosts do not depend on the order, the work does: a filter that evaluates
host by host walks only the remaining ones, and none runs once no host remains.  Every so
often all filters are timed on a real request, each on its own.  The order is computed
again after 512, 1,024, 2,048 ... decisions, so that it settles; under a clock
that does not advance, as in a simulation, it stays as configured.  A decision names its
filters as they ran, and its counts are of that order.
"""

import numpy as np

from gantt import exceptions
from gantt.core.filters.base import is_per_host
from gantt.core.messages.request import SelectDestinations
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.pipeline import Pipeline
from gantt.core.table.host_table import HostTable
from gantt.scheduler.ports.process import Clock

#: Decisions per measurement, and measurements that determine the first order.
DECISIONS_PER_MEASUREMENT, FIRST_MEASUREMENTS = 64, 8
#: Hosts that a filter which evaluates host by host is timed on.
TIMED_HOSTS_MAX = 32
#: Weight of a new measurement.
_NEW_MEASUREMENT_WEIGHT = 0.2
#: A filter that removes a smaller share of the hosts counts as removing this one.
_REMOVED_SHARE_MIN = 1e-3


class FilterOrdering:
    """Measured cost and removals of the filters of one pipeline."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Measurements so far, and the number, doubled each time, at which the order changes next.
        self._measurement_count = 0
        self._next_measurement = FIRST_MEASUREMENTS
        self._cost: dict[str, float] = {}  # seconds per host
        self._removed_share: dict[str, float] = {}  # of hosts removed

    def begin(self, pipeline: Pipeline) -> Pipeline:
        """Order a new pipeline: by what is known of its filters at once, the rest is measured."""
        self._next_measurement = self._measurement_count + FIRST_MEASUREMENTS
        return pipeline.in_order(self.order(pipeline))

    def follow(self, table: HostTable, request: SelectDestinations, pipeline: Pipeline) -> Pipeline:
        """Measure the next decision's filters; return the pipeline to decide with."""
        if not len(table):
            return pipeline
        self._measure(table, request, pipeline)
        if self._measurement_count < self._next_measurement:
            return pipeline
        self._next_measurement *= 2
        return pipeline.in_order(self.order(pipeline))

    def order(self, pipeline: Pipeline) -> list[str]:
        """Return the names of the filters, the largest removal for its cost first.

        Filters whose result a pick cannot change go first, so that members after the first
        need no new run; those that evaluate host by host go last, on the few hosts that remain.
        """
        names = [rule.name for rule in pipeline.filters]
        if not all(self._cost.get(name) for name in names):
            return names
        stages = [
            2 if is_per_host(rule) else int(volatile)
            for rule, volatile in zip(pipeline.filters, pipeline.is_volatile, strict=True)
        ]
        rank = {
            name: (stage, self._cost[name] / max(self._removed_share[name], _REMOVED_SHARE_MIN))
            for name, stage in zip(names, stages, strict=True)
        }
        return sorted(names, key=lambda name: rank[name])

    def _measure(self, table: HostTable, request: SelectDestinations, pipeline: Pipeline) -> None:
        filter_run = FilterRun(table, request.spec, pipeline)
        sample = np.linspace(0, len(table) - 1, min(TIMED_HOSTS_MAX, len(table))).astype(np.int64)
        for filter_index, rule in enumerate(pipeline.filters):
            hosts = len(sample) if is_per_host(rule) else len(table)
            began = self._clock.monotonic()
            try:
                mask = filter_run.mask_of(filter_index, request.consumers[0], sample)
            except exceptions.PluginError:
                return  # the decision itself will report it
            spent = (self._clock.monotonic() - began) / hosts
            removed = 0.0 if mask is None else 1.0 - np.count_nonzero(mask) / max(len(mask), 1)
            self._note(rule.name, spent, removed)
        self._measurement_count += 1

    def _note(self, name: str, cost: float, share: float) -> None:
        is_measured = name in self._cost
        weight = _NEW_MEASUREMENT_WEIGHT if is_measured else 1.0
        self._cost[name] = (1 - weight) * self._cost.get(name, 0.0) + weight * cost
        self._removed_share[name] = (1 - weight) * self._removed_share.get(
            name, 0.0
        ) + weight * share
