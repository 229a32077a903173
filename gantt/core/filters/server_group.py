# SPDX-License-Identifier: Apache-2.0
"""The hard rules of server groups: apart, or together.

Members count through Gantt's own claims of the group and, for those placed
before Gantt knew it, through the consumers that the caller names.  Members of
one request see each other because each pick is laid over the table.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from gantt.core.filters.base import PairwiseFilter, all_but, one_or_all, only
from gantt.core.messages.request import GroupRef, Policy, RequestSpec
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.group_members import members_by_row
from gantt.core.table.host_table import HostTable

#: Text for members bound by others that stay.
AS_A_WHOLE = 'which moves as a whole, all members in one request'


class _ServerGroupFilter(PairwiseFilter):
    """Of groups with one policy."""

    public_reason = 'the rule of the server group'
    columns = ('placed', 'names')
    always = True
    policy: ClassVar[Policy]
    #: True where members that leave their host by the same request bind no other member.
    staying: ClassVar[bool] = False

    def concerns(self, spec: RequestSpec) -> bool:
        return spec.group is not None and spec.group.policy is self.policy

    def mask_for(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> BoolArray | None:
        group = spec.group
        if group is None or group.policy is not self.policy:
            return None
        members = members_by_row(hosts, group, consumer, staying=self.staying)
        return self.of_members(hosts, group, members)

    def of_members(
        self, hosts: HostTable, group: GroupRef, members: Mapping[int, int]
    ) -> BoolArray | None:
        """Return which hosts pass; None: all.

        :param members: row of a host -> members of the group there
        """
        raise NotImplementedError


class ServerGroupAntiAffinityFilter(_ServerGroupFilter):
    """Fewer than ``max_per_host`` other members are on the host."""

    reason = 'with {spec.group.max_per_host} of the server group already'
    policy = Policy.ANTI_AFFINITY

    def of_members(
        self, hosts: HostTable, group: GroupRef, members: Mapping[int, int]
    ) -> BoolArray | None:
        return all_but(hosts, [r for r, count in members.items() if count >= group.max_per_host])

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        assert spec.group is not None
        limit = f'max_per_host {spec.group.max_per_host + 1}'
        return f'fits on {one_or_all(hosts, rows)} with {limit} or soft-anti-affinity'


class ServerGroupAffinityFilter(_ServerGroupFilter):
    """The host that the other members are on; any host for the first of them."""

    reason = 'not where the server group is'
    policy = Policy.AFFINITY
    staying = True

    def of_members(
        self, hosts: HostTable, group: GroupRef, members: Mapping[int, int]
    ) -> BoolArray | None:
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
