# SPDX-License-Identifier: Apache-2.0
"""The choice among offers of the own hosts and of child zones, best first.

A request that is whole, as its members must share a host, goes to one place.  Members
of any other may be split: each place gets as many as it has room for, the best one first.

Scores are comparable between zones.  Every weigher is on its absolute scale, so that its share of a
host does not depend on other hosts.  Weighers whose multiplier is a veto (a hundred thousand or
more) would dominate a sum: they form a separate tier, compared first.  The rest is the weighted
mean of the shares, from 0 for a host that is the worst for each weigher to 1 for the best.  Zones
with the same weighers, multipliers and settings have the same score set.
"""

import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gantt.core.messages.request import OfferedPlace, Policy, RequestSpec, SelectDestinations
from gantt.core.placement import ranking
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Answer, Outcome, Selection
from gantt.core.records.members import Finalist
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher
from gantt.zones.model.messages import ZoneOffer, ZoneRecord

#: Multiplier from which on a weigher acts as a veto if there is any other choice.
VETO_MULTIPLIER_MIN = 100_000.0


class ZoneScore(NamedTuple):
    """Score of a host: the level counts first, then the tier, then the score; see ``order``.

    :ivar level: of the ladder of rules; less is better
    :ivar tier: sum of the vetoes; more is better
    :ivar score: 0 to 1; more is better
    """

    level: int
    tier: float
    score: float

    @property
    def order(self) -> tuple[int, float, float]:
        """Sort key, best first."""
        return self.level, -self.tier, -self.score


class ScoreSet:
    """The weighers, multipliers and settings that determine a pipeline's scores.

    :ivar digest: equal for equal weighers, multipliers and settings
    """

    def __init__(self, weighers: Sequence[Weigher]) -> None:
        self._weighers = list(weighers)
        multipliers = [weigher.multiplier for weigher in weighers]
        self._is_veto = [abs(multiplier) >= VETO_MULTIPLIER_MIN for multiplier in multipliers]
        #: The best tier that a host may be in.
        self.tier_max = sum(
            m for m, is_veto in zip(multipliers, self._is_veto, strict=True) if is_veto and m > 0
        )
        non_vetoes = [
            m for m, is_veto in zip(multipliers, self._is_veto, strict=True) if not is_veto
        ]
        self._multiplier_sum_min = sum(m for m in non_vetoes if m < 0)
        self._multiplier_range = sum(m for m in non_vetoes if m > 0) - self._multiplier_sum_min
        parts = [(w.name, w.multiplier, _score_settings(w)) for w in weighers]
        self.digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()

    @staticmethod
    @functools.lru_cache(maxsize=8)
    def of(pipeline: Pipeline) -> 'ScoreSet':
        """Return the score set of a pipeline with comparable scores; cached by pipeline."""
        return ScoreSet(pipeline.weighers)

    def of_finalists(
        self,
        table: HostTable,
        spec: RequestSpec,
        names: Sequence[str],
        finalists: Sequence[Finalist],
    ) -> list[ZoneScore]:
        """Return the scores of hosts, by the raw values of the weighers when they were ranked.

        :param names: names of the weighers that ranked them, with any normalization and multipliers
        """
        rows = np.array([finalist.row for finalist in finalists], np.int64)
        weighted = np.zeros((len(finalists), len(self._weighers)))
        for used in {tuple(finalist.used) for finalist in finalists}:
            positions = [n for n, finalist in enumerate(finalists) if tuple(finalist.used) == used]
            raw = np.array([finalists[n].raw for n in positions])
            columns = {names[place]: column for column, place in enumerate(used)}
            for k, weigher in enumerate(self._weighers):
                column = columns.get(weigher.name)
                if column is not None:
                    scale = ranking.make_scale('absolute', weigher, table, spec, rows[positions])
                    shares = scale.shares(raw[:, column])
                    if shares is not None:
                        weighted[positions, k] = shares * weigher.multiplier
        lines = zip(finalists, weighted.tolist(), strict=True)
        return [self.score(finalist.level, line) for finalist, line in lines]

    def score(self, level: int, weighted: Sequence[float]) -> ZoneScore:
        """Return the score of one host.

        :param weighted: share times multiplier, by weigher
        """
        pairs = list(zip(weighted, self._is_veto, strict=True))
        tier = sum(weighted_score for weighted_score, is_veto in pairs if is_veto)
        score_sum = sum(weighted_score for weighted_score, is_veto in pairs if not is_veto)
        share = (
            (score_sum - self._multiplier_sum_min) / self._multiplier_range
            if self._multiplier_range
            else 0.0
        )
        return ZoneScore(level, tier, min(max(share, 0.0), 1.0))


