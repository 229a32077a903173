# SPDX-License-Identifier: Apache-2.0
"""Checks that every message passes first: size, method, version, room; then its method.

Messages are checked in the receiving thread.  A method either runs right there (it must not
block) or on a bounded pool of threads, and it may answer later.

A scheduler whose database is silent leaves its calls to other schedulers.  The scheduling thread
cannot notice: it waits.  So a separate thread measures how long
the longest wait for the database has lasted, and sends the database a query itself,
on another connection, so that a wait for a lock is not taken for silence.
Where that has no answer either, the consumers on the queues that are shared with
other schedulers are cancelled, what was received and not begun is given back, and
the first answer of the database ends the pause.  Where no other process consumes,
calls are taken all the same: otherwise they would stay unanswered.
"""

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import oslo_messaging as om

from gantt import exceptions
from gantt.core.messages import base as message
from gantt.core.messages import quoting
from gantt.rpc import wire
from gantt.rpc.amqp import dead_letters, refusals, self_ping
from gantt.rpc.amqp.connection import BROKER_ERRORS
from gantt.rpc.amqp.consumer import GATHER_SECONDS, Consumer
from gantt.rpc.amqp.dead_letters import DeadLetters
from gantt.rpc.amqp.envelope import Incoming, as_bytes
from gantt.rpc.amqp.reader import QueueReader
from gantt.rpc.amqp.replies import Count, ReplyWriter, is_answer
from gantt.rpc.amqp.timers import in_thread
from gantt.rpc.amqp.transport import caller_seconds
from gantt.rpc.call import DEFAULT_CALLER_SECONDS, RpcCall


# -- Worker threads that serve a bounded queue.
class WorkerPool:
    """A pool of ``threads`` threads; at most ``limit`` jobs wait."""

    def __init__(self, name: str, threads: int, limit: int) -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(limit)
        self._threads = [
            threading.Thread(target=self._run, name=f'{name}-{i}', daemon=True)
            for i in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None]) -> bool:
        """Queue a job; False where the queue is full."""
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            return False
        return True

    def take_unstarted(self) -> list[Callable[[], None]]:
        """Return the jobs that wait; none of them will run."""
        jobs = []
        try:
            while (job := self._queue.get_nowait()) is not None:
                jobs.append(job)
            self._queue.put_nowait(None)  # it ends a thread
        except (queue.Empty, queue.Full):
            pass
        return jobs

    @property
    def depth(self) -> int:
        """Number of jobs that wait."""
        return self._queue.qsize()

    def stop(self, seconds: float) -> bool:
        """Finish the queued jobs; return whether that was done within ``seconds``."""
        end = time.monotonic() + seconds
        for _ in self._threads:
            try:
                self._queue.put(None, timeout=max(0.0, end - time.monotonic()))
            except queue.Full:
                return False
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception:
                LOG.exception('Call failed unexpectedly; its caller gets no answer')


LOG = logging.getLogger(__name__)

#: Characters of a refusal, which may repeat what was sent, in a log line.
LOGGED_CHARACTERS_MAX = 1000
#: How long messages of a topic that is mostly cast to are gathered.
CASTS_GATHER_SECONDS = GATHER_SECONDS
#: Milliseconds after which a caller that was given back calls another process.
UNSTARTED_RETRY_MS = 50


class Pending(NamedTuple):
    """Placeholder that a method returns for a result that is not there yet.

    Either ``run`` computes it, on a thread of the pool, or it is the result of ``future``,
    which another thread completes together with others.  With neither the answer comes
    through ``Replies``, or never.

    :ivar run: function of the call; may return another Pending
    :ivar convert: from the future's result to what is answered; may raise errors
    :ivar seconds: a caller without an answer after so long gets ``overdue``; None: waits on
    """

    run: Callable[[RpcCall], Any] | None = None
    future: Future[Any] | None = None
    convert: Callable[[Any], Any] = lambda result: result
    seconds: float | None = None
    overdue: exceptions.GanttError | None = None


#: The answer comes through ``Replies`` later, or never.
DEFERRED_REPLY = Pending()


