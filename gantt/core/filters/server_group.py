# SPDX-License-Identifier: Apache-2.0
"""The hard rules of server groups: apart, or together.

Members count through Gantt's own claims of the group and, for those placed
before Gantt knew it, through the consumers that the caller names.  Members of
one request see each other because each pick is laid over the table.
"""

from typing import TYPE_CHECKING

from gantt.core.filters.base import PairwiseFilter, all_but, only
from gantt.core.messages.request import Policy, RequestSpec
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.group_members import members_by_row

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class ServerGroupAntiAffinityFilter(PairwiseFilter):
    """Fewer than ``max_per_host`` other members are on the host."""

    reason = 'with {spec.group.max_per_host} of the server group already'
    public_reason = 'the rule of the server group'
    columns = ('placed', 'names')
    always = True

    def concerns(self, spec: RequestSpec) -> bool:
        return spec.group is not None and spec.group.policy is Policy.ANTI_AFFINITY

    def mask_for(self, hosts: 'HostTable', spec: RequestSpec, consumer: str) -> BoolArray | None:
        group = spec.group
        if group is None or group.policy is not Policy.ANTI_AFFINITY:
            return None
        members = members_by_row(hosts, group, consumer)
        return all_but(hosts, [r for r, count in members.items() if count >= group.max_per_host])

    def remedy(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> str:
        assert spec.group is not None
        many = hosts.names[int(rows[0])] if len(rows) == 1 else f'{len(rows)} hosts'
        return (
            f'fits on {many} with max_per_host {spec.group.max_per_host + 1} or soft-anti-affinity'
        )


class ServerGroupAffinityFilter(PairwiseFilter):
    """The host that the other members are on; any host for the first of them."""

    reason = 'not where the server group is'
    public_reason = 'the rule of the server group'
    columns = ('placed', 'names')
    always = True

    def concerns(self, spec: RequestSpec) -> bool:
        return spec.group is not None and spec.group.policy is Policy.AFFINITY

    def mask_for(self, hosts: 'HostTable', spec: RequestSpec, consumer: str) -> BoolArray | None:
        group = spec.group
        if group is None or group.policy is not Policy.AFFINITY:
            return None
        rows = list(members_by_row(hosts, group, consumer))
        if not rows and not group.hosts:
            return None
        return only(hosts, [*rows, *(r for name in group.hosts for r in hosts.rows_of_host(name))])

    def remedy(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> str:
        many = hosts.names[int(rows[0])] if len(rows) == 1 else f'{len(rows)} hosts'
        return f'fits on {many} with soft-affinity'
