# SPDX-License-Identifier: Apache-2.0
"""Current waits for the database, watched by another thread than the one that waits.

A server whose replies never come, on a connection that TCP still acknowledges, ends no read:
neither keepalives nor ``tcp_user_timeout`` notice, and a statement timeout of the server does not
help a client that gets no answer.  Every connection has an :class:`AnswerWait` with the time
since which it waits; one thread of the process checks all of them and shuts the sockets of those
that waited for too long.
"""

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import sqlalchemy as sa

LOG = logging.getLogger(__name__)

#: Seconds between two checks of the waits.
CHECK_SECONDS = 0.25
#: A process that was not run for so long between two checks may have answers to read.
PROCESS_STALLED_SECONDS = 1.0
#: Seconds of silence after which the log reports the database as silent.
SILENT_SECONDS = 2.0
#: A wait that ended after so long without an answer counts as silence until an answer comes.
UNANSWERED_SECONDS = 1.0
#: Seconds between two such lines.
LOG_INTERVAL_SECONDS = 30.0


class AnswerWait:
    """The wait of one connection for an answer of the server, if there is one.

    :ivar since: monotonic time when it began; 0: no wait
    :ivar patient: a long statement is under way, which is no sign of the server's health
    :ivar given_up: its socket was shut as the answer did not come
    """

    __slots__ = ('__weakref__', '_guard', '_socket', '_watch', 'given_up', 'patient', 'since')

    def __init__(
        self,
        watch: 'SilenceWatch',
        socket_of: Callable[[], int] | None = None,
        patient: bool = True,
    ) -> None:
        self._watch = watch
        self.since = 0.0
        self.patient = patient
        self.given_up = False
        self._socket = socket_of
        self._guard = threading.Lock()

    def begin(self) -> None:
        """Record that a message was sent, or is about to be."""
        self.since = time.monotonic()

    def end(self) -> None:
        """Record that the answer is complete."""
        # While the socket is being shut it stays open: its number is not reused yet.
        with self._guard:
            self.since = 0.0
        if self._watch.unanswered_since:
            self._watch.unanswered_since = 0.0

    def end_unanswered(self) -> None:
        """Record that the answer will not come."""
        with self._guard:
            since, self.since = self.since, 0.0
        watch = self._watch
        if (
            not self.patient
            and time.monotonic() - since > UNANSWERED_SECONDS
            and not watch.unanswered_since
        ):
            watch.unanswered_since = since

    def give_up(self, since: float) -> bool:
        """Shut the socket, so that its reader wakes; return whether that was done."""
        with self._guard:
            if self.since != since or self.given_up or self._socket is None:
                return False
            self.given_up = True
            try:
                # Closing this copy leaves the connection's own open.
                with socket.socket(fileno=os.dup(self._socket())) as copy:
                    copy.shutdown(socket.SHUT_RDWR)
            except Exception:  # closed meanwhile: each driver reports it by an error of its own
                return False
            return True


