# SPDX-License-Identifier: Apache-2.0
"""A plan as it stands: what has become of each member, from the claims of its group."""

import enum
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from gantt.core.claims.claim import Claim, State, guest_of
from gantt.core.claims.places import is_given_up
from gantt.core.group_policies.violated import StandingViolation
from gantt.core.groups.group_answer import GroupAnswer
from gantt.core.messages.group_description import GroupDescription
from gantt.core.messages.request import Lifecycle
from gantt.core.table.host_table import HostTable

_NUMBERED = re.compile(r'^(.+)-[1-9][0-9]*\Z', re.S)


class MemberState(enum.StrEnum):
    """What has become of a planned member."""

    PLANNED = 'planned'  # its place waits for a create
    CREATED = 'created'  # a create has it, and its host has not confirmed yet
    RUNNING = 'running'  # its host has confirmed
    EXPIRED = 'expired'  # nobody came in time
    LOST = 'lost'  # it has ended, or its host is down


class GroupMemberView(msgspec.Struct, frozen=True, kw_only=True):
    """One member.

    :ivar member: name of its description
    :ivar host: where it is, or was last
    :ivar levels: level -> the domain that it is in
    :ivar consumer: of its claim: it stands for the member until a create has the place
    :ivar lease_seconds: until its place is given up; null: it is no lease that it is held by
    """

    name: str
    member: str
    state: MemberState
    host: str = ''
    levels: dict[str, str] = {}
    consumer: str = ''
    claim_id: str = ''
    lease_seconds: float | None = None


class GroupPlanView(msgspec.Struct, frozen=True, kw_only=True):
    """See the module docstring.

    :ivar group: uuid of it
    :ivar request_id: of the last change of it
    :ivar lease_seconds: for which places are held still that no create has
    :ivar others: consumers of the group that are no member of the plan
    :ivar decided: what was answered when it was planned or changed last
    :ivar violated: policies that those violate who stand, as it is now; null: it was not checked
    :ivar problem: why the plan cannot be read: then its description is null, and nothing can be
        done with it but to extend it and to give it back
    """

    group: str
    request_id: str
    project_id: str | None
    user_id: str | None
    revision: int
    lease_seconds: float
    age_seconds: float
    description: GroupDescription | None
    members: list[GroupMemberView]
    others: list[str] = []
    decided: GroupAnswer | None = None
    violated: list[StandingViolation] | None = None
    problem: str = ''


def member_of(description: GroupDescription, name: str) -> str:
    """Which description a member is of that is called so; '': it is not described any more.

    One that was alone keeps its name where there are more of it later.
    """
    known = {one.name for one in description.members}
    if name in known:
        return name
    found = _NUMBERED.match(name)
    return found[1] if found is not None and found[1] in known else ''


def in_order(claims: Iterable[Claim]) -> list[Claim]:
    """Claims of one member or of many: of each, the last is the one that counts.

    Those that live are last, then the newest: a place that was made as the host of a guest was lost
    is for a create, one that is still there after its member got a guest elsewhere is nobody's.
    A guest that was found without a claim was the member before all that was made for it since.
    """
    return sorted(
        claims,
        key=lambda one: (
            one.is_live,
            not (one.is_live and one.adopted),
            one.created_at,
            not one.is_free_place,
            one.updated_at,
            one.id,
        ),
    )


def _nobody(_: Claim) -> bool:
    return False


def by_name(
    claims: Iterable[Claim], is_back: Callable[[Claim], bool] = _nobody
) -> dict[str, list[Claim]]:
    """Claims by the name of their member, in order.

    A place that was planned as the host of a guest was lost is nobody's where that guest is back
    before a create came; and a guest whose host answers comes before one of a host that does not.

    :param is_back: whether a claim is that of a guest whose host answers, see ``back``
    """
    found: dict[str, list[Claim]] = {}
    for claim in in_order(claims):
        if claim.member_name is not None:
            found.setdefault(claim.member_name, []).append(claim)
    for of in found.values():
        last = of[-1]
        is_open = last.is_free_place or (last.state is State.CONFIRMED and not is_back(last))
        guests = [claim for claim in of if is_back(claim)] if is_open else []
        if guests:
            of.remove(guests[-1])
            of.append(guests[-1])
    return found


