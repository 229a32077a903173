# SPDX-License-Identifier: Apache-2.0
"""psycopg's connections: waits that are seen, pipelines with nothing said after their end.

PostgreSQL counts how long a transaction is idle from the answer to Sync on, and
stops counting at any message.  psycopg ends a pipeline with Sync and then asks
for a Flush, which has no answer: a process that stands still after that keeps
its row locks for as long as it stands, whatever
``idle_in_transaction_session_timeout`` says.  Sync flushes as well, so the other
message is left out.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from gantt.db.engine.watch import Exchange


class StatementPipeline(psycopg.Pipeline):
    """Ends with Sync; of one whose connection broke there is nothing left to end."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None and self.pgconn.status == psycopg.pq.ConnStatus.BAD:
            self._exit(error)
        else:
            super().__exit__(kind, error, trace)

    def _exit_gen(self) -> Any:
        sent = False
        try:
            self._enqueue_sync()
            yield from self._communicate_gen()
            sent = True
        finally:
            yield from self._fetch_gen(flush=not sent)


class PipelinedConnection(psycopg.Connection[Any]):
    """Its pipelines are such; those of ``executemany`` too.

    :ivar exchange: what others see of its waits
    """

    exchange: Exchange | None = None

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """See psycopg."""
        exchange = self.exchange
        if exchange is None:
            return super().wait(*arguments, **options)
        exchange.begin()
        try:
            found = super().wait(*arguments, **options)
        except BaseException as e:
            if not isinstance(e, psycopg.Error) or e.sqlstate is not None:
                exchange.end()
                raise
            exchange.end_in_vain()
            if exchange.given_up:
                raise psycopg.OperationalError('the answer did not come in time') from e
            raise
        exchange.end()
        return found

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """See psycopg."""
        with self.lock:
            if self._pipeline is None:
                self._pipeline = StatementPipeline(self)
        with super().pipeline() as made:
            yield made

    @contextlib.contextmanager
    def _pipeline_nolock(self) -> Iterator[psycopg.Pipeline]:
        made = self._pipeline = StatementPipeline(self, _no_lock=True)
        try:
            with made:
                yield made
        finally:
            self._pipeline = None
