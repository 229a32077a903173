# SPDX-License-Identifier: Apache-2.0
"""A database is put back to an older state, under stores and processes that live.

    backup = Backup(store)
    ...
    backup.put_back()

The rows of all tables, and the numbers that are given next: an id that was given since is
given again.  In one transaction, so that nobody sees half of it.
"""

import copy
import time
from typing import Any

import msgspec
import sqlalchemy as sa

from devel.memory_store.stores import MemoryStores
from gantt.db.engine import retry
from gantt.db.engine.session import family
from gantt.db.schema import models

TRIES = 50


def _copied(rows: Any) -> Any:
    """Rows of the store in memory: containers anew, and what is in them."""
    if isinstance(rows, dict):
        return {key: _copied(inner) for key, inner in rows.items()}
    if isinstance(rows, set):
        return set(rows)
    return copy.copy(rows) if isinstance(rows, msgspec.Struct) else rows


class Backup:
    """The state of a store at some moment."""

    def __init__(self, store: Any) -> None:
        self._store = store
        if isinstance(store, MemoryStores):
            with store.database.lock:
                self._tables = _copied(vars(store.database.tables))
            return
        self._engine = store.database.engine
        self._kind = family(self._engine)
        with self._engine.connect() as connection:
            if self._kind != 'sqlite':
                connection.exec_driver_sql('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ')
            self._rows = {
                table: [dict(row._mapping) for row in connection.execute(sa.select(table))]
                for table in models.metadata.sorted_tables
            }
            if self._kind == 'sqlite':
                rows = connection.exec_driver_sql('SELECT name, seq FROM sqlite_sequence')
                self._counters = [tuple(row) for row in rows]

    def put_back(self) -> None:
        """Everything is as it was; nobody is told."""
        if isinstance(self._store, MemoryStores):
            with self._store.database.lock:
                vars(self._store.database.tables).update(_copied(self._tables))
            return
        for _ in range(TRIES):
            try:
                with self._engine.begin() as connection:
                    self._write(connection)
                break
            except Exception as e:  # those who write meanwhile are in the way
                if retry.signal_of(e) not in (retry.RetrySignal.CONFLICT, retry.RetrySignal.LOCKED):
                    raise
                time.sleep(0.1)
        else:
            raise AssertionError(f'not put back within {TRIES} tries')
        if self._kind == 'mysql':
            self._count_from_rows()

    def _write(self, connection: sa.Connection) -> None:
        if self._kind == 'postgresql':
            names = ', '.join(table.name for table in self._rows)
            connection.exec_driver_sql(f'LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE')
        for table in reversed(list(self._rows)):
            connection.execute(table.delete())
        for table, rows in self._rows.items():
            if rows:
                connection.execute(table.insert(), rows)
        if self._kind == 'sqlite':
            connection.exec_driver_sql('DELETE FROM sqlite_sequence')
            for counter in self._counters:
                connection.exec_driver_sql('INSERT INTO sqlite_sequence VALUES (?, ?)', counter)
        if self._kind == 'postgresql':
            for table, column in self._counted():
                connection.exec_driver_sql(
                    f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), "
                    f'coalesce(max({column}), 1), max({column}) IS NOT NULL) FROM {table}'
                )

    def _count_from_rows(self) -> None:
        # It ends a transaction; where something is in the way it waits for that.
        with self._engine.connect() as connection:
            for table, _ in self._counted():
                connection.exec_driver_sql(f'ALTER TABLE {table} AUTO_INCREMENT = 1')

    def _counted(self) -> list[tuple[str, str]]:
        """Tables whose ids the database gives, with their column."""
        columns = []
        for table in self._rows:
            column = table.autoincrement_column
            if column is not None and column.autoincrement is not False:
                columns.append((table.name, column.name))
        return columns
