# SPDX-License-Identifier: Apache-2.0
"""Which zones below are queried for a request, round by round.

Rounds go on until what was found has room for all members and the strategies are content, or all
zones have been queried: so the strategies decide how many calls a place costs, and never whether
there is one.  Zones of last resort are queried after the others, where those have no room.

What was done, and what was left out by whom and why, is noted for the explanation.
"""

from collections.abc import Sequence

import msgspec

from gantt.core.messages.request import SelectDestinations
from gantt.core.zones import choice
from gantt.core.zones.choice import Choice
from gantt.core.zones.strategy import ALL, Dice, KnownZone, ZoneStrategy

LAST_RESORT = 'last resort'


class NotQueried(msgspec.Struct, frozen=True):
    """A zone that was not queried.

    :ivar by: name of the strategy
    :ivar is_final: it has no place, by facts; else nobody knows
    """

    zone: KnownZone
    by: str
    reason: str
    is_final: bool = False


class ZoneSearch:
    """The rounds for one request.

    :param zones: those that may be queried
    :param seen: the best score that was seen lately for members of this size; None: none was
    :ivar found: all choices that there are, in no order
    :ivar ruled_out: zones that are not queried, by facts
    """

    def __init__(
        self,
        request: SelectDestinations,
        zones: Sequence[KnownZone],
        strategies: Sequence[ZoneStrategy],
        dice: Dice,
        seen: float | None = None,
    ) -> None:
        self._request, self._strategies, self._seen = request, strategies, seen
        self._members = range(len(request.consumers))
        # A zone above takes one offer of this one: it cannot split members over what is below here.
        self._whole = choice.is_whole(request) or bool(request.via)
        self.found: list[Choice] = []
        self._best: list[Choice] | None = None
        self.ruled_out: list[NotQueried] = []
        left = [one for one in zones if not self._is_ruled_out(one)]
        first = [one for one in left if not one.zone.last_resort]
        #: Zones that are still to be queried, by group.
        self._groups = [self._ordered(first, dice)]
        self._groups.append(self._ordered([one for one in left if one.zone.last_resort], dice))
        self._sizes = [len(group) for group in self._groups]
        self._group, self._round, self._limited_by = 0, 0, ''

    def next_round(self) -> list[KnownZone]:
        """Whom to query now; empty: no more."""
        while self._group < len(self._groups):
            left = self._groups[self._group]
            if self._is_done() and (self._round or self._group):
                return []
            if left:
                size = self._round_size(len(left))
                self._round += 1
                self._groups[self._group] = left[size:]
                return left[:size]
            if self._group + 1 < len(self._groups) and self._has_room():
                return []
            self._group, self._round = self._group + 1, 0
        return []

    def answered(self, found: Sequence[Choice]) -> None:
        """What a zone that was queried offers."""
        self.found += found
        self._best = None

    def query_after_all(self, zone: KnownZone) -> None:
        """A zone that was ruled out by facts which are no longer so."""
        self.ruled_out = [one for one in self.ruled_out if one.zone is not zone]
        group = 1 if zone.zone.last_resort else 0
        self._groups[group] = [*self._groups[group], zone]
        self._sizes[group] += 1
        self._group = min(self._group, group)

    def is_enough(self) -> bool:
        """Whether what was found has room for all members, and the strategies are content."""
        return self._has_room() and self._are_content()

    def not_queried(self) -> list[NotQueried]:
        """What was left out, by whom and why."""
        found = list(self.ruled_out)
        for number, group in enumerate(self._groups):
            for one in group:
                by, reason = self._limited_by, 'not needed: what was found is enough'
                if number and number > self._group or not by:
                    by, reason = LAST_RESORT, 'not needed: others have room'
                found.append(NotQueried(one, by, reason))
        return found

    # -- inside ------------------------------------------------------------------------
    def _is_ruled_out(self, zone: KnownZone) -> bool:
        for strategy in self._strategies:
            reason = strategy.rules_out(self._request, zone)
            if reason:
                self.ruled_out.append(NotQueried(zone, strategy.name, reason, is_final=True))
                return True
        return False

    def _ordered(self, zones: Sequence[KnownZone], dice: Dice) -> list[KnownZone]:
        for strategy in self._strategies:
            zones = strategy.ordered(zones, dice)
        return list(zones)

    def _round_size(self, left: int) -> int:
        """How many of the zones that are left; the smallest that a strategy wants."""
        size, by = left, ''
        for strategy in self._strategies:
            most = strategy.at_most(self._round, self._sizes[self._group])
            if most == ALL:
                return left
            if most is not None and most < size:
                size, by = max(1, most), strategy.name
        self._limited_by = by or self._limited_by
        return size

    def _is_done(self) -> bool:
        if not self._groups[self._group]:
            return False
        return self._has_room() and self._are_content()

    def _complete(self) -> list[Choice]:
        """Those that have room for all members, best first; or the worst of a split."""
        if self._best is None:
            ranked = choice.ranked(self.found)
            many = len(self._members)
            self._best = [one for one in ranked if one.fits >= many]
            if not self._best:
                shares = choice.split(self._members, ranked, self._whole)
                self._best = [max((s.choice for s in shares), key=_order)] if shares else []
        return self._best

    def _has_room(self) -> bool:
        return bool(self._complete())

    def _are_content(self) -> bool:
        found, seen = self._complete(), self._seen
        opinions = [strategy.is_enough(found, seen) for strategy in self._strategies]
        return all(one is not False for one in opinions)


def _order(one: Choice) -> tuple[object, ...]:
    return one.order
