# SPDX-License-Identifier: Apache-2.0
"""Positions of providers in trees, by uuid and by id, as a process caches them.

Trees change rarely, so a writer of allocations reads this cache first, and locks its providers.
The rows under lock have the positions; if the cache differs it is cleared and read anew.
"""

import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from gantt.core.claims.allocations import ProviderRoot
from gantt.core.resources.host import HostKind
from gantt.db.engine import session
from gantt.db.hosts.providers import LockedProviders
from gantt.db.schema import models

_p = models.providers
_top = _p.alias('top')
#: Positions of these providers, and whether their tree is a host's.
PLACES = sa.select(
    _p.c.id, _p.c.uuid, _top.c.id.label('top'), _top.c.kind.label('top_kind')
).select_from(_p.join(_top, _top.c.id == sa.func.coalesce(_p.c.root_id, _p.c.id)))
PLACES_OF = PLACES.where(_p.c.uuid.in_(sa.bindparam('uuids', expanding=True)))
PLACES_BY_ID = PLACES.where(_p.c.id.in_(sa.bindparam('ids', expanding=True)))


class KnownPlace(NamedTuple):
    """Position of one provider."""

    id: int
    uuid: str
    root: ProviderRoot

    def holds(self, locked: LockedProviders) -> bool:
        """Return whether the rows under lock have this position; the root is locked as well."""
        row, root = locked.places[self.id], locked.places[self.root.id]
        is_host = root.kind == HostKind.HOST
        return (row.uuid, row.root_id, is_host) == (self.uuid, *self.root)


class KnownPlaces:
    """Cache of positions: bounded, thread-safe.

    :param most: most positions to remember
    """

    def __init__(self, most: int = 32_768) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._by_uuid: dict[str, KnownPlace] = {}
        self._by_id: dict[int, KnownPlace] = {}

    def named(self, tx: session.Tx, uuids: Sequence[str]) -> dict[int, KnownPlace]:
        """Return places of providers with these uuids, by id; absent ones are left out."""
        cached = [self._by_uuid.get(uuid) for uuid in uuids]
        places = {place.id: place for place in cached if place is not None}
        missing = [uuid for uuid, place in zip(uuids, cached, strict=True) if place is None]
        if missing:
            places |= self._learn(tx.all(PLACES_OF, uuids=missing))
        return places

    def of(self, tx: session.Tx, ids: Collection[int]) -> dict[int, KnownPlace]:
        """Return places of providers with these ids, likewise."""
        cached = {pid: self._by_id.get(pid) for pid in ids}
        places = {pid: place for pid, place in cached.items() if place is not None}
        missing = sorted(ids - places.keys())
        if missing:
            places |= self._learn(tx.all(PLACES_BY_ID, ids=missing))
        return places

    def _learn(self, found: Iterable[Any]) -> dict[int, KnownPlace]:
        learned = [
            KnownPlace(row.id, row.uuid, ProviderRoot(row.top, row.top_kind == HostKind.HOST))
            for row in found
        ]
        with self._lock:
            for place in learned:
                if len(self._by_id) >= self._most or len(self._by_uuid) >= self._most:
                    self._by_id, self._by_uuid = {}, {}
                self._by_id[place.id] = self._by_uuid[place.uuid] = place
        return {place.id: place for place in learned}

    def forget(self, places: Iterable[KnownPlace]) -> None:
        """Forget these places, so that they are read anew."""
        with self._lock:
            for place in places:
                self._by_id.pop(place.id, None)
                self._by_uuid.pop(place.uuid, None)
