# SPDX-License-Identifier: Apache-2.0
"""Comparisons of shadow mode: a bounded table, newest first."""

from collections.abc import Sequence

import sqlalchemy as sa

from gantt.core.records.shadow import ComparedChoice, ShadowVerdict
from gantt.db.database import SqlStore, reading, writing
from gantt.db.engine import session
from gantt.db.schema import models

_shadows = models.shadows
_COLUMNS = [column.name for column in _shadows.c if column.name != 'number']

SELECT_OLDEST_STORED = (
    sa.select(_shadows.c.number)
    .order_by(_shadows.c.number.desc())
    .offset(sa.bindparam('keep'))
    .limit(1)
)
COUNT_BY_VERDICT = sa.select(_shadows.c.verdict, sa.func.count()).group_by(_shadows.c.verdict)


class SqlShadows(SqlStore):
    """Decisions of Nova and of Gantt side by side, as shadow mode compares them.

    It is ``ports.Shadows`` in SQL.
    """

    @writing
    def save_shadows(self, tx: session.Tx, found: Sequence[ComparedChoice], keep: int) -> None:
        tx.insert_new(_shadows, [_row_values(comparison, tx.now) for comparison in found], 'id')
        # Read first: MariaDB rejects a subquery of the table that is written to.
        last = tx.first(SELECT_OLDEST_STORED, keep=keep)
        if last is not None:
            tx.run(_shadows.delete().where(_shadows.c.number <= last.number))

    @reading
    def list_shadows(
        self, tx: session.Tx, verdicts: Sequence[ShadowVerdict] | None, limit: int
    ) -> list[ComparedChoice]:
        query = sa.select(_shadows).order_by(_shadows.c.number.desc()).limit(limit)
        if verdicts is not None:
            query = query.where(_shadows.c.verdict.in_([verdict.value for verdict in verdicts]))
        return [_compared(row) for row in tx.all(query)]

    @reading
    def count_shadows(self, tx: session.Tx) -> dict[ShadowVerdict, int]:
        return {ShadowVerdict(verdict): count for verdict, count in tx.all(COUNT_BY_VERDICT)}


def _row_values(compared: ComparedChoice, now: float) -> dict[str, object]:
    values = {name: getattr(compared, name) for name in _COLUMNS}
    return values | {
        'verdict': compared.verdict.value,
        'reason': compared.reason[:1024],
        'created_at': now,
    }


def _compared(row: sa.Row) -> ComparedChoice:
    values = {name: getattr(row, name) for name in _COLUMNS}
    return ComparedChoice(**values | {'verdict': ShadowVerdict(row.verdict)})
