# SPDX-License-Identifier: Apache-2.0
"""Nova's topic: messages from nova-conductor, nova-api and nova-compute to a scheduler.

Interface 4.0 to 4.5, without namespace.  NoValidHost is the only error it has, so
passing outcomes ("busy", "do not know yet", lost conflicts) are tried again within
the budget and then reported as NoValidHost with their reason.
"""

import datetime
import functools
import logging
import time
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.core.resources.host import HostRow
from gantt.nova.model.events import AggregateEvent, GuestEvent, NovaCast
from gantt.nova.wire import casts as nova_casts
from gantt.nova.wire import legacy, objects, remembered
from gantt.nova.wire import spec as nova_spec
from gantt.nova.wire.notifier import NovaNotifier
from gantt.nova.wire.objects import NoValidHost
from gantt.rpc.amqp.replies import PendingReply, ReplyWriter
from gantt.rpc.amqp.timers import DelayedExecutor
from gantt.rpc.call import RpcCall
from gantt.rpc.server import DEFERRED_REPLY, Interface, Method, Pending

LOG = logging.getLogger(__name__)

VERSION = (4, 5)

#: Outcomes that may change a moment later.
_RETRIED_OUTCOMES = (Outcome.BUSY, Outcome.UNKNOWN, Outcome.CONFLICT)

#: Seconds that a caller without call monitoring waits by Nova's default.
_CALL_SECONDS = 60.0

#: After attaching to the queue, calls may come that waited there all along.
_BACKLOG_SECONDS = 30.0

#: Limit of a call: Nova writes a request several times as long as we do, plus its context.
SELECT_BYTES_MAX = 256 << 10

_WAIT_FIRST_MS, _WAIT_MOST_MS = 500, 5000


#: Puts a call back into its queue, for so many seconds; returns whether that was done.
ReturnToQueue = Callable[[RpcCall, float], bool]

