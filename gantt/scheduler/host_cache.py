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

A process that commits nothing itself has a follower: any thread may get a version to read, or the
table itself, to plan on for a moment.
"""

import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Aggregate, HostChange, HostRow
from gantt.core.resources.host_keys import HostKey
from gantt.core.resources.provider import PoolUsage, SharedPool
from gantt.core.table import aggregates
from gantt.core.table.columns import BoolArray, FloatArray
from gantt.core.table.host_table import HostTable
from gantt.scheduler import table_log
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.ports.process import Clock
from gantt.scheduler.ports.providers import Vocabulary
from gantt.scheduler.ports.records import ChangeFeed, Everything, Feed, Gap

#: More than this share of the hosts that reported until then ...
SILENT_SHARE_MIN = 0.5
#: ... and at least so many, whose last reports lie within this share of the time after which a
#: host counts as down: within one period of reports, and half of one more.
SILENT_HOSTS_MIN, SILENCE_WINDOW_SHARE = 2, 0.5

ReportWindow = tuple[float, float]


def fell_silent_together(
    reported_at: FloatArray, counts: BoolArray, now: float, down_seconds: float
) -> ReportWindow | None:
    """Return the window of the last reports of hosts that fell silent together; None: no such.

    :param reported_at: time of the last report of each host, 0 if there was none
    :param counts: hosts that count: those that are enabled
    :param now: time by the same clock
    :param down_seconds: silence after which a host counts as down
    """
    size = min(len(reported_at), len(counts))  # a table may grow between the two
    reported_at, counts = reported_at[:size], counts[:size]
    last_reports = reported_at[counts & (reported_at > 0)]
    window = SILENCE_WINDOW_SHARE * down_seconds
    # Overdue ones: of an outage the first ones are down while the last ones are not yet.
    times = np.sort(last_reports[last_reports < now - window])
    if len(times) < SILENT_HOSTS_MIN or times[0] >= now - down_seconds:
        return None
    ends = np.searchsorted(times, times + window, side='right')
    sizes = ends - np.arange(len(times))
    first = int(np.argmax(sizes))
    size, since = int(sizes[first]), float(times[first])
    if size < SILENT_HOSTS_MIN or size <= SILENT_SHARE_MIN * int(
        np.count_nonzero(last_reports >= since)
    ):
        return None
    return since, float(times[first + size - 1])


class SilenceState:
    """State of hosts that fell silent together, of one process.

    :ivar window: window of their last reports, see :func:`fell_silent_together`; None: no outage
    """

    def __init__(self) -> None:
        self.window: ReportWindow | None = None
        self._window_until = 0.0  # time until which the window stays, by the clock of ``update``

    def update(
        self, reported_at: FloatArray, counts: BoolArray, now: float, down_seconds: float
    ) -> ReportWindow | None:
        """Update the state with the current reports, and return the window.

        Once the majority reports again, the rest has ``down_seconds`` to report again; a host
        that does not is down like any other.
        """
        window = fell_silent_together(reported_at, counts, now, down_seconds)
        if window is not None:
            previous = self.window
            if previous is not None and window[0] <= previous[1] and previous[0] <= window[1]:
                window = min(window[0], previous[0]), max(window[1], previous[1])
            self.window = window
            self._window_until = now + down_seconds
        elif now >= self._window_until:
            self.window = None
        return self.window


LOG = logging.getLogger(__name__)

#: Pieces of news that may wait for the owner of the table.
PENDING_NEWS_MAX = 10_000
#: Seconds between two full comparisons while gaps of the feed were given up, how long
#: that lasts, and between two readings of everything because the database went back.
DOUBT_COMPARE_SECONDS, DOUBT_SECONDS, WENT_BACK_READ_SECONDS = 5.0, 60.0, 1.0
#: Versions of a commit that returns its hosts completely.
NO_STEPPED_VERSIONS: Mapping[int, int] = {}


class RebuiltTable(NamedTuple):
    """A table built from everything, by the thread that read it."""

    everything: Everything
    table: HostTable


def _versions(everything: Everything) -> dict[int, int]:
    return {
        change.provider_id: change.row.version
        for change in everything.hosts
        if change.row is not None
    }


class HostCache:
    """Cache of all hosts: the working table, changes to be applied to it, and its age.

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
        self._known_versions: dict[int, int] = {}
        #: Keys of hosts by name, as far as the news goes; a deleted host may still be in it.
        self.keys: dict[str, HostKey] = {}
        #: Rules of server groups, as far as the news goes; a commit compares them again.
        self.rules: dict[str, GroupRule] = {}
        self._warned_multipliers: frozenset[str] = frozenset()  # problems that the log has already
        self._news_lock = threading.Lock()  # guards the news and the versions seen in it together
        self.classes: frozenset[str] = frozenset()  # declared ones, as last read
        self.reload_seconds = reload_seconds
        self._default_zone = default_zone
        # Oldest first; ``working`` with all of it folded has the versions in ``_known``.
        self._news: collections.deque[Feed | list[HostChange] | RebuiltTable] = collections.deque()
        self._position = 0  # the feed up to here is in the news, but for the gaps
        self._gaps: list[Gap] = []  # numbers below the position that the feed did not have yet
        self._doubt_until = float('-inf')  # until then the feed may have left changes out
        self._compared_at = float('-inf')  # when the last comparison of everything began
        self._connections_lost = feed.connections_lost  # as of the last comparison of everything
        self._is_feed_lost = False  # behind: the feed does not lead on, everything must be compared
        self._went_back = ''  # how that was noticed, until everything was read again
        self._is_other_incarnation = False  # another incarnation, until everything was read again
        self._removed_during_compare: set[int] | None = None  # hosts removed while all are compared
        self._incarnation: int | None = None  # None: everything is to be read
        self._reads = 0  # successful reads of the declared classes
        self._classes_lock = threading.Lock()  # one read of the classes at a time
        self.is_loaded = False  # whether the working table was ever filled
        self._clock_offset = 0.0  # database clock minus our monotonic clock
        # Monotonic times, of beginnings: the table is current as of the first, the feed was read
        # at the second, and everything at the third.  The first is never after the second.
        self._fresh_at = self._read_at = float('-inf')
        self._loaded_at = float('-inf')
        self._poll_lock = threading.Lock()  # one poll at a time; never held for a full reading
        self._compare_lock = threading.Lock()  # one full reading at a time
        # Provider id -> name of hosts folded since they were last taken; None: not tracked.
        self._changed: dict[int, str | None] | None = None
        self._silence = SilenceState()

    # -- any thread ------------------------------------------------------------
    @property
    def versions(self) -> dict[int, int]:
        """Provider id -> version that a host is known at, with pending news."""
        with self._news_lock:
            return dict(self._known_versions)

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
        return self.clock.monotonic() + self._clock_offset

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

    @property
    def tables(self) -> list[HostTable]:
        """The tables that this cache keeps in memory."""
        return [self.working]

    def update_silence(self, down_seconds: float) -> ReportWindow | None:
        """Return when hosts that fell silent together last reported; see :class:`SilenceState`."""
        table = self.working
        return self._silence.update(table.reported_at, table.enabled, table.now, down_seconds)

    def has_classes(self, names: Iterable[str]) -> bool:
        """Return whether all classes are known here; if not, ``declared_classes`` reads them."""
        for name in names:
            if name not in resource_classes.STANDARD_CLASSES and name not in self.classes:
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
        with self._classes_lock:
            if self._reads < enough:
                self.classes = self.vocabulary.declared_classes()
                self._reads += 1
        return self.classes

    def offer(self, hosts: Iterable[HostChange]) -> None:
        """Queue hosts that this process wrote or read; folded in later."""
        hosts = list(hosts)
        if not hosts:
            return
        with self._news_lock:
            if len(self._news) >= PENDING_NEWS_MAX:
                # The owner has not folded for long: start again from everything.
                self._news.clear()
                self._incarnation = None
            self._news.append(hosts)
            self._queue_host(hosts)

    def _queue_host(self, hosts: Iterable[HostChange]) -> None:
        for change in hosts:
            if change.row is None:
                self._known_versions.pop(change.provider_id, None)
                if self._removed_during_compare is not None:
                    self._removed_during_compare.add(change.provider_id)
            elif change.row.version > self._known_versions.get(change.provider_id, -1):
                self._known_versions[change.provider_id] = change.row.version
                self._note_key(change.row)

    def _note_key(self, row: HostRow) -> None:
        if row.key is not None:
            self.keys[row.name] = row.key
        else:
            self.keys.pop(row.name, None)

    def fetch(self) -> None:
        """Read the feed, or everything where that is due; the owner folds it in.

        :raises DatabaseUnavailable:
        """
        with self._compare_lock:
            started = self.clock.monotonic()
            if self._incarnation is not None and not self.is_suspect:
                if self._is_feed_lost or self._is_due(started):
                    self._compare(started)
                else:
                    self.fetch_news()
            if self._incarnation is None or self._is_other_incarnation:
                self._fetch_everything(started)
            elif self._went_back:
                self._reload(started)

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
        return self._is_other_incarnation or bool(self._went_back)

    def _poll(self) -> Feed:
        started = self.clock.monotonic()
        feed = self.feed.poll(self._position, self._known_versions, self._gaps)
        if feed.went_back:
            self.note_went_back(
                'the feed ends before what was read of it, or a host has an older version'
            )
        elif feed.incarnation != self._incarnation:
            self._is_other_incarnation = True
        else:
            if feed.is_lost:
                self._doubt_until = started + DOUBT_SECONDS
                self._is_feed_lost = not feed.gaps
            if not self._is_feed_lost:
                self._position = feed.position
                self._gaps = feed.gaps
                self._note_read(started, feed.now)
            self._queue_feed(feed)
        return feed

    def _queue_feed(self, feed: Feed) -> None:
        has_news = feed.hosts or feed.groups or feed.whole or feed.providers
        if has_news or (feed.aggregates, feed.metrics) != (None, None):
            with self._news_lock:
                self._news.append(feed)
                self._queue_host(feed.hosts)

    def _is_due(self, now: float) -> bool:
        """Return whether it is time to compare the table with the whole database."""
        since = now - self._loaded_at
        if self.feed.connections_lost != self._connections_lost and since >= WENT_BACK_READ_SECONDS:
            return True  # a standby may have taken over, without our last commits
        return since >= (
            min(DOUBT_COMPARE_SECONDS, self.reload_seconds)
            if now < self._doubt_until
            else self.reload_seconds
        )

    def _compare(self, started: float) -> None:
        """Compare the table with the whole database; count changes that the feed has missed."""
        with self._news_lock:
            known_versions, self._removed_during_compare = dict(self._known_versions), set()
            pools = self.working.known_pools()
        position, connections_lost = self._position, self.feed.connections_lost
        try:
            comparison = self.feed.compare(known_versions)
            with self._poll_lock:
                if comparison.went_back or comparison.position < position:
                    self.note_went_back('all hosts were compared, and one has an older version')
                elif comparison.incarnation != self._incarnation:
                    self._is_other_incarnation = True  # also where the table was dropped meanwhile
                else:
                    self._finish_compare(started, comparison, pools)
            self._connections_lost = connections_lost
        finally:
            with self._news_lock:
                self._removed_during_compare = None

    def _finish_compare(self, started: float, whole: Feed, pools: set[int]) -> None:
        was_far, self._is_feed_lost = self._is_feed_lost, False
        self._loaded_at = self._compared_at = started
        if was_far:
            self._position = whole.position
            self._gaps = whole.gaps
            self._note_read(started, whole.now)
        else:
            pools.difference_update(self._poll().providers)
        if self.is_suspect:
            return
        with self._news_lock:
            deleted_ids = self._removed_during_compare or set()
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
        self._queue_feed(msgspec.structs.replace(whole, hosts=hosts, providers=sorted(pools)))

    def _is_unseen(self, change: HostChange) -> bool:
        known_version = self._known_versions.get(change.provider_id)
        if change.row is None:
            return known_version is not None
        return known_version is None or change.row.version > known_version

    def note_went_back(self, how: str) -> None:
        """Note that the database went back: the next ``fetch`` reads everything again."""
        self._went_back = self._went_back or how

    def is_behind(self, hosts: Iterable[HostChange], known: Mapping[int, int]) -> bool:
        """Return whether hosts that were just read are older than was known before.

        :param known: ``versions`` as they were before the read
        """
        is_older = any(
            change.row is not None and change.row.version < known.get(change.provider_id, -1)
            for change in hosts
        )
        if is_older:
            self.note_went_back('a host of a group has an older version')
        return is_older

    def _reload(self, started: float) -> None:
        if started - self._loaded_at < WENT_BACK_READ_SECONDS:
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
        rebuilt = RebuiltTable(everything, table_log.table_of(everything, self._default_zone))
        with self._poll_lock, self._news_lock:
            self._position = everything.position
            self._gaps = everything.gaps
            self._incarnation = everything.incarnation
            self._loaded_at = self._compared_at = started
            self._went_back = ''
            self._is_other_incarnation = False
            self._is_feed_lost = False
            self.classes = everything.resource_classes
            self._note_read(started, everything.now)
            # What was folded, or waits, before this ends with the table it was for.
            self._known_versions = _versions(everything)
            rows = (change.row for change in everything.hosts)
            self.keys = {
                row.name: row.key for row in rows if row is not None and row.key is not None
            }
            self._news.append(rebuilt)

    def _note_read(self, started: float, now: float) -> None:
        # The result shows the database as of some moment after the query began.
        self._clock_offset = now - self.clock.monotonic()
        self._read_at = started
        missing = now - self._gaps[0].since if self._gaps else 0.0
        fresh = started - max(0.0, missing)
        # Where gaps were given up only a comparison shows what is missing.
        self._fresh_at = min(fresh, self._compared_at) if started < self._doubt_until else fresh

    # -- the owner ---------------------------------------------------------------
    def fold(self, *, mid_batch: bool = False) -> HostTable:
        """Fold all news into the working table and set its clock.

        :param mid_batch: a batch has picks on the table that must not be lost: a rebuilt table, and
            the changes after it, wait for the next batch
        """
        while (news := self._next_news(mid_batch)) is not None:
            if isinstance(news, RebuiltTable):
                self._replace_table(news)
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
        self.apply_and_record(table_log.ClockEntry(self.database_now))
        return self.working

    def _next_news(self, mid_batch: bool) -> Feed | list[HostChange] | RebuiltTable | None:
        with self._news_lock:
            if not self._news or (mid_batch and isinstance(self._news[0], RebuiltTable)):
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
        return self.working.pools.by_id.get(provider_id)

    def apply_and_record(self, change: table_log.Change) -> None:
        """Change the working table, and note it for replay."""
        self.record_event(change)
        change.apply(self.working)

    def record_event(self, event: table_log.Event | table_log.UnwrittenChange) -> None:
        """Note a change of the working table for replay; of picks, the claims made of them."""
        if self.log is not None:
            self.log.add(event)

    @property
    def position(self) -> int:
        """The number of the next event in the log."""
        return self.log.position if self.log is not None else 0

    def commit_applied(
        self,
        rows: Iterable[HostRow],
        written: Container[int],
        claims: Collection[str] | None = None,
        stepped: Mapping[int, int] = NO_STEPPED_VERSIONS,
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
        :param stepped: hosts that it wrote -> version, where the commit returned only the version
        :param pools: written or read: picks of these claims laid over them are included by now
        """
        table = self.working
        settled, others = table.commit_picks(stepped, claims, written) if stepped else ([], [])
        pairs, whole_rows = self._compare_with_known(chain(rows, others), written)
        self._note_versions(chain((row for _, row in settled), whole_rows))
        pending_ids = chain.from_iterable(table.pending_claims_of(row.id) for _, row in pairs)
        # Of pools that serve other hosts as well, only claims known to be in them.
        shared = claims or () if pools else ()
        if claims is not None and all(claim_id in claims for claim_id in pending_ids):
            claims = None  # the same, and shorter
        if settled or pairs or pools:
            self.record_event(table_log.CommittedHosts(settled, pairs, claims, pools, shared))
        for _, row in pairs:
            table.correct_usage(row, claims)
        for usage in pools:
            table.correct_pool(usage, shared)

    def _compare_with_known(
        self, rows: Iterable[HostRow], written: Container[int]
    ) -> tuple[list[tuple[HostRow, HostRow]], list[HostRow]]:
        """Return known hosts before and after a commit, and rows that are known completely by it.

        :param written: providers that it wrote
        """
        table = self.working
        pairs: list[tuple[HostRow, HostRow]] = []
        whole_rows: list[HostRow] = []
        for row in rows:
            row_index = table.row_of_id(row.id)
            known_row = None if row_index is None else table.hosts[row_index]
            version = -1 if known_row is None else known_row.version
            if row.version < version:
                self.note_went_back('a commit met a host with an older version')
            if row.version == version + 1:
                if row.id in written:
                    whole_rows.append(row)
                else:
                    row = msgspec.structs.replace(row, version=version)
            if known_row is not None:
                pairs.append((known_row, row))
        return pairs, whole_rows

    def _note_versions(self, rows: Iterable[HostRow]) -> None:
        """Note the versions of rows that a commit of this process wrote."""
        with self._news_lock:
            # A table that waits was read before: the feed after it must bring these again.
            if any(isinstance(news, RebuiltTable) for news in self._news):
                return
            known_versions = self._known_versions
            for row in rows:
                if known_versions.get(row.id, -1) < row.version:
                    known_versions[row.id] = row.version

    def set_groups(self, generations: dict[str, int], whole: bool = False) -> None:
        """Take over the generations of groups as a commit or a read left them.

        :param whole: ``generations`` covers all existing groups
        """
        if generations or whole:
            self.apply_and_record(table_log.GroupsEntry(generations, whole))

    def set_rules(self, uuids: Iterable[str], rules: Mapping[str, GroupRule]) -> None:
        """Take over the rules of these groups; a group without a rule was deleted."""
        for uuid in uuids:
            if uuid in rules:
                self.rules[uuid] = rules[uuid]
            else:
                self.rules.pop(uuid, None)

    def _fold_hosts(self, hosts: list[HostChange]) -> None:
        self.apply_and_record(table_log.HostsEntry(hosts))
        if self._changed is not None:
            self._changed |= {
                change.provider_id: change.row.name if change.row else None for change in hosts
            }

    def _fold_feed(self, feed: Feed) -> None:
        if feed.aggregates is not None:
            self.apply_and_record(table_log.AggregatesEntry(feed.aggregates))
            self._warn_of_multipliers(feed.aggregates)
        if feed.metrics is not None:
            self.apply_and_record(table_log.MetricsEntry(feed.metrics))
        if feed.hosts:
            self._fold_hosts(feed.hosts)
        if feed.providers or feed.whole:
            entry = table_log.PoolsEntry.of(self.working, feed)
            if entry.pools or entry.gone:
                self.apply_and_record(entry)
            standalone = table_log.StandaloneEntry.of(self.working, feed)
            if standalone.changes:
                self.apply_and_record(standalone)
        if feed.whole:
            self.rules = dict(feed.rules)
        else:
            self.set_rules(feed.groups, feed.rules)
        self.set_groups(feed.groups, feed.whole)

    def _replace_table(self, rebuilt: RebuiltTable) -> None:
        """Start (again) from everything.

        What a commit of this process did since the read is missing for a moment; the
        next read of the feed brings it, and until then the commit re-checks.
        """
        self.record_event(table_log.Checkpoint(rebuilt.everything))
        old_table, self.working = self.working, rebuilt.table
        self.rules = dict(rebuilt.everything.rules)
        self._warn_of_multipliers(rebuilt.everything.aggregates)
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

    def _warn_of_multipliers(self, defined: Iterable[Aggregate]) -> None:
        """Warn once of each multiplier that an aggregate sets without effect."""
        problems = aggregates.metadata_problems(defined)
        for problem in problems:
            if problem not in self._warned_multipliers:
                LOG.warning('Aggregate sets a multiplier without effect: problem=%s', problem)
        self._warned_multipliers = frozenset(problems)

    def forget(self) -> None:
        """Drop the working table; the next fetch reads everything."""
        self.working = HostTable(default_zone=self._default_zone)
        self.rules = {}
        with self._news_lock:
            self._known_versions = {}
            self.keys = {}
            self._news.clear()
        self.is_loaded = False
        self._incarnation = None
        self._went_back = ''
        self._is_other_incarnation = False


class HostFollower(HostCache):
    """A cache whose table is owned by the holder of its lock."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._table_lock = threading.Lock()  # its holder owns the working table
        self._refresh_lock = threading.Lock()  # one refresh at a time; taken before the other
        self._snapshot: HostTable | None = None  # None: the working table is newer
        self._read_required_after = float('-inf')  # an earlier read is not fresh enough

    def table(self, max_age: float = 1.0) -> HostTable:
        """Return a read-only table no older than ``max_age`` seconds where the database answers.

        Where the database is away the last table is returned; its ``now`` and the cache's
        ``age_seconds`` show its age.

        :raises DatabaseUnavailable: nothing was ever read
        """
        self.refresh(max_age)
        with self._table_lock:
            self._fold()
            if self._snapshot is None:
                self._snapshot = self.working.snapshot()
            self._snapshot.now = self.database_now
            return self._snapshot

    @contextlib.contextmanager
    def borrowed(self, max_age: float) -> Iterator[HostTable]:
        """Yield the table itself, as fresh as that of :meth:`table`, for the block.

        Whatever the block takes from it must be given back there: a copy costs more than a plan,
        and grows with the number of hosts.

        :raises DatabaseUnavailable: nothing was ever read
        """
        self.refresh(max_age)
        with self._table_lock:
            self._fold()
            yield self.working

    def refresh(self, max_age: float) -> None:
        """Read the feed where the last read is too old; concurrent callers share one read.

        :raises DatabaseUnavailable: nothing was ever read
        """
        oldest = self.clock.monotonic() - max_age
        if self._is_newer(oldest):
            return
        with self._refresh_lock:
            if self._is_newer(oldest):
                return
            try:
                self.fetch()
            except exceptions.DatabaseUnavailable:
                if self._incarnation is None:
                    raise

    def reload_soon(self) -> None:
        """Read the feed before the next answer, even if the table is fresh."""
        self._read_required_after = self.clock.monotonic()

    @property
    def tables(self) -> list[HostTable]:
        snapshot = self._snapshot
        return [self.working] if snapshot is None else [self.working, snapshot]

    def take_changed(self) -> dict[int, str | None]:
        """Return hosts whose rows changed since the last call: id -> name, None of one deleted."""
        with self._table_lock:
            changed, self._changed = self._changed, {}
        return changed or {}

    # -- inside ------------------------------------------------------------------------
    def _is_newer(self, oldest: float) -> bool:
        """Return whether the feed was read after a moment, and after it had to be read again."""
        return self._read_at >= oldest and self._read_at > self._read_required_after

    def _fold(self) -> None:
        if self._news:
            self._snapshot = None
        self.fold()
