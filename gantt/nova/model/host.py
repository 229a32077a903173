# SPDX-License-Identifier: Apache-2.0
"""Effects of casts on the claims of hosts that an unmodified Nova runs.

Such a host never confirms.  Its only messages are casts, which are lossy, unordered and carry
little: ``sync`` lists all its guests, ``update`` comes from the host of a guest (in a live
migration: from the host where it still is), ``delete`` reports that a host no longer has one.  So
one cast is a hint, and several agreeing ones are a fact: P2 and P3 are weaker here than where an
agent of ours reports.

While a move is open its claims are kept, whatever time and absence indicate.  When its source ends,
a target without any sign of the guest yet has a lease of its own again: it was reserved long ago.

Every function takes all claims, live and final, on any host, of its consumers, and returns the
claims that change.  ``Claim.absences`` counts the syncs in a row that did not list a claim's
consumer; below 0, those that did.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gantt.core.claims.claim import (
    EXPIRING_LIFECYCLES,
    Claim,
    Event,
    State,
    after_event,
    guest_of,
    state_after,
    with_state,
)
from gantt.core.messages import base
from gantt.core.messages.request import Flavor, Lifecycle, Purpose, name_of
from gantt.core.resources.host import HostRow
from gantt.nova.model.events import GuestLocation, NovaGuest

#: Syncs in a row that must list a consumer before its claim is confirmed.
PRESENCES_TO_CONFIRM = 2
#: Syncs in a row that must miss a consumer before its confirmed claim is released.
ABSENCES_TO_RELEASE = 3
#: ``absences`` of a claim after a ``delete`` of its guest, which may be about an earlier
#: stay: the next sync decides.
ABSENCES_IN_DOUBT = 2 * ABSENCES_TO_RELEASE
#: Lease in seconds of a target whose move ended before any guest was seen under it.
SEEN_LEASE_SECONDS = 900.0
#: Moves whose source sends nothing when the guest has left.
PURPOSES_WITHOUT_UPDATES = (Purpose.LIVE_MIGRATE, Purpose.EVACUATE)

_replace = msgspec.structs.replace


class MigrationClaims(msgspec.Struct, frozen=True):
    """The two claims of a guest that moves: both are kept until it is known where it stays."""

    source: Claim
    target: Claim


class NovaEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Claims that changed, as they become.

    :ivar unclaimed: consumers listed here without a claim, once so far: to be
        given to the next ``apply_guest_list`` of the host
    """

    claims: list[Claim] = []
    confirmed: list[str] = []
    released: list[str] = []
    adopted: list[str] = []
    unclaimed: list[str] = []


def apply_guest_list(
    host: HostRow,
    claims: Iterable[Claim],
    present: Collection[str],
    now: float,
    unclaimed: Collection[str] = (),
    described: Iterable[NovaGuest] = (),
    requested_at: float = math.inf,
) -> NovaEffect:
    """Apply the complete list of guests of a host.

    A guest without a claim here is adopted when it is listed twice: at once where its amounts are
    described, as to leave it out of account is the greater harm.

    :param claims: claims of the consumers with a live claim here, and of those present
    :param present: uuids of the guests
    :param unclaimed: the value that the previous sync returned
    :param described: guests with a description beyond their presence
    :param requested_at: earliest begin of the list, by the database's clock: it ends and confirms
        no claim that changed later, and adopts no guest that, by a claim on any host, has left or
        moved later
    """
    described_guests = {guest.consumer: guest for guest in described}
    listed = set(present)
    by_consumer = _by_consumer(claims)
    changed: list[Claim] = []
    waiting = []
    for consumer in sorted(listed | set(by_consumer)):
        consumer_claims = by_consumer.get(consumer, [])
        live_here = [c for c in consumer_claims if c.is_live and c.provider_id == host.id]
        move = open_move(consumer_claims)
        synced = [
            _after_list(claim, move, consumer in listed, now)
            if claim.updated_at <= requested_at
            else (with_renewed_lease(claim, now) if consumer in listed else claim)
            for claim in live_here
        ]
        if move is None:
            synced = [
                _with_reported_amounts(host, claim, described_guests.get(consumer))
                for claim in _only_newest_claim(synced, now)
            ]
        changed += synced
        if live_here or consumer not in listed:
            continue
        if _changed_since(consumer_claims, requested_at):
            continue
        if consumer in unclaimed or consumer in described_guests:
            changed.append(
                _adopted_claim(host, consumer, consumer_claims, described_guests.get(consumer), now)
            )
        else:
            waiting.append(consumer)
    return _effect(by_consumer, changed, now, waiting)


