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
from gantt.db.claims.held import has_claims_of_group, is_live_child_claim
from gantt.db.database import Database, SqlStore
from gantt.db.engine import arrays, session
from gantt.db.hosts import host_events, providers
from gantt.db.records import decisions, services
from gantt.db.schema import models

_claims = models.claims
_requests = models.requests
_decisions = models.decisions
_changes = models.changes
_group_rules = models.group_rules
_group_plans = models.group_plans
_written_consumers = models.written_consumers

#: Entries of the feed that stay: many times what a poll reads again.
CHANGES_STORED = 200_000
#: Rows read for each row that may be deleted.
ROWS_READ_PER_DELETE = 10


def _next_rows(columns: Sequence[Any]) -> Any:
    """Return a query of the next ``most`` rows ``after`` an id, in order of their ids."""
    key = columns[0]
    query = sa.select(*columns).where(key > sa.bindparam('after')).order_by(key)
    return query.limit(sa.bindparam('most')).subquery()


def _select_edge(query: Any) -> Any:
    """Return a query of (number of rows, last row's id) of another query."""
    return sa.select(sa.func.count().label('count'), sa.func.max(query.c.id).label('last'))


_next_requests = _next_rows(
    (_requests.c.id, _requests.c.state, _requests.c.updated_at, _requests.c.deadline)
)
_next_claims = _next_rows(
    (_claims.c.id, _claims.c.live, _claims.c.updated_at, _claims.c.request_id)
)
#: Only deletable rows of a walk are sent.
SELECT_REQUESTS_EDGE, SELECT_CLAIMS_EDGE = _select_edge(_next_requests), _select_edge(_next_claims)
SELECT_OLD_REQUESTS = (
    sa.select(_next_requests.c.id)
    .where(
        _next_requests.c.updated_at < sa.bindparam('before'),
        sa.or_(
            _next_requests.c.state != 'open', _next_requests.c.deadline < sa.bindparam('before')
        ),
        ~sa.exists().where(_claims.c.request_id == _next_requests.c.id, _claims.c.live == 1),
    )
    .order_by(_next_requests.c.id)
    .limit(sa.bindparam('limit'))
)
SELECT_OLD_CLAIMS = (
    sa.select(_next_claims.c.id)
    .where(
        _next_claims.c.live == 0,
        _next_claims.c.updated_at < sa.bindparam('before'),
        ~sa.exists().where(_requests.c.id == _next_claims.c.request_id),
    )
    .order_by(_next_claims.c.id)
    .limit(sa.bindparam('limit'))
)
LOCK_REQUESTS = (
    sa.select(_requests.c.id, _requests.c.state, _requests.c.updated_at, _requests.c.deadline)
    .order_by(_requests.c.id)
    .with_for_update()
)
SELECT_REQUESTS_WITH_LIVE_CLAIMS = (
    sa.select(_claims.c.request_id).where(_claims.c.live == 1).distinct()
)
_child_claims = models.child_claims
SELECT_REQUESTS_WITH_CHILD_CLAIMS = (
    sa.select(_child_claims.c.request_id).where(is_live_child_claim).distinct()
)
SELECT_ENDED_CLAIMS = sa.select(_claims.c.id, _claims.c.consumer).where(_claims.c.live == 0)
LOCK_TOMBSTONES = (
    sa.select(_claims.c.id).where(_claims.c.live == 0).order_by(_claims.c.id).with_for_update()
)
LOCK_WRITTEN_CONSUMERS = (
    sa.select(_written_consumers.c.uuid).order_by(_written_consumers.c.uuid).with_for_update()
)
SELECT_CONSUMERS_WITH_LIVE_CLAIMS = (
    sa.select(_claims.c.consumer).where(_claims.c.live != 0).distinct()
)
_next_groups = _next_rows(
    (
        _group_rules.c.uuid.label('id'),
        _group_rules.c.name,
        _group_rules.c.members,
        _group_rules.c.generation,
    )
)
SELECT_GROUPS_EDGE = _select_edge(_next_groups)
#: Rules that came with requests, without any claim, not even an ended one: ended claims stay for as
#: long as requests are remembered.
SELECT_UNUSED_GROUPS = (
    sa.select(_next_groups.c.id)
    .where(
        _next_groups.c.name == '',
        _next_groups.c.generation >= group_rule.GENERATION_STEP,
        _next_groups.c.generation < group_rule.OWN_GROUPS_GENERATION,
        _next_groups.c.members == '[]',
        ~has_claims_of_group(_next_groups.c.id),
        ~sa.exists().where(_group_plans.c.group_uuid == _next_groups.c.id),
    )
    .order_by(_next_groups.c.id)
    .limit(sa.bindparam('limit'))
)
#: Plans with an ended lease, whose members have no claim, not even an ended one.
SELECT_OLD_PLANS = (
    sa.select(_group_plans.c.group_uuid)
    .where(
        _group_plans.c.lease_until < sa.bindparam('before'),
        _group_plans.c.updated_at < sa.bindparam('before'),
        ~sa.exists().where(
            _claims.c.group_uuid == _group_plans.c.group_uuid, _claims.c.member_name.is_not(None)
        ),
    )
    .order_by(_group_plans.c.group_uuid)
    .limit(sa.bindparam('limit'))
)
_allocation_orders = models.allocation_orders
#: Orders older than any allocation under way: an offer is valid for some seconds.
SELECT_OLD_ORDERS = (
    sa.select(
        _allocation_orders.c.parent, _allocation_orders.c.consumer, _allocation_orders.c.purpose
    )
    .where(_allocation_orders.c.updated_at < sa.bindparam('before'))
    .order_by(_allocation_orders.c.updated_at)
    .limit(sa.bindparam('limit'))
)
DELETE_ORDER = _allocation_orders.delete().where(
    _allocation_orders.c.parent == sa.bindparam('b_parent'),
    _allocation_orders.c.consumer == sa.bindparam('b_consumer'),
    _allocation_orders.c.purpose == sa.bindparam('b_purpose'),
    _allocation_orders.c.updated_at < sa.bindparam('before'),
)
_parent_allocations = models.parent_allocations
_next_allocations = _next_rows(
    (_parent_allocations.c.request_id.label('id'), _parent_allocations.c.until)
)
SELECT_ALLOCATIONS_EDGE = _select_edge(_next_allocations)
#: Allocations of parent zones without a stored request.
SELECT_OLD_ALLOCATIONS = (
    sa.select(_next_allocations.c.id)
    .where(
        _next_allocations.c.until < sa.bindparam('before'),
        ~sa.exists().where(_requests.c.id == _next_allocations.c.id),
    )
    .order_by(_next_allocations.c.id)
    .limit(sa.bindparam('limit'))
)
LOCK_GROUPS = sa.select(_group_rules.c.uuid).order_by(_group_rules.c.uuid).with_for_update()
SELECT_GROUPS_WITH_MEMBERS = sa.select(_claims.c.group_uuid).distinct()
_packed_bytes = sa.func.length(_decisions.c.packed).label('bytes')
_next_decisions = _next_rows(
    (
        _decisions.c.number.label('id'),
        _decisions.c.project_id,
        _decisions.c.created_at,
        _packed_bytes,
    )
)
SELECT_SIZES = sa.select(
    _next_decisions.c.id,
    _next_decisions.c.project_id,
    _next_decisions.c.created_at,
    _next_decisions.c.bytes,
).order_by(_next_decisions.c.id)
#: Limits of one purge that reads sizes of decisions: rows of a query, queries, and bytes, as some
#: databases read the values to measure them.
SIZES_ROWS, SIZES_PARTS, SIZES_BYTES = 5000, 20, 64 << 20
#: Largest sum of sizes of decisions that are counted together.
PIECE_BYTES_MAX = 1 << 20
#: Such a piece also has at most a thousandth of the decisions that may stay, or so many.
PIECES, PIECE_ROWS_MAX = 1000, 500


