# SPDX-License-Identifier: Apache-2.0
"""Comparisons of shadow mode: a bounded table, newest first."""

from collections.abc import Sequence

import sqlalchemy as sa

from gantt.core.records.shadow import Compared, Verdict
from gantt.db.engine import session
from gantt.db.schema import models
from gantt.db.stores.store_part import StorePart

_s = models.shadows

OLDEST_KEPT = (
    sa.select(_s.c.number).order_by(_s.c.number.desc()).offset(sa.bindparam('keep')).limit(1)
)
COUNTS = sa.select(_s.c.verdict, sa.func.count()).group_by(_s.c.verdict)


class ShadowStore(StorePart):
    """Decisions of Nova and of Gantt side by side."""

    def save_shadows(self, found: Sequence[Compared], keep: int) -> None:
        """Keep comparisons, one that is there as it is, and of all the newest ``keep``."""

        def work(tx: session.Tx) -> None:
            tx.insert_new(_s, [_values(one, tx.now) for one in found], 'id')
            # Read first: a subquery of the table that is written to is not for MariaDB.
            last = tx.first(OLDEST_KEPT, keep=keep)
            if last is not None:
                tx.run(_s.delete().where(_s.c.number <= last.number))

        self.database.write(work)

    def shadows(self, verdicts: Sequence[Verdict] | None, limit: int) -> list[Compared]:
        """Newest first.

        :param verdicts: of these only
        """
        query = sa.select(_s).order_by(_s.c.number.desc()).limit(limit)
        if verdicts is not None:
            query = query.where(_s.c.verdict.in_([one.value for one in verdicts]))
        return self.reads.read(lambda tx: [_compared(row) for row in tx.all(query)])

    def count_shadows(self) -> dict[Verdict, int]:
        """How many of those that are kept have which verdict."""
        return self.reads.read(
            lambda tx: {Verdict(verdict): count for verdict, count in tx.all(COUNTS)}
        )


def _values(one: Compared, now: float) -> dict[str, object]:
    return {
        'id': one.id,
        'request_id': one.request_id,
        'origin': one.origin,
        'consumer': one.consumer,
        'purpose': one.purpose,
        'verdict': one.verdict.value,
        'ours': one.ours,
        'theirs': one.theirs,
        'why': one.why[:1024],
        'created_at': now,
    }


def _compared(row: sa.Row) -> Compared:
    return Compared(
        id=row.id,
        request_id=row.request_id,
        origin=row.origin,
        consumer=row.consumer,
        purpose=row.purpose,
        verdict=Verdict(row.verdict),
        ours=row.ours,
        theirs=row.theirs,
        why=row.why,
        created_at=row.created_at,
    )
