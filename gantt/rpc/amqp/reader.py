# SPDX-License-Identifier: Apache-2.0
"""A consuming connection: declared, read, kept alive, and made anew where it breaks.

A thread of its own does so.  It may be lent to a thread that has other things to do as well: that
one reads the socket itself, between its other tasks, as long as it keeps calling, and nothing is
handed from thread to thread.  The thread here rests meanwhile.  It resumes wherever it is needed:
to attach consumers, to connect again, and where the other thread is held up, so that messages are
taken all the same.  It sends heartbeats at any time.
"""

import contextlib
import functools
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import amqp

from gantt.rpc.amqp import deliveries, refusals
from gantt.rpc.amqp.connection import AWAY, Connection
from gantt.rpc.amqp.queues import Declarer, Queue, restart_stream

LOG = logging.getLogger(__name__)

#: Seconds without a call after which the thread that borrowed it is held up.
HELD_UP_SECONDS = 0.5
#: A read by the thread here while another one may read, which waits for it.
TURN_SECONDS = 0.05
#: The same where no other thread reads; also between two checks whether one does.
LOOK_SECONDS = 1.0
#: Wait for the rest of a message whose first part is there.
_REST_SECONDS = 0.01
#: A read of the broker within the process, which no socket wakes when it is to end.
_IN_PROCESS_SECONDS = 0.05

#: Errors of a connection or a broker that pass by themselves.
_PASSING = (*AWAY, amqp.InternalError)


