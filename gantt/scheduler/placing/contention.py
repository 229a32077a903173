# SPDX-License-Identifier: Apache-2.0
"""What other schedulers are in the way of: how many of the best hosts to pick among, and locks.

Schedulers that see the same hosts agree on the best one.  Each knows its own picks
at once, those of the others when it reads the feed, so until then all of them fill
the same few hosts in the same order, and who comes late to one with little room has
lost.  Who has lost races picks at random among more of the best, for all requests;
who places without losing, or waits, comes back to the best one.

Nothing is asked or agreed: what widens the choice is what is to be avoided.  In
balance a scheduler loses a race as often as it places the members that make good for
:data:`GROWTH`, one in 2000, however many the schedulers are; unless the bound is met.

Hosts whose rows another scheduler keeps locked are left out of what is planned next, so that
everybody who can go elsewhere does; who can go nowhere else waits within its budget, and is told
"busy" after that, not that there is no room.
"""

from collections.abc import Collection, Mapping

from gantt.scheduler.ports import Clock

#: The most hosts that are picked among.
SPREAD_MOST = 256
#: A batch that lost a race picks among so many times as many the next time.
GROWTH = 4
#: Members placed, or seconds, that halve the number; each has its part.
HALF_MEMBERS, HALF_SECONDS = 1000, 60.0
#: Who picks among more than so many reads the feed so many times as often.
HASTY_FROM, HASTE = 16, 4
#: How long a host is left out after a commit met its locked row; then it is tried again.
AVOID_SECONDS = 1.0


class Contention:
    """What one scheduler has seen of the others; only the thread that places changes it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wide = 1.0
        self._since = clock.monotonic()

    @property
    def spread(self) -> int:
        """Pick among so many best; 1: take the best one."""
        if self._wide == 1.0:
            return 1
        waited = self._clock.monotonic() - self._since
        return max(1, round(self._wide * 0.5 ** (waited / HALF_SECONDS)))

    @property
    def haste(self) -> int:
        """How many times as often to read the feed: a wide choice costs more than a read.

        May be asked by any thread.
        """
        return HASTE if self.spread > HASTY_FROM else 1

    def note(self, placed: int, lost: int) -> bool:
        """Take account of a batch; whether the spread is another now.

        :param placed: members that got their host
        :param lost: members that lost a race although there were more hosts to pick
            from than they were picked among: a wider choice would have helped them
        """
        before = self.spread
        if self._wide > 1.0:
            now = self._clock.monotonic()
            halved = placed / HALF_MEMBERS + (now - self._since) / HALF_SECONDS
            self._wide = max(1.0, self._wide * 0.5**halved)
            self._since = now
        if lost:
            if self._wide == 1.0:
                self._since = self._clock.monotonic()
            self._wide = min(self._wide * GROWTH, float(SPREAD_MOST))
        return self.spread != before


class LockedHosts:
    """What the commits of one scheduler have met; only the thread that places changes it.

    :ivar found: provider -> its name, and until when its host is to be left out
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.found: dict[int, tuple[str, float]] = {}

    def note(self, found: Mapping[int, str]) -> None:
        """Providers that a commit found locked, with their names."""
        until = self._clock.monotonic() + AVOID_SECONDS
        self.found.update({pid: (name, until) for pid, name in found.items()})

    def names(self) -> list[str]:
        """The rows of the hosts to be left out now, in order."""
        if not self.found:
            return []
        now = self._clock.monotonic()
        self.found = {pid: of for pid, of in self.found.items() if of[1] > now}
        return sorted(name for name, _ in self.found.values())

    def among(self, providers: Collection[int]) -> str:
        """The name of one of these that is to be left out now; '': none is."""
        self.names()
        found = [self.found[pid][0] for pid in providers if pid in self.found]
        return min(found, default='')
