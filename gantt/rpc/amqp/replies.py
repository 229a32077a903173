# SPDX-License-Identifier: Apache-2.0
"""Answers on their way back to callers.

The scheduling thread hands over the answers of a whole batch and writes them
itself: no other thread has to be woken for a reply.  Each reply is tried once;
what cannot be delivered goes to the timer thread, which tries again for a
bounded time.  A reply that is lost all the same loses nothing: the caller repeats
the request under the same request id and gets the same answer.
"""

import collections
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gantt import exceptions
from gantt.core.records.decision import Answer
from gantt.rpc.amqp import envelope, publisher
from gantt.rpc.amqp.timers import DelayedExecutor
from gantt.rpc.call import RpcCall

LOG = logging.getLogger(__name__)

Count = Callable[..., None]


def no_count(name: str, value: float = 1, **labels: str) -> None:
    """Count nothing, for processes without metrics."""


_RETRY_SECONDS_FIRST, _RETRY_SECONDS_MAX = 0.25, 2.0

#: Pause between tries to reach a broker that is away.
_PROBE_SECONDS = 1.0

#: Between tries of a reply queue that takes nothing, by the timer thread.
_STUCK_SECONDS = 10.0

#: Replies that may wait for the background thread; further ones are written by their own thread.
BACKGROUND_REPLIES_MAX = 1000


class PendingReply:
    """A reply: the result or error of a call, to be sent to its caller."""

    __slots__ = ('call', 'error', 'give_up', 'result', 'wait')

    def __init__(self, call: RpcCall, result: Any = None, error: Exception | None = None) -> None:
        self.call = call
        self.result = call.named(result) if error is None else None
        self.error = error
        self.give_up = 0.0
        self.wait = _RETRY_SECONDS_FIRST


