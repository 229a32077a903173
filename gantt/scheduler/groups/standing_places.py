# SPDX-License-Identifier: Apache-2.0
"""Who of a group stays where it is, who goes, and what the host table is without those who go."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import Claim, State, guest_of
from gantt.core.group_policies.violated import StandingMember
from gantt.core.groups.plan_view import (
    MemberState,
    back,
    by_name,
    member_of,
    spare_places,
    state_of,
)
from gantt.core.messages.group_description import GroupDescription
from gantt.core.resources.host import HostChange
from gantt.core.table.host_table import HostTable

#: Of those that stand in the way, an error names so many.
_NAMED_MAX = 5


class Staying(NamedTuple):
    """What stands of a group, as its new description has it.

    :ivar members: those that stay
    :ivar ends: places that are given back, whatever is planned
    :ivar moves: places of members that are planned anew: each ends where its name gets another one
    :ivar lost: claims of guests that count no more, as their members are planned anew
    """

    members: list[StandingMember]
    ends: list[Claim]
    moves: list[Claim]
    lost: list[Claim]

    @property
    def placed(self) -> dict[str, str]:
        """Name of a place that there is -> its member."""
        return {one.name: one.member for one in self.members}

    @property
    def consumers(self) -> dict[str, str]:
        """Consumer -> the member that it is."""
        return {one.consumer: one.member for one in self.members}

    def wanted(self, description: GroupDescription) -> int:
        """How many members have no place."""
        there = Counter(one.member for one in self.members)
        return sum(max(one.most - there[one.name], 0) for one in description.members)

    def ended(self, planned: Collection[str]) -> list[Claim]:
        """All places that are given back.

        :param planned: names that get a place: an older one of theirs gives way to it
        """
        return [*self.ends, *(one for one in self.moves if one.member_name not in planned)]


def staying(
    claims: Iterable[Claim],
    before: GroupDescription | None,
    after: GroupDescription,
    is_up: Callable[[int], bool],
    *,
    heal: bool = False,
    replace: Sequence[str] = (),
    given_up: Collection[str] = (),
) -> Staying:
    """Tell those who stay from those who go.

    :param claims: of the group
    :param before: as it was described; None: it was not
    :param is_up: whether a host answers, by its id
    :param heal: who is on a host that is down gets another place
    :param replace: names of members that get another place
    :param given_up: guests that were replaced before, see ``plan_view.is_guest``
    :raises InvalidMessage: members would go that no plan can take their place from
    """
    found = Staying([], [], [], [])
    of_name = by_name(claims, back(is_up, given_up))
    live = {name: of[-1] for name, of in of_name.items() if of[-1].is_live}
    # What was planned instead of a guest that is back is not wanted any more; where that guest is
    # replaced now, it gives way to what is planned.
    found.moves.extend(spare_places(of_name))
    _check_named(live, replace)
    changed = _changed(before, after)
    running: list[str] = []
    for name, claim in sorted(live.items()):
        member, state = member_of(after, name), state_of(claim, lambda _: True)
        is_place = state is MemberState.PLANNED
        is_down = heal and not is_up(claim.provider_id)
        if not member:
            if is_place:
                found.ends.append(claim)
            else:
                running.append(name)
        elif is_place and (is_down or name in replace or member in changed):
            found.moves.append(claim)
        elif state is MemberState.RUNNING and (is_down or name in replace):
            found.lost.append(claim)
        else:
            found.members.append(StandingMember(name, member, guest_of(claim), claim.provider_id))
            continue
        if member:  # guests of it on hosts that were lost before
            found.lost.extend(one for one in of_name[name][:-1] if one.state is State.CONFIRMED)
    if running:
        named = ', '.join(running[:_NAMED_MAX])
        more = len(running) - _NAMED_MAX
        raise exceptions.invalid(
            'request.group.members',
            f'expected those as well that were created: {named}'
            + (f' and {more} more' if more > 0 else '')
            + '; delete what is to go first',
        )
    _give_back(found, live, after)
    return found


def _check_named(live: Mapping[str, Claim], replace: Sequence[str]) -> None:
    for number, name in enumerate(replace):
        field = f'request.replace[{number}]'
        if name not in live:
            raise exceptions.invalid(field, f'no member {name!r} has a place')
        if state_of(live[name], lambda _: True) is MemberState.CREATED:
            raise exceptions.invalid(
                field, f'{name!r} is being created; cancel that, or wait until it runs'
            )


def _changed(before: GroupDescription | None, after: GroupDescription) -> set[str]:
    """Members that need something else than before."""
    if before is None:
        return set()
    was = {one.name: one.specs for one in before.members}
    return {one.name for one in after.members if was.get(one.name, one.specs) != one.specs}


def _give_back(found: Staying, live: Mapping[str, Claim], after: GroupDescription) -> None:
    """Where more stay than are described, give places back that no create has: the last first.

    :raises InvalidMessage: more are created than are described
    """
    for number, member in enumerate(after.members):
        mine = [one for one in found.members if one.member == member.name]
        surplus = len(mine) - member.most
        if surplus <= 0:
            continue
        states = {one.name: state_of(live[one.name], lambda _: True) for one in mine}
        free = [one for one in mine if states[one.name] is MemberState.PLANNED]
        if len(free) < surplus:
            raise exceptions.invalid(
                f'request.group.members[{number}].count',
                f'expected at least {len(mine) - len(free)}, as many as were created; '
                f'got {member.most}; delete what is to go first',
            )
        free.sort(key=lambda one: (len(one.name), one.name))
        for one in free[-surplus:]:
            found.members.remove(one)
            found.ends.append(live[one.name])


def consumers_on(table: HostTable, description: GroupDescription) -> dict[str, str]:
    """Consumer -> the member that it is on a table, whose claim may be another's since.

    A place changes its consumer when a create takes it over and when that ends; a table that has
    not heard of it yet has its member under the other one.
    """
    found = {}
    for provider_id in table.placed.in_group(description.uuid or ''):
        for one in table.placed.on(provider_id).values():
            if one.group == description.uuid and one.member is not None:
                found[one.consumer] = member_of(description, one.member)
    return {consumer: member for consumer, member in found.items() if member}


def without(table: HostTable, claims: Iterable[Claim]) -> HostTable:
    """A copy of a table on which the consumers of these claims count for no policy any more.

    What they take counts as taken: until the places that are made instead are committed, it is.
    """
    of_host: dict[int, set[str]] = {}
    for claim in claims:
        of_host.setdefault(claim.provider_id, set()).add(claim.id)
    found = table.copy()
    for provider_id, gone in of_host.items():
        row = found.row_of_id(provider_id)
        if row is None:
            continue
        stays = [one for one in table.placed.on(provider_id).values() if one.claim_id not in gone]
        host = found.hosts[row]
        changed = msgspec.structs.replace(host, version=host.version + 1)
        found.apply(HostChange(provider_id=provider_id, row=changed, placed=stays))
    return found
