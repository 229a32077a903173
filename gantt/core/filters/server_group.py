# SPDX-License-Identifier: Apache-2.0
"""The hard rules of server groups: apart, or together.

Members count through Gantt's own claims of the group and, for those placed
before Gantt knew it, through the consumers that the caller names.  Members of
one request see each other because each pick is laid over the table.
"""

from typing import Any

from gantt.core.filters.base import PairwiseFilter, all_but, one_or_all, only
from gantt.core.messages.request import Policy, RequestSpec
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.group_members import members_by_row
from gantt.core.table.host_table import HostTable

#: Text for members bound by others that stay.
AS_A_WHOLE = 'which moves as a whole, all members in one request'


PUBLIC_REASON = 'the rule of the server group'
COLUMNS = ('placed', 'names')


def _has_policy(spec: RequestSpec, policy: Policy) -> bool:
    return spec.group is not None and spec.group.policy is policy


class ServerGroupAntiAffinityFilter(PairwiseFilter):
    """Fewer than ``max_per_host`` other members are on the host."""

    reason = 'with {spec.group.max_per_host} of the server group already'
    public_reason = PUBLIC_REASON
    columns = COLUMNS
    always = True

    def concerns(self, spec: RequestSpec) -> bool:
        return _has_policy(spec, Policy.ANTI_AFFINITY)

    def mask_for(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> BoolArray | None:
        group = spec.group
        if group is None or not self.concerns(spec):
            return None
        members = members_by_row(hosts, group, consumer, staying=False)
        return all_but(hosts, [r for r, count in members.items() if count >= group.max_per_host])

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        assert spec.group is not None
        limit = f'max_per_host {spec.group.max_per_host + 1}'
        return f'fits on {one_or_all(hosts, rows)} with {limit} or soft-anti-affinity'


class ServerGroupAffinityFilter(PairwiseFilter):
    """The host that the other members are on; any host for the first of them."""

    reason = 'not where the server group is'
    public_reason = PUBLIC_REASON
    columns = COLUMNS
    always = True

    def concerns(self, spec: RequestSpec) -> bool:
        return _has_policy(spec, Policy.AFFINITY)

    def mask_for(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> BoolArray | None:
        group = spec.group
        if group is None or not self.concerns(spec):
            return None
        # Members that leave their host by the same request bind no other member.
        members = members_by_row(hosts, group, consumer, staying=True)
        names = group.hosts
        if hosts.placed.leaving:
            # Of hosts that the caller names those count that have members which do not leave.
            names = [name for name in names if not hosts.rows_of_host(name)]
        if not members and not names:
            return None
        named = (row for name in names for row in hosts.rows_of_host(name))
        return only(hosts, [*members, *named])

    def reason_for(self, spec: RequestSpec, detail: dict[str, Any]) -> str:
        text = super().reason_for(spec, detail)
        return f'{text}, {AS_A_WHOLE}' if spec.purpose.is_move else text

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        return f'fits on {one_or_all(hosts, rows)} with soft-affinity'
