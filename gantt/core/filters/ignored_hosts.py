# SPDX-License-Identifier: Apache-2.0
"""IgnoredHostsFilter: never the hosts that the request rules out by name."""

from gantt.core.filters.base import Filter, all_but
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import EVERY_KIND
from gantt.core.table.columns import BoolArray
from gantt.core.table.host_table import HostTable


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
