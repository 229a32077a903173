# SPDX-License-Identifier: Apache-2.0
"""The in-memory store: processes of the site, see ``db.records.services``."""

import msgspec

from gantt.core.records.process import (
    KEPT_SECONDS,
    LISTED_MAX,
    SILENT_SECONDS,
    Service,
    ServiceNote,
)
from gantt.testing.store.declared import atomic
from gantt.testing.store.history import Histories


class Services(Histories):
    """A note of each process, with the time that it was made at."""

    def __init__(self) -> None:
        super().__init__()
        self._notes: dict[str, tuple[float, ServiceNote]] = {}

    @atomic
    def note_service(self, note: ServiceNote) -> None:
        """Keep it; a new process takes the place of silent ones of its kind on its host."""
        now = self._now
        if note.name not in self._notes:
            for name, (at, before) in list(self._notes.items()):
                same = (before.kind, before.host) == (note.kind, note.host)
                if same and at < now - SILENT_SECONDS:
                    del self._notes[name]
        self._notes[note.name] = now, note

    @atomic
    def forget_service(self, name: str) -> None:
        """Of a process that ends."""
        self._notes.pop(name, None)

    @atomic
    def services(self) -> list[Service]:
        """All that are remembered, the one seen last first."""
        found = sorted(self._notes.values(), key=lambda kept: (-kept[0], kept[1].name))
        return [self._service(at, note) for at, note in found[:LISTED_MAX]]

    def _service(self, at: float, note: ServiceNote) -> Service:
        fields = msgspec.structs.asdict(note)
        age = max(0.0, self._now - at)
        fields['up_seconds'] += age
        fields['configured_seconds'] += age
        return Service(**fields, seen_seconds=age)

    def _purge_services(self) -> int:
        old = [name for name, (at, _) in self._notes.items() if at < self._now - KEPT_SECONDS]
        for name in old:
            del self._notes[name]
        return len(old)
