# SPDX-License-Identifier: Apache-2.0
"""Outbox of releases: allocations that end in child zones, until those have confirmed it."""

import threading
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from gantt.db.claims.lock_releases import FIRST_TRY_SECONDS, add_releases, release_in_zones
from gantt.db.claims.requests import LOCK_REQUEST, give_up
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.database import Database, SqlStore, reading, writing, writing_once
from gantt.db.engine import session
from gantt.db.engine.session import bound
from gantt.db.schema import models
from gantt.zones.ports import AbandonedRequest, DueRelease, WaitingReleases

_requests, _zone_releases, _delegated_consumers = (
    models.requests,
    models.zone_releases,
    models.delegated_consumers,
)
#: Longest time between two tries, in seconds: it doubles from the first.
RETRY_SECONDS_MAX = 300.0
#: Seconds after its deadline for which a request is left to a client that repeats it.
ABANDONED_AFTER_SECONDS = 5.0
#: Rows of requests that one search for left ones reads.
ROWS_PER_SEARCH = 5000

_now: Any = sa.bindparam('now')
DUE_RELEASES = (
    sa.select(_zone_releases)
    .where(_zone_releases.c.next_at <= _now)
    .order_by(_zone_releases.c.next_at, _zone_releases.c.child, _zone_releases.c.request_key)
    .limit(sa.bindparam('most'))
    .with_for_update()
)
COUNT_TRY = (
    _zone_releases.update()
    .where(
        _zone_releases.c.child == sa.bindparam('b_child'),
        _zone_releases.c.request_key == sa.bindparam('b_key'),
    )
    .values(bound('tries', 'next_at'))
)
DELETE_RELEASE = _zone_releases.delete().where(
    _zone_releases.c.child == sa.bindparam('b_child'),
    _zone_releases.c.request_key == sa.bindparam('b_key'),
)
WAITING_RELEASES = sa.select(
    sa.func.count().label('count'), sa.func.min(_zone_releases.c.created_at).label('oldest')
)
_window = (
    sa.select(_requests.c.id, _requests.c.state, _requests.c.deadline, _requests.c.token)
    .where(_requests.c.id > sa.bindparam('after'))
    .order_by(_requests.c.id)
    .limit(sa.bindparam('look'))
    .subquery()
)
#: Without an index by time, which would cost every request more than a walk costs.
ABANDONED_REQUESTS = (
    sa.select(_window.c.id, _window.c.token)
    .where(_window.c.state == 'open', _window.c.deadline < sa.bindparam('before'))
    .where(sa.exists().where(_delegated_consumers.c.request_id == _window.c.id))
    .order_by(_window.c.id)
    .limit(sa.bindparam('most'))
)
WINDOW_END = sa.select(sa.func.count().label('count'), sa.func.max(_window.c.id).label('last'))


class SqlZoneReleases(SqlStore):
    """Allocations to be ended: they are kept until their zone has been informed.

    It is ``ports.ZoneReleases`` in SQL.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._search_after = ''
        self._search_lock = threading.Lock()

    @writing
    def add_releases(
        self, tx: session.Tx, pairs: Collection[tuple[str, str]], seconds: float = 0.0
    ) -> None:
        add_releases(tx, pairs, seconds)

    @writing
    def due_releases(self, tx: session.Tx, limit: int) -> list[DueRelease]:
        due_rows = tx.all(DUE_RELEASES, now=tx.now, most=limit)
        tx.run_many(
            COUNT_TRY,
            [
                {
                    'b_child': row.child,
                    'b_key': row.request_key,
                    'tries': row.tries + 1,
                    'next_at': tx.now
                    + min(RETRY_SECONDS_MAX, FIRST_TRY_SECONDS * 2 ** min(row.tries, 20)),
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
        tx.run_many(
            DELETE_RELEASE, [{'b_child': child, 'b_key': key} for child, key in sorted(set(pairs))]
        )

    @reading
    def waiting_releases(self, tx: session.Tx) -> WaitingReleases:
        row = tx.first(WAITING_RELEASES)
        seconds = 0.0 if row.oldest is None else max(0.0, tx.now - row.oldest)
        return WaitingReleases(int(row.count), seconds)

    def abandoned_requests(self, limit: int) -> list[AbandonedRequest]:
        with self._search_lock:
            requests, self._search_after = self._find_abandoned(limit, self._search_after)
        return requests

    @reading
    def _find_abandoned(
        self, tx: session.Tx, limit: int, after: str
    ) -> tuple[list[AbandonedRequest], str]:
        window = {'after': after, 'look': ROWS_PER_SEARCH}
        rows = tx.all(
            ABANDONED_REQUESTS, before=tx.now - ABANDONED_AFTER_SECONDS, most=limit, **window
        )
        requests = [AbandonedRequest(row.id, row.token) for row in rows]
        if len(rows) == limit:
            return requests, rows[-1].id
        window_edge = tx.first(WINDOW_END, **window)
        return requests, window_edge.last if window_edge.count == ROWS_PER_SEARCH else ''

    @writing_once
    def end_abandoned_request(self, tx: session.Tx, abandoned: AbandonedRequest) -> None:
        row = tx.first(LOCK_REQUEST, id=abandoned.request_id)
        if row is None or (row.state, row.token) != ('open', abandoned.lock_token):
            return
        if row.deadline > tx.now - ABANDONED_AFTER_SECONDS:
            return
        release_in_zones(tx, abandoned.lock_token)
        give_up(UnitOfWork(tx, self.database.memory), abandoned.request_id, 'left')