#: Heartbeats after which the broker has noticed a dead process at the latest.
_HEARTBEAT_FACTOR = 1.5


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of [rpc] that concern Nova."""

    budget_seconds: int = 45
    lease_seconds: int = 900
    max_attempts: int = 3
    clock_skew_seconds: int = 30


class NovaRequestHandle:
    """A request of Nova that is being answered; submitted again while its answer may change."""

    __slots__ = ('_methods', '_topology', '_wait_ms', 'call', 'deadline', 'destination_request')

    def __init__(
        self,
        methods: 'NovaMethods',
        call: RpcCall,
        destination_request: nova_spec.DestinationRequest,
        deadline: float,
        topology: objects.Topology | None,
    ) -> None:
        self._methods = methods
        self._topology = topology
        self._wait_ms = _WAIT_FIRST_MS
        self.call = call
        self.destination_request = destination_request
        self.deadline = deadline

    def respond(self, answer: Answer) -> PendingReply | None:
        if answer.outcome is Outcome.PLACED:
            destination_request = self.destination_request
            if self._methods.notifier.is_enabled:
                self._methods.notifier.ended(
                    self.call.context,
                    legacy.arguments(self.call.args)['spec_obj'],
                    destination_request.request.consumers,
                    [selection[0].host for selection in answer.selections],
                )
            claimed = destination_request.request.spec.purpose is not Purpose.REBUILD
            return PendingReply(
                self.call,
                objects.destinations(
                    answer.selections,
                    as_objects=destination_request.as_objects,
                    alternates=destination_request.alternates,
                    claimed=claimed,
                    topology=self._topology,
                    host=self._methods.host,
                ),
            )
        if answer.outcome is Outcome.BUSY and self._methods.try_return_to_queue(self):
            return None
        if answer.outcome in _RETRIED_OUTCOMES and self._repeat_later(answer.retry_after_ms):
            return None
        return PendingReply(self.call, error=NoValidHost(answer.reason))

    def _repeat_later(self, hint_ms: int | None) -> bool:
        wait = max(hint_ms or 0, self._wait_ms) / 1000
        self._wait_ms = min(self._wait_ms * 2, _WAIT_MOST_MS)
        if time.monotonic() + wait >= self.deadline:
            return False
        return bool(
            self._methods.later.after(wait, functools.partial(self._methods.resubmit, self))
        )


class NovaMethods:
    """Methods of Nova's topic.

    :param scheduler: the facade, ``gantt.nova.service.facade.NovaFacade``
    :param heartbeat_seconds: seconds after which the broker redelivers the messages of a dead
        process
    :param return_to_queue: puts a call back into the queue; None: never
    """

    def __init__(
        self,
        scheduler: Any,
        replies: ReplyWriter,
        later: DelayedExecutor,
        terms: TopicSettings,
        notifier: NovaNotifier,
        wall: Callable[[], float] = time.time,
        *,
        heartbeat_seconds: float = 20.0,
        return_to_queue: ReturnToQueue | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._replies = replies
        self._terms = terms
        self._wall = wall
        self._heartbeat_seconds = heartbeat_seconds
        self._return_to_queue = return_to_queue
        self._channel: object = None
        self.host: Callable[[int], HostRow | None] = scheduler.host_row
        self._attached_wall_time = wall()
        self._attached_at = time.monotonic()
        self.later = later
        self.notifier = notifier
        self._translations = remembered.Translations()
        casts: dict[str, Callable[[dict[str, Any]], GuestEvent | AggregateEvent]] = {
            'update_aggregates': nova_casts.update_aggregates,
            'delete_aggregate': nova_casts.delete_aggregate,
            'update_instance_info': nova_casts.update_instance_info,
            'delete_instance_info': nova_casts.delete_instance_info,
            'sync_instance_info': nova_casts.sync_instance_info,
        }
        # In the receiving thread: their order is that of the queue.
        methods = {
            name: Method(
                functools.partial(self._cast, f),
                inline=True,
                bytes_max=None,
                parameters={'event': typing.get_type_hints(f)['return']},
            )
            for name, f in casts.items()
        }
        methods['select_destinations'] = Method(
            self.select_destinations,
            inline=True,
            parameters={'request': SelectDestinations},
            bytes_max=SELECT_BYTES_MAX,
        )
        self.interface = Interface(
            methods,
            VERSION,
            exact=True,
            repeatable=frozenset({'select_destinations'}),
            is_placing=True,
        )

    def attached(self) -> None:
        """Note that the consumer was attached to the queue just now."""
        self._attached_wall_time = self._wall()
        self._attached_at = time.monotonic()

    def select_destinations(self, call: RpcCall) -> object:
        try:
            seconds = self._seconds_left(call)
            terms = nova_spec.RequestTerms(
                int(seconds * 1000), self._terms.lease_seconds, self._terms.max_attempts
            )
            destination_request, topology = nova_spec.request_of_call(
                call, self._translations, terms
            )
        except exceptions.GanttError as e:
            raise _as_no_valid_host(e) from None
        handle = NovaRequestHandle(
            self, call, destination_request, call.arrived + seconds, topology
        )
        if self.notifier.is_enabled:
            self.notifier.begin_notification(call.context, legacy.arguments(call.args)['spec_obj'])
        if self._scheduler.has_classes(destination_request.request.spec.classes):
            return self._begin_move(handle)
        return Pending(lambda call: self._begin_move(handle))

    def _begin_move(self, handle: NovaRequestHandle) -> object:
        self._replies.expect()
        try:
            self._begin(handle)
        except exceptions.GanttError as e:
            self._replies.finish()
            raise _as_no_valid_host(e) from None
        except BaseException:
            self._replies.finish()
            raise
        return DEFERRED_REPLY

    def _begin(self, handle: NovaRequestHandle) -> None:
        """Submit a request; a move first reports where its guests are."""
        request = handle.destination_request.request
        spec = request.spec
        retry = functools.partial(self.resubmit, handle)
        if spec.purpose.is_move and spec.ignore_hosts:
            # The host to leave is listed before other ignored hosts.
            self._scheduler.submit_move(request, spec.ignore_hosts[0], retry)
        elif spec.purpose is Purpose.UNSHELVE:
            self._scheduler.submit_move(request, None, retry)
        else:
            self._submit(handle, handle.call.age_ms)

    def resubmit(self, handle: NovaRequestHandle) -> None:
        """Submit a request once more, with the rest of its budget."""
        try:
            self._submit(handle, handle.call.age_ms)
        except Exception as e:
            self._replies.finish()
            error = _as_no_valid_host(e) if isinstance(e, exceptions.GanttError) else e
            self._replies.send_error(handle.call, error)

    def try_return_to_queue(self, handle: NovaRequestHandle) -> bool:
        """Return whether another process is to answer a call that was refused here.

        Nova has no error for "call another one": the call itself goes back.
        """
        seconds = handle.deadline - time.monotonic()
        if (
            self._return_to_queue is None
            or seconds <= 0
            or not self._return_to_queue(handle.call, seconds)
        ):
            return False
        self._replies.finish()
        return True

    def _submit(self, handle: NovaRequestHandle, spent_ms: float) -> None:
        self._scheduler.submit(
            handle.destination_request.request, handle, self._replies, spent_ms=spent_ms, stays=True
        )

    def _cast(
        self, decode: Callable[[dict[str, Any]], GuestEvent | AggregateEvent], call: RpcCall
    ) -> None:
        unique = call.raw.unique_id
        self._scheduler.nova_event(
            NovaCast(
                id=unique[:64] if isinstance(unique, str) else '',
                requested_at=_timestamp(call.raw.timestamp),
                skew=self._terms.clock_skew_seconds,
                event=decode(call.args),
            )
        )

    def _seconds_left(self, call: RpcCall) -> float:
        """Return how long this call may take.

        A call may have waited in the queue while no scheduler listened, longer
        than its caller did; claiming for it would leak.  The message does not have
        the time it was queued, only that of the API request, which for a late
        step of a long operation is long ago too.  So age counts only
        right after attaching to the queue, when such calls come.

        A redelivered call was with a process that ended, or stopped, for an unknown
        time.

        :raises Expired: its caller has given up
        """
        patience = call.monitor_seconds or _CALL_SECONDS
        seconds = min(float(self._terms.budget_seconds), patience * 0.75)
        if call.raw.redelivered:
            # Another process had it for as long as the broker took it for alive, at most.
            seconds = min(seconds, patience - _HEARTBEAT_FACTOR * self._heartbeat_seconds)
            if seconds <= 0:
                raise exceptions.Expired(
                    'the call was redelivered after the process that had taken it stopped, and '
                    f'its caller gave up after {patience:.0f} s'
                )
        self._note_attachment(call)
        if call.arrived - self._attached_at > _BACKLOG_SECONDS:
            return seconds
        sent = _timestamp(call.raw.timestamp)
        if sent is None or sent >= self._attached_wall_time:
            return seconds
        age = self._wall() - sent
        if age > patience + self._terms.clock_skew_seconds:
            raise exceptions.Expired(
                f'the call is {age:.0f} s old: it was queued before this scheduler listened, and '
                f'its caller gave up after {patience:.0f} s'
            )
        return max(1.0, min(seconds, patience - age))

    def _note_attachment(self, call: RpcCall) -> None:
        channel = call.raw.channel
        if channel is not self._channel:
            if self._channel is not None:
                self.attached()
            self._channel = channel


def _timestamp(value: Any) -> float | None:
    """Return a context's timestamp (UTC without zone) as seconds since 1970."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.datetime.fromisoformat(value)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp()


def _as_no_valid_host(error: exceptions.GanttError) -> NoValidHost:
    return NoValidHost(f'{error.message} ({error.code})')
