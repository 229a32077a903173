# SPDX-License-Identifier: Apache-2.0
"""Allocations that parent zones have sent, and their order for each consumer.

An allocation that was delayed may come after a later one for its consumer, which is answered: it
would replace that one, as newer claims here replace those that are only reserved.  For the same
reason a parent zone does not claim for consumers of others, whose reservations are theirs.
"""

from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.db.database import SqlStore, writing_once
from gantt.db.engine import session
from gantt.db.engine.arrays import texts
from gantt.db.engine.session import CLOCK, bound
from gantt.db.schema import models
from gantt.zones.ports import ParentAllocation
from gantt.zones.sql.records import purpose_key

_allocation_orders, _claims, _parent_allocations = (
    models.allocation_orders,
    models.claims,
    models.parent_allocations,
)
_parent_zones = models.parent_zones
_ids: Any = sa.bindparam('ids', expanding=True)
STORED_ORDERS = (
    sa.select(_allocation_orders)
    .where(
        _allocation_orders.c.parent == sa.bindparam('parent'),
        _allocation_orders.c.consumer.in_(_ids),
        _allocation_orders.c.purpose == sa.bindparam('purpose'),
    )
    .order_by(_allocation_orders.c.consumer)
    .with_for_update()
)
#: Claims that give way to a newer one, or of guests that a newer one could move, and claims that
#: were written through the allocation API: of others than a parent zone.  Guests that were found
#: running are this zone's own, and stay.
CLAIM_OF_OTHERS = (
    sa.select(_claims.c.consumer)
    .where(_claims.c.consumer.in_(_ids), _claims.c.live == 1, _claims.c.adopted == 0)
    .where(sa.or_(_claims.c.parent_key.is_(None), _claims.c.parent_key != sa.bindparam('parent')))
    .order_by(_claims.c.consumer)
    .limit(1)
)
UPDATE_ORDER = (
    _allocation_orders.update()
    .where(
        _allocation_orders.c.parent == sa.bindparam('b_parent'),
        _allocation_orders.c.consumer == sa.bindparam('b_consumer'),
        _allocation_orders.c.purpose == sa.bindparam('b_purpose'),
    )
    .values(bound('order_no', 'request_key', 'updated_at'))
)
#: The zone is not removed while an allocation of it is noted; concurrent notes do not wait for it.
LOCK_PARENT = (
    sa.select(_parent_zones.c.name)
    .where(_parent_zones.c.name == sa.bindparam('parent'))
    .with_for_update(read=True, key_share=True)
)
UPDATE_DEADLINE = (
    _parent_allocations.update()
    .where(_parent_allocations.c.request_id == sa.bindparam('b_id'))
    .values(bound('until'))
)
#: On PostgreSQL, for a new key and new consumers: returns the number of rows inserted.  It does not
#: wait for the disk: later claims are after it in the log, so that no promised claim outlives the
#: note of its order.
NOTE_IN_ONE_STATEMENT = sa.text(f"""
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


class SqlAllocationOrders(SqlStore):
    """The order in which a parent zone has sent allocations for a consumer.

    It is ``ports.AllocationOrders`` in SQL.
    """

    def note_new_allocation(self, allocation: ParentAllocation) -> bool:
        autocommit = self.database.autocommit
        if autocommit is None:
            return False
        ids = sorted(set(allocation.consumers))
        parameters = {
            'parent': allocation.parent,
            'key': allocation.key,
            'request_id': allocation.request_id,
            'receipt': allocation.receipt,
            'seconds': allocation.seconds,
            'purpose': purpose_key(allocation.purpose),
            'order_no': allocation.order,
            'consumers': texts(ids),
        }
        row_count = autocommit.write_once(
            lambda tx: tx.first(NOTE_IN_ONE_STATEMENT, **parameters)[0]
        )
        return bool(row_count == len(ids))

    @writing_once
    def note_allocation(self, tx: session.Tx, allocation: ParentAllocation) -> list[str]:
        parent, request_id, ids = (
            allocation.parent,
            allocation.request_id,
            sorted(set(allocation.consumers)),
        )
        if tx.first(LOCK_PARENT, parent=parent) is None:
            raise exceptions.NotFound(kind='parent zone', name=parent)
        foreign_claim = tx.first(CLAIM_OF_OTHERS, parent=parent, ids=ids)
        if foreign_claim is not None:
            raise exceptions.Refused(
                f'consumer {foreign_claim.consumer} has a claim that parent zone {parent!r} has '
                'not made; expected a consumer without such a claim'
            )
        until = tx.now + allocation.seconds
        row = {'request_id': request_id, 'parent': parent, 'request_key': allocation.key}
        tx.insert_new(
            _parent_allocations,
            [row | {'receipt': allocation.receipt, 'until': until}],
            'request_id',
        )
        tx.run(UPDATE_DEADLINE, b_id=request_id, until=until)
        order_values = {
            'parent': parent,
            'purpose': purpose_key(allocation.purpose),
            'order_no': allocation.order,
            'request_key': request_id,
            'updated_at': tx.now,
        }
        rows = [{**order_values, 'consumer': consumer} for consumer in ids]
        tx.insert_new(_allocation_orders, rows, 'parent', 'consumer', 'purpose')
        stored_orders = tx.all(
            STORED_ORDERS, parent=parent, purpose=order_values['purpose'], ids=ids
        )
        others = [row for row in stored_orders if row.request_key != request_id]
        if any(row.order_no >= allocation.order for row in others):
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
        tx.run_many(UPDATE_ORDER, new_orders)
        return sorted({row.request_key for row in others})
