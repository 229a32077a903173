# SPDX-License-Identifier: Apache-2.0
"""Claims: resources reserved for a consumer on a host, and how they end.

The transition table is data; the database adapter, the in-memory store and the
documentation are all generated from it.  Time never decides safety: a lease may run
out at any moment, but a guest starts only after ``confirm`` succeeded.
"""

import enum
import functools
from collections.abc import Collection, Iterable, Sequence

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import Lifecycle, Purpose


class State(enum.StrEnum):
    """The states of a claim; the last three are final and kept as tombstones."""

    RESERVED = 'reserved'
    CONFIRMED = 'confirmed'
    RELEASED = 'released'
    EXPIRED = 'expired'
    REFUSED = 'refused'


LIVE_STATES = (State.RESERVED, State.CONFIRMED)
#: State of a claim that its child zone lost, as its database was restored: it may still be live.
LOST_STATE = 'lost'


class Event(enum.StrEnum):
    """Events of a claim."""

    CONFIRM = 'confirm'  # the compute requests it before it starts the guest
    REFUSE = 'refuse'  # the compute's second check failed
    RELEASE = 'release'  # the compute reports the guest as deleted
    CANCEL = 'cancel'  # the caller cancels the request
    EXPIRE = 'expire'  # the sweeper found the lease run out
    SEEN_RUNNING = 'seen_running'  # a report lists it as running
    SEEN_ABSENT = 'seen_absent'  # a report lists it neither running nor pending
    FORCE = 'force'  # an operator releases it
    RETURN = 'return'  # the caller has no more use for it


#: (state, event) -> new state.  A pair that is not here changes nothing.
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.RESERVED, Event.CONFIRM): State.CONFIRMED,
    (State.CONFIRMED, Event.CONFIRM): State.CONFIRMED,
    (State.RESERVED, Event.SEEN_RUNNING): State.CONFIRMED,
    (State.RESERVED, Event.REFUSE): State.REFUSED,
    (State.RESERVED, Event.RELEASE): State.RELEASED,
    (State.CONFIRMED, Event.RELEASE): State.RELEASED,
    (State.CONFIRMED, Event.SEEN_ABSENT): State.RELEASED,
    (State.RESERVED, Event.CANCEL): State.RELEASED,
    (State.RESERVED, Event.EXPIRE): State.EXPIRED,
    (State.RESERVED, Event.FORCE): State.RELEASED,
    (State.CONFIRMED, Event.FORCE): State.RELEASED,
    (State.RESERVED, Event.RETURN): State.RELEASED,
    (State.CONFIRMED, Event.RETURN): State.RELEASED,
}

#: Lifecycles whose claims the events of a host may end.
HOST_ENDED_LIFECYCLES = (Lifecycle.HOST,)
#: Lifecycles whose reserved claims the sweeper expires.
EXPIRING_LIFECYCLES = (Lifecycle.HOST, Lifecycle.PLAN, Lifecycle.HOLD, Lifecycle.CALLER)
#: Lifecycles whose reserved claims await no confirmation.
LIFECYCLES_WITHOUT_CONFIRMATION = (Lifecycle.API,)
#: Lifecycles whose reserved claims a host may not confirm: there is no create to start yet.
UNCONFIRMABLE_LIFECYCLES = (Lifecycle.PLAN,)
#: Events that end a reservation together with the create that has it: else it lives on for its
#: plan.
RESERVATION_ENDING_EVENTS = (Event.FORCE,)
#: Lifecycles until confirmation: from then on messages of the host end the claim.
UNTIL_CONFIRMED_LIFECYCLES = (Lifecycle.PLAN, Lifecycle.HOLD)
#: Reason why the claim of a plan is not confirmed.
PLANNED_RESERVATION_REASON = 'it is a place of a plan that no create has taken over'


def next_state(
    state: State,
    event: Event,
    lifecycle: Lifecycle = Lifecycle.HOST,
    *,
    is_taken: bool = False,
) -> State:
    """Return the state after ``event``; the same state where the event has no effect.

    :param is_taken: it is a reservation of a plan that a create has taken over: its host may
        confirm it, and may end it, as that of any create
    """
    ends = event in (Event.RELEASE, Event.SEEN_ABSENT, Event.REFUSE)
    if ends and lifecycle not in HOST_ENDED_LIFECYCLES and not is_taken:
        return state
    if event is Event.EXPIRE and lifecycle not in EXPIRING_LIFECYCLES:
        return state
    if event is Event.RETURN and lifecycle is not Lifecycle.CALLER:
        return state
    confirms = event is Event.CONFIRM and state is State.RESERVED
    if confirms and lifecycle in UNCONFIRMABLE_LIFECYCLES and not is_taken:
        return state
    return TRANSITIONS.get((state, event), state)


class FormerReservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State that a reservation returns to when the create that has it ends; stored as JSON.

    :ivar request_id: the request that planned it, with the ``attempt`` and ``member`` of it
    :ivar consumer: placeholder consumer of the member while no create has it
    :ivar lease_until: end of the plan's lease on it, seconds of the database's clock
    """

    request_id: str | None = None
    attempt: int = 1
    member: int = 0
    consumer: str
    lease_until: float
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str = 'INSTANCE'
    image: str | None = None
    flavor: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Claim as it is stored.

    :ivar provider_id: the root provider (host) it is on
    :ivar allocations: provider id -> class -> amount
    :ivar inherits: provider id -> class -> amount that it takes over from other claims of its
        consumer when these end, see :mod:`gantt.core.claims.inheritance`
    :ivar lease_until: seconds of the database's clock
    :ivar image: properties of the consumer's image, see :mod:`gantt.core.messages.image_properties`
    :ivar flavor: name of the consumer's flavor; None: not known
    :ivar adopted: created without a request, as the host was found running it
    :ivar guest: consumer that it was created for, if it was handed over to another one since
    :ivar member_name: name of its member of a planned group, as ``web-2``
    :ivar former_reservation: of a reservation that a create has: its state before, to which it
        returns with the create; None: no create has it
    :ivar child: uuid of the child zone that it is in; None: it is here
    :ivar is_lost: the child zone does not know it any more: it may live, until an operator has
        checked
    :ivar problem: why its row cannot be read, as of one that a later release has written: its known
        fields are here, and no event changes it until an operator releases it
    """

    id: str
    request_id: str | None
    attempt: int = 1
    member: int = 0
    consumer: str
    provider_id: int
    host: str = ''
    state: State = State.RESERVED
    lifecycle: Lifecycle = Lifecycle.HOST
    purpose: Purpose = Purpose.CREATE
    lease_until: float = 0.0
    allocations: dict[int, dict[str, int]] = {}
    inherits: dict[int, dict[str, int]] = {}
    group: str | None = None
    move_id: str | None = None
    parent_key: str | None = None
    layout: dict | None = None
    image: str | None = None
    flavor: str | None = None
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str = 'INSTANCE'
    adopted: bool = False
    absences: int = 0
    reason: str = ''
    created_at: float = 0.0
    updated_at: float = 0.0
    guest: str | None = None
    member_name: str | None = None
    former_reservation: FormerReservation | None = None
    child: str | None = None
    is_lost: bool = False
    problem: str = ''

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES

    @property
    def is_taken(self) -> bool:
        """True where it is a reservation of a plan that a create has, and has not confirmed."""
        return self.former_reservation is not None

    @property
    def is_free_reservation(self) -> bool:
        """True where it is a reservation of a plan that no create has."""
        return (
            self.member_name is not None
            and self.former_reservation is None
            and not self.problem
            and self.state is State.RESERVED
            and self.lifecycle is Lifecycle.PLAN
        )


def guest_of(claim: Claim) -> str:
    """Return the guest that a claim counts for in lists of hosts, groups and hints.

    A move by Nova hands the claim of the source over to the consumer of the migration; the guest
    that runs there is still the same.
    """
    return claim.guest or claim.consumer


def with_state(claim: Claim, state: State, reason: str, now: float) -> Claim:
    """Return a claim in another state; a confirmed one is ended by its host's messages.

    Either way it is no reservation of a plan any more.
    """
    lifecycle = claim.lifecycle
    if state is State.CONFIRMED and lifecycle in UNTIL_CONFIRMED_LIFECYCLES:
        lifecycle = Lifecycle.HOST
    return msgspec.structs.replace(
        claim,
        state=state,
        lifecycle=lifecycle,
        reason=reason or claim.reason,
        updated_at=now,
        former_reservation=None,
    )


def state_after(claim: Claim, event: Event) -> State:
    """Return the state of a claim after ``event``."""
    if claim.problem:
        return claim.state
    return next_state(claim.state, event, claim.lifecycle, is_taken=claim.is_taken)


def after_event(claim: Claim, event: Event, reason: str, now: float) -> Claim:
    """Return a claim after ``event``; the very same one where the event has no effect.

    For a reservation that a create has, this ends that create's claim: the reservation may live on
    for its plan, see ``reservations.restored_reservation``.

    :param now: seconds of the database's clock
    """
    state = state_after(claim, event)
    return claim if state is claim.state else with_state(claim, state, reason, now)


def longest_lease_of(
    lifecycle: Lifecycle, most: float, most_of_plans: float | None = None
) -> float:
    """Return the longest lease of a claim, in seconds.

    :param most_of_plans: longest lease of plans; None: as of all others
    """
    if lifecycle is Lifecycle.PLAN and most_of_plans is not None:
        return most_of_plans
    return most


#: Longest hold of a reservation that no guest comes to, in seconds.
HOLD_SECONDS_MAX = 86_400.0


