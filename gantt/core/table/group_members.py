# SPDX-License-Identifier: Apache-2.0
"""How many members of a server group each host has."""

from collections.abc import Sequence

from gantt.core.messages.request import GroupRef
from gantt.core.table.host_table import HostTable


def members_by_row(
    hosts: HostTable, group: GroupRef, consumer: str = '', *, staying: bool = False
) -> dict[int, int]:
    """Row -> how many members of the group are there, ``consumer`` itself left out.

    Our own live claims of the group, united with the members that the caller
    names where they are found.  A host that the caller names has at least one
    member: it was placed before Gantt knew the group, and nobody here knows it.

    :param staying: what those leave who are placed by the same request does not count
    """
    index, rows = hosts.placed, hosts.row_by_id
    if staying and index.leaving:
        return _of_staying(hosts, group, consumer)
    ours, own = index.in_group(group.uuid), index.where(consumer)
    counts = {rows[provider_id]: len(found) for provider_id, found in ours.items()}
    for provider_id in set(own) if own else ():
        if consumer in ours.get(provider_id, ()):
            row = rows[provider_id]
            counts[row] -= 1
            if not counts[row]:
                del counts[row]
    for member in set(group.members) - {consumer} if group.members else ():
        for provider_id in set(index.where(member)):
            if member not in ours.get(provider_id, ()):
                row = rows[provider_id]
                counts[row] = counts.get(row, 0) + 1
    services = hosts.rows_of_services
    if services:
        _count_services(services, counts)
    if group.hosts:
        _count_named(hosts, group.hosts, set(own), counts)
    return counts


def _of_staying(hosts: HostTable, group: GroupRef, consumer: str) -> dict[int, int]:
    """As :func:`members_by_row`, of those that stay where they are."""
    index, counts = hosts.placed, dict[int, int]()
    ours = index.in_group(group.uuid)
    there = {(p, guest): n for p, guests in ours.items() for guest, n in guests.items()}
    for member in group.members:
        where = index.where(member)
        there |= {(p, member): where.count(p) for p in where if member not in ours.get(p, ())}
    for (provider_id, guest), claims in there.items():
        if guest != consumer and not index.leaves(provider_id, guest, claims):
            row = hosts.row_by_id[provider_id]
            counts[row] = counts.get(row, 0) + 1
    if hosts.rows_of_services:
        _count_services(hosts.rows_of_services, counts)
    left = {provider_id for provider_id, _ in index.leaving}
    _count_named(hosts, group.hosts, left | set(index.where(consumer)), counts)
    return counts


def _count_named(
    hosts: HostTable, names: Sequence[str], own: set[int], counts: dict[int, int]
) -> None:
    """Hosts that the caller names have one member at least, but for those that it is on itself."""
    near = {row for p in own for row in hosts.rows_of_same_host(hosts.row_by_id[p])}
    for name in names:
        for named in hosts.rows_of_host(name):
            if named not in near:
                counts.setdefault(named, 1)


def _count_services(services: Sequence[Sequence[int]], counts: dict[int, int]) -> None:
    """Give each node of a service the members of all of its nodes.

    To Nova they are one host, and their nova-compute refuses what breaks the rule there.
    """
    for service in services:
        count = sum(counts.get(row, 0) for row in service)
        if count:
            counts.update(dict.fromkeys(service, count))


def members_on_row(hosts: HostTable, group: GroupRef, row: int) -> int:
    """What :func:`members_by_row` says of one row, nobody left out."""
    if hosts.rows_of_same_host(row) != [row]:
        return members_by_row(hosts, group).get(row, 0)
    provider_id, index = hosts.hosts[row].id, hosts.placed
    ours = index.in_group(group.uuid).get(provider_id, {})
    others = set(group.members).difference(ours)
    count = len(ours) + sum(provider_id in index.where(member) for member in others)
    if not count and hosts.names[row] in group.hosts:
        return int(hosts.row_of(hosts.names[row]) == row)
    return count
