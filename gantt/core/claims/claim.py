# SPDX-License-Identifier: Apache-2.0
"""Claims: resources promised to a consumer on a host, and how they end.

The transition table is data; the database adapter, the in-memory store and the
documentation are all made from it.  Time never decides safety: a lease may run
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


LIVE = (State.RESERVED, State.CONFIRMED)


class Event(enum.StrEnum):
    """What may happen to a claim."""

    CONFIRM = 'confirm'  # the compute asks before it starts the guest
    REFUSE = 'refuse'  # the compute's second check says no
    RELEASE = 'release'  # the compute says the guest is gone
    CANCEL = 'cancel'  # the caller takes the request back
    EXPIRE = 'expire'  # the sweeper found the lease run out
    SEEN_RUNNING = 'seen_running'  # a report lists it as running
    SEEN_ABSENT = 'seen_absent'  # a report lists it neither running nor pending
    FORCE = 'force'  # an operator releases it
    RETURN = 'return'  # who asked for it has no more use for it


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
HOST_MAY_END = (Lifecycle.HOST,)
#: Lifecycles whose reserved claims the sweeper expires.
EXPIRES = (Lifecycle.HOST, Lifecycle.PLAN, Lifecycle.HOLD, Lifecycle.CALLER)
#: Lifecycles whose reserved claims wait for nobody to confirm them.
NOT_IN_FLIGHT = (Lifecycle.API,)
#: Lifecycles whose reserved claims a host may not confirm: there is no create to start yet.
NOT_TO_CONFIRM = (Lifecycle.PLAN,)
#: What ends a place together with the create that has it: else it lives on for its plan.
ENDS_PLACE = (Event.FORCE,)
#: Ways of being reserved: the message of the host that confirmed ends these from then on.
UNTIL_CONFIRMED = (Lifecycle.PLAN, Lifecycle.HOLD)
#: Why the claim of a plan is not confirmed.
PLANNED = 'it is a place of a plan that no create has taken over'


def after(
    state: State,
    event: Event,
    lifecycle: Lifecycle = Lifecycle.HOST,
    *,
    is_taken: bool = False,
) -> State:
    """The state after ``event``; the same state where the event has no effect.

    :param is_taken: it is a place of a plan that a create has taken over: its host may confirm
        it, and may end it, as that of any create
    """
    ends = event in (Event.RELEASE, Event.SEEN_ABSENT, Event.REFUSE)
    if ends and lifecycle not in HOST_MAY_END and not is_taken:
        return state
    if event is Event.EXPIRE and lifecycle not in EXPIRES:
        return state
    if event is Event.RETURN and lifecycle is not Lifecycle.CALLER:
        return state
    confirms = event is Event.CONFIRM and state is State.RESERVED
    if confirms and lifecycle in NOT_TO_CONFIRM and not is_taken:
        return state
    return TRANSITIONS.get((state, event), state)


class PlannedFor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a place of a plan goes back to when the create that has it ends; stored as JSON.

    :ivar request_id: the request that planned it, with the ``attempt`` and ``member`` of it
    :ivar consumer: the one that stands for the member while no create has it
    :ivar lease_until: until when the plan holds it, seconds of the database's clock
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
    """A claim as it is stored and shown.

    :ivar provider_id: the root provider (host) it is on
    :ivar allocations: provider id -> class -> amount
    :ivar inherits: the same, of what it takes over from other claims of its consumer when these
        end, see :mod:`gantt.core.claims.inheritance`
    :ivar lease_until: seconds of the database's clock
    :ivar image: properties of the consumer's image, see :mod:`gantt.core.messages.image_properties`
    :ivar flavor: name of the consumer's flavor; None: not known
    :ivar adopted: nobody asked for it; the host was found running it
    :ivar guest: whom it was made for, where it was handed over to another consumer since
    :ivar member_name: of the member of a planned group that it is of, as ``web-2``
    :ivar planned: what it goes back to while a create has the place; None: none has it
    :ivar child: uuid of the zone below that it is in; None: it is here
    :ivar is_lost: that zone does not know it any more: it may live, until somebody has looked
    :ivar problem: why its row cannot be read, as of one that a later release has written: what
        is known of it is here, and nothing happens to it until an operator releases it
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
    planned: PlannedFor | None = None
    child: str | None = None
    is_lost: bool = False
    problem: str = ''

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def is_taken(self) -> bool:
        """Whether it is a place of a plan that a create has, and has not confirmed."""
        return self.planned is not None

    @property
    def is_free_place(self) -> bool:
        """Whether it is a place of a plan that no create has."""
        return (
            self.member_name is not None
            and self.planned is None
            and not self.problem
            and self.state is State.RESERVED
            and self.lifecycle is Lifecycle.PLAN
        )


