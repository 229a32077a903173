# SPDX-License-Identifier: Apache-2.0
"""Filters by the hosts that a request names: forced, ignored, or its destination."""

from collections.abc import Iterable
from typing import Any

import msgspec

from gantt.core.filters.aggregates import aggregate_mask, unknown_aggregates
from gantt.core.filters.base import (
    EVERY_PURPOSE,
    Filter,
    UnknownFacts,
    all_but,
    all_of,
    names_of,
    one_or_all,
    only,
)
from gantt.core.messages.request import Destination, RequestSpec
from gantt.core.plugin import EVERY_KIND
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: A list of hosts alone usually comes from a zone's offer, not from the caller.
LISTED_HOSTS_REASON = 'not of the hosts listed for it: those offered, where a zone above asks'


class RequestedDestinationFilter(Filter):
    """Unlike a forced host, a requested one is filtered like any other; case matters."""

    reason = 'not the requested destination'
    columns = ('names', 'nodes', 'cell', 'aggregates')
    fields = ('destination',)
    purposes = EVERY_PURPOSE
    always = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        destination = spec.destination
        if destination is None:
            return None
        masks = []
        if destination.host is not None:
            masks.append(only(hosts, hosts.rows_of_host(destination.host)))
        if destination.node is not None:
            masks.append(only(hosts, hosts.rows_of_nodes([destination.node])))
        if destination.cell is not None:
            code = hosts.cells.get(destination.cell)
            masks.append(only(hosts, []) if code is None else hosts.cell == code)
        if destination.hosts:
            host_rows = map(hosts.row_of, destination.hosts)
            masks.append(only(hosts, [row for row in host_rows if row is not None]))
        inside = aggregate_mask(hosts, destination.aggregates, destination.forbidden_aggregates)
        if inside is not None:
            masks.append(inside)
        return all_of(masks)

    def reason_for(self, spec: RequestSpec, detail: dict[str, Any]) -> str:
        destination = spec.destination
        if destination is not None and destination == Destination(hosts=destination.hosts):
            return LISTED_HOSTS_REASON
        return super().reason_for(spec, detail)

    def unknown(self, hosts: HostTable, spec: RequestSpec) -> Iterable[UnknownFacts]:
        destination = spec.destination
        if destination is None:
            return
        if destination.host is not None and not hosts.rows_of_host(destination.host):
            yield UnknownFacts('host', destination.host, hosts.names)
        if destination.node is not None and not hosts.rows_of_nodes([destination.node]):
            yield UnknownFacts('node', destination.node)
        if destination.cell is not None and hosts.cells.get(destination.cell) is None:
            yield UnknownFacts('cell', destination.cell)
        if destination.hosts and all(hosts.row_of(name) is None for name in destination.hosts):
            yield from (UnknownFacts('host', name, hosts.names) for name in destination.hosts)
        yield from unknown_aggregates(hosts, destination.aggregates)

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        destination = spec.destination
        named = (destination.host or destination.node) if destination is not None else None
        target = named or 'the requested destination'
        return f'fits on {one_or_all(hosts, rows)} if it need not be {target}'


class ForcedHostsFilter(Filter):
    """Host names ignore case, node names do not; where both are given both must match."""

    reason = 'not a forced host or node'
    columns = ('names', 'nodes')
    kinds = EVERY_KIND
    purposes = EVERY_PURPOSE
    always = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        if not spec.force_hosts and not spec.force_nodes:
            return None
        if not spec.force_nodes:
            return only(hosts, hosts.rows_of_names(spec.force_hosts))
        nodes = only(hosts, hosts.rows_of_nodes(spec.force_nodes))
        if spec.force_hosts:
            nodes &= only(hosts, hosts.rows_of_names(spec.force_hosts))
        return nodes

    def unknown(self, hosts: HostTable, spec: RequestSpec) -> Iterable[UnknownFacts]:
        if not hosts.rows_of_names(spec.force_hosts):
            yield from (UnknownFacts('host', name, hosts.names) for name in spec.force_hosts)
        if not hosts.rows_of_nodes(spec.force_nodes):
            yield from (UnknownFacts('node', name) for name in spec.force_nodes)

    def relaxed(self, spec: RequestSpec) -> RequestSpec | None:
        """Return the spec without forced hosts: filters left out for these run again."""
        return msgspec.structs.replace(spec, force_hosts=[], force_nodes=[])

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        forced = names_of([*spec.force_hosts, *spec.force_nodes])
        return f'fits on {one_or_all(hosts, rows)} if it need not be {forced}'


class IgnoredHostsFilter(Filter):
    """Names ignore case; forced hosts are left out as well."""

    reason = 'ignored by the request'
    columns = ('names',)
    kinds = EVERY_KIND
    always = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        if not spec.ignore_hosts:
            return None
        return all_but(hosts, hosts.rows_of_names(spec.ignore_hosts))


class AllHostsFilter(Filter):
    """Every host passes."""

    reason = 'never removed'
    columns = ('names',)
    kinds = EVERY_KIND

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return None


class RetryFilter(IgnoredHostsFilter):
    """Never a host that an earlier attempt failed on: these come with the ignored hosts."""

    reason = 'tried before'
