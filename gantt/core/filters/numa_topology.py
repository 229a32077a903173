# SPDX-License-Identifier: Apache-2.0
"""NUMATopologyFilter: the cells, cores and pages that flavor and image request."""

from typing import Any

import numpy as np

from gantt.core.filters.base import Filter
from gantt.core.messages.request import Purpose, RequestSpec
from gantt.core.messages.topology_request import Wish
from gantt.core.plugin import Option
from gantt.core.table import topology
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.table.together import judge
from gantt.core.topology.devices import Known
from gantt.core.topology.free import FreeTopology
from gantt.core.topology.read import read
from gantt.core.topology.search import lay_out
from gantt.core.topology.violations import Violation, obstacles

#: Hosts whose obstacles are evaluated one by one; the others are reported together.
REQUESTED_MAX = 300
_NOT_TOGETHER = Violation('together', 0, 0, 'its cells and its devices do not come together')


def _requested_most(wish: Wish) -> int:
    """Return for how many hosts obstacles are searched: fewer for larger requests."""
    return max(10, REQUESTED_MAX * 4 // max(4, len(wish.devices) + len(wish.cells)))


class InsideFilter(Filter):
    """Base of the two filters for the topology inside a host.

    The mask is necessary: whether a host has a layout is decided for the best of
    those that pass, and one that has none is removed by this filter after all.
    """

    columns = ('rooms',)
    always = True
    is_room = True
    local = True

    def wish(self, spec: RequestSpec) -> Wish | None:
        """Return the topology that the request has for this filter.

        :raises InvalidMessage: names the key and the expected value
        """
        raise NotImplementedError

    def check_request(self, spec: RequestSpec) -> None:
        """Check the topology of the request; see :meth:`wish`."""
        if spec.purpose is not Purpose.REBUILD:
            self.wish(spec)

    def concerns(self, spec: RequestSpec) -> bool:
        return self.wish(spec) is not None

    def may(self, hosts: HostTable, wish: Wish, at: slice) -> BoolArray:
        """Return which hosts may fit, by row within ``at``."""
        raise NotImplementedError

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        wish = self.wish(spec)
        return None if wish is None else self.may(hosts, wish, slice(None))

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        wish = self.wish(spec)
        return wish is None or bool(self.may(hosts, wish, slice(row, row + 1))[0])

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Return parts that count each host for its first obstacle."""
        wish = self.wish(spec)
        if wish is None:
            return {}
        worst: dict[str, list[Violation]] = {}
        requested, device_cache = rows[: _requested_most(wish)], Known()
        judged = judge(hosts, hosts.kinds, wish, requested)
        for row, may_fit, surely in zip(requested.tolist(), judged.may, judged.surely, strict=True):
            if surely:
                first = _NOT_TOGETHER
            else:
                first = _in_the_way(wish, hosts.room(row), device_cache, bool(may_fit))[0]
            worst.setdefault(first.what, []).append(first)
        parts: dict[str, int] = {}
        for alike in worst.values():
            best = max(alike, key=lambda violation: (violation.have, violation.text))
            parts[best.text] = parts.get(best.text, 0) + len(alike)
        if len(rows) > len(requested):
            parts[self.reason] = len(rows) - len(requested)
        return {'parts': parts}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        """Return the host with the fewest obstacles."""
        wish = self.wish(spec)
        assert wish is not None, 'a request that asks nothing removes nobody'
        candidates, device_cache = [], Known()
        for row in rows[: _requested_most(wish)].tolist():
            problems = _in_the_way(wish, hosts.room(row), device_cache, False)
            short = sum(problem.lack / max(1, problem.need) for problem in problems)
            candidates.append((len(problems), short, row, problems))
        _, _, row, problems = min(candidates, key=lambda candidate: candidate[:3])
        return f'nearest is {hosts.names[row]}: {"; ".join(map(str, problems))}'


def _in_the_way(wish: Wish, room: FreeTopology, known: Known, may: bool) -> list[Violation]:
    """Return the obstacles of the wish in a room; at least one.

    :param may: a layout has to be searched to know that there is none
    """
    if not may:
        return obstacles(wish, room, known=known)
    return lay_out(wish, room, known=known).obstacles or [_NOT_TOGETHER]


class NUMATopologyFilter(InsideFilter):
    """Cells of the host have the processors, pages and memory that the guest's ask for."""

    reason = 'its NUMA cells do not have what was asked for'
    options = (
        Option(
            'packing_host_numa_cells_allocation_strategy',
            bool,
            False,
            'Lay guests out on the fullest NUMA cells that will do, and not on the emptiest.',
        ),
    )

    packing_host_numa_cells_allocation_strategy: bool

    def wish(self, spec: RequestSpec) -> Wish | None:
        return read(spec) if spec.may_need_topology else None

    def may(self, hosts: HostTable, wish: Wish, at: slice) -> BoolArray:
        if not wish.cells:
            return np.ones(len(hosts.numa_cells[at]), np.bool_)
        return topology.may_fit(hosts, hosts.kinds, wish, at)
