# SPDX-License-Identifier: Apache-2.0
"""Purge of old rows, a bounded number at a time.

A request stays as long as any of its claims is live, and a tombstone as long as its request: so
references to a claim stay valid.  Of decisions the oldest of the project with the most go first,
see ``core/records/retention.py``.
"""

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.records import retention
from gantt.core.records.retention import Piece
from gantt.core.resources import group_rule
from gantt.db.claims.held import has_claims_of_group, holds_below
from gantt.db.database import Database
from gantt.db.engine import arrays, session
from gantt.db.hosts import host_events, providers
from gantt.db.records import decisions, services
from gantt.db.schema import models

_c = models.claims
_r = models.requests
_d = models.decisions
_x = models.changes
_g = models.group_rules
_t = models.group_plans
_w = models.written_consumers

#: Entries of the feed that stay: many times what a poll reads again.
CHANGES_STORED = 200_000
#: Rows read for each row that may be deleted.
LOOK = 10


def _next(columns: Sequence[Any]) -> Any:
    """Return a query of the next ``most`` rows ``after`` an id, in order of their ids."""
    key = columns[0]
    query = sa.select(*columns).where(key > sa.bindparam('after')).order_by(key)
    return query.limit(sa.bindparam('most')).subquery()


def _edge(found: Any) -> Any:
    """Return a query of the number of rows, and the last of them."""
    return sa.select(sa.func.count().label('count'), sa.func.max(found.c.id).label('last'))


_nr = _next((_r.c.id, _r.c.state, _r.c.updated_at, _r.c.deadline))
_nc = _next((_c.c.id, _c.c.live, _c.c.updated_at, _c.c.request_id))
#: Only deletable rows of a walk are sent.
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
_b = models.child_claims
WITH_LIVE_BELOW = sa.select(_b.c.request_id).where(holds_below).distinct()
OF_REQUESTS = sa.select(_c.c.id, _c.c.consumer).where(_c.c.live == 0)
LOCKED_TOMBSTONES = sa.select(_c.c.id).where(_c.c.live == 0).order_by(_c.c.id).with_for_update()
LOCKED_WRITTEN = sa.select(_w.c.uuid).order_by(_w.c.uuid).with_for_update()
WITH_LIVE_CLAIMS = sa.select(_c.c.consumer).where(_c.c.live != 0).distinct()
_ng = _next((_g.c.uuid.label('id'), _g.c.name, _g.c.members, _g.c.generation))
GROUPS_EDGE = _edge(_ng)
#: Rules that came with requests, without any claim, not even an ended one: ended claims stay for as
#: long as requests are remembered.
UNUSED_GROUPS = (
    sa.select(_ng.c.id)
    .where(
        _ng.c.name == '',
        _ng.c.generation >= group_rule.STEP,
        _ng.c.generation < group_rule.APART,
        _ng.c.members == '[]',
        ~has_claims_of_group(_ng.c.id),
        ~sa.exists().where(_t.c.group_uuid == _ng.c.id),
    )
    .order_by(_ng.c.id)
    .limit(sa.bindparam('limit'))
)
#: Plans with an ended lease, whose members have no claim, not even an ended one.
OLD_PLANS = (
    sa.select(_t.c.group_uuid)
    .where(
        _t.c.lease_until < sa.bindparam('before'),
        _t.c.updated_at < sa.bindparam('before'),
        ~sa.exists().where(_c.c.group_uuid == _t.c.group_uuid, _c.c.member_name.is_not(None)),
    )
    .order_by(_t.c.group_uuid)
    .limit(sa.bindparam('limit'))
)
_o = models.allocation_orders
#: Orders older than any allocation under way: an offer is valid for some seconds.
OLD_ORDERS = (
    sa.select(_o.c.parent, _o.c.consumer, _o.c.purpose)
    .where(_o.c.updated_at < sa.bindparam('before'))
    .order_by(_o.c.updated_at)
    .limit(sa.bindparam('limit'))
)
FORGET_ORDER = _o.delete().where(
    _o.c.parent == sa.bindparam('b_parent'),
    _o.c.consumer == sa.bindparam('b_consumer'),
    _o.c.purpose == sa.bindparam('b_purpose'),
    _o.c.updated_at < sa.bindparam('before'),
)
_above = models.parent_allocations
_na = _next((_above.c.request_id.label('id'), _above.c.until))
ALLOCATIONS_EDGE = _edge(_na)
#: Allocations of parent zones without a stored request.
OLD_ALLOCATIONS = (
    sa.select(_na.c.id)
    .where(_na.c.until < sa.bindparam('before'), ~sa.exists().where(_r.c.id == _na.c.id))
    .order_by(_na.c.id)
    .limit(sa.bindparam('limit'))
)
LOCKED_GROUPS = sa.select(_g.c.uuid).order_by(_g.c.uuid).with_for_update()
WITH_MEMBERS = sa.select(_c.c.group_uuid).distinct()
_size = sa.func.length(_d.c.packed).label('bytes')
_nd = _next((_d.c.number.label('id'), _d.c.project_id, _d.c.created_at, _size))
SIZES = sa.select(_nd.c.id, _nd.c.project_id, _nd.c.created_at, _nd.c.bytes).order_by(_nd.c.id)
#: Limits of one purge that reads sizes of decisions: rows of a query, queries, and bytes, as some
#: databases read the values to measure them.
SIZES_ROWS, SIZES_PARTS, SIZES_BYTES = 5000, 20, 64 << 20
#: Largest sum of sizes of decisions that are counted together.
SIZED_BYTES = 1 << 20
#: Such a piece also has at most a thousandth of the decisions that may stay, or so many.
PIECES, PIECE_ROWS_MAX = 1000, 500
#: Ids in one statement, as some databases are sent them one by one.
PART = 500


