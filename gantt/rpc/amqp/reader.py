# SPDX-License-Identifier: Apache-2.0
"""A consuming connection: declared, read, kept alive, and made anew where it breaks.

A thread of its own does so.  It may be lent to a thread that has other things to do as well: that
one reads the socket itself, between its other tasks, as long as it keeps calling, and nothing is
handed from thread to thread.  The thread here rests meanwhile.  It resumes wherever it is needed:
to attach consumers, to connect again, and where the other thread is held up, so that messages are
taken all the same.  It sends heartbeats at any time.

The scheduling thread waits for messages at an inbox: whatever came meanwhile is decoded in one go,
and no two threads of the process take turns at its one interpreter lock for one call.
"""

import contextlib
import functools
import itertools
import logging
import os
import random
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import amqp

from gantt.rpc.amqp import deliveries, refusals
from gantt.rpc.amqp.connection import BROKER_AWAY_ERRORS, Connection
from gantt.rpc.amqp.queues import Declarer, Queue, restart_stream

LOG = logging.getLogger(__name__)

#: Seconds without a call after which the thread that borrowed it is held up.
HELD_UP_SECONDS = 0.5
#: A read by the thread here while another one may read, which waits for it.
SHARED_READ_SECONDS = 0.05
#: The same where no other thread reads; also between two checks whether one does.
UNSHARED_READ_SECONDS = 1.0
#: Wait for the rest of a message whose first part is there.
_REST_OF_MESSAGE_SECONDS = 0.01
#: A read of the broker within the process, which no socket wakes when it is to end.
_IN_PROCESS_SECONDS = 0.05

#: Errors of a connection or a broker that pass by themselves.
_TRANSIENT_ERRORS = (*BROKER_AWAY_ERRORS, amqp.InternalError)


