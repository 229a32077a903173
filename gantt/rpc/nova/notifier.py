# SPDX-License-Identifier: Apache-2.0
"""Notifications as nova-scheduler emits them: sent by a thread, never waited for.

What cannot be sent in time is dropped and counted: no instance waits for
listeners.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import oslo_messaging as om

from gantt.rpc.amqp import transport
from gantt.rpc.amqp.replies import Count
from gantt.rpc.nova import notifications

LOG = logging.getLogger(__name__)

#: Notifications that may wait: from a burst, or while the broker is away.
QUEUE_LIMIT = 1000
#: Tries to publish a notification.
RETRIES = 2

#: (event, context, serialized RequestSpec)
_Notice = tuple[str, dict[str, Any], dict[str, Any]]


class NovaNotifier:
    """A queue of notifications and its thread; without a driver there is neither.

    :param server: host name in the publisher's id
    :param url: broker of Nova, where [oslo_messaging_notifications] names none
    """

    def __init__(self, conf: Any, url: str, server: str, count: Count) -> None:
        self._count = count
        self._queue: queue.Queue[_Notice | None] = queue.Queue(QUEUE_LIMIT)
        self._thread: threading.Thread | None = None
        self._forms: list[tuple[om.Notifier, Callable[[dict[str, Any]], Any]]] = []
        self._carrier: Any = None
        form = conf.rpc.nova_notification_format
        if form != 'none':
            self._carrier = _carrier(conf, url)
            self._forms = _forms(conf, self._carrier, form, server)

    @property
    def is_enabled(self) -> bool:
        """True where anything is sent: a format and a driver are configured."""
        return bool(self._forms)

    def start(self) -> None:
        """Start the thread, where anything is sent."""
        if self.is_enabled:
            self._thread = threading.Thread(target=self._run, name='nova notices', daemon=True)
            self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Send what waits, for ``seconds`` at most."""
        if self._thread is not None:
            try:
                self._queue.put(None, timeout=seconds)
            except queue.Full:
                LOG.warning(
                    'Notifications are not sent before the end of the process: count=%d',
                    self._queue.qsize(),
                )
            self._thread.join(seconds)
        if self._carrier is not None:
            self._carrier.cleanup()

    def begun(self, context: dict[str, Any], spec: dict[str, Any]) -> None:
        """Notify of the start of a request."""
        self._put((notifications.START, context, spec))

    def ended(
        self, context: dict[str, Any], spec: dict[str, Any], consumers: list[str], hosts: list[str]
    ) -> None:
        """Notify of a request whose instances are all placed."""
        if self.is_enabled:
            spec = notifications.ended(spec, consumers, hosts)
        self._put((notifications.END, context, spec))

    def _put(self, notice: _Notice) -> None:
        if not self.is_enabled:
            return
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            self._count('gantt_nova_notifications_total', outcome='dropped')

    def _run(self) -> None:
        while (notice := self._queue.get()) is not None:
            event, context, spec = notice
            try:
                notification_context = notifications.context(context)
                for notifier, payload in self._forms:
                    notifier.info(notification_context, event, payload(spec))
                self._count('gantt_nova_notifications_total', outcome='sent')
            except Exception:
                LOG.warning('Notification cannot be sent', exc_info=True)
                self._count('gantt_nova_notifications_total', outcome='failed')


def _carrier(conf: Any, url: str) -> Any:
    transport.register_opts(conf)
    # Notifications name no exchange; the library takes that which is set when it makes this.
    conf.set_override('control_exchange', conf.rpc.nova_exchange)
    try:
        carrier = om.get_notification_transport(conf, url=url)
        url_option = conf.oslo_messaging_notifications.transport_url
        if url_option:
            carrier.cleanup()
            carrier = om.get_notification_transport(conf, url=url_option)
    finally:
        conf.clear_override('control_exchange')
    LOG.debug('Notifications are sent to a broker: broker=%s', transport.masked(url_option or url))
    return carrier


def _forms(
    conf: Any, carrier: Any, form: str, server: str
) -> list[tuple[om.Notifier, Callable[[dict[str, Any]], Any]]]:
    forms: list[tuple[om.Notifier, Callable[[dict[str, Any]], Any]]] = []
    if form in ('unversioned', 'both'):
        legacy = om.Notifier(carrier, publisher_id=f'scheduler.{server}', retry=RETRIES)
        forms.append((legacy, notifications.unversioned))
    if form in ('versioned', 'both'):
        newer = om.Notifier(
            carrier,
            publisher_id=f'nova-scheduler:{server}',
            retry=RETRIES,
            topics=conf.rpc.nova_versioned_topics,
        )
        forms.append((newer, notifications.versioned))
    # The library treats the absence of drivers as a driver that may send.
    return forms if set(conf.oslo_messaging_notifications.driver) - {'noop'} else []
