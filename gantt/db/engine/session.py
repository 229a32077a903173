# SPDX-License-Identifier: Apache-2.0
"""Transactions: run, and run again where that helps, within bounds.

``Transactions`` keeps its connections checked out between transactions: oslo.db's pool pings the
server each time a connection is taken, which is one round trip more, and opens SQLite's file anew
each time.  A connection that broke meanwhile is replaced by the retry policy.
"""

import contextlib
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.compiler import compiles

from gantt import exceptions
from gantt.db.engine import retry, watch
from gantt.db.engine.engine import (
    CLOCK,
    Timeouts,
    build_engine,
    connections_most,
    engine_from_conf,
    family,
    without_deadlines,
    without_lock_waits,
)

__all__ = [
    'CLOCK',
    'Now',
    'Savepoints',
    'Transactions',
    'Tx',
    'Timeouts',
    'build_engine',
    'engine_from_conf',
    'family',
    'without_deadlines',
    'without_lock_waits',
]

T = TypeVar('T')
V = TypeVar('V')

#: After so many connections lost in a row the server may have ended them for being idle: a process
#: that is busy between two statements, or hardly gets to run, is given the time.
IDLE_CONNECTIONS_LOST_MAX = 2


class Now(sa.FunctionElement[float]):
    """The database's clock, to be read along with other columns."""

    name = 'gantt_now'
    type = sa.Double()
    inherit_cache = True


@compiles(Now)
def _now(element: Now, compiler: Any, **options: Any) -> str:
    return CLOCK['mysql' if compiler.dialect.name == 'mariadb' else compiler.dialect.name]


def bound(*columns: str) -> dict[str, sa.BindParameter[Any]]:
    """Return values of an update that are bound by the names of their columns."""
    return {column: sa.bindparam(column) for column in columns}


#: Most values that one statement names.
VALUES_PER_STATEMENT = 500


def in_parts(values: Iterable[V], size: int | None = None) -> Iterator[list[V]]:
    """Yield values in lists, each of which one statement can name."""
    all_values, size = list(values), size or VALUES_PER_STATEMENT
    for start in range(0, len(all_values), size):
        yield all_values[start : start + size]


class Tx:
    """A transaction under way."""

    def __init__(self, connection: sa.Connection, kind: str, autocommit: bool = False) -> None:
        self.connection = connection
        self.kind = kind
        self._autocommit = autocommit
        #: For the stamps that this transaction writes: random, not counted, so that the cache of a
        #: failed transaction is never taken for another's.
        self.stamp = random.getrandbits(62)
        #: Callbacks after the transaction is committed.
        self.after: list[Callable[[], None]] = []
        self._now: float | None = None

    @property
    def now(self) -> float:
        """The database's clock, read once per transaction."""
        if self._now is None:
            self._now = float(
                self.connection.exec_driver_sql(f'SELECT {CLOCK[self.kind]}').scalar_one()
            )
        return self._now

    @now.setter
    def now(self, seconds: float) -> None:
        if self._now is None:
            self._now = float(seconds)

    def snapshot(self) -> None:
        """Let all statements of the transaction see one snapshot; to be called before the first."""
        if self._autocommit:
            self.connection.exec_driver_sql('BEGIN ISOLATION LEVEL REPEATABLE READ')
        elif self.kind != 'sqlite':  # its transactions are always snapshots
            self.connection.exec_driver_sql('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ')

    def all(self, statement: Any, **parameters: Any) -> Sequence[Any]:
        """Return the rows of a query."""
        return self.connection.execute(statement, parameters).all()

    def in_parts(self, statement: Any, **values: Iterable[Any]) -> Iterator[Any]:
        """Yield the rows of a query by one list of values, which may be long."""
        ((name, all_values),) = values.items()
        for part in in_parts(all_values):
            yield from self.all(statement, **{name: part})

    def stream(self, statement: Any, **parameters: Any) -> Iterator[Any]:
        """Yield the rows of a large query, fetched a few thousand at a time."""
        for part in self.connection.execute(statement, parameters).partitions(5000):
            yield from part

    def first(self, statement: Any, **parameters: Any) -> Any:
        """Return the first row of a query, or None."""
        return self.connection.execute(statement, parameters).first()

    def run(self, statement: Any, **parameters: Any) -> int:
        """Run a statement; return the number of rows matched."""
        return self.connection.execute(statement, parameters).rowcount

    def run_many(self, statement: Any, rows: Sequence[dict[str, Any]]) -> int:
        """Run a statement for each of ``rows``, if any; return the number of rows matched."""
        return self.connection.execute(statement, rows).rowcount if rows else 0

    def insert_new(self, table: sa.Table, rows: Sequence[dict[str, Any]], *key: str) -> None:
        """Insert rows, except those whose ``key`` is stored, ascending by it.

        A row that another transaction is just inserting is waited for.
        """
        if rows:
            rows = sorted(rows, key=lambda row: [row[name] for name in key])
            self.connection.execute(_insert_new(table, key, self.kind), rows)

    def insert_or_step(
        self, table: sa.Table, rows: Sequence[dict[str, Any]], key: str, counter: str
    ) -> None:
        """Insert rows, and increase ``counter`` of those that are stored; all end up locked."""
        if rows:
            rows = sorted(rows, key=lambda row: row[key])
            self.connection.execute(_insert_new(table, (key,), self.kind, counter), rows)


