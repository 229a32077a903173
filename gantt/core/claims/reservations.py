# SPDX-License-Identifier: Apache-2.0
"""Reservations of group plans: reserved claims that creates take over, and their plans.

A reservation is a claim of lifecycle ``plan`` with the name of a member.  The commit of a plan
creates it, for a placeholder consumer of the member.  A create takes it over: id, host and amounts
stay, the rest becomes the create's; the state before is its ``former_reservation``.  Confirmed it
is the claim of a guest as any other.  Where the create ends before that, its claim does, as that
of any create; as long as the plan holds it, it lives on under another id, reserved all the
time.  So late messages about an ended create, and what hosts remember of it, never concern the next
one.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import Claim, FormerReservation, State
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


def reservation_taken_over(
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
    former = reservation.former_reservation or FormerReservation(
        **{name: getattr(reservation, name) for name in FormerReservation.__struct_fields__}
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
        former_reservation=former,
    )


def restored_reservation(reservation: Claim, now: float) -> Claim | None:
    """Return the reservation as its plan has it, where the claim of the create that had it ends.

    It keeps the amounts.  None: no create had it, or its plan holds it no more.
    """
    former = reservation.former_reservation
    if former is None or reservation.state is not State.RESERVED or former.lease_until <= now:
        return None
    return msgspec.structs.replace(
        reservation,
        **msgspec.structs.asdict(former),
        id=base.derived_id('place again', reservation.id),
        absences=0,
        reason='',
        updated_at=now,
        former_reservation=None,
    )


def released_from_plan(reservation: Claim, now: float) -> Claim:
    """Return a taken reservation as a claim of its create alone, which its plan holds no more."""
    return msgspec.structs.replace(
        reservation, lifecycle=Lifecycle.HOST, former_reservation=None, updated_at=now
    )


def extended_reservation(reservation: Claim, until: float, most: float, now: float) -> Claim:
    """Return a reservation that its plan holds until then at least; unchanged if it does already.

    :param most: largest total hold in seconds, however often it is extended
    """
    former, until = reservation.former_reservation, min(until, reservation.created_at + most)
    if former is not None:
        if former.lease_until >= until:
            return reservation
        longer = msgspec.structs.replace(former, lease_until=until)
        return msgspec.structs.replace(reservation, former_reservation=longer, updated_at=now)
    if not reservation.is_free_reservation or reservation.lease_until >= until:
        return reservation
    return msgspec.structs.replace(reservation, lease_until=until, updated_at=now)


def plan_lease_end(reservation: Claim) -> float:
    """Return the end of the plan's lease on a reservation, in seconds of the database's clock."""
    return (
        reservation.lease_until
        if reservation.former_reservation is None
        else reservation.former_reservation.lease_until
    )


def is_reservation_of_plan(claim: Claim) -> bool:
    """Return whether a live claim is an unconfirmed reservation, with a create or without."""
    return claim.is_taken or claim.is_free_reservation


def is_replaced(claim_id: str, guest: str, is_adopted: bool, replaced: Collection[str]) -> bool:
    """Return whether a claim is of a guest whose member was replaced by name.

    :param replaced: ids of the claims of such guests, and the guests: where a claim has ended, its
        guest may have been adopted since
    """
    return claim_id in replaced or (is_adopted and guest in replaced)


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


def sorted_by_member(claims: Iterable[Claim]) -> list[Claim]:
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


NO_CLOSED_PROVIDERS: Mapping[int, str] = MappingProxyType({})


def check_reservations(
    request_id: str,
    taken_reservations: Sequence[TakenReservation],
    reservations: Mapping[str, Claim],
    gone: Collection[str] = (),
    closed: Mapping[int, str] = NO_CLOSED_PROVIDERS,
    only_project: str | None = None,
) -> tuple[list[int], str]:
    """Return which of its reservations a request may take over, under the locks of their hosts.

    It may have one that no create has, that it has itself, as a repeat, or that an older request
    has for the same consumer, which gives way to it as any reserved claim would.

    :param reservations: claims by id, as they are under the locks
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
            problem = f'{_reservation_text(by)} was taken over by another request just now'
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
        return f'{_reservation_text(by)} has no place {by.claim_id}'
    if claim.state is not State.RESERVED or claim.lifecycle is not Lifecycle.PLAN:
        return f'the place of {_reservation_text(by)} is {claim.state.value} already'
    if not claim.allocations.keys() <= set(by.provider_ids):
        member = _reservation_text(by)
        return f'the place of {member} takes from other providers than it was planned on'
    former = claim.former_reservation
    project = claim.project_id if former is None else former.project_id
    if only_project is not None and project != only_project:
        return f'{_reservation_text(by)} has no place {by.claim_id}'  # it does not exist for others
    if former is not None and claim.request_id != request_id and claim.consumer != by.consumer:
        return f'another request has taken over the place of {_reservation_text(by)}'
    if former is None and not claim.is_free_reservation:
        return f'the place of {_reservation_text(by)} is not held by a plan any more'
    return ''


