# SPDX-License-Identifier: Apache-2.0
"""View of a stored plan: the state of each member, from the claims of its group."""

import enum
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from gantt.core.claims.claim import Claim, State, guest_of
from gantt.core.claims.reservations import is_given_up
from gantt.core.group_policies.violated import StandingViolation
from gantt.core.groups.group_answer import GroupAnswer
from gantt.core.messages.group_description import GroupDescription
from gantt.core.messages.request import Lifecycle
from gantt.core.table.host_table import HostTable

_NUMBERED = re.compile(r'^(.+)-[1-9][0-9]*\Z', re.S)


class MemberState(enum.StrEnum):
    """State of a planned member."""

    PLANNED = 'planned'  # its reservation waits for a create
    CREATED = 'created'  # a create has it, and its host has not confirmed yet
    RUNNING = 'running'  # its host has confirmed
    EXPIRED = 'expired'  # nobody came in time
    LOST = 'lost'  # it has ended, or its host is down


class GroupMemberView(msgspec.Struct, frozen=True, kw_only=True):
    """One member.

    :ivar member: name of its description
    :ivar host: where it is, or was last
    :ivar levels: level -> the domain that it is in
    :ivar consumer: of its claim: it stands for the member until a create has the reservation
    :ivar lease_seconds: until its reservation is given up; null: it is no lease that it is held by
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
    :ivar lease_seconds: for which reservations are held still that no create has
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
    """Return the description of a member of this name; '': it is not described any more.

    A member that was single keeps its name where there are more of it later.
    """
    names = {member.name for member in description.members}
    if name in names:
        return name
    match = _NUMBERED.match(name)
    return match[1] if match is not None and match[1] in names else ''


def in_order(claims: Iterable[Claim]) -> list[Claim]:
    """Return claims of one member or of many: of each, the last is the one that counts.

    Live claims are last, then the newest: a reservation that was created as the host of a guest was
    lost is for a create, one that still exists after its member got a guest elsewhere is unused. A
    guest that was found without a claim was the member before all claims created for it since.
    """
    return sorted(
        claims,
        key=lambda one: (
            one.is_live,
            not (one.is_live and one.adopted),
            one.created_at,
            not one.is_free_reservation,
            one.updated_at,
            one.id,
        ),
    )


def _nobody(_: Claim) -> bool:
    return False


def by_name(
    claims: Iterable[Claim], is_back: Callable[[Claim], bool] = _nobody
) -> dict[str, list[Claim]]:
    """Return claims by the name of their member, in order.

    A reservation that was planned as the host of a guest was lost is unused where that guest is
    back before a create came; and a guest whose host responds comes before one whose host does not.

    :param is_back: returns whether a claim is of a guest whose host responds, see ``back``
    """
    by_member: dict[str, list[Claim]] = {}
    for claim in in_order(claims):
        if claim.member_name is not None:
            by_member.setdefault(claim.member_name, []).append(claim)
    for of_member in by_member.values():
        last = of_member[-1]
        is_open = last.is_free_reservation or (last.state is State.CONFIRMED and not is_back(last))
        guests = [claim for claim in of_member if is_back(claim)] if is_open else []
        if guests:
            of_member.remove(guests[-1])
            of_member.append(guests[-1])
    return by_member


def spare_reservations(of_name: Mapping[str, Sequence[Claim]]) -> list[Claim]:
    """Return free reservations of members that have a guest which counts: they are unused.

    :param of_name: see ``by_name``
    """
    return [
        claim
        for _, of_member in sorted(of_name.items())
        if of_member[-1].state is State.CONFIRMED
        for claim in of_member
        if claim.is_free_reservation
    ]


def is_host_up(table: HostTable, provider_id: int, stale_after: float) -> bool:
    """Return whether a host responds.

    :param stale_after: seconds without a report after which it does not
    """
    row = table.row_of_id(provider_id)
    if row is None:
        return False
    is_late = table.reported_at[row] < table.now - stale_after
    return not is_late and table.hosts[row].service_disabled is None


def back(is_up: Callable[[int], bool], given_up: Collection[str]) -> Callable[[Claim], bool]:
    """Return a check that a claim is of a running guest that was not replaced by name.

    :param is_up: returns whether a host responds, by its id
    :param given_up: see ``is_guest``
    """

    def of(claim: Claim) -> bool:
        return is_guest(claim, given_up) and is_up(claim.provider_id)

    return of


def is_guest(claim: Claim, given_up: Collection[str]) -> bool:
    """Return whether a claim is of a guest that was not replaced by name.

    :param given_up: see ``claims.reservations.is_given_up``
    """
    is_gone = is_given_up(claim.id, guest_of(claim), claim.adopted, given_up)
    return claim.state is State.CONFIRMED and not is_gone


def state_of(claim: Claim | None, is_up: Callable[[int], bool]) -> MemberState:
    """Return the state of a member.

    :param claim: its last one, see ``by_name``; None: none is known
    :param is_up: returns whether a host responds, by its id
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
    """Return the members of a plan: those that have or had a reservation, then those without.

    :param description: None: it cannot be read, and only live members are known
    :param claims: of the group, ended ones too
    :param levels_of: maps the id of a host to its domains by level
    :param given_up: see ``is_guest``
    """
    named = by_name(claims, back(is_up, given_up))
    shown = []
    for name, of_member in named.items():
        member = '' if description is None else member_of(description, name)
        claim = of_member[-1]
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
    for described_member in described:
        existing = {view.name for view in shown if view.member == described_member.name}
        missing = [name for name in described_member.unit_names if name not in existing]
        shown += [
            GroupMemberView(name=name, member=described_member.name, state=MemberState.LOST)
            for name in missing[: max(described_member.least - len(existing), 0)]
        ]
    order = {member.name: number for number, member in enumerate(described)}
    return sorted(
        shown, key=lambda view: (order.get(view.member, len(order)), len(view.name), view.name)
    )
