# SPDX-License-Identifier: Apache-2.0
"""Counts of guests of one kind that are laid out on each of many hosts, one after another.

Hosts whose insides are alike have room for as many, so that a fleet of equal empty hosts costs one.
Hosts beyond a bound on the cost are not counted, and reported as uncounted.
"""

from typing import TYPE_CHECKING

import msgspec

from gantt.core.messages.topology_request import TopologyRequest
from gantt.core.table.columns import IntArray
from gantt.core.topology.free import free_topology_of, shared_ratios
from gantt.core.topology.search import find_layout

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Most layouts searched in one count: some seconds.
LAYOUTS_MAX = 20_000
#: Name of an obstacle in :class:`~gantt.core.topology.search.Violation` -> text for people.
OBSTACLE_TEXTS = {
    'cells': 'NUMA cells',
    'cpus': 'dedicated processors in one NUMA cell',
    'shared_cpus': 'shared processors in one NUMA cell',
    'memory': 'memory in one NUMA cell',
    'pages': 'pages in one NUMA cell',
    'devices': 'devices',
    'together': 'cells, pages and devices together',
    'bound': 'cells, pages and devices together',
}

_encode = msgspec.msgpack.Encoder().encode


class TopologyCount(msgspec.Struct, frozen=True):
    """The answer, in the order of the rows.

    :ivar counts: number laid out, no more than requested; where it is not known, the number
        requested
    :ivar bounds: obstacle to one more, None where as many as requested were laid out
    :ivar uncounted: number of hosts where the count is not known
    """

    counts: IntArray
    bounds: list[str | None]
    uncounted: int


def count_layouts(
    table: 'HostTable',
    wish: TopologyRequest,
    rows: IntArray,
    most: IntArray,
    pack: bool = False,
    layouts_max: int = LAYOUTS_MAX,
) -> TopologyCount:
    """Lay guests out on each host until one does not fit, or there are enough.

    :param most: number of guests requested, by row
    :param pack: as for :func:`~gantt.core.topology.search.find_layout`
    :param layouts_max: limit of searches for layouts
    """
    #: Number of guests and obstacle, of hosts with the same inside.
    results: dict[bytes, tuple[int, str | None]] = {}
    counts, bounds = most.copy(), list[str | None]()
    layouts_left, uncounted = layouts_max, 0
    for at, row in enumerate(rows.tolist()):
        requested = int(most[at])
        if not requested:
            bounds.append(None)
            continue
        key = _topology_key(table, row)
        number, bound = results.get(key, (0, None))
        if bound is None and number < requested:
            if layouts_left <= 0:
                uncounted += 1
                bounds.append(None)
                continue
            number, bound = _fill_host(table, row, wish, min(requested, layouts_left), pack)
            layouts_left -= number + 1
            if bound is None and number < requested:
                uncounted += 1
                bounds.append(None)
                continue
            results[key] = number, bound
        counts[at] = min(requested, number)
        bounds.append(bound if number < requested else None)
    return TopologyCount(counts, bounds, uncounted)


def _fill_host(
    table: 'HostTable', row: int, wish: TopologyRequest, most: int, pack: bool
) -> tuple[int, str | None]:
    """Return how many guests fit on a host, ``most`` at most, and the obstacle to one more."""
    host = table.hosts[row]
    claims = table.placed.on_provider(host.id).values()
    room = free_topology_of(host.facts, [placed.layout for placed in claims])
    for number in range(most):
        laid = find_layout(wish, room, pack)
        if laid.layout is None:
            return number, laid.obstacles[0].what
        room.allocate(laid.layout)
    return most, None


def _topology_key(table: 'HostTable', row: int) -> bytes:
    """Return a key equal for hosts with the same inside."""
    host, facts = table.hosts[row], table.hosts[row].facts
    ratios = shared_ratios(facts.inventories)
    layouts = sorted(
        _encode(placed.layout)
        for placed in table.placed.on_provider(host.id).values()
        if placed.layout is not None
    )
    return _encode([facts.numa, facts.devices, ratios, layouts])
