# SPDX-License-Identifier: Apache-2.0
"""Filters that remove no host by themselves, so that old settings go on working."""

from gantt.core.filters.base import Filter
from gantt.core.filters.ignored_hosts import IgnoredHostsFilter
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import EVERY_KIND
from gantt.core.table.columns import BoolArray
from gantt.core.table.host_table import HostTable


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
