# SPDX-License-Identifier: Apache-2.0
"""Comparisons of shadow mode: a bounded table, newest first."""

from collections.abc import Sequence

import sqlalchemy as sa

from gantt.core.records.shadow import Compared, ShadowVerdict
from gantt.db.database import Database, reading, writing
from gantt.db.engine import session
from gantt.db.schema import models

_s = models.shadows
_COLUMNS = [column.name for column in _s.c if column.name != 'number']

OLDEST_STORED = (
    sa.select(_s.c.number).order_by(_s.c.number.desc()).offset(sa.bindparam('keep')).limit(1)
)
COUNTS = sa.select(_s.c.verdict, sa.func.count()).group_by(_s.c.verdict)


class SqlShadows:
    """Decisions of Nova and of Gantt side by side, as shadow mode compares them.

    It is ``ports.Shadows`` in SQL.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    @writing
    def save_shadows(self, tx: session.Tx, found: Sequence[Compared], keep: int) -> None:
        tx.insert_new(_s, [_values(comparison, tx.now) for comparison in found], 'id')
        # Read first: MariaDB rejects a subquery of the table that is written to.
        last = tx.first(OLDEST_STORED, keep=keep)
        if last is not None:
            tx.run(_s.delete().where(_s.c.number <= last.number))

    @reading
    def list_shadows(
        self, tx: session.Tx, verdicts: Sequence[ShadowVerdict] | None, limit: int
    ) -> list[Compared]:
        query = sa.select(_s).order_by(_s.c.number.desc()).limit(limit)
        if verdicts is not None:
            query = query.where(_s.c.verdict.in_([verdict.value for verdict in verdicts]))
        return [_compared(row) for row in tx.all(query)]

    @reading
    def count_shadows(self, tx: session.Tx) -> dict[ShadowVerdict, int]:
        return {ShadowVerdict(verdict): count for verdict, count in tx.all(COUNTS)}


def _values(one: Compared, now: float) -> dict[str, object]:
    values = {name: getattr(one, name) for name in _COLUMNS}
    return values | {'verdict': one.verdict.value, 'reason': one.reason[:1024], 'created_at': now}


def _compared(row: sa.Row) -> Compared:
    values = {name: getattr(row, name) for name in _COLUMNS}
    return Compared(**values | {'verdict': ShadowVerdict(row.verdict)})
