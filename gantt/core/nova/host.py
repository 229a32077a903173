# SPDX-License-Identifier: Apache-2.0
"""Claims on hosts that an unmodified Nova runs: what its casts do to them.

Such a host never confirms.  All that is heard of it are casts, which are lossy,
unordered and say little: ``sync`` lists all its guests, ``update`` comes from
where a guest is (in a live migration: from where it still is), ``delete`` says
that a host no longer has one.  So one cast is a hint, and several agreeing
ones are a fact: P2 and P3 are weaker here than where an agent of ours speaks.

While a move is open its claims are kept, whatever time and absence say.  When
its source ends, a target that nobody has been seen under yet has a lease of
its own again: that it was reserved is long ago.

Every function takes all claims, live and final, on any host, of the consumers
that it is about, and returns the claims that change.  ``Claim.absences`` counts
the syncs in a row that did not list a claim's consumer; below 0, those that did.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gantt.core.claims.claim import (
    EXPIRES,
    Claim,
    Event,
    State,
    guest_of,
    happen,
    state_after,
    stepped,
)
from gantt.core.messages import base
from gantt.core.messages.request import Flavor, Lifecycle, Purpose, name_of
from gantt.core.nova.events import GuestLocation, NovaGuest
from gantt.core.resources.host import HostRow

#: Syncs in a row that must list a consumer before its claim is confirmed.
PRESENCES = 2
#: Syncs in a row that must miss a consumer before its confirmed claim is released.
ABSENCES = 3
#: ``absences`` of a claim after the word that its guest left, which may be about an earlier
#: stay: the next sync decides.
DOUBTED = 2 * ABSENCES
#: Lease of a target whose move ended before anybody was seen under it.
SEEN_SECONDS = 900.0
#: Moves whose source says nothing when the guest has left.
SILENT = (Purpose.LIVE_MIGRATE, Purpose.EVACUATE)

_replace = msgspec.structs.replace


class NovaMove(msgspec.Struct, frozen=True):
    """A consumer between two claims: both are kept until it is known where it stays."""

    source: Claim
    target: Claim


class NovaEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Claims that changed, as they become.

    :ivar unclaimed: consumers listed here without a claim, once so far: to be
        given to the next ``sync`` of the host
    """

    claims: list[Claim] = []
    confirmed: list[str] = []
    released: list[str] = []
    adopted: list[str] = []
    unclaimed: list[str] = []


def sync(
    host: HostRow,
    claims: Iterable[Claim],
    present: Collection[str],
    now: float,
    unclaimed: Collection[str] = (),
    described: Iterable[NovaGuest] = (),
    begun: float = math.inf,
) -> NovaEffect:
    """All guests of the host, whole.

    A guest that no claim is known for here is adopted when it is listed twice: at once
    where it is told what it takes, as to leave it out of account is the greater harm.

    :param claims: of the consumers with a live claim here, and of those present
    :param present: uuids of the guests
    :param unclaimed: as the sync before returned it
    :param described: those that more is known of than that they are there
    :param begun: when the list was, by the database's clock, at the earliest: it ends and
        confirms no claim that became what it is later, and adopts no guest of which it was
        learned later, by a claim on any host, that it has left or moved
    """
    described_guests = {guest.consumer: guest for guest in described}
    listed = set(present)
    by_consumer = _by_consumer(claims)
    changed: list[Claim] = []
    waiting = []
    for consumer in sorted(listed | set(by_consumer)):
        mine = by_consumer.get(consumer, [])
        here = [c for c in mine if c.is_live and c.provider_id == host.id]
        move = open_move(mine)
        synced = [
            _synced(claim, move, consumer in listed, now)
            if claim.updated_at <= begun
            else (renewed(claim, now) if consumer in listed else claim)
            for claim in here
        ]
        if move is None:
            synced = [
                _as_described(host, one, described_guests.get(consumer))
                for one in _newest(synced, now)
            ]
        changed += synced
        if here or consumer not in listed:
            continue
        if _has_news(mine, begun):
            continue
        if consumer in unclaimed or consumer in described_guests:
            changed.append(_adopted(host, consumer, mine, described_guests.get(consumer), now))
        else:
            waiting.append(consumer)
    return _effect(by_consumer, changed, now, waiting)


