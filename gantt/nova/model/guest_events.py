# SPDX-License-Identifier: Apache-2.0
"""Events about a host that an unmodified Nova runs: each applied once, in a sane order.

Every scheduler process receives every broadcast, late or soon.  The first one folds it under the
lock of the host's row; the others find its id here.  A list of guests that is older than the last
one folded ends nothing, as three absences are three lists in a row as the host sent them.  It may
be as old as it seems, or of a clock that was put back: guests in it keep their claims.  Neither
does a list end or confirm a claim that changed after the list was begun, nor adopt a guest with
such a claim: it may have left since.

For a host that an agent of ours reports, Nova's events are ignored.
"""

import math
from collections.abc import Collection, Iterable, Sequence

import msgspec

from gantt.core.claims.claim import Claim, guest_of
from gantt.core.messages.report import DICTIONARY_NONCE
from gantt.core.resources.host import HostRow
from gantt.nova.model import host as nova_host
from gantt.nova.model.events import GuestDeleted, GuestsListed, GuestsUpdated, NovaCast, NovaGuest
from gantt.nova.model.host import NovaEffect

#: Ids of broadcasts kept for each host: of an hour and more, of syncs only, and of a restart.
STORED_CASTS_MAX = 64
#: A clock set back by more than this is accepted: no message waits so long in a queue.
CLOCK_SET_BACK_SECONDS = 1800.0
_replace = msgspec.structs.replace


class EventsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Record of the events about one host.

    :ivar casts: ids of the last broadcasts folded, the newest last
    :ivar unclaimed: guests in the host's last list without a known claim
    :ivar synced_at: when the host began its last list, by its clock
    """

    casts: list[str] = []
    unclaimed: list[str] = []
    synced_at: float = 0.0

    def has_applied(self, cast: NovaCast) -> bool:
        """Return whether a broadcast was applied before."""
        return bool(cast.id) and cast.id in self.casts


def takes_nova_events(host: HostRow) -> bool:
    """Return whether events of Nova about a host apply.

    A host that reports in dictionaries has no other source for its guests.
    """
    return host.reporter == 'nova' or host.boot_nonce == DICTIONARY_NONCE


def with_cast(seen: EventsSeen, cast: NovaCast) -> EventsSeen:
    """Return the record with the id of one more applied broadcast."""
    if not cast.id:
        return seen
    return _replace(seen, casts=[*seen.casts, cast.id][-STORED_CASTS_MAX:])


def consumers_of(cast: NovaCast) -> list[str]:
    """Return the guests that a cast names."""
    event = cast.event
    if isinstance(event, GuestsListed):
        return list(event.consumers)
    if isinstance(event, GuestsUpdated):
        return [guest.consumer for guest in event.guests]
    return [event.consumer] if isinstance(event, GuestDeleted) else []


def fold(
    host: HostRow, seen: EventsSeen, claims: Sequence[Claim], cast: NovaCast, now: float
) -> tuple[EventsSeen, NovaEffect]:
    """Fold one broadcast about guests of one host.

    :param claims: all claims, live and final, on any host, of the consumers that the cast names and
        of those with a live claim here
    """
    if seen.has_applied(cast):
        return seen, NovaEffect()
    seen, event = with_cast(seen, cast), cast.event
    if isinstance(event, GuestsListed):
        return _fold_list(host, seen, claims, cast, now)
    if isinstance(event, GuestsUpdated):
        return seen, _fold_update(host, claims, cast, event.guests, now)
    if not isinstance(event, GuestDeleted):
        return seen, NovaEffect()
    of_guest = [claim for claim in claims if guest_of(claim) == event.consumer]
    return seen, nova_host.apply_delete(
        host, of_guest, event.consumer, now, cast.requested_at, cast.skew
    )


def _fold_list(
    host: HostRow, seen: EventsSeen, claims: Sequence[Claim], cast: NovaCast, now: float
) -> tuple[EventsSeen, NovaEffect]:
    assert isinstance(cast.event, GuestsListed)
    begun = math.inf if cast.database_time is None else cast.database_time
    if cast.requested_at is not None:
        seconds_behind = seen.synced_at - cast.requested_at
        if 0 <= seconds_behind <= CLOCK_SET_BACK_SECONDS:
            return seen, _renew_leases(host, claims, cast.event.consumers, now)
        seen = _replace(seen, synced_at=cast.requested_at)
        if cast.database_time is None and now - cast.requested_at <= CLOCK_SET_BACK_SECONDS:
            begun = cast.requested_at - cast.skew
    effect = nova_host.apply_guest_list(
        host, claims, cast.event.consumers, now, seen.unclaimed, cast.event.described, begun
    )
    return _replace(seen, unclaimed=effect.unclaimed), effect


def _renew_leases(
    host: HostRow, claims: Iterable[Claim], present: Collection[str], now: float
) -> NovaEffect:
    """Renew the leases of claims whose guests are in a list of unknown age."""
    listed = set(present)
    live_here = [claim for claim in claims if claim.is_live and claim.provider_id == host.id]
    renewals = [
        (claim, nova_host.with_renewed_lease(claim, now))
        for claim in live_here
        if guest_of(claim) in listed
    ]
    return NovaEffect(claims=[becomes for claim, becomes in renewals if becomes != claim])


def _fold_update(
    host: HostRow, claims: Sequence[Claim], cast: NovaCast, guests: Sequence[NovaGuest], now: float
) -> NovaEffect:
    """Fold an update of guests, each once, in its last state."""
    effects: list[NovaEffect] = []
    begun = math.inf if cast.requested_at is None else cast.requested_at - cast.skew
    for guest in {guest.consumer: guest for guest in guests}.values():
        of_guest = [claim for claim in claims if guest_of(claim) == guest.consumer]
        effects.append(nova_host.apply_update(host, of_guest, guest, now, begun))
    return NovaEffect(
        claims=[claim for effect in effects for claim in effect.claims],
        confirmed=[claim for effect in effects for claim in effect.confirmed],
        released=[claim for effect in effects for claim in effect.released],
        adopted=[claim for effect in effects for claim in effect.adopted],
    )
