# SPDX-License-Identifier: Apache-2.0
"""Counts of a server group's members by host."""

from collections.abc import Sequence

from gantt.core.messages.request import GroupRef
from gantt.core.table.host_table import HostTable


def members_by_row(
    hosts: HostTable, group: GroupRef, consumer: str = '', *, staying: bool = False
) -> dict[int, int]:
    """Return row -> number of members of the group there, without ``consumer`` itself.

    Counts the live claims of the group, and the members that the caller names, on the hosts
    where they have claims.  A host that the caller names has at least one member: it was placed
    before Gantt knew the group, and has no record here.

    :param staying: claims that are left by consumers of the same request do not count
    """
    index, rows = hosts.placed, hosts.row_by_id
    if staying and index.leaving:
        return _count_staying(hosts, group, consumer)
    group_members, consumer_hosts = index.in_group(group.uuid), index.providers_of(consumer)
    counts = {rows[provider_id]: len(members) for provider_id, members in group_members.items()}
    for provider_id in set(consumer_hosts) if consumer_hosts else ():
        if consumer in group_members.get(provider_id, ()):
            row = rows[provider_id]
            counts[row] -= 1
            if not counts[row]:
                del counts[row]
    for member in set(group.members) - {consumer} if group.members else ():
        for provider_id in set(index.providers_of(member)):
            if member not in group_members.get(provider_id, ()):
                row = rows[provider_id]
                counts[row] = counts.get(row, 0) + 1
    services = hosts.rows_of_services
    if services:
        _count_services(services, counts)
    if group.hosts:
        _count_named(hosts, group.hosts, set(consumer_hosts), counts)
    return counts


def rows_with_members(hosts: HostTable, group: GroupRef, consumer: str, least: int) -> list[int]:
    """Return rows with at least so many members of the group, as :func:`members_by_row` counts."""
    index = hosts.placed
    if (
        least > 1
        or group.members
        or group.hosts
        or hosts.rows_of_services
        or index.providers_of(consumer)
    ):
        counts = members_by_row(hosts, group, consumer)
        return [row for row, count in counts.items() if count >= least]
    # Usually one member is enough, and the claims are all there is to count: they are not counted.
    rows = hosts.row_by_id
    return [rows[provider_id] for provider_id in index.in_group(group.uuid)]


def _count_staying(hosts: HostTable, group: GroupRef, consumer: str) -> dict[int, int]:
    """Return :func:`members_by_row` of the members that stay on their hosts."""
    index, counts = hosts.placed, dict[int, int]()
    group_members = index.in_group(group.uuid)
    claim_counts = {
        (p, guest): n for p, guests in group_members.items() for guest, n in guests.items()
    }
    for member in group.members:
        where = index.providers_of(member)
        claim_counts |= {
            (p, member): where.count(p) for p in where if member not in group_members.get(p, ())
        }
    for (provider_id, guest), claims in claim_counts.items():
        if guest != consumer and not index.is_leaving(provider_id, guest, claims):
            row = hosts.row_by_id[provider_id]
            counts[row] = counts.get(row, 0) + 1
    if hosts.rows_of_services:
        _count_services(hosts.rows_of_services, counts)
    leaving_hosts = {provider_id for provider_id, _ in index.leaving}
    _count_named(hosts, group.hosts, leaving_hosts | set(index.providers_of(consumer)), counts)
    return counts


def _count_named(
    hosts: HostTable, names: Sequence[str], own: set[int], counts: dict[int, int]
) -> None:
    """Count at least one member on hosts that the caller names, except those of ``own``."""
    near = {row for p in own for row in hosts.rows_of_same_host(hosts.row_by_id[p])}
    for name in names:
        for named_row in hosts.rows_of_host(name):
            if named_row not in near:
                counts.setdefault(named_row, 1)


def _count_services(services: Sequence[Sequence[int]], counts: dict[int, int]) -> None:
    """Give each node of a service the members of all of its nodes.

    For Nova they are one host, and their nova-compute refuses claims that break the rule there.
    """
    for service in services:
        count = sum(counts.get(row, 0) for row in service)
        if count:
            counts.update(dict.fromkeys(service, count))


def members_on_row(hosts: HostTable, group: GroupRef, row: int) -> int:
    """Return :func:`members_by_row` of one row, without leaving out a consumer."""
    if hosts.rows_of_same_host(row) != [row]:
        return members_by_row(hosts, group).get(row, 0)
    provider_id, index = hosts.hosts[row].id, hosts.placed
    placed_members = index.in_group(group.uuid).get(provider_id, {})
    others = set(group.members).difference(placed_members)
    count = len(placed_members) + sum(
        provider_id in index.providers_of(member) for member in others
    )
    if not count and hosts.names[row] in group.hosts:
        return int(hosts.row_of(hosts.names[row]) == row)
    return count
