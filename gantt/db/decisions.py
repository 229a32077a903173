# SPDX-License-Identifier: Apache-2.0
"""Decisions as they are kept: columns to look for them by, and the packed rest.

The hosts that a decision looked at are the same for thousands of decisions:
they are stored once for each distinct list.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.commit import DecisionRecord
from gantt.db import models, session

_d = models.decisions
_s = models.host_sets

#: A stored list of hosts is written again after so long, which keeps it from
#: being purged: one that nothing refers to goes after an hour without it.
REFRESH_SECONDS = 600.0
UNUSED_SECONDS = 3600.0

_BRIEF = sa.select(
    _d.c.number, _d.c.id, _d.c.request_id, _d.c.outcome, _d.c.project_id, _d.c.reason,
    _d.c.worker, _d.c.table_seq, _d.c.host_set, _d.c.created_at,
)  # fmt: skip
_WHOLE = sa.select(_d.c.packed, _s.c.provider_ids, _d.c.created_at).select_from(
    _d.outerjoin(_s, _s.c.digest == _d.c.host_set)
)
NUMBERED = sa.select(_d.c.number).where(_d.c.id == sa.bindparam('id'))
TOUCH = (
    _s.update().where(_s.c.digest == sa.bindparam('b_digest')).values(used_at=sa.bindparam('now'))
)
#: Characters that a prefix of an id must have.
PREFIX_MIN = 6


class HostSets:
    """Which lists of hosts are known to be stored."""

    def __init__(self) -> None:
        self._written: dict[str, float] = {}
        self._lock = threading.Lock()

    def missing(self, records: Sequence[DecisionRecord]) -> dict[str, bytes]:
        """Digest -> provider ids of the lists to be written with these records."""
        now = time.monotonic()
        return {
            record.host_set: record.provider_ids
            for record in records
            if record.host_set
            and now - self._written.get(record.host_set, float('-inf')) > REFRESH_SECONDS
        }

    def stored(self, digests: Sequence[str]) -> None:
        """They are committed."""
        with self._lock:
            if len(self._written) > 1000:
                self._written.clear()
            now = time.monotonic()
            self._written.update((digest, now) for digest in digests)


def values(record: DecisionRecord, now: float) -> dict[str, Any]:
    """The columns of ``decisions``."""
    return {
        'id': record.id,
        'request_id': record.request_id,
        'outcome': record.outcome,
        'project_id': record.project_id,
        'reason': record.reason,
        'worker': record.worker,
        'table_seq': record.table_seq,
        'host_set': record.host_set,
        'packed': record.packed,
        'created_at': now,
    }


def save(tx: session.Tx, sets: HostSets, records: Sequence[DecisionRecord], now: float) -> None:
    """Keep decisions; one that is kept already stays as it is."""
    if not records:
        return
    save_sets(tx, sets, records, now)
    tx.insert_new(_d, [values(record, now) for record in records], 'id')


def save_sets(
    tx: session.Tx, sets: HostSets, records: Sequence[DecisionRecord], now: float
) -> None:
    """Keep the lists of hosts that these decisions looked at."""
    missing = sets.missing(records)
    if missing:
        tx.insert_new(
            _s,
            [
                {'digest': digest, 'provider_ids': ids, 'used_at': now}
                for digest, ids in missing.items()
            ],
            'digest',
        )
        tx.many(TOUCH, [{'b_digest': digest, 'now': now} for digest in sorted(missing)])
        tx.after.append(lambda: sets.stored(list(missing)))


def load(tx: session.Tx, wanted: str) -> tuple[bytes, bytes, float] | None:
    """By id of a decision, by request (its newest), or by a unique prefix of either."""
    if not wanted.isascii() or not wanted or len(wanted) > 64:
        return None
    newest = _d.c.number.desc()
    for condition in (_d.c.id == wanted, _d.c.request_id == wanted):
        row = tx.first(_WHOLE.where(condition).order_by(newest).limit(1))
        if row is not None:
            return _loaded(row)
    if len(wanted) < PREFIX_MIN:
        return None
    # Ids are compared byte by byte, so a prefix is a range of the index.
    end = wanted + '\x7f'
    ids = tx.all(sa.select(_d.c.id).where(_d.c.id >= wanted, _d.c.id < end).limit(2))
    if len(ids) == 1:
        return _loaded(tx.first(_WHOLE.where(_d.c.id == ids[0].id)))
    requests = tx.all(
        sa.select(_d.c.request_id)
        .where(_d.c.request_id >= wanted, _d.c.request_id < end)
        .distinct()
        .limit(2)
    )
    if len(ids) == 0 and len(requests) == 1:
        same = _d.c.request_id == requests[0].request_id
        return _loaded(tx.first(_WHOLE.where(same).order_by(newest).limit(1)))
    return None


def _loaded(row: Any) -> tuple[bytes, bytes, float]:
    return bytes(row.packed), bytes(row.provider_ids or b''), row.created_at


def page(
    tx: session.Tx, outcome: str | None, project: str | None, limit: int, marker: str | None
) -> list[DecisionRecord]:
    """Newest first, without the packed part, after the decision ``marker``."""
    query = _BRIEF.order_by(_d.c.number.desc()).limit(limit)
    if outcome is not None:
        query = query.where(_d.c.outcome == outcome)
    if project is not None:
        query = query.where(_d.c.project_id == project)
    if marker is not None:
        number = tx.first(NUMBERED, id=marker)
        if number is None:
            return []
        query = query.where(_d.c.number < number.number)
    return [
        DecisionRecord(
            id=row.id,
            request_id=row.request_id,
            outcome=row.outcome,
            project_id=row.project_id,
            reason=row.reason,
            worker=row.worker,
            table_seq=row.table_seq,
            host_set=row.host_set,
            created_at=row.created_at,
        )
        for row in tx.all(query)
    ]