def _score_settings(weigher: Weigher) -> list[tuple[str, object]]:
    """Return the settings that its shares follow from: all but normalization and multiplier."""
    return sorted(
        (name, value)
        for name, value in weigher.settings().items()
        if name not in (weigher.normalization_option, weigher.multiplier_option)
    )


class ZoneChoice(msgspec.Struct, frozen=True):
    """An offered place for a request.

    :ivar child: uuid of the child zone; None: the own hosts
    :ivar score: score on the scale of this zone
    :ivar fits: number of members that fit there together
    :ivar fits_in_zone: number of members that fit over all offers of its zone, at least ``fits``
    :ivar last_resort: taken only if no other has room
    :ivar is_trusted: its zone honours its offers; else taken after all trusted ones
    """

    child: str | None
    place: OfferedPlace
    score: ZoneScore
    fits: int
    last_resort: bool = False
    is_trusted: bool = True
    fits_in_zone: int = 0

    @property
    def room(self) -> int:
        """Number of members that may go to its zone, over all its offers."""
        return max(self.fits, self.fits_in_zone)

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key, best first; of equals the own hosts, which need no call.

        Equal offers of one zone stay in the order in which it prefers them.
        """
        rank = self.last_resort, not self.is_trusted
        return *rank, *self.score.order, self.child or ''


def child_selection(consumer: str, child: str, **fields: Any) -> Selection:
    """Return a selection of a host of a child zone, which does not name it.

    :param child: name of the zone
    :param fields: other fields of the selection
    """
    return Selection(
        host='', node='', uuid='', provider_id=0, consumer=consumer, child=child, **fields
    )


class ZoneShare(msgspec.Struct, frozen=True):
    """Members that go to one place, by their number in the request.

    :ivar choice: the best offer of that place
    :ivar spare: other offers of the place with room for these members
    """

    choice: ZoneChoice
    members: list[int]
    spare: tuple[ZoneChoice, ...] = ()

    @property
    def offers(self) -> list[ZoneChoice]:
        """Offers to try at the place, as other requests may have taken the best one."""
        return [self.choice, *self.spare]


def _share(choice: ZoneChoice, members: list[int], choices: Sequence[ZoneChoice]) -> ZoneShare:
    # If no single offer has room for them, the zone places them over all its offers.
    fits_min = len(members) if choice.fits >= len(members) else 0
    spare = (
        offer
        for offer in choices
        if offer is not choice and offer.child == choice.child and offer.fits >= fits_min
    )
    return ZoneShare(choice, members, tuple(spare))


class GoneOffers:
    """Offers of one request that were not honoured, and are not tried again.

    The own hosts are evaluated again each time, so for them the number of members that did not
    fit is recorded.

    :ivar count: number of offers that were not honoured
    :ivar own_refusal: answer of the own hosts that is neither a placement nor "no room"
    """

    def __init__(self) -> None:
        self.count = 0
        self.own_refusal: Answer | None = None
        self._gone_tokens: set[tuple[str, str]] = set()
        self._own_members_max: int | None = None

    def drop(self, share: ZoneShare, answer: Answer | None = None) -> None:
        """Drop the offers of a share.

        :param answer: of the own hosts
        """
        self.count += 1
        if share.choice.child is None:
            self._own_members_max = len(share.members) - 1
        if answer is not None and answer.outcome is not Outcome.NO_VALID_HOST:
            self.own_refusal = answer
        self._gone_tokens.update(
            (offer.child, offer.place.token) for offer in share.offers if offer.child
        )

    def drop_zone(self, child: str | None, choices: Iterable[ZoneChoice]) -> None:
        """Drop all offers of a zone; None: of the own hosts."""
        self.count += 1
        if child is None:
            self._own_members_max = 0
        else:
            self._gone_tokens.update(
                (child, offer.place.token) for offer in choices if offer.child == child
            )

    def remaining(self, choices: Iterable[ZoneChoice]) -> list[ZoneChoice]:
        """Return the choices that may still be taken."""
        own_most, remaining = self._own_members_max, []
        for offer in choices:
            if offer.child is not None:
                if (offer.child, offer.place.token) not in self._gone_tokens:
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


def choices_of_offers(
    zone: ZoneRecord,
    evaluated: str,
    offers: Iterable[ZoneOffer],
    tier_max: float,
    is_trusted: bool = True,
    fits_in_zone: int = 0,
) -> list[ZoneChoice]:
    """Return the offers of a child zone as choices, with scores on the scale of this zone.

    Offers are not trusted: scores are clamped to 0 to 1, levels and counts to 0 or more.

    :param evaluated: the id under which the zone was queried
    :param tier_max: the best tier of this zone
    :param fits_in_zone: number of members that have places there in total
    """
    offered_choices, child = [], zone.uuid
    for offer in offers:
        score = min(max(offer.score * zone.scale + zone.offset, 0.0), 1.0)
        offered_choices.append(
            ZoneChoice(
                child,
                OfferedPlace(child=child, token=offer.token, evaluated=evaluated),
                ZoneScore(max(offer.level, 0), min(offer.tier, tier_max), score),
                max(offer.fits, 0),
                zone.last_resort,
                is_trusted,
                fits_in_zone,
            )
        )
    return offered_choices


def best_first(choices: Iterable[ZoneChoice]) -> list[ZoneChoice]:
    """Return the choices, best first."""
    return sorted(choices, key=lambda choice: choice.order)


def unchanged_first(places: Iterable[tuple[OfferedPlace, bool]]) -> list[OfferedPlace]:
    """Return offered places in the order in which they are tried for claiming.

    Concurrent requests prefer the same places: a later one first tries places that have not
    changed since they were offered.

    :param places: in the order of the offers, and whether each has changed since
    """
    return [place for place, _ in sorted(places, key=lambda place: place[1])]


def split_over_choices(
    members: Sequence[int], choices: Sequence[ZoneChoice], whole: bool
) -> list[ZoneShare]:
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


def _split(members: Sequence[int], choices: Sequence[ZoneChoice], whole: bool) -> list[ZoneShare]:
    for choice in choices:
        if choice.fits >= len(members):
            return [_share(choice, list(members), choices)]
    if whole:
        return []
    # Several offers of the own hosts are the same room: the best offer counts, and if the best
    # of all have no room for all members, the largest.
    roomiest = sorted(choices, key=lambda choice: -choice.room)
    return _spread(members, choices) or _spread(members, roomiest)


def places_in_all(choices: Iterable[ZoneChoice], members: int) -> int:
    """Return the number of members that have places over all choices."""
    rooms: dict[str | None, int] = {}
    for offer in choices:
        rooms[offer.child] = max(rooms.get(offer.child, 0), offer.room)
    return min(members, sum(rooms.values()))


def _spread(members: Sequence[int], choices: Sequence[ZoneChoice]) -> list[ZoneShare]:
    """Split members over the first offer of each place; return nothing if not all fit."""
    shares: list[ZoneShare] = []
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
