# SPDX-License-Identifier: Apache-2.0
"""The zones around this one, as they are registered; looked up without waiting for anything."""

import threading

from gantt.core.zones.messages import ParentRecord, ZoneRecord
from gantt.scheduler.ports import Clock, Store
from gantt.scheduler.ports.zones import ZoneIdentity

#: How old what is looked up may be.
FRESH_SECONDS = 2.0


class ZoneDirectory:
    """Any thread may look something up; one that finds it old reads it for all."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._identity: ZoneIdentity | None = None
        self._children: list[ZoneRecord] = []
        self._parents: dict[str, ParentRecord] = {}
        self._read_at = float('-inf')
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read everything anew.  :raises DatabaseUnavailable:"""
        children, parents = self._store.child_zones(), self._store.parent_zones()
        if children or parents:
            # Its database may have been put back.
            self._identity = self._store.zone_identity()
        self._children = children
        self._parents = {parent.identity: parent for parent in parents}
        self._read_at = self._clock.monotonic()

    def freshen(self) -> None:
        """Read everything anew where it is old; who comes while another reads waits for nothing.

        :raises DatabaseUnavailable:
        """
        is_old = self._clock.monotonic() - self._read_at > FRESH_SECONDS
        if is_old and self._lock.acquire(blocking=False):
            try:
                self.refresh()
            finally:
                self._lock.release()

    def children(self) -> list[ZoneRecord]:
        """The zones directly below, by name, as they were read last."""
        return self._children

    def child(self, name: str) -> ZoneRecord | None:
        """One of them, by name or uuid."""
        return next((zone for zone in self._children if name in (zone.name, zone.uuid)), None)

    def parent(self, identity: str) -> ParentRecord | None:
        """The zone above that has an identity."""
        return self._parents.get(identity)

    def parents(self) -> list[ParentRecord]:
        """All zones above, by name."""
        return sorted(self._parents.values(), key=lambda one: one.name)

    def identity(self) -> ZoneIdentity:
        """Who this zone is.  :raises DatabaseUnavailable: it was never read"""
        if self._identity is None:
            self._identity = self._store.zone_identity()
        return self._identity

    def own_uuid(self) -> str:
        """The uuid of this zone."""
        return self.identity().uuid
