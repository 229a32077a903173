# SPDX-License-Identifier: Apache-2.0
"""Old rows go, a bounded number at a time.

A request stays as long as any of its claims is live, and a tombstone as long
as its request: whatever still points at a claim finds it.
"""

import threading
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from gantt.db import decisions, models, session

_c = models.claims
_r = models.requests
_d = models.decisions
_x = models.changes

#: Entries of the feed that stay: many times what a poll reads again.
CHANGES_KEPT = 200_000
#: Rows looked at for each row that may go.
LOOK = 10

_ids: Any = sa.bindparam('ids', expanding=True)
NEXT_REQUESTS = (
    sa.select(_r.c.id, _r.c.state, _r.c.updated_at, _r.c.deadline)
    .where(_r.c.id > sa.bindparam('after'))
    .order_by(_r.c.id)
    .limit(sa.bindparam('most'))
)
LOCKED_REQUESTS = (
    sa.select(_r.c.id, _r.c.state, _r.c.updated_at, _r.c.deadline)
    .where(_r.c.id.in_(_ids))
    .order_by(_r.c.id)
    .with_for_update()
)
WITH_LIVE = sa.select(_c.c.request_id).where(_c.c.request_id.in_(_ids), _c.c.live == 1).distinct()
NEXT_CLAIMS = (
    sa.select(_c.c.id, _c.c.live, _c.c.updated_at, _c.c.request_id, _c.c.consumer)
    .where(_c.c.id > sa.bindparam('after'))
    .order_by(_c.c.id)
    .limit(sa.bindparam('most'))
)
KNOWN_REQUESTS = sa.select(_r.c.id).where(_r.c.id.in_(_ids))
OF_REQUESTS = sa.select(_c.c.id, _c.c.consumer).where(_c.c.request_id.in_(_ids), _c.c.live == 0)
LOCKED_TOMBSTONES = (
    sa.select(_c.c.id).where(_c.c.id.in_(_ids), _c.c.live == 0).order_by(_c.c.id).with_for_update()
)
LOCKED_CONSUMERS = (
    sa.select(models.consumers.c.uuid)
    .where(models.consumers.c.uuid.in_(_ids))
    .order_by(models.consumers.c.uuid)
    .with_for_update()
)
WITH_CLAIMS = sa.select(_c.c.consumer).where(_c.c.consumer.in_(_ids)).distinct()


class Cursor:
    """Where the walks over requests and claims are: a process goes round and round.

    No index by time: it would cost every request more than the walk costs.
    """

    def __init__(self) -> None:
        self.request = ''
        self.claim = ''
        self.lock = threading.Lock()


def run(
    tx: session.Tx,
    cursor: Cursor,
    *,
    kept: int,
    tombstone_seconds: float,
    request_seconds: float,
    limit: int,
) -> int:
    """Delete what is past its bound, at most ``limit`` rows of a kind; how many went."""
    now = tx.now
    gone = _decisions(tx, kept, limit, now)
    gone += _requests(tx, cursor, now - request_seconds, limit)
    gone += _tombstones(tx, cursor, now - tombstone_seconds, limit)
    return gone + _changes(tx, limit)


def _delete(tx: session.Tx, column: Any, values: Sequence[Any]) -> int:
    for start in range(0, len(values), 500):
        part = list(values[start : start + 500])
        tx.run(column.table.delete().where(column.in_(part)))
    return len(values)


def _decisions(tx: session.Tx, kept: int, limit: int, now: float) -> int:
    last = tx.first(sa.select(_d.c.number).order_by(_d.c.number.desc()).offset(kept).limit(1))
    if last is None:
        return 0
    old = sa.select(_d.c.number).where(_d.c.number <= last.number).order_by(_d.c.number)
    gone = _delete(tx, _d.c.number, [row.number for row in tx.all(old.limit(limit))])
    sets = models.host_sets
    unused = (
        sa.select(sets.c.digest)
        .where(sets.c.used_at < now - decisions.UNUSED_SECONDS)
        .where(~sa.exists().where(_d.c.host_set == sets.c.digest))
        .limit(limit)
    )
    return gone + _delete(tx, sets.c.digest, [row.digest for row in tx.all(unused)])


def _requests(tx: session.Tx, cursor: Cursor, before: float, limit: int) -> int:
    with cursor.lock:
        found = tx.all(NEXT_REQUESTS, after=cursor.request, most=limit * LOOK)
        cursor.request = found[-1].id if len(found) == limit * LOOK else ''
    wanted = _without_claims(tx, [row.id for row in found if _is_old(row, before)][:limit])
    # Locked and looked at again: a repeat may just be taking one over.
    locked = tx.all(LOCKED_REQUESTS, ids=wanted) if wanted else []
    wanted = _without_claims(tx, [row.id for row in locked if _is_old(row, before)])
    if not wanted:
        return 0
    _forget_claims(tx, tx.all(OF_REQUESTS, ids=wanted))
    return _delete(tx, _r.c.id, wanted)


def _is_old(row: Any, before: float) -> bool:
    open_still = row.state == 'open' and row.deadline >= before
    return row.updated_at < before and not open_still


def _without_claims(tx: session.Tx, ids: list[str]) -> list[str]:
    live = {row.request_id for row in tx.all(WITH_LIVE, ids=ids)} if ids else set()
    return [one for one in ids if one not in live]


def _tombstones(tx: session.Tx, cursor: Cursor, before: float, limit: int) -> int:
    with cursor.lock:
        found = tx.all(NEXT_CLAIMS, after=cursor.claim, most=limit * LOOK)
        cursor.claim = found[-1].id if len(found) == limit * LOOK else ''
    old = [row for row in found if not row.live and row.updated_at < before]
    asked = sorted({row.request_id for row in old if row.request_id})
    known = {row.id for row in tx.all(KNOWN_REQUESTS, ids=asked)} if asked else set()
    return _forget_claims(tx, [row for row in old if row.request_id not in known][:limit])


def _forget_claims(tx: session.Tx, tombstones: Sequence[Any]) -> int:
    # Locked and looked at again: a request that is asked anew makes claims of the same ids.
    ids = [row.id for row in tx.all(LOCKED_TOMBSTONES, ids=[row.id for row in tombstones])]
    tombstones = [row for row in tombstones if row.id in set(ids)]
    _delete(tx, models.allocations.c.claim_id, ids)
    _delete(tx, _c.c.id, ids)
    consumers = sorted({row.consumer for row in tombstones})
    if consumers:
        # Locked before we look: a commit may just be claiming for one of them.
        tx.all(LOCKED_CONSUMERS, ids=consumers)
        used = {row.consumer for row in tx.all(WITH_CLAIMS, ids=consumers)}
        _delete(tx, models.consumers.c.uuid, [one for one in consumers if one not in used])
    return len(ids)


def _changes(tx: session.Tx, limit: int) -> int:
    last = tx.first(sa.select(sa.func.max(_x.c.id)))[0] or 0
    old = sa.select(_x.c.id).where(_x.c.id <= last - CHANGES_KEPT).order_by(_x.c.id)
    return _delete(tx, _x.c.id, [row.id for row in tx.all(old.limit(limit))])
