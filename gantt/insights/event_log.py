# SPDX-License-Identifier: Apache-2.0
"""Events of hosts and their claims, for clients that follow them.

The change feed lists the hosts that changed; their lines and claims of the last minute are read,
and each one not seen before is an event.  The feed leaves out no commit, however late it appears,
so neither does this.  Nothing is read without requests.

A process remembers the newest events, from its first request on; of a host that changes then also
those of the minute before.  A cursor names the last one by its number here, and the moment when the
database was read: by it another process of the site continues, from a second before at most, so
that an event may come twice and none is left out.  A client whose cursor is no longer remembered
gets an error, lists what it needs anew, and continues from there; as with ``watch`` and ``410
Gone`` of Kubernetes.
"""

import collections
import re
import secrets
import threading
from collections.abc import Callable

import msgspec

from gantt import exceptions
from gantt.core.claims.host_event import HostEvent
from gantt.insights import views
from gantt.scheduler.host_cache import HostFollower
from gantt.scheduler.ports.hosts import Hosts

#: Maximum number of events that are remembered, and that one read returns.
REMEMBERED, READ_MAX = 10_000, 5_000
#: Maximum number of hosts whose changes one read covers; where more changed it begins anew.
NAMED_HOSTS_MAX = 1_000
#: Seconds: maximum age of a commit that appears, interval of reads, and difference of the clocks
#: of two processes, which know the database's.
LATE_SECONDS, LOOK_SECONDS, SLACK_SECONDS = 60.0, 0.5, 1.0
#: Filter of the events that a client requests.
EventFilter = Callable[[views.EventEntry], bool]
_CURSOR = re.compile(r'([0-9a-f]{8})-(\d{1,15})-(\d{1,12}\.\d{3})')


class _KnownEvent(msgspec.Struct, frozen=True):
    """A remembered event.

    :ivar since, until: time when it came to be seen, by the database's clock
    """

    number: int
    since: float
    until: float
    host: str
    event: HostEvent


class EventLog:
    """The events of one process.  All methods may be called from any thread.

    :param cache: of a follower: it reads the feed when its table is read
    """

    def __init__(self, hosts: Hosts, cache: HostFollower) -> None:
        self._hosts = hosts
        self._cache = cache
        self._lock = threading.Lock()
        self._stamp = secrets.token_hex(4)
        self._names: dict[int, str] = {}
        self._changed: dict[int, str | None] = {}  # and not read yet
        self._stopping = threading.Event()
        self._changes_read_at = float('-inf')  # by our clock
        self._begin(float('-inf'))

    def _begin(self, now: float, number: int = 0) -> None:
        """Forget everything: events from now on are remembered."""
        self._covers = now  # what was committed since is here
        self._number = self._forgotten = self._begun_at = number
        self._events: collections.deque[_KnownEvent] = collections.deque()
        self._known: dict[tuple[str, HostEvent], float] = {}
        self._read_at = now  # by the database's clock, as everything here

    def stop(self) -> None:
        """End all waits, so that clients are answered soon."""
        self._stopping.set()

    def wait(
        self, cursor: str | None, limit: int, seconds: float, wanted: EventFilter
    ) -> views.EventPage:
        """Return the events after a cursor, once there are some or the time is over.

        :param wanted: filter of the events that are returned
        """
        end = self._cache.clock.monotonic() + seconds
        while True:
            page = self.after(cursor, limit)
            events = [event for event in page.events if wanted(event)]
            remaining = end - self._cache.clock.monotonic()
            if events or cursor is None or remaining <= 0 or self._stopping.is_set():
                return msgspec.structs.replace(page, events=events)
            cursor = page.cursor
            if not page.events:
                self._stopping.wait(min(remaining, LOOK_SECONDS))

    def after(self, cursor: str | None, limit: int) -> views.EventPage:
        """Return the events after a cursor, oldest first; without one none, and the newest cursor.

        :raises InvalidMessage: this is no cursor
        :raises EventsGone: the events since are not remembered
        :raises DatabaseUnavailable: nothing was ever read
        """
        position = _parse_cursor(cursor) if cursor is not None else None
        with self._lock:
            self._read_changes()
            if position is None:
                return self._event_page([], self._number, self._read_at)
            events = self._events_since(*position)
            if events is None:
                raise exceptions.EventsGone(after=cursor)
            shown = events[:limit]
            if len(shown) == len(events):
                return self._event_page(shown, self._number, self._read_at)
            # The remaining events were committed after both.
            return self._event_page(shown, shown[-1].number, max(shown[-1].since, position[2]))

    def _events_since(self, stamp: str, number: int, read_at: float) -> list[_KnownEvent] | None:
        if stamp == self._stamp:
            is_remembered = self._forgotten <= number <= self._number
            return (
                [event for event in self._events if event.number > number]
                if is_remembered
                else None
            )
        first = read_at - SLACK_SECONDS
        is_covered = self._covers <= first and (
            self._forgotten == self._begun_at or self._events[0].until < first
        )
        return [event for event in self._events if event.until > first] if is_covered else None

    def _event_page(self, events: list[_KnownEvent], last: int, read_at: float) -> views.EventPage:
        return views.EventPage(
            events=[
                views.view_of(
                    views.EventEntry,
                    entry.event,
                    host=entry.host,
                    at=views.utc_text(entry.event.at),
                )
                for entry in events
            ],
            cursor=f'{self._stamp}-{last}-{read_at:.3f}',
        )

    def _read_changes(self) -> None:
        """Read the changes, unless that was just done."""
        cache = self._cache
        started = cache.clock.monotonic()
        if started - self._changes_read_at < LOOK_SECONDS:
            return
        is_first = self._covers == float('-inf')
        if is_first:
            cache.take_changed()  # from here on the changes are noted
        table = cache.table(LOOK_SECONDS)
        self._changed |= cache.take_changed()
        read_at = table.now - cache.read_seconds_ago
        if is_first or len(self._changed) > NAMED_HOSTS_MAX:
            self._begin(table.now, self._number + 1)
            self._names = {host.id: host.name for host in table.hosts}
        elif self._changed:
            names = {self._names.get(pid) for pid in self._changed}
            self._read({name for name in (*names, *self._changed.values()) if name}, read_at)
            for pid, name in self._changed.items():
                if name is None:
                    self._names.pop(pid, None)
                else:
                    self._names[pid] = name
        self._changed = {}
        self._read_at = max(read_at, self._covers)
        self._changes_read_at = started

    def _read(self, hosts: set[str], read_at: float) -> None:
        recent = self._hosts.recent_events(hosts, self._read_at - LATE_SECONDS, READ_MAX)
        now = self._cache.database_now
        if len(recent) >= READ_MAX:
            self._begin(now, self._number + 1)
            return
        for host, event in recent:
            if (host, event) not in self._known:
                self._known[host, event] = event.at
                self._number += 1
                self._events.append(_KnownEvent(self._number, self._read_at, now, host, event))
        while len(self._events) > REMEMBERED:
            self._forgotten = self._events.popleft().number
        old = read_at - 2 * LATE_SECONDS
        if self._known and next(iter(self._known.values())) < old:
            self._known = {key: at for key, at in self._known.items() if at >= old}


def _parse_cursor(cursor: str) -> tuple[str, int, float]:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise exceptions.invalid('query.after', 'expected the cursor of an answer, as it was given')
    return match[1], int(match[2]), float(match[3])
