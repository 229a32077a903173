# SPDX-License-Identifier: Apache-2.0
"""Messages that cannot be handled, kept in a queue of the broker for inspection.

Off unless ``[rpc] dead_letter_queue`` names the queue.  A caller gets the refusal
anyway; this is for casts, above all reports, whose sender gets no answer.  Letters
are published by a thread of their own and handlers never wait for it: what the
broker does not take is counted and dropped.

The queue drops its oldest letter first.  So that no sender flushes what others sent, each
project, and each host, has a share of it; beyond its share its letters are counted and dropped.
"""

import collections
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import amqp

from gantt import exceptions
from gantt.rpc.amqp import envelope

LOG = logging.getLogger(__name__)

#: Bytes kept of each body; longer ones are cut.
STORED_BYTES = envelope.STORED_BODY_BYTES
#: Letters that may wait for the thread.
WAITING_DEAD_LETTERS_MAX = 200
#: Shares that the queue is divided into; a sender has one.
SENDER_SHARES = 20
#: Senders that are counted separately; the one that has sent nothing for longest is dropped.
SENDERS_MAX = 10_000
#: Characters of the body in a log line.
EXTRACT_CHARACTERS = 160

#: Errors where the message is at fault; sending it again changes nothing.
_MESSAGE_ERRORS = (
    exceptions.InvalidMessage,
    exceptions.PayloadTooLarge,
    exceptions.UnsupportedVersion,
)

#: Callers put their tokens into the context of a message; a cloud's tokens are still valid.
_SECRET = re.compile(rb'((?:token|password|admin_pass|secret)\w*\\*"\s*:\s*\\*")[^"\\]+', re.I)


#: Patterns of a message's sender, the surest first: the context is the caller's and no tenant's.
_SENDER = tuple(
    re.compile(rb'\\*"(?:' + keys + rb')\\*"\s*:\s*\\*"([^"\\]{1,255})')
    for keys in (rb'_context_project_id', rb'project_id', rb'name|host')
)


def is_message_at_fault(error: BaseException) -> bool:
    """Return whether an error is due to the message or a defect of ours, not to an outage."""
    if isinstance(error, _MESSAGE_ERRORS) or isinstance(error.__context__, _MESSAGE_ERRORS):
        return True
    return not (isinstance(error, exceptions.GanttError) or getattr(error, 'is_wire_error', False))


def masked(body: bytes) -> bytes:
    """Return the body with everything that resembles a secret masked."""
    return _SECRET.sub(rb'\1***', body)


def extract(body: bytes) -> str:
    """Return the beginning of a body, for a log line."""
    # Where the library's envelope ends and the message begins.
    start = max(0, body.find(b'"oslo.message"'))
    part = masked(body[start : start + 4 * EXTRACT_CHARACTERS])
    return ascii(part[:EXTRACT_CHARACTERS].decode(errors='replace'))


def queue_arguments(conf: Any, is_quorum: bool) -> dict[str, Any]:
    """Return the arguments to declare the queue: it is bounded by number and by age.

    :param conf: the options of [rpc]
    """
    kind = {'x-queue-type': 'quorum'} if is_quorum else {}
    return kind | {
        'x-max-length': conf.dead_letters_max,
        'x-overflow': 'drop-head',
        'x-message-ttl': conf.dead_letter_seconds * 1000,
    }


def sender(body: bytes) -> bytes:
    """Return the project, else the host, that a message names first; empty where it names none."""
    matches = (pattern.search(body) for pattern in _SENDER)
    return next((match[1] for match in matches if match), b'')


class SenderQuotas:
    """Counts of letters that each sender may still put into the queue.  Not thread-safe.

    :param most: letters that one sender may have in ``seconds``
    :param seconds: seconds for which the queue keeps a letter
    """

    def __init__(
        self, most: int, seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._sender_max = most
        self._seconds = seconds
        self._monotonic = monotonic
        self._sent: collections.OrderedDict[bytes, tuple[float, int]] = collections.OrderedDict()

    def count_dead_letter(self, who: bytes) -> bool:
        """Count one more letter; False where the share is used up."""
        now = self._monotonic()
        since, sent = self._sent.get(who, (now, 0))
        if now - since >= self._seconds:
            since, sent = now, 0
        self._sent[who] = since, min(sent + 1, self._sender_max)
        self._sent.move_to_end(who)
        while len(self._sent) > SENDERS_MAX:
            self._sent.popitem(last=False)
        return sent < self._sender_max


class DeadLetters:
    """A publisher of messages that cannot be handled.  May be used from any thread.

    :param carrier: transport of the broker
    :param server: name of this server in the letters
    :param count: ``Recorder.count``
    """

    def __init__(self, carrier: Any, conf: Any, server: str, count: Callable[..., None]) -> None:
        self._carrier = carrier
        self._conf = conf
        self._server = server
        self._count = count
        self._waiting: collections.deque[amqp.Message] = collections.deque()
        self._shares = SenderQuotas(
            max(1, conf.dead_letters_max // SENDER_SHARES), float(conf.dead_letter_seconds)
        )
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def put(self, body: bytes, error: Exception, **about: str) -> None:
        """Store a message that is at fault, where there is a queue for it; never wait or raise.

        :param about: further headers: topic, method, request
        """
        if not self._conf.dead_letter_queue or not is_message_at_fault(error):
            return
        dead_letter = amqp.Message(
            masked(body[:STORED_BYTES]),
            content_type='application/octet-stream',  # so that it is not decoded by mistake
            delivery_mode=2,
            timestamp=int(time.time()),
            application_headers={
                'code': getattr(error, 'code', 'gantt.error'),
                'problem': f'{error}'[:1000] or type(error).__name__,
                'bytes': envelope.size_of(body),
                'server': self._server,
                **about,
            },
        )
        with self._changed:
            if not self._shares.count_dead_letter(sender(dead_letter.body)):
                self._count('gantt_dead_letters_total', 1, outcome='over_quota')
                return
            if self._stopping or len(self._waiting) >= WAITING_DEAD_LETTERS_MAX:
                self._count('gantt_dead_letters_total', 1, outcome='dropped')
                return
            self._waiting.append(dead_letter)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name='dead-letters', daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self, seconds: float = 2.0) -> None:
        """Publish the letters that wait, then stop."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                batch, self._waiting = self._waiting, collections.deque()
            if not batch:
                return
            self._publish(batch)

    def _publish(self, batch: collections.deque[amqp.Message]) -> None:
        name = self._conf.dead_letter_queue
        total = len(batch)
        try:
            # A connection for each batch: an idle one would send no heartbeats.
            with self._carrier.opened() as connection:
                channel = connection.channel()
                rabbit = self._carrier.rabbit
                channel.queue_declare(
                    name,
                    durable=True,
                    auto_delete=False,
                    arguments=queue_arguments(self._conf, rabbit.rabbit_quorum_queue),
                )
                while batch:
                    channel.basic_publish(batch[0], exchange='', routing_key=name)
                    batch.popleft()
        except Exception as e:  # sockets, AMQP, TLS: letters are not worth more than a line
            self._count('gantt_dead_letters_total', len(batch), outcome='dropped')
            LOG.warning(
                'Messages cannot be stored in the queue of dead letters: count=%d queue=%s '
                'error=%s',
                len(batch),
                name,
                e,
            )
        self._count('gantt_dead_letters_total', total - len(batch), outcome='kept')