class QueueReader:
    """A connection that consumes queues.

    :param receive: called with each message and its queue, by the thread that reads
    :param rabbit: [oslo_messaging_rabbit]
    :param name: of its thread
    :param together: messages that are taken by one read at most
    :param taken: ends a read: acknowledges what it took
    :param gather_seconds: pause after a read by the thread here, for more to come
    """

    def __init__(
        self,
        connection: Connection,
        queues: Sequence[Queue],
        receive: Callable[[Queue, Any], None],
        rabbit: Any,
        name: str,
        *,
        together: int = 64,
        taken: Callable[[], None],
        gather_seconds: float = 0.0,
    ) -> None:
        self.connection = connection
        #: New after each reconnection; None before the start and after the end.
        self.channel: Any = None
        self._queues = {str(tag): queue for tag, queue in enumerate(queues, 1)}
        self._receive = receive
        self._rabbit = rabbit
        self._together = together
        self._taken = taken
        self._gather_seconds = gather_seconds
        self._declarer = Declarer()
        #: Tags of queues that are not to be consumed at the moment, and of those that are not.
        self._held: frozenset[str] = frozenset()
        self._detached: set[str] = set()
        self._until = 0.0
        #: True where the last read took no message.
        self._is_empty = True
        self._beat_at = 0.0
        self._lock = threading.Lock()
        # The thread here has something to do between two messages.
        self._needed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_started = False

    # -- life ----------------------------------------------------------------------------------
    def start(self, *, is_patient: bool = True) -> None:
        """Declare the queues and consume.

        :param is_patient: a broker that is away is tried again and again
        :raises Exception: the broker refuses; it is away, and that is not waited for
        """
        self._needed.set()
        self._connect(is_patient=is_patient)
        self._is_started = True
        self._thread.start()

    def end(self) -> None:
        """Let the thread here, and others, read no more."""
        self._stopping.set()
        self._needed.set()

    def stop(self) -> None:
        """Stop reading; what is attached stays so until :meth:`close`."""
        self.end()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def close(self, last: Callable[[Any], None] = lambda channel: None) -> None:
        """Give back what arrives from now on, and close the connection.

        :param last: called with the channel before that
        """
        self.stop()
        with self._lock:
            with contextlib.suppress(Exception):  # any error of a broken one: it is sent again
                self._taken()
                if self.connection.is_open and self.connection.is_amqp:
                    for tag in self._queues.keys() - self._detached:
                        self.channel.basic_cancel(tag, nowait=True)
                        self.channel.callbacks[tag] = _requeue
                last(self.channel)
            self.connection.close()
            self.channel = None

    # -- the thread here -----------------------------------------------------------------------
    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self.connection.is_open:
                    self._turn()
                    continue
                problem: object = 'it was closed'
            except Exception as e:  # any error: a queue, a channel or the broker has ended
                if self._stopping.is_set():
                    return
                problem = self._problem(e)
                if not isinstance(e, (*_PASSING, amqp.AMQPError)):
                    LOG.exception('Messages cannot be read')
            LOG.error('Connection to the broker broke and is opened again: error=%s', problem)
            self._needed.set()
            with self._lock:
                self.connection.drop()
            delay = self._rabbit.kombu_reconnect_delay
            if not self._stopping.wait(delay + self._splay()):
                self._connect(is_patient=True)

    def _problem(self, error: Exception) -> str:
        if isinstance(error, amqp.ConsumerCancelled):
            for queue in self._queues.values():
                restart_stream(queue)
        return refusals.text_of(error)

    def _connect(self, *, is_patient: bool) -> None:
        """Connect, again and again; a refusal at the start is raised."""
        for pause in self._pauses():
            try:
                with self._lock:
                    self._attach()
                if self._is_started:
                    LOG.info('Connection to the broker is open again')
                return
            except Exception as e:
                with self._lock:
                    self.connection.drop()
                if not is_patient or not (self._is_started or isinstance(e, _PASSING)):
                    raise
                LOG.error(
                    'The broker accepts no consumer; it is tried again: wait_seconds=%.0f error=%s',
                    pause,
                    refusals.text_of(e),
                )
            if self._stopping.wait(pause):
                return

    def _pauses(self) -> Iterator[float]:
        rabbit = self._rabbit
        for number in itertools.count():
            pause = rabbit.rabbit_retry_interval + number * rabbit.rabbit_retry_backoff
            yield min(pause, rabbit.rabbit_interval_max) + self._splay()

    def _splay(self) -> float:
        return random.uniform(0, self._rabbit.kombu_reconnect_splay)

    def _attach(self) -> None:
        connection = self.connection
        connection.open()
        if connection.is_amqp:
            deliveries.group(connection.raw)
        channel = connection.channel()
        if self._rabbit.rabbit_qos_prefetch_count > 0:
            channel.basic_qos(0, self._rabbit.rabbit_qos_prefetch_count, False)
        for queue in self._queues.values():
            self._declarer.declare(connection, queue)
        self._detached = set(self._queues)
        self.channel = channel
        for tag in self._queues.keys() - self._held:
            self._consume(tag)

    def _consume(self, tag: str) -> None:
        queue = self._queues[tag]
        self._detached.discard(tag)
        self.channel.basic_consume(
            queue.name,
            no_ack=False,
            consumer_tag=tag,
            callback=functools.partial(self._received, queue),
            arguments=queue.consumer_arguments,
        )

    def _received(self, queue: Queue, raw: Any) -> None:
        self._is_empty = False
        self._receive(queue, raw)

    def _turn(self) -> None:
        lent_seconds = self._until - time.monotonic()
        if lent_seconds > 0 and not self._needed.is_set():
            self._needed.wait(min(lent_seconds, LOOK_SECONDS))
            if self._lock.acquire(blocking=False):
                try:
                    self.connection.beat()
                finally:
                    self._lock.release()
            return
        self._needed.clear()
        with self._lock:
            self._hold()
            if self.connection.is_amqp:
                self._read(TURN_SECONDS if lent_seconds > 0 else LOOK_SECONDS)
            else:
                self._read_in_process()
            now = time.monotonic()
            if now - self._beat_at >= LOOK_SECONDS:
                self._beat_at = now
                self.connection.beat()
        # Not between the parts of a large message.
        if self._gather_seconds and not self._is_empty:
            time.sleep(self._gather_seconds)

    def _read(self, seconds: float) -> None:
        """Take the messages that are there.

        :param seconds: to wait for the first one
        """
        raw, transport = self.connection.raw, self.connection.transport
        self._is_empty = True
        with contextlib.suppress(TimeoutError), transport.having_timeout(seconds):
            for _ in range(self._together):
                raw.blocking_read()
                if not transport.has_frame:
                    break
        self._taken()

    def _read_in_process(self) -> None:
        self._is_empty = True
        with contextlib.suppress(TimeoutError):
            self.connection.wait(_IN_PROCESS_SECONDS)
        self._taken()

    # -- queues that are held ------------------------------------------------------------------
    def hold(self, names: Sequence[str]) -> None:
        """Consume all queues but these; the thread here does it soon.  Any thread."""
        self._held = frozenset(tag for tag, queue in self._queues.items() if queue.name in names)
        self._needed.set()

    def _hold(self) -> None:
        """Cancel or attach consumers, between two messages."""
        for tag in self._held - self._detached:
            self._detached.add(tag)
            self.channel.basic_cancel(tag, nowait=True)
        for tag in self._detached - self._held:
            self._consume(tag)

    def give_back(self, raw: Any) -> bool:
        """Put a message of a queue that is held back into it; return whether it is held."""
        if not self._held or (tag := raw.delivery_info['consumer_tag']) not in self._held:
            return False
        # Cancel first: what is rejected would come here again.  Once too often does no harm.
        self._detached.add(tag)
        raw.channel.basic_cancel(tag, nowait=True)
        _requeue(raw)
        return True

    # -- the thread that it is lent to -----------------------------------------------------------
    def lend(self, seconds: float) -> int:
        """Take over reading; the caller is back within ``seconds``.

        :returns: file number of the socket to wait for; -1: none is to be read now
        """
        if self._stopping.is_set():
            return -1
        self._until = time.monotonic() + seconds + HELD_UP_SECONDS
        if self._needed.is_set():
            return -1
        try:
            return int(self.connection.transport.sock.fileno())
        except (AttributeError, OSError):  # it is being closed
            return -1

    @property
    def has_more(self) -> bool:
        """True where a message was read off the socket and not taken yet."""
        transport = self.connection.transport
        return not self._stopping.is_set() and transport is not None and transport.has_frame

    def read(self) -> bool:
        """Take the messages that are there; never raises.

        :returns: whether it could read: not while another thread uses the connection
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not self._stopping.is_set() and self.connection.is_open:
                self._read(_REST_SECONDS)
        except Exception as e:  # any error: a queue, a channel or the broker has ended
            LOG.info('Read from the broker was interrupted: error=%s', self._problem(e))
            self.connection.cut()
            self._needed.set()
        finally:
            self._lock.release()
        return True


def _requeue(raw: Any) -> None:
    raw.channel.basic_reject(raw.delivery_tag, requeue=True)
