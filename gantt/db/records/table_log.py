# SPDX-License-Identifier: Apache-2.0
"""Change logs of host tables, in parts; a checkpoint starts a part.

A part is one compressed blob cut into chunks, so that no row is larger than a database's packet.
Of each worker all since the last checkpoint before the retention is stored: a decision within
the retention needs it.
"""

import sqlalchemy as sa

from gantt.core.messages.base import derived_id
from gantt.db.database import Database, reading, writing
from gantt.db.engine import session
from gantt.db.schema import models

_l = models.table_log

LAST_CHECKPOINT = (
    sa.select(sa.func.max(_l.c.first_event))
    .where(_l.c.worker == sa.bindparam('worker'), _l.c.checkpoint == 1)
    .where(_l.c.first_event < sa.bindparam('position'))
)
PARTS = (
    sa.select(_l.c.first_event, _l.c.chunk)
    .where(_l.c.worker == sa.bindparam('worker'))
    .where(_l.c.first_event >= sa.bindparam('start'), _l.c.first_event < sa.bindparam('position'))
    .order_by(_l.c.first_event, _l.c.number)
)
OLD_CHECKPOINTS = (
    sa.select(_l.c.worker, sa.func.max(_l.c.first_event).label('first_event'))
    .where(_l.c.checkpoint == 1, _l.c.created_at < sa.bindparam('before'))
    .group_by(_l.c.worker)
)
SILENT = (
    sa.select(_l.c.worker)
    .group_by(_l.c.worker)
    .having(sa.func.max(_l.c.created_at) < sa.bindparam('before'))
)
FORGET_BEFORE = _l.delete().where(
    _l.c.worker == sa.bindparam('b_worker'), _l.c.first_event < sa.bindparam('b_first')
)
FORGET = _l.delete().where(_l.c.worker == sa.bindparam('b_worker'))


class SqlTableLogs:
    """The change logs of host tables, for replay: ``ports.TableLogs`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

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
            _l,
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
        start = tx.first(LAST_CHECKPOINT, worker=worker, position=position)
        if start is None or start[0] is None:
            return []
        parts: dict[int, list[bytes]] = {}
        for row in tx.all(PARTS, worker=worker, start=start[0], position=position):
            parts.setdefault(row.first_event, []).append(bytes(row.chunk))
        return list(parts.values())

    @writing
    def purge_table_log(self, tx: session.Tx, keep_seconds: float) -> int:
        oldest_time = tx.now - keep_seconds
        silent_workers = {row.worker for row in tx.all(SILENT, before=oldest_time)}
        first_events = {
            row.worker: row.first_event for row in tx.all(OLD_CHECKPOINTS, before=oldest_time)
        }
        for worker in sorted(silent_workers):
            tx.run(FORGET, b_worker=worker)
        for worker in sorted(first_events.keys() - silent_workers):
            tx.run(FORGET_BEFORE, b_worker=worker, b_first=first_events[worker])
        return len(first_events.keys() | silent_workers)