_insert_statements: dict[tuple[str, str, str], Any] = {}


def _insert_new(table: sa.Table, key: tuple[str, ...], kind: str, counter: str = '') -> Any:
    statement = _insert_statements.get((table.name, kind, counter))
    if statement is None:
        # A literal: PyMySQL sends many rows in one statement only where the rest has no values.
        counter_step = {counter: table.c[counter] + sa.literal_column('1')} if counter else {}
        if kind == 'mysql':
            # Not IGNORE, which hides other errors and takes a shared lock first.
            statement = mysql.insert(table).on_duplicate_key_update(
                counter_step or {key[0]: table.c[key[0]]}
            )
        else:
            insert = (postgresql if kind == 'postgresql' else sqlite).insert(table)
            if counter:
                statement = insert.on_conflict_do_update(
                    index_elements=list(key), set_=counter_step
                )
            else:
                statement = insert.on_conflict_do_nothing(index_elements=list(key))
        _insert_statements[(table.name, kind, counter)] = statement
    return statement


def _as_own_error(error: Exception) -> Exception:
    """Return the exception that callers get for an error that a retry would not cure."""
    root = retry.root_cause(error)
    module = type(root).__module__.partition('.')[0]
    if module not in ('psycopg', 'pymysql', 'sqlite3'):
        return error
    if retry.is_disk_full(root):
        return exceptions.DatabaseFull(problem=retry.problem_text(error))
    if retry.refusal_of(root):
        return retry.unavailable(error)
    if retry.lacks_table(root):
        problem = retry.problem_text(error)
        return exceptions.DatabaseNotSynced(
            f'a table is missing in the database: {problem}; restore the database, or begin with '
            'an empty one and run "gantt-manage db sync"',
            problem=problem,
        )
    kinds = {kind.__name__ for kind in type(root).__mro__}
    if kinds & {'IntegrityError', 'ProgrammingError', 'DataError'}:
        return exceptions.Bug(invariant=f'the database takes what it is given: {root}')
    return retry.unavailable(error)


def _discard(connection: sa.Connection) -> None:
    """Close a connection that may be in any state, and its connection to the server."""
    with contextlib.suppress(Exception):
        connection.invalidate()
    with contextlib.suppress(Exception):
        connection.close()


class WorkAbandoned(Exception):
    """Raised by work that rolls its transaction back itself; its connection can be used again."""