def with_renewed_lease(claim: Claim, now: float) -> Claim:
    """Return a live claim, with its lease renewed, whose guest is in a list of unknown age."""
    if claim.absences == ABSENCES_IN_DOUBT:
        return claim
    claim = _replace(claim, absences=min(claim.absences, 0))
    if claim.state is not State.RESERVED or claim.lifecycle not in EXPIRING_LIFECYCLES:
        return claim
    return _replace(claim, lease_until=max(claim.lease_until, now + SEEN_LEASE_SECONDS))


def apply_update(
    host: HostRow,
    claims: Sequence[Claim],
    guest: NovaGuest,
    now: float,
    requested_at: float = math.inf,
) -> NovaEffect:
    """Apply an update of a guest by a host.

    While the guest moves an update proves nothing, unless the destination sends it: that of a live
    migration sends none before it has the guest listed.  Where a claim of it here ended after
    ``requested_at``, or the move began after it, the update may be older: the next list decides.

    :param claims: claims of this consumer
    :param requested_at: earliest time of the request that led to it, by the database's clock
    """
    move = open_move(claims)
    if move is not None:
        target = move.target
        is_there = _proves_use(target, move) and target.purpose is not Purpose.LIVE_MIGRATE
        if target.provider_id != host.id or not is_there or target.created_at > requested_at:
            return NovaEffect()
        new_claim = _after_event(target, Event.SEEN_RUNNING, now)
        new_claim = _replace(new_claim, absences=min(new_claim.absences, 0))
        return _effect({guest.consumer: claims}, [new_claim], now)
    if guest.moving:
        return NovaEffect()
    live_here = [c for c in claims if c.is_live and c.provider_id == host.id]
    if not live_here:
        if _changed_since(
            [claim for claim in claims if claim.provider_id == host.id], requested_at
        ):
            return NovaEffect()
        adopted = _adopted_claim(host, guest.consumer, claims, guest, now)
        return _effect({guest.consumer: claims}, [adopted], now)
    changed = []
    for claim in live_here:
        new_claim = _after_event(claim, Event.SEEN_RUNNING, now)
        if claim.adopted and not claim.allocations and guest.resources:
            # Adopted from a bare list of uuids: only now it is known what it takes.
            new_claim = _replace(new_claim, allocations={host.id: dict(guest.resources)})
        # It is here now, whatever was missed before.
        new_claim = _replace(new_claim, absences=min(new_claim.absences, 0))
        if new_claim != claim:
            changed.append(new_claim)
    return _effect({guest.consumer: claims}, changed, now)


def apply_delete(
    host: HostRow,
    claims: Sequence[Claim],
    consumer: str,
    now: float,
    listed_at: float | None = None,
    skew: float = 0.0,
) -> NovaEffect:
    """Apply a report that the host no longer has a guest.

    In a move within one host only the old claim ends.  A claim that is only reserved ends with its
    lease: the report may be about an earlier guest.  A report requested before the claim was
    created, or before the move began that the claim is the source of, is about an earlier stay and
    changes nothing; where the clocks do not decide, the next sync does.

    :param claims: claims of this consumer
    :param listed_at: time of the request that led to it, seconds since 1970.  None: it is applied
        as it is
    :param skew: seconds by which that clock and the database's may differ
    """
    move = open_move(claims)
    live_here = [
        c for c in claims if c.is_live and c.provider_id == host.id and guest_of(c) == consumer
    ]
    if move is not None and move.source in live_here:
        live_here = [move.source]
    changed = []
    for claim in live_here:
        state = state_after(claim, Event.RELEASE)
        if claim.state is not State.CONFIRMED or state is claim.state:
            continue
        since = claim.created_at
        if move is not None and claim.id == move.source.id:
            since = max(since, move.target.created_at)
        if listed_at is None or listed_at - skew >= since:
            changed.append(with_state(claim, state, 'deleted', now))
        elif listed_at + skew >= since:
            changed.append(_replace(claim, absences=ABSENCES_IN_DOUBT))
    return _effect({consumer: claims}, changed, now)


def apply_location(
    claims: Sequence[Claim], described_guests: GuestLocation, now: float
) -> NovaEffect:
    """Apply a location from Nova's API: a guest is on this host, or nowhere, with no open move.

    Claims elsewhere end.  Of several on its host the one stays that takes the amounts of the guest,
    else the newest.

    :param claims: claims of this consumer
    """
    live = _by_age(c for c in claims if c.is_live and c.created_at < described_guests.cutoff)
    live_here = [
        c for c in live if described_guests.host is not None and c.host == described_guests.host
    ]
    with_same_amounts = [
        c for c in live_here if c.allocations.get(c.provider_id) == described_guests.resources
    ]
    stays = (with_same_amounts or live_here)[-1] if live_here else None
    changed = [
        _after_event(claim, Event.SEEN_RUNNING, now)
        if claim is stays
        else _after_event(claim, Event.RELEASE, now, 'settled')
        for claim in live
    ]
    return _effect({described_guests.consumer: claims}, changed, now)


