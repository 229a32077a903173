# SPDX-License-Identifier: Apache-2.0
"""SQLite databases whose clock is virtual, and which may end before any statement.

They are used from run to run, as making one takes longer than a run.
"""

import pathlib
import sqlite3
import tempfile
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from gantt.db.engine.engine import CLOCK, build_engine
from gantt.db.schema import migration

#: Replacement of the machine's clock.
VIRTUAL_CLOCK = 'gantt_virtual_clock()'


class DatabaseFile:
    """One file with its engine.

    :ivar now: returns the time, seconds since the epoch
    :ivar before: is called with each statement before it begins
    """

    def __init__(self, path: pathlib.Path, empty: sqlite3.Connection) -> None:
        self.now: Callable[[], float] = float
        self.before: Callable[[str], None] = _nothing
        self._empty = empty
        self.raw = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self.engine = build_engine(f'sqlite:///{path}', sqlite_synchronous=False)
        sa.event.listen(self.engine, 'connect', self._connected)
        sa.event.listen(self.engine, 'before_cursor_execute', self._statement, retval=True)

    def clear(self) -> None:
        """Empty it: with the schema, and nothing else."""
        self.put_back(self._empty)

    def copy(self) -> sqlite3.Connection:
        """Return all that is in it, as a backup."""
        backup = sqlite3.connect(':memory:', check_same_thread=False)
        self.raw.backup(backup)
        return backup

    def put_back(self, backup: sqlite3.Connection) -> None:
        """Restore a backup; what was in the file by then is lost."""
        backup.backup(self.raw)

    def close(self) -> None:
        """Close its connections; the file stays."""
        self.raw.close()
        self.engine.dispose()

    def _connected(self, connection: Any, record: Any) -> None:
        connection.create_function('gantt_virtual_clock', 0, lambda: self.now())

    def _statement(
        self, connection: Any, cursor: Any, text: str, given: Any, context: Any, many: bool
    ) -> tuple[str, Any]:
        self.before(text)
        return text.replace(CLOCK['sqlite'], VIRTUAL_CLOCK), given


class DatabaseFiles:
    """A pool of database files that are idle."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix='gantt-sim-')
        self._idle: list[DatabaseFile] = []
        self._made = 0
        self._empty = self._template()

    def take(self) -> DatabaseFile:
        """Return an empty one."""
        file = self._idle.pop() if self._idle else self._another()
        file.clear()
        return file

    def release(self, file: DatabaseFile) -> None:
        """Take back a file that is not used any more."""
        file.before, file.now = _nothing, float
        self._idle.append(file)

    def close(self) -> None:
        """Delete all files."""
        for file in self._idle:
            file.close()
        self._idle.clear()
        self._empty.close()
        self._folder.cleanup()

    def _another(self) -> DatabaseFile:
        self._made += 1
        return DatabaseFile(pathlib.Path(self._folder.name, f'{self._made}.db'), self._empty)

    def _template(self) -> sqlite3.Connection:
        path = pathlib.Path(self._folder.name, 'empty.db')
        engine = build_engine(f'sqlite:///{path}', sqlite_synchronous=False)
        migration.sync(engine)
        engine.dispose()
        copied = sqlite3.connect(':memory:', check_same_thread=False)
        with sqlite3.connect(path) as written:
            written.backup(copied)
        return copied


def _nothing(text: str) -> None:
    pass