class Method(NamedTuple):
    """A method of a topic.

    :ivar run: function of the call that returns the result or a Pending, or raises errors
    :ivar inline: whether ``run`` runs in the receiving thread, where it must not block
    :ivar parameters: argument -> its type, or what a foreign form is translated to; every list, map
        and text in them is bounded
    :ivar bytes_max: limit of a message; None: as large as any may be
    """

    run: Callable[[RpcCall], Any]
    inline: bool = False
    parameters: Mapping[str, Any] = {}
    bytes_max: int | None = message.REQUEST_BYTES_MAX


class Interface(NamedTuple):
    """Methods of a topic and their version.

    :ivar exact: a newer minor version is refused (foreign interfaces, whose
        newer senders are held back by their own version pins)
    :ivar undecoded: maps the bytes of a message to the job that handles it, in the
        receiving thread; None where the message is for the checks and methods
    :ivar repeatable: inline methods that may run twice for one message: their calls are
        acknowledged together, after they were handled
    :ivar is_placing: messages are read by the scheduling thread, where it can
    """

    methods: Mapping[str, Method]
    version: tuple[int, int] = (wire.MAJOR, wire.MINOR)
    exact: bool = False
    undecoded: Callable[[bytes | str], Callable[[], object] | None] | None = None
    repeatable: frozenset[str] = frozenset()
    is_placing: bool = False


#: Every topic has it, whatever the version of the caller.
_PING = Method(lambda call: 'pong', inline=True)


