# SPDX-License-Identifier: Apache-2.0
"""What becomes of claims in zones below, and what those have still to be told.

One thread asks each zone in turn what has changed since the last time, and gives back what a zone
has not heard of yet.  A zone that does not answer costs the others nothing but its bound.
"""

import collections
import logging
import threading

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import LIVE, State
from gantt.core.zones.messages import ClaimBelow, ZoneChanges, ZoneRecord
from gantt.scheduler.ports import Clock, Recorder, Store
from gantt.scheduler.ports.zones import Zones
from gantt.scheduler.zones.directory import ZoneDirectory

LOG = logging.getLogger(__name__)
#: Between two rounds, and what one call of it may take.
EACH_SECONDS, CALL_SECONDS = 2.0, 5.0
#: Allocations that are to be given back; beyond it the oldest ends with its lease.
GIVE_BACKS_MAX = 10_000
#: What reading the changes of one zone may take in one round, in parts of a call each.
ZONE_SECONDS = 20.0
#: Of the time before the last change that is read again.
OVERLAP_SECONDS = 10.0


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

    def is_waiting(self, child: str, key: str) -> bool:
        """Whether a zone has still to hear of it: until then nothing is claimed under the key."""
        with self._lock:
            return (child, key) in self._waiting

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
        clock: Clock,
    ) -> None:
        self._clock = clock
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
            if zone.uuid not in silent and not self.follow(zone):
                silent.add(zone.uuid)
        states = collections.Counter(
            'disabled' if not zone.enabled else 'silent' if zone.uuid in silent else 'answering'
            for zone in known.values()
        )
        for state in ('answering', 'silent', 'disabled'):
            self._recorder.gauge('gantt_zones', states[state], state=state)
        self._recorder.gauge('gantt_zone_give_backs_waiting', len(self._give_backs.waiting()))

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

    def follow(self, zone: ZoneRecord) -> bool:
        """Read what has changed there since the last time; all of it where the database went back.

        Any thread.

        :return: whether the zone has said what has changed
        """
        # Transactions become visible later than they noted the time.
        since, incarnation = max(0.0, zone.revision - OVERLAP_SECONDS), zone.incarnation
        after = ''
        listed: set[str] | None = None  # where all is read: the claims that there are
        end = self._clock.monotonic() + ZONE_SECONDS
        while self._clock.monotonic() < end:
            try:
                found = self._zones.changes(zone, since, CALL_SECONDS, after)
            except exceptions.GanttError as e:
                LOG.info('zone %s has not said what has changed: %s', zone.name, e.message)
                return False
            if found.incarnation != incarnation and zone.revision:
                if listed is not None:
                    break  # it goes back all the time
                LOG.warning('the database of zone %s went back: all is read again', zone.name)
                since, incarnation, after, listed = 0.0, found.incarnation, '', set()
                continue
            self._note(zone, found, listed)
            if not found.more or not found.claims:
                break
            since, incarnation = found.revision, found.incarnation
            after = found.claims[-1].claim_id
        return True

    def _note(self, zone: ZoneRecord, found: ZoneChanges, listed: set[str] | None) -> None:
        """Store a part of what has changed.

        :param listed: all claims so far, where all is read as the database went back
        """
        known = list(found.claims)
        if listed is not None:
            listed.update(one.claim_id for one in known)
            if found.more:
                # Until all is read the next round begins anew.
                found = msgspec.structs.replace(
                    found, incarnation=zone.incarnation, revision=zone.revision
                )
            else:
                known += self._lost(zone, listed)
        if known or found.incarnation != zone.incarnation:
            self._store.note_changes_below(zone.uuid, found, known)

    def _lost(self, zone: ZoneRecord, listed: set[str]) -> list[ClaimBelow]:
        """Claims that the zone does not know any more: no host confirms them.

        What runs there is found by its host, and is that zone's own.
        """
        return [
            ClaimBelow(
                claim_id=one.claim_id,
                key=one.key,
                consumer=one.consumer,
                state=State.RELEASED,
            )
            for one in self._store.claims_below(child=zone.uuid)
            if one.state in LIVE and one.claim_id not in listed
        ]
