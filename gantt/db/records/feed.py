# SPDX-License-Identifier: Apache-2.0
"""The change feed, and the complete reading that a table starts from.

Numbers of ``changes`` are drawn before the commit: they appear out of order.  The numbers missing
between two that have appeared are a *gap*, which the reader remembers and queries again at each
poll.  A gap is closed

* when its numbers have appeared, or
* when the transaction that drew them has ended: PostgreSQL reports the oldest
  transaction under way; MariaDB shows rows that are not committed yet, and a
  number without one is of a transaction that was rolled back, or
* after ``GAP_SECONDS``, longer than any transaction lives.

So only a reader that gives up gaps because there are too many misses a change, and the feed
requires such a reader to compare everything (``Feed.is_lost``).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import HostChange
from gantt.db.claims import groups
from gantt.db.database import Database, SqlStore, reading, reading_long
from gantt.db.engine import session
from gantt.db.hosts import aggregates, declared, pools, providers, rows
from gantt.db.records import gaps
from gantt.db.schema import models
from gantt.scheduler.ports.records import Everything, Feed, Gap

_changes = models.changes
_providers = models.providers
_group_rules = models.group_rules

#: A reader that is further behind has to compare everything, which is cheaper then.
READ_MAX = 20_000
#: Numbers before the last one that a complete reading checks for gaps.
TAIL_NUMBERS = 5_000
#: MariaDB: seconds between drawing a number and writing its row; in a cluster also until a row
#: that another node is about to commit is visible here.
NUMBER_DRAWN_SECONDS = 1.0
NUMBER_DRAWN_SECONDS_GALERA = 10.0

_zero: Any = sa.literal_column('0')
#: The oldest transaction under way, and the first that has not begun; 0 where not known.
_TRANSACTION_BOUNDS = {
    'postgresql': (
        sa.func.txid_snapshot_xmin(sa.func.txid_current_snapshot()),
        sa.func.txid_snapshot_xmax(sa.func.txid_current_snapshot()),
    )
}
SELECT_HEAD = {
    kind: sa.select(
        session.Now(),
        sa.select(models.meta.c.incarnation).scalar_subquery(),
        sa.select(sa.func.coalesce(sa.func.max(_changes.c.id), 0)).scalar_subquery(),
        *_TRANSACTION_BOUNDS.get(kind, (_zero, _zero)),
    )
    for kind in ('sqlite', 'postgresql', 'mysql')
}
_tail = (
    sa.select(_changes.c.id, _changes.c.kind, _changes.c.ref)
    .where(_changes.c.id > sa.bindparam('since'))
    .subquery()
)
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
# Generations of groups are in the statement that determines the hosts to read: a plan
# on a generation has to include all members that were placed up to it.
SELECT_NEWS = sa.select(
    _news.c.kind,
    _news.c.ref,
    sa.select(_group_rules.c.generation)
    .where(_group_rules.c.uuid == _news.c.ref, _news.c.kind == 'group')
    .scalar_subquery(),
    *(
        sa.select(column)
        .where(_group_rules.c.uuid == _news.c.ref, _news.c.kind == 'group')
        .scalar_subquery()
        for column in (_group_rules.c.policy, _group_rules.c.max_per_host, _group_rules.c.policies)
    ),
    # In the same statement: by a query of their own as many ids would be sent as were read.
    sa.case(
        (
            _news.c.kind == 'host',
            sa.select(_providers.c.version)
            .where(_providers.c.id == sa.cast(_news.c.ref, sa.BigInteger))
            .scalar_subquery(),
        )
    ),
    _news.c.entries,
    _news.c.last,
)
SELECT_ENTRIES = (
    sa.select(_changes.c.id, _changes.c.kind, _changes.c.ref)
    .where(_changes.c.id > sa.bindparam('since'), _changes.c.id <= sa.bindparam('upto'))
    .order_by(_changes.c.id)
)
#: Entries inside of a few ranges.
_SELECT_ENTRIES_IN_RANGES = sa.select(_changes.c.id, _changes.c.kind, _changes.c.ref).where(
    sa.or_(
        *[
            _changes.c.id.between(sa.bindparam(f'first_{n}'), sa.bindparam(f'last_{n}'))
            for n in range(gaps.SPANS_MAX)
        ]
    )
)
SELECT_LAST_NUMBER = sa.select(sa.func.coalesce(sa.func.max(_changes.c.id), 0))
SHOW_WSREP_ON = sa.text("SHOW VARIABLES LIKE 'wsrep_on'")
SELECT_VERSIONS = sa.select(_providers.c.id, _providers.c.version).where(
    _providers.c.id.in_(sa.bindparam('ids', expanding=True))
)
SELECT_POOL_IDS = (
    sa.select(_providers.c.id).where(sa.not_(providers.is_host)).order_by(_providers.c.id)
)
SELECT_ALL_VERSIONS = sa.select(_providers.c.id, _providers.c.version).where(providers.is_host)
SELECT_RULES = groups.SELECT_RULES.where(
    _group_rules.c.uuid.in_(sa.bindparam('uuids', expanding=True))
)
SELECT_HOSTS_OF_GROUPS = (
    sa.select(models.claims.c.provider_id)
    .where(
        models.claims.c.group_uuid.in_(sa.bindparam('uuids', expanding=True)),
        models.claims.c.live != 0,
    )
    .distinct()
)
SELECT_INCARNATION = sa.select(models.meta.c.incarnation)


def _poll(
    tx: session.Tx,
    memory: rows.RowCache,
    position: int,
    known: Mapping[int, int],
    open_gaps: Sequence[Gap],
) -> tuple[Feed, list[int]]:
    """Read the changes since ``position``, and those that appeared in a gap.

    :returns: the feed, and hosts whose version is below the known one: they may be known to
        be newer only since this read
    """
    now, incarnation, last, oldest, newest = tx.first(SELECT_HEAD[tx.kind])
    if last < position:
        return Feed(position=last, now=now, incarnation=incarnation, went_back=True), []
    if last - position > READ_MAX:
        return Feed(position=position, now=now, incarnation=incarnation, is_lost=True), []
    if last == position and not open_gaps:
        return Feed(position=position, now=now, incarnation=incarnation), []
    news = _FeedReader(tx)
    if last > position:
        last = news.read(position)
    news.fill(open_gaps)
    remaining, given_up = gaps.still_open(open_gaps, news.filled, news.missing, now, oldest, newest)
    versions = news.versions()
    provider_ids = sorted(map(int, news.refs['provider']))
    loaded_pools = pools.load(tx, provider_ids)
    feed = Feed(
        position=last,
        hosts=_newer_hosts(tx, memory, versions, known),
        aggregates=aggregates.load(tx) if news.refs['aggregate'] else None,
        metrics=declared.load(tx) if news.refs['metric'] else None,
        groups=news.refs['group'],
        rules=news.rules,
        providers=provider_ids,
        pools=loaded_pools.of_hosts,
        standalone=loaded_pools.standalone,
        now=now,
        incarnation=incarnation,
        gaps=remaining,
        is_lost=given_up,
    )
    return feed, _hosts_behind(versions, known)


def draws_number_early(kind: str) -> bool:
    """Return whether a number may appear after a later one: not with a single writer."""
    return kind != 'sqlite'


class _FeedReader:
    """Entries of the feed, as one poll reads them.

    :ivar refs: kind -> ref -> generation, of groups
    :ivar rules: rules of existing groups, by uuid
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
        """Read entries after a position; return the last of their numbers."""
        entries, last = 0, position
        rows_read = self._tx.all(SELECT_NEWS, since=position)
        for (
            kind,
            ref,
            generation,
            policy,
            max_per_host,
            policies,
            version,
            count,
            number,
        ) in rows_read:
            self.refs.setdefault(kind, {})[ref] = generation or 0  # 0 for a removed group
            if policy is not None:
                self.rules[ref] = GroupRule(policy, max_per_host, generation, policies)
            if kind == 'host':
                self._versions[int(ref)] = version
            entries, last = entries + count, max(last, number)
        if entries < last - position and draws_number_early(self._tx.kind):
            rows_read = self._tx.all(SELECT_ENTRIES, since=position, upto=last)
            self.missing = gaps.missing([row.id for row in rows_read], position, last)
            if len(rows_read) > entries:  # some appeared since, unknown which
                self._look_again(rows_read)
        return last

    def fill(self, open_gaps: Sequence[Gap]) -> None:
        """Read entries that appeared in gaps."""
        if open_gaps:
            entries = entries_in_ranges(self._tx, gaps.spans(open_gaps))
            self.filled = {row.id for row in entries}
            self._look_again(row for row in entries if gaps.covers(open_gaps, row.id))

    def _look_again(self, entries: Iterable[Any]) -> None:
        group_uuids = set()
        for _, kind, ref in entries:
            self.refs.setdefault(kind, {}).setdefault(ref, 0)
            if kind == 'host':
                self._versions.pop(int(ref), None)
            elif kind == 'group':
                group_uuids.add(ref)
        if group_uuids:
            uuids = sorted(group_uuids)
            rules = groups.rules_of(self._tx.in_parts(SELECT_RULES, uuids=uuids))
            for uuid in uuids:
                self.rules.pop(uuid, None)
                self.refs['group'][uuid] = rules[uuid].generation if uuid in rules else 0
            self.rules |= rules

    def versions(self) -> dict[int, int | None]:
        """Return versions of the hosts that are to be read; None for a removed one."""
        # Before the rows are read: an aggregate read after them can only be newer.
        host_ids = {int(ref) for ref in self.refs['host']}
        host_ids |= _hosts_of_groups(self._tx, self.refs['group'])
        unknown_ids = sorted(host_ids - set(self._versions))
        return self._versions | _versions(self._tx, unknown_ids)


