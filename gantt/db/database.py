# SPDX-License-Identifier: Apache-2.0
"""The database of a process, shared by its stores, and the transactions that their methods are."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from gantt.db.engine import retry
from gantt.db.engine.session import Savepoints, Transactions, Tx, family, without_deadlines
from gantt.db.hosts.rows import RowCache
from gantt.db.schema import models

T = TypeVar('T')
P = ParamSpec('P')

#: Connections for reading that stay open while idle.
READERS_MOST = 4
#: Connections for commits of batches, alike.
COMMITTERS_MOST = 2
#: Planning a batch anew each time takes longer than running it, and its statements
#: are alike for all values.  A plan prepared while a table was small must not read the whole
#: table for ever, so sequential scans are off.  Hence connections of their own.
COMMIT_SETTINGS = ('SET plan_cache_mode = force_generic_plan', 'SET enable_seqscan = off')


class Database:
    """Connections to a database, and the cache of its rows; any number of them may share it.

    :param policy: how often, and for how long, a failed transaction is run again
    :param fast: commit, and open requests, in one round trip where the driver allows it
    :ivar writes: for transactions that write
    :ivar reads: for transactions that only read: they lock no rows
    :ivar commits: for commits of batches
    :ivar autocommit: for statements that are a transaction each; None: not used here
    :ivar memory: rows that were read, of all stores
    """

    def __init__(
        self, engine: sa.Engine, policy: retry.RetryPolicy | None = None, *, fast: bool = True
    ) -> None:
        self.engine = engine
        self.kind = family(engine)
        self.memory = RowCache()
        self._policy = policy
        self._transactions: list[Transactions] = []
        self.writes = self.transactions()
        # Each statement has a snapshot of its own anyhow, except those after snapshot().
        self.reads = self.transactions(
            keep=READERS_MOST,
            session_settings=without_deadlines(self.kind),
            autocommit=self.kind == 'postgresql',
        )
        self.commits = self.writes
        self.autocommit: Transactions | None = None
        if fast and self.kind == 'postgresql' and engine.dialect.driver == 'psycopg':
            self.commits = self.transactions(COMMITTERS_MOST, COMMIT_SETTINGS)
            self.autocommit = self.transactions(autocommit=True)

    @classmethod
    def on(cls, savepoints: Savepoints) -> 'Database':
        """Return the database of a dry run: with caches of its own, as nothing undone may stay."""
        database = cls(savepoints.engine, fast=False)
        database.writes = database.reads = database.commits = savepoints
        return database

    def transactions(
        self,
        keep: int = 8,
        session_settings: Sequence[str] = (),
        *,
        autocommit: bool = False,
        policy: retry.RetryPolicy | None = None,
    ) -> Transactions:
        """Return transactions on connections of their own, which are closed with the database.

        :param policy: None: that of the database
        """
        added = Transactions(
            self.engine, policy or self._policy, keep, session_settings, autocommit=autocommit
        )
        self._transactions.append(added)
        return added

    @property
    def is_fast(self) -> bool:
        """True where batches are committed in one round trip, or two."""
        return self.commits is not self.writes

    @property
    def connections_lost(self) -> int:
        """Number of connections for writing that broke so far."""
        return self.writes.lost + (self.commits.lost if self.is_fast else 0)

    def ping(self) -> float:
        return self.reads.read(lambda tx: tx.now)

    def silent_for(self) -> float:
        return self.writes.silent_for()

    def check_rights(self) -> None:
        self.writes.write(_check_rights)

    def close(self) -> None:
        for transactions in self._transactions:
            transactions.close()
        self.engine.dispose()


def _check_rights(tx: Tx) -> None:
    # The server checks the rights of a statement before it reads rows.
    for table in models.metadata.sorted_tables:
        columns = list(table.columns)
        tx.run(sa.insert(table).from_select(columns, sa.select(table).where(sa.false())))
        tx.run(sa.update(table).values({columns[0]: columns[0]}).where(sa.false()))
        tx.run(sa.delete(table).where(sa.false()))


class SqlStore:
    """A store: operations on one database, mostly a transaction each."""

    def __init__(self, database: Database) -> None:
        self.database = database


S = TypeVar('S', bound=SqlStore)


def _in_transaction(
    run: Callable[[Database, Callable[[Tx], Any]], Any],
) -> Callable[[Callable[Concatenate[S, Tx, P], T]], Callable[Concatenate[S, P], T]]:
    """Return a decorator for methods of a store: ``run`` runs them, callers omit ``tx``."""

    def decorate(method: Callable[Concatenate[S, Tx, P], T]) -> Callable[Concatenate[S, P], T]:
        @functools.wraps(method)
        def call(self: S, /, *args: P.args, **options: P.kwargs) -> T:
            result: T = run(self.database, lambda tx: method(self, tx, *args, **options))
            return result

        return call

    return decorate


reading = _in_transaction(lambda database, work: database.reads.read(work))
#: Decorator for statements that may take long.
reading_long = _in_transaction(lambda database, work: database.reads.read(work, patient=True))
writing = _in_transaction(lambda database, work: database.writes.write(work))
#: Decorator for callers that cannot wait for long: rows that stay locked are waited for once.
writing_once = _in_transaction(lambda database, work: database.writes.write_once(work))
