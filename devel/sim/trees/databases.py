# SPDX-License-Identifier: Apache-2.0
"""The database of a zone: production statements on SQLite, over lines that fail."""

import dataclasses
import functools
import random
import sqlite3
from collections.abc import Callable
from typing import Any, Protocol, cast

from devel.sim import database, plan
from devel.sim.loop import Killed, Loop, Process, ProcessClock
from devel.sim.trees.files import DatabaseFile
from gantt import exceptions
from gantt.core.claims.quota import Limit
from gantt.db.stores import SqlStores, sql_stores
from gantt.scheduler.ports import Feed, Stores

#: Read by a process under a lock of its own: no other task of it may run meanwhile.
AT_ONCE = database.AT_ONCE | {'zone_identity'}
#: Written by requests over zones as well.
WRITES = database.WRITES | {
    'open_request',
    'finish_request',
    'note_changes_below',
    'decide_group_zone',
    'add_releases',
    'end_releases',
    'end_lost',
    'note_allocation',
    'read_back',
    'end_abandoned_request',
}
#: What begins a transaction: to die there is to die before it.
_BEGINS = ('BEGIN', 'SELECT gantt_virtual', 'PRAGMA')


class WriteWatch(Protocol):
    """Looks at what was written."""

    def wrote(self, zone: str, who: str, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Note that a statement of a process had its effect."""


class ZoneDatabase:
    """The database of a zone; see the module docstring.

    :ivar away_until: it answers no process before
    :ivar lost_answers: so many of the next writes have their effect and no answer
    :ivar statements: by process: it dies before the statement of that number from now on
    """

    def __init__(
        self, loop: Loop, rng: random.Random, zone: str, file: DatabaseFile, watch: WriteWatch
    ) -> None:
        self.loop, self.rng, self.zone, self.file = loop, rng, zone, file
        self.away_until = 0.0
        self.lost_answers = 0
        self.statements: dict[str, int] = {}
        self.restored = 0
        self._watch = watch
        self._backup: sqlite3.Connection | None = None
        self._acting: Process | None = None
        self._opened: list[SqlStores] = []
        file.now = ProcessClock(Process(loop, f'database {zone}')).wall
        file.before = self._statement
        self.stores = self.open()

    def open(self) -> SqlStores:
        """Return the stores of a process of its own."""
        opened = sql_stores(self.file.engine, report_seconds=plan.REPORT_SECONDS)
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        """Close all connections."""
        for opened in self._opened:
            opened.database.close()

    def line(self, process: Process) -> Stores:
        """Return the stores as a process has them."""
        opened = self.open()
        ports = {field.name: getattr(opened, field.name) for field in dataclasses.fields(Stores)}
        return Stores(
            **{name: cast(Any, ZoneLine(self, process, port)) for name, port in ports.items()}
        )

    def rows(self, query: str, *given: Any) -> list[tuple[Any, ...]]:
        """Return rows, read from outside."""
        return self.file.raw.execute(query, given).fetchall()

    # -- backups -----------------------------------------------------------------
    def keep(self) -> None:
        """Make a backup."""
        self._backup = self.file.copy()

    def restore(self) -> None:
        """Restore the backup, as in the operator's handbook: with a new incarnation."""
        if self._backup is not None:
            self.file.put_back(self._backup)
            self.file.raw.execute('UPDATE meta SET incarnation = incarnation + 1')
            self.restored += 1

    # -- what a line does ----------------------------------------------------------
    def call(self, process: Process, name: str, method: Callable[..., Any], *args: Any) -> Any:
        """Run one call of a process: the way there, the effect, the way back."""
        waits = name not in AT_ONCE
        if waits:
            self.loop.sleep(self.rng.uniform(0.001, 0.02))
        writes = name in WRITES
        if self.loop.now < self.away_until:
            raise exceptions.DatabaseUnavailable(problem='it is away')
        if writes:
            process.step('before', name)
        self._acting = process
        try:
            result = method(*args)
        finally:
            self._acting = None
        if writes:
            self._watch.wrote(self.zone, process.name, name, args, result)
            process.step('after', name)
            if self.lost_answers:
                self.lost_answers -= 1
                self.loop.say(process.name, f'receives no answer to {name}')
                raise exceptions.DatabaseUnavailable(problem='the answer is lost')
        if waits:
            self.loop.sleep(self.rng.uniform(0.001, 0.02))
        if name == 'poll':
            return cast(Feed, result)
        return result

    def _statement(self, text: str) -> None:
        """Kill the process before a statement where it is to die here."""
        process = self._acting
        if process is None or process.name not in self.statements or text.startswith(_BEGINS):
            return
        self.statements[process.name] -= 1
        if self.statements[process.name] < 0:
            del self.statements[process.name]
            self.loop.say(process.name, f'dies before {" ".join(text.split())[:40]}')
            process.die()
            raise Killed


class ZoneLine:
    """A port of the database, as one process reaches it."""

    connections_lost = 0  # whoever answers is always the same
    may_refer = False  # decisions are not written

    def __init__(self, zone: ZoneDatabase, process: Process, port: object) -> None:
        self._zone, self._process, self._port = zone, process, port

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith('_'):
            raise AttributeError(name)
        method = getattr(self._port, name)
        return functools.partial(self._call, name, method)

    def limits(self) -> list[Limit]:
        """Return no limits: there are none."""
        return []

    def note_new_allocation(self, *new: Any) -> bool:
        """Return that on SQLite it is checked statement by statement."""
        return False

    def silent_for(self) -> float:
        """Return 0: a line fails at once, or it answers."""
        return 0.0

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == 'purge':  # nothing that a caller waits for
            return 0
        if kwargs:
            method = functools.partial(method, **kwargs)
        return self._zone.call(self._process, name, method, *args)
