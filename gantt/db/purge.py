# SPDX-License-Identifier: Apache-2.0
"""Old rows go, a bounded number at a time.

A request stays as long as any of its claims is live, and a tombstone as long
as its request: whatever still points at a claim finds it.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.db import arrays, decisions, models, session

_c = models.claims
_r = models.requests
_d = models.decisions
_x = models.changes

#: Entries of the feed that stay: many times what a poll reads again.
CHANGES_KEPT = 200_000
#: Rows looked at for each row that may go.
LOOK = 10


def _next(columns: Sequence[Any]) -> Any:
    """The next ``most`` rows ``after`` an id, in order of their ids."""
    key = columns[0]
    found = sa.select(*columns).where(key > sa.bindparam('after')).order_by(key)
    return found.limit(sa.bindparam('most')).subquery()


def _edge(found: Any) -> Any:
    """How many there are, and the last of them."""
    return sa.select(sa.func.count().label('count'), sa.func.max(found.c.id).label('last'))


_nr = _next((_r.c.id, _r.c.state, _r.c.updated_at, _r.c.deadline))
_nc = _next((_c.c.id, _c.c.live, _c.c.updated_at, _c.c.request_id))
#: Of the rows that a walk comes by, only those that may go are sent.
REQUESTS_EDGE, CLAIMS_EDGE = _edge(_nr), _edge(_nc)
OLD_REQUESTS = (
    sa.select(_nr.c.id)
    .where(
        _nr.c.updated_at < sa.bindparam('before'),
        sa.or_(_nr.c.state != 'open', _nr.c.deadline < sa.bindparam('before')),
        ~sa.exists().where(_c.c.request_id == _nr.c.id, _c.c.live == 1),
    )
    .order_by(_nr.c.id)
    .limit(sa.bindparam('limit'))
)
OLD_CLAIMS = (
    sa.select(_nc.c.id)
    .where(
        _nc.c.live == 0,
        _nc.c.updated_at < sa.bindparam('before'),
        ~sa.exists().where(_r.c.id == _nc.c.request_id),
    )
    .order_by(_nc.c.id)
    .limit(sa.bindparam('limit'))
)
LOCKED_REQUESTS = (
    sa.select(_r.c.id, _r.c.state, _r.c.updated_at, _r.c.deadline)
    .order_by(_r.c.id)
    .with_for_update()
)
WITH_LIVE = sa.select(_c.c.request_id).where(_c.c.live == 1).distinct()
OF_REQUESTS = sa.select(_c.c.id, _c.c.consumer).where(_c.c.live == 0)
LOCKED_TOMBSTONES = (
    sa.select(_c.c.id, _c.c.consumer).where(_c.c.live == 0).order_by(_c.c.id).with_for_update()
)
LOCKED_CONSUMERS = (
    sa.select(models.consumers.c.uuid).order_by(models.consumers.c.uuid).with_for_update()
)
WITH_CLAIMS = sa.select(_c.c.consumer).distinct()
#: Ids in one statement, as some databases are sent them one by one.
PART = 500


class Walk:
    """Where a walk over a table is: a process goes round and round.

    No index by time: it would cost every request more than the walk costs.

    :ivar at: behind this id it goes on
    :ivar found_none: whether it came all the way round, and nothing went
    """

    def __init__(self) -> None:
        self.at = ''
        self.found_none = False
        self._went = False
        self._lock = threading.Lock()

    def next(self, tx: session.Tx, found: Any, edge: Any, before: float, limit: int) -> list[Any]:
        """At most ``limit`` rows that may go, of those that the walk comes by."""
        with self._lock:
            window = {'after': self.at, 'most': limit * LOOK}
            rows = list(tx.all(found, before=before, limit=limit, **window))
            if len(rows) == limit:
                self.at = rows[-1].id
            else:
                passed = tx.first(edge, **window)
                self.at = passed.last if passed.count == limit * LOOK else ''
            self._went = self._went or bool(rows)
            if not self.at:
                self.found_none, self._went = not self._went, False
            return rows


class Cursor:
    """What a process remembers from one purge to the next.

    :ivar decision: number of the last decision that was found to be one too many
    :ivar kept: how many were to stay then
    :ivar unfinished: kinds of rows of which as many went as may at once
    """

    def __init__(self) -> None:
        self.requests, self.claims = Walk(), Walk()
        self.decision, self.kept = -1, 0
        self.unfinished: set[str] = set()

    @property
    def is_done(self) -> bool:
        """Whether the walks have come all the way round for nothing."""
        return self.requests.found_none and self.claims.found_none


def run(
    tx: session.Tx,
    cursor: Cursor,
    *,
    kept: int,
    tombstone_seconds: float,
    request_seconds: float,
    limit: int,
    again: bool = False,
) -> int:
    """Delete what is past its bound, at most ``limit`` rows of a kind; how many went.

    :param again: only of those kinds of which ``limit`` rows went the last time
    """
    now = tx.now
    kinds: dict[str, Callable[[], int]] = {
        'decisions': lambda: _decisions(tx, cursor, kept, limit, now),
        'requests': lambda: _requests(tx, cursor, now - request_seconds, limit),
        'tombstones': lambda: _tombstones(tx, cursor, now - tombstone_seconds, limit),
        'changes': lambda: _changes(tx, limit),
    }
    gone = {kind: go() for kind, go in kinds.items() if not again or kind in cursor.unfinished}
    cursor.unfinished = {kind for kind, went in gone.items() if went >= limit}
    return sum(gone.values())


def _of(
    tx: session.Tx, statement: Any, column: sa.ColumnElement[Any], ids: Sequence[str]
) -> list[Any]:
    """Rows of a query of which a column has one of the ids, in the order of these."""
    found: list[Any] = []
    for start in range(0, len(ids), PART):
        found += tx.all(statement.where(arrays.among(tx, column, ids[start : start + PART])))
    return found


def _delete(tx: session.Tx, column: Any, ids: Sequence[str]) -> int:
    for start in range(0, len(ids), PART):
        tx.run(column.table.delete().where(arrays.among(tx, column, ids[start : start + PART])))
    return len(ids)


def _decisions(tx: session.Tx, cursor: Cursor, kept: int, limit: int, now: float) -> int:
    first, last = tx.first(sa.select(sa.func.min(_d.c.number), sa.func.max(_d.c.number)))
    if first is None or last - first < kept:
        return 0
    if first > cursor.decision or kept > cursor.kept:
        # There are numbers that no decision has: counted only where all before are gone.
        count = sa.select(_d.c.number).order_by(_d.c.number.desc()).offset(kept).limit(1)
        beyond = tx.first(count)
        if beyond is None:
            return 0
        cursor.decision, cursor.kept = beyond.number, kept
    # By number, too: those that no decision has count as gone.
    past = min(cursor.decision, first + limit - 1)
    tx.run(_d.delete().where(_d.c.number <= past))
    gone = past - first + 1
    sets = models.host_sets
    unused = (
        sa.select(sets.c.digest)
        .where(sets.c.used_at < now - decisions.UNUSED_SECONDS)
        .where(~sa.exists().where(_d.c.host_set == sets.c.digest))
        .limit(limit)
    )
    return gone + _delete(tx, sets.c.digest, [row.digest for row in tx.all(unused)])


def _requests(tx: session.Tx, cursor: Cursor, before: float, limit: int) -> int:
    found = cursor.requests.next(tx, OLD_REQUESTS, REQUESTS_EDGE, before, limit)
    # Locked and looked at again: a repeat may just be taking one over.
    locked = _of(tx, LOCKED_REQUESTS, _r.c.id, sorted(row.id for row in found))
    old = [row.id for row in locked if _is_old(row, before)]
    live = {row.request_id for row in _of(tx, WITH_LIVE, _c.c.request_id, old)}
    wanted = [one for one in old if one not in live]
    _forget_claims(tx, [row.id for row in _of(tx, OF_REQUESTS, _c.c.request_id, wanted)])
    return _delete(tx, _r.c.id, wanted)


def _is_old(row: Any, before: float) -> bool:
    open_still = row.state == 'open' and row.deadline >= before
    return row.updated_at < before and not open_still


def _tombstones(tx: session.Tx, cursor: Cursor, before: float, limit: int) -> int:
    found = cursor.claims.next(tx, OLD_CLAIMS, CLAIMS_EDGE, before, limit)
    return _forget_claims(tx, [row.id for row in found])


def _forget_claims(tx: session.Tx, ids: Sequence[str]) -> int:
    # Locked and looked at again: a request that is asked anew makes claims of the same ids.
    tombstones = _of(tx, LOCKED_TOMBSTONES, _c.c.id, sorted(ids))
    ids = [row.id for row in tombstones]
    _delete(tx, models.allocations.c.claim_id, ids)
    _delete(tx, _c.c.id, ids)
    consumers = sorted({row.consumer for row in tombstones})
    # Locked before we look: a commit may just be claiming for one of them.
    _of(tx, LOCKED_CONSUMERS, models.consumers.c.uuid, consumers)
    used = {row.consumer for row in _of(tx, WITH_CLAIMS, _c.c.consumer, consumers)}
    _delete(tx, models.consumers.c.uuid, [one for one in consumers if one not in used])
    return len(ids)


def _changes(tx: session.Tx, limit: int) -> int:
    ends = tx.first(sa.select(sa.func.min(_x.c.id).label('first'), sa.func.max(_x.c.id)))
    if ends.first is None:
        return 0
    # By number, not by row: numbers that were never used count as gone.
    past = min(ends[1] - CHANGES_KEPT, ends.first + limit - 1)
    if past < ends.first:
        return 0
    tx.run(_x.delete().where(_x.c.id <= past))
    return past - ends.first + 1
