# SPDX-License-Identifier: Apache-2.0
"""What becomes of claims in zones below, and what those have still to be told.

One thread asks each zone in turn what has changed since the last time, and gives back what a zone
has not heard of yet.  A zone that does not answer costs the others nothing but its bound.
"""

import collections
import logging
import threading

from gantt import exceptions
from gantt.core.zones.messages import ZoneChanges, ZoneRecord
from gantt.scheduler.ports import Recorder, Store
from gantt.scheduler.ports.zones import Zones
from gantt.scheduler.zones.directory import ZoneDirectory

LOG = logging.getLogger(__name__)
#: Between two rounds, and what one call of it may take.
EACH_SECONDS, CALL_SECONDS = 2.0, 5.0
#: Allocations that are to be given back; beyond it the oldest ends with its lease.
GIVE_BACKS_MAX = 10_000
#: Changes of one zone that are read in one round, in parts of a call each.
PARTS_MAX = 20


class GiveBacks:
    """Allocations that are to end in zones that have not heard of it.  Any thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: collections.OrderedDict[tuple[str, str], None] = collections.OrderedDict()
        self._lock = threading.Lock()

    def add(self, child: str, key: str) -> None:
        """Have an allocation given back soon."""
        with self._lock:
            self._waiting[child, key] = None
            if len(self._waiting) > GIVE_BACKS_MAX:
                self._waiting.popitem(last=False)
                self._recorder.count('gantt_zone_give_backs_dropped_total')

    def waiting(self) -> list[tuple[str, str]]:
        """Zone and key of all, oldest first."""
        with self._lock:
            return list(self._waiting)

    def done(self, child: str, key: str) -> None:
        """It was heard."""
        with self._lock:
            self._waiting.pop((child, key), None)


class ZoneFollower:
    """The thread."""

    def __init__(
        self,
        store: Store,
        zones: Zones,
        directory: ZoneDirectory,
        give_backs: GiveBacks,
        recorder: Recorder,
    ) -> None:
        self._store, self._zones, self._directory = store, zones, directory
        self._give_backs, self._recorder = give_backs, recorder
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name='zones', daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """End it; whether that was in time."""
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.wait(EACH_SECONDS):
            try:
                self.step()
            except exceptions.Unavailable as e:
                LOG.warning('zones below are not followed: %s', e.message)
            except Exception:  # the thread has to outlive any one round
                LOG.exception('following the zones below failed')

    def step(self) -> None:
        """One round over all zones."""
        silent: set[str] = set()
        self._directory.freshen()
        known = {zone.uuid: zone for zone in self._directory.children()}
        for child, key in self._give_backs.waiting():
            zone = known.get(child)
            if zone is None:
                self._give_backs.done(child, key)
            elif child not in silent and not self._given_back(zone, key):
                silent.add(child)
        for zone in known.values():
            if zone.uuid not in silent:
                self._follow(zone)

    def _given_back(self, zone: ZoneRecord, key: str) -> bool:
        """Whether the zone answered."""
        try:
            self._zones.give_back(zone, key, CALL_SECONDS)
        except exceptions.Unavailable:
            return False
        except exceptions.GanttError as e:
            LOG.warning('zone %s does not take back %s: %s', zone.name, key, e.message)
        self._give_backs.done(zone.uuid, key)
        return True

    def _follow(self, zone: ZoneRecord) -> None:
        revision, incarnation = zone.revision, zone.incarnation
        for _ in range(PARTS_MAX):
            try:
                found = self._zones.changes(zone, revision, CALL_SECONDS)
            except exceptions.GanttError as e:
                self._recorder.count('gantt_zone_calls_failed_total', call='changes')
                LOG.info('zone %s has not said what has changed: %s', zone.name, e.message)
                return
            if found.incarnation != incarnation and revision:
                LOG.warning('the database of zone %s went back: all is read again', zone.name)
                revision, incarnation = 0.0, found.incarnation
                continue
            self._note(zone, found)
            if not found.more:
                return
            revision, incarnation = found.revision, found.incarnation

    def _note(self, zone: ZoneRecord, found: ZoneChanges) -> None:
        if not found.claims and found.incarnation == zone.incarnation:
            return
        self._store.note_changes_below(zone.uuid, found, found.claims)
