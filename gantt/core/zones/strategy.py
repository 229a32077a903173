# SPDX-License-Identifier: Apache-2.0
"""The shape of a strategy: one way to query fewer zones for a request.

Each may be switched on or off by itself, and any subset of them works: which zones are left to
query, and that nobody says "no room" before all of them have answered, is the business of
:mod:`gantt.core.zones.search`.  A strategy has an opinion on what it knows of, and none on the
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

#: In place of a number of zones: all that are left, whatever other strategies would do.
ALL = -1


class Dice(Protocol):
    """Where chance comes from, such as :class:`random.Random`."""

    def random(self) -> float:
        """From 0 to below 1."""

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        """So many of them, in random order."""


class KnownZone(msgspec.Struct, frozen=True):
    """A zone directly below, as it is known before it is queried.

    :ivar facts: what exists there; None: that is not known
    :ivar room: for how many members of the request there may be room, above 0
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
        """Why a zone cannot have a place, by facts alone; '': it may."""
        return ''

    def ordered(self, zones: Sequence[KnownZone], dice: Dice) -> Sequence[KnownZone]:
        """Zones in the order in which they are to be queried."""
        return zones

    def at_most(self, number: int, zones: int) -> int | None:
        """How many zones are queried in a round at most, or ``ALL``; None: no opinion.

        :param number: of the round, from 0
        :param zones: how many there are in all, those of earlier rounds included
        """
        return None

    def is_enough(self, found: Sequence[Choice], seen: float | None) -> bool | None:
        """Whether no more zones have to be queried; None: no opinion.

        :param found: choices that have room for the whole request, best first, at least one
        :param seen: the best score that was seen lately for members of this size, from 0 to 1;
            None: none was
        """
        return None