def guest_of(claim: Claim) -> str:
    """Whose claim it is to lists of hosts, to groups and to hints.

    A move by Nova hands the claim of the source over to the consumer of the migration; what runs
    there is the guest still.
    """
    return claim.guest or claim.consumer


def stepped(claim: Claim, state: State, reason: str, now: float) -> Claim:
    """A claim in another state; confirmed it is its host's, whose word ends it from then on.

    Either way it is no place of a plan any more.
    """
    lifecycle = claim.lifecycle
    if state is State.CONFIRMED and lifecycle in UNTIL_CONFIRMED:
        lifecycle = Lifecycle.HOST
    return msgspec.structs.replace(
        claim,
        state=state,
        lifecycle=lifecycle,
        reason=reason or claim.reason,
        updated_at=now,
        planned=None,
    )


def state_after(claim: Claim, event: Event) -> State:
    """The state of a claim after ``event``."""
    if claim.problem:
        return claim.state
    return after(claim.state, event, claim.lifecycle, is_taken=claim.is_taken)


def happen(claim: Claim, event: Event, reason: str, now: float) -> Claim:
    """A claim after ``event``; the very same one where the event has no effect.

    Of a place that a create has this is the end of that create's claim: the place may live on for
    its plan, see ``places.lives_on``.

    :param now: seconds of the database's clock
    """
    state = state_after(claim, event)
    return claim if state is claim.state else stepped(claim, state, reason, now)


def longest(lifecycle: Lifecycle, most: float, most_of_plans: float | None = None) -> float:
    """The longest lease of a claim, in seconds.

    :param most_of_plans: of those of plans; None: as of all others
    """
    if lifecycle is Lifecycle.PLAN and most_of_plans is not None:
        return most_of_plans
    return most


#: For so long a place is held at most that no guest comes to, in seconds.
HELD_SECONDS_MAX = 86_400.0


def longer(
    claim: Claim, seconds: float, now: float, most: float, most_of_plans: float | None = None
) -> Claim | None:
    """A claim with the lease that its request is to have from now on; the same if it has that.

    None: the request has no say in it: it is not reserved, or it is a place that no create has,
    which is held as long as all of its plan.

    :param most: of ``seconds``, the longest lease; ``most_of_plans`` as in ``longest``
    """
    if claim.state is not State.RESERVED or claim.is_free_place or claim.problem:
        return None
    lifecycle = Lifecycle.HOST if claim.is_taken else claim.lifecycle
    until = now + min(seconds, longest(lifecycle, most, most_of_plans))
    if not claim.is_taken:
        # However often it is asked for: what nobody builds on is given to others.
        until = min(until, claim.created_at + HELD_SECONDS_MAX)
    if lifecycle not in EXPIRES or claim.lease_until >= until:
        return claim
    return msgspec.structs.replace(claim, lease_until=until, updated_at=now)


def why_not_confirmed(claim: Claim) -> str:
    """Why a host that asks is told that the claim is gone; '' where it is, or was confirmed."""
    if claim.problem:
        return claim.problem
    return PLANNED if claim.is_live and claim.state is State.RESERVED else ''


