# SPDX-License-Identifier: Apache-2.0
"""Summaries that child zones report in advance, read anew from time to time.

One thread queries each zone in turn, by conditional GET.  Members that this process claims there
are subtracted until the zone has reported a newer summary.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gantt import exceptions
from gantt.scheduler.ports.process import Clock
from gantt.zones.model.messages import ZoneFacts, ZoneRecord, ZoneSummary
from gantt.zones.model.strategies import KnownZone
from gantt.zones.model.summary import expected_room
from gantt.zones.ports import ZoneCalls

LOG = logging.getLogger(__name__)
#: Interval between two rounds, and timeout of one call, in seconds.
ROUND_SECONDS, CALL_SECONDS = 10.0, 3.0
#: Half-life of counts in seconds, and the least room that is assumed.
COUNT_HALF_LIFE_SECONDS, ROOM_MIN = 60.0, 0.05


class KnownSummary(msgspec.Struct):
    """The last summary of one zone.

    :ivar facts_at: time of the oldest facts, those of descendant zones included
    :ivar read_at: seconds of the monotonic clock
    :ivar claimed_members: members that were claimed there since
    """

    summary: ZoneSummary
    facts: ZoneFacts | None
    facts_at: float
    read_at: float
    claimed_members: int = 0


class ZoneSummaries:
    """Summaries by zone.  Any thread.

    :param children: the child zones, as they are registered
    """

    def __init__(
        self, zones: ZoneCalls, children: Callable[[], Sequence[ZoneRecord]], clock: Clock
    ) -> None:
        self._zones = zones
        self._children = children
        self._clock = clock
        self._known: dict[str, KnownSummary] = {}
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def follow(self) -> None:
        """Start reading summaries; once."""
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name='summaries', daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._stopping.set()

    def zone(self, zone: ZoneRecord, resources: Mapping[str, int], weight: float) -> KnownZone:
        """Return the candidate zone for a request of this size.

        :param weight: of its summary, from 0 to 1
        """
        entry = self._known.get(zone.uuid)
        if entry is None:
            return KnownZone(zone)
        room = max(0.0, expected_room(entry.summary.fits, resources) - entry.claimed_members)
        age = max(0.0, self._clock.monotonic() - entry.read_at)
        room = max(ROOM_MIN, room * weight * 0.5 ** (age / COUNT_HALF_LIFE_SECONDS))
        return KnownZone(zone, entry.facts, room)

    def summaries(self) -> list[tuple[ZoneSummary, ZoneFacts | None]] | None:
        """Return the summaries of all child zones; None: a zone has not reported one yet."""
        entries = [self._known.get(zone.uuid) for zone in self._children()]
        reported = [(entry.summary, entry.facts) for entry in entries if entry is not None]
        return reported if len(reported) == len(entries) else None

    def facts_age(self) -> float:
        """Return the age of the oldest facts of a child zone in seconds; 0.0: there are none."""
        now = self._clock.monotonic()
        entries = (self._known.get(zone.uuid) for zone in self._children())
        return max((now - entry.facts_at for entry in entries if entry is not None), default=0.0)

    def note_claimed(self, uuid: str, members: int) -> None:
        """Count members that were claimed in a zone."""
        entry = self._known.get(uuid)
        if entry is not None:
            entry.claimed_members += members

    def refreshed_facts(self, zone: ZoneRecord, max_age: float, seconds: float) -> ZoneFacts | None:
        """Return recent facts of a zone, read again where needed; None: it does not report them.

        Its facts of descendant zones may be older: then it is to be queried.
        """
        entry, now = self._known.get(zone.uuid), self._clock.monotonic()
        if entry is not None and now - entry.facts_at <= max_age:
            return entry.facts
        try:
            facts = self._zones.discover(zone, seconds).facts
        except exceptions.GanttError:
            return None
        if entry is not None:
            entry.facts = facts
            entry.facts_at = now - _facts_age(facts)
        return facts if _facts_age(facts) <= max_age else None

    def read(self, zone: ZoneRecord) -> None:
        """Read the summary of one zone.  :raises GanttError: it does not report one"""
        entry, now = self._known.get(zone.uuid), self._clock.monotonic()
        zone_summary = self._zones.summary(zone, CALL_SECONDS)
        if entry is None or zone_summary.facts != entry.summary.facts:
            facts = self._zones.discover(zone, CALL_SECONDS).facts
            self._known[zone.uuid] = KnownSummary(zone_summary, facts, now - _facts_age(facts), now)
        elif zone_summary.revision != entry.summary.revision:
            self._known[zone.uuid] = KnownSummary(zone_summary, entry.facts, entry.facts_at, now)
        else:
            entry.read_at = now

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
                    LOG.info(
                        'Summary of a zone cannot be read: zone=%s error=%s', zone.name, e.message
                    )
                except Exception:  # the thread has to outlive any one round
                    LOG.exception('Summary of a zone cannot be read: zone=%s', zone.name)
            uuids = {zone.uuid for zone in zones}
            for uuid in [known_uuid for known_uuid in self._known if known_uuid not in uuids]:
                self._known.pop(uuid, None)
            if self._stopping.wait(ROUND_SECONDS):
                return


def _facts_age(facts: ZoneFacts | None) -> float:
    return 0.0 if facts is None else facts.age
