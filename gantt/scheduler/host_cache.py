# SPDX-License-Identifier: Apache-2.0
"""The host table of a process: loaded once, kept fresh by the change feed.

The database is the authority; this is a cache of it.  One thread owns the
working table (the scheduling thread, or the holder of the lock in a follower)
and is the only one to change it; other threads offer news, which the owner
folds in between two batches, and read snapshots.

There is one notion of version: a host is known completely at a version, with every claim
placed on it.  Invariant: the table has the host at the version of its row, and what it
lacks up to the newest version that was read waits in the news; the feed brings newer
versions, and older ones are never taken.

A database may go back: a backup is restored, or a standby that was behind takes
over.  Versions of hosts and numbers of the feed only grow, so that a lower one
than was known before the read proves it, and everything is read again.
"""

import collections
import logging
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

import msgspec

from gantt.core.claims.commit import ClaimColumns
from gantt.core.messages import resource_classes
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Aggregate, HostChange, HostRow
from gantt.core.resources.host_keys import HostKey
from gantt.core.resources.shared_pool import PoolUsage, SharedPool
from gantt.core.table import aggregates
from gantt.core.table.host_table import HostTable
from gantt.core.table.silence import Silence, Window
from gantt.scheduler import table_log
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.ports import (
    ChangeFeed,
    Clock,
    Everything,
    Feed,
    Gap,
    Vocabulary,
)

LOG = logging.getLogger(__name__)

#: Pieces of news that may wait for the owner of the table.
NEWS_MAX = 10_000
#: Seconds between two full comparisons while gaps of the feed were given up, how long
#: that lasts, and between two readings of everything because the database went back.
DOUBT_EACH, DOUBT_SECONDS, BACK_EACH = 5.0, 60.0, 1.0
#: Versions of a commit that returns its hosts completely.
NONE_STEPPED: Mapping[int, int] = {}


class Rebuilt:
    """A table built from everything, by the thread that read it."""

    def __init__(self, everything: Everything, table: HostTable) -> None:
        self.everything = everything
        self.table = table


def _versions(everything: Everything) -> dict[int, int]:
    return {
        change.provider_id: change.row.version
        for change in everything.hosts
        if change.row is not None
    }


