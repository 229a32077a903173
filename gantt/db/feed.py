# SPDX-License-Identifier: Apache-2.0
"""The change feed, and everything that a table starts from.

Numbers of ``changes`` are drawn before the commit: they appear out of order.
So each poll reads a trailing window again and compares versions.  A change that
takes longer than the window to appear is found by the periodic full reading;
until then it costs staleness, not correctness.
"""

import threading
from collections.abc import Mapping

import sqlalchemy as sa

from gantt.core.host import HostChange
from gantt.db import aggregates, groups, models, providers, rows, session
from gantt.scheduler.ports import Everything, Feed

_x = models.changes
_p = models.providers

#: How many numbers are read again, and how many each so many polls.
WINDOW = 200
WINDOW_WIDE = 2000
WIDE_EACH = 16
#: A position so far back is answered with what changed lately, and no more.
READ_MAX = 200_000

# From the end, so that the newest are found without statistics of the table.
_tail = (
    sa.select(_x.c.id, _x.c.kind, _x.c.ref)
    .where(_x.c.id > sa.bindparam('since'))
    .order_by(_x.c.id.desc())
    .limit(READ_MAX)
    .subquery()
)
HEAD = sa.select(
    session.Now(),
    sa.select(models.meta.c.incarnation).scalar_subquery(),
    sa.func.count(),
    sa.func.coalesce(sa.func.max(_tail.c.id), 0),
)
NEWS = sa.select(_tail.c.kind, _tail.c.ref).group_by(_tail.c.kind, _tail.c.ref)
VERSIONS = sa.select(_p.c.id, _p.c.version).where(_p.c.id.in_(sa.bindparam('ids', expanding=True)))
ALL_VERSIONS = sa.select(_p.c.id, _p.c.version)
GENERATIONS = groups.GENERATIONS.where(
    models.group_rules.c.uuid.in_(sa.bindparam('uuids', expanding=True))
)
INCARNATION = sa.select(models.meta.c.incarnation)
CLASSES = sa.select(models.resource_classes.c.name)
CHUNK = 500


class Window:
    """What this process has seen of the trailing window; one for each store."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._polls = 0

    def width(self) -> int:
        """How many numbers this poll reads again."""
        self._polls += 1
        return WINDOW if self._polls % WIDE_EACH else WINDOW_WIDE

    def is_new(self, since: int, count: int, last: int) -> bool:
        """Whether anything appeared after ``since`` that was not there before."""
        return self._seen.get(since) != (count, last)

    def note(self, since: int, count: int, last: int) -> None:
        """So many entries were there after ``since``, and were read."""
        with self._lock:
            if len(self._seen) > 64:
                self._seen.clear()
            self._seen[since] = (count, last)


def poll(
    tx: session.Tx, memory: rows.Memory, window: Window, position: int, known: Mapping[int, int]
) -> Feed:
    """What changed since ``position``."""
    since = max(0, position - window.width())
    now, incarnation, count, last = tx.first(HEAD, since=since)
    if last <= position and not window.is_new(since, count, last):
        return Feed(position=position, now=now, incarnation=incarnation)
    refs: dict[str, list[str]] = {'host': [], 'aggregate': [], 'group': []}
    for kind, ref in tx.all(NEWS, since=since):
        refs.setdefault(kind, []).append(ref)
    # Before the rows are read: an aggregate read after them can only be newer.
    hosts = _hosts(tx, memory, [int(ref) for ref in refs['host']], known)
    feed = Feed(
        position=max(position, last),
        hosts=hosts,
        aggregates=aggregates.load(tx) if refs['aggregate'] else None,
        groups=_generations(tx, refs['group']),
        now=now,
        incarnation=incarnation,
    )
    tx.after.append(lambda: window.note(since, count, last))
    return feed


def _hosts(
    tx: session.Tx, memory: rows.Memory, ids: list[int], known: Mapping[int, int]
) -> list[HostChange]:
    found: dict[int, int] = {}
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        found.update(tx.all(VERSIONS, ids=part))
    newer = sorted(pid for pid, version in found.items() if version > known.get(pid, -1))
    changes = [
        HostChange(provider_id=pid, row=None)
        for pid in sorted(set(ids) - set(found))
        if pid in known
    ]
    for start in range(0, len(newer), CHUNK):
        locked = providers.read(tx, memory, newer[start : start + CHUNK])
        changes += providers.changes_of(tx, memory, locked, locked.counters)
    return changes


def compare(tx: session.Tx, memory: rows.Memory, known: Mapping[int, int]) -> Feed:
    """Everything that differs from what is known, whenever it changed."""
    tx.snapshot()
    now, incarnation = tx.now, tx.first(INCARNATION).incarnation
    position = tx.first(sa.select(sa.func.max(_x.c.id)))[0] or 0
    found = dict(tx.all(ALL_VERSIONS))
    other = {pid for pid, version in found.items() if version > known.get(pid, -1)}
    return Feed(
        position=position,
        hosts=_hosts(tx, memory, sorted(other | (set(known) - set(found))), known),
        aggregates=aggregates.load(tx),
        groups=dict(tx.all(groups.GENERATIONS)),
        now=now,
        incarnation=incarnation,
    )


def _generations(tx: session.Tx, uuids: list[str]) -> dict[str, int]:
    """Generations as they are; 0 for a group that is gone."""
    found = dict.fromkeys(uuids, 0)
    for start in range(0, len(uuids), CHUNK):
        found.update(tx.all(GENERATIONS, uuids=uuids[start : start + CHUNK]))
    return found


def load_everything(tx: session.Tx, memory: rows.Memory) -> Everything:
    """All hosts with what is placed on them, aggregates and groups."""
    tx.snapshot()
    now, incarnation = tx.now, tx.first(INCARNATION).incarnation
    position = tx.first(sa.select(sa.func.max(_x.c.id)))[0] or 0
    counters = {row[0]: rows.counters(row) for row in tx.all(providers.ALL)}
    if any(memory.template(row.id, row.facts_stamp) is None for row in counters.values()):
        for row in tx.all(providers.FACTS):
            if memory.template(row.id, row.facts_stamp) is None:
                memory.learn(row)
    locked = providers.complete(tx, memory, counters)
    by_host = providers.fold_placed(tx.stream(providers.PLACED))
    hosts = []
    for pid, row in locked.counters.items():
        placed, quiet = by_host.pop(pid, providers.NOTHING_PLACED)
        memory.keep_placed(pid, row.claims_stamp, placed, quiet)
        hosts.append(HostChange(provider_id=pid, row=locked.row(pid), placed=list(placed)))
    return Everything(
        position=position,
        hosts=hosts,
        aggregates=aggregates.load(tx),
        groups=dict(tx.all(groups.GENERATIONS)),
        resource_classes=frozenset(row.name for row in tx.all(CLASSES)),
        now=now,
        incarnation=incarnation,
    )
