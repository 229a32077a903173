# SPDX-License-Identifier: Apache-2.0
"""The change feed, and everything that a table starts from.

Numbers of ``changes`` are drawn before the commit: they appear out of order.
What is missing between two that have appeared is a *gap*, which the reader
remembers and asks for again at each poll.  A gap is closed

* when its numbers have appeared, or
* when whoever drew them has ended: PostgreSQL says which is the oldest
  transaction under way; MariaDB shows rows that are not committed yet, and a
  number without one is of a transaction that was rolled back, or
* after ``GAP_SECONDS``, longer than any transaction lives.

So a change is missed only by who gives up gaps because there are too many, and
such a reader is told to compare everything (``Feed.is_lost``).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import HostChange
from gantt.db.claims import groups
from gantt.db.engine import session
from gantt.db.engine.session import reading, reading_long
from gantt.db.hosts import aggregates, alone, declared, guests, pools, providers, rows
from gantt.db.hosts.base import HostTables
from gantt.db.records import gaps
from gantt.db.schema import models
from gantt.scheduler.ports import Everything, Feed, Gap

_x = models.changes
_p = models.providers
_g = models.group_rules

#: Who is further behind is told to compare everything, which is cheaper then.
READ_MAX = 20_000
#: Numbers before the last one that a full reading looks for gaps in.
TAIL = 5_000
#: After so long no transaction is under way that was then.
GAP_SECONDS = 60.0
#: MariaDB: between drawing a number and writing its row; in a cluster also until a row
#: that another node is about to commit can be seen here.
DRAWN_SECONDS = 1.0
DRAWN_SECONDS_GALERA = 10.0

_none: Any = sa.literal_column('0')
#: The oldest transaction under way, and the first that has not begun; 0 where not known.
_UNDER_WAY = {
    'postgresql': (
        sa.func.txid_snapshot_xmin(sa.func.txid_current_snapshot()),
        sa.func.txid_snapshot_xmax(sa.func.txid_current_snapshot()),
    )
}
HEAD = {
    kind: sa.select(
        session.Now(),
        sa.select(models.meta.c.incarnation).scalar_subquery(),
        sa.select(sa.func.coalesce(sa.func.max(_x.c.id), 0)).scalar_subquery(),
        *_UNDER_WAY.get(kind, (_none, _none)),
    )
    for kind in ('sqlite', 'postgresql', 'mysql')
}
_tail = sa.select(_x.c.id, _x.c.kind, _x.c.ref).where(_x.c.id > sa.bindparam('since')).subquery()
_news = (
    sa.select(
        _tail.c.kind,
        _tail.c.ref,
        sa.func.count().label('entries'),
        sa.func.max(_tail.c.id).label('last'),
    )
    .group_by(_tail.c.kind, _tail.c.ref)
    .subquery()
)
# Generations of groups in the statement that tells whose hosts to read: whoever plans
# on a generation has to know everybody who was placed up to it.
NEWS = sa.select(
    _news.c.kind,
    _news.c.ref,
    sa.select(_g.c.generation)
    .where(_g.c.uuid == _news.c.ref, _news.c.kind == 'group')
    .scalar_subquery(),
    *(
        sa.select(column).where(_g.c.uuid == _news.c.ref, _news.c.kind == 'group').scalar_subquery()
        for column in (_g.c.policy, _g.c.max_per_host, _g.c.policies)
    ),
    # Asked for by themselves, as many ids would have to be sent as were read.
    sa.case(
        (
            _news.c.kind == 'host',
            sa.select(_p.c.version)
            .where(_p.c.id == sa.cast(_news.c.ref, sa.BigInteger))
            .scalar_subquery(),
        )
    ),
    _news.c.entries,
    _news.c.last,
)
NUMBERS = (
    sa.select(_x.c.id, _x.c.kind, _x.c.ref)
    .where(_x.c.id > sa.bindparam('since'), _x.c.id <= sa.bindparam('upto'))
    .order_by(_x.c.id)
)
#: Entries inside of a few ranges.
_INSIDE = sa.select(_x.c.id, _x.c.kind, _x.c.ref).where(
    sa.or_(
        *[
            _x.c.id.between(sa.bindparam(f'first_{n}'), sa.bindparam(f'last_{n}'))
            for n in range(gaps.SPANS_MAX)
        ]
    )
)
LAST = sa.select(sa.func.coalesce(sa.func.max(_x.c.id), 0))
WSREP = sa.text("SHOW VARIABLES LIKE 'wsrep_on'")
VERSIONS = sa.select(_p.c.id, _p.c.version).where(_p.c.id.in_(sa.bindparam('ids', expanding=True)))
NO_HOSTS = sa.select(_p.c.id).where(sa.not_(providers.is_host)).order_by(_p.c.id)
ALL_VERSIONS = sa.select(_p.c.id, _p.c.version).where(providers.is_host)
RULES = groups.RULES.where(_g.c.uuid.in_(sa.bindparam('uuids', expanding=True)))
MEMBERS_ON = (
    sa.select(models.claims.c.provider_id)
    .where(
        models.claims.c.group_uuid.in_(sa.bindparam('uuids', expanding=True)),
        models.claims.c.live != 0,
    )
    .distinct()
)
INCARNATION = sa.select(models.meta.c.incarnation)
CHUNK = 500


def _poll(
    tx: session.Tx,
    memory: rows.Memory,
    position: int,
    known: Mapping[int, int],
    open_gaps: Sequence[Gap],
) -> tuple[Feed, list[int]]:
    """What changed since ``position``, or appeared in a gap.

    :returns: the feed, and hosts whose version is below the known one: they may only be
        known to be newer since this has read
    """
    now, incarnation, last, oldest, newest = tx.first(HEAD[tx.kind])
    if last < position:
        return Feed(position=last, now=now, incarnation=incarnation, went_back=True), []
    if last - position > READ_MAX:
        return Feed(position=position, now=now, incarnation=incarnation, is_lost=True), []
    if last == position and not open_gaps:
        return Feed(position=position, now=now, incarnation=incarnation), []
    news = _News(tx)
    if last > position:
        last = news.read(position)
    news.fill(open_gaps)
    still = [
        gap if gap.before else msgspec.structs.replace(gap, before=newest)
        for gap in gaps.without(open_gaps, news.filled)
        # Whoever drew it has ended before its numbers were asked for.
        if not (gap.before and oldest >= gap.before) and now - gap.since <= GAP_SECONDS
    ]
    still += [Gap(first=first, last=upto, since=now) for first, upto in news.missing]
    remaining, given_up = gaps.bounded(still)
    versions = news.versions()
    changed = sorted(map(int, news.refs['provider']))
    feed = Feed(
        position=last,
        hosts=_hosts(tx, memory, versions, known),
        aggregates=aggregates.load(tx) if news.refs['aggregate'] else None,
        metrics=declared.load(tx) if news.refs['metric'] else None,
        groups=news.refs['group'],
        rules=news.rules,
        providers=changed,
        pools=pools.load(tx, changed) if changed else [],
        alone=alone.load(tx, changed) if changed else [],
        now=now,
        incarnation=incarnation,
        gaps=remaining,
        is_lost=given_up,
    )
    return feed, _behind(versions, known)


def draws_early(kind: str) -> bool:
    """Whether a number may appear after a later one: not where there is one writer."""
    return kind != 'sqlite'


class _News:
    """What entries of the feed are about, as one poll reads them.

    :ivar refs: kind -> ref -> generation, of groups
    :ivar rules: of those groups that are there
    :ivar missing: ranges of numbers that have not appeared
    :ivar filled: numbers that appeared in gaps
    """

    def __init__(self, tx: session.Tx) -> None:
        self._tx = tx
        self.refs: dict[str, dict[str, int]] = {
            'host': {},
            'aggregate': {},
            'group': {},
            'metric': {},
            'provider': {},
        }
        self.rules: dict[str, GroupRule] = {}
        self.missing: list[tuple[int, int]] = []
        self.filled: set[int] = set()
        self._versions: dict[int, int | None] = {}

    def read(self, position: int) -> int:
        """Entries after a position; the last of their numbers."""
        entries, last = 0, position
        found = self._tx.all(NEWS, since=position)
        for kind, ref, generation, policy, most, policies, version, count, number in found:
            self.refs.setdefault(kind, {})[ref] = generation or 0  # of a group that is gone
            if policy is not None:
                self.rules[ref] = GroupRule(policy, most, generation, policies)
            if kind == 'host':
                self._versions[int(ref)] = version
            entries, last = entries + count, max(last, number)
        if entries < last - position and draws_early(self._tx.kind):
            found = self._tx.all(NUMBERS, since=position, upto=last)
            self.missing = gaps.missing([row.id for row in found], position, last)
            if len(found) > entries:  # some appeared since; which, is not known
                self._look_again(found)
        return last

    def fill(self, open_gaps: Sequence[Gap]) -> None:
        """Entries that appeared in gaps."""
        if open_gaps:
            found = inside(self._tx, gaps.spans(open_gaps))
            self.filled = {row.id for row in found}
            self._look_again(row for row in found if gaps.covers(open_gaps, row.id))

    def _look_again(self, entries: Iterable[Any]) -> None:
        groups_too = set()
        for _, kind, ref in entries:
            self.refs.setdefault(kind, {}).setdefault(ref, 0)
            if kind == 'host':
                self._versions.pop(int(ref), None)
            elif kind == 'group':
                groups_too.add(ref)
        if groups_too:
            wanted = sorted(groups_too)
            rules: dict[str, GroupRule] = {}
            for start in range(0, len(wanted), CHUNK):
                found = self._tx.all(RULES, uuids=wanted[start : start + CHUNK])
                rules |= groups.rules_of(found)
            for uuid in wanted:
                self.rules.pop(uuid, None)
                self.refs['group'][uuid] = rules[uuid].generation if uuid in rules else 0
            self.rules |= rules

    def versions(self) -> dict[int, int | None]:
        """Versions of the hosts that are to be read; None where one is gone."""
        # Before the rows are read: an aggregate read after them can only be newer.
        wanted = {int(ref) for ref in self.refs['host']}
        wanted |= _hosts_of_groups(self._tx, self.refs['group'])
        more = sorted(wanted - set(self._versions))
        return self._versions | _versions(self._tx, more)


def inside(tx: session.Tx, spans: Sequence[tuple[int, int]]) -> Sequence[Any]:
    """Entries with a number in one of a few ranges."""
    ends = dict.fromkeys(
        (f'{end}_{n}' for end in ('first', 'last') for n in range(gaps.SPANS_MAX)), -1
    )
    for n, (first, last) in enumerate(spans):
        ends[f'first_{n}'], ends[f'last_{n}'] = first, last
    return tx.all(_INSIDE, **ends)


def ended_gaps(tx: session.Tx, open_gaps: Sequence[Gap], now: float) -> list[Gap]:
    """Of these gaps the parts that no transaction under way is about to fill.

    MariaDB and MySQL only: rows that are not committed are read here, so that there is
    none where a transaction was rolled back.

    :param now: the database's clock
    """
    tx.connection.exec_driver_sql('SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED')
    found = tx.first(WSREP)
    drawn = DRAWN_SECONDS_GALERA if found is not None and found[1] == 'ON' else DRAWN_SECONDS
    old = [gap for gap in open_gaps if now - gap.since > drawn]
    here = [row.id for row in inside(tx, gaps.spans(old))] if old else []
    return gaps.without(old, here)


def less_gaps(open_gaps: Sequence[Gap], closed: Sequence[Gap]) -> list[Gap]:
    """These gaps without some of their parts."""
    numbers = [number for gap in closed for number in range(gap.first, gap.last + 1)]
    return gaps.without(open_gaps, numbers)


def _is_behind(tx: session.Tx, known: Mapping[int, int]) -> bool:
    """Whether a host is at an older version than was known before this began.

    Versions only grow, ids of hosts are never given again: the database went back.
    """
    return bool(_behind(_versions(tx, sorted(known)), known))


def _behind(versions: Mapping[int, int | None], known: Mapping[int, int]) -> list[int]:
    return [
        pid
        for pid, version in versions.items()
        if version is not None and version < known.get(pid, -1)
    ]


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


def _compare(tx: session.Tx, memory: rows.Memory, known: Mapping[int, int]) -> Feed:
    """Everything that differs from what is known, whenever it changed.

    :param known: as it was before this began
    """
    tx.snapshot()
    now, incarnation = tx.now, tx.first(INCARNATION).incarnation
    position, missing = end_of_feed(tx, now)
    versions = {**dict.fromkeys(known), **dict(tx.all(ALL_VERSIONS))}
    rules = groups.rules_of(tx.all(groups.RULES))
    return Feed(
        position=position,
        hosts=_hosts(tx, memory, versions, known),
        aggregates=aggregates.load(tx),
        metrics=declared.load(tx),
        groups={uuid: rule.generation for uuid, rule in rules.items()},
        rules=rules,
        providers=[row.id for row in tx.all(NO_HOSTS)],
        pools=pools.load(tx),
        alone=alone.load(tx),
        whole=True,
        now=now,
        incarnation=incarnation,
        gaps=missing,
        went_back=bool(_behind(versions, known)),
    )


def end_of_feed(tx: session.Tx, now: float) -> tuple[int, list[Gap]]:
    """The last number of the feed, and the gaps before it."""
    last: int = tx.first(LAST)[0]
    if not draws_early(tx.kind):
        return last, []
    first = max(0, last - TAIL)
    numbers = [row.id for row in tx.all(NUMBERS, since=first, upto=last)]
    ranges = gaps.missing(numbers, first, last)
    return last, gaps.bounded([Gap(first=a, last=b, since=now) for a, b in ranges])[0]


def _load_everything(tx: session.Tx, memory: rows.Memory) -> Everything:
    """All hosts with what is placed on them, aggregates and groups."""
    tx.snapshot()
    now, incarnation = tx.now, tx.first(INCARNATION).incarnation
    position, missing = end_of_feed(tx, now)
    counters = {row[0]: rows.counters(row) for row in tx.all(providers.ALL)}
    if any(memory.template(row.id, row.facts_stamp) is None for row in counters.values()):
        found = tx.all(providers.FACTS)
        strange = (one for one in found if memory.template(one.id, one.facts_stamp) is None)
        providers.learn(tx, memory, strange)
    locked = providers.complete(tx, memory, counters)
    rules = groups.rules_of(tx.all(groups.RULES))
    by_host = guests.fold(tx.stream(providers.PLACED))
    hosts = []
    for pid, row in locked.counters.items():
        placed, quiet = by_host.pop(pid, guests.NOBODY)
        memory.keep_placed(pid, row.claims_stamp, placed, quiet)
        hosts.append(HostChange(provider_id=pid, row=locked.row(pid), placed=list(placed)))
    return Everything(
        position=position,
        hosts=hosts,
        aggregates=aggregates.load(tx),
        metrics=declared.load(tx),
        pools=pools.load(tx),
        alone=alone.load(tx),
        groups={uuid: rule.generation for uuid, rule in rules.items()},
        rules=rules,
        resource_classes=frozenset(row.name for row in tx.all(declared.CLASSES)),
        now=now,
        incarnation=incarnation,
        gaps=missing,
    )


class SqlChangeFeed(HostTables):
    """See ``scheduler.ports.feed``; the functions above are what each does."""

    @reading_long
    def load_everything(self, tx: session.Tx) -> Everything:
        return _load_everything(tx, self.memory)

    @reading_long
    def compare(self, tx: session.Tx, known: dict[int, int]) -> Feed:
        return _compare(tx, self.memory, known)

    @reading
    def read_groups(
        self, tx: session.Tx, uuids: Collection[str], also_providers: Collection[int] = ()
    ) -> tuple[dict[str, GroupRule], list[HostChange]]:
        wanted = sorted(uuids)
        # Generations first: members read after them can only be newer, and then the next
        # swap fails again instead of missing a member.
        rules = groups.rules_of(tx.all(RULES, uuids=wanted))
        ids = _hosts_of_groups(tx, wanted) | set(also_providers)
        versions = _versions(tx, sorted(ids))
        return rules, _hosts(tx, self.memory, versions, dict.fromkeys(also_providers, -1))

    def poll(self, position: int, known: dict[int, int], gaps: Sequence[Gap] = ()) -> Feed:
        found, behind = self.reads.read(lambda tx: _poll(tx, self.memory, position, known, gaps))
        if behind:
            # In a transaction that begins after these were known.
            # The cache may forget a removed host meanwhile.
            before = {pid: seen for pid in behind if (seen := known.get(pid)) is not None}
            if self.reads.read(lambda tx: _is_behind(tx, before)):
                return msgspec.structs.replace(found, went_back=True)
        old = [gap for gap in found.gaps if found.now - gap.since > DRAWN_SECONDS]
        if old and self.database.kind == 'mysql':
            ended = self.reads.read(lambda tx: ended_gaps(tx, old, found.now))
            found = msgspec.structs.replace(found, gaps=less_gaps(found.gaps, ended))
        return found

    @reading
    def ping(self, tx: session.Tx) -> float:
        return tx.now

    def silent_for(self) -> float:
        return self.database.silent_for()