def renewed(claim: Claim, now: float) -> Claim:
    """A live claim after a list with its guest that may be of an earlier stay."""
    if claim.absences == DOUBTED:
        return claim
    claim = _replace(claim, absences=min(claim.absences, 0))
    if claim.state is not State.RESERVED or claim.lifecycle not in EXPIRES:
        return claim
    return _replace(claim, lease_until=max(claim.lease_until, now + SEEN_SECONDS))


def update(
    host: HostRow, claims: Sequence[Claim], guest: NovaGuest, now: float, begun: float = math.inf
) -> NovaEffect:
    """A guest that the host speaks of.

    While it moves that proves nothing, unless it is the destination that speaks: that
    of a live migration does not before it has the guest listed.  Where a claim of it here
    ended after ``begun``, or the move began after it, this may be of before that: the next
    list decides.

    :param claims: of this consumer
    :param begun: when what led to it was asked for, by the database's clock, at the earliest
    """
    move = open_move(claims)
    if move is not None:
        target = move.target
        is_there = _proves(target, move) and target.purpose is not Purpose.LIVE_MIGRATE
        if target.provider_id != host.id or not is_there or target.created_at > begun:
            return NovaEffect()
        becomes = _after(target, Event.SEEN_RUNNING, now)
        becomes = _replace(becomes, absences=min(becomes.absences, 0))
        return _effect({guest.consumer: claims}, [becomes], now)
    if guest.moving:
        return NovaEffect()
    here = [c for c in claims if c.is_live and c.provider_id == host.id]
    if not here:
        if _has_news([claim for claim in claims if claim.provider_id == host.id], begun):
            return NovaEffect()
        made = _adopted(host, guest.consumer, claims, guest, now)
        return _effect({guest.consumer: claims}, [made], now)
    changed = []
    for claim in here:
        becomes = _after(claim, Event.SEEN_RUNNING, now)
        if claim.adopted and not claim.allocations and guest.resources:
            # Adopted from a bare list of uuids: only now it is known what it takes.
            becomes = _replace(becomes, allocations={host.id: dict(guest.resources)})
        # It is here now, whatever was missed before.
        becomes = _replace(becomes, absences=min(becomes.absences, 0))
        if becomes != claim:
            changed.append(becomes)
    return _effect({guest.consumer: claims}, changed, now)


def delete(
    host: HostRow,
    claims: Sequence[Claim],
    consumer: str,
    now: float,
    listed_at: float | None = None,
    skew: float = 0.0,
) -> NovaEffect:
    """The host no longer has this guest.

    Of a move within one host only the old claim ends.  A claim that is only
    reserved ends with its lease: the word may be about an earlier guest.  What
    was asked for before the claim was made, or before the move began that the
    claim is the source of, is about an earlier stay and changes nothing; where
    the clocks do not tell, the next sync decides.

    :param claims: of this consumer
    :param listed_at: when what led to it was asked for, seconds since 1970.  None: it is
        taken as said
    :param skew: by how much that clock and the database's may differ
    """
    move = open_move(claims)
    here = [c for c in claims if c.is_live and c.provider_id == host.id and guest_of(c) == consumer]
    if move is not None and move.source in here:
        here = [move.source]
    changed = []
    for claim in here:
        state = state_after(claim, Event.RELEASE)
        if claim.state is not State.CONFIRMED or state is claim.state:
            continue
        since = claim.created_at
        if move is not None and claim.id == move.source.id:
            since = max(since, move.target.created_at)
        if listed_at is None or listed_at - skew >= since:
            changed.append(stepped(claim, state, 'deleted', now))
        elif listed_at + skew >= since:
            changed.append(_replace(claim, absences=DOUBTED))
    return _effect({consumer: claims}, changed, now)


