# SPDX-License-Identifier: Apache-2.0
"""Answer to a request for a group, its stored form for a repeat, and the view of a stored plan.

Stored plans are decoded here, for all readers.  A process of a later release may
have written one that this release cannot read, as while a site is upgraded: such a plan is shown
with its problem, is extended, and can be given back.
"""

import enum
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import Claim, State, guest_of
from gantt.core.claims.reservations import GroupPlanRecord, is_replaced
from gantt.core.messages import quoting
from gantt.core.messages.request import Lifecycle
from gantt.core.records.members import GROUP_ANSWER_PREFIX, replaced_guests
from gantt.core.table.host_table import HostTable
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.group_plan import GroupPlan, PlannedMember, WithoutPolicy
from gantt.groups.model.violations import PolicyViolation


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a call about the plan of a group.

    :ivar group: uuid of the group
    :ivar revision: revision of its plan; 0: there is no plan
    :ivar plan: plan of the members that were to be placed; None: there were none
    :ivar stayed: names of members that had a place before, and keep it
    :ivar released: names of members whose reservations end
    :ivar violated: policies that the staying members violate
    :ivar attempts: number of times that the group was planned
    :ivar conflicts: reasons why it was planned again, a line each
    :ivar age_seconds: age of the host states that the plan was decided on
    :ivar zones_not_queried: names of child zones that may have room for members without a place: no
        child zone is queried for a group that is planned
    :ivar what_if: a line for each policy and subject; None: it was not requested
    """

    request_id: str
    group: str
    revision: int
    plan: GroupPlan | None
    lease_seconds: float
    dry_run: bool = False
    stayed: list[str] = []
    released: list[str] = []
    violated: list[PolicyViolation] = []
    attempts: int = 1
    conflicts: list[str] = []
    age_seconds: float = 0.0
    what_if: list[WithoutPolicy] | None = None
    zones_not_queried: list[str] = []


class StoredAnswer(GroupAnswer, frozen=True, kw_only=True):
    """Answer, with the state of the plan that is stored next to it.

    :ivar given_up: guests that were replaced by name, and the ids of their claims: they no longer
        count as members, whether or not their hosts respond
    """

    given_up: list[str] = []


class StoredPlan(NamedTuple):
    """Plan decoded from its record.

    :ivar decided: the last answer; None: no group was planned then
    :ivar replaced: see ``StoredAnswer``
    """

    description: GroupDescription
    decided: GroupAnswer | None
    replaced: frozenset[str]


_decode_description = msgspec.json.Decoder(GroupDescription).decode
_encode = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(GroupAnswer).decode
#: Prefix of a refusal, and of no answer, see ``GROUP_ANSWER_PREFIX``.
REFUSAL = GROUP_ANSWER_PREFIX + b'\xc1'


def pack(answer: GroupAnswer, given_up: Iterable[str] = ()) -> bytes:
    """Return an answer as it is stored.

    :param given_up: see ``StoredAnswer``
    """
    fields = msgspec.structs.asdict(answer)
    return GROUP_ANSWER_PREFIX + _encode(StoredAnswer(**fields, given_up=sorted(given_up)))


class StoredRefusal(msgspec.Struct, frozen=True, array_like=True):
    """Error in its stored form."""

    code: str
    message: str
    details: dict[str, Any]


_decode_refusal = msgspec.msgpack.Decoder(StoredRefusal).decode


def pack_refusal(error: exceptions.Refused | exceptions.Conflict) -> bytes:
    """Return the error of a group that was not placed, as it is stored."""
    details = msgspec.to_builtins(error.kwargs)
    return REFUSAL + _encode(StoredRefusal(error.code, error.message, details))


def unpack_refusal(stored: bytes) -> exceptions.Refused | exceptions.Conflict | None:
    """Return a stored error; None: the answer is no error."""
    if not stored.startswith(REFUSAL):
        return None
    refusal = _decode_refusal(stored[len(REFUSAL) :])
    if refusal.code == exceptions.Conflict.code:
        return exceptions.Conflict(refusal.message, **refusal.details)
    kinds = {kind.code: kind for kind in _names_below(exceptions.Refused)}
    return kinds.get(refusal.code, exceptions.Refused)(refusal.message, **refusal.details)


def _names_below(kind: type[exceptions.Refused]) -> Iterable[type[exceptions.Refused]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _names_below(subclass)


def unpack(stored: bytes) -> GroupAnswer | None:
    """Return a stored answer; None: it is of another kind of request, or a refusal."""
    if not stored.startswith(GROUP_ANSWER_PREFIX) or stored.startswith(REFUSAL):
        return None
    return _decode_answer(stored[len(GROUP_ANSWER_PREFIX) :])


def read_plan(record: GroupPlanRecord) -> StoredPlan:
    """Decode a stored plan.

    :raises PlanUnreadable: by this release
    """
    try:
        return StoredPlan(
            _decode_description(record.description),
            unpack(record.plan),
            replaced_guests(record.plan),
        )
    except (msgspec.MsgspecError, ValueError) as e:
        raise exceptions.PlanUnreadable(
            group=record.group_uuid,
            problem=quoting.plain_text(str(e), quoting.SENTENCE_CHARACTERS_MAX),
        ) from e


def with_other_members(plan: GroupPlan, keeps: Sequence[PlannedMember]) -> GroupPlan:
    """Return a plan of some members, with the members added that keep their earlier places.

    Proofs hold only for the members that were planned again.
    """
    if not keeps:
        return plan
    status = 'feasible' if plan.status == 'optimal' else plan.status
    members = [*keeps, *plan.members]
    return msgspec.structs.replace(
        plan, members=members, status=status, bound=None, gap=None, proven=0
    )


_NUMBERED_NAME = re.compile(r'^(.+)-[1-9][0-9]*\Z', re.S)


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
    :ivar host: its present or last host
    :ivar levels: level -> domain of the host
    :ivar consumer: consumer of its claim: a placeholder until a create takes over the reservation
    :ivar lease_seconds: until its reservation expires; null: the claim has no lease
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
    """View of a stored plan: its content, and whether it still holds.

    :ivar group: uuid of the group
    :ivar request_id: id of the request that changed the plan last
    :ivar lease_seconds: remaining lease of the reservations that no create has used
    :ivar others: consumers of the group that are no members of the plan
    :ivar decided: answer to the last request that planned or changed the group
    :ivar violated: policies that placed members violate now; null: this was not checked
    :ivar problem: why the plan cannot be read: its description is then null, and it can only be
        extended and released
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
    violated: list[PolicyViolation] | None = None
    problem: str = ''


