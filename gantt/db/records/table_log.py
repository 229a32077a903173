# SPDX-License-Identifier: Apache-2.0
"""Change logs of host tables, in parts; a checkpoint starts a part.

A part is one compressed blob cut into chunks, so that no row is larger than a database's packet.
Of each worker all since the last checkpoint before the retention is stored: a decision within
the retention needs it.
"""

import sqlalchemy as sa

from gantt.core.messages.base import derived_id
from gantt.db.database import SqlStore, reading, writing
from gantt.db.engine import session
from gantt.db.schema import models

_table_log = models.table_log

SELECT_LAST_CHECKPOINT = (
    sa.select(sa.func.max(_table_log.c.first_event))
    .where(_table_log.c.worker == sa.bindparam('worker'), _table_log.c.checkpoint == 1)
    .where(_table_log.c.first_event < sa.bindparam('position'))
)
SELECT_CHUNKS = (
    sa.select(_table_log.c.first_event, _table_log.c.chunk)
    .where(_table_log.c.worker == sa.bindparam('worker'))
    .where(
        _table_log.c.first_event >= sa.bindparam('start'),
        _table_log.c.first_event < sa.bindparam('position'),
    )
    .order_by(_table_log.c.first_event, _table_log.c.number)
)
SELECT_OLD_CHECKPOINTS = (
    sa.select(_table_log.c.worker, sa.func.max(_table_log.c.first_event).label('first_event'))
    .where(_table_log.c.checkpoint == 1, _table_log.c.created_at < sa.bindparam('before'))
    .group_by(_table_log.c.worker)
)
SELECT_SILENT_WORKERS = (
    sa.select(_table_log.c.worker)
    .group_by(_table_log.c.worker)
    .having(sa.func.max(_table_log.c.created_at) < sa.bindparam('before'))
)
DELETE_BEFORE = _table_log.delete().where(
    _table_log.c.worker == sa.bindparam('b_worker'),
    _table_log.c.first_event < sa.bindparam('b_first'),
)
DELETE_LOG = _table_log.delete().where(_table_log.c.worker == sa.bindparam('b_worker'))


class SqlTableLogs(SqlStore):
    """The change logs of host tables, for replay: ``ports.TableLogs`` in SQL."""

    @writing
    def save_table_log(
        self,
        tx: session.Tx,
        worker: str,
        first: int,
        last: int,
        checkpoint: bool,
        chunks: list[bytes],
    ) -> None:
        tx.insert_new(
            _table_log,
            [
                {
                    'id': derived_id('table log', worker, first, number),
                    'worker': worker,
                    'first_event': first,
                    'number': number,
                    'last_event': last,
                    'checkpoint': int(checkpoint),
                    'chunk': chunk,
                    'created_at': tx.now,
                }
                for number, chunk in enumerate(chunks)
            ],
            'id',
        )

    @reading
    def load_table_log(self, tx: session.Tx, worker: str, position: int) -> list[list[bytes]]:
        start = tx.first(SELECT_LAST_CHECKPOINT, worker=worker, position=position)
        if start is None or start[0] is None:
            return []
        parts: dict[int, list[bytes]] = {}
        for row in tx.all(SELECT_CHUNKS, worker=worker, start=start[0], position=position):
            parts.setdefault(row.first_event, []).append(bytes(row.chunk))
        return list(parts.values())

    @writing
    def purge_table_log(self, tx: session.Tx, keep_seconds: float) -> int:
        oldest_time = tx.now - keep_seconds
        silent_workers = {row.worker for row in tx.all(SELECT_SILENT_WORKERS, before=oldest_time)}
        first_events = {
            row.worker: row.first_event
            for row in tx.all(SELECT_OLD_CHECKPOINTS, before=oldest_time)
        }
        for worker in sorted(silent_workers):
            tx.run(DELETE_LOG, b_worker=worker)
        for worker in sorted(first_events.keys() - silent_workers):
            tx.run(DELETE_BEFORE, b_worker=worker, b_first=first_events[worker])
        return len(first_events.keys() | silent_workers)