def entries_in_ranges(tx: session.Tx, spans: Sequence[tuple[int, int]]) -> Sequence[Any]:
    """Return entries with a number in one of a few ranges."""
    ends = dict.fromkeys(
        (f'{end}_{index}' for end in ('first', 'last') for index in range(gaps.SPANS_MAX)), -1
    )
    for index, (first, last) in enumerate(spans):
        ends[f'first_{index}'], ends[f'last_{index}'] = first, last
    return tx.all(_SELECT_ENTRIES_IN_RANGES, **ends)


def _abandoned_gaps(tx: session.Tx, open_gaps: Sequence[Gap], now: float) -> list[Gap]:
    """Return the parts of these gaps whose transactions were rolled back: nothing fills them.

    MariaDB and MySQL only: uncommitted rows are read here, so that no transaction under way is
    about to add a row that is missing.

    :param now: the database's clock
    """
    tx.connection.exec_driver_sql('SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED')
    wsrep = tx.first(SHOW_WSREP_ON)
    drawn_seconds = (
        NUMBER_DRAWN_SECONDS_GALERA
        if wsrep is not None and wsrep[1] == 'ON'
        else NUMBER_DRAWN_SECONDS
    )
    old_gaps = [gap for gap in open_gaps if now - gap.since > drawn_seconds]
    present = [row.id for row in entries_in_ranges(tx, gaps.spans(old_gaps))] if old_gaps else []
    return gaps.without(old_gaps, present)