class Topic:
    """A topic that is served: its consumer, its checks and its pool of threads.

    :param pool: runs the methods that may block
    :ivar carrier: the transport it listens on
    """

    def __init__(
        self,
        transport: Any,
        target: om.Target,
        interface: Interface,
        replies: ReplyWriter,
        pool: WorkerPool,
        *,
        payload_bytes_max: int,
        count: Count,
        dead_letter_queue: DeadLetters | None = None,
    ) -> None:
        self.name = target.topic
        self.carrier = transport
        self.target = target
        self._interface = interface
        self._replies = replies
        self._pool = pool
        self._count = count
        self._dead_letters = dead_letter_queue
        self._limit = payload_bytes_max
        #: Limit of any method: larger messages are not even decoded.
        self.bytes_max = max(
            map(self._bytes_max_of, interface.methods.values()), default=self._limit
        )
        self.undecoded = interface.undecoded
        self.repeatable = interface.repeatable
        self._patience = max(DEFAULT_CALLER_SECONDS, caller_seconds(transport.conf))
        self.consumer = Consumer(transport, target, self)

    def _bytes_max_of(self, method: Method) -> int:
        return self._limit if method.bytes_max is None else min(self._limit, method.bytes_max)

    # -- as part of a process ------------------------------------------------------------------
    def start(self) -> None:
        """Declare the queues and consume.  The broker must be there.

        :raises Misconfigured: the broker refuses the queues
        """
        self._pool.start()
        try:
            self.consumer.reader.start()
        except BROKER_ERRORS as e:
            raise self.undeclared(refusals.refusal_text(e)) from None

    def undeclared(self, problem: str) -> exceptions.Misconfigured:
        """Return the error of queues that cannot be declared."""
        return exceptions.Misconfigured(
            option='[oslo_messaging_rabbit]',
            problem=f'the queues of topic {self.name} cannot be declared: {problem}',
            fix=refusals.remedy_of_queues(problem, self.carrier.url),
        )

    @property
    def depth(self) -> int:
        """Number of messages that wait for a thread."""
        return self._pool.depth

    @property
    def is_attached(self) -> bool:
        """True where the broker has its consumer, as far as is known here."""
        channel = self.consumer.reader.channel
        if channel is None:
            return False
        # py-amqp's channels say whether they are open, those in memory whether they are closed.
        return bool(getattr(channel, 'is_open', not getattr(channel, 'closed', False)))

    @property
    def lendable_reader(self) -> QueueReader | None:
        """The topic's connection, which the scheduling thread may read; None where it does not."""
        return self.consumer.lendable_reader if self._interface.is_placing else None

    @property
    def is_paused(self) -> bool:
        """True where consuming of the queue shared with other processes is suspended."""
        return self.consumer.is_held

    def pause(self) -> None:
        """Suspend consuming of the queue shared with other processes; own messages still come."""
        self.consumer.hold(True)

    def resume(self) -> None:
        """Resume consuming of the shared queue."""
        self.consumer.hold(False)

    def consumers(self) -> int:
        """Return how many processes consume the shared queue, this one included unless paused.

        :raises BrokerUnavailable: the broker does not answer the query
        """
        return self.carrier.consumers(self.name)

    def refuse_unstarted(self, reason: str) -> int:
        """Refuse calls that wait for a thread, for another server to take; return their number."""
        refused = 0
        for job in self._pool.take_unstarted():
            call = job.args[1] if isinstance(job, functools.partial) else None
            if isinstance(call, RpcCall) and call.wants_answer:
                refused += 1
                self._fail(call, exceptions.Busy(reason=reason, retry_after_ms=UNSTARTED_RETRY_MS))
            else:
                self._pool.submit(job)  # a cast is never sent again
        return refused

    def stop_taking(self) -> None:
        """Stop consuming; what was received is kept.  May take some seconds."""
        self.consumer.reader.stop()

    def finish(self, seconds: float) -> bool:
        """Finish the queued jobs and close the connection; return whether that was in time."""
        end = time.monotonic() + seconds
        done = self._pool.stop(seconds)
        if not done:
            LOG.warning(
                'Messages were not finished in time: topic=%s count=%d', self.name, self.depth
            )
        self.consumer.close()
        return done and time.monotonic() <= end + 1

    # -- as the handler of its consumer, in the receiving thread -------------------------------
    def run_undecoded(self, run: Callable[[], object], body: bytes | str) -> None:
        """Run the job that the interface returned for a body; never raises."""
        try:
            run()
        except Exception as e:
            self._refused(e, 'a cast', '-', as_bytes(body))

    def reject_undecodable(self, error: Exception, body: bytes) -> None:
        """Refuse a body that is no message."""
        self._refused(error, 'a message', '-', body)

    def handle(self, message: Incoming) -> None:
        """Check a message, then run its method or have the pool do so; never raises."""
        try:
            call = RpcCall(message, self.target.server or '')
        except Exception as e:  # from a sender's fields around its message
            self._refused(e, 'a message', '-', b'')
            return
        try:
            method = self._checked(call)
            self._answer(call, method.run(call) if method.inline else Pending(method.run))
        except Exception as e:
            self._fail(call, e)

    def _run(self, run: Callable[[RpcCall], Any], call: RpcCall) -> None:
        """Run a method on a thread of the pool, then answer."""
        try:
            self._answer(call, run(call))
        except Exception as e:
            self._fail(call, e)

    def _answer(self, call: RpcCall, result: Any) -> None:
        """Send a result, or arrange for one that is pending.

        :raises Busy: too many jobs wait for a thread
        """
        if not isinstance(result, Pending):
            # Not at once: this may be the scheduling thread.
            if call.wants_answer and self._is_awaited(call):
                self._replies.send_result(call, result)
        elif result.run is not None:
            if not self._pool.submit(functools.partial(self._run, result.run, call)):
                raise exceptions.Busy(
                    reason=f'too many messages wait for {call.method}', retry_after_ms=1000
                )
        elif result.future is not None:
            self._replies.expect()
            open_, timer = threading.Lock(), 0  # the thread that takes the lock answers
            if result.overdue is not None and result.seconds is not None:
                on_overdue = functools.partial(self._overdue, call, result.overdue, open_)
                timer = self._replies.after(result.seconds, on_overdue)
            done = functools.partial(self._answer_deferred, call, result.convert, open_, timer)
            result.future.add_done_callback(done)

    def _answer_deferred(
        self,
        call: RpcCall,
        convert: Callable[[Any], Any],
        open_: threading.Lock,
        timer: int,
        future: Future[Any],
    ) -> None:
        """Answer a call whose future is done, in the thread that completed it."""
        if not open_.acquire(blocking=False):
            return
        if timer:
            self._replies.give_up(timer)
        try:
            result = convert(future.result())
        except Exception as e:
            self._fail(call, e)
        else:
            if self._is_awaited(call):
                self._replies.send_result(call, result)
        finally:
            self._replies.finish()

    def _overdue(self, call: RpcCall, error: exceptions.GanttError, open_: threading.Lock) -> None:
        """Answer with an error, in the timer thread."""
        if open_.acquire(blocking=False):
            try:
                self._fail(call, error)
            finally:
                self._replies.finish()

    def _is_awaited(self, call: RpcCall) -> bool:
        """Return whether the caller may still read an answer; it does not after it gave up."""
        is_awaited = call.is_awaited(self._patience)
        if not is_awaited:
            self._count('gantt_rpc_replies_lost_total', 1, reason='late')
        return is_awaited

    def _checked(self, call: RpcCall) -> Method:
        """Return the method that the message names.

        :raises PayloadTooLarge, InvalidMessage, UnsupportedVersion: nothing was done
        """
        size = call.raw.size
        if size > self.bytes_max:
            raise exceptions.PayloadTooLarge(size=size, limit=self.bytes_max)
        if not call.has_usable_reply_queue:
            raise exceptions.invalid('_reply_q', 'expected the name of a queue, of 1 to 255 bytes')
        name = call.raw.method
        if name == self_ping.PING_METHOD:
            call.method = name
            return _PING
        method = self._interface.methods.get(name) if isinstance(name, str) else None
        if method is None or call.raw.namespace is not None:
            known_methods = ', '.join(sorted(self._interface.methods))
            raise exceptions.invalid(
                'method', f'expected one of {known_methods}; got {quoting.quoted(name)}'
            )
        call.method = name
        call.parameters = method.parameters
        if size > self._bytes_max_of(method):
            raise exceptions.PayloadTooLarge(size=size, limit=self._bytes_max_of(method))
        major, minor = self._interface.version
        call.newer_minor = wire.is_newer(
            name, call.raw.version, major=major, minor=minor, exact=self._interface.exact
        )
        if not call.raw.has_args:
            raise exceptions.invalid('args', 'expected an object')
        if not call.raw.is_whole_text:
            wire.check_encodable(call.raw.args, '')
        return method

    def _fail(self, call: RpcCall, error: Exception) -> None:
        method_name = call.method or 'a message'
        # The whole body is read only where it holds more than the error does.
        body = call.raw.body if dead_letters.is_message_at_fault(error) else b''
        self._refused(error, method_name, call.log_id, body)
        if call.wants_answer and self._is_awaited(call):
            self._replies.send_error(call, error)

    def _refused(self, error: Exception, what: str, log_id: str, body: bytes) -> None:
        if isinstance(error, exceptions.NotProven):
            # Any sender can send any number of them: an alarm of a bounded rate reports them.
            LOG.debug('Message is refused: method=%s request=%s error=%s', what, log_id, error)
            self._count('gantt_rpc_messages_refused_total', 1, code=error.code)
            return
        if not is_answer(error):
            code = 'gantt.error'
            LOG.error(
                'Message failed unexpectedly: method=%s request=%s', what, log_id, exc_info=error
            )
        else:
            code = getattr(error, 'code', 'gantt.refused')
            if dead_letters.is_message_at_fault(error):
                LOG.info(
                    'Message is refused: method=%s request=%s topic=%s error=%s body=%s',
                    what,
                    log_id,
                    self.name,
                    quoting.plain_text(f'{error}', LOGGED_CHARACTERS_MAX),
                    dead_letters.extract(body),
                )
            else:
                error_text = quoting.plain_text(f'{error}', LOGGED_CHARACTERS_MAX)
                LOG.info(
                    'Message is refused: method=%s request=%s error=%s', what, log_id, error_text
                )
        self._count('gantt_rpc_messages_refused_total', 1, code=code)
        if self._dead_letters is not None:
            self._dead_letters.put(body, error, topic=self.name, method=what, request=log_id)