class SilenceWatch:
    """Waits for answers of all connections of one engine.

    :param answer: seconds to wait for the answer to a statement
    :param patient: seconds to wait for the answer to a long statement
    :param shown: name of the database in the log
    """

    def __init__(self, answer: float, patient: float, shown: str) -> None:
        self.answer = answer
        self.patient = patient
        #: Begin of the first wait that ended without an answer, if none has come since; 0: none.
        self.unanswered_since = 0.0
        self._shown = shown
        self._exchanges: weakref.WeakSet[AnswerWait] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._logged_at = float('-inf')
        self._is_silent = False

    def silent_for(self) -> float:
        """Return the seconds of the longest wait, except long statements.  Thread-safe."""
        waits = [exchange.since for exchange in self._all() if not exchange.patient]
        began = min((since for since in (*waits, self.unanswered_since) if since), default=None)
        return 0.0 if began is None else max(0.0, time.monotonic() - began)

    def add(self, socket_of: Callable[[], int]) -> AnswerWait:
        """Return the wait of a new connection; patient until its user sets it otherwise."""
        exchange = AnswerWait(self, socket_of)
        with self._lock:
            self._exchanges.add(exchange)
        _watch_thread.ensure(self)
        return exchange

    @contextlib.contextmanager
    def dialing(self) -> Iterator[None]:
        """Record the opening of a connection as a wait, bounded by its caller."""
        exchange = AnswerWait(self, patient=False)
        with self._lock:
            self._exchanges.add(exchange)
        exchange.begin()
        try:
            yield
        except BaseException:
            exchange.end_unanswered()
            raise
        exchange.end()

    def check(self, resumed: float) -> None:
        """Give up waits that took too long, and log a silence.

        :param resumed: monotonic time when this process last began to run again
        """
        now = time.monotonic()
        for exchange in self._all():
            since = exchange.since
            seconds_max = self.patient if exchange.patient else self.answer
            if since and now - max(since, resumed) > seconds_max and exchange.give_up(since):
                LOG.warning(
                    'A connection to the database is given up; its work is repeated on another '
                    'one: database=%s seconds=%.1f',
                    self._shown,
                    now - since,
                )
        self._log_silence(self.silent_for(), now)

    def forget(self) -> None:
        """Forget the waits that a fork inherited: they belong to the parent process."""
        self._lock = threading.Lock()
        self._exchanges = weakref.WeakSet()
        self.unanswered_since = 0.0

    def _all(self) -> list[AnswerWait]:
        with self._lock:
            return list(self._exchanges)

    def _log_silence(self, silent: float, now: float) -> None:
        if silent >= SILENT_SECONDS:
            if not self._is_silent and now - self._logged_at >= LOG_INTERVAL_SECONDS:
                self._logged_at = now
                self._is_silent = True
                LOG.warning(
                    'The database does not answer: database=%s seconds=%.1f', self._shown, silent
                )
        elif self._is_silent:
            self._is_silent = False
            LOG.info('The database answers again: database=%s', self._shown)


class _WatchThread:
    """The thread of this process that checks all waits."""

    def __init__(self) -> None:
        self._watches: weakref.WeakSet[SilenceWatch] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ensure(self, watch: SilenceWatch) -> None:
        """Let the thread check ``watch`` as well; start the thread if it does not run yet."""
        with self._lock:
            self._watches.add(watch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name='waits', daemon=True)
                self._thread.start()

    def forked(self) -> None:
        """Reset in a child process: the thread stayed with the parent."""
        self._lock = threading.Lock()
        self._thread = None
        for watch in list(self._watches):
            watch.forget()

    def _run(self) -> None:
        last = resumed = time.monotonic()
        while True:
            time.sleep(CHECK_SECONDS)
            now = time.monotonic()
            if now - last > CHECK_SECONDS + PROCESS_STALLED_SECONDS:
                resumed = now
            last = now
            with self._lock:
                watches = list(self._watches)
            for watch in watches:
                try:
                    watch.check(resumed)
                except Exception:
                    LOG.exception('Check of waits for the database failed; the next one follows')


_watch_thread = _WatchThread()
os.register_at_fork(after_in_child=_watch_thread.forked)
_watches: 'weakref.WeakKeyDictionary[sa.Engine, SilenceWatch]' = weakref.WeakKeyDictionary()


def install(engine: sa.Engine, answer: float, patient: float) -> SilenceWatch:
    """Watch the connections of an engine that has none yet."""
    watch = _watches[engine] = SilenceWatch(
        answer, patient, engine.url.render_as_string(hide_password=True)
    )
    return watch


def silent_for(engine: sa.Engine) -> float:
    """Return :meth:`SilenceWatch.silent_for`; 0 for a database in this process."""
    watch = _watches.get(engine)
    return 0.0 if watch is None else watch.silent_for()


def set_patient(connection: sa.Connection, patient: bool) -> None:
    """Set whether the next statements on a connection may take long."""
    exchange = getattr(connection.connection.driver_connection, 'exchange', None)
    if exchange is not None:
        exchange.patient = patient
