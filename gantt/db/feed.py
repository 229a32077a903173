# SPDX-License-Identifier: Apache-2.0
"""The change feed, and everything that a table starts from.

Numbers of ``changes`` are drawn before the commit: they appear out of order.
So each poll reads a trailing window again and compares versions.  A change that
takes longer than the window to appear is found by the periodic full reading;
until then it costs staleness, not correctness.
"""

import threading
from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from gantt.core.host import HostChange
from gantt.db import aggregates, declared, groups, models, providers, rows, session
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
_news = sa.select(_tail.c.kind, _tail.c.ref).group_by(_tail.c.kind, _tail.c.ref).subquery()
# Generations of groups in the statement that tells whose hosts to read: whoever plans
# on a generation has to know everybody who was placed up to it.
NEWS = sa.select(
    _news.c.kind,
    _news.c.ref,
    sa.select(models.group_rules.c.generation)
    .where(models.group_rules.c.uuid == _news.c.ref, _news.c.kind == 'group')
    .scalar_subquery(),
    # Asked for by themselves, as many ids would have to be sent as were read.
    sa.case(
        (
            _news.c.kind == 'host',
            sa.select(_p.c.version)
            .where(_p.c.id == sa.cast(_news.c.ref, sa.BigInteger))
            .scalar_subquery(),
        )
    ),
)
VERSIONS = sa.select(_p.c.id, _p.c.version).where(_p.c.id.in_(sa.bindparam('ids', expanding=True)))
ALL_VERSIONS = sa.select(_p.c.id, _p.c.version)
GENERATIONS = groups.GENERATIONS.where(
    models.group_rules.c.uuid.in_(sa.bindparam('uuids', expanding=True))
)
MEMBERS_ON = (
    sa.select(models.claims.c.provider_id)
    .where(
        models.claims.c.group_uuid.in_(sa.bindparam('uuids', expanding=True)),
        models.claims.c.live != 0,
    )
    .distinct()
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
    refs: dict[str, dict[str, int]] = {'host': {}, 'aggregate': {}, 'group': {}, 'metric': {}}
    versions: dict[int, int | None] = {}
    for kind, ref, generation, version in tx.all(NEWS, since=since):
        refs.setdefault(kind, {})[ref] = generation or 0  # of a group that is gone
        if kind == 'host':
            versions[int(ref)] = version
    # Before the rows are read: an aggregate read after them can only be newer.
    versions |= _versions(tx, sorted(_hosts_of_groups(tx, refs['group']) - set(versions)))
    hosts = _hosts(tx, memory, versions, known)
    feed = Feed(
        position=max(position, last),
        hosts=hosts,
        aggregates=aggregates.load(tx) if refs['aggregate'] else None,
        metrics=declared.load(tx) if refs['metric'] else None,
        groups=refs['group'],
        now=now,
        incarnation=incarnation,
    )
    tx.after.append(lambda: window.note(since, count, last))
    return feed


def _versions(tx: session.Tx, ids: Sequence[int]) -> dict[int, int | None]:
    """Versions of hosts; None where one is gone."""
    found: dict[int, int | None] = dict.fromkeys(ids)
    for start in range(0, len(ids), CHUNK):
        found.update(tx.all(VERSIONS, ids=ids[start : start + CHUNK]))
    return found


def _hosts(
    tx: session.Tx,
    memory: rows.Memory,
    versions: Mapping[int, int | None],
    known: Mapping[int, int],
) -> list[HostChange]:
    newer = sorted(p for p, v in versions.items() if v is not None and v > known.get(p, -1))
    changes = [
        HostChange(provider_id=pid, row=None)
        for pid, version in sorted(versions.items())
        if version is None and pid in known
    ]
    for start in range(0, len(newer), CHUNK):
        locked = providers.read(tx, memory, newer[start : start + CHUNK])
        changes += providers.changes_of(tx, memory, locked, locked.counters)
    return changes


def _hosts_of_groups(tx: session.Tx, uuids: Collection[str]) -> set[int]:
    """Hosts that members of groups are on: that somebody was placed there may be no news
    any more where the generation still is, or never have been in the window."""
    wanted, found = sorted(uuids), set()
    for start in range(0, len(wanted), CHUNK):
        found |= {pid for (pid,) in tx.all(MEMBERS_ON, uuids=wanted[start : start + CHUNK])}
    return found


def read_groups(
    tx: session.Tx, memory: rows.Memory, uuids: Collection[str], beside: Collection[int]
) -> tuple[dict[str, int], list[HostChange]]:
    """Generations, 0 of a group that is gone, and the hosts that members are on."""
    wanted = sorted(uuids)
    # Generations first: members read after them can only be newer, and then the next
    # swap fails again instead of missing a member.
    generations = {**dict.fromkeys(wanted, 0), **dict(tx.all(GENERATIONS, uuids=wanted))}
    ids = _hosts_of_groups(tx, wanted) | set(beside)
    return generations, _hosts(tx, memory, _versions(tx, sorted(ids)), dict.fromkeys(beside, -1))


def compare(tx: session.Tx, memory: rows.Memory, known: Mapping[int, int]) -> Feed:
    """Everything that differs from what is known, whenever it changed."""
    tx.snapshot()
    now, incarnation = tx.now, tx.first(INCARNATION).incarnation
    position = tx.first(sa.select(sa.func.max(_x.c.id)))[0] or 0
    versions = {**dict.fromkeys(known), **dict(tx.all(ALL_VERSIONS))}
    return Feed(
        position=position,
        hosts=_hosts(tx, memory, versions, known),
        aggregates=aggregates.load(tx),
        metrics=declared.load(tx),
        groups=dict(tx.all(groups.GENERATIONS)),
        now=now,
        incarnation=incarnation,
    )


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
        metrics=declared.load(tx),
        groups=dict(tx.all(groups.GENERATIONS)),
        resource_classes=frozenset(row.name for row in tx.all(CLASSES)),
        now=now,
        incarnation=incarnation,
    )
