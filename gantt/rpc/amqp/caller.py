# SPDX-License-Identifier: Apache-2.0
"""Calls and casts as oslo.messaging makes them, each tried once.

Answers of all calls of a transport come to one queue, on a connection of its own.
"""

import contextlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Generator, Iterable
from typing import Any

from oslo_serialization import jsonutils

from gantt import exceptions
from gantt.rpc.amqp import envelope, publisher, queues
from gantt.rpc.amqp.connection import BROKER_ERRORS
from gantt.rpc.amqp.reader import QueueReader
from gantt.rpc.amqp.timers import in_thread

LOG = logging.getLogger(__name__)

#: Bytes of an answer at most.  The largest is that to a request of 1,000 members with 20
#: alternates each: 41 MiB where all 21,000 hosts differ, each name has 255 characters, and each
#: member has 512 processors pinned.  Answers about a group of 1,000 members have less than half
#: of that.
ANSWER_BYTES_MAX = 64 << 20

#: Message id of a call -> answers to it, or the heads of those that are too large.
_AnswersByCall = dict[str, queue.SimpleQueue[dict[str, Any] | envelope.Head]]


class NoReply(Exception):
    """An error where a call had no answer in time."""


class PendingCall:
    """A published call, until its result is read."""

    def __init__(
        self, waiting: _AnswersByCall, msg_id: str, method: str, seconds: float, end: float
    ) -> None:
        self._answers_by_call = waiting
        self._msg_id = msg_id
        self._method = method
        self._seconds = seconds
        self._end = end

    def result(self) -> Any:
        """Return the result; to be called once.

        :raises GanttError: the error that the server raised
        :raises PayloadTooLarge: the answer is not read
        :raises NoReply: no answer came in time
        """
        with contextlib.closing(self.results()) as results:
            for result in results:
                return result
        raise NoReply(f'no answer to {self._method} within {self._seconds:.1f} s')

    def results(self) -> Generator[Any, None, None]:
        """Yield the result of each server that the call went to, until its time is over.

        :raises GanttError, PayloadTooLarge: as :meth:`result`
        """
        answers = self._answers_by_call[self._msg_id]
        try:
            while True:
                answer = answers.get(timeout=max(0.001, self._end - time.monotonic()))
                if isinstance(answer, envelope.Head):
                    raise _too_large(self._method, answer.size)
                if answer.get('failure'):
                    raise envelope.error_in_reply(answer['failure'])
                if answer.get('ending'):  # else the server is at it
                    yield answer.get('result')
        except queue.Empty:
            return
        finally:
            del self._answers_by_call[self._msg_id]


