# SPDX-License-Identifier: Apache-2.0
"""ComputeFilter: the service is enabled, up, and its host is not over-full."""

from typing import TYPE_CHECKING, Any

import numpy as np

from gantt.core.columns import BoolArray, IntArray
from gantt.core.filters.base import Filter
from gantt.core.plugin import Option
from gantt.core.request import RequestSpec

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class ComputeFilter(Filter):
    """A host that is open for new claims and has reported lately.

    A forced host need not have reported lately, but it must be open: the
    commit would refuse it otherwise.
    """

    reason = 'disabled, down or over-committed'
    columns = ('open', 'enabled', 'over_committed', 'reported_at')
    always = True
    options = (
        Option('service_down_time', int, 180, 'Seconds since the last report of a host after '
               'which it counts as down and nothing new is placed there', min=1),
    )  # fmt: skip
    service_down_time: int

    def mask(self, hosts: 'HostTable', spec: RequestSpec) -> BoolArray | None:
        if spec.force_hosts or spec.force_nodes:
            return hosts.open
        mask = self._up(hosts)
        mask &= hosts.open
        return mask

    def _up(self, hosts: 'HostTable') -> BoolArray:
        return hosts.reported_at >= hosts.now - self.service_down_time

    def detail(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        enabled = hosts.enabled.take(rows)
        full = enabled & hosts.over_committed.take(rows)
        disabled = len(rows) - int(np.count_nonzero(enabled))
        over = int(np.count_nonzero(full))
        parts = {
            f'silent for more than {self.service_down_time} s': len(rows) - disabled - over,
            'disabled': disabled,
            'over-committed': over,
        }
        return {'parts': {text: count for text, count in parts.items() if count}}

    def remedy(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> str:
        row = int(rows[0])
        where = hosts.names[row]
        if not hosts.enabled[row]:
            said = f'on {where} if it is enabled'
        elif hosts.over_committed[row]:
            said = f'on {where} once it is no longer over-committed'
        else:
            said = f'on {where} once it reports again'
        more = f' (the same or alike on {len(rows) - 1} more)' if len(rows) > 1 else ''
        return said + more
