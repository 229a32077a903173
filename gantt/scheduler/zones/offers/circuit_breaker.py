# SPDX-License-Identifier: Apache-2.0
"""Circuit breaker of child zones: unresponsive ones rest, and those that refuse offers go last.

A zone that was silent is left alone for some seconds, then queried by one request at a time until
it answers.  One that refuses what it has offered is taken after the others until that is over.
"""

import threading

from gantt.scheduler.ports import Clock

#: Seconds for which a silent zone is not queried.
SILENT_SECONDS = 5.0
#: Weight of one allocation among those before it; share below which a zone is taken last;
#: half-life of remembered failures in seconds.
NEWEST, TRUSTED_FROM, FORGOTTEN_SECONDS = 0.1, 0.5, 300.0


class ZoneCircuitBreaker:
    """State of each child zone: unresponsive, and how often it honours offers.  Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent_until: dict[str, float] = {}
        self._honoured: dict[str, tuple[float, float]] = {}  # share of allocations, and when
        self._lock = threading.Lock()

    # -- silence -----------------------------------------------------------------------
    def may_query(self, uuid: str) -> bool:
        """Return whether a zone may be queried now; after silence, by the first request alone."""
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
        """Return whether a zone has not answered since it was silent."""
        return uuid in self._silent_until

    def was_silent(self, uuid: str) -> None:
        """Note that a zone has not answered."""
        with self._lock:
            self._silent_until[uuid] = self._clock.monotonic() + SILENT_SECONDS

    def answered(self, uuid: str) -> None:
        """Note that a zone has answered, with any result."""
        with self._lock:
            self._silent_until.pop(uuid, None)

    # -- what became of offers -----------------------------------------------------------
    def offer_ended(self, uuid: str, honoured: bool) -> None:
        """Note that an offer of a zone was claimed there, or refused."""
        share = self.honoured(uuid)
        with self._lock:
            value = share * (1 - NEWEST) + NEWEST * honoured
            self._honoured[uuid] = value, self._clock.monotonic()

    def honoured(self, uuid: str) -> float:
        """Return the share of its offers that a zone has honoured lately, from 0 to 1."""
        share, at = self._honoured.get(uuid, (1.0, 0.0))
        age = max(0.0, self._clock.monotonic() - at)
        return 1.0 - (1.0 - share) * 0.5 ** (age / FORGOTTEN_SECONDS)

    def is_trusted(self, uuid: str) -> bool:
        """Return whether a zone's offers are compared with those of others."""
        return self.honoured(uuid) >= TRUSTED_FROM
