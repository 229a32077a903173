# SPDX-License-Identifier: Apache-2.0
"""The choice among offers of the own hosts and of child zones, best first.

A request that is whole, as its members must share a host, goes to one place.  Members
of any other may be split: each place gets as many as it has room for, the best one first.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gantt.core.messages.request import OfferedPlace, Policy, SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.core.zones.messages import ZoneOffer, ZoneRecord
from gantt.core.zones.score import ZoneScore


class Choice(msgspec.Struct, frozen=True):
    """An offered place for a request.

    :ivar child: uuid of the child zone; None: the own hosts
    :ivar score: score on the scale of this zone
    :ivar fits: number of members that fit there together
    :ivar together: number of members that fit over all offers of its zone, at least ``fits``
    :ivar last_resort: taken only if no other has room
    :ivar is_trusted: its zone honours its offers; else taken after all trusted ones
    """

    child: str | None
    place: OfferedPlace
    score: ZoneScore
    fits: int
    last_resort: bool = False
    is_trusted: bool = True
    together: int = 0

    @property
    def room(self) -> int:
        """Number of members that may go to its zone, over all its offers."""
        return max(self.fits, self.together)

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key, best first; of equals the own hosts, which need no call.

        Equal offers of one zone stay in the order in which it prefers them.
        """
        rank = self.last_resort, not self.is_trusted
        return *rank, *self.score.order, self.child or ''


class Share(msgspec.Struct, frozen=True):
    """Members that go to one place, by their number in the request.

    :ivar choice: the best offer of that place
    :ivar spare: other offers of the place with room for these members
    """

    choice: Choice
    members: list[int]
    spare: tuple[Choice, ...] = ()

    @property
    def offers(self) -> list[Choice]:
        """Offers to try at the place, as others may have taken the best one first."""
        return [self.choice, *self.spare]


def _share(choice: Choice, members: list[int], choices: Sequence[Choice]) -> Share:
    # If no single offer has room for them, the zone places them over all its offers.
    fits_min = len(members) if choice.fits >= len(members) else 0
    spare = (
        offer
        for offer in choices
        if offer is not choice and offer.child == choice.child and offer.fits >= fits_min
    )
    return Share(choice, members, tuple(spare))


class GoneOffers:
    """Offers of one request that were not honoured, and are not taken again.

    The own hosts are evaluated again each time, so for them the number of members that did not
    fit is recorded.

    :ivar count: number of offers that were not honoured
    :ivar undecided: answer of the own hosts that is neither a placement nor "no room"
    """

    def __init__(self) -> None:
        self.count = 0
        self.undecided: Answer | None = None
        self._tokens: set[tuple[str, str]] = set()
        self._own_most: int | None = None

    def drop(self, share: Share, answer: Answer | None = None) -> None:
        """Drop the offers of a share.

        :param answer: of the own hosts
        """
        self.count += 1
        if share.choice.child is None:
            self._own_most = len(share.members) - 1
        if answer is not None and answer.outcome is not Outcome.NO_VALID_HOST:
            self.undecided = answer
        self._tokens.update(
            (offer.child, offer.place.token) for offer in share.offers if offer.child
        )

    def drop_zone(self, child: str | None, choices: Iterable[Choice]) -> None:
        """Drop all offers of a zone; None: of the own hosts."""
        self.count += 1
        if child is None:
            self._own_most = 0
        else:
            self._tokens.update(
                (child, offer.place.token) for offer in choices if offer.child == child
            )

    def left(self, choices: Iterable[Choice]) -> list[Choice]:
        """Return the choices that may still be taken."""
        own_most, remaining = self._own_most, []
        for offer in choices:
            if offer.child is not None:
                if (offer.child, offer.place.token) not in self._tokens:
                    remaining.append(offer)
            elif own_most is None or offer.fits <= own_most:
                remaining.append(offer)
            elif own_most:
                remaining.append(msgspec.structs.replace(offer, fits=own_most))
        return remaining


def is_whole(request: SelectDestinations) -> bool:
    """Return whether all members have to go to one place.

    Anti-affinity does not require it: members in different zones are on different hosts.
    """
    group = request.spec.group
    return group is not None and (group.policy is None or group.policy is Policy.AFFINITY)


def offered(
    zone: ZoneRecord,
    evaluated: str,
    offers: Iterable[ZoneOffer],
    tier_most: float,
    is_trusted: bool = True,
    together: int = 0,
) -> list[Choice]:
    """Return the offers of a child zone as choices, with scores on the scale of this zone.

    Offers are not trusted: scores are clamped to 0 to 1, levels and counts to 0 or more.

    :param evaluated: the id under which the zone was queried
    :param tier_most: the best tier of this zone
    :param together: number of members that have places there in total
    """
    offered_choices, child = [], zone.uuid
    for offer in offers:
        score = min(max(offer.score * zone.scale + zone.offset, 0.0), 1.0)
        offered_choices.append(
            Choice(
                child,
                OfferedPlace(child=child, token=offer.token, evaluated=evaluated),
                ZoneScore(max(offer.level, 0), min(offer.tier, tier_most), score),
                max(offer.fits, 0),
                zone.last_resort,
                is_trusted,
                together,
            )
        )
    return offered_choices


def ranked(choices: Iterable[Choice]) -> list[Choice]:
    """Return the choices, best first."""
    return sorted(choices, key=lambda choice: choice.order)


def unchanged_first(places: Iterable[tuple[OfferedPlace, bool]]) -> list[OfferedPlace]:
    """Return offered places in the order in which they are tried for claiming.

    Concurrent requests prefer the same places: a later one first tries places that have not
    changed since they were offered.

    :param places: in the order of the offers, and whether each has changed since
    """
    return [place for place, _ in sorted(places, key=lambda place: place[1])]


def split(members: Sequence[int], choices: Sequence[Choice], whole: bool) -> list[Share]:
    """Return the shares of the members by place; empty if there is no room for all.

    :param choices: best first
    :param whole: all to one place
    """
    ordinary = [offer for offer in choices if not offer.last_resort]
    for among in (ordinary, choices) if len(ordinary) < len(choices) else (choices,):
        shares = _split(members, among, whole)
        if shares:
            return shares
    return []


def _split(members: Sequence[int], choices: Sequence[Choice], whole: bool) -> list[Share]:
    for choice in choices:
        if choice.fits >= len(members):
            return [_share(choice, list(members), choices)]
    if whole:
        return []
    # Several offers of the own hosts are the same room: the best offer counts, and if the best
    # of all have no room for all members, the largest.
    roomiest = sorted(choices, key=lambda choice: -choice.room)
    return _spread(members, choices) or _spread(members, roomiest)


def in_all(choices: Iterable[Choice], members: int) -> int:
    """Return the number of members that have places over all choices."""
    rooms: dict[str | None, int] = {}
    for offer in choices:
        rooms[offer.child] = max(rooms.get(offer.child, 0), offer.room)
    return min(members, sum(rooms.values()))


def _spread(members: Sequence[int], choices: Sequence[Choice]) -> list[Share]:
    """Split members over the first offer of each place; return nothing if not all fit."""
    shares: list[Share] = []
    remaining = list(members)
    places: set[str | None] = set()
    for choice in choices:
        if choice.child in places or not choice.room:
            continue
        places.add(choice.child)
        shares.append(_share(choice, remaining[: choice.room], choices))
        remaining = remaining[choice.room :]
        if not remaining:
            return shares
    return []
