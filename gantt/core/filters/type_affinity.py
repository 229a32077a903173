# SPDX-License-Identifier: Apache-2.0
"""TypeAffinityFilter: hosts whose guests are all of one flavor."""

from typing import Any

import numpy as np

from gantt.core.filters.base import Filter, names_of
from gantt.core.messages.request import RequestSpec, name_of
from gantt.core.plugin import Option
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: So many hosts are asked one by one where nearly all are as they were.
_ONE_BY_ONE = 32


class _TypesCache:
    """The mask for one flavor, after so many comings and goings."""

    def __init__(self, at: int, mask: BoolArray) -> None:
        self.at, self.mask = at, mask


class TypeAffinityFilter(Filter):
    """No guest of another flavor has a claim on the host.

    Flavors are told apart by their names.  A request without one is of no known flavor,
    as are guests that were found running, or claimed, when nobody said it.
    """

    reason = 'has guests of other flavors'
    public_reason = 'the flavor'
    columns = ('placed',)
    local = True
    options = (
        Option(
            'type_affinity_ignores_unknown',
            bool,
            False,
            'Guests of which nobody said the flavor are no obstacle to TypeAffinityFilter, and '
            'requests that name none meet none. False: they are of another flavor than any',
        ),
    )
    type_affinity_ignores_unknown: bool

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        # All that may have changed since the last request of the flavor is asked one by one.
        mine = name_of(spec.flavor)
        types_of_others = hosts.array_cache.get((self, mine), (), lambda: self._all(hosts, mine))
        now, moved = hosts.placed.flavors_moved(types_of_others.at)
        if moved is None or len(moved) > max(_ONE_BY_ONE, len(hosts) >> 6):
            fresh = self._all(hosts, mine)
            types_of_others.mask, now = fresh.mask, fresh.at
            moved = ()
        for provider_id in moved:
            row = hosts.row_by_id[provider_id]
            types_of_others.mask[row] = self.passes(hosts, spec, row)
        types_of_others.at = now
        return None if types_of_others.mask.all() else types_of_others.mask.copy()

    def _all(self, hosts: HostTable, mine: str | None) -> '_TypesCache':
        """The mask by who is where now."""
        rows = hosts.row_by_id
        others = [
            by_host
            for flavor, by_host in hosts.placed.by_flavor().items()
            if self._bars(flavor or None, mine)
        ]
        mask = np.ones(len(hosts), np.bool_)
        mask[[rows[host] for by_host in others for host in by_host]] = False
        return _TypesCache(hosts.placed.flavors_moved(0)[0], mask)

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        mine = name_of(spec.flavor)
        return not any(self._bars(flavor, mine) for flavor in _flavors_on(hosts, row))

    def _bars(self, flavor: str | None, mine: str | None) -> bool:
        """Whether a guest of one flavor keeps out one of another."""
        if flavor is None or mine is None:
            return not self.type_affinity_ignores_unknown
        return flavor != mine

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Each host is counted for the first of its flavors, by name."""
        parts: dict[str, int] = {}
        for row in rows.tolist():
            text = f'has guests of {self._in_the_way(hosts, spec, row)[0]}'
            parts[text] = parts.get(text, 0) + 1
        return {'parts': parts}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        counts = [self._count(hosts, spec, row) for row in rows.tolist()]
        best = int(np.argmin(counts))
        row = int(rows[best])
        what = names_of(self._in_the_way(hosts, spec, row))
        many = 'guest' if counts[best] == 1 else f'{counts[best]} guests'
        return f'fits on {hosts.names[row]} without its {many} of {what}'

    def _in_the_way(self, hosts: HostTable, spec: RequestSpec, row: int) -> list[str]:
        mine = name_of(spec.flavor)
        found = {flavor for flavor in _flavors_on(hosts, row) if self._bars(flavor, mine)}
        named = sorted(f'flavor {flavor}' for flavor in found if flavor is not None)
        return [*named, *(['no known flavor'] if None in found else [])]

    def _count(self, hosts: HostTable, spec: RequestSpec, row: int) -> int:
        mine = name_of(spec.flavor)
        return sum(self._bars(flavor, mine) for flavor in _flavors_on(hosts, row))


def _flavors_on(hosts: HostTable, row: int) -> list[str | None]:
    """The flavors of the guests of a host, one for each claim."""
    return [placed.flavor for placed in hosts.placed.on(int(hosts.ids[row])).values()]
