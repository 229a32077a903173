# SPDX-License-Identifier: Apache-2.0
"""Processes of the site: a row each, written by the process itself."""

from typing import Any

import sqlalchemy as sa

from gantt.core.records.process import (
    KEPT_SECONDS,
    LISTED_MAX,
    SILENT_SECONDS,
    Service,
    ServiceNote,
)
from gantt.db.engine import kinds, session
from gantt.db.schema import models

_s = models.services
#: Characters that a column of the table takes.
_WORDS_MAX = 1024

READ = (
    sa.select(_s, session.Now().label('now'))
    .order_by(_s.c.seen_at.desc(), _s.c.name)
    .limit(LISTED_MAX)
)


def note(tx: session.Tx, said: ServiceNote) -> None:
    """Write the row of a process.

    A new one takes the place of those of its kind on its host that are silent: what is
    started again and again leaves no trail of rows.
    """
    now = tx.now
    name = kinds.storable(said.name)
    values: dict[str, Any] = {
        'kind': said.kind,
        'host': said.host,
        'version': said.version,
        'configuration': said.configuration,
        'problem': said.problem[:_WORDS_MAX],
        'alarm': said.alarm[:_WORDS_MAX],
        'started_at': now - said.up_seconds,
        'configured_at': now - said.configured_seconds,
        'seen_at': now,
    }
    if tx.run(_s.update().where(_s.c.name == name).values(values)):
        return
    _delete(tx, _s.c.kind == said.kind, _s.c.host == said.host, _s.c.seen_at < now - SILENT_SECONDS)
    tx.insert_new(_s, [{'name': name, **values}], 'name')


def forget(tx: session.Tx, name: str) -> None:
    """Delete the row of a process that ends."""
    tx.run(_s.delete().where(_s.c.name == kinds.storable(name)))


def load(tx: session.Tx) -> list[Service]:
    """All that are remembered, the one seen last first."""
    return [_service(row) for row in tx.all(READ)]


def purge(tx: session.Tx) -> int:
    """Forget those that have been silent for long; how many went."""
    return _delete(tx, _s.c.seen_at < tx.now - KEPT_SECONDS)


def _delete(tx: session.Tx, *which: Any) -> int:
    """Delete rows by their names: MariaDB waits for every row that it looks at to delete it."""
    names = [row.name for row in tx.all(sa.select(_s.c.name).where(*which))]
    return tx.run(_s.delete().where(_s.c.name.in_(names), *which)) if names else 0


def _service(row: Any) -> Service:
    return Service(
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
