# SPDX-License-Identifier: Apache-2.0
"""RPC extensions for Nova: its scheduler topic, and the methods of its report sources."""

import logging
from collections.abc import Callable
from typing import Any

from gantt import exceptions
from gantt.core.claims.host_facts import UpdateHostFacts
from gantt.core.messages import base
from gantt.nova.model.source import (
    AggregateUpdate,
    GroupUpdate,
    GuestList,
    GuestLocations,
    ListPendingMigrations,
)
from gantt.nova.wire.notifier import NovaNotifier
from gantt.nova.wire.topic import NovaMethods, TopicSettings
from gantt.rpc import wire
from gantt.rpc.amqp import publisher, transport
from gantt.rpc.amqp.replies import Count, ReplyWriter
from gantt.rpc.amqp.timers import DelayedExecutor
from gantt.rpc.call import RpcCall
from gantt.rpc.server import Interface, Method

LOG = logging.getLogger(__name__)


class NovaTopic:
    """The topic of Nova's schedulers: a ``PeerTopic`` of ``gantt.rpc.service``.

    :param nova: ``gantt.nova.service.facade.NovaFacade``
    :param url: broker, in place of the one that options name
    """

    def __init__(self, conf: Any, nova: Any, count: Count, url: str | None = None) -> None:
        self._conf = conf.rpc
        self._nova = nova
        transport.service_defaults(conf)
        self.carrier: Any = transport.nova_transport(conf, url)
        self.exchange: str = self._conf.nova_exchange
        self.name: str = self._conf.nova_topic
        has_own_broker = bool(self._conf.nova_transport_url)
        self.broker_option = '[rpc] nova_transport_url' if has_own_broker else 'transport_url'
        self._notifier = NovaNotifier(conf, transport.nova_url(conf, url), conf.host, count)
        self.methods: NovaMethods | None = None
        self._is_paused: Callable[[], bool] = lambda: False

    def interface(
        self, replies: ReplyWriter, later: DelayedExecutor, is_paused: Callable[[], bool]
    ) -> Interface:
        """Return the methods; see ``PeerTopic``."""
        self._is_paused = is_paused
        self.methods = NovaMethods(
            self._nova,
            replies,
            later,
            TopicSettings(
                budget_seconds=self._conf.nova_budget_seconds,
                lease_seconds=self._conf.nova_lease_seconds,
                max_attempts=self._conf.nova_max_attempts,
                clock_skew_seconds=self._conf.nova_clock_skew_seconds,
            ),
            self._notifier,
            heartbeat_seconds=self.carrier.rabbit.heartbeat_timeout_threshold,
            return_to_queue=self._return_to_queue,
        )
        return self.methods.interface

    def start(self) -> None:
        """Start the sender of notifications; the topic's consumer is attached next."""
        self._notifier.start()
        if self.methods is not None:
            self.methods.attached()

    def stop(self) -> None:
        """Stop the sender of notifications."""
        self._notifier.stop()

    def _return_to_queue(self, call: RpcCall, seconds: float) -> bool:
        """Put a call of Nova's back into the queue, for other schedulers to take.

        :param seconds: how long the caller waits
        """
        if not self._is_paused() or not call.raw.is_whole_text:
            return False
        message = call.raw.message | {
            '_msg_id': call.raw.msg_id,
            '_reply_q': call.raw.reply_q,
            '_timeout': call.raw.client_timeout,
        }
        try:
            call.raw.carrier.caller.send(self.exchange, self.name, message, seconds, True)
        except (exceptions.BrokerUnavailable, publisher.Undeliverable) as e:
            LOG.warning('Call of Nova cannot be returned to its queue: error=%s', e)
            return False
        return True


#: Method -> its only argument and the argument's type.  All of them may wait.
SOURCE_CALLS: dict[str, tuple[str, type]] = {
    'sync_guests': ('guest_list', GuestList),
    'update_aggregates': ('update', AggregateUpdate),
    'update_server_groups': ('update', GroupUpdate),
    'list_open_moves': ('query', ListPendingMigrations),
    'update_guest_locations': ('update', GuestLocations),
    'update_host_facts': ('update', UpdateHostFacts),
}


def source_methods(nova: Any) -> dict[str, Method]:
    """Return the methods of report sources, and of agents beside them, for ``gantt-stats``.

    :param nova: ``gantt.nova.service.facade.NovaFacade``
    """

    def handler(name: str, argument: str) -> Callable[[RpcCall], Any]:
        def run(call: RpcCall) -> Any:
            update = wire.argument(call)
            if isinstance(update, UpdateHostFacts):
                update = nova.signatures.with_verified_facts(update, call.args[argument])
            elif isinstance(update, GuestList):
                nova.signatures.check_unnumbered(
                    name, update.host, update.signature, call.args[argument]
                )
            return base.to_builtins(getattr(nova.source, name)(update))

        return run

    # They list what a host or a whole cloud has.
    return {
        name: Method(handler(name, argument), parameters={argument: tp}, bytes_max=None)
        for name, (argument, tp) in SOURCE_CALLS.items()
    }