def located(claims: Sequence[Claim], described_guests: GuestLocation, now: float) -> NovaEffect:
    """Nova knows: the guest is on this host, or nowhere, and no move of it is open.

    Claims elsewhere end.  Of several on its host the one stays that takes what
    the guest takes, else the newest.

    :param claims: of this consumer
    """
    live = _by_age(c for c in claims if c.is_live and c.created_at < described_guests.before)
    here = [
        c for c in live if described_guests.host is not None and c.host == described_guests.host
    ]
    with_same_amounts = [
        c for c in here if c.allocations.get(c.provider_id) == described_guests.resources
    ]
    stays = (with_same_amounts or here)[-1] if here else None
    changed = [
        _after(claim, Event.SEEN_RUNNING, now)
        if claim is stays
        else _after(claim, Event.RELEASE, now, 'settled')
        for claim in live
    ]
    return _effect({described_guests.consumer: claims}, changed, now)


def open_move(claims: Iterable[Claim]) -> NovaMove | None:
    """The move that a consumer is in, None where it has less than two live claims.

    What was adopted after the guest had arrived is no source: it is what a late
    word has made.

    :param claims: of one consumer
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
    return NovaMove(source=sources[-1], target=target) if sources else None


def may_expire(claim: Claim, claims: Iterable[Claim]) -> bool:
    """Whether the sweeper may end a reserved claim on such a host.

    :param claims: of its consumer
    """
    move = open_move(claims)
    return move is None or claim.id not in (move.source.id, move.target.id)


def protected_by_moves(
    due: Iterable[Claim], claims: Iterable[Claim], now: float
) -> dict[str, Claim]:
    """Of claims whose lease ran out those that an open move keeps, with a new lease, by id.

    :param claims: the live ones of those consumers whose hosts Nova runs
    """
    by_consumer = _by_consumer(claims)
    return {
        claim.id: _replace(claim, lease_until=now + SEEN_SECONDS, updated_at=now)
        for claim in due
        if guest_of(claim) in by_consumer and not may_expire(claim, by_consumer[guest_of(claim)])
    }


def overdue_moves(claims: Iterable[Claim], now: float, seconds: float) -> list[NovaMove]:
    """Moves that have been open for longer than ``seconds``: ask Nova, or raise an alarm."""
    moves = (open_move(mine) for mine in _by_consumer(claims).values())
    return [move for move in moves if move and move.target.created_at + seconds < now]


def awaited(claims: Iterable[Claim], now: float, seconds: float) -> list[Claim]:
    """Claims that nobody has confirmed for longer than ``seconds``, in no move: ask Nova.

    A build that failed leaves such a claim, also where it went on to an alternate.

    :param claims: live ones
    """
    return [
        claim
        for mine in _by_consumer(claims).values()
        if open_move(mine) is None
        for claim in mine
        if claim.state is State.RESERVED
        and claim.lifecycle is Lifecycle.HOST
        and claim.created_at + seconds < now
    ]


def _adopted(
    host: HostRow, consumer: str, known: Iterable[Claim], guest: NovaGuest | None, now: float
) -> Claim:
    """A claim for a guest that none is known for here.

    It takes what is said of it, else what its newest claim anywhere takes.
    The id grows with the claims known here: the same again until one is written.
    """
    history = _by_age(known)
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
        member_name=_member_before(guest, last),
        adopted=True,
        absences=-1,
        reason='runs without a live claim',
        created_at=now,
        updated_at=now,
    )


def _member_before(guest: NovaGuest, last: Claim | None) -> str | None:
    """The member of a group that a guest was by its newest claim, in the group that it is in."""
    return None if last is None or guest.group not in (None, last.group) else last.member_name


def _synced(claim: Claim, move: NovaMove | None, is_listed: bool, now: float) -> Claim:
    """A live claim here after a sync."""
    if is_listed:
        # Bounded, so that a host where nothing happens is not written to.
        claim = _replace(claim, absences=max(min(claim.absences, 0) - 1, -PRESENCES))
        seen = claim.absences <= -PRESENCES and _proves(claim, move)
        return _after(claim, Event.SEEN_RUNNING, now) if seen else claim
    doubted = claim.absences == DOUBTED
    if not doubted:
        claim = _replace(claim, absences=min(max(claim.absences, 0) + 1, ABSENCES))
    gone = claim.absences >= ABSENCES and _may_go(claim, move, doubted=doubted)
    return _after(claim, Event.SEEN_ABSENT, now, 'absent') if gone else claim


def _after(claim: Claim, event: Event, now: float, reason: str = '') -> Claim:
    """A claim after an event; the same where that changes nothing of it."""
    return happen(claim, event, reason, now)


def _as_described(host: HostRow, claim: Claim, guest: NovaGuest | None) -> Claim:
    """What an adopted claim takes is what Nova says, which may change behind our back."""
    if guest is None or not guest.resources or not (claim.adopted and claim.is_live):
        return claim
    if claim.allocations.get(host.id) == guest.resources:
        return claim
    return _replace(claim, allocations={**claim.allocations, host.id: dict(guest.resources)})


def _newest(here: Sequence[Claim], now: float) -> list[Claim]:
    """Claims of a guest on one host outside a move: it runs under the last one only.

    The others are of earlier stays whose end was not heard.
    """
    live = _by_age(c for c in here if c.is_live)
    if len(live) < 2 or live[-1].state is not State.CONFIRMED:
        return list(here)
    ends = {claim.id: _after(claim, Event.RELEASE, now, 'superseded') for claim in live[:-1]}
    return [ends.get(claim.id, claim) for claim in here]


def _proves(claim: Claim, move: NovaMove | None) -> bool:
    """Whether presence on its host says that a claim is in use."""
    if move is None or claim.id != move.target.id:
        return True
    return move.source.provider_id != claim.provider_id


def _may_go(claim: Claim, move: NovaMove | None, *, doubted: bool) -> bool:
    """Whether absence from its host may end a claim.

    :param doubted: its host said that the guest left
    """
    if move is None or claim.id not in (move.source.id, move.target.id):
        return True
    if claim.id == move.target.id:
        # Reverted: it was there, and is seen at its source again.
        return move.source.absences < 0 and move.source.provider_id != claim.provider_id
    return (doubted or move.target.purpose in SILENT) and move.target.state is State.CONFIRMED


def _has_news(claims: Iterable[Claim], since: float) -> bool:
    """Whether claims of a guest became what they are after ``since``: it may have left then.

    Not those that expired: that a lease ran out says nothing of where the guest is.
    """
    return any(c.updated_at > since and c.state is not State.EXPIRED for c in claims)


def _by_age(claims: Iterable[Claim]) -> list[Claim]:
    return sorted(claims, key=lambda claim: (claim.created_at, claim.id))


def _by_consumer(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    found: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        found[guest_of(claim)].append(claim)
    return found


def _effect(
    before: Mapping[str, Sequence[Claim]],
    changed: Iterable[Claim],
    now: float,
    unclaimed: Sequence[str] = (),
) -> NovaEffect:
    """:param before: all claims by consumer, as they were"""
    was = {claim.id: claim for claims in before.values() for claim in claims}
    news = {claim.id: claim for claim in changed if was.get(claim.id) != claim}
    for consumer in {guest_of(claim) for claim in news.values() if not claim.is_live}:
        target = _left_alone(before.get(consumer, ()), news)
        if target is not None:
            until = max(target.lease_until, now + SEEN_SECONDS)
            news[target.id] = _replace(target, lease_until=until, updated_at=now)
    moved = [c for c in news.values() if c.id in was and was[c.id].state is not c.state]
    return NovaEffect(
        claims=list(news.values()),
        confirmed=[claim.id for claim in moved if claim.state is State.CONFIRMED],
        released=[claim.id for claim in moved if not claim.is_live],
        adopted=[claim.id for claim in news.values() if claim.id not in was],
        unclaimed=list(unclaimed),
    )


def _left_alone(claims: Sequence[Claim], news: Mapping[str, Claim]) -> Claim | None:
    """The reserved target of a move that was open and is not any more."""
    move = open_move(claims)
    if move is None or open_move([news.get(claim.id, claim) for claim in claims]) is not None:
        return None
    target = news.get(move.target.id, move.target)
    return target if target.state is State.RESERVED else None
