# SPDX-License-Identifier: Apache-2.0
"""Journal of the builds of a host, kept across crashes.

    pending → starting → running → stopping → finished
       └──────────┴──────────┴────────────────▶ finished

A claim that finished stays as a tombstone for at least a day: a build message
that comes again must never start a guest again.  Every step is committed to
disk before its effect.

The journal also counts the registrations of its host, over all starts of the
agent, under a name of its own, so that the later of two is known.  It also keeps
the last epoch that the host was given, which no later one may repeat.
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

import msgspec

from gantt import exceptions
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
    entry BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS host (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    identity TEXT NOT NULL,
    registrations INTEGER NOT NULL,
    agreed_since REAL NOT NULL,
    last_epoch INTEGER NOT NULL
);
"""
_WRITE = (
    'INSERT INTO builds (claim_id, consumer, state, entry) VALUES (?,?,?,?)'
    ' ON CONFLICT (claim_id) DO UPDATE SET state = excluded.state, entry = excluded.entry'
)
_VERSION = 1


class Stamp(msgspec.Struct, frozen=True):
    """Position of one message in the order of its host's messages: epoch and sequence."""

    epoch: int
    sequence: int


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of one claim in the journal.

    :ivar requested: stamp of the confirmation request whose answer counts; no other answer starts
        the guest
    :ivar lease_until: wall clock; a hint how long queries make sense
    """

    build: Build
    state: str
    requested: Stamp = Stamp(0, 0)
    lease_until: float = 0.0
    reason: str = ''
    updated_at: float = 0.0

    @property
    def claim_id(self) -> str:
        return self.build.claim_id

    @property
    def consumer(self) -> str:
        return self.build.consumer


class Journal:
    """A journal in memory, for hosts whose disk may end with the process.

    All methods may be called from any thread.

    :param finished_max: tombstones that are kept, the oldest are dropped first; None: all
    :ivar identity: a uuid, chosen when the journal was created; another journal has another one
    :ivar agreed_since: since when the host's own check has not disagreed, by the wall clock
    :ivar last_epoch: the highest epoch that :meth:`note_epoch` has stored; 0: none
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, finished_max: int | None = 2 * PURGE_ROWS
    ) -> None:
        self._wall = wall
        self._finished_max = finished_max
        self._finished: dict[str, None] = {}
        self._lock = threading.Lock()
        self._entries: dict[str, JournalEntry] = {}
        self._live: dict[str, None] = {}
        self.identity = str(uuid.uuid4())
        self._registrations = 0
        self.agreed_since = wall()
        self.last_epoch = 0

    def count_registration(self) -> int:
        """Count a registration, over all starts; it is on disk when this returns."""
        with self._lock:
            registrations = self._registrations + 1
            self._write_host(registrations, self.agreed_since, self.last_epoch)
            self._registrations = registrations
            return registrations

    def note_epoch(self, epoch: int) -> None:
        """Store an epoch that the host was given; it is on disk when this returns."""
        with self._lock:
            last_epoch = max(self.last_epoch, epoch)
            self._write_host(self._registrations, self.agreed_since, last_epoch)
            self.last_epoch = last_epoch

    def get(self, claim_id: str) -> JournalEntry | None:
        """Return the entry of a claim."""
        return self._entries.get(claim_id)

    def add(self, entry: JournalEntry) -> bool:
        """Add a claim; return False, and change nothing, where the journal has it already."""
        with self._lock:
            if entry.claim_id in self._entries:
                return False
            self._put(msgspec.structs.replace(entry, updated_at=self._wall()))
        return True

    def note_query(self, claim_id: str, query: Stamp) -> bool:
        """Store the confirmation query of a claim; return False where the claim is not pending."""
        with self._lock:
            entry = self._entries.get(claim_id)
            if entry is None or entry.state != PENDING:
                return False
            self._put(msgspec.structs.replace(entry, requested=query, updated_at=self._wall()))
        return True

    def change_state(
        self,
        claim_id: str,
        states: Iterable[str],
        to: str,
        reason: str = '',
        query: Stamp | None = None,
    ) -> bool:
        """Change the state of a claim from one of ``states``; return whether it changed."""
        with self._lock:
            entry = self._entries.get(claim_id)
            if entry is None or entry.state not in states:
                return False
            if query is not None and entry.requested != query:
                return False
            self._put(
                msgspec.structs.replace(entry, state=to, reason=reason, updated_at=self._wall())
            )
        return True

    def live(self) -> list[JournalEntry]:
        """Return all entries that are not finished."""
        with self._lock:
            return [self._entries[claim_id] for claim_id in self._live]

    def of_consumer(self, consumer: str) -> list[JournalEntry]:
        """Return all claims of a consumer, finished ones too."""
        with self._lock:
            return [entry for entry in self._entries.values() if entry.consumer == consumer]

    def note_disagreement(self) -> None:
        """Store that the host's check has just disagreed with the scheduler."""
        with self._lock:
            now = self._wall()
            self._write_host(self._registrations, now, self.last_epoch)
            self.agreed_since = now

    def purge(self, older_than_seconds: float) -> int:
        """Delete finished claims, at most 1000 and none younger than a day; return their number."""
        limit = self._wall() - max(older_than_seconds, TOMBSTONE_SECONDS_MIN)
        with self._lock:
            old = [
                claim_id
                for claim_id in self._finished
                if self._entries[claim_id].updated_at < limit
            ][:PURGE_ROWS]
            self._erase(old)
            for claim_id in old:
                del self._entries[claim_id], self._finished[claim_id]
        return len(old)

    def close(self) -> None:
        """Close the journal."""

    def _put(self, entry: JournalEntry) -> None:
        self._write(entry)
        self._remember(entry)

    def _remember(self, entry: JournalEntry) -> None:
        if entry.state != FINISHED:
            self._entries[entry.claim_id] = entry
            self._live[entry.claim_id] = None
            return
        # The build parameters are not needed any more: they are large, and have passwords.
        build = msgspec.structs.replace(entry.build, guest={})
        self._entries[entry.claim_id] = msgspec.structs.replace(entry, build=build)
        self._live.pop(entry.claim_id, None)
        self._finished[entry.claim_id] = None
        if self._finished_max is not None and len(self._finished) > self._finished_max:
            oldest = next(iter(self._finished))
            del self._entries[oldest], self._finished[oldest]

    # -- Writes to disk, before the change in memory; none here.
    def _write(self, entry: JournalEntry) -> None: ...

    def _write_host(self, registrations: int, agreed_since: float, last_epoch: int) -> None: ...

    def _erase(self, claim_ids: list[str]) -> None: ...


