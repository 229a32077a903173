# SPDX-License-Identifier: Apache-2.0
"""The host table of a process: loaded once, kept fresh by the change feed.

The database is the authority; this is a cache of it.  One thread owns the
working table (the scheduling thread, or whoever holds the lock in a follower)
and is the only one to change it; everybody else offers news, which the owner
folds in between two batches, and reads snapshots.
"""

import collections
import logging
import threading
from collections.abc import Iterable

import msgspec

from gantt import exceptions
from gantt.core import overrides, resources
from gantt.core.host import Aggregate, HostChange, HostRow
from gantt.core.host_table import HostTable
from gantt.scheduler import table_log
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.ports import Clock, Everything, Feed, Store

LOG = logging.getLogger(__name__)

#: Pieces of news that may wait for the owner of the table.
NEWS_MAX = 10_000


class Rebuilt:
    """A table made from everything, by the thread that read it."""

    def __init__(self, everything: Everything, table: HostTable) -> None:
        self.everything = everything
        self.table = table


def _versions(everything: Everything) -> dict[int, int]:
    return {c.provider_id: c.row.version for c in everything.hosts if c.row is not None}


class HostCache:
    """Working table, the news for it, and its age.

    :ivar working: the owner's table
    :ivar versions: provider id -> version folded
    """

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        reload_seconds: float = 300.0,
        log: table_log.TableLog | None = None,
        default_zone: str = 'nova',
    ) -> None:
        self.store = store
        self.log = log
        self.clock: Clock = clock or SystemClock()
        self.working = HostTable(default_zone=default_zone)
        self.versions: dict[int, int] = {}
        #: The same as it will be when all news is folded: that is not read again.
        self._seen: dict[int, int] = {}
        #: Hosts whose news came too late, with its version: some of it is not known until
        #: newer news comes.
        self._late: dict[int, int] = {}
        self._rebuilds = 0  # tables that wait in the news
        self._warned: frozenset[str] = frozenset()
        self._queueing = threading.Lock()  # news and what is seen by it go together
        self.classes: frozenset[str] = frozenset()
        self.reload_seconds = reload_seconds
        self._default_zone = default_zone
        self._news: collections.deque[Feed | list[HostChange] | Rebuilt] = collections.deque()
        self._position = 0
        self._incarnation: int | None = None
        self._asked = 0  # readings of the declared classes that ended well
        self._asking = threading.Lock()
        self.is_loaded = False  # whether the working table was ever filled
        self._offset = 0.0  # database clock minus our monotonic clock
        self._fresh_at = float('-inf')
        self._loaded_at = float('-inf')
        self._lock = threading.Lock()  # followers: one refresh at a time
        self._poll_lock = threading.Lock()
        self._snapshot: HostTable | None = None

    # -- any thread ------------------------------------------------------------
    @property
    def age_seconds(self) -> float:
        """Seconds since the table was last known to be current."""
        return max(0.0, self.clock.monotonic() - self._fresh_at)

    @property
    def database_now(self) -> float:
        """The database's clock as far as it is known here."""
        return self.clock.monotonic() + self._offset

    def has_classes(self, names: Iterable[str]) -> bool:
        """Whether all are known here; else ``declared_classes`` reads the database."""
        return all(n in resources.STANDARD or n in self.classes for n in names)

    def declared_classes(self, names: Iterable[str]) -> frozenset[str]:
        """Declared classes, read again where ``names`` has another.

        Who asks while others read waits for one more reading, which serves all who wait.

        :raises DatabaseUnavailable:
        """
        if self.has_classes(names):
            return self.classes
        # What is under way now may have begun before the class was declared.
        enough = self._asked + 2
        with self._asking:
            if self._asked < enough:
                self.classes = self.store.declared_classes()
                self._asked += 1
        return self.classes

    def offer(self, hosts: Iterable[HostChange]) -> None:
        """News that somebody in this process wrote or read; folded in later."""
        hosts = list(hosts)
        if not hosts:
            return
        with self._queueing:
            if len(self._news) >= NEWS_MAX:
                # The owner has not folded for long: start again from everything.
                self._news.clear()
                self._rebuilds = 0
                self._incarnation = None
            self._news.append(hosts)
            self._see(hosts)

    def _see_own(self, row: HostRow) -> None:
        with self._queueing:
            if not self._rebuilds:  # else it goes with the table that is replaced
                self._seen[row.id] = max(row.version, self._seen.get(row.id, -1))

    def _see(self, hosts: Iterable[HostChange]) -> None:
        for change in hosts:
            if change.row is None:
                self._seen.pop(change.provider_id, None)
            elif change.row.version > self._seen.get(change.provider_id, -1):
                self._seen[change.provider_id] = change.row.version

    def fetch(self) -> None:
        """Read the feed, or compare everything where that is due; the owner folds it in.

        :raises DatabaseUnavailable:
        """
        with self._poll_lock:
            started = self.clock.monotonic()
            if self._incarnation is None:
                self._fetch_everything(started)
                return
            whole = started - self._loaded_at >= self.reload_seconds
            if whole:
                feed = self.store.compare(dict(self._seen))
                self._loaded_at = started
            else:
                feed = self.store.poll(self._position, self._seen)
            self._note(started, feed.now)
            if feed.incarnation != self._incarnation:
                self._fetch_everything(started)
                return
            self._position = feed.position
            if feed.hosts or feed.groups or (feed.aggregates, feed.metrics) != (None, None):
                with self._queueing:
                    self._news.append(feed)
                    self._see(feed.hosts)

    def _fetch_everything(self, started: float) -> None:
        everything = self.store.load_everything()
        self._note(started, everything.now)
        self._position = everything.position
        self._incarnation = everything.incarnation
        self._loaded_at = started
        self.classes = everything.resource_classes
        rebuilt = Rebuilt(everything, table_log.build(everything, self._default_zone))
        with self._queueing:
            # Whatever was folded, or waits, before it goes with the table it was for.
            self._seen = _versions(everything)
            self._rebuilds += 1
            self._news.append(rebuilt)

    def _note(self, started: float, now: float) -> None:
        # The answer shows the database as of some moment after we asked.
        self._offset = now - self.clock.monotonic()
        self._fresh_at = started

    # -- the owner ---------------------------------------------------------------
    def fold(self, *, mid_batch: bool = False) -> HostTable:
        """Fold all news into the working table and set its clock.

        :param mid_batch: picks are laid over the table that must not be lost with
            it: another table, and what comes after it, waits for the next batch
        """
        while self._news:
            if mid_batch and isinstance(self._news[0], Rebuilt):
                break
            news = self._news.popleft()
            if isinstance(news, Rebuilt):
                self._replace(news)
            elif isinstance(news, Feed):
                self._fold_feed(news)
            else:
                self._fold_hosts(news)
        if self.log is not None and not mid_batch and self._is_checkpoint_due(self.log):
            everything, fresh = table_log.everything_of(self.working), self.working.fresh_picks()
            self.log.add(table_log.Checkpoint(everything, fresh))
        self.do(table_log.Clock(self.database_now))
        return self.working

    def _is_checkpoint_due(self, log: table_log.TableLog) -> bool:
        # Of a table without open picks only: a replay would take them for claims.
        return self.is_loaded and log.is_due(self.clock.monotonic())

    def do(self, change: table_log.Change) -> None:
        """Change the working table, and note it for replay."""
        self.note(change)
        change.apply(self.working)

    def note(self, event: table_log.Event) -> None:
        """Note for replay what was done to the working table."""
        if self.log is not None:
            self.log.add(event)

    @property
    def position(self) -> int:
        """Of the next event in the log."""
        return self.log.position if self.log is not None else 0

    def settle(self, rows: Iterable[HostRow], written: set[int]) -> None:
        """Usage as a commit of ours left it.

        Only a version that is exactly our own step is known whole.  Where somebody
        else wrote in between, the row is not, so that the feed brings whatever else
        has changed on that host; but news older than the row is late, and must not
        take away what the commit made.

        :param written: providers that the commit wrote to; the others were read back
        """
        settled = []
        for row in rows:
            known = self.versions.get(row.id, -1)
            if row.version == known + 1 and row.id in written:
                self.versions[row.id] = row.version
                self._see_own(row)
            elif row.version == known + 1:
                row = msgspec.structs.replace(row, version=known)  # a step of somebody else
            settled.append(row)
        if settled:
            self.do(table_log.Settled(settled))

    def set_groups(self, generations: dict[str, int]) -> None:
        """Generations of groups as a commit or a read left them."""
        if generations:
            self.do(table_log.Groups(generations))

    def _fold_hosts(self, hosts: list[HostChange]) -> None:
        self.do(table_log.Hosts(hosts))
        for change in hosts:
            pid, row = change.provider_id, change.row
            if row is None:
                self.versions.pop(pid, None)
                self._late.pop(pid, None)
                continue
            self.versions[pid] = max(row.version, self.versions.get(pid, -1))
            if row.version > self.working.whole_version(pid):
                self._late[pid] = max(row.version, self._late.get(pid, -1))
            elif self._late.get(pid, -1) <= self.working.whole_version(pid):
                self._late.pop(pid, None)

    def _fold_feed(self, feed: Feed) -> None:
        if feed.aggregates is not None:
            self.do(table_log.Aggregates(feed.aggregates))
            self._warn(feed.aggregates)
        if feed.metrics is not None:
            self.do(table_log.Metrics(feed.metrics))
        if feed.hosts:
            self._fold_hosts(feed.hosts)
        if not self._late:
            # Else a member of theirs may be what is not known: their next swap has to fail.
            self.set_groups(feed.groups)

    def _replace(self, rebuilt: Rebuilt) -> None:
        """Start (again) from everything.

        What a commit of ours did since the read is missing for a moment; the
        next read of the feed brings it, and until then the commit re-checks.
        """
        self.note(table_log.Checkpoint(rebuilt.everything))
        self.working = rebuilt.table
        self._warn(rebuilt.everything.aggregates)
        self.versions = _versions(rebuilt.everything)
        self._late = {}
        with self._queueing:
            self._rebuilds -= 1
        self.is_loaded = True

    def _warn(self, aggregates: Iterable[Aggregate]) -> None:
        """Once of each multiplier that an aggregate sets in vain."""
        found = overrides.problems(aggregates)
        for problem in found:
            if problem not in self._warned:
                LOG.warning('%s', problem)
        self._warned = frozenset(found)

    def forget(self) -> None:
        """Drop the working table; the next fetch reads everything."""
        self.working = HostTable(default_zone=self._default_zone)
        self.versions = {}
        self._late = {}
        with self._queueing:
            self._seen = {}
            self._rebuilds = 0
            self._news.clear()
        self.is_loaded = False
        self._incarnation = None

    # -- followers ---------------------------------------------------------------
    def table(self, max_age: float = 1.0) -> HostTable:
        """A read-only table no older than ``max_age`` seconds where the database answers.

        For processes without a scheduling thread (the API).  Where the database
        is away the last table is returned; its ``now`` and the cache's
        ``age_seconds`` say how old it is.

        :raises DatabaseUnavailable: nothing was ever read
        """
        with self._lock:
            if self.age_seconds > max_age:
                try:
                    self.fetch()
                except exceptions.DatabaseUnavailable:
                    if self._incarnation is None:
                        raise
            changed = bool(self._news)
            self.fold()
            if changed or self._snapshot is None:
                self._snapshot = self.working.snapshot()
            self._snapshot.now = self.database_now
            return self._snapshot
