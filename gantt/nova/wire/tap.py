# SPDX-License-Identifier: Apache-2.0
"""Observation of Nova without taking part: a queue of our own, next to nova-scheduler's.

The queue ``scheduler`` is shared by all servers of the topic: reading it would take
calls from them.  So another queue is bound to the same exchanges: the broker puts a
copy of each call, each broadcast and each notification into it.  It is exclusive,
drops the oldest beyond a bound, and is deleted with its connection.  Nothing is
declared that belongs to Nova, and nothing is answered.
"""

import contextlib
import dataclasses
import logging
import re
import threading
import uuid
from collections.abc import Callable
from typing import Any

import amqp
import msgspec

from gantt import exceptions
from gantt.core.messages.base import derived_id
from gantt.core.records.shadow import (
    Observation,
    ObservedBegin,
    ObservedEnd,
    ObservedGuests,
    ObservedRequest,
)
from gantt.nova.wire import casts, legacy, notifier
from gantt.nova.wire import spec as nova_spec
from gantt.nova.wire.objects import fields_of_any
from gantt.rpc import wire
from gantt.rpc.amqp import envelope
from gantt.rpc.amqp.envelope import Incoming

LOG = logging.getLogger(__name__)

#: Messages that the broker keeps for us while we are slow, and for how long.
QUEUED_MOST, QUEUED_MS = 10_000, 60_000
CONNECT_SECONDS = 10.0
#: Between checks whether to stop, and between tries to bind to a missing exchange.
TICK_SECONDS, BIND_SECONDS = 0.5, 10.0
#: Pause before connecting again; doubles.
PAUSE_FIRST, PAUSE_MOST = 1.0, 10.0
#: Lease of a claim that is never created: a request has to name one.
LEASE_SECONDS = 900
#: Routing keys of notifications by default.
NOTIFICATION_ROUTING_KEYS = tuple(
    f'{topic}.{level}'
    for topic in ('notifications', 'versioned_notifications')
    for level in ('info', 'error')
)

#: Notifications of nova-compute when a guest is where it was placed; unversioned ones are
#: called compute.instance.*.
ARRIVAL_EVENTS = frozenset(
    f'instance.{what}.end'
    for what in (
        'create',
        'rebuild',
        'unshelve',
        'resize_finish',
        'live_migration_post_dest',
        'finish_resize',
        'live_migration.post.dest',
    )
)
#: Prefix of the conductor's notifications of failed tasks.
TASK_EVENT_PREFIX = 'compute_task.'
_OBSERVED_EVENT = re.compile(
    '|'.join(map(re.escape, sorted({TASK_EVENT_PREFIX, *ARRIVAL_EVENTS}))).encode()
).search

#: Nova's error, and the name of the conductor's copy of the scheduler's.
_NO_VALID_HOST_NAMES = ('NoValidHost', 'NoValidHost_Remote')
_OBSERVATION_BY_EVENT: dict[str, type[ObservedBegin] | type[ObservedEnd]] = {
    notifier.START: ObservedBegin,
    notifier.END: ObservedEnd,
}


class TapSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for translating observed messages.

    :ivar budget_ms: budget of the dry run
    :ivar max_attempts: most hosts of an answer, the chosen one and alternates, as in nova-scheduler
    :ivar payload_bytes_max: larger messages are skipped
    """

    budget_ms: int = 10_000
    max_attempts: int = 3
    payload_bytes_max: int = 1 << 20


def parse_observation(body: bytes | str, terms: TapSettings) -> Observation | None:
    """Return the observation in a message off the wire; None: nothing that is observed.

    :raises InvalidMessage: it should be observed but cannot be decoded
    """
    raw = body.encode() if isinstance(body, str) else body
    if (
        b'select_destinations' not in raw
        and b'instance_info' not in raw
        and not _OBSERVED_EVENT(raw)
    ):
        return None
    size = envelope.size_of(body)
    if size > terms.payload_bytes_max:
        raise exceptions.PayloadTooLarge(size=size, limit=terms.payload_bytes_max)
    try:
        message = envelope.decode_message(None, raw)
    except Exception as e:  # a foreign message may break a decoder in any way
        raise envelope.decode_refusal(e) from None
    envelope_fields = message.message
    origin = str(message.ctxt.get('request_id') or '')
    if 'event_type' in envelope_fields:
        return _observation_of_notification(
            str(envelope_fields['event_type']), envelope_fields.get('payload'), origin
        )
    args = envelope_fields.get('args')
    if not isinstance(args, dict):
        return None
    match envelope_fields.get('method'):
        case 'select_destinations':
            return _request(message, args, origin, terms)
        case 'update_instance_info':
            guest_event = casts.update_instance_info(args)
            return ObservedGuests(
                host=guest_event.host, consumers=[guest.consumer for guest in guest_event.guests]
            )
        case 'sync_instance_info':
            guest_list = casts.sync_instance_info(args)
            return ObservedGuests(host=guest_list.host, consumers=guest_list.consumers)
    return None


def _observation_of_notification(event: str, payload: Any, origin: str) -> Observation | None:
    """Return the observation in a notification, in its versioned form or the other."""
    notice = _OBSERVATION_BY_EVENT.get(event)
    if notice is not None:
        return notice(origin=origin, consumer=_guest_of(payload))
    if event.startswith(TASK_EVENT_PREFIX):
        return _failed_request(payload, origin)
    if event.removeprefix('compute.') not in ARRIVAL_EVENTS or not isinstance(payload, dict):
        return None
    versioned = fields_of_any(payload)
    data, key = (versioned, 'uuid') if versioned else (payload, 'instance_id')
    guest, host = str(data.get(key) or ''), str(data.get('host') or '')
    return ObservedGuests(host=host, consumers=[guest]) if guest and host else None


def _failed_request(payload: Any, origin: str) -> Observation | None:
    """Return the failed request that a conductor reports where Placement has no candidate.

    nova-scheduler itself sends nothing then.
    """
    if not isinstance(payload, dict):
        return None
    data = fields_of_any(payload)
    if data:
        is_no_host = fields_of_any(data.get('reason')).get('exception') in _NO_VALID_HOST_NAMES
        guest = data.get('instance_uuid')
    else:
        is_no_host = any(
            f"'class': '{name}'" in str(payload.get('reason')) for name in _NO_VALID_HOST_NAMES
        )
        guest = payload.get('instance_id')
    return ObservedBegin(origin=origin, consumer=str(guest)) if is_no_host and guest else None


def _guest_of(payload: Any) -> str:
    """Return the guest that a notification names, in either form; '' where it names none."""
    if not isinstance(payload, dict):
        return ''
    data = fields_of_any(payload)
    if data:
        return str(data.get('instance_uuid') or '')
    spec = payload.get('request_spec')
    properties = spec.get('instance_properties') if isinstance(spec, dict) else None
    return str(properties.get('uuid') or '') if isinstance(properties, dict) else ''


def _request(
    message: Incoming, args: dict[str, Any], origin: str, terms: TapSettings
) -> ObservedRequest:
    wire.check_encodable(args, 'args')
    translated = nova_spec.translate(
        legacy.arguments(args),
        message.ctxt,
        budget_ms=terms.budget_ms,
        lease_seconds=LEASE_SECONDS,
        max_attempts=terms.max_attempts,
    ).request
    # Under an id of its own: the real request may come here one day.
    request = msgspec.structs.replace(
        translated, request_id=derived_id('shadow', translated.request_id), dry_run=True
    )
    moves, hosts = translated.spec.purpose.is_move, translated.spec.ignore_hosts
    return ObservedRequest(
        request=request, origin=origin, source=hosts[0] if moves and hosts else None
    )


@dataclasses.dataclass(eq=False)
class BroadcastTap:
    """A queue for copies of Nova's messages, and the thread that reads it.

    :ivar carrier: transport, from ``transport.nova_transport``
    :ivar receive: called with each observation; must not wait
    :ivar count: adds to a counter
    """

    carrier: Any
    exchange: str
    topic: str
    receive: Callable[[Observation], None]
    count: Callable[..., None]
    terms: TapSettings

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._listening = threading.Event()
        self._unbound_exchanges: list[tuple[str, str]] = []
        self._thread = threading.Thread(target=self._run, name='overhear', daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Stop listening, which deletes the queue; return whether it ended in time."""
        self._stopping.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Wait until calls are received; return whether they are."""
        return self._listening.wait(seconds)

    def _run(self) -> None:
        pause = PAUSE_FIRST
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as e:  # sockets, AMQP, TLS: whatever keeps us out is the reason
                LOG.warning(
                    'Messages of Nova cannot be received; the connection is retried: '
                    'wait_seconds=%.0f error=%s',
                    pause,
                    e,
                )
            if self._listening.is_set():
                pause = PAUSE_FIRST
            self._listening.clear()
            self._stopping.wait(pause)
            pause = min(pause * 2, PAUSE_MOST)

    def _listen(self) -> None:
        """Listen until stopped, or until the connection breaks."""
        with self.carrier.opened() as connection:
            queue = self._declare_queue(connection)
            LOG.info(
                'Requests to a topic of Nova are observed: topic=%s queue=%s', self.topic, queue
            )
            self._listening.set()
            ticks = 0
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    connection.wait(TICK_SECONDS)
                    continue
                ticks += 1
                connection.send_heartbeat()
                if self._unbound_exchanges and ticks * TICK_SECONDS >= BIND_SECONDS:
                    self._bind(connection, queue)
                    ticks = 0

    def _declare_queue(self, own: Any) -> str:
        """Declare the queue and bind it for calls, and to other exchanges as far as they exist."""
        name = f'gantt-shadow.{uuid.uuid4().hex}'
        channel = own.channel()
        channel.queue_declare(
            name,
            durable=False,
            exclusive=True,
            auto_delete=True,
            arguments={
                'x-max-length': QUEUED_MOST,
                'x-overflow': 'drop-head',
                'x-message-ttl': QUEUED_MS,
            },
        )
        channel.queue_bind(name, self.exchange, self.topic)
        self._unbound_exchanges = [(f'{self.topic}_fanout', '')]
        self._unbound_exchanges += [(self.exchange, key) for key in NOTIFICATION_ROUTING_KEYS]
        self._bind(own, name)
        channel.basic_consume(name, no_ack=True, callback=self._handle_message)
        return name

    def _bind(self, own: Any, queue: str) -> None:
        """Bind the queue; an exchange that does not exist (Nova has not started) is tried again."""
        unbound = []
        for exchange, key in self._unbound_exchanges:
            channel = own.channel()
            try:
                channel.queue_bind(queue, exchange, key)
            except amqp.NotFound:
                unbound.append((exchange, key))
            # After an error too: py-amqp reopens a channel that the broker closes then.
            channel.close()
        if len(unbound) < len(self._unbound_exchanges) or not unbound:
            LOG.debug('Exchanges do not exist yet: bindings=%s', unbound)
        self._unbound_exchanges = unbound

    def _handle_message(self, raw_message: Any) -> None:
        """Handle a message; never raises."""
        try:
            observation = parse_observation(
                envelope.bounded_body(raw_message, self.terms.payload_bytes_max), self.terms
            )
        except exceptions.GanttError as e:
            self.count('gantt_shadow_requests_total', outcome='unreadable')
            LOG.info('Message of Nova cannot be read: error=%s', e)
            return
        except Exception:
            LOG.exception('Message of Nova failed unexpectedly and is not compared')
            return
        if observation is not None:
            self.receive(observation)