def without_abandoned_gaps(
    database: Database, open_gaps: Sequence[Gap], now: float
) -> Sequence[Gap]:
    """Return gaps without those of rolled-back transactions, where the server shows these."""
    old_gaps = [gap for gap in open_gaps if now - gap.since > NUMBER_DRAWN_SECONDS]
    if not old_gaps or database.kind != 'mysql':
        return open_gaps
    abandoned = database.reads.read(lambda tx: _abandoned_gaps(tx, old_gaps, now))
    return gaps.without(
        open_gaps, [number for gap in abandoned for number in range(gap.first, gap.last + 1)]
    )


def _is_behind(tx: session.Tx, known: Mapping[int, int]) -> bool:
    """Return whether a host is at an older version than was known before this began.

    Versions only grow, and ids of hosts are never reused: then the database was restored.
    """
    return bool(_hosts_behind(_versions(tx, sorted(known)), known))


def _hosts_behind(versions: Mapping[int, int | None], known: Mapping[int, int]) -> list[int]:
    return [
        pid
        for pid, version in versions.items()
        if version is not None and version < known.get(pid, -1)
    ]


def _versions(tx: session.Tx, ids: Sequence[int]) -> dict[int, int | None]:
    """Return versions of hosts; None for a removed one."""
    version_of_host: dict[int, int | None] = dict.fromkeys(ids)
    version_of_host.update(tx.in_parts(SELECT_VERSIONS, ids=ids))
    return version_of_host


def _newer_hosts(
    tx: session.Tx,
    memory: rows.RowCache,
    versions: Mapping[int, int | None],
    known: Mapping[int, int],
) -> list[HostChange]:
    newer = sorted(
        pid
        for pid, version in versions.items()
        if version is not None and version > known.get(pid, -1)
    )
    changes = [
        HostChange(provider_id=pid, row=None)
        for pid, version in sorted(versions.items())
        if version is None and pid in known
    ]
    for part in session.in_parts(newer):
        locked = providers.read(tx, memory, part)
        changes += providers.changes_of(tx, memory, locked, locked.counters)
    return changes


def _hosts_of_groups(tx: session.Tx, uuids: Collection[str]) -> set[int]:
    """Return hosts of members of groups: their placement may no longer be news while the group's
    generation still is, or may never have been in the window."""
    return {pid for (pid,) in tx.in_parts(SELECT_HOSTS_OF_GROUPS, uuids=sorted(uuids))}


def _compare(tx: session.Tx, memory: rows.RowCache, known: Mapping[int, int]) -> Feed:
    """Return everything that differs from what is known, whenever it changed.

    :param known: versions known before this began
    """
    tx.snapshot()
    now, incarnation = tx.now, tx.first(SELECT_INCARNATION).incarnation
    position, missing = end_of_feed(tx, now)
    versions = {**dict.fromkeys(known), **dict(tx.all(SELECT_ALL_VERSIONS))}
    rules = groups.rules_of(tx.all(groups.SELECT_RULES))
    loaded_pools = pools.load(tx)
    return Feed(
        position=position,
        hosts=_newer_hosts(tx, memory, versions, known),
        aggregates=aggregates.load(tx),
        metrics=declared.load(tx),
        groups={uuid: rule.generation for uuid, rule in rules.items()},
        rules=rules,
        providers=[row.id for row in tx.all(SELECT_POOL_IDS)],
        pools=loaded_pools.of_hosts,
        standalone=loaded_pools.standalone,
        whole=True,
        now=now,
        incarnation=incarnation,
        gaps=missing,
        went_back=bool(_hosts_behind(versions, known)),
    )


