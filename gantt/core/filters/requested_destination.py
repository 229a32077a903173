# SPDX-License-Identifier: Apache-2.0
"""RequestedDestinationFilter: the host, node, cell or aggregates of the destination."""

from collections.abc import Iterable
from typing import Any

from gantt.core.filters.aggregates import aggregate_mask, unknown_aggregates
from gantt.core.filters.base import EVERY_PURPOSE, Filter, UnknownFacts, all_of, one_or_all, only
from gantt.core.messages.request import Destination, RequestSpec
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: A list of hosts alone is as a rule that of a zone's offer, and no wish of who asked.
OFFERED = 'not of the hosts listed for it: those offered, where a zone above asks'


class RequestedDestinationFilter(Filter):
    """Unlike a forced host, a requested one is filtered like any other; case matters."""

    reason = 'not the requested destination'
    columns = ('names', 'nodes', 'cell', 'aggregates')
    fields = ('destination',)
    purposes = EVERY_PURPOSE
    always = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        wanted = spec.destination
        if wanted is None:
            return None
        masks = []
        if wanted.host is not None:
            masks.append(only(hosts, hosts.rows_of_host(wanted.host)))
        if wanted.node is not None:
            masks.append(only(hosts, hosts.rows_of_nodes([wanted.node])))
        if wanted.cell is not None:
            code = hosts.cells.get(wanted.cell)
            masks.append(only(hosts, []) if code is None else hosts.cell == code)
        if wanted.hosts:
            found = map(hosts.row_of, wanted.hosts)
            masks.append(only(hosts, [row for row in found if row is not None]))
        inside = aggregate_mask(hosts, wanted.aggregates, wanted.forbidden_aggregates)
        if inside is not None:
            masks.append(inside)
        return all_of(masks)

    def reason_for(self, spec: RequestSpec, detail: dict[str, Any]) -> str:
        wanted = spec.destination
        if wanted is not None and wanted == Destination(hosts=wanted.hosts):
            return OFFERED
        return super().reason_for(spec, detail)

    def unknown(self, hosts: HostTable, spec: RequestSpec) -> Iterable[UnknownFacts]:
        wanted = spec.destination
        if wanted is None:
            return
        if wanted.host is not None and not hosts.rows_of_host(wanted.host):
            yield UnknownFacts('host', wanted.host, hosts.names)
        if wanted.node is not None and not hosts.rows_of_nodes([wanted.node]):
            yield UnknownFacts('node', wanted.node)
        if wanted.cell is not None and hosts.cells.get(wanted.cell) is None:
            yield UnknownFacts('cell', wanted.cell)
        if wanted.hosts and all(hosts.row_of(name) is None for name in wanted.hosts):
            yield from (UnknownFacts('host', name, hosts.names) for name in wanted.hosts)
        yield from unknown_aggregates(hosts, wanted.aggregates)

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        wanted = spec.destination
        named = (wanted.host or wanted.node) if wanted is not None else None
        which = named or 'the requested destination'
        return f'fits on {one_or_all(hosts, rows)} if it need not be {which}'
