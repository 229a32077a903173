# SPDX-License-Identifier: Apache-2.0
"""TypeAffinityFilter: hosts whose guests are all of one flavor."""

from typing import Any

import numpy as np

from gantt.core.filters.base import Filter, names_of
from gantt.core.messages.request import RequestSpec, name_of
from gantt.core.plugin import Option
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: Most hosts evaluated one by one where nearly all are unchanged.
_ROW_BY_ROW_MAX = 32


class _TypesCache:
    """The mask for one flavor at one position of the log of changes."""

    def __init__(self, at: int, mask: BoolArray) -> None:
        self.at = at
        self.mask = mask


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
            'TypeAffinityFilter ignores guests whose flavor is unknown, and passes all hosts for '
            'requests that name no flavor. False: an unknown flavor differs from every other',
        ),
    )
    type_affinity_ignores_unknown: bool

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        # Hosts that may have changed since the last request of the flavor are evaluated one by one.
        flavor_name = name_of(spec.flavor)
        types_of_others = hosts.array_cache.get(
            (self, flavor_name), (), lambda: self._mask_of_all_hosts(hosts, flavor_name)
        )
        now, moved = hosts.placed.flavors_moved(types_of_others.at)
        if moved is None or len(moved) > max(_ROW_BY_ROW_MAX, len(hosts) >> 6):
            fresh = self._mask_of_all_hosts(hosts, flavor_name)
            types_of_others.mask, now = fresh.mask, fresh.at
            moved = ()
        for provider_id in moved:
            row = hosts.row_by_id[provider_id]
            types_of_others.mask[row] = self.passes(hosts, spec, row)
        types_of_others.at = now
        return None if types_of_others.mask.all() else types_of_others.mask.copy()

    def _mask_of_all_hosts(self, hosts: HostTable, mine: str | None) -> '_TypesCache':
        """Return the mask by the present guests of all hosts."""
        rows = hosts.row_by_id
        barring = [
            by_host
            for flavor, by_host in hosts.placed.by_flavor().items()
            if self._excludes(flavor or None, mine)
        ]
        mask = np.ones(len(hosts), np.bool_)
        mask[[rows[host] for by_host in barring for host in by_host]] = False
        return _TypesCache(hosts.placed.flavors_moved(0)[0], mask)

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        flavor_name = name_of(spec.flavor)
        return not any(self._excludes(flavor, flavor_name) for flavor in _flavors_on(hosts, row))

    def _excludes(self, flavor: str | None, mine: str | None) -> bool:
        """Return whether a guest of one flavor excludes a guest of another."""
        if flavor is None or mine is None:
            return not self.type_affinity_ignores_unknown
        return flavor != mine

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Return parts that count each host for the first of its flavors, by name."""
        parts: dict[str, int] = {}
        for row in rows.tolist():
            text = f'has guests of {self._other_flavors(hosts, spec, row)[0]}'
            parts[text] = parts.get(text, 0) + 1
        return {'parts': parts}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        counts = [self._count_other_flavors(hosts, spec, row) for row in rows.tolist()]
        best = int(np.argmin(counts))
        row = int(rows[best])
        flavors = names_of(self._other_flavors(hosts, spec, row))
        guests = 'guest' if counts[best] == 1 else f'{counts[best]} guests'
        return f'fits on {hosts.names[row]} without its {guests} of {flavors}'

    def _other_flavors(self, hosts: HostTable, spec: RequestSpec, row: int) -> list[str]:
        flavor_name = name_of(spec.flavor)
        barring = {
            flavor for flavor in _flavors_on(hosts, row) if self._excludes(flavor, flavor_name)
        }
        named = sorted(f'flavor {flavor}' for flavor in barring if flavor is not None)
        return [*named, *(['no known flavor'] if None in barring else [])]

    def _count_other_flavors(self, hosts: HostTable, spec: RequestSpec, row: int) -> int:
        flavor_name = name_of(spec.flavor)
        return sum(self._excludes(flavor, flavor_name) for flavor in _flavors_on(hosts, row))


def _flavors_on(hosts: HostTable, row: int) -> list[str | None]:
    """Return the flavors of the guests of a host, one for each claim."""
    return [placed.flavor for placed in hosts.placed.on_provider(int(hosts.ids[row])).values()]
