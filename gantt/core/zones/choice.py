# SPDX-License-Identifier: Apache-2.0
"""Which offers are taken: of the own hosts and of the zones below, best first.

A request that is whole, as its members are to be on one host, goes to one place.  Members
of any other may be split: each place gets as many as it has room for, the best one first.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gantt.core.messages.request import OfferedPlace, Policy, SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.core.zones.messages import ZoneOffer, ZoneRecord
from gantt.core.zones.score import ZoneScore


class Choice(msgspec.Struct, frozen=True):
    """A place that a request may go to.

    :ivar child: uuid of the zone below; None: the own hosts
    :ivar score: as it is compared here
    :ivar fits: so many members have a place there together
    :ivar together: as many have one over all offers of its zone, at least ``fits``
    :ivar last_resort: taken where no other has room
    :ivar is_trusted: its zone honours what it offers; else taken after those of the others
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
        """Members that may go to its zone, over all that it offers."""
        return max(self.fits, self.together)

    @property
    def order(self) -> tuple[object, ...]:
        """Ascending, best first; of equals the own hosts, which are a call less away.

        Equal offers of one zone stay in the order in which it prefers them.
        """
        first = self.last_resort, not self.is_trusted
        return *first, *self.score.order, self.child or ''


class Share(msgspec.Struct, frozen=True):
    """Members that go to one place, by their number in the request.

    :ivar choice: the best offer of that place
    :ivar spare: others of its offers that have room for these members
    """

    choice: Choice
    members: list[int]
    spare: tuple[Choice, ...] = ()

    @property
    def offers(self) -> list[Choice]:
        """All that may be taken there: others may have come to the best one first."""
        return [self.choice, *self.spare]


def _share(choice: Choice, members: list[int], choices: Sequence[Choice]) -> Share:
    # Where no one offer has room for them the zone places them over all that it has offered.
    least = len(members) if choice.fits >= len(members) else 0
    spare = (
        one
        for one in choices
        if one is not choice and one.child == choice.child and one.fits >= least
    )
    return Share(choice, members, tuple(spare))


class GoneOffers:
    """Offers of one request that were not honoured: they are not taken again.

    The own hosts are looked at anew each time, so that of them it is known for how many members
    they had no room.

    :ivar count: how often one was gone
    :ivar undecided: what the own hosts have answered in place of whether they have room
    """

    def __init__(self) -> None:
        self.count = 0
        self.undecided: Answer | None = None
        self._tokens: set[tuple[str, str]] = set()
        self._own_most: int | None = None

    def drop(self, share: Share, answer: Answer | None = None) -> None:
        """What was offered for a share.

        :param answer: of the own hosts
        """
        self.count += 1
        if share.choice.child is None:
            self._own_most = len(share.members) - 1
        if answer is not None and answer.outcome is not Outcome.NO_VALID_HOST:
            self.undecided = answer
        self._tokens.update((one.child, one.place.token) for one in share.offers if one.child)

    def drop_zone(self, child: str | None, choices: Iterable[Choice]) -> None:
        """All that a zone has offered; None: the own hosts."""
        self.count += 1
        if child is None:
            self._own_most = 0
        else:
            self._tokens.update((child, one.place.token) for one in choices if one.child == child)

    def left(self, choices: Iterable[Choice]) -> list[Choice]:
        """Those that may be taken."""
        most, found = self._own_most, []
        for one in choices:
            if one.child is not None:
                if (one.child, one.place.token) not in self._tokens:
                    found.append(one)
            elif most is None or one.fits <= most:
                found.append(one)
            elif most:
                found.append(msgspec.structs.replace(one, fits=most))
        return found


def is_whole(request: SelectDestinations) -> bool:
    """Whether all members have to go to one place.

    Who may not share a host is apart in different zones as well.
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
    """What a zone below offers, its scores as they are compared here.

    A zone can say anything: scores are kept within 0 and 1, levels and counts at 0 or more.

    :param evaluated: the id under which it was asked
    :param tier_most: the best tier that there is here
    :param together: members that have places there in all
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
                is_trusted,
                together,
            )
        )
    return found


def ranked(choices: Iterable[Choice]) -> list[Choice]:
    """Best first."""
    return sorted(choices, key=lambda one: one.order)


def unchanged_first(places: Iterable[tuple[OfferedPlace, bool]]) -> list[OfferedPlace]:
    """Places that were offered, in the order in which they are tried when they are claimed.

    Requests that are under way together find the same places the best ones: who comes later goes
    where it is still as it was offered.

    :param places: in the order of the offers, and whether something has changed there since
    """
    return [place for place, _ in sorted(places, key=lambda one: one[1])]


def split(members: Sequence[int], choices: Sequence[Choice], whole: bool) -> list[Share]:
    """Who goes where; empty: there is no room for all of them.

    :param choices: best first
    :param whole: all to one place
    """
    usual = [one for one in choices if not one.last_resort]
    for among in (usual, choices) if len(usual) < len(choices) else (choices,):
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
    # What the own hosts offer more than once is the same room: the best offer counts, and where
    # the best of all have no room for all members the roomiest.
    roomiest = sorted(choices, key=lambda one: -one.room)
    return _spread(members, choices) or _spread(members, roomiest)


def in_all(choices: Iterable[Choice], members: int) -> int:
    """How many members have places over all of them."""
    rooms: dict[str | None, int] = {}
    for one in choices:
        rooms[one.child] = max(rooms.get(one.child, 0), one.room)
    return min(members, sum(rooms.values()))


def _spread(members: Sequence[int], choices: Sequence[Choice]) -> list[Share]:
    """Members over the first offer of each place; empty: there is no room for all of them."""
    shares: list[Share] = []
    left = list(members)
    places: set[str | None] = set()
    for choice in choices:
        if choice.child in places or not choice.room:
            continue
        places.add(choice.child)
        shares.append(_share(choice, left[: choice.room], choices))
        left = left[choice.room :]
        if not left:
            return shares
    return []
