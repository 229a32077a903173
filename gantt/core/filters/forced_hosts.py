# SPDX-License-Identifier: Apache-2.0
"""ForcedHostsFilter: only the hosts and nodes that the request names."""

from collections.abc import Iterable

import msgspec

from gantt.core.filters.base import EVERY_PURPOSE, Filter, UnknownFacts, names_of, one_or_all, only
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import EVERY_KIND
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable


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
