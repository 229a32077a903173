# SPDX-License-Identifier: Apache-2.0
"""Allocations that parent zones have sent, and their order for each consumer.

An allocation that was delayed may come after a later one for its consumer, which is answered: it
would replace that one, as newer claims here replace those that are only reserved.  For the same
reason a parent zone does not claim for consumers of others, whose reservations are theirs.
"""

from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.db.database import Database, writing_once
from gantt.db.engine import session
from gantt.db.engine.session import CLOCK
from gantt.db.schema import models
from gantt.db.zones.records import kind_of
from gantt.scheduler.ports.zones import AllocationAbove

_o, _c, _above = models.allocation_orders, models.claims, models.parent_allocations
_p = models.parent_zones
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
#: Claims that give way to a newer one, or of guests that a newer one could move, and claims that
#: were written through the allocation API: of others than a parent zone.  Guests that were found
#: running are this zone's own, and stay.
OF_OTHERS = (
    sa.select(_c.c.consumer)
    .where(_c.c.consumer.in_(_ids), _c.c.live == 1, _c.c.adopted == 0)
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
#: The zone is not removed while an allocation of it is noted; concurrent notes do not wait for it.
HELD_PARENT = (
    sa.select(_p.c.name)
    .where(_p.c.name == sa.bindparam('parent'))
    .with_for_update(read=True, key_share=True)
)
LONGER = (
    _above.update()
    .where(_above.c.request_id == sa.bindparam('b_id'))
    .values(until=sa.bindparam('until'))
)
#: On PostgreSQL, for a new key and new consumers: returns the number of rows inserted.  It does not
#: wait for the disk: later claims are behind it in the log, so that no promised claim outlives the
#: note of its order.
NOTE_AT_ONCE = sa.text(f"""
    WITH held AS (
        SELECT name FROM parent_zones WHERE name = CAST(:parent AS text) FOR KEY SHARE),
    kept AS (
        INSERT INTO parent_allocations (request_id, parent, request_key, receipt, until)
        SELECT CAST(:request_id AS text), name, CAST(:key AS text), CAST(:receipt AS text),
               {CLOCK['postgresql']} + :seconds
          FROM held
            ON CONFLICT (request_id) DO UPDATE SET until = EXCLUDED.until),
    noted AS (
        INSERT INTO allocation_orders
               (parent, consumer, purpose, order_no, request_key, updated_at)
        SELECT name, c, :purpose, CAST(:order_no AS bigint), CAST(:request_id AS text),
               {CLOCK['postgresql']}
          FROM held, unnest(CAST(:consumers AS text[])) c
         WHERE NOT EXISTS (SELECT 1 FROM requests WHERE id = CAST(:request_id AS text))
           AND NOT EXISTS (SELECT 1 FROM claims
                            WHERE consumer = ANY(CAST(:consumers AS text[])) AND live = 1
                              AND adopted = 0
                              AND parent_key IS DISTINCT FROM CAST(:parent AS text))
         ORDER BY c
            ON CONFLICT (parent, consumer, purpose) DO NOTHING
        RETURNING consumer)
    SELECT count(*), set_config('synchronous_commit', 'off', true) FROM noted
""")  # noqa: S608 - the clock's expression is a constant


class SqlAllocationOrders:
    """The order in which a parent zone has sent allocations for a consumer.

    It is ``ports.AllocationOrders`` in SQL.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def note_new_allocation(self, wanted: AllocationAbove) -> bool:
        at_once = self.database.at_once
        if at_once is None:
            return False
        ids = sorted(set(wanted.consumers))
        parameters = {
            'parent': wanted.parent,
            'key': wanted.key,
            'request_id': wanted.request_id,
            'receipt': wanted.receipt,
            'seconds': wanted.seconds,
            'purpose': kind_of(wanted.purpose),
            'order_no': wanted.order,
            'consumers': ids,
        }
        row_count = at_once.write_once(lambda tx: tx.first(NOTE_AT_ONCE, **parameters)[0])
        return bool(row_count == len(ids))

    @writing_once
    def note_allocation(self, tx: session.Tx, wanted: AllocationAbove) -> list[str]:
        parent, request_id, ids = wanted.parent, wanted.request_id, sorted(set(wanted.consumers))
        if tx.first(HELD_PARENT, parent=parent) is None:
            raise exceptions.NotFound(kind='parent zone', name=parent)
        foreign_claim = tx.first(OF_OTHERS, parent=parent, ids=ids)
        if foreign_claim is not None:
            raise exceptions.Refused(
                f'consumer {foreign_claim.consumer} has a claim that is not of this zone above; '
                'expected one that it has claimed itself, or none'
            )
        until = tx.now + wanted.seconds
        row = {'request_id': request_id, 'parent': parent, 'request_key': wanted.key}
        tx.insert_new(_above, [row | {'receipt': wanted.receipt, 'until': until}], 'request_id')
        tx.run(LONGER, b_id=request_id, until=until)
        order_values = {
            'parent': parent,
            'purpose': kind_of(wanted.purpose),
            'order_no': wanted.order,
            'request_key': request_id,
            'updated_at': tx.now,
        }
        rows = [{**order_values, 'consumer': consumer} for consumer in ids]
        tx.insert_new(_o, rows, 'parent', 'consumer', 'purpose')
        stored_orders = tx.all(KNOWN, parent=parent, purpose=order_values['purpose'], ids=ids)
        others = [row for row in stored_orders if row.request_key != request_id]
        if any(row.order_no >= wanted.order for row in others):
            raise exceptions.AllocationOutdated()
        new_orders = [
            {
                'b_parent': row.parent,
                'b_consumer': row.consumer,
                'b_purpose': row.purpose,
                **{name: order_values[name] for name in ('order_no', 'request_key', 'updated_at')},
            }
            for row in others
        ]
        tx.many(STEP, new_orders)
        return sorted({row.request_key for row in others})
