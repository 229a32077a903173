# SPDX-License-Identifier: Apache-2.0
"""Filters that keep nobody out by themselves, so that old settings go on working."""

from typing import TYPE_CHECKING

from gantt.core.columns import BoolArray
from gantt.core.filters.base import Filter
from gantt.core.filters.ignored_hosts import IgnoredHostsFilter
from gantt.core.request import RequestSpec

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class AllHostsFilter(Filter):
    """Every host passes."""

    reason = 'never removed'
    columns = ('names',)

    def mask(self, hosts: 'HostTable', spec: RequestSpec) -> BoolArray | None:
        return None


class RetryFilter(IgnoredHostsFilter):
    """Never a host that an earlier attempt failed on: these come with the ignored hosts."""

    reason = 'tried before'
