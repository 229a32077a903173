# SPDX-License-Identifier: Apache-2.0
"""In which order filters run: those first that remove much for little, as measured here.

Who survives does not depend on the order, the work does: a filter that is asked
host by host walks only who is left, and nobody is asked once no host is.  Every so
often all filters are timed on a real request, each on its own.  The order is looked
at again after 512, 1,024, 2,048 ... decisions, so that it settles; under a clock
that stands still, as in a simulation, it stays as configured.  A decision names its
filters as they ran, and its counts are of that order.
"""

import numpy as np

from gantt import exceptions
from gantt.core.filters.base import walks
from gantt.core.messages.request import SelectDestinations
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.pipeline import Pipeline
from gantt.core.table.host_table import HostTable
from gantt.scheduler.ports import Clock

#: One decision of so many is to be measured, and so many measurements make the first order.
EVERY, FIRST = 64, 8
#: Hosts that a filter which is asked host by host is timed on.
WALKED_MAX = 32
#: Weight of a new measurement.
_NEW = 0.2
#: A filter that removes fewer than this share of the hosts counts as removing so many.
_SHARE_MIN = 1e-3


class Ordering:
    """What the filters of one pipeline cost and remove."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._measured = 0
        self._next = FIRST
        self._cost: dict[str, float] = {}  # seconds per host
        self._share: dict[str, float] = {}  # of hosts removed

    def begin(self, pipeline: Pipeline) -> Pipeline:
        """Others are configured: what is known of them is used at once, the rest measured."""
        self._next = self._measured + FIRST
        return pipeline.in_order(self.order(pipeline))

    def follow(self, table: HostTable, request: SelectDestinations, pipeline: Pipeline) -> Pipeline:
        """Measure a decision that is about to be made; the pipeline to make it with."""
        if not len(table):
            return pipeline
        self._measure(table, request, pipeline)
        if self._measured < self._next:
            return pipeline
        self._next *= 2
        return pipeline.in_order(self.order(pipeline))

    def order(self, pipeline: Pipeline) -> list[str]:
        """Names of the filters, what removes most for its cost first.

        What a pick cannot change goes first, so that members after the first need not
        ask it again; who is asked host by host goes last, so that few hosts are left.
        """
        names = [rule.name for rule in pipeline.filters]
        if not all(self._cost.get(name) for name in names):
            return names
        stages = [
            2 if walks(rule) else int(volatile)
            for rule, volatile in zip(pipeline.filters, pipeline.volatile, strict=True)
        ]
        rank = {
            name: (stage, self._cost[name] / max(self._share[name], _SHARE_MIN))
            for name, stage in zip(names, stages, strict=True)
        }
        return sorted(names, key=lambda name: rank[name])

    def _measure(self, table: HostTable, request: SelectDestinations, pipeline: Pipeline) -> None:
        filter_run = FilterRun(table, request.spec, pipeline)
        few = np.linspace(0, len(table) - 1, min(WALKED_MAX, len(table))).astype(np.int64)
        for k, rule in enumerate(pipeline.filters):
            hosts = len(few) if walks(rule) else len(table)
            began = self._clock.monotonic()
            try:
                mask = filter_run.mask_of(k, request.consumers[0], few)
            except exceptions.PluginError:
                return  # the decision itself will say so
            spent = (self._clock.monotonic() - began) / hosts
            removed = 0.0 if mask is None else 1.0 - np.count_nonzero(mask) / max(len(mask), 1)
            self._note(rule.name, spent, removed)
        self._measured += 1

    def _note(self, name: str, cost: float, share: float) -> None:
        known = name in self._cost
        new = _NEW if known else 1.0
        self._cost[name] = (1 - new) * self._cost.get(name, 0.0) + new * cost
        self._share[name] = (1 - new) * self._share.get(name, 0.0) + new * share
