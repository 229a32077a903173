# SPDX-License-Identifier: Apache-2.0
"""A process that does one thing to a database, and is killed on the way.

    lived = mortal.run(url, 'claims.sweep', 100, dies_at=3)    # before its third statement
    lived = mortal.run(url, 'claims.sweep', 100, dies_at=3, of_writes=True)    # … that writes
    life = mortal.Life(url, 'claims.sweep', 100)               # to be killed by somebody else

It is forked from a warm one, so that it takes some hundredths of a second.
"""

import operator
import os
import re
import signal
from typing import Any

import sqlalchemy as sa

from gantt.db.claims.commit_postgresql import PessimisticCommitter
from gantt.stores import SqlStores, stores_for_url
from tests import warm

SECONDS = 30.0
#: What a statement that changes something has; locks are none.
_WRITES = re.compile(r'(?<!FOR )(?<!KEY )\b(INSERT|UPDATE|DELETE)\b')


class Life:
    """One process.

    :param url: of the database
    :param verb: method of the store, called with ``arguments``
    :param dies_at: number of the statement before which it dies; COMMIT is one too.  0: never
    :param of_writes: those that read or lock are not counted
    """

    def __init__(
        self, url: str, verb: str, *arguments: Any, dies_at: int = 0, of_writes: bool = False
    ) -> None:
        self._process = warm.PROCESSES.Process(
            target=_live, args=(url, verb, arguments, dies_at, of_writes), daemon=True
        )
        self._process.start()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()

    def end(self) -> bool:
        """Wait for it; whether it was done when it ended.

        :raises AssertionError: it failed otherwise than by being killed
        """
        self._process.join(SECONDS)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
        assert code in (0, -signal.SIGKILL), code
        return code == 0


def run(url: str, verb: str, *arguments: Any, dies_at: int = 0, of_writes: bool = False) -> bool:
    """One life from beginning to end; whether it was done."""
    return Life(url, verb, *arguments, dies_at=dies_at, of_writes=of_writes).end()


def _live(url: str, verb: str, arguments: tuple[Any, ...], dies_at: int, of_writes: bool) -> None:
    store = stores_for_url(url)
    Countdown(dies_at, of_writes).watch(store)
    operator.attrgetter(verb)(store)(*arguments)
    store.database.close()


class Countdown:
    """Counts what is about to be sent, and kills this process before the last of it.

    :ivar left: how much that is; 0 or less: nobody is killed
    """

    def __init__(self, dies_at: int, of_writes: bool = False) -> None:
        self.left = dies_at
        self._of_writes = of_writes

    def watch(self, store: SqlStores) -> None:
        """Step before every statement and every COMMIT."""
        sa.event.listen(store.database.engine, 'before_cursor_execute', self.step)
        for database in {store.database.writes, store.database.commits}:
            database.commit = self.before(database.commit)  # type: ignore[method-assign]
        if isinstance(store.requests.committer, PessimisticCommitter):
            fast: Any = store.requests.committer
            fast.execute = self.before(fast.execute)
            fast.send_commit = self.before(fast.send_commit)

    def before(self, real: Any) -> Any:
        """The same method, with a step before."""

        def stepping(*arguments: Any) -> Any:
            self.step(*arguments)
            return real(*arguments)

        return stepping

    def step(self, *arguments: Any) -> None:
        """One more; its statement is among the arguments, or it is a COMMIT."""
        texts = [
            argument.decode() if isinstance(argument, bytes) else argument for argument in arguments
        ]
        texts = [text for text in texts if isinstance(text, str)]
        if self._of_writes and texts and not any(map(_WRITES.search, texts)):
            return
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