class Transactions:
    """Runner of transactions with retries, within bounds.

    :param keep: number of connections that are kept while idle
    :param session_settings: statements that its connections run beside the usual ones
    :param autocommit: each statement is a transaction of its own, without BEGIN and COMMIT around
        it, unless the work begins with ``Tx.snapshot``: PostgreSQL only
    """

    def __init__(
        self,
        engine: sa.Engine,
        policy: retry.RetryPolicy | None = None,
        keep: int = 8,
        session_settings: Sequence[str] = (),
        *,
        autocommit: bool = False,
    ) -> None:
        self.engine = engine
        self.kind = family(engine)
        self.policy = policy or retry.RetryPolicy()
        self._idle_connections_max = keep
        self._session_settings = session_settings
        self._autocommit = autocommit
        #: Number of connections that broke: another server may have answered since.
        self.lost = 0
        self._idle: list[sa.Connection] = []
        self._is_closed = False
        self._lock = threading.Lock()
        self._orphans: list[sa.Connection] = []
        self._pid = os.getpid()
        self._users = PoolUsers.users_of(engine)
        self._users.add(self)
        # SQLite has one writer anyway: queue for it instead of polling.
        self._writer = threading.Lock() if self.kind == 'sqlite' else None

    def write(
        self,
        work: Callable[[Tx], T],
        already_committed: Callable[[Tx], T | None] | None = None,
        *,
        patient: bool = False,
        once_locked: bool = False,
    ) -> T:
        """Run ``work`` in a transaction and commit.

        :param already_committed: run first after a COMMIT whose outcome is not known:
            the result if that transaction turns out to be committed, else None
        :param patient: as in ``read``
        :param once_locked: rows that stay locked are waited for once
        :raises Busy: rows stay locked
        :raises RowsLocked: the same, with ``once_locked``
        :raises DatabaseUnavailable: it did not succeed within the bounds
        """
        is_unknown, lost_count = False, 0
        for attempt in self.policy.rounds():
            try:
                if is_unknown and already_committed is not None:
                    result = self._run_once(already_committed, False)
                    if result is not None:
                        return result
                    is_unknown = False
                return self._run_once(work, False, patient, lost_count >= IDLE_CONNECTIONS_LOST_MAX)
            except Exception as e:
                signal = retry.signal_of(e)
                if signal is None:
                    raise _as_own_error(e) from e
                lost_count += signal is retry.RetrySignal.LOST
                is_unknown = is_unknown or isinstance(e, retry.CommitOutcomeUnknown)
                if once_locked and signal is retry.RetrySignal.LOCKED:
                    raise retry.RowsLocked(retry.problem_text(e)) from e
                attempt.failed(signal, e)
        raise exceptions.Bug(invariant='the last round of a retry raises')

    def write_once(self, work: Callable[[Tx], T]) -> T:
        """Write for a caller that cannot wait for long.  :raises Busy: rows stay locked"""
        try:
            return self.write(work, once_locked=True)
        except retry.RowsLocked as e:
            raise retry.busy() from e

    def read(self, work: Callable[[Tx], T], *, patient: bool = False) -> T:
        """Run ``work`` in a transaction that only reads.

        :param patient: its statements may take long: their answers are waited for longer,
            and do not count as silence of the database
        :raises DatabaseUnavailable: it did not succeed within the bounds
        """
        for attempt in self.policy.rounds():
            try:
                return self._run_once(work, True, patient)
            except Exception as e:
                signal = retry.signal_of(e)
                if signal is None:
                    raise _as_own_error(e) from e
                attempt.failed(signal, e)
        raise exceptions.Bug(invariant='the last round of a retry raises')

    def rolled_back(self, work: Callable[['Savepoints'], T]) -> T:
        """Return the result of ``work``, all of whose transactions are undone in the end.

        :param work: runs its transactions on what it is given; repeated after a conflict
        :raises Busy: rows stay locked
        :raises DatabaseUnavailable: it did not succeed within the bounds
        """
        results: list[T] = []

        def run(tx: Tx) -> None:
            results.append(work(Savepoints(self.engine, tx)))
            raise WorkAbandoned

        with contextlib.suppress(WorkAbandoned):
            self.write_once(run)
        return results[-1]

    def _run_once(
        self, work: Callable[[Tx], T], reads: bool, patient: bool = False, slow: bool = False
    ) -> T:
        if self._writer is None or reads:
            return self._on_connection(work, reads, patient, slow)
        if not self._writer.acquire(timeout=self.policy.seconds):
            raise retry.RetryTransaction('another thread keeps the database')
        try:
            return self._on_connection(work, reads, patient, slow)
        finally:
            self._writer.release()

    def _on_connection(self, work: Callable[[Tx], T], reads: bool, patient: bool, slow: bool) -> T:
        with self.without_deadlines() if slow else self.connection() as connection:
            if self.kind == 'sqlite':
                connection.info['gantt_reads'] = reads
            else:
                watch.set_patient(connection, patient)
            transaction = connection.begin()
            tx = Tx(connection, self.kind, self._autocommit)
            try:
                result = work(tx)
            except BaseException:
                # Broken connections cannot roll back; the original error has more information.
                with contextlib.suppress(Exception):
                    transaction.rollback()
                raise
            try:
                self.commit(transaction)
            except Exception as e:
                with contextlib.suppress(Exception):
                    transaction.rollback()
                if retry.signal_of(e) is retry.RetrySignal.LOST:
                    raise retry.CommitOutcomeUnknown(retry.problem_text(e)) from e
                raise
            for callback in tx.after:
                callback()
            return result

    def commit(self, transaction: sa.Transaction) -> None:
        """Send COMMIT; a method of its own so that a test can lose the answer to it."""
        transaction.commit()

    @contextlib.contextmanager
    def connection(self) -> Any:
        """Provide a connection for one transaction; it is kept afterwards unless it failed."""
        connection = self._take_connection()
        try:
            yield connection
        except BaseException as e:
            is_sound = isinstance(e, exceptions.GanttError | retry.RetryTransaction | WorkAbandoned)
            if is_sound or retry.signal_of(e) in (
                retry.RetrySignal.CONFLICT,
                retry.RetrySignal.LOCKED,
            ):
                self._release_connection(connection)
                raise
            _discard(connection)
            if retry.signal_of(e) is retry.RetrySignal.LOST:
                # The cause broke the others too: each of them would use up a try.
                self.close_idle()
                self.lost += 1
            raise
        self._release_connection(connection)

    @contextlib.contextmanager
    def without_deadlines(self) -> Any:
        """Provide a connection whose transactions may be idle for long; it is closed afterwards."""
        connection = self._open((*self._session_settings, *without_deadlines(self.kind)))
        try:
            yield connection
        finally:
            _discard(connection)

    def _take_connection(self) -> sa.Connection:
        with self._lock:
            if self._pid != os.getpid():
                # A fork: these belong to the parent and must not even be closed here,
                # which would end the parent's session.
                self._orphans += self._idle
                self._pid = os.getpid()
                self._idle = []
            while self._idle:
                connection = self._idle.pop()
                if not (connection.closed or connection.invalidated):
                    return connection
        return self._open(self._session_settings)

    def _open(self, session_settings: Sequence[str]) -> sa.Connection:
        with self._users.opening():
            connection = self.engine.connect()
        try:
            if self._autocommit:
                connection = connection.execution_options(isolation_level='AUTOCOMMIT')
            if self.kind != 'sqlite':
                watch.set_patient(connection, False)
            if session_settings:
                with connection.begin():
                    for statement in session_settings:
                        connection.exec_driver_sql(statement)
        except BaseException:
            _discard(connection)
            raise
        return connection

    def close_idle(self) -> None:
        """Close the idle connections."""
        with self._lock:
            if self._pid != os.getpid():
                return  # they belong to the parent
            idle, self._idle = self._idle, []
        for connection in idle:
            _discard(connection)

    def _release_connection(self, connection: sa.Connection) -> None:
        with self._lock:
            is_closed = self._is_closed
            if (
                not is_closed
                and len(self._idle) < self._idle_connections_max
                and not self._users.is_short()
            ):
                self._idle.append(connection)
                return
        if self._session_settings or is_closed:
            # Its settings must not reach other users; the pool that it came from may be gone.
            _discard(connection)
        else:
            connection.close()

    def silent_for(self) -> float:
        """Return the seconds of the longest current wait for an answer, except long statements.

        Covers all connections to this database; cheap, thread-safe.
        """
        return watch.silent_for(self.engine)

    def close(self) -> None:
        """Return every connection to the engine's pool; those in use are closed after their use."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            with contextlib.suppress(Exception):
                connection.close()


class _Step(Tx):
    """A savepoint under way."""

    def snapshot(self) -> None:
        """Do nothing: earlier statements of the outer transaction have set the snapshot."""


class Savepoints(Transactions):
    """Runner of transactions as savepoints of one transaction, which decides about all of them.

    Conflicts and broken connections are errors of that transaction: nothing is run again here, and
    callbacks after a commit are not called.
    """

    def __init__(self, engine: sa.Engine, tx: Tx) -> None:
        super().__init__(engine)
        self._tx = tx

    def write(
        self,
        work: Callable[[Tx], T],
        already_committed: Callable[[Tx], T | None] | None = None,
        *,
        patient: bool = False,
        once_locked: bool = False,
    ) -> T:
        """Run ``work`` in a savepoint, which is undone where it raises."""
        connection = self._tx.connection
        savepoint = connection.begin_nested()
        try:
            result = work(_Step(connection, self.kind))
        except BaseException:
            # After a deadlock there is none any more; the original error has more information.
            with contextlib.suppress(Exception):
                savepoint.rollback()
            raise
        savepoint.commit()
        return result

    def read(self, work: Callable[[Tx], T], *, patient: bool = False) -> T:
        """Run ``work``, which only reads, in a savepoint."""
        return self.write(work)


class PoolUsers:
    """The users of one engine that keep connections checked out.  Thread-safe.

    In a small pool another user would wait for a connection that one of them keeps idle, until its
    wait times out: a pool that runs short gets them back.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._most = connections_most(engine)
        # A weak reference: the users of an engine must not keep it alive.
        self._engine = weakref.ref(engine)
        self._users: weakref.WeakSet[Transactions] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._opening_count = 0

    @classmethod
    def users_of(cls, engine: sa.Engine) -> 'PoolUsers':
        """Return the users of an engine, the same object each time."""
        with _POOL_USERS_LOCK:
            users = _POOL_USERS.get(engine)
            if users is None:
                users = _POOL_USERS[engine] = cls(engine)
            return users

    def add(self, user: Transactions) -> None:
        """Add a user of the pool by a weak reference, which ends with the user."""
        with self._lock:
            self._users.add(user)

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Wrap taking a connection out of the pool: if it has none left, idle ones close."""
        if self._most is None:
            yield
            return
        with self._lock:
            self._opening_count += 1
            users = list(self._users) if self.is_short() else []
        try:
            for user in users:
                user.close_idle()
            yield
        finally:
            with self._lock:
                self._opening_count -= 1

    def is_short(self) -> bool:
        """Return whether a user may have to wait for a connection: then none is kept."""
        engine = self._engine()
        if self._most is None or engine is None:
            return False
        pool = engine.pool
        if not isinstance(pool, sa.pool.QueuePool):
            return False
        return pool.checkedout() + self._opening_count > self._most


_POOL_USERS: 'weakref.WeakKeyDictionary[sa.Engine, PoolUsers]' = weakref.WeakKeyDictionary()
_POOL_USERS_LOCK = threading.Lock()
