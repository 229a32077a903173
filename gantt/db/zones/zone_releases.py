# SPDX-License-Identifier: Apache-2.0
"""Outbox of releases: allocations that end in child zones, until those have confirmed it."""

import threading
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from gantt.db.claims.lock_releases import FIRST_SECONDS, add, release_in_zones
from gantt.db.claims.requests import DELETE, LOCK, NOT_ON_THEIR_WAY, cancel_claims
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.database import Database, reading, writing, writing_once
from gantt.db.engine import session
from gantt.db.schema import models
from gantt.scheduler.ports.zones import AbandonedRequest, DueRelease, WaitingReleases

_r, _b, _way = models.requests, models.zone_releases, models.delegated_consumers
#: Longest time between two tries, in seconds: it doubles from the first.
MOST_SECONDS = 300.0
#: Seconds after its deadline for which a request is left to a client that repeats it.
LEFT_SECONDS = 5.0
#: Rows of requests that one search for left ones reads.
LOOK = 5000

_now: Any = sa.bindparam('now')
DUE = (
    sa.select(_b)
    .where(_b.c.next_at <= _now)
    .order_by(_b.c.next_at, _b.c.child, _b.c.request_key)
    .limit(sa.bindparam('most'))
    .with_for_update()
)
TRY = (
    _b.update()
    .where(_b.c.child == sa.bindparam('b_child'), _b.c.request_key == sa.bindparam('b_key'))
    .values(tries=sa.bindparam('tries'), next_at=sa.bindparam('next_at'))
)
END = _b.delete().where(
    _b.c.child == sa.bindparam('b_child'), _b.c.request_key == sa.bindparam('b_key')
)
WAITING = sa.select(sa.func.count().label('count'), sa.func.min(_b.c.created_at).label('oldest'))
_window = (
    sa.select(_r.c.id, _r.c.state, _r.c.deadline, _r.c.token)
    .where(_r.c.id > sa.bindparam('after'))
    .order_by(_r.c.id)
    .limit(sa.bindparam('look'))
    .subquery()
)
#: Without an index by time, which would cost every request more than a walk costs.
LEFT = (
    sa.select(_window.c.id, _window.c.token)
    .where(_window.c.state == 'open', _window.c.deadline < sa.bindparam('before'))
    .where(sa.exists().where(_way.c.request_id == _window.c.id))
    .order_by(_window.c.id)
    .limit(sa.bindparam('most'))
)
EDGE = sa.select(sa.func.count().label('count'), sa.func.max(_window.c.id).label('last'))


class SqlZoneReleases:
    """Allocations to be ended: they are kept until their zone has been informed.

    It is ``ports.ZoneReleases`` in SQL.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._left_after, self._left_lock = '', threading.Lock()

    @writing
    def add_releases(
        self, tx: session.Tx, pairs: Collection[tuple[str, str]], seconds: float = 0.0
    ) -> None:
        add(tx, pairs, seconds)

    @writing
    def due_releases(self, tx: session.Tx, limit: int) -> list[DueRelease]:
        due_rows = tx.all(DUE, now=tx.now, most=limit)
        tx.many(
            TRY,
            [
                {
                    'b_child': row.child,
                    'b_key': row.request_key,
                    'tries': row.tries + 1,
                    'next_at': tx.now + min(MOST_SECONDS, FIRST_SECONDS * 2 ** min(row.tries, 20)),
                }
                for row in due_rows
            ],
        )
        return [
            DueRelease(row.child, row.request_key, row.tries + 1, tx.now - row.created_at)
            for row in due_rows
        ]

    @writing
    def end_releases(self, tx: session.Tx, pairs: Collection[tuple[str, str]]) -> None:
        tx.many(END, [{'b_child': child, 'b_key': key} for child, key in sorted(set(pairs))])

    @reading
    def waiting_releases(self, tx: session.Tx) -> WaitingReleases:
        row = tx.first(WAITING)
        seconds = 0.0 if row.oldest is None else max(0.0, tx.now - row.oldest)
        return WaitingReleases(int(row.count), seconds)

    def abandoned_requests(self, limit: int) -> list[AbandonedRequest]:
        with self._left_lock:
            requests, self._left_after = self._left(limit, self._left_after)
        return requests

    @reading
    def _left(self, tx: session.Tx, limit: int, after: str) -> tuple[list[AbandonedRequest], str]:
        window = {'after': after, 'look': LOOK}
        rows = tx.all(LEFT, before=tx.now - LEFT_SECONDS, most=limit, **window)
        requests = [AbandonedRequest(row.id, row.token) for row in rows]
        if len(rows) == limit:
            return requests, rows[-1].id
        window_edge = tx.first(EDGE, **window)
        return requests, window_edge.last if window_edge.count == LOOK else ''

    @writing_once
    def end_abandoned_request(self, tx: session.Tx, left: AbandonedRequest) -> None:
        row = tx.first(LOCK, id=left.request_id)
        if row is None or (row.state, row.token) != ('open', left.lock_token):
            return
        if row.deadline > tx.now - LEFT_SECONDS:
            return
        release_in_zones(tx, left.lock_token)
        cancel_claims(UnitOfWork(tx, self.database.memory), left.request_id, 'left')
        tx.run(DELETE, b_id=left.request_id)
        tx.run(NOT_ON_THEIR_WAY, b_id=left.request_id)
