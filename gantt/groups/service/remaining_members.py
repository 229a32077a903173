# SPDX-License-Identifier: Apache-2.0
"""Members of a group that stay or go, and the host table without those that go."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import Claim, State, guest_of
from gantt.core.resources.host import HostChange
from gantt.core.table.host_table import HostTable
from gantt.groups.model.group_answer import (
    MemberState,
    claims_by_name,
    guest_back_check,
    member_of,
    member_state,
    spare_reservations,
)
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.violations import PresentMember, choose_leaving

#: Maximum number of obstructing members that an error names.
_NAMED_MAX = 5


class MemberSplit(NamedTuple):
    """Existing reservations of a group, split by its new description.

    :ivar members: members that stay
    :ivar released: reservations that are released, whatever is planned
    :ivar moves: reservations of members that are planned anew: each ends where its name gets
        another one
    :ivar lost: claims of guests that count no more, as their members are planned anew
    """

    members: list[PresentMember]
    released: list[Claim]
    moves: list[Claim]
    lost: list[Claim]

    @property
    def placed(self) -> dict[str, str]:
        """Name of an existing reservation -> its member."""
        return {reservation.name: reservation.member for reservation in self.members}

    @property
    def consumers(self) -> dict[str, str]:
        """Consumer -> its member."""
        return {reservation.consumer: reservation.member for reservation in self.members}

    def unplaced_count(self, description: GroupDescription) -> int:
        """Return the number of members that have no reservation."""
        there = Counter(reservation.member for reservation in self.members)
        return sum(max(member.most - there[member.name], 0) for member in description.members)

    def ended_reservations(self, planned: Collection[str]) -> list[Claim]:
        """Return all reservations that are released.

        :param planned: names that get a new reservation, in place of an older one
        """
        return [
            *self.released,
            *(claim for claim in self.moves if claim.member_name not in planned),
        ]


def split_members(
    claims: Iterable[Claim],
    before: GroupDescription | None,
    after: GroupDescription,
    table: HostTable,
    is_up: Callable[[int], bool],
    *,
    heal: bool = False,
    replace: Sequence[str] = (),
    replaced: Collection[str] = (),
) -> MemberSplit:
    """Split the members of a group into members that stay and members that go.

    :param claims: claims of the group
    :param before: its former description; None: there was none
    :param table: its hosts
    :param is_up: whether a host answers, by its id
    :param heal: members on a host that is down get another reservation
    :param replace: names of members that get another reservation
    :param replaced: guests that were replaced before, see ``group_answer.is_current_guest``
    :raises InvalidMessage: members would go that no plan can take their reservation from
    """
    split = MemberSplit([], [], [], [])
    of_name = claims_by_name(claims, guest_back_check(is_up, replaced))
    live = {
        name: claims_of_name[-1]
        for name, claims_of_name in of_name.items()
        if claims_of_name[-1].is_live
    }
    # A reservation planned instead of a guest that is back is no longer needed; where that guest is
    # replaced now, it gives way to the planned reservation.
    split.moves.extend(spare_reservations(of_name))
    _check_replaced_names(live, replace)
    changed = _changed_members(before, after)
    running: list[str] = []
    for name, claim in sorted(live.items()):
        member, state = member_of(after, name), member_state(claim, lambda _: True)
        is_reservation = state is MemberState.PLANNED
        is_down = heal and not is_up(claim.provider_id)
        if not member:
            if is_reservation:
                split.released.append(claim)
            else:
                running.append(name)
        elif is_reservation and (is_down or name in replace or member in changed):
            split.moves.append(claim)
        elif state is MemberState.RUNNING and (is_down or name in replace):
            split.lost.append(claim)
        else:
            split.members.append(PresentMember(name, member, guest_of(claim), claim.provider_id))
            continue
        if member:  # guests of it on hosts that were lost before
            split.lost.extend(
                claim_before
                for claim_before in of_name[name][:-1]
                if claim_before.state is State.CONFIRMED
            )
    if running:
        named = ', '.join(running[:_NAMED_MAX])
        more = len(running) - _NAMED_MAX
        raise exceptions.invalid(
            'request.group.members',
            f'expected the members as well that were created: {named}'
            + (f' and {more} more' if more > 0 else '')
            + '; delete what is to go first',
        )
    _release_excess(split, live, after, table)
    return split


def _check_replaced_names(live: Mapping[str, Claim], replace: Sequence[str]) -> None:
    for number, name in enumerate(replace):
        field = f'request.replace[{number}]'
        if name not in live:
            raise exceptions.invalid(field, f'expected a member with a place; got {name!r}')
        if member_state(live[name], lambda _: True) is MemberState.CREATED:
            raise exceptions.invalid(
                field,
                f'expected a member that runs; got {name!r}, which is being created; '
                'cancel that, or wait',
            )


def _changed_members(before: GroupDescription | None, after: GroupDescription) -> set[str]:
    """Return the members that need other resources than before."""
    if before is None:
        return set()
    specs_before = {member.name: member.specs for member in before.members}
    return {
        member.name
        for member in after.members
        if specs_before.get(member.name, member.specs) != member.specs
    }


def _release_excess(
    split: MemberSplit, live: Mapping[str, Claim], after: GroupDescription, table: HostTable
) -> None:
    """Release free reservations where more members stay than are described.

    Those go without which the policies are violated least, see ``choose_leaving``.

    :raises InvalidMessage: more are created than are described
    """
    for number, member in enumerate(after.members):
        reservations = [
            reservation for reservation in split.members if reservation.member == member.name
        ]
        surplus = len(reservations) - member.most
        if surplus <= 0:
            continue
        states = {
            reservation.name: member_state(live[reservation.name], lambda _: True)
            for reservation in reservations
        }
        free = [
            reservation
            for reservation in reservations
            if states[reservation.name] is MemberState.PLANNED
        ]
        if len(free) < surplus:
            raise exceptions.invalid(
                f'request.group.members[{number}].count',
                f'expected at least {len(reservations) - len(free)}, as many as were created; '
                f'got {member.most}; delete what is to go first',
            )
        names = {reservation.name for reservation in free}
        leaving = choose_leaving(table, after, split.members, names, surplus)
        split.released.extend(live[name] for name in leaving)
        split.members[:] = [member for member in split.members if member.name not in leaving]


def consumers_on(table: HostTable, description: GroupDescription) -> dict[str, str]:
    """Return consumer -> its member on a table, whose claim may have another consumer since.

    A reservation changes its consumer when a create takes it over and when that ends; a table that
    is not updated yet has its member under the other one.
    """
    members = {}
    for provider_id in table.placed.in_group(description.uuid or ''):
        for placed in table.placed.on_provider(provider_id).values():
            if placed.group == description.uuid and placed.member is not None:
                members[placed.consumer] = member_of(description, placed.member)
    return {consumer: member for consumer, member in members.items() if member}


def table_without(table: HostTable, claims: Iterable[Claim]) -> HostTable:
    """Return a copy of a table on which the consumers of these claims count for no policy any more.

    Their resources still count as taken: until the new reservations are committed, they are.
    """
    of_host: dict[int, set[str]] = {}
    for claim in claims:
        of_host.setdefault(claim.provider_id, set()).add(claim.id)
    reduced = table.copy()
    for provider_id, claim_ids in of_host.items():
        row = reduced.row_of_id(provider_id)
        if row is None:
            continue
        stays = [
            placed
            for placed in table.placed.on_provider(provider_id).values()
            if placed.claim_id not in claim_ids
        ]
        host = reduced.hosts[row]
        changed = msgspec.structs.replace(host, version=host.version + 1)
        reduced.apply(HostChange(provider_id=provider_id, row=changed, placed=stays))
    return reduced
