# SPDX-License-Identifier: Apache-2.0
"""What every message passes first: size, method, version, room; then its method.

oslo.messaging's dispatcher starts a thread per monitored call and never ends
it when the method or version is unknown, and its executor queues without
bound.  So messages are checked here, in the receiving thread, before the
library sees more of them.  A method either runs right there (it must not
block) or on a bounded pool of threads, and it may answer later.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import oslo_messaging as om

from gantt import exceptions
from gantt.core.messages import base as message
from gantt.core.messages import quoting
from gantt.rpc import wire
from gantt.rpc.amqp import dead_letters, driver, refusals, self_ping, straight, undecoded
from gantt.rpc.amqp.dead_letters import DeadLetters
from gantt.rpc.amqp.replies import Count, StockReplies, is_answer
from gantt.rpc.call import CALLER_SECONDS, Call
from gantt.rpc.server.pool import WorkerPool

LOG = logging.getLogger(__name__)

#: A method returns this where its answer comes through ``Replies`` later.
DEFERRED = object()

#: What was received over a connection that is given up has so long to be finished.
_ABANDONED_SECONDS = 60.0

#: Of a refusal, which may repeat what was sent, in a log line.
LOGGED_CHARACTERS = 1000
#: Who is to call another process does so after this many milliseconds.
GIVEN_BACK_MS = 50

#: Nobody waits for a cast: a little patience lets many be taken at once.
CASTS_GATHER_SECONDS = 0.05


class Method(NamedTuple):
    """A method of a topic.

    :ivar run: gets the call, returns the result, Promised or DEFERRED, raises errors; an
        inline one may return a Method, which then runs on the pool
    :ivar inline: runs in the receiving thread; must not block
    :ivar takes: argument -> its type, or what a foreign form is translated to; every list, map
        and text of these is bounded
    :ivar bytes_max: of a message; None: as large as any may be
    """

    run: Callable[[Call], Any]
    inline: bool = False
    takes: Mapping[str, Any] = {}
    bytes_max: int | None = message.REQUEST_BYTES_MAX


class Promised(NamedTuple):
    """What a method returns whose answer another thread finds, together with others.

    :ivar told: from the future's result to what is answered; may raise errors
    :ivar seconds: who has no answer after so long is told ``overdue``; None: waits on
    """

    future: Future[Any]
    told: Callable[[Any], Any]
    seconds: float | None = None
    overdue: exceptions.GanttError | None = None


class Interface(NamedTuple):
    """The methods of a topic and the version they have.

    :ivar exact: a newer minor version is refused (foreign interfaces, whose
        newer senders are held back by their own version pins)
    :ivar straight: from the bytes of a message to what is to be done with it, in the
        receiving thread; None where the message is for the checks and methods
    :ivar quick: inline methods that may run twice for one message: their calls are
        decoded by us and acknowledged together
    """

    methods: Mapping[str, Method]
    version: tuple[int, int] = (wire.MAJOR, wire.MINOR)
    exact: bool = False
    straight: Callable[[bytes | str], Callable[[], object] | None] | None = None
    quick: frozenset[str] = frozenset()


#: Every topic has it, whatever the version of the caller.
_PING = Method(lambda call: 'pong', inline=True)


def _most(interface: Interface, limit: int) -> int:
    """Bytes that a message may have whichever method it asks for: more are not even decoded."""
    return max((_within(method, limit) for method in interface.methods.values()), default=limit)


def _within(method: Method, limit: int) -> int:
    return limit if method.bytes_max is None else min(limit, method.bytes_max)


class CheckedServer(driver.RPCServer):
    """An RPC server that checks each message before anything else sees it."""

    def __init__(
        self,
        transport: Any,
        target: om.Target,
        dispatcher: Any,
        executor: Any = None,
        *,
        interface: Interface,
        replies: StockReplies,
        pool: WorkerPool,
        payload_bytes_max: int,
        count: Count,
        letters: DeadLetters | None = None,
    ) -> None:
        super().__init__(transport, target, dispatcher, executor)
        self._topic = target.topic
        #: Once it listens, over a broker.
        self.shared: driver.SharedQueue | None = None
        self._letters = letters
        self._interface = interface
        self._quick = tuple(interface.quick)
        self._replies = replies
        self._pool = pool
        self._bytes_max = _most(interface, payload_bytes_max)
        self._count = count
        self._patience = max(CALLER_SECONDS, driver.caller_seconds(transport.conf))

    def _create_listener(self) -> Any:
        """Called by the library when it starts to listen."""
        listener = super()._create_listener()
        speaks_amqp = undecoded.watch(listener, self._bytes_max, self._undecodable)
        if self._interface.straight is not None:
            straight.take(listener, self._cast_straight, CASTS_GATHER_SECONDS)
        elif self._interface.quick:
            straight.take(listener, self._call_straight, 0.0)
        if speaks_amqp:
            self.shared = driver.SharedQueue(listener, self._topic)
        return listener

    def give_back(self, reason: str) -> int:
        """Tell whoever waits for a thread to call somebody else; how many there were."""
        given_back = 0
        for job in self._pool.take_back():
            call = job.args[1] if isinstance(job, functools.partial) else None
            if isinstance(call, Call) and call.wants_answer:
                given_back += 1
                self._fail(call, exceptions.Busy(reason=reason, retry_after_ms=GIVEN_BACK_MS))
            else:
                self._pool.submit(job)  # nobody would send a cast again
        return given_back

    def _cast_straight(self, _listener: Any, message: Any) -> bool:
        """Called by the receiving thread with what just came; whether it is dealt with."""
        assert self._interface.straight is not None
        body: bytes | str = message.body
        if len(body) > self._bytes_max:
            return False
        run = self._interface.straight(body)
        if run is None:
            return False
        try:
            run()
        except Exception as e:
            self._refused(e, 'a cast', '-', undecoded.as_bytes(body))
        return True

    def _call_straight(self, listener: Any, message: Any) -> bool:
        """The same for calls of quick methods."""
        body: bytes | str = message.body
        if len(body) > self._bytes_max:
            return False
        letter = straight.letter(listener, body, message.delivery_info.get('redelivered', False))
        if letter is None or letter.message.get('method') not in self._quick:
            return False
        self._on_incoming([letter])
        return True

    def _on_incoming(self, incoming: Any) -> None:
        """Called by the receiving thread for each message, in place of the executor."""
        for raw in incoming:
            try:
                call = Call(raw)
            except Exception as e:  # of what a sender wrote around its message
                self._refused(e, 'a message', '-', b'')
                continue
            try:
                self._take(call)
            except Exception as e:
                self._fail(call, e)

    def _take(self, call: Call) -> None:
        method = self._checked(call)
        result = method.run(call) if method.inline else method
        if isinstance(result, Method):
            if not self._pool.submit(functools.partial(self._run, result, call)):
                raise exceptions.Busy(
                    reason=f'too many messages wait for {call.method}', retry_after_ms=1000
                )
        else:
            self._answer(call, result)

    def _run(self, method: Method, call: Call) -> None:
        try:
            result = method.run(call)
        except Exception as e:
            self._fail(call, e)
            return
        self._answer(call, result)

    def _answer(self, call: Call, result: Any) -> None:
        if isinstance(result, Promised):
            self._replies.expect()
            open_, timer = threading.Lock(), 0  # whoever takes the lock answers
            if result.overdue is not None and result.seconds is not None:
                late = functools.partial(self._overdue, call, result.overdue, open_)
                timer = self._replies.after(result.seconds, late)
            kept = functools.partial(self._kept, call, result.told, open_, timer)
            result.future.add_done_callback(kept)
        elif result is not DEFERRED and call.wants_answer and self._is_awaited(call):
            self._replies.result(call, result)

    def _kept(
        self,
        call: Call,
        told: Callable[[Any], Any],
        open_: threading.Lock,
        timer: int,
        future: Future[Any],
    ) -> None:
        """Called by the thread that did the work, and has others to answer as well."""
        if not open_.acquire(blocking=False):
            return
        if timer:
            self._replies.give_up(timer)
        try:
            result = told(future.result())
        except Exception as e:
            self._fail(call, e)
        else:
            if self._is_awaited(call):
                self._replies.soon(call, result)
        finally:
            self._replies.settle()

    def _overdue(self, call: Call, error: exceptions.GanttError, open_: threading.Lock) -> None:
        """Called by the timer thread."""
        if open_.acquire(blocking=False):
            try:
                self._fail(call, error)
            finally:
                self._replies.settle()

    def _is_awaited(self, call: Call) -> bool:
        """Whether to answer at all: nobody reads what comes after the caller gave up."""
        is_awaited = call.is_awaited(self._patience)
        if not is_awaited:
            self._count('gantt_rpc_replies_lost_total', 1, reason='late')
        return is_awaited

    def _checked(self, call: Call) -> Method:
        """The method that the message asks for.

        :raises PayloadTooLarge, InvalidMessage, UnsupportedVersion: nothing was done
        """
        size = driver.body_bytes(call.raw)
        if size > self._bytes_max:
            raise exceptions.PayloadTooLarge(size=size, limit=self._bytes_max)
        if not call.has_usable_reply_queue:
            raise exceptions.InvalidMessage(
                field='_reply_q', problem='expected the name of a queue, of 1 to 255 bytes'
            )
        body = call.raw.message
        name = body.get('method')
        if name == self_ping.METHOD:
            call.method = name
            return _PING
        method = self._interface.methods.get(name) if isinstance(name, str) else None
        if method is None or body.get('namespace') is not None:
            known = ', '.join(sorted(self._interface.methods))
            raise exceptions.InvalidMessage(
                field='method', problem=f'{quoting.short(name)} is not known here; known: {known}'
            )
        call.method, call.takes = name, method.takes
        if size > _within(method, self._bytes_max):
            raise exceptions.PayloadTooLarge(size=size, limit=_within(method, self._bytes_max))
        major, minor = self._interface.version
        call.newer_minor = wire.newer_minor(
            name, body.get('version', '1.0'), major=major, minor=minor, exact=self._interface.exact
        )
        args = body.get('args', {})
        if not isinstance(args, dict):
            raise exceptions.InvalidMessage(field='args', problem='expected an object')
        if driver.may_have_surrogates(call.raw):
            wire.whole_text(args, '')
        call.args = args
        return method

    def _fail(self, call: Call, error: Exception) -> None:
        what = call.method or 'a message'
        # The whole body is looked at only where it says more than the error does.
        body = undecoded.original(call.raw) if dead_letters.at_fault(error) else b''
        self._refused(error, what, call.log_id, body)
        if call.wants_answer and self._is_awaited(call):
            self._replies.failure(call, error)

    def _undecodable(self, error: Exception, body: bytes) -> None:
        self._refused(error, 'a message', '-', body)

    def _refused(self, error: Exception, what: str, log_id: str, body: bytes) -> None:
        if isinstance(error, exceptions.NotProven):
            # Anybody can send any number of them: an alarm of a bounded rate says so.
            LOG.debug('Refused %s of %s: %s', what, log_id, error)
            self._count('gantt_rpc_refused_total', 1, code=error.code)
            return
        if not is_answer(error):
            code = 'gantt.error'
            LOG.error('%s of %s failed', what, log_id, exc_info=error)
        else:
            code = getattr(error, 'code', 'gantt.refused')
            if dead_letters.at_fault(error):
                LOG.info(
                    'Refused %s of %s on %s: %s; it begins with %s',
                    what,
                    log_id,
                    self._topic,
                    quoting.plain(f'{error}', LOGGED_CHARACTERS),
                    dead_letters.extract(body),
                )
            else:
                said = quoting.plain(f'{error}', LOGGED_CHARACTERS)
                LOG.info('Refused %s of %s: %s', what, log_id, said)
        self._count('gantt_rpc_refused_total', 1, code=code)
        if self._letters is not None:
            self._letters.put(body, error, topic=self._topic, method=what, request=log_id)


class Topic:
    """One listening server with its pool of threads.

    :ivar carrier: the transport it listens on
    """

    def __init__(
        self,
        transport: Any,
        target: om.Target,
        interface: Interface,
        replies: StockReplies,
        *,
        threads: int,
        queue: int,
        payload_bytes_max: int,
        count: Count,
        letters: DeadLetters | None = None,
    ) -> None:
        self.name = target.topic
        self.carrier, self.target = transport, target
        self._pool = WorkerPool(target.topic, threads, queue)
        self._server = om.get_rpc_server(
            transport,
            target,
            [],
            server_cls=functools.partial(
                CheckedServer,
                interface=interface,
                replies=replies,
                pool=self._pool,
                payload_bytes_max=payload_bytes_max,
                count=count,
                letters=letters,
            ),
        )

    def start(self) -> None:
        """Declare the queues and consume.  The broker must be there.

        :raises Misconfigured: the broker refuses the queues
        """
        self._pool.start()
        try:
            # The library's own executor is never given work here.
            self._server.start(override_pool_size=1)
        except om.MessagingException as e:
            raise self.undeclared(refusals.said(e)) from None

    def undeclared(self, problem: str) -> exceptions.Misconfigured:
        """The error of queues that cannot be declared."""
        return exceptions.Misconfigured(
            option='[oslo_messaging_rabbit]',
            problem=f'the queues of topic {self.name} cannot be declared: {problem}',
            fix=refusals.remedy_of_queues(problem, driver.options(self.carrier)[0]),
        )

    @property
    def depth(self) -> int:
        """How many messages wait for a thread."""
        return self._pool.depth

    @property
    def is_attached(self) -> bool:
        """Whether the broker has its consumer, as far as is known here."""
        channel = driver.attachment_of(self._server)
        if channel is None:
            return False
        # py-amqp's channels say whether they are open, those in memory whether they are closed.
        return bool(getattr(channel, 'is_open', not getattr(channel, 'closed', False)))

    @property
    def is_paused(self) -> bool:
        """Whether nothing is taken off the queue that other processes consume as well."""
        shared = self._server.shared
        return shared is not None and shared.is_held

    def pause(self) -> None:
        """Take nothing off that queue; what is for this process alone is taken all the same."""
        if self._server.shared is not None:
            self._server.shared.hold(True)

    def resume(self) -> None:
        """Take again."""
        if self._server.shared is not None:
            self._server.shared.hold(False)

    def consumers(self) -> int:
        """How many processes consume that queue, this one included unless it is paused.

        :raises BrokerUnavailable: nobody knows
        """
        return driver.consumers(self.carrier, self.name)

    def give_back(self, reason: str) -> int:
        """Have others do what waits for a thread here; how many calls that were."""
        return self._server.give_back(reason)

    def abandon(self) -> None:
        """Consume no more and close, without waiting: it may be stuck.

        What was received is finished.
        """
        threading.Thread(target=self._abandoned, name=f'abandon-{self.name}', daemon=True).start()

    def _abandoned(self) -> None:
        driver.let_go(self._server)
        try:
            self.stop_taking()
            self.finish(_ABANDONED_SECONDS)
        except Exception:  # of a connection that is broken anyway
            LOG.info('Topic %s: its old connection did not close well', self.name, exc_info=True)

    def stop_taking(self) -> None:
        """Consume no more; what was received is kept.  May take some seconds."""
        self._server.stop()

    def finish(self, seconds: float) -> bool:
        """Finish what is queued and let go of the connection."""
        end = time.monotonic() + seconds
        done = self._pool.stop(seconds)
        if not done:
            LOG.warning('Topic %s: %d messages were not finished in time', self.name, self.depth)
        driver.acknowledge(self._server)
        self._server.wait()
        return done and time.monotonic() <= end + 1
