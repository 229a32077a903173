# SPDX-License-Identifier: Apache-2.0
"""The history of hosts: lines that were written when something changed, and claims as kept."""

from collections.abc import Collection, Iterable

import sqlalchemy as sa

from gantt.core.claims.claim import State
from gantt.core.claims.host_event import STORED_EACH, STORED_SECONDS, HostEvent
from gantt.db.engine import engine, session
from gantt.db.schema import models

_e = models.host_events
_c = models.claims
_p = models.providers

#: Of so many transactions that write lines one cuts what is too much of their hosts.
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
        {'host': host, 'kind': one.kind, 'what': one.what, 'actor': one.by, 'created_at': tx.now}
        for host, one in lines
    ]
    tx.many(_e.insert(), values)
    if tx.stamp % CUT_EACH == 0:
        cut(tx, {engine.storable(host) for host, _ in lines})


def cut(tx: session.Tx, hosts: Iterable[str]) -> None:
    """Delete the lines of these hosts that are too many."""
    for host in sorted(hosts):
        beyond = tx.first(BEYOND, host=host)
        if beyond is not None:
            tx.run(_e.delete().where(_e.c.host == host, _e.c.number <= beyond.number))


def rename(tx: session.Tx, old: str, new: str) -> None:
    """The lines of a host follow its name."""
    tx.run(_e.update().where(_e.c.host == old).values(host=new))


def load(tx: session.Tx, host: str, limit: int) -> list[HostEvent]:
    """The last ``limit`` lines, newest first."""
    host = engine.storable(host)
    found = [
        HostEvent(kind=row.kind, what=row.what, by=row.actor, at=row.created_at)
        for row in tx.all(LINES, host=host, limit=limit)
    ]
    for row in tx.all(CLAIMS, host=host, limit=limit):
        found += of_claim(
            row.id, row.consumer, row.state, row.reason, row.created_at, row.updated_at
        )
    # Sorting is stable: of lines of one moment those that were written later come first.
    return sorted(found, key=lambda one: -one.at)[:limit]


def recent(
    tx: session.Tx, hosts: Collection[str], since: float, limit: int
) -> list[tuple[str, HostEvent]]:
    """What happened to these hosts since then, oldest first; of lines and claims ``limit`` each."""
    parameters = {'hosts': sorted({engine.storable(host) for host in hosts}), 'since': since}
    found = [
        (row.host, HostEvent(kind=row.kind, what=row.what, by=row.actor, at=row.created_at))
        for row in reversed(tx.all(RECENT_LINES, limit=limit, **parameters))
    ]
    for row in tx.all(RECENT_CLAIMS, limit=limit, **parameters):
        events = of_claim(
            row.id, row.consumer, row.state, row.reason, row.created_at, row.updated_at
        )
        found += [(row.name, one) for one in reversed(events) if one.at >= since]
    return sorted(found, key=lambda pair: pair[1].at)


def of_claim(
    claim_id: str, consumer: str, state: str, reason: str, created_at: float, updated_at: float
) -> list[HostEvent]:
    """What is known of a claim: when it was made, and when it came to be as it is."""
    lines = [HostEvent(kind='claimed', what=f'for {consumer}', at=created_at, claim_id=claim_id)]
    if state != State.RESERVED:
        why = f': {reason}' if reason else ''
        lines.insert(
            0,
            HostEvent(
                kind=str(state), what=f'for {consumer}{why}', at=updated_at, claim_id=claim_id
            ),
        )
    return lines


def purge(tx: session.Tx, limit: int) -> int:
    """Delete old lines, at most ``limit``; how many went."""
    before = tx.now - STORED_SECONDS
    old = [row.number for row in tx.all(OLDEST, limit=limit) if row.created_at < before]
    if old:
        tx.run(_e.delete().where(_e.c.number <= old[-1]))
    return len(old)