def end_of_feed(tx: session.Tx, now: float) -> tuple[int, list[Gap]]:
    """Return the last number of the feed, and the gaps before it."""
    last: int = tx.first(SELECT_LAST_NUMBER)[0]
    if not draws_number_early(tx.kind):
        return last, []
    first = max(0, last - TAIL_NUMBERS)
    numbers = [row.id for row in tx.all(SELECT_ENTRIES, since=first, upto=last)]
    remaining, _ = gaps.still_open((), (), gaps.missing(numbers, first, last), now)
    return last, remaining


def _load_everything(tx: session.Tx, memory: rows.RowCache) -> Everything:
    """Return all hosts with their placed claims, aggregates and groups."""
    tx.snapshot()
    now, incarnation = tx.now, tx.first(SELECT_INCARNATION).incarnation
    position, missing = end_of_feed(tx, now)
    counters = {row[0]: rows.counters(row) for row in tx.all(providers.SELECT_HOST_COUNTERS)}
    if any(memory.template(row.id, row.facts_stamp) is None for row in counters.values()):
        facts_rows = tx.all(providers.SELECT_FACTS)
        unknown_rows = (
            row for row in facts_rows if memory.template(row.id, row.facts_stamp) is None
        )
        providers.remember_rows(tx, memory, unknown_rows)
    locked = providers.complete_rows(tx, memory, counters)
    rules = groups.rules_of(tx.all(groups.SELECT_RULES))
    by_host = providers.fold_guests(tx.stream(providers.SELECT_PLACED))
    hosts = []
    for pid, row in locked.counters.items():
        placed, quiet = by_host.pop(pid, providers.NO_GUESTS)
        memory.remember_placed(pid, row.claims_stamp, placed, quiet)
        hosts.append(HostChange(provider_id=pid, row=locked.row(pid), placed=list(placed)))
    loaded_pools = pools.load(tx)
    return Everything(
        position=position,
        hosts=hosts,
        aggregates=aggregates.load(tx),
        metrics=declared.load(tx),
        pools=loaded_pools.of_hosts,
        standalone=loaded_pools.standalone,
        groups={uuid: rule.generation for uuid, rule in rules.items()},
        rules=rules,
        resource_classes=frozenset(row.name for row in tx.all(declared.SELECT_CLASS_NAMES)),
        now=now,
        incarnation=incarnation,
        gaps=missing,
    )


class SqlChangeFeed(SqlStore):
    """News of all hosts, aggregates and groups: ``ports.ChangeFeed`` in SQL."""

    @property
    def connections_lost(self) -> int:
        return self.database.connections_lost

    @reading_long
    def load_everything(self, tx: session.Tx) -> Everything:
        return _load_everything(tx, self.database.memory)

    @reading_long
    def compare(self, tx: session.Tx, known: dict[int, int]) -> Feed:
        return _compare(tx, self.database.memory, known)

    @reading
    def read_groups(
        self, tx: session.Tx, uuids: Collection[str], also: Collection[int] = ()
    ) -> tuple[dict[str, GroupRule], list[HostChange]]:
        group_uuids = sorted(uuids)
        # Generations first: members read after them can only be newer, and then the next
        # commit fails again instead of missing a member.
        rules = groups.rules_of(tx.all(SELECT_RULES, uuids=group_uuids))
        ids = _hosts_of_groups(tx, group_uuids) | set(also)
        versions = _versions(tx, sorted(ids))
        return rules, _newer_hosts(tx, self.database.memory, versions, dict.fromkeys(also, -1))

    def poll(self, position: int, known: dict[int, int], gaps: Sequence[Gap] = ()) -> Feed:
        feed, behind_ids = self.database.reads.read(
            lambda tx: _poll(tx, self.database.memory, position, known, gaps)
        )
        if behind_ids:
            # In a transaction that begins after these versions were known.
            # The cache may forget a removed host meanwhile.
            known_before = {
                pid: version for pid in behind_ids if (version := known.get(pid)) is not None
            }
            if self.database.reads.read(lambda tx: _is_behind(tx, known_before)):
                return msgspec.structs.replace(feed, went_back=True)
        open_gaps = without_abandoned_gaps(self.database, feed.gaps, feed.now)
        return msgspec.structs.replace(feed, gaps=open_gaps)