def open_move(claims: Iterable[Claim]) -> MigrationClaims | None:
    """Return the open move of a consumer, None where it has less than two live claims.

    A claim adopted after the guest had arrived is no source: a late message has created it.

    :param claims: claims of one consumer
    """
    live = _by_age(c for c in claims if c.is_live)
    targets = [claim for claim in live if claim.purpose.is_move]
    if len(live) < 2 or not targets:
        return None
    target = targets[-1]
    at = live.index(target)
    sources = live[:at]
    if target.state is State.RESERVED:
        sources += [claim for claim in live[at + 1 :] if claim.adopted]
    return MigrationClaims(source=sources[-1], target=target) if sources else None


def may_expire(claim: Claim, claims: Iterable[Claim]) -> bool:
    """Return whether the sweeper may end a reserved claim on such a host.

    :param claims: claims of its consumer
    """
    move = open_move(claims)
    return move is None or claim.id not in (move.source.id, move.target.id)


def protected_by_moves(
    due: Iterable[Claim], claims: Iterable[Claim], now: float
) -> dict[str, Claim]:
    """Return those claims with an expired lease that an open move keeps, with a new lease, by id.

    :param claims: the live ones of those consumers whose hosts Nova runs
    """
    by_consumer = _by_consumer(claims)
    return {
        claim.id: _replace(claim, lease_until=now + SEEN_LEASE_SECONDS, updated_at=now)
        for claim in due
        if guest_of(claim) in by_consumer and not may_expire(claim, by_consumer[guest_of(claim)])
    }


def overdue_moves(claims: Iterable[Claim], now: float, seconds: float) -> list[MigrationClaims]:
    """Return moves that have been open for longer than ``seconds``: query Nova, or alert."""
    moves = (open_move(of_consumer) for of_consumer in _by_consumer(claims).values())
    return [move for move in moves if move and move.target.created_at + seconds < now]


def unconfirmed_claims(claims: Iterable[Claim], now: float, seconds: float) -> list[Claim]:
    """Return claims that are unconfirmed for longer than ``seconds``, in no move: query Nova.

    A build that failed leaves such a claim, also where it went on to an alternate.

    :param claims: live claims
    """
    return [
        claim
        for of_consumer in _by_consumer(claims).values()
        if open_move(of_consumer) is None
        for claim in of_consumer
        if claim.state is State.RESERVED
        and claim.lifecycle is Lifecycle.HOST
        and claim.created_at + seconds < now
    ]


def _adopted_claim(
    host: HostRow, consumer: str, claims: Iterable[Claim], guest: NovaGuest | None, now: float
) -> Claim:
    """Return a claim for a guest that has none here.

    It takes the described amounts, else those of its newest claim anywhere.  The id grows with the
    claims known here: the same again until one is written.
    """
    history = _by_age(claims)
    last = history[-1] if history else None
    lives = sum(claim.adopted and claim.provider_id == host.id for claim in history)
    guest = guest or NovaGuest(consumer=consumer)
    amounts = dict(guest.resources)
    if not amounts and last:
        amounts = dict(last.allocations.get(last.provider_id, {}))
    return Claim(
        id=base.derived_id('adopted', host.uuid, host.epoch, consumer, lives),
        request_id=None,
        consumer=consumer,
        provider_id=host.id,
        host=host.name,
        state=State.CONFIRMED,
        lifecycle=Lifecycle.HOST,
        allocations={host.id: amounts} if amounts else {},
        group=guest.group or (last.group if last else None),
        flavor=name_of(Flavor(name=guest.flavor or '')) or (last.flavor if last else None),
        project_id=guest.project_id or (last.project_id if last else None),
        user_id=guest.user_id or (last.user_id if last else None),
        member_name=_former_member_name(guest, last),
        adopted=True,
        absences=-1,
        reason='runs without a live claim',
        created_at=now,
        updated_at=now,
    )


def _former_member_name(guest: NovaGuest, last: Claim | None) -> str | None:
    """Return the member of its group that a guest was by its newest claim, in the same group."""
    return None if last is None or guest.group not in (None, last.group) else last.member_name


