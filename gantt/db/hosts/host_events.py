# SPDX-License-Identifier: Apache-2.0
"""History of hosts: lines written at each change, and events of claims as they are stored."""

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.claim import State
from gantt.core.claims.host_event import STORED_PER_HOST, STORED_SECONDS, HostEvent
from gantt.db.engine import engine, session
from gantt.db.schema import models

_host_events = models.host_events
_claims = models.claims
_providers = models.providers

#: Transactions that write lines per transaction that cuts excess lines of their hosts.
CUT_EVERY_TRANSACTIONS = 16

SINCE_PARAMETER: sa.BindParameter[float] = sa.bindparam('since')
SELECT_EVENTS = (
    sa.select(_host_events)
    .where(_host_events.c.host == sa.bindparam('host'))
    .order_by(_host_events.c.number.desc())
    .limit(sa.bindparam('limit'))
)
_SELECT_CLAIMS = sa.select(
    _providers.c.name,
    _claims.c.id,
    _claims.c.consumer,
    _claims.c.state,
    _claims.c.reason,
    _claims.c.created_at,
    _claims.c.updated_at,
).join(_providers, _providers.c.id == _claims.c.provider_id)
SELECT_CLAIMS_OF_HOST = (
    _SELECT_CLAIMS.where(_providers.c.name == sa.bindparam('host'))
    .order_by(_claims.c.updated_at.desc())
    .limit(sa.bindparam('limit'))
)
SELECT_RECENT_EVENTS = (
    sa.select(_host_events)
    .where(
        _host_events.c.host.in_(sa.bindparam('hosts', expanding=True)),
        _host_events.c.created_at >= SINCE_PARAMETER,
    )
    .order_by(_host_events.c.number.desc())
    .limit(sa.bindparam('limit'))
)
SELECT_RECENT_CLAIMS = (
    _SELECT_CLAIMS.where(
        _providers.c.name.in_(sa.bindparam('hosts', expanding=True)),
        _claims.c.updated_at >= SINCE_PARAMETER,
    )
    .order_by(_claims.c.updated_at.desc())
    .limit(sa.bindparam('limit'))
)
SELECT_FIRST_EXCESS_EVENT = (
    sa.select(_host_events.c.number)
    .where(_host_events.c.host == sa.bindparam('host'))
    .order_by(_host_events.c.number.desc())
    .offset(STORED_PER_HOST)
    .limit(1)
)
SELECT_OLDEST_EVENTS = (
    sa.select(_host_events.c.number, _host_events.c.created_at)
    .order_by(_host_events.c.number)
    .limit(sa.bindparam('limit'))
)


def write(tx: session.Tx, lines: Iterable[tuple[str, HostEvent]]) -> None:
    """Insert lines of history, each with the name of its host."""
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
    tx.run_many(_host_events.insert(), values)
    if tx.stamp % CUT_EVERY_TRANSACTIONS == 0:
        delete_excess(tx, {engine.storable(host) for host, _ in lines})


def delete_excess(tx: session.Tx, hosts: Iterable[str]) -> None:
    """Delete the excess lines of these hosts."""
    for host in sorted(hosts):
        beyond = tx.first(SELECT_FIRST_EXCESS_EVENT, host=host)
        if beyond is not None:
            tx.run(
                _host_events.delete().where(
                    _host_events.c.host == host, _host_events.c.number <= beyond.number
                )
            )


def rename(tx: session.Tx, old: str, new: str) -> None:
    """Move the lines of a host to its new name."""
    tx.run(_host_events.update().where(_host_events.c.host == old).values(host=new))


def load(tx: session.Tx, host: str, limit: int) -> list[HostEvent]:
    """Return the last ``limit`` lines, newest first."""
    host = engine.storable(host)
    events = [_event_of_line(row) for row in tx.all(SELECT_EVENTS, host=host, limit=limit)]
    for row in tx.all(SELECT_CLAIMS_OF_HOST, host=host, limit=limit):
        events += _event_of_claim(row)
    # Sorting is stable: lines of one moment that were written later come first.
    return sorted(events, key=lambda event: -event.at)[:limit]


def recent(
    tx: session.Tx, hosts: Collection[str], since: float, limit: int
) -> list[tuple[str, HostEvent]]:
    """Return (host, event) since a time, oldest first; from ``limit`` lines and claims each."""
    parameters = {'hosts': sorted({engine.storable(host) for host in hosts}), 'since': since}
    host_lines = [
        (row.host, _event_of_line(row))
        for row in reversed(tx.all(SELECT_RECENT_EVENTS, limit=limit, **parameters))
    ]
    for row in tx.all(SELECT_RECENT_CLAIMS, limit=limit, **parameters):
        events = reversed(_event_of_claim(row))
        host_lines += [(row.name, event) for event in events if event.at >= since]
    return sorted(host_lines, key=lambda pair: pair[1].at)


def _event_of_line(row: Any) -> HostEvent:
    return HostEvent(kind=row.kind, message=row.message, actor=row.actor, at=row.created_at)


def _event_of_claim(row: Any) -> list[HostEvent]:
    """Return the events of a claim, newest first: its last change of state, and its creation."""
    events = [
        HostEvent(kind='claimed', message=f'for {row.consumer}', at=row.created_at, claim_id=row.id)
    ]
    if row.state != State.RESERVED:
        reason = f': {row.reason}' if row.reason else ''
        message = f'for {row.consumer}{reason}'
        events.insert(
            0, HostEvent(kind=row.state, message=message, at=row.updated_at, claim_id=row.id)
        )
    return events


def purge(tx: session.Tx, limit: int) -> int:
    """Delete old lines, at most ``limit``; return their number."""
    oldest_time = tx.now - STORED_SECONDS
    old_numbers = [
        row.number
        for row in tx.all(SELECT_OLDEST_EVENTS, limit=limit)
        if row.created_at < oldest_time
    ]
    if old_numbers:
        tx.run(_host_events.delete().where(_host_events.c.number <= old_numbers[-1]))
    return len(old_numbers)
