# SPDX-License-Identifier: Apache-2.0
"""The interface of strategies, each a way to query fewer zones for a request.

Each may be enabled or disabled separately, and any subset works: the zones left to query,
and that "no room" is returned only after all of them have answered, are up to
:mod:`gantt.core.zones.search`.  A strategy has an opinion on some aspects, and none on the
rest.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeVar

import msgspec

from gantt.core.messages.request import SelectDestinations
from gantt.core.plugin import Plugin
from gantt.core.zones.choice import Choice
from gantt.core.zones.messages import ZoneFacts, ZoneRecord

T = TypeVar('T')

#: In place of a number of zones: all remaining ones, regardless of other strategies.
ALL = -1


class Dice(Protocol):
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

    :cvar guarantee: what holds of its answers, in one sentence
    :cvar needs_summary: it works by what zones say of themselves in advance
    """

    guarantee: ClassVar[str] = ''
    needs_summary: ClassVar[bool] = False

    def rules_out(self, request: SelectDestinations, zone: KnownZone) -> str:
        """Return the reason why a zone cannot have a place, by facts alone; '' if it may."""
        return ''

    def ordered(self, zones: Sequence[KnownZone], dice: Dice) -> Sequence[KnownZone]:
        """Return the zones in the order in which they are to be queried."""
        return zones

    def at_most(self, number: int, zones: int) -> int | None:
        """Return the upper bound of zones queried in a round, or ``ALL``; None: no opinion.

        :param number: number of the round, from 0
        :param zones: total number of zones, those of earlier rounds included
        """
        return None

    def is_enough(self, found: Sequence[Choice], seen: float | None) -> bool | None:
        """Return whether no more zones have to be queried; None: no opinion.

        :param found: choices that have room for the whole request, best first, at least one
        :param seen: the best score seen lately for members of this size, from 0 to 1;
            None: none was
        """
        return None
