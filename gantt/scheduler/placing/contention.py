# SPDX-License-Identifier: Apache-2.0
"""Contention with other schedulers: how many of the best hosts to pick among, and locks.

Schedulers that see the same hosts agree on the best one.  Each knows its own picks
at once, those of the others when it reads the feed, so until then all of them fill
the same few hosts in the same order, and a late one loses where there is little room.
A scheduler that has lost races picks at random among more of the best, for all requests;
one that places without losing, or waits, returns to the best one.

Schedulers exchange no messages: lost races alone widen the choice.  In
balance a scheduler loses a race as often as it places the members that compensate
:data:`GROWTH`, one in 2000, for any number of schedulers; unless the bound is met.

Hosts whose rows another scheduler keeps locked are left out of the next plans, so that
requests with an alternative use it; one without waits within its budget, and is answered
"busy" after that, not that there is no room.
"""

from collections.abc import Collection, Mapping

from gantt.scheduler.ports import Clock

#: The most hosts that are picked among.
SPREAD_MOST = 256
#: Factor of the number after a batch that lost a race.
GROWTH = 4
#: Members placed, or seconds, that halve the number; each has its part.
HALF_MEMBERS, HALF_SECONDS = 1000, 60.0
#: Number above which the feed is read more often, and how many times as often.
HASTY_FROM, HASTE = 16, 4
#: Seconds that a host is left out after a commit met its locked row; then it is tried again.
AVOID_SECONDS = 1.0


class Contention:
    """Lost races of one scheduler; only the placing thread changes it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wide = 1.0
        self._since = clock.monotonic()

    @property
    def spread(self) -> int:
        """Number of best hosts to pick among; 1: take the best one."""
        if self._wide == 1.0:
            return 1
        waited = self._clock.monotonic() - self._since
        return max(1, round(self._wide * 0.5 ** (waited / HALF_SECONDS)))

    @property
    def haste(self) -> int:
        """Factor by which to read the feed more often: a wide choice costs more than a read.

        Any thread may read it.
        """
        return HASTE if self.spread > HASTY_FROM else 1

    def note(self, placed: int, lost: int) -> bool:
        """Take account of a batch; return whether the spread has changed.

        :param placed: members that got their host
        :param lost: members that lost a race although there were more hosts to pick
            from than were considered: a wider choice would have helped them
        """
        spread_before = self.spread
        if self._wide > 1.0:
            now = self._clock.monotonic()
            halved = placed / HALF_MEMBERS + (now - self._since) / HALF_SECONDS
            self._wide = max(1.0, self._wide * 0.5**halved)
            self._since = now
        if lost:
            if self._wide == 1.0:
                self._since = self._clock.monotonic()
            self._wide = min(self._wide * GROWTH, float(SPREAD_MOST))
        return self.spread != spread_before


class LockedHosts:
    """Locked hosts that the commits of one scheduler met; only the placing thread changes it.

    :ivar found: provider -> its name, and until when its host is left out
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.found: dict[int, tuple[str, float]] = {}

    def note(self, found: Mapping[int, str]) -> None:
        """Note providers that a commit found locked, with their names."""
        until = self._clock.monotonic() + AVOID_SECONDS
        self.found.update({provider_id: (name, until) for provider_id, name in found.items()})

    def names(self) -> list[str]:
        """Return the names of the hosts to be left out now, in order."""
        if not self.found:
            return []
        now = self._clock.monotonic()
        self.found = {
            provider_id: entry for provider_id, entry in self.found.items() if entry[1] > now
        }
        return sorted(name for name, _ in self.found.values())

    def among(self, providers: Collection[int]) -> str:
        """Return the name of one of these to be left out now; '': none is."""
        self.names()
        locked_names = [
            self.found[provider_id][0] for provider_id in providers if provider_id in self.found
        ]
        return min(locked_names, default='')
