# SPDX-License-Identifier: Apache-2.0
"""Decisions as they are stored: columns for queries, and the packed rest.

The hosts that a decision evaluated are the same for thousands of decisions: they are stored once
for each distinct list.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.commit import INDEXED_CONSUMERS_MAX, DecisionRecord
from gantt.core.records.history import History
from gantt.db.database import SqlStore, reading, reading_long, writing
from gantt.db.engine import session
from gantt.db.records import history
from gantt.db.schema import models

_decisions = models.decisions
_host_sets = models.host_sets
_decision_consumers = models.decision_consumers
_claims = models.claims

#: A stored list of hosts is written again after this time, which keeps it from being purged: an
#: unreferenced list is deleted after an hour without it.
HOST_SET_REFRESH_SECONDS = 600.0
HOST_SET_UNUSED_SECONDS = 3600.0

_COLUMNS = [
    column.name for column in _decisions.c if column.name not in ('number', 'packed', 'created_at')
]
_SELECT_SUMMARY = sa.select(
    _decisions.c.number, _decisions.c.created_at, *[_decisions.c[name] for name in _COLUMNS]
)
_SELECT_PACKED = sa.select(
    _decisions.c.packed, _host_sets.c.provider_ids, _decisions.c.created_at
).select_from(_decisions.outerjoin(_host_sets, _host_sets.c.digest == _decisions.c.host_set))
SELECT_NUMBER = sa.select(_decisions.c.number).where(_decisions.c.id == sa.bindparam('id'))
UPDATE_HOST_SET_USED_AT = (
    _host_sets.update()
    .where(_host_sets.c.digest == sa.bindparam('b_digest'))
    .values(used_at=sa.bindparam('now'))
)
_clock = sa.select(session.Now().label('now')).subquery()
SELECT_FRESH_HOST_SETS = sa.select(_clock.c.now, _host_sets.c.digest).select_from(
    _clock.outerjoin(
        _host_sets,
        sa.and_(
            _host_sets.c.digest.in_(sa.bindparam('digests', expanding=True)),
            _host_sets.c.used_at > _clock.c.now - HOST_SET_REFRESH_SECONDS,
        ),
    )
)
#: Characters that a prefix of an id must have.
PREFIX_MIN = 6
#: Most decisions about one consumer that are read, those of commits and others.
DECISIONS_MOST = 1000

#: Decisions about a consumer without a commit, and requests that claimed for it.
SELECT_DECISIONS_OF_CONSUMER = (
    sa.select(_decisions.c.number)
    .join(_decision_consumers, _decision_consumers.c.decision_id == _decisions.c.id)
    .where(_decision_consumers.c.consumer == sa.bindparam('consumer'))
    .order_by(_decisions.c.number.desc())
    .limit(DECISIONS_MOST)
)
SELECT_REQUESTS_OF_CONSUMER = (
    sa.select(_claims.c.request_id)
    .where(_claims.c.consumer == sa.bindparam('consumer'), _claims.c.request_id.is_not(None))
    .order_by(_claims.c.created_at.desc())
    .limit(DECISIONS_MOST)
)


class StoredHostSets:
    """Lists of hosts that were stored recently, as far as this process knows.

    A guess: users check, in the transaction that refers to them, that the lists are stored, as in
    a restored database they are not.
    """

    def __init__(self) -> None:
        self._written: dict[str, float] = {}
        self._lock = threading.Lock()

    def fresh(self) -> set[str]:
        """Return digests of host lists that were stored recently and need not be written again."""
        oldest = time.monotonic() - HOST_SET_REFRESH_SECONDS
        with self._lock:
            return {digest for digest, at in self._written.items() if at >= oldest}

    def stored(self, digests: Iterable[str]) -> None:
        """Record that the host lists with these digests are committed."""
        with self._lock:
            if len(self._written) > 1000:
                self._written.clear()
            now = time.monotonic()
            self._written.update((digest, now) for digest in digests)

    def forget(self) -> None:
        """Forget all digests, as a host list of one of them was not stored."""
        with self._lock:
            self._written.clear()


def values(record: DecisionRecord, now: float) -> dict[str, Any]:
    """Return the columns of ``decisions``."""
    columns = {name: getattr(record, name) for name in _COLUMNS}
    return columns | {'packed': record.packed, 'created_at': now}


def fresh_sets(tx: session.Tx, records: Iterable[DecisionRecord]) -> set[str]:
    """Return digests of the lists of hosts that are stored, and need not be written again yet.

    Reads the database's clock in the same statement.
    """
    digests = sorted({record.host_set for record in records if record.host_set})
    if not digests:
        return set()
    digest_rows = tx.all(SELECT_FRESH_HOST_SETS, digests=digests)
    tx.now = digest_rows[0].now
    return {row.digest for row in digest_rows if row.digest is not None}


def save(tx: session.Tx, fresh: set[str], records: Sequence[DecisionRecord], now: float) -> None:
    """Store decisions; a stored one stays as it is.

    :param fresh: digests of lists of hosts that need not be written
    """
    if not records:
        return
    save_sets(tx, fresh, records, now)
    tx.insert_new(_decisions, [values(record, now) for record in records], 'id')


def save_sets(
    tx: session.Tx, fresh: set[str], records: Sequence[DecisionRecord], now: float
) -> None:
    """Store the lists of hosts that these decisions evaluated."""
    missing = {
        record.host_set: record.provider_ids
        for record in records
        if record.host_set and record.host_set not in fresh
    }
    if missing:
        tx.insert_new(
            _host_sets,
            [
                {'digest': digest, 'provider_ids': ids, 'used_at': now}
                for digest, ids in missing.items()
            ],
            'digest',
        )
        tx.run_many(
            UPDATE_HOST_SET_USED_AT,
            [{'b_digest': digest, 'now': now} for digest in sorted(missing)],
        )


def _about(tx: session.Tx, consumer: str) -> Any:
    """Return the condition that a decision is about a consumer."""
    numbers = [row.number for row in tx.all(SELECT_DECISIONS_OF_CONSUMER, consumer=consumer)]
    requests = {row.request_id for row in tx.all(SELECT_REQUESTS_OF_CONSUMER, consumer=consumer)}
    return sa.or_(_decisions.c.number.in_(numbers), _decisions.c.request_id.in_(sorted(requests)))


def _loaded(row: Any) -> tuple[bytes, bytes, float]:
    return bytes(row.packed), bytes(row.provider_ids or b''), row.created_at


class SqlRecords(SqlStore):
    """Decisions, and recent history: ``ports.Records`` in SQL."""

    @writing
    def save_decisions(self, tx: session.Tx, records: Sequence[DecisionRecord]) -> None:
        fresh = fresh_sets(tx, records)
        save(tx, fresh, records, tx.now)
        about = [
            {'consumer': consumer, 'decision_id': record.id}
            for record in records
            for consumer in dict.fromkeys(record.consumers[:INDEXED_CONSUMERS_MAX])
        ]
        tx.insert_new(_decision_consumers, about, 'consumer', 'decision_id')

    @reading
    def load_decision(
        self, tx: session.Tx, id_or_request: str, project: str | None = None
    ) -> tuple[bytes, bytes, float] | None:
        if not id_or_request.isascii() or not id_or_request or len(id_or_request) > 64:
            return None
        newest = _decisions.c.number.desc()
        filters = [] if project is None else [_decisions.c.project_id == project]
        for condition in (
            _decisions.c.id == id_or_request,
            _decisions.c.request_id == id_or_request,
            _decisions.c.origin == id_or_request,
        ):
            row = tx.first(_SELECT_PACKED.where(condition, *filters).order_by(newest).limit(1))
            if row is not None:
                return _loaded(row)
        row = tx.first(
            _SELECT_PACKED.where(_about(tx, id_or_request), *filters).order_by(newest).limit(1)
        )
        if row is not None:
            return _loaded(row)
        if len(id_or_request) < PREFIX_MIN:
            return None
        # Ids are compared byte by byte, so a prefix is a range of the index.
        end = id_or_request + '\x7f'
        ids = tx.all(
            sa.select(_decisions.c.id)
            .where(_decisions.c.id >= id_or_request, _decisions.c.id < end, *filters)
            .limit(2)
        )
        if len(ids) == 1:
            return _loaded(tx.first(_SELECT_PACKED.where(_decisions.c.id == ids[0].id)))
        requests = tx.all(
            sa.select(_decisions.c.request_id)
            .where(
                _decisions.c.request_id >= id_or_request, _decisions.c.request_id < end, *filters
            )
            .distinct()
            .limit(2)
        )
        if len(ids) == 0 and len(requests) == 1:
            is_of_request = _decisions.c.request_id == requests[0].request_id
            return _loaded(
                tx.first(_SELECT_PACKED.where(is_of_request, *filters).order_by(newest).limit(1))
            )
        return None

    @reading
    def list_decisions(
        self,
        tx: session.Tx,
        *,
        outcome: str | None = None,
        project: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        consumer: str | None = None,
    ) -> list[DecisionRecord]:
        query = _SELECT_SUMMARY.order_by(_decisions.c.number.desc()).limit(limit)
        if outcome is not None:
            query = query.where(_decisions.c.outcome == outcome)
        if project is not None:
            query = query.where(_decisions.c.project_id == project)
        if consumer is not None:
            query = query.where(_about(tx, consumer))
        if marker is not None:
            number = tx.first(SELECT_NUMBER, id=marker)
            if number is None:
                return []
            query = query.where(_decisions.c.number < number.number)
        return [
            DecisionRecord(
                created_at=row.created_at, **{name: getattr(row, name) for name in _COLUMNS}
            )
            for row in tx.all(query)
        ]

    @reading_long
    def history(self, tx: session.Tx, *, seconds: float, parts: int, most: int) -> History:
        return history.recent(tx, seconds=seconds, parts=parts, most=most)
