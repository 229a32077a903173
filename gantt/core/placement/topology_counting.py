# SPDX-License-Identifier: Apache-2.0
"""How many guests of one kind are laid out on each of many hosts, one after another.

Hosts whose insides are alike have room for as many, so that a fleet of equal
empty hosts costs one.  What is beyond a bound on the cost is not counted, and
said to be so.
"""

from typing import TYPE_CHECKING

import msgspec

from gantt.core.messages.topology_request import Wish
from gantt.core.table.columns import IntArray
from gantt.core.topology.free import room_of, shared_ratios
from gantt.core.topology.search import lay_out

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Layouts looked for in one count, at most: some seconds.
LAYOUTS_MAX = 20_000
#: What :class:`~gantt.core.topology.violations.Violation` calls it, for people.
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
    """What was found of hosts with the same inside."""

    __slots__ = ('bound', 'count')

    def __init__(self, count: int, bound: str | None) -> None:
        self.count, self.bound = count, bound


def count(
    table: 'HostTable',
    wish: Wish,
    rows: IntArray,
    most: IntArray,
    pack: bool = False,
    layouts_max: int = LAYOUTS_MAX,
) -> TopologyCount:
    """Lay guests out on each host until one does not fit, or there are enough.

    :param most: how many are asked for, by row
    :param pack: as for :func:`~gantt.core.topology.search.lay_out`
    :param layouts_max: how many layouts may be looked for
    """
    known: dict[bytes, _Host] = {}
    counts, bounds = most.copy(), list[str | None]()
    left, uncounted = layouts_max, 0
    for at, row in enumerate(rows.tolist()):
        wanted = int(most[at])
        if not wanted:
            bounds.append(None)
            continue
        key = _alike(table, row)
        found = known.get(key)
        if found is None or (found.bound is None and found.count < wanted):
            if left <= 0:
                uncounted += 1
                bounds.append(None)
                continue
            found = _fill(table, row, wish, min(wanted, left), pack)
            left -= found.count + 1
            if found.bound is None and found.count < wanted:
                uncounted += 1
                bounds.append(None)
                continue
            known[key] = found
        counts[at] = min(wanted, found.count)
        bounds.append(found.bound if found.count < wanted else None)
    return TopologyCount(counts, bounds, uncounted)


def _fill(table: 'HostTable', row: int, wish: Wish, wanted: int, pack: bool) -> _Host:
    host = table.hosts[row]
    here = table.placed.on(host.id).values()
    room = room_of(host.facts, [placed.layout for placed in here])
    for n in range(wanted):
        laid = lay_out(wish, room, pack)
        if laid.layout is None:
            return _Host(n, laid.obstacles[0].what)
        room.take(laid.layout)
    return _Host(wanted, None)


def _alike(table: 'HostTable', row: int) -> bytes:
    """The same for hosts with the same inside."""
    host, facts = table.hosts[row], table.hosts[row].facts
    ratios = shared_ratios(facts.inventories)
    layouts = sorted(
        _encode(placed.layout)
        for placed in table.placed.on(host.id).values()
        if placed.layout is not None
    )
    return _encode([facts.numa, facts.devices, ratios, layouts])
