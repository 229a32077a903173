# SPDX-License-Identifier: Apache-2.0
"""psycopg's connections: waits that are watched, pipelines without messages after their end.

PostgreSQL measures a transaction's idle time from the answer to Sync on, and stops measuring at
any message.  psycopg ends a pipeline with Sync and then sends a Flush, which has no answer: a
process that stops after that keeps its row locks for as long as it is stopped, in spite of
``idle_in_transaction_session_timeout``.  Sync flushes as well, so the Flush is left out.

psycopg waits for the answer to BEGIN before it sends the first statement of a
pipeline: a round trip of its own.  Here it goes out with that statement.

psycopg writes each statement of a pipeline by itself, after two polls, and the server wakes up for
each.  Here all go out together, when answers are waited for.  Locks are held for less time, too.
"""

import contextlib
import select
from collections.abc import Generator, Iterator
from typing import Any, Protocol

import psycopg
from psycopg import generators
from psycopg.waiting import Ready, Wait

from gantt.db.engine.watch import AnswerWait

#: psycopg's own: seconds between two checks of a connection without messages.
_LOOK_SECONDS = 0.1
#: Seconds in which only the server is waited for after nothing could be read.
_BUSY_SECONDS = 0.002
#: Statements that are kept until answers are waited for; ``executemany`` may have any number.
_STATEMENTS_MAX = 256
_EVENTS = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}


class WorkDuringCommit(Protocol):
    """Work of the caller that goes on while the server works on a COMMIT."""

    def sockets(self) -> list[int]:
        """Return the numbers of the sockets on which messages may come, as of now."""

    def read(self) -> bool:
        """Read what has come, for at most some milliseconds; never raises."""


def wait(asked: Generator[Any, Any, Any], socket: int, meanwhile: WorkDuringCommit) -> Any:
    """Wait like psycopg's ``waiting.wait``, and read other sockets meanwhile.

    psycopg waits for one socket.  A thread that waits for a commit has time for others.

    :param asked: generator that yields the events it waits for on ``socket``, and is sent those
        ready
    :raises psycopg.Error: the connection broke
    """
    try:
        awaited = next(asked)
        while True:
            poll = select.poll()
            poll.register(socket, _EVENTS[awaited])
            for number in meanwhile.sockets():
                poll.register(number, select.POLLIN)
            ready_sockets = dict(poll.poll(1000 * _LOOK_SECONDS))
            events = ready_sockets.pop(socket, 0)
            ready = Ready.NONE
            if events & select.POLLIN:
                ready = Ready.R
            if events & select.POLLOUT:
                ready = Ready.RW if ready else Ready.W
            if events and not ready:
                raise psycopg.OperationalError('connection socket closed')
            if ready or not ready_sockets:
                awaited = asked.send(ready) or awaited
            elif not meanwhile.read():
                # Another thread reads, and is not to be tried again at once.
                poll = select.poll()
                poll.register(socket, select.POLLIN)
                poll.poll(1000 * _BUSY_SECONDS)
    except StopIteration as e:
        return e.value


class StatementPipeline(psycopg.Pipeline):
    """A pipeline that ends with Sync; nothing is left to end if its connection broke.

    :ivar has_begun: whether BEGIN was sent; the connection shows that only after Sync
    :ivar has_ended: whether COMMIT was sent; the connection shows that only after Sync
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
        self._enqueue_sync()
        yield from self._fetch_gen(flush=False)

    def _communicate_gen(self) -> Any:
        if len(self.command_queue) >= _STATEMENTS_MAX:
            self._write_statements()
            yield from super()._communicate_gen()

    def _fetch_gen(self, *, flush: bool) -> Any:
        self._write_statements()
        yield from generators.send(self.pgconn)
        yield from super()._fetch_gen(flush=flush)

    def _write_statements(self) -> None:
        """Write the statements to the buffer of libpq."""
        while self.command_queue:
            self.command_queue.popleft()()


class PipelinedConnection(psycopg.Connection[Any]):
    """A connection whose pipelines are :class:`StatementPipeline`, those of ``executemany`` too.

    :ivar exchange: the connection's wait for an answer, for the watching thread
    :ivar meanwhile: a callback that runs in waits once COMMIT was sent in a pipeline; None: none
    """

    exchange: AnswerWait | None = None
    meanwhile: WorkDuringCommit | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cursors: dict[bytes, psycopg.Cursor[Any]] = {}

    def cursor_of(self, statement: bytes) -> psycopg.Cursor[Any]:
        """Return the cursor of a constant statement, whose results end with its next execution.

        It keeps the conversion of its parameters, which takes longer to set up than to use.
        """
        cursor = self._cursors.get(statement)
        if cursor is None:
            cursor = self._cursors[statement] = self.cursor(binary=True)
        return cursor

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """See psycopg."""
        exchange = self.exchange
        if exchange is None:
            return super().wait(*arguments, **options)
        exchange.begin()
        try:
            result = self._waited(*arguments, **options)
        except BaseException as e:
            if not isinstance(e, psycopg.Error) or e.sqlstate is not None:
                exchange.end()
                raise
            exchange.end_unanswered()
            if exchange.given_up:
                raise psycopg.OperationalError('the answer did not come in time') from e
            raise
        exchange.end()
        return result

    def _waited(self, asked: Any, *arguments: Any, **options: Any) -> Any:
        pipeline = self._pipeline
        if self.meanwhile is None or not (
            isinstance(pipeline, StatementPipeline) and pipeline.has_ended
        ):
            return super().wait(asked, *arguments, **options)
        # Not before COMMIT: others wait for rows that are locked until then.
        return wait(asked, self.pgconn.socket, self.meanwhile)

    def _start_query(self) -> Any:
        pipeline = self._pipeline
        if isinstance(pipeline, StatementPipeline) and pipeline.has_ended:
            yield from pipeline._sync_gen()
        if not isinstance(pipeline, StatementPipeline) or self.autocommit or not self._is_idle:
            yield from super()._start_query()
        elif not pipeline.has_begun:
            pipeline.has_begun = True
            yield from self._exec_command(self._get_tx_start_command())

    def _commit_gen(self) -> Any:
        pipeline = self._pipeline
        if isinstance(pipeline, StatementPipeline) and (pipeline.has_begun or not self._is_idle):
            # It is sent and waited for with the Sync at the end of the pipeline.
            pipeline.has_begun = False
            pipeline.has_ended = True
            yield from self._exec_command(b'COMMIT')
        else:
            yield from super()._commit_gen()

    def _rollback_gen(self) -> Any:
        if self._pipeline is not None or self._num_transactions or self._tpc:
            yield from super()._rollback_gen()
        elif not self._is_idle:
            # psycopg would drop all prepared statements, here and on the server, for tables that
            # are dropped with the transaction.  No statement of ours uses one, and to plan them all
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
        with super().pipeline() as statements:
            yield statements

    @contextlib.contextmanager
    def _pipeline_nolock(self) -> Iterator[psycopg.Pipeline]:
        pipeline = self._pipeline = StatementPipeline(self, _no_lock=True)
        try:
            with pipeline:
                yield pipeline
        finally:
            self._pipeline = None
