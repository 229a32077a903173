# SPDX-License-Identifier: Apache-2.0
"""Hosts whose rows another scheduler keeps locked: not chosen for a moment.

A commit finds them.  They are left out of what is planned next, so that everybody who can
go elsewhere does; who can go nowhere else waits within its budget, and is told "busy"
after that, not that there is no room.
"""

from collections.abc import Collection, Mapping

from gantt.scheduler.ports import Clock

#: How long a host is left out after a commit met its locked row; then it is tried again.
AVOID_SECONDS = 1.0
#: Between two looks at a request that needs what is locked.
WAIT_SECONDS = 0.1


class LockedHosts:
    """What the commits of one scheduler have met; only the thread that places changes it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[int, tuple[str, float]] = {}

    def note(self, found: Mapping[int, str]) -> None:
        """Providers that a commit found locked, with their names."""
        until = self._clock.monotonic() + AVOID_SECONDS
        self._until.update({pid: (name, until) for pid, name in found.items()})

    def names(self) -> list[str]:
        """Of the hosts to be left out now, in order."""
        if not self._until:
            return []
        now = self._clock.monotonic()
        self._until = {pid: of for pid, of in self._until.items() if of[1] > now}
        return sorted(name for name, _ in self._until.values())

    def among(self, providers: Collection[int]) -> str:
        """The name of one of these that is to be left out now; '': none is."""
        found = [self._until[pid][0] for pid in providers if pid in self._until]
        return min(found, default='')