def spare_places(of_name: Mapping[str, Sequence[Claim]]) -> list[Claim]:
    """Free places of members that have a guest which counts: nobody needs them.

    :param of_name: see ``by_name``
    """
    return [
        one
        for _, of in sorted(of_name.items())
        if of[-1].state is State.CONFIRMED
        for one in of
        if one.is_free_place
    ]


def is_host_up(table: HostTable, provider_id: int, stale_after: float) -> bool:
    """Whether a host answers.

    :param stale_after: seconds after which one that has not reported does not
    """
    row = table.row_of_id(provider_id)
    if row is None:
        return False
    is_late = table.reported_at[row] < table.now - stale_after
    return not is_late and table.hosts[row].service_disabled is None


def back(is_up: Callable[[int], bool], given_up: Collection[str]) -> Callable[[Claim], bool]:
    """Whether a claim is that of a guest which runs, and which nobody replaced by name.

    :param is_up: whether a host answers, by its id
    :param given_up: see ``is_guest``
    """

    def of(claim: Claim) -> bool:
        return is_guest(claim, given_up) and is_up(claim.provider_id)

    return of


def is_guest(claim: Claim, given_up: Collection[str]) -> bool:
    """Whether a claim is that of a guest which nobody replaced by name.

    :param given_up: see ``claims.places.is_given_up``
    """
    is_gone = is_given_up(claim.id, guest_of(claim), claim.adopted, given_up)
    return claim.state is State.CONFIRMED and not is_gone


def state_of(claim: Claim | None, is_up: Callable[[int], bool]) -> MemberState:
    """The state of a member.

    :param claim: the last one that it had, see ``by_name``; None: nothing is known of any
    :param is_up: whether a host answers, by its id
    """
    if claim is None:
        return MemberState.LOST
    if claim.is_live and not is_up(claim.provider_id):
        return MemberState.LOST
    match claim.state:
        case State.CONFIRMED:
            return MemberState.RUNNING
        case State.RESERVED:
            is_place = claim.lifecycle is Lifecycle.PLAN and claim.planned is None
            return MemberState.PLANNED if is_place else MemberState.CREATED
        case State.EXPIRED:
            return MemberState.EXPIRED
    return MemberState.LOST


def members(
    description: GroupDescription | None,
    claims: Sequence[Claim],
    now: float,
    is_up: Callable[[int], bool],
    levels_of: Callable[[int], Mapping[str, str]],
    given_up: Collection[str] = (),
) -> list[GroupMemberView]:
    """The members of a plan: those that have or had a place, then those that never had one.

    :param description: None: it cannot be read, and only those that live are known
    :param claims: of the group, ended ones too
    :param levels_of: from the id of a host to its domains by level
    :param given_up: see ``is_guest``
    """
    named = by_name(claims, back(is_up, given_up))
    shown = []
    for name, of in named.items():
        member = '' if description is None else member_of(description, name)
        claim = of[-1]
        if not member and not claim.is_live:
            continue  # it was removed
        is_reserved = claim.state is State.RESERVED
        shown.append(
            GroupMemberView(
                name=name,
                member=member,
                state=state_of(claim, is_up),
                host=claim.host,
                levels=dict(levels_of(claim.provider_id)),
                consumer=claim.consumer,
                claim_id=claim.id,
                lease_seconds=max(0.0, claim.lease_until - now) if is_reserved else None,
            )
        )
    described = [] if description is None else description.members
    for one in described:
        there = {view.name for view in shown if view.member == one.name}
        missing = [name for name in one.unit_names if name not in there]
        shown += [
            GroupMemberView(name=name, member=one.name, state=MemberState.LOST)
            for name in missing[: max(one.least - len(there), 0)]
        ]
    order = {one.name: number for number, one in enumerate(described)}
    return sorted(
        shown, key=lambda view: (order.get(view.member, len(order)), len(view.name), view.name)
    )
