# SPDX-License-Identifier: Apache-2.0
"""What a host was told to build, remembered across crashes.

    pending → starting → running → stopping → finished
       └──────────┴──────────┴────────────────▶ finished

A claim that finished stays as a tombstone for at least a day: a build message
that comes again must never start a guest again.  Every step is committed to
disk before the effect that it announces.

The journal also counts the registrations of its host, over all starts of the
agent, under a name of its own: of two of them it knows which began later.  And it
knows the last epoch that the host was given, which no later one may repeat.
"""

import fcntl
import json
import os
import pathlib
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from gantt import exceptions
from gantt.compute.agent.session import Stamp
from gantt.core.messages.build import Build

PENDING, STARTING, RUNNING, STOPPING, FINISHED = (
    'pending',
    'starting',
    'running',
    'stopping',
    'finished',
)

TOMBSTONE_SECONDS_MIN = 86_400.0
PURGE_ROWS = 1000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS builds (
    claim_id TEXT PRIMARY KEY,
    consumer TEXT NOT NULL,
    state TEXT NOT NULL,
    asked_epoch INTEGER NOT NULL DEFAULT 0,
    asked_sequence INTEGER NOT NULL DEFAULT 0,
    lease_until REAL NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    body BLOB NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS builds_consumer ON builds (consumer);
CREATE INDEX IF NOT EXISTS builds_state ON builds (state, updated_at);
CREATE TABLE IF NOT EXISTS identity (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    uuid TEXT NOT NULL,
    registrations INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS agreement (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    since REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS epochs (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    last INTEGER NOT NULL
);
"""
_SELECT = (
    'SELECT body, state, asked_epoch, asked_sequence, lease_until, reason, updated_at FROM builds '
)
_VERSION = 1


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One claim as the host remembers it.

    :ivar asked: the question about it that counts; no other answer starts the guest
    :ivar lease_until: wall clock; a hint how long asking makes sense
    """

    build: Build
    state: str
    asked: Stamp = Stamp(0, 0)
    lease_until: float = 0.0
    reason: str = ''
    updated_at: float = 0.0

    @property
    def claim_id(self) -> str:
        return self.build.claim_id

    @property
    def consumer(self) -> str:
        return self.build.consumer


class Journal(Protocol):
    """Where a host remembers; all methods may be called from any thread."""

    @property
    def identity(self) -> str:
        """A uuid, chosen when the journal was made; another journal has another one."""

    def count_registration(self) -> int:
        """One more than ever before out of this journal; it is on disk when this returns."""

    @property
    def last_epoch(self) -> int:
        """The highest epoch ever noted; 0: none."""

    def note_epoch(self, epoch: int) -> None:
        """An epoch that the host was given; it is on disk when this returns."""

    def get(self, claim_id: str) -> Entry | None:
        """What is remembered of a claim."""

    def add(self, entry: Entry) -> bool:
        """Remember a claim; False where it was known already (nothing changes)."""

    def ask(self, claim_id: str, asked: Stamp) -> bool:
        """Note the question about a pending claim; False where it is not pending."""

    def move(
        self,
        claim_id: str,
        states: Iterable[str],
        to: str,
        reason: str = '',
        asked: Stamp | None = None,
    ) -> bool:
        """From one of ``states`` to ``to``, if ``asked`` is still the question; whether it did."""

    def live(self) -> list[Entry]:
        """All that is not finished."""

    def of_consumer(self, consumer: str) -> list[Entry]:
        """All claims of a consumer, finished ones too."""

    def agreed_since(self) -> float:
        """Since when the host's own check has not disagreed, by the wall clock."""

    def note_disagreement(self) -> None:
        """It disagreed just now."""

    def purge(self, older_than_seconds: float) -> int:
        """Forget finished claims, at most 1000 and none younger than a day; how many."""

    def close(self) -> None:
        """Let go of it."""


class SqliteJournal:
    """A journal in a file of its own; one process at a time.

    :param path: of the file; its folder is made where it is missing
    :raises Misconfigured: the file cannot be used, or another process does
    """

    def __init__(self, path: pathlib.Path, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._guard = _only_us(path)
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute('PRAGMA journal_mode = WAL')
            # A commit must survive the power: a guest may start right after it.
            self._db.execute('PRAGMA synchronous = FULL')
            (version,) = self._db.execute('PRAGMA user_version').fetchone()
            if version not in (0, _VERSION):
                raise sqlite3.DatabaseError(f'its version is {version}, expected {_VERSION}')
            self._db.executescript(_SCHEMA)
            # Journals of older agents have none yet.
            self._db.execute(
                'INSERT OR IGNORE INTO identity VALUES (1, ?, 0)', (str(uuid.uuid4()),)
            )
            self._db.execute('INSERT OR IGNORE INTO agreement VALUES (1, ?)', (wall(),))
            (self.identity,) = self._db.execute('SELECT uuid FROM identity').fetchone()
            self._db.execute(f'PRAGMA user_version = {_VERSION}')
        except sqlite3.Error as e:
            os.close(self._guard)
            raise _unusable(path, str(e)) from None

    def count_registration(self) -> int:
        with self._lock:
            self._db.execute('UPDATE identity SET registrations = registrations + 1')
            (count,) = self._db.execute('SELECT registrations FROM identity').fetchone()
        return int(count)

    @property
    def last_epoch(self) -> int:
        with self._lock:
            found = self._db.execute('SELECT last FROM epochs').fetchone()
        return int(found[0]) if found else 0

    def note_epoch(self, epoch: int) -> None:
        with self._lock:
            self._db.execute(
                'INSERT INTO epochs VALUES (1, ?) ON CONFLICT (id) DO UPDATE'
                ' SET last = max(last, excluded.last)',
                (epoch,),
            )

    def get(self, claim_id: str) -> Entry | None:
        rows = self._select(_SELECT + 'WHERE claim_id = ?', claim_id)
        return rows[0] if rows else None

    def add(self, entry: Entry) -> bool:
        now = self._wall()
        return self._changed(
            'INSERT OR IGNORE INTO builds (claim_id, consumer, state, asked_epoch, asked_sequence,'
            ' lease_until, reason, body, created_at, updated_at) VALUES (?,?,?,?,?,?,?,?,?,?)',
            entry.claim_id,
            entry.consumer,
            entry.state,
            entry.asked.epoch,
            entry.asked.sequence,
            entry.lease_until,
            entry.reason,
            msgspec.msgpack.encode(entry.build),
            now,
            now,
        )

    def ask(self, claim_id: str, asked: Stamp) -> bool:
        return self._changed(
            'UPDATE builds SET asked_epoch = ?, asked_sequence = ?, updated_at = ?'
            ' WHERE claim_id = ? AND state = ?',
            asked.epoch,
            asked.sequence,
            self._wall(),
            claim_id,
            PENDING,
        )

    def move(
        self,
        claim_id: str,
        states: Iterable[str],
        to: str,
        reason: str = '',
        asked: Stamp | None = None,
    ) -> bool:
        sql = (
            'UPDATE builds SET state = ?, reason = ?, updated_at = ? WHERE claim_id = ?'
            ' AND state IN (SELECT value FROM json_each(?))'
        )
        allowed = json.dumps(list(states))
        values: list[object] = [to, reason, self._wall(), claim_id, allowed]
        if asked is not None:
            sql += ' AND asked_epoch = ? AND asked_sequence = ?'
            values += [asked.epoch, asked.sequence]
        return self._changed(sql, *values)

    def live(self) -> list[Entry]:
        return self._select(
            _SELECT + 'WHERE state IN (?, ?, ?, ?) ORDER BY created_at, claim_id',
            PENDING,
            STARTING,
            RUNNING,
            STOPPING,
        )

    def of_consumer(self, consumer: str) -> list[Entry]:
        return self._select(_SELECT + 'WHERE consumer = ? ORDER BY created_at', consumer)

    def agreed_since(self) -> float:
        with self._lock:
            (since,) = self._db.execute('SELECT since FROM agreement').fetchone()
        return float(since)

    def note_disagreement(self) -> None:
        with self._lock:
            self._db.execute('UPDATE agreement SET since = ?', (self._wall(),))

    def purge(self, older_than_seconds: float) -> int:
        before = self._wall() - max(older_than_seconds, TOMBSTONE_SECONDS_MIN)
        with self._lock:
            return self._db.execute(
                'DELETE FROM builds WHERE claim_id IN (SELECT claim_id FROM builds'
                ' WHERE state = ? AND updated_at < ? ORDER BY updated_at LIMIT ?)',
                (FINISHED, before, PURGE_ROWS),
            ).rowcount

    def close(self) -> None:
        with self._lock:
            self._db.close()
            os.close(self._guard)

    def _changed(self, sql: str, *values: object) -> bool:
        with self._lock:
            return self._db.execute(sql, values).rowcount == 1

    def _select(self, sql: str, *values: object) -> list[Entry]:
        with self._lock:
            rows = self._db.execute(sql, values).fetchall()
        return [
            Entry(
                build=msgspec.msgpack.decode(body, type=Build),
                state=state,
                asked=Stamp(epoch, sequence),
                lease_until=until,
                reason=reason,
                updated_at=updated,
            )
            for body, state, epoch, sequence, until, reason, updated in rows
        ]


class MemoryJournal:
    """The same in memory, for hosts whose disk may go with the process.

    :param finished_max: tombstones that are kept; the oldest go first
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, finished_max: int = 2 * PURGE_ROWS
    ) -> None:
        self._wall = wall
        self._finished_max = finished_max
        self._finished: dict[str, None] = {}
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._live: dict[str, None] = {}
        self.identity = str(uuid.uuid4())
        self._registrations = 0
        self._agreed_since = wall()
        self.last_epoch = 0

    def count_registration(self) -> int:
        with self._lock:
            self._registrations += 1
            return self._registrations

    def note_epoch(self, epoch: int) -> None:
        with self._lock:
            self.last_epoch = max(self.last_epoch, epoch)

    def get(self, claim_id: str) -> Entry | None:
        return self._entries.get(claim_id)

    def add(self, entry: Entry) -> bool:
        with self._lock:
            if entry.claim_id in self._entries:
                return False
            self._put(msgspec.structs.replace(entry, updated_at=self._wall()))
        return True

    def ask(self, claim_id: str, asked: Stamp) -> bool:
        with self._lock:
            entry = self._entries.get(claim_id)
            if entry is None or entry.state != PENDING:
                return False
            self._put(msgspec.structs.replace(entry, asked=asked, updated_at=self._wall()))
        return True

    def move(
        self,
        claim_id: str,
        states: Iterable[str],
        to: str,
        reason: str = '',
        asked: Stamp | None = None,
    ) -> bool:
        with self._lock:
            entry = self._entries.get(claim_id)
            if entry is None or entry.state not in states:
                return False
            if asked is not None and entry.asked != asked:
                return False
            self._put(
                msgspec.structs.replace(entry, state=to, reason=reason, updated_at=self._wall())
            )
        return True

    def live(self) -> list[Entry]:
        with self._lock:
            return [self._entries[claim_id] for claim_id in self._live]

    def of_consumer(self, consumer: str) -> list[Entry]:
        with self._lock:
            return [e for e in self._entries.values() if e.consumer == consumer]

    def agreed_since(self) -> float:
        return self._agreed_since

    def note_disagreement(self) -> None:
        self._agreed_since = self._wall()

    def purge(self, older_than_seconds: float) -> int:
        before = self._wall() - max(older_than_seconds, TOMBSTONE_SECONDS_MIN)
        with self._lock:
            old = [
                c for c, e in self._entries.items() if e.state == FINISHED and e.updated_at < before
            ][:PURGE_ROWS]
            for claim_id in old:
                del self._entries[claim_id], self._finished[claim_id]
        return len(old)

    def close(self) -> None:
        """Nothing to let go of."""

    def _put(self, entry: Entry) -> None:
        self._entries[entry.claim_id] = entry
        if entry.state == FINISHED:
            self._live.pop(entry.claim_id, None)
            self._finished[entry.claim_id] = None
            if len(self._finished) > self._finished_max:
                oldest = next(iter(self._finished))
                del self._entries[oldest], self._finished[oldest]
        else:
            self._live[entry.claim_id] = None


def _only_us(path: pathlib.Path) -> int:
    """Take the lock of a journal; returns the descriptor that holds it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        guard = os.open(f'{path}.lock', os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise _unusable(path, e.strerror or str(e)) from None
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(guard)
        raise _unusable(path, 'another agent is using it') from None
    try:
        _make_private(path)
    except OSError as e:
        os.close(guard)
        raise _unusable(path, f'it cannot be made private: {e.strerror or e}') from None
    return guard


def _make_private(path: pathlib.Path) -> None:
    """Nobody else reads a journal: it has what guests are built of, passwords too.

    The file is there before SQLite opens it, which makes those beside it with the same rights.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for one in (path, *(pathlib.Path(f'{path}{end}') for end in ('-wal', '-shm', '.lock'))):
        if one.exists() and one.stat().st_mode & 0o077:
            one.chmod(0o600)


def _unusable(path: pathlib.Path, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option='[compute] journal',
        problem=f'{path} cannot be used: {problem}',
        fix='Name a file on a disk that survives a restart, for this agent alone',
    )
