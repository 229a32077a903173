# SPDX-License-Identifier: Apache-2.0
"""Claims on hosts that an unmodified Nova runs: what its casts do to them.

Such a host never confirms.  All that is heard of it are casts, which are lossy,
unordered and say little: ``sync`` lists all its guests, ``update`` comes from
where a guest is (in a live migration: from where it still is), ``delete`` says
that a host no longer has one.  So one cast is a hint, and several agreeing
ones are a fact: P2 and P3 are weaker here than where an agent of ours speaks.

Every function takes all claims, live and final, on any host, of the consumers
that it is about, and returns the claims that change.  ``Claim.absences`` counts
the syncs in a row that did not list a claim's consumer; below 0, those that did.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import msgspec

from gantt.core import message
from gantt.core.claim import Claim, Event, State, after
from gantt.core.host import HostRow
from gantt.core.nova_events import Guest
from gantt.core.reconcile import ended
from gantt.core.request import Lifecycle, Purpose

#: Syncs in a row that must list a consumer before its claim is confirmed.
PRESENCES = 2
#: Syncs in a row that must miss a consumer before its confirmed claim is released.
ABSENCES = 3
#: Moves whose source says nothing when the guest has left.
SILENT = (Purpose.LIVE_MIGRATE, Purpose.EVACUATE)

_replace = msgspec.structs.replace


class Move(msgspec.Struct, frozen=True):
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
) -> NovaEffect:
    """All guests of the host, whole.

    :param claims: of the consumers with a live claim here, and of those present
    :param present: uuids of the guests
    :param unclaimed: as the sync before returned it
    """
    listed = set(present)
    by_consumer = _by_consumer(claims)
    changed: list[Claim] = []
    waiting = []
    for consumer in sorted(listed | set(by_consumer)):
        mine = by_consumer.get(consumer, [])
        here = [c for c in mine if c.is_live and c.provider_id == host.id]
        for claim in here:
            changed.append(_synced(claim, open_move(mine), consumer in listed, now))
        if here or consumer not in listed:
            continue
        if consumer in unclaimed:
            changed.append(_adopt(host, consumer, mine, {}, now))
        else:
            waiting.append(consumer)
    return _effect(claims, changed, waiting)


def update(host: HostRow, claims: Sequence[Claim], guest: Guest, now: float) -> NovaEffect:
    """A guest that the host speaks of; while it moves that proves nothing.

    :param claims: of this consumer
    """
    if guest.moving or open_move(claims) is not None:
        return NovaEffect()
    here = [c for c in claims if c.is_live and c.provider_id == host.id]
    if not here:
        return _effect(claims, [_adopt(host, guest.consumer, claims, guest.resources, now)])
    changed = []
    for claim in here:
        state = after(claim.state, Event.SEEN_RUNNING, claim.lifecycle)
        becomes = claim if state is claim.state else ended(claim, state, '', now)
        if claim.adopted and not claim.allocations and guest.resources:
            # Adopted from a bare list of uuids: only now it is known what it takes.
            becomes = _replace(becomes, allocations={host.id: dict(guest.resources)})
        if becomes is not claim:
            changed.append(becomes)
    return _effect(claims, changed)


def delete(host: HostRow, claims: Sequence[Claim], consumer: str, now: float) -> NovaEffect:
    """The host no longer has this guest.

    Of a move within one host only the old claim ends.  A claim that is only
    reserved ends with its lease: the word may be about an earlier guest.

    :param claims: of this consumer
    """
    move = open_move(claims)
    here = [c for c in claims if c.is_live and c.provider_id == host.id and c.consumer == consumer]
    if move is not None and move.source in here:
        here = [move.source]
    changed = [
        ended(claim, state, 'deleted', now)
        for claim in here
        if claim.state is State.CONFIRMED
        and (state := after(claim.state, Event.RELEASE, claim.lifecycle)) is not claim.state
    ]
    return _effect(claims, changed)


def open_move(claims: Iterable[Claim]) -> Move | None:
    """The move that a consumer is in, None where it has less than two live claims.

    :param claims: of one consumer
    """
    live = sorted((c for c in claims if c.is_live), key=lambda c: (c.created_at, c.id))
    targets = [claim for claim in live if claim.purpose.is_move]
    if len(live) < 2 or not targets:
        return None
    target = targets[-1]
    return Move(source=[claim for claim in live if claim is not target][-1], target=target)


def may_expire(claim: Claim, claims: Iterable[Claim]) -> bool:
    """Whether the sweeper may end a reserved claim on such a host.

    :param claims: of its consumer
    """
    move = open_move(claims)
    return move is None or claim.id not in (move.source.id, move.target.id)


def overdue_moves(claims: Iterable[Claim], now: float, seconds: float) -> list[Move]:
    """Moves that have been open for longer than ``seconds``: ask Nova, or raise an alarm."""
    moves = (open_move(mine) for mine in _by_consumer(claims).values())
    return [move for move in moves if move and move.target.created_at + seconds < now]


def _synced(claim: Claim, move: Move | None, is_listed: bool, now: float) -> Claim:
    """A live claim here after a sync."""
    if is_listed:
        # Bounded, so that a host where nothing happens is not written to.
        claim = _replace(claim, absences=max(min(claim.absences, 0) - 1, -PRESENCES))
        seen = claim.absences <= -PRESENCES and _proves(claim, move)
        state = after(claim.state, Event.SEEN_RUNNING, claim.lifecycle) if seen else claim.state
    else:
        claim = _replace(claim, absences=min(max(claim.absences, 0) + 1, ABSENCES))
        gone = claim.absences >= ABSENCES and _may_go(claim, move)
        state = after(claim.state, Event.SEEN_ABSENT, claim.lifecycle) if gone else claim.state
    if state is claim.state:
        return claim
    return ended(claim, state, '' if state is State.CONFIRMED else 'absent', now)


def _proves(claim: Claim, move: Move | None) -> bool:
    """Whether presence on its host says that a claim is in use."""
    if move is None or claim.id != move.target.id:
        return True
    return move.source.provider_id != claim.provider_id


def _may_go(claim: Claim, move: Move | None) -> bool:
    """Whether absence from its host may end a claim."""
    if move is None or claim.id not in (move.source.id, move.target.id):
        return True
    if claim.id == move.target.id:
        # Reverted: it was there, and is seen at its source again.
        return move.source.absences < 0 and move.source.provider_id != claim.provider_id
    return move.target.purpose in SILENT and move.target.state is State.CONFIRMED


def _adopt(
    host: HostRow, consumer: str, known: Iterable[Claim], resources: dict[str, int], now: float
) -> Claim:
    """A claim for a guest that none is known for here.

    It takes what its update says, else what its newest claim anywhere takes.
    The id grows with the claims known here: the same again until one is written.
    """
    history = sorted(known, key=lambda claim: (claim.created_at, claim.id))
    lives = sum(claim.adopted and claim.provider_id == host.id for claim in history)
    amounts = dict(resources)
    if not amounts and history:
        amounts = dict(history[-1].allocations.get(history[-1].provider_id, {}))
    return Claim(
        id=message.derived_id('adopted', host.uuid, host.epoch, consumer, lives),
        request_id=None,
        consumer=consumer,
        provider_id=host.id,
        host=host.name,
        state=State.CONFIRMED,
        lifecycle=Lifecycle.HOST,
        allocations={host.id: amounts} if amounts else {},
        group=history[-1].group if history else None,
        project_id=history[-1].project_id if history else None,
        user_id=history[-1].user_id if history else None,
        adopted=True,
        absences=-1,
        reason='runs without a live claim',
        created_at=now,
        updated_at=now,
    )


def _by_consumer(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    found: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        found[claim.consumer].append(claim)
    return found


def _effect(
    before: Iterable[Claim], changed: Iterable[Claim], unclaimed: Sequence[str] = ()
) -> NovaEffect:
    was = {claim.id: claim for claim in before}
    news = [claim for claim in changed if was.get(claim.id) != claim]
    moved = [claim for claim in news if claim.id in was and was[claim.id].state is not claim.state]
    return NovaEffect(
        claims=news,
        confirmed=[claim.id for claim in moved if claim.state is State.CONFIRMED],
        released=[claim.id for claim in moved if not claim.is_live],
        adopted=[claim.id for claim in news if claim.id not in was],
        unclaimed=list(unclaimed),
    )
