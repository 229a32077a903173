# SPDX-License-Identifier: Apache-2.0
"""History of hosts: lines written at each change, and events of claims as they are stored."""

from collections.abc import Collection, Iterable

import sqlalchemy as sa

from gantt.core.claims.claim import State
from gantt.core.claims.host_event import STORED_EACH, STORED_SECONDS, HostEvent
from gantt.db.engine import engine, session
from gantt.db.schema import models

_e = models.host_events
_c = models.claims
_p = models.providers

#: Transactions that write lines per transaction that cuts excess lines of their hosts.
CUT_EACH = 16

SINCE: sa.BindParameter[float] = sa.bindparam('since')
LINES = (
    sa.select(_e)
    .where(_e.c.host == sa.bindparam('host'))
    .order_by(_e.c.number.desc())
    .limit(sa.bindparam('limit'))
)
CLAIMS = (
    sa.select(_c.c.id, _c.c.consumer, _c.c.state, _c.c.reason, _c.c.created_at, _c.c.updated_at)
    .join(_p, _p.c.id == _c.c.provider_id)
    .where(_p.c.name == sa.bindparam('host'))
    .order_by(_c.c.updated_at.desc())
    .limit(sa.bindparam('limit'))
)
RECENT_LINES = (
    sa.select(_e)
    .where(_e.c.host.in_(sa.bindparam('hosts', expanding=True)), _e.c.created_at >= SINCE)
    .order_by(_e.c.number.desc())
    .limit(sa.bindparam('limit'))
)
RECENT_CLAIMS = (
    sa.select(
        _p.c.name,
        _c.c.id,
        _c.c.consumer,
        _c.c.state,
        _c.c.reason,
        _c.c.created_at,
        _c.c.updated_at,
    )
    .join(_p, _p.c.id == _c.c.provider_id)
    .where(_p.c.name.in_(sa.bindparam('hosts', expanding=True)), _c.c.updated_at >= SINCE)
    .order_by(_c.c.updated_at.desc())
    .limit(sa.bindparam('limit'))
)
BEYOND = (
    sa.select(_e.c.number)
    .where(_e.c.host == sa.bindparam('host'))
    .order_by(_e.c.number.desc())
    .offset(STORED_EACH)
    .limit(1)
)
OLDEST = sa.select(_e.c.number, _e.c.created_at).order_by(_e.c.number).limit(sa.bindparam('limit'))


def write(tx: session.Tx, lines: Iterable[tuple[str, HostEvent]]) -> None:
    """Add lines, each with the name of its host."""
    lines = list(lines)
    if not lines:
        return
    values = [
        {
            'host': host,
            'kind': event.kind,
            'message': event.message,
            'actor': event.actor,
            'created_at': tx.now,
        }
        for host, event in lines
    ]
    tx.many(_e.insert(), values)
    if tx.stamp % CUT_EACH == 0:
        cut(tx, {engine.storable(host) for host, _ in lines})


def cut(tx: session.Tx, hosts: Iterable[str]) -> None:
    """Delete the excess lines of these hosts."""
    for host in sorted(hosts):
        beyond = tx.first(BEYOND, host=host)
        if beyond is not None:
            tx.run(_e.delete().where(_e.c.host == host, _e.c.number <= beyond.number))


def rename(tx: session.Tx, old: str, new: str) -> None:
    """Move the lines of a host to its new name."""
    tx.run(_e.update().where(_e.c.host == old).values(host=new))


def load(tx: session.Tx, host: str, limit: int) -> list[HostEvent]:
    """Return the last ``limit`` lines, newest first."""
    host = engine.storable(host)
    events = [
        HostEvent(kind=row.kind, message=row.message, actor=row.actor, at=row.created_at)
        for row in tx.all(LINES, host=host, limit=limit)
    ]
    for row in tx.all(CLAIMS, host=host, limit=limit):
        events += of_claim(
            row.id, row.consumer, row.state, row.reason, row.created_at, row.updated_at
        )
    # Sorting is stable: lines of one moment that were written later come first.
    return sorted(events, key=lambda event: -event.at)[:limit]


def recent(
    tx: session.Tx, hosts: Collection[str], since: float, limit: int
) -> list[tuple[str, HostEvent]]:
    """Return these hosts' events since then, oldest first; of lines and claims ``limit`` each."""
    parameters = {'hosts': sorted({engine.storable(host) for host in hosts}), 'since': since}
    host_lines = [
        (
            row.host,
            HostEvent(kind=row.kind, message=row.message, actor=row.actor, at=row.created_at),
        )
        for row in reversed(tx.all(RECENT_LINES, limit=limit, **parameters))
    ]
    for row in tx.all(RECENT_CLAIMS, limit=limit, **parameters):
        events = of_claim(
            row.id, row.consumer, row.state, row.reason, row.created_at, row.updated_at
        )
        host_lines += [(row.name, event) for event in reversed(events) if event.at >= since]
    return sorted(host_lines, key=lambda pair: pair[1].at)


def of_claim(
    claim_id: str, consumer: str, state: str, reason: str, created_at: float, updated_at: float
) -> list[HostEvent]:
    """Return the events of a claim: its creation, and its last change of state."""
    lines = [HostEvent(kind='claimed', message=f'for {consumer}', at=created_at, claim_id=claim_id)]
    if state != State.RESERVED:
        reason_text = f': {reason}' if reason else ''
        lines.insert(
            0,
            HostEvent(
                kind=str(state),
                message=f'for {consumer}{reason_text}',
                at=updated_at,
                claim_id=claim_id,
            ),
        )
    return lines


def purge(tx: session.Tx, limit: int) -> int:
    """Delete old lines, at most ``limit``; return their number."""
    oldest_time = tx.now - STORED_SECONDS
    old_numbers = [
        row.number for row in tx.all(OLDEST, limit=limit) if row.created_at < oldest_time
    ]
    if old_numbers:
        tx.run(_e.delete().where(_e.c.number <= old_numbers[-1]))
    return len(old_numbers)