class HostCache:
    """Working table, the news for it, and its age.

    :ivar working: the owner's table
    """

    def __init__(
        self,
        feed: ChangeFeed,
        vocabulary: Vocabulary,
        clock: Clock | None = None,
        reload_seconds: float = 300.0,
        log: table_log.TableLog | None = None,
        default_zone: str = 'nova',
        count: Callable[..., None] | None = None,
        working: HostTable | None = None,
    ) -> None:
        self.feed = feed
        self.vocabulary = vocabulary
        self._count = count or (lambda name, value=1: None)
        self.log = log
        self.clock: Clock = clock or SystemClock()
        self.working = HostTable(default_zone=default_zone) if working is None else working
        #: Provider id -> version that the host will be known at when all news is folded:
        #: up to there the feed need not bring it.
        self._known: dict[int, int] = {}
        #: Keys of hosts by name, as far as the news goes; a deleted host may still be in it.
        self.keys: dict[str, HostKey] = {}
        #: Rules of server groups, as far as the news goes; a commit compares them again.
        self.rules: dict[str, GroupRule] = {}
        self._warned: frozenset[str] = frozenset()
        self._queueing = threading.Lock()  # guards the news and the versions seen in it together
        self.classes: frozenset[str] = frozenset()
        self.reload_seconds = reload_seconds
        self._default_zone = default_zone
        self._news: collections.deque[Feed | list[HostChange] | Rebuilt] = collections.deque()
        self._position = 0
        self._gaps: list[Gap] = []
        self._doubt_until = float('-inf')  # until then the feed may have left changes out
        self._compared_at = float('-inf')
        self._lost = feed.connections_lost  # as of the last comparison of everything
        self._is_far = False  # behind: the feed does not lead on, everything must be compared
        self._went_back = ''  # how that was noticed, until everything was read again
        self._is_other = False  # another incarnation, until everything was read again
        self._gone: set[int] | None = None  # hosts removed while all are compared
        self._incarnation: int | None = None
        self._reads = 0  # successful reads of the declared classes
        self._reading = threading.Lock()
        self.is_loaded = False  # whether the working table was ever filled
        self._offset = 0.0  # database clock minus our monotonic clock
        self._fresh_at = self._read_at = float('-inf')
        self._loaded_at = float('-inf')
        self._poll_lock = threading.Lock()  # one poll at a time; never held for a full reading
        self._whole_lock = threading.Lock()  # one full reading at a time
        self._changed: dict[int, str | None] | None = None  # None: not tracked
        self._silence = Silence()

    # -- any thread ------------------------------------------------------------
    @property
    def versions(self) -> dict[int, int]:
        """Provider id -> version that a host is known at, with pending news."""
        with self._queueing:
            return dict(self._known)

    @property
    def age_seconds(self) -> float:
        """Seconds since the table was last known to be current, except for changes under way.

        Where numbers of the feed are missing, seconds since they were first missed.
        """
        return max(0.0, self.clock.monotonic() - self._fresh_at)

    @property
    def read_seconds_ago(self) -> float:
        """Seconds since the feed was read."""
        return max(0.0, self.clock.monotonic() - self._read_at)

    @property
    def database_now(self) -> float:
        """The database's clock as far as it is known here."""
        return self.clock.monotonic() + self._offset

    def row_of(self, name: str) -> HostRow | None:
        """Return the row of a host, None where it is not known (any more)."""
        table = self.working
        row_index = table.row_of(name)
        # Another thread may move rows meanwhile.
        host_row = (
            table.hosts[row_index]
            if row_index is not None and row_index < len(table.hosts)
            else None
        )
        return host_row if host_row is not None and host_row.name == name else None

    def look_for_silence(self, down_seconds: float) -> Window | None:
        """Return when hosts that fell silent together last reported; see ``core.table.silence``."""
        table = self.working
        return self._silence.look(table.reported_at, table.enabled, table.now, down_seconds)

    def has_classes(self, names: Iterable[str]) -> bool:
        """Return whether all are known here; else ``declared_classes`` reads the database."""
        for name in names:
            if name not in resource_classes.STANDARD and name not in self.classes:
                return False
        return True

    def declared_classes(self, names: Iterable[str]) -> frozenset[str]:
        """Return the declared classes, read again where ``names`` has an unknown one.

        A caller that comes while others read waits for one more read, which serves all that wait.

        :raises DatabaseUnavailable:
        """
        if self.has_classes(names):
            return self.classes
        # A read under way may have begun before the class was declared.
        enough = self._reads + 2
        with self._reading:
            if self._reads < enough:
                self.classes = self.vocabulary.declared_classes()
                self._reads += 1
        return self.classes

    def offer(self, hosts: Iterable[HostChange]) -> None:
        """Queue hosts that this process wrote or read; folded in later."""
        hosts = list(hosts)
        if not hosts:
            return
        with self._queueing:
            if len(self._news) >= NEWS_MAX:
                # The owner has not folded for long: start again from everything.
                self._news.clear()
                self._incarnation = None
            self._news.append(hosts)
            self._see(hosts)

    def _see(self, hosts: Iterable[HostChange]) -> None:
        for change in hosts:
            if change.row is None:
                self._known.pop(change.provider_id, None)
                if self._gone is not None:
                    self._gone.add(change.provider_id)
            elif change.row.version > self._known.get(change.provider_id, -1):
                self._known[change.provider_id] = change.row.version
                self._see_key(change.row)

    def _see_key(self, row: HostRow) -> None:
        if row.key is not None:
            self.keys[row.name] = row.key
        else:
            self.keys.pop(row.name, None)

    def fetch(self) -> None:
        """Read the feed, or everything where that is due; the owner folds it in.

        :raises DatabaseUnavailable:
        """
        with self._whole_lock:
            started = self.clock.monotonic()
            if self._incarnation is not None and not self.is_suspect:
                if self._is_far or self._is_due(started):
                    self._compare(started)
                else:
                    self.fetch_news()
            if self._incarnation is None or self._is_other:
                self._fetch_everything(started)
            elif self._went_back:
                self._start_again(started)

    def fetch_news(self) -> None:
        """Read the feed; full reads, which take long, are left to other threads.

        :raises DatabaseUnavailable:
        """
        with self._poll_lock:
            if self._incarnation is not None and not self.is_suspect:
                self._poll()

    @property
    def is_suspect(self) -> bool:
        """True where the table is of another database than the current one, or of a later state."""
        return self._is_other or bool(self._went_back)

    def _poll(self) -> Feed:
        started = self.clock.monotonic()
        feed = self.feed.poll(self._position, self._known, self._gaps)
        if feed.went_back:
            self.suspect('the feed ends before what was read of it, or a host has an older version')
        elif feed.incarnation != self._incarnation:
            self._is_other = True
        else:
            if feed.is_lost:
                self._doubt_until = started + DOUBT_SECONDS
                self._is_far = not feed.gaps
            if not self._is_far:
                self._position, self._gaps = feed.position, feed.gaps
                self._note(started, feed.now)
            self._queue(feed)
        return feed

    def _queue(self, feed: Feed) -> None:
        has_news = feed.hosts or feed.groups or feed.whole or feed.providers
        if has_news or (feed.aggregates, feed.metrics) != (None, None):
            with self._queueing:
                self._news.append(feed)
                self._see(feed.hosts)

    def _is_due(self, now: float) -> bool:
        """Return whether it is time to compare everything."""
        since = now - self._loaded_at
        if self.feed.connections_lost != self._lost and since >= BACK_EACH:
            return True  # a standby may have taken over, without our last commits
        return since >= (
            min(DOUBT_EACH, self.reload_seconds) if now < self._doubt_until else self.reload_seconds
        )

    def _compare(self, started: float) -> None:
        """Compare everything, and count what the feed should have brought by then."""
        with self._queueing:
            known_versions, self._gone = dict(self._known), set()
            pools = self.working.known_pools()
        position, connections_lost = self._position, self.feed.connections_lost
        try:
            comparison = self.feed.compare(known_versions)
            with self._poll_lock:
                if comparison.went_back or comparison.position < position:
                    self.suspect('all hosts were compared, and one has an older version')
                elif comparison.incarnation != self._incarnation:
                    self._is_other = True  # also where the table was dropped meanwhile
                else:
                    self._take_compared(started, comparison, pools)
            self._lost = connections_lost
        finally:
            with self._queueing:
                self._gone = None

    def _take_compared(self, started: float, whole: Feed, pools: set[int]) -> None:
        was_far, self._is_far = self._is_far, False
        self._loaded_at = self._compared_at = started
        if was_far:
            self._position, self._gaps = whole.position, whole.gaps
            self._note(started, whole.now)
        else:
            pools.difference_update(self._poll().providers)
        if self.is_suspect:
            return
        with self._queueing:
            deleted_ids = self._gone or set()
            hosts = [
                change
                for change in whole.hosts
                if change.provider_id not in deleted_ids and self._is_unseen(change)
            ]
        if hosts and not was_far:
            self._count('gantt_change_feed_missed_total', len(hosts))
            LOG.warning(
                'Change feed missed changes that a full comparison found: hosts=%d', len(hosts)
            )
        self._queue(msgspec.structs.replace(whole, hosts=hosts, providers=sorted(pools)))

    def _is_unseen(self, change: HostChange) -> bool:
        known_version = self._known.get(change.provider_id)
        if change.row is None:
            return known_version is not None
        return known_version is None or change.row.version > known_version

    def suspect(self, how: str) -> None:
        """Note that the database went back: the next ``fetch`` reads everything again."""
        self._went_back = self._went_back or how

    def is_behind(self, hosts: Iterable[HostChange], known: Mapping[int, int]) -> bool:
        """Return whether hosts that were just read are older than was known before.

        :param known: ``versions`` as they were before the read
        """
        behind = any(
            change.row is not None and change.row.version < known.get(change.provider_id, -1)
            for change in hosts
        )
        if behind:
            self.suspect('a host of a group has an older version')
        return behind

    def _start_again(self, started: float) -> None:
        if started - self._loaded_at < BACK_EACH:
            return
        LOG.error(
            'The database is at an older state than this process had read, and everything is read '
            'again; after a restored backup or a late standby run "gantt-manage db incarnation", '
            'so that hosts register again and their guests are adopted: problem=%s',
            self._went_back,
        )
        self._count('gantt_database_restores_total')
        self._fetch_everything(started)

    def _fetch_everything(self, started: float) -> None:
        everything = self.feed.load_everything()
        rebuilt = Rebuilt(everything, table_log.build(everything, self._default_zone))
        with self._poll_lock, self._queueing:
            self._position, self._gaps = everything.position, everything.gaps
            self._incarnation = everything.incarnation
            self._loaded_at = self._compared_at = started
            self._went_back, self._is_other, self._is_far = '', False, False
            self.classes = everything.resource_classes
            self._note(started, everything.now)
            # What was folded, or waits, before this ends with the table it was for.
            self._known = _versions(everything)
            rows = (change.row for change in everything.hosts)
            self.keys = {
                row.name: row.key for row in rows if row is not None and row.key is not None
            }
            self._news.append(rebuilt)

    def _note(self, started: float, now: float) -> None:
        # The result shows the database as of some moment after the query began.
        self._offset = now - self.clock.monotonic()
        self._read_at = started
        missing = now - self._gaps[0].since if self._gaps else 0.0
        fresh = started - max(0.0, missing)
        # Where gaps were given up only a comparison shows what is missing.
        self._fresh_at = min(fresh, self._compared_at) if started < self._doubt_until else fresh

    # -- the owner ---------------------------------------------------------------
    def fold(self, *, mid_batch: bool = False) -> HostTable:
        """Fold all news into the working table and set its clock.

        :param mid_batch: picks are laid over the table that must not be lost with
            it: another table, and what comes after it, waits for the next batch
        """
        while (news := self._next(mid_batch)) is not None:
            if isinstance(news, Rebuilt):
                self._replace(news)
            elif isinstance(news, Feed):
                self._fold_feed(news)
            else:
                self._fold_hosts(news)
        if self.log is not None and not mid_batch and self._is_checkpoint_due(self.log):
            everything, fresh = (
                table_log.everything_of(self.working),
                self.working.unreported_claims(),
            )
            self.log.add(table_log.Checkpoint(everything, fresh))
        self.do(table_log.ClockEntry(self.database_now))
        return self.working

    def _next(self, mid_batch: bool) -> Feed | list[HostChange] | Rebuilt | None:
        with self._queueing:
            if not self._news or (mid_batch and isinstance(self._news[0], Rebuilt)):
                return None
            return self._news.popleft()

    def _is_checkpoint_due(self, log: table_log.TableLog) -> bool:
        # Only of a table without open picks: a replay would take them for claims.
        return self.is_loaded and log.is_due(self.clock.monotonic())

    def host_row(self, provider_id: int) -> HostRow | None:
        """Return the row of a host, or of a pool that may be requested alone.  Any thread."""
        table = self.working
        return (table if provider_id in table.row_by_id else table.others).known_row(provider_id)

    def pool(self, provider_id: int) -> SharedPool | None:
        """Return a pool that hosts share, None where it is not known.  Any thread."""
        return self.working.pools.of_id.get(provider_id)

    def do(self, change: table_log.Change | table_log.Committed) -> None:
        """Change the working table, and note it for replay."""
        self.note(change)
        change.apply(self.working)

    def note(self, event: table_log.Event | table_log.Committed) -> None:
        """Note a change of the working table for replay."""
        if self.log is not None:
            self.log.add(event)

    def note_picks(self, claims: ClaimColumns) -> None:
        """Note that picks were laid over the working table."""
        if self.log is not None:
            self.log.add(table_log.picked(claims))

    @property
    def position(self) -> int:
        """The number of the next event in the log."""
        return self.log.position if self.log is not None else 0

    def commit_applied(
        self,
        rows: Iterable[HostRow],
        written: Container[int],
        claims: Collection[str] | None = None,
        stepped: Mapping[int, int] = NONE_STEPPED,
        pools: Sequence[PoolUsage] = (),
    ) -> None:
        """Apply hosts as a commit of this process left them; refused picks are undone before.

        A host that it wrote is known completely where its version is the next one.  Else others
        have written it too: its usage is taken over, the claims stay laid over it, and the
        feed brings the rest, see ``core.table.host_table``.

        :param rows: hosts that it wrote, and hosts that it read back
        :param written: providers that it wrote; not those that claims have left by it, as
            only the feed reports which claims have ended there
        :param claims: ids of the committed claims; None: all picks on these hosts
        :param stepped: hosts that it wrote -> version, for which it returns no more than that
        :param pools: written or read: picks of these claims laid over them are included by now
        """
        table, whole_rows = self.working, []
        pairs: list[tuple[HostRow, HostRow]] = []
        pending_ids: list[str] = []
        for row in [*rows, *table.stepped(stepped, claims)]:
            row_index = table.row_of_id(row.id)
            known_row = None if row_index is None else table.hosts[row_index]
            version = -1 if known_row is None else known_row.version
            if row.version < version:
                self.suspect('a commit met a host with an older version')
            if row.version == version + 1:
                if row.id in written:
                    whole_rows.append(row)
                else:
                    row = msgspec.structs.replace(row, version=version)
            if known_row is not None:
                pairs.append((known_row, row))
                pending_ids += table.pending_of(row.id)
        with self._queueing:
            # A table that waits was read before: the feed after it must bring these again.
            if whole_rows and not any(isinstance(news, Rebuilt) for news in self._news):
                for row in whole_rows:
                    self._known[row.id] = max(row.version, self._known.get(row.id, -1))
        # Of pools that serve other hosts as well, only claims known to be in them.
        shared = claims or () if pools else ()
        if claims is not None and all(claim_id in claims for claim_id in pending_ids):
            claims = None  # the same, and shorter
        if pairs or pools:
            self.do(table_log.Committed(pairs, claims, pools, shared))

    def set_groups(self, generations: dict[str, int], whole: bool = False) -> None:
        """Take over the generations of groups as a commit or a read left them.

        :param whole: ``generations`` covers all existing groups
        """
        if generations or whole:
            self.do(table_log.GroupsEntry(generations, whole))

    def set_rules(self, uuids: Iterable[str], rules: Mapping[str, GroupRule]) -> None:
        """Take over the rules of these groups; a group without one was deleted."""
        for uuid in uuids:
            if uuid in rules:
                self.rules[uuid] = rules[uuid]
            else:
                self.rules.pop(uuid, None)

    def _fold_hosts(self, hosts: list[HostChange]) -> None:
        self.do(table_log.HostsEntry(hosts))
        if self._changed is not None:
            self._changed |= {
                change.provider_id: change.row.name if change.row else None for change in hosts
            }

    def _fold_feed(self, feed: Feed) -> None:
        if feed.aggregates is not None:
            self.do(table_log.AggregatesEntry(feed.aggregates))
            self._warn(feed.aggregates)
        if feed.metrics is not None:
            self.do(table_log.MetricsEntry(feed.metrics))
        if feed.hosts:
            self._fold_hosts(feed.hosts)
        if feed.providers or feed.whole:
            entry = table_log.PoolsEntry.of(self.working, feed)
            if entry.pools or entry.gone:
                self.do(entry)
            alone = table_log.AloneEntry.of(self.working, feed)
            if alone.changes:
                self.do(alone)
        if feed.whole:
            self.rules = dict(feed.rules)
        else:
            self.set_rules(feed.groups, feed.rules)
        self.set_groups(feed.groups, feed.whole)

    def _replace(self, rebuilt: Rebuilt) -> None:
        """Start (again) from everything.

        What a commit of this process did since the read is missing for a moment; the
        next read of the feed brings it, and until then the commit re-checks.
        """
        self.note(table_log.Checkpoint(rebuilt.everything))
        old_table, self.working = self.working, rebuilt.table
        self.rules = dict(rebuilt.everything.rules)
        self._warn(rebuilt.everything.aggregates)
        if self._changed is not None:
            self._changed |= dict.fromkeys(
                old_table.row_by_id.keys() - self.working.row_by_id.keys()
            )
            self._changed |= {
                row.id: row.name
                for row in self.working.hosts
                if row.version != old_table.known_version(row.id)
            }
        self.is_loaded = True

    def _warn(self, found: Iterable[Aggregate]) -> None:
        """Warn once of each multiplier that an aggregate sets without effect."""
        problems = aggregates.problems(found)
        for problem in problems:
            if problem not in self._warned:
                LOG.warning('Aggregate sets a multiplier without effect: problem=%s', problem)
        self._warned = frozenset(problems)

    def forget(self) -> None:
        """Drop the working table; the next fetch reads everything."""
        self.working = HostTable(default_zone=self._default_zone)
        self.rules = {}
        with self._queueing:
            self._known, self.keys = {}, {}
            self._news.clear()
        self.is_loaded = False
        self._incarnation = None
        self._went_back, self._is_other = '', False
