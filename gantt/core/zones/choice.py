# SPDX-License-Identifier: Apache-2.0
"""Which offers are taken: of the own hosts and of the zones below, best first.

A request that is whole, as its members have a hard rule between them, goes to one place.  Members
of any other may be split: each place gets as many as it has room for, the best one first.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gantt.core.messages.request import OfferedPlace, SelectDestinations
from gantt.core.zones.messages import ZoneOffer, ZoneRecord
from gantt.core.zones.score import ZoneScore


class Choice(msgspec.Struct, frozen=True):
    """A place that a request may go to.

    :ivar child: uuid of the zone below; None: the own hosts
    :ivar score: as it is compared here
    :ivar fits: so many members have a place there together
    :ivar last_resort: taken where no other has room
    """

    child: str | None
    place: OfferedPlace
    score: ZoneScore
    fits: int
    last_resort: bool = False

    @property
    def order(self) -> tuple[object, ...]:
        """Ascending, best first; of equals the own hosts, which are a call less away."""
        return self.last_resort, *self.score.order, self.child or '', self.place.token


class Share(msgspec.Struct, frozen=True):
    """Members that go to one place, by their number in the request."""

    choice: Choice
    members: list[int]


def is_whole(request: SelectDestinations) -> bool:
    """Whether all members have to go to one place."""
    group = request.spec.group
    return group is not None and (group.policy is None or group.policy.is_hard)


def offered(
    zone: ZoneRecord, evaluated: str, offers: Iterable[ZoneOffer], tier_most: float
) -> list[Choice]:
    """What a zone below offers, its scores as they are compared here.

    A zone can say anything: scores are kept within 0 and 1, levels and counts at 0 or more.

    :param evaluated: the id under which it was asked
    :param tier_most: the best tier that there is here
    """
    found, child = [], zone.uuid
    for one in offers:
        score = min(max(one.score * zone.scale + zone.offset, 0.0), 1.0)
        found.append(
            Choice(
                child,
                OfferedPlace(child=child, token=one.token, evaluated=evaluated),
                ZoneScore(max(one.level, 0), min(one.tier, tier_most), score),
                max(one.fits, 0),
                zone.last_resort,
            )
        )
    return found


def ranked(choices: Iterable[Choice]) -> list[Choice]:
    """Best first."""
    return sorted(choices, key=lambda one: one.order)


def split(members: Sequence[int], choices: Sequence[Choice], whole: bool) -> list[Share]:
    """Who goes where; empty: there is no room for all of them.

    :param choices: best first
    :param whole: all to one place
    """
    for choice in choices:
        if choice.fits >= len(members):
            return [Share(choice, list(members))]
    if whole:
        return []
    shares: list[Share] = []
    left = list(members)
    places: set[str | None] = set()
    for choice in choices:
        # What one place offers more than once is the same room.
        if choice.child in places or not choice.fits:
            continue
        places.add(choice.child)
        shares.append(Share(choice, left[: choice.fits]))
        left = left[choice.fits :]
        if not left:
            return shares
    return []
