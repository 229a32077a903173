# SPDX-License-Identifier: Apache-2.0
"""Guests that stand already, as far as the policies of a group are about them."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gantt import exceptions
from gantt.core.messages.group_description import GroupDescription
from gantt.core.messages.level_policy import PolicyTarget
from gantt.core.messages.policy_set import PolicySet
from gantt.core.messages.request import GroupRef
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.table.placed_index import PlacedIndex


class Standing:
    """Rows of what stands, one entry for each guest.

    :param rows: of members of the group
    :param members: the member that each of them is, '' where that is not known
    :param claims: row -> how many of the claims there are of members, or of who is placed now
    :param stays: whether each of them stays there; where it is not given all do
    """

    def __init__(
        self,
        table: HostTable,
        rows: Sequence[int],
        members: Sequence[str],
        claims: Mapping[int, int],
        stays: Sequence[bool] | None = None,
    ) -> None:
        self._table, self._claims = table, claims
        self._rows, self._members = np.array(rows, np.int64), list(members)
        self._stays = np.ones(len(rows), np.bool_) if stays is None else np.array(stays, np.bool_)

    def rows_of(self, names: Sequence[str] | None, *, staying: bool = False) -> IntArray:
        """Where members of these names stand; None: all of the group.

        :param staying: but for those that leave together with who is placed
        """
        wanted = None if names is None else frozenset(names)
        is_counted = self._stays.copy() if staying else np.ones(len(self._rows), np.bool_)
        if wanted is not None:
            is_counted &= np.array([member in wanted for member in self._members], np.bool_)
        return self._rows[is_counted]

    def rows_of_others(self, names: Sequence[str] | None) -> IntArray:
        """Where guests stand that are none of these, of the group or not."""
        others = self._table.instances.copy()
        for row, count in self._claims.items():
            others[row] -= count
        rows = np.flatnonzero(others > 0)
        if names is None:
            return rows
        wanted = frozenset(names)
        mine = [member not in wanted for member in self._members]
        return np.concatenate((rows, self._rows[mine]))

    def rows_of_target(self, target: PolicyTarget, field: str) -> IntArray:
        """Rows of a host, of those that a pool serves, or where another group stands.

        :raises InvalidMessage: it is not known
        """
        table = self._table
        if target.group is not None:
            found = table.placed.in_group(target.group)
            rows = [row for p in found if (row := table.row_of_id(p)) is not None]
            return np.array(rows, np.int64)
        if target.host is not None:
            rows = table.rows_of_host(target.host)
            if not rows:
                raise exceptions.invalid(f'{field}.host', f'there is no host {target.host!r}')
            return np.array(rows, np.int64)
        pools = [p for p, one in table.pools.of_id.items() if one.name == target.pool]
        if not pools:
            raise exceptions.invalid(f'{field}.pool', f'there is no pool {target.pool!r}')
        return np.concatenate([table.pools.rows_of(pool) for pool in pools])


def read(table: HostTable, description: GroupDescription, members: Mapping[str, str]) -> Standing:
    """What stands of a group.

    :param members: consumer -> the member that it is, of those of which it is known
    """
    rows, names, claims = [], [], dict[int, int]()
    if description.uuid is not None:
        for provider, consumers in table.placed.in_group(description.uuid).items():
            row = table.row_of_id(provider)
            if row is None:
                continue
            claims[row] = sum(consumers.values())
            for consumer in consumers:
                rows.append(row)
                names.append(members.get(consumer, ''))
    return Standing(table, rows, names, claims)


def of_request(table: HostTable, group: GroupRef, policies: PolicySet, consumer: str) -> Standing:
    """What stands of the group of a request, who is placed now left out.

    Those that the caller names count as well, as ``table.group_members`` has it; which members
    they are is not known.
    """
    there = _There(table, group, policies)
    there.note_own(consumer)
    there.note_named(set(group.members) - {consumer})
    there.note_hosts(consumer)
    return Standing(table, there.rows, there.members, there.claims, there.stays)


class _There:
    """The standing members of a group as they are read, in the lists of ``Standing``."""

    def __init__(self, table: HostTable, group: GroupRef, policies: PolicySet) -> None:
        self._table, self._group, self._policies = table, group, policies
        self._index, self._found = table.placed, table.placed.in_group(group.uuid)
        self.rows, self.members, self.claims = list[int](), list[str](), dict[int, int]()
        self.stays = list[bool]()

    def note_own(self, consumer: str) -> None:
        """Those that have claims of the group, but for one; it has none that are others'."""
        is_named = bool(self._policies.names)
        for provider, consumers in self._found.items():
            row = self._table.row_by_id[provider]
            self.claims[row] = sum(consumers.values())
            known = _members_on(self._index, provider, self._group.uuid) if is_named else {}
            for guest, claims in consumers.items():
                if guest != consumer:
                    leaves = self._index.leaves(provider, guest, claims)
                    self._add(row, self._policies.member_of(known.get(guest)), not leaves)
        if consumer:
            self._elsewhere(consumer)

    def note_named(self, guests: Iterable[str]) -> None:
        """Those that have claims of no group here."""
        for guest in guests:
            for row, claims in self._elsewhere(guest).items():
                leaves = self._index.leaves(self._table.hosts[row].id, guest, claims)
                self._add(row, '', not leaves)

    def note_hosts(self, consumer: str) -> None:
        """Hosts that have one member at least, but for those where the one is itself."""
        table = self._table
        own = [table.row_by_id[provider] for provider in self._index.where(consumer)]
        counted = {*self.rows, *(row for at in own for row in table.rows_of_same_host(at))}
        for host in self._group.hosts:
            rows = table.rows_of_host(host)
            if rows and counted.isdisjoint(rows):
                self._add(rows[0], '', True)
                counted.add(rows[0])

    def _elsewhere(self, guest: str) -> dict[int, int]:
        """Row -> claims, where one has such that are not of the group; they are noted."""
        rows = dict[int, int]()
        where = self._index.where(guest)
        for provider in set(where):
            if guest not in self._found.get(provider, ()):
                row = self._table.row_by_id[provider]
                rows[row] = where.count(provider)
                self.claims[row] = self.claims.get(row, 0) + rows[row]
        return rows

    def _add(self, row: int, member: str, stays: bool) -> None:
        self.rows.append(row)
        self.members.append(member)
        self.stays.append(stays)


def _members_on(index: PlacedIndex, provider: int, group: str) -> dict[str, str]:
    """Consumer -> name of the member that it is, of a group's guests on one host."""
    return {
        placed.consumer: placed.member
        for placed in index.on(provider).values()
        if placed.group == group and placed.member is not None
    }