class TableWalk:
    """Position of a walk over a table, which a process repeats without end.

    An index by time would cost every request more than the walk costs.

    :ivar at: id after which it goes on
    :ivar found_none: whether a complete round deleted no row
    """

    def __init__(self) -> None:
        self.at = ''
        self.found_none = False
        self._has_read_rows = False
        self._lock = threading.Lock()

    def next(self, tx: session.Tx, query: Any, edge: Any, before: float, limit: int) -> list[Any]:
        """Return at most ``limit`` deletable rows, of those that the walk reads."""
        with self._lock:
            window = {'after': self.at, 'most': limit * ROWS_READ_PER_DELETE}
            rows = list(tx.all(query, before=before, limit=limit, **window))
            if len(rows) == limit:
                self.at = rows[-1].id
            else:
                passed = tx.first(edge, **window)
                self.at = passed.last if passed.count == limit * ROWS_READ_PER_DELETE else ''
            self._has_read_rows = self._has_read_rows or bool(rows)
            if not self.at:
                self.found_none, self._has_read_rows = not self._has_read_rows, False
            return rows


class DecisionsWalk:
    """Sizes of the decisions of each project, as far as a process has read them: it goes on from
    there.

    Columns with their sums would make every commit wait for the one before.  A decision that is
    committed late, after others, is not counted; it is deleted with the next older ones.

    :ivar is_read: whether the last read came to the end
    """

    def __init__(self) -> None:
        self._pieces: dict[str | None, collections.deque[Piece]] = {}
        self._deleted_to: dict[
            str | None, int
        ] = {}  # decisions of a project are deleted up to here
        self._probably_deleted_to: dict[
            str | None, int
        ] = {}  # and probably up to here since the last purge
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
                self._pieces = {}
                self._deleted_to = {}
                self._probably_deleted_to = {}
                self._at = 0
            # Young decisions may be more than the limit: then their pieces become larger.
            stored_count = sum(piece.rows for pieces in self._pieces.values() for piece in pieces)
            self._read(tx, max(1, min(PIECE_ROWS_MAX, max(count_limit, stored_count) // PIECES)))
            self._forget_deleted(tx)
            excess_pieces = retention.pieces_to_delete(
                self._pieces, count_limit, stored_bytes, limit, young
            )
            self._probably_deleted_to = {
                project: self._pieces[project][pieces - 1].last
                for project, pieces in excess_pieces.items()
            }
            return [
                (project, self._deleted_to[project], past)
                for project, past in self._probably_deleted_to.items()
            ]

    def _forget_deleted(self, tx: session.Tx) -> None:
        """Forget deleted decisions, detected only now: the commit of a purge is not reported."""
        for project, past in self._probably_deleted_to.items():
            floor = self._deleted_to[project]
            if tx.first(_of_project(project), after=floor, past=past, limit=1) is not None:
                continue
            pieces = self._pieces[project]
            while pieces and pieces[0].last <= past:
                pieces.popleft()
            self._deleted_to[project] = past
            if not pieces:
                del self._pieces[project], self._deleted_to[project]
        self._probably_deleted_to = {}

    def _read(self, tx: session.Tx, rows_max: int) -> None:
        bytes_left = SIZES_BYTES
        for _ in range(SIZES_PARTS):
            rows = tx.all(SELECT_SIZES, after=self._at, most=SIZES_ROWS)
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
            self._deleted_to[row.project_id] = row.id - 1
        if (
            pieces
            and pieces[-1].rows < rows_max
            and pieces[-1].bytes + row.bytes <= PIECE_BYTES_MAX
        ):
            last_piece = pieces.pop()
            at = max(last_piece.at, row.created_at)
            pieces.append(Piece(row.id, last_piece.rows + 1, last_piece.bytes + row.bytes, at))
        else:
            pieces.append(Piece(row.id, 1, row.bytes, row.created_at))
        self._at = row.id


def _of_project(project: str | None) -> Any:
    """Return a query of a project's decisions by number, ``after`` one and up to ``past``."""
    numbers = (
        _decisions.c.number > sa.bindparam('after'),
        _decisions.c.number <= sa.bindparam('past'),
    )
    query = sa.select(_decisions.c.id).where(
        _decisions.c.project_id.is_not_distinct_from(project), *numbers
    )
    return query.order_by(_decisions.c.number).limit(sa.bindparam('limit'))


class PurgeState:
    """State of a process from one purge to the next.

    :ivar unfinished: kinds of rows of which as many as allowed were deleted: more may be due
    """

    def __init__(self) -> None:
        self.requests = TableWalk()
        self.claims = TableWalk()
        self.groups = TableWalk()
        self.allocations = TableWalk()
        self.decisions = DecisionsWalk()
        self.unfinished: set[str] = set()

    @property
    def is_done(self) -> bool:
        """True where all decisions are read, and complete rounds of the walks deleted nothing."""
        walks = (self.requests, self.claims, self.groups, self.allocations)
        return self.decisions.is_read and all(walk.found_none for walk in walks)


class SqlRetention(SqlStore):
    """Bounds of what is kept: ``ports.Retention`` in SQL."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._cursor = PurgeState()

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
                'decisions': lambda: _purge_decisions(
                    tx, cursor, *bounds, now, now - decision_seconds
                ),
                'requests': lambda: _purge_requests(tx, cursor, now - request_seconds, limit),
                'tombstones': lambda: _purge_tombstones(tx, cursor, now - tombstone_seconds, limit),
                'group plans': lambda: _purge_plans(tx, now - tombstone_seconds, limit),
                'groups': lambda: _purge_groups(tx, cursor, limit),
                'allocation orders': lambda: _purge_orders(tx, now - tombstone_seconds, limit),
                'allocations above': lambda: _purge_allocations(
                    tx, cursor, now - tombstone_seconds, limit
                ),
                'changes': lambda: _purge_changes(tx, limit),
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


def _rows_with_ids(
    tx: session.Tx, statement: Any, column: sa.ColumnElement[Any], ids: Sequence[str]
) -> list[Any]:
    """Return the rows of a query whose ``column`` has one of the ids, in the order of ``ids``."""
    matching: list[Any] = []
    for part in session.in_parts(ids):
        matching += tx.all(statement.where(arrays.select_by_array(tx, column, part)))
    return matching


def _delete(tx: session.Tx, column: Any, ids: Sequence[str]) -> int:
    for part in session.in_parts(ids):
        tx.run(column.table.delete().where(arrays.select_by_array(tx, column, part)))
    return len(ids)


def _purge_decisions(
    tx: session.Tx,
    cursor: PurgeState,
    count_limit: int,
    stored_bytes: int | None,
    limit: int,
    now: float,
    young: float,
) -> int:
    newest_number = tx.first(sa.select(sa.func.max(_decisions.c.number)))[0]
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
        deleted_count += _delete(tx, _decisions.c.id, old_ids)
    if not deleted_count:
        return 0
    sets = models.host_sets
    unused = (
        sa.select(sets.c.digest)
        .where(sets.c.used_at < now - decisions.HOST_SET_UNUSED_SECONDS)
        .where(~sa.exists().where(_decisions.c.host_set == sets.c.digest))
        .limit(limit)
    )
    return deleted_count + _delete(tx, sets.c.digest, [row.digest for row in tx.all(unused)])


def _purge_requests(tx: session.Tx, cursor: PurgeState, before: float, limit: int) -> int:
    old_requests = cursor.requests.next(
        tx, SELECT_OLD_REQUESTS, SELECT_REQUESTS_EDGE, before, limit
    )
    # Locked and read again: a repeated request may just be taking one over.
    locked_rows = _rows_with_ids(
        tx, LOCK_REQUESTS, _requests.c.id, sorted(row.id for row in old_requests)
    )
    old_ids = [row.id for row in locked_rows if _is_expired_request(row, before)]
    live_ids = {
        row.request_id
        for row in _rows_with_ids(
            tx, SELECT_REQUESTS_WITH_LIVE_CLAIMS, _claims.c.request_id, old_ids
        )
    }
    live_ids |= {
        row.request_id
        for row in _rows_with_ids(
            tx, SELECT_REQUESTS_WITH_CHILD_CLAIMS, _child_claims.c.request_id, old_ids
        )
    }
    deletable_ids = [request_id for request_id in old_ids if request_id not in live_ids]
    of_zones = models.delegated_consumers, models.group_zones
    for column in (_child_claims.c.request_id, *(table.c.request_id for table in of_zones)):
        _delete(tx, column, deletable_ids)
    _delete_claims(
        tx,
        [
            row.id
            for row in _rows_with_ids(tx, SELECT_ENDED_CLAIMS, _claims.c.request_id, deletable_ids)
        ],
    )
    return _delete(tx, _requests.c.id, deletable_ids)


def _is_expired_request(row: Any, before: float) -> bool:
    is_open = row.state == 'open' and row.deadline >= before
    return row.updated_at < before and not is_open


def _purge_tombstones(tx: session.Tx, cursor: PurgeState, before: float, limit: int) -> int:
    old_claims = cursor.claims.next(tx, SELECT_OLD_CLAIMS, SELECT_CLAIMS_EDGE, before, limit)
    return _delete_claims(tx, [row.id for row in old_claims])


def _delete_claims(tx: session.Tx, ids: Sequence[str]) -> int:
    _delete_written_consumers(tx, ids)
    # Locked and read again: a request that is sent anew creates claims of the same ids.
    ids = [row.id for row in _rows_with_ids(tx, LOCK_TOMBSTONES, _claims.c.id, sorted(ids))]
    _delete(tx, models.allocations.c.claim_id, ids)
    return _delete(tx, _claims.c.id, ids)


def _delete_written_consumers(tx: session.Tx, ids: Sequence[str]) -> None:
    """Delete the state of consumers without a live claim, whose claims others ended.

    Locked before the claims are read and locked, as by a writer of allocations.
    """
    consumers = sorted(
        {row.consumer for row in _rows_with_ids(tx, SELECT_ENDED_CLAIMS, _claims.c.id, sorted(ids))}
    )
    locked = [
        row.uuid
        for row in _rows_with_ids(tx, LOCK_WRITTEN_CONSUMERS, _written_consumers.c.uuid, consumers)
    ]
    used = {
        row.consumer
        for row in _rows_with_ids(tx, SELECT_CONSUMERS_WITH_LIVE_CLAIMS, _claims.c.consumer, locked)
    }
    _delete(tx, _written_consumers.c.uuid, [uuid for uuid in locked if uuid not in used])


def _purge_orders(tx: session.Tx, before: float, limit: int) -> int:
    old_orders = [
        {
            'b_parent': row.parent,
            'b_consumer': row.consumer,
            'b_purpose': row.purpose,
            'before': before,
        }
        for row in tx.all(SELECT_OLD_ORDERS, before=before, limit=limit)
    ]
    tx.run_many(DELETE_ORDER, old_orders)
    return len(old_orders)


def _purge_allocations(tx: session.Tx, cursor: PurgeState, before: float, limit: int) -> int:
    old_allocations = cursor.allocations.next(
        tx, SELECT_OLD_ALLOCATIONS, SELECT_ALLOCATIONS_EDGE, before, limit
    )
    return _delete(tx, _parent_allocations.c.request_id, [row.id for row in old_allocations])


def _purge_plans(tx: session.Tx, before: float, limit: int) -> int:
    old_uuids = [row.group_uuid for row in tx.all(SELECT_OLD_PLANS, before=before, limit=limit)]
    # Locked, and read again: a request may just be planning one of these groups anew.
    _rows_with_ids(tx, LOCK_GROUPS, _group_rules.c.uuid, old_uuids)
    query = SELECT_OLD_PLANS.where(_group_plans.c.group_uuid.in_(old_uuids))
    deletable_uuids = (
        [row.group_uuid for row in tx.all(query, before=before, limit=limit)] if old_uuids else []
    )
    return _delete(tx, _group_plans.c.group_uuid, deletable_uuids)


def _purge_groups(tx: session.Tx, cursor: PurgeState, limit: int) -> int:
    unused_groups = cursor.groups.next(tx, SELECT_UNUSED_GROUPS, SELECT_GROUPS_EDGE, tx.now, limit)
    # Locked before the claims are read: a commit may just be placing a member of one.
    locked = [
        row.uuid
        for row in _rows_with_ids(
            tx, LOCK_GROUPS, _group_rules.c.uuid, [row.id for row in unused_groups]
        )
    ]
    used = {
        row.group_uuid
        for row in _rows_with_ids(tx, SELECT_GROUPS_WITH_MEMBERS, _claims.c.group_uuid, locked)
    }
    for column in (_child_claims.c.group_uuid, _group_plans.c.group_uuid):
        used |= {
            row.group_uuid
            for row in _rows_with_ids(tx, sa.select(column).distinct(), column, locked)
        }
    deletable_uuids = [uuid for uuid in locked if uuid not in used]
    providers.announce(tx, 'group', deletable_uuids)
    return _delete(tx, _group_rules.c.uuid, deletable_uuids)


def _purge_changes(tx: session.Tx, limit: int) -> int:
    ends = tx.first(
        sa.select(sa.func.min(_changes.c.id).label('first'), sa.func.max(_changes.c.id))
    )
    if ends.first is None:
        return 0
    # By number, not by row: numbers that were never used count as deleted.
    past = min(ends[1] - CHANGES_STORED, ends.first + limit - 1)
    if past < ends.first:
        return 0
    tx.run(_changes.delete().where(_changes.c.id <= past))
    return past - ends.first + 1