#: Between two checks.
DATABASE_CHECK_SECONDS = 0.2
#: From such a wait on the database is sent a query, on another connection.
QUERY_AFTER_SECONDS = 0.7
#: From such a wait on it is silent, where that query had no answer for so long either.
SILENT_SECONDS, UNANSWERED_SECONDS = 1.4, 0.6
#: Between two checks for other consumers, and between two queries while it is silent.
OTHERS_CHECK_SECONDS = 1.0


class DatabasePause:
    """Pauses the topics of a process while its database is silent.

    :param scheduler: the facade, ``gantt.scheduler.service.Scheduler``
    :param topics: returns the topics that listen now
    """

    def __init__(self, scheduler: Any, topics: Callable[[], Iterable[Topic]], count: Count) -> None:
        self._scheduler = scheduler
        self._topics = topics
        self._count = count
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name='rpc-pausing', daemon=True)
        self._question: _DatabaseProbe | None = None
        self._since = 0.0
        self._looked_at_others = 0.0

    def start(self) -> None:
        """Start the thread that checks."""
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Stop checking; paused topics stay paused."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    @property
    def is_paused(self) -> bool:
        """True where the database is silent, and calls are left to others where there are any."""
        return bool(self._since)

    @property
    def problem(self) -> str:
        """Description of the pause, for a health check."""
        since = self._since
        if not since:
            return ''
        names = ', '.join(topic.name for topic in self._topics() if topic.is_paused)
        effect = (
            f'calls of {names} are left to other schedulers' if names else 'no other takes calls'
        )
        return f'{effect}: the database has not answered for {time.monotonic() - since:.0f} s'

    def _run(self) -> None:
        while not self._stopping.wait(DATABASE_CHECK_SECONDS):
            try:
                self._check_database()
            except Exception:
                LOG.exception('Check of the database failed; the next one follows')

    def _check_database(self) -> None:
        silent = self._scheduler.silent_for()
        question = self._question
        if self._since:
            self._check_during_silence(question)
        elif silent < QUERY_AFTER_SECONDS:
            self._question = None
        elif question is None:
            self._probe()
        elif question.is_answered:
            # The one wait is for something else, a lock perhaps.
            if question.age >= OTHERS_CHECK_SECONDS:
                self._question = None
        elif silent >= SILENT_SECONDS and question.age >= UNANSWERED_SECONDS:
            self._pause(silent)

    def _probe(self) -> None:
        answer = in_thread(self._scheduler.ping, 'rpc-pausing-ask')
        self._question = _DatabaseProbe(time.monotonic(), answer)

    def _check_during_silence(self, question: '_DatabaseProbe | None') -> None:
        """Check, while the database is silent, whether it answers and whether others consume."""
        if question is not None and question.is_answered:
            self._resume()
            return
        if question is None or (question.answer.done() and question.age >= OTHERS_CHECK_SECONDS):
            self._probe()
        now = time.monotonic()
        if now - self._looked_at_others >= OTHERS_CHECK_SECONDS:
            self._looked_at_others = now
            self._pause_topics()

    def _pause(self, silent: float) -> None:
        self._since = time.monotonic() - silent
        self._looked_at_others = time.monotonic()
        self._count('gantt_rpc_pauses_total')
        names = self._pause_topics()
        reason = 'the database does not answer this scheduler'
        refused = self._scheduler.refuse_unstarted(reason) if names else 0
        LOG.warning(
            'The database does not answer, and calls are left to other schedulers: seconds=%.1f '
            'topics=%s returned_calls=%d',
            silent,
            ','.join(names) or 'none',
            refused,
        )

    def _pause_topics(self) -> list[str]:
        """Pause the topics that other processes consume as well; return their names."""
        names = []
        for topic in self._topics():
            try:
                other_consumers = topic.consumers() - (not topic.is_paused)
            except exceptions.BrokerUnavailable as e:
                LOG.info('Consumers of a topic cannot be counted: topic=%s error=%s', topic.name, e)
                continue
            if other_consumers > 0:
                topic.pause()
                names.append(topic.name)
            elif topic.is_paused:
                LOG.warning(
                    'Topic has no other consumer, and its calls are accepted again: topic=%s',
                    topic.name,
                )
                topic.resume()
        return names

    def _resume(self) -> None:
        since, self._since = self._since, 0.0
        self._question = None
        for topic in self._topics():
            topic.resume()
        LOG.warning(
            'The database answers again, and calls are accepted again: seconds=%.1f',
            time.monotonic() - since,
        )


class _DatabaseProbe(NamedTuple):
    """A query of the database in a thread of its own; it may hang.

    :ivar sent_at: when it was sent, in monotonic seconds
    """

    sent_at: float
    answer: Future[object]

    @property
    def age(self) -> float:
        """Seconds since it was sent."""
        return time.monotonic() - self.sent_at

    @property
    def is_answered(self) -> bool:
        """True where the database has answered without an error."""
        return self.answer.done() and self.answer.exception() is None
