# SPDX-License-Identifier: Apache-2.0
"""The database of a zone of a tree: production statements on SQLite."""

import random
import sqlite3
from collections.abc import Callable
from typing import Any

from devel.sim import plan
from devel.sim.database import SimDatabase
from devel.sim.loop import Killed, Loop, Process
from devel.sim.trees.files import DatabaseFile
from gantt.stores import SqlStores, sql_stores

#: What begins a transaction: to die there is to die before it.
_BEGINS = ('BEGIN', 'SELECT gantt_virtual', 'PRAGMA')


class SqlDatabase(SimDatabase):
    """A database in a file.

    :ivar statements: by process: it dies before the statement of that number from now on
    """

    stores: SqlStores

    def __init__(self, loop: Loop, rng: random.Random, name: str, file: DatabaseFile) -> None:
        super().__init__(loop, rng, name)
        self.statements: dict[str, int] = {}
        self._file = file
        self._backup: sqlite3.Connection | None = None
        self._acting: Process | None = None
        self._opened: list[SqlStores] = []
        file.now = self.clock.wall
        file.before = self._statement
        self.stores = self.open()

    def open(self) -> SqlStores:
        opened = sql_stores(self._file.engine, report_seconds=plan.REPORT_SECONDS)
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        for opened in self._opened:
            opened.database.close()

    def heal(self) -> None:
        super().heal()
        self.statements.clear()

    def rows(self, query: str, *given: Any) -> list[tuple[Any, ...]]:
        """Return rows, read from outside."""
        return self._file.raw.execute(query, given).fetchall()

    def back_up(self) -> None:
        self._backup = self._file.copy()

    def restore(self) -> None:
        if self._backup is not None:
            self._file.put_back(self._backup)
            self._file.raw.execute('UPDATE meta SET incarnation = incarnation + 1')
            self.restored += 1

    def effect(
        self, process: Process, name: str, method: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """Run the statements of a call; the process may die before each."""

        def by_process(*given: Any) -> Any:
            self._acting = process
            try:
                return method(*given)
            finally:
                self._acting = None

        return super().effect(process, name, by_process, args)

    def _statement(self, text: str) -> None:
        """Kill the process before a statement where it is to die here."""
        process = self._acting
        if process is None or process.name not in self.statements or text.startswith(_BEGINS):
            return
        self.statements[process.name] -= 1
        if self.statements[process.name] < 0:
            del self.statements[process.name]
            self.loop.write_trace(process.name, f'dies before {" ".join(text.split())[:40]}')
            process.die()
            raise Killed
