# SPDX-License-Identifier: Apache-2.0
"""What the zones below say of themselves in advance, read anew from time to time.

One thread asks each zone in turn, by conditional GET.  What this process claims there is taken off
until the zone has said something newer.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gantt import exceptions
from gantt.core.zones.messages import ZoneFacts, ZoneRecord, ZoneSummary
from gantt.core.zones.strategy import KnownZone
from gantt.core.zones.summary import expected_room
from gantt.scheduler.ports import Clock
from gantt.scheduler.ports.zones import Zones

LOG = logging.getLogger(__name__)
#: Between two rounds, and what one call of it may take.
EACH_SECONDS, CALL_SECONDS = 10.0, 3.0
#: Counts are worth half after so many seconds, and never nothing.
HALF_SECONDS, LEAST_ROOM = 60.0, 0.05


class KnownSummary(msgspec.Struct):
    """What one zone has said.

    :ivar facts_at: as of when the facts are, of zones further down too
    :ivar read_at: seconds of the monotonic clock
    :ivar taken: members that were claimed there since
    """

    summary: ZoneSummary
    facts: ZoneFacts | None
    facts_at: float
    read_at: float
    taken: int = 0


class ZoneSummaries:
    """By zone.  Any thread.

    :param children: the zones directly below, as they are registered
    """

    def __init__(
        self, zones: Zones, children: Callable[[], Sequence[ZoneRecord]], clock: Clock
    ) -> None:
        self._zones, self._children, self._clock = zones, children, clock
        self._known: dict[str, KnownSummary] = {}
        self._stopping, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def follow(self) -> None:
        """Read what zones say from now on; once."""
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name='summaries', daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._stopping.set()

    def zone(self, zone: ZoneRecord, resources: Mapping[str, int], weight: float) -> KnownZone:
        """What is known of a zone for a request of this size.

        :param weight: of what it says, from 0 to 1
        """
        known = self._known.get(zone.uuid)
        if known is None:
            return KnownZone(zone)
        room = max(0.0, expected_room(known.summary.fits, resources) - known.taken)
        age = max(0.0, self._clock.monotonic() - known.read_at)
        room = max(LEAST_ROOM, room * weight * 0.5 ** (age / HALF_SECONDS))
        return KnownZone(zone, known.facts, room)

    def summaries(self) -> list[tuple[ZoneSummary, ZoneFacts | None]] | None:
        """Of all zones below; None: one has said nothing yet."""
        found = [self._known.get(zone.uuid) for zone in self._children()]
        known = [(one.summary, one.facts) for one in found if one is not None]
        return known if len(known) == len(found) else None

    def facts_age(self) -> float:
        """How old the oldest facts of a zone below are, in seconds; 0.0: there are none."""
        now = self._clock.monotonic()
        known = (self._known.get(zone.uuid) for zone in self._children())
        return max((now - one.facts_at for one in known if one is not None), default=0.0)

    def took(self, uuid: str, members: int) -> None:
        """So many members were claimed in a zone."""
        known = self._known.get(uuid)
        if known is not None:
            known.taken += members

    def facts_again(self, zone: ZoneRecord, max_age: float, seconds: float) -> ZoneFacts | None:
        """What exists in a zone, as it is now or was not long ago; None: it does not say.

        Of those further down it may know older things: then it is to be queried.
        """
        known, now = self._known.get(zone.uuid), self._clock.monotonic()
        if known is not None and now - known.facts_at <= max_age:
            return known.facts
        try:
            found = self._zones.discover(zone, seconds).facts
        except exceptions.GanttError:
            return None
        if known is not None:
            known.facts, known.facts_at = found, now - _age(found)
        return found if _age(found) <= max_age else None

    def read(self, zone: ZoneRecord) -> None:
        """What one zone says now.  :raises GanttError: it does not say"""
        known, now = self._known.get(zone.uuid), self._clock.monotonic()
        found = self._zones.summary(zone, CALL_SECONDS)
        if known is None or found.facts != known.summary.facts:
            facts = self._zones.discover(zone, CALL_SECONDS).facts
            self._known[zone.uuid] = KnownSummary(found, facts, now - _age(facts), now)
        elif found.revision != known.summary.revision:
            self._known[zone.uuid] = KnownSummary(found, known.facts, known.facts_at, now)
        else:
            known.read_at = now

    # -- the thread --------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            zones = self._children()
            for zone in zones:
                if self._stopping.is_set():
                    return
                try:
                    self.read(zone)
                except exceptions.GanttError as e:
                    LOG.info('zone %s has not said what it has: %s', zone.name, e.message)
                except Exception:  # the thread has to outlive any one round
                    LOG.exception('reading what zone %s has failed', zone.name)
            uuids = {zone.uuid for zone in zones}
            for gone in [one for one in self._known if one not in uuids]:
                self._known.pop(gone, None)
            if self._stopping.wait(EACH_SECONDS):
                return


def _age(facts: ZoneFacts | None) -> float:
    return 0.0 if facts is None else facts.age
