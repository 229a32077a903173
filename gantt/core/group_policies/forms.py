# SPDX-License-Identifier: Apache-2.0
"""Forms of each policy of a group on a table: present guests, and the units to be placed."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.group_policies.levels import Levels
from gantt.core.group_policies.policies import JointPolicy, PolicyForm, PricedLevel
from gantt.core.messages.policy_set import GroupPolicyKind, LevelPolicy, PolicySet, PolicyTarget
from gantt.core.messages.request import GroupRef
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.table.placed_index import PlacedIndex


class PresentGuests:
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
        self._table = table
        self._claims = claims
        self._rows = np.array(rows, np.int64)
        self._members = list(members)
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
        pools = [pool_id for pool_id, pool in table.pools.by_id.items() if pool.name == target.pool]
        if not pools:
            raise exceptions.invalid(f'{field}.pool', f'expected a known pool; got {target.pool!r}')
        return np.concatenate([table.pools.rows_of(pool) for pool in pools])


def present_guests_of_group(
    table: HostTable,
    group: str | None,
    members: Mapping[str, str],
    without: Collection[str] = frozenset(),
) -> PresentGuests:
    """Return the present guests of a group; a group without a uuid has none.

    :param members: consumer -> the member that it is, of those of which it is known
    :param without: consumers to leave out
    """
    rows, names, claims = [], [], dict[int, int]()
    providers = {} if group is None else table.placed.in_group(group)
    for provider, consumers in providers.items():
        row = table.row_of_id(provider)
        if row is None:
            continue
        claims[row] = sum(consumers.values())
        for consumer in consumers:
            if consumer not in without:
                rows.append(row)
                names.append(members.get(consumer, ''))
    return PresentGuests(table, rows, names, claims)


def present_guests_of_request(
    table: HostTable, group: GroupRef, policies: PolicySet, consumer: str
) -> PresentGuests:
    """Return the present guests of the group of a request, without the consumer to place.

    Guests that the caller names count as well, as in ``table.group_members``; their members
    are not known.
    """
    reader = _PresentReader(table, group, policies)
    reader.note_own(consumer)
    reader.note_named(set(group.members) - {consumer})
    reader.note_hosts(consumer)
    return PresentGuests(table, reader.rows, reader.members, reader.claims, reader.stays)


class _PresentReader:
    """Reader of the present members of a group, into the lists of ``PresentGuests``."""

    def __init__(self, table: HostTable, group: GroupRef, policies: PolicySet) -> None:
        self._table = table
        self._group = group
        self._policies = policies
        self._index = table.placed
        self._members_by_provider = table.placed.in_group(group.uuid)
        self.rows = list[int]()
        self.members = list[str]()
        self.claims = dict[int, int]()
        self.stays = list[bool]()

    def note_own(self, consumer: str) -> None:
        """Add the guests with claims of the group, except ``consumer``.

        Claims of ``consumer`` outside of the group are noted.
        """
        is_named = bool(self._policies.names)
        for provider, consumers in self._members_by_provider.items():
            row = self._table.row_by_id[provider]
            self.claims[row] = sum(consumers.values())
            member_names = _members_on(self._index, provider, self._group.uuid) if is_named else {}
            for guest, claims in consumers.items():
                if guest != consumer:
                    leaves = self._index.is_leaving(provider, guest, claims)
                    self._add(row, self._policies.member_of(member_names.get(guest)), not leaves)
        if consumer:
            self._note_outside_group(consumer)

    def note_named(self, guests: Iterable[str]) -> None:
        """Add guests with claims of no group here."""
        for guest in guests:
            for row, claims in self._note_outside_group(guest).items():
                leaves = self._index.is_leaving(self._table.hosts[row].id, guest, claims)
                self._add(row, '', not leaves)

    def note_hosts(self, consumer: str) -> None:
        """Add hosts that have one member at least, except where it is the consumer itself."""
        table = self._table
        own_rows = [table.row_by_id[provider] for provider in self._index.providers_of(consumer)]
        counted = {
            *self.rows,
            *(row for own_row in own_rows for row in table.rows_of_same_host(own_row)),
        }
        for host in self._group.hosts:
            rows = table.rows_of_host(host)
            if rows and counted.isdisjoint(rows):
                self._add(rows[0], '', True)
                counted.add(rows[0])

    def _note_outside_group(self, guest: str) -> dict[int, int]:
        """Return row -> claims of a guest outside of the group, and note them."""
        rows = dict[int, int]()
        providers = self._index.providers_of(guest)
        for provider in set(providers):
            if guest not in self._members_by_provider.get(provider, ()):
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
        for placed in index.on_provider(provider).values()
        if placed.group == group and placed.member is not None
    }


#: Policies that count a moving guest at its source until it has arrived.
_SOURCE_COUNTING_POLICIES = (GroupPolicyKind.ANTI_AFFINITY, GroupPolicyKind.EXCLUSIVE)


class PolicyUnits(Protocol):
    """Units to be placed, each by itself."""

    @property
    def names(self) -> Sequence[str]: ...

    def of(self, names: Sequence[str] | None) -> BoolArray:
        """Return a mask of the units that are members of these names; None: all."""


class Subgroups(Protocol):
    """Lookup of the members of a subgroup."""

    def members_of(self, subject: str) -> list[str]:
        """Return the names of the members that a subgroup or member is."""


class PolicyForms:
    """Forms of one policy.

    :param inside: name of the group in an error
    :param one_by_one: members come one after the other: present guests wait for those that
        they are to be near to, and an unknown target has no guests
    """

    def __init__(
        self,
        levels: Levels,
        there: PresentGuests,
        units: PolicyUnits,
        subgroups: Subgroups,
        index: int,
        policy: LevelPolicy,
        *,
        inside: str = 'group',
        one_by_one: bool = False,
    ) -> None:
        self._levels = levels
        self._present_guests = there
        self._units = units
        self._subgroups = subgroups
        self._index = index
        self._policy = policy
        self._field = f'{inside}.policies[{index}]'
        self._one_by_one = one_by_one
        self._level = levels.codes_of(policy.level, f'{self._field}.level')
        self._domain_count = max(len(self._level.names), 1)
        #: Whether the sources of members that move together do not count.
        self._staying_only = (
            policy.policy not in _SOURCE_COUNTING_POLICIES and policy.max_per_domain is None
        )

    def all(self) -> list[JointPolicy]:
        """Return all forms, of each of its subjects."""
        return [
            form for subject in self._policy.subjects for form in self._forms_of_subject(subject)
        ]

    def _forms_of_subject(self, subject: str | None) -> list[JointPolicy]:
        policy, none = self._policy, np.zeros(len(self._units.names), np.bool_)
        names = None if subject is None else self._subgroups.members_of(subject)
        base = JointPolicy(
            index=self._index,
            line=policy.line(subject),
            form=PolicyForm.TOGETHER,
            level=policy.level,
            codes=self._level.codes,
            subject_units=self._units.of(names),
            target_units=none,
            present=self._count_by_domain(
                self._present_guests.rows_of(names, staying=self._staying_only)
            ),
            occupied=np.zeros(self._domain_count, np.bool_),
            eligible=np.zeros(self._domain_count, np.bool_),
            weight=policy.soft or 0.0,
        )
        match policy.policy:
            case GroupPolicyKind.AFFINITY:
                return [base]
            case GroupPolicyKind.SPREAD:
                return self._spread_forms(base)
            case GroupPolicyKind.EXCLUSIVE:
                others = self._present_guests.rows_of_others(names)
                return [
                    _with_form(
                        base,
                        PolicyForm.APART,
                        target_units=~base.subject_units,
                        occupied=self._count_by_domain(others) > 0,
                    )
                ]
            case GroupPolicyKind.NEAR:
                return [self._near_form(base, names)]
        if policy.target is None:
            return [_with_form(base, PolicyForm.MAX_PER_DOMAIN, amount=policy.max_per_domain or 1)]
        to, rows = self._target()
        return [
            _with_form(
                base,
                PolicyForm.APART,
                target_units=to,
                needs_known_targets=True,
                occupied=self._count_by_domain(rows) > 0,
            )
        ]

    def _spread_forms(self, base: JointPolicy) -> list[JointPolicy]:
        policy = self._policy
        amounts = {
            PolicyForm.MAX_PER_DOMAIN: policy.max_per_domain,
            PolicyForm.MIN_DOMAINS: policy.min_domains,
            PolicyForm.SKEW: policy.max_skew,
        }
        return [_with_form(base, form, amount=n) for form, n in amounts.items() if n is not None]

    def _near_form(self, base: JointPolicy, names: Sequence[str] | None) -> JointPolicy:
        policy = self._policy
        to, rows = self._target()
        priced = [(priced_level.level, priced_level.price) for priced_level in policy.prices] or [
            (policy.level, 0.0)
        ]
        near = []
        for number, (name, price) in enumerate(priced):
            field = f'{self._field}.prices[{number}].level'
            level = self._levels.codes_of(name, field)
            codes = level.codes.take(rows)
            present = np.zeros(max(len(level.names), 1), np.bool_)
            present[codes[codes >= 0]] = True
            near.append(PricedLevel(level.codes, present, price))
        present_subject_rows = base.present_subject_rows
        if self._one_by_one:
            present_subject_rows = self._present_guests.rows_of(names, staying=True)
        return _with_form(
            base,
            PolicyForm.NEAR,
            target_units=to,
            near_levels=tuple(near),
            price_beyond=policy.beyond,
            has_target=bool(len(rows)),
            present_subject_rows=present_subject_rows,
        )

    def _target(self) -> tuple[BoolArray, IntArray]:
        """Return a mask of the units that are the target, and the rows of its present guests."""
        target, field = self._policy.target, f'{self._field}.target'
        none = np.zeros(len(self._units.names), np.bool_)
        assert target is not None, 'it is asked of policies with one'
        if target.of is not None:
            names = self._subgroups.members_of(target.of)
            return self._units.of(names), self._present_guests.rows_of(
                names, staying=self._staying_only
            )
        if target.domain is not None:
            if target.domain not in self._level.names:
                if self._one_by_one:
                    return none, np.zeros(0, np.int64)
                problem = f'expected a domain of {self._policy.level}; got {target.domain!r}'
                raise exceptions.invalid(f'{field}.domain', problem)
            code = list(self._level.names).index(target.domain)
            return none, np.flatnonzero(self._level.codes == code)
        try:
            return none, self._present_guests.rows_of_target(target, field)
        except exceptions.InvalidMessage:
            if not self._one_by_one:
                raise
            return none, np.zeros(0, np.int64)

    def _count_by_domain(self, rows: IntArray) -> IntArray:
        codes = self._level.codes.take(rows)
        return np.bincount(codes[codes >= 0], minlength=self._domain_count)


def _with_form(base: JointPolicy, form: PolicyForm, **fields: object) -> JointPolicy:
    return msgspec.structs.replace(base, form=form, **fields)
