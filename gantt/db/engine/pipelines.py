# SPDX-License-Identifier: Apache-2.0
"""psycopg's connections: waits that are seen, pipelines with nothing said after their end.

PostgreSQL counts how long a transaction is idle from the answer to Sync on, and
stops counting at any message.  psycopg ends a pipeline with Sync and then asks
for a Flush, which has no answer: a process that stands still after that keeps
its row locks for as long as it stands, whatever
``idle_in_transaction_session_timeout`` says.  Sync flushes as well, so the other
message is left out.

psycopg waits for the answer to BEGIN before it sends the first statement of a
pipeline: a round trip of its own.  Here it goes out with that statement.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from gantt.db.engine import waiting
from gantt.db.engine.watch import Exchange


class StatementPipeline(psycopg.Pipeline):
    """Ends with Sync; of one whose connection broke there is nothing left to end.

    :ivar has_begun: BEGIN was sent; the connection shows it only after Sync
    :ivar has_ended: COMMIT was sent, likewise
    """

    has_begun = has_ended = False

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None and self.pgconn.status == psycopg.pq.ConnStatus.BAD:
            self._exit(error)
        else:
            super().__exit__(kind, error, trace)

    def _sync_gen(self) -> Any:
        self.has_begun = self.has_ended = False
        yield from super()._sync_gen()

    def _exit_gen(self) -> Any:
        try:
            self._enqueue_sync()
            yield from self._communicate_gen()
        except Exception:
            # What the statements after it say is only that there was one before.
            with contextlib.suppress(psycopg.Error):
                yield from self._fetch_gen(flush=True)
            raise
        yield from self._fetch_gen(flush=False)


class PipelinedConnection(psycopg.Connection[Any]):
    """Its pipelines are such; those of ``executemany`` too.

    :ivar exchange: what others see of its waits
    :ivar meanwhile: what is done in these once COMMIT was sent in a pipeline; None: nothing
    """

    exchange: Exchange | None = None
    meanwhile: waiting.Meanwhile | None = None

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """See psycopg."""
        exchange = self.exchange
        if exchange is None:
            return super().wait(*arguments, **options)
        exchange.begin()
        try:
            found = self._waited(*arguments, **options)
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

    def _waited(self, asked: Any, *arguments: Any, **options: Any) -> Any:
        made = self._pipeline
        if self.meanwhile is None or not (isinstance(made, StatementPipeline) and made.has_ended):
            return super().wait(asked, *arguments, **options)
        # Not before COMMIT: what is locked until then others wait for.
        return waiting.wait(asked, self.pgconn.socket, self.meanwhile)

    def _start_query(self) -> Any:
        made = self._pipeline
        if isinstance(made, StatementPipeline) and made.has_ended:
            yield from made._sync_gen()
        if not isinstance(made, StatementPipeline) or self.autocommit or not self._is_idle:
            yield from super()._start_query()
        elif not made.has_begun:
            made.has_begun = True
            yield from self._exec_command(self._get_tx_start_command())

    def _commit_gen(self) -> Any:
        made = self._pipeline
        if isinstance(made, StatementPipeline) and made.has_begun:
            made.has_begun, made.has_ended = False, True
            yield from self._exec_command(b'COMMIT')
        else:
            yield from super()._commit_gen()

    def _rollback_gen(self) -> Any:
        if self._pipeline is not None or self._num_transactions or self._tpc:
            yield from super()._rollback_gen()
        elif not self._is_idle:
            # psycopg would forget what is prepared, and have the server do so, for tables that
            # go with the transaction.  No statement of ours is about one, and to plan them all
            # again takes longer than to run them.
            yield from self._exec_command(b'ROLLBACK')

    @property
    def _is_idle(self) -> bool:
        return self.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE

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
