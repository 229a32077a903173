# SPDX-License-Identifier: Apache-2.0
"""The zones around this one, as they are registered; read without waiting."""

import threading

from gantt.scheduler.ports.process import Clock
from gantt.zones.model.messages import ParentRecord, ZoneRecord
from gantt.zones.ports import ZoneIdentity, ZoneRegistry

#: Maximum age of the directory in seconds.
FRESH_SECONDS = 2.0


class ZoneDirectory:
    """The zones around this one.

    Any thread may read them; one that finds them old refreshes them.
    """

    def __init__(self, zones: ZoneRegistry, clock: Clock) -> None:
        self._zones = zones
        self._clock = clock
        self._identity: ZoneIdentity | None = None
        self._children: list[ZoneRecord] = []
        self._parents: dict[str, ParentRecord] = {}
        self._read_at = float('-inf')
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read the identity of this zone, its child zones and its parent zones again."""
        with self._lock:  # else a slow read puts back a zone that was removed meanwhile
            self._read()

    def _read(self) -> None:
        children, parents = self._zones.child_zones(), self._zones.parent_zones()
        if children or parents:
            # The database of this zone may have been restored from a backup.
            self._identity = self._zones.zone_identity()
        self._children = children
        self._parents = {parent.identity: parent for parent in parents}
        self._read_at = self._clock.monotonic()

    def freshen(self) -> None:
        """Read the zones again where they are old; a caller during another's read does not wait.

        :raises DatabaseUnavailable:
        """
        is_old = self._clock.monotonic() - self._read_at > FRESH_SECONDS
        if is_old and self._lock.acquire(blocking=False):
            try:
                self._read()
            finally:
                self._lock.release()

    def children(self) -> list[ZoneRecord]:
        """Return the child zones, by name, as they were read last."""
        return self._children

    def child(self, name: str) -> ZoneRecord | None:
        """Return a child zone, by name or uuid."""
        return next((zone for zone in self._children if name in (zone.name, zone.uuid)), None)

    def parent(self, identity: str) -> ParentRecord | None:
        """Return the parent zone that has an identity."""
        return self._parents.get(identity)

    def parents(self) -> list[ParentRecord]:
        """Return all parent zones, by name."""
        return sorted(self._parents.values(), key=lambda parent: parent.name)

    def identity(self) -> ZoneIdentity:
        """Return the identity of this zone.  :raises DatabaseUnavailable: it was never read"""
        if self._identity is None:
            self._identity = self._zones.zone_identity()
        return self._identity

    def own_uuid(self) -> str:
        """Return the uuid of this zone."""
        return self.identity().uuid
