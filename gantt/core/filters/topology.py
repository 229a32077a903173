# SPDX-License-Identifier: Apache-2.0
"""Filters by topology: cells, cores and pages of the guest, and its devices."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gantt.core.filters.base import Filter
from gantt.core.messages.request import Purpose, RequestSpec
from gantt.core.messages.topology_request import TopologyRequest
from gantt.core.plugin import Option
from gantt.core.table import topology
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.device_sets import check_rows
from gantt.core.table.host_table import HostTable
from gantt.core.topology.devices import MatchCache
from gantt.core.topology.free import FreeTopology
from gantt.core.topology.read import ALIAS_KEY, Aliases, LayoutSettings, read, read_option
from gantt.core.topology.search import Violation, find_layout, layout_obstacles

#: Hosts whose obstacles are evaluated one by one; the others are reported together.
DETAILED_HOSTS_MAX = 300
_NOT_TOGETHER_VIOLATION = Violation(
    'together', 0, 0, 'its cells and its devices do not come together'
)


def _requested_most(wish: TopologyRequest) -> int:
    """Return for how many hosts obstacles are searched: fewer for larger requests."""
    return max(10, DETAILED_HOSTS_MAX * 4 // max(4, len(wish.devices) + len(wish.cells)))


class TopologyFilter(Filter):
    """Base of the two filters for the topology inside a host.

    The mask is necessary: whether a host has a layout is decided for the best of
    those that pass, and one that has none is removed by this filter after all.
    """

    columns = ('rooms',)
    always = True
    is_room = True
    local = True

    def wish(self, spec: RequestSpec) -> TopologyRequest | None:
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

    def may_fit(self, hosts: HostTable, wish: TopologyRequest, at: slice) -> BoolArray:
        """Return which hosts may fit, by row within ``at``."""
        raise NotImplementedError

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        wish = self.wish(spec)
        return None if wish is None else self.may_fit(hosts, wish, slice(None))

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        wish = self.wish(spec)
        return wish is None or bool(self.may_fit(hosts, wish, slice(row, row + 1))[0])

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Return parts that count each host for its first obstacle."""
        wish = self.wish(spec)
        if wish is None:
            return {}
        worst: dict[str, list[Violation]] = {}
        requested, device_cache = rows[: _requested_most(wish)], MatchCache()
        judged = check_rows(hosts, hosts.kinds, wish, requested)
        for row, may_fit, certain in zip(
            requested.tolist(), judged.possible, judged.certain, strict=True
        ):
            if certain:
                first = _NOT_TOGETHER_VIOLATION
            else:
                first = _obstacles(wish, hosts.free_topology(row), device_cache, bool(may_fit))[0]
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
        candidates, device_cache = [], MatchCache()
        for row in rows[: _requested_most(wish)].tolist():
            problems = _obstacles(wish, hosts.free_topology(row), device_cache, False)
            short = sum(problem.lack / max(1, problem.need) for problem in problems)
            candidates.append((len(problems), short, row, problems))
        _, _, row, problems = min(candidates, key=lambda candidate: candidate[:3])
        return f'nearest is {hosts.names[row]}: {"; ".join(map(str, problems))}'


def _obstacles(
    wish: TopologyRequest, room: FreeTopology, known: MatchCache, may: bool
) -> list[Violation]:
    """Return the obstacles of the wish in a room; at least one.

    :param may: a layout has to be searched to know that there is none
    """
    if not may:
        return layout_obstacles(wish, room, known=known)
    return find_layout(wish, room, known=known).obstacles or [_NOT_TOGETHER_VIOLATION]


class NUMATopologyFilter(TopologyFilter):
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

    def wish(self, spec: RequestSpec) -> TopologyRequest | None:
        return read(spec) if spec.may_need_topology else None

    def may_fit(self, hosts: HostTable, wish: TopologyRequest, at: slice) -> BoolArray:
        if not wish.cells:
            return np.ones(len(hosts.numa_cells[at]), np.bool_)
        return topology.cells_may_fit(hosts, hosts.kinds, wish, at)


class PciPassthroughFilter(TopologyFilter):
    """The host has the devices of ``pci_passthrough:alias`` and of the request itself free.

    Whether they are as near to the guest's cells as they have to be is decided
    with the cells, for the best hosts.
    """

    reason = 'too few free devices'
    options = (
        Option(
            'pci_aliases',
            str,
            '',
            'Names of devices that flavors may ask for in pci_passthrough:alias, as a JSON list: '
            '[{"name": "gpu", "vendor_id": "10de", "product_id": "1eb8"}]. Further keys are '
            'device_type (type-PCI, type-PF, type-VF, vdpa), numa_policy (required, preferred, '
            'legacy, socket), resource_class, traits, live_migratable and tags (an object). '
            'Of several objects with one name any will do.',
        ),
    )
    pci_aliases: str

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        self.aliases: Aliases = read_option(self.pci_aliases, '[filters] pci_aliases')

    def wish(self, spec: RequestSpec) -> TopologyRequest | None:
        if ALIAS_KEY not in spec.flavor.extra_specs and not spec.devices:
            return None
        devices = self.aliases.wishes(spec)
        return TopologyRequest(devices=devices) if devices else None

    def may_fit(self, hosts: HostTable, wish: TopologyRequest, at: slice) -> BoolArray:
        return topology.devices_may_fit(hosts, hosts.kinds, wish, at)


def layout_settings_of(filters: Sequence[Filter]) -> LayoutSettings:
    """Return the layout rules of a pipeline of these filters."""
    numa, pci, pack = -1, -1, False
    aliases: Aliases | None = None
    for k, rule in enumerate(filters):
        if isinstance(rule, NUMATopologyFilter):
            numa, pack = k, rule.packing_host_numa_cells_allocation_strategy
        elif isinstance(rule, PciPassthroughFilter):
            pci, aliases = k, rule.aliases
    return LayoutSettings(numa, pci, aliases, pack)
