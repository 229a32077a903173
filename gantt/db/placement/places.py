# SPDX-License-Identifier: Apache-2.0
"""Where providers stand, by uuid and by id, as a process remembers it.

Trees change seldom, so who writes allocations looks here first and locks what it found.  Under
the locks the rows say where they stand; what is remembered otherwise is forgotten and read.
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
#: Of these providers: where they stand, and whether their tree is a host's.
PLACES = sa.select(
    _p.c.id, _p.c.uuid, _top.c.id.label('top'), _top.c.kind.label('top_kind')
).select_from(_p.join(_top, _top.c.id == sa.func.coalesce(_p.c.root_id, _p.c.id)))
PLACES_OF = PLACES.where(_p.c.uuid.in_(sa.bindparam('uuids', expanding=True)))
PLACES_BY_ID = PLACES.where(_p.c.id.in_(sa.bindparam('ids', expanding=True)))


class KnownPlace(NamedTuple):
    """Where one provider stands."""

    id: int
    uuid: str
    root: ProviderRoot

    def holds(self, locked: LockedProviders) -> bool:
        """Whether the rows under lock say the same; the root is locked as well."""
        row, root = locked.places[self.id], locked.places[self.root.id]
        is_host = root.kind == HostKind.HOST
        return (row.uuid, row.root_id, is_host) == (self.uuid, *self.root)


class KnownPlaces:
    """Places that are remembered: bounded, safe to use from any thread.

    :param most: so many
    """

    def __init__(self, most: int = 32_768) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._by_uuid: dict[str, KnownPlace] = {}
        self._by_id: dict[int, KnownPlace] = {}

    def named(self, tx: session.Tx, uuids: Sequence[str]) -> dict[int, KnownPlace]:
        """Of providers with these uuids, by id; those that are not there are left out."""
        known = [self._by_uuid.get(uuid) for uuid in uuids]
        found = {place.id: place for place in known if place is not None}
        missing = [uuid for uuid, place in zip(uuids, known, strict=True) if place is None]
        if missing:
            found |= self._learn(tx.all(PLACES_OF, uuids=missing))
        return found

    def of(self, tx: session.Tx, ids: Collection[int]) -> dict[int, KnownPlace]:
        """Of providers with these ids, likewise."""
        known = {pid: self._by_id.get(pid) for pid in ids}
        found = {pid: place for pid, place in known.items() if place is not None}
        missing = sorted(ids - found.keys())
        if missing:
            found |= self._learn(tx.all(PLACES_BY_ID, ids=missing))
        return found

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
        """Read these anew the next time."""
        with self._lock:
            for place in places:
                self._by_id.pop(place.id, None)
                self._by_uuid.pop(place.uuid, None)
