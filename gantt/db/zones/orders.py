# SPDX-License-Identifier: Apache-2.0
"""In which order a zone above has sent allocations for a consumer.

One that was held up on its way may come after a later one for its consumer, which is answered: it
would take that one's place, as what is newer here takes that of what is only reserved.  For the
same reason a zone above claims for no consumer of others: what those have reserved is theirs.
"""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages.request import Purpose
from gantt.db.engine import session
from gantt.db.engine.session import CLOCK, write_once, writing_once
from gantt.db.schema import models
from gantt.db.zones.records import SqlZones, kind_of

_o, _c = models.allocation_orders, models.claims
_ids: Any = sa.bindparam('ids', expanding=True)
KNOWN = (
    sa.select(_o)
    .where(
        _o.c.parent == sa.bindparam('parent'),
        _o.c.consumer.in_(_ids),
        _o.c.purpose == sa.bindparam('purpose'),
    )
    .order_by(_o.c.consumer)
    .with_for_update()
)
#: Claims that make place for a newer one, or of guests that a newer one could move: of others than
#: a zone above.  What was found running is this zone's own, and stays as it is.
OF_OTHERS = (
    sa.select(_c.c.consumer)
    .where(_c.c.consumer.in_(_ids), _c.c.live == 1, _c.c.lifecycle != 'api', _c.c.adopted == 0)
    .where(sa.or_(_c.c.parent_key.is_(None), _c.c.parent_key != sa.bindparam('parent')))
    .order_by(_c.c.consumer)
    .limit(1)
)
STEP = (
    _o.update()
    .where(
        _o.c.parent == sa.bindparam('b_parent'),
        _o.c.consumer == sa.bindparam('b_consumer'),
        _o.c.purpose == sa.bindparam('b_purpose'),
    )
    .values(
        order_no=sa.bindparam('order_no'),
        request_key=sa.bindparam('request_key'),
        updated_at=sa.bindparam('updated_at'),
    )
)
#: On PostgreSQL, under a key that is not known, of consumers of which none is: how many rows were
#: made.  It does not wait for the disk: what is claimed after it is in the log behind it, so that
#: no claim that is promised outlives the note of its order.
NOTE_AT_ONCE = sa.text(f"""
    WITH noted AS (
        INSERT INTO allocation_orders
               (parent, consumer, purpose, order_no, request_key, updated_at)
        SELECT CAST(:parent AS text), c, :purpose, CAST(:order_no AS bigint),
               CAST(:request_key AS text), {CLOCK['postgresql']}
          FROM unnest(CAST(:consumers AS text[])) c
         WHERE NOT EXISTS (SELECT 1 FROM requests WHERE id = CAST(:request_key AS text))
           AND NOT EXISTS (SELECT 1 FROM claims
                            WHERE consumer = ANY(CAST(:consumers AS text[])) AND live = 1
                              AND lifecycle <> 'api' AND adopted = 0
                              AND parent_key IS DISTINCT FROM CAST(:parent AS text))
         ORDER BY c
            ON CONFLICT (parent, consumer, purpose) DO NOTHING
        RETURNING consumer)
    SELECT count(*), set_config('synchronous_commit', 'off', true) FROM noted
""")  # noqa: S608 - the clock's expression is a constant


class SqlAllocationOrders(SqlZones):
    """See ``scheduler.ports.zones``."""

    def note_new_allocation(
        self, parent: str, key: str, order: int, consumers: Collection[str], purpose: Purpose
    ) -> bool:
        if self.at_once is None or not order:
            return False
        ids = sorted(set(consumers))
        given = _noted(parent, key, order, purpose) | {'consumers': ids}
        noted = write_once(self.at_once, lambda tx: tx.first(NOTE_AT_ONCE, **given)[0])
        return bool(noted == len(ids))

    @writing_once
    def note_allocation(
        self,
        tx: session.Tx,
        parent: str,
        key: str,
        order: int,
        consumers: Collection[str],
        purpose: Purpose,
    ) -> list[str]:
        new, ids = _noted(parent, key, order, purpose), sorted(set(consumers))
        found = tx.first(OF_OTHERS, parent=new['parent'], ids=ids)
        if found is not None:
            raise exceptions.Refused(
                f'consumer {found.consumer} has a claim that is not of this zone above; '
                'expected one that it has claimed itself, or none'
            )
        if not new['order_no']:
            return []
        new = {**new, 'updated_at': tx.now}
        rows = [{**new, 'consumer': consumer} for consumer in ids]
        tx.insert_new(_o, rows, 'parent', 'consumer', 'purpose')
        found = tx.all(KNOWN, parent=new['parent'], purpose=new['purpose'], ids=ids)
        others = [row for row in found if row.request_key != new['request_key']]
        if any(row.order_no >= new['order_no'] for row in others):
            raise exceptions.AllocationOutdated()
        stepped = [
            {
                'b_parent': row.parent,
                'b_consumer': row.consumer,
                'b_purpose': row.purpose,
                **{name: new[name] for name in ('order_no', 'request_key', 'updated_at')},
            }
            for row in others
        ]
        tx.many(STEP, stepped)
        return sorted({row.request_key for row in others})


def _noted(parent: str, key: str, order: int, purpose: Purpose) -> dict[str, Any]:
    """What the rows of an allocation have in common."""
    return {
        'parent': parent,
        'purpose': kind_of(purpose),
        'order_no': order,
        'request_key': key,
    }
