# SPDX-License-Identifier: Apache-2.0
"""Old rows go, a bounded number at a time.

A request stays as long as any of its claims is live, and a tombstone as long
as its request: whatever still points at a claim finds it.  Of decisions the oldest
of the project that has the most go first, see ``core/records/retention.py``.
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
from gantt.db.engine import arrays, retry, session
from gantt.db.hosts import host_events, providers
from gantt.db.hosts.base import HostTables
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
_b = models.claims_below
WITH_LIVE_BELOW = sa.select(_b.c.request_id).where(holds_below).distinct()
OF_REQUESTS = sa.select(_c.c.id, _c.c.consumer).where(_c.c.live == 0)
LOCKED_TOMBSTONES = sa.select(_c.c.id).where(_c.c.live == 0).order_by(_c.c.id).with_for_update()
LOCKED_WRITTEN = sa.select(_w.c.uuid).order_by(_w.c.uuid).with_for_update()
WITH_LIVE_CLAIMS = sa.select(_c.c.consumer).where(_c.c.live != 0).distinct()
_ng = _next((_g.c.uuid.label('id'), _g.c.name, _g.c.members, _g.c.generation))
GROUPS_EDGE = _edge(_ng)
#: Rules that requests brought, and that no claim is of, not even one that has ended: these
#: stay for as long as requests are remembered.
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
#: Plans that hold nothing any more, and of whose members no claim is, not even one that has ended.
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
#: No allocation is still on its way that was offered before: an offer is good for some seconds.
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
_above = models.allocations_above
_na = _next((_above.c.request_id.label('id'), _above.c.until))
ALLOCATIONS_EDGE = _edge(_na)
#: Allocations of zones above of which no request is remembered.
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
#: Of decisions whose sizes one purge reads: so many at once, so often, and of so many bytes, as
#: some databases read what they measure.
SIZES_ROWS, SIZES_PARTS, SIZES_BYTES = 5000, 20, 64 << 20
#: Decisions are counted together up to so many bytes.
SIZED_BYTES = 1 << 20
#: And up to a thousandth of those that may stay, or so many.
PIECES, PIECE_ROWS_MAX = 1000, 500
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


class DecisionsWalk:
    """What decisions there are of each project, as far as a process has looked: it goes on from
    there.

    No columns with their sums: every commit would wait for the one before.  One that is committed
    late, behind others, is not counted; it goes with those that are older than the next that go.

    :ivar is_read: whether the last look came to the end
    """

    def __init__(self) -> None:
        self._pieces: dict[str | None, collections.deque[Piece]] = {}
        self._floors: dict[str | None, int] = {}  # up to here those of a project are gone
        self._going: dict[str | None, int] = {}  # and up to here since the last purge, it seems
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
        """What is to go: project, behind which number, and up to which one.

        :param last: number of the newest decision
        :param young: those that are not older go for bytes alone
        """
        with self._lock:
            if last < self._at:  # the database went back
                self._pieces, self._floors, self._going, self._at = {}, {}, {}, 0
            # More than may stay are held where they are young: their pieces become larger.
            held = sum(piece.rows for pieces in self._pieces.values() for piece in pieces)
            self._read(tx, max(1, min(PIECE_ROWS_MAX, max(count_limit, held) // PIECES)))
            self._drop(tx)
            found = retention.excess(self._pieces, count_limit, stored_bytes, limit, young)
            self._going = {
                project: self._pieces[project][pieces - 1].last for project, pieces in found.items()
            }
            return [(p, self._floors[p], past) for p, past in self._going.items()]

    def _drop(self, tx: session.Tx) -> None:
        """Forget what went, which is seen only now: that a purge is committed is not told."""
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
        left = SIZES_BYTES
        for _ in range(SIZES_PARTS):
            rows = tx.all(SIZES, after=self._at, most=SIZES_ROWS)
            for row in rows:
                self._add(row, rows_max)
                left -= row.bytes
            self.is_read = len(rows) < SIZES_ROWS
            if self.is_read or left <= 0:
                return

    def _add(self, row: Any, rows_max: int) -> None:
        pieces = self._pieces.get(row.project_id)
        if pieces is None:
            pieces = self._pieces[row.project_id] = collections.deque()
            self._floors[row.project_id] = row.id - 1
        if pieces and pieces[-1].rows < rows_max and pieces[-1].bytes + row.bytes <= SIZED_BYTES:
            before = pieces.pop()
            at = max(before.at, row.created_at)
            pieces.append(Piece(row.id, before.rows + 1, before.bytes + row.bytes, at))
        else:
            pieces.append(Piece(row.id, 1, row.bytes, row.created_at))
        self._at = row.id


def _of_project(project: str | None) -> Any:
    """Decisions of a project by number, ``after`` one and up to ``past``."""
    numbers = _d.c.number > sa.bindparam('after'), _d.c.number <= sa.bindparam('past')
    query = sa.select(_d.c.id).where(_d.c.project_id.is_not_distinct_from(project), *numbers)
    return query.order_by(_d.c.number).limit(sa.bindparam('limit'))


class Cursor:
    """What a process remembers from one purge to the next.

    :ivar unfinished: kinds of rows of which as many went as may at once
    """

    def __init__(self) -> None:
        self.requests, self.claims, self.groups = Walk(), Walk(), Walk()
        self.allocations = Walk()
        self.decisions = DecisionsWalk()
        self.unfinished: set[str] = set()

    @property
    def is_done(self) -> bool:
        """Whether all decisions are known, and the walks came all the way round for nothing."""
        walks = (self.requests, self.claims, self.groups, self.allocations)
        return self.decisions.is_read and all(walk.found_none for walk in walks)


class Purge(HostTables):
    """See ``scheduler.ports.records``."""

    def __init__(
        self, engine: sa.Engine, policy: retry.RetryPolicy | None = None, **options: Any
    ) -> None:
        super().__init__(engine, policy, **options)
        self._cursor = Cursor()

    @property
    def is_purged(self) -> bool:
        """Whether purges have come by all requests and claims, and found nothing to take."""
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
            gone = {k: go() for k, go in kinds.items() if not again or k in cursor.unfinished}
            cursor.unfinished = {kind for kind, went in gone.items() if went >= limit}
            return sum(gone.values())

        return self.database.write(work, patient=True)


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


def _decisions(
    tx: session.Tx,
    cursor: Cursor,
    count_limit: int,
    stored_bytes: int | None,
    limit: int,
    now: float,
    young: float,
) -> int:
    last = tx.first(sa.select(sa.func.max(_d.c.number)))[0]
    if last is None:
        cursor.decisions.is_read = True
        return 0
    gone = 0
    found = cursor.decisions.excess(tx, last, count_limit, stored_bytes, limit, young)
    for project, after, past in found:
        if gone >= limit:
            break
        rows = tx.all(_of_project(project), after=after, past=past, limit=limit - gone)
        old = [row.id for row in rows]
        _delete(tx, models.decision_consumers.c.decision_id, old)
        gone += _delete(tx, _d.c.id, old)
    if not gone:
        return 0
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
    live |= {row.request_id for row in _of(tx, WITH_LIVE_BELOW, _b.c.request_id, old)}
    wanted = [one for one in old if one not in live]
    of_zones = models.consumers_on_their_way, models.group_places
    for column in (_b.c.request_id, *(table.c.request_id for table in of_zones)):
        _delete(tx, column, wanted)
    _forget_claims(tx, [row.id for row in _of(tx, OF_REQUESTS, _c.c.request_id, wanted)])
    return _delete(tx, _r.c.id, wanted)


def _is_old(row: Any, before: float) -> bool:
    open_still = row.state == 'open' and row.deadline >= before
    return row.updated_at < before and not open_still


def _tombstones(tx: session.Tx, cursor: Cursor, before: float, limit: int) -> int:
    found = cursor.claims.next(tx, OLD_CLAIMS, CLAIMS_EDGE, before, limit)
    return _forget_claims(tx, [row.id for row in found])


def _forget_claims(tx: session.Tx, ids: Sequence[str]) -> int:
    _forget_written(tx, ids)
    # Locked and looked at again: a request that is asked anew makes claims of the same ids.
    ids = [row.id for row in _of(tx, LOCKED_TOMBSTONES, _c.c.id, sorted(ids))]
    _delete(tx, models.allocations.c.claim_id, ids)
    return _delete(tx, _c.c.id, ids)


def _forget_written(tx: session.Tx, ids: Sequence[str]) -> None:
    """What is known of consumers that have no live claim any more, as others ended them.

    Locked before we look, and before any claim, as who writes allocations does.
    """
    consumers = sorted({row.consumer for row in _of(tx, OF_REQUESTS, _c.c.id, sorted(ids))})
    locked = [row.uuid for row in _of(tx, LOCKED_WRITTEN, _w.c.uuid, consumers)]
    used = {row.consumer for row in _of(tx, WITH_LIVE_CLAIMS, _c.c.consumer, locked)}
    _delete(tx, _w.c.uuid, [one for one in locked if one not in used])


def _orders(tx: session.Tx, before: float, limit: int) -> int:
    old = [
        {
            'b_parent': row.parent,
            'b_consumer': row.consumer,
            'b_purpose': row.purpose,
            'before': before,
        }
        for row in tx.all(OLD_ORDERS, before=before, limit=limit)
    ]
    tx.many(FORGET_ORDER, old)
    return len(old)


def _allocations(tx: session.Tx, cursor: Cursor, before: float, limit: int) -> int:
    found = cursor.allocations.next(tx, OLD_ALLOCATIONS, ALLOCATIONS_EDGE, before, limit)
    return _delete(tx, _above.c.request_id, [row.id for row in found])


def _plans(tx: session.Tx, before: float, limit: int) -> int:
    old = [row.group_uuid for row in tx.all(OLD_PLANS, before=before, limit=limit)]
    # Locked, and looked at again: somebody may just be planning one of these groups anew.
    _of(tx, LOCKED_GROUPS, _g.c.uuid, old)
    again = OLD_PLANS.where(_t.c.group_uuid.in_(old))
    still = [row.group_uuid for row in tx.all(again, before=before, limit=limit)] if old else []
    return _delete(tx, _t.c.group_uuid, still)


def _groups(tx: session.Tx, cursor: Cursor, limit: int) -> int:
    found = cursor.groups.next(tx, UNUSED_GROUPS, GROUPS_EDGE, tx.now, limit)
    # Locked before we look: a commit may just be placing somebody in one of them.
    locked = [row.uuid for row in _of(tx, LOCKED_GROUPS, _g.c.uuid, [row.id for row in found])]
    used = {row.group_uuid for row in _of(tx, WITH_MEMBERS, _c.c.group_uuid, locked)}
    for column in (_b.c.group_uuid, _t.c.group_uuid):
        used |= {row.group_uuid for row in _of(tx, sa.select(column).distinct(), column, locked)}
    gone = [uuid for uuid in locked if uuid not in used]
    providers.announce(tx, 'group', gone)
    return _delete(tx, _g.c.uuid, gone)


def _changes(tx: session.Tx, limit: int) -> int:
    ends = tx.first(sa.select(sa.func.min(_x.c.id).label('first'), sa.func.max(_x.c.id)))
    if ends.first is None:
        return 0
    # By number, not by row: numbers that were never used count as gone.
    past = min(ends[1] - CHANGES_STORED, ends.first + limit - 1)
    if past < ends.first:
        return 0
    tx.run(_x.delete().where(_x.c.id <= past))
    return past - ends.first + 1