def _after_list(claim: Claim, move: MigrationClaims | None, is_listed: bool, now: float) -> Claim:
    """Return a live claim of the host after a list of its guests."""
    if is_listed:
        # Bounded, so that a host where nothing happens is not written to.
        claim = _replace(claim, absences=max(min(claim.absences, 0) - 1, -PRESENCES_TO_CONFIRM))
        is_proven = claim.absences <= -PRESENCES_TO_CONFIRM and _proves_use(claim, move)
        return _after_event(claim, Event.SEEN_RUNNING, now) if is_proven else claim
    doubted = claim.absences == ABSENCES_IN_DOUBT
    if not doubted:
        claim = _replace(claim, absences=min(max(claim.absences, 0) + 1, ABSENCES_TO_RELEASE))
    is_over = claim.absences >= ABSENCES_TO_RELEASE and _may_release(claim, move, doubted=doubted)
    return _after_event(claim, Event.SEEN_ABSENT, now, 'absent') if is_over else claim


def _after_event(claim: Claim, event: Event, now: float, reason: str = '') -> Claim:
    """Return a claim after an event; the same object where the event changes nothing."""
    return after_event(claim, event, reason, now)


def _with_reported_amounts(host: HostRow, claim: Claim, guest: NovaGuest | None) -> Claim:
    """Return an adopted claim with the amounts that Nova reports, which may change any time."""
    if guest is None or not guest.resources or not (claim.adopted and claim.is_live):
        return claim
    if claim.allocations.get(host.id) == guest.resources:
        return claim
    return _replace(claim, allocations={**claim.allocations, host.id: dict(guest.resources)})


def _only_newest_claim(here: Sequence[Claim], now: float) -> list[Claim]:
    """Release older claims of a guest on one host outside a move: it runs under the last one only.

    The others are of earlier stays whose end was not reported.
    """
    live = _by_age(c for c in here if c.is_live)
    if len(live) < 2 or live[-1].state is not State.CONFIRMED:
        return list(here)
    ends = {claim.id: _after_event(claim, Event.RELEASE, now, 'superseded') for claim in live[:-1]}
    return [ends.get(claim.id, claim) for claim in here]


def _proves_use(claim: Claim, move: MigrationClaims | None) -> bool:
    """Return whether a guest's presence on the host proves that its claim is in use."""
    if move is None or claim.id != move.target.id:
        return True
    return move.source.provider_id != claim.provider_id


def _may_release(claim: Claim, move: MigrationClaims | None, *, doubted: bool) -> bool:
    """Return whether a guest's absence from the host may end its claim.

    :param doubted: whether the host reported that the guest left
    """
    if move is None or claim.id not in (move.source.id, move.target.id):
        return True
    if claim.id == move.target.id:
        # Reverted: it was there, and is seen at its source again.
        return move.source.absences < 0 and move.source.provider_id != claim.provider_id
    return (
        doubted or move.target.purpose in PURPOSES_WITHOUT_UPDATES
    ) and move.target.state is State.CONFIRMED


def _changed_since(claims: Iterable[Claim], since: float) -> bool:
    """Return whether claims of a guest changed after ``since``: it may have left then.

    Except expired ones: the end of a lease does not show where the guest is.
    """
    return any(c.updated_at > since and c.state is not State.EXPIRED for c in claims)


def _by_age(claims: Iterable[Claim]) -> list[Claim]:
    return sorted(claims, key=lambda claim: (claim.created_at, claim.id))


def _by_consumer(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    by_consumer: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        by_consumer[guest_of(claim)].append(claim)
    return by_consumer


def _effect(
    before: Mapping[str, Sequence[Claim]],
    changed: Iterable[Claim],
    now: float,
    unclaimed: Sequence[str] = (),
) -> NovaEffect:
    """Return the effect of changed claims.

    :param before: all claims by consumer, as they were
    """
    was = {claim.id: claim for claims in before.values() for claim in claims}
    news = {claim.id: claim for claim in changed if was.get(claim.id) != claim}
    for consumer in {guest_of(claim) for claim in news.values() if not claim.is_live}:
        target = _target_without_source(before.get(consumer, ()), news)
        if target is not None:
            until = max(target.lease_until, now + SEEN_LEASE_SECONDS)
            news[target.id] = _replace(target, lease_until=until, updated_at=now)
    moved = [c for c in news.values() if c.id in was and was[c.id].state is not c.state]
    return NovaEffect(
        claims=list(news.values()),
        confirmed=[claim.id for claim in moved if claim.state is State.CONFIRMED],
        released=[claim.id for claim in moved if not claim.is_live],
        adopted=[claim.id for claim in news.values() if claim.id not in was],
        unclaimed=list(unclaimed),
    )


def _target_without_source(claims: Sequence[Claim], news: Mapping[str, Claim]) -> Claim | None:
    """Return the reserved target claim of a move that has just ended; None: there is none."""
    move = open_move(claims)
    if move is None or open_move([news.get(claim.id, claim) for claim in claims]) is not None:
        return None
    target = news.get(move.target.id, move.target)
    return target if target.state is State.RESERVED else None
