# SPDX-License-Identifier: Apache-2.0
"""ComputeFilter: the service is enabled, up, and its host is not over-full."""

from typing import Any

import numpy as np

from gantt.core.filters.base import Filter, names_of
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: Most hosts named in a decision that would fit if they reported.
SILENT_NAMED_MAX = 100


class ComputeFilter(Filter):
    """A host that is open for new claims and has reported lately.

    A forced host need not have reported lately, but it must be open: the
    commit would refuse it otherwise.
    """

    reason = 'disabled, down or over-committed'
    columns = ('open', 'enabled', 'over_committed', 'reported_at')
    always = True
    options = (
        Option(
            'service_down_time',
            int,
            180,
            'Seconds since the last report of a host after '
            'which it counts as down and nothing new is placed there',
            min=1,
        ),
    )
    service_down_time: int

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        if spec.force_hosts or spec.force_nodes:
            return hosts.open
        mask = self._up(hosts)
        mask &= hosts.open
        return mask

    def _up(self, hosts: HostTable) -> BoolArray:
        return hosts.reported_at >= hosts.now - self.service_down_time

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
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

    def of_host(self, hosts: HostTable, spec: RequestSpec, row: int) -> str | None:
        host = hosts.host_state(row)
        if not host.is_enabled:
            why = host.disabled_reason
            return f'is disabled: {why}' if why else 'is disabled'
        if host.over_committed:
            return 'is over-committed'
        return f'has been silent for more than {self.service_down_time} s'

    def silent(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> list[str]:
        """Return names of the first hosts that only have to report again."""
        only = rows[(hosts.open.take(rows)) & ~self._up(hosts).take(rows)]
        return [hosts.names[row] for row in only[:SILENT_NAMED_MAX].tolist()]

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        """Return required changes of hosts that fit otherwise, and how many fit then."""
        forced = bool(spec.force_hosts or spec.force_nodes)
        down = np.zeros(len(rows), np.bool_) if forced else ~self._up(hosts).take(rows)
        wrong = (~hosts.enabled.take(rows), down, hosts.over_committed.take(rows))
        needs = sum(missing.astype(np.int64) << bit for bit, missing in enumerate(wrong))
        kinds = sorted(set(np.asarray(needs).tolist()), key=lambda kind: (kind.bit_count(), kind))
        return '; '.join(
            _fitting_hosts_text(kind, [hosts.names[row] for row in rows[needs == kind].tolist()])
            for kind in kinds
        )


_RECOVERY_TEXTS = ('is enabled', 'reports again', 'is no longer over-committed')


def _fitting_hosts_text(kind: int, names: list[str]) -> str:
    """Return on how many hosts it fits once they are well, the first of them alone or all.

    :param kind: a bit for each of ``_RECOVERY_TEXTS``
    """
    becomes = ' and '.join(text for bit, text in enumerate(_RECOVERY_TEXTS) if kind >> bit & 1)
    sentence = f'fits on 1 host {"if" if kind == 1 else "once"} {names[0]} {becomes}'
    if len(names) == 1:
        return sentence
    other_hosts = ' and '.join(names[1:]) if len(names) == 3 else names_of(names[1:])
    return f'{sentence}, on {len(names)} with {other_hosts} as well'
