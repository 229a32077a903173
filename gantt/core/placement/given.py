# SPDX-License-Identifier: Apache-2.0
"""Who gives a member what, as answers, decisions and claims have it."""

from collections.abc import Sequence

from gantt.core.messages.request import RequestSpec
from gantt.core.placement.tree_choice import GroupShare
from gantt.core.records.decision import ProviderAllocation
from gantt.core.table.host_table import HostTable
from gantt.core.table.pools import Shares


def by_provider(
    table: HostTable, spec: RequestSpec, row: int, wanted: dict[str, int], shares: Shares
) -> list[ProviderAllocation]:
    """Who gives what: the host first, then pools by id; empty where all is the host's own.

    Not where that is another amount for each member.
    """
    if not (shares or spec.most):
        return []
    pooled = {name for of in shares.values() for name in of}
    own = {name: amount for name, amount in wanted.items() if name not in pooled}
    host = table.hosts[row].id
    found = [GroupShare('', host, own)]
    found += [GroupShare('', pool, dict(shares[pool])) for pool in sorted(shares)]
    return by_group(table, row, found)


def by_group(table: HostTable, row: int, shares: Sequence[GroupShare]) -> list[ProviderAllocation]:
    """The same of what is given to groups."""
    host, pools = table.hosts[row], table.pools.of_id
    found = []
    for one in shares:
        who = host if one.provider_id == host.id else pools[one.provider_id]
        found.append(
            ProviderAllocation(
                provider_id=who.id,
                uuid=who.uuid,
                name=who.name,
                resources=one.resources,
                group=one.suffix,
            )
        )
    return found