class ReplyWriter:
    """Replies that are written a batch at once and confirmed together.

    Implements the scheduler's port ``Replies``; no method raises.  Over the in-process broker they
    are confirmed one by one.
    """

    def __init__(self, later: DelayedExecutor, retry_seconds: float, count: Count) -> None:
        self._delayed_executor = later
        self._retry_seconds = retry_seconds
        self._count = count
        self._expected_count = 0
        self._lock = threading.Lock()
        #: Brokers that took nothing the last time -> when to probe again.
        self._unreachable: dict[Any, float] = {}
        #: Reply queues that took nothing the last time -> when to try again.  A quorum queue
        #: without a leader never confirms: no other caller is to wait for it.
        self._stuck: dict[str, float] = {}
        self._background = DelayedExecutor(1, 'rpc-background')
        self._waiting: collections.deque[PendingReply] = collections.deque()

    def start(self) -> None:
        """Start the timer thread, before the first call comes."""
        self._background.start()

    def stop(self) -> None:
        """Write the replies that wait, after the last answer was handed over, and stop."""
        self._background.stop()
        self._write_waiting()

    @property
    def pending(self) -> int:
        """Accepted calls that have no answer yet."""
        return self._expected_count + len(self._waiting) + self._background.depth

    @property
    def has_room(self) -> bool:
        """True where ``send_soon`` and ``soon`` do not block, for as many as one read brings."""
        return len(self._waiting) < BACKGROUND_REPLIES_MAX // 2

    def expect(self) -> None:
        """Count an accepted call whose answer will come through ``publish``."""
        with self._lock:
            self._expected_count += 1

    def finish(self) -> None:
        """Count a call of ``expect`` as answered, or as one that never will be."""
        with self._lock:
            self._expected_count -= 1

    def after(self, seconds: float, job: Callable[[], None]) -> int:
        """Let the timer thread run a short job later: see :class:`DelayedExecutor`."""
        return self._delayed_executor.after(seconds, job)

    def give_up(self, number: int) -> None:
        """Cancel a job of the timer thread."""
        self._delayed_executor.give_up(number)

    def send(self, answers: Sequence[tuple[Any, Answer]]) -> None:
        """Write the answers of a batch, in the scheduling thread."""
        self._write(self._pending_replies(answers))

    def send_soon(self, answers: Sequence[tuple[Any, Answer]]) -> None:
        """Send answers without waiting for the broker, where that can be."""
        for reply in self._pending_replies(answers):
            self._delay_reply(reply)

    def _pending_replies(self, answers: Sequence[tuple[Any, Answer]]) -> list[PendingReply]:
        batch = []
        for handle, answer in answers:
            try:
                reply = handle.respond(answer)
            except Exception as e:
                LOG.exception('Answer cannot be turned into a reply: request=%s', answer.request_id)
                reply = PendingReply(handle.call, error=_as_reply_error(e))
            if reply is None:
                continue
            self.finish()
            batch.append(reply)
        return batch

    def send_result(self, call: RpcCall, result: Any) -> None:
        """Send a reply where the thread that answers must not wait for the broker."""
        self._delay_reply(PendingReply(call, result))

    def send_error(self, call: RpcCall, error: Exception) -> None:
        """Answer a call with an error; errors other than ours are sent without detail."""
        self._delay_reply(PendingReply(call, error=_as_reply_error(error)))

    def _delay_reply(self, reply: PendingReply) -> None:
        # A refusal does not wait for the broker's confirm: else the receiving thread
        # would take no more than some hundred calls a second just when far more come than can
        # be placed.
        if not reply.call.wants_answer:
            return
        if len(self._waiting) >= BACKGROUND_REPLIES_MAX:
            self._write([reply])
            return
        self._waiting.append(reply)
        # A job that waits already takes this one along.
        self._background.after(0.0, self._write_waiting)

    def _write_waiting(self) -> None:
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if batch:
            self._write(batch)

    def _write(self, batch: Sequence[PendingReply]) -> None:
        """Write replies, taking each connection once; never raises.

        Towards a broker that is away, or a queue that is stuck, nothing is tried here: the timer
        thread does that.
        """
        by_carrier: dict[Any, list[PendingReply]] = collections.defaultdict(list)
        for reply in batch:
            if not reply.call.wants_answer:
                continue
            if reply.call.raw.reply_q in self._stuck:
                self._retry_or_drop(reply, 'caller')
            elif reply.call.raw.carrier in self._unreachable:
                self._retry_or_drop(reply, 'broker')
            else:
                by_carrier[reply.call.raw.carrier].append(reply)
        for key, replies in by_carrier.items():
            self._write_to(key, replies)

    def _write_to(self, key: Any, replies: Sequence[PendingReply]) -> None:
        remaining = collections.deque(replies)
        try:
            with key.sender() as connection:
                if connection.is_amqp:
                    self._deliver(connection, remaining)
                else:
                    self._deliver_in_process(connection, remaining)
            self._unreachable.pop(key, None)
        except exceptions.BrokerUnavailable as e:
            self._mark_unreachable(key)
            LOG.warning(
                'The broker accepts no replies; they are sent again: waiting=%d error=%s',
                len(remaining),
                e,
            )
            for reply in remaining:
                self._retry_or_drop(reply, 'broker')
        except Exception:
            LOG.exception('Replies are lost because of an error: count=%d', len(remaining))
            self._count('gantt_rpc_replies_lost_total', len(remaining), reason='error')

    def _mark_unreachable(self, key: Any) -> None:
        """Probe a broker from now on, whether or not a reply waits for it."""
        is_known = key in self._unreachable
        self._unreachable[key] = time.monotonic() + _PROBE_SECONDS
        if not is_known and not self._delayed_executor.after(
            _PROBE_SECONDS, functools.partial(self._probe_broker, key)
        ):
            del self._unreachable[key]  # its return would go unnoticed

    def _probe_later(self, key: Any) -> int:
        return self._delayed_executor.after(
            _PROBE_SECONDS, functools.partial(self._probe_broker, key)
        )

    def _probe_broker(self, key: Any) -> None:
        """Probe a broker, in the timer thread, until it takes a connection."""
        if key not in self._unreachable:
            return
        try:
            with key.sender():
                pass
        except exceptions.BrokerUnavailable:
            if self._probe_later(key):
                return
        self._unreachable.pop(key, None)

    def _deliver(self, connection: Any, queue: collections.deque[PendingReply]) -> None:
        """Write the replies that wait for a broker; they leave the queue unless it is away.

        :raises BrokerUnavailable: the broker is away
        """
        batch, bodies = [], []
        for reply in queue:
            body = self._body(reply)
            if body is not None:
                batch.append(reply)
                bodies.append((reply.call.raw.reply_q, body))
        outcomes = publisher.write_replies(connection, bodies)
        queue.clear()
        if self._stuck or outcomes.stuck:
            self._note_stuck_queues(batch, set(outcomes.stuck))
        for index in (*outcomes.missing, *outcomes.stuck):
            self._retry_or_drop(batch[index], 'caller')
        for index in outcomes.refused:
            self._retry_or_drop(batch[index], 'broker')

    def _deliver_in_process(self, connection: Any, queue: collections.deque[PendingReply]) -> None:
        """Write replies one by one, as ``_deliver``."""
        while queue:
            body = self._body(queue[0])
            if body is not None:
                try:
                    publisher.publish(connection, '', queue[0].call.raw.reply_q, body)
                except publisher.Undeliverable:
                    self._retry_or_drop(queue[0], 'caller')
            queue.popleft()

    def _note_stuck_queues(self, batch: Sequence[PendingReply], stuck: set[int]) -> None:
        """Record stuck reply queues, and forget those that accept messages again or ended."""
        now = time.monotonic()
        for index, reply in enumerate(batch):
            queue = reply.call.raw.reply_q
            if index not in stuck:
                self._stuck.pop(queue, None)
                continue
            LOG.warning(
                'Reply queue accepts nothing although the broker works; its replies wait '
                'separately: queue=%s',
                queue,
            )
            self._stuck[queue] = now + _STUCK_SECONDS
        for queue, retry_at in list(self._stuck.items()):
            if retry_at + 2 * self._retry_seconds < now:
                self._stuck.pop(queue, None)

    def _body(self, reply: PendingReply) -> bytes | None:
        """Return the body of a reply; None: it cannot be encoded, and is dropped."""
        try:
            return envelope.reply_body(reply.call.raw.msg_id, reply.result, reply.error)
        except Exception:
            LOG.exception('Reply cannot be encoded: method=%s', reply.call.method)
            self._count('gantt_rpc_replies_lost_total', 1, reason='error')
            return None

    def _retry_or_drop(self, reply: PendingReply, reason: str) -> None:
        """Let the timer thread send a reply again, unless its time is over."""
        now = time.monotonic()
        reply.give_up = reply.give_up or now + self._retry_seconds
        wait, reply.wait = reply.wait, min(reply.wait * 2, _RETRY_SECONDS_MAX)
        if now + wait > reply.give_up or not self._delayed_executor.after(
            wait, functools.partial(self._retry, reply, reason)
        ):
            self._count('gantt_rpc_replies_lost_total', 1, reason=reason)
            LOG.info(
                'Reply is lost: method=%s request=%s reason=%s',
                reply.call.method,
                reply.call.log_id,
                reason,
            )

    def _retry(self, reply: PendingReply, reason: str) -> None:
        """Write a reply again, in the timer thread; probe what took nothing only now and then."""
        key, now = reply.call.raw.carrier, time.monotonic()
        if now < max(self._stuck.get(reply.call.raw.reply_q, 0.0), self._unreachable.get(key, 0.0)):
            self._retry_or_drop(reply, reason)
        else:
            self._write_to(key, [reply])


def is_answer(error: Exception) -> bool:
    """Return whether an error is meant for the caller, as opposed to a defect of ours."""
    return isinstance(error, exceptions.GanttError) or getattr(error, 'is_wire_error', False)


def _as_reply_error(error: Exception) -> Exception:
    """Return the error as the caller gets it: ours unchanged, others without detail."""
    if is_answer(error):
        return error.with_traceback(None)
    return exceptions.Unavailable(
        'the request could not be handled: an internal error, see the log of the scheduler',
        error=type(error).__name__,
    )
