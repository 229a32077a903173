# SPDX-License-Identifier: Apache-2.0
"""Present guests, as far as the policies of a group concern them."""

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
    """Rows of present guests, one entry for each.

    :param rows: rows of members of the group
    :param members: the member that each of them is, '' where that is not known
    :param claims: row -> number of claims there of members, or of the consumer to place
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
        """Return the rows of members of these names; None: all of the group.

        :param staying: without those that leave together with the consumer to place
        """
        name_set = None if names is None else frozenset(names)
        is_counted = self._stays.copy() if staying else np.ones(len(self._rows), np.bool_)
        if name_set is not None:
            is_counted &= np.array([member in name_set for member in self._members], np.bool_)
        return self._rows[is_counted]

    def rows_of_others(self, names: Sequence[str] | None) -> IntArray:
        """Return the rows of guests that are none of these, of the group or not."""
        others = self._table.instances.copy()
        for row, count in self._claims.items():
            others[row] -= count
        rows = np.flatnonzero(others > 0)
        if names is None:
            return rows
        name_set = frozenset(names)
        is_other = [member not in name_set for member in self._members]
        return np.concatenate((rows, self._rows[is_other]))

    def rows_of_target(self, target: PolicyTarget, field: str) -> IntArray:
        """Return the rows of a host, of those that a pool serves, or of another group.

        :raises InvalidMessage: it is not known
        """
        table = self._table
        if target.group is not None:
            providers = table.placed.in_group(target.group)
            rows = [
                row
                for provider_id in providers
                if (row := table.row_of_id(provider_id)) is not None
            ]
            return np.array(rows, np.int64)
        if target.host is not None:
            rows = table.rows_of_host(target.host)
            if not rows:
                raise exceptions.invalid(
                    f'{field}.host', f'expected a known host; got {target.host!r}'
                )
            return np.array(rows, np.int64)
        pools = [pool_id for pool_id, pool in table.pools.of_id.items() if pool.name == target.pool]
        if not pools:
            raise exceptions.invalid(f'{field}.pool', f'expected a known pool; got {target.pool!r}')
        return np.concatenate([table.pools.rows_of(pool) for pool in pools])


def read(table: HostTable, description: GroupDescription, members: Mapping[str, str]) -> Standing:
    """Return the present guests of a group.

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
    """Return the present guests of the group of a request, without the consumer to place.

    Guests that the caller names count as well, as in ``table.group_members``; their members
    are not known.
    """
    reader = _There(table, group, policies)
    reader.note_own(consumer)
    reader.note_named(set(group.members) - {consumer})
    reader.note_hosts(consumer)
    return Standing(table, reader.rows, reader.members, reader.claims, reader.stays)


class _There:
    """Reader of the present members of a group, into the lists of ``Standing``."""

    def __init__(self, table: HostTable, group: GroupRef, policies: PolicySet) -> None:
        self._table, self._group, self._policies = table, group, policies
        self._index, self._found = table.placed, table.placed.in_group(group.uuid)
        self.rows, self.members, self.claims = list[int](), list[str](), dict[int, int]()
        self.stays = list[bool]()

    def note_own(self, consumer: str) -> None:
        """Add guests with claims of the group, except one; note its claims outside of the group."""
        is_named = bool(self._policies.names)
        for provider, consumers in self._found.items():
            row = self._table.row_by_id[provider]
            self.claims[row] = sum(consumers.values())
            member_names = _members_on(self._index, provider, self._group.uuid) if is_named else {}
            for guest, claims in consumers.items():
                if guest != consumer:
                    leaves = self._index.leaves(provider, guest, claims)
                    self._add(row, self._policies.member_of(member_names.get(guest)), not leaves)
        if consumer:
            self._elsewhere(consumer)

    def note_named(self, guests: Iterable[str]) -> None:
        """Add guests with claims of no group here."""
        for guest in guests:
            for row, claims in self._elsewhere(guest).items():
                leaves = self._index.leaves(self._table.hosts[row].id, guest, claims)
                self._add(row, '', not leaves)

    def note_hosts(self, consumer: str) -> None:
        """Add hosts that have one member at least, except where it is the consumer itself."""
        table = self._table
        own_rows = [table.row_by_id[provider] for provider in self._index.where(consumer)]
        counted = {
            *self.rows,
            *(row for own_row in own_rows for row in table.rows_of_same_host(own_row)),
        }
        for host in self._group.hosts:
            rows = table.rows_of_host(host)
            if rows and counted.isdisjoint(rows):
                self._add(rows[0], '', True)
                counted.add(rows[0])

    def _elsewhere(self, guest: str) -> dict[int, int]:
        """Return row -> claims of a guest outside of the group, and note them."""
        rows = dict[int, int]()
        providers = self._index.where(guest)
        for provider in set(providers):
            if guest not in self._found.get(provider, ()):
                row = self._table.row_by_id[provider]
                rows[row] = providers.count(provider)
                self.claims[row] = self.claims.get(row, 0) + rows[row]
        return rows

    def _add(self, row: int, member: str, stays: bool) -> None:
        self.rows.append(row)
        self.members.append(member)
        self.stays.append(stays)


def _members_on(index: PlacedIndex, provider: int, group: str) -> dict[str, str]:
    """Return consumer -> name of its member, of a group's guests on one host."""
    return {
        placed.consumer: placed.member
        for placed in index.on(provider).values()
        if placed.group == group and placed.member is not None
    }
