# SPDX-License-Identifier: Apache-2.0
"""Recent history by query: decisions over time, claims by state.

There is no index by time, which would cost every request more than the query costs: a time is
searched among the numbers of decisions, which grow with it.
"""

from typing import Any

import sqlalchemy as sa

from gantt.core.claims.claim import State
from gantt.core.records.decision import Outcome
from gantt.core.records.history import ClaimCounts, History
from gantt.core.resources.host import HostKind
from gantt.db.engine import session
from gantt.db.schema import models

_c = models.claims
_d = models.decisions
_p = models.providers

#: Most placements, and claims of theirs, that are read for waiting times.
PLACED_MAX = 2000
WAITS_MAX = 10_000

COUNTS = sa.select(
    _c.c.state,
    sa.func.count().label('claims'),
    sa.func.sum(_c.c.adopted * _c.c.live).label('adopted'),
).group_by(_c.c.state)
ON_POOLS = (
    sa.select(sa.func.count().label('claims'))
    .select_from(_c.join(_p, _p.c.id == _c.c.provider_id))
    .where(_p.c.kind != HostKind.HOST.value, _c.c.live == 1)
)
ENDS = sa.select(sa.func.min(_d.c.number), sa.func.max(_d.c.number))
NEXT = (
    sa.select(_d.c.number, _d.c.created_at)
    .where(_d.c.number >= sa.bindparam('number'))
    .order_by(_d.c.number)
    .limit(1)
)


def count_claims(tx: session.Tx) -> ClaimCounts:
    """Return the numbers of claims by state, tombstones included."""
    rows = tx.all(COUNTS)
    claims_by_state = {row.state: row.claims for row in rows}
    return ClaimCounts(
        states={state.value: claims_by_state.get(state.value, 0) for state in State},
        adopted=int(sum(row.adopted for row in rows)),
    )


def count_claims_on_pools(tx: session.Tx) -> int:
    """Return the number of live claims that are on no host."""
    return int(tx.first(ON_POOLS).claims)


def recent(tx: session.Tx, *, seconds: float, parts: int, most: int) -> History:
    """Return counts and durations of the last ``seconds``; see ``ports.Records.history``."""
    now = tx.now
    since, width = now - seconds, seconds / parts
    low, high = tx.first(ENDS)
    if high is None:
        return History(now=now, since=since, outcomes={}, waits=[])
    first = max(_first_since(tx, since, low, high), high - most + 1)
    oldest = tx.first(NEXT, number=first)
    if oldest is None or (oldest.created_at < since and first == high):
        return History(now=now, since=since, outcomes={}, waits=[])
    # The time before the first stored or read decision is not known to have been empty.
    if first in (low, high - most + 1):
        since = max(since, oldest.created_at)
    outcomes: dict[str, list[int]] = {}
    for row in tx.all(_counts(tx.kind, first, now - seconds, width)):
        counts = outcomes.setdefault(row.outcome, [0] * parts)
        counts[min(parts - 1, int(row.part))] += row.decisions
    waits = [(row.created_at, row.updated_at - row.created_at) for row in tx.all(_waits(first))]
    return History(
        now=now,
        since=since,
        outcomes=outcomes,
        waits=[wait for wait in waits if wait[0] >= now - seconds],
    )


def _first_since(tx: session.Tx, since: float, low: int, high: int) -> int:
    """Return the number of the first decision since a time, or the last one of all."""
    while low < high:
        middle = (low + high) // 2
        row = tx.first(NEXT, number=middle)
        if row is None or row.created_at >= since:
            high = middle
        else:
            low = min(high, row.number + 1)
    return low


def _counts(kind: str, first: int, start: float, width: float) -> Any:
    part: Any = (_d.c.created_at - start) / width
    # Not every SQLite has floor; its cast truncates, while other databases' casts round.
    part = sa.cast(part, sa.Integer) if kind == 'sqlite' else sa.func.floor(part)
    inner = (
        sa.select(_d.c.outcome, part.label('part'))
        .where(_d.c.number >= first, _d.c.created_at >= start)
        .subquery()
    )
    return sa.select(inner.c.outcome, inner.c.part, sa.func.count().label('decisions')).group_by(
        inner.c.outcome, inner.c.part
    )


def _waits(first: int) -> Any:
    placed = (
        sa.select(_d.c.request_id)
        .where(_d.c.number >= first, _d.c.outcome == Outcome.PLACED.value)
        .order_by(_d.c.number.desc())
        .limit(PLACED_MAX)
        .subquery()
    )
    return (
        sa.select(_c.c.id, _c.c.created_at, _c.c.updated_at)
        .select_from(_c.join(placed, placed.c.request_id == _c.c.request_id))
        .where(_c.c.state == State.CONFIRMED.value)
        .distinct()
        .limit(WAITS_MAX)
    )
