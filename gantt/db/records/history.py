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

_claims = models.claims
_decisions = models.decisions
_providers = models.providers

#: Most placements, and claims of theirs, that are read for waiting times.
PLACED_MAX = 2000
WAITS_MAX = 10_000

COUNT_CLAIMS_BY_STATE = sa.select(
    _claims.c.state,
    sa.func.count().label('claims'),
    sa.func.sum(_claims.c.adopted * _claims.c.live).label('adopted'),
).group_by(_claims.c.state)
COUNT_CLAIMS_ON_POOLS = (
    sa.select(sa.func.count().label('claims'))
    .select_from(_claims.join(_providers, _providers.c.id == _claims.c.provider_id))
    .where(_providers.c.kind != HostKind.HOST.value, _claims.c.live == 1)
)
SELECT_NUMBER_RANGE = sa.select(sa.func.min(_decisions.c.number), sa.func.max(_decisions.c.number))
SELECT_NEXT_DECISION = (
    sa.select(_decisions.c.number, _decisions.c.created_at)
    .where(_decisions.c.number >= sa.bindparam('number'))
    .order_by(_decisions.c.number)
    .limit(1)
)


def count_claims(tx: session.Tx) -> ClaimCounts:
    """Return the numbers of claims by state, tombstones included."""
    rows = tx.all(COUNT_CLAIMS_BY_STATE)
    claims_by_state = {row.state: row.claims for row in rows}
    return ClaimCounts(
        states={state.value: claims_by_state.get(state.value, 0) for state in State},
        adopted=int(sum(row.adopted for row in rows)),
    )


def count_claims_on_pools(tx: session.Tx) -> int:
    """Return the number of live claims that are on no host."""
    return int(tx.first(COUNT_CLAIMS_ON_POOLS).claims)


def recent(tx: session.Tx, *, seconds: float, parts: int, most: int) -> History:
    """Return counts and durations of the last ``seconds``; see ``ports.Records.history``."""
    now = tx.now
    since, width = now - seconds, seconds / parts
    low, high = tx.first(SELECT_NUMBER_RANGE)
    if high is None:
        return History(now=now, since=since, outcomes={}, waits=[])
    first = max(_first_since(tx, since, low, high), high - most + 1)
    oldest = tx.first(SELECT_NEXT_DECISION, number=first)
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
        row = tx.first(SELECT_NEXT_DECISION, number=middle)
        if row is None or row.created_at >= since:
            high = middle
        else:
            low = min(high, row.number + 1)
    return low


def _counts(kind: str, first: int, start: float, width: float) -> Any:
    part: Any = (_decisions.c.created_at - start) / width
    # Not every SQLite has floor; its cast truncates, while other databases' casts round.
    part = sa.cast(part, sa.Integer) if kind == 'sqlite' else sa.func.floor(part)
    inner = (
        sa.select(_decisions.c.outcome, part.label('part'))
        .where(_decisions.c.number >= first, _decisions.c.created_at >= start)
        .subquery()
    )
    return sa.select(inner.c.outcome, inner.c.part, sa.func.count().label('decisions')).group_by(
        inner.c.outcome, inner.c.part
    )


def _waits(first: int) -> Any:
    placed = (
        sa.select(_decisions.c.request_id)
        .where(_decisions.c.number >= first, _decisions.c.outcome == Outcome.PLACED.value)
        .order_by(_decisions.c.number.desc())
        .limit(PLACED_MAX)
        .subquery()
    )
    return (
        sa.select(_claims.c.id, _claims.c.created_at, _claims.c.updated_at)
        .select_from(_claims.join(placed, placed.c.request_id == _claims.c.request_id))
        .where(_claims.c.state == State.CONFIRMED.value)
        .distinct()
        .limit(WAITS_MAX)
    )
