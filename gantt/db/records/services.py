# SPDX-License-Identifier: Apache-2.0
"""Processes of the site: a row each, written by the process itself."""

from typing import Any

import sqlalchemy as sa

from gantt.core.records.process import (
    LISTED_MAX,
    SILENT_SECONDS,
    STORED_SECONDS,
    ServiceNote,
    ServiceRecord,
)
from gantt.db.database import Database, reading, writing
from gantt.db.engine import engine, session
from gantt.db.schema import models

_s = models.services
#: Most characters of a column of the table.
_WORDS_MAX = 1024

READ = (
    sa.select(_s, session.Now().label('now'))
    .order_by(_s.c.seen_at.desc(), _s.c.name)
    .limit(LISTED_MAX)
)


class SqlServices:
    """Processes of the site, as they record themselves: ``ports.Services`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

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
            'problem': note.problem[:_WORDS_MAX],
            'alarm': note.alarm[:_WORDS_MAX],
            'started_at': now - note.up_seconds,
            'configured_at': now - note.configured_seconds,
            'seen_at': now,
        }
        if tx.run(_s.update().where(_s.c.name == name).values(values)):
            return
        _delete(
            tx, _s.c.kind == note.kind, _s.c.host == note.host, _s.c.seen_at < now - SILENT_SECONDS
        )
        tx.insert_new(_s, [{'name': name, **values}], 'name')

    @writing
    def forget_service(self, tx: session.Tx, name: str) -> None:
        tx.run(_s.delete().where(_s.c.name == engine.storable(name)))

    @reading
    def list_services(self, tx: session.Tx) -> list[ServiceRecord]:
        return [_service(row) for row in tx.all(READ)]


def purge(tx: session.Tx) -> int:
    """Delete the rows of processes that have been silent for long; return their number."""
    return _delete(tx, _s.c.seen_at < tx.now - STORED_SECONDS)


def _delete(tx: session.Tx, *which: Any) -> int:
    """Delete rows by their names: MariaDB waits for every row that it reads to delete it."""
    names = [row.name for row in tx.all(sa.select(_s.c.name).where(*which))]
    return tx.run(_s.delete().where(_s.c.name.in_(names), *which)) if names else 0


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
    )
