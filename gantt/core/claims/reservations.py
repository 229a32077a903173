# SPDX-License-Identifier: Apache-2.0
"""Reservations of group plans: reserved claims that creates take over, and their plans.

A reservation is a claim of lifecycle ``plan`` with the name of a member.  The commit of a plan
creates it, for a placeholder consumer of the member.  A create takes it over: id, host and amounts
stay, the rest becomes the create's, and its former state is kept as ``planned``.  Confirmed it is
the claim of a guest as any other.  Where the create ends before that, its claim does, as that of
any create; as long as the plan holds the reservation it lives on under another id, reserved all the
time.  So late messages about an ended create, and what hosts remember of it, never concern the next
one.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import Claim, PlannedFor, State
from gantt.core.messages import base
from gantt.core.messages.request import Lifecycle


class TakenReservation(msgspec.Struct, frozen=True, kw_only=True):
    """Reservation that a request takes over for one of its members.

    Host and amounts stay; the owner of the claim becomes the one given here.  Whether the
    reservation may be had is judged under the lock of its host.

    :ivar claim_id: id of the reservation
    :ivar group: uuid of the group of its plan
    :ivar member_name: name of the planned member, as ``web-2``
    :ivar member: number of the member of the request that takes it
    :ivar provider_ids: ids of all providers that the reservation takes from, its host among them
    """

    claim_id: str
    group: str
    member_name: str
    member: int = 0
    consumer: str
    provider_ids: tuple[int, ...]
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str = 'INSTANCE'
    image: str | None = None
    flavor: str | None = None


class ReplacedReservation(msgspec.Struct, frozen=True, kw_only=True):
    """Reservation that ends because its member gets another claim.

    :ivar claim_id: id of the reservation; ``group`` and ``member_name``: its member
    :ivar project_id: project of the plan
    """

    claim_id: str
    group: str
    member_name: str
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str = 'INSTANCE'

    @property
    def consumer(self) -> str:
        """Placeholder consumer of the member."""
        return placeholder_consumer(self.group, self.member_name)


class ReleasedReservation(msgspec.Struct, frozen=True, kw_only=True):
    """Reservation that a plan releases: where it is not free any more, the group is planned anew.

    :ivar provider_ids: ids of all providers that it takes from, its host among them
    """

    claim_id: str
    provider_ids: tuple[int, ...]


class GroupPlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a group as it is stored: the columns to find it by, and the packed plan.

    :ivar request_id: id of the request that created this revision
    :ivar description: the group as requested, JSON
    :ivar plan: the decision, packed by the planner
    :ivar revision: from 1 on; a commit of one needs the one before it stored, or none for 1
    :ivar lease_until: end of the lease of its reservations, seconds of the database's clock; it and
        the times are filled in by the store
    """

    group_uuid: str
    request_id: str
    project_id: str | None = None
    user_id: str | None = None
    description: bytes = b''
    plan: bytes = b''
    revision: int = 1
    lease_until: float = 0.0
    created_at: float = 0.0
    updated_at: float = 0.0


class PlannedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a project by reservations of plans, taken over or not, until they are confirmed.

    :ivar reservations: number of reservations
    :ivar amounts: class -> amount, on all providers
    """

    reservations: int = 0
    amounts: dict[str, int] = {}


def placeholder_consumer(group: str, member_name: str) -> str:
    """Return the placeholder consumer of a member while no create has its reservation."""
    return base.derived_id('place', group, member_name)


def taken_over(
    reservation: Claim,
    by: TakenReservation,
    request_id: str,
    attempt: int,
    lease_until: float,
    now: float,
) -> Claim:
    """Return a reservation as a create has it; a repeat of that create takes it over once more.

    :param lease_until: the lease of the create, seconds of the database's clock as ``now``
    """
    planned = reservation.planned or PlannedFor(
        request_id=reservation.request_id,
        attempt=reservation.attempt,
        member=reservation.member,
        consumer=reservation.consumer,
        lease_until=reservation.lease_until,
        project_id=reservation.project_id,
        user_id=reservation.user_id,
        consumer_type=reservation.consumer_type,
        image=reservation.image,
        flavor=reservation.flavor,
    )
    return msgspec.structs.replace(
        reservation,
        request_id=request_id,
        attempt=attempt,
        member=by.member,
        consumer=by.consumer,
        lease_until=lease_until,
        project_id=by.project_id,
        user_id=by.user_id,
        consumer_type=by.consumer_type,
        image=by.image,
        flavor=by.flavor,
        reason='',
        updated_at=now,
        planned=planned,
    )


def restored_reservation(reservation: Claim, now: float) -> Claim | None:
    """Return the reservation as its plan has it, where the claim of the create that had it ends.

    It keeps the amounts.  None: no create had it, or its plan holds it no more.
    """
    planned = reservation.planned
    if planned is None or reservation.state is not State.RESERVED or planned.lease_until <= now:
        return None
    return msgspec.structs.replace(
        reservation,
        id=base.derived_id('place again', reservation.id),
        request_id=planned.request_id,
        attempt=planned.attempt,
        member=planned.member,
        consumer=planned.consumer,
        lease_until=planned.lease_until,
        project_id=planned.project_id,
        user_id=planned.user_id,
        consumer_type=planned.consumer_type,
        image=planned.image,
        flavor=planned.flavor,
        absences=0,
        reason='',
        updated_at=now,
        planned=None,
    )


def without_plan(reservation: Claim, now: float) -> Claim:
    """Return a taken reservation as a claim of its create alone, which its plan holds no more."""
    return msgspec.structs.replace(
        reservation, lifecycle=Lifecycle.HOST, planned=None, updated_at=now
    )


def held_until(reservation: Claim, until: float, most: float, now: float) -> Claim:
    """Return a reservation that its plan holds until then at least; the same if it does already.

    :param most: largest total hold in seconds, however often it is extended
    """
    planned, until = reservation.planned, min(until, reservation.created_at + most)
    if planned is not None:
        if planned.lease_until >= until:
            return reservation
        longer = msgspec.structs.replace(planned, lease_until=until)
        return msgspec.structs.replace(reservation, planned=longer, updated_at=now)
    if not reservation.is_free_reservation or reservation.lease_until >= until:
        return reservation
    return msgspec.structs.replace(reservation, lease_until=until, updated_at=now)


def plan_lease_end(reservation: Claim) -> float:
    """Return the end of the plan's lease on a reservation, in seconds of the database's clock."""
    return (
        reservation.lease_until if reservation.planned is None else reservation.planned.lease_until
    )


def is_of_plan(claim: Claim) -> bool:
    """Return whether a live claim is an unconfirmed reservation, with a create or without."""
    return claim.is_taken or claim.is_free_reservation


def is_given_up(claim_id: str, guest: str, is_adopted: bool, given_up: Collection[str]) -> bool:
    """Return whether a claim is of a guest that was given up, as its member was replaced by name.

    :param given_up: ids of claims of such guests, and these guests: the claim of one may have
        ended, and it be found without
    """
    return claim_id in given_up or (is_adopted and guest in given_up)


def check_planned_by(plan: GroupPlanRecord, request_id: str | None) -> None:
    """Check that a plan is of the request that is meant.

    :raises Refused: it is not
    """
    if request_id not in (None, plan.request_id):
        raise exceptions.Refused(
            f'request.planned_by: expected {plan.request_id}, the request that the plan is of now; '
            f'got {request_id}; show it again, and repeat this where it is still wanted',
            field='request.planned_by',
            group=plan.group_uuid,
        )


def by_member(claims: Iterable[Claim]) -> list[Claim]:
    """Return claims by the names of their members, and by id."""
    return sorted(claims, key=lambda claim: (claim.member_name or '', claim.id))


def usage_of(reservations: Iterable[Claim]) -> PlannedUsage:
    """Return what reservations hold together."""
    count, amounts = 0, Counter[str]()
    for claim in reservations:
        count += 1
        for class_amounts in claim.allocations.values():
            amounts.update(class_amounts)
    return PlannedUsage(reservations=count, amounts=dict(amounts))


NOT_CLOSED: Mapping[int, str] = MappingProxyType({})


def check_reservations(
    request_id: str,
    taken_reservations: Sequence[TakenReservation],
    reservations: Mapping[str, Claim],
    gone: Collection[str] = (),
    closed: Mapping[int, str] = NOT_CLOSED,
    only_project: str | None = None,
) -> tuple[list[int], str]:
    """Return which of its reservations a request may take over, under the locks of their hosts.

    It may have one that no create has, that it has itself, as a repeat, or that an older request
    has for the same consumer, which gives way to it as any reserved claim would.

    :param reservations: by id, as they are under the locks
    :param gone: ids of reservations that earlier requests of the batch take, or that have ended by
        it
    :param closed: hosts that nothing is to be built on, and why; an over-full host is not among
        them, as the reservation is counted already
    :param only_project: the one project whose plans it may use; None: any
    :returns: indices into ``taken_reservations``, and why the first of the others may not be had,
        or ''
    """
    indices: list[int] = []
    taken_ids: set[str] = set()
    why = ''
    for index, by in enumerate(taken_reservations):
        claim = reservations.get(by.claim_id)
        problem = _why_not_taken(request_id, by, claim, only_project)
        if not problem and (by.claim_id in gone or by.claim_id in taken_ids):
            problem = f'{_named(by)} was taken over by another request just now'
        if not problem and claim is not None:
            problem = closed.get(claim.provider_id, '')
        if problem:
            why = why or problem
        else:
            indices.append(index)
            taken_ids.add(by.claim_id)
    return indices, why


def _why_not_taken(
    request_id: str, by: TakenReservation, claim: Claim | None, only_project: str | None
) -> str:
    if claim is None or (claim.group, claim.member_name) != (by.group, by.member_name):
        return f'{_named(by)} has no place {by.claim_id}'
    if claim.state is not State.RESERVED or claim.lifecycle is not Lifecycle.PLAN:
        return f'the place of {_named(by)} is {claim.state.value} already'
    if not claim.allocations.keys() <= set(by.provider_ids):
        return f'the place of {_named(by)} takes from other providers than it was planned on'
    planned = claim.planned
    project = claim.project_id if planned is None else planned.project_id
    if only_project is not None and project != only_project:
        return f'{_named(by)} has no place {by.claim_id}'  # it does not exist for others
    if planned is not None and claim.request_id != request_id and claim.consumer != by.consumer:
        return f'another request has taken over the place of {_named(by)}'
    if planned is None and not claim.is_free_reservation:
        return f'the place of {_named(by)} is not held by a plan any more'
    return ''


def _named(by: TakenReservation) -> str:
    return f'member {by.member_name!r} of group {by.group}'


def check_plan(
    plan: GroupPlanRecord,
    makes: Collection[tuple[str | None, str]],
    revision: int,
    living: Sequence[Claim],
) -> str:
    """Return why a plan may not be stored; '' where it may.

    :param makes: the name of each member that it creates a reservation for, and its consumer
    :param revision: stored revision, under the lock of the group; 0: none is
    :param living: live claims of the group that have the name of a member
    """
    if plan.revision != revision + 1:
        return f'group {plan.group_uuid} has revision {revision} of a plan'
    by_name: dict[str | None, list[Claim]] = {}
    for claim in living:
        by_name.setdefault(claim.member_name, []).append(claim)
    names: set[str | None] = set()
    for name, consumer in makes:
        # A reservation that no create has gives way to another one of its member.
        here = by_name.get(name, ())
        if name in names or any(
            not claim.is_free_reservation or claim.consumer != consumer for claim in here
        ):
            return f'member {name!r} of group {plan.group_uuid} has a claim already'
        names.add(name)
    return ''