class SqliteJournal(Journal):
    """A journal in a file of its own; one process at a time, which reads it once.

    :param path: the file; its folder is created where it is missing
    :raises Misconfigured: the file cannot be used, or another process does
    """

    def __init__(self, path: pathlib.Path, wall: Callable[[], float] = time.time) -> None:
        super().__init__(wall, finished_max=None)
        self._guard = _only_us(path)
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute('PRAGMA journal_mode = WAL')
            # A commit must survive a power failure: a guest may start right after it.
            self._db.execute('PRAGMA synchronous = FULL')
            (version,) = self._db.execute('PRAGMA user_version').fetchone()
            if version not in (0, _VERSION):
                raise sqlite3.DatabaseError(f'its version is {version}, expected {_VERSION}')
            self._db.executescript(_SCHEMA)
            # A new journal has no row yet.
            self._db.execute(
                'INSERT OR IGNORE INTO host VALUES (1, ?, 0, ?, 0)', (self.identity, wall())
            )
            self._read()
            self._db.execute(f'PRAGMA user_version = {_VERSION}')
        except (sqlite3.Error, msgspec.MsgspecError) as e:
            os.close(self._guard)
            raise _unusable(path, str(e)) from None

    def _read(self) -> None:
        self.identity, self._registrations, self.agreed_since, self.last_epoch = self._db.execute(
            'SELECT identity, registrations, agreed_since, last_epoch FROM host'
        ).fetchone()
        rows = self._db.execute(
            'SELECT claim_id, consumer, state, entry FROM builds ORDER BY rowid'
        )
        for row in rows:
            self._remember(self._decoded(*row))

    def _decoded(self, claim_id: str, consumer: str, state: str, entry: bytes) -> JournalEntry:
        """Return an entry; of a finished one only its existence counts.

        :raises msgspec.MsgspecError: an unfinished one cannot be read
        """
        try:
            return msgspec.msgpack.decode(entry, type=JournalEntry)
        except msgspec.MsgspecError:
            if state != FINISHED:
                raise
            build = Build(claim_id=claim_id, consumer=consumer, host='', resources={})
            return JournalEntry(build=build, state=state, updated_at=self._wall())

    def close(self) -> None:
        with self._lock:
            self._db.close()
            os.close(self._guard)

    def _write(self, entry: JournalEntry) -> None:
        row = (entry.claim_id, entry.consumer, entry.state, msgspec.msgpack.encode(entry))
        self._db.execute(_WRITE, row)

    def _write_host(self, registrations: int, agreed_since: float, last_epoch: int) -> None:
        self._db.execute(
            'UPDATE host SET registrations = ?, agreed_since = ?, last_epoch = ?',
            (registrations, agreed_since, last_epoch),
        )

    def _erase(self, claim_ids: list[str]) -> None:
        self._db.execute(
            'DELETE FROM builds WHERE claim_id IN (SELECT value FROM json_each(?))',
            (json.dumps(claim_ids),),
        )


def _only_us(path: pathlib.Path) -> int:
    """Lock a journal against other processes; return the descriptor that holds the lock."""
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
    """Make the journal's files unreadable for others: builds have passwords, too.

    The file exists before SQLite opens it, which creates the files next to it with the same rights.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for file in (path, *(pathlib.Path(f'{path}{suffix}') for suffix in ('-wal', '-shm', '.lock'))):
        if file.exists() and file.stat().st_mode & 0o077:
            file.chmod(0o600)


def _unusable(path: pathlib.Path, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option='[compute] journal',
        problem=f'{path} cannot be used: {problem}',
        fix='Name a file on a disk that survives a restart, for this agent alone',
    )