class RpcCaller:
    """Calls and casts of a process over one transport.  Any thread.

    :param carrier: the transport
    """

    def __init__(self, carrier: Any) -> None:
        self._carrier = carrier
        self._lock = threading.Lock()  # for opening, which others wait for
        self._reader: QueueReader | None = None
        #: Of the queue for answers; empty before the first call.
        self.reply_queue = ''
        self._answers: _AnswersByCall = {}

    def begin(
        self,
        exchange: str,
        topic: str,
        method: str,
        args: dict[str, Any],
        *,
        version: str,
        context: dict[str, Any],
        seconds: float,
        also: Iterable[str] = (),
    ) -> PendingCall:
        """Publish a call; its :meth:`PendingCall.result` must be taken, which forgets it.

        :param topic: topic of all servers, or of one server
        :param also: further topics for the same call; a topic without a listener is left out
        :raises BrokerUnavailable: the broker does not take it in time
        :raises publisher.Undeliverable: no queue is bound there: no server listens
        """
        end = time.monotonic() + seconds
        reply_queue = self._listening()
        msg_id = uuid.uuid4().hex
        self._answers[msg_id] = queue.SimpleQueue()
        around = {'_msg_id': msg_id, '_reply_q': reply_queue, '_timeout': None}
        try:
            message = _message_fields(method, args, version, context) | around
            self.send(exchange, topic, message, max(0.001, end - time.monotonic()), True)
            for other in also:
                with contextlib.suppress(exceptions.BrokerUnavailable, publisher.Undeliverable):
                    self.send(exchange, other, message, max(0.001, end - time.monotonic()), True)
        except BaseException:
            del self._answers[msg_id]
            raise
        return PendingCall(self._answers, msg_id, method, seconds, end)

    def cast(
        self,
        exchange: str,
        topic: str,
        method: str,
        args: dict[str, Any],
        *,
        version: str,
        context: dict[str, Any],
    ) -> None:
        """Send without waiting for an answer; the broker has it when this returns.

        :raises BrokerUnavailable, publisher.Undeliverable: as :meth:`begin`
        """
        self.send(exchange, topic, _message_fields(method, args, version, context))

    def send(
        self,
        exchange: str,
        topic: str,
        message: dict[str, Any],
        seconds: float = publisher.CONFIRM_SECONDS,
        expires: bool = False,
    ) -> None:
        """Publish a message in its envelope.

        :param seconds: how long to wait for the broker's confirm
        :param expires: whether the broker drops the message after ``seconds``
        :raises BrokerUnavailable, publisher.Undeliverable: as :meth:`begin`
        """
        text = jsonutils.dumps(message | {'_unique_id': uuid.uuid4().hex})
        body = envelope.envelope_body(text)
        rabbit = self._carrier.rabbit
        with self._carrier.sender() as connection:
            queues.ensure_exchange(connection, exchange, rabbit)
            publisher.publish(
                connection,
                exchange,
                topic,
                body,
                compression=rabbit.kombu_compression,
                keep_seconds=seconds if expires else None,
                seconds=min(seconds, publisher.CONFIRM_SECONDS),
            )

    # -- answers -------------------------------------------------------------------------------
    def _listening(self) -> str:
        """Return the name of the queue for answers, consumed from now on.

        :raises BrokerUnavailable: the broker is away
        """
        with self._lock:
            if self._reader is None:
                reply_queue = queues.reply_queue(self._carrier.user, self._carrier.rabbit)
                answers = _Answers(self._answers)
                reader = QueueReader(
                    self._carrier.connection(),
                    [reply_queue],
                    answers.receive,
                    self._carrier.rabbit,
                    'rpc-answers',
                    taken=answers.acknowledge,
                )
                try:
                    reader.start(is_patient=False)
                except BROKER_ERRORS as e:
                    raise self._carrier.unavailable(e) from None
                self._reader = reader
                self.reply_queue = reply_queue.name
            return self.reply_queue

    def receives_answers(self, seconds: float) -> bool:
        """Return whether answers reach this process, by sending one to its own queue.

        True also where the broker does not accept the message: then it is not the receiving that
        fails.
        """
        reply_queue = self.reply_queue
        if not reply_queue:
            return True
        msg_id = uuid.uuid4().hex
        answers = self._answers[msg_id] = queue.SimpleQueue()
        try:
            with self._carrier.sender() as connection, connection.answered_within(seconds):
                queues.send_to_self(connection, reply_queue, envelope.reply_body(msg_id))
            answers.get(timeout=seconds)
        except queue.Empty:
            return False
        except exceptions.BrokerUnavailable:
            return True
        finally:
            del self._answers[msg_id]
        return True

    def renew(self) -> None:
        """Have answers come to a new queue on a new connection; those to the old one are lost."""
        # A thread that opens one may hang in there: it must not hold up those that come.
        self._lock = threading.Lock()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()
            reader.connection.break_connection()
            # The connection may be stuck: no other thread waits for its end.
            in_thread(reader.close, 'rpc-close')

    def stop(self) -> None:
        """Receive no more answers."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()
            reader.close()


class _Answers:
    """Answers that a connection receives, for the calls that wait for them."""

    def __init__(self, waiting: _AnswersByCall) -> None:
        self._answers_by_call = waiting
        self._last_answer: Any = None

    def receive(self, _queue: queues.Queue, raw: Any) -> None:
        """Hand an answer to its call, if the call still waits."""
        self._last_answer = raw
        try:
            answer: Any = envelope.bounded_body(raw, ANSWER_BYTES_MAX)
            msg_id: Any
            if isinstance(answer, envelope.Head):
                msg_id = answer.address.get('_msg_id')
            else:
                answer = jsonutils.loads(envelope.message_text(answer))
                msg_id = answer.get('_msg_id')
            waiting = self._answers_by_call.get(msg_id)
        except Exception as e:  # a foreign body may break a decoder in any way
            LOG.warning('Reply cannot be read and is dropped: error=%s', envelope.decode_refusal(e))
            return
        if waiting is not None:
            waiting.put(answer)

    def acknowledge(self) -> None:
        """Acknowledge the answers received so far."""
        raw, self._last_answer = self._last_answer, None
        if raw is not None:
            raw.channel.basic_ack(raw.delivery_tag, multiple=True)


def _too_large(method: str, size: int) -> exceptions.PayloadTooLarge:
    return exceptions.PayloadTooLarge(
        f'the answer to {method} has {size} bytes, and at most {ANSWER_BYTES_MAX} are read; the '
        'call may have had its effect',
        size=size,
        limit=ANSWER_BYTES_MAX,
    )


def _message_fields(
    method: str, args: dict[str, Any], version: str, context: dict[str, Any]
) -> dict[str, Any]:
    fields = {f'_context_{name}': value for name, value in context.items()}
    return {'method': method, 'args': args, 'version': version, **fields}
