# SPDX-License-Identifier: Apache-2.0
"""The search over child zones for a request, in rounds of queries.

Rounds continue until the offers have room for all members and the strategies agree, or all
zones have been queried: so the strategies decide the number of calls, and never whether a place
is found.  Zones of last resort are queried after the others, if those have no room.

The zones that were not queried, by which strategy and why, are recorded for the explanation.
"""

from collections.abc import Sequence

import msgspec

from gantt.core.messages.request import SelectDestinations
from gantt.zones.model import choice
from gantt.zones.model.choice import ZoneChoice
from gantt.zones.model.strategies import ALL_ZONES, KnownZone, RandomSource, ZoneStrategy

LAST_RESORT_RULE = 'last resort'


class SkippedZone(msgspec.Struct, frozen=True):
    """A zone that was not queried.

    :ivar strategy: its name
    """

    zone: KnownZone
    strategy: str
    reason: str


class ZoneSearch:
    """The rounds for one request.

    :param zones: zones that may be queried
    :param best_seen: the best score seen lately for members of this size; None: none was
    :ivar found: all choices so far, unordered
    :ivar ruled_out: zones that are not queried because of their facts
    """

    def __init__(
        self,
        request: SelectDestinations,
        zones: Sequence[KnownZone],
        strategies: Sequence[ZoneStrategy],
        rng: RandomSource,
        best_seen: float | None = None,
    ) -> None:
        self._request = request
        self._strategies = strategies
        self._best_seen = best_seen
        self._members = range(len(request.consumers))
        # A parent zone takes one offer of this zone: it cannot split members over child zones.
        self._is_whole = choice.is_whole(request) or bool(request.via)
        self.found: list[ZoneChoice] = []
        self._sufficient: list[ZoneChoice] | None = None
        self.ruled_out: list[SkippedZone] = []
        remaining = [known_zone for known_zone in zones if not self._is_ruled_out(known_zone)]
        ordinary = [known_zone for known_zone in remaining if not known_zone.zone.last_resort]
        #: Zones that are still to be queried, by group.
        self._groups = [self._ordered(ordinary, rng)]
        self._groups.append(
            self._ordered(
                [known_zone for known_zone in remaining if known_zone.zone.last_resort], rng
            )
        )
        self._sizes = [len(group) for group in self._groups]
        self._group = 0
        self._round = 0
        self._limiting_strategy = ''

    def next_round(self) -> list[KnownZone]:
        """Return the zones to query next; empty: the search has ended."""
        while self._group < len(self._groups):
            remaining = self._groups[self._group]
            if self._is_done() and (self._round or self._group):
                return []
            if remaining:
                size = self._round_size(len(remaining))
                self._round += 1
                self._groups[self._group] = remaining[size:]
                return remaining[:size]
            if self._group + 1 < len(self._groups) and self._has_room():
                return []
            self._group, self._round = self._group + 1, 0
        return []

    def answered(self, found: Sequence[ZoneChoice]) -> None:
        """Add the offers of a queried zone."""
        self.found += found
        self._sufficient = None

    def query_after_all(self, zone: KnownZone) -> None:
        """Query a zone that was ruled out by facts which have changed."""
        self.ruled_out = [skipped for skipped in self.ruled_out if skipped.zone is not zone]
        group = 1 if zone.zone.last_resort else 0
        self._groups[group] = [*self._groups[group], zone]
        self._sizes[group] += 1
        self._group = min(self._group, group)

    def is_enough(self) -> bool:
        """Return whether the offers have room for all members, and the strategies agree."""
        return self._has_room() and self._do_strategies_agree()

    def not_queried(self) -> list[SkippedZone]:
        """Return the zones that were not queried, with strategy and reason."""
        skipped = list(self.ruled_out)
        for number, group in enumerate(self._groups):
            for zone in group:
                by, reason = self._limiting_strategy, 'not needed: what was found is enough'
                if number and number > self._group or not by:
                    by, reason = LAST_RESORT_RULE, 'not needed: others have room'
                skipped.append(SkippedZone(zone, by, reason))
        return skipped

    # -- inside ------------------------------------------------------------------------
    def _is_ruled_out(self, zone: KnownZone) -> bool:
        for strategy in self._strategies:
            reason = strategy.rules_out(self._request, zone)
            if reason:
                self.ruled_out.append(SkippedZone(zone, strategy.name, reason))
                return True
        return False

    def _ordered(self, zones: Sequence[KnownZone], rng: RandomSource) -> list[KnownZone]:
        for strategy in self._strategies:
            zones = strategy.ordered(zones, rng)
        return list(zones)

    def _round_size(self, left: int) -> int:
        """Return the number of zones to query next, the smallest bound of the strategies."""
        size, by = left, ''
        for strategy in self._strategies:
            limit = strategy.at_most(self._round, self._sizes[self._group])
            if limit == ALL_ZONES:
                return left
            if limit is not None and limit < size:
                size, by = max(1, limit), strategy.name
        self._limiting_strategy = by or self._limiting_strategy
        return size

    def _is_done(self) -> bool:
        if not self._groups[self._group]:
            return False
        return self._has_room() and self._do_strategies_agree()

    def _sufficient_choices(self) -> list[ZoneChoice]:
        """Return the choices with room for all members, best first; or the worst of a split."""
        if self._sufficient is None:
            ranked = choice.best_first(self.found)
            member_count = len(self._members)
            self._sufficient = [offer for offer in ranked if offer.fits >= member_count]
            if not self._sufficient:
                shares = choice.split_over_choices(self._members, ranked, self._is_whole)
                self._sufficient = (
                    [max((s.choice for s in shares), key=_choice_order)] if shares else []
                )
        return self._sufficient

    def _has_room(self) -> bool:
        return bool(self._sufficient_choices())

    def _do_strategies_agree(self) -> bool:
        complete, best_seen = self._sufficient_choices(), self._best_seen
        opinions = [strategy.is_enough(complete, best_seen) for strategy in self._strategies]
        return all(opinion is not False for opinion in opinions)


def _choice_order(one: ZoneChoice) -> tuple[object, ...]:
    return one.order