class QueueReader:
    """A connection that consumes queues.

    :param receive: called with each message and its queue, by the thread that reads
    :param rabbit: [oslo_messaging_rabbit]
    :param name: name of the reading thread
    :param together: most messages of one read
    :param taken: called at the end of a read, to acknowledge its messages
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
        self._messages_per_read = together
        self._on_messages_taken = taken
        self._gather_seconds = gather_seconds
        self._declarer = Declarer()
        #: Tags of queues that are not to be consumed at the moment, and of those that are not.
        self._held: frozenset[str] = frozenset()
        self._detached: set[str] = set()
        self._lent_until = 0.0
        #: True where the last read took no message.
        self._is_empty = True
        self._heartbeat_at = 0.0
        self._lock = threading.Lock()
        # The thread here has something to do between two messages.
        self._needed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_started = False

    # -- life ----------------------------------------------------------------------------------
    def start(self, *, is_patient: bool = True) -> None:
        """Declare the queues and consume.

        :param is_patient: whether to try a broker that is away again and again
        :raises Exception: the broker refuses; it is away, and that is not waited for
        """
        self._needed.set()
        self._connect(is_patient=is_patient)
        self._is_started = True
        self._thread.start()

    def end(self) -> None:
        """Let no thread read from this connection any more."""
        self._stopping.set()
        self._needed.set()

    def stop(self) -> None:
        """Stop reading; what is attached stays so until :meth:`close`."""
        self.end()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def close(self, last: Callable[[Any], None] = lambda channel: None) -> None:
        """Return messages that arrive from now on to their queues, and close the connection.

        :param last: called with the channel before the connection closes
        """
        self.stop()
        with self._lock:
            with contextlib.suppress(Exception):  # any error of a broken one: it is sent again
                self._on_messages_taken()
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
                    self._take_turn()
                    continue
                problem: object = 'it was closed'
            except Exception as e:  # any error: a queue, a channel or the broker has ended
                if self._stopping.is_set():
                    return
                problem = self._problem_text(e)
                if not isinstance(e, (*_TRANSIENT_ERRORS, amqp.AMQPError)):
                    LOG.exception(
                        'Consuming from the broker failed unexpectedly: queues=%s',
                        ','.join(self._queues),
                    )
            LOG.error('Connection to the broker broke and is opened again: error=%s', problem)
            self._needed.set()
            with self._lock:
                self.connection.drop()
            delay = self._rabbit.kombu_reconnect_delay
            if not self._stopping.wait(delay + self._splay()):
                self._connect(is_patient=True)

    def _problem_text(self, error: Exception) -> str:
        if isinstance(error, amqp.ConsumerCancelled):
            for queue in self._queues.values():
                restart_stream(queue)
        return refusals.refusal_text(error)

    def _connect(self, *, is_patient: bool) -> None:
        """Connect, again and again; a refusal at the start is raised."""
        for pause in self._retry_pauses():
            try:
                with self._lock:
                    self._attach()
                if self._is_started:
                    LOG.info('Connection to the broker is open again')
                return
            except Exception as e:
                with self._lock:
                    self.connection.drop()
                if not is_patient or not (self._is_started or isinstance(e, _TRANSIENT_ERRORS)):
                    raise
                LOG.error(
                    'The broker accepts no consumer; it is tried again: wait_seconds=%.0f error=%s',
                    pause,
                    refusals.refusal_text(e),
                )
            if self._stopping.wait(pause):
                return

    def _retry_pauses(self) -> Iterator[float]:
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
            deliveries.group_deliveries(connection.raw)
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

    def _take_turn(self) -> None:
        lent_seconds = self._lent_until - time.monotonic()
        if lent_seconds > 0 and not self._needed.is_set():
            self._needed.wait(min(lent_seconds, UNSHARED_READ_SECONDS))
            if self._lock.acquire(blocking=False):
                try:
                    self.connection.send_heartbeat()
                finally:
                    self._lock.release()
            return
        self._needed.clear()
        with self._lock:
            self._update_consumers()
            if self.connection.is_amqp:
                self._read(SHARED_READ_SECONDS if lent_seconds > 0 else UNSHARED_READ_SECONDS)
            else:
                self._read_in_process()
            now = time.monotonic()
            if now - self._heartbeat_at >= UNSHARED_READ_SECONDS:
                self._heartbeat_at = now
                self.connection.send_heartbeat()
        # Not between the parts of a large message.
        if self._gather_seconds and not self._is_empty:
            time.sleep(self._gather_seconds)

    def _read(self, seconds: float) -> None:
        """Take the messages that are there.

        :param seconds: how long to wait for the first message
        """
        raw, transport = self.connection.raw, self.connection.transport
        self._is_empty = True
        with contextlib.suppress(TimeoutError), transport.having_timeout(seconds):
            for _ in range(self._messages_per_read):
                raw.blocking_read()
                if not transport.has_frame:
                    break
        self._on_messages_taken()

    def _read_in_process(self) -> None:
        self._is_empty = True
        with contextlib.suppress(TimeoutError):
            self.connection.wait(_IN_PROCESS_SECONDS)
        self._on_messages_taken()

    # -- queues that are held ------------------------------------------------------------------
    def hold(self, names: Sequence[str]) -> None:
        """Consume all queues but these; the thread here does it soon.  Any thread."""
        self._held = frozenset(tag for tag, queue in self._queues.items() if queue.name in names)
        self._needed.set()

    def _update_consumers(self) -> None:
        """Cancel or attach consumers, between two messages."""
        for tag in self._held - self._detached:
            self._detached.add(tag)
            self.channel.basic_cancel(tag, nowait=True)
        for tag in self._detached - self._held:
            self._consume(tag)

    def requeue_if_held(self, raw: Any) -> bool:
        """Return a message to its queue if that is suspended; return whether it is."""
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
        self._lent_until = time.monotonic() + seconds + HELD_UP_SECONDS
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
                self._read(_REST_OF_MESSAGE_SECONDS)
        except Exception as e:  # any error: a queue, a channel or the broker has ended
            LOG.info('Read from the broker was interrupted: error=%s', self._problem_text(e))
            self.connection.break_connection()
            self._needed.set()
        finally:
            self._lock.release()
        return True


def _requeue(raw: Any) -> None:
    raw.channel.basic_reject(raw.delivery_tag, requeue=True)


#: Seconds until a connection that another thread uses is tried again.
_BUSY_RETRY_SECONDS = 0.005
_WAKE_BYTE = b'\0'


class BrokerInbox:
    """Implementation of the scheduler's port ``Inbox`` over the connections of consumers.

    :param lendable_reader: returns the connections that can be read now; there may be none
    :param has_room: returns whether answers need not wait for the broker
    """

    def __init__(
        self,
        lendable_reader: Callable[[], list[QueueReader]],
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._lendable_readers = lendable_reader
        self._wake_read_end, self._wake_write_end = descriptors = os.pipe()
        for end in descriptors:
            os.set_blocking(end, False)
        self._finalizer = weakref.finalize(self, _close, *descriptors)
        self._lock = threading.Lock()  # for the bell, whose number may be reused once it is closed
        self._has_room = has_room
        self._reader = 0

    def close(self) -> None:
        """Close the pipe, after the reading thread has ended."""
        with self._lock:
            self._finalizer()

    def wake(self) -> None:
        """Let a thread that waits here go on.  Any thread."""
        if threading.get_ident() != self._reader:
            # Where it is full it is rung already.
            with self._lock, contextlib.suppress(BlockingIOError):
                if self._finalizer.alive:
                    os.write(self._wake_write_end, _WAKE_BYTE)

    def wait(self, seconds: float) -> bool:
        """Wait until a message was read or ``wake`` was called; return whether one was in time."""
        self._reader = threading.get_ident()
        was_woken = self._poll(seconds)
        if was_woken is None:  # another thread used the one connection that has messages
            was_woken = self._poll(min(seconds, _BUSY_RETRY_SECONDS), only_bell=True)
            return bool(was_woken) or self.read()
        return was_woken

    def read(self) -> bool:
        """Read what is there already; return whether there was anything."""
        return bool(self._poll(0.0))

    # -- while something else is waited for ----------------------------------------------
    def sockets(self) -> list[int]:
        """Return numbers of the sockets to wait for in addition to another one, for a moment.

        Empty where an answer might wait for the broker: so would the thread that waits.
        """
        if not self._has_room():
            return []
        return [number for reader in self._lendable_readers() if (number := reader.lend(0.0)) >= 0]

    def _poll(self, seconds: float, *, only_bell: bool = False) -> bool | None:
        """Wait, then read; None: what is there cannot be read at the moment."""
        poll = select.poll()
        poll.register(self._wake_read_end, select.POLLIN)
        readers: dict[int, QueueReader] = {}
        has_more = False
        for reader in () if only_bell else self._lendable_readers():
            number = reader.lend(seconds)
            if number >= 0:
                readers[number] = reader
                poll.register(number, select.POLLIN)
                has_more = has_more or reader.has_more
        ready = [number for number, _ in poll.poll(0 if has_more else 1000 * seconds)]
        is_rung = self._wake_read_end in ready
        if is_rung:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read_end, 4096)
        readable = [
            reader for number, reader in readers.items() if number in ready or reader.has_more
        ]
        done = [reader.read() for reader in readable]
        if is_rung or any(done):
            return True
        return None if readable else False


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)
