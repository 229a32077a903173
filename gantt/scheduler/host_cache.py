# SPDX-License-Identifier: Apache-2.0
"""The host table of a process: loaded once, kept fresh by the change feed.

The database is the authority; this is a cache of it.  One thread owns the
working table (the scheduling thread, or whoever holds the lock in a follower)
and is the only one to change it; everybody else offers news, which the owner
folds in between two batches, and reads snapshots.

There is one notion of version: a host is known whole at a version, with everything that
is placed on it.  Invariant: the table knows it at the version of its row, and all that it
lacks up to the newest version that was read waits in the news; what is newer the feed
brings, and nothing that is older is taken.

A database may go back: a backup is put back, or a standby that was behind takes
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
from gantt.scheduler.ports import Clock, Everything, Feed, Gap, Store

LOG = logging.getLogger(__name__)

#: Pieces of news that may wait for the owner of the table.
NEWS_MAX = 10_000
#: Seconds between two full comparisons while gaps of the feed were given up, how long
#: that lasts, and between two readings of everything because the database went back.
DOUBT_EACH, DOUBT_SECONDS, BACK_EACH = 5.0, 60.0, 1.0
#: A commit that tells its hosts whole.
NONE_STEPPED: Mapping[int, int] = {}


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
    """

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        reload_seconds: float = 300.0,
        log: table_log.TableLog | None = None,
        default_zone: str = 'nova',
        count: Callable[..., None] | None = None,
        working: HostTable | None = None,
    ) -> None:
        self.store = store
        self._count, self.log = count or (lambda name, value=1: None), log
        self.clock: Clock = clock or SystemClock()
        self.working = HostTable(default_zone=default_zone) if working is None else working
        #: Provider id -> version that the host will be known whole at when all news is folded:
        #: up to there the feed need not bring it.
        self._known: dict[int, int] = {}
        #: Keys of hosts by name, as far as the news goes; a host that is gone may still be in it.
        self.keys: dict[str, HostKey] = {}
        #: Rules of server groups, as far as the news goes; a commit compares them again.
        self.rules: dict[str, GroupRule] = {}
        self._warned: frozenset[str] = frozenset()
        self._queueing = threading.Lock()  # news and what is seen by it go together
        self.classes: frozenset[str] = frozenset()
        self.reload_seconds = reload_seconds
        self._default_zone = default_zone
        self._news: collections.deque[Feed | list[HostChange] | Rebuilt] = collections.deque()
        self._position = 0
        self._gaps: list[Gap] = []
        self._doubt_until = float('-inf')  # until then the feed may have left something out
        self._compared_at = float('-inf')
        self._lost = store.connections_lost  # when all were compared last
        self._is_far = False  # behind: the feed does not lead on, everything is to be compared
        self._went_back = ''  # how that was noticed, until everything was read again
        self._is_other = False  # another incarnation, until everything was read again
        self._gone: set[int] | None = None  # hosts removed while all are compared
        self._incarnation: int | None = None
        self._reads = 0  # readings of the declared classes that ended well
        self._reading = threading.Lock()
        self.is_loaded = False  # whether the working table was ever filled
        self._offset = 0.0  # database clock minus our monotonic clock
        self._fresh_at = self._read_at = float('-inf')
        self._loaded_at = float('-inf')
        self._poll_lock = threading.Lock()  # one poll at a time; never held for a full reading
        self._whole_lock = threading.Lock()  # one full reading at a time
        self._changed: dict[int, str | None] | None = None  # None: nobody asks
        self._silence = Silence()

    # -- any thread ------------------------------------------------------------
    @property
    def versions(self) -> dict[int, int]:
        """Provider id -> version that a host is known whole at, with the news that waits."""
        with self._queueing:
            return dict(self._known)

    @property
    def age_seconds(self) -> float:
        """Seconds since the table was last known to be current, but for what is on its way.

        Where numbers of the feed are missing that is when they were missed first.
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
        """What is known of a host, None where it is not known (any more)."""
        table = self.working
        row = table.row_of(name)
        # Another thread may move rows meanwhile.
        found = table.hosts[row] if row is not None and row < len(table.hosts) else None
        return found if found is not None and found.name == name else None

    def look_for_silence(self, down_seconds: float) -> Window | None:
        """When hosts that fell silent together last reported; see ``core.table.silence``."""
        table = self.working
        return self._silence.look(table.reported_at, table.enabled, table.now, down_seconds)

    def has_classes(self, names: Iterable[str]) -> bool:
        """Whether all are known here; else ``declared_classes`` reads the database."""
        for name in names:
            if name not in resource_classes.STANDARD and name not in self.classes:
                return False
        return True

    def declared_classes(self, names: Iterable[str]) -> frozenset[str]:
        """Declared classes, read again where ``names`` has another.

        Who asks while others read waits for one more reading, which serves all who wait.

        :raises DatabaseUnavailable:
        """
        if self.has_classes(names):
            return self.classes
        # What is under way now may have begun before the class was declared.
        enough = self._reads + 2
        with self._reading:
            if self._reads < enough:
                self.classes = self.store.declared_classes()
                self._reads += 1
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
        """Read the feed; full readings, which take long, are left to others.

        :raises DatabaseUnavailable:
        """
        with self._poll_lock:
            if self._incarnation is not None and not self.is_suspect:
                self._poll()

    @property
    def is_suspect(self) -> bool:
        """Whether the table is of another database than there is now, or of a later state."""
        return self._is_other or bool(self._went_back)

    def _poll(self) -> Feed:
        started = self.clock.monotonic()
        feed = self.store.poll(self._position, self._known, self._gaps)
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
        """Whether it is time to compare everything."""
        since = now - self._loaded_at
        if self.store.connections_lost != self._lost and since >= BACK_EACH:
            return True  # a standby may have taken over, without our last commits
        return since >= (
            min(DOUBT_EACH, self.reload_seconds) if now < self._doubt_until else self.reload_seconds
        )

    def _compare(self, started: float) -> None:
        """Compare everything, and count what the feed should have brought by then."""
        with self._queueing:
            known, self._gone = dict(self._known), set()
            pools = self.working.known_pools()
        position, lost = self._position, self.store.connections_lost
        try:
            whole = self.store.compare(known)
            with self._poll_lock:
                if whole.went_back or whole.position < position:
                    self.suspect('all hosts were compared, and one has an older version')
                elif whole.incarnation != self._incarnation:
                    self._is_other = True  # also where the table was dropped meanwhile
                else:
                    self._take_compared(started, whole, pools)
            self._lost = lost
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
            gone = self._gone or set()
            hosts = [
                change
                for change in whole.hosts
                if change.provider_id not in gone and self._is_unseen(change)
            ]
        if hosts and not was_far:
            self._count('gantt_feed_missed_total', len(hosts))
            LOG.warning(
                'The change feed did not bring what changed on %d hosts, which a full '
                'comparison has found',
                len(hosts),
            )
        self._queue(msgspec.structs.replace(whole, hosts=hosts, providers=sorted(pools)))

    def _is_unseen(self, change: HostChange) -> bool:
        known = self._known.get(change.provider_id)
        if change.row is None:
            return known is not None
        return known is None or change.row.version > known

    def suspect(self, how: str) -> None:
        """The database went back: everything is read again by the next ``fetch``."""
        self._went_back = self._went_back or how

    def is_behind(self, hosts: Iterable[HostChange], known: Mapping[int, int]) -> bool:
        """Whether hosts that were just read are older than was known before.

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
            'The database is at an older state than this process had read (%s); everything is '
            'read again. Was a backup put back, or did a standby take over that was behind? Then '
            'run "gantt-manage db incarnation": hosts register anew, and what they run is adopted',
            self._went_back,
        )
        self._count('gantt_database_went_back_total')
        self._fetch_everything(started)

    def _fetch_everything(self, started: float) -> None:
        everything = self.store.load_everything()
        rebuilt = Rebuilt(everything, table_log.build(everything, self._default_zone))
        with self._poll_lock, self._queueing:
            self._position, self._gaps = everything.position, everything.gaps
            self._incarnation = everything.incarnation
            self._loaded_at = self._compared_at = started
            self._went_back, self._is_other, self._is_far = '', False, False
            self.classes = everything.resource_classes
            self._note(started, everything.now)
            # Whatever was folded, or waits, before it goes with the table it was for.
            self._known = _versions(everything)
            rows = (change.row for change in everything.hosts)
            self.keys = {r.name: r.key for r in rows if r is not None and r.key is not None}
            self._news.append(rebuilt)

    def _note(self, started: float, now: float) -> None:
        # The answer shows the database as of some moment after we asked.
        self._offset = now - self.clock.monotonic()
        self._read_at = started
        missing = now - self._gaps[0].since if self._gaps else 0.0
        fresh = started - max(0.0, missing)
        # Where gaps were given up only a comparison knows.
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
        # Of a table without open picks only: a replay would take them for claims.
        return self.is_loaded and log.is_due(self.clock.monotonic())

    def host_row(self, provider_id: int) -> HostRow | None:
        """What is known of a host, or of a pool that may be asked for alone.  Any thread."""
        table = self.working
        return (table if provider_id in table.row_by_id else table.others).known_row(provider_id)

    def pool(self, provider_id: int) -> SharedPool | None:
        """What is known of a pool that hosts share.  Any thread."""
        return self.working.pools.of_id.get(provider_id)

    def do(self, change: table_log.Change | table_log.Committed) -> None:
        """Change the working table, and note it for replay."""
        self.note(change)
        change.apply(self.working)

    def note(self, event: table_log.Event | table_log.Committed) -> None:
        """Note for replay what was done to the working table."""
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
        """Hosts as a commit of ours left them; what it refused is taken back before.

        A host that it wrote is known whole where its version is the next one.  Else others
        have written it too: its usage is taken over, the claims stay laid over it, and the
        feed brings the rest, see ``core.table.host_table``.

        :param rows: hosts that it wrote, and hosts that it read back
        :param written: providers that it wrote; not those that claims have left by it, as
            who is gone from there only the feed says
        :param claims: ids of the claims that it made; None: all picks on these hosts
        :param stepped: hosts that it wrote -> version, of which it tells no more than that
        :param pools: that it wrote or read: what is laid over them of these claims is in them now
        """
        table, whole = self.working, []
        pairs: list[tuple[HostRow, HostRow]] = []
        laid: list[str] = []
        for row in [*rows, *table.stepped(stepped, claims)]:
            i = table.row_of_id(row.id)
            known = None if i is None else table.hosts[i]
            version = -1 if known is None else known.version
            if row.version < version:
                self.suspect('a commit met a host with an older version')
            if row.version == version + 1:
                if row.id in written:
                    whole.append(row)
                else:
                    row = msgspec.structs.replace(row, version=version)
            if known is not None:
                pairs.append((known, row))
                laid += table.pending_of(row.id)
        with self._queueing:
            # A table that waits was read before: what it is fed must bring these again.
            if whole and not any(isinstance(news, Rebuilt) for news in self._news):
                for row in whole:
                    self._known[row.id] = max(row.version, self._known.get(row.id, -1))
        # Of pools that serve other hosts as well, only what is known to be in them.
        shared = claims or () if pools else ()
        if claims is not None and all(claim_id in claims for claim_id in laid):
            claims = None  # the same, and shorter
        if pairs or pools:
            self.do(table_log.Committed(pairs, claims, pools, shared))

    def set_groups(self, generations: dict[str, int], whole: bool = False) -> None:
        """Generations of groups as a commit or a read left them.

        :param whole: of all groups that there are
        """
        if generations or whole:
            self.do(table_log.GroupsEntry(generations, whole))

    def set_rules(self, uuids: Iterable[str], rules: Mapping[str, GroupRule]) -> None:
        """The rules of these groups; one that has none is gone."""
        for uuid in uuids:
            if uuid in rules:
                self.rules[uuid] = rules[uuid]
            else:
                self.rules.pop(uuid, None)

    def _fold_hosts(self, hosts: list[HostChange]) -> None:
        self.do(table_log.HostsEntry(hosts))
        if self._changed is not None:
            self._changed |= {c.provider_id: c.row.name if c.row else None for c in hosts}

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

        What a commit of ours did since the read is missing for a moment; the
        next read of the feed brings it, and until then the commit re-checks.
        """
        self.note(table_log.Checkpoint(rebuilt.everything))
        before, self.working = self.working, rebuilt.table
        self.rules = dict(rebuilt.everything.rules)
        self._warn(rebuilt.everything.aggregates)
        if self._changed is not None:
            self._changed |= dict.fromkeys(before.row_by_id.keys() - self.working.row_by_id.keys())
            self._changed |= {
                row.id: row.name
                for row in self.working.hosts
                if row.version != before.known_version(row.id)
            }
        self.is_loaded = True

    def _warn(self, found: Iterable[Aggregate]) -> None:
        """Once of each multiplier that an aggregate sets in vain."""
        problems = aggregates.problems(found)
        for problem in problems:
            if problem not in self._warned:
                LOG.warning('%s', problem)
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
