# SPDX-License-Identifier: Apache-2.0
"""Strategies, each a way to query fewer zones for a request: their interface, and built-in ones.

Sources: the list of optimisations in the proposal of a tree of schedulers (Nova, 2011); two random
choices with outdated load: M. Mitzenmacher, "How Useful Is Old Information?", 2000; drawing without
replacement by weights: P. Efraimidis and P. Spirakis, "Weighted random sampling with a reservoir",
2006.

Each may be enabled or disabled separately, and any subset works: the zones left to query,
and that "no room" is returned only after all of them have answered, are up to
:mod:`gantt.zones.model.search`.  A strategy has an opinion on some aspects, and none on the
rest.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeVar

import msgspec

from gantt.core.messages.request import SelectDestinations
from gantt.core.plugin import Option, Plugin
from gantt.zones.model.choice import ZoneChoice
from gantt.zones.model.messages import ZoneFacts, ZoneRecord
from gantt.zones.model.summary import missing_capability

T = TypeVar('T')

#: In place of a number of zones: all remaining ones, regardless of other strategies.
ALL_ZONES = -1


class RandomSource(Protocol):
    """A source of randomness, such as :class:`random.Random`."""

    def random(self) -> float:
        """Return a number from 0 to below 1."""

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        """Return ``k`` items of the population, in random order."""


class KnownZone(msgspec.Struct, frozen=True):
    """A direct child zone, as it is known before it is queried.

    :ivar facts: its facts; None: not known
    :ivar room: expected number of members of the request that fit, above 0
    """

    zone: ZoneRecord
    facts: ZoneFacts | None = None
    room: float = 1.0


class ZoneStrategy(Plugin):
    """One way to query fewer zones.

    :cvar guarantee: property of its answers, in one sentence
    :cvar needs_summary: whether it needs the summaries that zones report in advance
    """

    guarantee: ClassVar[str] = ''
    needs_summary: ClassVar[bool] = False

    def rules_out(self, request: SelectDestinations, zone: KnownZone) -> str:
        """Return the reason why a zone cannot have a place, by facts only; '' if it may."""
        return ''

    def ordered(self, zones: Sequence[KnownZone], rng: RandomSource) -> Sequence[KnownZone]:
        """Return the zones in the order in which they are to be queried."""
        return zones

    def at_most(self, number: int, zones: int) -> int | None:
        """Return the upper bound of zones queried in a round, or ``ALL_ZONES``; None: no opinion.

        :param number: number of the round, from 0
        :param zones: total number of zones, those of earlier rounds included
        """
        return None

    def is_enough(self, found: Sequence[ZoneChoice], seen: float | None) -> bool | None:
        """Return whether no more zones have to be queried; None: no opinion.

        :param found: choices that have room for the whole request, best first, at least one
        :param seen: the best score seen lately for members of this size, from 0 to 1;
            None: none was
        """
        return None


class StaticRuleOut(ZoneStrategy):
    """Query no zone where a trait, a class or a place that is needed does not exist."""

    guarantee = 'the place that brute force takes'
    needs_summary = True

    def rules_out(self, request: SelectDestinations, zone: KnownZone) -> str:
        return '' if zone.facts is None else missing_capability(zone.facts, request.spec)


class BruteForce(ZoneStrategy):
    """Query all zones at once, where there are few of them: the plain way, and the oracle."""

    guarantee = 'the best place of all zones'
    options = (
        Option(
            'brute_force_max',
            int,
            8,
            'Up to so many zones are queried at once by BruteForce, whatever other strategies '
            'would do; 0: however many there are.',
            min=0,
        ),
    )
    brute_force_max: int

    def at_most(self, number: int, zones: int) -> int | None:
        return ALL_ZONES if zones <= self.brute_force_max or not self.brute_force_max else None


class RandomOrder(ZoneStrategy):
    """Query zones one after another in random order: the baseline for the others."""

    guarantee = 'a place where there is one'

    def ordered(self, zones: Sequence[KnownZone], rng: RandomSource) -> Sequence[KnownZone]:
        return rng.sample(zones, len(zones))

    def at_most(self, number: int, zones: int) -> int | None:
        return 1


class LikelyFirst(ZoneStrategy):
    """Query those zones first that seem to have the most room, some at a time."""

    guarantee = 'a place where there is one'
    needs_summary = True
    options = (
        Option('likely_first_each', int, 4, 'Zones that LikelyFirst queries at a time.', min=1),
    )
    likely_first_each: int

    def ordered(self, zones: Sequence[KnownZone], rng: RandomSource) -> Sequence[KnownZone]:
        return sorted(zones, key=lambda zone: -zone.room)

    def at_most(self, number: int, zones: int) -> int | None:
        return self.likely_first_each


class TopN(ZoneStrategy):
    """Query the zones that seem to have the most room, and where they have none all others."""

    guarantee = 'a place where there is one'
    needs_summary = True
    options = (Option('top_n_zones', int, 4, 'Zones that TopN queries first.', min=1),)
    top_n_zones: int

    def ordered(self, zones: Sequence[KnownZone], rng: RandomSource) -> Sequence[KnownZone]:
        return sorted(zones, key=lambda zone: -zone.room)

    def at_most(self, number: int, zones: int) -> int | None:
        return self.top_n_zones if number == 0 else None


class WeightedRandom(ZoneStrategy):
    """Query two zones drawn by their room, then eight, then all.

    Whoever goes where there seems to be most room meets all others who do: drawn at random they
    spread, however old the counts are.
    """

    guarantee = 'a place where there is one'
    needs_summary = True
    options = (
        Option('weighted_random_first', int, 2, 'Zones that WeightedRandom queries first.', min=1),
        Option(
            'weighted_random_then',
            int,
            8,
            'Zones that WeightedRandom queries where the first have no room; then all others.',
            min=1,
        ),
    )
    weighted_random_first: int
    weighted_random_then: int

    def ordered(self, zones: Sequence[KnownZone], rng: RandomSource) -> Sequence[KnownZone]:
        # The largest of u ** (1 / w) first; as logarithms, which do not underflow.
        keys = {zone.zone.uuid: math.log(1.0 - rng.random()) / zone.room for zone in zones}
        return sorted(zones, key=lambda zone: -keys[zone.zone.uuid])

    def at_most(self, number: int, zones: int) -> int | None:
        rounds = (self.weighted_random_first, self.weighted_random_then)
        return rounds[number] if number < len(rounds) else None


class GoodEnough(ZoneStrategy):
    """Query no more zones once a place is good enough."""

    guarantee = 'a place with a share of the best score seen lately, else the best of all'
    options = (
        Option(
            'good_enough_share',
            float,
            0.95,
            'A place is good enough for GoodEnough whose score has so large a share, from 0 to 1, '
            'of the best one that was seen in the last minutes for a guest of its size. Where none '
            'was seen all zones are queried.',
            min=0.0,
            max=1.0,
        ),
    )
    good_enough_share: float

    def is_enough(self, found: Sequence[ZoneChoice], seen: float | None) -> bool | None:
        if seen is None:
            return False
        return any(choice.score.score >= self.good_enough_share * seen for choice in found)


class Threshold(ZoneStrategy):
    """Query on until a place gives up no rule, and take one that does only where all have none."""

    guarantee = 'a place on the best level of the ladder of rules'

    def is_enough(self, found: Sequence[ZoneChoice], seen: float | None) -> bool | None:
        return found[0].score.level == 0


#: Strategies enabled by default.
DEFAULT = ('StaticRuleOut', 'BruteForce', 'WeightedRandom', 'Threshold')
