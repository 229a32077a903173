# SPDX-License-Identifier: Apache-2.0
"""Counts of guests of one kind that are laid out on each of many hosts, one after another.

Hosts whose insides are alike have room for as many, so that a fleet of equal empty hosts costs one.
Hosts beyond a bound on the cost are not counted, and reported as uncounted.
"""

from typing import TYPE_CHECKING

import msgspec

from gantt.core.messages.topology_request import Wish
from gantt.core.table.columns import IntArray
from gantt.core.topology.free import room_of, shared_ratios
from gantt.core.topology.search import lay_out

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Most layouts searched in one count: some seconds.
LAYOUTS_MAX = 20_000
#: Name of an obstacle in :class:`~gantt.core.topology.violations.Violation` -> text for people.
WORDS = {
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

    :ivar counts: how many were laid out, no more than asked; where that is not known, as
        many as asked
    :ivar bounds: what was in the way of one more, None where as many as asked were laid out
    :ivar uncounted: on how many hosts it is not known
    """

    counts: IntArray
    bounds: list[str | None]
    uncounted: int


class _Host:
    """Result for hosts with the same inside."""

    __slots__ = ('bound', 'count')

    def __init__(self, count: int, bound: str | None) -> None:
        self.count = count
        self.bound = bound


def count(
    table: 'HostTable',
    wish: Wish,
    rows: IntArray,
    most: IntArray,
    pack: bool = False,
    layouts_max: int = LAYOUTS_MAX,
) -> TopologyCount:
    """Lay guests out on each host until one does not fit, or there are enough.

    :param most: number of guests requested, by row
    :param pack: as for :func:`~gantt.core.topology.search.lay_out`
    :param layouts_max: limit of searches for layouts
    """
    results: dict[bytes, _Host] = {}
    counts, bounds = most.copy(), list[str | None]()
    layouts_left, uncounted = layouts_max, 0
    for at, row in enumerate(rows.tolist()):
        requested = int(most[at])
        if not requested:
            bounds.append(None)
            continue
        key = _alike(table, row)
        result = results.get(key)
        if result is None or (result.bound is None and result.count < requested):
            if layouts_left <= 0:
                uncounted += 1
                bounds.append(None)
                continue
            result = _fill(table, row, wish, min(requested, layouts_left), pack)
            layouts_left -= result.count + 1
            if result.bound is None and result.count < requested:
                uncounted += 1
                bounds.append(None)
                continue
            results[key] = result
        counts[at] = min(requested, result.count)
        bounds.append(result.bound if result.count < requested else None)
    return TopologyCount(counts, bounds, uncounted)


def _fill(table: 'HostTable', row: int, wish: Wish, wanted: int, pack: bool) -> _Host:
    host = table.hosts[row]
    claims = table.placed.on(host.id).values()
    room = room_of(host.facts, [placed.layout for placed in claims])
    for n in range(wanted):
        laid = lay_out(wish, room, pack)
        if laid.layout is None:
            return _Host(n, laid.obstacles[0].what)
        room.take(laid.layout)
    return _Host(wanted, None)


def _alike(table: 'HostTable', row: int) -> bytes:
    """Return a key equal for hosts with the same inside."""
    host, facts = table.hosts[row], table.hosts[row].facts
    ratios = shared_ratios(facts.inventories)
    layouts = sorted(
        _encode(placed.layout)
        for placed in table.placed.on(host.id).values()
        if placed.layout is not None
    )
    return _encode([facts.numa, facts.devices, ratios, layouts])
