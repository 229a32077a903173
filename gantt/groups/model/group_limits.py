# SPDX-License-Identifier: Apache-2.0
"""Limits by a server group of Nova for a request that has its place of a plan.

The plan decides where its members are.  The hard policy of another group that a server is in holds
beside it: on the hosts where members of that group are, or are not.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from gantt.core.claims.claim import Claim
from gantt.core.messages.policy_set import Policy
from gantt.core.messages.request import Destination, GroupRef, RequestSpec
from gantt.core.table.group_members import members_by_row
from gantt.core.table.host_table import HostTable


class GroupLimits:
    """Hosts that the hard policy of a group leaves to a request.

    :ivar group: group with its rule, one of Nova's policies
    """

    def __init__(
        self, table: HostTable, group: GroupRef, consumer: str, also_on: Sequence[str]
    ) -> None:
        """Count the members of the group.

        :param consumer: the consumer of the request, where it has only one: it may be a member
        :param also_on: the host of each member that the table does not show yet
        """
        self.group = group
        counts = Counter(members_by_row(table, msgspec.structs.replace(group, hosts=[]), consumer))
        for host in also_on:
            counts.update(table.rows_of_host(host))
        # A host that the caller names has at least one member, which may be one of these.
        counts |= Counter(members_by_row(table, group, consumer))
        self._counts = {table.names[row]: count for row, count in counts.items()}

    def problem_of(self, host: str) -> str:
        """Return why the request may not be on a host; '' if it may."""
        group, count = self.group, self._counts.get(host, 0)
        if group.policy is Policy.ANTI_AFFINITY and count >= group.max_per_host:
            return f'server group {group.uuid} has {count} of at most {group.max_per_host} there'
        if group.policy is Policy.AFFINITY and self._counts and not count:
            return f'server group {group.uuid} has its members elsewhere'
        return ''

    def problem_with_others(self, claim: Claim, chosen: Sequence[Claim]) -> str:
        """Return why a reservation may not be had beside others by one request; '' if it may."""
        group, here = self.group, Counter(other.provider_id for other in chosen)
        count = here[claim.provider_id]
        if (
            group.policy is Policy.ANTI_AFFINITY
            and self._counts.get(claim.host, 0) + count >= group.max_per_host
        ):
            return f'server group {group.uuid} may have {group.max_per_host} there'
        if group.policy is Policy.AFFINITY and chosen and not count:
            return f'server group {group.uuid} has its members elsewhere'
        return ''

    def limited(self, spec: RequestSpec) -> RequestSpec:
        """Return the spec of one consumer for the hosts that the policy leaves to it."""
        policy = self.group.policy
        if policy is Policy.ANTI_AFFINITY:
            out = [host for host in sorted(self._counts) if self.problem_of(host)]
            ignored = list(dict.fromkeys((*spec.ignore_hosts, *out)))
            return msgspec.structs.replace(spec, ignore_hosts=ignored)
        if policy is Policy.AFFINITY and self._counts:
            destination = spec.destination or Destination()
            if destination.hosts:
                out = [host for host in destination.hosts if self.problem_of(host)]
                return msgspec.structs.replace(spec, ignore_hosts=[*spec.ignore_hosts, *out])
            destination = msgspec.structs.replace(destination, hosts=sorted(self._counts))
            return msgspec.structs.replace(spec, destination=destination)
        return spec

    @property
    def note(self) -> str:
        """Line for the decision; empty where no host is ruled out."""
        group = self.group
        if not self._counts or not group.is_hard:
            return ''
        return f'beside the plan, server group {group.uuid} asks for {group.policy}'