def of_caller(
    request_id: str, claims: Iterable[Claim], consumers: Collection[str] = ()
) -> list[Claim]:
    """The claims that who asked for them means, to confirm or to release them.

    :param claims: all of the request, ended ones too: those of its last attempt count
    :param consumers: of whom they are to be; empty: of all
    :raises NotFound: the request, or a consumer of it, has no claims
    :raises Refused: a claim lies on a host, whose reports say what becomes of it
    """
    found = list(claims)
    last = max((claim.attempt for claim in found), default=0)
    mine = {claim.consumer: claim for claim in found if claim.attempt == last}
    if not mine:
        raise exceptions.NotFound(kind='request with claims', name=request_id)
    missing = sorted(set(consumers) - mine.keys())
    if missing:
        raise exceptions.NotFound(kind=f'consumer of request {request_id}', name=missing[0])
    meant_ones = [mine[one] for one in sorted(consumers or mine)]
    for claim in meant_ones:
        if claim.lifecycle is not Lifecycle.CALLER:
            raise exceptions.Refused(
                f'claim {claim.id} is of lifecycle {claim.lifecycle.value}: who asked confirms and '
                'releases only what was asked for without a host; cancel the request, or release '
                'the claim',
                claim_id=claim.id,
            )
    return meant_ones


def endless(state: State, lifecycle: Lifecycle, has_lease: bool) -> str:
    """Why nothing that happens by itself would ever end a live claim; '' where something does.

    A reserved claim ends with its lease, a confirmed one with its guest.  What was written
    through the allocation API its writer ends, what was asked for without a host who asked.
    """
    if lifecycle is Lifecycle.API or (lifecycle is Lifecycle.CALLER and state is State.CONFIRMED):
        return ''
    if state is State.RESERVED and not (
        has_lease and after(state, Event.EXPIRE, lifecycle) != state
    ):
        return 'reserved, without a lease'
    if state is State.CONFIRMED and after(state, Event.SEEN_ABSENT, lifecycle) is state:
        return f'confirmed, and of lifecycle {lifecycle.value}: no report ends it'
    return ''


def is_rival(claim: Claim, purpose: Purpose) -> bool:
    """Whether ``claim`` and a new one of its consumer for ``purpose`` may not both live.

    There is one live claim per (consumer, purpose).  A move has two claims by
    its nature, so there only another destination is a rival, while no guest
    has arrived at it.  What runs, for whatever purpose it came there, is not
    created once more.  What was written through the allocation API is its
    writer's business.
    """
    if not claim.is_live or claim.lifecycle is Lifecycle.API:
        return False
    if purpose.is_move:
        return claim.purpose.is_move and claim.state is State.RESERVED
    if purpose is Purpose.CREATE and claim.state is State.CONFIRMED:
        return True
    return claim.purpose is purpose


def gives_way(rival: Claim) -> bool:
    """Whether a rival makes place for the newer claim; one under which a guest runs bars it."""
    return rival.state is State.RESERVED and rival.request_id is not None and not rival.problem


@functools.lru_cache(maxsize=256)  # a member's is asked for by those who pick, claim and answer
def claim_id(request_id: str, attempt: int, member: int) -> str:
    """The id of a member's claim: the same for every repeat of the attempt.

    Another request of the same id, long after, begins at another attempt.
    """
    return base.derived_id('claim', request_id, attempt, member)


def claim_ids(request_id: str, attempt: int, members: Iterable[int]) -> list[str]:
    """The ids of the claims of several members."""
    return base.derived_ids(('claim', request_id, attempt), members)


def meant(mine: Sequence[Claim]) -> list[str]:
    """Which claims of a consumer on a host are meant where only the consumer is named.

    :param mine: its live claims there
    :returns: ids of those that are confirmed, else of the first reserved one
    """
    confirmed = [claim.id for claim in mine if claim.state is State.CONFIRMED]
    if confirmed or not mine:
        return confirmed
    return [min(mine, key=lambda claim: (claim.created_at, claim.id)).id]
