# SPDX-License-Identifier: Apache-2.0
"""What was heard of a host that an unmodified Nova runs: each word once, in a sane order.

Every scheduler process receives every broadcast, late or soon.  Whichever comes
first folds it under the lock of the host's row; the others find its id here.
A list of guests that is older than the last one folded ends nothing, as three
absences are three lists in a row as the host made them.  It may be as old as it
looks, or of a clock that was put back: whom it names keeps its claim.  Neither
does a list end or confirm a claim that became what it is after the list was begun,
nor adopt a guest with such a claim: it may have left since.

Of a host that an agent of ours reports for Nova's events say nothing.
"""

import math
from collections.abc import Collection, Iterable, Sequence

import msgspec

from gantt.core.claims.claim import Claim, guest_of
from gantt.core.messages.report import DICTIONARY_NONCE
from gantt.core.nova import host as nova_host
from gantt.core.nova.events import GuestDeleted, GuestsListed, GuestsUpdated, NovaCast, NovaGuest
from gantt.core.nova.host import NovaEffect
from gantt.core.resources.host import HostRow

#: Ids of broadcasts kept for each host: of an hour and more, syncs alone, and of a restart.
CASTS_STORED = 64
#: A clock that was set back by more than this is believed: nothing waits so long in a queue.
SET_BACK_SECONDS = 1800.0
_replace = msgspec.structs.replace


class EventsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of the words about one host.

    :ivar casts: ids, the last ones, newest last
    :ivar unclaimed: guests in its last list that no claim is known for
    :ivar synced_at: when its last list was begun, by the host's clock
    """

    casts: list[str] = []
    unclaimed: list[str] = []
    synced_at: float = 0.0

    def knows(self, cast: NovaCast) -> bool:
        """Whether it was folded already."""
        return bool(cast.id) and cast.id in self.casts


def counts(host: HostRow) -> bool:
    """Whether an event of Nova about a host has a say.

    One that reports in dictionaries has nobody else who speaks of its guests.
    """
    return host.speaks_for == 'nova' or host.boot_nonce == DICTIONARY_NONCE


def noted(seen: EventsSeen, cast: NovaCast) -> EventsSeen:
    """With one more broadcast that was folded."""
    if not cast.id:
        return seen
    return _replace(seen, casts=[*seen.casts, cast.id][-CASTS_STORED:])


def consumers_of(cast: NovaCast) -> list[str]:
    """The guests that a cast names."""
    event = cast.word
    if isinstance(event, GuestsListed):
        return list(event.consumers)
    if isinstance(event, GuestsUpdated):
        return [guest.consumer for guest in event.guests]
    return [event.consumer] if isinstance(event, GuestDeleted) else []


def fold(
    host: HostRow, seen: EventsSeen, claims: Sequence[Claim], cast: NovaCast, now: float
) -> tuple[EventsSeen, NovaEffect]:
    """One broadcast about guests of one host.

    :param claims: all, live and final, on any host, of the consumers that it names and of
        those with a live claim here
    """
    if seen.knows(cast):
        return seen, NovaEffect()
    seen, event = noted(seen, cast), cast.word
    if isinstance(event, GuestsListed):
        return _listed(host, seen, claims, cast, now)
    if isinstance(event, GuestsUpdated):
        return seen, _updated(host, claims, cast, event.guests, now)
    if not isinstance(event, GuestDeleted):
        return seen, NovaEffect()
    mine = [claim for claim in claims if guest_of(claim) == event.consumer]
    return seen, nova_host.delete(host, mine, event.consumer, now, cast.asked_at, cast.skew)


def _listed(
    host: HostRow, seen: EventsSeen, claims: Sequence[Claim], cast: NovaCast, now: float
) -> tuple[EventsSeen, NovaEffect]:
    assert isinstance(cast.word, GuestsListed)
    begun = math.inf if cast.begun is None else cast.begun
    if cast.asked_at is not None:
        behind = seen.synced_at - cast.asked_at
        if 0 <= behind <= SET_BACK_SECONDS:
            return seen, _renewed(host, claims, cast.word.consumers, now)
        seen = _replace(seen, synced_at=cast.asked_at)
        if cast.begun is None and now - cast.asked_at <= SET_BACK_SECONDS:
            begun = cast.asked_at - cast.skew
    effect = nova_host.sync(
        host, claims, cast.word.consumers, now, seen.unclaimed, cast.word.told, begun
    )
    return _replace(seen, unclaimed=effect.unclaimed), effect


def _renewed(
    host: HostRow, claims: Iterable[Claim], present: Collection[str], now: float
) -> NovaEffect:
    """Guests of the host in a list that may be of any time: their claims are kept."""
    listed = set(present)
    mine = [claim for claim in claims if claim.is_live and claim.provider_id == host.id]
    both = [(claim, nova_host.renewed(claim, now)) for claim in mine if guest_of(claim) in listed]
    return NovaEffect(claims=[becomes for claim, becomes in both if becomes != claim])


def _updated(
    host: HostRow, claims: Sequence[Claim], cast: NovaCast, guests: Sequence[NovaGuest], now: float
) -> NovaEffect:
    """Each guest once, as it was named last."""
    found: list[NovaEffect] = []
    begun = math.inf if cast.asked_at is None else cast.asked_at - cast.skew
    for guest in {guest.consumer: guest for guest in guests}.values():
        mine = [claim for claim in claims if guest_of(claim) == guest.consumer]
        found.append(nova_host.update(host, mine, guest, now, begun))
    return NovaEffect(
        claims=[claim for one in found for claim in one.claims],
        confirmed=[claim for one in found for claim in one.confirmed],
        released=[claim for one in found for claim in one.released],
        adopted=[claim for one in found for claim in one.adopted],
    )