def member_of(description: GroupDescription, name: str) -> str:
    """Return the description of a member of this name; '': it is not described any more.

    A member that was single keeps its name where there are more of it later.
    """
    names = {member.name for member in description.members}
    if name in names:
        return name
    match = _NUMBERED_NAME.match(name)
    return match[1] if match is not None and match[1] in names else ''


def claims_in_order(claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims sorted such that the last one of each member is its current one.

    Live claims come after ended ones, adopted ones before other live ones, and the newest last: an
    adopted guest was the member before any claim was created for it. So a reservation that is newer
    than the guest replaces a lost host, and one that is older is unused.
    """
    return sorted(
        claims,
        key=lambda claim: (
            claim.is_live,
            not (claim.is_live and claim.adopted),
            claim.created_at,
            not claim.is_free_reservation,
            claim.updated_at,
            claim.id,
        ),
    )


def _never(_: Claim) -> bool:
    return False


def claims_by_name(
    claims: Iterable[Claim], is_back: Callable[[Claim], bool] = _never
) -> dict[str, list[Claim]]:
    """Return claims by the name of their member, in order.

    A reservation that was planned as the host of a guest was lost is unused where that guest is
    back before a create came; and a guest whose host responds comes before one whose host does not.

    :param is_back: returns whether a claim is of a guest whose host responds, see
        ``guest_back_check``
    """
    by_member: dict[str, list[Claim]] = {}
    for claim in claims_in_order(claims):
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

    :param of_name: see ``claims_by_name``
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


def guest_back_check(
    is_up: Callable[[int], bool], replaced: Collection[str]
) -> Callable[[Claim], bool]:
    """Return a check that a claim is of a running guest that was not replaced by name.

    :param is_up: returns whether a host responds, by its id
    :param replaced: see ``is_current_guest``
    """

    def of(claim: Claim) -> bool:
        return is_current_guest(claim, replaced) and is_up(claim.provider_id)

    return of


def is_current_guest(claim: Claim, replaced: Collection[str]) -> bool:
    """Return whether a claim is of a guest that was not replaced by name.

    :param replaced: see ``claims.reservations.is_replaced``
    """
    is_gone = is_replaced(claim.id, guest_of(claim), claim.adopted, replaced)
    return claim.state is State.CONFIRMED and not is_gone


def member_state(claim: Claim | None, is_up: Callable[[int], bool]) -> MemberState:
    """Return the state of a member.

    :param claim: its last one, see ``claims_by_name``; None: none is known
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
            is_place = claim.lifecycle is Lifecycle.PLAN and claim.former_reservation is None
            return MemberState.PLANNED if is_place else MemberState.CREATED
        case State.EXPIRED:
            return MemberState.EXPIRED
    return MemberState.LOST


def member_views(
    description: GroupDescription | None,
    claims: Sequence[Claim],
    now: float,
    is_up: Callable[[int], bool],
    levels_of: Callable[[int], Mapping[str, str]],
    replaced: Collection[str] = (),
) -> list[GroupMemberView]:
    """Return the members of a plan: those that have or had a reservation, then those without.

    :param description: None: it cannot be read, and only live members are known
    :param claims: claims of the group, ended ones too
    :param levels_of: maps the id of a host to its domains by level
    :param replaced: see ``is_current_guest``
    """
    named = claims_by_name(claims, guest_back_check(is_up, replaced))
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
                state=member_state(claim, is_up),
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