def _reservation_text(by: TakenReservation) -> str:
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


class AuditedReservation(msgspec.Struct, frozen=True, kw_only=True):
    """Live claim that is a reservation, goes back to being one, or is of a planned member.

    :ivar guest: guest that it counts for in lists of hosts
    :ivar lease_until: end of its own lease, seconds of the database's clock, as all times
    :ivar seen_at: time of its host's last report; 0: never
    """

    id: str
    consumer: str
    group: str | None
    member_name: str | None
    state: State
    lifecycle: Lifecycle
    lease_until: float
    former_reservation: FormerReservation | None = None
    guest: str = ''
    host: str = ''
    adopted: bool = False
    created_at: float = 0.0
    seen_at: float = 0.0

    @property
    def is_reservation(self) -> bool:
        """True where it is a reservation, taken over or not."""
        return self._is_reserved and self.member_name is not None

    @property
    def _is_reserved(self) -> bool:
        return self.state is State.RESERVED and self.lifecycle is Lifecycle.PLAN

    @property
    def held_until(self) -> float | None:
        """End of its plan's lease on it; None: no plan holds it."""
        if self.former_reservation is not None:
            return self.former_reservation.lease_until
        return self.lease_until if self.is_reservation else None

    @property
    def is_strange(self) -> bool:
        """True where it would go back to a plan, and is no reserved reservation."""
        return self.former_reservation is not None and not self._is_reserved


def lost_members(reservations: Iterable[AuditedReservation]) -> Iterable[str]:
    """Yield claims of guests that a plan may take."""
    for reservation in reservations:
        if reservation.is_strange:
            named = f'claim {reservation.id} of {reservation.consumer}'
            status = f'{reservation.state.value}, of lifecycle {reservation.lifecycle.value}'
            yield f'{named}: {status}, and goes back to a plan'


def leaked_reservations(
    reservations: Iterable[AuditedReservation], leases: Mapping[str, float]
) -> Iterable[str]:
    """Yield reservations that no plan holds, or longer than their plan's lease.

    :param leases: ends of the leases of existing plans, by group
    """
    for reservation in reservations:
        until = reservation.held_until
        if until is None:
            continue
        lease = leases.get(reservation.group or '')
        named = f'claim {reservation.id} of {reservation.consumer}'
        if lease is None:
            yield f'{named}: a place of group {reservation.group}, without a plan'
        elif until > lease + 1.0:
            yield (
                f'{named}: a place that is held {until - lease:.0f} s '
                f'longer than the plan of group {reservation.group}'
            )


def doubled_members(reservations: Iterable[AuditedReservation]) -> Iterable[str]:
    """Yield members that have more than one reservation.

    A guest on a down host may come back, and has its claim until then.
    """
    counts = Counter(
        (reservation.group, reservation.member_name)
        for reservation in reservations
        if reservation.is_reservation
    )
    for (group, name), count in sorted(counts.items(), key=str):
        if count > 1:
            yield f'group {group}: {count} live claims for member {name!r}'


def guests_of_members(
    reservations: Iterable[AuditedReservation],
) -> dict[tuple[str, str], list[AuditedReservation]]:
    """Return group and member -> the claims of its guests, of each that has more than one guest."""
    claims: dict[tuple[str, str], list[AuditedReservation]] = {}
    for reservation in reservations:
        if (
            reservation.state is State.CONFIRMED
            and reservation.group is not None
            and reservation.member_name is not None
        ):
            claims.setdefault((reservation.group, reservation.member_name), []).append(reservation)
    return {
        key: places_of_member
        for key, places_of_member in claims.items()
        if len({reservation.guest for reservation in places_of_member}) > 1
    }


def guests_running_twice(
    guests: Mapping[tuple[str, str], Sequence[AuditedReservation]],
    replaced: Mapping[str, Collection[str]],
) -> Iterable[str]:
    """Yield members of plans of which more than one guest runs.

    The host of one was down, another was created, and the first came back.  Guests do not count
    whose hosts have not reported since the last one was created: they are not known to run.

    :param guests: see ``guests_of_members``
    :param replaced: of existing plans, by group: see ``reservations.is_replaced``
    """
    for (group, name), claims in sorted(guests.items()):
        abandoned = replaced.get(group)
        if abandoned is None:
            continue
        ordered = sorted(claims, key=lambda claim: (claim.created_at, claim.id))
        last = ordered[-1]
        running = [
            claim
            for claim in ordered
            if (claim is last or claim.seen_at > last.created_at)
            and not is_replaced(claim.id, claim.guest, claim.adopted, abandoned)
        ]
        host_of = {claim.guest: claim.host for claim in running}
        if len(host_of) > 1:
            named = ', '.join(f'{guest} on {host}' for guest, host in host_of.items())
            yield f'group {group}: member {name!r} has {len(host_of)} guests: {named}'
