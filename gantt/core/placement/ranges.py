# SPDX-License-Identifier: Apache-2.0
"""Amounts that are ranges: what a member gets of the place that was chosen for it.

Filters and weighers see the least, so that a range rules nobody out that the least would not, and
leads nowhere else.  Whoever was chosen then gives as much as it has: at most ``most``, in one piece
by the rules about its units, and no more than a rule of the pipeline lets anybody have there.

Members are placed in order.  Each leaves the least for as many of those behind as can still come
to the same place, so that members that fit with the least are never refused for what the first of
them got.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gantt.core.filters.base import Ceiling
from gantt.core.messages.keys.topology_settings import pmem_class, refuse
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.topology_request import Wish

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Classes that cells of a guest are made of.
_OF_CELLS = ('VCPU', 'PCPU', 'MEMORY_MB')
_UNLIMITED: Mapping[str, Ceiling] = {}


def check_inside(spec: RequestSpec, wish: Wish) -> None:
    """
    :param wish: what is laid out inside of a host
    :raises InvalidMessage: a range of something whose place is laid out: more of it has none
    """
    laid_out = {*(_OF_CELLS if wish.cells else ()), *map(pmem_class, wish.pmem)}
    for name in spec.most:
        if name in laid_out:
            refuse(
                f'request.spec.most.{name}',
                'the request has it laid out in cells of the host; expected one amount, no range',
            )


def given(
    table: 'HostTable',
    row: int,
    spec: RequestSpec,
    found: dict[int, dict[str, int]],
    behind: int,
    ceilings: Mapping[str, Ceiling] = _UNLIMITED,
) -> dict[int, dict[str, int]]:
    """Who gives what, where each gives as much as it has; the chosen one is always in it.

    Whose an amount is follows from the least, see ``core.table.pools``.

    :param found: who gives the least: provider id -> class -> amount
    :param behind: members of the request that are placed after this one
    :param ceilings: of the chosen one's own classes, what rules of the pipeline leave
    """
    host, pools = int(table.ids[row]), table.pools
    own = {name: _room(table, row, name, ceilings) for name in found[host]}
    # Of a class that others have as well members may come here without taking it of the host.
    others_have = pools.of_class.keys() | pools.nested.of_class.keys()
    times = [room // spec.resources[n] for n, room in own.items() if n not in others_have]
    here = min(times, default=behind + 1)
    for provider, amounts in found.items():
        for name in amounts.keys() & spec.most.keys():
            least, piece = amounts[name], None
            if provider == host:
                inventory, room, many = table.hosts[row].facts.inventories[name], own[name], here
                piece = ceilings[name].piece if name in ceilings else None
            else:
                inventory = pools.of_id[provider].inventories[name]
                room, many = pools.free(provider, name), behind + 1
            others = max(min(behind, many - 1, room // least - 1), 0)
            amounts[name] = _piece(inventory, least, spec.most[name], room - others * least, piece)
    return found


def _room(table: 'HostTable', row: int, name: str, ceilings: Mapping[str, Ceiling]) -> int:
    """What is left of a class on the chosen one itself."""
    code = table.class_code(name)
    assert code is not None, 'a filter has found it'
    free = table.free.item(code, row)
    return min(free, ceilings[name].room) if name in ceilings else free


def _piece(inventory: Inventory, least: int, most: int, room: int, piece: int | None) -> int:
    """The largest amount that may be had in one piece; the least may."""
    amount = min(most, room, inventory.largest)
    if piece is not None:
        amount = min(amount, piece)
    return max(least, amount - amount % inventory.step_size)