class Walk:
    """Position of a walk over a table, which a process repeats without end.

    An index by time would cost every request more than the walk costs.

    :ivar at: id behind which it goes on
    :ivar found_none: whether a complete round deleted no row
    """

    def __init__(self) -> None:
        self.at = ''
        self.found_none = False
        self._went = False
        self._lock = threading.Lock()

    def next(self, tx: session.Tx, found: Any, edge: Any, before: float, limit: int) -> list[Any]:
        """Return at most ``limit`` deletable rows, of those that the walk reads."""
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


class DecisionsWalk:
    """Sizes of the decisions of each project, as far as a process has read them: it goes on from
    there.

    Columns with their sums would make every commit wait for the one before.  A decision that is
    committed late, behind others, is not counted; it is deleted with the next older ones.

    :ivar is_read: whether the last read came to the end
    """

    def __init__(self) -> None:
        self._pieces: dict[str | None, collections.deque[Piece]] = {}
        self._floors: dict[str | None, int] = {}  # decisions of a project are deleted up to here
        self._going: dict[str | None, int] = {}  # and probably up to here since the last purge
        self._at = 0
        self.is_read = False
        self._lock = threading.Lock()

    def excess(
        self,
        tx: session.Tx,
        last: int,
        count_limit: int,
        stored_bytes: int | None,
        limit: int,
        young: float,
    ) -> list[tuple[str | None, int, int]]:
        """Return the decisions to delete: (project, number before the first, last number).

        :param last: number of the newest decision
        :param young: later decisions are deleted only to save bytes
        """
        with self._lock:
            if last < self._at:  # the database was restored
                self._pieces, self._floors, self._going, self._at = {}, {}, {}, 0
            # Young decisions may be more than the limit: then their pieces become larger.
            stored_count = sum(piece.rows for pieces in self._pieces.values() for piece in pieces)
            self._read(tx, max(1, min(PIECE_ROWS_MAX, max(count_limit, stored_count) // PIECES)))
            self._drop(tx)
            excess_pieces = retention.excess(self._pieces, count_limit, stored_bytes, limit, young)
            self._going = {
                project: self._pieces[project][pieces - 1].last
                for project, pieces in excess_pieces.items()
            }
            return [(project, self._floors[project], past) for project, past in self._going.items()]

    def _drop(self, tx: session.Tx) -> None:
        """Forget deleted decisions, detected only now: the commit of a purge is not reported."""
        for project, past in self._going.items():
            floor = self._floors[project]
            if tx.first(_of_project(project), after=floor, past=past, limit=1) is not None:
                continue
            pieces = self._pieces[project]
            while pieces and pieces[0].last <= past:
                pieces.popleft()
            self._floors[project] = past
            if not pieces:
                del self._pieces[project], self._floors[project]
        self._going = {}

    def _read(self, tx: session.Tx, rows_max: int) -> None:
        bytes_left = SIZES_BYTES
        for _ in range(SIZES_PARTS):
            rows = tx.all(SIZES, after=self._at, most=SIZES_ROWS)
            for row in rows:
                self._add(row, rows_max)
                bytes_left -= row.bytes
            self.is_read = len(rows) < SIZES_ROWS
            if self.is_read or bytes_left <= 0:
                return

    def _add(self, row: Any, rows_max: int) -> None:
        pieces = self._pieces.get(row.project_id)
        if pieces is None:
            pieces = self._pieces[row.project_id] = collections.deque()
            self._floors[row.project_id] = row.id - 1
        if pieces and pieces[-1].rows < rows_max and pieces[-1].bytes + row.bytes <= SIZED_BYTES:
            last_piece = pieces.pop()
            at = max(last_piece.at, row.created_at)
            pieces.append(Piece(row.id, last_piece.rows + 1, last_piece.bytes + row.bytes, at))
        else:
            pieces.append(Piece(row.id, 1, row.bytes, row.created_at))
        self._at = row.id


def _of_project(project: str | None) -> Any:
    """Return a query of a project's decisions by number, ``after`` one and up to ``past``."""
    numbers = _d.c.number > sa.bindparam('after'), _d.c.number <= sa.bindparam('past')
    query = sa.select(_d.c.id).where(_d.c.project_id.is_not_distinct_from(project), *numbers)
    return query.order_by(_d.c.number).limit(sa.bindparam('limit'))


class Cursor:
    """State of a process from one purge to the next.

    :ivar unfinished: kinds of rows of which the limit was deleted
    """

    def __init__(self) -> None:
        self.requests, self.claims, self.groups = Walk(), Walk(), Walk()
        self.allocations = Walk()
        self.decisions = DecisionsWalk()
        self.unfinished: set[str] = set()

    @property
    def is_done(self) -> bool:
        """True where all decisions are read, and complete rounds of the walks deleted nothing."""
        walks = (self.requests, self.claims, self.groups, self.allocations)
        return self.decisions.is_read and all(walk.found_none for walk in walks)


class SqlRetention:
    """Bounds of what is kept: ``ports.Retention`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._cursor = Cursor()

    @property
    def is_purged(self) -> bool:
        return self._cursor.is_done

    def purge(
        self,
        *,
        decisions: int,
        tombstone_seconds: float,
        request_seconds: float,
        limit: int,
        again: bool = False,
        decision_bytes: int | None = None,
        decision_seconds: float = 0.0,
    ) -> int:
        cursor = self._cursor
        bounds = decisions, decision_bytes, limit

        def work(tx: session.Tx) -> int:
            now = tx.now
            kinds: dict[str, Callable[[], int]] = {
                'decisions': lambda: _decisions(tx, cursor, *bounds, now, now - decision_seconds),
                'requests': lambda: _requests(tx, cursor, now - request_seconds, limit),
                'tombstones': lambda: _tombstones(tx, cursor, now - tombstone_seconds, limit),
                'group plans': lambda: _plans(tx, now - tombstone_seconds, limit),
                'groups': lambda: _groups(tx, cursor, limit),
                'allocation orders': lambda: _orders(tx, now - tombstone_seconds, limit),
                'allocations above': lambda: _allocations(
                    tx, cursor, now - tombstone_seconds, limit
                ),
                'changes': lambda: _changes(tx, limit),
                'services': lambda: services.purge(tx),
                'host events': lambda: host_events.purge(tx, limit),
            }
            deleted_counts = {
                kind: purge_kind()
                for kind, purge_kind in kinds.items()
                if not again or kind in cursor.unfinished
            }
            cursor.unfinished = {kind for kind, count in deleted_counts.items() if count >= limit}
            return sum(deleted_counts.values())

        return self.database.writes.write(work, patient=True)


def _of(
    tx: session.Tx, statement: Any, column: sa.ColumnElement[Any], ids: Sequence[str]
) -> list[Any]:
    """Return rows of a query with a column that has one of the ids, in the order of these."""
    matching: list[Any] = []
    for start in range(0, len(ids), PART):
        matching += tx.all(statement.where(arrays.among(tx, column, ids[start : start + PART])))
    return matching


def _delete(tx: session.Tx, column: Any, ids: Sequence[str]) -> int:
    for start in range(0, len(ids), PART):
        tx.run(column.table.delete().where(arrays.among(tx, column, ids[start : start + PART])))
    return len(ids)


def _decisions(
    tx: session.Tx,
    cursor: Cursor,
    count_limit: int,
    stored_bytes: int | None,
    limit: int,
    now: float,
    young: float,
) -> int:
    newest_number = tx.first(sa.select(sa.func.max(_d.c.number)))[0]
    if newest_number is None:
        cursor.decisions.is_read = True
        return 0
    deleted_count = 0
    excess_ranges = cursor.decisions.excess(
        tx, newest_number, count_limit, stored_bytes, limit, young
    )
    for project, after, past in excess_ranges:
        if deleted_count >= limit:
            break
        rows = tx.all(_of_project(project), after=after, past=past, limit=limit - deleted_count)
        old_ids = [row.id for row in rows]
        _delete(tx, models.decision_consumers.c.decision_id, old_ids)
        deleted_count += _delete(tx, _d.c.id, old_ids)
    if not deleted_count:
        return 0
    sets = models.host_sets
    unused = (
        sa.select(sets.c.digest)
        .where(sets.c.used_at < now - decisions.UNUSED_SECONDS)
        .where(~sa.exists().where(_d.c.host_set == sets.c.digest))
        .limit(limit)
    )
    return deleted_count + _delete(tx, sets.c.digest, [row.digest for row in tx.all(unused)])


def _requests(tx: session.Tx, cursor: Cursor, before: float, limit: int) -> int:
    old_requests = cursor.requests.next(tx, OLD_REQUESTS, REQUESTS_EDGE, before, limit)
    # Locked and read again: a repeated request may just be taking one over.
    locked_rows = _of(tx, LOCKED_REQUESTS, _r.c.id, sorted(row.id for row in old_requests))
    old_ids = [row.id for row in locked_rows if _is_old(row, before)]
    live_ids = {row.request_id for row in _of(tx, WITH_LIVE, _c.c.request_id, old_ids)}
    live_ids |= {row.request_id for row in _of(tx, WITH_LIVE_BELOW, _b.c.request_id, old_ids)}
    deletable_ids = [request_id for request_id in old_ids if request_id not in live_ids]
    of_zones = models.delegated_consumers, models.group_zones
    for column in (_b.c.request_id, *(table.c.request_id for table in of_zones)):
        _delete(tx, column, deletable_ids)
    _forget_claims(tx, [row.id for row in _of(tx, OF_REQUESTS, _c.c.request_id, deletable_ids)])
    return _delete(tx, _r.c.id, deletable_ids)


def _is_old(row: Any, before: float) -> bool:
    is_open = row.state == 'open' and row.deadline >= before
    return row.updated_at < before and not is_open


def _tombstones(tx: session.Tx, cursor: Cursor, before: float, limit: int) -> int:
    old_claims = cursor.claims.next(tx, OLD_CLAIMS, CLAIMS_EDGE, before, limit)
    return _forget_claims(tx, [row.id for row in old_claims])


def _forget_claims(tx: session.Tx, ids: Sequence[str]) -> int:
    _forget_written(tx, ids)
    # Locked and read again: a request that is sent anew creates claims of the same ids.
    ids = [row.id for row in _of(tx, LOCKED_TOMBSTONES, _c.c.id, sorted(ids))]
    _delete(tx, models.allocations.c.claim_id, ids)
    return _delete(tx, _c.c.id, ids)


def _forget_written(tx: session.Tx, ids: Sequence[str]) -> None:
    """Delete the state of consumers without a live claim, whose claims others ended.

    Locked before the claims are read and locked, as by a writer of allocations.
    """
    consumers = sorted({row.consumer for row in _of(tx, OF_REQUESTS, _c.c.id, sorted(ids))})
    locked = [row.uuid for row in _of(tx, LOCKED_WRITTEN, _w.c.uuid, consumers)]
    used = {row.consumer for row in _of(tx, WITH_LIVE_CLAIMS, _c.c.consumer, locked)}
    _delete(tx, _w.c.uuid, [uuid for uuid in locked if uuid not in used])


def _orders(tx: session.Tx, before: float, limit: int) -> int:
    old_orders = [
        {
            'b_parent': row.parent,
            'b_consumer': row.consumer,
            'b_purpose': row.purpose,
            'before': before,
        }
        for row in tx.all(OLD_ORDERS, before=before, limit=limit)
    ]
    tx.many(FORGET_ORDER, old_orders)
    return len(old_orders)


def _allocations(tx: session.Tx, cursor: Cursor, before: float, limit: int) -> int:
    old_allocations = cursor.allocations.next(tx, OLD_ALLOCATIONS, ALLOCATIONS_EDGE, before, limit)
    return _delete(tx, _above.c.request_id, [row.id for row in old_allocations])


def _plans(tx: session.Tx, before: float, limit: int) -> int:
    old_uuids = [row.group_uuid for row in tx.all(OLD_PLANS, before=before, limit=limit)]
    # Locked, and read again: a request may just be planning one of these groups anew.
    _of(tx, LOCKED_GROUPS, _g.c.uuid, old_uuids)
    query = OLD_PLANS.where(_t.c.group_uuid.in_(old_uuids))
    deletable_uuids = (
        [row.group_uuid for row in tx.all(query, before=before, limit=limit)] if old_uuids else []
    )
    return _delete(tx, _t.c.group_uuid, deletable_uuids)


def _groups(tx: session.Tx, cursor: Cursor, limit: int) -> int:
    unused_groups = cursor.groups.next(tx, UNUSED_GROUPS, GROUPS_EDGE, tx.now, limit)
    # Locked before the claims are read: a commit may just be placing a member of one.
    locked = [
        row.uuid for row in _of(tx, LOCKED_GROUPS, _g.c.uuid, [row.id for row in unused_groups])
    ]
    used = {row.group_uuid for row in _of(tx, WITH_MEMBERS, _c.c.group_uuid, locked)}
    for column in (_b.c.group_uuid, _t.c.group_uuid):
        used |= {row.group_uuid for row in _of(tx, sa.select(column).distinct(), column, locked)}
    deletable_uuids = [uuid for uuid in locked if uuid not in used]
    providers.announce(tx, 'group', deletable_uuids)
    return _delete(tx, _g.c.uuid, deletable_uuids)


def _changes(tx: session.Tx, limit: int) -> int:
    ends = tx.first(sa.select(sa.func.min(_x.c.id).label('first'), sa.func.max(_x.c.id)))
    if ends.first is None:
        return 0
    # By number, not by row: numbers that were never used count as deleted.
    past = min(ends[1] - CHANGES_STORED, ends.first + limit - 1)
    if past < ends.first:
        return 0
    tx.run(_x.delete().where(_x.c.id <= past))
    return past - ends.first + 1
