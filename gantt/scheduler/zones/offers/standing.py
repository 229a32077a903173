# SPDX-License-Identifier: Apache-2.0
"""How the zones below have behaved towards this process: who is silent, and who breaks its word.

A zone that was silent is left alone for some seconds, then queried by one request at a time until
it answers.  One that offers what it then refuses is taken after the others until that is over.
"""

import threading

from gantt.scheduler.ports import Clock

#: A zone that was silent is not queried for so many seconds.
SILENT_SECONDS = 5.0
#: What one allocation counts among those before it; below which share a zone is taken last; how
#: long it takes until half of what is remembered is forgotten, in seconds.
NEWEST, TRUSTED_FROM, FORGOTTEN_SECONDS = 0.1, 0.5, 300.0


class ZoneStanding:
    """By uuid of a zone.  Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent_until: dict[str, float] = {}
        self._honoured: dict[str, tuple[float, float]] = {}  # share of allocations, and when
        self._lock = threading.Lock()

    # -- silence -----------------------------------------------------------------------
    def may_query(self, uuid: str) -> bool:
        """Whether a zone may be queried now; where it was silent, by who comes first alone."""
        now = self._clock.monotonic()
        with self._lock:
            until = self._silent_until.get(uuid)
            if until is None:
                return True
            if until > now:
                return False
            self._silent_until[uuid] = now + SILENT_SECONDS
            return True

    def is_silent(self, uuid: str) -> bool:
        """Whether it has not answered since it was silent."""
        return uuid in self._silent_until

    def was_silent(self, uuid: str) -> None:
        """It has not answered."""
        with self._lock:
            self._silent_until[uuid] = self._clock.monotonic() + SILENT_SECONDS

    def answered(self, uuid: str) -> None:
        """It has answered, whatever."""
        with self._lock:
            self._silent_until.pop(uuid, None)

    # -- what became of offers -----------------------------------------------------------
    def offer_ended(self, uuid: str, honoured: bool) -> None:
        """What was offered was claimed there, or refused."""
        share = self.honoured(uuid)
        with self._lock:
            value = share * (1 - NEWEST) + NEWEST * honoured
            self._honoured[uuid] = value, self._clock.monotonic()

    def honoured(self, uuid: str) -> float:
        """The share of its offers that it has honoured lately, from 0 to 1."""
        share, at = self._honoured.get(uuid, (1.0, 0.0))
        age = max(0.0, self._clock.monotonic() - at)
        return 1.0 - (1.0 - share) * 0.5 ** (age / FORGOTTEN_SECONDS)

    def is_trusted(self, uuid: str) -> bool:
        """Whether its offers are compared with those of others."""
        return self.honoured(uuid) >= TRUSTED_FROM
