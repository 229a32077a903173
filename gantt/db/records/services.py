# SPDX-License-Identifier: Apache-2.0
"""Processes of the site: a row each, written by the process itself."""

from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.records.process import (
    LISTED_PROCESSES_MAX,
    SILENT_SECONDS,
    SILENT_STORED_SECONDS,
    MemoryUse,
    ServiceNote,
    ServiceRecord,
)
from gantt.db.database import SqlStore, reading, writing
from gantt.db.engine import engine, session
from gantt.db.schema import models

_services = models.services
#: Most characters of a column of the table.
_TEXT_CHARACTERS_MAX = 1024

SELECT_SERVICES = (
    sa.select(_services, session.Now().label('now'))
    .order_by(_services.c.seen_at.desc(), _services.c.name)
    .limit(LISTED_PROCESSES_MAX)
)


class SqlServices(SqlStore):
    """Processes of the site, as they record themselves: ``ports.Services`` in SQL."""

    @writing
    def note_service(self, tx: session.Tx, note: ServiceNote) -> None:
        """Write the row of a process.

        A new one replaces the silent processes of its kind on its host: repeated restarts leave no
        trail of rows.
        """
        now = tx.now
        name = engine.storable(note.name)
        values: dict[str, Any] = {
            'kind': note.kind,
            'host': note.host,
            'version': note.version,
            'configuration': note.configuration,
            'problem': note.problem[:_TEXT_CHARACTERS_MAX],
            'alarm': note.alarm[:_TEXT_CHARACTERS_MAX],
            'memory': note.memory and msgspec.json.encode(note.memory).decode(),
            'started_at': now - note.up_seconds,
            'configured_at': now - note.configured_seconds,
            'seen_at': now,
        }
        if tx.run(_services.update().where(_services.c.name == name).values(values)):
            return
        _delete(
            tx,
            _services.c.kind == note.kind,
            _services.c.host == note.host,
            _services.c.seen_at < now - SILENT_SECONDS,
        )
        tx.insert_new(_services, [{'name': name, **values}], 'name')

    @writing
    def forget_service(self, tx: session.Tx, name: str) -> None:
        tx.run(_services.delete().where(_services.c.name == engine.storable(name)))

    @reading
    def list_services(self, tx: session.Tx) -> list[ServiceRecord]:
        return [_service(row) for row in tx.all(SELECT_SERVICES)]


def purge(tx: session.Tx) -> int:
    """Delete the rows of processes that have been silent for long; return their number."""
    return _delete(tx, _services.c.seen_at < tx.now - SILENT_STORED_SECONDS)


def _delete(tx: session.Tx, *which: Any) -> int:
    """Delete rows by their names: MariaDB waits for every row that it reads to delete it."""
    names = [row.name for row in tx.all(sa.select(_services.c.name).where(*which))]
    return tx.run(_services.delete().where(_services.c.name.in_(names), *which)) if names else 0


def _memory(stored: str | None) -> MemoryUse | None:
    """Return the memory of a process; None also where a later release stores it otherwise."""
    try:
        return msgspec.json.decode(stored, type=MemoryUse) if stored else None
    except msgspec.DecodeError:
        return None


def _service(row: Any) -> ServiceRecord:
    return ServiceRecord(
        name=row.name,
        kind=row.kind,
        host=row.host,
        version=row.version,
        configuration=row.configuration,
        problem=row.problem,
        alarm=row.alarm or '',
        up_seconds=max(0.0, row.now - row.started_at),
        configured_seconds=max(0.0, row.now - row.configured_at),
        seen_seconds=max(0.0, row.now - row.seen_at),
        memory=_memory(row.memory),
    )