def extended_lease(
    claim: Claim, seconds: float, now: float, most: float, most_of_plans: float | None = None
) -> Claim | None:
    """Return a claim with the lease that its request gets from now on; unchanged if it has that.

    None: the request cannot extend it: it is not reserved, or it is a reservation that no create
    has, which is held as long as all of its plan.

    :param most: upper bound of ``seconds``, the longest lease
    :param most_of_plans: as in ``longest_lease_of``
    """
    if claim.state is not State.RESERVED or claim.is_free_reservation or claim.problem:
        return None
    lifecycle = Lifecycle.HOST if claim.is_taken else claim.lifecycle
    until = now + min(seconds, longest_lease_of(lifecycle, most, most_of_plans))
    if not claim.is_taken:
        # However often it is extended: a reservation that no guest comes to is given to others.
        until = min(until, claim.created_at + HOLD_SECONDS_MAX)
    if lifecycle not in EXPIRING_LIFECYCLES or claim.lease_until >= until:
        return claim
    return msgspec.structs.replace(claim, lease_until=until, updated_at=now)


def why_not_confirmed(claim: Claim) -> str:
    """Return why a host is refused to confirm the claim; '' where it may, or did."""
    if claim.problem:
        return claim.problem
    return PLANNED_RESERVATION_REASON if claim.is_live and claim.state is State.RESERVED else ''


def claims_of_caller(
    request_id: str, claims: Iterable[Claim], consumers: Collection[str] = ()
) -> list[Claim]:
    """Return the claims that the caller of a request means, to confirm or to release them.

    :param claims: all of the request, ended ones too: those of its last attempt count
    :param consumers: the consumers to restrict to; empty: all
    :raises NotFound: the request, or a consumer of it, has no claims
    :raises Refused: a claim lies on a host, whose reports determine its end
    """
    all_claims = list(claims)
    last = max((claim.attempt for claim in all_claims), default=0)
    by_consumer = {claim.consumer: claim for claim in all_claims if claim.attempt == last}
    if not by_consumer:
        raise exceptions.NotFound(kind='request with claims', name=request_id)
    missing = sorted(set(consumers) - by_consumer.keys())
    if missing:
        raise exceptions.NotFound(kind=f'consumer of request {request_id}', name=missing[0])
    meant_ones = [by_consumer[consumer] for consumer in sorted(consumers or by_consumer)]
    for claim in meant_ones:
        if claim.lifecycle is not Lifecycle.CALLER:
            raise exceptions.Refused(
                f'claim {claim.id} is of lifecycle {claim.lifecycle.value}: expected '
                f'{Lifecycle.CALLER.value}, as a caller confirms and releases only '
                'claims without a host; cancel the request, or release the claim',
                claim_id=claim.id,
            )
    return meant_ones


def why_never_ended(state: State, lifecycle: Lifecycle, has_lease: bool) -> str:
    """Return why no automatic event would ever end a live claim; '' where one does.

    A reserved claim ends with its lease, a confirmed one with its guest.  A claim written
    through the allocation API is ended by its writer, one without a host by its caller.
    """
    if lifecycle is Lifecycle.API or (lifecycle is Lifecycle.CALLER and state is State.CONFIRMED):
        return ''
    if state is State.RESERVED and not (
        has_lease and next_state(state, Event.EXPIRE, lifecycle) != state
    ):
        return 'reserved, without a lease'
    if state is State.CONFIRMED and next_state(state, Event.SEEN_ABSENT, lifecycle) is state:
        return f'confirmed, and of lifecycle {lifecycle.value}: no report ends it'
    return ''


def is_rival(claim: Claim, purpose: Purpose) -> bool:
    """Return whether ``claim`` and a new one of its consumer for ``purpose`` may not both live.

    There is one live claim per (consumer, purpose).  A move has two claims by
    its nature, so there only another destination is a rival, while no guest
    has arrived at it.  A guest that runs, for whatever purpose it came there, is not
    created once more.  Claims written through the allocation API are left to their
    writer.
    """
    if not claim.is_live or claim.lifecycle is Lifecycle.API:
        return False
    if purpose.is_move:
        return claim.purpose.is_move and claim.state is State.RESERVED
    if purpose is Purpose.CREATE and claim.state is State.CONFIRMED:
        return True
    return claim.purpose is purpose


def is_replaceable(rival: Claim) -> bool:
    """Return whether a rival gives way to the newer claim; one of a running guest blocks it."""
    return rival.state is State.RESERVED and rival.request_id is not None and not rival.problem


@functools.lru_cache(maxsize=256)  # needed when picking, claiming and responding
def claim_id(request_id: str, attempt: int, member: int) -> str:
    """Return the id of a member's claim: the same for every repeat of the attempt.

    Another request of the same id, long after, begins at another attempt.
    """
    return base.derived_id('claim', request_id, attempt, member)


def claim_ids(request_id: str, attempt: int, members: Iterable[int]) -> list[str]:
    """Return the ids of the claims of several members."""
    return base.derived_ids(('claim', request_id, attempt), members)


def claim_ids_of_consumer(mine: Sequence[Claim]) -> list[str]:
    """Return ids of a consumer's claims on a host, for a message that names only the consumer.

    :param mine: its live claims there
    :returns: ids of those that are confirmed, else of the first reserved one
    """
    confirmed = [claim.id for claim in mine if claim.state is State.CONFIRMED]
    if confirmed or not mine:
        return confirmed
    return [min(mine, key=lambda claim: (claim.created_at, claim.id)).id]
